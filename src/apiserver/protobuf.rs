//! Writes as protobuf what kube-apiserver writes so for kinds that it has no messages of: an
//! object's metadata, lists of it, and Status.
//!
//! Owns the numbers of apimachinery's `generated.proto`, as tables, the envelope around a message
//! and the frames of a watch. Decodes nothing. The bytes are those of upstream, which writes empty
//! fields, too.

use bytes::Bytes;
use serde_json::Value;

use crate::machinery::protobuf_wire::{self, write_bytes, write_varint};

pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// First bytes of every object; its type and its message follow.
const MAGIC: &[u8] = b"k8s\0";

/// How the value of a field is written.
#[derive(Clone, Copy)]
enum FieldEncoding {
    /// A text, which is always written, even when empty.
    Text,
    Texts,
    /// A number, which is always written, even when zero.
    Count,
    Integer,
    Flag,
    /// A time in RFC 3339, written as seconds and nanoseconds.
    Time,
    /// A time that is always written, even when empty.
    Made,
    /// A map from text to text.
    Map,
    /// A JSON value, written as JSON text in a message of its own.
    Json,
    /// A message that is always written, even when empty.
    Within(FieldTable),
    Message(FieldTable),
    Messages(FieldTable),
}

use FieldEncoding::{
    Count, Flag, Integer, Json, Made, Map, Message, Messages, Text, Texts, Time, Within,
};

/// Names, numbers and forms of a message's fields.
type FieldTable = &'static [(&'static str, u32, FieldEncoding)];

const META: FieldTable = &[
    ("name", 1, Text),
    ("generateName", 2, Text),
    ("namespace", 3, Text),
    ("selfLink", 4, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Count),
    ("creationTimestamp", 8, Made),
    ("deletionTimestamp", 9, Time),
    ("deletionGracePeriodSeconds", 10, Integer),
    ("labels", 11, Map),
    ("annotations", 12, Map),
    ("ownerReferences", 13, Messages(OWNER)),
    ("finalizers", 14, Texts),
    ("managedFields", 17, Messages(MANAGED)),
];
const OWNER: FieldTable = &[
    ("kind", 1, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("controller", 6, Flag),
    ("blockOwnerDeletion", 7, Flag),
];
const MANAGED: FieldTable = &[
    ("manager", 1, Text),
    ("operation", 2, Text),
    ("apiVersion", 3, Text),
    ("time", 4, Time),
    ("fieldsType", 6, Text),
    ("fieldsV1", 7, Json),
    ("subresource", 8, Text),
];
const LIST_META: FieldTable = &[
    ("selfLink", 1, Text),
    ("resourceVersion", 2, Text),
    ("continue", 3, Text),
    ("remainingItemCount", 4, Integer),
];
const PARTIAL: FieldTable = &[("metadata", 1, Within(META))];
const LIST: FieldTable = &[("metadata", 1, Within(LIST_META)), ("items", 2, Messages(PARTIAL))];
/// A list of `meta.k8s.io/v1beta1`, in which the numbers of the two fields are exchanged.
const OLDER_LIST: FieldTable =
    &[("items", 1, Messages(PARTIAL)), ("metadata", 2, Within(LIST_META))];
const STATUS: FieldTable = &[
    ("metadata", 1, Within(LIST_META)),
    ("status", 2, Text),
    ("message", 3, Text),
    ("reason", 4, Text),
    ("details", 5, Message(DETAILS)),
    ("code", 6, Count),
];
const DETAILS: FieldTable = &[
    ("name", 1, Text),
    ("group", 2, Text),
    ("kind", 3, Text),
    ("causes", 4, Messages(CAUSE)),
    ("retryAfterSeconds", 5, Count),
    ("uid", 6, Text),
];
const CAUSE: FieldTable = &[("reason", 1, Text), ("message", 2, Text), ("field", 3, Text)];
const TYPE: FieldTable = &[("apiVersion", 1, Text), ("kind", 2, Text)];

/// Encodes an object in its envelope; `None` for a kind that has no protobuf form here.
pub(super) fn encode_object(object: &Value) -> Option<Vec<u8>> {
    let fields = match (object["kind"].as_str()?, object["apiVersion"].as_str()?) {
        ("PartialObjectMetadata", _) => PARTIAL,
        ("PartialObjectMetadataList", "meta.k8s.io/v1beta1") => OLDER_LIST,
        ("PartialObjectMetadataList", _) => LIST,
        ("Status", _) => STATUS,
        _ => return None,
    };
    let mut out = MAGIC.to_vec();
    write_bytes(&mut out, 1, &encode_message(TYPE, object));
    write_bytes(&mut out, 2, &encode_message(fields, object));
    end_envelope(&mut out);
    Some(out)
}

/// Ends the envelope with an empty `contentEncoding` and `contentType`.
fn end_envelope(out: &mut Vec<u8>) {
    for number in [3, 4] {
        write_bytes(out, number, b"");
    }
}

/// Encodes an item of a list of metadata as it appears in the list that begins with `head`.
pub(super) fn encode_item(head: &Value, object: &Value) -> Vec<u8> {
    let number = if is_older(head) { 1 } else { 2 };
    let mut out = Vec::new();
    write_bytes(&mut out, number, &encode_message(PARTIAL, object));
    out
}

/// Returns the bytes before and behind the items of a list of metadata; the items take `items`
/// bytes.
pub(super) fn list_envelope(head: &Value, items_len: usize) -> [Vec<u8>; 2] {
    let mut metadata = Vec::new();
    let number = if is_older(head) { 2 } else { 1 };
    write_bytes(&mut metadata, number, &encode_message(LIST_META, &head["metadata"]));
    let mut prefix = MAGIC.to_vec();
    write_bytes(&mut prefix, 1, &encode_message(TYPE, head));
    protobuf_wire::write_head(&mut prefix, 2, metadata.len() + items_len);
    let mut suffix = Vec::new();
    if is_older(head) {
        suffix.append(&mut metadata);
    } else {
        prefix.append(&mut metadata);
    }
    end_envelope(&mut suffix);
    [prefix, suffix]
}

fn is_older(list: &Value) -> bool {
    list["apiVersion"] == "meta.k8s.io/v1beta1"
}

/// Encodes an event of a watch: its length, and the event, which holds the object in its envelope.
pub(super) fn encode_watch_event(type_: &str, object: &Value) -> Option<Bytes> {
    let mut raw_object = Vec::new();
    write_bytes(&mut raw_object, 1, &encode_object(object)?);
    let mut event = Vec::with_capacity(raw_object.len() + 32);
    write_bytes(&mut event, 1, type_.as_bytes());
    write_bytes(&mut event, 2, &raw_object);
    let length = u32::try_from(event.len()).ok()?;
    Some([&length.to_be_bytes()[..], &event].concat().into())
}

fn encode_message(fields: FieldTable, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, form) in fields {
        encode_field(&mut out, *number, *form, &object[name]);
    }
    out
}

fn encode_field(out: &mut Vec<u8>, number: u32, form: FieldEncoding, value: &Value) {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    match form {
        Text => write_bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Texts => {
            let texts = list.iter().filter_map(Value::as_str);
            texts.for_each(|text| write_bytes(out, number, text.as_bytes()));
        }
        Count => write_varint(out, number, value.as_i64().unwrap_or_default().cast_unsigned()),
        Integer => {
            if let Some(count) = value.as_i64() {
                write_varint(out, number, count.cast_unsigned());
            }
        }
        Flag => {
            if let Some(flag) = value.as_bool() {
                write_varint(out, number, u64::from(flag));
            }
        }
        Time => {
            if let Some(time) = encode_time(value) {
                write_bytes(out, number, &time);
            }
        }
        Made => write_bytes(out, number, &encode_time(value).unwrap_or_default()),
        Map => {
            for (key, value) in value.as_object().into_iter().flatten() {
                let mut entry = Vec::new();
                write_bytes(&mut entry, 1, key.as_bytes());
                write_bytes(&mut entry, 2, value.as_str().unwrap_or_default().as_bytes());
                write_bytes(out, number, &entry);
            }
        }
        Json | Message(_) if value.is_null() => {}
        Json => {
            let mut raw_json = Vec::new();
            write_bytes(&mut raw_json, 1, value.to_string().as_bytes());
            write_bytes(out, number, &raw_json);
        }
        Within(fields) | Message(fields) => {
            write_bytes(out, number, &encode_message(fields, value));
        }
        Messages(fields) => {
            for value in list {
                write_bytes(out, number, &encode_message(fields, value));
            }
        }
    }
}

fn encode_time(text: &Value) -> Option<Vec<u8>> {
    let time: jiff::Timestamp = text.as_str()?.parse().ok()?;
    let mut out = Vec::new();
    write_varint(&mut out, 1, time.as_second().cast_unsigned());
    write_varint(&mut out, 2, i64::from(time.subsec_nanosecond()).cast_unsigned());
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a kube-apiserver answered to a request for CustomResources in protobuf.
    #[test]
    fn a_status_is_written_byte_for_byte_as_upstream_does() {
        let message = "only the following media types are accepted: application/json, \
                       application/yaml, application/vnd.kubernetes.protobuf";
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "NotAcceptable", "code": 406,
        });
        let mut expected = b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12\x99\x01".to_vec();
        expected.extend(b"\n\x06\n\0\x12\0\x1a\0\x12\x07Failure\x1a\x74");
        expected.extend(message.as_bytes());
        expected.extend(b"\"\rNotAcceptable\x30\x96\x03\x1a\0\"\0");
        assert_eq!(encode_object(&status), Some(expected));
    }

    #[test]
    fn other_kinds_have_no_form() {
        for kind in ["Table", "Pilot", "APIGroupList"] {
            assert_eq!(encode_object(&json!({"kind": kind, "apiVersion": "v1"})), None, "{kind}");
        }
    }
}
