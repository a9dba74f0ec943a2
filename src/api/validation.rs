//! What an object must satisfy to be stored, and what deserves a warning.
//!
//! Judges hub objects only and reports everything that is wrong at once. An update judges only
//! what it changes, so a rule that was added later never blocks an old object.

pub mod cassandra;
pub mod elasticsearch;
pub mod lease;
pub mod pilot;
