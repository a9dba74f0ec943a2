//! Which manager owns which field: the entries that a server keeps, line by line of upstream's
//! rules.

use serde_json::{Value, json};

use super::{
    ALPHA, Server,
    apply::{managers, pilot},
    cassandra, pilots,
};

/// What an entry says, without its time. An apply that changed nothing has none.
fn entries(object: &Value) -> Vec<Value> {
    let mut entries = object["metadata"]["managedFields"].as_array().unwrap().clone();
    for entry in &mut entries {
        let time = entry["time"].take();
        let timed = time.as_str().is_some_and(|time| time.ends_with('Z'));
        assert!(timed || time.is_null() && entry["operation"] == "Apply", "{entry}");
        entry.as_object_mut().unwrap().remove("time");
    }
    entries
}

fn path() -> String {
    format!("{}/a", pilots())
}

fn labelled(name: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {name: value}}})
}

#[tokio::test]
async fn a_new_object_is_its_creators_but_for_what_the_server_writes() {
    let server = Server::start().await;
    let mut made = pilot("v1beta1", &json!({"nodePool": "a"}));
    made["metadata"]["finalizers"] = json!(["a.example.com/b"]);
    made["metadata"]["labels"] = json!({"x": "y"});
    made["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u"}]);
    let agent = [("content-type", "application/json"), ("user-agent", "tool/v1 (linux) x/y")];
    let created = server.send("POST", &pilots(), &agent, made.to_string()).await.expect(201);
    let expected = json!({
        "manager": "tool",
        "operation": "Update",
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:finalizers": {".": {}, "v:\"a.example.com/b\"": {}},
                "f:labels": {".": {}, "f:x": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"u\"}": {}},
            },
            "f:spec": created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"],
        },
    });
    assert_eq!(entries(&created), [expected]);
    let spec = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(spec["f:nodePool"], json!({}), "{created}");
}

#[tokio::test]
async fn whoever_gives_no_name_has_that_of_the_program() {
    let server = Server::start().await;
    let long = "é".repeat(100);
    for (at, (agent, query, expected)) in [
        ("kubectl/v1.34.0 (linux/amd64) kubernetes/abc", "", "kubectl"),
        ("", "", "unknown"),
        ("/nothing", "", "unknown"),
        (&long, "", &"é".repeat(64)),
        ("kubectl/v1", "?fieldManager=mine", "mine"),
    ]
    .into_iter()
    .enumerate()
    {
        let headers = [("content-type", "application/json"), ("user-agent", agent)];
        let mut made = pilot("v1beta1", &json!({"nodePool": "a"}));
        made["metadata"]["name"] = json!(format!("p{at}"));
        let path = format!("{}{query}", pilots());
        let created = server.send("POST", &path, &headers, made.to_string()).await.expect(201);
        assert_eq!(managers(&created), [format!("Update {expected}")], "{agent}");
    }
}

/// Updates of two versions are two managers; applies of two versions are one.
#[tokio::test]
async fn a_manager_is_its_name_operation_part_and_in_updates_its_version() {
    let server = Server::start().await;
    server.pilot("a").await;
    let alpha = format!("{ALPHA}/namespaces/db/pilots/a");
    server.merge(&format!("{}?fieldManager=m", path()), &labelled("b", "1")).await.expect(200);
    server.merge(&format!("{alpha}?fieldManager=m"), &labelled("a", "1")).await.expect(200);
    let report = json!({"status": {"phase": "Running"}});
    server.merge(&format!("{}/status?fieldManager=m", path()), &report).await.expect(200);
    let applied = pilot("v1beta1", &json!({"phase": "Running"}));
    server.apply(&path(), "m", &applied).await.expect(200);
    let older = pilot("v1alpha1", &json!({}));
    server.apply(&alpha, "m", &older).await.expect(200);
    let mut older = older;
    older["metadata"]["labels"] = json!({"c": "1"});
    server.apply(&alpha, "m", &older).await.expect(200);

    let shown = server.get(&path()).await.expect(200);
    let named: Vec<(String, String)> = managers(&shown)
        .into_iter()
        .zip(entries(&shown))
        .map(|(name, entry)| (name, entry["apiVersion"].as_str().unwrap()[22..].to_owned()))
        .collect();
    let named: Vec<(&str, &str)> = named.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    // Applies first; then by time, which may be the same, by name and by version.
    let expected = [
        ("Apply m", "v1alpha1"),
        ("Update m", "v1alpha1"),
        ("Update m", "v1beta1"),
        ("Update m/status", "v1beta1"),
        ("Update unknown", "v1beta1"),
    ];
    let (mut sorted, mut wanted) = (named.clone(), expected.to_vec());
    sorted.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(sorted, wanted);
    assert_eq!(named[0], expected[0]);
    let times: Vec<&str> = shown["metadata"]["managedFields"].as_array().unwrap()[1..]
        .iter()
        .map(|entry| entry["time"].as_str().unwrap())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn the_oldest_of_more_than_ten_updaters_become_one() {
    let server = Server::start().await;
    server.pilot("a").await;
    for at in 0..12 {
        let patch = labelled(&format!("l{at:02}"), "1");
        server.merge(&format!("{}?fieldManager=m{at:02}", path()), &patch).await.expect(200);
    }
    server.apply(&path(), "apart", &pilot("v1beta1", &json!({"nodePool": "a"}))).await.expect(200);
    let shown = server.get(&path()).await.expect(200);
    let named = managers(&shown);
    assert_eq!(named.len(), 11, "{named:?}");
    assert!(named.contains(&"Update ancient-changes".to_owned()), "{named:?}");
    assert!(named.contains(&"Update m11".to_owned()), "{named:?}");
    let ancient = entries(&shown).into_iter().find(|entry| entry["manager"] == "ancient-changes");
    let fields = &ancient.unwrap()["fieldsV1"];
    // Time is in whole seconds: of those of the same second, the first by name is the oldest.
    assert_eq!(fields["f:metadata"]["f:labels"]["f:l00"], json!({}), "{shown}");
}

#[tokio::test]
async fn what_clients_say_of_owners_counts_where_it_makes_sense() {
    let server = Server::start().await;
    let made = server.pilot("a").await;
    let with = |object: &Value, entries: &Value| {
        let mut object = object.clone();
        object["metadata"]["managedFields"] = entries.clone();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object
    };
    let send = async |path: &str, entries: &Value| {
        let mut object = with(&made, entries);
        let live = server.get(&self::path()).await.expect(200);
        object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        server.put(path, &object).await
    };
    let before = entries(&made);

    // Without entries, or with invalid ones, those that are there stay.
    let broken = json!([{"manager": "x", "operation": "Dance", "apiVersion": "v1"}]);
    let no_set = json!([{
        "manager": "x", "operation": "Update", "apiVersion": "navigator.jetstack.io/v1beta1",
        "fieldsType": "FieldsV1", "fieldsV1": {"nonsense": {}},
    }]);
    for given in [json!(null), broken, no_set, json!([{"manager": "x"}])] {
        let answer = send(&path(), &given).await.expect(200);
        assert_eq!(entries(&answer), before, "{given}");
    }
    // What is no list of entries at all is refused.
    for given in [json!("x"), json!([1]), json!([{"manager": 1}])] {
        let status = send(&path(), &given).await.refusal(400, "BadRequest");
        let text = status["message"].as_str().unwrap();
        assert!(text.contains("cannot be handled as a Pilot: metadata.managedFields"), "{text}");
    }
    // A client may say who owns what.
    let mut own = made["metadata"]["managedFields"].clone();
    own[0]["manager"] = json!("another");
    let answer = send(&path(), &own).await.expect(200);
    assert_eq!(managers(&answer), ["Update another"]);
    // A write of the status does not change owners.
    own[0]["manager"] = json!("third");
    let answer = send(&format!("{}/status", path()), &own).await.expect(200);
    assert_eq!(managers(&answer), ["Update another"]);
    let answer = send(&format!("{}/status", path()), &json!([])).await.expect(200);
    assert_eq!(managers(&answer), ["Update another"]);
    // A version that is not served owns nothing after the next write.
    let mut two = made["metadata"]["managedFields"].clone();
    let mut gone = two[0].clone();
    gone["manager"] = json!("gone");
    gone["apiVersion"] = json!("navigator.jetstack.io/v1alpha9");
    two.as_array_mut().unwrap().push(gone);
    let answer = send(&path(), &two).await.expect(200);
    assert_eq!(managers(&answer), ["Update unknown"]);
    // An empty list, or an empty entry, removes all entries.
    for reset in [json!([]), json!([{}])] {
        server.apply(&path(), "me", &pilot("v1beta1", &json!({"nodePool": "a"}))).await.expect(200);
        let answer = send(&path(), &reset).await.expect(200);
        assert_eq!(answer["metadata"].get("managedFields"), None, "{reset}");
    }
}

/// A JSON patch is the only patch that can look at owners.
#[tokio::test]
async fn a_json_patch_may_look_at_owners() {
    let server = Server::start().await;
    server.pilot("a").await;
    let headers = [("content-type", "application/json-patch+json")];
    let send = async |operations: Value| {
        server.send("PATCH", &path(), &headers, operations.to_string()).await
    };
    let manager = "/metadata/managedFields/0/manager";
    send(json!([{"op": "test", "path": manager, "value": "other"}])).await.expect(422);
    let renamed = json!([
        {"op": "test", "path": manager, "value": "unknown"},
        {"op": "replace", "path": manager, "value": "renamed"},
    ]);
    assert_eq!(managers(&send(renamed).await.expect(200)), ["Update renamed"]);
    let copied = json!([{
        "op": "copy", "from": manager, "path": "/metadata/labels",
    }]);
    send(copied).await.expect(422);
    let gone = json!([{"op": "replace", "path": "/metadata/managedFields", "value": []}]);
    let answer = send(gone).await.expect(200);
    assert_eq!(answer["metadata"].get("managedFields"), None);
}

#[tokio::test]
async fn what_a_part_cannot_change_nobody_owns_through_it() {
    let server = Server::start().await;
    let mut whole = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Stopped"}));
    whole["status"] = json!({"phase": "Running"});
    whole["metadata"]["labels"] = json!({"x": "y"});
    let created = server.apply(&path(), "main", &whole).await.expect(201);
    assert_eq!(created["status"]["phase"], Value::Null, "{created}");
    let fields = &entries(&created)[0]["fieldsV1"];
    assert_eq!(fields.get("f:status"), None, "{fields}");

    whole["spec"]["phase"] = json!("Running");
    whole["metadata"]["labels"] = json!({"x": "z"});
    let status = format!("{}/status", path());
    let reported = server.apply(&status, "part", &whole).await.expect(200);
    let found = json!([
        reported["spec"]["phase"],
        reported["metadata"]["labels"]["x"],
        reported["status"]["phase"],
    ]);
    assert_eq!(found, json!(["Stopped", "y", "Running"]));
    let own = entries(&reported).into_iter().find(|entry| entry["subresource"] == "status");
    assert_eq!(own.unwrap()["fieldsV1"], json!({"f:status": {"f:phase": {}}}));

    whole["status"]["phase"] = json!("Stopped");
    let conflict = server.apply(&status, "third", &whole).await.refusal(409, "Conflict");
    let text = "Apply failed with 1 conflict: conflict with \"part\" with subresource \"status\": \
                .status.phase";
    assert_eq!(conflict["message"], text);
}

#[tokio::test]
async fn many_conflicts_are_told_by_manager() {
    let server = Server::start().await;
    server.pilot("a").await;
    for (manager, patch) in [
        ("b", json!({"metadata": {"labels": {"b": "1"}}})),
        ("a", json!({"metadata": {"labels": {"a": "1"}}, "spec": {"phase": "Stopped"}})),
    ] {
        server.merge(&format!("{}?fieldManager={manager}", path()), &patch).await.expect(200);
    }
    let mut wanted = pilot("v1beta1", &json!({"phase": "Running"}));
    wanted["metadata"]["labels"] = json!({"a": "2", "b": "2"});
    let status = server.apply(&path(), "me", &wanted).await.refusal(409, "Conflict");
    let text = "Apply failed with 3 conflicts: \
                conflicts with \"a\" using navigator.jetstack.io/v1beta1:\n\
                - .metadata.labels.a\n- .spec.phase\n\
                conflicts with \"b\" using navigator.jetstack.io/v1beta1:\n\
                - .metadata.labels.b";
    assert_eq!(status["message"], text);
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 3, "{status}");
    assert!(causes.iter().all(|cause| cause["reason"] == "FieldManagerConflict"), "{status}");
}

/// `kubectl apply` kept what it applied in an annotation. Its server-side apply takes that over.
#[tokio::test]
async fn kubectl_takes_over_from_its_client_side_apply() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let server = Server::start().await;
    let mut made = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Running"}));
    let last = format!("{made}\n");
    made["metadata"]["annotations"] = json!({LAST: last});
    let create = format!("{}?fieldManager=kubectl-client-side-apply", pilots());
    server.post(&create, &made).await.expect(201);

    let wanted = pilot("v1beta1", &json!({"nodePool": "a", "phase": "Stopped"}));
    server.apply(&path(), "another", &wanted).await.refusal(409, "Conflict");
    let applied = server.apply(&path(), "kubectl", &wanted).await.expect(200);
    assert_eq!(applied["spec"]["phase"], "Stopped");
    let annotation = applied["metadata"]["annotations"][LAST].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), wanted);

    // A field that another manager changed since is no longer what was applied.
    let patch = json!({"spec": {"phase": "Running"}});
    server.merge(&format!("{}?fieldManager=other", path()), &patch).await.expect(200);
    server.apply(&path(), "kubectl", &wanted).await.refusal(409, "Conflict");
}

/// As every client does: get, change, put. An object whose owners are as long as itself.
#[tokio::test]
async fn a_large_object_is_put_with_its_owners() {
    let server = Server::start().await;
    let collection = format!("{}/namespaces/db/cassandraclusters", super::BETA);
    let mut made = cassandra("large");
    let pools = |settings: usize| -> Vec<Value> {
        let setting = |at| (format!("some.{}.setting_of_{at}", "long".repeat(9)), json!("1"));
        let config: serde_json::Map<_, _> = (0..settings).map(setting).collect();
        let pool = |at| {
            json!({
                "name": format!("p{at}"), "replicas": 1, "config": config,
                "persistence": {"size": "1Gi"},
            })
        };
        (0..50).map(pool).collect()
    };
    made["spec"]["nodePools"] = pools(200).into();
    let created = server.post(&collection, &made).await.expect(201);
    let owners = created["metadata"]["managedFields"].to_string().len();
    assert!(owners > 400_000, "{owners} bytes");
    let path = format!("{collection}/large");
    let mut next = created.clone();
    next["metadata"]["labels"] = json!({"a": "b"});
    let answer = server.put(&path, &next).await.expect(200);
    assert_eq!(managers(&answer), ["Update unknown"]);

    // An object that the store takes only without its owners is stored without them.
    next = answer;
    next["spec"]["nodePools"] = pools(300).into();
    let answer = server.put(&path, &next).await.expect(200);
    assert_eq!(answer["metadata"].get("managedFields"), None);
    assert_eq!(server.get(&path).await.expect(200), answer);
    made["metadata"]["name"] = json!("larger");
    made["spec"]["nodePools"] = pools(300).into();
    let created = server.post(&collection, &made).await.expect(201);
    assert_eq!(created["metadata"].get("managedFields"), None);
    // A client that applies wants to own fields, and is told that they are too much.
    made["metadata"]["name"] = json!("applied");
    server
        .apply(&format!("{collection}/applied"), "me", &made)
        .await
        .refusal(413, "RequestEntityTooLarge");
}

/// A client must be able to read a list with the object: serde_json reads 127 levels.
#[tokio::test]
async fn owners_nest_no_deeper_than_objects() {
    let server = Server::start().await;
    let json = [("content-type", "application/json")];
    for (levels, code) in [(40, 201), (98, 201), (110, 400), (124, 400), (1000, 400)] {
        let fields = format!("{}{}", "{\"f:x\":".repeat(levels) + "{}", "}".repeat(levels));
        let body = format!(
            "{{\"metadata\":{{\"name\":\"d{levels}\",\"managedFields\":[{{\"manager\":\"m\",\
             \"operation\":\"Update\",\"apiVersion\":\"navigator.jetstack.io/v1beta1\",\
             \"fieldsType\":\"FieldsV1\",\"fieldsV1\":{{\"f:spec\":{fields}}}}}]}},\
             \"spec\":{{\"nodePool\":\"a\"}}}}"
        );
        let answer = server.send("POST", &pilots(), &json, body).await;
        assert_eq!(answer.code, code, "{levels} levels: {}", answer.text());
    }
    let partial = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    for accept in [
        "application/json".to_owned(),
        "application/yaml".to_owned(),
        "application/json;pretty=1".to_owned(),
        "application/json;as=Table;g=meta.k8s.io;v=v1".to_owned(),
        format!("application/json;{partial}"),
        format!("application/vnd.kubernetes.protobuf;{partial}"),
    ] {
        let headers = [("accept", accept.as_str())];
        let answer = server.send("GET", &pilots(), &headers, String::new()).await;
        assert_eq!(answer.code, 200, "{accept}");
        if accept.starts_with("application/json") {
            serde_json::from_slice::<Value>(&answer.body).expect("it is no deeper than is read");
        }
    }
}
