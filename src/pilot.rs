//! The pilot: PID 1 beside one database process. It knows how.
//!
//! `process` owns processes and signals, `volume` the data directory, `kube` all that is said to
//! and heard from the API; `node` decides and carries out. Which database it is lies behind
//! `flavour` and `database`.

pub mod database;
pub mod flavour;
pub mod http;

pub mod kube;
pub mod node;
pub mod process;
pub mod volume;
