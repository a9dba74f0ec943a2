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
pub(super) fn all(schemas: &'static SchemaSet) -> Vec<&'static dyn ServedKind> {
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
fn typed<T: DeserializeOwned + Serialize>(body: &Value) -> Result<Value, String> {
    let known = serde_json::from_str::<T>(&body.to_string()).and_then(serde_json::to_value);
    known.map_err(|error| {
        // Where that is in a text that nobody wrote helps nobody.
        let told = error.to_string();
        told.rfind(" at line ").map_or_else(|| told.clone(), |end| told[..end].to_owned())
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

    fn begin(&self, hub: &mut Value) {
        (self.native.begin)(hub);
    }

    fn end(&self, hub: &mut Value) {
        (self.native.end)(hub);
    }

    fn grace_period(&self, hub: &Value, asked: Option<i64>) -> i64 {
        if self.native.kind == "Pod" { defaults::pod_grace_period(hub, asked) } else { 0 }
    }

    fn is_held(&self, hub: &Value) -> bool {
        // A namespace stays until the garbage collector has emptied it and removed these
        // finalizers.
        let finalizers = hub.pointer("/spec/finalizers").and_then(Value::as_array);
        self.native.kind == "Namespace" && finalizers.is_some_and(|left| !left.is_empty())
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
        let known = (self.native.typed)(&hub).map_err(|error| {
            let kind = self.native.kind;
            DecodeError::Malformed(format!(
                "{kind} in version \"{version}\" cannot be handled as a {kind}: {error}"
            ))
        })?;
        let mut strict = Vec::new();
        unknown(&hub, &known, "", &mut strict);
        let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        strict.extend(duplicates);
        strict.truncate(MAX_FINDINGS);
        (self.native.complete)(&mut hub);
        Ok(DecodedObject { hub, strict, warnings: Vec::new() })
    }

    fn encode(&self, version: ServedVersion, hub: &Value) -> Value {
        let mut shown = hub.clone();
        shown["apiVersion"] = self.api_version(version).into();
        shown["kind"] = self.native.kind.into();
        shown
    }

    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> {
        Ok(stored)
    }

    fn merge_update(&self, part: ObjectPart, mut new: Value, old: &Value) -> Value {
        // Takes one part from the new object, and the rest from the stored one.
        let only = |pointer: &[&str], mut new: Value| {
            let mut merged = old.clone();
            let (mut from, mut to) = (&mut new, &mut merged);
            for name in &pointer[..pointer.len() - 1] {
                (from, to) = (&mut from[*name], &mut to[*name]);
            }
            let name = pointer[pointer.len() - 1];
            let value = from.get_mut(name).map(Value::take);
            set(to, name, value.filter(|value| !value.is_null()));
            merged
        };
        match part {
            ObjectPart::Main => {
                if self.native.status {
                    set(&mut new, "status", old.get("status").cloned());
                }
                if self.native.kind == "Namespace" {
                    let finalizers = old.pointer("/spec/finalizers").cloned();
                    set(&mut new["spec"], "finalizers", finalizers);
                }
                new
            }
            ObjectPart::Status => only(&["status"], new),
            ObjectPart::Other("ephemeralcontainers") => only(&["spec", "ephemeralContainers"], new),
            ObjectPart::Other("finalize") => only(&["spec", "finalizers"], new),
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
        let mut found = validation::object_meta(self.schemas, &new["metadata"], old_meta);
        if let Some(mutable) = self.native.mutable.filter(|_| part == ObjectPart::Main) {
            found.errors.extend(defaults::immutable(self.native.plural, mutable, new, old));
        }
        found
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

    fn field(&self, hub: &Value, path: &str) -> String {
        let found = path.split('.').try_fold(hub, |value, name| value.get(name));
        match found {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        }
    }
}

/// Sets or removes a field. A value that is no object becomes one when a field is set.
fn set(object: &mut Value, name: &str, value: Option<Value>) {
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

/// Collects the paths of fields in `body` that are missing in `known`, which was encoded from the
/// kind's type.
fn unknown(body: &Value, known: &Value, path: &str, found: &mut Vec<String>) {
    match (body, known) {
        (Value::Object(body), Value::Object(known)) => {
            for (name, value) in body {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => unknown(value, known, &path, found),
                    None => found.push(format!("unknown field {path:?}")),
                }
            }
        }
        (Value::Array(body), Value::Array(known)) => {
            for (at, (body, known)) in body.iter().zip(known).enumerate() {
                unknown(body, known, &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
}
