//! The databases that this build knows: a folder each, and nothing else names them all.

pub mod cassandra;
pub mod elasticsearch;

use crate::pilot::flavour::Flavour;

/// What pilots can run.
pub const PILOTS: &[&Flavour] = &[&cassandra::pilot::FLAVOUR, &elasticsearch::pilot::FLAVOUR];
