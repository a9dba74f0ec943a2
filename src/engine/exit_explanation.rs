//! What it means when a database's process ended by itself.

/// Why a process ended, for `status.lastTermination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitExplanation {
    /// The reason in one word, for machines.
    pub reason: &'static str,
    /// What happened and what to do, for people.
    pub message: &'static str,
    /// The node has left its database cluster for good; another start fails in the same way.
    pub left: bool,
}
