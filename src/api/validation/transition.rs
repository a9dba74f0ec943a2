//! Rules about what an update of a cluster may change.
//!
//! Rules that run in [`UnsafeOverrides::check_unless_allowed`] can be overridden by name in the annotation
//! `allow-unsafe`, which costs a warning (W14).

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::json;

use super::{
    cluster_view::{ClusterView, PoolView, pool_path},
    database_version::DatabaseVersion,
    metadata,
    validator::Validator,
};
use crate::{
    api::{names::annotation, v1beta1::StorageStatus},
    machinery::{field_error::FieldPath, quantity},
};

pub(super) const IMMUTABLE: &str = "field is immutable";

/// Names of the safety rules that an update may break, from the annotation `allow-unsafe`.
#[derive(Debug)]
pub struct UnsafeOverrides {
    names: Vec<String>,
}

impl UnsafeOverrides {
    pub(super) fn from_view(cluster: &ClusterView<'_>) -> Self {
        Self { names: metadata::allowed_unsafe(cluster.metadata) }
    }

    /// Runs `rules`. If the annotation `allow-unsafe` holds `name`, their problems become warnings.
    pub fn check_unless_allowed(
        &self,
        name: &str,
        validator: &mut Validator,
        rules: impl FnOnce(&mut Validator),
    ) {
        let error_count = validator.errors.len();
        rules(validator);
        if !self.names.iter().any(|entry| entry == name) {
            return;
        }
        for error in validator.errors.drain(error_count..).collect::<Vec<_>>() {
            validator.add_warning(format!("{}: {name} used: {error}", annotation::ALLOW_UNSAFE));
        }
    }
}

/// Index of a pool, the new pool, and the stored pool.
type PoolPair<'c, 'a> = (usize, &'c PoolView<'a>, &'c PoolView<'a>);

/// Returns the pools that are in both objects, matched by name.
pub(super) fn pair_pools<'c, 'a>(
    new: &'c ClusterView<'a>,
    old: &'c ClusterView<'a>,
) -> impl Iterator<Item = PoolPair<'c, 'a>> {
    new.pools.iter().enumerate().filter_map(|(index, pool)| {
        let old_pool = old.pools.iter().find(|candidate| candidate.name == pool.name)?;
        Some((index, pool, old_pool))
    })
}

/// Validates an update of the fields that all cluster kinds share (V15, V16, V22, V40). Sizes and
/// versions are judged by what is, as the stored status tells.
pub(super) fn validate_transition(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
    overrides: &UnsafeOverrides,
) {
    for (index, pool, old_pool) in pair_pools(new, old) {
        let path = pool_path(index);
        let storage = old
            .status
            .node_pools
            .get(pool.name)
            .and_then(|pool_status| pool_status.storage.as_ref());
        let smallest_size = storage.and_then(smallest_volume_size);
        validate_persistence(
            validator,
            pool,
            old_pool,
            smallest_size,
            &path.child("persistence"),
            overrides,
        );
        overrides.check_unless_allowed("topology", validator, |validator| {
            check_immutable(validator, &path.child("zone"), &pool.zone, &old_pool.zone);
        });
    }
    for (index, pool) in new.pools.iter().enumerate() {
        if !old.pools.iter().any(|old_pool| old_pool.name == pool.name) {
            check_removed_pool(validator, pool, old, &pool_path(index));
        }
    }
    if new.version != old.version {
        overrides.check_unless_allowed("downgrade", validator, |validator| {
            check_downgrade(validator, new, old);
        });
    }
}

/// V71: refuses to add a pool whose nodes still exist in another form, with volumes or without, or in
/// another place: they would go on as they are, or not start again, and no error would show that.
fn check_removed_pool(
    validator: &mut Validator,
    pool: &PoolView<'_>,
    old: &ClusterView<'_>,
    path: &FieldPath,
) {
    let Some(pool_status) = old.status.node_pools.get(pool.name) else { return };
    if pool_status.replicas.unwrap_or_default() == 0 {
        return;
    }
    let mut report_difference = |field: &str, existing: &str| {
        let text = format!(
            "the node pool is still being removed, and its nodes have {existing}: add it as it was, or \
             wait until status.nodePools does not name it"
        );
        validator.forbidden(&path.child(field), &text);
    };
    let has_volumes = pool_status.storage.is_some();
    if has_volumes != is_persistent(pool) {
        report_difference("persistence", if has_volumes { "volumes" } else { "no volumes" });
    }
    // A release before 0.3 did not record it.
    let Some(old_topology) = &pool_status.topology else { return };
    let keys: BTreeSet<&String> = old_topology.keys().chain(pool.topology.keys()).collect();
    for key in keys {
        let (old_value, new_value) = (old_topology.get(key), pool.topology.get(key));
        let field = if key == "storageClass" { "persistence.storageClass" } else { key.as_str() };
        if old_value != new_value {
            let existing = old_value
                .map_or_else(|| format!("no {field}"), |value| format!("{field} {value:?}"));
            report_difference(field, &existing);
        }
    }
}

fn is_persistent(pool: &PoolView<'_>) -> bool {
    pool.persistence.is_some_and(|persistence| persistence.enabled != Some(false))
}

/// V40: refuses any change of a value, adding and removing it included.
pub fn check_immutable<T: PartialEq + Serialize>(
    validator: &mut Validator,
    path: &FieldPath,
    new: &T,
    old: &T,
) {
    if new != old {
        let value = json!(new);
        validator.invalid(path, value, IMMUTABLE);
    }
}

/// Returns the smallest size that a claim of a pool asks for, or has where that is less.
fn smallest_volume_size(storage: &StorageStatus) -> Option<&str> {
    let sizes = [&storage.requested, &storage.smallest].into_iter().flatten();
    sizes.map(|size| size.0.as_str()).min_by_key(|size| quantity::parse_nanos(size))
}

/// Validates an update of a pool's volumes (V15, V16). `is` is the smallest size of a claim that
/// exists, where it is known.
fn validate_persistence(
    validator: &mut Validator,
    new: &PoolView<'_>,
    old: &PoolView<'_>,
    smallest_size: Option<&str>,
    path: &FieldPath,
    overrides: &UnsafeOverrides,
) {
    let Some(old_persistence) = old.persistence.filter(|_| is_persistent(old)) else {
        // The existing nodes would go on without volumes, and no error would show that.
        if is_persistent(new) {
            validator.forbidden(
                path,
                "cannot add persistence to the nodes of a pool: add a pool with \
                persistence, and remove this one when the new one serves; its data move over",
            );
        }
        return;
    };
    let message = "cannot modify persistence configuration once enabled";
    let Some(new_persistence) = new.persistence.filter(|_| is_persistent(new)) else {
        validator.forbidden(path, message);
        return;
    };
    if new_persistence.storage_class != old_persistence.storage_class {
        overrides.check_unless_allowed("storage-class", validator, |validator| {
            validator.forbidden(&path.child("storageClass"), message);
        });
    }
    if let (Some(new_size), Some(old_size)) = (&new_persistence.size, &old_persistence.size)
        && let (Some(new_nanos), Some(old_nanos)) =
            (quantity::parse_nanos(&new_size.0), quantity::parse_nanos(&old_size.0))
    {
        let lower_bound = smallest_size
            .filter(|size| quantity::parse_nanos(size).is_some_and(|nanos| nanos < old_nanos));
        if new_nanos < old_nanos && lower_bound.is_none() {
            validator.forbidden(&path.child("size"), "field can not be less than previous value");
        } else if let Some(lower_bound) =
            lower_bound.filter(|size| quantity::parse_nanos(size) > Some(new_nanos))
        {
            let text = format!(
                "field can not be less than the smallest volume of the pool: {lower_bound}"
            );
            validator.forbidden(&path.child("size"), &text);
        } else if new_nanos > old_nanos {
            // W18: only Kubernetes knows whether the class expands.
            let place = path.child("size");
            validator.add_warning(format!(
                "{place}: volumes grow only if their storage class allows expansion"
            ));
        }
    }
}

/// V22: refuses a downgrade below the highest running version. A version that no pilot ran yet, or
/// only nodes whose data were given up, may be taken back.
fn check_downgrade(validator: &mut Validator, new: &ClusterView<'_>, old: &ClusterView<'_>) {
    let (Some(target_version), Some(highest_running)) =
        (DatabaseVersion::parse(new.version), running_versions(old).max_by(|a, b| a.0.cmp(&b.0)))
    else {
        return;
    };
    if target_version < highest_running.0 {
        let text = format!(
            "downgrade from {} to {} is not supported: an older version does not read what a newer \
             one wrote. If only a node that failed ran it, give that node up first",
            highest_running.1, new.version
        );
        validator.forbidden(&FieldPath::new("spec").child("version"), &text);
    }
}

/// V23: refuses an upgrade that has to go through another version first. `next_version` returns
/// that version for the lowest running one and the wanted one, or `None`.
pub(super) fn check_skipped_version(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
    next_version: impl Fn(&DatabaseVersion, &DatabaseVersion) -> Option<String>,
) {
    if new.version == old.version {
        return;
    }
    let (Some(target_version), Some((lowest, lowest_text))) =
        (DatabaseVersion::parse(new.version), running_versions(old).min_by(|a, b| a.0.cmp(&b.0)))
    else {
        return;
    };
    if let Some(required_version) = next_version(&lowest, &target_version) {
        let text = format!(
            "upgrade from {lowest_text} to {} must go through {required_version}",
            new.version
        );
        validator.forbidden(&FieldPath::new("spec").child("version"), &text);
    }
}

/// Returns the versions that pilots report, parsed and as written.
fn running_versions<'a>(
    cluster: &ClusterView<'a>,
) -> impl Iterator<Item = (DatabaseVersion, &'a str)> {
    cluster
        .status
        .versions
        .iter()
        .filter_map(|count| Some((DatabaseVersion::parse(&count.version)?, count.version.as_str())))
}
