//! Types that describe kinds: versions, columns, bodies that were understood, and [`ServedKind`]
//! itself.
//!
//! Handlers and registry are written once over [`ServedKind`]; what differs between kinds and
//! versions lies behind it. Objects travel as JSON values in *hub form*: the v1beta1 object,
//! defaulted.

use std::{fmt, sync::LazyLock};

use serde_json::Value;

use super::{GROUP, field::ErrorList, schema::compiled::Schema};

/// A served version, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServedVersion {
    V1beta1,
    V1alpha1,
    /// Of kinds of Kubernetes itself. Our group has no such version.
    V1,
}

impl ServedVersion {
    /// Versions of our group.
    pub const ALL: [Self; 2] = [Self::V1beta1, Self::V1alpha1];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1beta1 => "v1beta1",
            Self::V1alpha1 => "v1alpha1",
            Self::V1 => "v1",
        }
    }

    /// `navigator.jetstack.io/<version>`
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1beta1 => "navigator.jetstack.io/v1beta1",
            Self::V1alpha1 => "navigator.jetstack.io/v1alpha1",
            Self::V1 => "navigator.jetstack.io/v1",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let every = [Self::V1beta1, Self::V1alpha1, Self::V1];
        every.into_iter().find(|version| version.as_str() == text)
    }
}

impl fmt::Display for ServedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrinterColumn {
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub type_: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
}

/// The part of an object that a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPart {
    /// Everything but status.
    Main,
    /// `/status`: status and nothing else.
    Status,
    /// Another of the kind's [`Subresource`]s, by name.
    Other(&'static str),
}

impl ObjectPart {
    /// As it stands in a URL; empty for the object itself.
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
    /// Group, version and kind of what is read and written, where that is not the object itself.
    pub form: Option<[&'static str; 3]>,
    pub verbs: &'static [&'static str],
}

/// A request body that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedObject {
    /// The object in hub form, defaulted, with unknown fields dropped.
    pub hub: Value,
    /// Unknown and duplicate fields, as `unknown field "spec.foo"`, `duplicate field "spec.bar"`.
    /// The caller refuses, warns or ignores, by `fieldValidation`.
    pub strict: Vec<String>,
    /// What was accepted and deserves a warning (W1–W3 …).
    pub warnings: Vec<String>,
}

/// A request body that was not understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// 400.
    #[error("{0}")]
    Malformed(String),
    /// 422 with these causes.
    #[error("{} problems", .0.len())]
    Invalid(ErrorList),
}

/// The outcome of validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationResult {
    /// 422 with these causes, unless empty.
    pub errors: ErrorList,
    /// One Warning header each.
    pub warnings: Vec<String>,
}

/// A kind that is served. Object-safe; a [`Scheme`](super::scheme::Scheme) holds one of each.
pub trait ServedKind: Send + Sync {
    /// Plural, lower case: `pilots`.
    fn plural(&self) -> &'static str;
    /// Singular, lower case: `pilot`.
    fn singular(&self) -> &'static str;
    /// `Pilot`.
    fn kind(&self) -> &'static str;
    fn short_names(&self) -> &'static [&'static str];
    fn categories(&self) -> &'static [&'static str];
    /// Served versions in the order of preference.
    fn versions(&self) -> &'static [ServedVersion];
    fn has_status(&self) -> bool;

    /// The API group; empty for Kubernetes' core.
    fn group(&self) -> &'static str {
        GROUP
    }
    /// The group under which objects lie in a store. Two kinds may show the same objects.
    fn stored_group(&self) -> &'static str {
        self.group()
    }
    fn is_namespaced(&self) -> bool {
        true
    }
    /// What objects of `version` say in `apiVersion`.
    fn api_version(&self, version: ServedVersion) -> String {
        match self.group() {
            "" => version.to_string(),
            group => format!("{group}/{version}"),
        }
    }
    fn subresources(&self) -> &'static [Subresource] {
        &[]
    }
    /// Are strategic merge patches understood?
    fn takes_strategic(&self) -> bool {
        false
    }
    /// The schema by which objects of a version are merged in server-side apply.
    fn merging(&self, _version: ServedVersion) -> &'static Schema {
        static DEDUCED: LazyLock<Schema> = LazyLock::new(Schema::deduced);
        &DEDUCED
    }
    /// Sets the fields of a new object that only the server writes.
    fn begin(&self, _hub: &mut Value) {}
    /// Grace period of a deletion in seconds: the one that was asked for, or the object's own. A
    /// deletion with 0 ends the object at once.
    fn grace_period(&self, _hub: &Value, _asked: Option<i64>) -> i64 {
        0
    }
    /// Sets the fields that only the server writes when a deletion begins.
    fn end(&self, _hub: &mut Value) {}
    /// Does anything but a finalizer still hold a deleted object?
    fn is_held(&self, _hub: &Value) -> bool {
        false
    }

    /// Rewrites what a patch (merge, strategic, apply) of `version` says in an older way; returns
    /// warnings. `decode` does that itself for whole objects, and for the results of JSON patches.
    fn normalize(
        &self,
        version: ServedVersion,
        body: &mut super::decode::ParsedBody,
    ) -> Result<Vec<String>, DecodeError>;

    /// Understands a request body of `version`: tolerant normalisation, strict check, defaulting,
    /// lifting to the hub. `stored` is the hub object that an update is about: the surplus that
    /// an older form cannot say, and values whose absence means "as before", come from it.
    fn decode(
        &self,
        version: ServedVersion,
        body: super::decode::ParsedBody,
        stored: Option<&Value>,
    ) -> Result<DecodedObject, DecodeError>;

    /// The hub object as `version` shows it, with apiVersion and kind.
    fn encode(&self, version: ServedVersion, hub: &Value) -> Value;

    /// Is the hub object what the first version shows?
    fn shows_all(&self, hub: &Value) -> bool {
        self.encode(self.versions()[0], hub) == *hub
    }

    /// Reads what a store holds, in any version that was ever stored, into hub form. Unknown
    /// fields are kept.
    fn decode_stored(&self, stored: Value) -> Result<Value, DecodeError>;

    /// What an update through `part` may touch is taken from `new`, all else from `old`:
    /// status ignores spec and most metadata, the main resource ignores status. Unknown fields
    /// of `old` (written by a newer server) are carried over. Bumps no generation.
    fn merge_update(&self, part: ObjectPart, new: Value, old: &Value) -> Value;

    fn validate_create(&self, version: ServedVersion, hub: &Value) -> ValidationResult;
    fn validate_update(
        &self,
        version: ServedVersion,
        part: ObjectPart,
        new: &Value,
        old: &Value,
    ) -> ValidationResult;

    /// Most bytes of a stored object. An object that is larger already may shrink.
    fn largest(&self) -> usize {
        usize::MAX
    }

    /// Do databases wait for objects of this kind? Then these are stored even when space is short.
    fn is_vital(&self) -> bool {
        false
    }

    /// The LeaderLease of the cluster of this kind whose pods run as this ServiceAccount.
    fn lease_of(&self, _account: &str) -> Option<String> {
        None
    }

    /// Columns of `kubectl get`, the same in every version.
    fn columns(&self) -> &'static [PrinterColumn];
    /// One cell for each column. `now` is in seconds since the epoch, for ages.
    fn cells(&self, hub: &Value, now: i64) -> Vec<Value>;

    /// Field selectors beside `metadata.name` and `metadata.namespace`.
    fn selectable_fields(&self) -> &'static [&'static str];
    /// Value of a selectable field; absent counts as empty.
    fn field(&self, hub: &Value, path: &str) -> String;
}
