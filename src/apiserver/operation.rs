//! What a request wants done to a resource, with its options.
//!
//! A request is read once, into a [`ResourceOperation`]. Authorization, audit, seats, deadlines,
//! metrics and handlers all use this one, so what was authorized is what is done. A method that is
//! not served has a [`ResourceAction`] that no handler carries out.

use http::{HeaderMap, Method};

use super::{
    negotiate::content_type,
    options::{ApplyOptions, ListOptions, ReadConsistency, WriteOptions, get_read_at},
    status::{ApiError, GroupResource, Result},
    url::Query,
};

/// The verb by which authorization and audit know an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A verb that no method has: authorization is asked about it for a request in another user's
    /// name.
    Impersonate,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Impersonate => "impersonate",
        }
    }

    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// Formats of a patch, by the media type of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    /// A format that this server does not know; such a patch is answered 415.
    Unknown,
}

/// What a request does to a resource. An error in the options is kept in their place: only a client
/// that may do the action receives it.
#[derive(Clone, Debug)]
pub enum ResourceAction {
    Get(Result<ReadConsistency>),
    List(Result<ListOptions>),
    Watch(Result<ListOptions>),
    Create(Result<WriteOptions>),
    Update(Result<WriteOptions>),
    Patch(PatchType, Result<WriteOptions>),
    /// Server-side apply.
    Apply(Result<(WriteOptions, ApplyOptions)>),
    /// Deletion of one object, whose options may be in the body.
    Delete,
    DeleteCollection(Result<ListOptions>),
    /// A method that is not served: 405, for clients that may do what the verb says.
    Unserved(Option<Verb>),
    /// `…/watch/…` with a method other than GET: 405, before authorization.
    Refused(Option<Verb>),
}

impl ResourceAction {
    /// Returns the action's verb; `None` for methods that mean nothing to Kubernetes.
    pub fn verb(&self) -> Option<Verb> {
        Some(match self {
            Self::Get(_) => Verb::Get,
            Self::List(_) => Verb::List,
            Self::Watch(_) => Verb::Watch,
            Self::Create(_) => Verb::Create,
            Self::Update(_) => Verb::Update,
            Self::Patch(..) | Self::Apply(_) => Verb::Patch,
            Self::Delete => Verb::Delete,
            Self::DeleteCollection(_) => Verb::DeleteCollection,
            Self::Unserved(verb) | Self::Refused(verb) => return *verb,
        })
    }

    /// Reads the action of a request. `is_named`: the path names an object. `is_watch_path`: the
    /// path has the deprecated `watch` prefix, which makes a watch of a GET alone; any other method
    /// keeps its own verb, so that it is audited as what it tried to be.
    pub(super) fn from_request(
        method: &Method,
        headers: &HeaderMap,
        query: &Query,
        is_named: bool,
        is_watch_path: bool,
    ) -> Self {
        let list_options = |watch| ListOptions::parse(query, watch);
        let write_options = |kind| WriteOptions::parse(query, kind);
        let action = match *method {
            Method::GET if is_watch_path || (!is_named && query.is_set("watch")) => {
                Self::Watch(list_options(true))
            }
            Method::GET if is_named => Self::Get(get_read_at(query)),
            Method::GET => Self::List(list_options(false)),
            Method::POST => Self::Create(write_options("CreateOptions")),
            Method::PUT => Self::Update(write_options("UpdateOptions")),
            Method::PATCH => {
                let form = match content_type(headers).as_str() {
                    "application/json-patch+json" => PatchType::Json,
                    "application/merge-patch+json" => PatchType::Merge,
                    "application/strategic-merge-patch+json" => PatchType::Strategic,
                    "application/apply-patch+yaml" if !is_watch_path => {
                        return Self::Apply(ApplyOptions::parse(query));
                    }
                    _ => PatchType::Unknown,
                };
                Self::Patch(form, write_options("PatchOptions"))
            }
            Method::DELETE if is_named => Self::Delete,
            Method::DELETE => Self::DeleteCollection(list_options(false)),
            Method::HEAD if is_named => Self::Unserved(Some(Verb::Get)),
            Method::HEAD if query.is_set("watch") => Self::Unserved(Some(Verb::Watch)),
            Method::HEAD => Self::Unserved(Some(Verb::List)),
            _ => Self::Unserved(None),
        };
        match action {
            Self::Watch(_) => action,
            other if is_watch_path => Self::Refused(other.verb()),
            other => other,
        }
    }
}

/// One request for a resource.
#[derive(Clone, Debug)]
pub struct ResourceOperation {
    pub action: ResourceAction,
    /// API group; empty for the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Namespace; empty at cluster scope.
    pub namespace: String,
    /// Name of the object; empty for collections. A `fieldSelector=metadata.name=x` names `x`.
    pub name: String,
    /// Path segments after `namespaces/<namespace>`, from the resource on.
    pub parts: Vec<String>,
}

impl ResourceOperation {
    pub fn verb(&self) -> Option<Verb> {
        self.action.verb()
    }

    /// Returns the verb's word; empty for methods that mean nothing to Kubernetes.
    pub fn verb_name(&self) -> &'static str {
        self.verb().map_or("", Verb::as_str)
    }

    /// Tells whether the path names an object.
    pub fn is_named(&self) -> bool {
        self.parts.len() > 1
    }

    /// Tells whether the operation reads the log of a pod, which may be followed.
    pub fn is_log(&self) -> bool {
        self.group.is_empty()
            && (self.resource.as_str(), self.subresource.as_str()) == ("pods", "log")
    }

    /// Returns the error that answers a method that is not served here.
    pub fn method_error(&self, method: &Method) -> ApiError {
        let resource = GroupResource { group: &self.group, resource: &self.resource };
        ApiError::method_not_supported(resource, &method.as_str().to_ascii_lowercase())
    }
}
