//! Rules for LeaderLease.

use crate::api::{
    scheme::{Part, Verdict, Version},
    v1beta1::LeaderLease,
};

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &LeaderLease) -> Verdict {
    let _ = (version, new);
    Verdict::default()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(
    version: Version,
    part: Part,
    new: &LeaderLease,
    old: &LeaderLease,
) -> Verdict {
    let _ = (version, part, new, old);
    Verdict::default()
}
