//! Server-side apply: owners, conflicts, versions, the status, and objects without managed fields.

use navigator::{
    api::GROUP,
    apiserver::status::{ApiError, GroupResource},
};
use serde_json::{Value, json};

use super::{ALPHA, Answer, Server, cassandra, pilots};

impl Server {
    pub(super) async fn apply(&self, path: &str, manager: &str, object: &Value) -> Answer {
        let headers = [("content-type", "application/apply-patch+yaml")];
        let more = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{more}fieldManager={manager}");
        self.send("PATCH", &path, &headers, object.to_string()).await
    }
}

pub(super) fn pilot(version: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("navigator.jetstack.io/{version}"),
        "kind": "Pilot",
        "metadata": {"name": "a"},
        "spec": spec,
    })
}

pub(super) fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let part = |entry: &Value| match text(entry, "subresource").as_str() {
        "" => String::new(),
        name => format!("/{name}"),
    };
    let named = |entry: &Value| {
        format!("{} {}{}", text(entry, "operation"), text(entry, "manager"), part(entry))
    };
    entries.iter().map(named).collect()
}

/// Others create the object and delete it again, and at last the namespace goes.
#[tokio::test]
async fn a_missing_namespace_is_told_after_any_number_of_clashes() {
    let namespaces = GroupResource { group: "", resource: "namespaces" };
    for clashes in 0..5 {
        let server = Server::start().await;
        let mut refusals = vec![ApiError::not_found(namespaces, "db")];
        refusals.resize(
            clashes + 1,
            ApiError::already_exists(GroupResource { group: GROUP, resource: "pilots" }, "a"),
        );
        *server.gatekeeper.in_turn.lock().unwrap() = refusals;
        let wanted = pilot("v1beta1", &json!({"nodePool": "a"}));
        let answer = server.apply(&format!("{}/a", pilots()), "me", &wanted).await;
        let status = answer.refusal(404, "NotFound");
        assert_eq!(status["details"]["kind"], "namespaces", "{clashes}: {status}");
    }
}

#[tokio::test]
async fn an_apply_creates_then_changes_then_takes_back() {
    let server = Server::start().await;
    let path = format!("{}/a", pilots());
    let mut wanted = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Running"}));
    wanted["metadata"]["labels"] = json!({"x": "y"});
    let created = server.apply(&path, "me", &wanted).await.expect(201);
    assert_eq!(managers(&created), ["Apply me"]);
    let fields = &created["metadata"]["managedFields"][0]["fieldsV1"];
    let expected = json!({
        "f:metadata": {"f:labels": {"f:x": {}}},
        "f:spec": {"f:nodePool": {}, "f:phase": {}},
    });
    assert_eq!(*fields, expected);

    let again = server.apply(&path, "me", &wanted).await.expect(200);
    assert_eq!(again, created, "what changes nothing writes nothing");

    let less = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Running"}));
    let applied = server.apply(&path, "me", &less).await.expect(200);
    assert!(applied["metadata"].get("labels").is_none(), "{applied}");
    let trial = format!("{path}?dryRun=All");
    let tried = server.apply(&trial, "me", &wanted).await.expect(200);
    assert_eq!(tried["metadata"]["labels"]["x"], "y");
    assert_eq!(server.get(&path).await.expect(200), applied);
}

#[tokio::test]
async fn another_managers_value_is_a_conflict_until_forced() {
    let server = Server::start().await;
    let path = format!("{}/a", pilots());
    let first = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Running"}));
    server.apply(&path, "first", &first).await.expect(201);
    let second = pilot("v1beta1", &json!({"phase": "Stopped"}));
    let status = server.apply(&path, "second", &second).await.refusal(409, "Conflict");
    let text = "Apply failed with 1 conflict: conflict with \"first\": .spec.phase";
    assert_eq!(status["message"], text);
    let cause = json!({
        "reason": "FieldManagerConflict",
        "message": "conflict with \"first\"",
        "field": ".spec.phase",
    });
    assert_eq!(status["details"]["causes"], json!([cause]));
    let forced = server.apply(&format!("{path}?force=true"), "second", &second).await.expect(200);
    assert_eq!(forced["spec"]["phase"], "Stopped");
    assert_eq!(managers(&forced), ["Apply first", "Apply second"]);

    let patch = json!({"spec": {"phase": "Running"}});
    let updated = server.merge(&format!("{path}?fieldManager=third"), &patch).await.expect(200);
    assert_eq!(managers(&updated), ["Apply first", "Update third"]);
    let status = server.apply(&path, "second", &second).await.refusal(409, "Conflict");
    let text = "conflict with \"third\" using navigator.jetstack.io/v1beta1: .spec.phase";
    assert!(status["message"].as_str().unwrap().ends_with(text), "{status}");
}

#[tokio::test]
async fn status_has_owners_of_its_own() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{}/a/status", pilots());
    let mut report = pilot("v1beta1", &json!({"phase": "Stopped"}));
    report["status"] = json!({"phase": "Running"});
    let reported = server.apply(&path, "pilot", &report).await.expect(200);
    assert_eq!(reported["status"]["phase"], "Running");
    assert_ne!(reported["spec"]["phase"], "Stopped");
    assert_eq!(managers(&reported), ["Apply pilot/status", "Update unknown"]);
    let fields = json!({"f:status": {"f:phase": {}}});
    assert_eq!(reported["metadata"]["managedFields"][0]["fieldsV1"], fields);
    let missing = format!("{}/nope/status", pilots());
    server.apply(&missing, "pilot", &report).await.refusal(404, "NotFound");
}

#[tokio::test]
async fn managers_of_two_versions_share_an_object() {
    let server = Server::start().await;
    let beta = format!("{}/a", pilots());
    let alpha = format!("{ALPHA}/namespaces/db/pilots/a");
    let mut old = pilot("v1alpha1", &json!({}));
    old["metadata"]["labels"] = json!({"old": "1"});
    let new = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Running"}));
    server.apply(&beta, "new", &new).await.expect(201);
    let applied = server.apply(&alpha, "old", &old).await.expect(200);
    assert_eq!(managers(&applied), ["Apply new", "Apply old"]);
    old["metadata"]["labels"] = json!({});
    server.apply(&alpha, "old", &old).await.expect(200);
    let shown = server.get(&beta).await.expect(200);
    assert!(shown["metadata"].get("labels").is_none(), "{shown}");
    assert_eq!(shown["spec"]["phase"], "Running", "{shown}");
}

#[tokio::test]
async fn node_pools_are_owned_one_by_one() {
    let server = Server::start().await;
    let path = format!("{}/namespaces/db/cassandraclusters/c", super::BETA);
    let whole = cassandra("c");
    server.apply(&path, "first", &whole).await.expect(201);
    let mut second = whole.clone();
    second["spec"] = json!({"nodePools": [{"name": "other", "replicas": 1}]});
    let applied = server.apply(&path, "second", &second).await.expect(200);
    let pools = whole["spec"]["nodePools"].as_array().unwrap().len();
    assert_eq!(applied["spec"]["nodePools"].as_array().unwrap().len(), pools + 1);
    second["spec"] = json!({});
    let applied = server.apply(&path, "second", &second).await.expect(200);
    assert_eq!(applied["spec"]["nodePools"].as_array().unwrap().len(), pools);
    second["spec"] = json!({"nodePools": [{"name": "x"}, {"name": "x"}]});
    let refused = server.apply(&path, "second", &second).await;
    let text = ".spec.nodePools: duplicate entries for key [name=\"x\"]";
    assert!(
        refused.code == 500 && refused.text().contains(&text.replace('"', "\\\"")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_apply_refuses() {
    let server = Server::start().await;
    let path = format!("{}/a", pilots());
    let good = pilot("v1beta1", &json!({"nodePool": "a"}));
    let headers = [("content-type", "application/apply-patch+yaml")];
    let nobody = server.send("PATCH", &path, &headers, good.to_string()).await;
    let status = nobody.refusal(422, "Invalid");
    let text = "fieldManager: Required value: is required for apply patch";
    assert!(status["message"].as_str().unwrap().contains(text), "{status}");
    let older = pilot("v1alpha1", &json!({}));
    let status = server.apply(&path, "me", &older).await.refusal(400, "BadRequest");
    let text = "invalid object type: navigator.jetstack.io/v1alpha1, Kind=Pilot";
    assert_eq!(status["message"], text);
    for (api_version, kind, expected) in [
        (json!(null), json!("Pilot"), "/, Kind=Pilot"),
        (json!("v1"), json!("Pilot"), "/v1, Kind=Pilot"),
        (good["apiVersion"].clone(), json!("Pod"), "navigator.jetstack.io/v1beta1, Kind=Pod"),
    ] {
        let mut other = good.clone();
        other["apiVersion"] = api_version;
        other["kind"] = kind;
        let status = server.apply(&path, "me", &other).await.refusal(400, "BadRequest");
        assert_eq!(status["message"], format!("invalid object type: {expected}"));
    }
    let twice = good
        .to_string()
        .replace("\"spec\":{", "\"spec\":{\"phase\":\"Stopped\",\"phase\":\"Stopped\",");
    let strict = format!("{path}?fieldManager=me&fieldValidation=Strict");
    let status = server.send("PATCH", &strict, &headers, twice).await.refusal(400, "BadRequest");
    let text = "error strict decoding YAML: duplicate field \"spec.phase\"";
    assert_eq!(status["message"], text);
    let mut owned = good.clone();
    owned["metadata"]["managedFields"] = json!([]);
    let status = server.apply(&path, "me", &owned).await.refusal(400, "BadRequest");
    assert_eq!(status["message"], "metadata.managedFields must be nil");
    *server.rules.0.lock().unwrap() = Some("create");
    server.apply(&path, "me", &good).await.refusal(403, "Forbidden");
    *server.rules.0.lock().unwrap() = None;
    server.apply(&path, "me", &good).await.expect(201);
}

#[tokio::test]
async fn owners_can_be_forgotten_and_begin_anew_with_an_apply() {
    let server = Server::start().await;
    server.pilot("a").await;
    let path = format!("{}/a", pilots());
    let reset = json!({"metadata": {"managedFields": []}});
    let patched = server.merge(&path, &reset).await.expect(200);
    assert_eq!(managers(&patched), [""; 0]);
    let patch = json!({"spec": {"phase": "Running"}});
    let updated = server.merge(&path, &patch).await.expect(200);
    assert_eq!(managers(&updated), [""; 0]);
    let same = pilot("v1beta1", &json!({"phase": "Running"}));
    let applied = server.apply(&path, "me", &same).await.expect(200);
    assert_eq!(managers(&applied), ["Apply me", "Update before-first-apply"]);
}

/// A heartbeat changes the time of one entry; and what owners take, in bytes.
#[tokio::test]
async fn owners_of_a_pilot_take_little_and_stay_as_they_are() {
    let server = Server::start().await;
    let mut made = super::pilot("a");
    made["metadata"]["labels"] = json!({
        "app.kubernetes.io/managed-by": "navigator",
        "app.kubernetes.io/instance": "demo",
        "navigator.jetstack.io/cassandra-cluster-name": "demo",
        "navigator.jetstack.io/cassandra-node-pool-name": "a",
    });
    let path = format!("{}?fieldManager=navigator-controller", pilots());
    server.post(&path, &made).await.expect(201);
    let path = format!("{}/a/status?fieldManager=navigator-pilot", pilots());
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Tested", "message": "all is well",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let report = json!({"status": {
        "phase": "Running",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "conditions": [condition("Ready"), condition("StateSaved"), condition("ProgramCurrent")],
    }});
    let first = server.merge(&path, &report).await.expect(200);
    let named = ["Update navigator-controller", "Update navigator-pilot/status"];
    assert_eq!(managers(&first), named);

    let again = server.merge(&path, &report).await.expect(200);
    assert_eq!(again, first, "a report that changes nothing writes nothing");
    let beat = json!({"status": {"lastHeartbeatTime": "2026-01-01T00:00:30Z"}});
    let mut beaten = server.merge(&path, &beat).await.expect(200);
    assert_ne!(beaten["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let times = |object: &mut Value| {
        let entries = object["metadata"]["managedFields"].as_array_mut().unwrap();
        entries.iter_mut().map(|entry| entry["time"].take()).collect::<Vec<_>>()
    };
    let mut earlier = first.clone();
    assert_eq!(times(&mut beaten)[0], times(&mut earlier)[0], "the controller wrote nothing");
    assert_eq!(beaten["metadata"]["managedFields"], earlier["metadata"]["managedFields"]);

    let owners = first["metadata"]["managedFields"].to_string().len();
    let whole = first.to_string().len();
    assert!(owners < 1100, "{owners} of {whole} bytes: {first}");
}
