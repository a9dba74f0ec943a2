//! Labels of Nodes.

use serde_json::{Value, json};

use super::cluster::Cluster;

const TIER: &str = "cluster.containership.io/tier";
const DISK: &str = "nodepool.containership.io/disk";

fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn bears<'a>(key: &'a str, value: Option<&'a str>) -> impl Fn(Option<&Value>) -> bool + 'a {
    move |node| node.is_some_and(|node| node["metadata"]["labels"][key].as_str() == value)
}

#[tokio::test]
async fn nodes_bear_what_labels_say_and_nothing_else_below_the_prefixes() {
    let mut cluster = Cluster::new("core-labels").await;
    for (name, pool) in [("m1", "p"), ("m2", "q")] {
        let labels = json!({
            "containership.io/node-pool-id": pool, "cluster.containership.io/old": "1", "team": "x",
        });
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        cluster.make("/api/v1/nodes", &object).await;
    }
    let label = |kind: &str, name: &str, spec: Value| {
        let group =
            if kind == "NodePoolLabel" { "provision.containership.io" } else { "containership.io" };
        json!({
            "apiVersion": format!("{group}/v3"), "kind": kind, "metadata": {"name": name},
            "spec": spec,
        })
    };
    let (clusters, pools) = (cluster.kind("clusterlabels"), cluster.kind("nodepoollabels"));
    let tier = label("ClusterLabel", "tier", json!({"key": TIER, "value": "gold"}));
    cluster.make(&clusters, &tier).await;
    let disk = json!({"key": DISK, "value": "ssd", "node_pool_id": "p"});
    cluster.make(&pools, &label("NodePoolLabel", "disk", disk)).await;
    cluster.start(&[]);

    for name in ["m1", "m2"] {
        cluster.until(&node(name), bears(TIER, Some("gold"))).await;
        cluster.until(&node(name), bears("cluster.containership.io/old", None)).await;
        assert!(bears("team", Some("x"))(cluster.get(&node(name)).await.as_ref()));
    }
    cluster.until(&node("m1"), bears(DISK, Some("ssd"))).await;
    assert!(bears(DISK, None)(cluster.get(&node("m2")).await.as_ref()));
    let ready = cluster.condition(&format!("{clusters}/tier"), "Ready", "Labelled").await;
    assert_eq!(ready["status"]["progress"], "2/2");
    let ready = cluster.condition(&format!("{pools}/disk"), "Ready", "Labelled").await;
    assert_eq!(ready["status"]["progress"], "1/1");
    // One patch for each Node, whatever changed on it.
    let patches = Cluster::writes().into_iter().filter(|write| write.starts_with("patch nodes"));
    assert_eq!(patches.count(), 2);

    // Drift, a Node that comes, and one that changes its pool.
    let change = json!({"metadata": {"labels": {TIER: null, "nodepool.containership.io/x": "1"}}});
    cluster.patch(&node("m1"), &change).await;
    cluster.until(&node("m1"), bears(TIER, Some("gold"))).await;
    cluster.until(&node("m1"), bears("nodepool.containership.io/x", None)).await;
    let late = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m3"}});
    cluster.make("/api/v1/nodes", &late).await;
    cluster.until(&node("m3"), bears(TIER, Some("gold"))).await;
    let change = json!({"metadata": {"labels": {"containership.io/node-pool-id": "p"}}});
    cluster.patch(&node("m2"), &change).await;
    cluster.until(&node("m2"), bears(DISK, Some("ssd"))).await;

    // The same key once more.
    let other = label("ClusterLabel", "other", json!({"key": DISK, "value": "tape"}));
    cluster.make(&clusters, &other).await;
    let found = cluster.condition(&format!("{clusters}/other"), "Stalled", "Conflict").await;
    assert!(found.to_string().contains("nodepoollabel/disk is older"), "{found}");
    cluster.until(&node("m3"), bears(DISK, Some("tape"))).await;
    assert!(bears(DISK, Some("ssd"))(cluster.get(&node("m1")).await.as_ref()));

    // Objects that go take their labels along.
    cluster.delete(&format!("{pools}/disk")).await;
    cluster.until(&node("m1"), bears(DISK, Some("tape"))).await;
    for name in ["tier", "other"] {
        cluster.delete(&format!("{clusters}/{name}")).await;
    }
    for name in ["m1", "m2", "m3"] {
        cluster.until(&node(name), bears(DISK, None)).await;
        cluster.until(&node(name), bears(TIER, None)).await;
    }
}
