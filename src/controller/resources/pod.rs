//! The pod of a database node: the pilot as PID 1 in an unmodified database image.

use serde_json::{Value, json};

use super::{merge::merge_values, pool_labels, selector_labels};
use crate::{
    api::{
        names::{self, annotation, label, port},
        reserved_fields::{KEPT_IN_CONTAINERS, KEPT_IN_PODS},
    },
    controller::desired_state::{DesiredCluster, DesiredPool},
};

/// The volume of the database's configuration.
const CONFIG_VOLUME: &str = "config";
const GRACE_VARIABLE: &str = "NAVIGATOR_TERMINATION_GRACE_PERIOD";

/// The pod template of a pool. `has_claims` says whether data are kept on a claim.
pub(crate) fn build_template(
    desired: &DesiredCluster,
    pool: &DesiredPool,
    has_claims: bool,
) -> Value {
    let database = desired.database;
    let mut labels = pool_labels(desired, pool);
    labels.insert(label::HAS_PILOT.to_owned(), String::new());
    let mut volumes = vec![
        json!({"name": names::SHARED_VOLUME, "emptyDir": {}}),
        json!({"name": CONFIG_VOLUME, "emptyDir": {}}),
    ];
    if !has_claims {
        volumes.push(json!({"name": database.names.data_volume, "emptyDir": {}}));
    }
    if desired.mounts_users() {
        volumes.push(json!({
            "name": names::USERS_VOLUME,
            "secret": {
                "secretName": database.names.pilot_secret(&desired.name),
                "defaultMode": 0o400,
                // A pod starts without: its pilot waits, and says for what.
                "optional": true,
            },
        }));
    }
    let user = desired.run_as_user;
    let mut template = json!({
        "metadata": {
            "labels": labels,
            "annotations": {
                annotation::CONFIG_HASH: pool.pod_hash,
                "prometheus.io/scrape": "true",
                "prometheus.io/port": port::METRICS.to_string(),
                "prometheus.io/path": "/",
            },
        },
        "spec": {
            "serviceAccountName": database.names.service_account(&desired.name),
            "terminationGracePeriodSeconds": database.termination_grace.as_secs(),
            "securityContext": {
                "runAsUser": user,
                "runAsGroup": user,
                "fsGroup": user,
                // The kubelet changes the group of files only where the root differs, so it does
                // not walk a large volume at every start.
                "fsGroupChangePolicy": "OnRootMismatch",
                "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": build_affinity(desired, pool),
            "initContainers": [install_container(desired)],
            "containers": [database_container(desired, pool)],
            "volumes": volumes,
        },
    });
    let own_labels = template["metadata"]["labels"].clone();
    for overlay in &pool.overlays {
        let mut overlay = Value::Object(overlay.clone());
        keep_reserved_fields(&mut overlay, database.names.container);
        merge_values(&mut template, &overlay);
    }
    // Selectors and comparisons need these labels and this hash, whatever an overlay says.
    let metadata = &mut template["metadata"];
    metadata["annotations"][annotation::CONFIG_HASH] = json!(pool.pod_hash);
    for (key, value) in own_labels.as_object().into_iter().flatten() {
        let is_own_label = key.starts_with(names::DOMAIN);
        if is_own_label || metadata["labels"].get(key).is_none() {
            metadata["labels"][key] = value.clone();
        }
    }
    set_grace_variable(&mut template, database.names.container);
    template
}

/// Seconds of grace period that Kubernetes grants a pod that asks for none.
const DEFAULT_GRACE: u64 = 30;

/// Tells the pilot the grace period of the merged template, by which it plans a stop.
fn set_grace_variable(template: &mut Value, container: &str) {
    let grace_seconds = template["spec"]["terminationGracePeriodSeconds"].as_u64();
    let grace = grace_seconds.unwrap_or(DEFAULT_GRACE).to_string();
    let containers = template["spec"]["containers"].as_array_mut().into_iter().flatten();
    for entry in containers.filter(|entry| entry["name"] == container) {
        let variables = entry["env"].as_array_mut().into_iter().flatten();
        for variable in variables.filter(|variable| variable["name"] == GRACE_VARIABLE) {
            variable["value"] = json!(grace);
        }
    }
}

/// Removes from an overlay every `null` that would remove a field that Navigator needs. Validation
/// refuses such overlays, but an object from before that rule may hold one.
fn keep_reserved_fields(overlay: &mut Value, database: &str) {
    for steps in KEPT_IN_PODS {
        let Some((last_step, parent_steps)) = steps.split_last() else { continue };
        let holder =
            parent_steps.iter().try_fold(&mut *overlay, |value, step| value.get_mut(*step));
        if let Some(Value::Object(holder)) = holder
            && holder.get(*last_step).is_some_and(Value::is_null)
        {
            holder.remove(*last_step);
        }
    }
    let containers = overlay.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    let containers = containers.into_iter().flatten().filter_map(Value::as_object_mut);
    for container in containers
        .filter(|container| container.get("name").and_then(Value::as_str) == Some(database))
    {
        container.retain(|field, value| {
            !(value.is_null() && KEPT_IN_CONTAINERS.contains(&field.as_str()))
        });
    }
}

/// Makes nodes of one cluster prefer different machines; the zone of a pool is required.
fn build_affinity(desired: &DesiredCluster, pool: &DesiredPool) -> Value {
    let mut affinity = json!({
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": selector_labels(desired, None)},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }],
        },
    });
    if let Some(zone) = &pool.zone {
        affinity["nodeAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{
                    "matchExpressions": [{
                        "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone],
                    }],
                }],
            },
        });
    }
    affinity
}

/// Returns the security settings by which each of our containers gives up privileges.
fn restricted_security_context() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

/// Builds the init container that copies the pilot into the shared volume, as the user of our own
/// image.
fn install_container(desired: &DesiredCluster) -> Value {
    let mut security = restricted_security_context();
    security["readOnlyRootFilesystem"] = json!(true);
    security["runAsUser"] = json!(names::UID);
    security["runAsGroup"] = json!(names::UID);
    json!({
        "name": names::INSTALL_CONTAINER,
        "image": desired.pilot_image.reference,
        "imagePullPolicy": desired.pilot_image.pull_policy,
        "command": ["/navigator", "install", names::SHARED_DIR],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {
            "requests": {"cpu": "10m", "memory": "50Mi"},
            "limits": {"memory": "50Mi"},
        },
        "securityContext": security,
        "volumeMounts": [{"name": names::SHARED_VOLUME, "mountPath": names::SHARED_DIR}],
    })
}

/// Builds the installer as an ephemeral container, for a running pod. Ephemeral containers may not
/// ask for resources.
pub(crate) fn ephemeral_installer(desired: &DesiredCluster, name: &str) -> Value {
    let mut container = install_container(desired);
    if let Some(container) = container.as_object_mut() {
        container.remove("resources");
        container.insert("name".to_owned(), json!(name));
    }
    container
}

fn field_variable(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}})
}

fn http_probe(port: u16, period: u32, timeout: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": "/", "port": port, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    })
}

fn database_container(desired: &DesiredCluster, pool: &DesiredPool) -> Value {
    let database = desired.database;
    let ports: Vec<_> = database
        .names
        .ports
        .iter()
        .map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": "TCP"}))
        .collect();
    let mut mounts = vec![
        json!({"name": names::SHARED_VOLUME, "mountPath": names::SHARED_DIR, "readOnly": true}),
        json!({"name": CONFIG_VOLUME, "mountPath": names::CONFIG_DIR}),
        json!({"name": database.names.data_volume, "mountPath": database.names.data_dir}),
    ];
    if desired.mounts_users() {
        mounts.push(
            json!({"name": names::USERS_VOLUME, "mountPath": names::USERS_DIR, "readOnly": true}),
        );
    }
    json!({
        "name": database.names.container,
        "image": desired.image.reference,
        "imagePullPolicy": desired.image.pull_policy,
        "command": [format!("{}/navigator", names::SHARED_DIR), "pilot", database.names.word],
        "env": [
            field_variable("NAVIGATOR_PILOT_NAME", "metadata.name"),
            field_variable("NAVIGATOR_PILOT_NAMESPACE", "metadata.namespace"),
            {"name": "NAVIGATOR_CLUSTER_NAME", "value": desired.name},
            field_variable("NAVIGATOR_POD_UID", "metadata.uid"),
            field_variable("NAVIGATOR_POD_IP", "status.podIP"),
            field_variable("NAVIGATOR_NODE_NAME", "spec.nodeName"),
            {
                "name": GRACE_VARIABLE,
                "value": database.termination_grace.as_secs().to_string(),
            },
        ],
        "ports": ports,
        "resources": pool.resources,
        "securityContext": restricted_security_context(),
        // The pilot answers from memory and knows what phase it is in; these numbers only bound
        // a pilot that hangs. A node that joins may stream for hours.
        "startupProbe": http_probe(port::PILOT_STARTUP, 5, 5, 17_280),
        "livenessProbe": http_probe(port::PILOT_LIVENESS, 10, 5, 6),
        "readinessProbe": http_probe(port::PILOT_READINESS, 5, 5, 2),
        "volumeMounts": mounts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::example::DATABASE;
    use crate::controller::testing::sample::desired;

    /// Validation refuses overlays that remove such fields now, but a store may still hold one.
    #[test]
    fn no_overlay_removes_what_navigator_needs_of_a_pod() {
        let mut cluster = desired(&[("a", 1)], "hash");
        let plain = build_template(&cluster, &cluster.pools[0], false);
        for overlay in [
            json!({"metadata": {"annotations": null, "labels": null}}),
            json!({"metadata": null, "spec": null}),
            json!({"spec": {"containers": null, "initContainers": null, "volumes": null}}),
            json!({"spec": {"containers": [{"name": "example", "env": null, "volumeMounts": null}]}}),
        ] {
            cluster.pools[0].overlays = vec![overlay.as_object().unwrap().clone()];
            let built = build_template(&cluster, &cluster.pools[0], false);
            assert_eq!(built, plain, "{overlay}");
        }

        let overlay = json!({"metadata": {
            "labels": {DATABASE.names.cluster_label: "other", label::HAS_PILOT: null, "app": "mine"},
            "annotations": {annotation::CONFIG_HASH: null, "prometheus.io/scrape": null},
        }});
        cluster.pools[0].overlays = vec![overlay.as_object().unwrap().clone()];
        let metadata = build_template(&cluster, &cluster.pools[0], false)["metadata"].take();
        assert_eq!(metadata["labels"][DATABASE.names.cluster_label], "demo");
        assert_eq!(metadata["labels"][label::HAS_PILOT], "");
        assert_eq!(metadata["labels"]["app"], "mine", "what is not needed may be changed");
        assert_eq!(metadata["annotations"][annotation::CONFIG_HASH], "hash");
        assert_eq!(metadata["annotations"].get("prometheus.io/scrape"), None);
    }
}
