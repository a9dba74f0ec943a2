//! What a cluster's object says, as every screen words it: the part of a [`ClusterPicture`] that
//! needs no Pilots.
//!
//! Reads the object as JSON in the form of the hub, and borrows its texts: a table has a thousand
//! clusters.
//!
//! [`ClusterPicture`]: super::picture::ClusterPicture

mod condition;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde_json::Value;

pub use self::condition::{
    BlockerPicture, ConditionPicture, OperationPicture, StepPicture, text_at,
};
use self::condition::{list_at, time_at};

/// A node pool, and how many nodes its spec asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPicture<'a> {
    pub name: &'a str,
    pub wanted: i64,
}

/// A cluster, as its object shows it. Texts are empty where the object says nothing.
#[derive(Clone, Debug)]
pub struct ObjectPicture<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub created: Option<Timestamp>,
    pub is_deleted: bool,
    /// As the status says it; see [`Self::phase_word`].
    pub phase: &'a str,
    pub health: &'a str,
    /// Lowest version that runs; before one does, the wanted one.
    pub version: &'a str,
    pub wanted_version: &'a str,
    pub leader: &'a str,
    pub image: &'a str,
    pub pilot_image: &'a str,
    pub ready_nodes: i64,
    pub pools: Vec<PoolPicture<'a>>,
    pub conditions: Vec<ConditionPicture<'a>>,
    pub operation: Option<OperationPicture<'a>>,
    pub last_operation: Option<OperationPicture<'a>>,
    /// The status is about the newest spec.
    pub is_newest: bool,
    spec: Option<&'a Value>,
}

/// What is shown of an object's metadata.
struct ObjectFacts<'a> {
    namespace: &'a str,
    name: &'a str,
    created: Option<Timestamp>,
    is_deleted: bool,
    generation: Option<i64>,
}

impl<'a> ObjectPicture<'a> {
    /// Reads a cluster's object as JSON.
    pub fn new(object: &'a Value) -> Self {
        let facts = ObjectFacts {
            namespace: text_at(object, "/metadata/namespace"),
            name: text_at(object, "/metadata/name"),
            created: time_at(object, "/metadata/creationTimestamp"),
            is_deleted: !text_at(object, "/metadata/deletionTimestamp").is_empty(),
            generation: object.pointer("/metadata/generation").and_then(Value::as_i64),
        };
        Self::from_facts(&facts, object)
    }

    /// Reads an object whose metadata were parsed, as a watch delivers it: `data` is the rest.
    pub fn from_parts(metadata: &'a ObjectMeta, data: &'a Value) -> Self {
        let facts = ObjectFacts {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_deleted: metadata.deletion_timestamp.is_some(),
            generation: metadata.generation,
        };
        Self::from_facts(&facts, data)
    }

    fn from_facts(facts: &ObjectFacts<'a>, data: &'a Value) -> Self {
        let wanted_version = text_at(data, "/spec/version");
        let operation = |pointer| data.pointer(pointer).filter(|value| value.is_object());
        let observed_generation =
            data.pointer("/status/observedGeneration").and_then(Value::as_i64);
        Self {
            namespace: facts.namespace,
            name: facts.name,
            created: facts.created,
            is_deleted: facts.is_deleted,
            phase: text_at(data, "/status/phase"),
            health: text_at(data, "/status/health"),
            version: match text_at(data, "/status/version") {
                "" => wanted_version,
                running_version => running_version,
            },
            wanted_version,
            leader: text_at(data, "/status/leader"),
            image: text_at(data, "/status/image"),
            pilot_image: text_at(data, "/status/pilotImage"),
            ready_nodes: data
                .pointer("/status/readyReplicas")
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            pools: pool_values(data).iter().map(PoolPicture::from_value).collect(),
            conditions: list_at(data, "/status/conditions")
                .iter()
                .map(ConditionPicture::from_value)
                .collect(),
            operation: operation("/status/operation").map(OperationPicture::from_value),
            last_operation: operation("/status/lastOperation").map(OperationPicture::from_value),
            is_newest: facts.generation.is_none() || observed_generation == facts.generation,
            spec: data.get("spec"),
        }
    }

    pub fn find_condition(&self, type_: &str) -> Option<&ConditionPicture<'a>> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Is the condition there, and True?
    pub fn is_true(&self, type_: &str) -> bool {
        self.find_condition(type_).is_some_and(ConditionPicture::is_true)
    }

    fn is_switch_set(&self, switch: &str) -> bool {
        self.spec.and_then(|spec| spec.get(switch)) == Some(&Value::Bool(true))
    }

    /// Does the spec ask for no changes?
    pub fn is_paused(&self) -> bool {
        self.is_switch_set("paused")
    }

    /// Does the spec ask for no running nodes?
    pub fn is_stopped(&self) -> bool {
        self.is_switch_set("stopped")
    }

    /// Returns the phase; Pending before the controller wrote one.
    pub fn phase_word(&self) -> &'a str {
        if self.phase.is_empty() { "Pending" } else { self.phase }
    }

    /// Returns the version that the spec asks for, while another one runs.
    pub fn version_ahead(&self) -> Option<&'a str> {
        Some(self.wanted_version).filter(|desired_version| *desired_version != self.version)
    }

    /// Returns the number of nodes that the pools ask for.
    pub fn wanted_nodes(&self) -> i64 {
        self.pools.iter().map(|pool| pool.wanted).fold(0, i64::saturating_add)
    }

    /// Returns the condition Stalled while it is True. One of an earlier spec says nothing about
    /// the newest: a person may just have mended it.
    pub fn stalled_condition(&self) -> Option<&ConditionPicture<'a>> {
        self.find_condition("Stalled").filter(|condition| condition.is_true() && self.is_newest)
    }
}

impl<'a> PoolPicture<'a> {
    fn from_value(pool: &'a Value) -> Self {
        let desired_nodes = pool.get("replicas").and_then(Value::as_i64).unwrap_or(1);
        Self { name: text_at(pool, "/name"), wanted: desired_nodes }
    }
}

/// Returns the node pools in a cluster's object, as JSON.
pub fn pool_values(data: &Value) -> &[Value] {
    list_at(data, "/spec/nodePools")
}
