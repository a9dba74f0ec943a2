//! Applies [`OwnershipUpdater`] to the server's writes: which manager writes, when, and which
//! fields have no owner.
//!
//! Owns the managers that the server invents (`before-first-apply`), the fields that no manager
//! owns, and the way from kubectl's client-side apply to server-side apply.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{
    compare::{ObjectComparison, compare_objects},
    field_set::field_set,
    managed_fields::{MAX_UPDATERS, ManagedFields},
    path_element::path_text,
    path_set::PathSet,
    updater::{
        Error, FieldConflict, FieldManager, FieldManagers, ManagerOperation, OwnershipUpdater,
        VersionConverter, VersionedSet,
    },
    validate::{DuplicatePolicy, validate_object},
};

/// Name of the manager that owns the fields of an object from before owners were tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Name of the manager that `kubectl apply --server-side` uses.
const KUBECTL: &str = "kubectl";

/// Annotation in which `kubectl apply` keeps what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Most bytes of all annotations of an object together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Fields that the server writes, which no manager owns.
static STRIPPED: LazyLock<PathSet> = LazyLock::new(|| {
    PathSet::from_fields(&[
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.clusterName",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ])
});

/// The facts of one write: its version, its subresource (empty for the object itself), its time.
pub struct OwnershipTracker<'a, V> {
    pub versions: &'a V,
    pub version: &'a str,
    pub subresource: &'a str,
    /// Time of the write, in seconds since 1970.
    pub now: i64,
}

/// The result of an apply.
#[derive(Debug)]
pub struct AppliedObject {
    /// The object, without managedFields.
    pub object: Value,
    pub managed: ManagedFields,
}

impl<V: VersionConverter> OwnershipTracker<'_, V> {
    /// Returns the owners after `manager` wrote `new` over `live`, which is `null` for a new
    /// object. An object without tracked owners stays without them.
    pub fn track_update(
        &self,
        live: &Value,
        new: &Value,
        managed_fields: ManagedFields,
        manager: &str,
    ) -> Result<ManagedFields, Error<V::Error>> {
        if managed_fields.managers.is_empty() && !live.is_null() {
            return Ok(managed_fields);
        }
        self.track_changes(live, new, managed_fields, manager)
    }

    fn track_changes(
        &self,
        live: &Value,
        new: &Value,
        managed_fields: ManagedFields,
        name: &str,
    ) -> Result<ManagedFields, Error<V::Error>> {
        let name = if name.is_empty() { "unknown" } else { name };
        let manager = self.build_manager(name, ManagerOperation::Update);
        // `write_manager` counts as another manager than `manager`, so that what this write changes
        // is taken from the manager's earlier set, too.
        let write_manager = FieldManager { version: String::new(), ..manager.clone() };
        let ManagedFields { managers, mut times } = managed_fields;
        let updater = OwnershipUpdater::new(self.versions);
        let changes = updater.find_changes(live, new, self.version)?;
        if self.is_own(&changes, &managers, &manager) {
            if !changes.modified.is_empty() {
                times.insert(manager, self.now);
            }
            return Ok(ManagedFields { managers, times });
        }
        let mut managers =
            updater.update_owners((live, new), changes, self.version, managers, &write_manager)?;
        if let Some(VersionedSet { version, set }) = managers.remove(&write_manager) {
            let set = set.difference(&STRIPPED);
            if !set.is_empty() {
                let old_set =
                    managers.remove(&manager).map(|owned_set| owned_set.set).unwrap_or_default();
                let has_new_fields = !set.difference(&old_set).is_empty();
                let set = if has_new_fields { set.union(&old_set) } else { old_set };
                managers.insert(manager.clone(), VersionedSet { version, set });
                times.insert(manager, self.now);
            }
        }
        let mut managed_fields = ManagedFields { managers, times };
        managed_fields.cap_updaters(MAX_UPDATERS);
        Ok(managed_fields)
    }

    /// Does the write only set new values of fields that `own` alone owns? Then no set changes.
    /// Most writes are of this sort: they report status.
    fn is_own(
        &self,
        changes: &ObjectComparison,
        managers: &FieldManagers,
        own_manager: &FieldManager,
    ) -> bool {
        let ObjectComparison { removed, modified, added } = changes;
        let is_empty = |set: &PathSet| set.difference(&STRIPPED).is_empty();
        is_empty(removed)
            && is_empty(added)
            && managers.iter().all(|(manager, owned_set)| {
                owned_set.version == self.version
                    && (manager == own_manager || owned_set.set.intersection(modified).is_empty())
            })
            && managers.get(own_manager).map_or(modified.is_empty(), |owned_set| {
                modified.difference(&owned_set.set).is_empty()
            })
    }

    /// Applies `config` for `manager`; returns the object and its owners. `live` has neither
    /// managedFields nor fields that no version shows.
    pub fn apply_config(
        &self,
        live: &Value,
        config: &Value,
        managed_fields: ManagedFields,
        manager: &str,
        force: bool,
    ) -> Result<AppliedObject, Error<V::Error>> {
        let schema =
            self.versions.schema(self.version).expect("the version of a request is served");
        validate_object(schema, config, DuplicatePolicy::Refused)?;
        let managed_fields = if managed_fields.managers.is_empty() {
            let empty_object = json!({"apiVersion": live["apiVersion"], "kind": live["kind"]});
            self.track_changes(&empty_object, live, managed_fields, BEFORE_FIRST_APPLY)?
        } else {
            managed_fields
        };
        let apply_result = self.apply_as(live, config, managed_fields.clone(), manager, force);
        let mut applied_object = match apply_result {
            Err(Error::Conflicts(conflicts)) if manager == KUBECTL => {
                match self.not_applied_before(live, conflicts) {
                    Ok(()) => self.apply_as(live, config, managed_fields, manager, true)?,
                    Err(conflicts) => return Err(Error::Conflicts(conflicts)),
                }
            }
            result => result?,
        };
        if manager == KUBECTL {
            refresh_last_applied(&mut applied_object.object, config);
        }
        Ok(applied_object)
    }

    fn apply_as(
        &self,
        live: &Value,
        config: &Value,
        managed_fields: ManagedFields,
        name: &str,
        force: bool,
    ) -> Result<AppliedObject, Error<V::Error>> {
        let manager = self.build_manager(name, ManagerOperation::Apply);
        let ManagedFields { managers, mut times } = managed_fields;
        let updater = OwnershipUpdater::new(self.versions);
        let (object, mut managers) =
            updater.apply_config(live, config, self.version, managers, &manager, force)?;
        if let Some(VersionedSet { version, set }) = managers.remove(&manager) {
            let set = set.difference(&STRIPPED);
            if !set.is_empty() {
                managers.insert(manager.clone(), VersionedSet { version, set });
            }
        }
        // As upstream: a manager that applies unchanged values owns them without a time.
        if object.is_some() {
            times.insert(manager, self.now);
        }
        let object = object.unwrap_or_else(|| live.clone());
        Ok(AppliedObject { object, managed: ManagedFields { managers, times } })
    }

    fn build_manager(&self, name: &str, operation: ManagerOperation) -> FieldManager {
        FieldManager::new(name.to_owned(), operation, self.version, self.subresource.to_owned())
    }

    /// Drops conflicts with what kubectl itself applied from the client's side, as long as these
    /// fields have not changed since. Fails with the conflicts that remain.
    fn not_applied_before(
        &self,
        live: &Value,
        conflicts: Vec<FieldConflict>,
    ) -> Result<(), Vec<FieldConflict>> {
        let Some(own_fields) = self.last_applied(live) else { return Err(conflicts) };
        let remaining_conflicts: Vec<FieldConflict> =
            conflicts.into_iter().filter(|conflict| !own_fields.contains(&conflict.path)).collect();
        if remaining_conflicts.is_empty() { Ok(()) } else { Err(remaining_conflicts) }
    }

    /// Returns the fields in kubectl's annotation that the object still has unchanged.
    fn last_applied(&self, live: &Value) -> Option<PathSet> {
        let schema = self.versions.schema(self.version)?;
        let text = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
        let last_config: Value = serde_json::from_str(text).ok()?;
        validate_object(schema, live, DuplicatePolicy::Refused).ok()?;
        validate_object(schema, &last_config, DuplicatePolicy::Refused).ok()?;
        if last_config["apiVersion"] != self.version {
            return None;
        }
        let changes = compare_objects(schema, &last_config, live).ok()?;
        let set = field_set(schema, &last_config).ok()?;
        Some(
            set.difference(&changes.modified)
                .difference(&changes.added)
                .difference(&changes.removed),
        )
    }
}

/// Updates kubectl's annotation: a user who goes back to client-side apply finds what was applied
/// from the server's side.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else { return };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(config_annotations) =
        config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        config_annotations.remove(LAST_APPLIED);
    }
    annotations.insert(LAST_APPLIED.into(), format!("{config}\n").into());
    let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

impl FieldManager {
    /// Returns the manager as conflict messages name it: `"kubectl" with subresource "status" using
    /// v1`.
    pub fn text(&self) -> String {
        let Self { name, operation, version, subresource } = self;
        let part = match subresource.as_str() {
            "" => String::new(),
            subresource => format!(" with subresource {subresource:?}"),
        };
        let version_text = match operation {
            ManagerOperation::Apply => String::new(),
            ManagerOperation::Update => format!(" using {version}"),
        };
        format!("{name:?}{part}{version_text}")
    }
}

impl FieldConflict {
    /// Returns the message for a client about all conflicts of its apply.
    pub fn message(conflicts: &[Self]) -> String {
        if let [conflict] = conflicts {
            let (manager, path) = (conflict.manager.text(), path_text(&conflict.path));
            return format!("Apply failed with 1 conflict: conflict with {manager}: {path}");
        }
        let mut lines = Vec::new();
        let mut last_manager = None;
        for conflict in conflicts {
            if last_manager != Some(&conflict.manager) {
                lines.push(format!("conflicts with {}:", conflict.manager.text()));
                last_manager = Some(&conflict.manager);
            }
            lines.push(format!("- {}", path_text(&conflict.path)));
        }
        format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::schema::compiled::Schema;

    /// A kind with one version, which has no schema.
    struct Free(Schema);

    impl VersionConverter for Free {
        type Error = String;

        fn schema(&self, version: &str) -> Option<&Schema> {
            (version == "v1").then_some(&self.0)
        }

        fn convert(&self, _: &Value, from: &str, to: &str) -> Result<Value, String> {
            Err(format!("no conversion of {from} to {to}"))
        }

        fn reset_fields(&self, _: &str) -> Option<&PathSet> {
            None
        }
    }

    fn at(versions: &Free, now: i64) -> OwnershipTracker<'_, Free> {
        OwnershipTracker { versions, version: "v1", subresource: "", now }
    }

    fn free() -> Free {
        Free(Schema::deduced_schema())
    }

    fn head(spec: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "a", "uid": "u"}, "spec": spec})
    }

    #[test]
    fn an_entry_keeps_its_time_until_its_set_changes() {
        let free = free();
        let first = head(&json!({"a": 1}));
        let managed = at(&free, 10)
            .track_update(&Value::Null, &first, ManagedFields::default(), "m")
            .unwrap();
        let expected = json!([{
            "manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "1970-01-01T00:00:10Z", "fieldsV1": {"f:spec": {".": {}, "f:a": {}}},
        }]);
        assert_eq!(managed.to_raw().unwrap().text(), expected.to_string());
        let again = at(&free, 20).track_update(&first, &first, managed.clone(), "m").unwrap();
        assert_eq!(again, managed);
        let second = head(&json!({"a": 1, "b": 1}));
        let other = at(&free, 30).track_update(&first, &second, managed, "other").unwrap();
        let times: Vec<i64> = other.times.values().copied().collect();
        assert_eq!(times, [10, 30]);
    }

    /// kube-apiserver behaves like this test expects (`make test-parity`).
    #[test]
    fn who_applies_what_is_there_already_owns_it_without_a_time() {
        let free = free();
        let live = head(&json!({"a": 1}));
        let managed =
            at(&free, 10).track_update(&Value::Null, &live, ManagedFields::default(), "m").unwrap();
        let applied = at(&free, 20).apply_config(&live, &live, managed, "other", false).unwrap();
        let entries = applied.managed.to_raw().unwrap();
        let entries: Value = serde_json::from_str(entries.text()).unwrap();
        let times: Vec<(&str, &Value)> = ["m", "other"]
            .map(|name| {
                let mut named = entries.as_array().unwrap().iter().filter(|e| e["manager"] == name);
                (name, &named.next().unwrap()["time"])
            })
            .into();
        assert_eq!(times, [("m", &json!("1970-01-01T00:00:10Z")), ("other", &Value::Null)]);
    }

    #[test]
    fn a_report_of_new_values_changes_no_set() {
        let free = free();
        let (first, second) = (head(&json!({"a": 1, "b": 1})), head(&json!({"a": 2, "b": 1})));
        let made = |names: &[&str]| {
            let mut managed = ManagedFields::default();
            for name in names {
                let manager = FieldManager::new(
                    (*name).into(),
                    ManagerOperation::Update,
                    "v1",
                    String::new(),
                );
                let set = field_set(&free.0, &first).unwrap().difference(&STRIPPED);
                managed.times.insert(manager.clone(), 1);
                managed.managers.insert(manager, VersionedSet { version: "v1".into(), set });
            }
            managed
        };
        let tracker = at(&free, 9);
        let managed = made(&["m"]);
        let after = tracker.track_update(&first, &second, managed.clone(), "m").unwrap();
        assert_eq!(after.managers, managed.managers);
        assert_eq!(after.times.values().collect::<Vec<_>>(), [&9]);
        // Sets change when another manager owns the fields too, or this manager owns nothing yet.
        for (names, own) in [(&["m", "n"][..], "m"), (&["m"][..], "n")] {
            let before = made(names);
            let after = tracker.track_update(&first, &second, before.clone(), own).unwrap();
            assert_ne!(after.managers, before.managers, "{names:?}");
        }
        let third = head(&json!({"b": 1}));
        let after = tracker.track_update(&first, &third, managed.clone(), "m").unwrap();
        assert_ne!(after.managers, managed.managers);
    }

    #[test]
    fn what_was_written_before_anybody_kept_owners_is_a_managers_too() {
        let free = free();
        let live = head(&json!({"a": 1}));
        let untracked = at(&free, 1).track_update(
            &live,
            &head(&json!({"a": 2})),
            ManagedFields::default(),
            "m",
        );
        assert_eq!(untracked.unwrap(), ManagedFields::default());
        let config = head(&json!({"a": 2}));
        let conflict =
            at(&free, 1).apply_config(&live, &config, ManagedFields::default(), "m", false);
        let Err(Error::Conflicts(conflicts)) = conflict else { panic!("{conflict:?}") };
        assert_eq!(
            FieldConflict::message(&conflicts),
            "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .spec.a"
        );
        let forced =
            at(&free, 1).apply_config(&live, &config, ManagedFields::default(), "m", true).unwrap();
        assert_eq!(forced.object["spec"], json!({"a": 2}));
    }

    #[test]
    fn kubectl_takes_over_what_it_applied_from_the_clients_side() {
        let free = free();
        let mut live = head(&json!({"a": 1, "b": 1}));
        let last = head(&json!({"a": 1})).to_string();
        live["metadata"]["annotations"] = json!({LAST_APPLIED: last});
        let managed = at(&free, 1)
            .track_update(
                &Value::Null,
                &live,
                ManagedFields::default(),
                "kubectl-client-side-apply",
            )
            .unwrap();
        let own = head(&json!({"a": 2}));
        let applied =
            at(&free, 2).apply_config(&live, &own, managed.clone(), "kubectl", false).unwrap();
        assert_eq!(applied.object["spec"], json!({"a": 2, "b": 1}));
        let annotation = &applied.object["metadata"]["annotations"][LAST_APPLIED];
        assert_eq!(*annotation, format!("{own}\n"));
        for (manager, config) in [("kubectl", json!({"b": 2})), ("other", json!({"a": 2}))] {
            let refused =
                at(&free, 2).apply_config(&live, &head(&config), managed.clone(), manager, false);
            assert!(matches!(refused, Err(Error::Conflicts(_))), "{manager}: {config}");
        }
    }

    #[test]
    fn the_oldest_managers_become_one() {
        let free = free();
        let mut live = head(&json!({}));
        let mut managed = at(&free, 0)
            .track_update(&Value::Null, &live, ManagedFields::default(), "first")
            .unwrap();
        for number in 1..15 {
            let mut next = live.clone();
            next["spec"][format!("f{number}")] = json!(number);
            let manager = format!("m{number}");
            managed = at(&free, number).track_update(&live, &next, managed, &manager).unwrap();
            live = next;
        }
        let names: Vec<String> =
            managed.managers.keys().map(|manager| manager.name.clone()).collect();
        assert_eq!(names.len(), MAX_UPDATERS);
        assert!(names.contains(&"ancient-changes".to_owned()), "{names:?}");
        assert!(
            names.contains(&"m14".to_owned()) && !names.contains(&"m1".to_owned()),
            "{names:?}"
        );
    }
}
