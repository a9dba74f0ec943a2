//! Events of the group `events.k8s.io`: the core group's Events, with other names for some fields.

use serde_json::Value;

use super::{KubernetesKind, roundtrip_type};
use crate::machinery::{
    decode::ParsedBody,
    served_kind::{
        DecodeError, DecodedObject, ObjectPart, PrinterColumn, ServedKind, ServedVersion,
        ValidationResult,
    },
};

/// Names of a field: in the core group, and in `events.k8s.io`.
const WORDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The kind Event of `events.k8s.io`; its hub form is the core group's Event.
pub(super) struct EventsGroupKind {
    core: KubernetesKind,
}

impl EventsGroupKind {
    pub(super) fn new(core: KubernetesKind) -> Self {
        Self { core }
    }
}

fn rename_fields(event: &mut Value, words: impl Iterator<Item = (&'static str, &'static str)>) {
    let Some(fields) = event.as_object_mut() else { return };
    for (old_name, new_name) in words {
        if let Some(value) = fields.remove(old_name) {
            fields.insert(new_name.to_owned(), value);
        }
    }
}

impl ServedKind for EventsGroupKind {
    fn plural(&self) -> &'static str {
        self.core.plural()
    }

    fn singular(&self) -> &'static str {
        self.core.singular()
    }

    fn kind(&self) -> &'static str {
        self.core.kind()
    }

    fn short_names(&self) -> &'static [&'static str] {
        self.core.short_names()
    }

    fn categories(&self) -> &'static [&'static str] {
        self.core.categories()
    }

    fn versions(&self) -> &'static [ServedVersion] {
        self.core.versions()
    }

    fn has_status(&self) -> bool {
        false
    }

    fn group(&self) -> &'static str {
        "events.k8s.io"
    }

    fn stored_group(&self) -> &'static str {
        self.core.stored_group()
    }

    fn takes_strategic(&self) -> bool {
        true
    }

    fn normalize(&self, _: ServedVersion, _: &mut ParsedBody) -> Result<Vec<String>, DecodeError> {
        Ok(Vec::new())
    }

    fn decode(
        &self,
        version: ServedVersion,
        mut body: ParsedBody,
        stored: Option<&Value>,
    ) -> Result<DecodedObject, DecodeError> {
        super::drop_nulls(&mut body.value);
        roundtrip_type::<k8s_openapi::api::events::v1::Event>(&body.value).map_err(|error| {
            DecodeError::Malformed(format!(
                "Event in version \"{version}\" cannot be handled as an Event: {error}"
            ))
        })?;
        rename_fields(&mut body.value, WORDS.into_iter().map(|(core, other)| (other, core)));
        // The core group's Event requires `involvedObject`.
        if body.value.get("involvedObject").is_none() {
            body.value["involvedObject"] = serde_json::json!({});
        }
        self.core.decode(version, body, stored)
    }

    fn encode(&self, version: ServedVersion, hub: &Value) -> Value {
        let mut event = self.core.encode(version, hub);
        rename_fields(&mut event, WORDS.into_iter());
        event["apiVersion"] = self.api_version(version).into();
        event
    }

    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError> {
        self.core.decode_stored(stored)
    }

    fn merge_update(&self, part: ObjectPart, new: Value, old: &Value) -> Value {
        self.core.merge_update(part, new, old)
    }

    fn validate_create(&self, version: ServedVersion, hub: &Value) -> ValidationResult {
        self.core.validate_create(version, hub)
    }

    fn validate_update(
        &self,
        version: ServedVersion,
        part: ObjectPart,
        new: &Value,
        old: &Value,
    ) -> ValidationResult {
        self.core.validate_update(version, part, new, old)
    }

    fn columns(&self) -> &'static [PrinterColumn] {
        self.core.columns()
    }

    fn cells(&self, hub: &Value, now: i64) -> Vec<Value> {
        self.core.cells(hub, now)
    }

    fn selectable_fields(&self) -> &'static [&'static str] {
        &[
            "reason",
            "regarding.apiVersion",
            "regarding.fieldPath",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "regarding.resourceVersion",
            "regarding.uid",
            "reportingController",
            "type",
        ]
    }

    fn field_value(&self, hub: &Value, path: &str) -> String {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let core = WORDS.iter().find(|(_, other)| *other == first).map(|(core, _)| *core);
        match (core, rest) {
            (Some(core), "") => self.core.field_value(hub, core),
            (Some(core), rest) => self.core.field_value(hub, &format!("{core}.{rest}")),
            (None, _) => self.core.field_value(hub, path),
        }
    }
}
