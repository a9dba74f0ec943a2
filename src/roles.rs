//! The roles that need no other role: the API server, the pilot, and the agent of the cluster manager.
//!
//! This is a crate of its own, so that a change of the controller does not compile it again. The crate
//! `navigator` shows its modules as its own; see `src/lib.rs`.

use navigator_base::{api, engine, error, machinery, runtime};

pub mod agent;
pub mod apiserver;
pub mod pilot;

#[cfg(test)]
mod testing;
