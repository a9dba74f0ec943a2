//! Older ways of writing v1alpha1 that are still understood, and those that are refused with
//! the replacement in the text (T1–T8, V9 and V10 of docs/rules.md).
//!
//! A JSON → JSON pass before strict checking. Works on whole objects and on patches: it looks
//! only at what is there.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    decode::Document,
    field::{ErrorList, FieldError, Path, Problem},
    known::Known,
    scheme::{DecodeError, Version},
};

/// Rewrites a body of v1alpha1 of this kind in its current form; returns warnings.
pub(super) fn normalise(
    kind: &'static str,
    document: &mut Document,
) -> Result<Vec<String>, DecodeError> {
    let known = Known::kind(Version::V1alpha1, kind);
    known.mend_times(&mut document.value);
    conditions(&mut document.value);
    let mut pass = Pass::default();
    if let Some(Value::Object(spec)) = document.value.get_mut("spec") {
        match kind {
            "ElasticsearchCluster" => {
                version(spec)?;
                pass.early_form(spec);
                pass.plugins(spec);
                pass.roles(spec);
            }
            "CassandraCluster" => {
                version(spec)?;
                pass.early_form(spec);
            }
            "Pilot" => {
                pass.pilot_plugins(spec);
                pass.decommission(spec);
            }
            _ => {}
        }
    }
    if pass.errors.is_empty() { Ok(pass.warnings) } else { Err(DecodeError::Invalid(pass.errors)) }
}

/// T1: an unquoted `True` in YAML is a boolean.
fn conditions(object: &mut Value) {
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for status in conditions.into_iter().flatten().filter_map(|c| c.get_mut("status")) {
        if let Value::Bool(truth) = status {
            *status = if *truth { "True".into() } else { "False".into() };
        }
    }
}

/// T8: 3.10 without quotes is 3.1 by the time it arrives, so no number is believed.
fn version(spec: &Map<String, Value>) -> Result<(), DecodeError> {
    match spec.get("version") {
        Some(Value::Number(_)) => Err(DecodeError::Malformed(
            "spec.version must be a string; put it in quotes".to_owned(),
        )),
        _ => Ok(()),
    }
}

#[derive(Default)]
struct Pass {
    warnings: Vec<String>,
    errors: ErrorList,
}

impl Pass {
    fn error(&mut self, path: &str, problem: Problem, detail: &str) {
        self.errors.push(FieldError::new(&Path::new(path), problem, detail));
    }

    /// V9, V10: these meant something else, and we do not guess.
    fn early_form(&mut self, spec: &Map<String, Value>) {
        if spec.get("image").and_then(|image| image.get("fsGroup")).is_some() {
            self.error(
                "spec.image.fsGroup",
                Problem::Forbidden,
                "in this early form image named the pilot image; use spec.pilotImage and \
                 spec.securityContext.runAsUser",
            );
        }
        if spec.contains_key("sysctl") {
            self.error(
                "spec.sysctl",
                Problem::Forbidden,
                "kernel settings are not changed by Navigator; set them on the node or in \
                 podTemplate.spec.securityContext.sysctls",
            );
        }
    }

    /// T3, T6: plugins as objects; repeated plugins.
    fn plugins(&mut self, spec: &mut Map<String, Value>) {
        let Some(Value::Array(plugins)) = spec.get_mut("plugins") else { return };
        for (index, plugin) in plugins.iter_mut().enumerate() {
            let path = format!("spec.plugins[{index}]");
            let Value::Object(object) = plugin else { continue };
            for key in object.keys().filter(|key| *key != "name") {
                let detail = "only name can be given here; sha512 is a field of v1beta1";
                self.errors.push(FieldError::new(
                    &Path::new(&path).child(key),
                    Problem::Forbidden,
                    detail,
                ));
            }
            if let Some(name) = object.get("name").filter(|name| name.is_string()) {
                *plugin = name.clone();
                self.warnings
                    .push(format!("{path}: object form is accepted and stored as a string"));
            }
        }
        self.unique(plugins, "spec.plugins", Value::clone);
    }

    /// T4, T6: the role that was named `client`; repeated roles.
    fn roles(&mut self, spec: &mut Map<String, Value>) {
        let Some(Value::Array(pools)) = spec.get_mut("nodePools") else { return };
        for (i, pool) in pools.iter_mut().enumerate() {
            let Some(Value::Array(roles)) = pool.get_mut("roles") else { continue };
            let path = format!("spec.nodePools[{i}].roles");
            for (j, role) in roles.iter_mut().enumerate().filter(|(_, role)| *role == "client") {
                *role = "ingest".into();
                self.warnings.push(format!("{path}[{j}]: \"client\" is stored as \"ingest\""));
            }
            self.unique(roles, &path, Value::clone);
        }
    }

    /// T6 for the plugins of a Pilot, which are told apart by name.
    fn pilot_plugins(&mut self, spec: &mut Map<String, Value>) {
        let plugins = spec.get_mut("elasticsearch").and_then(|block| block.get_mut("plugins"));
        if let Some(Value::Array(plugins)) = plugins {
            self.unique(plugins, "spec.elasticsearch.plugins", |plugin| {
                plugin.get("name").cloned().unwrap_or_default()
            });
        }
    }

    /// Keeps the first of equal items.
    fn unique(&mut self, items: &mut Vec<Value>, path: &str, key: impl Fn(&Value) -> Value) {
        let mut seen = HashSet::new();
        let before = items.len();
        items.retain(|item| seen.insert(key(item).to_string()));
        if items.len() < before {
            self.warnings.push(format!("{path}: duplicate entries were removed"));
        }
    }

    /// T5: `inService` and `phase` were other ways to say `decommission`.
    fn decommission(&mut self, spec: &mut Map<String, Value>) {
        const PHASES: [&str; 2] = ["Running", "Decommissioned"];
        let mut said = spec.get("decommission").and_then(Value::as_bool);
        let in_service = spec.remove("inService");
        let phase = spec.remove("phase");
        for (path, value) in [("spec.inService", in_service), ("spec.phase", phase)] {
            let Some(value) = value.filter(|value| !value.is_null()) else { continue };
            let means = match (path, &value) {
                ("spec.inService", Value::Bool(in_service)) => !in_service,
                ("spec.inService", _) => {
                    self.error(path, Problem::TypeInvalid(value), "must be a boolean");
                    continue;
                }
                (_, Value::String(phase)) if phase == "Running" => false,
                // The second is how the proposal wrote it.
                (_, Value::String(phase))
                    if phase == "Decommissioned" || phase == "Decomissioned" =>
                {
                    true
                }
                _ => {
                    let supported = PHASES.map(str::to_owned).to_vec();
                    self.error(path, Problem::NotSupported(value, supported), "");
                    continue;
                }
            };
            if said.is_some_and(|said| said != means) {
                self.error(path, Problem::Invalid(value), "contradicts spec.decommission");
            }
            said = Some(means);
        }
        if let Some(said) = said {
            spec.insert("decommission".to_owned(), json!(said));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{decode, schema, strict};

    fn tolerate(kind: &'static str, body: Value) -> Result<(Value, Vec<String>), DecodeError> {
        let mut document = Document::from(body);
        normalise(kind, &mut document).map(|warnings| (document.value, warnings))
    }

    fn causes(kind: &'static str, body: Value) -> Vec<String> {
        match tolerate(kind, body) {
            Err(DecodeError::Invalid(errors)) => errors.iter().map(ToString::to_string).collect(),
            other => panic!("expected field errors, got {other:?}"),
        }
    }

    #[test]
    fn the_seeds_unquoted_true_and_short_offset_are_understood() {
        let (value, warnings) = tolerate(
            "Pilot",
            json!({"status": {"conditions": [
                {"type": "Ready", "status": true, "lastTransitionTime": "2017-10-01T19:00:00+00"},
                {"type": "Stopped", "status": false}]}}),
        )
        .unwrap();
        assert_eq!(
            value["status"]["conditions"],
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2017-10-01T19:00:00Z"},
                {"type": "Stopped", "status": "False"}])
        );
        assert!(warnings.is_empty());
    }

    #[test]
    fn early_plugins_and_roles_are_rewritten_with_a_word() {
        let (value, warnings) = tolerate(
            "ElasticsearchCluster",
            json!({"spec": {"plugins": [{"name": "a"}, "b", "a"],
                "nodePools": [{"name": "p", "roles": ["client", "ingest", "data"]}]}}),
        )
        .unwrap();
        assert_eq!(value["spec"]["plugins"], json!(["a", "b"]));
        assert_eq!(value["spec"]["nodePools"][0]["roles"], json!(["ingest", "data"]));
        assert_eq!(
            warnings,
            [
                "spec.plugins[0]: object form is accepted and stored as a string",
                "spec.plugins: duplicate entries were removed",
                "spec.nodePools[0].roles[0]: \"client\" is stored as \"ingest\"",
                "spec.nodePools[0].roles: duplicate entries were removed",
            ]
        );
    }

    #[test]
    fn forms_whose_meaning_changed_are_refused_with_their_replacement() {
        for kind in ["ElasticsearchCluster", "CassandraCluster"] {
            let found = causes(kind, json!({"spec": {"sysctl": ["a=b"], "image": {"fsGroup": 1}}}));
            assert!(found[0].starts_with("spec.image.fsGroup: Forbidden: in this early form"));
            assert!(found[1].starts_with("spec.sysctl: Forbidden: kernel settings"));
        }
        let found = causes(
            "ElasticsearchCluster",
            json!({"spec": {"plugins": [{"name": "a", "version": "1"}]}}),
        );
        assert!(found[0].starts_with("spec.plugins[0].version: Forbidden"), "{found:?}");
    }

    #[test]
    fn a_version_without_quotes_is_refused() {
        let refused = tolerate("CassandraCluster", json!({"spec": {"version": 3.11}}));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "spec.version must be a string; put it in quotes"
        );
    }

    #[test]
    fn a_quantity_written_as_a_number_keeps_its_digits() {
        let mut document = decode::json(
            br#"{"spec":{"nodePools":[{"name":"p","resources":{"limits":{"cpu":1.50,"memory":1e9}},
            "persistence":{"size":1073741824}}]}}"#,
        )
        .unwrap();
        normalise("CassandraCluster", &mut document).unwrap();
        strict::canonicalise(schema::schema(Version::V1alpha1, "CassandraCluster"), &mut document);
        let pool = &document.value["spec"]["nodePools"][0];
        assert_eq!(pool["resources"]["limits"], json!({"cpu": "1.50", "memory": "1e9"}));
        assert_eq!(pool["persistence"]["size"], "1073741824");
    }

    #[test]
    fn decommission_has_three_spellings_that_must_agree() {
        for (spec, decommission) in [
            (json!({"inService": false}), true),
            (json!({"inService": true}), false),
            (json!({"phase": "Running"}), false),
            (json!({"phase": "Decomissioned"}), true),
            (json!({"phase": "Decommissioned", "inService": false, "decommission": true}), true),
        ] {
            let (value, _) = tolerate("Pilot", json!({"spec": spec})).unwrap();
            assert_eq!(value, json!({"spec": {"decommission": decommission}}));
        }
        assert_eq!(
            causes("Pilot", json!({"spec": {"inService": false, "decommission": false}})),
            ["spec.inService: Invalid value: false: contradicts spec.decommission"]
        );
        assert_eq!(
            causes("Pilot", json!({"spec": {"phase": "Fenced"}})),
            [
                "spec.phase: Unsupported value: \"Fenced\": supported values: \"Running\", \"Decommissioned\""
            ]
        );
    }
}
