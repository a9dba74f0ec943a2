//! OpenAPI of version 3 in protobuf says what the JSON says. It is read by a table of its own.

use std::collections::HashMap;

use navigator::{
    api::VERSIONS,
    machinery::openapi::{build_v3, protobuf},
};
use serde_json::{Map, Value, json};

use crate::scheme;

/// The messages of gnostic's `OpenAPIv3.proto` of which our documents consist, as
/// `name number type`. `*` are names of the document's own, `x-` what begins so; `[]` repeats,
/// `?` may be a reference.
const MESSAGES: &str = "
Document: openapi 1 text, info 2 Info, paths 4 Paths, components 5 Components
Info: title 1 text, version 6 text
Paths: * 1 PathItem
PathItem: get 4 Operation, put 5 Operation, post 6 Operation, delete 7 Operation, \
    patch 10 Operation, parameters 13 Parameter?[]
Operation: tags 1 text[], description 3 text, operationId 5 text, parameters 6 Parameter?[], \
    requestBody 7 RequestBody?, responses 8 Responses, x- 13 any
Parameter: name 1 text, in 2 text, description 3 text, required 4 flag, schema 10 Schema?
RequestBody: content 2 Content, required 3 flag
Content: * 1 MediaType
MediaType: schema 1 Schema?
Responses: * 2 Response?
Response: description 1 text, content 3 Content
Components: schemas 1 Schemas, securitySchemes 7 SecuritySchemes
SecuritySchemes: * 1 SecurityScheme?
SecurityScheme: type 1 text, description 2 text, name 3 text, in 4 text
Schemas: * 1 Schema?
Schema: maximum 11 number, minimum 13 number, maxLength 15 integer, minLength 16 integer, \
    pattern 17 text, maxItems 18 integer, minItems 19 integer, uniqueItems 20 flag, \
    maxProperties 21 integer, minProperties 22 integer, required 23 text[], enum 24 any[], \
    type 25 text, allOf 26 Schema?[], oneOf 27 Schema?[], anyOf 28 Schema?[], items 30 Items, \
    properties 31 Schemas, additionalProperties 32 Additional, default 33 Default, \
    description 34 text, format 35 text, x- 36 any
Items: one 1 Schema?
Additional: schema 1 Schema?, more 2 flag
Default: number 1 number, boolean 2 flag, string 3 text
Any: yaml 2 text
Reference: $ref 1 text";

pub(crate) type Messages = HashMap<String, HashMap<u64, (String, String)>>;

/// Reads a table.
pub(crate) fn messages(table: &str) -> Messages {
    let field = |text: &str| {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [name, number, type_] = parts[..] else { panic!("{text}") };
        (number.parse().unwrap(), (name.to_owned(), type_.to_owned()))
    };
    let message = |line: &str| {
        let (name, fields) = line.split_once(':').unwrap();
        (name.to_owned(), fields.split(',').map(field).collect())
    };
    table.trim().lines().map(message).collect()
}

/// The fields of a message as they came: number and what it holds.
pub(crate) fn fields(mut bytes: &[u8]) -> Vec<(u64, Held<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let held = match key & 7 {
            0 => Held::Varint(varint(&mut bytes)),
            1 => {
                let (eight, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                Held::Double(f64::from_le_bytes(*eight))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (held, rest) = bytes.split_at(length);
                bytes = rest;
                Held::Bytes(held)
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, held));
    }
    found
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Held<'a> {
    Varint(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

fn whole(number: f64) -> Value {
    // What JSON writes without a fraction reads as an integer.
    serde_json::from_str(&number.to_string()).unwrap()
}

pub(crate) fn read(messages: &Messages, type_: &str, held: Held<'_>) -> Value {
    if let Some(type_) = type_.strip_suffix('?') {
        let Held::Bytes(bytes) = held else { panic!("{type_}: {held:?}") };
        let [(number, held)] = fields(bytes)[..] else { panic!("{type_}: one of two") };
        let type_ = if number == 1 { type_ } else { "Reference" };
        return read(messages, type_, held);
    }
    let bytes = match (type_, held) {
        ("flag", Held::Varint(flag)) => return json!(flag == 1),
        ("integer", Held::Varint(count)) => return json!(count),
        ("number", Held::Double(number)) => return whole(number),
        (_, Held::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let text = || std::str::from_utf8(bytes).unwrap();
    match type_ {
        "text" => json!(text()),
        "any" => {
            let read = read(messages, "Any", held);
            serde_yaml::from_str(read["yaml"].as_str().unwrap()).unwrap()
        }
        "Items" | "Additional" | "Default" => {
            let read = read_fields(messages, type_, bytes);
            read.into_iter().next().map_or(Value::Null, |(_, value)| value)
        }
        type_ => Value::Object(read_fields(messages, type_, bytes)),
    }
}

fn read_fields(messages: &Messages, type_: &str, bytes: &[u8]) -> Map<String, Value> {
    let mut out = Map::new();
    for (number, held) in fields(bytes) {
        let known = messages[type_].get(&number);
        let (name, type_) = known.unwrap_or_else(|| panic!("{type_} has no field {number}"));
        match (name.as_str(), held, type_.strip_suffix("[]")) {
            ("*" | "x-", Held::Bytes(entry), _) => {
                let [(1, Held::Bytes(name)), (2, value)] = fields(entry)[..] else {
                    panic!("{type_}: a name and its value")
                };
                let name = String::from_utf8(name.to_vec()).unwrap();
                assert!(out.insert(name, read(messages, type_, value)).is_none());
            }
            (name, held, Some(item)) => {
                let list = out.entry(name).or_insert_with(|| json!([]));
                list.as_array_mut().unwrap().push(read(messages, item, held));
            }
            (name, held, None) => {
                assert!(out.insert(name.to_owned(), read(messages, type_, held)).is_none());
            }
        }
    }
    out
}

/// The document as protobuf can say it: without what an absent field means, and with no default
/// that is no scalar.
fn sayable(value: &mut Value) {
    if let Value::Object(fields) = value {
        if fields.get("default").is_some_and(|value| value.is_object() || value.is_array()) {
            fields["default"] = Value::Null;
        }
        fields.retain(|name, value| {
            let exact =
                name.starts_with("x-") || name == "default" || name == "additionalProperties";
            exact || ![json!(false), json!(""), json!(0), json!([])].contains(value)
        });
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(sayable),
        Value::Array(items) => items.iter_mut().for_each(sayable),
        _ => {}
    }
}

#[test]
fn protobuf_says_what_json_says() {
    let messages = messages(MESSAGES);
    for version in VERSIONS {
        let mut document = build_v3(scheme(), version);
        let bytes = protobuf::encode_document(&document);
        let read = read(&messages, "Document", Held::Bytes(&bytes));
        sayable(&mut document);
        for part in ["openapi", "info"] {
            assert_eq!(read[part], document[part]);
        }
        for (path, expected) in document["paths"].as_object().unwrap() {
            assert_eq!(read["paths"][path], *expected, "{version} {path}");
        }
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 50, "{}", schemas.len());
        for (name, expected) in schemas {
            assert_eq!(read["components"]["schemas"][name], *expected, "{version} {name}");
        }
        assert_eq!(read, document, "{version}");
    }
}
