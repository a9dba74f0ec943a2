//! The rules that one database adds to those of all clusters: [`ClusterRules`].

use super::{database_version::DatabaseVersion, transition::UnsafeOverrides, validator::Validator};
use crate::api::{
    cluster_kind::ClusterKind,
    field::FieldPath,
    v1beta1::{Cluster, NodePool},
};

/// Rules for fields that only one database has. By default there are none.
pub trait ClusterRules: ClusterKind {
    /// Settings that only Navigator makes: `name` and all that begins with `name.`, which may
    /// also be written `name.*`.
    const MANAGED: &'static [&'static str];

    /// Have the nodes of a pool a state that matters?
    fn keeps_data(_pool: &NodePool<Self>) -> bool {
        true
    }

    /// `spec.version`, which stands at `path`.
    fn version(validator: &mut Validator, version: &str, path: &FieldPath);
    /// Validates the database's own fields of a spec.
    fn validate(_validator: &mut Validator, _new: &Cluster<Self>, _allowed: &UnsafeOverrides) {}
    /// Validates what an update changes in these fields.
    fn validate_change(
        _validator: &mut Validator,
        _new: &Cluster<Self>,
        _old: &Cluster<Self>,
        _allowed: &UnsafeOverrides,
    ) {
    }
    /// The version that an upgrade from the lowest running version must go through first; `None`
    /// when it may go straight to the wanted one.
    fn through(_lowest: &DatabaseVersion, _wanted: &DatabaseVersion) -> Option<String> {
        None
    }
    /// Adds warnings about values that are accepted.
    fn warn(_validator: &mut Validator, _cluster: &Cluster<Self>) {}
}
