//! Processes: the one owner of fork and wait, and the hand-over to another program of the pilot.

pub mod init;
pub mod supervisor;
pub mod takeover;
