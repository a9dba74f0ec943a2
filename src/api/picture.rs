//! One picture of a cluster: what is ready, what is done to it and what that waits for, and what is
//! wrong, most grave first.
//!
//! kubectl's columns (by its [`ObjectPicture`]), `local status`, `kubectl navigator status` and the
//! status page draw from it, so that they agree; each owns only what it shows of it and how. Made of
//! the cluster's object and, where they were read, of its Pilots. Pure.

mod node;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, ops::Deref};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde::Serialize;
use serde_json::Value;

pub use self::node::{NodePicture, exit_reason};
use super::{
    object_picture::{BlockerPicture, ConditionPicture, ObjectPicture},
    v1beta1::{Health, Pilot, PilotPhase},
};

/// How soon a person should look, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Urgency {
    /// Data are not served, or nothing goes on without help.
    Critical,
    /// The cluster or node does not serve as it should, or waits for help.
    Warning,
    /// A change is under way, and makes progress.
    Changing,
    /// The cluster or node is meant to rest: it is paused, stopped, fenced or decommissioned.
    Resting,
    Fine,
}

/// Is a cluster ready?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterReadiness {
    /// The condition Ready is True of the newest spec, and every node that was looked at and should
    /// serve does.
    Ready,
    /// The condition is True of the newest spec, and the Pilot of this node, by its place in the
    /// picture, does not say that it serves. A controller that runs soon says so too.
    NodeMissed(usize),
    /// The condition is True of an earlier spec: the controller has not looked at the newest one.
    OfEarlierSpec,
    /// The condition is False or Unknown.
    NotReady,
    /// No controller has looked at the cluster.
    Unseen,
}

/// What is said first of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterHeadline<'a> {
    /// Reason in one word, as in a condition.
    pub reason: &'a str,
    pub message: Cow<'a, str>,
    pub since: Option<Timestamp>,
}

/// One thing that is wrong with a cluster, or that holds a change of it up.
#[derive(Clone, Copy, Debug)]
pub enum ClusterTrouble<'a> {
    /// Nothing goes on without help.
    Stalled(ConditionPicture<'a>),
    /// The cluster served once, and data are not served now.
    Unavailable(ConditionPicture<'a>),
    /// Some data are not served.
    HealthRed,
    /// A predicate holds the operation up.
    Blocked(BlockerPicture<'a>),
    /// The pilot of this node is silent.
    Silent(NodePicture<'a>),
    /// The node should serve, and does not say that it does, though the cluster counts as ready.
    Missed(NodePicture<'a>),
    /// There is less redundancy than wanted, and no operation explains it.
    HealthYellow,
    /// Another condition is not as it should be; that alone is not urgent.
    Remark(ConditionPicture<'a>),
}

/// Conditions of a cluster that are remarked on while they are False.
const REMARKED: [&str; 3] = ["Available", "PilotsCurrent", "Drainable"];

/// A cluster: what its object says, and its nodes.
#[derive(Clone, Debug)]
pub struct ClusterPicture<'a> {
    object: ObjectPicture<'a>,
    /// The nodes whose Pilots were read, in the order of pools and of their numbers.
    pub nodes: Vec<NodePicture<'a>>,
}

impl<'a> Deref for ClusterPicture<'a> {
    type Target = ObjectPicture<'a>;

    fn deref(&self) -> &ObjectPicture<'a> {
        &self.object
    }
}

impl<'a> ClusterPicture<'a> {
    /// Makes the picture of a cluster's object as JSON, without nodes.
    pub fn new(object: &'a Value) -> Self {
        Self { object: ObjectPicture::new(object), nodes: Vec::new() }
    }

    /// Makes the picture of an object whose metadata were parsed, as a watch delivers it: `data` is
    /// the rest.
    pub fn from_parts(metadata: &'a ObjectMeta, data: &'a Value) -> Self {
        Self { object: ObjectPicture::from_parts(metadata, data), nodes: Vec::new() }
    }

    /// Adds the nodes of these Pilots.
    #[must_use]
    pub fn with_nodes(self, pilots: impl IntoIterator<Item = &'a Pilot>) -> Self {
        let mut nodes: Vec<_> = pilots.into_iter().map(NodePicture::new).collect();
        nodes.sort_by_cached_key(|node| self.place_of(node.pilot));
        Self { nodes, ..self }
    }

    /// Returns the key that sorts the cluster's Pilots: by the order of pools in the spec, then by
    /// number.
    pub fn place_of(&self, pilot: &Pilot) -> (usize, String, Option<u32>, String) {
        let node = NodePicture::new(pilot);
        let pool = self.pools.iter().position(|pool| pool.name == node.pool());
        let number = node.name().rsplit('-').next().and_then(|number| number.parse().ok());
        (pool.unwrap_or(usize::MAX), node.pool().to_owned(), number, node.name().to_owned())
    }

    pub fn readiness(&self) -> ClusterReadiness {
        match self.find_condition("Ready") {
            None => ClusterReadiness::Unseen,
            Some(ready_condition) if !ready_condition.is_true() => ClusterReadiness::NotReady,
            Some(_) if !self.is_newest => ClusterReadiness::OfEarlierSpec,
            Some(_) => match self.nodes.iter().position(|node| node.is_unavailable()) {
                Some(index) => ClusterReadiness::NodeMissed(index),
                None => ClusterReadiness::Ready,
            },
        }
    }

    pub fn is_ready(&self) -> bool {
        self.readiness() == ClusterReadiness::Ready
    }

    /// Returns what is said first of the cluster: why it stalls or is not ready, or that it is
    /// paused, else that it is ready. `None` before a controller has looked at it.
    pub fn build_headline(&self) -> Option<ClusterHeadline<'a>> {
        let condition_headline = |condition: &ConditionPicture<'a>, message| ClusterHeadline {
            reason: condition.reason,
            message,
            since: condition.since,
        };
        let ready_condition = self.find_condition("Ready");
        if let Some(stalled_condition) = self.stalled_condition() {
            return Some(condition_headline(stalled_condition, stalled_condition.message.into()));
        }
        match self.readiness() {
            ClusterReadiness::Unseen => None,
            ClusterReadiness::NotReady => ready_condition
                .map(|condition| condition_headline(condition, condition.message.into())),
            ClusterReadiness::OfEarlierSpec => ready_condition.map(|condition| {
                condition_headline(
                    condition,
                    format!("of an earlier spec: {}", condition.message).into(),
                )
            }),
            ClusterReadiness::NodeMissed(index) => {
                let node = self.nodes[index];
                Some(match node.ready_condition() {
                    Some(node_condition) => condition_headline(
                        &node_condition,
                        format!("{}: {}", node.name(), node_condition.message).into(),
                    ),
                    None => ClusterHeadline {
                        reason: "NodesNotReady",
                        message: format!("{} has not reported yet", node.name()).into(),
                        since: None,
                    },
                })
            }
            ClusterReadiness::Ready => {
                let progressing_condition = self.find_condition("Progressing");
                let progressing_condition = progressing_condition
                    .filter(|condition| self.is_paused() && condition.is_false());
                progressing_condition
                    .or(ready_condition)
                    .map(|condition| condition_headline(condition, condition.message.into()))
            }
        }
    }

    /// Returns all that is wrong, most grave first.
    pub fn list_troubles(&self) -> Vec<ClusterTrouble<'a>> {
        let is_resting = self.is_stopped() || self.is_deleted;
        let mut troubles = Vec::new();
        troubles.extend(self.stalled_condition().copied().map(ClusterTrouble::Stalled));
        let is_down = |condition: &&ConditionPicture<'_>| condition.is_false() && !is_resting;
        let unavailable_condition = self.find_condition("Available").filter(is_down);
        let unavailable_condition = unavailable_condition.filter(|_| self.is_true("Initialized"));
        troubles.extend(unavailable_condition.copied().map(ClusterTrouble::Unavailable));
        if !is_resting && self.health == Health::Red.as_str() {
            troubles.push(ClusterTrouble::HealthRed);
        }
        let blockers = self.operation.iter().flat_map(|operation| &operation.blockers);
        troubles.extend(blockers.copied().map(ClusterTrouble::Blocked));
        let silent_nodes = self.nodes.iter().filter(|node| node.phase() == PilotPhase::Unknown);
        troubles.extend(silent_nodes.copied().map(ClusterTrouble::Silent));
        if matches!(self.readiness(), ClusterReadiness::NodeMissed(_)) {
            let is_unavailable = |node: &&NodePicture<'_>| {
                node.is_unavailable() && node.phase() != PilotPhase::Unknown
            };
            let unavailable_nodes = self.nodes.iter().filter(is_unavailable);
            troubles.extend(unavailable_nodes.copied().map(ClusterTrouble::Missed));
        }
        if !is_resting && self.health == Health::Yellow.as_str() && self.operation.is_none() {
            troubles.push(ClusterTrouble::HealthYellow);
        }
        let remarks = self.conditions.iter().filter(|condition| {
            let is_reported = condition.type_ == "Available" && unavailable_condition.is_some();
            REMARKED.contains(&condition.type_) && condition.is_false() && !is_reported
        });
        troubles.extend(remarks.copied().map(ClusterTrouble::Remark));
        troubles
    }

    /// Returns how soon a person should look at the cluster.
    pub fn urgency(&self) -> Urgency {
        let worst_urgency = self.list_troubles().iter().filter_map(ClusterTrouble::urgency).min();
        if let Some(worst_urgency) = worst_urgency {
            return worst_urgency;
        }
        if self.is_paused() {
            return Urgency::Resting;
        }
        if self.operation.is_some() || self.is_deleted {
            return Urgency::Changing;
        }
        if self.is_stopped() {
            return Urgency::Resting;
        }
        match self.find_condition("Ready").map(|condition| condition.status) {
            Some("True") if self.is_ready() => Urgency::Fine,
            Some("False") => Urgency::Warning,
            _ => Urgency::Changing,
        }
    }
}

impl<'a> ClusterTrouble<'a> {
    /// Returns how urgent the trouble is; `None` for a remark.
    pub fn urgency(&self) -> Option<Urgency> {
        match self {
            Self::Stalled(_) | Self::Unavailable(_) | Self::HealthRed => Some(Urgency::Critical),
            Self::Blocked(_) | Self::Silent(_) | Self::Missed(_) | Self::HealthYellow => {
                Some(Urgency::Warning)
            }
            Self::Remark(_) => None,
        }
    }

    /// Returns the condition beside Ready and Stalled that says so, where one does.
    pub fn trouble_condition(&self) -> Option<ConditionPicture<'a>> {
        match self {
            Self::Unavailable(condition) | Self::Remark(condition) => Some(*condition),
            _ => None,
        }
    }
}
