//! Where the nodes of a cluster are to be, on the way to the encryption and logins that are wanted.

use crate::api::v1beta1::{Authentication, SecurityRungs};

/// Where all nodes go next; by default where they are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityRound {
    /// What each node is to be told.
    pub rungs: SecurityRungs,
    /// The highest of what is wanted and of what any node may be on: what CAs and users are kept for.
    pub in_force: SecurityRungs,
    /// All nodes are to be stopped, and started on other rungs.
    pub stops_all: bool,
    /// All nodes are stopped, and come back together on these rungs.
    pub all_stopped: bool,
    /// What the next round waits for: names of predicates, and why each holds.
    pub held: Vec<(&'static str, String)>,
}

impl SecurityRound {
    /// The round of a cluster whose nodes are not known, or are all where they are wanted.
    pub fn settled(wanted: SecurityRungs) -> Self {
        Self { in_force: wanted.clone(), rungs: wanted, ..Self::default() }
    }

    /// Do pods mount the users of the database in this round?
    pub(crate) fn mounts_users(&self, wanted: &SecurityRungs) -> bool {
        let asks = |rungs: &SecurityRungs| rungs.authentication == Authentication::Password;
        asks(&self.rungs) || (asks(wanted) && !self.rungs.is_open())
    }
}
