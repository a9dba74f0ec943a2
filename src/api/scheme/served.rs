//! One implementation of [`Kind`] for every type that can be a hub.

use std::marker::PhantomData;

use serde_json::{Map, Value};

use crate::api::{
    decode::Document,
    hub::{self, Hub, Names},
    kind::{Column, DecodeError, Decoded, Kind, Part, Validation, Version},
    known, legacy,
    schema::{Schemas, compiled::Schema},
    strict::{self, Strict},
};

/// Metadata that a client cannot change by writing the object.
const SERVER_OWNED: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// A kind that is served, by its hub type.
pub(super) struct Served<T> {
    schemas: &'static Schemas,
    hub: PhantomData<fn() -> T>,
}

impl<T: Hub> Served<T> {
    const NAMES: Names = T::NAMES;

    /// The kind, for as long as the process lives.
    pub(super) fn leaked(schemas: &'static Schemas) -> &'static dyn Kind {
        Box::leak(Box::new(Self { schemas, hub: PhantomData }))
    }

    /// The error for a body or stored bytes in a version that the kind never had.
    fn not_registered(api_version: &str) -> DecodeError {
        let kind = Self::NAMES.kind;
        DecodeError::Malformed(format!(
            "no kind {kind:?} is registered for version {api_version:?}"
        ))
    }

    fn schema(&self, version: Version) -> &'static Schema {
        self.schemas.kind(version, Self::NAMES.kind)
    }

    fn typed(version: Version, value: &Value) -> Result<T, DecodeError> {
        hub::typed(Self::NAMES.kind, version, value)
    }

    /// The object with its parts in the form in which they are stored.
    fn canonical(&self, version: Version, mut typed: T) -> Result<T, DecodeError> {
        typed
            .canonicalize(self.schemas)
            .map_err(|error| hub::malformed(Self::NAMES.kind, version, &error))?;
        Ok(typed)
    }

    /// A hub object that this module made.
    fn hub(value: &Value) -> T {
        Self::typed(Version::V1beta1, value)
            .expect("hub values are made by decode and decode_stored, from the typed object")
    }

    fn hub_value(typed: &T) -> Value {
        let mut value =
            serde_json::to_value(typed).expect("wire types have string keys and no failing fields");
        head(&mut value, Version::V1beta1, Self::NAMES.kind);
        value
    }
}

/// Writes apiVersion and kind.
fn head(value: &mut Value, version: Version, kind: &str) {
    value["apiVersion"] = version.api_version().into();
    value["kind"] = kind.into();
}

impl<T: Hub> Kind for Served<T> {
    fn plural(&self) -> &'static str {
        Self::NAMES.plural
    }

    fn singular(&self) -> &'static str {
        Self::NAMES.singular
    }

    fn kind(&self) -> &'static str {
        Self::NAMES.kind
    }

    fn short_names(&self) -> &'static [&'static str] {
        Self::NAMES.short
    }

    fn categories(&self) -> &'static [&'static str] {
        Self::NAMES.categories
    }

    fn versions(&self) -> &'static [Version] {
        Self::NAMES.versions
    }

    fn has_status(&self) -> bool {
        Self::NAMES.has_status
    }

    fn largest(&self) -> usize {
        Self::NAMES.largest
    }

    fn is_vital(&self) -> bool {
        Self::NAMES.is_vital
    }

    fn lease_of(&self, account: &str) -> Option<String> {
        (Self::NAMES.lease_of)(account)
    }

    fn merging(&self, version: Version) -> &'static Schema {
        self.schema(version)
    }

    fn normalize(&self, version: Version, body: &mut Document) -> Result<Vec<String>, DecodeError> {
        match version {
            Version::V1alpha1 => legacy::normalize(self.schema(version), body, |spec, pass| {
                T::normalize(self.schemas, spec, pass)
            }),
            Version::V1beta1 | Version::V1 => Ok(Vec::new()),
        }
    }

    fn decode(
        &self,
        version: Version,
        mut body: Document,
        stored: Option<&Value>,
    ) -> Result<Decoded, DecodeError> {
        if !Self::NAMES.versions.contains(&version) {
            return Err(Self::not_registered(version.api_version()));
        }
        let schema = self.schema(version);
        strict::canonicalise(schema, &mut body);
        let warnings = self.normalize(version, &mut body)?;
        let Strict { fields, type_errors } = strict::check(schema, &body);
        if !type_errors.is_empty() {
            return Err(DecodeError::Invalid(type_errors));
        }
        known::prune(self.schema(version), &mut body.value);
        let stored = stored.map(Self::hub);
        let mut typed = match version {
            Version::V1beta1 | Version::V1 => Self::typed(version, &body.value)?,
            Version::V1alpha1 => T::from_older(self.schemas, &body.value, stored.clone())?,
        };
        // Frees the body before the next tree of this size is made.
        drop(body);
        typed = self.canonical(version, typed)?;
        typed.default(stored.as_ref());
        Ok(Decoded { hub: Self::hub_value(&typed), strict: fields, warnings })
    }

    fn encode(&self, version: Version, hub: &Value) -> Value {
        let mut value = hub.clone();
        known::prune(self.schema(Version::V1beta1), &mut value);
        if version == Version::V1alpha1 {
            value = Self::hub(&value).into_older(self.schemas);
        }
        head(&mut value, version, Self::NAMES.kind);
        value
    }

    fn shows_all(&self, hub: &Value) -> bool {
        let head = |name: &str| hub.get(name).and_then(Value::as_str);
        head("apiVersion") == Some(Self::NAMES.versions[0].api_version())
            && head("kind") == Some(Self::NAMES.kind)
            && known::knows(self.schema(Version::V1beta1), hub)
    }

    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> {
        let written = stored.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let version = Self::NAMES.versions.iter().find(|version| version.api_version() == written);
        let version = *version.ok_or_else(|| Self::not_registered(written))?;
        let mut document = Document::from(stored);
        strict::canonicalise(self.schema(version), &mut document);
        if version == Version::V1alpha1 {
            self.normalize(version, &mut document)?;
            let typed = T::from_older(self.schemas, &document.value, None)?;
            let mut typed = self.canonical(version, typed)?;
            typed.default(None);
            return Ok(Self::hub_value(&typed));
        }
        let mut typed = self.canonical(version, Self::typed(version, &document.value)?)?;
        typed.default(None);
        let mut value = Self::hub_value(&typed);
        known::carry(self.schema(version), &document.value, &mut value);
        Ok(value)
    }

    fn merge_update(&self, part: Part, mut new: Value, old: &Value) -> Value {
        match part {
            Part::Main => {
                for name in SERVER_OWNED {
                    set(&mut new["metadata"], name, old["metadata"].get(name));
                }
                if Self::NAMES.has_status {
                    set(&mut new, "status", old.get("status"));
                }
                known::carry(self.schema(Version::V1beta1), old, &mut new);
                new
            }
            Part::Status | Part::Other(_) => {
                let mut merged = old.clone();
                let status = new.get_mut("status").map(Value::take).unwrap_or_default();
                let status = (!status.is_null()).then_some(status);
                set(&mut merged, "status", status.as_ref());
                known::carry(self.schema(Version::V1beta1), old, &mut merged);
                let revision = new["metadata"].get("resourceVersion");
                let revision = revision.or(old["metadata"].get("resourceVersion"));
                set(&mut merged["metadata"], "resourceVersion", revision);
                merged
            }
        }
    }

    fn validate_create(&self, version: Version, hub: &Value) -> Validation {
        Self::hub(hub).validate_create(version, self.schemas)
    }

    fn validate_update(
        &self,
        version: Version,
        part: Part,
        new: &Value,
        old: &Value,
    ) -> Validation {
        Self::hub(new).validate_update(version, self.schemas, part, &Self::hub(old))
    }

    fn columns(&self) -> &'static [Column] {
        Self::NAMES.columns
    }

    fn cells(&self, hub: &Value, now: i64) -> Vec<Value> {
        (Self::NAMES.cells)(hub, now)
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        Self::NAMES.selectable
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

/// Sets or removes a field of an object.
fn set(object: &mut Value, name: &str, value: Option<&Value>) {
    let fields: &mut Map<String, Value> =
        object.as_object_mut().expect("hub objects are JSON objects");
    match value {
        Some(value) => fields.insert(name.to_owned(), value.clone()),
        None => fields.remove(name),
    };
}
