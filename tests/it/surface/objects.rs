//! Create, read, update: identity, generation, concurrency.

use serde_json::{Value, json};

use super::{BETA, Server, cassandra, pilot, pilots, revision};
use navigator::{
    api::GROUP,
    apiserver::status::{ApiError, GroupResource},
};

#[tokio::test]
async fn a_new_object_has_an_identity_that_the_server_gave_it() {
    let server = Server::start().await;
    let mut body = pilot("a");
    body["metadata"]["uid"] = json!("mine");
    body["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    body["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    body["metadata"]["generation"] = json!(7);
    body["metadata"]["managedFields"] = json!([{"manager": "me"}]);
    let created = server.post(&pilots(), &body).await.expect(201);
    let meta = &created["metadata"];
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert!(meta["creationTimestamp"].as_str().unwrap() > "2020");
    assert_eq!(meta["generation"], 1);
    assert_eq!(meta["namespace"], "db");
    assert!(meta.get("deletionTimestamp").is_none());
    // Of `managedFields` the client's entry is dropped; the server wrote its own.
    assert_eq!(meta["managedFields"][0]["manager"], "unknown");
    assert!(revision(&created) > 0);
    assert_eq!(created["kind"], "Pilot");
    assert_eq!(created["apiVersion"], "navigator.jetstack.io/v1beta1");
    let read = server.get(&format!("{}/a", pilots())).await.expect(200);
    assert_eq!(read, created);
    for rv in ["0", &revision(&created).to_string()] {
        let path = format!("{}/a?resourceVersion={rv}", pilots());
        assert_eq!(server.get(&path).await.expect(200)["metadata"]["name"], "a");
    }
}

#[tokio::test]
async fn what_create_refuses() {
    let server = Server::start().await;
    server.pilot("taken").await;
    let with = |change: fn(&mut Value)| {
        let mut body = pilot("x");
        change(&mut body);
        body
    };
    let rows: [(&str, Value, u16, &str, &str); 9] = [
        (
            "taken",
            pilot("taken"),
            409,
            "AlreadyExists",
            "pilots.navigator.jetstack.io \"taken\" already exists",
        ),
        (
            "namespace",
            with(|b| b["metadata"]["namespace"] = json!("other")),
            400,
            "BadRequest",
            "the namespace of the provided object does not match",
        ),
        (
            "version",
            with(|b| b["apiVersion"] = json!("navigator.jetstack.io/v1alpha1")),
            400,
            "BadRequest",
            "the API version in the data (navigator.jetstack.io/v1alpha1) does not match the expected API version (navigator.jetstack.io/v1beta1)",
        ),
        (
            "kind",
            with(|b| b["kind"] = json!("LeaderLease")),
            400,
            "BadRequest",
            "cannot be handled as a Pilot",
        ),
        (
            "no name",
            with(|b| b["metadata"] = json!({})),
            422,
            "Invalid",
            "name or generateName is required",
        ),
        (
            "bad name",
            with(|b| b["metadata"]["name"] = json!("A_b")),
            422,
            "Invalid",
            "metadata.name: Invalid value: \"A_b\"",
        ),
        (
            "path name",
            with(|b| b["metadata"]["name"] = json!("../x")),
            422,
            "Invalid",
            "metadata.name: Invalid value",
        ),
        (
            "label",
            with(|b| b["metadata"]["labels"] = json!({"-": "x"})),
            422,
            "Invalid",
            "metadata.labels: Invalid value",
        ),
        (
            "revision",
            with(|b| b["metadata"]["resourceVersion"] = json!("5")),
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ),
    ];
    for (what, body, code, reason, text) in rows {
        let answer = server.post(&pilots(), &body).await;
        let status = answer.expect(code);
        assert_eq!(status.get("reason").unwrap_or(&json!("")), reason, "{what}: {status}");
        assert!(status["message"].as_str().unwrap().contains(text), "{what}: {status}");
    }
}

#[tokio::test]
async fn a_wrong_object_is_answered_with_every_cause() {
    let server = Server::start().await;
    let path = format!("{BETA}/namespaces/db/cassandraclusters");
    let mut body = cassandra("a");
    body["spec"]["version"] = json!("2.0");
    body["spec"]["nodePools"][0]["replicas"] = json!(-1);
    let status = server.post(&path, &body).await.refusal(422, "Invalid");
    assert_eq!(status["details"]["kind"], "CassandraCluster");
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<_> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert!(fields.contains(&"spec.version"), "{status}");
    assert!(fields.contains(&"spec.nodePools[0].replicas"), "{status}");
}

#[tokio::test]
async fn generated_names_differ_and_start_as_asked() {
    let server = Server::start().await;
    let mut body = pilot("x");
    body["metadata"] = json!({"generateName": "node-"});
    let one = server.post(&pilots(), &body).await.expect(201);
    let two = server.post(&pilots(), &body).await.expect(201);
    let names = [&one, &two].map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
    assert_ne!(names[0], names[1]);
    assert!(names.iter().all(|name| name.starts_with("node-") && name.len() == 10), "{names:?}");
}

#[tokio::test]
async fn unknown_and_duplicate_fields_follow_field_validation() {
    let server = Server::start().await;
    let body = r#"{"metadata":{"name":"NAME"},"spec":{"nodePool":"a","nodePool":"b","foo":1}}"#;
    let post = async |name: &str, mode: &str| {
        let path = format!("{}?fieldValidation={mode}", pilots());
        server.send("POST", &path, &[], body.replace("NAME", name)).await
    };
    let strict = post("a", "Strict").await.refusal(400, "BadRequest");
    let message = strict["message"].as_str().unwrap();
    assert!(message.contains("strict decoding error: unknown field \"spec.foo\""), "{message}");
    assert!(message.contains("duplicate field \"spec.nodePool\""), "{message}");
    let several = body.replace("NAME", "Not_A_Name");
    let path = format!("{}?fieldValidation=Strict", pilots());
    let told = server.send("POST", &path, &[], several).await.refusal(400, "BadRequest");
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("unknown field \"spec.foo\""), "{message}");
    assert!(message.contains("; besides: metadata.name: Invalid value"), "{message}");
    for (name, mode, warned) in [("b", "Warn", 2), ("c", "", 2), ("d", "Ignore", 0)] {
        let answer = post(name, mode).await;
        let created = answer.expect(201);
        assert!(created["spec"].get("foo").is_none());
        assert_eq!(created["spec"]["nodePool"], "b");
        assert_eq!(answer.warnings.len(), warned, "{mode}: {:?}", answer.warnings);
    }
    let again = post("b", "Warn").await;
    again.refusal(409, "AlreadyExists");
    assert_eq!(again.warnings.len(), 2, "a refusal carries them, too: {:?}", again.warnings);
}

#[tokio::test]
async fn dry_run_answers_and_stores_nothing() {
    let server = Server::start().await;
    let created = server.post(&format!("{}?dryRun=All", pilots()), &pilot("a")).await.expect(201);
    assert!(created["metadata"]["uid"].is_string());
    assert!(created["metadata"].get("resourceVersion").is_none());
    let path = format!("{}/a", pilots());
    server.get(&path).await.refusal(404, "NotFound");

    let stored = server.pilot("a").await;
    server
        .post(&format!("{}?dryRun=All", pilots()), &pilot("a"))
        .await
        .refusal(409, "AlreadyExists");
    let dry = format!("{path}?dryRun=All");
    let patched = server.merge(&dry, &json!({"spec": {"phase": "Stopped"}})).await.expect(200);
    assert_eq!(
        (&patched["spec"]["phase"], &patched["metadata"]["generation"]),
        (&json!("Stopped"), &json!(2))
    );
    server.delete(&dry, &json!({})).await.expect(200);
    server.delete(&path, &json!({"dryRun": ["All"]})).await.expect(200);
    assert_eq!(server.get(&path).await.expect(200), stored);
    server.post(&format!("{}?dryRun=Some", pilots()), &pilot("b")).await.refusal(422, "Invalid");
}

#[tokio::test]
async fn only_a_change_of_spec_is_a_new_generation() {
    let server = Server::start().await;
    let path = format!("{}/a", pilots());
    let mut object = server.pilot("a").await;
    object["metadata"]["labels"] = json!({"x": "y"});
    let labelled = server.put(&path, &object).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    assert!(revision(&labelled) > revision(&object));

    let mut changed = labelled.clone();
    changed["spec"]["phase"] = json!("Stopped");
    changed["metadata"]["generation"] = json!(99);
    changed["metadata"]["creationTimestamp"] = json!(null);
    changed["metadata"]["uid"] = json!("");
    let changed = server.put(&path, &changed).await.expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    assert_eq!(changed["metadata"]["uid"], object["metadata"]["uid"]);
    assert_eq!(changed["metadata"]["creationTimestamp"], object["metadata"]["creationTimestamp"]);

    let mut status = changed.clone();
    status["status"] = json!({"phase": "Running"});
    status["spec"]["phase"] = json!("Running");
    status["metadata"]["labels"] = json!({"ignored": "here"});
    let reported = server.put(&format!("{path}/status"), &status).await.expect(200);
    assert_eq!(reported["metadata"]["generation"], 2);
    assert_eq!(reported["status"]["phase"], "Running");
    assert_eq!(reported["spec"], changed["spec"]);
    assert_eq!(reported["metadata"]["labels"], json!({"x": "y"}));
    assert_eq!(server.get(&format!("{path}/status")).await.expect(200), reported);
}

#[tokio::test]
async fn the_main_resource_ignores_status_and_says_so() {
    let server = Server::start().await;
    let mut body = pilot("a");
    body["status"] = json!({"phase": "Running"});
    let answer = server.post(&pilots(), &body).await;
    let created = answer.expect(201);
    assert!(created["status"].get("phase").is_none(), "{created}");
    assert!(answer.warnings.iter().any(|text| text.starts_with("status is ignored")), "{answer:?}");
    let mut changed = created.clone();
    changed["status"] = json!({"phase": "Failed"});
    let path = format!("{}/a", pilots());
    let answer = server.put(&path, &changed).await;
    assert_eq!(answer.expect(200), created, "nothing was written");
    assert!(answer.warnings.iter().any(|text| text.starts_with("status is ignored")), "{answer:?}");
}

#[tokio::test]
async fn an_update_keeps_the_identity_of_the_object() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let mut changed = object.clone();
    let metadata = changed["metadata"].as_object_mut().unwrap();
    metadata.remove("uid");
    for (field, value) in [
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("generation", json!(77)),
        ("generateName", json!("b")),
        ("labels", json!({"a": "b"})),
    ] {
        metadata.insert(field.to_owned(), value);
    }
    let updated = server.put(&format!("{}/a", pilots()), &changed).await.expect(200).clone();
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "generateName"] {
        assert_eq!(updated["metadata"][field], object["metadata"][field], "{field}");
    }
    assert_eq!(updated["metadata"]["labels"], json!({"a": "b"}));
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let before = server.store.current_revision().await.unwrap();
    assert_eq!(server.put(&path, &object).await.expect(200), object);
    assert_eq!(server.merge(&path, &json!({"spec": {"nodePool": "a"}})).await.expect(200), object);
    assert_eq!(server.store.current_revision().await.unwrap(), before);
}

#[tokio::test]
async fn what_update_refuses() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let mut newer = object.clone();
    newer["spec"]["phase"] = json!("Stopped");
    server.put(&path, &newer).await.expect(200);

    let rows: [(&str, Value, u16, &str, &str); 5] = [
        (
            "stale",
            newer.clone(),
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version and try again",
        ),
        (
            "no revision",
            {
                let mut o = newer.clone();
                o["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                o
            },
            422,
            "Invalid",
            "pilots.navigator.jetstack.io \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ),
        (
            "other name",
            {
                let mut o = newer.clone();
                o["metadata"]["name"] = json!("b");
                o
            },
            400,
            "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            "other uid",
            {
                let mut o = newer.clone();
                o["metadata"]["uid"] = json!("u");
                o
            },
            409,
            "Conflict",
            "Precondition failed: UID in precondition: u, UID in object meta: ",
        ),
        (
            "other namespace",
            {
                let mut o = newer.clone();
                o["metadata"]["namespace"] = json!("x");
                o
            },
            400,
            "BadRequest",
            "the namespace of the provided object does not match",
        ),
    ];
    for (what, body, code, reason, text) in rows {
        let status = server.put(&path, &body).await.refusal(code, reason);
        assert!(status["message"].as_str().unwrap().contains(text), "{what}: {status}");
    }
    let missing = format!("{}/nope", pilots());
    let mut other = object.clone();
    other["metadata"]["name"] = json!("nope");
    server.put(&missing, &other).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn admission_has_the_last_word_on_writes() {
    let server = Server::start().await;
    server.pilot("a").await;
    let refusal = ApiError::namespace_terminating(
        GroupResource { group: GROUP, resource: "pilots" },
        "b",
        "db",
    );
    *server.gatekeeper.always.lock().unwrap() = Some(refusal);
    let status = server.post(&pilots(), &pilot("b")).await.refusal(403, "Forbidden");
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.namespace");
    let path = format!("{}/a", pilots());
    server.merge(&path, &json!({"spec": {"phase": "Stopped"}})).await.refusal(403, "Forbidden");
    server.delete(&path, &json!({})).await.refusal(403, "Forbidden");
    server.get(&path).await.expect(200);
}

#[tokio::test]
async fn owners_named_twice_count_once() {
    let server = Server::start().await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let mut body = pilot("a");
    body["metadata"]["ownerReferences"] = json!([owner, owner]);
    let answer = server.post(&pilots(), &body).await;
    assert_eq!(answer.expect(201)["metadata"]["ownerReferences"], json!([owner]));
    assert!(answer.warnings[0].contains("duplicate UID(s) observed: u"), "{:?}", answer.warnings);
}
