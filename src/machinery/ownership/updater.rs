//! What an update or an apply does to the owners of fields, and what an apply does to the object.
//!
//! Owns conflicts, the transfer of fields and pruning. Each owner's set is in the version in which
//! it was written; objects are converted to that version to compare.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde_json::Value;

use super::{
    compare::{ObjectComparison, compare_objects},
    field_set::field_set,
    merge::merge_objects,
    path_element::{ElementPath, path_text},
    path_set::PathSet,
    remove::remove_paths,
    schema_mismatch::SchemaMismatches,
    schema_reconciliation::reconcile_set,
    value_order::is_same_value,
};
use crate::machinery::schema::compiled::Schema;

/// How fields came to be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ManagerOperation {
    Apply,
    Update,
}

/// An owner of fields. A manager that applies is one owner in all versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldManager {
    pub name: String,
    pub operation: ManagerOperation,
    /// API version in which the manager writes; empty for a manager that applies.
    pub version: String,
    pub subresource: String,
}

/// The fields that one manager owns, in terms of one API version.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedSet {
    pub version: String,
    pub set: PathSet,
}

pub type FieldManagers = BTreeMap<FieldManager, VersionedSet>;

/// A field that another manager owns and that this write would change.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldConflict {
    pub manager: FieldManager,
    pub path: ElementPath,
}

/// Gives the schemas of a kind's versions, and converts between versions.
pub trait VersionConverter {
    type Error;

    /// Returns the schema of a version; `None` when the version is served no more. Fields that
    /// managers own in such a version lose their owners.
    fn schema(&self, version: &str) -> Option<&Schema>;
    /// Converts an object from version `from` to version `to`, both of which are served.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, Self::Error>;
    /// Returns the fields that a write of this kind cannot change, and therefore never owns.
    fn reset_fields(&self, version: &str) -> Option<&PathSet>;
}

#[derive(Debug)]
pub enum Error<E> {
    /// Status 409, with at least one conflict.
    Conflicts(Vec<FieldConflict>),
    /// An object does not fit its schema.
    Mismatch(SchemaMismatches),
    Convert(E),
}

impl<E> From<SchemaMismatches> for Error<E> {
    fn from(problems: SchemaMismatches) -> Self {
        Self::Mismatch(problems)
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflicts(conflicts) => {
                let paths: Vec<String> = conflicts.iter().map(|c| path_text(&c.path)).collect();
                write!(f, "conflicts: {}", paths.join(", "))
            }
            Self::Mismatch(problems) => problems.fmt(f),
            Self::Convert(error) => error.fmt(f),
        }
    }
}

/// An object as a version shows it.
#[derive(Clone)]
struct VersionedObject<'a> {
    version: &'a str,
    value: Cow<'a, Value>,
}

/// Computes owners of updates and applies. Objects that its functions take are in the version that
/// is named with them.
pub struct OwnershipUpdater<'a, V> {
    versions: &'a V,
}

impl<'a, V: VersionConverter> OwnershipUpdater<'a, V> {
    pub fn new(versions: &'a V) -> Self {
        Self { versions }
    }

    /// Returns what a client changed that wrote `new` over `live`.
    pub fn find_changes(
        &self,
        live: &Value,
        new: &Value,
        version: &str,
    ) -> Result<ObjectComparison, Error<V::Error>> {
        let object = |value| VersionedObject { version, value: Cow::Borrowed(value) };
        self.compare_versioned(&object(live), &object(new))
    }

    /// Returns the owners after `manager` wrote `new` over `live`, with these changes.
    pub fn update_owners(
        &self,
        (live, new): (&Value, &Value),
        changes: ObjectComparison,
        version: &str,
        managers: FieldManagers,
        manager: &FieldManager,
    ) -> Result<FieldManagers, Error<V::Error>> {
        let live = VersionedObject { version, value: Cow::Borrowed(live) };
        let new = VersionedObject { version, value: Cow::Borrowed(new) };
        let managers = self.reconcile_managers(&live, managers)?;
        let (mut managers, changes) =
            self.transfer_fields((&live, &new), changes, managers, manager, true)?;
        let old_set = managers.remove(manager).map(|owned_set| owned_set.set).unwrap_or_default();
        let set =
            old_set.difference(&changes.removed).union(&changes.modified).union(&changes.added);
        let set = self.without_reset(version, set);
        if !set.is_empty() {
            managers.insert(manager.clone(), VersionedSet { version: version.to_owned(), set });
        }
        Ok(managers)
    }

    /// Returns the object and its owners after `manager` applied `config`. No object when nothing
    /// changed.
    pub fn apply_config(
        &self,
        live: &Value,
        config: &Value,
        version: &str,
        managers: FieldManagers,
        manager: &FieldManager,
        force: bool,
    ) -> Result<(Option<Value>, FieldManagers), Error<V::Error>> {
        let schema = self.versions.schema(version).expect("the version of a request is served");
        let live = VersionedObject { version, value: Cow::Borrowed(live) };
        let mut managers = self.reconcile_managers(&live, managers)?;
        let merged_object = VersionedObject {
            version,
            value: Cow::Owned(merge_objects(schema, &live.value, config)?),
        };
        let set = self.without_reset(version, field_set(schema, config)?);
        let last_set =
            managers.insert(manager.clone(), VersionedSet { version: version.to_owned(), set });
        let new = self.prune_removed(merged_object, version, &managers, last_set)?;
        let changes = self.compare_versioned(&live, &new)?;
        let (managers, _) =
            self.transfer_fields((&live, &new), changes, managers, manager, force)?;
        let has_changed = !is_same_value(&live.value, &new.value);
        Ok((has_changed.then(|| new.value.into_owned()), managers))
    }

    /// Takes the fields that the new object changes or removes from all other managers' sets.
    fn transfer_fields(
        &self,
        (live, new): (&VersionedObject<'_>, &VersionedObject<'_>),
        initial_changes: ObjectComparison,
        mut managers: FieldManagers,
        manager: &FieldManager,
        force: bool,
    ) -> Result<(FieldManagers, ObjectComparison), Error<V::Error>> {
        let mut changes = BTreeMap::from([(new.version.to_owned(), initial_changes)]);
        let mut conflicts = Vec::new();
        let mut kept_managers = FieldManagers::new();
        for (other, owned_set) in std::mem::take(&mut managers) {
            if other == *manager {
                kept_managers.insert(other, owned_set);
                continue;
            }
            if self.versions.schema(&owned_set.version).is_none() {
                continue;
            }
            if !changes.contains_key(&owned_set.version) {
                let live = self.convert_object(live, &owned_set.version)?;
                let new = self.convert_object(new, &owned_set.version)?;
                let version_changes = self.compare_versioned(&live, &new)?;
                changes.insert(owned_set.version.clone(), version_changes);
            }
            let version_changes = &changes[&owned_set.version];
            let conflict =
                owned_set.set.intersection(&version_changes.modified.union(&version_changes.added));
            let to_conflict = |path| FieldConflict { manager: other.clone(), path };
            conflicts.extend(conflict.paths().into_iter().map(to_conflict));
            // Nearly always there is nothing to take, and a set may be as large as the object.
            let set = if conflict.is_empty() && version_changes.removed.is_empty() {
                owned_set.set
            } else {
                owned_set.set.difference(&conflict).difference(&version_changes.removed)
            };
            kept_managers.insert(other, VersionedSet { set, ..owned_set });
        }
        if !force && !conflicts.is_empty() {
            return Err(Error::Conflicts(conflicts));
        }
        kept_managers.retain(|_, owned_set| !owned_set.set.is_empty());
        let own_changes = changes.remove(new.version).unwrap_or_default();
        Ok((kept_managers, own_changes))
    }

    /// Compares two objects, leaving out fields that a write of this kind cannot change.
    fn compare_versioned(
        &self,
        live: &VersionedObject<'_>,
        new: &VersionedObject<'_>,
    ) -> Result<ObjectComparison, Error<V::Error>> {
        let schema = self.schema(new.version);
        let changes = compare_objects(schema, &live.value, &new.value)?;
        Ok(match self.versions.reset_fields(new.version) {
            Some(reset_fields) => changes.without_paths(reset_fields),
            None => changes,
        })
    }

    fn without_reset(&self, version: &str, set: PathSet) -> PathSet {
        match self.versions.reset_fields(version) {
            Some(reset_fields) => set.recursive_difference(reset_fields),
            None => set,
        }
    }

    /// Removes what the manager applied last time and does not apply now, unless other managers own
    /// it.
    fn prune_removed<'v>(
        &self,
        merged_object: VersionedObject<'v>,
        version: &'v str,
        managers: &FieldManagers,
        last_set: Option<VersionedSet>,
    ) -> Result<VersionedObject<'v>, Error<V::Error>> {
        let Some(last_set) = last_set.filter(|set| !set.set.is_empty()) else {
            return Ok(merged_object);
        };
        let Some(schema) = self.versions.schema(&last_set.version) else {
            return Ok(merged_object);
        };
        let merged_object = self.convert_object(&merged_object, &last_set.version)?;
        let last_fields = last_set.set.with_named(schema, Some(schema.root()));
        let pruned_object = VersionedObject {
            version: &last_set.version,
            value: Cow::Owned(remove_paths(schema, &merged_object.value, &last_fields)),
        };
        let pruned_object = self.restore_owned(&merged_object, pruned_object, managers)?;
        let pruned_object = self.restore_unowned(&merged_object, &pruned_object, &last_fields)?;
        let pruned_object = self.convert_object(&pruned_object, version)?;
        Ok(VersionedObject { version, value: Cow::Owned(pruned_object.value.into_owned()) })
    }

    /// Restores what other managers own, and what the manager now applies in another shape.
    fn restore_owned<'o>(
        &self,
        merged_object: &VersionedObject<'o>,
        pruned_object: VersionedObject<'o>,
        managers: &'o FieldManagers,
    ) -> Result<VersionedObject<'o>, Error<V::Error>> {
        let mut owned_sets: BTreeMap<&str, PathSet> = BTreeMap::new();
        for manager in managers.values() {
            let set = owned_sets.entry(&manager.version).or_default();
            *set = set.union(&manager.set);
        }
        // Begins with the version in which the object was pruned: fields that are missing there may
        // be needed to convert at all.
        let own_entry = owned_sets.remove_entry(merged_object.version);
        let mut merged_object = merged_object.clone();
        let mut pruned_object = pruned_object;
        for (version, owned_set) in own_entry.into_iter().chain(owned_sets) {
            let Some(schema) = self.versions.schema(version) else { continue };
            merged_object = self.convert_object(&merged_object, version)?;
            pruned_object = self.convert_object(&pruned_object, version)?;
            let root = Some(schema.root());
            let merged_fields = field_set(schema, &merged_object.value)?.with_named(schema, root);
            let pruned_fields = field_set(schema, &pruned_object.value)?.with_named(schema, root);
            let removed_fields =
                merged_fields.difference(&pruned_fields.union(&owned_set.with_named(schema, root)));
            pruned_object = VersionedObject {
                version,
                value: Cow::Owned(remove_paths(schema, &merged_object.value, &removed_fields)),
            };
        }
        Ok(pruned_object)
    }

    /// Restores fields that the manager did not apply last time: those without an owner, and those
    /// of managers that only update.
    fn restore_unowned<'o>(
        &self,
        merged_object: &VersionedObject<'o>,
        pruned_object: &VersionedObject<'_>,
        last_fields: &PathSet,
    ) -> Result<VersionedObject<'o>, Error<V::Error>> {
        let version = merged_object.version;
        let schema = self.schema(version);
        let root = Some(schema.root());
        let pruned_object = self.convert_object(pruned_object, version)?;
        let pruned_fields = field_set(schema, &pruned_object.value)?.with_named(schema, root);
        let merged_fields = field_set(schema, &merged_object.value)?.with_named(schema, root);
        let removed_fields = merged_fields.difference(&pruned_fields).intersection(last_fields);
        Ok(VersionedObject {
            version,
            value: Cow::Owned(remove_paths(schema, &merged_object.value, &removed_fields)),
        })
    }

    /// Returns managers with their sets reconciled with the current schemas, without versions that
    /// are served no more.
    fn reconcile_managers(
        &self,
        live: &VersionedObject<'_>,
        managers: FieldManagers,
    ) -> Result<FieldManagers, Error<V::Error>> {
        debug_assert!(self.versions.schema(live.version).is_some());
        let mut reconciled_managers = FieldManagers::new();
        for (manager, owned_set) in managers {
            let Some(schema) = self.versions.schema(&owned_set.version) else { continue };
            let set = reconcile_set(schema, &owned_set.set)?.unwrap_or(owned_set.set);
            reconciled_managers.insert(manager, VersionedSet { version: owned_set.version, set });
        }
        Ok(reconciled_managers)
    }

    fn convert_object<'o>(
        &self,
        object: &VersionedObject<'o>,
        version: &'o str,
    ) -> Result<VersionedObject<'o>, Error<V::Error>> {
        if object.version == version {
            return Ok(object.clone());
        }
        let value = self.versions.convert(&object.value, object.version, version);
        Ok(VersionedObject { version, value: Cow::Owned(value.map_err(Error::Convert)?) })
    }

    fn schema(&self, version: &str) -> &Schema {
        self.versions.schema(version).expect("owners in other versions were left out")
    }
}
