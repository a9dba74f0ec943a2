//! Rules about what an update of a cluster may change.
//!
//! Rules that run in [`UnsafeOverrides::unless`] can be overridden by name in the annotation
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
    pub(super) fn read(cluster: &ClusterView<'_>) -> Self {
        Self { names: metadata::allowed_unsafe(cluster.metadata) }
    }

    /// Runs `rules`. If the annotation `allow-unsafe` holds `name`, their problems become warnings.
    pub fn unless(
        &self,
        name: &str,
        validator: &mut Validator,
        rules: impl FnOnce(&mut Validator),
    ) {
        let before = validator.errors.len();
        rules(validator);
        if !self.names.iter().any(|allowed| allowed == name) {
            return;
        }
        for error in validator.errors.drain(before..).collect::<Vec<_>>() {
            validator.warn(format!("{}: {name} used: {error}", annotation::ALLOW_UNSAFE));
        }
    }
}

/// Index of a pool, the new pool, and the stored pool.
type PoolPair<'c, 'a> = (usize, &'c PoolView<'a>, &'c PoolView<'a>);

/// Returns the pools that are in both objects, matched by name.
pub(super) fn pairs<'c, 'a>(
    new: &'c ClusterView<'a>,
    old: &'c ClusterView<'a>,
) -> impl Iterator<Item = PoolPair<'c, 'a>> {
    new.pools.iter().enumerate().filter_map(|(index, pool)| {
        let before = old.pools.iter().find(|before| before.name == pool.name)?;
        Some((index, pool, before))
    })
}

/// Validates an update of the fields that all cluster kinds share (V15, V16, V22, V40). Sizes and
/// versions are judged by what is, as the stored status tells.
pub(super) fn validate(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
    allowed: &UnsafeOverrides,
) {
    for (index, pool, before) in pairs(new, old) {
        let path = pool_path(index);
        let is = old.status.node_pools.get(pool.name).and_then(|is| is.storage.as_ref());
        let is = is.and_then(smallest);
        persistence(validator, pool, before, is, &path.child("persistence"), allowed);
        allowed.unless("topology", validator, |validator| {
            immutable(validator, &path.child("zone"), &pool.zone, &before.zone);
        });
    }
    for (index, pool) in new.pools.iter().enumerate() {
        if !old.pools.iter().any(|before| before.name == pool.name) {
            comes_back(validator, pool, old, &pool_path(index));
        }
    }
    if new.version != old.version {
        allowed.unless("downgrade", validator, |validator| downgrade(validator, new, old));
    }
}

/// V71: refuses to add a pool whose nodes still exist in another form, with volumes or without, or in
/// another place: they would go on as they are, or not start again, and no error would show that.
fn comes_back(
    validator: &mut Validator,
    pool: &PoolView<'_>,
    old: &ClusterView<'_>,
    path: &FieldPath,
) {
    let Some(exists) = old.status.node_pools.get(pool.name) else { return };
    if exists.replicas.unwrap_or_default() == 0 {
        return;
    }
    let mut differs = |field: &str, kept: &str| {
        let text = format!(
            "the node pool is still being removed, and its nodes have {kept}: add it as it was, or \
             wait until status.nodePools does not name it"
        );
        validator.forbidden(&path.child(field), &text);
    };
    let has = exists.storage.is_some();
    if has != is_persistent(pool) {
        differs("persistence", if has { "volumes" } else { "no volumes" });
    }
    // A release before 0.3 did not record it.
    let Some(was) = &exists.topology else { return };
    let keys: BTreeSet<&String> = was.keys().chain(pool.topology.keys()).collect();
    for key in keys {
        let (was, is) = (was.get(key), pool.topology.get(key));
        let field = if key == "storageClass" { "persistence.storageClass" } else { key.as_str() };
        if was != is {
            let kept = was.map_or_else(|| format!("no {field}"), |was| format!("{field} {was:?}"));
            differs(field, &kept);
        }
    }
}

fn is_persistent(pool: &PoolView<'_>) -> bool {
    pool.persistence.is_some_and(|found| found.enabled != Some(false))
}

/// V40: refuses any change of a value, adding and removing it included.
pub fn immutable<T: PartialEq + Serialize>(
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
fn smallest(storage: &StorageStatus) -> Option<&str> {
    let sizes = [&storage.requested, &storage.smallest].into_iter().flatten();
    sizes.map(|size| size.0.as_str()).min_by_key(|size| quantity::nanos(size))
}

/// Validates an update of a pool's volumes (V15, V16). `is` is the smallest size of a claim that
/// exists, where it is known.
fn persistence(
    validator: &mut Validator,
    new: &PoolView<'_>,
    old: &PoolView<'_>,
    is: Option<&str>,
    path: &FieldPath,
    allowed: &UnsafeOverrides,
) {
    let Some(before) = old.persistence.filter(|_| is_persistent(old)) else {
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
    let once = "cannot modify persistence configuration once enabled";
    let Some(now) = new.persistence.filter(|_| is_persistent(new)) else {
        validator.forbidden(path, once);
        return;
    };
    if now.storage_class != before.storage_class {
        allowed.unless("storage-class", validator, |validator| {
            validator.forbidden(&path.child("storageClass"), once);
        });
    }
    if let (Some(now), Some(before)) = (&now.size, &before.size)
        && let (Some(now), Some(before)) = (quantity::nanos(&now.0), quantity::nanos(&before.0))
    {
        let least = is.filter(|is| quantity::nanos(is).is_some_and(|is| is < before));
        if now < before && least.is_none() {
            validator.forbidden(&path.child("size"), "field can not be less than previous value");
        } else if let Some(least) = least.filter(|is| quantity::nanos(is) > Some(now)) {
            let text =
                format!("field can not be less than the smallest volume of the pool: {least}");
            validator.forbidden(&path.child("size"), &text);
        } else if now > before {
            // W18: only Kubernetes knows whether the class expands.
            let place = path.child("size");
            validator.warn(format!(
                "{place}: volumes grow only if their storage class allows expansion"
            ));
        }
    }
}

/// V22: refuses a downgrade below the highest running version. A version that no pilot ran yet, or
/// only nodes whose data were given up, may be taken back.
fn downgrade(validator: &mut Validator, new: &ClusterView<'_>, old: &ClusterView<'_>) {
    let (Some(wanted), Some(highest)) =
        (DatabaseVersion::parse(new.version), running(old).max_by(|a, b| a.0.cmp(&b.0)))
    else {
        return;
    };
    if wanted < highest.0 {
        let text = format!(
            "downgrade from {} to {} is not supported: an older version does not read what a newer \
             one wrote. If only a node that failed ran it, give that node up first",
            highest.1, new.version
        );
        validator.forbidden(&FieldPath::new("spec").child("version"), &text);
    }
}

/// V23: refuses an upgrade that has to go through another version first. `next` returns that
/// version for the lowest running one and the wanted one, or `None`.
pub(super) fn skipped_version(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
    next: impl Fn(&DatabaseVersion, &DatabaseVersion) -> Option<String>,
) {
    if new.version == old.version {
        return;
    }
    let (Some(wanted), Some((lowest, written))) =
        (DatabaseVersion::parse(new.version), running(old).min_by(|a, b| a.0.cmp(&b.0)))
    else {
        return;
    };
    if let Some(through) = next(&lowest, &wanted) {
        let text = format!("upgrade from {written} to {} must go through {through}", new.version);
        validator.forbidden(&FieldPath::new("spec").child("version"), &text);
    }
}

/// Returns the versions that pilots report, parsed and as written.
fn running<'a>(cluster: &ClusterView<'a>) -> impl Iterator<Item = (DatabaseVersion, &'a str)> {
    cluster
        .status
        .versions
        .iter()
        .filter_map(|count| Some((DatabaseVersion::parse(&count.version)?, count.version.as_str())))
}
