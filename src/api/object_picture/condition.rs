//! Conditions, operations and what these wait for, as a screen needs them: borrowed texts, empty
//! where the object says nothing.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::Value;

/// Returns the text at a JSON pointer; empty where there is none.
pub fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the time at a JSON pointer, where there is one.
pub(super) fn time_at(value: &Value, pointer: &str) -> Option<Timestamp> {
    text_at(value, pointer).parse().ok()
}

/// Returns the list at a JSON pointer; empty where there is none.
pub(super) fn list_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
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
    pub(super) fn from_value(value: &'a Value) -> Self {
        Self {
            type_: text_at(value, "/type"),
            status: text_at(value, "/status"),
            reason: text_at(value, "/reason"),
            message: text_at(value, "/message"),
            since: time_at(value, "/lastTransitionTime"),
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
    pub(super) fn from_value(value: &'a Value) -> Self {
        let steps = list_at(value, "/steps").iter().map(|step| StepPicture {
            name: text_at(step, "/name"),
            node: text_at(step, "/pilot"),
            phase: text_at(step, "/phase"),
            message: text_at(step, "/message"),
            started: time_at(step, "/startTime"),
            ended: time_at(step, "/completionTime"),
        });
        let blockers = list_at(value, "/blockedBy").iter().map(|block| BlockerPicture {
            predicate: text_at(block, "/predicate"),
            step: text_at(block, "/step"),
            message: text_at(block, "/message"),
            hint: text_at(block, "/hint"),
            since: time_at(block, "/since"),
        });
        Self {
            type_: text_at(value, "/type"),
            phase: text_at(value, "/phase"),
            message: text_at(value, "/message"),
            started: time_at(value, "/startTime"),
            ended: time_at(value, "/completionTime"),
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
    pub fn remedy_text(&self) -> String {
        // A hint that begins with "or" is the alternative to waiting.
        let wait = if self.hint.starts_with("or ") { "wait, " } else { "" };
        format!("{wait}{}", self.hint)
    }
}
