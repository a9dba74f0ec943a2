//! An OpenAPI document of version 3 as protobuf, for clients that read protobuf faster than JSON.
//!
//! Owns the messages of gnostic's `openapiv3/OpenAPIv3.proto`, as tables: which field of the
//! document has which number. Only what our documents say is in the tables; a test reads every
//! document back. A default that is no scalar has no place in these messages, upstream's neither.

use serde_json::{Map, Value};

use crate::machinery::protobuf_wire::{write_bytes, write_double, write_varint};

/// The type of a message's field.
#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Texts,
    Flag,
    Integer,
    Number,
    /// Any value, written as YAML in a message of its own. JSON is YAML.
    Any,
    Anys,
    Message(&'static MessageDescriptor),
    Messages(&'static MessageDescriptor),
    /// The message, or a reference to a message of that type.
    Or(&'static MessageDescriptor),
    Ors(&'static MessageDescriptor),
    /// The schema of a list's items.
    Items,
    /// A schema of further properties, or a boolean that says whether there may be any.
    Additional,
    /// A default value that is a scalar.
    Default,
}

use FieldType::{
    Additional, Any, Anys, Default, Flag, Integer, Items, Message as One, Messages, Number, Or,
    Ors, Text, Texts,
};

/// A protobuf message: its fields by the names that the document uses.
struct MessageDescriptor {
    fields: &'static [(&'static str, u32, FieldType)],
    /// Number and type of the field that holds entries with free names, as in a map.
    named: Option<(u32, FieldType)>,
    /// Number of the field for extensions, whose names begin with `x-`.
    extensions: u32,
}

/// Describes a map, whose entries have free names.
const fn describe_map(form: FieldType) -> MessageDescriptor {
    MessageDescriptor { fields: &[], named: Some((1, form)), extensions: 0 }
}

const fn describe_message(
    fields: &'static [(&'static str, u32, FieldType)],
    extensions: u32,
) -> MessageDescriptor {
    MessageDescriptor { fields, named: None, extensions }
}

static DOCUMENT: MessageDescriptor = describe_message(
    &[
        ("openapi", 1, Text),
        ("info", 2, One(&INFO)),
        ("paths", 4, One(&PATHS)),
        ("components", 5, One(&COMPONENTS)),
        ("security", 6, Messages(&SECURITY)),
    ],
    9,
);
static INFO: MessageDescriptor =
    describe_message(&[("title", 1, Text), ("description", 2, Text), ("version", 6, Text)], 7);
static PATHS: MessageDescriptor = MessageDescriptor { extensions: 2, ..describe_map(One(&PATH)) };
static PATH: MessageDescriptor = describe_message(
    &[
        ("summary", 2, Text),
        ("description", 3, Text),
        ("get", 4, One(&OPERATION)),
        ("put", 5, One(&OPERATION)),
        ("post", 6, One(&OPERATION)),
        ("delete", 7, One(&OPERATION)),
        ("options", 8, One(&OPERATION)),
        ("head", 9, One(&OPERATION)),
        ("patch", 10, One(&OPERATION)),
        ("parameters", 13, Ors(&PARAMETER)),
    ],
    14,
);
static OPERATION: MessageDescriptor = describe_message(
    &[
        ("tags", 1, Texts),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, Ors(&PARAMETER)),
        ("requestBody", 7, Or(&BODY)),
        ("responses", 8, One(&RESPONSES)),
        ("deprecated", 10, Flag),
        ("security", 11, Messages(&SECURITY)),
    ],
    13,
);
static PARAMETER: MessageDescriptor = describe_message(
    &[
        ("name", 1, Text),
        ("in", 2, Text),
        ("description", 3, Text),
        ("required", 4, Flag),
        ("schema", 10, Or(&SCHEMA)),
    ],
    14,
);
static BODY: MessageDescriptor = describe_message(
    &[("description", 1, Text), ("content", 2, One(&CONTENT)), ("required", 3, Flag)],
    4,
);
static CONTENT: MessageDescriptor = describe_map(One(&MEDIA_TYPE));
static MEDIA_TYPE: MessageDescriptor = describe_message(&[("schema", 1, Or(&SCHEMA))], 5);
static RESPONSES: MessageDescriptor = MessageDescriptor {
    fields: &[("default", 1, Or(&RESPONSE))],
    named: Some((2, Or(&RESPONSE))),
    extensions: 3,
};
static RESPONSE: MessageDescriptor =
    describe_message(&[("description", 1, Text), ("content", 3, One(&CONTENT))], 5);
static COMPONENTS: MessageDescriptor = describe_message(
    &[("schemas", 1, One(&SCHEMAS)), ("securitySchemes", 7, One(&SECURITY_SCHEMES))],
    10,
);
static SCHEMAS: MessageDescriptor = describe_map(Or(&SCHEMA));
static SECURITY_SCHEMES: MessageDescriptor = describe_map(Or(&SECURITY_SCHEME));
static SECURITY_SCHEME: MessageDescriptor = describe_message(
    &[("type", 1, Text), ("description", 2, Text), ("name", 3, Text), ("in", 4, Text)],
    9,
);
static SECURITY: MessageDescriptor = describe_map(One(&SCOPES));
/// Scopes are a list in the document, and a message with one field in protobuf.
static SCOPES: MessageDescriptor = describe_message(&[("", 1, Texts)], 0);
static REFERENCE: MessageDescriptor = describe_message(&[("$ref", 1, Text)], 0);
static SCHEMA: MessageDescriptor = describe_message(
    &[
        ("nullable", 1, Flag),
        ("title", 9, Text),
        ("multipleOf", 10, Number),
        ("maximum", 11, Number),
        ("exclusiveMaximum", 12, Flag),
        ("minimum", 13, Number),
        ("exclusiveMinimum", 14, Flag),
        ("maxLength", 15, Integer),
        ("minLength", 16, Integer),
        ("pattern", 17, Text),
        ("maxItems", 18, Integer),
        ("minItems", 19, Integer),
        ("uniqueItems", 20, Flag),
        ("maxProperties", 21, Integer),
        ("minProperties", 22, Integer),
        ("required", 23, Texts),
        ("enum", 24, Anys),
        ("type", 25, Text),
        ("allOf", 26, Ors(&SCHEMA)),
        ("oneOf", 27, Ors(&SCHEMA)),
        ("anyOf", 28, Ors(&SCHEMA)),
        ("not", 29, One(&SCHEMA)),
        ("items", 30, Items),
        ("properties", 31, One(&SCHEMAS)),
        ("additionalProperties", 32, Additional),
        ("default", 33, Default),
        ("description", 34, Text),
        ("format", 35, Text),
        ("example", 7, Any),
    ],
    36,
);

/// Encodes an OpenAPI document as a `Document` message.
pub fn encode_document(document: &Value) -> Vec<u8> {
    encode_message(&DOCUMENT, document)
}

fn encode_message(form: &MessageDescriptor, value: &Value) -> Vec<u8> {
    let fields = match value {
        Value::Object(fields) => fields,
        // `SCOPES` alone stands for a list.
        Value::Array(_) => &Map::from_iter([(String::new(), value.clone())]),
        _ => &Map::new(),
    };
    let mut parts = Vec::new();
    for (name, value) in fields {
        let mut part = Vec::new();
        let descriptor = form.fields.iter().find(|(field_name, ..)| field_name == name);
        let number = if let Some((_, number, form)) = descriptor {
            write_field(&mut part, *number, *form, value);
            *number
        } else if name.starts_with("x-") && form.extensions > 0 {
            write_bytes(&mut part, form.extensions, &encode_entry(name, Any, value));
            form.extensions
        } else if let Some((number, form)) = form.named {
            write_bytes(&mut part, number, &encode_entry(name, form, value));
            number
        } else {
            continue;
        };
        parts.push((number, part));
    }
    // Fields are written in the order of their numbers, as other writers of protobuf do.
    parts.sort_by_key(|(number, _)| *number);
    parts.into_iter().flat_map(|(_, part)| part).collect()
}

/// Encodes a name and its value, as one entry of a map.
fn encode_entry(name: &str, form: FieldType, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_bytes(&mut out, 1, name.as_bytes());
    write_field(&mut out, 2, form, value);
    out
}

/// Writes the message as field 1, or a reference as field 2.
fn encode_or_reference(form: &MessageDescriptor, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    if value.get("$ref").is_some() {
        write_bytes(&mut out, 2, &encode_message(&REFERENCE, value));
    } else {
        write_bytes(&mut out, 1, &encode_message(form, value));
    }
    out
}

fn encode_yaml(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_bytes(&mut out, 2, format!("{value}\n").as_bytes());
    out
}

fn write_field(out: &mut Vec<u8>, number: u32, form: FieldType, value: &Value) {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    match form {
        // Empty, false and zero values are left out: a reader takes an absent field for them.
        Text => match value.as_str() {
            None | Some("") => {}
            Some(text) => write_bytes(out, number, text.as_bytes()),
        },
        Texts => {
            let texts = list.iter().filter_map(Value::as_str);
            texts.for_each(|text| write_bytes(out, number, text.as_bytes()));
        }
        Flag => {
            if value == &Value::Bool(true) {
                write_varint(out, number, 1);
            }
        }
        Integer => match value.as_u64() {
            None | Some(0) => {}
            Some(count) => write_varint(out, number, count),
        },
        Number => match value.as_f64() {
            Some(value) if value != 0.0 => write_double(out, number, value),
            _ => {}
        },
        Any => write_bytes(out, number, &encode_yaml(value)),
        Anys => list.iter().for_each(|value| write_bytes(out, number, &encode_yaml(value))),
        One(form) => write_bytes(out, number, &encode_message(form, value)),
        Messages(form) => {
            for value in list {
                write_bytes(out, number, &encode_message(form, value));
            }
        }
        Or(form) => write_bytes(out, number, &encode_or_reference(form, value)),
        Ors(form) => list
            .iter()
            .for_each(|value| write_bytes(out, number, &encode_or_reference(form, value))),
        Items => {
            let mut items = Vec::new();
            write_bytes(&mut items, 1, &encode_or_reference(&SCHEMA, value));
            write_bytes(out, number, &items);
        }
        Additional => {
            let mut choice = Vec::new();
            match value {
                Value::Bool(is_allowed) => write_varint(&mut choice, 2, u64::from(*is_allowed)),
                schema => write_bytes(&mut choice, 1, &encode_or_reference(&SCHEMA, schema)),
            }
            write_bytes(out, number, &choice);
        }
        Default => {
            let mut scalar = Vec::new();
            match value {
                Value::Number(value) => {
                    write_double(&mut scalar, 1, value.as_f64().unwrap_or_default());
                }
                Value::Bool(value) => write_varint(&mut scalar, 2, u64::from(*value)),
                Value::String(text) => write_bytes(&mut scalar, 3, text.as_bytes()),
                Value::Null | Value::Array(_) | Value::Object(_) => {}
            }
            write_bytes(out, number, &scalar);
        }
    }
}
