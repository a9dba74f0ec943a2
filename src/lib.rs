//! Navigator runs databases: an API server that owns the types, a controller that decides when
//! nodes start, stop and leave, and pilots, PID 1 beside every database process, that know how.
//!
//! Imports go one way: `main → {cli, databases} → database → {apiserver, controller, pilot, plugin,
//! manifest} → {engine, runtime} → api`. Roles never import each other, and only `databases` names
//! a database. `tests/it/architecture.rs` checks these arrows.

pub mod api;
pub mod engine;
pub mod error;
pub mod machinery;
pub mod runtime;

pub mod apiserver;
pub mod controller;
pub mod manifest;
pub mod pilot;
pub mod plugin;

pub mod local;

pub mod database;
pub mod databases;

pub mod cli;
