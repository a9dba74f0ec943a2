//! Tracks who wrote which field of an object: the rules of server-side apply.
//!
//! Owns `metadata.managedFields`: its text ([`RawManagedFields`]), sets of paths ([`PathSet`]) in
//! the form FieldsV1, the walks over objects by their [`Schema`], and how owners change when a
//! client updates or applies ([`OwnershipTracker`]). Pure: conversion between versions is handed in
//! as [`VersionConverter`]. The rules are those of structured-merge-diff 6 and of apimachinery's
//! `managedfields`; `tests/it/api/ownership.rs` holds them to upstream's own cases.

mod compare;
mod element;
mod entries;
mod field_set;
mod fields;
mod items;
mod managed;
mod merge;
mod problem;
mod reconcile;
mod remove;
mod set;
mod tracker;
mod updater;
mod validate;
mod value;

pub use super::schema::compiled::Schema;
pub use compare::{ObjectComparison, compare};
pub use element::{ElementPath, PathElement, path_text};
pub use entries::{RawManagedFields, RevisionGap, join, join_but_revision, split, whole};
pub use field_set::field_set;
pub use managed::{MAX_UPDATERS, ManagedFields};
pub use merge::merge;
pub use problem::{SchemaMismatch, SchemaMismatches};
pub use reconcile::reconcile;
pub use remove::{extract, remove, with_keys};
pub use set::PathSet;
pub use tracker::{AppliedObject, OwnershipTracker};
pub use updater::{
    Error, FieldConflict, FieldManager, FieldManagers, ManagerOperation, OwnershipUpdater,
    VersionConverter, VersionedSet,
};
pub use validate::{DuplicatePolicy, validate};
pub use value::{order, same};
