//! `metadata.managedFields` as it stands in JSON, beside the object that it belongs to.
//!
//! Joins an object and its entries into one text, and splits them again. Entries are often as large
//! as the rest of the object and few requests look into them, so they stay text: no object in
//! memory has them among its fields.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

const METADATA: &str = "metadata";
const MANAGED: &str = "managedFields";
const REVISION: &str = "resourceVersion";

/// The JSON text of `metadata.managedFields`: a list of entries.
#[derive(Clone, Debug)]
pub struct RawManagedFields(Box<RawValue>);

impl PartialEq for RawManagedFields {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

/// One entry of `managedFields`, with the fields that this server knows.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "struct Entry")]
pub(super) struct ManagedEntry<'a> {
    pub(super) manager: Option<String>,
    pub(super) operation: Option<String>,
    pub(super) api_version: Option<String>,
    pub(super) time: Option<String>,
    pub(super) fields_type: Option<String>,
    #[serde(borrow, rename = "fieldsV1")]
    pub(super) fields: Option<&'a RawValue>,
    pub(super) subresource: Option<String>,
}

impl RawManagedFields {
    /// Keeps the text of a body's `managedFields`; `None` for `null`.
    pub fn from_json(raw: &RawValue) -> Option<Self> {
        (raw.get() != "null").then(|| Self(raw.to_owned()))
    }

    pub(super) fn from_written(written: &impl Serialize) -> Self {
        let raw = serde_json::value::to_raw_value(written);
        Self(raw.expect("entries have string keys and no failing fields"))
    }

    /// Removes `managedFields` from a tree of JSON values and returns it.
    pub fn take_from(object: &mut Value) -> Option<Self> {
        let metadata = object.get_mut(METADATA)?.as_object_mut()?;
        let entries = metadata.remove(MANAGED).filter(|entries| !entries.is_null())?;
        Some(Self::from_written(&entries))
    }

    /// Writes `managedFields` into a tree of JSON values, for code that changes or shows the object
    /// as one. Entries that nest too deep, which older releases accepted, are left out.
    pub fn put_into(&self, object: &mut Value) {
        if let Some(metadata) = object.get_mut(METADATA).and_then(Value::as_object_mut)
            && let Ok(tree) = serde_json::from_str(self.text())
        {
            metadata.insert(MANAGED.to_owned(), tree);
        }
    }

    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the text as a list of entries.
    pub(super) fn parse_entries(&self) -> Result<Vec<ManagedEntry<'_>>, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// Returns an error when the text is not a list of entries.
    pub fn check_entries(&self) -> Result<(), String> {
        self.parse_entries().map(drop).map_err(|error| error.to_string())
    }

    /// Does the client ask to reset ownership? An empty list does, and a list of one empty entry.
    pub fn is_reset(&self) -> bool {
        let tree = serde_json::from_str::<Vec<Map<String, Value>>>;
        let prefix = self.text().bytes().filter(|byte| !byte.is_ascii_whitespace()).take(5);
        let prefix: Vec<u8> = prefix.collect();
        prefix.len() < 5 && tree(self.text()).is_ok_and(|list| list.iter().all(Map::is_empty))
    }

    /// Are both lists of entries equal, times aside?
    pub fn is_equal_but_times(&self, other: &Self) -> bool {
        let (Ok(own_entries), Ok(other_entries)) = (self.parse_entries(), other.parse_entries())
        else {
            return false;
        };
        own_entries.len() == other_entries.len()
            && own_entries
                .iter()
                .zip(&other_entries)
                .all(|(entry, other)| entry.is_same_entry(other))
    }
}

impl ManagedEntry<'_> {
    fn is_same_entry(&self, other: &Self) -> bool {
        let Self { manager, operation, api_version, time: _, fields_type, fields, subresource } =
            self;
        *manager == other.manager
            && *operation == other.operation
            && *api_version == other.api_version
            && *fields_type == other.fields_type
            && fields.map(RawValue::get) == other.fields.map(RawValue::get)
            && *subresource == other.subresource
    }
}

/// Parses an object, and keeps the text of its `managedFields` apart.
pub fn split_json(json: &[u8]) -> Result<(Value, Option<RawManagedFields>), serde_json::Error> {
    let SplitObject { object, entries } = serde_json::from_slice(json)?;
    Ok((object, entries))
}

/// Parses an object, with its `managedFields` as part of the tree.
pub fn parse_whole(json: &[u8]) -> Result<Value, serde_json::Error> {
    let (mut object, entries) = split_json(json)?;
    if let Some(entries) = entries {
        entries.put_into(&mut object);
    }
    Ok(object)
}

/// Writes an object and its entries as one JSON text. Equal objects give equal texts: names are in
/// order.
pub fn join_json(json: &mut Vec<u8>, object: &Value, entries: Option<&RawManagedFields>) {
    write_object(json, object, entries, RevisionMode::Kept);
}

/// Writes an object and its entries without `resourceVersion`, and returns the gap where it
/// belongs; no gap for an object without metadata.
pub fn join_but_revision(
    object: &Value,
    entries: Option<&RawManagedFields>,
) -> (Vec<u8>, Option<RevisionGap>) {
    let mut json = Vec::with_capacity(2048 + entries.map_or(0, |entries| entries.text().len()));
    let gap = write_object(&mut json, object, entries, RevisionMode::LeftOut);
    (json, gap)
}

/// The position of `metadata.resourceVersion` in a text without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionGap {
    pub at: usize,
    /// True when no field stands before the gap.
    first: bool,
    /// True when no field stands behind the gap.
    last: bool,
}

impl RevisionGap {
    /// Returns the text that fills the gap with `revision`.
    pub fn fill_text(self, revision: u64) -> String {
        let leading_comma = if self.first { "" } else { "," };
        let trailing_comma = if self.first && !self.last { "," } else { "" };
        format!("{leading_comma}\"{REVISION}\":\"{revision}\"{trailing_comma}")
    }
}

struct SplitObject {
    object: Value,
    entries: Option<RawManagedFields>,
}

impl<'de> Deserialize<'de> for SplitObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = SplitObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<SplitObject, A::Error> {
                let (mut object, mut entries) = (Map::new(), None);
                while let Some(name) = fields.next_key::<String>()? {
                    let value = if name == METADATA {
                        let raw: &RawValue = fields.next_value()?;
                        let (metadata, own_entries) =
                            parse_metadata(raw).map_err(A::Error::custom)?;
                        entries = own_entries;
                        metadata
                    } else {
                        fields.next_value()?
                    };
                    object.insert(name, value);
                }
                Ok(SplitObject { object: object.into(), entries })
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// Parses metadata, and keeps the text of its `managedFields` apart.
fn parse_metadata(raw: &RawValue) -> Result<(Value, Option<RawManagedFields>), serde_json::Error> {
    struct MetadataVisitor;

    impl<'de> Visitor<'de> for MetadataVisitor {
        type Value = (Value, Option<RawManagedFields>);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("metadata")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
            let (mut metadata, mut entries) = (Map::new(), None);
            while let Some(name) = fields.next_key::<String>()? {
                if name == MANAGED {
                    entries = RawManagedFields::from_json(fields.next_value()?);
                } else {
                    metadata.insert(name, fields.next_value()?);
                }
            }
            Ok((metadata.into(), entries))
        }
    }

    if !raw.get().starts_with('{') {
        return Ok((serde_json::from_str(raw.get())?, None));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    deserializer.deserialize_map(MetadataVisitor)
}

/// Whether `metadata.resourceVersion` is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RevisionMode {
    Kept,
    LeftOut,
}

fn write_object(
    json: &mut Vec<u8>,
    object: &Value,
    entries: Option<&RawManagedFields>,
    revision: RevisionMode,
) -> Option<RevisionGap> {
    let Some(fields) = object.as_object() else {
        write_value(json, object);
        return None;
    };
    let mut gap = None;
    let mut separator = b'{';
    for (name, value) in fields {
        json.push(separator);
        separator = b',';
        write_value(json, name);
        json.push(b':');
        match value.as_object().filter(|_| name == METADATA) {
            Some(metadata) => gap = Some(write_metadata(json, metadata, entries, revision)),
            None => write_value(json, value),
        }
    }
    if fields.is_empty() {
        json.push(b'{');
    }
    json.push(b'}');
    gap
}

fn write_metadata(
    json: &mut Vec<u8>,
    metadata: &Map<String, Value>,
    entries: Option<&RawManagedFields>,
    revision: RevisionMode,
) -> RevisionGap {
    json.push(b'{');
    let start = json.len();
    let mut pending_entries = entries;
    let mut gap = None;
    let write_separator = |json: &mut Vec<u8>| {
        if json.len() > start {
            json.push(b',');
        }
    };
    let write_entries = |json: &mut Vec<u8>, entries: &RawManagedFields| {
        write_separator(json);
        write_value(json, MANAGED);
        json.push(b':');
        json.extend_from_slice(entries.text().as_bytes());
    };
    for (name, value) in metadata {
        if name.as_str() > MANAGED
            && let Some(entries) = pending_entries.take()
        {
            write_entries(json, entries);
        }
        if name.as_str() >= REVISION && gap.is_none() {
            gap = Some(json.len());
        }
        if name == REVISION && revision == RevisionMode::LeftOut {
            continue;
        }
        write_separator(json);
        write_value(json, name);
        json.push(b':');
        write_value(json, value);
    }
    if let Some(entries) = pending_entries {
        write_entries(json, entries);
    }
    let position = gap.unwrap_or(json.len());
    let gap = RevisionGap { at: position, first: position == start, last: position == json.len() };
    json.push(b'}');
    gap
}

fn write_value(json: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(json, value).expect("a Value has string keys only, and a Vec takes all");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_and_its_entries_are_apart_and_come_together_as_they_were() {
        let entries = json!([{"manager": "m", "fieldsV1": {"f:a": {}}, "later": [1.50, "}"]}]);
        for (metadata, apart) in [
            (json!({"labels": {}, "managedFields": entries, "name": "a"}), true),
            (json!({"managedFields": entries}), true),
            (json!({"annotations": {}, "managedFields": entries}), true),
            (json!({"name": "a"}), false),
            (json!({}), false),
            (json!(null), false),
            (json!("text"), false),
            (json!([{"managedFields": entries}]), false),
        ] {
            let object = json!({"kind": "K", "metadata": metadata, "spec": {"managedFields": 1}});
            let text = object.to_string();
            let (mut tree, own) = split_json(text.as_bytes()).unwrap();
            assert_eq!(own.is_some(), apart, "{text}");
            assert!(tree["metadata"].get("managedFields").is_none(), "{tree}");
            let mut joined = Vec::new();
            join_json(&mut joined, &tree, own.as_ref());
            assert_eq!(String::from_utf8(joined).unwrap(), text);
            if let Some(own) = own {
                own.put_into(&mut tree);
                assert_eq!(tree, object);
                assert_eq!(RawManagedFields::take_from(&mut tree), Some(own));
            }
        }
        let (_, none) = split_json(br#"{"metadata":{"managedFields":null}}"#).unwrap();
        assert_eq!(none, None);
        assert!(split_json(b"[]").is_err() && split_json(b"{} {}").is_err());
    }

    #[test]
    fn a_revision_fits_into_its_gap() {
        let entries = json!([{"manager": "m"}]);
        for metadata in [
            json!({}),
            json!({"name": "a"}),
            json!({"uid": "u"}),
            json!({"name": "a", "uid": "u", "selfLink": "\"resourceVersion\":"}),
            json!({"annotations": {"resourceVersion": "x"}, "managedFields": entries}),
            json!({"managedFields": entries, "name": "a", "uid": "u"}),
        ] {
            let object = |revision: Option<&str>| {
                let mut metadata = metadata.clone();
                if let Some(revision) = revision {
                    metadata["resourceVersion"] = revision.into();
                }
                json!({"kind": "K", "metadata": metadata, "spec": {"resourceVersion": "1"}})
            };
            for before in [None, Some("6")] {
                let mut tree = object(before);
                let own = RawManagedFields::take_from(&mut tree);
                let (json, gap) = join_but_revision(&tree, own.as_ref());
                let text = String::from_utf8(json).unwrap();
                assert_eq!(text, object(None).to_string());
                let gap = gap.unwrap();
                let filled = [&text[..gap.at], &gap.fill_text(71), &text[gap.at..]].concat();
                assert_eq!(filled, object(Some("71")).to_string());
            }
        }
        for object in [json!({}), json!([1]), json!({"metadata": 1})] {
            assert_eq!(join_but_revision(&object, None), (object.to_string().into_bytes(), None));
        }
    }

    #[test]
    fn entries_that_nest_too_deep_are_left_out_of_a_tree() {
        for (levels, kept) in [(125, true), (130, false)] {
            let deep = "[".repeat(levels) + &"]".repeat(levels);
            let json = format!("{{\"metadata\":{{\"managedFields\":{deep},\"name\":\"a\"}}}}");
            let tree = parse_whole(json.as_bytes()).unwrap();
            assert_eq!(tree["metadata"]["name"], "a");
            assert_eq!(tree["metadata"].get(MANAGED).is_some(), kept, "{levels}");
        }
    }

    #[test]
    fn an_empty_list_asks_for_a_fresh_start() {
        for (text, reset) in [
            ("[]", true),
            ("[ {} ]", true),
            ("[null]", false),
            ("[{},{}]", false),
            ("[{\"manager\":\"a\"}]", false),
            ("{}", false),
            ("\"\"", false),
        ] {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            assert_eq!(RawManagedFields::from_json(raw).unwrap().is_reset(), reset, "{text}");
        }
    }
}
