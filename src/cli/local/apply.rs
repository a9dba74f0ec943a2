//! Creates the objects of files, or changes them as the files have changed, as `kubectl apply`
//! does: an annotation holds the object as it was last applied, so kubectl can continue from there.

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::{Value, json};

use super::{CommandFailure, manifest_files::ManifestDocument};
use crate::error::chain;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MANAGER: &str = "navigator-local";

/// Applies one document. Returns whether the object was created, configured or unchanged.
pub(super) async fn apply_document(
    client: &Client,
    document: &ManifestDocument,
) -> Result<&'static str, CommandFailure> {
    let api = resolve_api(client, document).await?;
    let name = document.name();
    let to_failure = |error: kube::Error| {
        let text = match &error {
            kube::Error::Api(status) => status.message.clone(),
            other => chain(other).to_string(),
        };
        let text = format!("{}: {text}", document.place);
        let is_invalid =
            matches!(&error, kube::Error::Api(status) if [400, 422].contains(&status.code));
        if is_invalid { CommandFailure::usage(text) } else { CommandFailure::new(text) }
    };
    let mut body = document.body.clone();
    annotate_last_applied(&mut body);
    let Some(existing_object) = api.get_opt(name).await.map_err(to_failure)? else {
        let object: DynamicObject = serde_json::from_value(body)
            .map_err(|error| CommandFailure::usage(format!("{}: {error}", document.place)))?;
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        api.create(&params, &object).await.map_err(to_failure)?;
        return Ok("created");
    };
    let annotations = existing_object.meta().annotations.as_ref();
    let last_applied = annotations.and_then(|annotations| annotations.get(LAST_APPLIED));
    let last_applied =
        last_applied.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let mut patch = body.clone();
    mark_removed_fields(&mut patch, &last_applied);
    let previous_version = existing_object.meta().resource_version.clone();
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patched_object =
        api.patch(name, &params, &Patch::Merge(&patch)).await.map_err(to_failure)?;
    let is_unchanged = patched_object.meta().resource_version == previous_version;
    Ok(if is_unchanged { "unchanged" } else { "configured" })
}

async fn resolve_api(
    client: &Client,
    document: &ManifestDocument,
) -> Result<Api<DynamicObject>, CommandFailure> {
    let api_version = document.text("/apiVersion");
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, document.kind());
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await.map_err(|error| {
        let (kind, place) = (document.kind(), &document.place);
        CommandFailure::usage(format!(
            "{place}: no {kind} of {api_version} is served: {}",
            chain(&error)
        ))
    })?;
    let resource: ApiResource = resource;
    Ok(match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), document.namespace(), &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    })
}

/// Writes the applied object into its own annotation.
fn annotate_last_applied(body: &mut Value) {
    if let Some(annotations) =
        body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{body}\n");
    body["metadata"]["annotations"][LAST_APPLIED] = json!(text);
}

/// Sets `null` for every field that was applied last and is no longer in the file.
fn mark_removed_fields(patch: &mut Value, last_applied: &Value) {
    let (Value::Object(patch), Value::Object(last_applied)) = (patch, last_applied) else { return };
    for (key, last_value) in last_applied {
        match patch.get_mut(key) {
            Some(new_value) => mark_removed_fields(new_value, last_value),
            None => drop(patch.insert(key.clone(), Value::Null)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_no_more_is_taken_away() {
        let last = json!({"spec": {"a": 1, "b": {"c": 2, "d": 3}, "list": [1]}});
        let mut patch = json!({"spec": {"b": {"c": 4}, "list": [2]}});
        mark_removed_fields(&mut patch, &last);
        assert_eq!(patch, json!({"spec": {"a": null, "b": {"c": 4, "d": null}, "list": [2]}}));
    }

    #[test]
    fn the_note_of_what_was_applied_does_not_hold_itself() {
        let mut body =
            json!({"metadata": {"name": "x", "annotations": {LAST_APPLIED: "old", "a": "b"}}});
        annotate_last_applied(&mut body);
        let note = body["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap().to_owned();
        let noted: Value = serde_json::from_str(&note).unwrap();
        assert_eq!(noted, json!({"metadata": {"name": "x", "annotations": {"a": "b"}}}));
    }
}
