//! What an object must satisfy to be stored, and what deserves a warning.
//!
//! Judges hub objects only and reports everything that is wrong at once. An update judges only
//! what it changes, so a rule that was added later never blocks an old object. Rule numbers in
//! comments (V1 …, W4 …) are those of the API contract; `tests/data/api/invalid` has a case for
//! each.

pub mod cassandra;
mod cluster;
mod config;
mod database_version;
pub mod elasticsearch;
mod form;
mod format;
mod judge;
pub mod lease;
mod metadata;
pub mod pilot;
mod pod_template;
mod ratchet;
mod status;
mod transition;
pub mod warning;
