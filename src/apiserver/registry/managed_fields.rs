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
            ObjectPart::Main if kind.has_status() => PathSet::of_fields(&["status"]),
            ObjectPart::Status => PathSet::of_fields(&["metadata", "spec"]),
            ObjectPart::Main | ObjectPart::Other(_) => PathSet::default(),
        };
        Self { kind, part, stored, reset }
    }

    /// Returns the field managers after `next` was written over the stored object. `given` holds
    /// the body's `managedFields`: a client may change entries, or begin anew with none.
    pub(super) fn after_update(
        &self,
        call: &RegistryCall<'_>,
        next: &Value,
        given: Option<&RawManagedFields>,
    ) -> Option<RawManagedFields> {
        let given = given.filter(|given| {
            // Entries that are sent back as read change nothing; longer ones than `MAX_GIVEN` are
            // servers' work.
            self.part == ObjectPart::Main
                && Some(*given) != self.entries()
                && given.text().len() <= MAX_GIVEN
        });
        let managed = match given {
            Some(given) if given.is_reset() => ManagedFields::default(),
            Some(given) => match ManagedFields::read(given) {
                Ok(managed) if !managed.managers.is_empty() => managed,
                _ => self.managed().unwrap_or_default(),
            },
            None => self.managed().unwrap_or_default(),
        };
        if self.stored.is_some() && managed.managers.is_empty() {
            // The object's field managers were not tracked so far. The first apply begins to.
            return None;
        }
        let version = self.kind.api_version(call.version);
        let is_hub = call.version == self.kind.hub_version();
        let nobody_else = managed.managers.values().all(|owned| owned.version == version);
        let (before, after) = match self.stored {
            None => (Value::Null, self.shown(call.version, next)),
            // No version is converted, so equal parts need not be looked at.
            Some(RegistryObject { hub, .. }) if is_hub && nobody_else => {
                let (before, after) = differing(hub, next);
                (self.shown(call.version, &before), self.shown(call.version, &after))
            }
            Some(RegistryObject { hub, .. }) => {
                (self.shown(call.version, hub), self.shown(call.version, next))
            }
        };
        match self.tracker(&version).update(&before, &after, managed, &call.manager) {
            Ok(managed) => managed.write(),
            Err(why) => {
                let why = text(&why);
                error!(kind = self.kind.kind(), why, "Failed to track who owns fields");
                self.entries().cloned()
            }
        }
    }

    fn entries(&self) -> Option<&RawManagedFields> {
        self.stored.and_then(|stored| stored.owners.as_ref())
    }

    /// Returns the field managers as they are stored.
    fn managed(&self) -> Result<ManagedFields, String> {
        self.entries().map_or_else(|| Ok(ManagedFields::default()), ManagedFields::read)
    }

    /// Returns the object with what is applied, as the version shows it, and its field managers
    /// after that.
    pub(super) fn apply(
        &self,
        call: &RegistryCall<'_>,
        live: Value,
        config: &Value,
        force: bool,
    ) -> Result<AppliedObject> {
        let managed = self
            .managed()
            .map_err(|why| ApiError::internal(format!("failed to decode managed fields: {why}")))?;
        let version = self.kind.api_version(call.version);
        let live = without_views(self.kind, live);
        let applied = self.tracker(&version).apply(&live, config, managed, &call.manager, force);
        applied.map_err(|error| match error {
            Error::Conflicts(conflicts) => refuse(&conflicts),
            Error::Mismatch(problems) => {
                let (meta, kind) = (&config["metadata"], self.kind.kind());
                let name = meta["name"].as_str().unwrap_or_default();
                let place = format!("{}/{name}; {version}, Kind={kind}", call.namespace);
                ApiError::unclassified(format!(
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
    pub(super) fn shown(&self, version: ServedVersion, hub: &Value) -> Value {
        without_views(self.kind, self.kind.encode(version, hub))
    }

    fn tracker<'t>(&'t self, version: &'t str) -> OwnershipTracker<'t, Self> {
        let now = jiff::Timestamp::now().as_second();
        OwnershipTracker { versions: self, version, subresource: self.part.subresource(), now }
    }

    fn version(&self, api_version: &str) -> Option<ServedVersion> {
        let versions = self.kind.versions().iter().copied();
        versions.into_iter().find(|version| self.kind.api_version(*version) == api_version)
    }
}

impl VersionConverter for ObjectFieldManager<'_> {
    type Error = DecodeError;

    fn schema(&self, version: &str) -> Option<&Schema> {
        self.version(version).map(|version| self.kind.merging(version))
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, DecodeError> {
        let served = "both versions have a schema, so they are served";
        let (from, to) = (self.version(from).expect(served), self.version(to).expect(served));
        let stored = self.stored.map(|stored| &stored.hub);
        let decoded = self.kind.decode(from, ParsedBody::from(object.clone()), stored)?;
        Ok(self.shown(to, &decoded.hub))
    }

    fn reset(&self, _version: &str) -> Option<&PathSet> {
        Some(&self.reset)
    }
}

/// Returns the stored `managedFields` when nothing but their times changed with `next`, else
/// `owners`.
pub(super) fn settled(
    owners: Option<RawManagedFields>,
    next: &Value,
    current: &RegistryObject,
) -> Option<RawManagedFields> {
    let RegistryObject { hub, owners: before, .. } = current;
    let same = |(now, before): (&RawManagedFields, &RawManagedFields)| now.same_but_times(before);
    let settled = owners != *before
        && same_but(next, hub, &["metadata"])
        && same_but(&next["metadata"], &hub["metadata"], &["resourceVersion"])
        && owners.as_ref().zip(before.as_ref()).is_some_and(same);
    if settled { before.clone() } else { owners }
}

/// Tells whether two values are equal in all fields but `fields`.
fn same_but(one: &Value, other: &Value, fields: &[&str]) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return one == other;
    };
    let counts = |name: &String| !fields.contains(&name.as_str());
    let size = |map: &Map<String, Value>| map.keys().filter(|name| counts(name)).count();
    let mut own = one.iter().filter(|(name, _)| counts(name));
    size(one) == size(other) && own.all(|(name, value)| other.get(name) == Some(value))
}

/// Returns two values without their equal parts: fields of maps, and list items at the same place.
fn differing(old: &Value, new: &Value) -> (Value, Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let (mut before, mut after) = (Map::new(), Map::new());
            for (name, value) in old {
                match new.get(name) {
                    Some(now) if now == value => {}
                    Some(now) => {
                        let (left, right) = differing(value, now);
                        before.insert(name.clone(), left);
                        after.insert(name.clone(), right);
                    }
                    None => drop(before.insert(name.clone(), value.clone())),
                }
            }
            for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                after.insert(name.clone(), value.clone());
            }
            (before.into(), after.into())
        }
        (Value::Array(old), Value::Array(new)) => {
            let without = |list: &[Value], other: &[Value]| {
                let own =
                    list.iter().enumerate().filter(|(at, item)| other.get(*at) != Some(*item));
                own.map(|(_, item)| item.clone()).collect::<Value>()
            };
            (without(old, new), without(new, old))
        }
        _ => (old.clone(), new.clone()),
    }
}

/// Removes the annotation in which an older version shows surplus fields.
pub(super) fn without_views(kind: &dyn ServedKind, mut shown: Value) -> Value {
    let Some(surplus) = kind.surplus_annotation() else { return shown };
    let Some(metadata) = shown.get_mut("metadata").and_then(Value::as_object_mut) else {
        return shown;
    };
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        // A map that was empty before stays.
        if annotations.remove(surplus).is_some() && annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    shown
}

fn refuse(conflicts: &[FieldConflict]) -> ApiError {
    let cause = |conflict: &FieldConflict| {
        let path = crate::machinery::ownership::path_text(&conflict.path);
        (format!("conflict with {}", conflict.manager.text()), path)
    };
    let causes: Vec<(String, String)> = conflicts.iter().map(cause).collect();
    ApiError::apply_conflict(FieldConflict::message(conflicts), &causes)
}

fn text(error: &Error<DecodeError>) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::{V1BETA1, scheme::Scheme},
        apiserver::storage::{Key, Revision},
        machinery::ownership::compare,
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
        let schema = kind.merging(V1BETA1);
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
                let whole = compare(schema, old, new).unwrap();
                let (before, after) = differing(old, new);
                assert_eq!(compare(schema, &before, &after).unwrap(), whole, "{old}\n{new}");
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
        let (before, after) = differing(&old, &noted(json!({"a": "1", "b": "2"})));
        let (before, after) = (without_views(kind, before), without_views(kind, after));
        let added = compare(kind.merging(V1BETA1), &before, &after).unwrap().added;
        assert_eq!(added, PathSet::of_fields(&["metadata.annotations.b"]));
    }

    #[test]
    fn a_time_alone_is_not_written() {
        let object = |entries: &Value, phase: &str, revision: u64| {
            let metadata = json!({"name": "a", "managedFields": entries});
            let mut hub = json!({"metadata": metadata, "spec": {"phase": phase}});
            let owners = RawManagedFields::take(&mut hub);
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
            assert_eq!(settled(owners, &hub, &old), expected, "{entries}");
        }
    }
}
