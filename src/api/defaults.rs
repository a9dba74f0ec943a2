//! The defaults that the server writes, and the canonical form of what it stores.
//!
//! Few on purpose: a live object equals its manifest. Defaulting never looks at other objects or
//! the clock, and is idempotent. Code that needs any other default computes it as an effective
//! value.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    cluster_kind::ClusterKind,
    conversion::drop_annotation,
    v1beta1::{
        Cluster, ClusterSpec, ImageSpec, NodePool, Persistence, Pilot, PilotIntent, PodTemplate,
        is_default,
    },
};

/// Replicas of a new node pool whose manifest does not set `replicas`.
const NEW_POOL_REPLICAS: i32 = 1;

/// Fills absent fields of a cluster with defaults. A pool's absent `replicas` takes the value of
/// the pool of that name in `stored`.
pub(super) fn cluster<K: ClusterKind>(cluster: &mut Cluster<K>, stored: Option<&Cluster<K>>) {
    metadata(&mut cluster.metadata);
    let stored_pools = stored.map_or(&[][..], |stored| &stored.spec.node_pools);
    let ClusterSpec {
        image,
        pilot_image,
        security_context,
        jvm,
        pod_template,
        update_strategy,
        services,
        security,
        pilot_settings,
        node_pools,
        version: _,
        paused: _,
        stopped: _,
        restarted_at: _,
        config: _,
        own: _,
    } = &mut cluster.spec;
    self::image(image);
    self::image(pilot_image);
    no_empty(security_context);
    no_empty(jvm);
    self::pod_template(pod_template);
    no_empty(update_strategy);
    no_empty(services);
    if let Some(security) = security {
        no_empty(&mut security.network);
    }
    no_empty(security);
    no_empty(pilot_settings);
    for pool in node_pools {
        let NodePool {
            name,
            replicas,
            resources,
            persistence,
            jvm,
            pod_template,
            own,
            zone: _,
            restarted_at: _,
            config: _,
        } = pool;
        let before = stored_pools.iter().find(|stored| stored.name == *name);
        self::replicas(replicas, before.and_then(|stored| stored.replicas));
        no_empty(resources);
        self::persistence(persistence);
        no_empty(jvm);
        self::pod_template(pod_template);
        K::default_pool(name, own);
    }
}

/// Fills absent fields of a Pilot with defaults.
pub(super) fn pilot(pilot: &mut Pilot) {
    metadata(&mut pilot.metadata);
    let spec = &mut pilot.spec;
    if spec.phase.as_ref().is_none_or(|phase| phase.as_str().is_empty()) {
        spec.phase = Some(PilotIntent::Running);
    }
    // v1alpha1 cannot tell an empty name from an absent one.
    no_empty(&mut spec.node_pool);
    no_empty(&mut spec.jvm);
}

/// Removes the surplus annotation and empty fields from metadata.
pub(super) fn metadata(metadata: &mut ObjectMeta) {
    drop_annotation(metadata);
    no_empty(&mut metadata.annotations);
    no_empty(&mut metadata.labels);
    no_empty(&mut metadata.finalizers);
    no_empty(&mut metadata.owner_references);
}

fn image(image: &mut Option<ImageSpec>) {
    if let Some(image) = image {
        // v1alpha1 cannot tell an empty tag from an absent one.
        no_empty(&mut image.tag);
        fill(&mut image.pull_policy, "IfNotPresent");
    }
}

fn persistence(persistence: &mut Option<Persistence>) {
    if let Some(persistence) = persistence {
        no_empty(&mut persistence.retention);
    }
}

fn replicas(replicas: &mut Option<i32>, before: Option<i32>) {
    replicas.get_or_insert(before.unwrap_or(NEW_POOL_REPLICAS));
}

/// Writes a default over an absent or empty text.
fn fill(text: &mut Option<String>, default: &str) {
    if text.as_ref().is_none_or(String::is_empty) {
        *text = Some(default.to_owned());
    }
}

/// Removes a value that equals its default.
fn no_empty<T: Default + PartialEq>(value: &mut Option<T>) {
    if value.as_ref().is_some_and(is_default) {
        *value = None;
    }
}

/// Removes from a pod template what v1alpha1 cannot tell from absent: empty objects, node selectors
/// and scheduler names.
fn pod_template(template: &mut PodTemplate) {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        spec.retain(|name, value| match name.as_str() {
            "nodeSelector" => !nothing(value),
            "schedulerName" => !value.is_null() && value != "",
            _ => true,
        });
    }
    template
        .retain(|name, value| !(matches!(name.as_str(), "metadata" | "spec") && nothing(value)));
}
