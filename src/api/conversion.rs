//! Conversion between the hub and v1alpha1, both ways, written by hand: nothing is lost.
//!
//! Two pure functions per kind. `project` shows a hub object in the older form, beside it the
//! *surplus*: what the older form cannot say. `lift` puts both together again. For every canonical
//! hub object `lift(project(h)) == h`, for every canonical older one `project(lift(a, ∅)).0 == a`,
//! and an edit of the older form comes back as written whatever the surplus says.
//!
//! Every struct is destructured in full, so a new field stops the build here.
//! [`surplus`] moves the surplus through its annotation.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{names::annotation, v1alpha1, v1beta1};
use crate::api::{
    cluster_kind::ClusterKind,
    v1beta1::{DatabaseSecurity, PodTemplate, Retention, SecurityMode, is_default},
};

pub mod cluster;
pub mod pilot;
pub(super) mod surplus;

/// Digest of an image. It applies only while repository and tag are what they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSurplus {
    #[serde(default)]
    repository: String,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    digest: String,
}

/// What the older form cannot say about a volume. It applies only while there is a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistenceSurplus {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retention: Option<Retention>,
}

fn project_image(
    image: Option<v1beta1::ImageSpec>,
) -> (Option<v1alpha1::ImageSpec>, Option<ImageSurplus>) {
    let Some(v1beta1::ImageSpec { repository, tag, digest, pull_policy }) = image else {
        return (None, None);
    };
    let tag = tag.unwrap_or_default();
    let surplus = digest.map(|digest| ImageSurplus {
        repository: repository.clone(),
        tag: tag.clone(),
        digest,
    });
    (Some(v1alpha1::ImageSpec { repository, tag, pull_policy }), surplus)
}

fn lift_image(
    image: Option<v1alpha1::ImageSpec>,
    surplus: Option<ImageSurplus>,
) -> Option<v1beta1::ImageSpec> {
    let v1alpha1::ImageSpec { repository, tag, pull_policy } = image?;
    let digest = surplus.and_then(|surplus| {
        let ImageSurplus { repository: for_repository, tag: for_tag, digest } = surplus;
        (for_repository == repository && for_tag == tag).then_some(digest)
    });
    let tag = Some(tag).filter(|tag| !tag.is_empty());
    Some(v1beta1::ImageSpec { repository, tag, digest, pull_policy })
}

fn project_persistence(
    persistence: Option<v1beta1::Persistence>,
) -> (Option<v1alpha1::Persistence>, PersistenceSurplus) {
    let Some(persistence) = persistence else { return (None, PersistenceSurplus::default()) };
    let v1beta1::Persistence { enabled, size, storage_class, labels, annotations, retention } =
        persistence;
    (
        Some(v1alpha1::Persistence { enabled, size, storage_class }),
        PersistenceSurplus { labels, annotations, retention },
    )
}

fn lift_persistence(
    persistence: Option<v1alpha1::Persistence>,
    surplus: PersistenceSurplus,
) -> Option<v1beta1::Persistence> {
    let v1alpha1::Persistence { enabled, size, storage_class } = persistence?;
    let PersistenceSurplus { labels, annotations, retention } = surplus;
    Some(v1beta1::Persistence { enabled, size, storage_class, labels, annotations, retention })
}

/// Removes `mode: Open` where it says all that is said of encryption and logins: v1alpha1 is silent
/// about an open cluster.
fn project_security<K: ClusterKind>(
    security: Option<DatabaseSecurity<K>>,
) -> Option<DatabaseSecurity<K>> {
    let mut security = security?;
    let shared = &mut security.shared;
    let mode = shared.mode.take();
    if mode != Some(SecurityMode::Open) || !shared.is_unset() {
        shared.mode = mode;
    }
    Some(security).filter(|security| !is_default(security))
}

fn lift_security<K: ClusterKind>(security: Option<DatabaseSecurity<K>>) -> DatabaseSecurity<K> {
    let mut security = security.unwrap_or_default();
    if security.shared.is_unset() {
        security.shared.mode = Some(SecurityMode::Open);
    }
    security
}

/// A pod template, split into the fields that v1alpha1 has and the rest.
struct PodScheduling {
    node_selector: BTreeMap<String, String>,
    scheduler_name: String,
    rest: PodTemplate,
}

/// Takes node selector and scheduler name out of a pod template. A node selector or scheduler name
/// of the wrong JSON type stays in the rest, since the template is not validated as a whole.
fn project_pod_template(mut template: PodTemplate) -> PodScheduling {
    let mut node_selector = BTreeMap::new();
    let mut scheduler_name = String::new();
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        if let Some(map) = spec.get("nodeSelector").and_then(string_map) {
            node_selector = map;
            spec.remove("nodeSelector");
        }
        if let Some(Value::String(name)) = spec.get_mut("schedulerName") {
            scheduler_name = std::mem::take(name);
            spec.remove("schedulerName");
        }
        if spec.is_empty() {
            template.remove("spec");
        }
    }
    PodScheduling { node_selector, scheduler_name, rest: template }
}

fn lift_pod_template(scheduling: PodScheduling) -> PodTemplate {
    let PodScheduling { node_selector, scheduler_name, rest: mut template } = scheduling;
    if node_selector.is_empty() && scheduler_name.is_empty() {
        return template;
    }
    let spec = template.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if !spec.is_object() {
        *spec = Value::Object(Map::new());
    }
    if !node_selector.is_empty() {
        let map = node_selector.into_iter().map(|(key, value)| (key, Value::String(value)));
        spec["nodeSelector"] = Value::Object(map.collect());
    }
    if !scheduler_name.is_empty() {
        spec["schedulerName"] = Value::String(scheduler_name);
    }
    template
}

fn string_map(value: &Value) -> Option<BTreeMap<String, String>> {
    let string_entry =
        |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    value.as_object()?.iter().map(string_entry).collect()
}

/// Stores `surplus` in `surpluses` under `name`, unless `surplus` equals its default. A name that
/// is already there keeps its surplus.
pub fn insert_surplus<S: Default + PartialEq>(
    surpluses: &mut BTreeMap<String, S>,
    name: &str,
    surplus: S,
) {
    if !is_default(&surplus) {
        surpluses.entry(name.to_owned()).or_insert(surplus);
    }
}

/// Removes the surplus annotation from metadata: it is a view of the stored object, never part of
/// it.
pub(super) fn drop_annotation(metadata: &mut ObjectMeta) {
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(annotation::SURPLUS);
        if annotations.is_empty() {
            metadata.annotations = None;
        }
    }
}
