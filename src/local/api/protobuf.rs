//! Rewrites bodies in Kubernetes' protobuf form as JSON, for the few kinds that kubectl builds from
//! flags, as in `kubectl create namespace`.
//!
//! Any other body is passed on as it is, and the handlers refuse it. So is a body with a field that
//! the tables below do not name: nothing is guessed.

use axum::{Router, body::Body, extract::State};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, Method, Request, Response, header};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use crate::machinery::decode::MAX_BODY;

const TYPE: &str = "application/vnd.kubernetes.protobuf";
/// First bytes of every protobuf body; an envelope with type and message follows.
const MAGIC: &[u8] = b"k8s\0";

/// The JSON name and the type of a field.
#[derive(Clone, Copy)]
enum FieldDescriptor {
    /// A field that only the server sets; a client's value is dropped.
    Ignored,
    Text(&'static str),
    Texts(&'static str),
    Flag(&'static str),
    Message(&'static str, MessageDescriptor),
    Messages(&'static str, MessageDescriptor),
    /// A map from text to text.
    Map(&'static str),
    /// A map from text to bytes.
    Blobs(&'static str),
}

use FieldDescriptor::{Blobs, Flag, Ignored, Message, Messages, Text, Texts};

/// Descriptors of a message's fields by their numbers, in any order.
type MessageDescriptor = &'static [(u64, FieldDescriptor)];

const META: MessageDescriptor = &[
    (1, Text("name")),
    (2, Text("generateName")),
    (3, Text("namespace")),
    (4, Ignored),
    (5, Text("uid")),
    (6, Text("resourceVersion")),
    (7, Ignored),
    (8, Ignored),
    (11, FieldDescriptor::Map("labels")),
    (12, FieldDescriptor::Map("annotations")),
    (14, Texts("finalizers")),
];
const RULE: MessageDescriptor = &[
    (1, Texts("verbs")),
    (2, Texts("apiGroups")),
    (3, Texts("resources")),
    (4, Texts("resourceNames")),
    (5, Texts("nonResourceURLs")),
];
const SUBJECT: MessageDescriptor =
    &[(1, Text("kind")), (2, Text("apiGroup")), (3, Text("name")), (4, Text("namespace"))];
const ROLE_REF: MessageDescriptor = &[(1, Text("apiGroup")), (2, Text("kind")), (3, Text("name"))];

const KINDS: &[(&str, MessageDescriptor)] = &[
    ("Namespace", &[(1, Message("metadata", META)), (2, Ignored), (3, Ignored)]),
    (
        "ConfigMap",
        &[
            (1, Message("metadata", META)),
            (2, FieldDescriptor::Map("data")),
            (3, Blobs("binaryData")),
            (4, Flag("immutable")),
        ],
    ),
    (
        "Secret",
        &[
            (1, Message("metadata", META)),
            (2, Blobs("data")),
            (3, Text("type")),
            (4, FieldDescriptor::Map("stringData")),
            (5, Flag("immutable")),
        ],
    ),
    (
        "ServiceAccount",
        &[(1, Message("metadata", META)), (4, Flag("automountServiceAccountToken"))],
    ),
    ("Role", &[(1, Message("metadata", META)), (2, Messages("rules", RULE))]),
    (
        "RoleBinding",
        &[
            (1, Message("metadata", META)),
            (2, Messages("subjects", SUBJECT)),
            (3, Message("roleRef", ROLE_REF)),
        ],
    ),
];

/// Rewrites bodies that it understands, and passes every request on to `router`.
pub(super) fn wrap_router(router: Router) -> Router {
    Router::new().fallback(handle_request).with_state(router)
}

async fn handle_request(State(router): State<Router>, request: Request<Body>) -> Response<Body> {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_protobuf = content_type.split(';').next().unwrap_or_default().trim() == TYPE;
    let request = if is_protobuf && request.method() == Method::POST {
        rewrite_body(request).await
    } else {
        request
    };
    let Ok(response) = router.oneshot(request).await;
    response
}

async fn rewrite_body(request: Request<Body>) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    // A body that is too large or cut off goes on as protobuf, which the handlers refuse.
    let Ok(bytes) = axum::body::to_bytes(body, MAX_BODY).await else {
        return Request::from_parts(parts, Body::empty());
    };
    let Some(object) = decode_object(&bytes) else {
        return Request::from_parts(parts, Body::from(bytes));
    };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Request::from_parts(parts, Body::from(object.to_string()))
}

/// Decodes the object in a body; `None` when any part of the body is not understood.
fn decode_object(body: &[u8]) -> Option<Value> {
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), None);
    for field in decode_fields(body.strip_prefix(MAGIC)?) {
        match field? {
            (1, WireValue::Bytes(head)) => {
                for field in decode_fields(head) {
                    match field? {
                        (1, WireValue::Bytes(bytes)) => api_version = decode_text(bytes)?,
                        (2, WireValue::Bytes(bytes)) => kind = decode_text(bytes)?,
                        _ => return None,
                    }
                }
            }
            (2, WireValue::Bytes(bytes)) => raw = Some(bytes),
            // Content encoding and type must be empty, as kubectl sends them.
            (3 | 4, WireValue::Bytes(b"")) => {}
            _ => return None,
        }
    }
    let (_, schema) = KINDS.iter().find(|(name, _)| *name == kind)?;
    let mut object = decode_message(raw?, schema)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Some(Value::Object(object))
}

fn decode_message(bytes: &[u8], schema: MessageDescriptor) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for field in decode_fields(bytes) {
        let (number, wire) = field?;
        let (_, descriptor) = schema.iter().find(|(field_number, _)| *field_number == number)?;
        match (*descriptor, wire) {
            (Ignored, _) => {}
            (Text(name), WireValue::Bytes(bytes)) => {
                // Go writes empty texts, too; an empty text means the same as none.
                let text = decode_text(bytes)?;
                if !text.is_empty() {
                    object.insert(name.to_owned(), json!(text));
                }
            }
            (Texts(name), WireValue::Bytes(bytes)) => {
                push_item(&mut object, name, json!(decode_text(bytes)?));
            }
            (Flag(name), WireValue::Number(number)) => {
                object.insert(name.to_owned(), json!(number != 0));
            }
            (Message(name, schema), WireValue::Bytes(bytes)) => {
                object.insert(name.to_owned(), decode_message(bytes, schema)?.into());
            }
            (Messages(name, schema), WireValue::Bytes(bytes)) => {
                push_item(&mut object, name, decode_message(bytes, schema)?.into());
            }
            (FieldDescriptor::Map(name), WireValue::Bytes(bytes)) => {
                let (key, value) = decode_entry(bytes)?;
                insert_entry(&mut object, name, key, json!(decode_text(value)?));
            }
            (Blobs(name), WireValue::Bytes(bytes)) => {
                let (key, value) = decode_entry(bytes)?;
                insert_entry(&mut object, name, key, json!(BASE64_STANDARD.encode(value)));
            }
            _ => return None,
        }
    }
    Some(object)
}

fn push_item(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut().expect("a name has one shape in a table").push(value);
}

fn insert_entry(object: &mut Map<String, Value>, name: &str, key: String, value: Value) {
    let map = object.entry(name).or_insert_with(|| json!({}));
    map.as_object_mut().expect("a name has one shape in a table").insert(key, value);
}

/// Decodes an entry of a map.
fn decode_entry(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (mut key, mut value) = (String::new(), &b""[..]);
    for field in decode_fields(bytes) {
        match field? {
            (1, WireValue::Bytes(bytes)) => key = decode_text(bytes)?,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => return None,
        }
    }
    Some((key, value))
}

fn decode_text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message, each with its number; `None` for one that cannot be read.
fn decode_fields(mut rest: &[u8]) -> impl Iterator<Item = Option<(u64, WireValue<'_>)>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = decode_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

fn decode_field<'a>(rest: &mut &'a [u8]) -> Option<(u64, WireValue<'a>)> {
    let tag = decode_varint(rest)?;
    let wire = match tag & 7 {
        0 => WireValue::Number(decode_varint(rest)?),
        2 => {
            let length = usize::try_from(decode_varint(rest)?).ok()?;
            let (bytes, tail) = rest.split_at_checked(length)?;
            *rest = tail;
            WireValue::Bytes(bytes)
        }
        // None of these kinds has fixed-size numbers or groups.
        _ => return None,
    };
    Some((tag >> 3, wire))
}

/// Decodes a varint: seven bits a byte, the lowest first.
fn decode_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a field of bytes.
    fn bytes(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        assert!(length < 128 && number < 16);
        [&[number << 3 | 2, length][..], bytes].concat()
    }

    fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
        let head = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
        let none = [bytes(3, b""), bytes(4, b"")].concat();
        [MAGIC, &bytes(1, &head), &bytes(2, raw), &none].concat()
    }

    #[test]
    fn what_is_understood_becomes_json() {
        let label = [bytes(1, b"a"), bytes(2, b"b")].concat();
        let meta = [bytes(1, b"x"), bytes(2, b""), bytes(8, b""), bytes(11, &label)].concat();
        let data = [bytes(1, b"k"), bytes(2, b"\xff")].concat();
        let raw = [bytes(1, &meta), bytes(2, &data), bytes(3, b"Opaque"), vec![5 << 3, 1]].concat();
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "x", "labels": {"a": "b"}},
            "data": {"k": "/w=="},
            "type": "Opaque",
            "immutable": true,
        });
        assert_eq!(decode_object(&body("Secret", &raw)), Some(expected));
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        let meta = bytes(1, &bytes(1, b"x"));
        assert!(decode_object(&body("Namespace", &meta)).is_some());
        let whole = body("Namespace", &meta);
        for end in 0..whole.len() - 4 {
            assert_eq!(decode_object(&whole[..end]), None, "cut after {end}");
        }
        assert_eq!(decode_object(&body("Pod", &meta)), None, "a kind that is in no table");
        let unknown = [meta, bytes(9, b"")].concat();
        assert_eq!(
            decode_object(&body("Namespace", &unknown)),
            None,
            "a field that is in no table"
        );
        assert_eq!(decode_object(&[MAGIC, &[0xff; 12]].concat()), None);
    }
}
