//! Builds the Pilot of a node, from which its pilot process learns what to run.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use serde_json::{Map, Value, json};

use super::{Labels, build_metadata, pool_labels};
use crate::{
    api::v1beta1::{self, Pilot, PilotSecurity, PilotSpec},
    controller::desired_state::{DesiredCluster, DesiredPool, ObjectSettings},
};

pub(crate) fn pilot_resource() -> ApiResource {
    ApiResource::erase::<Pilot>(&())
}

/// Builds a whole Pilot, as it is created. `spec.phase` is left to its default.
pub(crate) fn pilot_body(
    desired: &DesiredCluster,
    pool: &DesiredPool,
    name: &str,
    ordinal: u32,
    settings: &ObjectSettings,
) -> Value {
    let mut labels = pool_labels(desired, pool);
    for (key, value) in (desired.database.node_labels)(ordinal, None) {
        labels.extend(value.map(|value| (key.into_owned(), value.to_owned())));
    }
    let mut spec = json!(pool.pilot);
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("phase");
    }
    let metadata = ObjectMeta {
        owner_references: Some(vec![desired.owner_reference()]),
        ..build_metadata(desired, settings, name, labels, Labels::new())
    };
    json!({
        "apiVersion": v1beta1::API_VERSION,
        "kind": "Pilot",
        "metadata": metadata,
        "spec": spec,
    })
}

/// Returns a merge patch from the Pilot's spec as it is to the wanted one: keys that are no longer
/// wanted become `null`, and `phase` is left alone. `None` when nothing differs.
pub(crate) fn spec_patch(existing: &PilotSpec, desired: &PilotSpec) -> Option<Value> {
    // What was signed for the node stays, and so do its users.
    let desired = &with_own_security(existing, desired);
    let requires_restart =
        desired.restart_for.is_some() || existing.config_hash != desired.config_hash;
    let without_requests = |spec: &PilotSpec| {
        let mut value = json!(spec);
        if let Some(spec) = value.as_object_mut() {
            spec.remove("phase");
            spec.remove("forget");
            spec.remove("unsafeBootstrap");
            // An order for an earlier configuration must not fire when that is wanted again.
            if !requires_restart {
                spec.remove("restartFor");
            }
        }
        value
    };
    let patch = build_patch(&without_requests(existing), &without_requests(desired));
    patch.as_object().is_some_and(|patch| !patch.is_empty()).then_some(patch)
}

/// Returns the wanted spec with the key, the certificates and the users that a node has, which
/// `security` keeps.
fn with_own_security(existing: &PilotSpec, desired: &PilotSpec) -> PilotSpec {
    let mut desired = desired.clone();
    if let (Some(existing), Some(desired)) = (&existing.security, &mut desired.security) {
        *desired = PilotSecurity {
            key: existing.key.clone(),
            new_key_at: existing.new_key_at.clone(),
            internode_certificate: existing.internode_certificate.clone(),
            client_certificate: existing.client_certificate.clone(),
            users: existing.users.clone(),
            metrics: existing.metrics.clone(),
            ..desired.clone()
        };
    }
    desired
}

/// Returns the merge patch (RFC 7386) that turns `old` into `new`.
fn build_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return new.clone() };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(old_value) if old_value == value => {}
            Some(old_value) => {
                patch.insert(key.clone(), build_patch(old_value, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_to_restart_stays_as_long_as_its_configuration() {
        let spec = |hash: &str, restart_for: Option<&str>| PilotSpec {
            config_hash: Some(hash.to_owned()),
            restart_for: restart_for.map(str::to_owned),
            ..PilotSpec::default()
        };
        let told = spec("two", Some("two"));
        assert_eq!(spec_patch(&told, &spec("two", None)), None);
        let patch = spec_patch(&told, &spec("three", None)).unwrap();
        assert_eq!(patch, json!({"configHash": "three", "restartFor": null}));
        let patch = spec_patch(&spec("two", None), &told).unwrap();
        assert_eq!(patch, json!({"restartFor": "two"}));
    }

    #[test]
    fn a_patch_names_only_what_differs_and_no_request() {
        let found = PilotSpec {
            phase: Some(v1beta1::PilotIntent::Fenced),
            forget: vec!["lost".into()],
            unsafe_bootstrap: Some("u".into()),
            version: Some("5.0.6".into()),
            config: serde_json::from_value(json!({"a": 1, "b": {"c": 2}})).unwrap(),
            ..PilotSpec::default()
        };
        let wanted = PilotSpec {
            version: Some("5.0.7".into()),
            config: serde_json::from_value(json!({"b": {"c": 3}})).unwrap(),
            ..PilotSpec::default()
        };
        let patch = spec_patch(&found, &wanted).unwrap();
        assert_eq!(patch, json!({"version": "5.0.7", "config": {"a": null, "b": {"c": 3}}}));
        let same = PilotSpec { phase: None, ..found.clone() };
        assert_eq!(spec_patch(&found, &same), None);
    }
}
