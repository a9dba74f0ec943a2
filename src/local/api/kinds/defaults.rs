//! Defaults that kube-apiserver sets, as far as clients rely on them: kubectl reads some of these
//! fields without a check.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::machinery::field_error::{FieldError, FieldErrorKind, FieldPath};

/// Returns the fields of the object under `name`, if there is one.
fn object_fields<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(name)?.as_object_mut()
}

fn set_default(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.entry(name).or_insert(value);
}

pub(super) fn leave_unchanged(_: &mut Value) {}

pub(super) fn begin_namespace(hub: &mut Value) {
    let name = hub["metadata"]["name"].clone();
    if !hub["metadata"]["labels"].is_object() {
        hub["metadata"]["labels"] = json!({});
    }
    hub["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    super::set_field(hub, "spec", Some(json!({"finalizers": ["kubernetes"]})));
    super::set_field(hub, "status", Some(json!({"phase": "Active"})));
}

pub(super) fn end_namespace(hub: &mut Value) {
    hub["status"]["phase"] = json!("Terminating");
}

pub(super) fn begin_pending(hub: &mut Value) {
    super::set_field(hub, "status", Some(json!({"phase": "Pending"})));
}

pub(super) fn begin_stateful_set(hub: &mut Value) {
    super::set_field(hub, "status", Some(json!({"replicas": 0, "availableReplicas": 0})));
}

pub(super) fn begin_budget(hub: &mut Value) {
    let status = json!({
        "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
    });
    super::set_field(hub, "status", Some(status));
}

pub(super) fn begin_service(hub: &mut Value) {
    super::set_field(hub, "status", Some(json!({"loadBalancer": {}})));
}

pub(super) fn complete_pod(hub: &mut Value) {
    if let Some(spec) = object_fields(hub, "spec") {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", json!("Always"));
    set_default(spec, "terminationGracePeriodSeconds", json!(30));
}

pub(super) fn complete_stateful_set(hub: &mut Value) {
    let Some(spec) = object_fields(hub, "spec") else { return };
    set_default(spec, "replicas", json!(1));
    set_default(spec, "podManagementPolicy", json!("OrderedReady"));
    set_default(spec, "revisionHistoryLimit", json!(10));
    set_default(spec, "updateStrategy", json!({"type": "RollingUpdate"}));
    let template = spec.get_mut("template").and_then(|template| object_fields(template, "spec"));
    if let Some(template) = template {
        pod_spec(template);
    }
}

pub(super) fn complete_service(hub: &mut Value) {
    let Some(spec) = object_fields(hub, "spec") else { return };
    set_default(spec, "type", json!("ClusterIP"));
    set_default(spec, "sessionAffinity", json!("None"));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(port) = port.as_object_mut() else { continue };
        set_default(port, "protocol", json!("TCP"));
        let number = port.get("port").cloned().unwrap_or_default();
        set_default(port, "targetPort", number);
    }
}

pub(super) fn complete_claim(hub: &mut Value) {
    if let Some(spec) = object_fields(hub, "spec") {
        set_default(spec, "volumeMode", json!("Filesystem"));
    }
}

/// Moves a Secret's `stringData` into `data`, as kube-apiserver does.
pub(super) fn complete_secret(hub: &mut Value) {
    if let Some(secret) = hub.as_object_mut() {
        set_default(secret, "type", json!("Opaque"));
    }
    let Some(string_data) = hub.as_object_mut().and_then(|secret| secret.remove("stringData"))
    else {
        return;
    };
    for (name, text) in string_data.as_object().into_iter().flatten() {
        let text = text.as_str().unwrap_or_default();
        if !hub["data"].is_object() {
            hub["data"] = json!({});
        }
        hub["data"][name] = json!(BASE64_STANDARD.encode(text));
    }
}

/// Returns the grace period of a deletion in seconds: 0 for a pod that does not run.
pub(super) fn pod_grace_period(pod: &Value, requested_seconds: Option<i64>) -> i64 {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    let node_name = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node_name.is_empty() || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let spec_seconds =
        || pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    requested_seconds.or_else(spec_seconds).unwrap_or(30).max(0)
}

/// Returns an error if an update changes other fields of spec than the mutable ones.
pub(super) fn check_immutable_fields(
    plural: &str,
    mutable_fields: &[&str],
    new: &Value,
    old: &Value,
) -> Option<FieldError> {
    let immutable_part = |object: &Value| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        spec.retain(|name, _| !mutable_fields.contains(&name.as_str()));
        spec
    };
    let names =
        mutable_fields.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let message = format!("updates to {plural} spec for fields other than {names} are forbidden");
    let path = FieldPath::new("spec");
    (immutable_part(new) != immutable_part(old))
        .then(|| FieldError::new(&path, FieldErrorKind::Forbidden, message))
}
