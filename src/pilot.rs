//! The pilot: PID 1 beside one database process. The controller says when, the pilot knows how.
//!
//! `process` owns processes and signals, `volume` the data directory, `kube` all that is said to
//! and heard from the API; `node` decides and carries out. What a database is, and how it is
//! driven, lies behind `database` and `driver`.

pub mod clients;
pub mod database;
pub mod driver;
pub mod http;
pub mod query_answer;
pub mod transfer_progress;
pub mod upkeep_job;

pub mod kube;
pub mod node;
pub mod process;
pub mod security;
pub mod tls;
pub mod volume;
