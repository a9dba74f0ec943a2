//! Serves `/scale` of StatefulSets for `kubectl scale`: desired and observed number of pods.
//!
//! Owns the form, `autoscaling/v1`. The StatefulSet itself is read and written by the API's other
//! handlers.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    response::IntoResponse,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    apiserver::{
        operation::{PatchType, ResourceAction, ResourceOperation},
        request_info::RequestInfo,
        status::ApiError,
    },
    machinery::{
        decode::MAX_BODY,
        field_error::{FieldError, FieldErrorKind, FieldPath},
    },
};

const GROUP: &str = "apps";
const MERGE: &str = "application/merge-patch+json";

/// Answers requests about scale, and passes all others to `router`.
pub(super) fn wrap_router(router: Router) -> Router {
    Router::new().fallback(handle_request).with_state(router)
}

async fn handle_request(State(router): State<Router>, request: Request<Body>) -> Response<Body> {
    let info = request.extensions().get::<Arc<RequestInfo>>().cloned();
    if let Some(operation) = info.as_ref().and_then(|info| info.operation.as_ref()) {
        let ResourceOperation { group, version, resource, subresource, .. } = operation;
        if [group, version, resource, subresource] == [GROUP, "v1", "statefulsets", "scale"] {
            let scale_response = scale_stateful_set(router, operation, request).await;
            return scale_response.unwrap_or_else(IntoResponse::into_response);
        }
    }
    let Ok(response) = router.oneshot(request).await;
    response
}

async fn scale_stateful_set(
    router: Router,
    operation: &ResourceOperation,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let patch = match &operation.action {
        ResourceAction::Get(_) => None,
        ResourceAction::Update(_) => Some(build_scale_patch(body, Some(0)).await?),
        ResourceAction::Patch(PatchType::Merge | PatchType::Strategic, _) => {
            Some(build_scale_patch(body, None).await?)
        }
        ResourceAction::Patch(..) | ResourceAction::Apply(_) => {
            return Err(ApiError::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/merge-patch+json, application/strategic-merge-patch+json",
            ));
        }
        _ => return Err(operation.method_error(&parts.method)),
    };
    let inner_body = match patch {
        None => Body::empty(),
        Some(change) => {
            parts.method = Method::PATCH;
            parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MERGE));
            Body::from(change.to_string())
        }
    };
    parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let path = parts.uri.path().trim_end_matches('/').trim_end_matches("/scale");
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("{path}{query}").parse().map_err(ApiError::internal_error)?;
    let info = RequestInfo::parse(&parts.method, &uri, &parts.headers);
    parts.extensions.insert(Arc::new(info));
    parts.uri = uri;
    let Ok(response) = router.oneshot(Request::from_parts(parts, inner_body)).await;
    if response.status() != StatusCode::OK {
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(ApiError::internal_error)?;
    let stateful_set: Value = serde_json::from_slice(&bytes).map_err(ApiError::internal_error)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(build_scale(&stateful_set).to_string())))
}

/// Returns the patch of the StatefulSet that a Scale in `body` asks for. `default_replicas`
/// replaces a missing number of replicas.
async fn build_scale_patch(body: Body, default_replicas: Option<u32>) -> Result<Value, ApiError> {
    let parse_error = |error: &dyn std::fmt::Display| {
        ApiError::bad_request(format!("the body of the request is no Scale: {error}"))
    };
    let bytes = to_bytes(body, MAX_BODY).await.map_err(|error| parse_error(&error))?;
    let body: Value = serde_json::from_slice(&bytes).map_err(|error| parse_error(&error))?;
    let mut replicas = body["spec"]["replicas"].clone();
    if replicas.is_null() {
        replicas = json!(default_replicas);
    }
    if replicas.as_i64().is_none_or(|replicas| replicas < 0) && !replicas.is_null() {
        let path = FieldPath::new("spec").child("replicas");
        let message = "must be greater than or equal to 0";
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let error = FieldError::new(&path, FieldErrorKind::Invalid(replicas), message);
        return Err(ApiError::invalid("autoscaling", "Scale", name, &vec![error]));
    }
    let mut change = json!({"metadata": {}});
    for name in ["uid", "resourceVersion"] {
        if let Some(value) = body["metadata"].get(name).filter(|value| !value.is_null()) {
            change["metadata"][name] = value.clone();
        }
    }
    if !replicas.is_null() {
        change["spec"] = json!({"replicas": replicas});
    }
    Ok(change)
}

/// Returns the Scale of a StatefulSet.
fn build_scale(stateful_set: &Value) -> Value {
    let mut metadata = json!({});
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        metadata[name] = stateful_set["metadata"][name].clone();
    }
    let labels = stateful_set["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": stateful_set["spec"]["replicas"]},
        "status": {
            "replicas": stateful_set["status"]["replicas"].as_i64().unwrap_or_default(),
            "selector": labels.collect::<Vec<_>>().join(","),
        },
    })
}
