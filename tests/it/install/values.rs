//! The chart's values: one table, from which values.yaml, its schema and the page's table come.

use std::{collections::BTreeMap, fmt::Write};

use navigator::manifest::InstallSettings;
use serde_json::{Map, Value, json};

use super::{additions, chart};

/// A setting that the user may choose, and its place in the values.
struct Setting {
    path: String,
    /// JSON Schema of the value.
    schema: Value,
    default: Value,
    /// One sentence or two, for the comment, the schema and the page.
    text: String,
}

/// The two workloads: place in the values, Deployment, what people call it.
const ROLES: [(&str, &str, &str); 2] = [
    ("apiserver", "navigator-apiserver", "API server"),
    ("controller", "navigator-controller", "controller"),
];

const NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

fn word() -> Value {
    json!({"type": "string"})
}

fn matching(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

/// A name, or nothing.
fn name() -> Value {
    json!({"type": "string", "pattern": format!("^$|{NAME}"), "maxLength": 63})
}

fn switch() -> Value {
    json!({"type": "boolean"})
}

fn map() -> Value {
    json!({"type": "object"})
}

fn words() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

fn maps() -> Value {
    json!({"type": "array", "items": {"type": "object"}})
}

fn seconds() -> Value {
    json!({"type": ["integer", "null"], "minimum": 1})
}

/// A duration as Go writes it, or nothing.
const GO_DURATION: &str = "^$|^([0-9]+(s|m|h))+$";

fn seconds_of_a_probe() -> Value {
    let from = |least: u32| json!({"type": "integer", "minimum": least});
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "initialDelaySeconds": from(0),
            "periodSeconds": from(1),
            "timeoutSeconds": from(1),
            "failureThreshold": from(1),
            "successThreshold": from(1),
        },
    })
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |path: &str, schema: Value, default: Value, text: &str| {
        settings.push(Setting { path: path.to_owned(), schema, default, text: text.to_owned() });
    };
    let objects = super::objects(&InstallSettings::default());
    let image = InstallSettings::default().image;
    let (registry, rest) = image.split_once('/').expect("our image has a registry");
    let (repository, _) = rest.split_once(':').expect("our image has a tag");

    add(
        "image.registry",
        matching("^[^/ ]*$"),
        json!(registry),
        "Registry of the image of every role, and of the pilots.",
    );
    add(
        "image.repository",
        matching("^[^: ]+$"),
        json!(repository),
        "Name of the image in the registry.",
    );
    add(
        "image.tag",
        matching("^[A-Za-z0-9_.-]{0,128}$"),
        json!(""),
        "Tag; the chart's appVersion when empty.",
    );
    add(
        "image.digest",
        matching("^$|^sha256:[0-9a-f]{64}$"),
        json!(""),
        "Digest, which counts more than a tag.",
    );
    add(
        "image.pullPolicy",
        json!({"enum": ["", "Always", "IfNotPresent", "Never"]}),
        json!(""),
        "When the kubelet pulls it; Kubernetes' own rule when empty. A cluster says its pilots' in spec.pilotImage.",
    );
    add(
        "imagePullSecrets",
        maps(),
        json!([]),
        "Secrets to pull the image with, as `- name: x`; those of database pods are in each pool's podTemplate.",
    );
    add(
        "watchNamespace",
        name(),
        json!(""),
        "The one namespace whose clusters are looked after, and the only one in which the controller has rights; all when empty.",
    );

    add(
        "store.type",
        json!({"enum": ["embedded", "etcd", "kubernetes"]}),
        json!("embedded"),
        "Where objects are kept: a file on a claim, with one API server, an etcd cluster that you run, or the Kubernetes API itself.",
    );
    add(
        "store.embedded.size",
        matching("^[0-9.]+(Ki|Mi|Gi|Ti)?$"),
        json!("1Gi"),
        "Size of the claim.",
    );
    add(
        "store.embedded.storageClass",
        json!({"type": ["string", "null"]}),
        Value::Null,
        "StorageClass of the claim; the cluster's default when null.",
    );
    add(
        "store.embedded.protect",
        switch(),
        json!(true),
        "Refuse to delete the claim and the namespace until they are annotated with navigator.jetstack.io/delete-store=true.",
    );
    add(
        "store.kubernetes.protect",
        switch(),
        json!(true),
        "Refuse to delete the definition of the stored kind and the namespace until they are annotated with navigator.jetstack.io/delete-store=true.",
    );
    add(
        "store.etcd.servers",
        json!({"type": "array", "items": {"type": "string", "pattern": "^https?://[^, ]+$"}}),
        json!([]),
        "URLs of the members; required with type etcd.",
    );
    add(
        "store.etcd.secretName",
        name(),
        json!(""),
        "Secret with ca.crt, tls.crt and tls.key for etcd; needed for https.",
    );

    add(
        "tls.secretName",
        name(),
        json!(""),
        "Secret with tls.crt and tls.key for the API server, and ca.crt where monitoring is on; it makes its own CA and certificate when empty.",
    );
    add(
        "tls.caBundle",
        matching("^[A-Za-z0-9+/=]*$"),
        json!(""),
        "CA of that certificate, PEM in base64, for the APIServices; leave it empty where an injector writes it.",
    );
    add(
        "tls.certManager.enabled",
        switch(),
        json!(false),
        "Have the certificate made by cert-manager, and its CA written into the APIServices.",
    );
    add(
        "tls.certManager.issuerRef",
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {"name": json!({"type": "string", "minLength": 1}), "kind": json!({"type": "string", "minLength": 1}), "group": json!({"type": "string", "minLength": 1})},
            "dependencies": {"kind": ["name"], "group": ["name"]},
        }),
        json!({}),
        "The issuer: name, kind and group; a CA of the release's own when empty.",
    );
    add(
        "tls.certManager.duration",
        matching(GO_DURATION),
        json!(""),
        "How long a certificate lasts, `2160h` say; cert-manager's own rule when empty.",
    );
    add(
        "tls.certManager.renewBefore",
        matching(GO_DURATION),
        json!(""),
        "How long before its end it is renewed; cert-manager's own rule when empty.",
    );
    add("apiService.create", switch(), json!(true), "Make the APIServices; else they must exist.");
    add(
        "apiService.annotations",
        words(),
        json!({}),
        "Annotations of the APIServices, for a certificate injector say.",
    );

    add(
        "audit.enabled",
        switch(),
        json!(true),
        "Write a line of the log for each request that changes something.",
    );
    add(
        "log.filter",
        word(),
        json!(""),
        "Which lines are logged, `navigator=debug,warn` say; `info` when empty.",
    );
    add(
        "log.format",
        json!({"enum": ["", "auto", "json", "text"]}),
        json!(""),
        "How lines look; `auto`, which is JSON in a pod, when empty.",
    );

    add("rbac.create", switch(), json!(true), "Make the roles and bindings; else they must exist.");
    add(
        "rbac.aggregate",
        switch(),
        json!(true),
        "Teach Kubernetes' roles view, edit and admin the kinds of Navigator.",
    );
    add(
        "podDisruptionBudget.enabled",
        switch(),
        json!(true),
        "Take no more than one of several API servers or controllers away when nodes are drained.",
    );
    add(
        "networkPolicy.enabled",
        switch(),
        json!(false),
        "Let nobody reach other ports of Navigator's own pods than those of the API and of metrics.",
    );
    add(
        "networkPolicy.apiFrom",
        maps(),
        json!([]),
        "Peers of a NetworkPolicy that may reach the API server: kube-apiserver, and who reads metrics; everybody when empty.",
    );
    add(
        "networkPolicy.metricsFrom",
        maps(),
        json!([]),
        "Peers that may reach the controller's port of metrics; everybody when empty.",
    );
    add(
        "networkPolicy.kubeAPIServers",
        json!({"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$"}}),
        json!([]),
        "Addresses of kube-apiserver itself, behind its Service, as CIDRs: then Navigator's pods may call nobody but those, DNS and etcd's ports; everybody when empty.",
    );
    add(
        "monitoring.enabled",
        switch(),
        json!(false),
        "Make a ServiceMonitor and PodMonitors for the Prometheus operator: API server, controller, pilots.",
    );
    add(
        "monitoring.labels",
        words(),
        json!({}),
        "Labels by which your Prometheus selects these and the alerts.",
    );
    add(
        "monitoring.interval",
        matching("^$|^([0-9]+(ms|s|m|h))+$"),
        json!(""),
        "How often they are scraped; Prometheus' own interval when empty.",
    );

    add(
        "monitoring.alerts.enabled",
        switch(),
        json!(false),
        "Make a PrometheusRule with the alerts of deploy/monitoring/rules.yaml.",
    );
    add(
        "monitoring.dashboards.enabled",
        switch(),
        json!(false),
        "Make a ConfigMap of each dashboard, for the sidecar of Grafana's chart.",
    );
    let (label, value) = additions::DASHBOARD_LABEL;
    add(
        "monitoring.dashboards.label",
        matching("^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"),
        json!(label),
        "Label by which the sidecar finds them.",
    );
    add("monitoring.dashboards.labelValue", word(), json!(value), "Value of that label.");
    add(
        "monitoring.dashboards.namespace",
        name(),
        json!(""),
        "Namespace that the sidecar looks into; the release's when empty.",
    );
    add(
        "monitoring.dashboards.annotations",
        words(),
        json!({}),
        "Annotations of the ConfigMaps, for a folder say.",
    );

    for (role, deployment, called) in ROLES {
        let spec = &super::find(&objects, "Deployment", deployment)["spec"]["template"]["spec"];
        let mut add = |path: &str, schema: Value, default: Value, text: &str| {
            add(&format!("{role}.{path}"), schema, default, text);
        };
        let replicas = json!({"type": ["integer", "null"], "minimum": 0});
        if role == "apiserver" {
            add(
                "replicas",
                replicas,
                Value::Null,
                "Number of API servers; 1 with type embedded when null, which has no more, and 2 with others.",
            );
        } else {
            add(
                "replicas",
                replicas,
                json!(1),
                "Number of controllers; one leads, the others wait.",
            );
            for (key, text) in [
                (
                    "leaseDurationSeconds",
                    "Seconds after which another controller may take the lead; 15 when null.",
                ),
                (
                    "renewDeadlineSeconds",
                    "Seconds for which a leader that cannot renew goes on; 10 when null.",
                ),
                ("retryPeriodSeconds", "Seconds between attempts; 2 when null."),
            ] {
                add(&format!("leaderElection.{key}"), seconds(), Value::Null, text);
            }
        }
        add(
            "resources",
            map(),
            spec["containers"][0]["resources"].clone(),
            &format!("Requests and limits of the {called}."),
        );
        add("nodeSelector", words(), json!({}), "Labels of the nodes that it may run on.");
        add("tolerations", maps(), json!([]), "Taints that it bears.");
        add(
            "affinity",
            map(),
            json!({}),
            "Which nodes it prefers or needs, beside or apart from which pods.",
        );
        add(
            "topologySpreadConstraints",
            maps(),
            json!([]),
            "How replicas are spread; a constraint without a labelSelector is about pods of this role.",
        );
        for (probe, asked) in
            chart::PROBES.into_iter().zip(["has started", "still lives", "may be asked"])
        {
            let Some(timings) = spec["containers"][0].get(probe) else { continue };
            let mut timings = timings.clone();
            timings.as_object_mut().unwrap().remove("httpGet");
            let text = format!("How often the kubelet asks whether it {asked}.");
            add(probe, seconds_of_a_probe(), timings, &text);
        }
        add("priorityClassName", name(), json!(""), "Which pods give way to it.");
        add("podAnnotations", words(), json!({}), "Annotations of its pods.");
        add("podLabels", words(), json!({}), "Further labels of its pods.");
        add(
            "serviceAccount.create",
            switch(),
            json!(true),
            "Make its ServiceAccount; else it must exist.",
        );
        add(
            "serviceAccount.name",
            matching("^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
            json!(""),
            &format!("Name of its ServiceAccount; {deployment} when empty."),
        );
        add("serviceAccount.annotations", words(), json!({}), "Annotations of its ServiceAccount.");
        add(
            "serviceAccount.automount",
            switch(),
            json!(true),
            "Mount its token; without that, mount one by extraVolumes at the same place.",
        );
        add(
            "extraArgs",
            json!({"type": "array", "items": {"type": "string", "pattern": "^-"}}),
            json!([]),
            &format!("Further flags; `navigator {role} --help` lists them."),
        );
        add("extraEnv", maps(), json!([]), "Further environment variables.");
        add("extraVolumes", maps(), json!([]), "Further volumes of its pods.");
        add("extraVolumeMounts", maps(), json!([]), "Where they are mounted.");
    }
    let pod =
        &super::find(&objects, "Deployment", "navigator-controller")["spec"]["template"]["spec"];
    add(
        "podSecurityContext",
        map(),
        pod["securityContext"].clone(),
        "Security context of Navigator's own pods.",
    );
    add(
        "securityContext",
        map(),
        pod["containers"][0]["securityContext"].clone(),
        "Security context of their containers.",
    );
    add(
        "clusterManager.enabled",
        switch(),
        json!(false),
        "Install the coordinator, which upgrades and reboots machines, and its kind ClusterUpgrade. It runs in the namespace of the release, and its ClusterUpgrades are made there, where `navigator manifest --cluster-manager` takes a namespace of its own, containership-core.",
    );
    add(
        "clusterManager.enableClusterUpgrade",
        switch(),
        json!(false),
        "Carry ClusterUpgrades out; without it new ones are refused, as where a provider upgrades the machines.",
    );
    add(
        "clusterManager.registries",
        switch(),
        json!(false),
        "Copy credentials of Registries into namespaces, with the right to read and write all Secrets.",
    );
    add(
        "clusterManager.rbacSync",
        switch(),
        json!(false),
        "Keep the ClusterRoles and bindings that AuthorizationRoles ask for, with the right to give any right.",
    );
    add(
        "clusterManager.allowPrivilegedRoles",
        switch(),
        json!(false),
        "Accept AuthorizationRoles that let their holders take rights beyond those that are named, such as by reading Secrets.",
    );
    add(
        "clusterManager.plugins",
        switch(),
        json!(false),
        "Apply Plugins, with the right to act as every ServiceAccount of the namespace.",
    );
    add(
        "clusterManager.agents",
        switch(),
        json!(false),
        "Run an agent on every machine, which writes the SSH keys of Users there. Its pods are root and have a folder of the machine, so the namespace may not enforce a Pod Security below `privileged`.",
    );
    add(
        "clusterManager.hub.url",
        matching("^$|^https://"),
        json!(""),
        "URL of the hub whose objects are kept, HTTPS only; none when empty. The credentials are in the Secret navigator-hub: token, and ca.crt.",
    );
    add(
        "clusterManager.hub.organizationId",
        word(),
        json!(""),
        "Organization that the hub is asked about.",
    );
    add(
        "clusterManager.hub.clusterId",
        word(),
        json!(""),
        "Id of this cluster, as the hub knows it.",
    );
    add(
        "clusterManager.allowTerminate",
        switch(),
        json!(false),
        "Let the coordinator take the cluster manager away where the namespace is annotated so, with the right to delete its kinds.",
    );
    add(
        "extraObjects",
        maps(),
        json!([]),
        "Further objects of the release; expressions of Helm in them are evaluated.",
    );
    settings
}

/// A level of the values: settings by key, in the order of the table.
enum Node {
    Leaf(Setting),
    Inner(Vec<(String, Node)>),
}

fn tree() -> Vec<(String, Node)> {
    let mut root = Vec::new();
    for setting in settings() {
        let path = setting.path.clone();
        insert(&mut root, &path, setting);
    }
    root
}

fn insert(level: &mut Vec<(String, Node)>, path: &str, setting: Setting) {
    let Some((first, rest)) = path.split_once('.') else {
        level.push((path.to_owned(), Node::Leaf(setting)));
        return;
    };
    if !level.iter().any(|(key, _)| key == first) {
        level.push((first.to_owned(), Node::Inner(Vec::new())));
    }
    let (_, node) = level.iter_mut().find(|(key, _)| key == first).unwrap();
    let Node::Inner(inner) = node else { panic!("{path} is below a value") };
    insert(inner, rest, setting);
}

/// values.yaml
pub(super) fn yaml() -> String {
    let mut text = String::from(
        "# Values of the chart. Written by `make golden` from tests/it/install/values.rs; edit that, not this.\n",
    );
    for (key, node) in tree() {
        text.push('\n');
        write_yaml(&mut text, 0, &key, &node);
    }
    text
}

fn write_yaml(text: &mut String, indent: usize, key: &str, node: &Node) {
    let space = " ".repeat(indent);
    match node {
        Node::Inner(inner) => {
            writeln!(text, "{space}{key}:").unwrap();
            for (key, node) in inner {
                write_yaml(text, indent + 2, key, node);
            }
        }
        Node::Leaf(setting) => {
            writeln!(text, "{space}# {}", setting.text).unwrap();
            let value = serde_yaml::to_string(&BTreeMap::from([(key, &setting.default)])).unwrap();
            for line in value.lines() {
                writeln!(text, "{space}{line}").unwrap();
            }
        }
    }
}

/// values.schema.json
pub(super) fn schema() -> String {
    let mut schema = write_schema(&tree());
    let fields = schema.as_object_mut().unwrap();
    fields.insert("$schema".into(), json!("http://json-schema.org/draft-07/schema#"));
    fields.insert("title".into(), json!("Values of the chart navigator"));
    let etcd = |rest: Value| json!({"properties": {"store": {"properties": {"etcd": rest}}}});
    let https = json!({"properties": {"servers": {"contains": {"pattern": "^https://"}}}});
    let named = json!({"properties": {"secretName": {"minLength": 1}}});
    fields.insert("allOf".into(), json!([
        {
            "if": {"properties": {"store": {"properties": {"type": {"const": "etcd"}}}}},
            "then": etcd(json!({"properties": {"servers": {"minItems": 1}}})),
            "else": {
                "properties": {
                    "store": {"properties": {"etcd": {"properties": {"servers": {"maxItems": 0}}}}},
                },
            },
        },
        {
            "if": {"properties": {"store": {"properties": {"type": {"const": "embedded"}}}}},
            "then": {"properties": {"apiserver": {"properties": {"replicas": {"maximum": 1}}}}},
        },
        {"if": etcd(https), "then": etcd(named)},
        // A caBundle means something only with the certificate that its CA signed.
        {
            "if": {"properties": {"tls": {"properties": {"caBundle": {"minLength": 1}}}}},
            "then": {"properties": {"tls": {"properties": {"secretName": {"minLength": 1}}}}},
        },
    ]));
    format!("{}\n", serde_json::to_string_pretty(&schema).unwrap())
}

fn write_schema(level: &[(String, Node)]) -> Value {
    let mut properties = Map::new();
    for (key, node) in level {
        let schema = match node {
            Node::Inner(inner) => write_schema(inner),
            Node::Leaf(setting) => {
                let mut schema = setting.schema.clone();
                schema["description"] = json!(setting.text);
                schema["default"] = setting.default.clone();
                schema
            }
        };
        properties.insert(key.clone(), schema);
    }
    // Parent charts hand `global` down; any other unknown value is refused as misspelt.
    if level.iter().any(|(key, _)| key == "image") {
        properties.insert("global".into(), json!({"type": "object"}));
    }
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

/// The table of `docs/install.md`.
pub(super) fn table() -> String {
    let mut text = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Setting { path, default, text: meaning, .. } in settings() {
        let default = match default {
            Value::String(text) if text.is_empty() => "`\"\"`".to_owned(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        writeln!(text, "| `{path}` | {default} | {} |", meaning.replace('|', "\\|")).unwrap();
    }
    text
}

#[test]
fn every_default_is_what_its_schema_says() {
    for Setting { path, schema, default, .. } in settings() {
        if let Some(values) = schema["enum"].as_array() {
            assert!(values.contains(&default), "{path}: {default}");
            continue;
        }
        let kind = match default {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(schema["type"].to_string().contains(&format!("\"{kind}\"")), "{path}: {schema}");
    }
}

#[test]
fn every_value_is_read_by_a_template() {
    let text: String = super::chart::files()
        .into_iter()
        .filter(|(name, _)| name.starts_with("templates/"))
        .map(|(_, text)| text)
        .collect();
    for Setting { path, .. } in settings() {
        assert!(text.contains(&format!(".Values.{path}")), "no template reads {path}");
    }
}
