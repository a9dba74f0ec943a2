//! Older ways of writing v1alpha1: some are rewritten, others are refused with the replacement in
//! the error text (T1–T8, V9 and V10 of docs/rules.md).
//!
//! A JSON → JSON pass before strict checking. Works on whole objects and on patches: it reads only
//! the fields that are present.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::machinery::{
    decode::ParsedBody,
    field_error::{ErrorList, FieldError, FieldErrorKind, FieldPath},
    schema::compiled::Schema,
    served_kind::DecodeError,
    unknown_fields,
};

/// Rewrites a body of v1alpha1 in its current form: first what all kinds have in common, then the
/// spec by `spec_of_kind`. Returns warnings.
pub(super) fn normalize_body(
    schema: &Schema,
    document: &mut ParsedBody,
    spec_of_kind: impl FnOnce(&mut Map<String, Value>, &mut LegacyFindings) -> Result<(), DecodeError>,
) -> Result<Vec<String>, DecodeError> {
    unknown_fields::repair_times(schema, &mut document.value);
    normalize_conditions(&mut document.value);
    let mut findings = LegacyFindings::default();
    if let Some(Value::Object(spec)) = document.value.get_mut("spec") {
        spec_of_kind(spec, &mut findings)?;
    }
    if findings.errors.is_empty() {
        Ok(findings.warnings)
    } else {
        Err(DecodeError::Invalid(findings.errors))
    }
}

/// Refuses older ways of writing in the spec of a cluster.
pub(super) fn check_cluster(
    spec: &Map<String, Value>,
    findings: &mut LegacyFindings,
) -> Result<(), DecodeError> {
    check_version(spec)?;
    findings.check_early_form(spec);
    Ok(())
}

/// Rewrites older ways of writing in the spec of a Pilot.
pub(super) fn normalize_pilot(spec: &mut Map<String, Value>, findings: &mut LegacyFindings) {
    findings.normalize_decommission(spec);
}

/// T1: turns a boolean `status` of a condition into text, since an unquoted `True` in YAML is a
/// boolean.
fn normalize_conditions(object: &mut Value) {
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for status in conditions.into_iter().flatten().filter_map(|c| c.get_mut("status")) {
        if let Value::Bool(truth) = status {
            *status = if *truth { "True".into() } else { "False".into() };
        }
    }
}

/// T8: refuses a `version` that is a number, since 3.10 without quotes arrives as the number 3.1.
fn check_version(spec: &Map<String, Value>) -> Result<(), DecodeError> {
    match spec.get("version") {
        Some(Value::Number(_)) => Err(DecodeError::Malformed(
            "spec.version must be a string; put it in quotes".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Collects warnings and errors about older ways of writing.
#[derive(Debug, Default)]
pub struct LegacyFindings {
    pub warnings: Vec<String>,
    pub errors: ErrorList,
}

impl LegacyFindings {
    fn push_error(&mut self, path: &str, problem: FieldErrorKind, detail: &str) {
        self.errors.push(FieldError::new(&FieldPath::new(path), problem, detail));
    }

    /// V9, V10: refuses fields that had another meaning in the early form, rather than guess it.
    fn check_early_form(&mut self, spec: &Map<String, Value>) {
        if spec.get("image").and_then(|image| image.get("fsGroup")).is_some() {
            self.push_error(
                "spec.image.fsGroup",
                FieldErrorKind::Forbidden,
                "in this early form image named the pilot image; use spec.pilotImage and \
                 spec.securityContext.runAsUser",
            );
        }
        if spec.contains_key("sysctl") {
            self.push_error(
                "spec.sysctl",
                FieldErrorKind::Forbidden,
                "kernel settings are not changed by Navigator; set them on the node or in \
                 podTemplate.spec.securityContext.sysctls",
            );
        }
    }

    /// Removes items whose `key` equals that of an earlier item in the list.
    pub fn remove_duplicates(
        &mut self,
        items: &mut Vec<Value>,
        path: &str,
        key: impl Fn(&Value) -> Value,
    ) {
        let mut seen_keys = HashSet::new();
        let original_len = items.len();
        items.retain(|item| seen_keys.insert(key(item).to_string()));
        if items.len() < original_len {
            self.warnings.push(format!("{path}: duplicate entries were removed"));
        }
    }

    /// T5: turns `inService` and `phase`, other ways to say `decommission`, into `decommission`.
    fn normalize_decommission(&mut self, spec: &mut Map<String, Value>) {
        const PHASES: [&str; 2] = ["Running", "Decommissioned"];
        let mut decommission_value = spec.get("decommission").and_then(Value::as_bool);
        let in_service = spec.remove("inService");
        let phase = spec.remove("phase");
        for (path, value) in [("spec.inService", in_service), ("spec.phase", phase)] {
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let is_decommissioned = match (path, &value) {
                ("spec.inService", Value::Bool(in_service)) => !in_service,
                ("spec.inService", _) => {
                    self.push_error(path, FieldErrorKind::TypeInvalid(value), "must be a boolean");
                    continue;
                }
                (_, Value::String(phase)) if phase == "Running" => false,
                // `Decomissioned` is the proposal's spelling.
                (_, Value::String(phase))
                    if phase == "Decommissioned" || phase == "Decomissioned" =>
                {
                    true
                }
                _ => {
                    let supported = PHASES.map(str::to_owned).to_vec();
                    self.push_error(path, FieldErrorKind::NotSupported(value, supported), "");
                    continue;
                }
            };
            if decommission_value.is_some_and(|earlier_value| earlier_value != is_decommissioned) {
                self.push_error(
                    path,
                    FieldErrorKind::Invalid(value),
                    "contradicts spec.decommission",
                );
            }
            decommission_value = Some(is_decommissioned);
        }
        if let Some(is_decommissioned) = decommission_value {
            spec.insert("decommission".to_owned(), json!(is_decommissioned));
        }
    }
}
