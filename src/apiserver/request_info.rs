//! What a request is about, read from its method, path and query.
//!
//! Authorization, audit and handlers all act on the same [`RequestInfo`], so what was authorized
//! is what is done. The rules are kube-apiserver's (`endpoints/request/requestinfo.go`).

use http::{Method, Uri};

use super::{
    options::boolean,
    selector,
    status::{ApiError, Resource},
    url::{percent_decode, query_value},
};

/// The subject of one request. Put into the request's extensions by the first filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `/apis/<group>/<version>/<resource>…`, or `/api/<version>/<resource>…` of the core group;
    /// otherwise only `verb` and `path` are set.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for
    /// paths that are no resource the method in lower case.
    pub verb: String,
    /// `apis` or `api`
    pub api_prefix: String,
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Empty at cluster scope.
    pub namespace: String,
    /// Empty for collections. A `fieldSelector=metadata.name=x` names `x`.
    pub name: String,
    /// Path segments after `namespaces/<namespace>`, from the resource on.
    pub parts: Vec<String>,
    /// `…/watch/…` with a method other than GET: 405, whoever asks.
    pub refused: bool,
    /// The decoded path.
    pub path: String,
}

/// Subresources of a namespace itself.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn parse(method: &Method, uri: &Uri) -> Self {
        let mut info = Self {
            verb: method.as_str().to_ascii_lowercase(),
            path: percent_decode(uri.path()),
            ..Self::default()
        };
        let trimmed = uri.path().trim_matches('/');
        let segments: Vec<String> = trimmed.split('/').map(percent_decode).collect();
        let core = String::new();
        let (group, version, mut rest) = match segments.as_slice() {
            [prefix, group, version, rest @ ..] if prefix == "apis" => (group, version, rest),
            [prefix, version, rest @ ..] if prefix == "api" => (&core, version, rest),
            _ => return info,
        };
        if rest.is_empty() {
            return info;
        }
        info.is_resource = true;
        info.api_prefix.clone_from(&segments[0]);
        info.group.clone_from(group);
        info.version.clone_from(version);

        verb_of(method).clone_into(&mut info.verb);
        // The deprecated form `/apis/g/v/watch/…`. It makes a watch of a GET and of nothing else:
        // any other method keeps its own verb, so that it is audited as what it tried to be.
        if rest[0] == "watch" && rest.len() > 1 {
            rest = &rest[1..];
            if method == Method::GET {
                "watch".clone_into(&mut info.verb);
            } else {
                info.refused = true;
            }
        }
        if rest[0] == "namespaces" && rest.len() > 1 {
            info.namespace.clone_from(&rest[1]);
            if rest.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&rest[2].as_str()) {
                rest = &rest[2..];
            }
        }
        info.parts = rest.to_vec();
        info.resource.clone_from(&rest[0]);
        if let Some(name) = rest.get(1) {
            info.name.clone_from(name);
        }
        if let Some(subresource) = rest.get(2) {
            info.subresource.clone_from(subresource);
        }
        if info.name.is_empty() {
            info.name_collection_verb(uri.query().unwrap_or_default());
        }
        info
    }

    /// Long-running requests have no deadline, and a seat in flight only until they begin.
    pub fn is_long_running(&self) -> bool {
        self.is_resource && (self.verb == "watch" || self.is_log())
    }

    /// The log of a pod, which may be followed.
    pub fn is_log(&self) -> bool {
        self.group.is_empty()
            && (self.resource.as_str(), self.subresource.as_str()) == ("pods", "log")
    }

    /// Does the request change anything? Decides seats, deadlines and the audit trail.
    pub fn is_mutating(&self) -> bool {
        if self.is_resource {
            !matches!(self.verb.as_str(), "get" | "list" | "watch")
        } else {
            !matches!(self.verb.as_str(), "get" | "head" | "options")
        }
    }

    /// The answer to a request that is [`RequestInfo::refused`].
    pub fn refusal(&self, method: &Method) -> ApiError {
        let resource = Resource { group: &self.group, resource: &self.resource };
        ApiError::method_not_supported(resource, &method.as_str().to_ascii_lowercase())
    }

    /// `get` of a collection is `list` or `watch`, `delete` is `deletecollection`; a selector
    /// for one name is that name, so that authorization sees it.
    fn name_collection_verb(&mut self, query: &str) {
        if self.verb == "delete" {
            "deletecollection".clone_into(&mut self.verb);
        }
        if self.verb == "get" {
            // As the handlers read the query: the first value counts, even an empty one.
            let watch = query_value(query, "watch").is_some_and(|value| boolean(&value));
            if watch { "watch" } else { "list" }.clone_into(&mut self.verb);
        }
        if matches!(self.verb.as_str(), "list" | "watch") {
            let selected = query_value(query, "fieldSelector").unwrap_or_default();
            self.name = selector::exact_name(&selected).unwrap_or_default();
        }
    }
}

fn verb_of(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), &uri.parse().unwrap())
    }

    /// `verb namespace resource name subresource`, `-` for empty.
    fn summary(info: &RequestInfo) -> String {
        let fields = [&info.verb, &info.namespace, &info.resource, &info.name, &info.subresource];
        fields.map(|field| if field.is_empty() { "-" } else { field.as_str() }).join(" ")
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
            // Under the prefix, too, a method is what it is.
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
            assert!(info.is_resource, "{path}");
            assert_eq!(
                (info.group.as_str(), info.version.as_str()),
                ("navigator.jetstack.io", "v1beta1")
            );
            assert_eq!(summary(&info), expected, "{method} {path}");
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
            assert!(!info.is_resource, "{path}");
            assert_eq!((info.verb.as_str(), info.path.as_str()), ("get", path));
        }
    }

    #[test]
    fn the_core_group_has_no_name() {
        let info = parse("GET", "/api/v1/namespaces/a/pods/x/log?follow=true");
        assert_eq!(summary(&info), "get a pods x log");
        assert_eq!((info.group.as_str(), info.version.as_str()), ("", "v1"));
        assert!(info.is_long_running(), "a log may be followed for hours");
        assert_eq!(summary(&parse("GET", "/api/v1/namespaces")), "list - namespaces - -");
        let info = parse("PUT", "/api/v1/namespaces/a/finalize");
        assert_eq!(summary(&info), "update a namespaces a finalize");
        assert!(!parse("GET", "/apis/g/v/namespaces/a/pods/x/log").is_long_running());
    }

    #[test]
    fn nothing_but_get_is_taken_under_the_watch_prefix() {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            for path in ["r", "namespaces/a/r", "namespaces/a/r/n", "namespaces/a/r/n/status"] {
                let info = parse(method, &format!("/apis/g/v/watch/{path}"));
                assert_eq!(info.refused, method != "GET", "{method} {path}");
                assert!(info.is_mutating() || matches!(method, "GET" | "HEAD"), "{method} {path}");
                assert!(!parse(method, &format!("/apis/g/v/{path}")).refused);
            }
        }
        assert!(!parse("DELETE", "/apis/g/v/watch/r").is_long_running());
        assert!(!parse("DELETE", "/apis/g/v/watch").refused, "a resource of that name");
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
