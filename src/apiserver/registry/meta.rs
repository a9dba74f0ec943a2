//! `metadata` of every kind: what the server writes itself.
//!
//! Owns the rules of `pkg/registry/rest/{create,update,meta}.go`. What a client may write there
//! is for `api::validation`.

use std::collections::HashSet;

use rand::Rng;
use serde_json::{Map, Value, json};

use crate::{
    apiserver::status::{ApiError, Result},
    machinery::{decode::MAX_FINDINGS, served_kind::ServedKind},
};

/// Finalizers that garbage collection understands.
pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// Fields of `metadata` that the server alone sets.
const SERVER_FIELDS: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// Returns `metadata`, which is made when absent.
pub(super) fn fields(hub: &mut Value) -> &mut Map<String, Value> {
    if !hub["metadata"].is_object() {
        hub["metadata"] = json!({});
    }
    hub["metadata"].as_object_mut().expect("it was just made an object")
}

/// Removes a field of `metadata` and returns it.
pub(super) fn take_field(hub: &mut Value, name: &str) -> Option<Value> {
    fields(hub).remove(name)
}

pub(super) fn text<'a>(hub: &'a Value, name: &str) -> &'a str {
    hub["metadata"][name].as_str().unwrap_or_default()
}

/// Returns the current time, in whole seconds, as Kubernetes writes times.
pub(super) fn now() -> Value {
    in_seconds(0)
}

/// Returns the time `seconds` seconds from now, as Kubernetes writes times.
pub(super) fn in_seconds(seconds: i64) -> Value {
    let timestamp = jiff::Timestamp::now().as_second().saturating_add(seconds);
    json!(jiff::Timestamp::from_second(timestamp).unwrap_or(jiff::Timestamp::MAX).to_string())
}

/// Returns the grace period, in seconds, of an object that is being deleted.
pub(super) fn grace_period(hub: &Value) -> i64 {
    hub["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
}

/// Puts the object into the namespace of the URL.
pub(super) fn settle_namespace(
    hub: &mut Value,
    kind: &dyn ServedKind,
    namespace: &str,
) -> Result<()> {
    if !kind.is_namespaced() {
        fields(hub).remove("namespace");
        return Ok(());
    }
    let body_namespace = text(hub, "namespace");
    if !body_namespace.is_empty() && body_namespace != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    fields(hub).insert("namespace".into(), json!(namespace));
    Ok(())
}

/// Fails unless the object has the name of the URL, which was authorized.
pub(super) fn check_same_name(body_name: &str, name: &str) -> Result<()> {
    if body_name == name {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({body_name}) does not match the name on the URL ({name})"
    )))
}

/// Gives a new object an identity of its own, and removes every trace of an earlier one.
pub(super) fn init_metadata(hub: &mut Value) {
    let meta = fields(hub);
    for name in SERVER_FIELDS {
        meta.remove(name);
    }
    meta.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
    meta.insert("creationTimestamp".into(), now());
    meta.insert("generation".into(), json!(1));
}

/// Keeps the identity of an updated object, whatever the client says.
pub(super) fn preserve_identity(hub: &mut Value, old: &Value) {
    let meta = fields(hub);
    for name in SERVER_FIELDS.iter().chain(&["generation", "name", "namespace", "generateName"]) {
        match old["metadata"].get(*name) {
            Some(value) => meta.insert((*name).to_owned(), value.clone()),
            None => meta.remove(*name),
        };
    }
}

pub(super) fn bump_generation(hub: &mut Value) {
    let generation = hub["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
    fields(hub).insert("generation".into(), json!(generation));
}

pub(super) fn finalizers(hub: &Value) -> Vec<&str> {
    let list = hub["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).collect()
}

/// Characters of the random end of a generated name; the base is cut so that both fit a label.
const SUFFIX: usize = 5;
const BASE: usize = 63 - SUFFIX;

/// Returns a name that starts with `base` and ends in letters of Kubernetes' alphabet, which spells
/// no words.
pub(super) fn generate_name(base: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    let mut name: String = base.chars().take(BASE).collect();
    for _ in 0..SUFFIX {
        name.push(char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]));
    }
    name
}

/// Removes owner references that are there twice; returns a warning about them.
pub(super) fn dedup_owners(hub: &mut Value) -> Option<String> {
    let owners = fields(hub).get_mut("ownerReferences")?.as_array_mut()?;
    let mut unique_owners = HashSet::new();
    let mut duplicate_uids = Vec::new();
    owners.retain(|owner| {
        let is_first = unique_owners.insert(owner.to_string());
        if !is_first && duplicate_uids.len() < MAX_FINDINGS {
            duplicate_uids.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        }
        is_first
    });
    (!duplicate_uids.is_empty()).then(|| {
        format!(
            "metadata.ownerReferences contains duplicate entries; API server dedups owner \
             references in 1.20+, and may reject such requests as early as 1.24; please fix your \
             requests; duplicate UID(s) observed: {}",
            duplicate_uids.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_a_label() {
        let name = generate_name(&"x".repeat(100));
        assert_eq!(name.len(), 63);
        let name = generate_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    }
}
