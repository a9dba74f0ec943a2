//! Server-side apply of our own kinds, as the real kubectl asks for it.

use serde_json::{Value, json};

use super::host::{Host, run};

const APPLY: &str = "apply --server-side -f -";

fn cluster(spec: &Value) -> String {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "kind": "CassandraCluster",
        "metadata": {"name": "c"},
        "spec": spec,
    })
    .to_string()
}

fn pools(pools: &Value) -> String {
    cluster(&json!({"version": "5.0.6", "nodePools": pools}))
}

async fn refused(host: &Host, arguments: &str, manifest: &str) -> String {
    let output = run(host.command(arguments), manifest).await;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "kubectl {arguments} succeeded");
    stderr
}

/// What kubectl shows of a cluster, with its owners.
async fn shown(host: &Host) -> Value {
    host.json("get cassandracluster c --show-managed-fields").await
}

/// Operation, name and subresource of each owner.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, name| entry[name].as_str().unwrap_or_default().to_owned();
    let named = |entry: &Value| {
        let named = ["operation", "manager", "subresource"].map(|name| text(entry, name));
        named.join(" ").trim_end().to_owned()
    };
    let mut owners: Vec<String> = entries.iter().map(named).collect();
    // The server lists the owners in the order of their times.
    owners.sort_unstable();
    owners
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_twice_is_written_once() {
    let host = Host::start().await;
    let one = pools(&json!([{"name": "a", "replicas": 1}]));
    let tried = host.with(&format!("{APPLY} --dry-run=server"), &one).await;
    assert!(tried.ends_with("serverside-applied (server dry run)\n"), "{tried}");
    assert!(host.refused("get cassandracluster c").await.contains("(NotFound)"));

    let applied = host.with(APPLY, &one).await;
    assert_eq!(applied, "cassandracluster.navigator.jetstack.io/c serverside-applied\n");
    let first = shown(&host).await;
    assert_eq!(owners(&first), ["Apply kubectl"]);
    host.with(APPLY, &one).await;
    assert_eq!(shown(&host).await, first);
    let plain = host.json("get cassandracluster c").await;
    assert!(plain["metadata"].get("managedFields").is_none(), "{plain}");

    let two = pools(&json!([{"name": "a", "replicas": 2}]));
    let mut diff = host.command("diff --server-side -f -");
    diff.env("PATH", "/usr/bin:/bin");
    let output = run(diff, &two).await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("\n-    replicas: 1\n+    replicas: 2\n"), "{text}");
    assert_eq!(shown(&host).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_another_manager_is_a_conflict_until_forced() {
    let host = Host::start().await;
    host.with(APPLY, &pools(&json!([{"name": "a", "replicas": 1}]))).await;
    // A manager that adds a pool of its own conflicts with no other manager.
    let other = cluster(&json!({"nodePools": [{"name": "b", "replicas": 1}]}));
    host.with(&format!("{APPLY} --field-manager other"), &other).await;
    let names = |object: &Value| {
        let pools = object["spec"]["nodePools"].as_array().unwrap();
        pools.iter().map(|pool| pool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&shown(&host).await), ["a", "b"]);

    let more = cluster(&json!({"nodePools": [{"name": "a", "replicas": 3}]}));
    let command = format!("{APPLY} --field-manager other");
    let why = refused(&host, &command, &more).await;
    let text = r#"conflict with "kubectl": .spec.nodePools[name="a"].replicas"#;
    assert!(why.contains(text), "{why}");
    host.with(&format!("{command} --force-conflicts"), &more).await;
    let forced = shown(&host).await;
    assert_eq!(forced["spec"]["nodePools"][0]["replicas"], 3);
    // A pool that the manager applies no more, and no other manager owns, is gone.
    assert_eq!(names(&forced), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_applied_from_the_clients_side_goes_over_to_the_servers() {
    let host = Host::start().await;
    host.with("apply -f -", &pools(&json!([{"name": "a", "replicas": 1}]))).await;
    assert_eq!(owners(&shown(&host).await), ["Update kubectl-client-side-apply"]);
    host.with(APPLY, &pools(&json!([{"name": "a", "replicas": 2}]))).await;
    let applied = shown(&host).await;
    assert_eq!(applied["spec"]["nodePools"][0]["replicas"], 2);
    assert_eq!(owners(&applied)[0], "Apply kubectl");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_has_one_owner_under_both_of_its_names() {
    let host = Host::start().await;
    let older = json!({
        "apiVersion": "navigator.jetstack.io/v1alpha1",
        "kind": "CassandraCluster",
        "metadata": {"name": "c"},
        "spec": {
            "version": "5.0.6",
            "nodePools": [{"name": "a", "replicas": 1, "nodeSelector": {"disk": "ssd"}}],
        },
    });
    let command = format!("{APPLY} --field-manager older");
    host.with(&command, &older.to_string()).await;
    let template = |disk: &str| {
        let template = json!({"spec": {"nodeSelector": {"disk": disk}}});
        cluster(&json!({"nodePools": [{"name": "a", "podTemplate": template}]}))
    };
    let why = refused(&host, APPLY, &template("hdd")).await;
    let text = r#"conflict with "older": .spec.nodePools[name="a"].nodeSelector.disk"#;
    assert!(why.contains(text), "{why}");
    host.with(APPLY, &template("ssd")).await;
    assert_eq!(owners(&shown(&host).await), ["Apply kubectl", "Apply older"]);
    // While two managers own the field, one that lets go of it does not remove it.
    let mut less = older.clone();
    less["spec"]["nodePools"][0].as_object_mut().unwrap().remove("nodeSelector");
    host.with(&command, &less.to_string()).await;
    let selector = "/spec/nodePools/0/podTemplate/spec/nodeSelector";
    assert_eq!(shown(&host).await.pointer(selector), Some(&json!({"disk": "ssd"})));
    host.with(APPLY, &cluster(&json!({"version": "5.0.6"}))).await;
    assert_eq!(shown(&host).await.pointer(selector), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_a_status_are_owned_by_their_types() {
    let host = Host::start().await;
    host.with(APPLY, &pools(&json!([{"name": "a", "replicas": 1}]))).await;
    let report = |type_: &str, status: &str| {
        let condition = json!({
            "type": type_, "status": status, "reason": "Tested", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        json!({
            "apiVersion": "navigator.jetstack.io/v1beta1",
            "kind": "CassandraCluster",
            "metadata": {"name": "c"},
            "status": {"conditions": [condition]},
        })
        .to_string()
    };
    let command = |manager: &str| format!("{APPLY} --subresource=status --field-manager {manager}");
    host.with(&command("one"), &report("Ready", "True")).await;
    host.with(&command("two"), &report("Stalled", "False")).await;
    let both = shown(&host).await;
    let types: Vec<&Value> =
        both["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(types, ["Ready", "Stalled"]);
    assert_eq!(owners(&both), ["Apply kubectl", "Apply one status", "Apply two status"]);
    let why = refused(&host, &command("two"), &report("Ready", "False")).await;
    let text = r#".status.conditions[type="Ready"].status"#;
    assert!(why.contains("conflict") && why.contains(text), "{why}");
}
