//! The pilot: PID 1 beside one database process. It knows how.

pub mod database;
