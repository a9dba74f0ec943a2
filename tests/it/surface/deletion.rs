//! Delete: preconditions, finalizers, propagation, collections.

use serde_json::{Value, json};

use super::{BETA, Server, pilot, pilots, revision};

#[tokio::test]
async fn an_object_without_finalizers_is_gone_at_once() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let options =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    let status = server.delete(&path, &options).await.expect(200);
    assert_eq!(
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": "a", "group": "navigator.jetstack.io", "kind": "pilots", "uid": object["metadata"]["uid"]},
        })
    );
    server.get(&path).await.refusal(404, "NotFound");
    server.delete(&path, &options).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn a_finalizer_holds_the_object_until_it_is_removed() {
    let server = Server::start().await;
    let mut body = pilot("a");
    body["metadata"]["finalizers"] = json!(["example.org/hold"]);
    let created = server.post(&pilots(), &body).await.expect(201);
    let path = format!("{}/a", pilots());
    let pending = server.delete(&path, &json!({})).await.expect(200);
    assert_eq!(pending["kind"], "Pilot");
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(pending["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(pending["metadata"]["generation"], 2);
    // A second delete changes nothing.
    assert_eq!(server.delete(&path, &json!({})).await.expect(200), pending);
    let taken = server.post(&pilots(), &body).await.refusal(409, "AlreadyExists");
    assert!(taken["message"].as_str().unwrap().starts_with("object is being deleted: "), "{taken}");

    let more = json!({"metadata": {"finalizers": ["example.org/hold", "example.org/new"]}});
    let status = server.merge(&path, &more).await.refusal(422, "Invalid");
    assert!(
        status["message"].as_str().unwrap().contains("no new finalizers can be added"),
        "{status}"
    );

    let last = server.merge(&path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(last["metadata"]["uid"], created["metadata"]["uid"]);
    server.get(&path).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn propagation_is_left_to_the_garbage_collector_by_finalizers() {
    let server = Server::start().await;
    for (name, options, query, finalizers) in [
        ("a", json!({"propagationPolicy": "Foreground"}), "", json!(["foregroundDeletion"])),
        ("b", json!({"propagationPolicy": "Orphan"}), "", json!(["orphan"])),
        ("c", json!({"orphanDependents": true}), "", json!(["orphan"])),
        ("d", Value::Null, "?propagationPolicy=Foreground", json!(["foregroundDeletion"])),
    ] {
        server.pilot(name).await;
        let path = format!("{}/{name}{query}", pilots());
        let body = if options.is_null() { String::new() } else { options.to_string() };
        let pending = server.send("DELETE", &path, &[], body).await.expect(200);
        assert_eq!(pending["metadata"]["finalizers"], finalizers, "{name}");
    }
    // An explicit policy replaces the earlier one.
    let path = format!("{}/a", pilots());
    let status =
        server.delete(&path, &json!({"propagationPolicy": "Background"})).await.expect(200);
    assert_eq!(status["status"], "Success");
    // The garbage collector ends a deletion like this.
    let path = format!("{}/b", pilots());
    let current = server.get(&path).await.expect(200);
    let rv = current["metadata"]["resourceVersion"].clone();
    let patch = json!({"metadata": {"resourceVersion": rv, "finalizers": []}});
    server.merge(&path, &patch).await.expect(200);
    server.get(&path).await.refusal(404, "NotFound");
}

/// The collector may take its finalizer away before a controller has seen it.
#[tokio::test]
async fn a_deletion_that_asks_for_orphans_is_noted_for_good() {
    const NOTE: &str = "navigator.jetstack.io/orphan";
    let server = Server::start().await;
    let body = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "kind": "CassandraCluster",
        "metadata": {"name": "a", "finalizers": ["example.org/hold"], "annotations": {"x": "y"}},
        "spec": {"version": "5.0.6", "nodePools": [{"name": "a", "replicas": 1}]},
    });
    let clusters = format!("{BETA}/namespaces/db/cassandraclusters");
    server.post(&clusters, &body).await.expect(201);
    let path = format!("{clusters}/a");
    let going = server.delete(&path, &json!({"propagationPolicy": "Background"})).await.expect(200);
    assert_eq!(going["metadata"]["annotations"], json!({"x": "y"}));
    for policy in ["Orphan", "Background", "Foreground"] {
        let options = json!({"propagationPolicy": policy});
        let going = server.delete(&path, &options).await.expect(200);
        let annotations = &going["metadata"]["annotations"];
        assert_eq!(*annotations, json!({"x": "y", NOTE: "true"}), "{policy}");
    }
}

#[tokio::test]
async fn preconditions_protect_another_object_of_the_name() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let wrong = json!({"preconditions": {"uid": "other"}});
    let status = server.delete(&path, &wrong).await.refusal(409, "Conflict");
    let text = "the UID in the precondition (other) does not match the UID in record";
    assert!(status["message"].as_str().unwrap().contains(text), "{status}");
    let stale = json!({"preconditions": {"resourceVersion": "1"}});
    assert_ne!(revision(&object), 1);
    server.delete(&path, &stale).await.refusal(409, "Conflict");
    let right = json!({"preconditions": {
        "uid": object["metadata"]["uid"], "resourceVersion": object["metadata"]["resourceVersion"],
    }});
    server.delete(&path, &right).await.expect(200);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector_and_returned() {
    let server = Server::start().await;
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut body = pilot(name);
        body["metadata"]["labels"] = json!({"app": app});
        server.post(&pilots(), &body).await.expect(201);
    }
    let path = format!("{}?labelSelector=app%3Dx", pilots());
    let options = json!({"propagationPolicy": "Background"});
    let list = server.delete(&path, &options).await.expect(200);
    assert_eq!(list["kind"], "PilotList");
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let left = server.get(&pilots()).await.expect(200);
    let names: Vec<_> =
        left["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
    assert_eq!(names, ["c"]);
    server.delete(&pilots(), &options).await.expect(200);
    assert_eq!(server.get(&pilots()).await.expect(200)["items"], json!([]));
}

/// Rights may end at a selector, so what was selected once is looked at again.
#[tokio::test]
async fn what_a_selector_chose_in_the_past_alone_stays() {
    let server = Server::start().await;
    let labelled = |name: &str, app: &str| {
        let mut body = pilot(name);
        body["metadata"]["labels"] = json!({"app": app});
        body
    };
    for name in ["relabelled", "recreated", "same"] {
        server.post(&pilots(), &labelled(name, "x")).await.expect(201);
    }
    let listed = server.get(&pilots()).await.expect(200)["metadata"]["resourceVersion"].take();
    let one = |name: &str| format!("{}/{name}", pilots());
    let patch = json!({"metadata": {"labels": {"app": "y"}}});
    let merge = [("content-type", "application/merge-patch+json")];
    server.send("PATCH", &one("relabelled"), &merge, patch.to_string()).await.expect(200);
    server.delete(&one("recreated"), &json!({})).await.expect(200);
    server.post(&pilots(), &labelled("recreated", "y")).await.expect(201);
    let revision = listed.as_str().unwrap();
    let past = format!("resourceVersion={revision}&resourceVersionMatch=Exact");
    let path = format!("{}?labelSelector=app%3Dx&{past}", pilots());
    let deleted = server.delete(&path, &json!({})).await.expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 3, "as it was listed");
    let left = server.get(&pilots()).await.expect(200);
    let names: Vec<_> =
        left["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
    assert_eq!(names, ["recreated", "relabelled"]);
}

#[tokio::test]
async fn contradictory_delete_options_are_refused() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{}/a", pilots());
    for options in [
        json!({"propagationPolicy": "Sideways"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        json!({"dryRun": ["Maybe"]}),
    ] {
        let status = server.delete(&path, &options).await.refusal(422, "Invalid");
        assert_eq!(status["details"]["kind"], "DeleteOptions", "{options}");
    }
    server.delete(&path, &json!({"kind": "Pod"})).await.refusal(400, "BadRequest");
    server.get(&path).await.expect(200);
}
