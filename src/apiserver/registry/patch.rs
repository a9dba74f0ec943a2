//! JSON patch (RFC 6902) and JSON merge patch (RFC 7386), with limits.
//!
//! Pure: a patch is applied to the object as its version shows it.

use json_patch::{PatchOperation, jsonptr::resolve::Resolve as _};
use serde_json::Value;

use crate::{
    api::decode::{self, Document, MAX_BODY},
    apiserver::status::{ApiError, Result},
};

/// Operations of a JSON patch; the same as kube-apiserver's.
const MAX_OPERATIONS: usize = 10_000;

/// A patch that was understood.
pub enum Patch {
    Json(json_patch::Patch),
    Merge(Document),
}

impl Patch {
    /// A body of `application/json-patch+json`.
    pub fn json(body: &[u8]) -> Result<Self> {
        let refuse =
            |error: String| ApiError::bad_request(format!("error decoding patch: {error}"));
        // Counted before operations are built: a small body can hold very many.
        let document = decode::json(body).map_err(refuse)?;
        if let Some(operations) = document.value.as_array()
            && operations.len() > MAX_OPERATIONS
        {
            return Err(ApiError::too_large(format!(
                "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                operations.len()
            )));
        }
        let patch =
            serde_json::from_value(document.value).map_err(|error| refuse(error.to_string()))?;
        Ok(Self::Json(patch))
    }

    /// A body of `application/merge-patch+json`.
    pub fn merge(body: &[u8]) -> Result<Self> {
        let document = decode::json(body)
            .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
        if !document.value.is_object() {
            return Err(ApiError::bad_request("error decoding patch: a merge patch is an object"));
        }
        Ok(Self::Merge(document))
    }

    /// The patch states which revision (or which object) it is for, so that it must not be tried
    /// on another one.
    pub(super) fn names_revision(&self) -> bool {
        const NAMING: [&str; 2] = ["resourceVersion", "uid"];
        match self {
            Self::Merge(document) => {
                let given = |name: &str| !document.value["metadata"][name].is_null();
                NAMING.into_iter().any(given)
            }
            Self::Json(patch) => patch.0.iter().any(|operation| {
                let path = operation.path().to_string();
                NAMING.into_iter().any(|name| path == format!("/metadata/{name}"))
            }),
        }
    }

    /// The object with the patch applied.
    pub(super) fn apply(&self, mut object: Value) -> Result<Document> {
        match self {
            Self::Merge(document) => {
                json_patch::merge(&mut object, &document.value);
                let mut patched = Document::from(object);
                patched.duplicates.clone_from(&document.duplicates);
                patched.numbers.clone_from(&document.numbers);
                Ok(patched)
            }
            Self::Json(patch) => {
                let mut copied = 0;
                for operation in &patch.0 {
                    if let PatchOperation::Copy(copy) = operation {
                        let source = object.resolve(&copy.from).map_err(refused)?;
                        copied += source.to_string().len();
                        if copied > MAX_BODY {
                            return Err(refused(format!(
                                "copied values come to more than {MAX_BODY} bytes"
                            )));
                        }
                    }
                    // The object is a copy, so a half-applied patch is simply dropped.
                    json_patch::patch_unsafe(&mut object, std::slice::from_ref(operation))
                        .map_err(refused)?;
                }
                Ok(object.into())
            }
        }
    }
}

/// 422. The message is upstream's; the cause tells what it leaves out.
fn refused(why: impl std::fmt::Display) -> ApiError {
    ApiError::unprocessable("the server rejected our request due to an error in our request")
        .because(why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_test_operation_is_422() {
        let patch =
            Patch::json(br#"[{"op":"test","path":"/a","value":1},{"op":"remove","path":"/a"}]"#)
                .unwrap();
        assert_eq!(patch.apply(json!({"a": 1})).unwrap().value, json!({}));
        let error = patch.apply(json!({"a": 2})).unwrap_err();
        assert_eq!((error.code().as_u16(), error.reason()), (422, "Invalid"));
    }

    #[test]
    fn nonsense_is_400() {
        for body in ["{", "{}", "[{\"op\":\"nope\"}]", "[1]"] {
            assert_eq!(Patch::json(body.as_bytes()).err().unwrap().code(), 400, "{body}");
        }
        assert_eq!(Patch::merge(b"[]").err().unwrap().code(), 400);
    }

    #[test]
    fn operations_and_growth_are_limited() {
        let many = vec![json!({"op": "add", "path": "/a", "value": 1}); MAX_OPERATIONS + 1];
        let error = Patch::json(json!(many).to_string().as_bytes()).err().unwrap();
        assert_eq!(error.code(), 413);
        // Doubles /a again and again.
        let mut operations =
            vec![json!({"op": "add", "path": "/a", "value": {"x": "y".repeat(1000)}})];
        for level in 0..40 {
            let path = format!("/a/n{level}");
            operations.push(json!({"op": "copy", "from": "/a", "path": path}));
        }
        let patch = Patch::json(json!(operations).to_string().as_bytes()).unwrap();
        assert_eq!(patch.apply(json!({})).unwrap_err().code(), 422);
    }

    #[test]
    fn a_patch_may_name_its_revision() {
        for (body, expected) in [
            (json!({"metadata": {"resourceVersion": "5"}}), true),
            (json!({"metadata": {"uid": "5"}}), true),
            (json!({"metadata": {"labels": {"a": "b"}}}), false),
        ] {
            assert_eq!(
                Patch::merge(body.to_string().as_bytes()).unwrap().names_revision(),
                expected
            );
        }
        let body = br#"[{"op":"replace","path":"/metadata/resourceVersion","value":"5"}]"#;
        assert!(Patch::json(body).unwrap().names_revision());
    }
}
