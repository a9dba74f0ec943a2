//! Rules for Pilot.

use crate::api::{
    scheme::{Part, Verdict, Version},
    v1beta1::Pilot,
};

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &Pilot) -> Verdict {
    let _ = (version, new);
    Verdict::default()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(version: Version, part: Part, new: &Pilot, old: &Pilot) -> Verdict {
    let _ = (version, part, new, old);
    Verdict::default()
}
