//! Navigator runs databases: an API server that owns the types, a controller that decides when
//! nodes start, stop and leave, and pilots, PID 1 beside every database process, that know how.
//!
//! Imports go one way: `main → {cli, databases} → local → database → {agent, apiserver,
//! controller, coordinator, pilot, plugin, manifest} → {engine, runtime} → api → machinery`. Roles never import each other, only
//! `databases` names a database, and of the API server only its role names our kinds.
//! `tests/it/architecture.rs` checks these arrows.
//!
//! Three crates hold these modules, all in this folder: `navigator-base` (`base.rs`) and
//! `navigator-roles` (`roles.rs`) those that change seldom, and this one the others. A path such as
//! `crate::api` means the same in each of them.

pub use navigator_base::{api, engine, error, machinery, runtime};
pub use navigator_roles::{agent, apiserver, pilot};

pub mod controller;
pub mod coordinator;
pub mod manifest;
pub mod plugin;

pub mod local;

pub mod database;
pub mod databases;

pub mod cli;

#[cfg(test)]
mod testing;
