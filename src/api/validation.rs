//! Rules that an object must satisfy to be stored, and warnings about accepted values.
//!
//! Validates hub objects only and reports what is wrong with an object at once. An update validates
//! only what it changes, so a rule that was added later never blocks an old object. Rule numbers in
//! comments (V1 …, W4 …) are those of docs/rules.md; `tests/data/api/invalid` has a case for each.

pub mod cluster;
mod cluster_rules;
mod cluster_view;
mod config;
mod database_version;
pub mod format;
pub mod lease;
mod metadata;
mod network;
pub mod object_names;
pub mod pilot;
mod pod_template;
mod ratchet;
pub mod releases;
mod schema_rules;
mod security;
mod security_support;
mod status;
mod transition;
mod validator;
pub mod warning;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::schema::SchemaSet;
use crate::{api::V1BETA1, machinery::served_kind::ValidationResult};

pub use cluster_rules::ClusterRules;
pub use cluster_view::pool_path;
pub use database_version::DatabaseVersion;
pub use security::OWN_USERS;
pub use security_support::SecuritySupport;
pub use transition::{UnsafeOverrides, check_immutable};
pub use validator::Validator;

/// Validates the metadata of an object of any kind, whose JSON types have been checked. `old` is
/// the stored object; `None` for a new one.
pub fn object_meta(
    schemas: &'static SchemaSet,
    new: &Value,
    old: Option<&Value>,
) -> ValidationResult {
    let parse_meta = |meta: &Value| ObjectMeta::deserialize(meta).unwrap_or_default();
    let mut validator = Validator::new(V1BETA1, schemas);
    match old {
        None => metadata::validate_create(&mut validator, &parse_meta(new)),
        Some(old) => metadata::validate_update(&mut validator, &parse_meta(new), &parse_meta(old)),
    }
    validator.into_result()
}
