//! Plugins: applied in waves as their own ServiceAccount, kept at the version that works, and taken away.

use std::{collections::BTreeMap, fs, path::Path};

use http::Method;
use navigator::engine::rbac;
use serde_json::{Value, json};

use crate::registries::cluster::Cluster;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn started(core: &str) -> Cluster {
    let own = rbac::plugin_core_rules();
    Cluster::with_rights(core, "the-coordinator-of-plugins", Vec::new(), own).await
}

/// Lets the ServiceAccount of a Plugin apply and delete what these tests have.
pub(super) async fn let_apply(cluster: &Cluster, plugin: &str) {
    let core = &cluster.core;
    let name = format!("{core}-{plugin}");
    let verbs = ["get", "create", "patch", "delete"];
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            rule("", &["namespaces", "configmaps", "serviceaccounts"]),
            rule("apps", &["deployments"]),
            rule("apiextensions.k8s.io", &["customresourcedefinitions"]),
            rule("plugins.example.org", &["widgets", "gadgets"]),
        ],
    });
    cluster.make(&format!("{RBAC}/clusterroles"), &role).await;
    let account =
        json!({"kind": "ServiceAccount", "name": format!("plugin-{plugin}"), "namespace": core});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [account],
    });
    cluster.make(&format!("{RBAC}/clusterrolebindings"), &binding).await;
}

fn definition(kind: &str) -> String {
    let singular = kind.to_lowercase();
    format!(
        "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {singular}s.plugins.example.org}}
spec:
  group: plugins.example.org
  scope: Namespaced
  names: {{kind: {kind}, plural: {singular}s, singular: {singular}}}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {{spec: {{type: object, properties: {{size: {{type: integer}}}}}}}}
"
    )
}

fn thing(kind: &str, size: &str) -> String {
    format!(
        "{{apiVersion: plugins.example.org/v1, kind: {kind}, metadata: {{name: one, namespace: wares}}, spec: {{size: {size}}}}}\n"
    )
}

fn config(name: &str, value: &str) -> String {
    config_in("wares", name, value)
}

fn config_in(namespace: &str, name: &str, value: &str) -> String {
    let meta = format!("{{name: {name}, namespace: {namespace}}}");
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {meta}, data: {{value: '{value}'}}}}\n")
}

fn deployment(image: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: shop, namespace: wares}}
spec:
  selector: {{matchLabels: {{app: shop}}}}
  template:
    metadata: {{labels: {{app: shop}}}}
    spec: {{containers: [{{name: shop, image: {image}}}]}}
"
    )
}

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: wares}}\n";
const ACCOUNT: &str =
    "{apiVersion: v1, kind: ServiceAccount, metadata: {name: shop, namespace: wares}}\n";

fn plugin(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "containership.io/v3", "kind": "Plugin", "metadata": {"name": name},
        "spec": {"type": "metrics", "version": "1", "source": source},
    })
}

fn version(version: &str, documents: &[&str]) -> Value {
    json!({"spec": {"version": version, "source": {"inline": documents.join("---\n")}}})
}

/// What the Plugin's objects are, but for metadata that change by themselves.
async fn standing(cluster: &Cluster) -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    for path in [
        "/api/v1/namespaces/wares",
        "/api/v1/namespaces/wares/configmaps/first",
        "/api/v1/namespaces/wares/serviceaccounts/shop",
        "/apis/apps/v1/namespaces/wares/deployments/shop",
        "/apis/plugins.example.org/v1/namespaces/wares/widgets/one",
    ] {
        let mut found = cluster.get(path).await.unwrap_or_default();
        for field in ["resourceVersion", "managedFields", "generation"] {
            if let Some(meta) = found["metadata"].as_object_mut() {
                meta.remove(field);
            }
        }
        found.as_object_mut().map(|fields| fields.remove("status"));
        all.insert(path, found);
    }
    all
}

/// Says of the Deployment what a controller would once its pods run.
pub(super) async fn roll_out(cluster: &Cluster, namespace: &str) {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/shop");
    let found = cluster.until(&path, |found| found.is_some()).await;
    let status = json!({"status": {
        "observedGeneration": found["metadata"]["generation"], "replicas": 1, "updatedReplicas": 1,
        "availableReplicas": 1, "readyReplicas": 1,
    }});
    cluster.patch(&format!("{path}/status"), &status).await;
}

#[tokio::test]
async fn a_plugin_is_applied_in_waves_and_stays_at_the_version_that_works() {
    let mut cluster = started("core-plugins").await;
    let_apply(&cluster, "shop").await;
    let path = format!("{}/shop", cluster.kind("plugins"));
    // The other way round than they can be applied.
    let (widgets, gadgets) = (definition("Widget"), definition("Gadget"));
    let (one, first, image) = (thing("Widget", "1"), config("first", "one"), deployment("shop:1"));
    let documents = [&one, &image, &first, ACCOUNT, NAMESPACE, &widgets];
    cluster
        .make(
            &cluster.kind("plugins"),
            &plugin("shop", &json!({"inline": documents.join("---\n")})),
        )
        .await;
    cluster.start(&["--plugins"]);
    let waits = "waits for Deployment wares/shop";
    cluster
        .until(&path, |found| found.is_some_and(|found| found.to_string().contains(waits)))
        .await;
    // Another one leads on.
    cluster.kill();
    cluster.start(&["--plugins"]);
    roll_out(&cluster, "wares").await;
    let ready = cluster.condition(&path, "Ready", "Applied").await;
    assert_eq!(
        (&ready["status"]["version"], &ready["status"]["objects"]),
        (&json!("1"), &json!(6))
    );
    let patches = Cluster::writes();
    let order = ["customresourcedefinitions", "namespaces", "serviceaccounts", "widgets"];
    let at = |resource: &str| {
        let last =
            patches.iter().rposition(|write| write.starts_with(&format!("patch {resource} ")));
        last.unwrap_or_else(|| panic!("{resource}: {patches:?}"))
    };
    assert!(order.windows(2).all(|two| at(two[0]) < at(two[1])), "{patches:?}");
    let before = standing(&cluster).await;
    let uid = &ready["metadata"]["uid"];
    for (path, found) in &before {
        assert_eq!(&found["metadata"]["labels"]["containership.io/plugin"], uid, "{path}");
    }

    // A version that no dry run takes: nothing is touched, and the API's words are said.
    let wrong = "{apiVersion: v1, kind: ConfigMap, metadata: {name: first, namespace: wares}, data: {value: [1]}}\n";
    cluster.patch(&path, &version("2", &[&widgets, NAMESPACE, wrong])).await;
    let refused = cluster.condition(&path, "Stalled", "Refused").await;
    assert!(
        refused["status"]["conditions"].to_string().contains("ConfigMap wares/first: "),
        "{refused}"
    );
    assert_eq!(refused["status"]["version"], "1");
    assert_eq!(standing(&cluster).await, before);

    // A version that fails in the middle: its last object is of a kind that it brings itself.
    let (bad, changed) = (thing("Gadget", "many"), config("first", "two"));
    let extra = config("extra", "x");
    let documents = [&gadgets, &widgets, NAMESPACE, &changed, &extra, &bad];
    cluster.patch(&path, &version("3", &documents.map(|text| text as &str))).await;
    let failed = cluster.condition(&path, "Stalled", "VersionFailed").await;
    let said = failed["status"]["failed"]["message"].as_str().unwrap();
    assert!(
        said.contains("Gadget wares/one: ") && said.ends_with("the version before stands"),
        "{said}"
    );
    assert_eq!(
        (&failed["status"]["version"], &failed["status"]["rollout"]),
        (&json!("1"), &Value::Null)
    );
    assert_eq!(standing(&cluster).await, before);
    assert!(cluster.get("/api/v1/namespaces/wares/configmaps/extra").await.is_none());

    // A version that does not get ready.
    let slow = deployment("shop:2");
    cluster.patch(&path, &json!({"spec": {"timeoutSeconds": 3}})).await;
    cluster.patch(&path, &version("4", &[&widgets, NAMESPACE, ACCOUNT, &first, &slow, &one])).await;
    let failed = cluster
        .until(&path, |found| {
            let said = found.map(|found| found["status"]["failed"]["message"].to_string());
            said.is_some_and(|said| said.contains("it was not rolled out within 3 s: waits for"))
        })
        .await;
    assert_eq!(failed["status"]["version"], "1");
    assert_eq!(standing(&cluster).await, before);

    // The version before is asked for again, then one without two objects.
    roll_out(&cluster, "wares").await;
    cluster
        .patch(&path, &version("1", &[&one, &image, &first, ACCOUNT, NAMESPACE, &widgets]))
        .await;
    cluster.condition(&path, "Ready", "Applied").await;
    let other = config("second", "one");
    cluster.patch(&path, &version("5", &[&widgets, NAMESPACE, ACCOUNT, &other, &image])).await;
    cluster
        .until(&path, |found| found.is_some_and(|found| found["status"]["version"] == "5"))
        .await;
    cluster.condition(&path, "Ready", "Applied").await;
    for gone in [
        "/api/v1/namespaces/wares/configmaps/first",
        "/apis/plugins.example.org/v1/namespaces/wares/widgets/one",
    ] {
        assert!(cluster.get(gone).await.is_none(), "{gone}");
    }

    // The end. Definitions and namespaces stay, and so does what somebody took over.
    let free = json!({"metadata": {"labels": {"containership.io/plugin": null}}});
    cluster.patch("/api/v1/namespaces/wares/configmaps/second", &free).await;
    cluster.delete(&path).await;
    cluster.until(&path, |found| found.is_none()).await;
    assert!(cluster.get("/apis/apps/v1/namespaces/wares/deployments/shop").await.is_none());
    assert!(cluster.get("/api/v1/namespaces/wares/serviceaccounts/shop").await.is_none());
    assert!(cluster.get("/api/v1/namespaces/wares/configmaps/second").await.is_some());
    assert!(cluster.get("/api/v1/namespaces/wares").await.is_some());
    assert!(cluster.get(&format!("{DEFINITIONS}/widgets.plugins.example.org")).await.is_some());
    let record = format!("/api/v1/namespaces/{}/configmaps/plugin-shop", cluster.core);
    assert!(cluster.get(&record).await.is_none());
}

#[tokio::test]
async fn a_plugin_that_cannot_be_applied_says_so_in_one_sentence() {
    let mut cluster = started("core-poor").await;
    for name in ["rich", "other"] {
        let_apply(&cluster, name).await;
    }
    cluster.namespace("stock", &json!({})).await;
    let plugins = cluster.kind("plugins");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership");
    let text = fs::read_to_string(folder.join("plugin-2019.yaml")).unwrap();
    let mut old: Value = serde_yaml::from_str(&text).unwrap();
    old["metadata"]["namespace"] = cluster.core.clone().into();
    let strict = format!("{plugins}?fieldValidation=Strict");
    let (status, said) = cluster.ask(Method::POST, &strict, &old).await;
    assert_eq!(status, 201, "{said}");
    let both = json!({"inline": "", "hub": {}});
    let (status, said) = cluster.ask(Method::POST, &strict, &plugin("both", &both)).await;
    assert!(status == 422 && said.to_string().contains("source must be one of"), "{said}");

    let mine = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"},
        "data": {"value": "a person's"},
    });
    cluster.make("/api/v1/namespaces/stock/configmaps", &mine).await;
    let source = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "source"},
        "data": {"a.yaml": config_in("stock", "a", "1"), "b.yaml": config_in("stock", "b", "1")},
    });
    cluster.make(&format!("/api/v1/namespaces/{}/configmaps", cluster.core), &source).await;
    let inline = |text: &str| json!({"inline": text});
    for (name, source) in [
        ("poor", inline(&config_in("stock", "poor", "1"))),
        ("rich", json!({"configMapRef": {"name": "source"}})),
        ("absent", json!({"configMapRef": {"name": "absent"}})),
        ("broken", inline("a: [")),
        ("strange", inline(&thing("Thing", "1"))),
        ("homeless", inline("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")),
    ] {
        cluster.make(&plugins, &plugin(name, &source)).await;
    }
    cluster.start(&["--plugins"]);
    cluster.condition(&format!("{plugins}/rich"), "Ready", "Applied").await;
    // One that changes what a person wrote, and one that takes what another Plugin has.
    let taken = format!("{}---\n{}", config_in("stock", "mine", "1"), config_in("stock", "c", "1"));
    cluster.make(&plugins, &plugin("other", &inline(&taken))).await;
    for (name, reason, says) in [
        (old["metadata"]["name"].as_str().unwrap(), "HubMissing", "run the coordinator with --hub"),
        ("poor", "Refused", "system:serviceaccount:core-poor:plugin-poor"),
        ("absent", "SourceMissing", "is not there"),
        ("broken", "ManifestsInvalid", "document 1 of the manifests"),
        ("strange", "KindUnknown", "serves no such kind"),
        ("homeless", "ManifestsInvalid", "names no namespace"),
        ("other", "Refused", "conflict"),
    ] {
        let found = cluster.condition(&format!("{plugins}/{name}"), "Stalled", reason).await;
        assert!(found["status"]["conditions"].to_string().contains(says), "{found}");
    }
    cluster
        .patch(
            &format!("{plugins}/other"),
            &json!({"spec": {"source": inline(&config_in("stock", "a", "2"))}}),
        )
        .await;
    let said = "ConfigMap stock/a is another Plugin's";
    let path = format!("{plugins}/other");
    cluster.until(&path, |found| found.is_some_and(|found| found.to_string().contains(said))).await;
    let found = cluster.get("/api/v1/namespaces/stock/configmaps/a").await.unwrap();
    assert_eq!(found["data"]["value"], "1");
    let found = cluster.get("/api/v1/namespaces/stock/configmaps/mine").await.unwrap();
    assert_eq!(found["data"]["value"], "a person's");
    // Nothing was applied of what was refused, and what is deleted is let go at once.
    for name in ["poor", "absent", "broken", "strange", "homeless", "other", "rich"] {
        let path = format!("{plugins}/{name}");
        cluster.delete(&path).await;
        cluster.until(&path, |found| found.is_none()).await;
    }
    assert!(cluster.get("/api/v1/namespaces/stock/configmaps/a").await.is_none());
    assert!(cluster.get("/api/v1/namespaces/stock/configmaps/mine").await.is_some());
}
