//! Every object of a cluster, as it shall be: pure.
//!
//! Owns names, labels, annotations and shapes (a public contract, `docs/api`). Which objects are
//! wanted follows from [`Desired`] alone; how many nodes a pool has at the moment, and what of
//! a StatefulSet cannot be changed, is taken from [`Observed`].

mod merge;
mod pilot;
pub(crate) mod pod;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::api::ApiResource;
use serde_json::{Map, Value, json};

use super::{
    desired::{self, Desired, Pool, Reach, Settings, hash},
    observe::{Observed, ObservedPool},
};
use crate::{
    api::names::{self, annotation, label},
    engine::rbac,
};

pub(crate) use pilot::{pilot_body, pilot_resource, spec_patch};
pub(crate) use pod::ephemeral_installer;

/// An object that we want, ready to be applied.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) resource: ApiResource,
    pub(crate) name: String,
    pub(crate) body: Value,
}

impl Prepared {
    fn new<K>(body: Value) -> Self
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Self { resource: ApiResource::erase::<K>(&()), name, body }
    }

    /// Hash of the body, also in its annotation config-hash.
    pub(crate) fn hash(&self) -> &str {
        self.body["metadata"]["annotations"][annotation::CONFIG_HASH].as_str().unwrap_or_default()
    }
}

/// Everything but StatefulSets and Pilots, in the order in which it is made.
pub(crate) fn build(desired: &Desired, observed: &Observed, settings: &Settings) -> Vec<Prepared> {
    let mut objects = services(desired);
    objects.extend(identity(desired));
    for pool in &desired.pools {
        objects.push(pods_service(desired, pool));
        objects.push(disruption_budget(desired, pool));
    }
    // StatefulSets last: what they name exists by then.
    for pool in &desired.pools {
        let found = observed.pools.iter().find(|found| found.name == pool.name);
        let replicas = found.map_or(0, |found| match &found.set {
            Some(set) => set.replicas,
            None => found.initial(),
        });
        objects.push(stateful_set(desired, pool, found, replicas));
    }
    for object in &mut objects {
        finish(object, desired, settings);
    }
    objects
}

/// The StatefulSet of a pool with another number of replicas.
pub(crate) fn resized(
    desired: &Desired,
    pool: &Pool,
    found: &ObservedPool,
    replicas: u32,
    settings: &Settings,
) -> Prepared {
    let mut object = stateful_set(desired, pool, Some(found), replicas);
    finish(&mut object, desired, settings);
    object
}

/// Owner, store and hash, the same on every object.
fn finish(object: &mut Prepared, desired: &Desired, settings: &Settings) {
    let metadata = &mut object.body["metadata"];
    metadata["namespace"] = json!(desired.namespace);
    metadata["ownerReferences"] = json!([desired.owner()]);
    metadata["annotations"][annotation::STORE_ID] = json!(settings.store_id);
    // Replicas move while a plan is carried out; they are compared by themselves.
    let mut hashed = object.body.clone();
    if object.resource.kind == "StatefulSet"
        && let Some(spec) = hashed["spec"].as_object_mut()
    {
        spec.remove("replicas");
    }
    let hash = hash(&hashed);
    object.body["metadata"]["annotations"][annotation::CONFIG_HASH] = json!(hash);
}

/// Labels of everything that belongs to a cluster.
pub(crate) fn cluster_labels(desired: &Desired) -> Map<String, Value> {
    let word = desired.database.word;
    let mut labels = Map::new();
    labels.insert(desired.database.cluster_label.to_owned(), json!(desired.name));
    labels.insert(label::K8S_NAME.to_owned(), json!(word));
    labels.insert(label::K8S_INSTANCE.to_owned(), json!(desired.name));
    labels.insert(label::K8S_COMPONENT.to_owned(), json!("database"));
    labels.insert(label::K8S_PART_OF.to_owned(), json!(desired.name));
    labels.insert(label::K8S_MANAGED_BY.to_owned(), json!("navigator"));
    for (key, value) in desired.database.labels {
        labels.insert((*key).to_owned(), json!(value));
    }
    labels
}

pub(crate) fn pool_labels(desired: &Desired, pool: &Pool) -> Map<String, Value> {
    let mut labels = cluster_labels(desired);
    labels.insert(desired.database.pool_label.to_owned(), json!(pool.name));
    for (key, value) in &pool.labels {
        labels.insert(key.clone(), json!(value));
    }
    labels
}

/// Selectors use the cluster and pool labels only.
fn selector(desired: &Desired, pool: Option<&Pool>) -> Map<String, Value> {
    let mut selector = Map::new();
    selector.insert(desired.database.cluster_label.to_owned(), json!(desired.name));
    if let Some(pool) = pool {
        selector.insert(desired.database.pool_label.to_owned(), json!(pool.name));
    }
    selector
}

fn service_ports(desired: &Desired, wanted: &[&str]) -> Vec<Value> {
    let ports = desired.database.ports.iter().filter(|(name, _)| wanted.contains(name));
    ports
        .map(|(name, port)| {
            json!({"name": name, "port": port, "targetPort": port, "protocol": "TCP"})
        })
        .collect()
}

fn headless(name: &str, labels: &Map<String, Value>, spec: &Value) -> Prepared {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels, "annotations": {}},
        "spec": {"type": "ClusterIP", "clusterIP": "None"},
    });
    merge::merge(&mut body["spec"], spec);
    Prepared::new::<Service>(body)
}

/// Services beside those of the pools.
fn services(desired: &Desired) -> Vec<Prepared> {
    let wanted = (desired.database.services)(desired).into_iter().filter(|service| service.wanted);
    wanted.map(|service| self::service(desired, &service)).collect()
}

fn service(desired: &Desired, service: &desired::Service) -> Prepared {
    let desired::Service { name, ports, reach, marks, wanted: _ } = service;
    let marked = |mut map: Map<String, Value>| {
        map.extend(marks.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
        map
    };
    let (labels, selector) = (marked(cluster_labels(desired)), marked(selector(desired, None)));
    let mut spec = json!({"selector": selector, "ports": service_ports(desired, ports)});
    match reach {
        Reach::Client => {
            let client = desired.services.client.clone().unwrap_or_default();
            return client_service(desired, name, &client, ports, &selector);
        }
        Reach::AllPods => spec["publishNotReadyAddresses"] = json!(true),
        Reach::Pods => {}
    }
    headless(name, &labels, &spec)
}

fn client_service(
    desired: &Desired,
    name: &str,
    template: &crate::api::v1beta1::ServiceTemplate,
    ports: &[&str],
    selector: &Map<String, Value>,
) -> Prepared {
    let crate::api::v1beta1::ServiceTemplate {
        type_,
        labels,
        annotations,
        load_balancer_class,
        load_balancer_source_ranges,
        external_traffic_policy,
    } = template;
    let mut all_labels: Map<String, Value> =
        labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    all_labels.extend(cluster_labels(desired));
    let mut spec = json!({
        "type": type_.as_deref().unwrap_or("ClusterIP"),
        "selector": selector,
        "ports": service_ports(desired, ports),
    });
    if let Some(class) = load_balancer_class {
        spec["loadBalancerClass"] = json!(class);
    }
    if !load_balancer_source_ranges.is_empty() {
        spec["loadBalancerSourceRanges"] = json!(load_balancer_source_ranges);
    }
    if let Some(policy) = external_traffic_policy {
        spec["externalTrafficPolicy"] = json!(policy);
    }
    Prepared::new::<Service>(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": all_labels, "annotations": annotations},
        "spec": spec,
    }))
}

/// ServiceAccount, Role and RoleBinding of the pilots.
fn identity(desired: &Desired) -> Vec<Prepared> {
    let account = (desired.database.service_account)(&desired.name);
    let role = (desired.database.pilot_role)(&desired.name);
    let lease = (desired.database.leader_lease)(&desired.name);
    let metadata =
        |name: &str| json!({"name": name, "labels": cluster_labels(desired), "annotations": {}});
    vec![
        Prepared::new::<ServiceAccount>(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(&account),
        })),
        Prepared::new::<Role>(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(&role),
            "rules": rbac::pilot_rules(&lease),
        })),
        Prepared::new::<RoleBinding>(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(&role),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [
                {"kind": "ServiceAccount", "name": account, "namespace": desired.namespace}
            ],
        })),
    ]
}

/// Gives each pod of a pool its DNS name, ready or not: peers must find a node that joins.
fn pods_service(desired: &Desired, pool: &Pool) -> Prepared {
    let ports: Vec<_> = desired.database.ports.iter().map(|(name, _)| *name).collect();
    headless(
        &names::pods_service(&pool.set),
        &pool_labels(desired, pool),
        &json!({
            "selector": selector(desired, Some(pool)),
            "ports": service_ports(desired, &ports),
            "publishNotReadyAddresses": true,
        }),
    )
}

/// One node of a pool may be evicted at a time. A pool of one node can still be drained.
fn disruption_budget(desired: &Desired, pool: &Pool) -> Prepared {
    Prepared::new::<PodDisruptionBudget>(json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": pool.set, "labels": pool_labels(desired, pool), "annotations": {},
        },
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(desired, Some(pool))},
            // A node that does not serve anyway never holds up the drain of a machine.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }))
}

fn stateful_set(
    desired: &Desired,
    pool: &Pool,
    found: Option<&ObservedPool>,
    replicas: u32,
) -> Prepared {
    let set = found.and_then(|found| found.set.as_ref()).and_then(|set| set.object.as_deref());
    // Claim templates of a living StatefulSet cannot be changed; they are sent back as found.
    let templates = match set {
        Some(set) => json!(set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_ref())),
        None => claim_templates(desired, pool),
    };
    let claims = templates.as_array().is_some_and(|templates| !templates.is_empty());
    let mut labels = pool_labels(desired, pool);
    labels.insert(label::K8S_VERSION.to_owned(), json!(label_value(&desired.version)));
    let mut body = json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": pool.set, "labels": labels, "annotations": {}},
        "spec": {
            "replicas": replicas,
            "serviceName": names::pods_service(&pool.set),
            // Pilots order themselves; OrderedReady would deadlock after a full outage.
            "podManagementPolicy": "Parallel",
            // Pods are replaced by the plan, one at a time.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain", "whenScaled": "Retain",
            },
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(desired, Some(pool))},
            "template": pod::template(desired, pool, claims),
        },
    });
    if claims {
        body["spec"]["volumeClaimTemplates"] = templates;
    }
    for (key, value) in (desired.database.set_annotations)(desired) {
        body["metadata"]["annotations"][key] = json!(value);
    }
    Prepared::new::<StatefulSet>(body)
}

fn claim_templates(desired: &Desired, pool: &Pool) -> Value {
    let Some(persistence) = pool.persistence.as_ref().filter(|_| pool.persistent()) else {
        return json!([]);
    };
    let mut labels: Map<String, Value> =
        persistence.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    labels.extend(selector(desired, Some(pool)));
    labels.insert(label::K8S_MANAGED_BY.to_owned(), json!("navigator"));
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": persistence.size}},
    });
    if let Some(class) = &persistence.storage_class {
        spec["storageClassName"] = json!(class);
    }
    json!([{
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": desired.database.data_volume,
            "labels": labels,
            "annotations": persistence.annotations,
        },
        "spec": spec,
    }])
}

/// A version as a label value can hold it.
fn label_value(version: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let value: String = version.chars().map(|c| if fits(c) { c } else { '-' }).take(63).collect();
    value.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}
