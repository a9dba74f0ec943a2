//! The span of a request, as kube-apiserver's filter makes it (`endpoints/filters/traces.go`).
//!
//! Owns its name, what it says, and whose word counts about which trace it belongs to.

use axum::body::Body;
use http::{Request, header};

use crate::apiserver::{
    audit::Incoming,
    authn::User,
    operation::Operation,
    peer::Peer,
    request_info::RequestInfo,
    traces::{Begun, Span, Traces},
};

/// Whose requests continue the trace that they name. Anybody else could have all of his recorded,
/// or put them into the trace of another.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];
/// Bytes of an audit id that are shown, as upstream cuts it.
const LONGEST_ID: usize = 64;

pub(super) fn begin(
    traces: &Traces,
    request: &Request<Body>,
    incoming: Incoming<'_>,
    user: &User,
) -> Begun {
    let is_trusted = || user.groups.iter().any(|group| TRUSTED.contains(&group.as_str()));
    let describe = || describe(request, incoming);
    traces.begin(request.headers(), is_trusted, incoming.received.into(), describe)
}

fn describe(request: &Request<Body>, incoming: Incoming<'_>) -> Span {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let uri = request.uri();
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    let id = incoming.id.to_str().unwrap_or_default();
    let id = id.get(..LONGEST_ID).unwrap_or(id);
    let mut span = Span::new(name(incoming.info))
        .with("http.request.method", request.method().as_str())
        .with("url.scheme", "https")
        .with("url.path", uri.path())
        .with("http.target", target)
        .with("audit-id", id);
    if let Some(Peer { address, .. }) = request.extensions().get() {
        span = span
            .with("network.peer.address", address.ip().to_string())
            .with_number("network.peer.port", address.port().into());
    }
    if let Some(agent) = text(header::USER_AGENT) {
        span = span.with("user_agent.original", agent);
    }
    span
}

/// One name for all requests of a kind: names of objects are no part of it.
fn name(info: &RequestInfo) -> String {
    let method = &info.method;
    let Some(operation) = &info.operation else { return method.to_string() };
    let Operation { group, version, namespace, resource, name, subresource, .. } = operation;
    let mut path = match group.as_str() {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    if !namespace.is_empty() {
        path.push_str("/namespaces/{:namespace}");
    }
    path.push('/');
    path.push_str(resource);
    if !name.is_empty() {
        path.push_str("/{:name}");
    }
    if !subresource.is_empty() {
        path.push('/');
        path.push_str(subresource);
    }
    format!("{method} {path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_named_as_upstream_names_them() {
        for (method, path, expected) in [
            ("GET", "/healthz", "GET"),
            ("GET", "/apis/g/v/rs", "GET /apis/g/v/rs"),
            ("POST", "/apis/g/v/namespaces/a/rs", "POST /apis/g/v/namespaces/{:namespace}/rs"),
            (
                "PATCH",
                "/apis/g/v/namespaces/a/rs/x/status",
                "PATCH /apis/g/v/namespaces/{:namespace}/rs/{:name}/status",
            ),
            ("GET", "/api/v1/nodes/x", "GET /api/v1/nodes/{:name}"),
        ] {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            assert_eq!(name(&RequestInfo::of(&request)), expected);
        }
    }
}
