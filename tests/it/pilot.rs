//! The pilot as a process: the real binary as PID 1 of a PID namespace and as a subreaper.

mod api;
mod database;
mod exits;
mod harness;
mod hung;
mod orphans;
mod signals;
mod terminal;
mod threads;
