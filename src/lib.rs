//! Navigator runs databases: an API server that owns the types, a controller that decides when
//! nodes start, stop and leave, and pilots, PID 1 beside every database process, that know how.
//!
//! Imports go one way: `main → {cli, databases} → local → database → {agent, apiserver,
//! controller, coordinator, pilot, plugin, manifest} → {engine, runtime} → api → machinery`. Roles never import each other, only
//! `databases` names a database, and of the API server only its role names our kinds.
//! `tests/it/architecture.rs` checks these arrows.

pub mod api;
pub mod engine;
pub mod error;
pub mod machinery;
pub mod runtime;

pub mod agent;
pub mod apiserver;
pub mod controller;
pub mod coordinator;
pub mod manifest;
pub mod pilot;
pub mod plugin;

pub mod local;

pub mod database;
pub mod databases;

pub mod cli;

#[cfg(test)]
mod testing;
