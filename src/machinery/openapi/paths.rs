//! The paths that the API server serves, their verbs and parameters, in the form that both OpenAPI
//! versions are written from.

use super::META;
use crate::machinery::{
    served_kind::{ServedKind, ServedVersion},
    served_kinds::{ServedGroup, ServedKinds},
};

/// A path and the operations on it.
pub(super) struct PathItem {
    pub(super) path: String,
    pub(super) parameters: Vec<ApiParameter>,
    pub(super) operations: Vec<ApiOperation>,
}

/// An operation: an HTTP method on a path.
pub(super) struct ApiOperation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) tag: String,
    pub(super) description: String,
    /// Kubernetes' word for the verb, the kind, and the version; absent on discovery.
    pub(super) acts_on: Option<(&'static str, &'static str, ServedVersion)>,
    pub(super) parameters: Vec<ApiParameter>,
    pub(super) body: Option<String>,
    pub(super) body_required: bool,
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: &'static [&'static str],
    pub(super) codes: &'static [(&'static str, &'static str)],
    /// Name of the definition of the answer's body.
    pub(super) answer: String,
}

#[derive(Clone)]
pub(super) struct ApiParameter {
    pub(super) name: &'static str,
    pub(super) type_: &'static str,
    pub(super) in_path: bool,
    pub(super) description: &'static str,
}

const OBJECT_TYPES: &[&str] = &["application/json", "application/yaml"];
const LIST_TYPES: &[&str] =
    &["application/json", "application/yaml", "application/json;stream=watch"];
/// Content types of patches. Strategic merge patches are missing: they are for Kubernetes' own
/// kinds.
pub(super) const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

const READ: &[(&str, &str)] = &[("200", "OK")];
const CREATED: &[(&str, &str)] = &[("200", "OK"), ("201", "Created"), ("202", "Accepted")];
const WRITTEN: &[(&str, &str)] = &[("200", "OK"), ("201", "Created")];
const DELETED: &[(&str, &str)] = &[("200", "OK"), ("202", "Accepted")];

const fn query_parameter(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
) -> ApiParameter {
    ApiParameter { name, type_, in_path: false, description }
}

pub(super) const DRY_RUN: ApiParameter = query_parameter(
    "dryRun",
    "string",
    "When present, indicates that modifications should not be persisted. Valid values are: All: \
     all stages are processed, nothing is stored.",
);
pub(super) const FIELD_MANAGER: ApiParameter = query_parameter(
    "fieldManager",
    "string",
    "Name associated with the actor or entity that is making these changes, at most 128 characters.",
);
pub(super) const FIELD_VALIDATION: ApiParameter = query_parameter(
    "fieldValidation",
    "string",
    "How unknown and duplicate fields are handled: Ignore drops them, Warn (default) drops them \
     with a Warning header for each, Strict fails the request and names all of them.",
);
pub(super) const FORCE: ApiParameter = query_parameter(
    "force",
    "boolean",
    "Force takes over fields that others own. Only for apply patches.",
);
const LIST: &[ApiParameter] = &[
    query_parameter("allowWatchBookmarks", "boolean", "Ask for watch events of type BOOKMARK."),
    query_parameter(
        "continue",
        "string",
        "Token of the previous page, when retrieving further pages.",
    ),
    query_parameter(
        "fieldSelector",
        "string",
        "Restricts the objects by their fields. Defaults to everything.",
    ),
    query_parameter(
        "labelSelector",
        "string",
        "Restricts the objects by their labels. Defaults to everything.",
    ),
    query_parameter("limit", "integer", "Most items of one page."),
    query_parameter(
        "resourceVersion",
        "string",
        "Which resourceVersion the answer is of, or at least of.",
    ),
    query_parameter(
        "resourceVersionMatch",
        "string",
        "How resourceVersion applies to a list: Exact or NotOlderThan.",
    ),
    query_parameter(
        "sendInitialEvents",
        "boolean",
        "Begin a watch with the objects that exist, then a bookmark.",
    ),
    query_parameter("timeoutSeconds", "integer", "Ends the call after this many seconds."),
    query_parameter("watch", "boolean", "Stream changes as add, update and delete events."),
];
const DELETE: &[ApiParameter] = &[
    DRY_RUN,
    query_parameter(
        "gracePeriodSeconds",
        "integer",
        "Seconds before the object should be deleted; 0 deletes immediately.",
    ),
    query_parameter("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    query_parameter(
        "propagationPolicy",
        "string",
        "What becomes of dependents: Orphan, Background or Foreground.",
    ),
];
const PRETTY: ApiParameter =
    query_parameter("pretty", "string", "If 'true', the output is indented.");
pub(super) const NAMESPACE: ApiParameter = ApiParameter {
    name: "namespace",
    type_: "string",
    in_path: true,
    description: "object name and auth scope, such as for teams and projects",
};
pub(super) const NAME: ApiParameter = ApiParameter {
    name: "name",
    type_: "string",
    in_path: true,
    description: "name of the object",
};

/// Returns the paths of `version`, its discovery included.
pub(super) fn build_routes(served_kinds: &ServedKinds, version: ServedVersion) -> Vec<PathItem> {
    let group = served_kinds.group();
    let mut routes = vec![discovery_path(group, version)];
    for kind in served_kinds.group_kinds(group.name, version) {
        routes.extend(kind_routes(group, version, kind));
    }
    routes
}

fn discovery_path(group: &ServedGroup, version: ServedVersion) -> PathItem {
    let operation = ApiOperation {
        method: "get",
        id: format!("get{}{}APIResources", camel_case(group.name), capitalize(version.as_str())),
        tag: group_tag(group, version),
        description: "get available resources".into(),
        acts_on: None,
        parameters: Vec::new(),
        body: None,
        body_required: false,
        consumes: OBJECT_TYPES,
        produces: OBJECT_TYPES,
        codes: READ,
        answer: format!("{META}APIResourceList"),
    };
    PathItem {
        path: format!("/apis/{}/{version}/", group.name),
        parameters: Vec::new(),
        operations: vec![operation],
    }
}

fn kind_routes(
    group: &ServedGroup,
    version: ServedVersion,
    kind: &dyn ServedKind,
) -> Vec<PathItem> {
    let base = format!("/apis/{}/{version}", group.name);
    let plural = kind.plural();
    let builder = OperationBuilder { group, version, kind };
    let list_operation = |id: &str| ApiOperation {
        produces: LIST_TYPES,
        parameters: LIST.to_vec(),
        answer: format!("{}List", builder.definition_name()),
        ..builder.build_operation("get", "list", id, "list or watch objects of kind")
    };
    let mut routes = vec![
        PathItem {
            path: format!("{base}/{plural}"),
            parameters: vec![PRETTY],
            operations: vec![ApiOperation {
                id: format!("{}ForAllNamespaces", builder.operation_id("list", "", "")),
                ..list_operation("")
            }],
        },
        PathItem {
            path: format!("{base}/namespaces/{{namespace}}/{plural}"),
            parameters: vec![NAMESPACE, PRETTY],
            operations: vec![
                list_operation(&builder.operation_id("list", "Namespaced", "")),
                ApiOperation {
                    body: Some(builder.definition_name()),
                    body_required: true,
                    parameters: vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
                    codes: CREATED,
                    ..builder.build_operation(
                        "post",
                        "post",
                        &builder.operation_id("create", "Namespaced", ""),
                        "create a",
                    )
                },
                ApiOperation {
                    body: Some(format!("{META}DeleteOptions")),
                    parameters: LIST
                        .iter()
                        .filter(|parameter| {
                            !["watch", "allowWatchBookmarks"].contains(&parameter.name)
                        })
                        .chain(DELETE)
                        .cloned()
                        .collect(),
                    answer: format!("{META}Status"),
                    ..builder.build_operation(
                        "delete",
                        "deletecollection",
                        &builder.operation_id("delete", "CollectionNamespaced", ""),
                        "delete collection of",
                    )
                },
            ],
        },
        PathItem {
            path: format!("{base}/namespaces/{{namespace}}/{plural}/{{name}}"),
            parameters: vec![NAME, NAMESPACE, PRETTY],
            operations: builder.object_operations(""),
        },
    ];
    let delete = ApiOperation {
        body: Some(format!("{META}DeleteOptions")),
        parameters: DELETE.to_vec(),
        codes: DELETED,
        answer: format!("{META}Status"),
        ..builder.build_operation(
            "delete",
            "delete",
            &builder.operation_id("delete", "Namespaced", ""),
            "delete a",
        )
    };
    routes[2].operations.push(delete);
    if kind.has_status() {
        routes.push(PathItem {
            path: format!("{base}/namespaces/{{namespace}}/{plural}/{{name}}/status"),
            parameters: vec![NAME, NAMESPACE, PRETTY],
            operations: builder.object_operations("Status"),
        });
    }
    routes
}

/// Makes the operations of one kind.
struct OperationBuilder<'a> {
    group: &'a ServedGroup,
    version: ServedVersion,
    kind: &'a dyn ServedKind,
}

impl OperationBuilder<'_> {
    fn definition_name(&self) -> String {
        self.group.definition_name(self.version, self.kind.kind())
    }

    fn operation_id(&self, verb: &str, scope: &str, suffix: &str) -> String {
        let version = capitalize(self.version.as_str());
        let group = camel_case(self.group.name);
        format!("{verb}{group}{version}{scope}{}{suffix}", self.kind.kind())
    }

    /// Returns an operation that answers with an object.
    fn build_operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: &str,
        description: &str,
    ) -> ApiOperation {
        ApiOperation {
            method,
            id: id.into(),
            tag: group_tag(self.group, self.version),
            description: format!("{description} {}", self.kind.kind()),
            acts_on: Some((action, self.kind.kind(), self.version)),
            parameters: Vec::new(),
            body: None,
            body_required: false,
            consumes: OBJECT_TYPES,
            produces: OBJECT_TYPES,
            codes: READ,
            answer: self.definition_name(),
        }
    }

    /// Returns get, put and patch of an object, or of its status.
    fn object_operations(&self, suffix: &str) -> Vec<ApiOperation> {
        let part = if suffix.is_empty() { "" } else { "status of " };
        let id = |verb: &str| self.operation_id(verb, "Namespaced", suffix);
        vec![
            self.build_operation("get", "get", &id("read"), &format!("read {part}the specified")),
            ApiOperation {
                body: Some(self.definition_name()),
                body_required: true,
                parameters: vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
                codes: WRITTEN,
                ..self.build_operation(
                    "put",
                    "put",
                    &id("replace"),
                    &format!("replace {part}the specified"),
                )
            },
            ApiOperation {
                body: Some(format!("{META}Patch")),
                body_required: true,
                parameters: vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE],
                consumes: PATCH_TYPES,
                codes: WRITTEN,
                ..self.build_operation(
                    "patch",
                    "patch",
                    &id("patch"),
                    &format!("partially update {part}the specified"),
                )
            },
        ]
    }
}

/// Returns the tag of the operations of a version: `exampleCom_v1` for `example.com`.
fn group_tag(group: &ServedGroup, version: ServedVersion) -> String {
    let name = camel_case(group.name);
    let (first, rest) = name.split_at(name.len().min(1));
    format!("{}{rest}_{version}", first.to_lowercase())
}

/// Returns a group's name as one word: `ExampleCom` for `example.com`.
fn camel_case(group: &str) -> String {
    group.split(['.', '-']).map(capitalize).collect()
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
