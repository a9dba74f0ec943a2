//! The labels under which metrics count a request. All values come from small sets: a value that a
//! client makes up becomes empty (CVE-2020-8552).

use http::Method;

use crate::{
    apiserver::{
        operation::{ResourceAction, ResourceOperation, Verb},
        request_info::RequestInfo,
    },
    machinery::served_kinds::ServedKinds,
};

/// Value of the label `component`; the aggregator counts a request that it passes on under another.
const COMPONENT: &str = "apiserver";

/// Paths that are counted under their own name, in the place of a subresource, as upstream does.
const PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// The labels of one request, in upstream's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLabels {
    pub verb: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
    pub scope: &'static str,
}

impl RequestLabels {
    /// Names of [`RequestLabels::values`].
    pub const NAMES: [&str; 7] =
        ["verb", "group", "version", "resource", "subresource", "scope", "component"];

    /// Names of [`RequestLabels::with_dry_run`].
    pub const NAMES_WITH_DRY_RUN: [&str; 8] =
        ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];

    pub fn for_request(scheme: Option<&'static ServedKinds>, info: &RequestInfo) -> Self {
        let Some(operation) = &info.operation else {
            let path = PATHS.iter().find(|health_path| **health_path == info.path);
            let subresource = path.copied().unwrap_or_default();
            return Self { verb: method_label(&info.method), subresource, ..Self::default() };
        };
        let [group, version, resource, subresource] =
            scheme.map_or([""; 4], |scheme| resource_labels(scheme, operation));
        let (verb, scope) = (verb_label(operation), scope_label(operation));
        Self { verb, group, version, resource, subresource, scope }
    }

    pub fn values(&self) -> [&'static str; 7] {
        let Self { verb, group, version, resource, subresource, scope } = *self;
        [verb, group, version, resource, subresource, scope, COMPONENT]
    }

    /// Returns the labels' values, with `dry_run` behind the verb.
    pub fn with_dry_run(&self, info: &RequestInfo) -> [&'static str; 8] {
        let dry_run = if info.query.text("dryRun").is_empty() { "" } else { "All" };
        let Self { verb, group, version, resource, subresource, scope } = *self;
        [verb, dry_run, group, version, resource, subresource, scope, COMPONENT]
    }
}

/// Returns group, version, resource and subresource; empty ones for a kind that this server does
/// not serve.
fn resource_labels(scheme: &ServedKinds, operation: &ResourceOperation) -> [&'static str; 4] {
    let kind = scheme.by_resource(&operation.group, &operation.resource);
    let Some(kind) = kind else { return [""; 4] };
    let Some(version) = kind.find_version(&operation.version) else { return [""; 4] };
    let subresource_names = kind.subresources().iter().map(|subresource| subresource.name);
    let subresource =
        subresource_names.chain(["status"]).find(|name| *name == operation.subresource);
    [kind.group(), version.as_str(), kind.plural(), subresource.unwrap_or_default()]
}

fn verb_label(operation: &ResourceOperation) -> &'static str {
    if matches!(operation.action, ResourceAction::Apply(_)) {
        return "APPLY";
    }
    match operation.verb() {
        Some(Verb::Get) => "GET",
        Some(Verb::List) => "LIST",
        Some(Verb::Watch) => "WATCH",
        Some(Verb::Create) => "POST",
        Some(Verb::Update) => "PUT",
        Some(Verb::Patch) => "PATCH",
        Some(Verb::Delete) => "DELETE",
        Some(Verb::DeleteCollection) => "DELETECOLLECTION",
        Some(Verb::Impersonate) | None => "other",
    }
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn scope_label(operation: &ResourceOperation) -> &'static str {
    if operation.is_named() || operation.verb() == Some(Verb::Create) {
        "resource"
    } else if operation.namespace.is_empty() {
        "cluster"
    } else {
        "namespace"
    }
}
