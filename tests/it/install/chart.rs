//! The Helm chart: objects of the manifest, with expressions of Helm where the values decide.

use std::{collections::BTreeMap, fs, path::Path};

use navigator::{
    api::names,
    engine::stored_object,
    manifest::{InstallSettings, InstallStore},
};
use serde_json::{Value, json};

use super::{
    additions, etcd, find, machines, objects,
    template::{
        argument, block, document, either_document, entries, optional, optional_word, raw, when,
        when_all,
    },
    values,
};

const EMBEDDED: &str = "eq .Values.store.type \"embedded\"";
const ETCD: &str = "eq .Values.store.type \"etcd\"";
const KUBERNETES: &str = "eq .Values.store.type \"kubernetes\"";
/// The store goes with an object that can be protected, and shall be.
const PROTECTED: &str = "or (and (eq .Values.store.type \"embedded\") .Values.store.embedded.protect) (and (eq .Values.store.type \"kubernetes\") .Values.store.kubernetes.protect)";
/// A certificate is given, in one way or the other.
const GIVEN: &str = "or .Values.tls.secretName .Values.tls.certManager.enabled";
/// What the kubelet asks of a container; the values say how often.
pub(super) const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];
const DEPLOYMENT_ROLES: [&str; 2] = ["apiserver", "controller"];

/// Every file of the chart. `scripts/dashboards.py` writes the dashboards.
pub(super) fn files() -> Vec<(String, String)> {
    let mut files = vec![
        ("Chart.yaml".to_owned(), chart()),
        ("values.yaml".to_owned(), values::yaml()),
        ("values.schema.json".to_owned(), values::schema()),
        ("templates/_helpers.tpl".to_owned(), helpers()),
        ("templates/NOTES.txt".to_owned(), notes()),
        ("templates/extra.yaml".to_owned(), EXTRA.to_owned()),
        ("templates/checks.yaml".to_owned(), CHECKS.to_owned()),
        ("README.md".to_owned(), readme()),
        (RULES.to_owned(), additions::rules()),
    ];
    for (name, text) in additions::dashboards() {
        files.push((dashboard_file(name), format!("{text}\n")));
    }
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
{{- /* Secret with the certificate that the API server serves. */}}
{{- define "navigator.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled }}CERTIFICATE{{ else }}{{ .Values.tls.secretName | default "OWN" }}{{ end }}
{{- end }}
{{- /* How pods of a role, `role`, are spread: over pods of that role, unless somebody says over which. */}}
{{- define "navigator.spread" -}}
{{- $own := dict "matchLabels" (dict "app.kubernetes.io/name" "navigator" "app.kubernetes.io/component" .role "app.kubernetes.io/part-of" "navigator") }}
{{- $all := list }}
{{- range .constraints }}{{ $all = append $all (ternary . (merge (dict "labelSelector" $own) .) (hasKey . "labelSelector")) }}{{ end }}
{{- toYaml $all }}
{{- end }}
{{- /* Ports of the etcd members, each once. */}}
{{- define "navigator.etcdPorts" -}}
{{- $ports := list }}
{{- range .Values.store.etcd.servers }}{{ $ports = append $ports (regexFind ":[0-9]+/*$" . | trimAll ":/" | default (ternary "443" "80" (hasPrefix "https:" .))) }}{{ end }}
{{- join "," (uniq $ports) }}
{{- end }}
"#;

fn helpers() -> String {
    HELPERS.replace("CERTIFICATE", additions::CERTIFICATE).replace("OWN", names::TLS_SECRET)
}

/// A sample, which other tests check against the API, as a user types it. A shell reads a
/// here-document up to a word at the beginning of a line, so the lines stand there.
fn notes() -> String {
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/samples/quickstart-cassandra.yaml");
    let sample = fs::read_to_string(sample).unwrap();
    let lines = sample.lines().filter(|line| !line.starts_with('#'));
    let notes = NOTES.replace("DEFINITION", &stored_object::definition_name());
    notes.replace("SAMPLE", &lines.collect::<Vec<_>>().join("\n"))
}

/// What the user types next.
const NOTES: &str = r#"Navigator {{ .Chart.AppVersion }} is installed. Wait until its API is served:

  kubectl wait --for=condition=Available apiservice v1beta1.navigator.jetstack.io --timeout=180s

Then make a database{{ with .Values.watchNamespace }} in namespace {{ . }}, the only one that is looked after{{ end }}:

kubectl apply{{ with .Values.watchNamespace }} --namespace {{ . }}{{ end }} -f - <<'END'
SAMPLE
END
kubectl get cassandraclusters{{ with .Values.watchNamespace }} --namespace {{ . }}{{ end }} --watch

When something does not come up:

  kubectl get pods --namespace {{ .Release.Namespace }} --selector app.kubernetes.io/part-of=navigator
  kubectl logs --namespace {{ .Release.Namespace }} deployment/navigator-apiserver
{{- if not .Values.apiService.create }}

apiService.create is off: somebody else must make the APIServices, or nothing is served.
{{- end }}
{{- if not .Values.rbac.create }}

rbac.create is off: somebody else must make the roles and bindings of docs/install.md, or nothing works.
{{- end }}

`helm uninstall` leaves databases running
{{- if eq .Values.store.type "embedded" }}, and the claim {{ .Release.Namespace }}/navigator-apiserver, which knows them{{ end }}
{{- if eq .Values.store.type "kubernetes" }}, and the definition DEFINITION with what it holds in {{ .Release.Namespace }}, which knows them{{ end }}. The next install finds them again. Databases
with TLS need it before status.security.nextExpiry: then their certificates end.
{{- if ne .Values.store.type "etcd" }} Nothing protects
the {{ ternary "claim and its" "definition and the" (eq .Values.store.type "embedded") }} namespace after that: keep both for as long as you may come back.
{{- end }}
"#;

const EXTRA: &str = r"{{- range .Values.extraObjects }}
---
{{ tpl (toYaml .) $ }}
{{- end }}
";

/// Checks that a schema cannot express, with messages for the user.
const CHECKS: &str = r#"{{- /* Renders nothing: refuses values that do not go together. */}}
{{- with .Values.controller.leaderElection }}
{{- $lease := .leaseDurationSeconds | default 15 | int }}
{{- $renew := .renewDeadlineSeconds | default 10 | int }}
{{- $retry := .retryPeriodSeconds | default 2 | int }}
{{- if not (and (lt $retry $renew) (lt $renew $lease)) }}
{{- fail (printf "controller.leaderElection: needs retryPeriodSeconds < renewDeadlineSeconds < leaseDurationSeconds, not %d, %d, %d" $retry $renew $lease) }}
{{- end }}
{{- end }}
{{- with .Values.tls }}
{{- if and .certManager.enabled (or .secretName .caBundle) }}
{{- fail "tls: either certManager.enabled, or secretName with the caBundle, not both" }}
{{- end }}
{{- if and .certManager.issuerRef (not .certManager.enabled) }}
{{- fail "tls.certManager.issuerRef: means nothing without tls.certManager.enabled" }}
{{- end }}
{{- end }}
{{- if and .Values.tls.secretName (not .Values.tls.caBundle) (not .Values.apiService.annotations) .Values.apiService.create }}
{{- fail "tls.secretName: kube-apiserver must learn the CA of that certificate: set tls.caBundle, or apiService.annotations for an injector" }}
{{- end }}
{{- with .Values.networkPolicy }}
{{- if and (or .apiFrom .metricsFrom .kubeAPIServers) (not .enabled) }}
{{- fail "networkPolicy: apiFrom, metricsFrom and kubeAPIServers mean nothing without networkPolicy.enabled" }}
{{- end }}
{{- end }}
"#;

/// Copy of what `deploy/monitoring` holds: a chart reads no file outside of it.
const RULES: &str = "files/rules.yaml";

fn dashboard_file(name: &str) -> String {
    format!("files/dashboards/{name}.json")
}

/// What to know before the values, and the values.
fn readme() -> String {
    format!("{README}{}", values::table())
}

const README: &str = "<!-- Written by `make golden` from tests/it/install/chart.rs; edit that, not this. -->
# navigator

Runs Cassandra and Elasticsearch on Kubernetes, 1.30 or later. The chart installs what `deploy/navigator.yaml` does: an aggregated API server with
its APIServices, a controller, and their rights. A Kubernetes cluster has one Navigator.

```
helm install navigator deploy/helm/navigator --namespace navigator --create-namespace
kubectl wait --for=condition=Available apiservice v1beta1.navigator.jetstack.io --timeout=180s
```

Upgrade, uninstall, who may do what, ports: [docs/install.md](../../../docs/install.md). `helm uninstall` deletes no database and keeps the store.

With `clusterManager.enabled` it installs what `deploy/cluster-manager.yaml` does, too, in the namespace of the release: a coordinator, which upgrades
and reboots machines ([docs/machines.md](../../../docs/machines.md)).

Values for common cases are in [ci](ci), each rendered and linted by a test:

| file | for |
|---|---|
| [kubernetes-values.yaml](ci/kubernetes-values.yaml) | the Kubernetes API itself as the store, two API servers |
| [etcd-values.yaml](ci/etcd-values.yaml) | an etcd cluster as the store, two API servers apart from each other, two controllers |
| [cert-manager-values.yaml](ci/cert-manager-values.yaml) | certificates by an issuer of cert-manager |
| [own-certificate-values.yaml](ci/own-certificate-values.yaml) | a certificate from a Secret of your own |
| [monitoring-values.yaml](ci/monitoring-values.yaml) | the Prometheus operator and Grafana: monitors, alerts, dashboards |
| [closed-values.yaml](ci/closed-values.yaml) | one namespace, network policies, an image from a registry of your own |

## Values

Unknown and wrong values are refused; what may stand where is also in `values.schema.json`, for editors.

";

const IMAGE: &str = r#"{{ include "navigator.image" . }}"#;

/// Settings whose words are expressions.
fn settings(store: InstallStore, watch_namespace: Option<&str>) -> InstallSettings {
    InstallSettings {
        image: IMAGE.to_owned(),
        store,
        namespace: "{{ .Release.Namespace }}".to_owned(),
        watch_namespace: watch_namespace.map(str::to_owned),
    }
}

/// Templates by name.
fn templates() -> BTreeMap<String, String> {
    let embedded = objects(&settings(InstallStore::Embedded, None));
    let with_kubernetes = objects(&settings(InstallStore::Kubernetes, None));
    let with_etcd = objects(&settings(
        etcd(
            r#"{{ join "," .Values.store.etcd.servers }}"#,
            Some("{{ .Values.store.etcd.secretName }}"),
        ),
        None,
    ));
    let watching = objects(&settings(InstallStore::Embedded, Some("{{ .Values.watchNamespace }}")));

    let mut templates: BTreeMap<String, String> = BTreeMap::new();
    let mut add = |object: &Value, text: String| {
        let component = object["metadata"]["labels"][names::label::K8S_COMPONENT].as_str().unwrap();
        templates.entry(component.to_owned()).or_default().push_str(&text);
    };
    let same = |one: &Value, other: &Value| {
        one["kind"] == other["kind"] && one["metadata"]["name"] == other["metadata"]["name"]
    };
    for object in &embedded {
        // The user of a chart chooses with `--create-namespace` whether there is one.
        if object["kind"] == "Namespace" {
            continue;
        }
        let mut condition = condition(object);
        if !watching.iter().any(|other| same(object, other)) {
            condition.push("not .Values.watchNamespace");
        }
        let of = |others: &[Value]| {
            let other = others.iter().find(|other| same(object, other))?;
            Some(chosen(other, &watching))
        };
        let one = chosen(object, &watching);
        let text = match (of(&with_etcd), of(&with_kubernetes)) {
            (Some(etcd), Some(kubernetes)) => {
                let other = sharing(&etcd, &kubernetes);
                // An object that etcd does not change has no choice but for what Kubernetes adds.
                let one = if one == etcd { &other } else { &one };
                either_document(one, &other, EMBEDDED, all(&condition).as_deref())
            }
            (None, Some(kubernetes)) => {
                either_document(&one, &kubernetes, EMBEDDED, all(&condition).as_deref())
            }
            (None, None) => {
                condition.push(EMBEDDED);
                document(&one, all(&condition).as_deref())
            }
            (Some(_), None) => unreachable!("no object is for all stores but Kubernetes"),
        };
        add(object, text);
    }
    let in_none_of = |object: &Value, others: [&[Value]; 2]| {
        !others.iter().any(|others| others.iter().any(|other| same(other, object)))
    };
    let apart = format!("not ({EMBEDDED})");
    for object in with_etcd.iter().filter(|object| in_none_of(object, [&embedded, &[]])) {
        assert!(with_kubernetes.contains(object), "{object}");
        let mut condition = condition(object);
        condition.push(&apart);
        add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
    }
    for object in with_kubernetes.iter().filter(|one| in_none_of(one, [&embedded, &with_etcd])) {
        let mut condition = condition(object);
        condition.push(KUBERNETES);
        add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
    }
    for object in watching.iter().filter(|object| !embedded.iter().any(|one| same(one, object))) {
        let mut condition = condition(object);
        condition.push(".Values.watchNamespace");
        add(object, document(&chosen(object, &watching), all(&condition).as_deref()));
    }
    let budget = with_etcd.iter().find(|object| object["kind"] == "PodDisruptionBudget");
    let (budget, several) = controllers_budget(budget.unwrap());
    add(&budget, document(&budget, Some(&several)));
    for (name, condition) in [
        ("monitoring", ".Values.monitoring.enabled"),
        ("alerts", ".Values.monitoring.alerts.enabled"),
        ("dashboards", ".Values.monitoring.dashboards.enabled"),
        ("network-policy", ".Values.networkPolicy.enabled"),
        (additions::CERT_MANAGER, ".Values.tls.certManager.enabled"),
    ] {
        templates.insert(name.to_owned(), addition(name, condition));
    }
    templates.insert(machines::COMPONENT.to_owned(), machines::template(IMAGE));
    templates
}

/// One object for both stores outside of the pod: an entry of a list that only one of them needs
/// stands under its condition.
fn sharing(etcd: &Value, kubernetes: &Value) -> Value {
    match (etcd, kubernetes) {
        (one, other) if one == other => one.clone(),
        (Value::Object(one), Value::Object(other)) => {
            assert!(one.keys().eq(other.keys()), "{one:?} {other:?}");
            let fields = one.iter().map(|(key, field)| (key.clone(), sharing(field, &other[key])));
            Value::Object(fields.collect())
        }
        (Value::Array(one), Value::Array(other)) => match (&one[..], &other[..]) {
            ([one @ Value::Object(_)], [other @ Value::Object(_)]) => json!([sharing(one, other)]),
            _ => merged(one, other).into(),
        },
        (one, other) => panic!("{one} or {other}"),
    }
}

fn merged(etcd: &[Value], kubernetes: &[Value]) -> Vec<Value> {
    let mut merged = Vec::new();
    let (mut one, mut other) = (etcd, kubernetes);
    loop {
        // Up to the next entry that both have.
        let alone = one.iter().take_while(|entry| !other.contains(entry)).count();
        let both = one.get(alone);
        let others = other.iter().take_while(|entry| Some(*entry) != both).count();
        for (condition, entries) in [(ETCD, &one[..alone]), (KUBERNETES, &other[..others])] {
            if !entries.is_empty() {
                merged.push(when_all(condition, entries));
            }
        }
        let Some(both) = both else { return merged };
        merged.push(both.clone());
        (one, other) = (&one[alone + 1..], &other[others + 1..]);
    }
}

/// Several controllers get a disruption budget, as several API servers do; a single one gets none.
fn controllers_budget(of_servers: &Value) -> (Value, String) {
    let mut budget = of_servers.clone();
    budget["metadata"]["name"] = json!(names::CONTROLLER);
    for labels in ["/metadata/labels", "/spec/selector/matchLabels"] {
        *budget.pointer_mut(labels).unwrap() = additions::labels("controller");
    }
    let several = "gt (int .Values.controller.replicas) 1";
    (budget, all(&[".Values.podDisruptionBudget.enabled", several]).unwrap())
}

/// A condition in Helm's way that holds when all of these hold.
pub(super) fn all(conditions: &[&str]) -> Option<String> {
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
        "APIService" => vec![".Values.apiService.create"],
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
            vec![PROTECTED]
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
            // `helm uninstall` leaves the claim, and an install of the same name takes it up again.
            object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            let size = "{{ .Values.store.embedded.size }}";
            object["spec"]["resources"]["requests"]["storage"] = json!(size);
            // An empty class is one too: that of volumes without any.
            object["spec"]["storageClassName"] = raw(
                "{{- if not (kindIs \"invalid\" .Values.store.embedded.storageClass) }}\nstorageClassName: {{ .Values.store.embedded.storageClass | quote }}\n{{- end }}",
            );
        }
        // `helm uninstall` leaves the definition, with all that is stored.
        "CustomResourceDefinition" => {
            object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
        }
        "APIService" => {
            let (inject, name) = (additions::INJECT, names::APISERVER);
            object["metadata"]["annotations"] = raw(format!(
                "{{{{- if or .Values.apiService.annotations .Values.tls.certManager.enabled }}}}\nannotations:\n\
                 {{{{- if .Values.tls.certManager.enabled }}}}\n  {inject}: {{{{ .Release.Namespace }}}}/{name}\n{{{{- end }}}}\n\
                 {{{{- with .Values.apiService.annotations }}}}\n{{{{- toYaml . | nindent @2 }}}}\n{{{{- end }}}}\n{{{{- end }}}}"
            ));
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
        // A user who works on the store may want zero replicas.
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
    for key in ["nodeSelector", "tolerations", "affinity"] {
        spec[key] = optional(key, &of_role(key));
    }
    spec["topologySpreadConstraints"] = raw(format!(
        "{{{{- with .Values.{role}.topologySpreadConstraints }}}}\ntopologySpreadConstraints: \
         {{{{- include \"navigator.spread\" (dict \"role\" \"{role}\" \"constraints\" .) | nindent @2 }}}}\n{{{{- end }}}}"
    ));
    spec["automountServiceAccountToken"] = raw(format!(
        "{{{{- if not .Values.{role}.serviceAccount.automount }}}}\nautomountServiceAccountToken: false\n{{{{- end }}}}"
    ));
    spec["priorityClassName"] = optional_word("priorityClassName", &of_role("priorityClassName"));
    let mut volumes = only_with_etcd_secret(&spec["volumes"]);

    let container = &mut spec["containers"][0];
    container["imagePullPolicy"] = optional_word("imagePullPolicy", "image.pullPolicy");
    container["resources"] = block("resources", &of_role("resources"));
    container["securityContext"] = block("securityContext", "securityContext");
    for probe in PROBES {
        if container.get(probe).is_some() {
            let asked = container[probe]["httpGet"].clone();
            container[probe] = json!({"httpGet": asked, "timings": entries(&of_role(probe))});
        }
    }
    let mut mounts = only_with_etcd_secret(&container["volumeMounts"]);
    let mut args = only_with_etcd_secret(&container["args"]);
    if role == "apiserver" {
        for arg in &mut args {
            if arg.as_str().is_some_and(|arg| arg.starts_with("--audit-log-path")) {
                *arg = when(".Values.audit.enabled", arg);
            }
        }
        let additions::Serving { args: flags, mount, volume } =
            additions::serving(r#"{{ include "navigator.tlsSecret" . }}"#);
        args.extend(flags.iter().map(|flag| when(GIVEN, flag)));
        mounts.push(when(GIVEN, &mount));
        volumes.push(when(GIVEN, &volume));
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
    env.extend(logged());
    env.push(entries(&of_role("extraEnv")));
    container["env"] = json!(env);
    container["args"] = json!(args);
    container["volumeMounts"] = json!(mounts);
    spec["volumes"] = json!(volumes);
}

/// Variables that say what a role logs.
pub(super) fn logged() -> [Value; 2] {
    [("NAVIGATOR_LOG", "log.filter"), ("NAVIGATOR_LOG_FORMAT", "log.format")].map(|(name, path)| {
        raw(format!(
            "{{{{- with .Values.{path} }}}}\n- name: {name}\n  value: {{{{ . | quote }}}}\n{{{{- end }}}}"
        ))
    })
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

/// The objects of an addition, there when `condition` holds.
fn addition(name: &str, condition: &str) -> String {
    let mut text = String::new();
    for mut object in additions::objects(name) {
        object["metadata"]["namespace"] = json!("{{ .Release.Namespace }}");
        let mut conditions = vec![condition];
        if object["metadata"]["name"] == names::COORDINATOR {
            conditions.push(machines::ENABLED);
        }
        match object["kind"].as_str().unwrap() {
            "ServiceMonitor" | "PodMonitor" => monitor(&mut object),
            "PrometheusRule" => {
                object["metadata"]["labels"]["more"] = entries("monitoring.labels");
                object["spec"] =
                    raw(format!("spec: {{{{- .Files.Get \"{RULES}\" | nindent @2 }}}}"));
            }
            "ConfigMap" => dashboard(&mut object),
            "NetworkPolicy" => network_policy(&mut object),
            kind => {
                let is_serving = object["metadata"]["name"] == names::APISERVER;
                if kind == "Certificate" && is_serving {
                    certificate(&mut object);
                } else {
                    conditions.push("not .Values.tls.certManager.issuerRef");
                }
            }
        }
        text.push_str(&document(&object, all(&conditions).as_deref()));
    }
    text
}

fn monitor(object: &mut Value) {
    if let Some(tls) = object.pointer_mut("/spec/endpoints/0/tlsConfig") {
        tls["serverName"] = json!("navigator-apiserver.{{ .Release.Namespace }}.svc");
        tls["ca"]["secret"]["name"] = json!(r#"{{ include "navigator.tlsSecret" . }}"#);
    }
    object["metadata"]["labels"]["more"] = entries("monitoring.labels");
    for key in ["endpoints", "podMetricsEndpoints"] {
        if let Some(endpoint) = object["spec"].get_mut(key).and_then(|all| all.get_mut(0)) {
            endpoint["interval"] = optional_word("interval", "monitoring.interval");
        }
    }
}

/// Puts a dashboard into the namespace, and under the label, in which Grafana looks for it.
fn dashboard(object: &mut Value) {
    const AT: &str = "monitoring.dashboards";
    object["metadata"]["namespace"] =
        json!(format!("{{{{ .Values.{AT}.namespace | default .Release.Namespace }}}}"));
    let (key, _) = additions::DASHBOARD_LABEL;
    object["metadata"]["labels"][key] =
        raw(format!("{{{{ .Values.{AT}.label }}}}: {{{{ .Values.{AT}.labelValue | quote }}}}"));
    object["metadata"]["annotations"] = optional("annotations", &format!("{AT}.annotations"));
    let data = object["data"].as_object_mut().unwrap();
    for (file, text) in data {
        let name = file.trim_start_matches("navigator-").trim_end_matches(".json");
        let lines = format!(
            "{file}: |-\n{{{{- .Files.Get \"{}\" | trim | nindent @2 }}}}",
            dashboard_file(name)
        );
        *text = raw(lines);
    }
}

/// Sources that may reach the pods, and targets that the pods may reach, if the values name any.
fn network_policy(object: &mut Value) {
    let is_server = object["metadata"]["name"] == names::APISERVER;
    let from = if is_server { "apiFrom" } else { "metricsFrom" };
    object["spec"]["ingress"][0]["from"] = optional("from", &format!("networkPolicy.{from}"));
    object["spec"]["policyTypes"] = json!([
        "Ingress",
        raw("{{- if .Values.networkPolicy.kubeAPIServers }}\n- Egress\n{{- end }}"),
    ]);
    let etcd = "{{- with include \"navigator.etcdPorts\" . }}\n- ports:\n{{- range splitList \",\" . }}\n  - port: {{ . }}\n    protocol: TCP\n{{- end }}\n{{- end }}\n";
    object["spec"]["egress"] = raw(format!(
        "{{{{- if .Values.networkPolicy.kubeAPIServers }}}}\negress:\n- to:\n\
         {{{{- range .Values.networkPolicy.kubeAPIServers }}}}\n  - ipBlock:\n      cidr: {{{{ . | quote }}}}\n{{{{- end }}}}\n\
         - ports:\n  - port: 53\n    protocol: UDP\n  - port: 53\n    protocol: TCP\n{}{{{{- end }}}}",
        if is_server { etcd } else { "" }
    ));
}

/// A certificate of the issuer that the values name, for the names of this release.
fn certificate(object: &mut Value) {
    const AT: &str = "tls.certManager";
    let spec = &mut object["spec"];
    let dns = spec["dnsNames"].as_array().unwrap().iter().map(|name| {
        json!(
            name.as_str()
                .unwrap()
                .replace(&format!(".{}", names::NAMESPACE), ".{{ .Release.Namespace }}")
        )
    });
    spec["dnsNames"] = dns.collect();
    let own = spec["issuerRef"]["name"].clone();
    spec["issuerRef"] = raw(format!(
        "issuerRef: {{{{- toYaml (.Values.{AT}.issuerRef | default (dict \"name\" {own} \"kind\" \"Issuer\" \"group\" \"cert-manager.io\")) | nindent @2 }}}}"
    ));
    for key in ["duration", "renewBefore"] {
        spec[key] = optional_word(key, &format!("{AT}.{key}"));
    }
}
