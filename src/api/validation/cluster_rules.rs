//! The rules that one database adds to those of all clusters: [`ClusterRules`].

use super::{database_version::DatabaseVersion, transition::Allowed, validator::Validator};
use crate::api::{
    cluster_kind::ClusterKind,
    field::Path,
    v1beta1::{Cluster, NodePool},
};

/// Rules for what only one database has. What is not implemented has none.
pub trait ClusterRules: ClusterKind {
    /// Settings that only Navigator makes: `name` and all that begins with `name.`, which may
    /// also be written `name.*`.
    const MANAGED: &'static [&'static str];

    /// Have the nodes of a pool a state that matters?
    fn keeps_data(_pool: &NodePool<Self>) -> bool {
        true
    }

    /// `spec.version`, which stands at `path`.
    fn version(validator: &mut Validator, version: &str, path: &Path);
    /// The fields of a spec, whoever writes it.
    fn validate(_validator: &mut Validator, _new: &Cluster<Self>, _allowed: &Allowed) {}
    /// What an update may change of them.
    fn validate_change(
        _validator: &mut Validator,
        _new: &Cluster<Self>,
        _old: &Cluster<Self>,
        _allowed: &Allowed,
    ) {
    }
    /// Through which version the way leads from the lowest that runs to the one that is wanted;
    /// `None` when straight to it.
    fn through(_lowest: &DatabaseVersion, _wanted: &DatabaseVersion) -> Option<String> {
        None
    }
    /// What is accepted, and deserves a warning.
    fn warn(_validator: &mut Validator, _cluster: &Cluster<Self>) {}
}
