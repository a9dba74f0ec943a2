//! JSON patch and merge patch, on the object and on its status.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ALPHA, Server, pilots};

impl Server {
    async fn json_patch(&self, path: &str, patch: &Value) -> super::Answer {
        let headers = [("content-type", "application/json-patch+json")];
        self.send("PATCH", path, &headers, patch.to_string()).await
    }
}

#[tokio::test]
async fn both_patch_types_change_what_they_name() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let merged = server
        .merge(&path, &json!({"metadata": {"labels": {"x": "y"}}, "spec": {"phase": "Stopped"}}))
        .await
        .expect(200);
    assert_eq!(
        (&merged["metadata"]["labels"]["x"], &merged["spec"]["phase"]),
        (&json!("y"), &json!("Stopped"))
    );
    let patch = json!([
        {"op": "test", "path": "/spec/phase", "value": "Stopped"},
        {"op": "replace", "path": "/spec/phase", "value": "Running"},
        {"op": "remove", "path": "/metadata/labels/x"},
    ]);
    let patched = server.json_patch(&path, &patch).await.expect(200);
    assert_eq!(patched["spec"]["phase"], "Running");
    assert_eq!(patched["metadata"]["generation"], 3);
    let failed = server.json_patch(&path, &patch).await.refusal(422, "Invalid");
    assert_eq!(failed["message"], "the server rejected our request due to an error in our request");

    let status = json!({"status": {"phase": "Running"}, "spec": {"phase": "Stopped"}});
    let reported = server.merge(&format!("{path}/status"), &status).await.expect(200);
    assert_eq!(
        (&reported["status"]["phase"], &reported["spec"]["phase"]),
        (&json!("Running"), &json!("Running"))
    );
}

#[tokio::test]
async fn what_patch_refuses() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let path = format!("{}/a", pilots());
    for media_type in [
        "application/strategic-merge-patch+json",
        "application/apply-patch+cbor",
        "application/json",
    ] {
        let answer = server.send("PATCH", &path, &[("content-type", media_type)], "{}").await;
        let status = answer.refusal(415, "UnsupportedMediaType");
        let text = "application/json-patch+json, application/merge-patch+json, \
                    application/apply-patch+yaml";
        assert!(status["message"].as_str().unwrap().contains(text), "{status}");
    }
    server.merge(&format!("{}/nope", pilots()), &json!({})).await.refusal(404, "NotFound");
    server.merge(&path, &json!({"metadata": {"name": "b"}})).await.refusal(400, "BadRequest");
    server.merge(&path, &json!({"metadata": {"uid": "u"}})).await.refusal(409, "Conflict");
    server
        .merge(&path, &json!({"metadata": {"resourceVersion": "1"}}))
        .await
        .refusal(409, "Conflict");
    server.merge(&path, &json!({"spec": {"phase": "Nope"}})).await.refusal(422, "Invalid");
    server.merge(&format!("{path}?force=true"), &json!({})).await.refusal(422, "Invalid");
    let headers = [("content-type", "application/merge-patch+json; charset=utf-8")];
    server.send("PATCH", &path, &headers, "{").await.refusal(400, "BadRequest");
    let strict = format!("{path}?fieldValidation=Strict");
    let status = server.merge(&strict, &json!({"spec": {"foo": 1}})).await.refusal(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    let said = "Pilot.navigator.jetstack.io \"a\" is invalid: patch: Forbidden: strict decoding \
                error: unknown field \"spec.foo\"";
    assert_eq!(message, said, "what is wrong comes first, without the object");
    assert_eq!(status["details"]["causes"][0]["field"], "patch");
    assert_eq!(server.get(&path).await.expect(200), object);
}

#[tokio::test]
async fn a_patch_that_names_no_revision_outlives_conflicts() {
    let server = Arc::new(Server::start().await);
    server.pilot("a").await;
    let path = format!("{}/a", pilots());
    // Four at a time stay below the five attempts that each patch has.
    for round in 0..5 {
        let writers = (0..4).map(|writer| {
            let (server, path) = (Arc::clone(&server), path.clone());
            async move {
                let label = format!("w{round}-{writer}");
                server
                    .merge(&path, &json!({"metadata": {"labels": {label: "x"}}}))
                    .await
                    .expect(200)
            }
        });
        futures::future::join_all(writers).await;
    }
    let object = server.get(&path).await.expect(200);
    assert_eq!(object["metadata"]["labels"].as_object().unwrap().len(), 20);
}

#[tokio::test]
async fn a_patch_may_speak_the_older_way() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{ALPHA}/namespaces/db/pilots/a");
    let patched = server.merge(&path, &json!({"spec": {"inService": false}})).await.expect(200);
    assert_eq!(patched["spec"]["decommission"], true);
    let hub = server.get(&format!("{}/a", pilots())).await.expect(200);
    assert_eq!(hub["spec"]["phase"], "Decommissioned");
}
