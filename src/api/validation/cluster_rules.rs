//! The rules that one database adds to those of all clusters: [`ClusterRules`].

use serde_json::Value;

use super::{
    database_version::DatabaseVersion, security_support::SecuritySupport,
    transition::UnsafeOverrides, validator::Validator,
};
use crate::{
    api::{
        cluster_kind::ClusterKind,
        reserved_fields::is_key_covered,
        v1beta1::{Cluster, NodePool},
    },
    machinery::field_error::FieldPath,
};

/// Validation rules for the fields that only one database has. By default there are none.
pub trait ClusterRules: ClusterKind {
    /// Names of settings that only Navigator may set: `name` stands for `name` and the keys that
    /// begin with `name.`; it may also be written `name.*`.
    const MANAGED: &'static [&'static str];
    /// How clusters are encrypted and ask for logins; `None` where they cannot yet.
    const SECURITY: Option<SecuritySupport> = None;

    /// May only Navigator set `key`, a dotted name? `asks`: the cluster asks for passwords.
    fn is_managed(key: &str, _requires_password: bool) -> bool {
        Self::MANAGED.iter().any(|pattern| is_key_covered(pattern, key))
    }

    /// Is `value` what Navigator sets `key` to, a dotted name, where passwords are asked for? Such a
    /// setting may stay in a cluster whose logins become Navigator's.
    fn is_restated(_key: &str, _value: &Value) -> bool {
        false
    }

    /// Returns why a new cluster whose version can be secured stays open unless it says otherwise. It
    /// must, where a rule of the database refuses encryption or logins.
    fn reason_to_stay_open(_new: &Cluster<Self>) -> Option<String> {
        None
    }

    /// Do the pool's nodes hold a state that must not be lost?
    fn keeps_data(_pool: &NodePool<Self>) -> bool {
        true
    }

    /// Validates `spec.version`, which stands at `path`.
    fn validate_version(validator: &mut Validator, version: &str, path: &FieldPath);
    /// Validates the database's own fields of a spec.
    fn validate_own_fields(
        _validator: &mut Validator,
        _new: &Cluster<Self>,
        _overrides: &UnsafeOverrides,
    ) {
    }
    /// Validates what only a new cluster must have of the database's own fields.
    fn validate_create(_validator: &mut Validator, _new: &Cluster<Self>) {}
    /// Validates what an update changes in the database's own fields.
    fn validate_change(
        _validator: &mut Validator,
        _new: &Cluster<Self>,
        _old: &Cluster<Self>,
        _overrides: &UnsafeOverrides,
    ) {
    }
    /// Returns the version that an upgrade from `_lowest`, the lowest running version, must go
    /// through before `_target`; `None` when it may go straight.
    fn intermediate_version(
        _lowest: &DatabaseVersion,
        _target: &DatabaseVersion,
    ) -> Option<String> {
        None
    }
    /// Adds warnings about accepted values of the database's own fields.
    fn add_warnings(_validator: &mut Validator, _cluster: &Cluster<Self>) {}
}
