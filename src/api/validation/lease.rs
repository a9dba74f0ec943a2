//! Rules for LeaderLease (V45).

use super::{judge::Judge, metadata};
use crate::api::{
    field::Path,
    scheme::{Part, Verdict, Version},
    v1beta1::{LeaderLease, LeaderLeaseSpec},
};

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &LeaderLease) -> Verdict {
    let mut judge = Judge::new(version);
    metadata::create(&mut judge, &new.metadata);
    spec(&mut judge, &new.spec);
    judge.verdict()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(
    version: Version,
    _part: Part,
    new: &LeaderLease,
    old: &LeaderLease,
) -> Verdict {
    let mut judge = Judge::new(version);
    metadata::update(&mut judge, &new.metadata, &old.metadata);
    spec(&mut judge, &new.spec);
    judge.verdict()
}

fn spec(judge: &mut Judge, spec: &LeaderLeaseSpec) {
    let path = Path::new("spec");
    if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
        judge.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
        let text = "must be greater than or equal to 0";
        judge.invalid(&path.child("leaseTransitions"), count, text);
    }
}
