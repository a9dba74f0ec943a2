//! `AdmissionReview` of `admission.k8s.io/v1`: the request to a webhook, and the checks of its
//! answer.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::ReviewSubject;
use crate::{
    apiserver::{
        authn::User,
        status::{ApiError, WebhookStatus},
    },
    machinery::served_kind::ServedVersion,
};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionReview<'a> {
    kind: &'static str,
    api_version: &'static str,
    request: AdmissionRequest<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    kind: GroupVersionKind<'a>,
    resource: GroupVersionResource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: GroupVersionKind<'a>,
    request_resource: GroupVersionResource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'static str,
    user_info: UserInfo<'a>,
    #[serde(flatten)]
    objects: Option<ReviewObjects<'a>>,
    dry_run: bool,
    options: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewObjects<'a> {
    object: Option<&'a RawValue>,
    old_object: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct GroupVersionKind<'a> {
    group: &'a str,
    version: &'static str,
    kind: &'a str,
}

#[derive(Serialize)]
struct GroupVersionResource<'a> {
    group: &'a str,
    version: &'static str,
    resource: &'a str,
}

#[derive(Serialize)]
struct UserInfo<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

/// Encodes the review of a write. `version` is the one in which `object` and `old` are encoded.
pub(super) fn encode_review(
    subject: &ReviewSubject<'_>,
    uid: &str,
    version: ServedVersion,
    object: Option<&RawValue>,
    old: Option<&RawValue>,
) -> Bytes {
    let objects = Some(ReviewObjects { object, old_object: old });
    let request = build_request(subject, uid, version, objects);
    let review = AdmissionReview { kind: KIND, api_version: API_VERSION, request };
    serde_json::to_vec(&review).expect("a review has string keys only").into()
}

/// Encodes the request as match conditions see it: the objects are variables next to it.
pub(super) fn request_alone(subject: &ReviewSubject<'_>, version: ServedVersion) -> String {
    let request = build_request(subject, "", version, None);
    serde_json::to_string(&request).expect("a review has string keys only")
}

fn build_request<'a>(
    subject: &ReviewSubject<'a>,
    uid: &'a str,
    version: ServedVersion,
    objects: Option<ReviewObjects<'a>>,
) -> AdmissionRequest<'a> {
    let (group, kind, resource) =
        (subject.kind.group(), subject.kind.kind(), subject.kind.plural());
    let of_kind =
        |version: ServedVersion| GroupVersionKind { group, version: version.as_str(), kind };
    let of_resource = |version: ServedVersion| GroupVersionResource {
        group,
        version: version.as_str(),
        resource,
    };
    let subresource = subject.part.subresource();
    let User { name, uid: user_uid, groups, extra } = subject.user;
    AdmissionRequest {
        uid,
        kind: of_kind(version),
        resource: of_resource(version),
        sub_resource: subresource,
        request_kind: of_kind(subject.version),
        request_resource: of_resource(subject.version),
        request_sub_resource: subresource,
        name: subject.name,
        namespace: subject.namespace,
        operation: subject.operation.as_str(),
        user_info: UserInfo { username: name, uid: user_uid.as_deref(), groups, extra },
        objects,
        dry_run: subject.dry_run,
        options: (subject.options)(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredReview {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    response: Option<AdmissionResponse>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    allowed: bool,
    status: Option<WebhookStatus>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// A webhook's answer to a review.
#[derive(Debug)]
pub(super) struct WebhookAnswer {
    /// The error for the client when the webhook does not allow the request.
    pub(super) denied: Option<ApiError>,
    /// JSON patch of the object; empty for none.
    pub(super) patch: Vec<u8>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) warnings: Vec<String>,
}

/// Reads the answer of the webhook `hook`, or returns what is wrong with it.
pub(super) fn parse_answer(
    body: &[u8],
    hook: &str,
    uid: &str,
    is_mutating: bool,
) -> Result<WebhookAnswer, String> {
    let review: AnsweredReview = serde_json::from_slice(body)
        .map_err(|error| format!("failed to call webhook: couldn't decode the answer: {error}"))?;
    let invalid_response =
        |reason: &str| Err(format!("received invalid webhook response: {reason}"));
    let AnsweredReview { kind, api_version, response } = review;
    let Some(response) = response else { return invalid_response("webhook response was absent") };
    let AdmissionResponse {
        uid: echoed_uid,
        allowed,
        status,
        patch,
        patch_type,
        audit_annotations,
        warnings,
    } = response;
    if echoed_uid != uid {
        return invalid_response(&format!("expected response.uid={uid:?}, got {echoed_uid:?}"));
    }
    if (kind.as_str(), api_version.as_str()) != (KIND, API_VERSION) {
        let received_version = match api_version.split_once('/') {
            Some((group, version)) => format!("{group}/{version}"),
            None => format!("/{api_version}"),
        };
        return invalid_response(&format!(
            "expected webhook response of {API_VERSION}, Kind={KIND}, got {received_version}, Kind={kind}"
        ));
    }
    let patch = match patch {
        Some(patch) => match BASE64_STANDARD.decode(patch) {
            Ok(patch) => patch,
            Err(error) => {
                return invalid_response(&format!("response.patch is no base64: {error}"));
            }
        },
        None => Vec::new(),
    };
    match (is_mutating, patch.is_empty(), patch_type.as_deref()) {
        (_, true, None) | (true, false, Some("JSONPatch")) => {}
        (true, false, None) => {
            return invalid_response("webhook returned response.patch but not response.patchType");
        }
        (true, true, Some(_)) => {
            return invalid_response("webhook returned response.patchType but not response.patch");
        }
        (true, false, Some("")) => {
            return invalid_response("webhook returned invalid response.patchType of \"\"");
        }
        (true, false, Some(other)) => return Err(format!("unsupported patch type {other:?}")),
        (false, false, _) => {
            return invalid_response("validating webhook may not return response.patch");
        }
        (false, true, Some(_)) => {
            return invalid_response("validating webhook may not return response.patchType");
        }
    }
    Ok(WebhookAnswer {
        denied: (!allowed).then(|| ApiError::webhook_denied(hook, status.unwrap_or_default())),
        patch,
        annotations: audit_annotations.unwrap_or_default(),
        warnings: warnings.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(response: &Value, mutating: bool) -> Result<WebhookAnswer, String> {
        let review = json!({"kind": KIND, "apiVersion": API_VERSION, "response": response});
        parse_answer(review.to_string().as_bytes(), "n", "1", mutating)
    }

    #[test]
    fn an_answer_is_of_this_question_and_of_this_version() {
        assert!(read(&json!({"uid": "1", "allowed": true}), false).unwrap().denied.is_none());
        let wrong = read(&json!({"uid": "2", "allowed": true}), false).unwrap_err();
        assert!(wrong.ends_with("expected response.uid=\"1\", got \"2\""), "{wrong}");
        for review in [
            json!({"kind": KIND, "apiVersion": API_VERSION}),
            json!({"response": {"uid": "1", "allowed": true}}),
            json!({"kind": KIND, "apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": "1"}}),
            json!({"kind": "Status", "apiVersion": "v1", "response": {"uid": "1", "allowed": true}}),
            json!([]),
        ] {
            assert!(
                parse_answer(review.to_string().as_bytes(), "n", "1", true).is_err(),
                "{review}"
            );
        }
    }

    #[test]
    fn only_a_mutating_webhook_patches_and_it_says_how() {
        let patch = BASE64_STANDARD.encode("[]");
        let of = |patch: Value, kind: Value, mutating| {
            let response = json!({"uid": "1", "allowed": true, "patch": patch, "patchType": kind});
            read(&response, mutating)
        };
        assert_eq!(of(json!(patch), json!("JSONPatch"), true).unwrap().patch, b"[]");
        assert!(of(Value::Null, Value::Null, false).is_ok());
        for (patch, kind, mutating) in [
            (json!(patch), Value::Null, true),
            (Value::Null, json!("JSONPatch"), true),
            (json!(patch), json!("MergePatch"), true),
            (json!(patch), json!(""), true),
            (json!("no base64"), json!("JSONPatch"), true),
            (json!(patch), json!("JSONPatch"), false),
            (Value::Null, json!("JSONPatch"), false),
        ] {
            assert!(
                of(patch.clone(), kind.clone(), mutating).is_err(),
                "{patch} {kind} {mutating}"
            );
        }
    }

    #[test]
    fn a_denial_is_at_least_400_and_says_whose_it_is() {
        let denied = |status: Value| {
            let answer = read(&json!({"uid": "1", "allowed": false, "status": status}), false);
            answer.unwrap().denied.unwrap().to_value()
        };
        let text = "admission webhook \"n\" denied the request";
        for (status, code, reason, message) in [
            (Value::Null, 400, Value::Null, format!("{text} without explanation")),
            (json!({"code": 200}), 400, Value::Null, format!("{text} without explanation")),
            (json!({"code": 403, "message": "no"}), 403, Value::Null, format!("{text}: no")),
            (json!({"reason": "Odd"}), 400, json!("Odd"), format!("{text}: Odd")),
            (
                json!({"code": 422, "reason": "Invalid", "message": "x"}),
                422,
                json!("Invalid"),
                format!("{text}: x"),
            ),
        ] {
            let told = denied(status);
            assert_eq!((&told["code"], &told["reason"]), (&json!(code), &reason), "{told}");
            assert_eq!(told["message"], json!(message));
            assert_eq!(told["status"], "Failure");
        }
    }
}
