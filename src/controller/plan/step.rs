//! The steps of a plan, and what each needs of the database cluster.

/// One change of a cluster. Each step is safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlannedStep {
    /// Raise the replicas of a pool; Pilots of the new nodes are made first.
    Raise { pool: String, to: u32 },
    /// Raise the replicas of a pool to bring back nodes that have data.
    Return { pool: String, to: u32 },
    /// Give up the volume of a node, and its pod: the node joins again, empty.
    Renew { pilot: String, claim: Option<ClaimRef>, pod: Option<String> },
    /// Give a broken node the newest spec and a new pod.
    Replace { pilot: String, pod: String },
    /// Give a node the newest spec and nothing else. A running node validates it; one that could
    /// not start tries again.
    Configure { pilot: String },
    /// Give a serving node the newest spec and a new pod.
    Restart { pilot: String, pod: String },
    /// Delete the pod of a node that was asked to leave its machine by `by`, and change nothing else.
    Vacate { pilot: String, pod: String, by: String },
    /// Give a node a new pod, of the same spec.
    Recreate { pilot: String, pod: String },
    /// Give a serving node the newest spec and have its pilot restart the database in its pod.
    RestartInPlace { pilot: String },
    /// Ask a pilot to move its node's data away and leave the database cluster.
    Decommission { pilot: String },
    /// Take back the request for a decommission.
    Keep { pilot: String },
    /// Lower the replicas of a pool by one: its last node left the database cluster, or never
    /// served.
    Remove { pool: String, pilot: String, to: u32 },
    /// Have the node of a Pilot let its database forget these nodes, by their ids.
    Forget { pilot: String, nodes: Vec<String> },
    /// Have a node begin the database cluster of this id anew from what it has.
    BeginAnew { pilot: String, cluster: String },
    /// Take a person's word back that a node begins the cluster anew, and the request for it where
    /// that was not carried out.
    TakeWordBack { pilot: String, request: bool },
    /// Take a person's word back that the data of a node are lost: the node serves.
    KeepData { pilot: String },
    /// Delete the claim of a node that left.
    DeleteClaim { pilot: String, claim: ClaimRef },
    /// Enlarge the claim of a node.
    ResizeClaim { pilot: String, claim: ClaimRef, size: String },
    /// Delete a StatefulSet without its pods, so that it is made again around them, with another
    /// template of claims.
    RenewSet { set: String, uid: String },
    /// Delete the Pilot of a node that no longer exists.
    DeletePilot { pilot: String, uid: String },
    /// Delete the objects of a pool that is no longer wanted and has no node left.
    DeletePool { pool: String, set: String },
    /// Ask these pilots to stop their databases.
    Stop { pilots: Vec<String> },
    /// Let these pilots run their databases again.
    Start { pilots: Vec<String> },
    /// Remove the pods of a stopped pool; claims and Pilots stay.
    Empty { pool: String },
    /// Bring another pilot into a running pod. No database is disturbed.
    Deliver { pilot: String, pod: String, container: String, image: String },
}

/// A claim by its name and uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRef {
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// What a step asks of the database cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepNeed {
    /// The step disturbs no node that serves.
    Nothing,
    /// A node joins.
    Join,
    /// A node that serves is stopped for a while, or may be.
    Stop,
    /// A node that serves leaves.
    Leave,
}

impl PlannedStep {
    /// Returns what the step asks of the database cluster; `is_serving` says whether the node of
    /// the step serves.
    pub(super) fn need(&self, is_serving: bool) -> StepNeed {
        match self {
            Self::Raise { .. } => StepNeed::Join,
            Self::Restart { .. } | Self::RestartInPlace { .. } => StepNeed::Stop,
            // A new spec is judged by the running node in its turn, since a crash would start it.
            Self::Configure { .. } | Self::Vacate { .. } if is_serving => StepNeed::Stop,
            Self::Decommission { .. } => StepNeed::Leave,
            Self::Configure { .. }
            | Self::Vacate { .. }
            | Self::Return { .. }
            | Self::Renew { .. }
            | Self::Replace { .. }
            | Self::Recreate { .. }
            | Self::Keep { .. }
            | Self::Remove { .. }
            | Self::Forget { .. }
            | Self::BeginAnew { .. }
            | Self::TakeWordBack { .. }
            | Self::KeepData { .. }
            | Self::DeleteClaim { .. }
            | Self::ResizeClaim { .. }
            | Self::RenewSet { .. }
            | Self::DeletePilot { .. }
            | Self::DeletePool { .. }
            | Self::Stop { .. }
            | Self::Start { .. }
            | Self::Empty { .. }
            | Self::Deliver { .. } => StepNeed::Nothing,
        }
    }

    /// May the cluster have a node less while the step is carried out, or lean on all of its nodes?
    /// Then none may be evicted meanwhile.
    pub(crate) fn may_take_node(&self) -> bool {
        match self {
            Self::Return { .. }
            | Self::Keep { .. }
            | Self::TakeWordBack { .. }
            | Self::KeepData { .. }
            | Self::DeleteClaim { .. }
            | Self::ResizeClaim { .. }
            | Self::DeletePilot { .. }
            | Self::DeletePool { .. }
            | Self::Start { .. }
            | Self::Deliver { .. } => false,
            Self::Raise { .. }
            | Self::Renew { .. }
            | Self::Replace { .. }
            | Self::Configure { .. }
            | Self::Restart { .. }
            | Self::Vacate { .. }
            | Self::Recreate { .. }
            | Self::RestartInPlace { .. }
            | Self::Decommission { .. }
            | Self::Remove { .. }
            | Self::Forget { .. }
            | Self::BeginAnew { .. }
            | Self::RenewSet { .. }
            | Self::Stop { .. }
            | Self::Empty { .. } => true,
        }
    }

    /// Returns the name of the step in `status.operation.steps`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Raise { .. } | Self::Return { .. } | Self::Start { .. } | Self::Keep { .. } => {
                "StartPilot"
            }
            Self::Configure { .. } | Self::RestartInPlace { .. } | Self::BeginAnew { .. } => {
                "RestartPilot"
            }
            Self::Renew { .. }
            | Self::Replace { .. }
            | Self::Recreate { .. }
            | Self::Restart { .. } => "RecreatePod",
            Self::Vacate { .. } => super::VACATE_POD,
            Self::Decommission { .. } => "DrainPilot",
            Self::Remove { .. }
            | Self::Stop { .. }
            | Self::Empty { .. }
            | Self::DeletePilot { .. }
            | Self::DeletePool { .. } => "RemovePilot",
            Self::Forget { .. }
            | Self::TakeWordBack { .. }
            | Self::KeepData { .. }
            | Self::DeleteClaim { .. } => "Cleanup",
            Self::ResizeClaim { .. } | Self::RenewSet { .. } => super::volumes::RESIZE,
            Self::Deliver { .. } => "UpdatePilot",
        }
    }

    pub(crate) fn pilot(&self) -> Option<&str> {
        match self {
            Self::Renew { pilot, .. }
            | Self::Replace { pilot, .. }
            | Self::Recreate { pilot, .. }
            | Self::Configure { pilot }
            | Self::RestartInPlace { pilot }
            | Self::Restart { pilot, .. }
            | Self::Vacate { pilot, .. }
            | Self::Decommission { pilot }
            | Self::Keep { pilot }
            | Self::Remove { pilot, .. }
            | Self::Forget { pilot, .. }
            | Self::BeginAnew { pilot, .. }
            | Self::TakeWordBack { pilot, .. }
            | Self::KeepData { pilot }
            | Self::DeleteClaim { pilot, .. }
            | Self::ResizeClaim { pilot, .. }
            | Self::DeletePilot { pilot, .. }
            | Self::Deliver { pilot, .. } => Some(pilot),
            Self::Raise { .. }
            | Self::Return { .. }
            | Self::DeletePool { .. }
            | Self::RenewSet { .. }
            | Self::Stop { .. }
            | Self::Start { .. }
            | Self::Empty { .. } => None,
        }
    }
}
