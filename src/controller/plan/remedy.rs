//! What a person can do about something that holds a step.
//!
//! Remedies are values, not sentences, so that the search of `model` can follow each of them and
//! show that it leads on.

use std::fmt;

use crate::api::names::annotation::{GIVE_UP, REPAIRED, UNSAFE_BOOTSTRAP};

/// A way out of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// The wait ends by itself.
    Wait,
    /// Override the predicate: by its name, or by `*` where it has no name in the API.
    Skip(String),
    /// Do what the rule asks for, or override it by its name.
    DoOrSkip { what: &'static str, predicate: String },
    /// Say that it is so, or may be: override the predicate by its name. It does not end by itself.
    Confirm { predicate: &'static str },
    /// Correct the spec of the node, so that the node can start.
    Correct,
    /// Bring the node back, or give up its data, which are those of a volume or of a pod.
    GiveUp { node: String, data: String },
    /// Give up the node of a database cluster whose pod is bound to a machine that may be gone.
    EndPod { node: String },
    /// Do what the message says, or want the node again.
    WantNode { node: String },
    /// Do what the message says, or take the change of the spec back.
    RevertSpec,
    /// Set the phase of a Pilot back.
    ReleasePhase { node: String },
    /// Set the phase of the Pilot of a node that has left back: the node joins again.
    RenewByPhase { node: String },
    /// Delete the claim of a node that has left, or let claims go with their nodes.
    DeleteClaim { claim: String, pool: String },
    /// Raise the number of nodes that may be down.
    AllowMoreDown,
    /// End the canary, one way or the other.
    EndCanary,
    /// Keep at least one node.
    KeepNode,
    /// Let all nodes run one version.
    SettleVersions,
    /// Remove rows that other nodes own now, or override the predicate.
    CleanUp { cluster: String, predicate: String },
    /// Repair the replicas of these nodes by `command`, typed in their pods, and report it; or
    /// override the predicate.
    Repair {
        nodes: Vec<String>,
        namespace: String,
        container: &'static str,
        command: &'static str,
        predicate: &'static str,
    },
    /// Find what changes pods when they are created.
    MendPolicy,
    /// Find what changes this StatefulSet when it is created.
    MendSetPolicy { set: String },
    /// Give up data that are in a pod, or move them.
    MoveData { predicate: &'static str },
    /// Let pods be recreated one after the other, or wait until tokens are renewed.
    RenewTokens { predicate: &'static str },
    /// Let pods be scheduled on this machine again.
    Uncordon { machine: String },
    /// Mend the volume of a node, or give up what is on it.
    MendVolume { node: String, data: Option<String> },
    /// Set the size of a node pool's volumes back.
    PutSizeBack { pool: String, size: String },
    /// Restart a node, so that its volume is mounted anew.
    RestartNode { node: String },
    /// Change the rule of the API server that refuses a pod, or the pod.
    AdmitPod,
    /// Make room in the quota that refuses a pod.
    RaiseQuota,
    /// Want the pool of a Pilot again, or give up the data of its node.
    WantPool { node: String, data: String },
    /// Bring a voter back, or have a node begin the cluster anew from what it has.
    BeginAnew { cluster: String, node: String, id: String, lost: String },
    /// Take the word back that a node begins the cluster anew.
    TakeWordBack { node: String },
}

impl Remedy {
    /// Does what it is about go on only when a person acts? Not where a person wanted it so: a canary,
    /// a phase that was written, a machine that is emptied.
    pub(crate) fn needs_person(&self) -> bool {
        match self {
            Self::Wait
            | Self::Skip(_)
            | Self::DoOrSkip { .. }
            | Self::RenewTokens { .. }
            | Self::RestartNode { .. }
            | Self::ReleasePhase { .. }
            | Self::RenewByPhase { .. }
            | Self::EndCanary
            | Self::Confirm { .. }
            | Self::Uncordon { .. } => false,
            Self::Correct
            | Self::GiveUp { .. }
            | Self::EndPod { .. }
            | Self::WantNode { .. }
            | Self::RevertSpec
            | Self::DeleteClaim { .. }
            | Self::AllowMoreDown
            | Self::KeepNode
            | Self::SettleVersions
            | Self::CleanUp { .. }
            | Self::Repair { .. }
            | Self::MendPolicy
            | Self::MendSetPolicy { .. }
            | Self::MoveData { .. }
            | Self::MendVolume { .. }
            | Self::PutSizeBack { .. }
            | Self::AdmitPod
            | Self::RaiseQuota
            | Self::BeginAnew { .. }
            | Self::TakeWordBack { .. }
            | Self::WantPool { .. } => true,
        }
    }

    /// May what it is about last for as long as it likes? A person wanted it, or it ends at a time
    /// that is known.
    pub(crate) fn is_patient(&self) -> bool {
        !self.needs_person()
            && !matches!(
                self,
                Self::Wait | Self::Skip(_) | Self::DoOrSkip { .. } | Self::RestartNode { .. }
            )
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SKIPS: &str = "spec.updateStrategy.skipPredicates";
        match self {
            Self::Wait => f.write_str("wait"),
            Self::Skip(predicate) if predicate == "*" => {
                write!(f, "wait, or add * (every rule) to {SKIPS}")
            }
            Self::Skip(predicate) => write!(f, "wait, or add {predicate} to {SKIPS}"),
            Self::DoOrSkip { what, predicate } => {
                write!(f, "wait; or, {what}; or add {predicate} to {SKIPS}")
            }
            Self::Confirm { predicate } => write!(
                f,
                "when that may be, add {predicate} to {SKIPS}; or take the change of spec.security back"
            ),
            Self::Correct => f.write_str("correct what it names, or the spec of the node"),
            Self::GiveUp { node, data } => write!(
                f,
                "bring the node back; or, if it is lost for good, give its data up: annotate Pilot \
                 {node} with {GIVE_UP}={data}"
            ),
            Self::EndPod { node } => write!(
                f,
                "wait; if the machine of pod {node} is gone for good, delete its Node, or taint \
                 that with node.kubernetes.io/out-of-service"
            ),
            Self::WantNode { node } => {
                write!(
                    f,
                    "do what it says, or keep {node}: raise replicas of its node pool again, or add the pool again"
                )
            }
            Self::RevertSpec => f.write_str("do what it says, or take the change of the spec back"),
            Self::ReleasePhase { node } => {
                write!(f, "set spec.phase of Pilot {node} back to Running")
            }
            Self::RenewByPhase { node } => write!(
                f,
                "set spec.phase of Pilot {node} back to Running, and the node joins again, empty; \
                 or want fewer nodes"
            ),
            Self::DeleteClaim { claim, pool } => write!(
                f,
                "delete claim {claim}, or set persistence.retention.whenScaled of node pool {pool} \
                 to Delete"
            ),
            Self::AllowMoreDown => {
                f.write_str("bring the node back, or raise spec.updateStrategy.maxUnavailable")
            }
            Self::EndCanary => {
                f.write_str("remove spec.updateStrategy.canary to go on, or revert the spec")
            }
            Self::KeepNode => f.write_str("keep one node, set spec.stopped, or delete the cluster"),
            Self::SettleVersions => {
                f.write_str("delete the pods of the other version, or set spec.version back")
            }
            Self::CleanUp { cluster, predicate } => {
                write!(f, "run kubectl navigator cleanup {cluster}, or add {predicate} to {SKIPS}")
            }
            Self::Repair { nodes, namespace, container, command, predicate } => {
                let (node, others) = nodes
                    .split_first()
                    .map_or(("", &[][..]), |(node, others)| (node.as_str(), others));
                write!(
                    f,
                    "type kubectl --namespace {namespace} exec {node} -c {container} -- {command}, \
                     and when that has ended without an error: kubectl --namespace {namespace} \
                     annotate --overwrite pilot {node} \
                     \"{REPAIRED}=$(date -u +%Y-%m-%dT%H:%M:%SZ)\""
                )?;
                if !others.is_empty() {
                    write!(f, ", and the same for {}", others.join(", "))?;
                }
                write!(f, "; or add {predicate} to {SKIPS}")
            }
            Self::MendPolicy => {
                f.write_str("find the policy or webhook that changes pods, then delete the pod")
            }
            Self::MendSetPolicy { set } => write!(
                f,
                "find the policy or webhook that changes StatefulSets, then have it made anew \
                 around its pods: kubectl delete statefulset {set} --cascade=orphan"
            ),
            Self::MoveData { predicate } => write!(
                f,
                "move them to a node pool with persistence and the same rack, zone and roles, or \
                 give them up: add {predicate} to {SKIPS}"
            ),
            Self::RenewTokens { predicate } => write!(
                f,
                "wait, or have one pod after the other made anew: add {predicate} to {SKIPS}"
            ),
            Self::Uncordon { machine } => write!(
                f,
                "when the machine is ready: kubectl uncordon {machine}, or kubectl navigator drain \
                 {machine} --cancel"
            ),
            Self::MendVolume { node, data } => {
                f.write_str("mend what it names, or the spec of the node")?;
                let Some(data) = data else { return Ok(()) };
                write!(
                    f,
                    "; if the volume is lost for good, give its data up: annotate Pilot {node} \
                     with {GIVE_UP}={data}"
                )
            }
            Self::PutSizeBack { pool, size } => write!(
                f,
                "set persistence.size of node pool {pool} back to {size}; for larger volumes, add \
                 a node pool with another storage class and the same rack, zone and roles, and \
                 remove this one when it serves"
            ),
            Self::RestartNode { node } => write!(
                f,
                "wait; if it stays so, restart the node, since some drivers grow a file system only \
                 when it is mounted: delete pod {node}"
            ),
            Self::AdmitPod => f.write_str(
                "change what refuses it (Pod Security, a LimitRange, a policy or a webhook), or \
                 the spec of the node pool; Kubernetes tries again within 17 minutes",
            ),
            Self::RaiseQuota => f.write_str(
                "raise the quota that it names, or lower resources or replicas of the node pool; \
                 Kubernetes tries again within 17 minutes",
            ),
            Self::WantPool { node, data } => write!(
                f,
                "add the node pool again; or give the data up: annotate Pilot {node} with \
                 {GIVE_UP}={data}"
            ),
            Self::BeginAnew { cluster, node, id, lost } => write!(
                f,
                "no leader can be elected without {lost}: bring one back; or, if they are lost for \
                 good, begin the cluster anew with what {node} has, and lose what it has not: \
                 kubectl navigator unsafe-bootstrap {cluster} {node} --cluster-id {id}"
            ),
            Self::TakeWordBack { node } => {
                write!(f, "wait, or remove annotation {UNSAFE_BOOTSTRAP} from Pilot {node}")
            }
        }
    }
}
