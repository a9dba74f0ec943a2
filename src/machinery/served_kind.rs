//! Types that describe kinds: versions, columns, decoded bodies, and [`ServedKind`] itself.
//!
//! Handlers and registry are written once over [`ServedKind`]; what differs between kinds and
//! versions lies behind it. Objects travel as JSON values in *hub form*: the object as the kind's
//! first version shows it, defaulted.

use std::{fmt, sync::LazyLock};

use serde_json::Value;

use super::{decode::ParsedBody, field_error::ErrorList, schema::compiled::Schema};

/// A version of a group, such as `v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedVersion(&'static str);

impl ServedVersion {
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for ServedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrinterColumn {
    pub name: &'static str,
    /// Type of the cells: `string`, `integer` or `date`.
    pub type_: &'static str,
    /// 0 for a column that is always shown, 1 for one that `-o wide` adds.
    pub priority: i32,
    pub description: &'static str,
}

/// The part of an object that a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPart {
    /// The object without its status.
    Main,
    /// The status alone, through `/status`.
    Status,
    /// What another of the kind's [`Subresource`]s writes, by the subresource's name.
    Other(&'static str),
}

impl ObjectPart {
    /// Returns the subresource's name as it stands in a URL; empty for the object itself.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Other(name) => name,
        }
    }
}

/// A subresource beside `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of the body that is read and written, where the body is not the
    /// object itself.
    pub form: Option<[&'static str; 3]>,
    pub verbs: &'static [&'static str],
}

/// A request body, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedObject {
    /// The object in hub form, defaulted, with unknown fields dropped.
    pub hub: Value,
    /// Unknown and duplicate fields, as `unknown field "spec.foo"`, `duplicate field "spec.bar"`.
    /// The caller refuses, warns or ignores, by `fieldValidation`.
    pub strict: Vec<String>,
    /// Warnings about accepted input, for the client.
    pub warnings: Vec<String>,
}

/// Why a request body could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Status 400, with the message for the client.
    #[error("{0}")]
    Malformed(String),
    /// Status 422, with the errors as its causes.
    #[error("{} problems", .0.len())]
    Invalid(ErrorList),
}

/// The outcome of validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationResult {
    /// Errors that refuse the request with status 422; empty when the object is valid.
    pub errors: ErrorList,
    /// Warnings for the client, one Warning header each.
    pub warnings: Vec<String>,
}

/// A kind that is served. Object-safe; a [`ServedKinds`](super::served_kinds::ServedKinds) holds one of each.
pub trait ServedKind: Send + Sync {
    /// The kind's plural, lower case: `pilots`.
    fn plural(&self) -> &'static str;
    /// The kind's singular, lower case: `pilot`.
    fn singular(&self) -> &'static str;
    /// The kind's name as in `kind`: `Pilot`.
    fn kind(&self) -> &'static str;
    fn short_names(&self) -> &'static [&'static str] {
        &[]
    }
    fn categories(&self) -> &'static [&'static str] {
        &[]
    }
    /// The versions in which the kind is served, in the order of preference; never empty.
    fn versions(&self) -> &'static [ServedVersion];
    /// The version whose form objects have in the hub.
    fn hub_version(&self) -> ServedVersion {
        self.versions()[0]
    }
    /// Returns the version of the kind that a URL names.
    fn find_version(&self, name: &str) -> Option<ServedVersion> {
        self.versions().iter().copied().find(|version| version.as_str() == name)
    }
    fn has_status(&self) -> bool;

    /// The kind's API group; empty for Kubernetes' core.
    fn group(&self) -> &'static str;
    /// The group under which the kind's objects lie in a store. Two kinds may show the same
    /// objects.
    fn stored_group(&self) -> &'static str {
        self.group()
    }
    fn is_namespaced(&self) -> bool {
        true
    }
    /// Returns the `apiVersion` of objects of `version`.
    fn api_version(&self, version: ServedVersion) -> String {
        match self.group() {
            "" => version.to_string(),
            group => format!("{group}/{version}"),
        }
    }
    fn subresources(&self) -> &'static [Subresource] {
        &[]
    }
    /// Does the kind accept strategic merge patches?
    fn takes_strategic(&self) -> bool {
        false
    }
    /// Returns the schema by which server-side apply merges objects of a version.
    fn merge_schema(&self, _version: ServedVersion) -> &'static Schema {
        static DEDUCED: LazyLock<Schema> = LazyLock::new(Schema::deduced_schema);
        &DEDUCED
    }
    /// Sets the fields of a new object that only the server writes.
    fn prepare_create(&self, _hub: &mut Value) {}
    /// Returns the grace period of a deletion in seconds: `_asked`, or the object's own. A deletion
    /// with 0 ends the object at once.
    fn grace_period(&self, _hub: &Value, _asked: Option<i64>) -> i64 {
        0
    }
    /// Sets the fields of an object that only the server writes when a deletion begins.
    fn prepare_delete(&self, _hub: &mut Value) {}
    /// Does anything but a finalizer still keep a deleted object from being removed?
    fn is_held(&self, _hub: &Value) -> bool {
        false
    }

    /// Rewrites older ways of writing in a patch (merge, strategic, apply) of `version` in the
    /// current form; returns warnings. For whole objects and for the results of JSON patches,
    /// `decode` does the rewriting itself.
    fn normalize(
        &self,
        _version: ServedVersion,
        _body: &mut ParsedBody,
    ) -> Result<Vec<String>, DecodeError> {
        Ok(Vec::new())
    }

    /// Decodes a request body of `version`: tolerant normalisation, strict check, defaulting,
    /// lifting to the hub. `stored` is the hub object that an update is about: the surplus that an
    /// older version cannot say, and values whose absence means "as before", come from it.
    fn decode(
        &self,
        version: ServedVersion,
        body: ParsedBody,
        stored: Option<&Value>,
    ) -> Result<DecodedObject, DecodeError>;

    /// Returns the hub object as `version` shows it, with apiVersion and kind.
    fn encode(&self, version: ServedVersion, hub: &Value) -> Value;

    /// Does the hub's version show the hub object unchanged?
    fn shows_all(&self, hub: &Value) -> bool {
        self.encode(self.hub_version(), hub) == *hub
    }

    /// Converts a stored object, in any version that was ever stored, to hub form. Unknown fields
    /// are kept.
    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError>;

    /// Returns the object after an update: fields that an update through `part` may touch come from
    /// `new`, all others from `old`. An update of status ignores spec and most metadata; an update
    /// of the main resource ignores status. Unknown fields of `old` (written by a newer server) are
    /// carried over. Leaves the generation as it is.
    fn merge_update(&self, part: ObjectPart, new: Value, old: &Value) -> Value;

    fn validate_create(&self, version: ServedVersion, hub: &Value) -> ValidationResult;
    fn validate_update(
        &self,
        version: ServedVersion,
        part: ObjectPart,
        new: &Value,
        old: &Value,
    ) -> ValidationResult;

    /// Tells by name which other objects of a namespace a write is to be judged beside; `None` for a
    /// kind whose objects are judged alone.
    fn is_beside(&self) -> Option<fn(name: &str, other: &str) -> bool> {
        None
    }
    /// Validates a write beside another object of the kind and the namespace. `_old` is the object
    /// as it is stored; absent for creates.
    fn validate_beside(
        &self,
        _version: ServedVersion,
        _new: &Value,
        _old: Option<&Value>,
        _other: &Value,
    ) -> ValidationResult {
        ValidationResult::default()
    }

    /// Largest stored object of the kind, in bytes. An object that is already larger may shrink.
    fn max_size(&self) -> usize {
        usize::MAX
    }

    /// Do databases wait for objects of this kind? Such objects are stored even when space is
    /// short.
    fn is_vital(&self) -> bool {
        false
    }

    /// Annotation in which an older version shows what it cannot say. It is not stored, and is owned
    /// by no field manager.
    fn surplus_annotation(&self) -> Option<&'static str> {
        None
    }

    /// Marks an object whose deletion leaves the objects that were made for it.
    fn orphan_dependents(&self, _hub: &mut Value) {}

    /// Columns of `kubectl get`, the same in every version.
    fn columns(&self) -> &'static [PrinterColumn];
    /// Returns the cells of an object for `kubectl get`, one for each column. `now` is in seconds
    /// since the epoch, for ages.
    fn cells(&self, hub: &Value, now: i64) -> Vec<Value>;

    /// Field selectors of the kind beside `metadata.name` and `metadata.namespace`.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }
    /// Returns the value of a selectable field; empty when the field is absent.
    fn field_value(&self, _hub: &Value, _path: &str) -> String {
        String::new()
    }
}
