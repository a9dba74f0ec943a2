//! Who wrote which field of an object: the rules of server-side apply.
//!
//! Owns `metadata.managedFields`: its text ([`Entries`]), sets of paths ([`Set`]) in the form
//! FieldsV1, the walks over objects by their [`Schema`], and how owners change when a client
//! updates or applies ([`Tracker`]). Pure: conversion between versions is handed in as
//! [`Versions`]. The rules are those of structured-merge-diff 6 and of apimachinery's
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
pub use compare::{Comparison, compare};
pub use element::{Element, Path, path_text};
pub use entries::{Entries, Gap, join, join_but_revision, split, whole};
pub use field_set::field_set;
pub use managed::{MAX_UPDATERS, Managed};
pub use merge::merge;
pub use problem::{Problem, Problems};
pub use reconcile::reconcile;
pub use remove::{extract, remove, with_keys};
pub use set::Set;
pub use tracker::{Applied, Tracker};
pub use updater::{Conflict, Error, Manager, Managers, Operation, Owned, Updater, Versions};
pub use validate::{Duplicates, validate};
pub use value::{order, same};
