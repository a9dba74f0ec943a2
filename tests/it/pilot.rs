//! The pilot as a process: the real binary as PID 1 of a PID namespace and as a subreaper.

mod api;
mod configuration;
mod database;
mod exits;
mod harness;
mod host;
mod hung;
mod orphans;
mod signals;
// What an init owes a database, shared with the table that `make compare-inits` prints.
#[path = "../inits/suite.rs"]
#[allow(dead_code, reason = "the table uses all of it")]
mod suite;
mod takeover;
mod terminal;
mod threads;
