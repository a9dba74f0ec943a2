//! What a request is about, read from its method, path and query.
//!
//! Authorization, audit and handlers all act on the same [`RequestInfo`], so what was authorized
//! is what is done. The rules are kube-apiserver's (`endpoints/request/requestinfo.go`).

use http::{Method, Uri};

use super::url::{percent_decode, query_pairs};

/// The subject of one request. Put into the request's extensions by the first filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// `/apis/<group>/<version>/<resource>…`; otherwise only `verb` and `path` are set.
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for
    /// paths that are no resource the method in lower case.
    pub verb: String,
    /// `apis`
    pub api_prefix: String,
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
        let [prefix, group, version, rest @ ..] = segments.as_slice() else { return info };
        if prefix != "apis" || rest.is_empty() {
            return info;
        }
        info.is_resource = true;
        info.api_prefix.clone_from(prefix);
        info.group.clone_from(group);
        info.version.clone_from(version);

        let mut rest = rest;
        // The deprecated form `/apis/g/v/watch/…`.
        if rest[0] == "watch" && rest.len() > 1 {
            "watch".clone_into(&mut info.verb);
            rest = &rest[1..];
        } else {
            verb_of(method).clone_into(&mut info.verb);
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

    /// Long-running requests have no deadline and hold no seat in flight.
    pub fn is_long_running(&self) -> bool {
        self.is_resource && self.verb == "watch"
    }

    /// Does the request change anything? Decides seats, deadlines and the audit trail.
    pub fn is_mutating(&self) -> bool {
        if self.is_resource {
            !matches!(self.verb.as_str(), "get" | "list" | "watch")
        } else {
            !matches!(self.verb.as_str(), "get" | "head" | "options")
        }
    }

    /// `get` of a collection is `list` or `watch`, `delete` is `deletecollection`; a selector
    /// for one name is that name, so that authorization sees it.
    fn name_collection_verb(&mut self, query: &str) {
        if self.verb == "delete" {
            "deletecollection".clone_into(&mut self.verb);
        }
        let mut watch = false;
        let mut field_selector = String::new();
        for (key, value) in query_pairs(query) {
            match key.as_str() {
                "watch" if !watch => {
                    watch = !matches!(value.to_ascii_lowercase().as_str(), "false" | "0");
                }
                "fieldSelector" if field_selector.is_empty() => field_selector = value,
                _ => {}
            }
        }
        if self.verb == "get" {
            if watch { "watch" } else { "list" }.clone_into(&mut self.verb);
        }
        if matches!(self.verb.as_str(), "list" | "watch")
            && let Some(name) = exact_name(&field_selector)
        {
            name.clone_into(&mut self.name);
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

/// The name that a field selector demands.
fn exact_name(field_selector: &str) -> Option<&str> {
    field_selector.split(',').find_map(|term| {
        let value = term.trim().strip_prefix("metadata.name")?;
        let name = value.strip_prefix("==").or_else(|| value.strip_prefix('='))?;
        let usable = !name.is_empty() && !matches!(name, "." | "..") && !name.contains(['/', '%']);
        usable.then_some(name)
    })
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
            ("GET", "/pilots?fieldSelector=metadata.name%3Dx", "list - pilots x -"),
            ("GET", "/pilots?fieldSelector=metadata.name==x&watch=1", "watch - pilots x -"),
            ("GET", "/pilots?fieldSelector=metadata.name!=x", "list - pilots - -"),
            ("GET", "/pilots?fieldSelector=metadata.name=..", "list - pilots - -"),
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
            "/api/v1/pods/x",
        ] {
            let info = parse("GET", path);
            assert!(!info.is_resource, "{path}");
            assert_eq!((info.verb.as_str(), info.path.as_str()), ("get", path));
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
