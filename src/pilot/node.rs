//! One database node: what its life is (`machine`), what carries that out (`runner`), and what is
//! told of it.

pub mod blockers;
pub mod machine;
pub mod metrics;
pub mod preflight;
pub mod probes;
pub mod report;
pub mod runner;
