//! The pilot: PID 1 beside one database process. It knows how.
//!
//! `supervisor` owns processes and signals, `machine` decides, `runner` carries out; `intent`
//! reads what is wanted, `reporter` writes what is. Flavours live behind `database`.

pub mod backoff;
pub mod blockers;
pub mod cgroup;
pub mod cluster;
pub mod database;
pub mod election;
pub mod files;
pub mod flavour;
pub mod folder;
pub mod gate;
pub mod http;
pub mod init;
pub mod intent;
pub mod leader;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod namesake;
pub mod news;
pub mod ownership;
pub mod peers;
pub mod preflight;
pub mod probes;
pub mod registration;
pub mod report;
pub mod reporter;
pub mod ring;
pub mod runner;
pub mod supervisor;
pub mod takeover;
pub mod volume;
