//! Processes: the one owner of fork and wait, and the hand-over to another program of the pilot.

pub mod init;
pub mod supervisor;
pub mod takeover;

/// Variable of a program of the pilot that goes on for an earlier one: number of the descriptor that
/// holds what the earlier one left. No child inherits it.
pub const HANDOFF_VARIABLE: &str = "NAVIGATOR_PILOT_HANDOFF";
