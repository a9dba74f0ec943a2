//! Conditions, operations and what these wait for, as a screen needs them: borrowed texts, empty
//! where the object says nothing.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::Value;

/// Returns the text at a JSON pointer; empty where there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the time at a JSON pointer, where there is one.
pub(super) fn time(value: &Value, pointer: &str) -> Option<Timestamp> {
    text(value, pointer).parse().ok()
}

/// Returns the list at a JSON pointer; empty where there is none.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A condition of a cluster or of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionPicture<'a> {
    pub type_: &'a str,
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
    /// When its status last changed.
    pub since: Option<Timestamp>,
}

impl<'a> ConditionPicture<'a> {
    pub(super) fn read(value: &'a Value) -> Self {
        Self {
            type_: text(value, "/type"),
            status: text(value, "/status"),
            reason: text(value, "/reason"),
            message: text(value, "/message"),
            since: time(value, "/lastTransitionTime"),
        }
    }

    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    pub fn is_false(&self) -> bool {
        self.status == "False"
    }
}

impl<'a> From<&'a Condition> for ConditionPicture<'a> {
    fn from(condition: &'a Condition) -> Self {
        Self {
            type_: &condition.type_,
            status: &condition.status,
            reason: &condition.reason,
            message: &condition.message,
            since: Some(condition.last_transition_time.0),
        }
    }
}

/// An operation: the one that is under way, or the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationPicture<'a> {
    pub type_: &'a str,
    pub phase: &'a str,
    /// How far it is, in a sentence.
    pub message: &'a str,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// Its steps, unfinished ones first.
    pub steps: Vec<StepPicture<'a>>,
    /// What it waits for, oldest first.
    pub blockers: Vec<BlockerPicture<'a>>,
}

/// A step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPicture<'a> {
    pub name: &'a str,
    /// The node that it is done to; empty for a step of the whole cluster.
    pub node: &'a str,
    pub phase: &'a str,
    pub message: &'a str,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
}

/// A predicate that holds a step up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockerPicture<'a> {
    pub predicate: &'a str,
    /// The step that waits, with its node: `RecreatePod/cass-demo-ring-1`.
    pub step: &'a str,
    /// What was found, in a sentence.
    pub message: &'a str,
    pub hint: &'a str,
    pub since: Option<Timestamp>,
}

impl<'a> OperationPicture<'a> {
    pub(super) fn read(value: &'a Value) -> Self {
        let steps = list(value, "/steps").iter().map(|step| StepPicture {
            name: text(step, "/name"),
            node: text(step, "/pilot"),
            phase: text(step, "/phase"),
            message: text(step, "/message"),
            started: time(step, "/startTime"),
            ended: time(step, "/completionTime"),
        });
        let blockers = list(value, "/blockedBy").iter().map(|block| BlockerPicture {
            predicate: text(block, "/predicate"),
            step: text(block, "/step"),
            message: text(block, "/message"),
            hint: text(block, "/hint"),
            since: time(block, "/since"),
        });
        Self {
            type_: text(value, "/type"),
            phase: text(value, "/phase"),
            message: text(value, "/message"),
            started: time(value, "/startTime"),
            ended: time(value, "/completionTime"),
            steps: steps.collect(),
            blockers: blockers.collect(),
        }
    }
}

impl<'a> BlockerPicture<'a> {
    /// Returns the node whose step waits, where the step names one.
    pub fn node(&self) -> Option<&'a str> {
        self.step.split_once('/').map(|(_, node)| node)
    }

    /// Returns what a person can do; empty where nothing is known.
    pub fn advice(&self) -> String {
        // A hint that begins with "or" is the alternative to waiting.
        let wait = if self.hint.starts_with("or ") { "wait, " } else { "" };
        format!("{wait}{}", self.hint)
    }
}
