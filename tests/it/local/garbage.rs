//! Garbage collection on one host, as on Kubernetes.

use serde_json::{Value, json};

use super::{
    host::Host,
    pods::{PATIENCE, set},
};
use crate::support::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_emptied_and_ends() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    host.kubectl("create namespace shop").await;
    // The pod takes a moment to end; the other objects must not go before it.
    let does = "trap 'sleep 1; ls $NAVIGATOR_DATA_DIR >$NAVIGATOR_DATA_DIR/../../../end; exit 0' TERM; \
                touch $NAVIGATOR_DATA_DIR/row";
    host.with("apply -f -", &set("shop", does).to_string()).await;
    host.kubectl("create configmap settings -n shop --from-literal=a=b").await;
    host.kubectl("create secret generic keys -n shop --from-literal=a=b").await;
    let claim = host.folder.join("claims/shop/data-demo-0");
    until("a pod that runs", PATIENCE, async || {
        if claim.join("row").exists() {
            return Ok(());
        }
        Err(host.kubectl("get pods -n shop").await)
    })
    .await;
    host.kubectl("delete namespace shop --timeout=60s").await;
    assert!(host.refused("get namespace shop").await.contains("NotFound"));
    let seen = std::fs::read_to_string(host.folder.join("end")).unwrap();
    assert_eq!(seen, "row\n", "the data were there until it ended");
    assert!(!claim.exists() && !host.folder.join("pods/shop/demo-0").exists());
    for kind in ["sts", "pods", "pvc", "configmaps", "secrets", "events"] {
        assert_eq!(host.kubectl(&format!("get {kind} -n shop -o name")).await, "", "{kind}");
    }
    // A namespace of the same name can be made again, and begins empty.
    host.kubectl("create namespace shop").await;
    host.kubectl("create configmap settings -n shop --from-literal=a=c").await;
    node.stop().await;
}

/// Makes a ConfigMap; owners are names of others, and whether their deletion waits for it.
async fn owned(host: &Host, name: &str, owners: &[(&str, bool)], finalizer: Option<&str>) {
    let mut references = Vec::new();
    for (owner, waits) in owners {
        let uid = host.json(&format!("get configmap {owner}")).await["metadata"]["uid"].clone();
        references.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid,
            "blockOwnerDeletion": waits,
        }));
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": references, "finalizers": finalizer.as_slice()},
    });
    host.with("apply -f -", &object.to_string()).await;
}

/// Waits until exactly these ConfigMaps are left.
async fn left(host: &Host, wanted: &[&str]) {
    until("what is left", PATIENCE, async || {
        let all = host.kubectl("get configmaps -o name").await;
        let all: Vec<_> = all.lines().filter_map(|name| name.strip_prefix("configmap/")).collect();
        if all == wanted { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

async fn release(host: &Host, name: &str) {
    let patch = r#"--type merge -p {"metadata":{"finalizers":null}}"#;
    host.kubectl(&format!("patch configmap {name} {patch}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_waits_for_what_it_owns_where_it_is_asked_to() {
    let host = Host::start().await;
    let (_node, _runtime) = host.carry_out();
    owned(&host, "owner", &[], None).await;
    owned(&host, "other", &[], None).await;
    owned(&host, "free", &[("owner", false)], Some("example.org/held")).await;
    owned(&host, "held", &[("owner", true)], Some("example.org/held")).await;
    owned(&host, "plain", &[("owner", true)], None).await;
    owned(&host, "shared", &[("owner", true), ("other", true)], None).await;
    host.kubectl("delete configmap owner --cascade=foreground --wait=false").await;
    left(&host, &["free", "held", "other", "owner", "shared"]).await;
    let owner = host.json("get configmap owner").await;
    assert_eq!(owner["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    release(&host, "held").await;
    // The owner does not wait for a dependent that does not block its deletion.
    left(&host, &["free", "other", "shared"]).await;
    release(&host, "free").await;
    left(&host, &["other", "shared"]).await;
    // Of two owners one is there: the object stays, and belongs to that one.
    let shared = until("one owner", PATIENCE, async || {
        let shared = host.json("get configmap shared").await["metadata"].take();
        let owners = shared["ownerReferences"].as_array().map_or(0, Vec::len);
        if owners == 1 { Ok(shared) } else { Err(shared.to_string()) }
    })
    .await;
    assert_eq!(shared["ownerReferences"][0]["name"], "other");
    assert_eq!(shared.get("deletionTimestamp"), None);
    host.kubectl("delete configmap other").await;
    left(&host, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_lets_go_of_what_it_owns_where_it_is_asked_to() {
    let host = Host::start().await;
    let (node, _runtime) = host.carry_out();
    host.with("apply -f -", &set("default", "").to_string()).await;
    let running = async || {
        let pods = host.kubectl("get pods -o json").await;
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let pod = &pods["items"][0];
        let phase = &pod["status"]["phase"];
        if phase == "Running" { Ok(pod["metadata"].clone()) } else { Err(pods.to_string()) }
    };
    let before = until("a pod that runs", PATIENCE, running).await;
    assert_eq!(before["ownerReferences"][0]["name"], "demo");
    host.kubectl("delete statefulset demo --cascade=orphan --timeout=60s").await;
    let after = until("a pod that runs", PATIENCE, running).await;
    assert_eq!(after["uid"], before["uid"], "it was let alone");
    assert_eq!(after.get("ownerReferences"), None);
    // A new set of this name adopts the pod.
    host.with("apply -f -", &set("default", "").to_string()).await;
    let uid = host.json("get statefulset demo").await["metadata"]["uid"].clone();
    let adopted = until("a pod with an owner", PATIENCE, async || {
        let pod = running().await?;
        if pod["ownerReferences"][0]["uid"] == uid { Ok(pod) } else { Err(pod.to_string()) }
    })
    .await;
    assert_eq!(adopted["uid"], before["uid"]);
    assert!(host.kubectl("get statefulset demo").await.contains("demo   1/1"));
    node.stop().await;
}
