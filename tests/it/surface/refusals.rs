//! What is not served, and that nothing is called absent before that is known.

use navigator::apiserver::store_identity::StoreVerdict;
use serde_json::{Value, json};

use super::{ALPHA, Answer, BETA, Server, pilot, pilots};

#[tokio::test]
async fn paths_outside_of_the_api_are_404_with_a_status() {
    let server = Server::start().await;
    for path in [
        format!("{BETA}/namespaces/db/nopes"),
        format!("{BETA}/namespaces/db/pilots/a/scale"),
        format!("{BETA}/namespaces/db/pilots/a/status/x"),
        format!("{BETA}/namespaces/db/leaderleases/a/status"),
        format!("{ALPHA}/namespaces/db/leaderleases"),
        // A namespaced object has no name without its namespace.
        format!("{BETA}/pilots/a"),
        "/apis/navigator.jetstack.io/v1/namespaces/db/pilots".into(),
        "/apis/other.example.org/v1/namespaces/db/pilots".into(),
    ] {
        let status = server.get(&path).await.refusal(404, "NotFound");
        assert_eq!(status["message"], "the server could not find the requested resource", "{path}");
        assert_eq!(status["details"], json!({}), "{path}");
    }
    let status = server.get(&format!("{}/a", pilots())).await.refusal(404, "NotFound");
    assert_eq!(status["message"], "pilots.navigator.jetstack.io \"a\" not found");
    assert_eq!(
        status["details"],
        json!({"name": "a", "group": "navigator.jetstack.io", "kind": "pilots"})
    );
}

#[tokio::test]
async fn methods_that_a_path_does_not_have_are_405() {
    let server = Server::start().await;
    server.pilot("a").await;
    let one = format!("{}/a", pilots());
    for (method, path) in [
        ("POST", one.clone()),
        ("PUT", pilots()),
        ("PATCH", pilots()),
        ("DELETE", format!("{one}/status")),
        // Writes need a namespace.
        ("POST", format!("{BETA}/pilots")),
        ("DELETE", format!("{BETA}/pilots")),
        ("OPTIONS", one.clone()),
    ] {
        let answer = server.write(method, &path, &pilot("a")).await;
        answer.refusal(405, "MethodNotAllowed");
    }
    assert_eq!(server.send("HEAD", &one, &[], "").await.code, 405);
    server.get(&one).await.expect(200);
}

/// Kubernetes' garbage collector deletes what an absent owner owned.
#[tokio::test]
async fn a_store_that_is_not_ours_is_503_and_never_404() {
    let server = Server::start().await;
    let object = server.pilot("a").await;
    for verdict in [
        StoreVerdict::Unknown("nobody has looked yet".into()),
        StoreVerdict::Foreign("the store was lost; see docs/store.md".into()),
    ] {
        let (StoreVerdict::Unknown(why) | StoreVerdict::Foreign(why)) = verdict.clone() else {
            unreachable!("both carry a text")
        };
        server.verdict.send(verdict).unwrap();
        let one = format!("{}/a", pilots());
        for (method, path, body) in [
            ("GET", one.clone(), json!(null)),
            ("GET", format!("{}/nope", pilots()), json!(null)),
            ("GET", pilots(), json!(null)),
            ("GET", format!("{}?watch=1", pilots()), json!(null)),
            ("POST", pilots(), pilot("b")),
            ("PUT", one.clone(), object.clone()),
            ("DELETE", one.clone(), json!({})),
            ("DELETE", pilots(), json!({})),
        ] {
            let answer = server.write(method, &path, &body).await;
            let status = answer.refusal(503, "ServiceUnavailable");
            assert_eq!(status["message"], why.as_str(), "{method} {path}");
            assert_eq!(answer.headers["retry-after"], "5");
        }
        assert_eq!(server.get("/healthz").await.code, 500);
        server.get("/apis").await.expect(200);
    }
    server.verdict.send(StoreVerdict::Ours).unwrap();
    assert_eq!(server.get(&format!("{}/a", pilots())).await.expect(200), object);
}

#[tokio::test]
async fn a_request_without_a_user_is_not_served() {
    let server = Server::start().await;
    let request = http::Request::get(pilots()).body(axum::body::Body::empty()).unwrap();
    let Ok(response) = tower::ServiceExt::oneshot(server.router.clone(), request).await;
    assert_eq!(response.status(), 401);
}

/// What a write is about is authorized and recorded by its URL.
#[tokio::test]
async fn no_write_reaches_what_its_url_does_not_name() {
    let server = Server::start().await;
    let stored = server.pilot("a").await;
    let one = format!("{}/a", pilots());
    let (missing, status) = (format!("{}/c", pilots()), format!("{one}/status"));
    for (what, path, other) in [
        ("name", ["metadata", "name"].as_slice(), "b"),
        ("namespace", &["metadata", "namespace"], "other"),
        ("kind", &["kind"], "LeaderLease"),
        ("version", &["apiVersion"], "other.example.org/v1"),
    ] {
        let set = |mut object: Value| {
            let field = path.iter().fold(&mut object, |value, name| &mut value[*name]);
            *field = json!(other);
            object
        };
        let operation =
            json!([{"op": "add", "path": format!("/{}", path.join("/")), "value": other}]);
        let json_patch = [("content-type", "application/json-patch+json")];
        let mut answers = vec![
            ("update", server.put(&one, &set(stored.clone())).await),
            ("update of the status", server.put(&status, &set(stored.clone())).await),
            ("merge patch", server.merge(&one, &set(json!({}))).await),
            ("merge patch of the status", server.merge(&status, &set(json!({}))).await),
            ("JSON patch", server.send("PATCH", &one, &json_patch, operation.to_string()).await),
            ("apply", server.apply(&one, "me", &set(pilot("a"))).await),
            ("apply that creates", server.apply(&missing, "me", &set(pilot("c"))).await),
            ("apply of the status", server.apply(&status, "me", &set(pilot("a"))).await),
        ];
        // The URL of a create names no object.
        if what != "name" {
            answers.push(("create", server.post(&pilots(), &set(pilot("c"))).await));
        }
        if what == "kind" {
            answers.push(("delete", server.delete(&one, &set(json!({}))).await));
            answers.push(("deletecollection", server.delete(&pilots(), &set(json!({}))).await));
        }
        for (verb, answer) in answers {
            assert_eq!(answer.code, 400, "{verb}, another {what}: {}", answer.text());
        }
    }
    let listed = server.get(&format!("{BETA}/pilots")).await.expect(200);
    assert_eq!(listed["items"], json!([stored]));
}

/// What is small by nature stays so; what is larger already may shrink.
#[tokio::test]
async fn a_lease_and_a_pilot_have_sizes_of_their_own() {
    let server = Server::start().await;
    let leases = format!("{BETA}/namespaces/db/leaderleases");
    let lease = |length: usize| {
        json!({
            "metadata": {"name": "l", "annotations": {"text": "x".repeat(length)}},
            "spec": {"holderIdentity": "a"},
        })
    };
    let large_pilot = |length: usize| {
        let mut pilot = pilot("p");
        pilot["metadata"]["annotations"] = json!({"text": "x".repeat(length)});
        pilot
    };
    let told = |answer: &Answer| {
        let status = answer.refusal(413, "RequestEntityTooLarge");
        status["message"].as_str().unwrap().to_owned()
    };
    let refused = told(&server.post(&leases, &lease(17_000)).await);
    assert!(refused.contains("a LeaderLease may have 16384"), "{refused}");
    let mut known = server.post(&leases, &lease(15_000)).await.expect(201);
    known["metadata"]["annotations"]["text"] = json!("x".repeat(17_000));
    told(&server.put(&format!("{leases}/l"), &known).await);
    told(&server.merge(&format!("{leases}/l"), &lease(17_000)).await);
    let refused = told(&server.post(&pilots(), &large_pilot(262_000)).await);
    assert!(refused.contains("a Pilot may have 262144"), "{refused}");
    server.post(&pilots(), &large_pilot(250_000)).await.expect(201);
}
