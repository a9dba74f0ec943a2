//! What an install may have beside the manifest's objects: a component of kustomize each, and in
//! the chart where its values say so.

use std::{fs, path::Path};

use navigator::api::names::{self, label};
use serde_json::{Value, json};

/// Every addition, by the name of its component.
pub(super) const ALL: [&str; 5] =
    ["monitoring", "alerts", "dashboards", "network-policy", CERT_MANAGER];
pub(super) const CERT_MANAGER: &str = "cert-manager";

/// Secret that cert-manager writes the serving certificate into. The API server's own Secret is
/// another one, and stays as it is for a user who goes back.
pub(super) const CERTIFICATE: &str = "navigator-apiserver-certificate";
/// Name of the issuers and the CA of an install that names no issuer.
pub(super) const CA: &str = "navigator-ca";
/// Asks cert-manager to write the CA of a Certificate into an object.
pub(super) const INJECT: &str = "cert-manager.io/inject-ca-from";
/// Where a given certificate is mounted.
const TLS_PATH: &str = "/etc/navigator/tls";

/// The label by which Grafana's sidecar finds dashboards, as its own chart sets it.
pub(super) const DASHBOARD_LABEL: (&str, &str) = ("grafana_dashboard", "1");

/// Objects of an addition, in the namespace of the manifest.
pub(super) fn objects(addition: &str) -> Vec<Value> {
    match addition {
        "network-policy" => vec![
            network_policy(names::APISERVER, "apiserver", "https"),
            network_policy(names::CONTROLLER, "controller", "metrics"),
            network_policy(names::COORDINATOR, "coordinator", "metrics"),
        ],
        "monitoring" => monitors(),
        "alerts" => vec![alerts()],
        "dashboards" => dashboards().iter().map(|(name, text)| dashboard(name, text)).collect(),
        CERT_MANAGER => certificates(),
        other => panic!("no addition {other}"),
    }
}

fn object(api_version: &str, kind: &str, name: &str, component: &str) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": names::NAMESPACE,
            "labels": labels(component),
        },
    })
}

pub(super) fn labels(component: &str) -> Value {
    json!({
        label::K8S_NAME: "navigator",
        label::K8S_COMPONENT: component,
        label::K8S_PART_OF: "navigator",
    })
}

/// Opens one port to all sources. kube-apiserver comes from the addresses of the control plane,
/// which no selector names.
fn network_policy(name: &str, component: &str, port: &str) -> Value {
    let mut policy = object("networking.k8s.io/v1", "NetworkPolicy", name, component);
    policy["spec"] = json!({
        "podSelector": {"matchLabels": labels(component)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": port, "protocol": "TCP"}]}],
    });
    policy
}

const PROMETHEUS: &str = "monitoring.coreos.com/v1";

/// Monitors for the Prometheus operator. Pods of databases are in any namespace.
fn monitors() -> Vec<Value> {
    let mut server = object(PROMETHEUS, "ServiceMonitor", names::APISERVER, "apiserver");
    server["spec"] = json!({
        "selector": {"matchLabels": labels("apiserver")},
        "endpoints": [{
            "port": "https",
            "scheme": "https",
            "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "tlsConfig": {
                "ca": {"secret": {"name": names::TLS_SECRET, "key": "ca.crt"}},
                "serverName": format!("{}.{}.svc", names::APISERVER, names::NAMESPACE),
            },
        }],
    });
    let own_pods = |name: &str, component: &str| {
        let mut monitor = object(PROMETHEUS, "PodMonitor", name, component);
        monitor["spec"] = json!({
            "selector": {"matchLabels": labels(component)},
            "podMetricsEndpoints": [{"port": "metrics"}],
        });
        monitor
    };
    let controller = own_pods(names::CONTROLLER, "controller");
    let coordinator = own_pods(names::COORDINATOR, "coordinator");
    let mut pilots = object(PROMETHEUS, "PodMonitor", "navigator-pilots", "pilot");
    pilots["spec"] = json!({
        "namespaceSelector": {"any": true},
        "selector": {"matchExpressions": [{"key": label::HAS_PILOT, "operator": "Exists"}]},
        "podMetricsEndpoints": [{"port": "prometheus"}],
    });
    vec![server, controller, coordinator, pilots]
}

fn deployed(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The file of alerts, as Prometheus reads it.
pub(super) fn rules() -> String {
    deployed("monitoring/rules.yaml")
}

fn alerts() -> Value {
    let mut rule = object(PROMETHEUS, "PrometheusRule", "navigator", "monitoring");
    rule["spec"] = serde_yaml::from_str(&rules()).unwrap();
    rule
}

/// The dashboards by name, each on one line, as `scripts/dashboards.py` writes them into the chart.
pub(super) fn dashboards() -> [(&'static str, String); 4] {
    ["apiserver", "clusters", "controller", "pilots"].map(|name| {
        let text = deployed(&format!("helm/navigator/files/dashboards/{name}.json"));
        (name, text.trim_end().to_owned())
    })
}

fn dashboard(name: &str, text: &str) -> Value {
    let mut map = object("v1", "ConfigMap", &format!("navigator-dashboard-{name}"), "monitoring");
    let (key, value) = DASHBOARD_LABEL;
    map["metadata"]["labels"][key] = json!(value);
    map["data"] = json!({format!("navigator-{name}.json"): text});
    map
}

/// What lets the API server serve the certificate of a Secret.
pub(super) struct Serving {
    pub(super) args: [Value; 2],
    pub(super) mount: Value,
    pub(super) volume: Value,
}

pub(super) fn serving(secret: &str) -> Serving {
    let flags = [("cert-file", "tls.crt"), ("private-key-file", "tls.key")];
    Serving {
        args: flags.map(|(flag, file)| json!(format!("--tls-{flag}={TLS_PATH}/{file}"))),
        mount: json!({"mountPath": TLS_PATH, "name": "tls", "readOnly": true}),
        volume: json!({"name": "tls", "secret": {"secretName": secret}}),
    }
}

/// Returns the objects by which cert-manager makes a CA for this install, and with that CA the API
/// server's certificate.
fn certificates() -> Vec<Value> {
    const VERSION: &str = "cert-manager.io/v1";
    const SELF_SIGNED: &str = "navigator-selfsigned";
    let issuer = |name: &str, spec: Value| {
        let mut issuer = object(VERSION, "Issuer", name, "apiserver");
        issuer["spec"] = spec;
        issuer
    };
    let signed_by =
        |issuer: &str| json!({"name": issuer, "kind": "Issuer", "group": "cert-manager.io"});
    let key = json!({"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8"});
    let mut ca = object(VERSION, "Certificate", CA, "apiserver");
    ca["spec"] = json!({
        "isCA": true,
        "commonName": CA,
        "secretName": CA,
        // The CA that is told to kube-apiserver stands beside the certificate that it signed, so both change at once.
        "duration": "87600h",
        "privateKey": key,
        "issuerRef": signed_by(SELF_SIGNED),
    });
    let mut serving = object(VERSION, "Certificate", names::APISERVER, "apiserver");
    let service = names::APISERVER;
    let name = format!("{service}.{}", names::NAMESPACE);
    serving["spec"] = json!({
        "secretName": CERTIFICATE,
        "dnsNames": [format!("{name}.svc"), format!("{name}.svc.cluster.local"), name, service],
        "usages": ["digital signature", "server auth"],
        "privateKey": key,
        "issuerRef": signed_by(CA),
    });
    vec![
        issuer(SELF_SIGNED, json!({"selfSigned": {}})),
        ca,
        issuer(CA, json!({"ca": {"secretName": CA}})),
        serving,
    ]
}
