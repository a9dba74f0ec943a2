//! Validates ObjectMeta, as apimachinery `pkg/api/validation/objectmeta.go` does.
//!
//! The registry handles resourceVersion, uid and timestamps. Finalizers without a domain are
//! accepted with the warning that CustomResources give.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use super::{format, validator::Validator};
use crate::{api::names::annotation, machinery::field_error::FieldPath};

/// Most bytes of all annotations of an object together.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Validates the metadata of a new object. A name that the server generates is already there.
pub(super) fn validate_create(validator: &mut Validator, metadata: &ObjectMeta) {
    let path = FieldPath::new("metadata");
    if let Some(prefix) = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // Upstream masks a trailing dash: more will follow.
        let masked_prefix = match prefix.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => format!("{rest}a"),
            _ => prefix.to_owned(),
        };
        validator.invalid_each(
            &path.child("generateName"),
            prefix,
            &format::check_dns_subdomain(&masked_prefix),
        );
    }
    match metadata.name.as_deref().unwrap_or_default() {
        "" => validator.required(&path.child("name"), "name or generateName is required"),
        name => {
            validator.invalid_each(&path.child("name"), name, &format::check_dns_subdomain(name));
        }
    }
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() {
        let problems = format::check_dns_label(namespace);
        validator.invalid_each(&path.child("namespace"), namespace, &problems);
    }
    validate_common(validator, metadata, &path);
    validate_finalizers(validator, metadata, &path);
}

/// Validates the metadata of an update.
pub(super) fn validate_update(validator: &mut Validator, new: &ObjectMeta, old: &ObjectMeta) {
    let path = FieldPath::new("metadata");
    validate_common(validator, new, &path);
    if new.finalizers != old.finalizers {
        validate_finalizers(validator, new, &path);
    }
    if old.deletion_timestamp.is_some() {
        let old_finalizers: HashSet<&String> = old.finalizers.iter().flatten().collect();
        let mut added_finalizers = new.finalizers.clone().unwrap_or_default();
        added_finalizers.retain(|finalizer| !old_finalizers.contains(finalizer));
        added_finalizers.sort();
        if !added_finalizers.is_empty() {
            let quoted_names: Vec<String> =
                added_finalizers.iter().map(|name| format!("{name:?}")).collect();
            let text = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers []string{{{}}}",
                quoted_names.join(", ")
            );
            validator.forbidden(&path.child("finalizers"), &text);
        }
    }
}

fn validate_common(validator: &mut Validator, metadata: &ObjectMeta, path: &FieldPath) {
    validate_labels(validator, metadata.labels.iter().flatten(), &path.child("labels"));
    validate_annotations(
        validator,
        metadata.annotations.iter().flatten(),
        &path.child("annotations"),
    );
    let references = metadata.owner_references.as_deref().unwrap_or_default();
    validate_owner_references(validator, references, &path.child("ownerReferences"));
}

/// Validates labels of an object, or those that the spec asks for at an object to be made.
pub(super) fn validate_labels<'a>(
    validator: &mut Validator,
    labels: impl Iterator<Item = (&'a String, &'a String)>,
    path: &FieldPath,
) {
    for (key, value) in labels {
        validator.invalid_each(path, key, &format::check_qualified_name(key));
        validator.invalid_each(path, value, &format::check_label_value(value));
    }
}

/// Validates annotations of an object, or those that the spec asks for at an object to be made.
pub(super) fn validate_annotations<'a>(
    validator: &mut Validator,
    annotations: impl Iterator<Item = (&'a String, &'a String)>,
    path: &FieldPath,
) {
    let mut size = 0;
    for (key, value) in annotations {
        validator.invalid_each(path, key, &format::check_qualified_name(&key.to_lowercase()));
        // The annotation `SURPLUS` is shown to readers of v1alpha1 only, and never stored.
        if key != annotation::SURPLUS {
            size += key.len() + value.len();
        }
    }
    if size > ANNOTATIONS_LIMIT {
        validator.too_long(path, ANNOTATIONS_LIMIT);
    }
}

fn validate_owner_references(
    validator: &mut Validator,
    references: &[OwnerReference],
    path: &FieldPath,
) {
    let mut controller: Option<String> = None;
    for reference in references {
        let OwnerReference { api_version, kind, name, uid, controller: is_controller, .. } =
            reference;
        // Upstream reports the path of the list, not that of the item.
        let version = api_version.rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            let text = "version must not be empty";
            validator.invalid(&path.child("apiVersion"), api_version.as_str(), text);
        }
        for (field, value) in [("kind", kind), ("name", name), ("uid", uid)] {
            if value.is_empty() {
                validator.invalid(&path.child(field), value.as_str(), "must not be empty");
            }
        }
        if api_version == "v1" && kind == "Event" {
            let text = "/v1, Kind=Event is disallowed from being an owner";
            validator.invalid(path, json!(reference), text);
        }
        if *is_controller == Some(true) {
            let owner = format!("{kind}/{name}");
            match &controller {
                None => controller = Some(owner),
                Some(first_owner) => {
                    let text = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first_owner} and {owner}"
                    );
                    validator.invalid(path, json!(references), &text);
                    // Each error shows the whole list, so one error is enough.
                    break;
                }
            }
        }
    }
}

fn validate_finalizers(validator: &mut Validator, metadata: &ObjectMeta, path: &FieldPath) {
    let path = path.child("finalizers");
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    for finalizer in finalizers {
        let problems = format::check_qualified_name(finalizer);
        let is_builtin = ["orphan", "foregroundDeletion"].contains(&finalizer.as_str());
        if problems.is_empty() && !is_builtin && !finalizer.contains('/') {
            validator.add_warning(format!("{path}: {finalizer:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"));
        }
        validator.invalid_each(&path, finalizer, &problems);
    }
    let has_finalizer = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has_finalizer("orphan") && has_finalizer("foregroundDeletion") {
        let text = "finalizer orphan and foregroundDeletion cannot be both set";
        validator.invalid(&path, json!(finalizers), text);
    }
}

/// Returns the names that the annotation `allow-unsafe` holds.
pub(super) fn allowed_unsafe(metadata: &ObjectMeta) -> Vec<String> {
    let text = metadata.annotations.as_ref().and_then(|map| map.get(annotation::ALLOW_UNSAFE));
    let names = text.into_iter().flat_map(|text| text.split(','));
    names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}
