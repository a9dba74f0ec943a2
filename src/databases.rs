//! The databases of this build. Each has a folder; only this file lists them all.

pub mod cassandra;
pub mod elasticsearch;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use crate::database::{Database, DatabaseList};

/// The databases that `navigator` runs.
pub const ALL: DatabaseList = &[
    Database {
        api: &elasticsearch::api::DATABASE,
        controller: &elasticsearch::controller::DATABASE,
        pilot: &elasticsearch::pilot::DATABASE,
        shown: &elasticsearch::kubectl_plugin::DATABASE,
    },
    Database {
        api: &cassandra::api::DATABASE,
        controller: &cassandra::controller::DATABASE,
        pilot: &cassandra::pilot::DATABASE,
        shown: &cassandra::kubectl_plugin::DATABASE,
    },
];
