//! Names that two clusters of a namespace would need (V70): the write that needs one second is
//! refused.

use std::collections::{HashMap, HashSet};

use super::{cluster_rules::ClusterRules, cluster_view::ClusterView, validator::Validator};
use crate::{
    api::{
        database_names::ObjectName,
        schema::SchemaSet,
        v1beta1::{Cluster, NodePool},
    },
    machinery::{
        field_error::FieldPath,
        served_kind::{ServedVersion, ValidationResult},
    },
};

/// May clusters of these names need one name for their objects? The name of each object begins with
/// its cluster's, and goes on with a hyphen.
pub fn may_be_shared(name: &str, other: &str) -> bool {
    let has_prefix = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.starts_with('-'))
    };
    has_prefix(name, other) || has_prefix(other, name)
}

/// Refuses names that `new` comes to need and that `other`, a cluster of the same kind and
/// namespace, needs too. Names that `old` needed already are not judged again.
pub fn validate_names<K: ClusterRules>(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    new: &Cluster<K>,
    old: Option<&Cluster<K>>,
    other: &Cluster<K>,
) -> ValidationResult {
    let mut validator = Validator::new(version, schemas);
    let old_names: HashSet<ObjectName> =
        old.into_iter().flat_map(collect_names).map(|(name, _)| name).collect();
    let other_names: HashSet<ObjectName> =
        collect_names(other).into_iter().map(|(name, _)| name).collect();
    let mut reported_paths = HashSet::new();
    for (name, (path, value)) in collect_names(new) {
        if old_names.contains(&name)
            || !other_names.contains(&name)
            || !reported_paths.insert(path.clone())
        {
            continue;
        }
        let (kind, owner) = (K::NAMES.kind, other.metadata.name.as_deref().unwrap_or_default());
        let text = format!("{kind} {owner:?} needs the name of {name}, too: choose another name");
        validator.require_in_beta(|validator| validator.invalid(&path, value, &text));
    }
    validator.into_result()
}

/// Refuses two users of one cluster whose passwords would lie in one Secret (V70).
pub(super) fn validate_users(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    path: &FieldPath,
) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let users = cluster.security.iter().flat_map(|security| &security.users).enumerate();
    let mut secret_owners: HashMap<String, &str> = HashMap::new();
    for (index, user) in users.filter(|(_, user)| user.password_secret.is_none()) {
        let secret = cluster.names.user_secret(name, &user.name);
        let text = |owner: &str| {
            format!("user {owner:?} needs the name of Secret {secret:?}, too: choose another name")
        };
        match secret_owners.get(&secret) {
            Some(owner) if *owner != user.name => {
                let (path, text) = (path.index(index).child("name"), text(owner));
                validator.require_in_beta(|validator| {
                    validator.invalid(&path, user.name.as_str(), &text);
                });
            }
            _ => drop(secret_owners.insert(secret, &user.name)),
        }
    }
}

/// A field that an object is named after, and what stands there.
type NamingField = (FieldPath, String);

/// Returns the names of all objects that may be made for a cluster.
fn collect_names<K: ClusterRules>(cluster: &Cluster<K>) -> Vec<(ObjectName, NamingField)> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let name_field = (FieldPath::new("metadata").child("name"), name.to_owned());
    let spec = FieldPath::new("spec");
    let mut names: Vec<_> = K::NAMES
        .cluster_objects(name)
        .into_iter()
        .map(|object| (object, name_field.clone()))
        .collect();
    for (index, NodePool { name: pool, .. }) in cluster.spec.node_pools.iter().enumerate() {
        let field = (spec.child("nodePools").index(index).child("name"), pool.clone());
        let objects = K::NAMES.pool_objects(name, pool);
        names.extend(objects.into_iter().map(|object| (object, field.clone())));
    }
    let security = cluster.spec.security.as_ref().map(|security| &security.shared);
    for (index, user) in security.iter().flat_map(|security| &security.users).enumerate() {
        if user.password_secret.is_none() {
            let path = spec.child("security").child("users").index(index).child("name");
            names.push((K::NAMES.user_object(name, &user.name), (path, user.name.clone())));
        }
    }
    names
}
