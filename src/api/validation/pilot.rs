//! Validation rules for Pilot (V41–V43, V50, V73).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::{
    cluster::validate_pilot_settings,
    config, metadata, ratchet,
    schema_rules::{self, EnumPolicy},
    status,
    transition::IMMUTABLE,
    validator::Validator,
};
use crate::{
    api::{
        names::annotation::REPAIRED,
        repair_report,
        schema::SchemaSet,
        v1beta1::{Pilot, PilotIntent},
    },
    machinery::{
        field_error::FieldPath,
        served_kind::{ObjectPart, ServedVersion, ValidationResult},
    },
};

const KIND: &str = "Pilot";
/// Most bytes of a Pilot's status as JSON, and of the last lines of a database's output in it.
const STATUS_LIMIT: usize = 16 * 1024;
const LOG_TAIL_LIMIT: usize = 4 * 1024;

/// Validates a new Pilot that was written in `version`.
pub fn validate_create(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    new: &Pilot,
) -> ValidationResult {
    let mut validator = Validator::new(version, schemas);
    metadata::validate_create(&mut validator, &new.metadata);
    validate_repair_report(&mut validator, new, None);
    validate_spec(&mut validator, new, &json!(new));
    validator.into_result()
}

/// Validates an update of the Pilot `old` through `part`, written in `version`.
pub fn validate_update(
    version: ServedVersion,
    schemas: &'static SchemaSet,
    part: ObjectPart,
    new: &Pilot,
    old: &Pilot,
) -> ValidationResult {
    let (value, old_value) = (json!(new), json!(old));
    let mut validator = Validator::new(version, schemas);
    let mut old_validator = Validator::new(version, schemas);
    match part {
        ObjectPart::Main => {
            validate_spec(&mut validator, new, &value);
            validate_spec(&mut old_validator, old, &old_value);
        }
        ObjectPart::Status | ObjectPart::Other(_) => {
            validate_status(&mut validator, new);
            validate_status(&mut old_validator, old);
        }
    }
    ratchet::remove_old_problems(&mut validator, &value, &old_validator, &old_value);
    if part == ObjectPart::Main {
        metadata::validate_update(&mut validator, &new.metadata, &old.metadata);
        validate_repair_report(&mut validator, new, Some(old));
        validate_transition(&mut validator, new, old);
    }
    validator.into_result()
}

fn validate_spec(validator: &mut Validator, pilot: &Pilot, value: &Value) {
    schema_rules::validate_schema(validator, KIND, "spec", &value["spec"], EnumPolicy::Check);
    let path = FieldPath::new("spec");
    config::validate_size(validator, &pilot.spec.config, &path.child("config"));
    validate_pilot_settings(
        validator,
        pilot.spec.pilot_settings.as_ref(),
        &path.child("pilotSettings"),
    );
    if let Some(cluster) = &pilot.spec.cluster_ref
        && cluster.name.is_empty()
    {
        validator.required(&path.child("clusterRef").child("name"), "");
    }
    let words = validator.schemas.part_words().filter(|word| pilot.spec.parts.has_part(word));
    for word in words.skip(1).collect::<Vec<_>>() {
        validator.forbidden(&path.child(word), "may not specify more than 1 database type");
    }
}

/// V73: a report that the replica was repaired is a time. A stored value may stay.
fn validate_repair_report(validator: &mut Validator, new: &Pilot, old: Option<&Pilot>) {
    fn repair_annotation(pilot: &Pilot) -> Option<&String> {
        pilot.metadata.annotations.as_ref()?.get(REPAIRED)
    }
    let Some(text) =
        repair_annotation(new).filter(|text| old.and_then(repair_annotation) != Some(*text))
    else {
        return;
    };
    if repair_report::parse_time(text).is_none() {
        let path = FieldPath::new("metadata").child("annotations").key(REPAIRED);
        validator.invalid(&path, text.as_str(), "must be a time as in RFC 3339");
    }
}

fn validate_status(validator: &mut Validator, pilot: &Pilot) {
    let report = &pilot.status;
    status::validate_status(validator, KIND, report, &report.conditions, STATUS_LIMIT);
    let tail =
        report.last_termination.as_ref().map_or(&[][..], |termination| &termination.log_tail);
    if tail.iter().map(String::len).sum::<usize>() > LOG_TAIL_LIMIT {
        let path = FieldPath::new("status").child("lastTermination").child("logTail");
        validator.too_long(&path, LOG_TAIL_LIMIT);
    }
}

fn validate_transition(validator: &mut Validator, new: &Pilot, old: &Pilot) {
    let path = FieldPath::new("spec");
    // V41: `clusterRef` cannot change once it is set.
    if old.spec.cluster_ref.is_some() && new.spec.cluster_ref != old.spec.cluster_ref {
        validator.invalid(&path.child("clusterRef"), json!(new.spec.cluster_ref), IMMUTABLE);
    }
    if old.spec.node_pool.is_some() && new.spec.node_pool != old.spec.node_pool {
        validator.invalid(&path.child("nodePool"), json!(new.spec.node_pool), IMMUTABLE);
    }
    // V43: a decommission that is irreversible cannot be taken back while it moves data. Of a node
    // that has left, Running asks for a new and empty node in its place.
    let is_decommissioning = |pilot: &Pilot| pilot.spec.phase == Some(PilotIntent::Decommissioned);
    let is_irreversible =
        old.status.decommission.as_ref().is_some_and(|decommission| decommission.irreversible);
    if is_irreversible && !has_left(old) && is_decommissioning(old) && !is_decommissioning(new) {
        validator.forbidden(&path.child("phase"), "decommissioning is past the point of return");
    }
}

/// Has the node left its database cluster, as its pilot reports?
fn has_left(pilot: &Pilot) -> bool {
    let is_decommissioned =
        |condition: &Condition| condition.type_ == "Decommissioned" && condition.status == "True";
    pilot.status.conditions.iter().any(is_decommissioned)
}
