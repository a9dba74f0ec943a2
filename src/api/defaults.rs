//! The defaults that the server writes, and the canonical form of what it stores.
//!
//! Few on purpose: a live object equals its manifest. Defaulting never looks at other objects or
//! the clock, and is idempotent. Code that needs any other default computes it as an effective
//! value.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    V1BETA1,
    cluster_kind::ClusterKind,
    conversion::drop_annotation,
    v1beta1::{
        Cluster, ClusterSecurity, ClusterSpec, DatabaseSecurity, ImageSpec, NodePool, Persistence,
        Pilot, PilotIntent, PodTemplate, SecurityMode, is_default,
    },
    validation::{ClusterRules, cluster::reason_to_stay_open},
};
use crate::machinery::served_kind::ServedVersion;

/// Replicas of a new node pool whose manifest does not set `replicas`.
const NEW_POOL_REPLICAS: i32 = 1;

/// Where an object comes from that gets defaults.
#[derive(Debug)]
pub enum ObjectOrigin<'a, T> {
    /// A client makes it, in this version.
    Created(ServedVersion),
    /// A client writes it over the stored one.
    Updated(&'a T),
    /// A store holds it.
    Stored,
}

impl<'a, T> ObjectOrigin<'a, T> {
    fn stored_object(&self) -> Option<&'a T> {
        match self {
            Self::Updated(stored) => Some(stored),
            Self::Created(_) | Self::Stored => None,
        }
    }
}

/// Fills absent fields of a cluster with defaults, and returns warnings. A pool's absent `replicas`
/// takes the value of the pool of that name in the stored cluster; what is not said of encryption and
/// logins stays what it is there.
pub(super) fn default_cluster<K: ClusterRules>(
    cluster: &mut Cluster<K>,
    origin: &ObjectOrigin<'_, Cluster<K>>,
) -> Vec<String> {
    let stored_cluster = origin.stored_object();
    default_metadata(&mut cluster.metadata);
    let stored_pools = stored_cluster.map_or(&[][..], |stored| &stored.spec.node_pools);
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
    self::default_image(image);
    self::default_image(pilot_image);
    clear_if_default(security_context);
    clear_if_default(jvm);
    self::default_pod_template(pod_template);
    clear_if_default(update_strategy);
    clear_if_default(services);
    self::default_security(security);
    clear_if_default(pilot_settings);
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
        let stored_pool = stored_pools.iter().find(|stored| stored.name == *name);
        self::default_replicas(replicas, stored_pool.and_then(|stored| stored.replicas));
        clear_if_default(resources);
        self::default_persistence(persistence);
        clear_if_default(jvm);
        self::default_pod_template(pod_template);
        K::default_pool(name, own);
    }
    default_mode(cluster, origin)
}

/// Writes what is to be encrypted and who is asked, as far as it is not said: a cluster that is made
/// in v1beta1 is secured, if it can be (W26), and an update leaves it as it is stored. Clusters from
/// before that rule, and those of v1alpha1, are open: written out, a dump of one is put back as it
/// was.
fn default_mode<K: ClusterRules>(
    cluster: &mut Cluster<K>,
    origin: &ObjectOrigin<'_, Cluster<K>>,
) -> Vec<String> {
    let spec_security = cluster.spec.security.as_ref().map(|security| &security.shared);
    if spec_security.is_some_and(ClusterSecurity::is_fully_set) {
        return Vec::new();
    }
    let stored_security = origin.stored_object().and_then(|stored| stored.spec.security.as_ref());
    if let Some(stored_security) = stored_security.filter(|stored| !stored.shared.is_unset()) {
        cluster.spec.security.get_or_insert_default().shared.fill_unset(&stored_security.shared);
        return Vec::new();
    }
    let mut warnings = Vec::new();
    let mode = match origin {
        ObjectOrigin::Created(V1BETA1) => match reason_to_stay_open(cluster) {
            None => SecurityMode::Secure,
            Some(reason) => {
                warnings.push(format!(
                    "spec.security.mode: Open is written in place of Secure: {reason}"
                ));
                SecurityMode::Open
            }
        },
        ObjectOrigin::Created(_) | ObjectOrigin::Stored | ObjectOrigin::Updated(_) => {
            SecurityMode::Open
        }
    };
    cluster.spec.security.get_or_insert_default().shared.mode = Some(mode);
    warnings
}

/// Fills absent fields of a Pilot with defaults.
pub(super) fn default_pilot(pilot: &mut Pilot) {
    default_metadata(&mut pilot.metadata);
    let spec = &mut pilot.spec;
    if spec.phase.as_ref().is_none_or(|phase| phase.as_str().is_empty()) {
        spec.phase = Some(PilotIntent::Running);
    }
    // v1alpha1 cannot tell an empty name from an absent one.
    clear_if_default(&mut spec.node_pool);
    clear_if_default(&mut spec.jvm);
}

/// Removes the surplus annotation and empty fields from metadata.
pub(super) fn default_metadata(metadata: &mut ObjectMeta) {
    drop_annotation(metadata);
    clear_if_default(&mut metadata.annotations);
    clear_if_default(&mut metadata.labels);
    clear_if_default(&mut metadata.finalizers);
    clear_if_default(&mut metadata.owner_references);
}

fn default_image(image: &mut Option<ImageSpec>) {
    if let Some(image) = image {
        // v1alpha1 cannot tell an empty tag from an absent one.
        clear_if_default(&mut image.tag);
        fill_text(&mut image.pull_policy, "IfNotPresent");
    }
}

fn default_security<K: ClusterKind>(security: &mut Option<DatabaseSecurity<K>>) {
    // Without a name a role is refused.
    if let Some(DatabaseSecurity { shared, roles: _ }) = security {
        let ClusterSecurity {
            internode,
            client,
            certificates,
            metrics,
            network,
            mode: _,
            authentication: _,
            // Without a name it is refused.
            admin_secret: _,
            users: _,
        } = shared;
        clear_if_default(internode);
        clear_if_default(client);
        clear_if_default(certificates);
        clear_if_default(metrics);
        clear_if_default(network);
    }
    clear_if_default(security);
}

fn default_persistence(persistence: &mut Option<Persistence>) {
    if let Some(persistence) = persistence {
        clear_if_default(&mut persistence.retention);
    }
}

fn default_replicas(replicas: &mut Option<i32>, stored_replicas: Option<i32>) {
    replicas.get_or_insert(stored_replicas.unwrap_or(NEW_POOL_REPLICAS));
}

/// Writes a default over an absent or empty text.
fn fill_text(text: &mut Option<String>, default: &str) {
    if text.as_ref().is_none_or(String::is_empty) {
        *text = Some(default.to_owned());
    }
}

/// Removes a value that equals its default.
fn clear_if_default<T: Default + PartialEq>(value: &mut Option<T>) {
    if value.as_ref().is_some_and(is_default) {
        *value = None;
    }
}

/// Removes from a pod template what v1alpha1 cannot tell from absent: empty objects, node selectors
/// and scheduler names.
fn default_pod_template(template: &mut PodTemplate) {
    let is_empty_value = |value: &Value| match value {
        Value::Null => true,
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        spec.retain(|name, value| match name.as_str() {
            "nodeSelector" => !is_empty_value(value),
            "schedulerName" => !value.is_null() && value != "",
            _ => true,
        });
    }
    template.retain(|name, value| {
        !(matches!(name.as_str(), "metadata" | "spec") && is_empty_value(value))
    });
}
