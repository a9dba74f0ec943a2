//! One database node: its life (`machine`), the loop that carries it out (`runner`), and the
//! reports about it.

pub mod blockers;
pub mod disk_shortage;
pub mod machine;
pub mod metrics;
mod metrics_tls;
pub mod preflight;
pub mod probes;
pub mod report;
pub mod runner;
