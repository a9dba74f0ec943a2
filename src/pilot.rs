//! The pilot: PID 1 beside one database process. It knows how.

pub mod blockers;
pub mod cassandra;
pub mod cgroup;
pub mod database;
pub mod files;
pub mod http;
pub mod init;
pub mod machine;
pub mod preflight;
pub mod supervisor;
