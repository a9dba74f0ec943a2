//! What every role shares: the types of the API and what JSON and schemas mean (`machinery`, `api`),
//! rules without I/O (`engine`), and how a process starts and stops (`runtime`, `error`).
//!
//! This is a crate of its own, so that a change of a role does not compile it again. The crate
//! `navigator` shows its modules as its own; see `src/lib.rs`.

pub mod api;
pub mod engine;
pub mod error;
pub mod machinery;
pub mod runtime;

#[cfg(test)]
mod testing;
