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
    fn stored(&self) -> Option<&'a T> {
        match self {
            Self::Updated(stored) => Some(stored),
            Self::Created(_) | Self::Stored => None,
        }
    }
}

/// Fills absent fields of a cluster with defaults, and returns warnings. A pool's absent `replicas`
/// takes the value of the pool of that name in the stored cluster; what is not said of encryption and
/// logins stays what it is there.
pub(super) fn cluster<K: ClusterRules>(
    cluster: &mut Cluster<K>,
    origin: &ObjectOrigin<'_, Cluster<K>>,
) -> Vec<String> {
    let stored = origin.stored();
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
    self::security(security);
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
    mode(cluster, origin)
}

/// Writes what is to be encrypted and who is asked, as far as it is not said: a cluster that is made
/// in v1beta1 is secured, if it can be (W26), and an update leaves it as it is stored. Clusters from
/// before that rule, and those of v1alpha1, are open: written out, a dump of one is put back as it
/// was.
fn mode<K: ClusterRules>(
    cluster: &mut Cluster<K>,
    origin: &ObjectOrigin<'_, Cluster<K>>,
) -> Vec<String> {
    let said = cluster.spec.security.as_ref().map(|security| &security.shared);
    if said.is_some_and(ClusterSecurity::says_all) {
        return Vec::new();
    }
    let stored = origin.stored().and_then(|stored| stored.spec.security.as_ref());
    if let Some(stored) = stored.filter(|stored| !stored.shared.is_silent()) {
        cluster.spec.security.get_or_insert_default().shared.fill_unsaid(&stored.shared);
        return Vec::new();
    }
    let mut warnings = Vec::new();
    let mode = match origin {
        ObjectOrigin::Created(V1BETA1) => match reason_to_stay_open(cluster) {
            None => SecurityMode::Secure,
            Some(why) => {
                warnings
                    .push(format!("spec.security.mode: Open is written in place of Secure: {why}"));
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

fn security<K: ClusterKind>(security: &mut Option<DatabaseSecurity<K>>) {
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
        no_empty(internode);
        no_empty(client);
        no_empty(certificates);
        no_empty(metrics);
        no_empty(network);
    }
    no_empty(security);
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
