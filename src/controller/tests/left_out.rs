//! Objects of strangers that take too much memory: the clusters of their namespace are left alone, and
//! say why; those of other namespaces are not concerned.

use serde_json::json;

use super::{
    api::{id, in_namespace},
    harness::{Harness, cluster_id},
};

/// Adds a StatefulSet to the namespace that is larger than all caches.
fn add_large(harness: &Harness, namespace: &str) {
    let mut server = harness.api.server();
    server.add(
        &id("statefulsets", &in_namespace(namespace, "large")),
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": "large",
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "navigator"},
            },
            "spec": {
                "serviceName": "x".repeat(50 << 20),
                "selector": {},
                "template": {"spec": {"containers": []}},
            },
        }),
    );
}

#[tokio::test(start_paused = true)]
async fn clusters_of_a_namespace_that_takes_too_much_memory_are_left_alone_and_say_why() {
    let harness = Harness::new(1);
    harness.settle().await;
    add_large(&harness, "other");
    let before = harness.writes();
    harness.reconcile().await.unwrap();
    assert_eq!(harness.writes(), before, "another namespace is not its concern");
    harness.api.server().delete(&id("statefulsets", "other/large"));

    add_large(&harness, "default");
    // A pod that is not known is not gone, and nothing is made or deleted for a change of the spec.
    harness.scale(2);
    let others = |harness: &Harness| {
        let server = harness.api.server();
        let writes = server.writes.iter().filter(|write| !write.contains("/status"));
        writes.count()
    };
    let before = others(&harness);
    for _ in 0..3 {
        harness.reconcile().await.unwrap();
    }
    assert_eq!(others(&harness), before, "{:?}", harness.api.server().writes);
    let (ready, stalled) = (harness.condition("Ready"), harness.condition("Stalled"));
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("Unknown"), &json!("TooManyObjects")));
    let why = stalled["message"].as_str().unwrap();
    assert!(why.contains("kind StatefulSet in namespace default"), "{why}");

    harness.api.server().delete(&id("statefulsets", "large"));
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
    assert_eq!(harness.condition("Stalled"), json!(null));
    assert_eq!(harness.replicas(), json!(2));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_such_a_namespace_is_not_deleted_half() {
    let harness = Harness::new(1);
    harness.settle().await;
    add_large(&harness, "default");
    harness.api.server().delete(&cluster_id());
    let deletes = harness.api.server().deletes.len();
    harness.reconcile().await.unwrap();
    assert_eq!(harness.api.server().deletes.len(), deletes);
    let ready = harness.condition("Ready");
    assert!(ready["message"].as_str().unwrap().contains("kind StatefulSet"), "{ready}");
    harness.api.server().delete(&id("statefulsets", "large"));
    harness.settle().await;
    assert_eq!(harness.object("exampleclusters", "shop"), json!(null));
}
