//! One implementation of [`Kind`] for every type that can be a hub.

use std::marker::PhantomData;

use serde_json::{Map, Value};

use super::{Column, DecodeError, Decoded, Kind, Part, Verdict, Version};
use crate::api::{
    decode::Document,
    hub::{Hub, Names},
};

/// A kind that is served, by its hub type.
pub(super) struct Served<T>(PhantomData<fn() -> T>);

impl<T> Served<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Hub> Served<T> {
    const NAMES: Names = T::NAMES;

    /// The typed object, or why the body is none.
    fn typed(version: Version, value: &Value) -> Result<T, DecodeError> {
        T::deserialize(value).map_err(|error| {
            let kind = Self::NAMES.kind;
            DecodeError::Malformed(format!(
                "{kind} in version {:?} cannot be handled as a {kind}: {error}",
                version.as_str()
            ))
        })
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

    fn decode(
        &self,
        version: Version,
        body: &Document,
        _stored: Option<&Value>,
    ) -> Result<Decoded, DecodeError> {
        let typed = Self::typed(version, &body.value)?;
        let strict = body.duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        Ok(Decoded { hub: Self::hub_value(&typed), strict: strict.collect(), warnings: Vec::new() })
    }

    fn encode(&self, version: Version, hub: &Value) -> Value {
        let mut value = hub.clone();
        head(&mut value, version, Self::NAMES.kind);
        value
    }

    fn decode_stored(&self, stored: &Value) -> Result<Value, DecodeError> {
        Self::typed(Version::V1beta1, stored)?;
        Ok(stored.clone())
    }

    fn merge_update(&self, part: Part, mut new: Value, old: &Value) -> Value {
        match part {
            Part::Main => {
                set(&mut new, "status", old.get("status"));
                new
            }
            Part::Status => {
                let mut merged = old.clone();
                set(&mut merged, "status", new.get("status"));
                merged
            }
        }
    }

    fn validate_create(&self, version: Version, hub: &Value) -> Verdict {
        match Self::typed(version, hub) {
            Ok(typed) => typed.validate_create(version),
            Err(_) => Verdict::default(),
        }
    }

    fn validate_update(&self, version: Version, part: Part, new: &Value, old: &Value) -> Verdict {
        match (Self::typed(version, new), Self::typed(version, old)) {
            (Ok(new), Ok(old)) => new.validate_update(version, part, &old),
            _ => Verdict::default(),
        }
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
