//! Group `navigator.jetstack.io`: its versions, types, names, defaults, validation,
//! conversion and schemas.
//!
//! Owns what an object means. Performs no I/O, has no async and knows no client; every role
//! uses it as a library. [`v1beta1`] is the hub and the stored form: the only types that roles
//! reason with. [`v1alpha1`] converts to and from it.

pub mod cluster_kind;
pub mod conversion;
pub mod database_names;
pub mod decode;
mod defaults;
pub mod field;
pub mod hub;
pub mod kind;
mod known;
pub mod legacy;
pub mod managed;
pub mod names;
pub mod openapi;
pub mod ownership;
pub mod pilot_part;
pub mod printer;
pub mod quantity;
pub mod schema;
pub mod scheme;
pub mod strict;
pub mod v1alpha1;
pub mod v1beta1;
pub mod validation;
pub mod wire;

/// The API group of every kind that Navigator serves.
pub const GROUP: &str = "navigator.jetstack.io";
