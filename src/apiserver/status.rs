//! The answer that a client receives for a failed request: `metav1.Status`, with Kubernetes' texts.
//!
//! Owns codes, reasons, texts, details and `Retry-After`
//! (apimachinery `pkg/api/errors/errors.go`). `details.kind` holds the resource, except for
//! Invalid, where it holds the kind; clients rely on it.

use std::borrow::Cow;

use axum::{body::Body, response::IntoResponse};
use http::{HeaderValue, Response, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machinery::field_error::{self, ErrorList};

/// A resource of a group, as messages name it: `pilots.navigator.jetstack.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    pub group: &'a str,
    pub resource: &'a str,
}

impl std::fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            f.write_str(self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

/// A request that failed, as the client will read it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ApiError(Box<Status>);

pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// `metav1.Status`, in the field order that Go writes.
#[expect(clippy::struct_field_names, reason = "the wire has a field status")]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    kind: &'static str,
    api_version: &'static str,
    metadata: StatusMetadata,
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<StatusDetails>,
    code: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct StatusMetadata {
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    continue_token: Option<String>,
}

/// The fields of a webhook's `metav1.Status` that are passed on to the client.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookStatus {
    message: Option<String>,
    reason: Option<String>,
    details: Option<StatusDetails>,
    code: Option<i32>,
}

/// `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusDetails {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<StatusCause>,
    #[serde(skip_serializing_if = "is_zero")]
    retry_after_seconds: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct StatusCause {
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

impl StatusDetails {
    fn for_resource(resource: GroupResource<'_>, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: resource.group.to_owned(),
            kind: resource.resource.to_owned(),
            ..Self::default()
        }
    }
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Status {
            kind: "Status",
            api_version: "v1",
            metadata: StatusMetadata::default(),
            status: "Failure",
            message: message.into(),
            reason: Cow::Borrowed(reason),
            details: None,
            code: code.as_u16(),
        }))
    }

    fn with_details(mut self, details: StatusDetails) -> Self {
        self.0.details = Some(details);
        self
    }

    fn with_cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        let cause = StatusCause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.to_owned(),
        };
        self.0.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// Tells the client to come back after `seconds`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Returns an error with code 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// Returns an error with code 401, which says no more than that, on purpose.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// Returns an error with code 403 for a request about a resource; `name` may be empty.
    pub fn forbidden(
        resource: GroupResource<'_>,
        name: &str,
        reason: impl std::fmt::Display,
    ) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {reason}")
        } else {
            format!("{resource} {name:?} is forbidden: {reason}")
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
            .with_details(StatusDetails::for_resource(resource, name))
    }

    /// Returns an error with code 403 for a path that is no resource.
    pub fn forbidden_path(reason: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", format!("forbidden: {reason}"))
            .with_details(StatusDetails::default())
    }

    /// Returns an error with code 403 for a create in a namespace that is being deleted.
    pub fn namespace_terminating(resource: GroupResource<'_>, name: &str, namespace: &str) -> Self {
        let reason = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Self::forbidden(resource, name, reason).with_cause(
            "NamespaceTerminating",
            format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        )
    }

    /// Returns an error with code 404 for an object.
    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Self {
        let message = format!("{resource} {name:?} not found");
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
            .with_details(StatusDetails::for_resource(resource, name))
    }

    /// Returns an error with code 404 for a path that names no resource that is served.
    pub fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with_details(StatusDetails::default())
    }

    /// Returns an error with code 405. `action` as Go says it: `create`, `deletecollection` …
    pub fn method_not_supported(resource: GroupResource<'_>, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind \"{resource}\"");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
            .with_details(StatusDetails::for_resource(resource, ""))
    }

    /// Returns an error with code 405 for a path that is no resource.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
            .with_details(StatusDetails::default())
    }

    /// Returns an error with code 406.
    pub fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// Returns an error with code 415.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// Returns an error with code 409: the name is taken.
    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Self {
        let message = format!("{resource} {name:?} already exists");
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message)
            .with_details(StatusDetails::for_resource(resource, name))
    }

    /// Returns an error with code 409: the name is taken by an object that is being deleted.
    pub fn exists_while_deleting(resource: GroupResource<'_>, name: &str) -> Self {
        let mut error = Self::already_exists(resource, name);
        error.0.message = format!("object is being deleted: {}", error.0.message);
        error
    }

    /// Returns an error with code 409: each generated name that was tried is taken.
    pub fn generated_name_taken(resource: GroupResource<'_>, name: &str) -> Self {
        let message = format!(
            "{resource} {name:?} already exists, the server was not able to generate a unique name \
             for the object"
        );
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message)
            .with_details(StatusDetails::for_resource(resource, name))
            .retry_after(1)
    }

    /// Returns an error with code 409: the object's state forbids the operation.
    pub fn conflict(
        resource: GroupResource<'_>,
        name: &str,
        reason: impl std::fmt::Display,
    ) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {reason}");
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .with_details(StatusDetails::for_resource(resource, name))
    }

    /// Returns an error with code 409: other field managers applied other values. Each cause is a
    /// text that names the manager, and the field.
    pub fn apply_conflict(message: impl Into<String>, causes: &[(String, String)]) -> Self {
        let error = Self::new(StatusCode::CONFLICT, "Conflict", message);
        causes.iter().fold(error, |error, (text, field)| {
            error.with_cause("FieldManagerConflict", text.clone(), field)
        })
    }

    /// Returns an error with code 409: the object changed since the client read it.
    pub fn object_modified(resource: GroupResource<'_>, name: &str) -> Self {
        let reason = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(resource, name, reason)
    }

    /// Returns an error with code 410. `token` continues the list at the latest revision instead.
    pub fn resource_expired(message: impl Into<String>, token: Option<String>) -> Self {
        let mut error = Self::new(StatusCode::GONE, "Expired", message);
        error.0.metadata.continue_token = token;
        error
    }

    /// Returns the refusal of the admission webhook `hook`, in its words; with code 400 unless the
    /// webhook's code is an error's.
    pub fn webhook_denied(hook: &str, webhook_status: WebhookStatus) -> Self {
        let WebhookStatus { message, reason, details, code } = webhook_status;
        let (message, reason) = (message.unwrap_or_default(), reason.unwrap_or_default());
        let code = code.and_then(|code| StatusCode::from_u16(code.try_into().ok()?).ok());
        let code = code.filter(|code| *code >= StatusCode::BAD_REQUEST);
        let explanation = if message.is_empty() { &reason } else { &message };
        let text = if explanation.is_empty() {
            format!("admission webhook {hook:?} denied the request without explanation")
        } else {
            format!("admission webhook {hook:?} denied the request: {explanation}")
        };
        let mut error = Self::new(code.unwrap_or(StatusCode::BAD_REQUEST), "", text);
        error.0.reason = Cow::Owned(reason);
        error.0.details = details;
        error
    }

    /// Returns an error with code 413.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// Returns an error with code 422 and the first causes. `name` may be empty.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &ErrorList) -> Self {
        let group_kind = GroupResource { group, resource: kind };
        let message =
            format!("{group_kind} {name:?} is invalid: {}", field_error::join_errors(errors));
        let mut details = StatusDetails::for_resource(group_kind, name);
        details.causes = errors
            .iter()
            .take(field_error::MAX_TOLD)
            .map(|error| StatusCause {
                reason: error.reason().to_owned(),
                message: error.cause_message(),
                field: error.path.to_string(),
            })
            .collect();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details(details)
    }

    /// Returns an error with code 422 for a patch that could be read but not applied.
    pub fn unprocessable_patch(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .with_details(StatusDetails::default())
    }

    /// Adds a cause that the message leaves out.
    #[must_use]
    pub fn with_detail(self, detail: impl std::fmt::Display) -> Self {
        self.with_cause("", detail.to_string(), "")
    }

    /// Returns an error with code 429; the client may come back after `seconds`.
    pub fn too_many_requests(message: impl Into<String>, seconds: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(seconds)
    }

    /// Returns an error with code 500.
    pub fn internal_error(cause: impl std::fmt::Display) -> Self {
        let cause = cause.to_string();
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {cause}"),
        )
        .with_cause("", cause, "")
    }

    /// Returns an error with code 500 and no reason, as kube-apiserver answers for an error of Go
    /// that is no Status.
    pub fn unclassified_error(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    /// Returns an error with code 503; the client may come back after `seconds`.
    pub fn service_unavailable(message: impl Into<String>, seconds: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
            .retry_after(seconds)
    }

    /// Returns an error with code 504. The client may come back after `seconds`; with 0, the error
    /// names no time.
    pub fn timeout(message: impl std::fmt::Display, seconds: u32) -> Self {
        let error =
            Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", format!("Timeout: {message}"));
        if seconds > 0 {
            error.retry_after(seconds)
        } else {
            error.with_details(StatusDetails::default())
        }
    }

    /// Returns an error with code 504: this server has not reached the revision that the client has
    /// seen elsewhere.
    pub fn revision_too_high(requested: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {current}");
        Self::timeout(message, 1).with_cause(
            "ResourceVersionTooLarge",
            "Too large resource version",
            "",
        )
    }

    pub fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the message and the causes, which the message may leave out.
    pub fn full_message(&self) -> String {
        let causes = self.0.details.iter().flat_map(|details| &details.causes);
        let parts = std::iter::once(&self.0.message).chain(causes.map(|cause| &cause.message));
        parts.map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    /// Returns the Status object: the body of the response, or of a watch's ERROR event.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(&*self.0).expect("Status has string keys only")
    }

    /// Returns the Status object as text, its fields in upstream's order.
    pub fn to_json(&self, pretty: bool) -> Vec<u8> {
        let encode = if pretty { serde_json::to_vec_pretty } else { serde_json::to_vec };
        let mut text = encode(&self.0).expect("Status has string keys only");
        text.push(b'\n');
        text
    }

    /// Returns the response, with `body` of type `content_type`.
    pub fn to_response(&self, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
        let mut response = Response::new(body.into());
        *response.status_mut() = self.status_code();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self.status_code() == StatusCode::FORBIDDEN {
            headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        if let Some(details) = &self.0.details
            && details.retry_after_seconds > 0
        {
            headers.insert(header::RETRY_AFTER, details.retry_after_seconds.into());
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        self.to_response("application/json", self.to_json(false))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::machinery::field_error::{FieldError, FieldErrorKind, FieldPath};

    const PILOTS: GroupResource<'_> =
        GroupResource { group: "navigator.jetstack.io", resource: "pilots" };

    #[test]
    fn not_found_names_the_resource_in_details_kind() {
        assert_eq!(
            ApiError::not_found(PILOTS, "a").to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "pilots.navigator.jetstack.io \"a\" not found", "reason": "NotFound",
                "details": {"name": "a", "group": "navigator.jetstack.io", "kind": "pilots"},
                "code": 404,
            })
        );
    }

    #[test]
    fn invalid_says_each_text_once_and_keeps_every_cause() {
        let path = FieldPath::new("spec").child("version");
        let error = FieldError::new(&path, FieldErrorKind::Required, "must be a semver version");
        let twice = vec![error.clone(), error.clone()];
        let status = ApiError::invalid(PILOTS.group, "Pilot", "a", &twice).to_value();
        assert_eq!(
            status["message"],
            "Pilot.navigator.jetstack.io \"a\" is invalid: spec.version: Required value: must be \
             a semver version"
        );
        assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 2);
        assert_eq!(status["details"]["kind"], "Pilot");
        let other = FieldError::new(&path.child("x"), FieldErrorKind::Forbidden, "");
        let status = ApiError::invalid(PILOTS.group, "Pilot", "a", &vec![error, other]).to_value();
        assert!(status["message"].as_str().unwrap().ends_with("spec.version.x: Forbidden]"));
    }

    #[test]
    fn retry_after_is_in_details_and_in_the_header() {
        let error = ApiError::service_unavailable("starting", 5);
        assert_eq!(error.to_value()["details"]["retryAfterSeconds"], 5);
        let response = error.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "5");
    }

    #[test]
    fn an_expired_list_carries_a_token_to_go_on_with() {
        let error = ApiError::resource_expired("too old", Some("abc".into()));
        assert_eq!(error.to_value()["metadata"]["continue"], "abc");
    }
}
