//! `metadata.managedFields`: the entries, both ways, and how many there may be.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    set::Set,
    updater::{Manager, Managers, Operation, Owned},
};

/// Most managers that write without applying; older ones become one.
pub const MAX_UPDATERS: usize = 10;

/// Whose fields those of the oldest are from then on.
const ANCIENT: &str = "ancient-changes";

/// Owners of an object's fields, and when each of them last changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Managed {
    pub managers: Managers,
    /// Seconds since 1970.
    pub times: BTreeMap<Manager, i64>,
}

impl Managed {
    /// Reads the entries of an object; refuses those that no server wrote.
    pub fn read(entries: &Value) -> Result<Self, String> {
        let mut managed = Self::default();
        for (at, entry) in entries.as_array().into_iter().flatten().enumerate() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let operation = match entry["operation"].as_str() {
                Some("Apply") => Operation::Apply,
                Some("Update") => Operation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            };
            let version = text("apiVersion");
            if version.is_empty() {
                return Err("apiVersion must not be empty".to_owned());
            }
            match entry["fieldsType"].as_str().unwrap_or_default() {
                "FieldsV1" => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {at}")),
                other => {
                    return Err(format!(
                        "invalid fieldsType {other:?} in managed fields entry {at}"
                    ));
                }
            }
            let set = match &entry["fieldsV1"] {
                Value::Null => Set::default(),
                fields => Set::from_fields(fields)?,
            };
            let manager = Manager::new(text("manager"), operation, &version, text("subresource"));
            let time = entry["time"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
            if let Some(time) = time {
                managed.times.insert(manager.clone(), time.as_second());
            }
            managed.managers.insert(manager, Owned { version, set });
        }
        Ok(managed)
    }

    /// The entries as they are stored and shown.
    pub fn write(&self) -> Value {
        let time = |manager: &Manager| self.times.get(manager).copied();
        let mut sorted: Vec<(&Manager, &Owned)> = self.managers.iter().collect();
        sorted.sort_by_key(|(manager, owned)| {
            let seconds = time(manager).unwrap_or_default();
            (manager.operation, seconds, &manager.name, &owned.version, &manager.subresource)
        });
        let entry = |(manager, owned): (&Manager, &Owned)| {
            let mut entry = Map::new();
            entry.insert("apiVersion".into(), json!(owned.version));
            entry.insert("fieldsType".into(), json!("FieldsV1"));
            entry.insert("fieldsV1".into(), owned.set.to_fields());
            entry.insert("operation".into(), json!(manager.operation.as_str()));
            let named = [("manager", &manager.name), ("subresource", &manager.subresource)];
            for (field, text) in named.into_iter().filter(|(_, text)| !text.is_empty()) {
                entry.insert(field.into(), json!(text));
            }
            let time = time(manager).and_then(|seconds| Timestamp::from_second(seconds).ok());
            if let Some(time) = time {
                entry.insert("time".into(), json!(time.to_string()));
            }
            Value::Object(entry)
        };
        sorted.into_iter().map(entry).collect()
    }

    /// Do the entries ask for a fresh start? An empty list does, and a list of one empty entry.
    pub fn is_reset(entries: &Value) -> bool {
        match entries.as_array().map(Vec::as_slice) {
            Some([]) => true,
            Some([only]) => only.as_object().is_some_and(Map::is_empty),
            _ => false,
        }
    }

    /// Makes one of the oldest managers that only update, until there are few enough.
    pub(super) fn cap(&mut self, most: usize) {
        let mut updaters: Vec<Manager> = self.managers.keys().cloned().collect();
        updaters.retain(|manager| manager.operation == Operation::Update);
        updaters.sort_by_key(|manager| self.times.get(manager).copied().unwrap_or_default());
        let mut left = updaters.len();
        let mut first_of: BTreeMap<String, Manager> = BTreeMap::new();
        for manager in updaters {
            if left <= most {
                return;
            }
            let version = self.managers[&manager].version.clone();
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, manager);
                continue;
            };
            let bucket = Manager::new(ANCIENT.into(), Operation::Update, &version, String::new());
            if !self.managers.contains_key(&bucket)
                && let Some(owned) = self.managers.remove(first)
            {
                self.managers.insert(bucket.clone(), owned);
            }
            let Some(owned) = self.managers.remove(&manager) else { continue };
            if let Some(kept) = self.managers.get_mut(&bucket) {
                kept.set = kept.set.union(&owned.set);
            }
            if let Some(time) = self.times.get(&manager).copied() {
                self.times.insert(bucket, time);
            }
            left -= 1;
        }
    }
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

impl Manager {
    pub fn new(name: String, operation: Operation, version: &str, subresource: String) -> Self {
        let version = match operation {
            Operation::Apply => String::new(),
            Operation::Update => version.to_owned(),
        };
        Self { name, operation, version, subresource }
    }
}
