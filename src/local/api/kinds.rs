//! The kinds of Kubernetes that the local API serves.
//!
//! Owns what differs between them: names, defaults, what an update may change, columns. A body must
//! be of the kind's own type; fields that the type does not know are reported and kept.

mod columns;
mod defaults;
mod definitions;
mod events_group;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use self::events_group::EventsGroupKind;
use crate::{
    api::{schema::SchemaSet, validation},
    machinery::{
        decode::{MAX_FINDINGS, ParsedBody},
        served_kind::{
            DecodeError, DecodedObject, ObjectPart, PrinterColumn, ServedKind, ServedVersion,
            Subresource, ValidationResult,
        },
    },
};

/// Name of the core group in keys of the store, where every group has a name.
pub(super) const CORE: &str = "core";
/// Namespace of cluster-scoped objects in keys of the store.
pub(super) use crate::apiserver::registry::NO_NAMESPACE;

/// Returns the kinds of Kubernetes that are served.
pub(super) fn served_kinds(schemas: &'static SchemaSet) -> Vec<&'static dyn ServedKind> {
    let mut kinds: Vec<&'static dyn ServedKind> = Vec::new();
    for native in definitions::ALL {
        kinds.push(Box::leak(Box::new(KubernetesKind { native, schemas })));
        if native.kind == "Event" {
            kinds.push(Box::leak(Box::new(EventsGroupKind::new(KubernetesKind {
                native,
                schemas,
            }))));
        }
    }
    kinds
}

/// What differs between kinds of Kubernetes.
struct KindDefinition {
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    group: &'static str,
    namespaced: bool,
    status: bool,
    subresources: &'static [Subresource],
    selectable: &'static [&'static str],
    columns: &'static [PrinterColumn],
    cells: fn(&Value, i64) -> Vec<Value>,
    /// Decodes a body into the kind's Rust type and encodes it again, which drops unknown fields.
    typed: fn(&Value) -> Result<Value, String>,
    /// Completes the body of a create or update.
    complete: fn(&mut Value),
    /// Completes an object that is created.
    begin: fn(&mut Value),
    /// Completes an object whose deletion begins.
    end: fn(&mut Value),
    /// Fields of spec that an update may change; all fields when absent.
    mutable: Option<&'static [&'static str]>,
}

/// Decodes a body into the type `T` and encodes it again, which drops unknown fields. By way of its text,
/// since clients of this program read the same types from that: to read one from a tree as well would
/// take as much of the program again.
fn roundtrip_type<T: DeserializeOwned + Serialize>(body: &Value) -> Result<Value, String> {
    let result = serde_json::from_str::<T>(&body.to_string()).and_then(serde_json::to_value);
    result.map_err(|error| {
        // Where that is in a text that nobody wrote helps nobody.
        let message = error.to_string();
        message.rfind(" at line ").map_or_else(|| message.clone(), |end| message[..end].to_owned())
    })
}

/// A kind as the API server's machinery sees it. The hub form is the object itself.
#[derive(Clone, Copy)]
struct KubernetesKind {
    native: &'static KindDefinition,
    schemas: &'static SchemaSet,
}

const VERSIONS: &[ServedVersion] = &[ServedVersion::new("v1")];

impl ServedKind for KubernetesKind {
    fn plural(&self) -> &'static str {
        self.native.plural
    }

    fn singular(&self) -> &'static str {
        self.native.singular
    }

    fn kind(&self) -> &'static str {
        self.native.kind
    }

    fn short_names(&self) -> &'static [&'static str] {
        self.native.short
    }

    fn categories(&self) -> &'static [&'static str] {
        self.native.categories
    }

    fn versions(&self) -> &'static [ServedVersion] {
        VERSIONS
    }

    fn has_status(&self) -> bool {
        self.native.status
    }

    fn group(&self) -> &'static str {
        self.native.group
    }

    fn stored_group(&self) -> &'static str {
        if self.native.group.is_empty() { CORE } else { self.native.group }
    }

    fn is_namespaced(&self) -> bool {
        self.native.namespaced
    }

    fn subresources(&self) -> &'static [Subresource] {
        self.native.subresources
    }

    fn takes_strategic(&self) -> bool {
        true
    }

    fn prepare_create(&self, hub: &mut Value) {
        (self.native.begin)(hub);
    }

    fn prepare_delete(&self, hub: &mut Value) {
        (self.native.end)(hub);
    }

    fn grace_period(&self, hub: &Value, requested_seconds: Option<i64>) -> i64 {
        if self.native.kind == "Pod" {
            defaults::pod_grace_period(hub, requested_seconds)
        } else {
            0
        }
    }

    fn is_held(&self, hub: &Value) -> bool {
        // A namespace stays until the garbage collector has emptied it and removed these
        // finalizers.
        let finalizers = hub.pointer("/spec/finalizers").and_then(Value::as_array);
        self.native.kind == "Namespace" && finalizers.is_some_and(|names| !names.is_empty())
    }

    fn normalize(&self, _: ServedVersion, _: &mut ParsedBody) -> Result<Vec<String>, DecodeError> {
        Ok(Vec::new())
    }

    fn decode(
        &self,
        version: ServedVersion,
        body: ParsedBody,
        _stored: Option<&Value>,
    ) -> Result<DecodedObject, DecodeError> {
        let ParsedBody { value: mut hub, duplicates, .. } = body;
        drop_nulls(&mut hub);
        hub["apiVersion"] = self.api_version(version).into();
        hub["kind"] = self.native.kind.into();
        let known_fields = (self.native.typed)(&hub).map_err(|error| {
            let kind = self.native.kind;
            DecodeError::Malformed(format!(
                "{kind} in version \"{version}\" cannot be handled as a {kind}: {error}"
            ))
        })?;
        let mut strict = Vec::new();
        collect_unknown_fields(&hub, &known_fields, "", &mut strict);
        let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        strict.extend(duplicates);
        strict.truncate(MAX_FINDINGS);
        (self.native.complete)(&mut hub);
        Ok(DecodedObject { hub, strict, warnings: Vec::new() })
    }

    fn encode(&self, version: ServedVersion, hub: &Value) -> Value {
        let mut object = hub.clone();
        object["apiVersion"] = self.api_version(version).into();
        object["kind"] = self.native.kind.into();
        object
    }

    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> {
        Ok(stored)
    }

    fn merge_update(&self, part: ObjectPart, mut new: Value, old: &Value) -> Value {
        // Takes one part from the new object, and the rest from the stored one.
        let merge_field = |pointer: &[&str], mut new: Value| {
            let mut merged = old.clone();
            let (mut source, mut target) = (&mut new, &mut merged);
            for name in &pointer[..pointer.len() - 1] {
                (source, target) = (&mut source[*name], &mut target[*name]);
            }
            let name = pointer[pointer.len() - 1];
            let value = source.get_mut(name).map(Value::take);
            set_field(target, name, value.filter(|value| !value.is_null()));
            merged
        };
        match part {
            ObjectPart::Main => {
                if self.native.status {
                    set_field(&mut new, "status", old.get("status").cloned());
                }
                if self.native.kind == "Namespace" {
                    let finalizers = old.pointer("/spec/finalizers").cloned();
                    set_field(&mut new["spec"], "finalizers", finalizers);
                }
                new
            }
            ObjectPart::Status => merge_field(&["status"], new),
            ObjectPart::Other("ephemeralcontainers") => {
                merge_field(&["spec", "ephemeralContainers"], new)
            }
            ObjectPart::Other("finalize") => merge_field(&["spec", "finalizers"], new),
            // Clients only read `log`; writes of `scale` arrive as patches of the StatefulSet.
            ObjectPart::Other(_) => old.clone(),
        }
    }

    fn validate_create(&self, _: ServedVersion, hub: &Value) -> ValidationResult {
        validation::object_meta(self.schemas, &hub["metadata"], None)
    }

    fn validate_update(
        &self,
        _: ServedVersion,
        part: ObjectPart,
        new: &Value,
        old: &Value,
    ) -> ValidationResult {
        let old_meta = Some(&old["metadata"]);
        let mut result = validation::object_meta(self.schemas, &new["metadata"], old_meta);
        if let Some(mutable) = self.native.mutable.filter(|_| part == ObjectPart::Main) {
            result.errors.extend(defaults::check_immutable_fields(
                self.native.plural,
                mutable,
                new,
                old,
            ));
        }
        result
    }

    fn columns(&self) -> &'static [PrinterColumn] {
        self.native.columns
    }

    fn cells(&self, hub: &Value, now: i64) -> Vec<Value> {
        (self.native.cells)(hub, now)
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        self.native.selectable
    }

    fn field_value(&self, hub: &Value, path: &str) -> String {
        let value = path.split('.').try_fold(hub, |value, name| value.get(name));
        match value {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        }
    }
}

/// Sets or removes a field. A value that is no object becomes one when a field is set.
fn set_field(object: &mut Value, name: &str, value: Option<Value>) {
    if !object.is_object() {
        if value.is_none() {
            return;
        }
        *object = Value::Object(Map::new());
    }
    let fields = object.as_object_mut().expect("it was just made an object");
    match value {
        Some(value) => fields.insert(name.to_owned(), value),
        None => fields.remove(name),
    };
}

/// Removes nulls: a field that is `null` and an absent one mean the same.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Collects the paths of fields in `body` that are missing in `typed_value`, which was encoded from
/// the kind's type.
fn collect_unknown_fields(body: &Value, typed_value: &Value, path: &str, paths: &mut Vec<String>) {
    match (body, typed_value) {
        (Value::Object(body), Value::Object(typed_fields)) => {
            for (name, value) in body {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match typed_fields.get(name) {
                    Some(typed_value) => collect_unknown_fields(value, typed_value, &path, paths),
                    None => paths.push(format!("unknown field {path:?}")),
                }
            }
        }
        (Value::Array(body), Value::Array(typed_items)) => {
            for (index, (body, typed_item)) in body.iter().zip(typed_items).enumerate() {
                collect_unknown_fields(body, typed_item, &format!("{path}[{index}]"), paths);
            }
        }
        _ => {}
    }
}
