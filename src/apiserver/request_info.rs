//! What a request is about, read from its method, path, query and headers.
//!
//! The rules are kube-apiserver's (`endpoints/request/requestinfo.go`).

use http::{HeaderMap, Method, Request, Uri};

use super::{
    operation::{ResourceAction, ResourceOperation, Verb},
    selector,
    url::{Query, percent_decode},
};

/// The subject of one request. Put into the request's extensions, in an `Arc`, by the first
/// filters.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    pub method: Method,
    /// The decoded path.
    pub path: String,
    pub query: Query,
    /// The operation on a resource, for `/apis/<group>/<version>/<resource>…`, and
    /// `/api/<version>/<resource>…` of the core group; absent for every other path.
    pub operation: Option<ResourceOperation>,
}

/// Subresources of a namespace itself.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn from_request<B>(request: &Request<B>) -> Self {
        Self::parse(request.method(), request.uri(), request.headers())
    }

    pub fn parse(method: &Method, uri: &Uri, headers: &HeaderMap) -> Self {
        let query = Query::parse(uri.query().unwrap_or_default());
        let operation = parse_operation(method, uri.path(), headers, &query);
        Self { method: method.clone(), path: percent_decode(uri.path()), query, operation }
    }

    /// Returns `get`, `list`, … for a resource, and for other paths the method in lower case.
    pub fn verb(&self) -> String {
        match &self.operation {
            Some(operation) => operation.verb_name().to_owned(),
            None => self.method.as_str().to_ascii_lowercase(),
        }
    }

    /// Tells whether the request is a watch or reads a log. Such requests have no deadline, and a
    /// seat in flight only until they begin.
    pub fn is_long_running(&self) -> bool {
        self.operation.as_ref().is_some_and(|operation| {
            matches!(operation.action, ResourceAction::Watch(_)) || operation.is_log()
        })
    }

    /// Tells whether the request may change anything. This decides its seats, what the audit trail
    /// records of it, and whether it goes on without its client.
    pub fn is_mutating(&self) -> bool {
        match &self.operation {
            Some(operation) => !operation.verb().is_some_and(Verb::is_read),
            None => !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS),
        }
    }
}

fn parse_operation(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    query: &Query,
) -> Option<ResourceOperation> {
    let segments: Vec<String> = path.trim_matches('/').split('/').map(percent_decode).collect();
    let core = String::new();
    let (group, version, mut rest) = match segments.as_slice() {
        [prefix, group, version, rest @ ..] if prefix == "apis" => (group, version, rest),
        [prefix, version, rest @ ..] if prefix == "api" => (&core, version, rest),
        _ => return None,
    };
    let is_watch_path = rest.len() > 1 && rest[0] == "watch";
    if is_watch_path {
        rest = &rest[1..];
    }
    let mut namespace = String::new();
    if rest.len() > 1 && rest[0] == "namespaces" {
        namespace.clone_from(&rest[1]);
        if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2].as_str()) {
            rest = &rest[2..];
        }
    }
    let part = |index: usize| rest.get(index).cloned().unwrap_or_default();
    let mut name = part(1);
    let action =
        ResourceAction::from_request(method, headers, query, !name.is_empty(), is_watch_path);
    // A field selector for one name counts as that name, so that authorization sees it.
    if name.is_empty() && matches!(action.verb(), Some(Verb::List | Verb::Watch)) {
        name = selector::exact_name(query.text("fieldSelector")).unwrap_or_default();
    }
    Some(ResourceOperation {
        action,
        group: group.clone(),
        version: version.clone(),
        resource: rest.first()?.clone(),
        subresource: part(2),
        namespace,
        name,
        parts: rest.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), &uri.parse().unwrap(), &HeaderMap::new())
    }

    /// Returns `verb namespace resource name subresource`, with `-` for an empty one.
    fn summary(asked: &ResourceOperation) -> String {
        let ResourceOperation { namespace, resource, name, subresource, .. } = asked;
        let fields = [asked.verb_name(), namespace, resource, name, subresource];
        fields.map(|field| if field.is_empty() { "-" } else { field }).join(" ")
    }

    #[test]
    fn resource_paths() {
        let rows = [
            ("GET", "/namespaces/a/pilots", "list a pilots - -"),
            ("GET", "/namespaces/a/pilots/", "list a pilots - -"),
            ("GET", "/pilots", "list - pilots - -"),
            ("HEAD", "/namespaces/a/pilots/x", "get a pilots x -"),
            ("GET", "/namespaces/a/pilots/x", "get a pilots x -"),
            ("GET", "/namespaces/a/pilots/x/status", "get a pilots x status"),
            ("POST", "/namespaces/a/pilots", "create a pilots - -"),
            ("PUT", "/namespaces/a/pilots/x", "update a pilots x -"),
            ("PATCH", "/namespaces/a/pilots/x/status", "patch a pilots x status"),
            ("DELETE", "/namespaces/a/pilots/x", "delete a pilots x -"),
            ("DELETE", "/namespaces/a/pilots", "deletecollection a pilots - -"),
            ("GET", "/pilots?watch", "watch - pilots - -"),
            ("GET", "/pilots?watch=1", "watch - pilots - -"),
            ("GET", "/pilots?watch=False", "list - pilots - -"),
            ("GET", "/pilots?watch=0", "list - pilots - -"),
            ("GET", "/namespaces/a/pilots/x?watch=1", "get a pilots x -"),
            ("GET", "/watch/namespaces/a/pilots", "watch a pilots - -"),
            ("GET", "/watch/pilots", "watch - pilots - -"),
            ("GET", "/watch/namespaces/a/pilots/x", "watch a pilots x -"),
            // Under the prefix `watch`, too, a method keeps its verb.
            ("HEAD", "/watch/namespaces/a/pilots/x", "get a pilots x -"),
            ("POST", "/watch/namespaces/a/pilots", "create a pilots - -"),
            ("PUT", "/watch/namespaces/a/pilots/x", "update a pilots x -"),
            ("PATCH", "/watch/namespaces/a/pilots/x/status", "patch a pilots x status"),
            ("DELETE", "/%77atch/namespaces/a/pilots/x", "delete a pilots x -"),
            ("DELETE", "/watch/namespaces/a/pilots", "deletecollection a pilots - -"),
            ("OPTIONS", "/watch/pilots", "- - pilots - -"),
            ("GET", "/pilots?fieldSelector=metadata.name%3Dx", "list - pilots x -"),
            ("GET", "/pilots?fieldSelector=metadata.name==x&watch=1", "watch - pilots x -"),
            ("GET", "/pilots?fieldSelector=metadata.name!=x", "list - pilots - -"),
            ("GET", "/pilots?fieldSelector=metadata.name=..", "list - pilots - -"),
            // The first value of a key counts, for authorization as for the list itself.
            ("GET", "/pilots?fieldSelector=&fieldSelector=metadata.name=x", "list - pilots - -"),
            ("GET", "/pilots?fieldSelector=metadata.name=x&fieldSelector=", "list - pilots x -"),
            ("GET", "/pilots?watch=false&watch=true", "list - pilots - -"),
            ("GET", "/pilots?watch=true&watch=false", "watch - pilots - -"),
            ("GET", "/pilots?fieldSelector=metadata.name=a\\,metadata.name=b", "list - pilots - -"),
            ("DELETE", "/pilots?fieldSelector=metadata.name=x", "deletecollection - pilots - -"),
            ("GET", "/namespaces/a/pilots/x%2Fstatus", "get a pilots x/status -"),
            ("GET", "/namespaces/a", "get a namespaces a -"),
            ("OPTIONS", "/pilots", "- - pilots - -"),
        ];
        for (method, path, expected) in rows {
            let info = parse(method, &format!("/apis/navigator.jetstack.io/v1beta1{path}"));
            let asked = info.operation.expect(path);
            assert_eq!(
                (asked.group.as_str(), asked.version.as_str()),
                ("navigator.jetstack.io", "v1beta1")
            );
            assert_eq!(summary(&asked), expected, "{method} {path}");
        }
    }

    #[test]
    fn other_paths_are_no_resources() {
        for path in [
            "/",
            "/healthz",
            "/apis",
            "/apis/g",
            "/apis/g/v",
            "/openapi/v3/apis/g/v",
            "/api",
            "/api/v1",
        ] {
            let info = parse("GET", path);
            assert!(info.operation.is_none(), "{path}");
            assert_eq!((info.verb().as_str(), info.path.as_str()), ("get", path));
        }
    }

    #[test]
    fn the_core_group_has_no_name() {
        let operation = |method, path| parse(method, path).operation.unwrap();
        let log = "/api/v1/namespaces/a/pods/x/log?follow=true";
        let asked = operation("GET", log);
        assert_eq!(summary(&asked), "get a pods x log");
        assert_eq!((asked.group.as_str(), asked.version.as_str()), ("", "v1"));
        assert!(parse("GET", log).is_long_running(), "a log may be followed for hours");
        assert_eq!(summary(&operation("GET", "/api/v1/namespaces")), "list - namespaces - -");
        let asked = operation("PUT", "/api/v1/namespaces/a/finalize");
        assert_eq!(summary(&asked), "update a namespaces a finalize");
        assert!(!parse("GET", "/apis/g/v/namespaces/a/pods/x/log").is_long_running());
    }

    #[test]
    fn nothing_but_get_is_taken_under_the_watch_prefix() {
        let action = |method, path: String| parse(method, &path).operation.unwrap().action;
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            for path in ["r", "namespaces/a/r", "namespaces/a/r/n", "namespaces/a/r/n/status"] {
                let under = format!("/apis/g/v/watch/{path}");
                let mutating = parse(method, &under).is_mutating();
                let refused = matches!(action(method, under), ResourceAction::Refused(_));
                assert_eq!(refused, method != "GET", "{method} {path}");
                assert!(mutating || matches!(method, "GET" | "HEAD"), "{method} {path}");
                let plain = action(method, format!("/apis/g/v/{path}"));
                assert!(!matches!(plain, ResourceAction::Refused(_)), "{method} {path}");
            }
        }
        assert!(!parse("DELETE", "/apis/g/v/watch/r").is_long_running());
        let watch = action("DELETE", "/apis/g/v/watch".into());
        assert!(matches!(watch, ResourceAction::DeleteCollection(_)), "a resource of that name");
    }

    #[test]
    fn the_media_type_of_a_patch_says_what_it_is() {
        for (media_type, expected) in [
            ("application/json-patch+json", "Patch(Json"),
            ("application/merge-patch+json; charset=utf-8", "Patch(Merge"),
            ("application/strategic-merge-patch+json", "Patch(Strategic"),
            ("application/apply-patch+yaml", "Apply("),
            ("application/json", "Patch(Unknown"),
            ("", "Patch(Unknown"),
        ] {
            let request = Request::patch("/apis/g/v/namespaces/a/r/n?fieldManager=me")
                .header("content-type", media_type)
                .body(())
                .unwrap();
            let action = RequestInfo::from_request(&request).operation.unwrap().action;
            assert!(format!("{action:?}").starts_with(expected), "{media_type}: {action:?}");
        }
    }

    #[test]
    fn only_reads_are_not_mutating() {
        assert!(!parse("GET", "/apis/g/v/r?watch=1").is_mutating());
        assert!(parse("GET", "/apis/g/v/r?watch=1").is_long_running());
        assert!(parse("DELETE", "/apis/g/v/r").is_mutating());
        assert!(parse("OPTIONS", "/apis/g/v/r").is_mutating());
        assert!(!parse("GET", "/version").is_mutating());
    }
}
