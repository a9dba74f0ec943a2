//! A server of one kind that is not ours: all that it takes to serve it.

use std::{sync::Arc, sync::LazyLock};

use navigator::{
    apiserver::{
        capacity::CapacityBounds,
        storage::embedded::{EmbeddedStore, HistoryLimits},
    },
    machinery::{
        decode::ParsedBody,
        served_kind::{
            DecodeError, DecodedObject, ObjectPart, PrinterColumn, ServedKind, ServedVersion,
            ValidationResult,
        },
        served_kinds::{GroupDefinitions, ServedGroup, ServedKinds},
    },
};
use serde_json::{Map, Value, json};

use super::Server;

const V1: ServedVersion = ServedVersion::new("v1");
static EXAMPLES: ServedGroup = ServedGroup {
    name: "example.com",
    versions: &[V1],
    title: "Notes",
    definitions: "com.example",
};
static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let note = json!({"com.example.v1.Note": {"type": "object", "properties": {}}});
    note.as_object().unwrap().clone()
});

/// A note: an object whose text must not be empty.
struct NoteKind;

impl GroupDefinitions for NoteKind {
    fn definitions(&self, _: ServedVersion) -> &Map<String, Value> {
        &DEFINITIONS
    }
}

#[rustfmt::skip]
impl ServedKind for NoteKind {
    fn plural(&self) -> &'static str { "notes" }
    fn singular(&self) -> &'static str { "note" }
    fn kind(&self) -> &'static str { "Note" }
    fn group(&self) -> &'static str { EXAMPLES.name }
    fn versions(&self) -> &'static [ServedVersion] { EXAMPLES.versions }
    fn has_status(&self) -> bool { false }
    fn columns(&self) -> &'static [PrinterColumn] { &[] }
    fn cells(&self, _: &Value, _: i64) -> Vec<Value> { Vec::new() }
    fn encode(&self, _: ServedVersion, hub: &Value) -> Value { hub.clone() }
    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> { Ok(stored) }
    fn merge_update(&self, _: ObjectPart, new: Value, _: &Value) -> Value { new }
    fn decode(&self, _: ServedVersion, body: ParsedBody, _: Option<&Value>)
        -> Result<DecodedObject, DecodeError>
    {
        Ok(DecodedObject { hub: body.value, strict: Vec::new(), warnings: Vec::new() })
    }
    fn validate_create(&self, _: ServedVersion, hub: &Value) -> ValidationResult {
        let mut result = ValidationResult::default();
        if hub["text"].as_str().unwrap_or_default().is_empty() {
            result.warnings.push("a note without text".into());
        }
        result
    }
    fn validate_update(&self, version: ServedVersion, _: ObjectPart, new: &Value, _: &Value)
        -> ValidationResult
    {
        self.validate_create(version, new)
    }
}

#[tokio::test]
async fn a_kind_that_is_not_ours_is_served_like_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = EmbeddedStore::open(&path, HistoryLimits::default()).await.unwrap();
    let kinds = ServedKinds::new(&EXAMPLES, &NoteKind, vec![&NoteKind]);
    let bounds = CapacityBounds::for_process();
    let server = Server::begin_with(kinds, bounds, Arc::new(store), Some(folder)).filled().await;
    let notes = "/apis/example.com/v1/namespaces/db/notes";
    let note = |text: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Note",
        "metadata": {"name": "a"}, "text": text})
    };

    let created = server.post(notes, &note("")).await;
    assert_eq!(created.warnings, ["a note without text"]);
    let mut shown = created.expect(201);
    shown["text"] = "b".into();
    let one = format!("{notes}/a");
    assert_eq!(server.put(&one, &shown).await.expect(200)["text"], "b");
    assert_eq!(server.get(notes).await.expect(200)["items"][0]["text"], "b");
    server.put(&one, &shown).await.refusal(409, "Conflict");
    server.delete(&one, &json!({})).await.expect(200);
    server.get(&one).await.refusal(404, "NotFound");

    let documents = server.get("/openapi/v3").await.expect(200);
    assert!(documents["paths"]["apis/example.com/v1"].is_object(), "{documents}");
    let resources = server.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(resources["resources"][0]["name"], "notes");
    let groups = server.get("/apis").await.expect(200);
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1);
}
