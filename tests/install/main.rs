//! What Helm and kustomize make of `deploy`: the same as `navigator manifest`, and what the program
//! itself can run with. Needs both, and etcd, of the test bed (`make test-install`).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../support/lib.rs"]
mod support;
mod truth;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use navigator::{
    database, databases,
    manifest::{self, ClusterManagerSettings, HubSettings, InstallSettings, InstallStore},
};
use serde::Deserialize;
use serde_json::{Value, json};

static BED: LazyLock<PathBuf> = LazyLock::new(|| {
    #[expect(clippy::disallowed_methods, reason = "tests are told by make where the bed is")]
    let folder = std::env::var_os("NAVIGATOR_TESTBED").expect("make says where the test bed is");
    PathBuf::from(folder)
});

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What a program of the bed prints, or complains.
fn call(program: &str, args: &[&str]) -> Result<String, String> {
    let path = BED.join("bin").join(program);
    #[expect(clippy::disallowed_methods, reason = "a test runs other programs")]
    let output = std::process::Command::new(&path).args(args).output().unwrap_or_else(|error| {
        panic!("{}: {error}; `make test-install` builds it", path.display())
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

/// Objects by kind, namespace and name.
type Objects = BTreeMap<String, Value>;

fn parsed(yaml: &str) -> Objects {
    let documents = serde_yaml::Deserializer::from_str(yaml);
    let objects = documents.map(|document| Value::deserialize(document).unwrap());
    by_name(objects.filter(|object| !object.is_null()))
}

fn by_name(objects: impl IntoIterator<Item = Value>) -> Objects {
    let mut named = Objects::new();
    for mut object in objects {
        tidy(&mut object);
        let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let (kind, metadata) = (word(&object["kind"]), &object["metadata"]);
        let name = format!("{kind} {} {}", word(&metadata["namespace"]), word(&metadata["name"]));
        assert!(named.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    named
}

/// An empty list, map or nothing at all mean the same, and so do 1 and 1.0; Helm's own annotations mean
/// nothing to Kubernetes.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !key.starts_with("helm.sh/"));
            fields.values_mut().for_each(tidy);
            fields.retain(|_, value| {
                !matches!(value, Value::Null)
                    && value.as_array().is_none_or(|list| !list.is_empty())
                    && value.as_object().is_none_or(|map| !map.is_empty())
            });
        }
        Value::Array(entries) => entries.iter_mut().for_each(tidy),
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            if let Some(whole) = text.strip_suffix(".0") {
                *value = json!(whole.parse::<i64>().unwrap());
            }
        }
        _ => {}
    }
}

fn manifest(settings: &InstallSettings) -> Objects {
    by_name(manifest::install_objects(settings, database::build_scheme(databases::ALL)))
}

/// A chart makes no namespace: `--create-namespace` does.
fn without_namespace(mut objects: Objects) -> Objects {
    objects.retain(|name, _| !name.starts_with("Namespace "));
    objects
}

#[track_caller]
fn assert_same(left: &Objects, right: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(left), names(right));
    for (name, object) in left {
        assert_eq!(
            serde_json::to_string_pretty(object).unwrap(),
            serde_json::to_string_pretty(&right[name]).unwrap(),
            "{name}"
        );
    }
}

fn kustomize(folder: &str) -> Objects {
    let folder = root(folder);
    parsed(&call("kubectl", &["kustomize", folder.to_str().unwrap()]).unwrap())
}

/// What the chart makes of these values.
fn rendered(values: &Value) -> Result<String, String> {
    rendered_in("navigator", values)
}

fn rendered_in(namespace: &str, values: &Value) -> Result<String, String> {
    let chart = root("deploy/helm/navigator");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, values.to_string()).unwrap();
    let (chart, file) = (chart.to_str().unwrap(), file.path().to_str().unwrap());
    call("helm", &["template", "navigator", chart, "--namespace", namespace, "--values", file])
}

fn helm(values: &Value) -> Objects {
    parsed(&rendered(values).unwrap())
}

fn etcd(servers: &[&str], secret: Option<&str>) -> InstallSettings {
    let servers = servers.iter().map(|&server| server.to_owned()).collect();
    let secret = secret.map(str::to_owned);
    InstallSettings { store: InstallStore::Etcd { servers, secret }, ..InstallSettings::default() }
}

const PLAIN: [&str; 2] = ["http://etcd-0:2379", "http://etcd-1:2379"];
const TLS: [&str; 2] = ["https://etcd-0:2379", "https://etcd-1:2379"];

#[test]
fn manifest_chart_and_kustomize_install_the_same() {
    let printed = manifest(&InstallSettings::default());
    let applied = parsed(&fs::read_to_string(root("deploy/navigator.yaml")).unwrap());
    assert_same(&applied, &printed);
    assert_same(&kustomize("deploy/kustomize/base"), &printed);
    assert_same(&helm(&json!({})), &without_namespace(printed));
}

#[test]
fn they_do_with_etcd_too() {
    for (component, servers, secret) in
        [("etcd", PLAIN, None), ("etcd-tls", TLS, Some("navigator-etcd-tls"))]
    {
        let printed = manifest(&etcd(&servers, secret));
        let store = json!({"type": "etcd", "etcd": {"servers": servers, "secretName": secret.unwrap_or("")}});
        assert_same(&helm(&json!({"store": store})), &without_namespace(printed.clone()));

        let mut built = kustomize(&format!("tests/install/kustomize/{component}"));
        let map = built.keys().find(|name| name.starts_with("ConfigMap ")).unwrap().clone();
        let map = built.remove(&map).unwrap();
        // The URLs of etcd come through a variable.
        let server = built.get_mut("Deployment navigator navigator-apiserver").unwrap();
        let container = &mut server["spec"]["template"]["spec"]["containers"][0];
        let env = container["env"].as_array_mut().unwrap();
        let variable = env.pop().unwrap();
        assert_eq!(variable["valueFrom"]["configMapKeyRef"]["name"], map["metadata"]["name"]);
        for arg in container["args"].as_array_mut().unwrap() {
            let name = format!("$({})", variable["name"].as_str().unwrap());
            *arg = json!(
                arg.as_str().unwrap().replace(&name, map["data"]["servers"].as_str().unwrap())
            );
        }
        assert_same(&built, &printed);
    }
}

#[test]
fn they_do_with_the_kubernetes_api_too() {
    let settings =
        InstallSettings { store: InstallStore::Kubernetes, ..InstallSettings::default() };
    let values = json!({"store": {"type": "kubernetes"}});
    let printed = manifest(&settings);
    assert_same(&kustomize("tests/install/kustomize/kubernetes"), &printed);
    assert_same(&helm(&values), &without_namespace(printed));
    let printed = manifest(&InstallSettings { namespace: "databases".into(), ..settings });
    let rendered = parsed(&rendered_in("databases", &values).unwrap());
    assert_same(&rendered, &without_namespace(printed));
}

#[test]
fn they_do_for_a_single_namespace_and_in_another_one() {
    let watch_namespace = Some("shop".to_owned());
    let printed = manifest(&InstallSettings { watch_namespace, ..InstallSettings::default() });
    let mut built = kustomize("tests/install/kustomize/single-namespace");
    built.retain(|name, _| !name.starts_with("ConfigMap "));
    assert_same(&built, &printed);
    assert_same(&helm(&json!({"watchNamespace": "shop"})), &without_namespace(printed));

    let printed =
        manifest(&InstallSettings { namespace: "databases".into(), ..InstallSettings::default() });
    let rendered = parsed(&rendered_in("databases", &json!({})).unwrap());
    assert_same(&rendered, &without_namespace(printed));
}

#[test]
fn components_are_what_the_chart_adds() {
    let values = json!({
        "monitoring": {
            "enabled": true,
            "alerts": {"enabled": true},
            "dashboards": {"enabled": true},
        },
        "networkPolicy": {"enabled": true},
        "tls": {"certManager": {"enabled": true}},
        "clusterManager": {"enabled": true},
    });
    let built = kustomize("tests/install/kustomize/extras");
    assert_same(&helm(&values), &without_namespace(built));
}

#[test]
fn the_cluster_manager_is_the_same_by_manifest_and_chart() {
    let printed = |settings: &ClusterManagerSettings| {
        by_name(manifest::cluster_manager_objects(settings, database::build_scheme(databases::ALL)))
    };
    let applied = parsed(&fs::read_to_string(root("deploy/cluster-manager.yaml")).unwrap());
    assert_same(&applied, &printed(&ClusterManagerSettings::default()));
    for (on, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let hub = HubSettings {
            url: "https://hub.example.org".to_owned(),
            organization_id: "6f5c".to_owned(),
            cluster_id: "90ab".to_owned(),
        };
        let mut values = json!({"clusterManager": {
            "enabled": true, "enableClusterUpgrade": on, "registries": on, "agents": on,
            "rbacSync": on, "allowPrivilegedRoles": on, "plugins": on,
            "allowTerminate": ends,
        }});
        if on {
            values["clusterManager"]["hub"] =
                json!({"url": hub.url, "organizationId": "6f5c", "clusterId": "90ab"});
        }
        let mut added = parsed(&rendered_in("databases", &values).unwrap());
        let without = parsed(&rendered_in("databases", &json!({})).unwrap());
        added.retain(|name, _| !without.contains_key(name));
        let settings = ClusterManagerSettings {
            namespace: "databases".into(),
            enable_cluster_upgrade: on,
            registries: on,
            agents: on,
            rbac_sync: on,
            allow_privileged_roles: on,
            plugins: on,
            hub: on.then_some(hub),
            allow_terminate: ends,
            ..ClusterManagerSettings::default()
        };
        assert_same(&added, &without_namespace(printed(&settings)));
    }
}

/// Parts of it that are off by default have no component: what `navigator manifest` prints is a resource.
#[test]
fn the_cluster_manager_with_all_of_its_parts_is_a_resource_of_kustomize() {
    let settings = |image: &str| ClusterManagerSettings {
        image: image.to_owned(),
        enable_cluster_upgrade: true,
        registries: true,
        agents: true,
        rbac_sync: true,
        allow_privileged_roles: true,
        plugins: true,
        allow_terminate: true,
        hub: Some(HubSettings {
            url: "https://hub.example.org".to_owned(),
            organization_id: "6f5c".to_owned(),
            cluster_id: "90ab".to_owned(),
        }),
        ..ClusterManagerSettings::default()
    };
    let scheme = database::build_scheme(databases::ALL);
    let ours = ClusterManagerSettings::default().image;
    let (name, _) = ours.rsplit_once(':').unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = manifest::cluster_manager_yaml(&settings(&ours), scheme);
    fs::write(folder.path().join("cluster-manager.yaml"), text).unwrap();
    let overlay = json!({
        "resources": ["cluster-manager.yaml"],
        "images": [{"name": name, "newName": "registry.example.org/navigator", "newTag": "v1"}],
    });
    fs::write(folder.path().join("kustomization.yaml"), overlay.to_string()).unwrap();
    let wanted = settings("registry.example.org/navigator:v1");
    let wanted = by_name(manifest::cluster_manager_objects(&wanted, scheme));
    assert_same(&kustomize(folder.path().to_str().unwrap()), &wanted);
}

/// A value for each place, other than the default.
fn other_values() -> BTreeMap<String, Value> {
    serde_yaml::from_str(&fs::read_to_string(root("tests/install/values.yaml")).unwrap()).unwrap()
}

fn nested(path: &str, value: &Value) -> Value {
    path.rsplit('.').fold(value.clone(), |inner, key| json!({key: inner}))
}

fn merge(into: &mut Value, other: &Value) {
    match (into, other) {
        (Value::Object(into), Value::Object(other)) => {
            for (key, value) in other {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, other) => *into = other.clone(),
    }
}

/// Other values without which this value has no effect.
fn around(path: &str) -> Value {
    let store = json!({"store": {"type": "etcd", "etcd": {"servers": PLAIN}}});
    match path {
        "apiserver.replicas"
        | "store.etcd.servers"
        | "store.etcd.secretName"
        | "podDisruptionBudget.enabled" => store,
        "store.kubernetes.protect" => json!({"store": {"type": "kubernetes"}}),
        "tls.secretName" => json!({"apiService": {"annotations": {"inject": "x"}}}),
        "tls.caBundle" => {
            json!({"tls": {"secretName": "tls"}, "apiService": {"annotations": {"inject": "x"}}})
        }
        "monitoring.labels" | "monitoring.interval" => json!({"monitoring": {"enabled": true}}),
        path if path.starts_with("monitoring.dashboards.") && !path.ends_with("enabled") => {
            json!({"monitoring": {"dashboards": {"enabled": true}}})
        }
        path if path.starts_with("tls.certManager.") => {
            json!({"tls": {"certManager": {"enabled": true}}})
        }
        path if path.starts_with("clusterManager.hub.") && !path.ends_with("url") => {
            json!({"clusterManager": {"enabled": true, "hub": {"url": "https://hub.example.com"}}})
        }
        path if path.starts_with("clusterManager.") => json!({"clusterManager": {"enabled": true}}),
        path if path.starts_with("networkPolicy.") => json!({"networkPolicy": {"enabled": true}}),
        "store.type" => json!({"store": {"etcd": {"servers": PLAIN}}}),
        _ => json!({}),
    }
}

#[test]
fn every_value_changes_the_install_and_is_on_the_page() {
    let page = fs::read_to_string(root("docs/install.md")).unwrap();
    let (_, table) = page.split_once("<!-- values:").unwrap();
    let (table, _) = table.split_once("<!-- end of values -->").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let others = other_values();
    assert_eq!(
        rows.map(str::to_owned).collect::<BTreeSet<_>>(),
        others.keys().cloned().collect(),
        "tests/install/values.yaml holds another value for each of the page"
    );
    for (path, value) in others {
        let mut with = around(&path);
        // For most values the default install with `around` is what they change. `store.type` is
        // compared with the plain install, because etcd's servers alone are refused; so is a switch
        // (`….enabled`), because `around` may have turned it on already.
        let is_switch = path.ends_with(".enabled");
        let without = if path == "store.type" || is_switch { json!({}) } else { with.clone() };
        merge(&mut with, &nested(&path, &value));
        let (without, with) = (rendered(&without).unwrap(), rendered(&with).unwrap());
        assert!(parsed(&without) != parsed(&with), "{path}: {value} changes nothing");
    }
}

#[test]
fn helm_lints_the_chart_with_all_values_at_once() {
    let chart = root("deploy/helm/navigator");
    let mut all = json!({});
    for (path, value) in other_values() {
        // The chart refuses two sources of the certificate: cert-manager and `tls.secretName`.
        if !path.starts_with("tls.certManager.") {
            merge(&mut all, &nested(&path, &value));
        }
    }
    let examples = examples().into_values();
    for values in [json!({}), all].into_iter().chain(examples) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, values.to_string()).unwrap();
        let (chart, file) = (chart.to_str().unwrap(), file.path().to_str().unwrap());
        call("helm", &["lint", "--strict", chart, "--values", file]).unwrap();
    }
}

#[test]
fn the_schema_refuses_what_would_not_work() {
    for (values, says) in [
        (json!({"replicaCount": 3}), "replicaCount"),
        (json!({"controller": {"replica": 2}}), "replica"),
        (json!({"controller": {"replicas": "two"}}), "controller/replicas"),
        (json!({"apiserver": {"replicas": 2}}), "apiserver/replicas"),
        (json!({"store": {"type": "cupboard"}}), "store/type"),
        (json!({"store": {"type": "etcd"}}), "store/etcd/servers"),
        (
            json!({"store": {"type": "etcd", "etcd": {"servers": ["etcd:2379"]}}}),
            "store/etcd/servers",
        ),
        (json!({"store": {"type": "etcd", "etcd": {"servers": TLS}}}), "store/etcd/secretName"),
        (json!({"store": {"etcd": {"servers": PLAIN}}}), "store/etcd/servers"),
        (json!({"store": {"embedded": {"size": "big"}}}), "store/embedded/size"),
        (json!({"image": {"digest": "sha256:abc"}}), "image/digest"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "image/pullPolicy"),
        (json!({"tls": {"caBundle": "QQ=="}}), "tls/secretName"),
        (json!({"watchNamespace": "Shop"}), "watchNamespace"),
        (json!({"log": {"format": "xml"}}), "log/format"),
        (json!({"controller": {"extraArgs": ["namespace=x"]}}), "controller/extraArgs"),
        (json!({"controller": {"leaderElection": {"leaseDurationSeconds": 0}}}), "leaderElection"),
        (json!({"controller": {"startupProbe": {}}}), "startupProbe"),
        (json!({"apiserver": {"startupProbe": {"httpGet": {}}}}), "httpGet"),
        (
            json!({"networkPolicy": {"kubeAPIServers": ["10.0.0.1"]}}),
            "networkPolicy/kubeAPIServers",
        ),
        (
            json!({"tls": {"certManager": {"issuerRef": {"kind": "Issuer"}}}}),
            "tls/certManager/issuerRef",
        ),
        (json!({"tls": {"certManager": {"duration": "90d"}}}), "tls/certManager/duration"),
        (json!({"monitoring": {"dashboards": {"label": "a b"}}}), "monitoring/dashboards/label"),
    ] {
        let told = rendered(&values).err().unwrap_or_else(|| panic!("{values} is rendered"));
        assert!(told.contains("values don't meet the specifications of the schema"), "{told}");
        assert!(told.contains(says), "{values} is refused without a word of {says:?}: {told}");
    }
}

#[test]
fn what_no_schema_can_say_is_refused_in_words() {
    let certificate = json!({"secretName": "x", "certManager": {"enabled": true}});
    for (values, says) in [
        (
            json!({"controller": {"leaderElection": {"leaseDurationSeconds": 5}}}),
            "needs retryPeriodSeconds < renewDeadlineSeconds < leaseDurationSeconds, not 2, 10, 5",
        ),
        (json!({"tls": certificate}), "either certManager.enabled, or secretName"),
        (
            json!({"tls": {"certManager": {"issuerRef": {"name": "x"}}}}),
            "means nothing without tls.certManager.enabled",
        ),
        (json!({"tls": {"secretName": "x"}}), "set tls.caBundle, or apiService.annotations"),
        (
            json!({"networkPolicy": {"apiFrom": [{"podSelector": {}}]}}),
            "mean nothing without networkPolicy.enabled",
        ),
    ] {
        let told = rendered(&values).err().unwrap_or_else(|| panic!("{values} is rendered"));
        assert!(told.contains(says), "{values} is refused without saying {says:?}: {told}");
    }
}

/// Values of the chart's examples, by file.
fn examples() -> BTreeMap<String, Value> {
    let files = fs::read_dir(root("deploy/helm/navigator/ci")).unwrap();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap())
    };
    files.map(|file| read(file.unwrap().path())).collect()
}

fn example(name: &str) -> Value {
    examples().remove(name).unwrap_or_else(|| panic!("no example {name}"))
}

#[test]
fn every_example_is_in_the_readme_of_the_chart() {
    let readme = fs::read_to_string(root("deploy/helm/navigator/README.md")).unwrap();
    for name in examples().keys() {
        assert!(readme.contains(&format!("[{name}](ci/{name})")), "{name}");
    }
}

/// What an uninstall then leaves is shown by `install_job`, on a real Kubernetes.
#[test]
fn helm_is_asked_to_keep_what_the_store_is_in_alone() {
    for (values, expected) in [
        (json!({}), vec![json!(["PersistentVolumeClaim", "navigator-apiserver"])]),
        (example("etcd-values.yaml"), vec![]),
        (
            example("kubernetes-values.yaml"),
            vec![json!(["CustomResourceDefinition", "storedobjects.store.navigator.jetstack.io"])],
        ),
    ] {
        let text = rendered(&values).unwrap();
        let documents = serde_yaml::Deserializer::from_str(&text)
            .map(|document| Value::deserialize(document).unwrap());
        let kept: Vec<_> = documents
            .filter(|object| object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep")
            .map(|object| json!([object["kind"], object["metadata"]["name"]]))
            .collect();
        assert_eq!(kept, expected, "{values}");
        let marks = text.matches("resource-policy").count();
        assert_eq!(marks, expected.len(), "a mark stands where Helm reads none");
    }
}
