//! The databases that this build knows: a folder each, and nothing else names them all.

pub mod cassandra;
pub mod elasticsearch;

use crate::pilot::database::Database;

/// What pilots can run.
pub const PILOTS: &[&Database] = &[&cassandra::pilot::DATABASE, &elasticsearch::pilot::DATABASE];
