//! The agent's objects: a pod on every machine that keeps the key file and writes jobs of upgrades down, and
//! what holds its rights to its own Node.
//!
//! The pods have folders of the machine, which Pod Security lets none have but in a namespace that
//! enforces `privileged`.

use serde_json::{Value, json};

use super::{
    ClusterManagerSettings, RBAC_V1, build_binding, build_object, build_probe, build_rule,
    container_security, from_field, liveness_probe, with_fields,
};
use crate::api::{
    containership::{
        GROUP, PROVISION_GROUP,
        name::{CORDONED_BY, TAINTED_BY},
    },
    names::{self, port},
};

/// Home folder of the key file, on the machine and in the pod.
const KEYS_FOLDER: &str = "/etc/containership/home";
/// Folder of the jobs for the machine's runner, on the machine and in the pod.
const UPGRADE_FOLDER: &str = "/etc/containership/upgrade";
/// Component label.
const COMPONENT: &str = "agent";

/// Returns the objects of the agent, in the order in which they are applied.
pub fn agent_objects(settings: &ClusterManagerSettings) -> Vec<Value> {
    let (name, home) = (names::AGENT, settings.namespace.as_str());
    let namespace = Some(home);
    let cluster_rules = json!([
        // The policy below leaves the agent its own Node, and of that what it says.
        build_rule("", &["nodes"], &[], &["patch"]),
        // Of its own namespace it reads whether the cluster manager is being taken away.
        build_rule("", &["namespaces"], &[home], &["list", "watch"]),
        build_rule("events.k8s.io", &["events"], &[], &["create", "patch"]),
    ]);
    let read_verbs = &["get", "list", "watch"];
    let own_rules = json!([
        build_rule(GROUP, &["users"], &[], read_verbs),
        build_rule(PROVISION_GROUP, &["clusterupgrades"], &[], read_verbs),
    ]);
    vec![
        build_object("v1", "ServiceAccount", name, namespace, COMPONENT),
        with_fields(
            build_object(RBAC_V1, "ClusterRole", name, None, COMPONENT),
            json!({"rules": cluster_rules}),
        ),
        build_binding(home, name, None, ("ClusterRole", name), name),
        with_fields(
            build_object(RBAC_V1, "Role", name, namespace, COMPONENT),
            json!({"rules": own_rules}),
        ),
        build_binding(home, name, namespace, ("Role", name), name),
        build_policy(settings),
        policy_binding(),
        daemon_set(settings),
    ]
}

const ADMISSION_V1: &str = "admissionregistration.k8s.io/v1";

/// Builds the policy that holds the agent's account to annotations of the Node on which its pod runs.
/// kube-apiserver itself says which Node that is, by what the token is bound to.
fn build_policy(settings: &ClusterManagerSettings) -> Value {
    let account = format!("system:serviceaccount:{}:{}", settings.namespace, names::AGENT);
    let key = "authentication.kubernetes.io/node-name";
    let node_expression = format!(
        "'{key}' in request.userInfo.extra && request.userInfo.extra['{key}'] == \
         [object.metadata.name]"
    );
    // Marks of the coordinator are not the agent's to set, either.
    let own_keys = format!(
        "key.startsWith('containership.io/') && !(key in ['{CORDONED_BY}', '{TAINTED_BY}'])"
    );
    let unchanged_keys = |this: &str, other: &str| {
        format!(
            "variables.{this}.all(key, ({own_keys}) || (key in variables.{other} && \
             variables.{this}[key] == variables.{other}[key]))"
        )
    };
    let unchanged_field =
        |field: &str| format!("object.metadata.?{field} == oldObject.metadata.?{field}");
    let message = "an agent may change its own Node only, and of that annotations below \
                   containership.io/ that are not the coordinator's";
    let rules = [
        node_expression,
        unchanged_keys("after", "before"),
        unchanged_keys("before", "after"),
        unchanged_field("labels"),
        unchanged_field("finalizers"),
        unchanged_field("ownerReferences"),
        "object.spec == oldObject.spec".to_owned(),
    ];
    let rules =
        rules.map(|rule| json!({"expression": rule, "message": message, "reason": "Forbidden"}));
    with_fields(
        build_object(ADMISSION_V1, "ValidatingAdmissionPolicy", names::AGENT, None, COMPONENT),
        json!({"spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["*"], "operations": ["*"],
                "resources": ["nodes", "nodes/*"],
            }]},
            "matchConditions": [{
                "name": "agent", "expression": format!("request.userInfo.username == '{account}'"),
            }],
            "variables": [
                {"name": "after", "expression": "object.metadata.?annotations.orValue({})"},
                {"name": "before", "expression": "oldObject.metadata.?annotations.orValue({})"},
            ],
            "validations": rules,
        }}),
    )
}

fn policy_binding() -> Value {
    with_fields(
        build_object(
            ADMISSION_V1,
            "ValidatingAdmissionPolicyBinding",
            names::AGENT,
            None,
            COMPONENT,
        ),
        json!({"spec": {"policyName": names::AGENT, "validationActions": ["Deny"]}}),
    )
}

/// Builds the agent's pods: root without any capability, two folders of the machine, all machines.
fn daemon_set(settings: &ClusterManagerSettings) -> Value {
    let container = json!({
        "name": "agent",
        "image": settings.image,
        "args": ["agent"],
        "env": [
            from_field("NODE_NAME", "spec.nodeName"),
            from_field("NAVIGATOR_CORE_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "metrics", "containerPort": port::METRICS}],
        "livenessProbe": liveness_probe("metrics", "HTTP"),
        "readinessProbe": build_probe("/readyz", "metrics", "HTTP"),
        "resources": {
            "requests": {"cpu": "5m", "memory": "16Mi"},
            "limits": {"memory": "128Mi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "home", "mountPath": KEYS_FOLDER},
            {"name": "upgrade", "mountPath": UPGRADE_FOLDER},
        ],
    });
    let folder = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    with_fields(
        build_object("apps/v1", "DaemonSet", names::AGENT, Some(&settings.namespace), COMPONENT),
        json!({"spec": {
            "selector": {"matchLabels": super::component_labels(COMPONENT)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": super::component_labels(COMPONENT)},
                "spec": {
                    "serviceAccountName": names::AGENT,
                    "priorityClassName": "system-node-critical",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "tolerations": [{"operator": "Exists"}],
                    "securityContext": {
                        "runAsUser": 0,
                        "runAsGroup": 0,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": [folder("home", KEYS_FOLDER), folder("upgrade", UPGRADE_FOLDER)],
                },
            },
        }}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_root_of_two_folders_and_of_nothing_else() {
        let objects = agent_objects(&ClusterManagerSettings::default());
        let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        let pod = &set["spec"]["template"]["spec"];
        for shared in ["hostPID", "hostIPC", "hostNetwork"] {
            assert!(pod.get(shared).is_none());
        }
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"], container_security());
        let volumes = pod["volumes"].as_array().unwrap();
        let paths: Vec<&Value> = volumes.iter().map(|one| &one["hostPath"]["path"]).collect();
        assert_eq!(paths, [KEYS_FOLDER, UPGRADE_FOLDER]);
        for object in &objects {
            let rules = object["rules"].to_string();
            assert!(!rules.contains("secrets") && !rules.contains("pods"), "{rules}");
        }
    }
}
