//! The span of what a handler does, as kube-apiserver's handlers make it
//! (`endpoints/handlers/trace_util.go`).

use http::{header, request::Parts};

use crate::apiserver::{
    operation::{Operation, Verb},
    peer::Peer,
    traces::Span,
};

pub(super) fn describe(operation: &Operation, parts: &Parts) -> Span {
    let text = |name| {
        let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    };
    let client = parts.extensions.get::<Peer>().map(|peer| peer.address.ip().to_string());
    let Operation { group, version, namespace, resource, name, subresource, .. } = operation;
    let scope = match (namespace.as_str(), name.as_str()) {
        ("", "") => "cluster",
        (_, "") => "namespace",
        _ => "resource",
    };
    Span::new(title(operation))
        .with("accept", text(header::ACCEPT))
        .with("client", client.unwrap_or_default())
        .with("api-group", group)
        .with("api-version", version)
        .with("name", name)
        .with("subresource", subresource)
        .with("namespace", namespace)
        .with("protocol", format!("{:?}", parts.version))
        .with("resource", resource)
        .with("scope", scope)
        .with("url", parts.uri.path())
        .with("user-agent", text(header::USER_AGENT))
        .with("verb", operation.word())
}

fn title(operation: &Operation) -> &'static str {
    match operation.verb() {
        Some(Verb::Get) => "Get",
        // The one handler has both.
        Some(Verb::List | Verb::Watch) => "List",
        Some(Verb::Create) => "Create",
        Some(Verb::Update) => "Update",
        Some(Verb::Patch) => "Patch",
        Some(Verb::Delete | Verb::DeleteCollection) => "Delete",
        Some(Verb::Impersonate) | None => "Refuse",
    }
}
