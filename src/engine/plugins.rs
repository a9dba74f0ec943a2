//! What is done with a Plugin next, and what its manifests say.
//!
//! A version is applied only after a dry run of all its objects, in waves. The version that stood is
//! remembered until the next one is rolled out, and is applied again where that fails. All that is known
//! stands in the status and in the Plugin's record, so whoever leads next goes on from there.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt::{self, Display},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::containership::{PluginStatus, name};

/// Bytes of manifests, at most: the record of a Plugin holds them, and a ConfigMap 1 MiB.
const BYTES: usize = 768 << 10;
/// Group of the definitions of kinds.
const DEFINITIONS: &str = "apiextensions.k8s.io";

/// An object of a Plugin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginObject {
    pub api_version: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl Display for PluginObject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name, .. } = self;
        match namespace {
            Some(namespace) => write!(out, "{kind} {namespace}/{name}"),
            None => write!(out, "{kind} {name}"),
        }
    }
}

impl PluginObject {
    pub fn api_group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Does it define a kind?
    pub fn is_definition(&self) -> bool {
        self.api_group() == DEFINITIONS && self.kind == "CustomResourceDefinition"
    }

    pub fn is_namespace(&self) -> bool {
        self.api_group().is_empty() && self.kind == "Namespace"
    }

    /// Is it never deleted? With it would go what others made.
    pub fn is_kept(&self) -> bool {
        self.is_definition() || self.is_namespace()
    }

    /// Is there something to wait for once it was applied?
    pub fn is_awaited(&self) -> bool {
        let has_rollout = ["Deployment", "StatefulSet", "DaemonSet"].contains(&self.kind.as_str());
        match self.api_group() {
            "apps" => has_rollout,
            "batch" => self.kind == "Job",
            _ => self.is_definition(),
        }
    }

    /// When it is applied: kinds, namespaces, rights, and the rest.
    pub fn apply_wave(&self) -> u8 {
        match (self.api_group(), self.kind.as_str()) {
            _ if self.is_definition() => 0,
            _ if self.is_namespace() => 1,
            ("rbac.authorization.k8s.io", _) | ("", "ServiceAccount") => 2,
            _ => 3,
        }
    }
}

/// An object as it is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginManifest {
    pub object: PluginObject,
    pub body: Value,
}

impl PluginManifest {
    /// Returns the body with the label of the Plugin of this uid.
    pub fn with_owner_label(&self, uid: &str) -> Value {
        let mut body = self.body.clone();
        if body["metadata"]["labels"].is_null() {
            body["metadata"]["labels"] = json!({});
        }
        body["metadata"]["labels"][name::PLUGIN] = uid.into();
        body
    }

    /// Does it define this kind?
    pub fn is_definition_of(&self, group: &str, kind: &str) -> bool {
        let spec = &self.body["spec"];
        self.object.is_definition()
            && spec["group"].as_str() == Some(group)
            && spec["names"]["kind"].as_str() == Some(kind)
    }
}

/// Reads manifests, and puts them in the order in which they are applied.
///
/// # Errors
/// A sentence where they cannot be applied.
pub fn parse_manifests(text: &str) -> Result<Vec<PluginManifest>, String> {
    if text.len() > BYTES {
        return Err(format!("the manifests are longer than {} KiB", BYTES >> 10));
    }
    let mut manifests = Vec::new();
    for (place, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let place = place + 1;
        let mut body = Value::deserialize(document)
            .map_err(|error| format!("document {place} of the manifests: {error}"))?;
        let items = match &mut body {
            Value::Null => continue,
            list if list["kind"] == "List" && list["items"].is_array() => {
                serde_json::from_value(list["items"].take()).unwrap_or_default()
            }
            _ => vec![body],
        };
        for body in items {
            let manifest = parse_manifest(body).map_err(|missing_field| {
                format!("document {place} of the manifests lacks {missing_field}")
            })?;
            manifests.push(manifest);
        }
    }
    if manifests.is_empty() {
        return Err("there are no manifests".to_owned());
    }
    let mut seen_objects = BTreeSet::new();
    if let Some(duplicate) =
        manifests.iter().find(|manifest| !seen_objects.insert(&manifest.object))
    {
        return Err(format!("{} stands twice in the manifests", duplicate.object));
    }
    manifests.sort_by_key(|manifest| manifest.object.apply_wave());
    Ok(manifests)
}

fn parse_manifest(body: Value) -> Result<PluginManifest, &'static str> {
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let object = PluginObject {
        api_version: text("/apiVersion").ok_or("apiVersion")?,
        kind: text("/kind").ok_or("kind")?,
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name").filter(|name| !name.is_empty()).ok_or("metadata.name")?,
    };
    Ok(PluginManifest { object, body })
}

/// Digest of manifests; `retry` tells one request to try them again from the next.
pub fn manifests_digest(text: &str, retry: Option<&str>) -> String {
    let digest = Sha256::new_with_prefix(retry.unwrap_or_default()).chain_update("\n");
    let digest = digest.chain_update(text).finalize();
    digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// Says what an object that was applied still waits for, or why it will never be there.
///
/// # Errors
/// A sentence where it failed for good.
pub fn pending_reason(object: &PluginObject, live: &Value) -> Result<Option<String>, String> {
    let number = |pointer: &str| live.pointer(pointer).and_then(Value::as_i64);
    let status = |field: &str| number(&format!("/status/{field}")).unwrap_or_default();
    let has_condition = |type_: &str| {
        let conditions = live.pointer("/status/conditions").and_then(Value::as_array);
        let mut entries = conditions.into_iter().flatten();
        entries.any(|condition| condition["type"] == type_ && condition["status"] == "True")
    };
    let is_observed =
        status("observedGeneration") >= number("/metadata/generation").unwrap_or_default();
    let desired_replicas = number("/spec/replicas").unwrap_or(1);
    let is_on_delete =
        live.pointer("/spec/updateStrategy/type").is_some_and(|type_| type_ == "OnDelete");
    let is_updated = |field: &str, desired: i64| is_on_delete || status(field) >= desired;
    let is_done = match (object.api_group(), object.kind.as_str()) {
        ("apps", "Deployment") => {
            is_observed
                && is_updated("updatedReplicas", desired_replicas)
                && status("replicas") <= desired_replicas
                && status("availableReplicas") >= desired_replicas
        }
        ("apps", "StatefulSet") => {
            is_observed
                && is_updated("updatedReplicas", desired_replicas)
                && status("readyReplicas") >= desired_replicas
        }
        ("apps", "DaemonSet") => {
            let desired_pods = status("desiredNumberScheduled");
            is_observed
                && is_updated("updatedNumberScheduled", desired_pods)
                && status("numberAvailable") >= desired_pods
        }
        ("batch", "Job") if has_condition("Failed") => return Err(format!("{object} failed")),
        ("batch", "Job") => has_condition("Complete"),
        _ => !object.is_definition() || has_condition("Established"),
    };
    Ok((!is_done).then(|| format!("waits for {object}")))
}

/// What is done with a Plugin next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginAction {
    /// Its version stands.
    Rest,
    /// Its version failed, and is not tried again.
    GiveUp,
    /// A version is tried in a dry run, and is then on its way.
    Begin,
    /// The version on its way is applied.
    Apply,
    /// Its roll-out is waited for.
    Await,
    /// It took too long.
    Expire,
    /// It is undone.
    Undo,
}

/// Decides what is done next. `desired_digest` is the digest of what is asked for, and
/// `applied_digest` that of the last version that was rolled out.
pub fn next_action(
    status: &PluginStatus,
    desired_digest: &str,
    applied_digest: Option<&str>,
    timeout_seconds: i32,
    now: Timestamp,
) -> PluginAction {
    let has_failed =
        || status.failed.as_ref().is_some_and(|failure| failure.digest == desired_digest);
    let Some(rollout) = &status.rollout else {
        return match applied_digest {
            Some(digest) if digest == desired_digest => PluginAction::Rest,
            _ if has_failed() => PluginAction::GiveUp,
            _ => PluginAction::Begin,
        };
    };
    let timeout = SignedDuration::from_secs(i64::from(timeout_seconds));
    if rollout.failure.is_some() {
        PluginAction::Undo
    } else if rollout.digest != desired_digest {
        PluginAction::Begin
    } else if now.duration_since(rollout.started_at.0) >= timeout {
        PluginAction::Expire
    } else if rollout.applied {
        PluginAction::Await
    } else {
        PluginAction::Apply
    }
}
