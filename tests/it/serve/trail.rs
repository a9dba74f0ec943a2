//! The audit trail is complete: no write without its line, whatever its client does.

use futures::FutureExt;
use navigator::apiserver::{
    filters::InflightLimits,
    request_info::RequestInfo,
    storage::{KeyPrefix, PageRequest},
};
use serde_json::json;

use super::whole::{BETA, Whole, pilot};

fn everything(_: &str, _: &RequestInfo) -> bool {
    true
}

/// As a reset stream does it: the future that answers is dropped, sooner or later.
#[tokio::test]
async fn a_client_that_goes_away_leaves_no_write_without_its_line() {
    const WRITES: usize = 64;
    let whole = Whole::start(everything, InflightLimits::default()).await;
    let path = format!("{BETA}/namespaces/db/pilots");
    for number in 0..WRITES {
        let body = pilot(&format!("p{number}")).to_string();
        let request = whole.request("jane", "POST", &path, body);
        let mut answer = Box::pin(whole.chain.handle(request));
        for _ in 0..=number % 8 {
            if (&mut answer).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(answer);
    }
    let trail = whole.trail(WRITES).await;
    assert_eq!(trail.len(), WRITES);
    let prefix = KeyPrefix::for_namespace("navigator.jetstack.io", "pilots", "db").unwrap();
    let stored = whole.store.list(&prefix, PageRequest::default()).await.unwrap().entries.len();
    let created = trail.iter().filter(|line| line.ends_with(" 201")).count();
    assert_eq!(created, stored, "{trail:#?}");
    whole.chain.until_written(std::time::Duration::from_secs(60)).await;
}

/// A Status is recorded whatever its client reads.
#[tokio::test]
async fn a_refusal_in_protobuf_is_recorded_in_words() {
    let whole = Whole::start(everything, InflightLimits::default()).await;
    let path = format!("{BETA}/namespaces/db/pilots/missing");
    let mut request = whole.request("jane", "DELETE", &path, String::new());
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    request.headers_mut().insert("accept", accept.parse().unwrap());
    let response = whole.chain.handle(request).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf");
    drop(response);
    let line = &whole.lines(1).await[0];
    assert_eq!(line["responseStatus"]["reason"], "NotFound", "{line:#}");
}

#[tokio::test]
async fn every_way_to_write_has_its_line() {
    let whole = Whole::start(everything, InflightLimits::default()).await;
    let path = format!("{BETA}/namespaces/db/pilots");
    let mut object = whole.create("jane", &path, &pilot("a")).await;
    object["metadata"]["labels"] = json!({"a": "b"});
    let one = format!("{path}/a");
    let status = format!("{one}/status");
    let patch = |value: &str| json!({"metadata": {"labels": {"a": value}}}).to_string();
    let message = json!({"status": {"message": "hello"}}).to_string();
    let mut put_status = pilot("a");
    put_status["status"] = json!({"message": "stale"});
    put_status["metadata"]["resourceVersion"] = json!("1");
    for (method, path, body) in [
        ("PUT", one.as_str(), object.to_string()),
        ("PUT", &one, object.to_string()),
        ("PATCH", &one, patch("c")),
        ("PATCH", &status, message),
        ("PUT", &status, put_status.to_string()),
        ("DELETE", &one, String::new()),
        ("DELETE", &one, String::new()),
        ("DELETE", &path, String::new()),
        ("GET", &path, String::new()),
    ] {
        whole.send("jane", method, path, body).await;
    }
    let expected = [
        format!("jane create {path} 201"),
        format!("jane update {one} 200"),
        format!("jane update {one} 409"),
        format!("jane patch {one} 200"),
        format!("jane patch {status} 200"),
        format!("jane update {status} 409"),
        format!("jane delete {one} 200"),
        format!("jane delete {one} 404"),
        format!("jane deletecollection {path} 200"),
    ];
    assert_eq!(whole.trail(expected.len()).await, expected);
}
