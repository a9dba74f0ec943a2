//! Two versions of one object: each is read, written and watched in the URL's version.

use navigator::api::names::annotation;
use serde_json::json;

use super::{ALPHA, BETA, Server, cassandra, pilots, revision};

const CLUSTERS: &str = "namespaces/db/cassandraclusters";

#[tokio::test]
async fn an_object_reads_in_both_versions_with_one_identity() {
    let server = Server::start().await;
    let mut body = cassandra("a");
    body["apiVersion"] = json!("navigator.jetstack.io/v1alpha1");
    let older = server.post(&format!("{ALPHA}/{CLUSTERS}"), &body).await.expect(201);
    assert_eq!(older["apiVersion"], "navigator.jetstack.io/v1alpha1");
    let hub = server.get(&format!("{BETA}/{CLUSTERS}/a")).await.expect(200);
    assert_eq!(hub["apiVersion"], "navigator.jetstack.io/v1beta1");
    for field in ["uid", "resourceVersion", "generation", "creationTimestamp"] {
        assert_eq!(hub["metadata"][field], older["metadata"][field], "{field}");
    }
    assert_eq!(hub["spec"]["version"], older["spec"]["version"]);
    let list = server.get(&format!("{ALPHA}/{CLUSTERS}")).await.expect(200);
    assert_eq!(list["apiVersion"], "navigator.jetstack.io/v1alpha1");
    assert_eq!(list["items"][0], older);
}

#[tokio::test]
async fn what_the_older_form_cannot_say_survives_its_update() {
    let server = Server::start().await;
    let mut body = cassandra("a");
    body["spec"]["jvm"] = json!({"heap": "1Gi"});
    server.post(&format!("{BETA}/{CLUSTERS}"), &body).await.expect(201);
    let path = format!("{ALPHA}/{CLUSTERS}/a");
    let mut older = server.get(&path).await.expect(200);
    assert!(older["spec"].get("jvm").is_none());
    older["metadata"]["annotations"] = json!(null);
    older["spec"]["nodePools"][0]["replicas"] = json!(2);
    server.put(&path, &older).await.expect(200);
    let hub = server.get(&format!("{BETA}/{CLUSTERS}/a")).await.expect(200);
    assert_eq!(hub["spec"]["jvm"]["heap"], "1Gi");
    assert_eq!(hub["spec"]["nodePools"][0]["replicas"], 2);
    assert_eq!(hub["metadata"]["generation"], 2);
}

/// An object of the older version is as it was before there was a word about encryption and logins;
/// the newer version says what holds.
#[tokio::test]
async fn the_older_version_is_silent_about_an_open_cluster() {
    let server = Server::start().await;
    let (older, hub) = (format!("{ALPHA}/{CLUSTERS}"), format!("{BETA}/{CLUSTERS}"));
    let mut body = cassandra("a");
    body["apiVersion"] = json!("navigator.jetstack.io/v1alpha1");
    let made = server.post(&older, &body).await.expect(201);
    assert_eq!(made["metadata"].get("annotations"), None);
    let open = json!({"mode": "Open"});
    let shown = server.get(&format!("{hub}/a")).await.expect(200);
    assert_eq!(shown["spec"]["security"], open);
    let again = server.put(&format!("{older}/a"), &made).await.expect(200);
    assert_eq!(again, made, "nothing was written");
    // Without the word nothing changes, and the generation stays.
    let mut silent = shown.clone();
    silent["spec"].as_object_mut().unwrap().remove("security");
    assert_eq!(server.put(&format!("{hub}/a"), &silent).await.expect(200), shown);
    let patch = json!({"spec": {"security": null}});
    assert_eq!(server.merge(&format!("{hub}/a"), &patch).await.expect(200), shown);
    // A secure one shows in the annotation, and an edit of the older form leaves it secure.
    server.post(&hub, &cassandra("b")).await.expect(201);
    let mut secure = server.get(&format!("{older}/b")).await.expect(200);
    let surplus = r#"{"security":{"mode":"Secure"}}"#;
    assert_eq!(secure["metadata"]["annotations"], json!({annotation::SURPLUS: surplus}));
    secure["metadata"]["annotations"] = json!(null);
    secure["spec"]["paused"] = json!(true);
    server.put(&format!("{older}/b"), &secure).await.expect(200);
    let shown = server.get(&format!("{hub}/b")).await.expect(200);
    assert_eq!(
        (&shown["spec"]["security"]["mode"], &shown["spec"]["paused"]),
        (&json!("Secure"), &json!(true))
    );
}

#[tokio::test]
async fn watchers_of_both_versions_see_every_event_in_theirs() {
    let server = Server::start().await;
    let begin = revision(&server.pilot("before").await);
    let query = format!("watch=1&resourceVersion={begin}");
    let mut beta = server.watch(&format!("{BETA}/pilots?{query}"), "").await;
    let mut alpha = server.watch(&format!("{ALPHA}/pilots?{query}"), "").await;
    server.pilot("a").await;
    let path = format!("{ALPHA}/namespaces/db/pilots/a");
    server.merge(&path, &json!({"spec": {"decommission": true}})).await.expect(200);
    server.delete(&format!("{}/a", pilots()), &json!({})).await.expect(200);
    for type_ in ["ADDED", "MODIFIED", "DELETED"] {
        let (newer, older) = (beta.next().await.unwrap(), alpha.next().await.unwrap());
        assert_eq!((&newer["type"], &older["type"]), (&json!(type_), &json!(type_)));
        let (newer, older) = (&newer["object"], &older["object"]);
        assert_eq!(newer["apiVersion"], "navigator.jetstack.io/v1beta1");
        assert_eq!(older["apiVersion"], "navigator.jetstack.io/v1alpha1");
        assert_eq!(revision(newer), revision(older));
        let decommissioned = type_ != "ADDED";
        assert_eq!(newer["spec"]["phase"] == "Decommissioned", decommissioned);
        assert_eq!(older["spec"]["decommission"], decommissioned);
    }
}
