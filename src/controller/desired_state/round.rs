//! The next stage of a cluster on its transition to the desired security modes.

use crate::api::v1beta1::{Authentication, SecurityRungs};

/// The stage that all nodes get next; by default the desired modes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityRound {
    /// The modes that each node gets.
    pub rungs: SecurityRungs,
    /// The highest of the desired modes and of those of any node. CAs and users exist for these
    /// modes.
    pub in_force: SecurityRungs,
    /// Whether all nodes have to stop, and start in other modes.
    pub stops_all: bool,
    /// Whether all nodes are stopped, and start together in these modes.
    pub all_stopped: bool,
    /// What the next round waits for: names of predicates, and why each holds.
    pub held: Vec<(&'static str, String)>,
}

impl SecurityRound {
    /// Returns the stage of a cluster whose nodes are not known, or all have the desired modes.
    pub fn without_transition(desired_modes: SecurityRungs) -> Self {
        Self { in_force: desired_modes.clone(), rungs: desired_modes, ..Self::default() }
    }

    /// Returns whether pods mount the users of the database in this stage.
    pub(crate) fn mounts_users(&self, desired_modes: &SecurityRungs) -> bool {
        let requires_password =
            |rungs: &SecurityRungs| rungs.authentication == Authentication::Password;
        requires_password(&self.rungs)
            || (requires_password(desired_modes) && !self.rungs.is_open())
    }
}
