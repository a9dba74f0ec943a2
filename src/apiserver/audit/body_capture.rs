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
    response_body::{guarded, in_parts},
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
    pub(super) fn passing(&self, body: Body, limit: usize) -> Body {
        Body::new(CapturingBody { body, kept: self.clone(), limit })
    }

    pub(super) fn whole(&self) -> CapturedBody {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.too_large { CapturedBody::TooLarge } else { CapturedBody::Is(kept.shared.concat()) }
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
            let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.length += data.len();
            if kept.length > self.limit {
                *kept = CapturedParts {
                    too_large: true,
                    length: kept.length,
                    ..CapturedParts::default()
                };
            } else {
                kept.shared.push(data.clone());
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
pub(super) async fn whole(
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
    let again = Response::from_parts(head, in_parts(parts));
    (CapturedBody::Is(bytes), guarded(again, body))
}

/// Converts a body to JSON on one line; `None` when the body is not an object that can be read.
pub(super) async fn object(
    headers: &HeaderMap,
    body: Vec<u8>,
    omit_managed_fields: bool,
) -> Option<Box<RawValue>> {
    let is_yaml = negotiate::content_type(headers).ends_with("yaml");
    let _share = if is_yaml { request_cost::record(&body).await.ok()? } else { MemoryShare::NONE };
    request_cost::work(body.len(), || {
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
    compact(body)
}

/// Removes white space between the tokens of valid JSON: an event must be one line.
fn compact(mut text: Vec<u8>) -> Option<String> {
    let (mut quoted, mut escaped) = (false, false);
    text.retain(|&byte| {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            return true;
        }
        quoted = byte == b'"';
        !byte.is_ascii_whitespace()
    });
    String::from_utf8(text).ok()
}

type RawFields<'a> = BTreeMap<String, &'a RawValue>;

/// Removes `managedFields` from an object, a list or a table; `None` for other JSON.
fn without_managed_fields(text: &str) -> Option<String> {
    let mut top: RawFields<'_> = serde_json::from_str(text).ok()?;
    let mut changed: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    if let Some(metadata) = top.remove("metadata") {
        let mut fields: RawFields<'_> = serde_json::from_str(metadata.get()).ok()?;
        fields.remove("managedFields");
        changed.insert("metadata", raw(&fields)?);
    }
    if let Some(items) = top.remove("items") {
        changed.insert("items", each(items, without_managed_fields)?);
    }
    if let Some(rows) = top.remove("rows") {
        changed.insert("rows", each(rows, row_without_managed_fields)?);
    }
    let mut all: BTreeMap<&str, &RawValue> =
        top.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    all.extend(changed.iter().map(|(key, value)| (*key, value.as_ref())));
    serde_json::to_string(&all).ok()
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

fn each(list: &RawValue, change: fn(&str) -> Option<String>) -> Option<Box<RawValue>> {
    let items: Option<Vec<&RawValue>> = serde_json::from_str(list.get()).ok()?;
    let changed: Vec<_> = items
        .unwrap_or_default()
        .into_iter()
        .map(|item| {
            let changed = change(item.get()).and_then(|text| RawValue::from_string(text).ok());
            changed.unwrap_or_else(|| item.to_owned())
        })
        .collect();
    raw(&changed)
}

fn raw(value: &impl serde::Serialize) -> Option<Box<RawValue>> {
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
        let kept = object(&headers("application/json"), sent.into(), false).await.unwrap();
        let expected = r#"{"b":1.10,"a":"x \" \\","n":123456789012345678901234567890}"#;
        assert_eq!(kept.get(), expected);
        for broken in ["{", "", "{\"a\":\"\n\"}", "x"] {
            assert!(object(&headers("application/json"), broken.into(), false).await.is_none());
        }
        for media_type in ["application/yaml", "application/apply-patch+yaml"] {
            let kept = object(&headers(media_type), b"a: [1, 2]\n".to_vec(), false).await.unwrap();
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
            let kept = object(&headers("application/json"), sent.to_string().into(), true).await;
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
            let body = kept.passing(in_parts(parts.clone()), limit);
            assert_eq!(body.size_hint().exact(), Some(8));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "12345678");
            assert_eq!(kept.whole(), expected);
            let (found, response) = whole(Response::new(in_parts(parts)), limit).await;
            assert_eq!(found, expected);
            assert_eq!(response.body().size_hint().exact(), Some(8));
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "12345678");
        }
    }
}
