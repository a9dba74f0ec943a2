//! Watch: initial state, changes, selectors, bookmarks, ends.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use serde_json::{Value, json};

use super::{BETA, PATIENCE, Server, pilot, pilots, revision};
use navigator::apiserver::{storage::Revision, store_identity::StoreVerdict};

fn watch(query: &str) -> String {
    format!("{}?watch=true&{query}", pilots())
}

#[tokio::test]
async fn every_change_arrives_once_and_in_order() {
    let server = Server::start().await;
    let first = server.pilot("a").await;
    let mut lines =
        server.watch(&watch(&format!("resourceVersion={}", revision(&first))), "").await;
    server.pilot("b").await;
    let path = format!("{}/a", pilots());
    let changed = server.merge(&path, &json!({"spec": {"phase": "Stopped"}})).await.expect(200);
    server.delete(&path, &json!({})).await.expect(200);
    assert_eq!(lines.summary().await, "ADDED b");
    let event = lines.next().await.unwrap();
    assert_eq!(event, json!({"type": "MODIFIED", "object": changed}));
    let event = lines.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["spec"], changed["spec"]);
    assert!(revision(&event["object"]) > revision(&changed), "the deletion's own revision");
}

#[tokio::test]
async fn without_a_revision_the_state_comes_first() {
    for query in ["", "resourceVersion=0", "resourceVersion="] {
        let server = Server::start().await;
        for name in ["b", "a"] {
            server.pilot(name).await;
        }
        // Revision 0 means any state; a list at the latest one makes the cache catch up.
        server.get(&pilots()).await.expect(200);
        let mut lines = server.watch(&watch(query), "").await;
        assert_eq!(lines.summary().await, "ADDED a", "{query}");
        assert_eq!(lines.summary().await, "ADDED b", "{query}");
        server.pilot("c").await;
        assert_eq!(lines.summary().await, "ADDED c", "{query}");
    }
}

/// Each frame costs the server and its client a system call, and more.
#[tokio::test]
async fn lines_that_are_there_go_out_together_and_in_order() {
    let server = Server::start().await;
    let names: Vec<String> = (0..60).map(|number| format!("p{number:02}")).collect();
    for name in &names {
        server.pilot(name).await;
    }
    let mut frames = Vec::new();
    let mut lines = server.watch(&watch(""), "").await;
    let mut seen = Vec::new();
    while seen.len() < names.len() {
        let frame = tokio::time::timeout(PATIENCE, lines.stream.next()).await;
        let frame = frame.expect("the state comes at once").unwrap().unwrap();
        let text = std::str::from_utf8(&frame).unwrap();
        for line in text.strip_suffix('\n').expect("lines are whole").split('\n') {
            let event: Value = serde_json::from_str(line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-").to_owned();
            seen.push(name);
        }
        frames.push(frame.len());
    }
    assert_eq!(seen[..names.len()], names);
    let all: usize = frames.iter().sum();
    assert!(frames.iter().all(|length| *length <= 16 * 1024), "{frames:?}");
    assert!(frames.len() <= all / (8 * 1024) + 1, "{frames:?}");
}

/// What kube-controller-manager's informers send: without the marked bookmark they wait for ever.
#[tokio::test]
async fn a_watch_list_ends_its_state_with_a_marked_bookmark() {
    let server = Server::start().await;
    let last = ["a", "b"].map(|name| (name, server.pilot(name)));
    let mut latest = 0;
    for (_, created) in last {
        latest = revision(&created.await);
    }
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for rv in [String::new(), "0".into(), latest.to_string()] {
        let path = watch(&format!("{query}&resourceVersion={rv}"));
        let mut lines = server.watch(&path, "").await;
        assert_eq!(lines.summary().await, "ADDED a");
        assert_eq!(lines.summary().await, "ADDED b");
        let mark = lines.next().await.unwrap();
        assert_eq!(mark["type"], "BOOKMARK");
        let object = &mark["object"];
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("Pilot"), &json!("navigator.jetstack.io/v1beta1"))
        );
        assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        assert!(revision(object) >= latest, "{mark}");
    }
    // Metadata alone, through all namespaces.
    let path = format!("{BETA}/pilots?watch=1&{query}");
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let mut lines = server.watch(&path, accept).await;
    let event = lines.next().await.unwrap();
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert!(event["object"].get("spec").is_none());
    lines.next().await.unwrap();
    let mark = lines.next().await.unwrap();
    assert_eq!(mark["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn no_state_when_it_is_not_wanted() {
    let server = Server::start().await;
    server.pilot("a").await;
    let query = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=";
    let mut lines = server.watch(&watch(query), "").await;
    server.pilot("b").await;
    assert_eq!(lines.summary().await, "ADDED b");
}

#[tokio::test]
async fn entering_a_selection_is_added_and_leaving_it_is_deleted() {
    let server = Server::start().await;
    let before = revision(&server.pilot("a").await);
    let path = watch(&format!("resourceVersion={before}&labelSelector=app%3Dx"));
    let mut lines = server.watch(&path, "").await;
    let path = format!("{}/a", pilots());
    let label = |value: Value| json!({"metadata": {"labels": {"app": value}}});
    server.merge(&path, &label(json!("x"))).await.expect(200);
    server.merge(&path, &json!({"spec": {"phase": "Stopped"}})).await.expect(200);
    let left = server.merge(&path, &label(json!("y"))).await.expect(200);
    server.merge(&path, &json!({"spec": {"phase": "Running"}})).await.expect(200);
    server.merge(&path, &label(json!("x"))).await.expect(200);
    assert_eq!(lines.summary().await, "ADDED a");
    assert_eq!(lines.summary().await, "MODIFIED a");
    let event = lines.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["metadata"]["labels"]["app"], "x", "as it was last seen");
    assert_eq!(revision(&event["object"]), revision(&left));
    assert_eq!(lines.summary().await, "ADDED a");
}

#[tokio::test]
async fn one_object_is_watched_by_its_name() {
    let server = Server::start().await;
    let begin = revision(&server.pilot("a").await);
    server.pilot("b").await;
    let query = format!("resourceVersion={begin}&fieldSelector=metadata.name%3Dc");
    let mut lines = server.watch(&watch(&query), "").await;
    let legacy = format!("{BETA}/watch/namespaces/db/pilots?resourceVersion={begin}");
    let mut all = server.watch(&legacy, "").await;
    server.pilot("c").await;
    assert_eq!(lines.summary().await, "ADDED c");
    assert_eq!(all.summary().await, "ADDED b");
}

#[tokio::test]
async fn the_old_path_of_one_object_is_a_stream_of_that_object() {
    let server = Server::start().await;
    let begin = revision(&server.pilot("b").await);
    let path = format!("{BETA}/watch/namespaces/db/pilots/c");
    let mut lines = server.watch(&format!("{path}?resourceVersion={begin}"), "").await;
    for name in ["a", "c", "d"] {
        server.pilot(name).await;
    }
    server.delete(&format!("{}/c", pilots()), &json!({})).await.expect(200);
    assert_eq!(lines.summary().await, "ADDED c");
    assert_eq!(lines.summary().await, "DELETED c");
    let other = format!("{path}?fieldSelector=metadata.name%3Dd");
    let status = server.get(&other).await.refusal(400, "BadRequest");
    let told = "field selector metadata.name doesn't match requested name";
    assert_eq!(status["message"], told);
    server.get(&format!("{path}/status")).await.refusal(404, "NotFound");
}

/// The server's clock is the test's here, so that a minute takes no time.
#[tokio::test]
async fn a_bookmark_comes_every_minute_until_the_end() {
    let server = Server::in_memory().await;
    let rv = revision(&server.pilot("a").await);
    server.get(&pilots()).await.expect(200);
    let query = format!("resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=200");
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let (response, _) = server.respond("GET", &watch(&query), &[], Body::empty()).await;
    let mut stream = response.into_body().into_data_stream();
    for seconds in [60, 120, 180, 198] {
        let line = stream.next().await.expect("a bookmark comes").unwrap();
        let event: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(event["type"], "BOOKMARK");
        assert_eq!(revision(&event["object"]), rv);
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
    assert!(stream.next().await.is_none());
    assert_eq!(begun.elapsed().as_secs(), 200);
}

#[tokio::test]
async fn a_client_that_is_always_behind_gets_its_bookmark_and_its_end() {
    let server = Server::in_memory().await;
    let rv = revision(&server.pilot("a").await);
    for number in 0..600 {
        server.pilot(&format!("p{number}")).await;
    }
    server.get(&pilots()).await.expect(200);
    let query = format!("resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=10");
    tokio::time::pause();
    let mut lines = server.watch(&watch(&query), "").await;
    let (mut frames, mut bookmarks, mut last) = (0, 0, rv);
    while let Some(frame) = lines.stream.next().await {
        for line in frame.unwrap().split_inclusive(|byte| *byte == b'\n') {
            let event: Value = serde_json::from_slice(line).unwrap();
            let now = revision(&event["object"]);
            let bookmark = event["type"] == "BOOKMARK";
            assert!(if bookmark { now == last } else { now > last }, "{last}: {event}");
            (last, bookmarks) = (now, bookmarks + usize::from(bookmark));
        }
        frames += 1;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(bookmarks, 1);
    assert!(frames <= 12, "it went on for {frames} frames");
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout_with_a_last_bookmark() {
    let server = Server::in_memory().await;
    let rv = revision(&server.pilot("a").await);
    let later = revision(&server.pilot("b").await);
    server.get(&pilots()).await.expect(200);
    tokio::time::pause();
    let query = format!("resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=3");
    let mut lines = server.watch(&watch(&query), "").await;
    assert_eq!(lines.summary().await, "ADDED b");
    let bookmark = lines.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert!(revision(&bookmark["object"]) >= later);
    assert_eq!(lines.next().await, None);

    let query = format!("resourceVersion={rv}&timeoutSeconds=1");
    let mut lines = server.watch(&watch(&query), "").await;
    assert_eq!(lines.summary().await, "ADDED b");
    assert_eq!(lines.next().await, None, "no bookmark was asked for");
}

#[tokio::test]
async fn a_table_names_its_columns_once() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        server.pilot(name).await;
    }
    server.get(&pilots()).await.expect(200);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut lines = server.watch(&watch("resourceVersion=0"), accept).await;
    let first = lines.next().await.unwrap()["object"].take();
    assert_eq!((&first["kind"], &first["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert!(!first["columnDefinitions"].as_array().unwrap().is_empty());
    assert_eq!(first["rows"][0]["cells"][0], "a");
    assert_eq!(first["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let second = lines.next().await.unwrap()["object"].take();
    assert!(second["columnDefinitions"].is_null());
    assert_eq!(second["rows"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_revision_that_is_gone_is_an_event_of_410() {
    let server = Server::start().await;
    let old = revision(&server.pilot("a").await);
    let latest = revision(&server.pilot("b").await);
    server.store.compact(Revision(latest)).await.unwrap();
    // A server that was started since has only the latest state to begin from.
    let restarted = server.restarted().await;
    let mut lines = restarted.watch(&watch(&format!("resourceVersion={old}")), "").await;
    let event = lines.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    let status = &event["object"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(410), &json!("Expired")), "{event}");
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn contradictory_watch_options_are_422() {
    let server = Server::start().await;
    for query in [
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
    ] {
        let status = server.get(&watch(query)).await.refusal(422, "Invalid");
        assert_eq!(status["details"]["kind"], "ListOptions", "{query}");
    }
    server.get(&watch("resourceVersion=x")).await.refusal(400, "BadRequest");
    assert_eq!(server.get_as(&watch(""), "application/yaml").await.code, 406);
}

#[tokio::test]
async fn watches_end_when_the_server_does() {
    let server = Server::start().await;
    let mut lines = server.watch(&watch("resourceVersion=0"), "").await;
    server.closing.trigger();
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn watches_end_when_the_store_turns_out_to_be_foreign() {
    let server = Server::start().await;
    let mut lines = server.watch(&watch("resourceVersion=0"), "").await;
    server.verdict.send(StoreVerdict::Foreign("lost".into())).unwrap();
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn a_client_that_went_away_leaves_nothing_behind() {
    let server = Server::start().await;
    let lines = server.watch(&watch("resourceVersion=0"), "").await;
    let open = async || {
        let text = server.get("/metrics").await.text();
        let line = text.lines().find(|line| line.starts_with("apiserver_longrunning_requests{"));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    assert_eq!(open().await.as_deref(), Some("1"));
    drop(lines);
    assert_eq!(open().await.as_deref(), Some("0"));
    let mut body = pilot("a");
    body["metadata"]["name"] = json!("z");
    server.post(&pilots(), &body).await.expect(201);
}
