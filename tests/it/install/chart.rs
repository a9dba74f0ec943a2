//! The Helm chart: objects of the manifest, with expressions of Helm where the values decide.

use std::collections::BTreeMap;

use navigator::{
    api::names,
    manifest::{Settings, Store},
};
use serde_json::{Value, json};

use super::{
    etcd, find, kustomize, objects,
    template::{
        argument, block, document, either_document, entries, optional, optional_word, raw, when,
    },
    values,
};

const EMBEDDED: &str = "eq .Values.store.type \"embedded\"";
const ETCD: &str = "eq .Values.store.type \"etcd\"";
const TLS_PATH: &str = "/etc/navigator/tls";
const DEPLOYMENT_ROLES: [&str; 2] = ["apiserver", "controller"];

/// Every file of the chart.
pub(super) fn files() -> Vec<(String, String)> {
    let mut files = vec![
        ("Chart.yaml".to_owned(), chart()),
        ("values.yaml".to_owned(), values::yaml()),
        ("values.schema.json".to_owned(), values::schema()),
        ("templates/_helpers.tpl".to_owned(), HELPERS.to_owned()),
        ("templates/NOTES.txt".to_owned(), NOTES.to_owned()),
        ("templates/extra.yaml".to_owned(), EXTRA.to_owned()),
    ];
    for (name, text) in templates() {
        files.push((format!("templates/{name}.yaml"), format!("{MADE}{text}")));
    }
    files
}

const MADE: &str =
    "{{- /* Written by `make golden` from tests/it/install/chart.rs; edit that, not this. */}}\n";

fn chart() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "apiVersion: v2\nname: navigator\ndescription: Runs databases on Kubernetes\ntype: application\n\
         version: {version}\nappVersion: v{version}\nkubeVersion: '>=1.30.0-0'\n\
         home: {home}\nsources:\n- {home}\nkeywords: [cassandra, database, elasticsearch, operator]\n\
         annotations:\n  artifacthub.io/license: {license}\n",
        home = env!("CARGO_PKG_REPOSITORY"),
        license = env!("CARGO_PKG_LICENSE"),
    )
}

const HELPERS: &str = r#"{{- define "navigator.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
"#;

const NOTES: &str = r#"Navigator {{ .Chart.AppVersion }} is installed. Wait until its API is served:

  kubectl wait --for=condition=Available apiservice v1beta1.navigator.jetstack.io --timeout=180s

`helm uninstall` leaves databases running
{{- if eq .Values.store.type "embedded" }}, and the claim {{ .Release.Namespace }}/navigator-apiserver, which knows them{{ end }}. The next install finds them again.
"#;

const EXTRA: &str = r"{{- range .Values.extraObjects }}
---
{{ tpl (toYaml .) $ }}
{{- end }}
";

/// Settings whose words are expressions.
fn settings(store: Store, watch_namespace: Option<&str>) -> Settings {
    Settings {
        image: r#"{{ include "navigator.image" . }}"#.to_owned(),
        store,
        namespace: "{{ .Release.Namespace }}".to_owned(),
        watch_namespace: watch_namespace.map(str::to_owned),
    }
}

/// Templates by name.
fn templates() -> BTreeMap<String, String> {
    let embedded = objects(&settings(Store::Embedded, None));
    let with_etcd = objects(&settings(
        etcd(
            r#"{{ join "," .Values.store.etcd.servers }}"#,
            Some("{{ .Values.store.etcd.secretName }}"),
        ),
        None,
    ));
    let watching = objects(&settings(Store::Embedded, Some("{{ .Values.watchNamespace }}")));

    let mut templates: BTreeMap<String, String> = BTreeMap::new();
    let mut add = |object: &Value, text: String| {
        let component = object["metadata"]["labels"][names::label::K8S_COMPONENT].as_str().unwrap();
        templates.entry(component.to_owned()).or_default().push_str(&text);
    };
    let same = |one: &Value, other: &Value| {
        one["kind"] == other["kind"] && one["metadata"]["name"] == other["metadata"]["name"]
    };
    for object in &embedded {
        // Who installs a chart says with `--create-namespace` whether there is one.
        if object["kind"] == "Namespace" {
            continue;
        }
        let mut condition = condition(object);
        if !watching.iter().any(|other| same(object, other)) {
            condition.push("not .Values.watchNamespace");
        }
        let Some(other) = with_etcd.iter().find(|other| same(object, other)) else {
            condition.push(EMBEDDED);
            add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
            continue;
        };
        let (one, other) = (chosen(object, &watching), chosen(other, &watching));
        add(object, either_document(&one, &other, EMBEDDED, all(&condition).as_deref()));
    }
    for object in with_etcd.iter().filter(|object| !embedded.iter().any(|one| same(one, object))) {
        let mut condition = condition(object);
        condition.push(ETCD);
        add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
    }
    for object in watching.iter().filter(|object| !embedded.iter().any(|one| same(one, object))) {
        let mut condition = condition(object);
        condition.push(".Values.watchNamespace");
        add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
    }
    templates
        .insert("network-policy".to_owned(), optional_objects("network-policy", "networkPolicy"));
    templates.insert("monitoring".to_owned(), optional_objects("monitoring", "monitoring"));
    templates
}

/// All of these, in Helm's way.
fn all(conditions: &[&str]) -> Option<String> {
    match conditions {
        [] => None,
        [one] => Some((*one).to_owned()),
        many => Some(format!("and ({})", many.join(") ("))),
    }
}

/// When an object is there, whatever the store.
fn condition(object: &Value) -> Vec<&'static str> {
    let role = object["metadata"]["labels"][names::label::K8S_COMPONENT].as_str().unwrap();
    match object["kind"].as_str().unwrap() {
        "ServiceAccount" if role == "apiserver" => vec![".Values.apiserver.serviceAccount.create"],
        "ServiceAccount" => vec![".Values.controller.serviceAccount.create"],
        "ClusterRole" if role == "users" => vec![".Values.rbac.create", ".Values.rbac.aggregate"],
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
            vec![".Values.rbac.create"]
        }
        "PodDisruptionBudget" => vec![".Values.podDisruptionBudget.enabled"],
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
            vec![".Values.store.embedded.protect"]
        }
        _ => vec![],
    }
}

/// An object with what the values choose in it.
fn chosen(object: &Value, watching: &[Value]) -> Value {
    let mut object = object.clone();
    match object["kind"].as_str().unwrap() {
        "ServiceAccount" => {
            let role = role(&object);
            object["metadata"]["name"] = account(&role);
            object["metadata"]["annotations"] =
                optional("annotations", &format!("{role}.serviceAccount.annotations"));
        }
        "ClusterRoleBinding" | "RoleBinding" => {
            let subject = &mut object["subjects"][0];
            let role =
                subject["name"].as_str().unwrap().trim_start_matches("navigator-").to_owned();
            subject["name"] = account(&role);
        }
        "PersistentVolumeClaim" => {
            // `helm uninstall` leaves it, and an install of the same name takes it up again.
            object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            let size = "{{ .Values.store.embedded.size }}";
            object["spec"]["resources"]["requests"]["storage"] = json!(size);
            // An empty class is one too: that of volumes without any.
            object["spec"]["storageClassName"] = raw(
                "{{- if not (kindIs \"invalid\" .Values.store.embedded.storageClass) }}\nstorageClassName: {{ .Values.store.embedded.storageClass | quote }}\n{{- end }}",
            );
        }
        "APIService" => {
            object["metadata"]["annotations"] = optional("annotations", "apiService.annotations");
            object["spec"]["caBundle"] = optional_word("caBundle", "tls.caBundle");
        }
        "Deployment" => deployment(&mut object, watching),
        _ => {}
    }
    object
}

fn role(object: &Value) -> String {
    let role = object["metadata"]["labels"][names::label::K8S_COMPONENT].as_str().unwrap();
    assert!(DEPLOYMENT_ROLES.contains(&role), "{role}");
    role.to_owned()
}

fn account(role: &str) -> Value {
    json!(format!("{{{{ .Values.{role}.serviceAccount.name | default \"navigator-{role}\" }}}}"))
}

fn deployment(object: &mut Value, watching: &[Value]) {
    let role = role(object);
    let of_role = |value: &str| format!("{role}.{value}");
    let has_claim = object["spec"]["strategy"]["type"] == "Recreate";
    object["spec"]["replicas"] = raw(if role == "controller" {
        "replicas: {{ .Values.controller.replicas }}".to_owned()
    } else {
        // None is what somebody may want who works on the store.
        let (replicas, default) = (".Values.apiserver.replicas", if has_claim { 1 } else { 2 });
        format!("replicas: {{{{ ternary {default} {replicas} (kindIs \"invalid\" {replicas}) }}}}")
    });
    let template = &mut object["spec"]["template"];
    template["metadata"]["annotations"] = optional("annotations", &of_role("podAnnotations"));
    template["metadata"]["labels"]["podLabels"] = entries(&of_role("podLabels"));

    let spec = &mut template["spec"];
    spec["serviceAccountName"] = account(&role);
    spec["securityContext"] = block("securityContext", "podSecurityContext");
    spec["imagePullSecrets"] = optional("imagePullSecrets", "imagePullSecrets");
    for key in ["nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"] {
        spec[key] = optional(key, &of_role(key));
    }
    spec["priorityClassName"] = optional_word("priorityClassName", &of_role("priorityClassName"));
    let mut volumes = only_with_etcd_secret(&spec["volumes"]);

    let container = &mut spec["containers"][0];
    container["imagePullPolicy"] = optional_word("imagePullPolicy", "image.pullPolicy");
    container["resources"] = block("resources", &of_role("resources"));
    container["securityContext"] = block("securityContext", "securityContext");
    let mut mounts = only_with_etcd_secret(&container["volumeMounts"]);
    let mut args = only_with_etcd_secret(&container["args"]);
    if role == "apiserver" {
        for arg in &mut args {
            if arg.as_str().is_some_and(|arg| arg.starts_with("--audit-log-path")) {
                *arg = when(".Values.audit.enabled", arg);
            }
        }
        let given = ".Values.tls.secretName";
        for (flag, file) in [("cert-file", "tls.crt"), ("private-key-file", "tls.key")] {
            args.push(when(given, &json!(format!("--tls-{flag}={TLS_PATH}/{file}"))));
        }
        mounts.push(when(given, &json!({"mountPath": TLS_PATH, "name": "tls", "readOnly": true})));
        let secret = json!({"secretName": "{{ .Values.tls.secretName }}"});
        volumes.push(when(given, &json!({"name": "tls", "secret": secret})));
    } else {
        for (flag, key) in [
            ("lease-duration", "leaseDurationSeconds"),
            ("renew-deadline", "renewDeadlineSeconds"),
            ("retry-period", "retryPeriodSeconds"),
        ] {
            let path = format!("controller.leaderElection.{key}");
            args.push(argument(&format!("leader-elect-{flag}"), &path));
        }
    }
    args.push(entries(&of_role("extraArgs")));
    mounts.push(entries(&of_role("extraVolumeMounts")));
    volumes.push(entries(&of_role("extraVolumes")));

    let mut env = container["env"].as_array().unwrap().clone();
    if role == "controller" {
        let watching = find(watching, "Deployment", names::CONTROLLER);
        let all = &watching["spec"]["template"]["spec"]["containers"][0]["env"];
        for more in all
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| !env.contains(one))
            .cloned()
            .collect::<Vec<_>>()
        {
            env.push(when(".Values.watchNamespace", &more));
        }
    }
    for (name, path) in [("NAVIGATOR_LOG", "log.filter"), ("NAVIGATOR_LOG_FORMAT", "log.format")] {
        env.push(raw(format!(
            "{{{{- with .Values.{path} }}}}\n- name: {name}\n  value: {{{{ . | quote }}}}\n{{{{- end }}}}"
        )));
    }
    env.push(entries(&of_role("extraEnv")));
    container["env"] = json!(env);
    container["args"] = json!(args);
    container["volumeMounts"] = json!(mounts);
    spec["volumes"] = json!(volumes);
}

/// Entries of a list; those that need the Secret for etcd are there when that is named.
fn only_with_etcd_secret(list: &Value) -> Vec<Value> {
    let named = ".Values.store.etcd.secretName";
    let needs = |entry: &Value| {
        entry["name"] == "etcd-tls" || entry.as_str().is_some_and(|arg| arg.contains("/etcd/"))
    };
    let entries = list.as_array().into_iter().flatten();
    entries.map(|entry| if needs(entry) { when(named, entry) } else { entry.clone() }).collect()
}

/// The objects of a kustomize component, there when `VALUE.enabled`.
fn optional_objects(component: &str, value: &str) -> String {
    let mut text = String::new();
    for mut object in kustomize::component_objects(component) {
        object["metadata"]["namespace"] = json!("{{ .Release.Namespace }}");
        if let Some(server) = object.pointer_mut("/spec/endpoints/0/tlsConfig/serverName") {
            *server = json!("navigator-apiserver.{{ .Release.Namespace }}.svc");
        }
        if value == "monitoring" {
            object["metadata"]["labels"]["more"] = entries("monitoring.labels");
            for key in ["endpoints", "podMetricsEndpoints"] {
                if let Some(endpoint) = object["spec"].get_mut(key).and_then(|all| all.get_mut(0)) {
                    endpoint["interval"] = optional_word("interval", "monitoring.interval");
                }
            }
        }
        text.push_str(&document(&object, Some(&format!(".Values.{value}.enabled"))));
    }
    text
}
