//! What the audit log records of a request: levels, stages, and the rules of a policy file.
//!
//! Owns reading, validation and matching of a Policy of `audit.k8s.io/v1`, in upstream's words
//! (`pkg/audit/policy`, `pkg/apis/audit/validation`). The first rule that matches counts.

use std::path::{Path as File, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use crate::{
    api::validation::format::check_dns_subdomain,
    apiserver::{authn::User, operation::ResourceOperation, request_info::RequestInfo},
    machinery::field_error::{ErrorList, FieldError, FieldErrorKind, FieldPath, join_errors},
};

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum AuditLevel {
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl AuditLevel {
    const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// Point in a request's life at which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AuditStage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl AuditStage {
    const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    const fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// Set of stages for which no event is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedStages(u8);

impl OmittedStages {
    #[must_use]
    pub const fn with_stage(self, stage: AuditStage) -> Self {
        Self(self.0 | 1 << stage as u8)
    }

    pub const fn contains(self, stage: AuditStage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }

    fn from_names(names: &[String]) -> Self {
        let stages =
            AuditStage::ALL.into_iter().filter(|stage| names.iter().any(|n| n == stage.as_str()));
        stages.fold(Self::default(), Self::with_stage)
    }
}

/// What is recorded of one request: the outcome of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditDecision {
    pub level: AuditLevel,
    pub omit: OmittedStages,
    pub omit_managed_fields: bool,
}

/// The audit policy: its rules, and what is recorded of requests that no rule matches.
#[derive(Clone, Debug)]
pub struct AuditPolicy {
    rules: Vec<AuditRule>,
    omit: OmittedStages,
    omit_managed_fields: bool,
    /// Set when no file was given: requests that change something are recorded, at level Metadata.
    changes_only: bool,
}

#[derive(Clone, Debug)]
struct AuditRule {
    matches: RequestMatcher,
    decision: AuditDecision,
}

/// The conditions of a rule. An empty list matches any request.
#[derive(Clone, Debug)]
struct RequestMatcher {
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    urls: Vec<String>,
}

/// Why the policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditPolicyError {
    #[error("failed to read the audit policy file {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the audit policy file {path:?} cannot be used: {why}")]
    Content { path: PathBuf, why: String },
}

impl AuditPolicy {
    /// Returns the policy that holds without a file.
    pub fn of_changes() -> Self {
        let arrival = OmittedStages::default().with_stage(AuditStage::RequestReceived);
        Self {
            rules: Vec::new(),
            omit: arrival.with_stage(AuditStage::ResponseStarted),
            omit_managed_fields: false,
            changes_only: true,
        }
    }

    pub fn load(path: &File) -> Result<Self, AuditPolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| AuditPolicyError::Read { path: path.to_owned(), source })?;
        Self::parse(&text)
            .map_err(|reason| AuditPolicyError::Content { path: path.to_owned(), why: reason })
    }

    /// Parses a policy in YAML or JSON. Unknown fields are logged as a warning and ignored.
    pub fn parse(text: &str) -> Result<Self, String> {
        let decode_error = |error: &dyn std::fmt::Display| format!("failed decoding: {error}");
        let value: Value = serde_yaml::from_str(text).map_err(|error| decode_error(&error))?;
        let unexpected_fields = unknown_fields(&value);
        let wire: PolicyManifest = match value {
            Value::Null => PolicyManifest::default(),
            value => serde_json::from_value(value).map_err(|error| decode_error(&error))?,
        };
        let PolicyManifest {
            api_version,
            kind,
            rules,
            omit_stages,
            omit_managed_fields,
            metadata: _,
        } = wire;
        if (api_version.as_str(), kind.as_str()) != ("audit.k8s.io/v1", "Policy") {
            return Err(format!(
                "unknown group version field {api_version:?}, kind {kind:?} in policy; it must \
                 be a Policy of audit.k8s.io/v1"
            ));
        }
        if !unexpected_fields.is_empty() {
            warn!(fields = unexpected_fields.join(", "), "The audit policy has unknown fields");
        }
        let errors = validate_policy(&rules, &omit_stages);
        if !errors.is_empty() {
            return Err(join_errors(&errors));
        }
        if rules.is_empty() {
            return Err("loaded illegal policy with 0 rules".to_owned());
        }
        let rules = rules.into_iter().map(|rule| {
            let omitted_stages = [omit_stages.as_slice(), &rule.omit_stages].concat();
            let decision = AuditDecision {
                level: parse_level(&rule.level).unwrap_or(AuditLevel::None),
                omit: OmittedStages::from_names(&omitted_stages),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(omit_managed_fields),
            };
            let matches = RequestMatcher {
                users: rule.users,
                groups: rule.user_groups,
                verbs: rule.verbs,
                resources: rule.resources,
                namespaces: rule.namespaces,
                urls: rule.non_resource_urls,
            };
            AuditRule { matches, decision }
        });
        Ok(Self {
            rules: rules.collect(),
            omit: OmittedStages::from_names(&omit_stages),
            omit_managed_fields,
            changes_only: false,
        })
    }

    /// Decides what is recorded of a request. `user` is absent when the client was not
    /// authenticated.
    pub fn decide(&self, user: Option<&User>, request: &RequestInfo) -> AuditDecision {
        let matching_rule = self.rules.iter().find(|rule| rule.matches.matches(user, request));
        let level = if self.changes_only && request.is_mutating() {
            AuditLevel::Metadata
        } else {
            AuditLevel::None
        };
        let Self { omit, omit_managed_fields, .. } = *self;
        matching_rule
            .map_or(AuditDecision { level, omit, omit_managed_fields }, |rule| rule.decision)
    }
}

impl RequestMatcher {
    fn matches(&self, user: Option<&User>, request: &RequestInfo) -> bool {
        let Self { users, groups, verbs, resources, namespaces, urls } = self;
        if !users.is_empty() && !user.is_some_and(|user| users.contains(&user.name)) {
            return false;
        }
        let is_member = |user: &User| user.groups.iter().any(|group| groups.contains(group));
        if !groups.is_empty() && !user.is_some_and(is_member) {
            return false;
        }
        if !verbs.is_empty() && !verbs.contains(&request.verb()) {
            return false;
        }
        if !namespaces.is_empty() || !resources.is_empty() {
            let Some(operation) = &request.operation else { return false };
            return (namespaces.is_empty() || namespaces.contains(&operation.namespace))
                && (resources.is_empty()
                    || resources.iter().any(|resource| resource.matches(operation)));
        }
        urls.is_empty()
            || (request.operation.is_none()
                && urls.iter().any(|url| url_matches(url, &request.path)))
    }
}

impl GroupResources {
    fn matches(&self, operation: &ResourceOperation) -> bool {
        let Self { group, resources, resource_names } = self;
        if *group != operation.group {
            return false;
        }
        if resources.is_empty() {
            return true;
        }
        if !resource_names.is_empty() && !resource_names.contains(&operation.name) {
            return false;
        }
        let ResourceOperation { resource, subresource, .. } = operation;
        resources.iter().any(|pattern| match pattern.split_once('/') {
            _ if pattern == "*" => true,
            None => subresource.is_empty() && pattern == resource,
            Some(("*", subresource_pattern))
                if !subresource.is_empty() && subresource_pattern == subresource =>
            {
                true
            }
            Some((resource_pattern, "*")) if resource_pattern == resource => true,
            Some((resource_pattern, subresource_pattern)) => {
                !subresource.is_empty()
                    && resource_pattern == resource
                    && subresource_pattern == subresource
            }
        })
    }
}

/// Tells whether a rule's URL matches `path`: exactly, or as a prefix if the URL ends with `*`.
fn url_matches(url: &str, path: &str) -> bool {
    url == path || (url.ends_with('*') && path.starts_with(url.trim_end_matches('*')))
}

fn parse_level(name: &str) -> Option<AuditLevel> {
    AuditLevel::ALL.into_iter().find(|level| level.as_str() == name)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicyManifest {
    #[serde(deserialize_with = "or_default")]
    api_version: String,
    #[serde(deserialize_with = "or_default")]
    kind: String,
    metadata: Value,
    #[serde(deserialize_with = "or_default")]
    rules: Vec<PolicyRuleManifest>,
    #[serde(deserialize_with = "or_default")]
    omit_stages: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    omit_managed_fields: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicyRuleManifest {
    #[serde(deserialize_with = "or_default")]
    level: String,
    #[serde(deserialize_with = "or_default")]
    users: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    user_groups: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    resources: Vec<GroupResources>,
    #[serde(deserialize_with = "or_default")]
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "or_default")]
    non_resource_urls: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupResources {
    /// Name of the API group, empty for the core group.
    #[serde(deserialize_with = "or_default")]
    group: String,
    #[serde(deserialize_with = "or_default")]
    resources: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    resource_names: Vec<String>,
}

/// Deserializes a field; an explicit null counts as an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn unknown_fields(policy: &Value) -> Vec<String> {
    const POLICY: &[&str] =
        &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
    const RULE: &[&str] = &[
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ];
    const RESOURCES: &[&str] = &["group", "resources", "resourceNames"];
    let mut unexpected_fields = Vec::new();
    let mut check_keys = |prefix: &str, value: &Value, known_keys: &[&str]| {
        let keys = value.as_object().into_iter().flat_map(serde_json::Map::keys);
        let unexpected_keys = keys.filter(|key| !known_keys.contains(&key.as_str()));
        unexpected_fields.extend(unexpected_keys.map(|key| format!("{prefix}{key}")));
    };
    check_keys("", policy, POLICY);
    for (index, rule) in policy["rules"].as_array().into_iter().flatten().enumerate() {
        check_keys(&format!("rules[{index}]."), rule, RULE);
        for (inner, entry) in rule["resources"].as_array().into_iter().flatten().enumerate() {
            check_keys(&format!("rules[{index}].resources[{inner}]."), entry, RESOURCES);
        }
    }
    unexpected_fields
}

fn validate_policy(rules: &[PolicyRuleManifest], omit_stages: &[String]) -> ErrorList {
    let mut errors = ErrorList::new();
    validate_stages(omit_stages, &FieldPath::new("omitStages"), &mut errors);
    for (index, rule) in rules.iter().enumerate() {
        validate_rule(rule, &FieldPath::new("rules").index(index), &mut errors);
    }
    errors
}

fn validate_rule(rule: &PolicyRuleManifest, path: &FieldPath, errors: &mut ErrorList) {
    let level_path = path.child("level");
    if rule.level.is_empty() {
        errors.push(FieldError::new(&level_path, FieldErrorKind::Required, ""));
    } else if parse_level(&rule.level).is_none() {
        let supported = AuditLevel::ALL.map(|level| level.as_str().to_owned()).to_vec();
        errors.push(FieldError::new(
            &level_path,
            FieldErrorKind::NotSupported(json!(rule.level), supported),
            "",
        ));
    }
    let mut report_invalid = |path: &FieldPath, value: Value, detail: &str| {
        errors.push(FieldError::new(path, FieldErrorKind::Invalid(value), detail));
    };
    let urls = path.child("nonResourceURLs");
    for (index, url) in rule.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        if !url.starts_with('/') {
            let detail = "non-resource URL rules must begin with a '/' character";
            report_invalid(&urls.index(index), json!(url), detail);
        }
        if url.find('*').is_some_and(|position| position + 1 < url.len()) {
            let detail = "non-resource URL wildcards '*' must be the final character of the rule";
            report_invalid(&urls.index(index), json!(url), detail);
        }
    }
    let resources = path.child("resources");
    for entry in &rule.resources {
        if !entry.group.is_empty() {
            let problems = check_dns_subdomain(&entry.group);
            if !problems.is_empty() {
                report_invalid(&resources.child("group"), json!(entry.group), &problems.join(","));
            }
        }
        if !entry.resource_names.is_empty() && entry.resources.is_empty() {
            let detail = "using resourceNames requires at least one resource";
            report_invalid(&resources.child("resourceNames"), json!(entry.resource_names), detail);
        }
    }
    validate_stages(&rule.omit_stages, &path.child("omitStages"), errors);
    if !rule.non_resource_urls.is_empty()
        && (!rule.resources.is_empty() || !rule.namespaces.is_empty())
    {
        let detail = "rules cannot apply to both regular resources and non-resource URLs";
        let problem = FieldErrorKind::Invalid(json!(rule.non_resource_urls));
        errors.push(FieldError::new(&urls, problem, detail));
    }
}

fn validate_stages(stages: &[String], path: &FieldPath, errors: &mut ErrorList) {
    let allowed = AuditStage::ALL.map(AuditStage::as_str);
    for (index, stage) in stages.iter().enumerate() {
        if !allowed.contains(&stage.as_str()) {
            let detail = format!("allowed stages are {}", allowed.join(","));
            let problem = FieldErrorKind::Invalid(json!(stage));
            errors.push(FieldError::new(&path.index(index), problem, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{HeaderMap, Method, Uri};

    use super::*;

    fn request(method: &str, uri: &str) -> RequestInfo {
        let (method, uri): (Method, Uri) = (method.parse().unwrap(), uri.parse().unwrap());
        RequestInfo::parse(&method, &uri, &HeaderMap::new())
    }

    fn tim() -> User {
        let groups = ["humans", "developers"].map(str::to_owned).to_vec();
        User { name: "tim@k8s.io".into(), groups, ..User::default() }
    }

    fn policy(body: &str) -> Result<AuditPolicy, String> {
        AuditPolicy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{body}"))
    }

    /// The rules of upstream's `checker_test.go`, by the names that it gives them.
    const RULES: &[(&str, &str)] = &[
        ("default", "level: Metadata"),
        ("create", "level: Request, verbs: [create]"),
        ("tims", "level: Metadata, users: [tim@k8s.io]"),
        ("humans", "level: Metadata, userGroups: [humans]"),
        ("serviceAccounts", "level: Request, userGroups: ['system:serviceaccounts']"),
        ("getPods", "level: RequestResponse, verbs: [get], resources: [{resources: [pods]}]"),
        ("getPodLogs", "level: Request, verbs: [get], resources: [{resources: [pods/log]}]"),
        ("getAny", "level: Request, verbs: [get], resources: [{resources: ['*']}]"),
        ("getAnyLog", "level: Request, verbs: [get], resources: [{resources: ['*/log']}]"),
        ("getBelowPods", "level: Request, verbs: [get], resources: [{resources: ['pods/*']}]"),
        (
            "getClusterRoles",
            "level: RequestResponse, verbs: [get], namespaces: [''], \
             resources: [{group: rbac.authorization.k8s.io, resources: [clusterroles]}]",
        ),
        ("getLogs", "level: RequestResponse, verbs: [get], nonResourceURLs: [/logs*]"),
        ("getMetrics", "level: Request, verbs: [get], nonResourceURLs: [/metrics]"),
        (
            "clusterRoleEdit",
            "level: Request, resources: [{group: rbac.authorization.k8s.io, \
             resources: [clusterroles], resourceNames: [edit]}]",
        ),
        ("omitReceived", "level: Request, omitStages: [RequestReceived]"),
        (
            "onlyPanic",
            "level: Request, omitStages: [RequestReceived, ResponseStarted, ResponseComplete]",
        ),
        ("core", "level: Request, resources: [{group: ''}]"),
        ("everywhereElse", "level: None, namespaces: [db]"),
    ];

    fn of(names: &str, more: &str) -> AuditPolicy {
        let known: BTreeMap<_, _> = RULES.iter().copied().collect();
        let rules = names.split_whitespace().map(|name| format!("- {{{}}}\n", known[name]));
        policy(&format!("{more}\nrules:\n{}", rules.collect::<String>())).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let requests: BTreeMap<_, _> = [
            ("namespaced", "/api/v1/namespaces/default/pods/busybox"),
            ("cluster", "/apis/rbac.authorization.k8s.io/v1beta1/clusterroles/edit"),
            ("other", "/logs/kubelet.log"),
            ("below", "/api/v1/namespaces/default/pods/busybox/log"),
        ]
        .into();
        let rows = [
            ("namespaced", "default", "Metadata"),
            ("namespaced", "create", "None"),
            ("namespaced", "tims", "Metadata"),
            ("namespaced", "humans", "Metadata"),
            ("namespaced", "serviceAccounts", "None"),
            ("namespaced", "getPods", "RequestResponse"),
            ("namespaced", "getClusterRoles", "None"),
            ("namespaced", "getLogs", "None"),
            ("namespaced", "getMetrics", "None"),
            ("namespaced", "getMetrics serviceAccounts default", "Metadata"),
            ("namespaced", "getMetrics getPods default", "RequestResponse"),
            ("namespaced", "getPodLogs getPods", "RequestResponse"),
            ("namespaced", "getAnyLog", "None"),
            // `pods/*` means the resource itself, too.
            ("namespaced", "getBelowPods", "Request"),
            ("namespaced", "core", "Request"),
            ("namespaced", "everywhereElse default", "Metadata"),
            ("cluster", "default", "Metadata"),
            ("cluster", "create", "None"),
            ("cluster", "tims", "Metadata"),
            ("cluster", "humans", "Metadata"),
            ("cluster", "serviceAccounts", "None"),
            ("cluster", "getPods", "None"),
            ("cluster", "getClusterRoles", "RequestResponse"),
            ("cluster", "clusterRoleEdit getClusterRoles", "Request"),
            ("cluster", "getLogs", "None"),
            ("cluster", "getMetrics", "None"),
            ("cluster", "getMetrics serviceAccounts default", "Metadata"),
            ("cluster", "getMetrics getClusterRoles default", "RequestResponse"),
            ("cluster", "getPodLogs getPods", "None"),
            ("cluster", "core", "None"),
            ("other", "default", "Metadata"),
            ("other", "create", "None"),
            ("other", "tims", "Metadata"),
            ("other", "humans", "Metadata"),
            ("other", "serviceAccounts", "None"),
            ("other", "getPods", "None"),
            ("other", "getClusterRoles", "None"),
            ("other", "getLogs", "RequestResponse"),
            ("other", "getMetrics", "None"),
            ("other", "getMetrics serviceAccounts default", "Metadata"),
            ("other", "getLogs getClusterRoles default", "RequestResponse"),
            ("other", "getPodLogs getPods", "None"),
            ("below", "getPodLogs getPods", "Request"),
            ("below", "getPods", "None"),
            ("below", "getAny", "Request"),
            ("below", "getAnyLog", "Request"),
            ("below", "getBelowPods", "Request"),
        ];
        let omitted = OmittedStages::default()
            .with_stage(AuditStage::RequestReceived)
            .with_stage(AuditStage::ResponseStarted);
        for (more, omit) in [
            ("", OmittedStages::default()),
            ("omitStages: [RequestReceived, ResponseStarted]", omitted),
        ] {
            for (name, rules, expected) in rows {
                let decision =
                    of(rules, more).decide(Some(&tim()), &request("GET", requests[name]));
                assert_eq!(decision.level.as_str(), expected, "{name}: {rules}");
                assert_eq!(decision.omit, omit, "{name}: {rules}");
            }
            let pod = request("GET", requests["namespaced"]);
            for (rules, expected) in [
                ("tims", "None"),
                ("tims default", "Metadata"),
                ("humans", "None"),
                ("humans default", "Metadata"),
            ] {
                let level = of(rules, more).decide(None, &pod).level;
                assert_eq!(level.as_str(), expected, "nobody: {rules}");
            }
        }
    }

    #[test]
    fn stages_of_the_rule_and_of_the_policy_are_left_out() {
        use AuditStage::{Panic, RequestReceived, ResponseComplete, ResponseStarted};
        let global = "omitStages: [RequestReceived, ResponseStarted]";
        let rows = [
            ("", "omitReceived", vec![RequestReceived]),
            ("", "onlyPanic", vec![RequestReceived, ResponseStarted, ResponseComplete]),
            (global, "omitReceived", vec![RequestReceived, ResponseStarted]),
            (global, "onlyPanic", vec![RequestReceived, ResponseStarted, ResponseComplete]),
            (global, "default", vec![RequestReceived, ResponseStarted]),
            ("omitStages: [Panic]", "omitReceived", vec![RequestReceived, Panic]),
        ];
        for (more, rules, expected) in rows {
            let decision = of(rules, more).decide(None, &request("GET", "/version"));
            let omitted: Vec<_> = AuditStage::ALL
                .into_iter()
                .filter(|stage| decision.omit.contains(*stage))
                .collect();
            assert_eq!(omitted, expected, "{more} {rules}");
        }
    }

    #[test]
    fn a_rule_decides_about_managed_fields_and_else_the_policy_does() {
        for (global, own, expected) in [
            ("false", "", false),
            ("true", "", true),
            ("true", ", omitManagedFields: false", false),
            ("false", ", omitManagedFields: true", true),
        ] {
            let text = format!("omitManagedFields: {global}\nrules: [{{level: Metadata{own}}}]");
            let decision = policy(&text).unwrap().decide(None, &request("GET", "/"));
            assert_eq!(decision.omit_managed_fields, expected, "{text}");
        }
    }

    #[test]
    fn without_a_file_what_changes_something_is_recorded() {
        let policy = AuditPolicy::of_changes();
        let pilots = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
        for (method, uri, expected) in [
            ("GET", pilots, AuditLevel::None),
            ("GET", "/version", AuditLevel::None),
            ("POST", pilots, AuditLevel::Metadata),
            ("DELETE", pilots, AuditLevel::Metadata),
            ("POST", "/version", AuditLevel::Metadata),
        ] {
            let decision = policy.decide(None, &request(method, uri));
            assert_eq!(decision.level, expected, "{method} {uri}");
            assert!(decision.omit.contains(AuditStage::RequestReceived));
            assert!(!decision.omit.contains(AuditStage::ResponseComplete));
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_upstreams_words() {
        let url = "nonResourceURLs";
        let both = "rules cannot apply to both regular resources and non-resource URLs";
        let start = "non-resource URL rules must begin with a '/' character";
        let end = "non-resource URL wildcards '*' must be the final character of the rule";
        let rows = [
            ("rules: [{}]", "rules[0].level: Required value".to_owned()),
            (
                "rules: [{level: FooBar}]",
                "rules[0].level: Unsupported value: \"FooBar\": supported values: \"None\", \
                 \"Metadata\", \"Request\", \"RequestResponse\""
                    .to_owned(),
            ),
            (
                "rules: [{level: Metadata, namespaces: [default], nonResourceURLs: [/logs*]}]",
                format!("rules[0].{url}: Invalid value: [\"/logs*\"]: {both}"),
            ),
            (
                "rules: [{level: Metadata, resources: [{resources: [secrets]}], \
                 nonResourceURLs: [/logs*]}]",
                format!("rules[0].{url}: Invalid value: [\"/logs*\"]: {both}"),
            ),
            (
                "rules: [{level: Metadata, resources: [{group: rbac.authorization.k8s.io/v1}]}]",
                "rules[0].resources.group: Invalid value: \"rbac.authorization.k8s.io/v1\": a \
                 lowercase RFC 1123 subdomain must consist of"
                    .to_owned(),
            ),
            (
                "rules: [{level: Metadata, nonResourceURLs: [logs, '/healthz*']}]",
                format!("rules[0].{url}[0]: Invalid value: \"logs\": {start}"),
            ),
            (
                "rules: [{level: Metadata, nonResourceURLs: ['', '/healthz*']}]",
                format!("rules[0].{url}[0]: Invalid value: \"\": {start}"),
            ),
            (
                "rules: [{level: Metadata, nonResourceURLs: ['/logs/*/*']}]",
                format!("rules[0].{url}[0]: Invalid value: \"/logs/*/*\": {end}"),
            ),
            (
                "rules: [{level: Metadata, nonResourceURLs: ['/logs/*.log']}]",
                format!("rules[0].{url}[0]: Invalid value: \"/logs/*.log\": {end}"),
            ),
            (
                "rules: [{level: Metadata, resources: [{resourceNames: [leader]}]}]",
                "rules[0].resources.resourceNames: Invalid value: [\"leader\"]: using \
                 resourceNames requires at least one resource"
                    .to_owned(),
            ),
            (
                "rules: [{level: Metadata, omitStages: [foo]}]",
                "rules[0].omitStages[0]: Invalid value: \"foo\": allowed stages are \
                 RequestReceived,ResponseStarted,ResponseComplete,Panic"
                    .to_owned(),
            ),
            (
                "omitStages: [foo]\nrules: [{level: Metadata}]",
                "omitStages[0]: Invalid value: \"foo\": allowed stages are".to_owned(),
            ),
            ("rules: []", "loaded illegal policy with 0 rules".to_owned()),
            ("rules: 7", "failed decoding".to_owned()),
        ];
        for (text, expected) in rows {
            let told = policy(text).unwrap_err();
            assert!(told.starts_with(&expected), "{text}:\n{told}\n{expected}");
        }
        for text in ["", "rules: [{level: None}]", "apiVersion: audit.k8s.io/v2\nkind: Policy"] {
            let told = AuditPolicy::parse(text).unwrap_err();
            assert!(told.starts_with("unknown group version field"), "{text}: {told}");
        }
    }

    #[test]
    fn valid_rules_are_taken_and_unknown_fields_named() {
        for rule in [
            "{level: None, userGroups: ['system:serviceaccounts', 'system:nodes']}",
            "{level: Metadata, nonResourceURLs: ['/logs*', '/healthz*', /metrics, '*']}",
            "{level: Metadata, users: null, omitStages: [RequestReceived]}",
            "{level: None, resources: [{group: coordination.k8s.io, resources: [leases], verbs: [get]}]}",
        ] {
            policy(&format!("rules: [{rule}]")).unwrap();
        }
        let value = json!({
            "kind": "Policy", "metadata": {"name": "x"}, "more": 1,
            "rules": [{"level": "None", "verb": [], "resources": [{"group": "", "verbs": []}]}],
        });
        let unknown = ["more", "rules[0].verb", "rules[0].resources[0].verbs"];
        assert_eq!(unknown_fields(&value), unknown);
    }
}
