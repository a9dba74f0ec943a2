//! `metadata` of every kind: what the server writes itself, and what a client may write.
//!
//! Owns the rules of `pkg/registry/rest/{create,update,meta}.go` and
//! `pkg/api/validation/objectmeta.go`, except for names, which each kind has rules for.

use rand::Rng;
use serde_json::{Map, Value, json};

use crate::{
    api::field::{ErrorList, FieldError, Path, Problem},
    apiserver::status::{ApiError, Result},
};

/// Finalizers that garbage collection understands.
pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// All annotations together, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// What belongs to the server alone.
const SERVER_FIELDS: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// `metadata`, created when absent.
pub(super) fn fields(hub: &mut Value) -> &mut Map<String, Value> {
    if !hub["metadata"].is_object() {
        hub["metadata"] = json!({});
    }
    hub["metadata"].as_object_mut().expect("it was just made an object")
}

/// Removes a field of `metadata` and returns it.
pub(super) fn take(hub: &mut Value, name: &str) -> Option<Value> {
    fields(hub).remove(name)
}

pub(super) fn text<'a>(hub: &'a Value, name: &str) -> &'a str {
    hub["metadata"][name].as_str().unwrap_or_default()
}

/// Now, in seconds, as Kubernetes writes times.
pub(super) fn now() -> Value {
    let seconds = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    json!(seconds.unwrap_or_default().to_string())
}

/// The object goes where the URL says.
pub(super) fn settle_namespace(hub: &mut Value, namespace: &str) -> Result<()> {
    let given = text(hub, "namespace");
    if !given.is_empty() && given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    fields(hub).insert("namespace".into(), json!(namespace));
    Ok(())
}

/// A new object: no trace of an earlier life, an identity of its own.
pub(super) fn begin(hub: &mut Value) {
    let meta = fields(hub);
    for name in SERVER_FIELDS {
        meta.remove(name);
    }
    meta.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
    meta.insert("creationTimestamp".into(), now());
    meta.insert("generation".into(), json!(1));
}

/// An updated object keeps its identity, whatever the client says.
pub(super) fn keep(hub: &mut Value, old: &Value) {
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

/// Length of the random end of a generated name; the base is cut so that both fit a label.
const SUFFIX: usize = 5;
const BASE: usize = 63 - SUFFIX;

/// A name that starts with `base`, in Kubernetes' alphabet, which spells no words.
pub(super) fn generate_name(base: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    let mut name: String = base.chars().take(BASE).collect();
    for _ in 0..SUFFIX {
        name.push(char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]));
    }
    name
}

/// Owners named twice count once; says so.
pub(super) fn dedup_owners(hub: &mut Value) -> Option<String> {
    let owners = fields(hub).get_mut("ownerReferences")?.as_array_mut()?;
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    let mut twice = Vec::new();
    for owner in owners.drain(..) {
        if kept.contains(&owner) {
            twice.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            kept.push(owner);
        }
    }
    *owners = kept;
    (!twice.is_empty()).then(|| {
        format!(
            "metadata.ownerReferences contains duplicate entries; API server dedups owner \
             references in 1.20+, and may reject such requests as early as 1.24; please fix your \
             requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        )
    })
}

/// Everything that is wrong with what a client may write.
pub(super) fn validate(hub: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Path::new("metadata");
    if text(hub, "name").is_empty() {
        let detail = "name or generateName is required";
        errors.push(FieldError::new(&root.child("name"), Problem::Required, detail));
    }
    let meta = &hub["metadata"];
    if let Some(labels) = meta["labels"].as_object() {
        let path = root.child("labels");
        for (key, value) in labels {
            qualified_name(&path, key, &mut errors);
            label_value(&path, value.as_str().unwrap_or_default(), &mut errors);
        }
    }
    if let Some(annotations) = meta["annotations"].as_object() {
        let path = root.child("annotations");
        let mut size = 0;
        for (key, value) in annotations {
            qualified_name(&path, &key.to_lowercase(), &mut errors);
            size += key.len() + value.as_str().map_or(0, str::len);
        }
        if size > ANNOTATIONS_LIMIT {
            errors.push(FieldError::new(&path, Problem::TooLong(ANNOTATIONS_LIMIT), ""));
        }
    }
    validate_finalizers(&root.child("finalizers"), &finalizers(hub), &mut errors);
    if let Some(owners) = meta["ownerReferences"].as_array() {
        validate_owners(&root.child("ownerReferences"), owners, &mut errors);
    }
    errors
}

/// What an update may not change.
pub(super) fn validate_update(hub: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(hub);
    if old["metadata"]["deletionTimestamp"].is_string() {
        let before = finalizers(old);
        let added: Vec<String> = finalizers(hub)
            .into_iter()
            .filter(|name| !before.contains(name))
            .map(|name| format!("{name:?}"))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers []string{{{}}}",
                added.join(", ")
            );
            let path = Path::new("metadata").child("finalizers");
            errors.push(FieldError::new(&path, Problem::Forbidden, detail));
        }
    }
    errors
}

fn validate_finalizers(path: &Path, names: &[&str], errors: &mut ErrorList) {
    for name in names {
        qualified_name(path, name, errors);
        if !name.contains('/') && ![ORPHAN, FOREGROUND].contains(name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::new(path, Problem::Invalid(json!(name)), detail));
        }
    }
    if names.contains(&ORPHAN) && names.contains(&FOREGROUND) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(FieldError::new(path, Problem::Invalid(json!(names)), detail));
    }
}

fn validate_owners(path: &Path, owners: &[Value], errors: &mut ErrorList) {
    let mut controller: Option<&str> = None;
    for owner in owners {
        for (name, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            let value = owner[name].as_str().unwrap_or_default();
            if value.is_empty() {
                let problem = Problem::Invalid(json!(value));
                errors.push(FieldError::new(&path.child(name), problem, detail));
            }
        }
        if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::new(path, Problem::Invalid(owner.clone()), detail));
        }
        if owner["controller"] == true {
            let name = owner["name"].as_str().unwrap_or_default();
            if let Some(first) = controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in \
                     references for {first} and {name}"
                );
                let problem = Problem::Invalid(json!(owners));
                errors.push(FieldError::new(path, problem, detail));
            } else {
                controller = Some(name);
            }
        }
    }
}

const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                         must start and end with an alphanumeric character (e.g. 'MyName',  or \
                         'my.name',  or '123-abc', regex used for validation is \
                         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const PREFIX_PART: &str = "prefix part a lowercase RFC 1123 subdomain must consist of lower case \
                           alphanumeric characters, '-' or '.', and must start and end with an \
                           alphanumeric character (e.g. 'example.com', regex used for validation \
                           is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn qualified_name(path: &Path, key: &str, errors: &mut ErrorList) {
    let mut add = |detail: &str| {
        errors.push(FieldError::new(path, Problem::Invalid(json!(key)), detail));
    };
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            return add(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  \
                 or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix \
                 and '/' (e.g. 'example.com/MyName')",
            );
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                add("prefix part must be non-empty");
            } else if !is_subdomain(prefix) {
                add(PREFIX_PART);
            }
            name
        }
    };
    if name.is_empty() {
        add("name part must be non-empty");
    } else if name.len() > 63 {
        add("name part must be no more than 63 bytes");
    }
    if !is_name(name) {
        add(NAME_PART);
    }
}

fn label_value(path: &Path, value: &str, errors: &mut ErrorList) {
    let mut add = |detail: &str| {
        errors.push(FieldError::new(path, Problem::Invalid(json!(value)), detail));
    };
    if value.len() > 63 {
        add("must be no more than 63 bytes");
    }
    if !value.is_empty() && !is_name(value) {
        add(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
             or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
             'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        );
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            is_name(label)
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(meta: &Value) -> Vec<String> {
        let hub = json!({"metadata": meta});
        validate(&hub).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn everything_wrong_with_metadata_is_reported() {
        assert!(
            problems(&json!({"name": "a", "labels": {"x.io/y": "z", "q": ""},
            "finalizers": ["orphan", "x.io/y"], "annotations": {"Ab/c": "any thing"}}))
            .is_empty()
        );
        let found = problems(&json!({
            "labels": {"-a": "b c"}, "annotations": {"a/b/c": ""},
            "finalizers": ["plain", "orphan", "foregroundDeletion"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "", "controller": true},
            ],
        }));
        let fields: Vec<_> = found.iter().map(|text| text.split(": ").next().unwrap()).collect();
        assert_eq!(
            fields,
            [
                "metadata.name",
                "metadata.labels",
                "metadata.labels",
                "metadata.annotations",
                "metadata.finalizers",
                "metadata.finalizers",
                "metadata.ownerReferences.uid",
                "metadata.ownerReferences",
            ],
            "{found:#?}"
        );
    }

    #[test]
    fn generated_names_fit_a_label() {
        let name = generate_name(&"x".repeat(100));
        assert_eq!(name.len(), 63);
        let name = generate_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    }
}
