//! Resolves the variables of a container: literals, values of other objects, or fields of its pod.
//! Pure.
//!
//! A variable without a value is an error, in the kubelet's words where it has some: a program that
//! lacks a variable would behave differently, and give no warning.

use std::{collections::BTreeMap, net::Ipv4Addr};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, ResourceFieldSelector};

use super::{
    launch::LaunchContext,
    referenced_objects::{ReferencedObjects, ValueSource},
};
use crate::machinery::quantity;

/// Values of variables by name.
pub(crate) type EnvVars = BTreeMap<String, String>;

/// Returns the variables of a container.
pub(crate) fn build_variables(
    context: &LaunchContext<'_>,
    pod: &Pod,
    container: &Container,
    objects: &ReferencedObjects,
) -> Result<EnvVars, String> {
    let mut variables = EnvVars::new();
    for env_source in container.env_from.iter().flatten() {
        let data = if let Some(secret) = &env_source.secret_ref {
            objects.object_values(ValueSource::Secret, &secret.name, secret.optional)?
        } else if let Some(map) = &env_source.config_map_ref {
            objects.object_values(ValueSource::ConfigMap, &map.name, map.optional)?
        } else {
            None
        };
        let prefix = env_source.prefix.as_deref().unwrap_or_default();
        let entries = data.into_iter().flatten();
        variables
            .extend(entries.map(|(key, value)| (format!("{prefix}{key}"), decode_text(value))));
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = variable_value(context, pod, container, objects, &variables, variable)?
        {
            variables.insert(variable.name.clone(), value);
        }
    }
    Ok(variables)
}

/// Returns the value of a variable; `None` where the value is optional and missing.
fn variable_value(
    context: &LaunchContext<'_>,
    pod: &Pod,
    container: &Container,
    objects: &ReferencedObjects,
    previous_variables: &EnvVars,
    variable: &EnvVar,
) -> Result<Option<String>, String> {
    let Some(source) = &variable.value_from else {
        return Ok(Some(expand_references(
            variable.value.as_deref().unwrap_or_default(),
            previous_variables,
        )));
    };
    if let Some(field_ref) = &source.field_ref {
        return pod_field(context, pod, &field_ref.field_path).map(Some);
    }
    if let Some(resource) = &source.resource_field_ref {
        return resource_amount(container, resource).map(Some);
    }
    let bytes = if let Some(secret) = &source.secret_key_ref {
        objects.value(ValueSource::Secret, &secret.name, &secret.key, secret.optional)?
    } else if let Some(map) = &source.config_map_key_ref {
        objects.value(ValueSource::ConfigMap, &map.name, &map.key, map.optional)?
    } else {
        return Err(format!("nothing on this host says variable {}", variable.name));
    };
    Ok(bytes.map(decode_text))
}

fn decode_text(bytes: &[u8]) -> String {
    // An environment variable cannot hold a zero byte: the kernel would end it there.
    String::from_utf8_lossy(bytes).replace('\0', "")
}

/// Replaces `$(NAME)` by the variable's value; `$$` is one `$`, an unknown name stays as it is.
fn expand_references(text: &str, variables: &EnvVars) -> String {
    let mut parts = text.split('$');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        let name = part.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        if let Some((Some(value), rest)) = name.map(|(name, rest)| (variables.get(name), rest)) {
            expanded.extend([value, rest]);
            continue;
        }
        expanded.push('$');
        expanded.push_str(part);
        // In `$$`, the first `$` escapes the second: one of them stays.
        if part.is_empty() {
            expanded.push_str(parts.next().unwrap_or_default());
        }
    }
    expanded
}

/// Returns a field of the pod, by its path in the downward API.
pub(crate) fn pod_field(
    context: &LaunchContext<'_>,
    pod: &Pod,
    path: &str,
) -> Result<String, String> {
    let meta = &pod.metadata;
    let map_field = |map: &Option<BTreeMap<String, String>>, rest: &str| {
        if rest.is_empty() {
            let lines = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}\n"));
            return Some(lines.collect::<Vec<_>>().concat());
        }
        let key = rest.strip_prefix("['")?.strip_suffix("']")?;
        Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default())
    };
    let value = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "status.podIP" | "status.podIPs" => Some(context.address.to_string()),
        "status.hostIP" | "status.hostIPs" => Some(Ipv4Addr::LOCALHOST.to_string()),
        "spec.nodeName" => Some(context.machine.to_owned()),
        "spec.serviceAccountName" => {
            pod.spec.as_ref().map(|spec| spec.service_account_name.clone().unwrap_or_default())
        }
        _ => {
            let labels = path.strip_prefix("metadata.labels");
            let annotations = path.strip_prefix("metadata.annotations");
            labels
                .and_then(|rest| map_field(&meta.labels, rest))
                .or_else(|| annotations.and_then(|rest| map_field(&meta.annotations, rest)))
        }
    };
    value.ok_or_else(|| format!("unsupported fieldPath: {path}"))
}

/// Returns the request or limit of a resource of a container.
pub(crate) fn resource_amount(
    container: &Container,
    selector: &ResourceFieldSelector,
) -> Result<String, String> {
    let ResourceFieldSelector { resource, divisor, container_name: _ } = selector;
    let resources = container.resources.clone().unwrap_or_default();
    let resource_quantity = match resource.split_once('.') {
        Some(("limits", name)) => resources.limits.and_then(|limits| limits.get(name).cloned()),
        Some(("requests", name)) => {
            resources.requests.and_then(|requests| requests.get(name).cloned())
        }
        _ => None,
    };
    let amount =
        resource_quantity.and_then(|value| quantity::parse_nanos(&value.0)).ok_or_else(|| {
            format!(
                "container {} does not say {resource}, and nothing on this host does",
                container.name
            )
        })?;
    let divisor = divisor.as_ref().and_then(|divisor| quantity::parse_nanos(&divisor.0));
    // As in Kubernetes, a divisor of zero counts as one.
    let divisor = divisor.filter(|divisor| *divisor > 0).unwrap_or(1_000_000_000);
    Ok((amount.div_euclid(divisor) + i128::from(amount.rem_euclid(divisor) != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::local::state_folder::StateFolder;

    fn told(container: serde_json::Value, given: &ReferencedObjects) -> Result<EnvVars, String> {
        let pod = serde_json::from_value(json!({"metadata": {
            "name": "demo-0", "labels": {"app": "demo", "tier": "a \"b\""},
        }}));
        let folder = StateFolder::new("/state");
        let place = LaunchContext {
            folder: &folder,
            program: Path::new("/navigator"),
            machine: "host",
            address: Ipv4Addr::LOCALHOST,
            environment: &[],
            java: None,
            root: false,
        };
        let container = serde_json::from_value(container).unwrap();
        build_variables(&place, &pod.unwrap(), &container, given)
    }

    fn from(what: &str, selector: &serde_json::Value) -> serde_json::Value {
        json!({"name": "x", "env": [{"name": "IT", "valueFrom": {what: selector}}], "resources": {
            "limits": {"memory": "1Gi", "cpu": "1500m"},
        }})
    }

    #[test]
    fn variables_come_from_secrets_config_maps_and_fields() {
        let given = ReferencedObjects::default()
            .with(ValueSource::Secret, "keys", &[("user", "me"), ("word", "$(USER)")])
            .with(ValueSource::ConfigMap, "settings", &[("SIZE", "3"), ("user", "other")]);
        let container = json!({
            "name": "x",
            "envFrom": [
                {"configMapRef": {"name": "settings"}},
                {"prefix": "KEY_", "secretRef": {"name": "keys"}},
                {"secretRef": {"name": "none", "optional": true}},
            ],
            "env": [
                {"name": "SIZE", "value": "$(SIZE)0"},
                {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "word"}}},
                {"name": "NONE", "valueFrom": {
                    "configMapKeyRef": {"name": "settings", "key": "none", "optional": true},
                }},
                {"name": "ALL", "value": "$(WORD) $(KEY_user) $(NONE) $$(SIZE) $HOME $"},
                {"name": "LABELS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}},
            ],
        });
        let told = told(container, &given).unwrap();
        let told: Vec<_> =
            told.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            told,
            [
                ("ALL", "$(USER) me $(NONE) $(SIZE) $HOME $"),
                ("KEY_user", "me"),
                ("KEY_word", "$(USER)"),
                ("LABELS", "app=\"demo\"\ntier=\"a \\\"b\\\"\"\n"),
                ("SIZE", "30"),
                ("WORD", "$(USER)"),
                ("user", "other"),
            ]
        );
    }

    #[test]
    fn a_variable_that_cannot_be_told_is_named() {
        let given = ReferencedObjects::default().with(ValueSource::Secret, "keys", &[]);
        for (what, selector, expected) in [
            ("secretKeyRef", json!({"name": "none", "key": "a"}), "secret \"none\" not found"),
            (
                "secretKeyRef",
                json!({"name": "keys", "key": "a"}),
                "find key \"a\" in secret \"keys\"",
            ),
            (
                "configMapKeyRef",
                json!({"name": "keys", "key": "a"}),
                "configmap \"keys\" not found",
            ),
            ("fieldRef", json!({"fieldPath": "spec.priority"}), "unsupported fieldPath: spec.prio"),
            ("resourceFieldRef", json!({"resource": "requests.cpu"}), "does not say requests.cpu"),
            (
                "fileKeyRef",
                json!({"key": "a", "path": "b", "volumeName": "c"}),
                "nothing on this host says variable IT",
            ),
        ] {
            let why = told(from(what, &selector), &given).unwrap_err();
            assert!(why.contains(expected), "{selector}: {why}");
        }
    }

    #[test]
    fn amounts_are_whole_and_rounded_up() {
        for (resource, divisor, expected) in [
            ("limits.memory", "1Mi", "1024"),
            ("limits.memory", "0", "1073741824"),
            ("limits.cpu", "1", "2"),
            ("limits.cpu", "1m", "1500"),
        ] {
            let selector = json!({"resource": resource, "divisor": divisor});
            let told =
                told(from("resourceFieldRef", &selector), &ReferencedObjects::default()).unwrap();
            assert_eq!(told["IT"], expected, "{resource} by {divisor}");
        }
    }
}
