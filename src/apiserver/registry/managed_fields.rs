//! The field managers of an object that is being written: `metadata.managedFields`.
//!
//! Tells [`ownership`](crate::machinery::ownership) what it needs of a kind: its versions, conversion
//! between them, and what a write through a part cannot change. Entries whose set did not change
//! keep their time, so that a write which changes nothing writes nothing.

use serde_json::{Map, Value};
use tracing::error;

use super::{RegistryCall, RegistryObject};
use crate::{
    apiserver::status::{ApiError, Result},
    machinery::{
        decode::ParsedBody,
        ownership::{
            AppliedObject, Error, FieldConflict, ManagedFields, OwnershipTracker, PathSet,
            RawManagedFields, Schema, VersionConverter,
        },
        served_kind::{DecodeError, ObjectPart, ServedKind, ServedVersion},
    },
};

/// Most bytes of `managedFields` by which a client may change those of an object. Longer ones are
/// ignored.
const MAX_GIVEN: usize = 1024 * 1024;

/// Tracks the field managers of one object in the versions of its kind.
pub(super) struct ObjectFieldManager<'a> {
    kind: &'static dyn ServedKind,
    part: ObjectPart,
    /// The object as it is stored, which conversions between versions need.
    stored: Option<&'a RegistryObject>,
    reset: PathSet,
}

impl<'a> ObjectFieldManager<'a> {
    pub(super) fn new(
        kind: &'static dyn ServedKind,
        part: ObjectPart,
        stored: Option<&'a RegistryObject>,
    ) -> Self {
        let reset = match part {
            ObjectPart::Main if kind.has_status() => PathSet::from_fields(&["status"]),
            ObjectPart::Status => PathSet::from_fields(&["metadata", "spec"]),
            ObjectPart::Main | ObjectPart::Other(_) => PathSet::default(),
        };
        Self { kind, part, stored, reset }
    }

    /// Returns the field managers after `next` was written over the stored object.
    /// `requested_owners` holds the body's `managedFields`: a client may change entries, or remove
    /// all of them.
    pub(super) fn after_update(
        &self,
        call: &RegistryCall<'_>,
        next: &Value,
        requested_owners: Option<&RawManagedFields>,
    ) -> Option<RawManagedFields> {
        let requested_owners = requested_owners.filter(|fields| {
            // Entries that are sent back as read change nothing; longer ones than `MAX_GIVEN` are
            // servers' work.
            self.part == ObjectPart::Main
                && Some(*fields) != self.entries()
                && fields.text().len() <= MAX_GIVEN
        });
        let managed_fields = match requested_owners {
            Some(fields) if fields.is_reset() => ManagedFields::default(),
            Some(fields) => match ManagedFields::from_raw(fields) {
                Ok(managed_fields) if !managed_fields.managers.is_empty() => managed_fields,
                _ => self.stored_managers().unwrap_or_default(),
            },
            None => self.stored_managers().unwrap_or_default(),
        };
        if self.stored.is_some() && managed_fields.managers.is_empty() {
            // The object's field managers were not tracked so far. The first apply begins to.
            return None;
        }
        let version = self.kind.api_version(call.version);
        let is_hub = call.version == self.kind.hub_version();
        let has_one_version =
            managed_fields.managers.values().all(|manager| manager.version == version);
        let (old_view, new_view) = match self.stored {
            None => (Value::Null, self.encode_version(call.version, next)),
            // No version is converted, so equal parts need not be looked at.
            Some(RegistryObject { hub, .. }) if is_hub && has_one_version => {
                let (old_diff, new_diff) = diff_values(hub, next);
                (
                    self.encode_version(call.version, &old_diff),
                    self.encode_version(call.version, &new_diff),
                )
            }
            Some(RegistryObject { hub, .. }) => {
                (self.encode_version(call.version, hub), self.encode_version(call.version, next))
            }
        };
        match self.tracker(&version).track_update(
            &old_view,
            &new_view,
            managed_fields,
            &call.manager,
        ) {
            Ok(managed_fields) => managed_fields.to_raw(),
            Err(source) => {
                let error = error_text(&source);
                error!(kind = self.kind.kind(), error, "Failed to track who owns fields");
                self.entries().cloned()
            }
        }
    }

    fn entries(&self) -> Option<&RawManagedFields> {
        self.stored.and_then(|stored| stored.owners.as_ref())
    }

    /// Returns the field managers as they are stored.
    fn stored_managers(&self) -> Result<ManagedFields, String> {
        self.entries().map_or_else(|| Ok(ManagedFields::default()), ManagedFields::from_raw)
    }

    /// Returns the object with what is applied, as the version shows it, and its field managers
    /// after that.
    pub(super) fn apply(
        &self,
        call: &RegistryCall<'_>,
        live_object: Value,
        config: &Value,
        force: bool,
    ) -> Result<AppliedObject> {
        let managed_fields = self.stored_managers().map_err(|error| {
            ApiError::internal_error(format!("failed to decode managed fields: {error}"))
        })?;
        let version = self.kind.api_version(call.version);
        let live_object = without_views(self.kind, live_object);
        let apply_result = self.tracker(&version).apply_config(
            &live_object,
            config,
            managed_fields,
            &call.manager,
            force,
        );
        apply_result.map_err(|error| match error {
            Error::Conflicts(conflicts) => conflict_error(&conflicts),
            Error::Mismatch(problems) => {
                let (meta, kind) = (&config["metadata"], self.kind.kind());
                let name = meta["name"].as_str().unwrap_or_default();
                let place = format!("{}/{name}; {version}, Kind={kind}", call.namespace);
                ApiError::unclassified_error(format!(
                    "failed to create typed patch object ({place}): {problems}"
                ))
            }
            Error::Convert(error) => super::not_understood(
                self.kind,
                config["metadata"]["name"].as_str().unwrap_or_default(),
                error,
            ),
        })
    }

    /// Returns the object as a version shows it, without the annotation that holds surplus fields.
    pub(super) fn encode_version(&self, version: ServedVersion, hub: &Value) -> Value {
        without_views(self.kind, self.kind.encode(version, hub))
    }

    fn tracker<'t>(&'t self, version: &'t str) -> OwnershipTracker<'t, Self> {
        let now = jiff::Timestamp::now().as_second();
        OwnershipTracker { versions: self, version, subresource: self.part.subresource(), now }
    }

    fn find_version(&self, api_version: &str) -> Option<ServedVersion> {
        let versions = self.kind.versions().iter().copied();
        versions.into_iter().find(|version| self.kind.api_version(*version) == api_version)
    }
}

impl VersionConverter for ObjectFieldManager<'_> {
    type Error = DecodeError;

    fn schema(&self, version: &str) -> Option<&Schema> {
        self.find_version(version).map(|version| self.kind.merge_schema(version))
    }

    fn convert(
        &self,
        object: &Value,
        source_version: &str,
        target_version: &str,
    ) -> Result<Value, DecodeError> {
        let invariant = "both versions have a schema, so they are served";
        let (source, target) = (
            self.find_version(source_version).expect(invariant),
            self.find_version(target_version).expect(invariant),
        );
        let stored_hub = self.stored.map(|stored| &stored.hub);
        let object_in_hub =
            self.kind.decode(source, ParsedBody::from(object.clone()), stored_hub)?;
        Ok(self.encode_version(target, &object_in_hub.hub))
    }

    fn reset_fields(&self, _version: &str) -> Option<&PathSet> {
        Some(&self.reset)
    }
}

/// Returns the stored `managedFields` when nothing but their times changed with `next`, else
/// `owners`.
pub(super) fn ignore_time_changes(
    owners: Option<RawManagedFields>,
    next: &Value,
    current: &RegistryObject,
) -> Option<RawManagedFields> {
    let RegistryObject { hub, owners: stored_owners, .. } = current;
    let is_same = |(new_fields, old_fields): (&RawManagedFields, &RawManagedFields)| {
        new_fields.is_equal_but_times(old_fields)
    };
    let is_unchanged = owners != *stored_owners
        && same_but(next, hub, &["metadata"])
        && same_but(&next["metadata"], &hub["metadata"], &["resourceVersion"])
        && owners.as_ref().zip(stored_owners.as_ref()).is_some_and(is_same);
    if is_unchanged { stored_owners.clone() } else { owners }
}

/// Tells whether two values are equal in all fields but `fields`.
fn same_but(left: &Value, right: &Value, fields: &[&str]) -> bool {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
        return left == right;
    };
    let is_compared = |name: &String| !fields.contains(&name.as_str());
    let size = |map: &Map<String, Value>| map.keys().filter(|name| is_compared(name)).count();
    let mut compared_fields = left.iter().filter(|(name, _)| is_compared(name));
    size(left) == size(right) && compared_fields.all(|(name, value)| right.get(name) == Some(value))
}

/// Returns two values without their equal parts: fields of maps, and list items at the same place.
fn diff_values(old: &Value, new: &Value) -> (Value, Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let (mut old_diff, mut new_diff) = (Map::new(), Map::new());
            for (name, value) in old {
                match new.get(name) {
                    Some(new_value) if new_value == value => {}
                    Some(new_value) => {
                        let (left, right) = diff_values(value, new_value);
                        old_diff.insert(name.clone(), left);
                        new_diff.insert(name.clone(), right);
                    }
                    None => drop(old_diff.insert(name.clone(), value.clone())),
                }
            }
            for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                new_diff.insert(name.clone(), value.clone());
            }
            (old_diff.into(), new_diff.into())
        }
        (Value::Array(old), Value::Array(new)) => {
            let exclude_equal = |list: &[Value], other: &[Value]| {
                let different_items = list
                    .iter()
                    .enumerate()
                    .filter(|(index, item)| other.get(*index) != Some(*item));
                different_items.map(|(_, item)| item.clone()).collect::<Value>()
            };
            (exclude_equal(old, new), exclude_equal(new, old))
        }
        _ => (old.clone(), new.clone()),
    }
}

/// Removes the annotation in which an older version shows surplus fields.
pub(super) fn without_views(kind: &dyn ServedKind, mut object: Value) -> Value {
    let Some(surplus) = kind.surplus_annotation() else { return object };
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return object;
    };
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        // A map that was empty before stays.
        if annotations.remove(surplus).is_some() && annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object
}

fn conflict_error(conflicts: &[FieldConflict]) -> ApiError {
    let cause = |conflict: &FieldConflict| {
        let path = crate::machinery::ownership::path_text(&conflict.path);
        (format!("conflict with {}", conflict.manager.text()), path)
    };
    let causes: Vec<(String, String)> = conflicts.iter().map(cause).collect();
    ApiError::apply_conflict(FieldConflict::message(conflicts), &causes)
}

fn error_text(error: &Error<DecodeError>) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::{V1BETA1, scheme::Scheme},
        apiserver::storage::{Key, Revision},
        machinery::ownership::compare_objects,
    };

    fn pilot(status: &Value) -> Value {
        let metadata = json!({"name": "a", "labels": {"a": "b"}});
        json!({"metadata": metadata, "spec": {"nodePool": "a"}, "status": status})
    }

    fn condition(type_: &str, status: &str) -> Value {
        json!({"type": type_, "status": status, "reason": "Tested", "message": ""})
    }

    #[test]
    fn what_differs_is_found_in_what_differs_alone() {
        let kind = Scheme::new(&[]).by_plural("pilots").unwrap();
        let schema = kind.merge_schema(V1BETA1);
        let conditions = |list: &[(&str, &str)]| {
            let list: Vec<Value> = list.iter().map(|(type_, is)| condition(type_, is)).collect();
            pilot(&json!({"conditions": list}))
        };
        let objects = [
            pilot(&json!({})),
            pilot(&json!({"phase": "Running"})),
            pilot(&json!({"phase": "Stopped", "conditions": []})),
            conditions(&[("A", "True"), ("B", "True")]),
            conditions(&[("B", "True"), ("A", "True")]),
            conditions(&[("A", "True"), ("B", "False")]),
            conditions(&[("A", "True")]),
            conditions(&[("C", "True"), ("A", "True"), ("B", "True")]),
            json!({"metadata": {"name": "a", "labels": {}}, "spec": {}}),
            json!({"metadata": {"name": "a"}, "spec": {"nodePool": "b"}}),
        ];
        let mut found = 0;
        for old in &objects {
            for new in &objects {
                let whole = compare_objects(schema, old, new).unwrap();
                let (before, after) = diff_values(old, new);
                assert_eq!(
                    compare_objects(schema, &before, &after).unwrap(),
                    whole,
                    "{old}\n{new}"
                );
                found += usize::from(!whole.is_same());
            }
        }
        assert!(found > 80, "{found} pairs differ");
    }

    #[test]
    fn one_more_annotation_leaves_the_map_with_its_owner() {
        let kind = Scheme::new(&[]).by_plural("pilots").unwrap();
        let noted = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let old = noted(json!({"a": "1"}));
        let (before, after) = diff_values(&old, &noted(json!({"a": "1", "b": "2"})));
        let (before, after) = (without_views(kind, before), without_views(kind, after));
        let added = compare_objects(kind.merge_schema(V1BETA1), &before, &after).unwrap().added;
        assert_eq!(added, PathSet::from_fields(&["metadata.annotations.b"]));
    }

    #[test]
    fn a_time_alone_is_not_written() {
        let object = |entries: &Value, phase: &str, revision: u64| {
            let metadata = json!({"name": "a", "managedFields": entries});
            let mut hub = json!({"metadata": metadata, "spec": {"phase": phase}});
            let owners = RawManagedFields::take_from(&mut hub);
            let key = Key::new("g", "pilots", "db", "a").unwrap();
            RegistryObject::new(key, (hub, owners), Revision(revision))
        };
        let entry = |time: &str, manager: &str| json!([{"manager": manager, "time": time}]);
        let old = object(&entry("1", "a"), "Running", 1);
        for (entries, phase, settles) in [
            (entry("2", "a"), "Running", true),
            (entry("2", "a"), "Stopped", false),
            (entry("2", "b"), "Running", false),
            (json!([]), "Running", false),
            (json!(null), "Running", false),
        ] {
            let RegistryObject { hub, owners, .. } = object(&entries, phase, 2);
            let expected = if settles { old.owners.clone() } else { owners.clone() };
            assert_eq!(ignore_time_changes(owners, &hub, &old), expected, "{entries}");
        }
    }
}
