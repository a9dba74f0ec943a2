//! The pilot as a process: the real binary as PID 1 of a PID namespace and as a subreaper.

mod alone;
mod at_rest;
mod away;
mod bootstrap;
mod configuration;
mod core_dumps;
mod database;
mod decommission;
mod events;
mod exits;
mod follows;
mod full_volume;
mod harness;
mod host;
mod hung;
mod installed;
mod joins;
mod kept;
mod memory;
mod namesake;
mod orphans;
mod outage;
mod panics;
mod preflight;
mod signals;
mod stalled;
// What an init owes a database, shared with the table that `make compare-inits` prints.
#[path = "../inits/suite.rs"]
#[allow(dead_code, reason = "the table uses all of it")]
mod suite;
mod takeover;
mod terminal;
mod threads;
mod volume;
