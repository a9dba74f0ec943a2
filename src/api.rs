//! Group `navigator.jetstack.io`: its versions, types, names, defaults, validation,
//! conversion and schemas.
//!
//! Owns what an object means. Performs no I/O, has no async and knows no client; every role
//! uses it as a library. [`v1beta1`] is the hub and the stored form: the only types that roles
//! reason with. [`v1alpha1`] converts to and from it.
//!
//! [`containership`] holds other groups, which kube-apiserver serves.

pub mod cluster_kind;
pub mod containership;
pub mod conversion;
pub mod database_names;
mod defaults;
pub mod hub;
pub mod leave_request;
pub mod legacy;
pub mod names;
pub mod object_picture;
mod open_enum;
pub mod picture;
pub mod pilot_part;
pub mod predicate;
pub mod printer;
pub mod repair_report;
pub mod reserved_fields;
pub mod schema;
pub mod scheme;
pub mod silence;
pub mod v1alpha1;
pub mod v1beta1;
pub mod validation;

use crate::machinery::{served_kind::ServedVersion, served_kinds::ServedGroup};

/// The API group of every kind that Navigator serves.
pub const GROUP: &str = "navigator.jetstack.io";
/// The hub: roles reason with this version, and it is what is stored.
pub const V1BETA1: ServedVersion = ServedVersion::new("v1beta1");
/// The version of 2018.
pub const V1ALPHA1: ServedVersion = ServedVersion::new("v1alpha1");
/// The versions, in the order of preference.
pub const VERSIONS: [ServedVersion; 2] = [V1BETA1, V1ALPHA1];

/// The group of Navigator's own kinds.
pub static NAVIGATOR: ServedGroup = ServedGroup {
    name: GROUP,
    versions: &VERSIONS,
    title: "Navigator",
    definitions: "com.jetstack.navigator",
};
