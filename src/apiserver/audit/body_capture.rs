//! Bodies of requests and responses that are kept for the audit log.
//!
//! While a body passes no byte is copied: the kept parts share their memory with it. A body that is
//! larger than the limit is not kept.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde_json::value::RawValue;

use crate::apiserver::{
    account::MemoryShare,
    negotiate, request_cost,
    response_body::{attach_guard, in_parts},
};

/// The parts of a body that have passed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct BodyCapture(Arc<Mutex<CapturedParts>>);

#[derive(Debug, Default)]
struct CapturedParts {
    shared: Vec<Bytes>,
    length: usize,
    too_large: bool,
}

/// A body that was kept, or the fact that it was too large.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CapturedBody {
    Is(Vec<u8>),
    TooLarge,
}

impl BodyCapture {
    /// Wraps a request's body so that up to `limit` bytes are kept while a handler reads it.
    pub(super) fn wrap_body(&self, body: Body, limit: usize) -> Body {
        Body::new(CapturingBody { body, kept: self.clone(), limit })
    }

    pub(super) fn captured_body(&self) -> CapturedBody {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.too_large {
            CapturedBody::TooLarge
        } else {
            CapturedBody::Is(parts.shared.concat())
        }
    }
}

struct CapturingBody {
    body: Body,
    kept: BodyCapture,
    limit: usize,
}

impl HttpBody for CapturingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            let mut parts = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            parts.length += data.len();
            if parts.length > self.limit {
                *parts = CapturedParts {
                    too_large: true,
                    length: parts.length,
                    ..CapturedParts::default()
                };
            } else {
                parts.shared.push(data.clone());
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a response's body whole, and returns it with the response as it was. Only for responses
/// whose body is complete when they begin. Memory that the body holds stays held until the
/// response was sent.
pub(super) async fn capture_response(
    response: Response<Body>,
    limit: usize,
) -> (CapturedBody, Response<Body>) {
    let length = response.body().size_hint().exact();
    if length.is_none_or(|length| length > limit as u64) {
        return (CapturedBody::TooLarge, response);
    }
    let (head, mut body) = response.into_parts();
    let mut parts = Vec::new();
    // Our own bodies of a known length do not fail.
    while let Some(Ok(frame)) = body.frame().await {
        parts.extend(frame.into_data().ok());
    }
    let bytes = parts.concat();
    let restored_response = Response::from_parts(head, in_parts(parts));
    (CapturedBody::Is(bytes), attach_guard(restored_response, body))
}

/// Converts a body to JSON on one line; `None` when the body is not an object that can be read.
pub(super) async fn to_json_object(
    headers: &HeaderMap,
    body: Vec<u8>,
    omit_managed_fields: bool,
) -> Option<Box<RawValue>> {
    let is_yaml = negotiate::content_type(headers).ends_with("yaml");
    let _share =
        if is_yaml { request_cost::reserve_record(&body).await.ok()? } else { MemoryShare::NONE };
    request_cost::run_blocking(body.len(), || {
        let text = if is_yaml { from_yaml(&body) } else { from_json(body) }?;
        let text =
            if omit_managed_fields { without_managed_fields(&text).unwrap_or(text) } else { text };
        RawValue::from_string(text).ok()
    })
}

fn from_yaml(body: &[u8]) -> Option<String> {
    // An apply configuration has a media type of its own, but is YAML all the same.
    let yaml = (header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    let document = negotiate::read_body(&HeaderMap::from_iter([yaml]), body);
    Some(document.ok()?.value.to_string())
}

fn from_json(body: Vec<u8>) -> Option<String> {
    let _valid: &RawValue = serde_json::from_slice(&body).ok()?;
    compact_json(body)
}

/// Removes white space between the tokens of valid JSON: an event must be one line.
fn compact_json(mut text: Vec<u8>) -> Option<String> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.retain(|&byte| {
        if is_quoted {
            is_quoted = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
            return true;
        }
        is_quoted = byte == b'"';
        !byte.is_ascii_whitespace()
    });
    String::from_utf8(text).ok()
}

type RawFields<'a> = BTreeMap<String, &'a RawValue>;

/// Removes `managedFields` from an object, a list or a table; `None` for other JSON.
fn without_managed_fields(text: &str) -> Option<String> {
    let mut top: RawFields<'_> = serde_json::from_str(text).ok()?;
    let mut changed_fields: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    if let Some(metadata) = top.remove("metadata") {
        let mut fields: RawFields<'_> = serde_json::from_str(metadata.get()).ok()?;
        fields.remove("managedFields");
        changed_fields.insert("metadata", to_raw_json(&fields)?);
    }
    if let Some(items) = top.remove("items") {
        changed_fields.insert("items", map_items(items, without_managed_fields)?);
    }
    if let Some(rows) = top.remove("rows") {
        changed_fields.insert("rows", map_items(rows, row_without_managed_fields)?);
    }
    let mut all_fields: BTreeMap<&str, &RawValue> =
        top.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    all_fields.extend(changed_fields.iter().map(|(key, value)| (*key, value.as_ref())));
    serde_json::to_string(&all_fields).ok()
}

fn row_without_managed_fields(row: &str) -> Option<String> {
    let mut fields: RawFields<'_> = serde_json::from_str(row).ok()?;
    let object = fields.get("object").and_then(|object| without_managed_fields(object.get()));
    let object = object.and_then(|object| RawValue::from_string(object).ok());
    if let Some(object) = &object {
        fields.insert("object".to_owned(), object);
    }
    serde_json::to_string(&fields).ok()
}

fn map_items(list: &RawValue, convert_item: fn(&str) -> Option<String>) -> Option<Box<RawValue>> {
    let items: Option<Vec<&RawValue>> = serde_json::from_str(list.get()).ok()?;
    let changed_items: Vec<_> = items
        .unwrap_or_default()
        .into_iter()
        .map(|item| {
            let changed_item =
                convert_item(item.get()).and_then(|text| RawValue::from_string(text).ok());
            changed_item.unwrap_or_else(|| item.to_owned())
        })
        .collect();
    to_raw_json(&changed_items)
}

fn to_raw_json(value: &impl serde::Serialize) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn headers(media_type: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, media_type.parse().unwrap())])
    }

    #[tokio::test]
    async fn an_object_is_one_line_and_otherwise_as_it_was_sent() {
        let sent =
            "{\n  \"b\": 1.10,\n  \"a\": \"x \\\" \\\\\" , \"n\": 123456789012345678901234567890 }";
        let kept = to_json_object(&headers("application/json"), sent.into(), false).await.unwrap();
        let expected = r#"{"b":1.10,"a":"x \" \\","n":123456789012345678901234567890}"#;
        assert_eq!(kept.get(), expected);
        for broken in ["{", "", "{\"a\":\"\n\"}", "x"] {
            assert!(
                to_json_object(&headers("application/json"), broken.into(), false).await.is_none()
            );
        }
        for media_type in ["application/yaml", "application/apply-patch+yaml"] {
            let kept =
                to_json_object(&headers(media_type), b"a: [1, 2]\n".to_vec(), false).await.unwrap();
            assert_eq!(kept.get(), r#"{"a":[1,2]}"#, "{media_type}");
        }
    }

    #[tokio::test]
    async fn managed_fields_are_left_out_wherever_objects_stand() {
        let with =
            json!({"metadata": {"name": "a", "managedFields": [{}]}, "spec": {"managedFields": 1}});
        let without = json!({"metadata": {"name": "a"}, "spec": {"managedFields": 1}});
        let table =
            |object: &Value| json!({"rows": [{"cells": [1], "object": object}, {"cells": []}]});
        let rows = [
            (with.clone(), without.clone()),
            (json!({"items": [with, 7]}), json!({"items": [without, 7]})),
            (table(&with), table(&without)),
            (json!([{"op": "add"}]), json!([{"op": "add"}])),
            (json!({"items": null}), json!({"items": []})),
        ];
        for (sent, expected) in rows {
            let kept =
                to_json_object(&headers("application/json"), sent.to_string().into(), true).await;
            let kept: Value = serde_json::from_str(kept.unwrap().get()).unwrap();
            assert_eq!(kept, expected);
        }
    }

    #[tokio::test]
    async fn bodies_are_kept_while_they_pass_and_not_beyond_the_limit() {
        for (limit, expected) in
            [(8, CapturedBody::Is(b"12345678".to_vec())), (7, CapturedBody::TooLarge)]
        {
            let kept = BodyCapture::default();
            let parts = vec![Bytes::from_static(b"1234"), Bytes::from_static(b"5678")];
            let body = kept.wrap_body(in_parts(parts.clone()), limit);
            assert_eq!(body.size_hint().exact(), Some(8));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "12345678");
            assert_eq!(kept.captured_body(), expected);
            let (found, response) = capture_response(Response::new(in_parts(parts)), limit).await;
            assert_eq!(found, expected);
            assert_eq!(response.body().size_hint().exact(), Some(8));
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "12345678");
        }
    }
}
