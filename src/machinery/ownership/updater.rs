//! What an update or an apply does to the owners of fields, and what an apply does to the object.
//!
//! Owns conflicts, the transfer of fields and pruning. Each owner's set is in the version in which
//! it was written; objects are converted to that version to compare.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde_json::Value;

use super::{
    compare::{ObjectComparison, compare},
    field_set::field_set,
    merge::merge,
    path_element::{ElementPath, path_text},
    path_set::PathSet,
    remove::remove,
    schema_mismatch::SchemaMismatches,
    schema_reconciliation::reconcile,
    value_order::same,
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
    fn reset(&self, version: &str) -> Option<&PathSet>;
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
    pub fn compare(
        &self,
        live: &Value,
        new: &Value,
        version: &str,
    ) -> Result<ObjectComparison, Error<V::Error>> {
        let object = |value| VersionedObject { version, value: Cow::Borrowed(value) };
        self.changes(&object(live), &object(new))
    }

    /// Returns the owners after `manager` wrote `new` over `live`, with these changes.
    pub fn update(
        &self,
        (live, new): (&Value, &Value),
        changes: ObjectComparison,
        version: &str,
        managers: FieldManagers,
        manager: &FieldManager,
    ) -> Result<FieldManagers, Error<V::Error>> {
        let live = VersionedObject { version, value: Cow::Borrowed(live) };
        let new = VersionedObject { version, value: Cow::Borrowed(new) };
        let managers = self.reconciled(&live, managers)?;
        let (mut managers, changes) =
            self.transfer((&live, &new), changes, managers, manager, true)?;
        let before = managers.remove(manager).map(|owned| owned.set).unwrap_or_default();
        let set =
            before.difference(&changes.removed).union(&changes.modified).union(&changes.added);
        let set = self.without_reset(version, set);
        if !set.is_empty() {
            managers.insert(manager.clone(), VersionedSet { version: version.to_owned(), set });
        }
        Ok(managers)
    }

    /// Returns the object and its owners after `manager` applied `config`. No object when nothing
    /// changed.
    pub fn apply(
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
        let mut managers = self.reconciled(&live, managers)?;
        let merged =
            VersionedObject { version, value: Cow::Owned(merge(schema, &live.value, config)?) };
        let set = self.without_reset(version, field_set(schema, config)?);
        let last =
            managers.insert(manager.clone(), VersionedSet { version: version.to_owned(), set });
        let new = self.prune(merged, version, &managers, last)?;
        let changes = self.changes(&live, &new)?;
        let (managers, _) = self.transfer((&live, &new), changes, managers, manager, force)?;
        let changed = !same(&live.value, &new.value);
        Ok((changed.then(|| new.value.into_owned()), managers))
    }

    /// Takes the fields that the new object changes or removes from all other managers' sets.
    fn transfer(
        &self,
        (live, new): (&VersionedObject<'_>, &VersionedObject<'_>),
        changed: ObjectComparison,
        mut managers: FieldManagers,
        manager: &FieldManager,
        force: bool,
    ) -> Result<(FieldManagers, ObjectComparison), Error<V::Error>> {
        let mut changes = BTreeMap::from([(new.version.to_owned(), changed)]);
        let mut conflicts = Vec::new();
        let mut kept = FieldManagers::new();
        for (other, owned) in std::mem::take(&mut managers) {
            if other == *manager {
                kept.insert(other, owned);
                continue;
            }
            if self.versions.schema(&owned.version).is_none() {
                continue;
            }
            if !changes.contains_key(&owned.version) {
                let live = self.convert(live, &owned.version)?;
                let new = self.convert(new, &owned.version)?;
                let compared = self.changes(&live, &new)?;
                changes.insert(owned.version.clone(), compared);
            }
            let changed = &changes[&owned.version];
            let conflict = owned.set.intersection(&changed.modified.union(&changed.added));
            let of = |path| FieldConflict { manager: other.clone(), path };
            conflicts.extend(conflict.paths().into_iter().map(of));
            // Nearly always there is nothing to take, and a set may be as large as the object.
            let set = if conflict.is_empty() && changed.removed.is_empty() {
                owned.set
            } else {
                owned.set.difference(&conflict).difference(&changed.removed)
            };
            kept.insert(other, VersionedSet { set, ..owned });
        }
        if !force && !conflicts.is_empty() {
            return Err(Error::Conflicts(conflicts));
        }
        kept.retain(|_, owned| !owned.set.is_empty());
        let own = changes.remove(new.version).unwrap_or_default();
        Ok((kept, own))
    }

    /// Compares two objects, leaving out fields that a write of this kind cannot change.
    fn changes(
        &self,
        live: &VersionedObject<'_>,
        new: &VersionedObject<'_>,
    ) -> Result<ObjectComparison, Error<V::Error>> {
        let schema = self.schema(new.version);
        let changes = compare(schema, &live.value, &new.value)?;
        Ok(match self.versions.reset(new.version) {
            Some(reset) => changes.without(reset),
            None => changes,
        })
    }

    fn without_reset(&self, version: &str, set: PathSet) -> PathSet {
        match self.versions.reset(version) {
            Some(reset) => set.recursive_difference(reset),
            None => set,
        }
    }

    /// Removes what the manager applied last time and does not apply now, unless other managers own
    /// it.
    fn prune<'v>(
        &self,
        merged: VersionedObject<'v>,
        version: &'v str,
        managers: &FieldManagers,
        last: Option<VersionedSet>,
    ) -> Result<VersionedObject<'v>, Error<V::Error>> {
        let Some(last) = last.filter(|last| !last.set.is_empty()) else { return Ok(merged) };
        let Some(schema) = self.versions.schema(&last.version) else { return Ok(merged) };
        let merged = self.convert(&merged, &last.version)?;
        let named = last.set.with_named(schema, Some(schema.root()));
        let pruned = VersionedObject {
            version: &last.version,
            value: Cow::Owned(remove(schema, &merged.value, &named)),
        };
        let pruned = self.with_owned(&merged, pruned, managers)?;
        let pruned = self.with_unowned(&merged, &pruned, &named)?;
        let pruned = self.convert(&pruned, version)?;
        Ok(VersionedObject { version, value: Cow::Owned(pruned.value.into_owned()) })
    }

    /// Restores what other managers own, and what the manager now applies in another shape.
    fn with_owned<'o>(
        &self,
        merged: &VersionedObject<'o>,
        pruned: VersionedObject<'o>,
        managers: &'o FieldManagers,
    ) -> Result<VersionedObject<'o>, Error<V::Error>> {
        let mut owned: BTreeMap<&str, PathSet> = BTreeMap::new();
        for manager in managers.values() {
            let set = owned.entry(&manager.version).or_default();
            *set = set.union(&manager.set);
        }
        // Begins with the version in which the object was pruned: fields that are missing there may
        // be needed to convert at all.
        let own = owned.remove_entry(merged.version);
        let mut merged = merged.clone();
        let mut pruned = pruned;
        for (version, owned) in own.into_iter().chain(owned) {
            let Some(schema) = self.versions.schema(version) else { continue };
            merged = self.convert(&merged, version)?;
            pruned = self.convert(&pruned, version)?;
            let root = Some(schema.root());
            let all = field_set(schema, &merged.value)?.with_named(schema, root);
            let left = field_set(schema, &pruned.value)?.with_named(schema, root);
            let gone = all.difference(&left.union(&owned.with_named(schema, root)));
            pruned = VersionedObject {
                version,
                value: Cow::Owned(remove(schema, &merged.value, &gone)),
            };
        }
        Ok(pruned)
    }

    /// Restores fields that the manager did not apply last time: those without an owner, and those
    /// of managers that only update.
    fn with_unowned<'o>(
        &self,
        merged: &VersionedObject<'o>,
        pruned: &VersionedObject<'_>,
        last: &PathSet,
    ) -> Result<VersionedObject<'o>, Error<V::Error>> {
        let version = merged.version;
        let schema = self.schema(version);
        let root = Some(schema.root());
        let pruned = self.convert(pruned, version)?;
        let left = field_set(schema, &pruned.value)?.with_named(schema, root);
        let all = field_set(schema, &merged.value)?.with_named(schema, root);
        let gone = all.difference(&left).intersection(last);
        Ok(VersionedObject { version, value: Cow::Owned(remove(schema, &merged.value, &gone)) })
    }

    /// Returns managers with their sets reconciled with the current schemas, without versions that
    /// are served no more.
    fn reconciled(
        &self,
        live: &VersionedObject<'_>,
        managers: FieldManagers,
    ) -> Result<FieldManagers, Error<V::Error>> {
        debug_assert!(self.versions.schema(live.version).is_some());
        let mut reconciled = FieldManagers::new();
        for (manager, owned) in managers {
            let Some(schema) = self.versions.schema(&owned.version) else { continue };
            let set = reconcile(schema, &owned.set)?.unwrap_or(owned.set);
            reconciled.insert(manager, VersionedSet { version: owned.version, set });
        }
        Ok(reconciled)
    }

    fn convert<'o>(
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
