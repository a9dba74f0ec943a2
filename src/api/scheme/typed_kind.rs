//! The one implementation of [`ServedKind`], for every type that is a hub.

use std::marker::PhantomData;

use serde_json::{Map, Value};

use crate::{
    api::{
        GROUP, V1ALPHA1, V1BETA1,
        defaults::ObjectOrigin,
        hub::{self, HubKind, KindNames},
        legacy,
        names::annotation,
        schema::SchemaSet,
    },
    machinery::{
        decode::ParsedBody,
        schema::compiled::Schema,
        served_kind::{
            DecodeError, DecodedObject, ObjectPart, PrinterColumn, ServedKind, ServedVersion,
            ValidationResult,
        },
        strict_decoding::{self, StrictFindings},
        unknown_fields,
    },
};

/// Metadata fields that a client cannot change by writing the object.
const SERVER_OWNED: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// A served kind whose hub type is `T`.
pub(super) struct TypedKind<T> {
    schemas: &'static SchemaSet,
    hub: PhantomData<fn() -> T>,
}

impl<T: HubKind> TypedKind<T> {
    const NAMES: KindNames = T::NAMES;

    /// Makes the kind and leaks it: it lives as long as the process.
    pub(super) fn new_static(schemas: &'static SchemaSet) -> &'static dyn ServedKind {
        Box::leak(Box::new(Self { schemas, hub: PhantomData }))
    }

    /// Returns the error for a body or stored bytes in a version that the kind never had.
    fn not_registered(api_version: &str) -> DecodeError {
        let kind = Self::NAMES.kind;
        DecodeError::Malformed(format!(
            "no kind {kind:?} is registered for version {api_version:?}"
        ))
    }

    fn schema(&self, version: ServedVersion) -> &'static Schema {
        self.schemas.kind_schema(version, Self::NAMES.kind)
    }

    fn parse_typed(version: ServedVersion, value: &Value) -> Result<T, DecodeError> {
        hub::parse_typed(Self::NAMES.kind, version, value)
    }

    /// Brings the parts of an object into the form in which they are stored.
    fn canonicalize_typed(&self, version: ServedVersion, mut typed: T) -> Result<T, DecodeError> {
        typed
            .canonicalize_parts(self.schemas)
            .map_err(|error| hub::malformed_error(Self::NAMES.kind, version, &error))?;
        Ok(typed)
    }

    /// Parses a hub object that this module made; panics on any other.
    fn parse_hub(value: &Value) -> T {
        Self::parse_typed(V1BETA1, value)
            .expect("hub values are made by decode and decode_stored, from the typed object")
    }

    fn hub_value(typed: &T) -> Value {
        let mut value =
            serde_json::to_value(typed).expect("wire types have string keys and no failing fields");
        set_type_meta(&mut value, V1BETA1, Self::NAMES.kind);
        value
    }
}

/// Returns the version of Navigator's group that an object's `apiVersion` names.
fn version_of(api_version: &str) -> Option<&str> {
    api_version.strip_prefix(GROUP)?.strip_prefix('/')
}

/// Writes apiVersion and kind into an object.
fn set_type_meta(value: &mut Value, version: ServedVersion, kind: &str) {
    value["apiVersion"] = format!("{GROUP}/{version}").into();
    value["kind"] = kind.into();
}

impl<T: HubKind> ServedKind for TypedKind<T> {
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

    fn versions(&self) -> &'static [ServedVersion] {
        Self::NAMES.versions
    }

    fn has_status(&self) -> bool {
        Self::NAMES.has_status
    }

    fn group(&self) -> &'static str {
        GROUP
    }

    fn max_size(&self) -> usize {
        Self::NAMES.largest
    }

    fn is_vital(&self) -> bool {
        Self::NAMES.is_vital
    }

    fn surplus_annotation(&self) -> Option<&'static str> {
        Some(annotation::SURPLUS)
    }

    fn orphan_dependents(&self, hub: &mut Value) {
        hub["metadata"]["annotations"][annotation::ORPHAN] = "true".into();
    }

    fn merge_schema(&self, version: ServedVersion) -> &'static Schema {
        self.schema(version)
    }

    fn normalize(
        &self,
        version: ServedVersion,
        body: &mut ParsedBody,
    ) -> Result<Vec<String>, DecodeError> {
        if version != V1ALPHA1 {
            return Ok(Vec::new());
        }
        legacy::normalize_body(self.schema(version), body, |spec, findings| {
            T::normalize_spec(self.schemas, spec, findings)
        })
    }

    fn decode(
        &self,
        version: ServedVersion,
        mut body: ParsedBody,
        stored: Option<&Value>,
    ) -> Result<DecodedObject, DecodeError> {
        if !Self::NAMES.versions.contains(&version) {
            return Err(Self::not_registered(&format!("{GROUP}/{version}")));
        }
        let schema = self.schema(version);
        strict_decoding::canonicalize_document(schema, &mut body);
        let mut warnings = self.normalize(version, &mut body)?;
        let StrictFindings { fields, type_errors } = strict_decoding::check_document(schema, &body);
        if !type_errors.is_empty() {
            return Err(DecodeError::Invalid(type_errors));
        }
        unknown_fields::prune_unknown(self.schema(version), &mut body.value);
        let stored_object = stored.map(Self::parse_hub);
        let mut typed = if version == V1ALPHA1 {
            T::from_older(self.schemas, &body.value, stored_object.clone())?
        } else {
            Self::parse_typed(version, &body.value)?
        };
        // Frees the body before the next tree of this size is made.
        drop(body);
        typed = self.canonicalize_typed(version, typed)?;
        let origin =
            stored_object.as_ref().map_or(ObjectOrigin::Created(version), ObjectOrigin::Updated);
        warnings.extend(typed.apply_defaults(&origin));
        Ok(DecodedObject { hub: Self::hub_value(&typed), strict: fields, warnings })
    }

    fn encode(&self, version: ServedVersion, hub: &Value) -> Value {
        let mut value = hub.clone();
        unknown_fields::prune_unknown(self.schema(V1BETA1), &mut value);
        if version == V1ALPHA1 {
            value = Self::parse_hub(&value).into_older(self.schemas);
        }
        set_type_meta(&mut value, version, Self::NAMES.kind);
        value
    }

    fn shows_all(&self, hub: &Value) -> bool {
        let type_meta_field = |name: &str| hub.get(name).and_then(Value::as_str);
        type_meta_field("apiVersion").and_then(version_of) == Some(Self::NAMES.versions[0].as_str())
            && type_meta_field("kind") == Some(Self::NAMES.kind)
            && unknown_fields::is_fully_known(self.schema(V1BETA1), hub)
    }

    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> {
        let api_version = stored.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let version_name = version_of(api_version);
        let version =
            Self::NAMES.versions.iter().find(|version| version_name == Some(version.as_str()));
        let version = *version.ok_or_else(|| Self::not_registered(api_version))?;
        let mut document = ParsedBody::from(stored);
        strict_decoding::canonicalize_document(self.schema(version), &mut document);
        if version == V1ALPHA1 {
            self.normalize(version, &mut document)?;
            let typed = T::from_older(self.schemas, &document.value, None)?;
            let mut typed = self.canonicalize_typed(version, typed)?;
            drop(typed.apply_defaults(&ObjectOrigin::Stored));
            return Ok(Self::hub_value(&typed));
        }
        let mut typed =
            self.canonicalize_typed(version, Self::parse_typed(version, &document.value)?)?;
        drop(typed.apply_defaults(&ObjectOrigin::Stored));
        let mut value = Self::hub_value(&typed);
        unknown_fields::copy_unknown(self.schema(version), &document.value, &mut value);
        Ok(value)
    }

    fn merge_update(&self, part: ObjectPart, mut new: Value, old: &Value) -> Value {
        match part {
            ObjectPart::Main => {
                for name in SERVER_OWNED {
                    set_field(&mut new["metadata"], name, old["metadata"].get(name));
                }
                if Self::NAMES.has_status {
                    set_field(&mut new, "status", old.get("status"));
                }
                unknown_fields::copy_unknown(self.schema(V1BETA1), old, &mut new);
                new
            }
            ObjectPart::Status | ObjectPart::Other(_) => {
                let mut merged_object = old.clone();
                let status = new.get_mut("status").map(Value::take).unwrap_or_default();
                let status = (!status.is_null()).then_some(status);
                set_field(&mut merged_object, "status", status.as_ref());
                unknown_fields::copy_unknown(self.schema(V1BETA1), old, &mut merged_object);
                let revision = new["metadata"].get("resourceVersion");
                let revision = revision.or(old["metadata"].get("resourceVersion"));
                set_field(&mut merged_object["metadata"], "resourceVersion", revision);
                merged_object
            }
        }
    }

    fn validate_create(&self, version: ServedVersion, hub: &Value) -> ValidationResult {
        Self::parse_hub(hub).validate_create(version, self.schemas)
    }

    fn validate_update(
        &self,
        version: ServedVersion,
        part: ObjectPart,
        new: &Value,
        old: &Value,
    ) -> ValidationResult {
        Self::parse_hub(new).validate_update(version, self.schemas, part, &Self::parse_hub(old))
    }

    fn is_beside(&self) -> Option<fn(name: &str, other: &str) -> bool> {
        T::neighbor_filter()
    }

    fn validate_beside(
        &self,
        version: ServedVersion,
        new: &Value,
        old: Option<&Value>,
        other: &Value,
    ) -> ValidationResult {
        let old = old.map(Self::parse_hub);
        Self::parse_hub(new).validate_with_neighbor(
            version,
            self.schemas,
            old.as_ref(),
            &Self::parse_hub(other),
        )
    }

    fn columns(&self) -> &'static [PrinterColumn] {
        Self::NAMES.columns
    }

    fn cells(&self, hub: &Value, now: i64) -> Vec<Value> {
        (Self::NAMES.cells)(hub, now)
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        Self::NAMES.selectable
    }

    fn field_value(&self, hub: &Value, path: &str) -> String {
        let field = path.split('.').try_fold(hub, |value, name| value.get(name));
        match field {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        }
    }
}

/// Sets a field of an object to `value`; removes it for `None`.
fn set_field(object: &mut Value, name: &str, value: Option<&Value>) {
    let fields: &mut Map<String, Value> =
        object.as_object_mut().expect("hub objects are JSON objects");
    match value {
        Some(value) => fields.insert(name.to_owned(), value.clone()),
        None => fields.remove(name),
    };
}
