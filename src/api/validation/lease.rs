//! Rules for LeaderLease (V45).

use super::{metadata, validator::Validator};
use crate::{
    api::{
        schema::SchemaSet,
        v1beta1::{LeaderLease, LeaderLeaseSpec},
    },
    machinery::{
        field_error::FieldPath,
        served_kind::{ObjectPart, ServedVersion, ValidationResult},
    },
};

/// Validates a new LeaderLease that was written in `version`.
pub fn validate_create(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    new: &LeaderLease,
) -> ValidationResult {
    let mut validator = Validator::new(version, schemas);
    metadata::validate_create(&mut validator, &new.metadata);
    validate_spec(&mut validator, &new.spec);
    validator.into_result()
}

/// Validates an update of the LeaderLease `old`, written in `version`.
pub fn validate_update(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    _part: ObjectPart,
    new: &LeaderLease,
    old: &LeaderLease,
) -> ValidationResult {
    let mut validator = Validator::new(version, schemas);
    metadata::validate_update(&mut validator, &new.metadata, &old.metadata);
    validate_spec(&mut validator, &new.spec);
    validator.into_result()
}

fn validate_spec(validator: &mut Validator, spec: &LeaderLeaseSpec) {
    let path = FieldPath::new("spec");
    if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
        validator.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
        let text = "must be greater than or equal to 0";
        validator.invalid(&path.child("leaseTransitions"), count, text);
    }
}
