//! Apache Cassandra.

pub mod api;
pub mod columns;
pub mod controller;
pub mod conversion;
pub mod facts;
pub mod kubectl_plugin;
pub mod names;
mod permissions;
pub mod pilot;
pub mod predicates;
pub mod releases;
pub mod settings;
pub mod v1alpha1;
pub mod v1beta1;
pub mod validation;
