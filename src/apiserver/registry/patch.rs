//! JSON patch (RFC 6902) and JSON merge patch (RFC 7386), with limits.
//!
//! Pure: a patch is applied to the object as its version shows it.

use std::io;

use json_patch::{
    PatchOperation,
    jsonptr::{Pointer, resolve::Resolve as _},
};
use serde_json::Value;

use super::strategic_merge;
use crate::{
    apiserver::{
        admission::webhook::WebhookPatchError,
        negotiate::body_error,
        status::{ApiError, Result},
    },
    machinery::decode::{
        self, ParsedBody,
        weight::{self, MAX_DEPTH, MAX_TREE},
    },
};

const UNREAD: &str = "error decoding patch";

/// Most operations of a JSON patch; the same as kube-apiserver's.
const MAX_OPERATIONS: usize = 10_000;

/// Most bytes of JSON that all copies of a JSON patch together may add; the same as
/// kube-apiserver's.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// Most items that all operations of a JSON patch together may look at or move: an operation that
/// inserts into a list moves the items behind it.
const MAX_MOVED: usize = 4_000_000;

/// A patch that was read.
pub enum ObjectPatch {
    Json(json_patch::Patch, TreeWeight),
    Merge(ParsedBody),
    Strategic(ParsedBody),
}

/// Bytes of memory that the tree of JSON values of a patch's body takes.
type TreeWeight = usize;

impl ObjectPatch {
    /// Applies a webhook's JSON patch to an object.
    pub(super) fn apply_webhook_patch(
        patch: &[u8],
        object: Value,
    ) -> Result<ParsedBody, WebhookPatchError> {
        let patch = Self::parse_json(patch);
        let patch =
            patch.map_err(|error| WebhookPatchError::Unreadable(error.message().to_owned()))?;
        patch.apply(object).map_err(|error| WebhookPatchError::Failed(error.full_message()))
    }

    /// Returns the bytes of memory that the patch itself takes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Json(_, weight) => *weight,
            Self::Merge(document) | Self::Strategic(document) => document.weight,
        }
    }

    /// Reads a body of `application/json-patch+json`.
    pub fn parse_json(body: &[u8]) -> Result<Self> {
        // Counted before operations are built: a small body can hold very many.
        let document = decode::parse_json(body).map_err(|error| body_error(&error, UNREAD))?;
        if let Some(operations) = document.value.as_array()
            && operations.len() > MAX_OPERATIONS
        {
            return Err(ApiError::too_large(format!(
                "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                operations.len()
            )));
        }
        let weight = document.weight;
        let is_list =
            document.value.as_array().is_some_and(|items| items.iter().all(Value::is_object));
        let patch = serde_json::from_value(document.value).map_err(|error| {
            // Upstream finds an operation that does not exist only when it applies it: 422.
            if is_list {
                unprocessable_error(error)
            } else {
                ApiError::bad_request(format!("{UNREAD}: {error}"))
            }
        })?;
        Ok(Self::Json(patch, weight))
    }

    /// Reads a body of `application/merge-patch+json`.
    pub fn parse_merge(body: &[u8]) -> Result<Self> {
        let document = decode::parse_json(body).map_err(|error| body_error(&error, UNREAD))?;
        if !document.value.is_object() {
            return Err(ApiError::bad_request("error decoding patch: a merge patch is an object"));
        }
        Ok(Self::Merge(document))
    }

    /// Reads a body of `application/strategic-merge-patch+json`.
    pub fn parse_strategic(body: &[u8]) -> Result<Self> {
        match Self::parse_merge(body)? {
            Self::Merge(document) => Ok(Self::Strategic(document)),
            other => Ok(other),
        }
    }

    /// Tells whether the patch states which revision or which object it is for, so that it must not
    /// be tried on another one.
    pub(super) fn names_revision(&self) -> bool {
        const NAMING: [&str; 2] = ["resourceVersion", "uid"];
        match self {
            Self::Merge(document) | Self::Strategic(document) => {
                let is_set = |name: &str| !document.value["metadata"][name].is_null();
                NAMING.into_iter().any(is_set)
            }
            Self::Json(patch, _) => patch.0.iter().any(|operation| {
                let path = operation.path().to_string();
                NAMING.into_iter().any(|name| path == format!("/metadata/{name}"))
            }),
        }
    }

    /// Tells whether the patch must be applied to the object with its `managedFields`.
    pub(super) fn looks_at_owners(&self) -> bool {
        let overlaps_owners = |pointer: &Pointer| {
            let owners_pointer = Pointer::from_static("/metadata/managedFields");
            pointer.starts_with(owners_pointer) || owners_pointer.starts_with(pointer)
        };
        match self {
            Self::Json(patch, _) => patch.0.iter().any(|operation| {
                let source = match operation {
                    PatchOperation::Copy(copy) => Some(&copy.from),
                    PatchOperation::Move(mv) => Some(&mv.from),
                    _ => None,
                };
                overlaps_owners(operation.path())
                    || source.is_some_and(|pointer| overlaps_owners(pointer))
            }),
            // `managedFields` in a merge patch replace those of the object.
            Self::Merge(_) | Self::Strategic(_) => false,
        }
    }

    /// Returns the object with the patch applied.
    pub(super) fn apply(&self, mut object: Value) -> Result<ParsedBody> {
        match self {
            Self::Merge(document) => {
                json_patch::merge(&mut object, &document.value);
                weight::check_limits(&object).map_err(unprocessable_error)?;
                let mut patched_body = ParsedBody::from(object);
                patched_body.duplicates.clone_from(&document.duplicates);
                patched_body.numbers.clone_from(&document.numbers);
                patched_body.owners.clone_from(&document.owners);
                Ok(patched_body)
            }
            Self::Strategic(document) => {
                strategic_merge::merge_object(&mut object, &document.value)
                    .map_err(unprocessable_error)?;
                weight::check_limits(&object).map_err(unprocessable_error)?;
                let mut patched_body = ParsedBody::from(object);
                patched_body.owners.clone_from(&document.owners);
                Ok(patched_body)
            }
            Self::Json(patch, _) => {
                let mut cost = PatchCost::default();
                for operation in &patch.0 {
                    cost.add_operation(&object, operation)?;
                    // The object is a copy, so a half-applied patch is simply dropped.
                    json_patch::patch_unsafe(&mut object, std::slice::from_ref(operation))
                        .map_err(unprocessable_error)?;
                }
                weight::check_limits(&object).map_err(unprocessable_error)?;
                Ok(object.into())
            }
        }
    }
}

/// What the operations of a patch cost so far.
#[derive(Default)]
struct PatchCost {
    /// Bytes of JSON that copies add.
    copied: usize,
    /// Bytes of memory that these copies take.
    weight: usize,
    /// Items of lists that were looked at or moved.
    moved: usize,
}

impl PatchCost {
    /// Adds an operation, or refuses it because it would cost too much.
    fn add_operation(&mut self, object: &Value, operation: &PatchOperation) -> Result<()> {
        let target_pointer = operation.path();
        let (source_pointer, depth) = match operation {
            PatchOperation::Add(add) => (None, weight::nesting_depth(&add.value)),
            PatchOperation::Replace(replace) => (None, weight::nesting_depth(&replace.value)),
            PatchOperation::Test(_) | PatchOperation::Remove(_) => (None, 0),
            PatchOperation::Copy(copy) => {
                let source = object.resolve(&copy.from).map_err(unprocessable_error)?;
                self.copied += json_length(source);
                self.weight += weight::value_bytes(source);
                (Some(&copy.from), weight::nesting_depth(source))
            }
            PatchOperation::Move(mv) => {
                let source = object.resolve(&mv.from).map_err(unprocessable_error)?;
                self.moved += weight::value_bytes(source) / 32;
                (Some(&mv.from), weight::nesting_depth(source))
            }
        };
        if self.copied > MAX_COPIED {
            return Err(unprocessable_error(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, \
                 exceeding the limit {MAX_COPIED}",
                self.copied
            )));
        }
        // Small maps take many times the memory of their text.
        if self.weight > MAX_TREE {
            let limit_mib = MAX_TREE >> 20;
            return Err(unprocessable_error(format!(
                "copied values take more than {limit_mib} MiB of memory"
            )));
        }
        // Even dropping a value that is nested without end overflows the stack.
        if target_pointer.count() + depth > MAX_DEPTH {
            let text = format!("it would be nested more than {MAX_DEPTH} levels deep");
            return Err(unprocessable_error(text));
        }
        self.moved += items_beside(object, target_pointer)
            + source_pointer.map_or(0, |pointer| items_beside(object, pointer));
        if self.moved > MAX_MOVED {
            return Err(unprocessable_error("its operations on long lists would take too long"));
        }
        Ok(())
    }
}

/// Returns the bytes of a value as Go writes it.
fn json_length(value: &Value) -> usize {
    struct LengthCounter(usize);

    impl io::Write for LengthCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Go writes these as `\u003c`, for the sake of HTML.
            let escaped = bytes.iter().filter(|byte| matches!(byte, b'<' | b'>' | b'&')).count();
            self.0 += bytes.len() + 5 * escaped;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut length = LengthCounter(0);
    serde_json::to_writer(&mut length, value).expect("a value has string keys, and counting works");
    length.0
}

/// Returns the length of the list in which `pointer` ends, or 0 outside of lists.
fn items_beside(object: &Value, pointer: &Pointer) -> usize {
    let list = pointer.parent().and_then(|parent| object.resolve(parent).ok());
    list.and_then(Value::as_array).map_or(0, Vec::len)
}

/// Returns the 422 error for a patch that cannot be applied. The message is upstream's; the cause
/// tells what it leaves out.
fn unprocessable_error(reason: impl std::fmt::Display) -> ApiError {
    ApiError::unprocessable_patch("the server rejected our request due to an error in our request")
        .with_detail(reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_test_operation_is_422() {
        let patch = ObjectPatch::parse_json(
            br#"[{"op":"test","path":"/a","value":1},{"op":"remove","path":"/a"}]"#,
        )
        .unwrap();
        assert_eq!(patch.apply(json!({"a": 1})).unwrap().value, json!({}));
        let error = patch.apply(json!({"a": 2})).unwrap_err();
        assert_eq!((error.status_code().as_u16(), error.reason()), (422, "Invalid"));
    }

    #[test]
    fn nonsense_is_400() {
        let error = ObjectPatch::parse_json(b"[{\"op\":\"nope\",\"path\":\"/a\"}]").err().unwrap();
        assert_eq!(error.status_code(), 422, "as when a path leads nowhere");
        for body in ["{", "{}", "[1]"] {
            assert_eq!(
                ObjectPatch::parse_json(body.as_bytes()).err().unwrap().status_code(),
                400,
                "{body}"
            );
        }
        assert_eq!(ObjectPatch::parse_merge(b"[]").err().unwrap().status_code(), 400);
    }

    #[test]
    fn operations_and_growth_are_limited() {
        let many = vec![json!({"op": "add", "path": "/a", "value": 1}); MAX_OPERATIONS + 1];
        let error = ObjectPatch::parse_json(json!(many).to_string().as_bytes()).err().unwrap();
        assert_eq!(error.status_code(), 413);
        // Doubles /a again and again.
        let mut operations =
            vec![json!({"op": "add", "path": "/a", "value": {"x": "y".repeat(1000)}})];
        for level in 0..40 {
            let path = format!("/a/n{level}");
            operations.push(json!({"op": "copy", "from": "/a", "path": path}));
        }
        let patch = ObjectPatch::parse_json(json!(operations).to_string().as_bytes()).unwrap();
        assert_eq!(patch.apply(json!({})).unwrap_err().status_code(), 422);
    }

    fn apply(operations: &[Value], object: Value) -> Result<ParsedBody> {
        ObjectPatch::parse_json(json!(operations).to_string().as_bytes()).unwrap().apply(object)
    }

    /// Without a limit the patch ends the process: the value overflows the stack when it is
    /// dropped.
    #[test]
    fn a_patch_cannot_nest_without_end() {
        let mut operations = Vec::new();
        for level in 0..18 {
            let path = "/a".repeat(1 << level);
            operations.push(json!({"op": "add", "path": path, "value": {}}));
            operations.push(json!({"op": "copy", "from": "/a", "path": format!("{path}/a")}));
        }
        let error = apply(&operations, json!({})).unwrap_err();
        assert!(format!("{error:?}").contains("levels deep"), "{error:?}");
    }

    #[test]
    fn a_patch_cannot_shift_long_lists_again_and_again() {
        let object = json!({"list": vec![0; 100_000]});
        let insert = json!({"op": "add", "path": "/list/0", "value": 1});
        assert!(apply(&vec![insert.clone(); 30], object.clone()).is_ok());
        let error = apply(&vec![insert; 5000], object.clone()).unwrap_err();
        assert!(format!("{error:?}").contains("long lists"), "{error:?}");
        let shift = json!({"op": "move", "from": "/list/0", "path": "/list/99999"});
        assert!(apply(&vec![shift; 5000], object).is_err());
    }

    #[test]
    fn copies_of_small_maps_are_weighed() {
        let object = json!({"a": vec![json!({"x": 0}); 1000]});
        let operations: Vec<_> = (0..1000)
            .map(|at| json!({"op": "copy", "from": "/a", "path": format!("/b{at}")}))
            .collect();
        assert_eq!(apply(&operations, object).unwrap_err().status_code(), 422);
    }

    /// Upstream's bound and text. Only what is copied counts, and as many bytes as Go writes.
    #[test]
    fn copies_are_measured_in_bytes_of_json() {
        let copies = |many: usize| -> Vec<Value> {
            let copy = |at| json!({"op": "copy", "from": "/a", "path": format!("/b{at}")});
            (0..many).map(copy).collect()
        };
        let exact = json!({"a": "x".repeat((1 << 20) - 2), "other": "y".repeat(3 << 20)});
        assert!(apply(&copies(3), exact).is_ok());
        let longer = json!({"a": "x".repeat((1 << 20) - 1)});
        let error = apply(&copies(3), longer).unwrap_err();
        let text = "the accumulated size increase of copy is 3145731, exceeding the limit 3145728";
        assert!(error.status_code() == 422 && error.full_message().contains(text), "{error:?}");
        let escaped = json!({"a": "<>&".repeat(60_000)});
        assert!(apply(&copies(2), escaped.clone()).is_ok());
        assert!(apply(&copies(3), escaped).is_err());
    }

    #[test]
    fn a_patch_may_name_its_revision() {
        for (body, expected) in [
            (json!({"metadata": {"resourceVersion": "5"}}), true),
            (json!({"metadata": {"uid": "5"}}), true),
            (json!({"metadata": {"labels": {"a": "b"}}}), false),
        ] {
            assert_eq!(
                ObjectPatch::parse_merge(body.to_string().as_bytes()).unwrap().names_revision(),
                expected
            );
        }
        let body = br#"[{"op":"replace","path":"/metadata/resourceVersion","value":"5"}]"#;
        assert!(ObjectPatch::parse_json(body).unwrap().names_revision());
    }
}
