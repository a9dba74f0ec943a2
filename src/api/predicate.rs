//! Predicates: the rules that make a step wait while they hold. A database's own are declared in its
//! folder, those of all databases here.
//!
//! Owns what is said of a rule: its name, its sentence, what it speaks against and how it is
//! skipped. The schema, the pilots, `kubectl navigator` and docs/predicates.md go by it.

use super::open_enum::open_enum;

open_enum! {
    /// What a step asks of a database.
    pub enum NodeChange {
        /// This node stops, to be started again.
        #[default]
        Stop,
        /// Another node joins.
        Join,
        /// This node gives its data away and leaves for good.
        Leave,
    }
}

const STOP: &[NodeChange] = &[NodeChange::Stop];
const LEAVE: &[NodeChange] = &[NodeChange::Leave];

/// A rule that makes a step wait while it holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Predicate {
    /// Name of the rule in `status.blockers`, `status.operation.blockedBy` and
    /// `spec.updateStrategy.skipPredicates`.
    pub name: &'static str,
    /// Condition of the rule; it completes the sentence "A step waits while …".
    pub sentence: &'static str,
    /// What the rule speaks against while it holds.
    pub against: &'static [NodeChange],
    pub skip: SkipPolicy,
    /// The rule asks for calm: it holds whenever another node is away or comes back, whether or not
    /// data stay available. It does not hold a node that leaves a machine which the other one has
    /// left before.
    pub calm: bool,
    /// The rule holds only steps that bring another spec to the node. The node may stop and come
    /// back as it was.
    pub of_spec: bool,
    /// The rule holds until a person acts.
    pub needs_person: bool,
    /// What a person can do in place of skipping the rule, where it does not end by itself.
    pub way_out: Option<&'static str>,
}

impl Predicate {
    /// Declares a rule against stopping a node, which is skipped by its name or by `*`.
    pub const fn against_stop(name: &'static str, sentence: &'static str) -> Self {
        Self {
            name,
            sentence,
            against: STOP,
            skip: SkipPolicy::Yes,
            calm: false,
            of_spec: false,
            needs_person: false,
            way_out: None,
        }
    }

    /// Declares a rule against giving another spec to a node. Its pilot alone decides that, so there
    /// is no way to skip it.
    pub const fn against_spec(name: &'static str, sentence: &'static str) -> Self {
        Self { skip: SkipPolicy::Never, of_spec: true, ..Self::against_stop(name, sentence) }
    }

    /// Declares why a database does not let a node leave. The node's pilot alone decides that, so
    /// there is no way to skip it.
    pub const fn against_decommission(name: &'static str, sentence: &'static str) -> Self {
        Self { against: LEAVE, skip: SkipPolicy::Never, ..Self::against_stop(name, sentence) }
    }

    /// May `skipPredicates` name this rule?
    pub fn is_skippable(&self) -> bool {
        matches!(self.skip, SkipPolicy::Yes | SkipPolicy::ByName)
    }
}

/// How a cluster's `spec.updateStrategy.skipPredicates` can skip a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipPolicy {
    /// By its name, or by `*`.
    Yes,
    ByName,
    ByStar,
    Never,
}

impl SkipPolicy {
    /// Returns the policy in the words of a table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::ByName => "by name",
            Self::ByStar => "by *",
            Self::Never => "no",
        }
    }

    /// Do the names that `is_listed` finds in `skipPredicates` skip the predicate `name`?
    pub fn is_skipped(self, name: &str, is_listed: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Yes => is_listed(name) || is_listed("*"),
            Self::ByName => is_listed(name),
            Self::ByStar => is_listed("*"),
            Self::Never => false,
        }
    }
}

pub const PEERS_READY: Predicate =
    Predicate::against_stop("PeersReady", "a pilot of the cluster has not reported for a minute");
pub const HOLDINGS_KNOWN: Predicate = Predicate::against_stop(
    "HoldingsKnown",
    "its database lives and did not say all that it was asked; what held before still holds",
);
pub const DISK_HEADROOM: Predicate = Predicate::against_stop(
    "DiskHeadroom",
    "the data volume is full, so the database would not start again",
);
pub const SPACE_ELSEWHERE: Predicate = Predicate::against_decommission(
    "SpaceElsewhere",
    "it is to leave, and the disks of the other nodes have no room for its data",
);
pub const DEPARTURE_ACCEPTED: Predicate = Predicate::against_decommission(
    "DepartureAccepted",
    "it is to leave, and its database refuses that in words of its own, or does not answer",
);
pub const DATA_OUTLIVES_POD: Predicate = Predicate {
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "DataOutlivesPod",
        "the data are in the pod, which the step would delete, and no pilot says that other nodes \
         have copies of all of it",
    )
};
pub const TOKEN_RENEWAL: Predicate = Predicate {
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "TokenRenewal",
        "the API turns pilots away, since their ServiceAccount was deleted and made again; kubelet \
         renews their tokens within 50 minutes",
    )
};
// A user set each of these in a spec, or skipping it would change nothing.
pub const CANARY_HELD: Predicate = Predicate {
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "CanaryHeld",
        "updateStrategy.canary is reached: remove it to go on, or revert the spec",
    )
};
pub const PHASE_HELD: Predicate = Predicate {
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "PhaseHeld",
        "a person wrote spec.phase of a Pilot: set it back to Running",
    )
};
pub const RESTART_HELPS: Predicate = Predicate {
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "RestartHelps",
        "a pod made of the newest template lacks an annotation of it: a policy or webhook changes \
         pods, and a restart would change nothing",
    )
};
pub const MAX_UNAVAILABLE: Predicate = Predicate {
    against: &[NodeChange::Stop, NodeChange::Leave],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "MaxUnavailable",
        "as many nodes are down as updateStrategy.maxUnavailable allows: bring one back, give it \
         up, or raise the number",
    )
};
pub const VERSION_TURN: Predicate = Predicate::against_stop(
    "VersionTurn",
    "a node that does not serve would get another version before one that serves runs it",
);
pub const CLAIM_KEPT: Predicate = Predicate {
    against: &[NodeChange::Join],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "ClaimKept",
        "a node that left is wanted again, and whenScaled keeps its volume, on which it \
         cannot start: delete the claim, or change the rule",
    )
};
pub const POD_ADMITTED: Predicate = Predicate {
    against: &[NodeChange::Join],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "PodAdmitted",
        "the API server does not let Kubernetes create the node's pod or claim, for a quota, \
         a LimitRange, Pod Security, a policy or a webhook: change that, or the spec",
    )
};
pub const VOLUME_EXPANDS: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "VolumeExpands",
        "persistence.size was raised, and the API server does not let a claim grow, for its \
         storage class or a quota: put the size back, or add a pool of another class",
    )
};
pub const DATA_LEFT: Predicate = Predicate {
    against: &[NodeChange::Leave],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "DataLeft",
        "a node that is not wanted has data on a volume, and its StatefulSet is gone: add \
         the node pool again, or give the data up",
    )
};
pub const MACHINE_CORDONED: Predicate = Predicate {
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "MachineCordoned",
        "a node left its machine at a request, and no other takes it: uncordon the machine",
    )
};
pub const QUORUM_LOST: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "QuorumLost",
        "a person asked a node to begin the cluster anew, and that is not done: a quorum of voters \
         is not known to be lost for good, or this node cannot",
    )
};
pub const VERSION_SETTLED: Predicate = Predicate {
    against: &[NodeChange::Join, NodeChange::Leave],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "VersionSettled",
        "nodes of several versions run, so none joins or leaves: wait for the upgrade; with \
         OnDelete, delete the pods of the other version",
    )
};
pub const KEEPS_SERVING: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "KeepsServing",
        "encryption between nodes and logins are to be turned on or off, for which all nodes of this \
         database stop and start together: skip it when nothing may be served for some minutes",
    )
};
pub const ROLES_REPLICATED: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::Never,
    ..Predicate::against_stop(
        "RolesReplicated",
        "nodes are to ask for passwords, and the ring has not got all users yet",
    )
};
pub const CLIENTS_SEND_LOGINS: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "ClientsSendLogins",
        "nodes are to ask for passwords, and nothing tells whether clients send them: skip it when \
         all do",
    )
};
pub const CLIENTS_ENCRYPTED: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "ClientsEncrypted",
        "nodes are to take TLS alone, and clients are connected without it, or may be",
    )
};
pub const CLIENTS_PLAIN: Predicate = Predicate {
    against: &[],
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "ClientsPlain",
        "nodes are to take plain text alone, and clients are connected with TLS, or may be",
    )
};

/// The predicates of all databases.
pub const SHARED: &[Predicate] = &[
    PEERS_READY,
    HOLDINGS_KNOWN,
    DISK_HEADROOM,
    SPACE_ELSEWHERE,
    DEPARTURE_ACCEPTED,
    DATA_OUTLIVES_POD,
    TOKEN_RENEWAL,
    CANARY_HELD,
    PHASE_HELD,
    RESTART_HELPS,
    VERSION_SETTLED,
    MAX_UNAVAILABLE,
    VERSION_TURN,
    CLAIM_KEPT,
    POD_ADMITTED,
    VOLUME_EXPANDS,
    DATA_LEFT,
    MACHINE_CORDONED,
    QUORUM_LOST,
    KEEPS_SERVING,
    ROLES_REPLICATED,
    CLIENTS_SEND_LOGINS,
    CLIENTS_ENCRYPTED,
    CLIENTS_PLAIN,
];

/// Names that `skipPredicates` accepts in clusters of every database, and that no step waits for.
pub const WITHOUT_EFFECT: &[&str] = &["PreflightPassed"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_skips_what_need_not_be_named() {
        let skipped = |skip: SkipPolicy, listed: &str| skip.is_skipped("A", |name| name == listed);
        for (skip, by_name, by_star) in [
            (SkipPolicy::Yes, true, true),
            (SkipPolicy::ByName, true, false),
            (SkipPolicy::ByStar, false, true),
            (SkipPolicy::Never, false, false),
        ] {
            assert_eq!((skipped(skip, "A"), skipped(skip, "*")), (by_name, by_star), "{skip:?}");
            assert!(!skipped(skip, "B"));
        }
    }

    #[test]
    fn no_departure_that_its_database_refuses_is_skipped() {
        for refusal in [SPACE_ELSEWHERE, DEPARTURE_ACCEPTED] {
            assert!(!refusal.is_skippable() && refusal.skip == SkipPolicy::Never, "{refusal:?}");
        }
    }
}
