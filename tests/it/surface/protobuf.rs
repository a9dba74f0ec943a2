//! Metadata in protobuf, as the garbage collector and metadata informers ask for it first, says what
//! the same says in JSON. It is read by a table of its own.

use axum::body::Body;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use super::{Answer, BETA, PATIENCE, Server, pilot, pilots};
use crate::api::protobuf::{Held, fields, messages, read};

/// Messages of apimachinery, as `name number type`; `[]` repeats.
const MESSAGES: &str = "
TypeMeta: apiVersion 1 text, kind 2 text
PartialObjectMetadata: metadata 1 ObjectMeta
PartialObjectMetadataList: metadata 1 ListMeta, items 2 PartialObjectMetadata[]
OlderList: metadata 2 ListMeta, items 1 PartialObjectMetadata[]
ObjectMeta: name 1 text, generateName 2 text, namespace 3 text, selfLink 4 text, uid 5 text, \
    resourceVersion 6 text, generation 7 integer, creationTimestamp 8 Time, \
    deletionTimestamp 9 Time, deletionGracePeriodSeconds 10 integer, labels 11 Entry[], \
    annotations 12 Entry[], ownerReferences 13 OwnerReference[], finalizers 14 text[], \
    managedFields 17 Managed[]
ListMeta: selfLink 1 text, resourceVersion 2 text, continue 3 text, remainingItemCount 4 integer
Time: seconds 1 integer, nanos 2 integer
Entry: key 1 text, value 2 text
OwnerReference: kind 1 text, name 3 text, uid 4 text, apiVersion 5 text, controller 6 flag, \
    blockOwnerDeletion 7 flag
Managed: manager 1 text, operation 2 text, apiVersion 3 text, time 4 Time, fieldsType 6 text, \
    fieldsV1 7 FieldsV1, subresource 8 text
FieldsV1: Raw 1 text
Status: metadata 1 ListMeta, status 2 text, message 3 text, reason 4 text, details 5 Details, \
    code 6 integer
Details: name 1 text, group 2 text, kind 3 text, causes 4 Cause[], retryAfterSeconds 5 integer, \
    uid 6 text
Cause: reason 1 text, message 2 text, field 3 text";

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Accept of a view in a form.
fn view(media_type: &str, name: &str) -> String {
    format!("{media_type};as={name};g=meta.k8s.io;v=v1")
}

/// Type and bytes of the object in an envelope.
fn unwrap(envelope: &[u8]) -> (String, Vec<u8>) {
    let mut type_ = String::new();
    let mut raw = Vec::new();
    let held = fields(envelope.strip_prefix(b"k8s\0").expect("the magic"));
    for field in held {
        match field {
            (1, held) => {
                let read = read(&messages(MESSAGES), "TypeMeta", held);
                type_ = format!("{} {}", read["apiVersion"], read["kind"]).replace('"', "");
            }
            (2, Held::Bytes(bytes)) => raw = bytes.to_vec(),
            (3 | 4, Held::Bytes(b"")) => {}
            other => panic!("{other:?}"),
        }
    }
    (type_, raw)
}

/// The value without empty fields, which mean the same as absent ones.
fn told(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            let known = std::mem::take(fields).into_iter().map(|(name, value)| (name, told(value)));
            fields.extend(known.filter(|(_, value)| *value != "" && *value != json!({})));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = told(item.take())),
        _ => {}
    }
    value
}

fn message(type_: &str, envelope: &[u8], expected: &str) -> Value {
    let (found, raw) = unwrap(envelope);
    assert_eq!(found, expected);
    told(read(&messages(MESSAGES), type_, Held::Bytes(&raw)))
}

impl Answer {
    /// The message that a success carries.
    #[track_caller]
    fn message(&self, type_: &str, expected: &str) -> Value {
        assert_eq!(self.code, 200, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.headers["content-type"], PROTOBUF);
        message(type_, &self.body, expected)
    }
}

/// An object of JSON, as the messages say it.
fn said(object: &Value) -> Value {
    let time = |text: &Value| {
        let time: jiff::Timestamp = text.as_str().unwrap().parse().unwrap();
        json!({"seconds": time.as_second(), "nanos": time.subsec_nanosecond()})
    };
    let entries = |map: &Value| -> Value {
        let entries = map.as_object().unwrap().iter();
        entries.map(|(key, value)| json!({"key": key, "value": value})).collect()
    };
    let mut out = Map::new();
    for (name, value) in object.as_object().unwrap() {
        let value = match name.as_str() {
            "kind" | "apiVersion" if object.get("metadata").is_some() => continue,
            "creationTimestamp" | "deletionTimestamp" | "time" => time(value),
            "labels" | "annotations" => entries(value),
            "fieldsV1" => json!({"Raw": value.to_string()}),
            "metadata" => said(value),
            "items" | "ownerReferences" | "managedFields" => {
                value.as_array().unwrap().iter().map(said).collect()
            }
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    out.into()
}

#[tokio::test]
async fn metadata_says_the_same_in_protobuf() {
    let server = Server::start().await;
    let mut rich = pilot("rich");
    rich["metadata"] = json!({
        "name": "rich", "labels": {"app": "x", "empty": ""}, "annotations": {"note": "ü"},
        "finalizers": ["example.org/keep"],
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "7", "controller": false,
            "blockOwnerDeletion": true,
        }],
    });
    server.post(&pilots(), &rich).await.expect(201);
    server.pilot("second").await;
    let path = format!("{}/rich", pilots());
    server.delete(&path, &json!({})).await.expect(200);

    let one = |media_type: &str| view(media_type, "PartialObjectMetadata");
    let expected = server.get_as(&path, &one("application/json")).await.expect(200);
    assert!(expected["metadata"]["deletionGracePeriodSeconds"].is_number(), "{expected}");
    assert!(expected["metadata"]["managedFields"].is_array(), "{expected}");
    let preferred = format!("{},{}", one(PROTOBUF), one("application/json"));
    let answer = server.get_as(&path, &preferred).await;
    let found = answer.message("PartialObjectMetadata", "meta.k8s.io/v1 PartialObjectMetadata");
    assert_eq!(found, told(said(&expected)));

    let list = |media_type: &str| view(media_type, "PartialObjectMetadataList");
    let page = format!("{}?limit=1", pilots());
    let expected = server.get_as(&page, &list("application/json")).await.expect(200);
    assert_eq!(expected["metadata"]["remainingItemCount"], 1);
    let answer = server.get_as(&page, &list(PROTOBUF)).await;
    let kind = "PartialObjectMetadataList";
    assert_eq!(answer.message(kind, &format!("meta.k8s.io/v1 {kind}")), told(said(&expected)));
    let older = list(PROTOBUF).replace("v=v1", "v=v1beta1");
    let answer = server.get_as(&page, &older).await;
    let found = answer.message("OlderList", &format!("meta.k8s.io/v1beta1 {kind}"));
    assert_eq!(found, told(said(&expected)));
    let old = page.replace("v1beta1", "v1alpha1");
    let expected = server.get_as(&old, &list("application/json")).await.expect(200);
    let answer = server.get_as(&old, &list(PROTOBUF)).await;
    assert_eq!(answer.message(kind, &format!("meta.k8s.io/v1 {kind}")), told(said(&expected)));

    // A list view of one object, an object view of a list, and a view that is no metadata, are
    // refused.
    let many = list(PROTOBUF);
    server.get_as(&path, &many).await.refusal(406, "NotAcceptable");
    server.get_as(&page, &one(PROTOBUF)).await.refusal(406, "NotAcceptable");
    server.get_as(&page, &view(PROTOBUF, "Table")).await.refusal(406, "NotAcceptable");
}

/// A clause with a view is none for errors, and the answer to a delete is as its request asked.
#[tokio::test]
async fn a_status_is_protobuf_where_no_view_is_asked_for() {
    let server = Server::start().await;
    let missing = format!("{}/missing", pilots());
    let metadata = view(PROTOBUF, "PartialObjectMetadata");
    server.get_as(&missing, &metadata).await.refusal(404, "NotFound");
    let whole = server.get_as(&missing, PROTOBUF).await;
    assert_eq!((whole.code, &whole.headers["content-type"]), (406, &PROTOBUF.parse().unwrap()));
    let status = message("Status", &whole.body, "v1 Status");
    assert_eq!((&status["reason"], &status["code"]), (&json!("NotAcceptable"), &json!(406)));

    let either = format!("{PROTOBUF},application/json");
    let headers = [("content-type", "application/json"), ("accept", either.as_str())];
    let invalid = server.send("POST", &pilots(), &headers, pilot("NO").to_string()).await;
    assert_eq!(invalid.code, 422);
    let status = message("Status", &invalid.body, "v1 Status");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");

    server.pilot("a").await;
    let headers = [("content-type", "application/json"), ("accept", metadata.as_str())];
    let path = format!("{}/a", pilots());
    let gone = server.send("DELETE", &path, &headers, "{}").await;
    let status = gone.message("Status", "v1 Status");
    assert_eq!((&status["status"], &status["details"]["name"]), (&json!("Success"), &json!("a")));
}

/// The next event of a watch: its type, and its object.
async fn event(
    stream: &mut axum::body::BodyDataStream,
    buffer: &mut Vec<u8>,
    type_: &str,
) -> (String, Value) {
    loop {
        if let Some((length, rest)) = buffer.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
            if rest.len() >= length {
                let frame = rest[..length].to_vec();
                buffer.drain(..4 + length);
                let held = fields(&frame);
                let [(1, Held::Bytes(happened)), (2, Held::Bytes(object))] = held[..] else {
                    panic!("{held:?}")
                };
                let [(1, Held::Bytes(raw))] = fields(object)[..] else { panic!("{object:?}") };
                let kind = match type_ {
                    "Status" => "v1 Status",
                    _ => "meta.k8s.io/v1 PartialObjectMetadata",
                };
                let happened = String::from_utf8(happened.to_vec()).unwrap();
                return (happened, message(type_, raw, kind));
            }
        }
        let chunk = tokio::time::timeout(PATIENCE, stream.next()).await;
        buffer.extend_from_slice(&chunk.expect("an event").expect("the watch goes on").unwrap());
    }
}

#[tokio::test]
async fn a_watch_of_metadata_comes_in_frames() {
    let server = Server::start().await;
    server.pilot("a").await;
    let metadata = view(PROTOBUF, "PartialObjectMetadata");
    let watch = async |query: &str| {
        let path = format!("{BETA}/pilots?watch=1&{query}");
        let headers = [("accept", metadata.as_str())];
        let (response, _) = server.respond("GET", &path, &headers, Body::empty()).await;
        assert_eq!(response.headers()["content-type"], format!("{PROTOBUF};stream=watch"));
        response.into_body().into_data_stream()
    };
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let (mut stream, mut buffer) = (watch(state).await, Vec::new());
    let kind = "PartialObjectMetadata";
    let (happened, object) = event(&mut stream, &mut buffer, kind).await;
    assert_eq!((happened.as_str(), &object["metadata"]["name"]), ("ADDED", &json!("a")));
    let (happened, object) = event(&mut stream, &mut buffer, kind).await;
    let mark = json!([{"key": "k8s.io/initial-events-end", "value": "true"}]);
    assert_eq!((happened.as_str(), &object["metadata"]["annotations"]), ("BOOKMARK", &mark));
    let path = format!("{}/a", pilots());
    server.merge(&path, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    server.delete(&path, &json!({})).await.expect(200);
    for expected in ["MODIFIED", "DELETED"] {
        let (happened, object) = event(&mut stream, &mut buffer, kind).await;
        assert_eq!(happened, expected);
        assert_eq!(object["metadata"]["labels"], json!([{"key": "x", "value": "y"}]));
    }
    let (mut stream, mut buffer) = (watch("resourceVersion=1000000").await, Vec::new());
    let (happened, status) = event(&mut stream, &mut buffer, "Status").await;
    assert_eq!((happened.as_str(), &status["code"]), ("ERROR", &json!(410)));
    assert_eq!(status["reason"], "Expired");
}

/// The list's length stands before it.
#[tokio::test]
async fn a_long_list_of_metadata_is_whole() {
    let server = Server::start().await;
    for at in 0..300 {
        let mut one = pilot(&format!("p{at:03}"));
        one["metadata"]["annotations"] = json!({"text": "x".repeat(500)});
        server.post(&pilots(), &one).await.expect(201);
    }
    for (version, type_) in [("v1", "PartialObjectMetadataList"), ("v1beta1", "OlderList")] {
        let accept =
            view(PROTOBUF, "PartialObjectMetadataList").replace("v=v1", &format!("v={version}"));
        let kind = format!("meta.k8s.io/{version} PartialObjectMetadataList");
        let list = server.get_as(&pilots(), &accept).await.message(type_, &kind);
        let json = server.get_as(&pilots(), &accept.replace(PROTOBUF, "application/json")).await;
        let json = json.expect(200);
        assert_eq!(list["metadata"]["resourceVersion"], json["metadata"]["resourceVersion"]);
        let names = |list: &Value| -> Vec<Value> {
            let items = list["items"].as_array().unwrap().iter();
            items.map(|item| item["metadata"]["name"].clone()).collect()
        };
        assert_eq!(names(&list), names(&json));
        assert_eq!(names(&list).len(), 300);
    }
}
