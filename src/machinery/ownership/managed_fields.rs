//! `metadata.managedFields`: reads and writes its entries, and limits how many there are.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{
    path_set::PathSet,
    raw_managed_fields::RawManagedFields,
    updater::{FieldManager, FieldManagers, ManagerOperation, VersionedSet},
};

/// Most managers of an object that update (rather than apply); older ones are merged, one for each
/// version.
pub const MAX_UPDATERS: usize = 10;

/// Name of the manager that owns the fields of merged managers.
const ANCIENT: &str = "ancient-changes";

/// Value of `fieldsType`; Kubernetes has no other.
const FIELDS: &str = "FieldsV1";

/// An entry as it is serialized, its fields in the order of their names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenEntry<'a> {
    api_version: &'a str,
    fields_type: &'static str,
    #[serde(rename = "fieldsV1")]
    fields: &'a PathSet,
    #[serde(skip_serializing_if = "str::is_empty")]
    manager: &'a str,
    operation: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
}

/// Managers of an object's fields, and when the set of each last changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedFields {
    pub managers: FieldManagers,
    /// Times of the managers' last changes, in seconds since 1970.
    pub times: BTreeMap<FieldManager, i64>,
}

impl ManagedFields {
    /// Parses the entries of an object; refuses entries that no server would have written.
    pub fn from_raw(entries: &RawManagedFields) -> Result<Self, String> {
        let mut managed_fields = Self::default();
        let parsed_entries = entries.parse_entries().map_err(|error| error.to_string())?;
        for (position, entry) in parsed_entries.into_iter().enumerate() {
            let operation = match entry.operation.as_deref() {
                Some("Apply") => ManagerOperation::Apply,
                Some("Update") => ManagerOperation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            };
            let version = entry.api_version.unwrap_or_default();
            if version.is_empty() {
                return Err("apiVersion must not be empty".to_owned());
            }
            match entry.fields_type.as_deref().unwrap_or_default() {
                FIELDS => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {position}")),
                other => {
                    return Err(format!(
                        "invalid fieldsType {other:?} in managed fields entry {position}"
                    ));
                }
            }
            let set =
                entry.fields.map_or(Ok(PathSet::default()), |raw| serde_json::from_str(raw.get()));
            let set = set.map_err(|error| error.to_string())?;
            let (name, part) = (entry.manager, entry.subresource);
            let (name, part) = (name.unwrap_or_default(), part.unwrap_or_default());
            let manager = FieldManager::new(name, operation, &version, part);
            if let Some(time) = entry.time.and_then(|time| time.parse::<Timestamp>().ok()) {
                managed_fields.times.insert(manager.clone(), time.as_second());
            }
            managed_fields.managers.insert(manager, VersionedSet { version, set });
        }
        Ok(managed_fields)
    }

    /// Returns the entries as they are stored and shown; `None` when no manager owns a field.
    pub fn to_raw(&self) -> Option<RawManagedFields> {
        let time = |manager: &FieldManager| self.times.get(manager).copied();
        let mut sorted_managers: Vec<(&FieldManager, &VersionedSet)> =
            self.managers.iter().collect();
        sorted_managers.sort_by_key(|(manager, owned_set)| {
            let seconds = time(manager).unwrap_or_default();
            (manager.operation, seconds, &manager.name, &owned_set.version, &manager.subresource)
        });
        let entries: Vec<WrittenEntry<'_>> = sorted_managers
            .into_iter()
            .map(|(manager, owned_set)| {
                let seconds = time(manager);
                let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
                WrittenEntry {
                    api_version: &owned_set.version,
                    fields_type: FIELDS,
                    fields: &owned_set.set,
                    manager: &manager.name,
                    operation: manager.operation.as_str(),
                    subresource: &manager.subresource,
                    time: time.map(|time| time.to_string()),
                }
            })
            .collect();
        (!entries.is_empty()).then(|| RawManagedFields::from_written(&entries))
    }

    /// Merges the oldest managers that only update, per version, until there are at most
    /// `max_updaters`.
    pub(super) fn cap_updaters(&mut self, max_updaters: usize) {
        let mut updaters: Vec<FieldManager> = self.managers.keys().cloned().collect();
        updaters.retain(|manager| manager.operation == ManagerOperation::Update);
        updaters.sort_by_key(|manager| self.times.get(manager).copied().unwrap_or_default());
        let mut remaining_count = updaters.len();
        let mut first_by_version: BTreeMap<String, FieldManager> = BTreeMap::new();
        for manager in updaters {
            if remaining_count <= max_updaters {
                return;
            }
            let version = self.managers[&manager].version.clone();
            let Some(first_manager) = first_by_version.get(&version) else {
                first_by_version.insert(version, manager);
                continue;
            };
            let bucket = FieldManager::new(
                ANCIENT.into(),
                ManagerOperation::Update,
                &version,
                String::new(),
            );
            if !self.managers.contains_key(&bucket)
                && let Some(owned_set) = self.managers.remove(first_manager)
            {
                self.managers.insert(bucket.clone(), owned_set);
            }
            let Some(owned_set) = self.managers.remove(&manager) else { continue };
            if let Some(bucket_set) = self.managers.get_mut(&bucket) {
                bucket_set.set = bucket_set.set.union(&owned_set.set);
            }
            if let Some(time) = self.times.get(&manager).copied() {
                self.times.insert(bucket, time);
            }
            remaining_count -= 1;
        }
    }
}

impl ManagerOperation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

impl FieldManager {
    pub fn new(
        name: String,
        operation: ManagerOperation,
        version: &str,
        subresource: String,
    ) -> Self {
        let version = match operation {
            ManagerOperation::Apply => String::new(),
            ManagerOperation::Update => version.to_owned(),
        };
        Self { name, operation, version, subresource }
    }
}
