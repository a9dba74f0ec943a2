//! Facts about the claims of nodes, and about the claims that a StatefulSet would make.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};

use super::{PATIENCE, age};
use crate::{
    api::{database_names::DatabaseNames, names::annotation},
    controller::desired_state::DesiredCluster,
    machinery::quantity,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimFacts {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) terminating: bool,
    /// Size that the claim asks for.
    pub(crate) requested: Option<String>,
    pub(crate) capacity: Option<String>,
    /// What Kubernetes says of a volume that is being enlarged.
    pub(crate) resize: Option<ResizeReport>,
    /// Whether the API server would accept the desired size, and its refusal; `None` if it was not
    /// asked. No object shows this.
    pub(crate) expansion: Option<Result<(), String>>,
    /// The volume that the claim had is gone.
    pub(crate) lost: bool,
    /// The claim has a volume that stays, and a node may have written data to it.
    pub(crate) holds_data: bool,
    pub(crate) marks: ClaimMarks,
}

/// What a claim says of whose it is: uid of the cluster, and its labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimMarks {
    pub(crate) uid: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) pool: Option<String>,
}

impl ClaimMarks {
    pub(crate) fn from_metadata(claim: &ObjectMeta, names: &DatabaseNames) -> Self {
        let annotations = claim.annotations.as_ref();
        let label = |key: &str| claim.labels.as_ref()?.get(key).cloned();
        Self {
            uid: annotations.and_then(|entries| entries.get(annotation::CLUSTER_UID)).cloned(),
            cluster: label(names.cluster_label),
            pool: label(names.pool_label),
        }
    }
}

/// What the conditions of a claim say of its growth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResizeReport {
    pub(crate) words: String,
    /// Whether the volume has grown some time ago, and its file system has not. The file system may
    /// grow only when the volume is mounted again.
    pub(crate) needs_restart: bool,
}

/// What a StatefulSet makes new claims of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimTemplate {
    pub(crate) size: Option<String>,
    pub(crate) class: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

impl ClaimFacts {
    /// Returns whether the claim must be enlarged for a volume of `size`.
    pub(crate) fn is_short_of(&self, size: &str) -> bool {
        let is_large_enough =
            self.capacity.as_ref().is_some_and(|capacity| !is_below(Some(capacity), size));
        self.is_bound() && is_below(self.requested.as_ref(), size) && !is_large_enough
    }

    /// Asks the claim for `size`, while its volume is smaller?
    pub(crate) fn is_growing_to(&self, size: &str) -> bool {
        let is_requested = !is_below(self.requested.as_ref(), size);
        self.is_bound() && is_requested && is_below(self.capacity.as_ref(), size)
    }

    /// Returns whether the claim has the cluster's uid.
    pub(crate) fn is_of(&self, desired: &DesiredCluster) -> bool {
        self.marks.uid.as_ref() == Some(&desired.uid)
    }

    fn is_bound(&self) -> bool {
        self.holds_data && !self.terminating
    }
}

/// Returns whether the size is known, and smaller than `other`.
fn is_below(size: Option<&String>, other: &str) -> bool {
    let size = size.and_then(|size| quantity::parse_nanos(size));
    size.zip(quantity::parse_nanos(other)).is_some_and(|(size, other)| size < other)
}

fn requested_storage(spec: Option<&PersistentVolumeClaimSpec>) -> Option<String> {
    let requests = spec?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage").map(|quantity| quantity.0.clone())
}

pub(super) fn claim_facts(
    claim: &PersistentVolumeClaim,
    names: &DatabaseNames,
    now: Timestamp,
) -> ClaimFacts {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let terminating = claim.metadata.deletion_timestamp.is_some();
    ClaimFacts {
        name: claim.metadata.name.clone().unwrap_or_default(),
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        resource_version: claim.metadata.resource_version.clone().unwrap_or_default(),
        terminating,
        requested: requested_storage(claim.spec.as_ref()),
        capacity: capacity.and_then(|c| c.get("storage")).map(|quantity| quantity.0.clone()),
        resize: resize_report(claim, now),
        expansion: None,
        lost: phase == Some("Lost"),
        holds_data: phase == Some("Bound") && !terminating,
        marks: ClaimMarks::from_metadata(&claim.metadata, names),
    }
}

/// Types of a claim's conditions that describe its growth.
const OF_RESIZE: [&str; 4] =
    ["ControllerResizeError", "NodeResizeError", "FileSystemResizePending", "Resizing"];

fn resize_report(claim: &PersistentVolumeClaim, now: Timestamp) -> Option<ResizeReport> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    let true_condition = |type_: &&str| {
        conditions.iter().find(|condition| condition.type_ == **type_ && condition.status == "True")
    };
    let first_condition = OF_RESIZE.iter().find_map(true_condition)?;
    let message = first_condition.message.as_deref().unwrap_or_default();
    let words = if message.is_empty() {
        first_condition.type_.clone()
    } else {
        format!("{}: {message}", first_condition.type_)
    };
    let pending_condition = true_condition(&"FileSystemResizePending");
    let since = pending_condition
        .map(|condition| condition.last_transition_time.as_ref().map(|time| time.0));
    let needs_restart =
        since.is_some_and(|since| since.is_none_or(|since| age(since, now) >= PATIENCE));
    Some(ResizeReport { words, needs_restart })
}

impl ClaimTemplate {
    /// Returns what the StatefulSet makes new claims of; `None` where it makes none.
    pub(super) fn of_set(set: &StatefulSet) -> Option<Self> {
        let templates = set.spec.as_ref()?.volume_claim_templates.as_ref()?;
        templates.first().map(Self::from_claim)
    }

    pub(crate) fn from_claim(template: &PersistentVolumeClaim) -> Self {
        Self {
            size: requested_storage(template.spec.as_ref()),
            class: template.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()),
            labels: template.metadata.labels.clone().unwrap_or_default(),
            annotations: template.metadata.annotations.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::ToSpan;
    use serde_json::json;

    use super::*;
    use crate::controller::testing::example::EXAMPLE;

    fn facts(
        requested: &str,
        capacity: Option<&str>,
        conditions: &serde_json::Value,
    ) -> ClaimFacts {
        let claim = json!({
            "metadata": {"name": "c", "uid": "c"},
            "spec": {"resources": {"requests": {"storage": requested}}},
            "status": {
                "phase": "Bound", "conditions": conditions,
                "capacity": capacity.map(|size| json!({"storage": size})),
            },
        });
        claim_facts(&serde_json::from_value(claim).unwrap(), EXAMPLE.names, now())
    }

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_claim_is_short_grows_or_is_large_enough() {
        let state = |requested, capacity| {
            let claim = facts(requested, capacity, &json!([]));
            (claim.is_short_of("2Gi"), claim.is_growing_to("2Gi"))
        };
        assert_eq!(state("1Gi", Some("1Gi")), (true, false));
        assert_eq!(state("2048Mi", Some("1Gi")), (false, true));
        assert_eq!(state("2Gi", Some("2Gi")), (false, false));
        assert_eq!(state("1Gi", Some("10Gi")), (false, false), "its volume is larger than asked");
        assert_eq!(state("3Gi", Some("3Gi")), (false, false));
        let gone = ClaimFacts { terminating: true, ..facts("1Gi", Some("1Gi"), &json!([])) };
        assert!(!gone.is_short_of("2Gi"));
    }

    #[test]
    fn a_file_system_that_waits_for_two_minutes_needs_a_restart() {
        let report = |type_: &str, seconds: i64| {
            let since = (now() - seconds.seconds()).to_string();
            let condition = json!([{
                "type": type_, "status": "True", "message": "why", "lastTransitionTime": since,
            }]);
            facts("2Gi", Some("1Gi"), &condition).resize.unwrap()
        };
        assert!(!report("FileSystemResizePending", 1).needs_restart);
        assert!(report("FileSystemResizePending", 120).needs_restart);
        let failed = report("ControllerResizeError", 120);
        assert_eq!((&*failed.words, failed.needs_restart), ("ControllerResizeError: why", false));
        assert_eq!(facts("2Gi", Some("1Gi"), &json!([])).resize, None);
    }
}
