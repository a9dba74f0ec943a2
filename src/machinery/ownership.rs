//! Tracks who wrote which field of an object: the rules of server-side apply.
//!
//! Owns `metadata.managedFields`: its text ([`RawManagedFields`]), sets of paths ([`PathSet`]) in
//! the form FieldsV1, the walks over objects by their [`Schema`], and how owners change when a
//! client updates or applies ([`OwnershipTracker`]). Pure: conversion between versions is handed in
//! as [`VersionConverter`]. The rules are those of structured-merge-diff 6 and of apimachinery's
//! `managedfields`; `tests/it/api/ownership.rs` holds them to upstream's own cases.

mod compare;
mod field_set;
mod fields_v1;
mod list_items;
mod managed_fields;
mod merge;
mod path_element;
mod path_set;
mod raw_managed_fields;
mod remove;
mod schema_mismatch;
mod schema_reconciliation;
mod tracker;
mod updater;
mod validate;
mod value_order;

pub use super::schema::compiled::Schema;
pub use compare::{ObjectComparison, compare_objects};
pub use field_set::field_set;
pub use managed_fields::{MAX_UPDATERS, ManagedFields};
pub use merge::merge_objects;
pub use path_element::{ElementPath, PathElement, path_text};
pub use path_set::PathSet;
pub use raw_managed_fields::{
    RawManagedFields, RevisionGap, join_but_revision, join_json, parse_whole, split_json,
};
pub use remove::{extract_paths, remove_paths, with_keys};
pub use schema_mismatch::{SchemaMismatch, SchemaMismatches};
pub use schema_reconciliation::reconcile_set;
pub use tracker::{AppliedObject, OwnershipTracker};
pub use updater::{
    Error, FieldConflict, FieldManager, FieldManagers, ManagerOperation, OwnershipUpdater,
    VersionConverter, VersionedSet,
};
pub use validate::{DuplicatePolicy, validate_object};
pub use value_order::{is_same_value, order_values};
