//! Rules that the status of any kind must satisfy (V50).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use super::{
    schema_rules::{self, EnumPolicy},
    validator::Validator,
};
use crate::{api::schema::CONDITION_STATUSES, machinery::field_error::FieldPath};

/// Most bytes of a condition's message.
const MESSAGE_LIMIT: usize = 1024;

/// Validates a status of `kind` that may hold `limit` bytes.
pub(super) fn validate_status<S: Serialize>(
    validator: &mut Validator,
    kind: &str,
    status: &S,
    conditions: &[Condition],
    limit: usize,
) {
    let value = serde_json::to_value(status).unwrap_or_default();
    schema_rules::validate_schema(validator, kind, "status", &value, EnumPolicy::Ignore);
    let path = FieldPath::new("status");
    let bytes = serde_json::to_string(&value).map_or(usize::MAX, |text| text.len());
    if bytes > limit {
        validator.too_long(&path, limit);
    }
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.child("conditions").index(index);
        let Condition { status, reason, message, .. } = condition;
        if !CONDITION_STATUSES.contains(&status.as_str()) {
            validator.unsupported(&path.child("status"), status.as_str(), CONDITION_STATUSES);
        }
        if reason.is_empty() {
            validator.require_in_beta(|validator| validator.required(&path.child("reason"), ""));
        }
        if message.len() > MESSAGE_LIMIT {
            validator.too_long(&path.child("message"), MESSAGE_LIMIT);
        }
    }
}
