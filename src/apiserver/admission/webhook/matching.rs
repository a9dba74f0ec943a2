//! Which requests a webhook's rules match, and in which version the webhook is sent the objects.
//!
//! Does no I/O. Rules are matched for each write, so matching allocates nothing.

use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;

use crate::{apiserver::admission::AdmissionOperation, machinery::served_kind::ServedVersion};

/// A request as webhook rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleSubject<'a> {
    pub(super) operation: AdmissionOperation,
    pub(super) group: &'a str,
    /// The version that the request names.
    pub(super) version: ServedVersion,
    /// The versions in which the kind is served.
    pub(super) versions: &'a [ServedVersion],
    pub(super) resource: &'a str,
    /// The subresource, empty for the object itself.
    pub(super) subresource: &'a str,
    pub(super) is_namespaced: bool,
}

/// The rules of one webhook.
#[derive(Clone, Debug)]
pub(super) struct WebhookRules {
    rules: Vec<WebhookRule>,
    /// Set for `matchPolicy: Equivalent`: rules about another version of the same objects count,
    /// too.
    equivalent: bool,
}

#[derive(Clone, Debug)]
struct WebhookRule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Pairs of resource and subresource.
    resources: Vec<(String, String)>,
    scope: RuleScope,
}

#[derive(Clone, Copy, Debug)]
enum RuleScope {
    All,
    Namespaced,
    Cluster,
    /// A scope that this release does not know. Its rule matches nothing.
    Unknown,
}

impl WebhookRules {
    pub(super) fn new(rules: Vec<RuleWithOperations>, match_policy: Option<&str>) -> Self {
        Self {
            rules: rules.into_iter().map(WebhookRule::new).collect(),
            equivalent: match_policy != Some("Exact"),
        }
    }

    /// Tells whether the rules can match any resource of `group`.
    pub(super) fn are_about(&self, group: &str) -> bool {
        self.rules.iter().any(|rule| matches_any(&rule.groups, group))
    }

    /// Returns the version in which the webhook is sent the objects: the request's if a rule names
    /// it, else the first other version that a rule names. `None` when the webhook is not to be
    /// called.
    pub(super) fn match_version(&self, subject: RuleSubject<'_>) -> Option<ServedVersion> {
        if self.rules.iter().any(|rule| rule.matches(subject, subject.version)) {
            return Some(subject.version);
        }
        if !self.equivalent {
            return None;
        }
        let other_versions =
            || subject.versions.iter().copied().filter(|other| *other != subject.version);
        let mut rules = self.rules.iter();
        rules.find_map(|rule| other_versions().find(|version| rule.matches(subject, *version)))
    }
}

impl WebhookRule {
    fn new(rule: RuleWithOperations) -> Self {
        let RuleWithOperations { api_groups, api_versions, operations, resources, scope } = rule;
        let resources = resources.unwrap_or_default().into_iter().map(|text| {
            let (resource, subresource) = text.split_once('/').unwrap_or((&text, ""));
            (resource.to_owned(), subresource.to_owned())
        });
        Self {
            operations: operations.unwrap_or_default(),
            groups: api_groups.unwrap_or_default(),
            versions: api_versions.unwrap_or_default(),
            resources: resources.collect(),
            scope: match scope.as_deref() {
                None | Some("*") => RuleScope::All,
                Some("Namespaced") => RuleScope::Namespaced,
                Some("Cluster") => RuleScope::Cluster,
                Some(_) => RuleScope::Unknown,
            },
        }
    }

    fn matches(&self, subject: RuleSubject<'_>, version: ServedVersion) -> bool {
        let scope = match self.scope {
            RuleScope::All => true,
            RuleScope::Namespaced => subject.is_namespaced,
            RuleScope::Cluster => !subject.is_namespaced,
            RuleScope::Unknown => false,
        };
        let matches_pattern = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        scope
            && matches_any(&self.operations, subject.operation.as_str())
            && matches_any(&self.groups, subject.group)
            && matches_any(&self.versions, version.as_str())
            && self.resources.iter().any(|(resource, subresource)| {
                matches_pattern(resource, subject.resource)
                    && matches_pattern(subresource, subject.subresource)
            })
    }
}

fn matches_any(patterns: &[String], value: &str) -> bool {
    patterns.iter().any(|pattern| pattern == "*" || pattern == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1BETA1: ServedVersion = ServedVersion::new("v1beta1");
    const V1ALPHA1: ServedVersion = ServedVersion::new("v1alpha1");

    fn rule(operation: &str, group: &str, version: &str, resource: &str) -> RuleWithOperations {
        let list = |text: &str| Some(text.split(' ').map(str::to_owned).collect());
        RuleWithOperations {
            operations: list(operation),
            api_groups: list(group),
            api_versions: list(version),
            resources: list(resource),
            scope: None,
        }
    }

    const SUBJECT: RuleSubject<'static> = RuleSubject {
        operation: AdmissionOperation::Update,
        group: "navigator.jetstack.io",
        version: V1BETA1,
        versions: &[V1BETA1, V1ALPHA1],
        resource: "pilots",
        subresource: "",
        is_namespaced: true,
    };

    #[test]
    fn operations_groups_and_resources_match_as_upstream_has_it() {
        let ours = "navigator.jetstack.io";
        let status = RuleSubject { subresource: "status", ..SUBJECT };
        for (operation, group, resource, main, sub) in [
            ("UPDATE", ours, "pilots", true, false),
            ("CREATE UPDATE", ours, "x pilots", true, false),
            ("*", "*", "*", true, false),
            ("CREATE", "*", "*", false, false),
            ("CONNECT DELETE", "*", "*/*", false, false),
            ("*", "apps", "*/*", false, false),
            ("*", "apps *", "*/*", true, true),
            ("*", "*", "*/status", false, true),
            ("*", "*", "pilots/status", false, true),
            ("*", "*", "pilots/*", true, true),
            ("*", "*", "pilots/scale", false, false),
            ("*", "*", "others/*", false, false),
            ("update", ours, "pilots", false, false),
        ] {
            let rules = WebhookRules::new(vec![rule(operation, group, "*", resource)], None);
            let found =
                (rules.match_version(SUBJECT).is_some(), rules.match_version(status).is_some());
            assert_eq!(found, (main, sub), "{operation} {group} {resource}");
        }
    }

    #[test]
    fn equivalent_rules_choose_the_version_and_exact_ones_do_not() {
        let of = |versions: &[&str], policy| {
            let rules = versions.iter().map(|version| rule("*", "*", version, "*")).collect();
            WebhookRules::new(rules, policy).match_version(SUBJECT)
        };
        assert_eq!(of(&["v1alpha1"], None), Some(V1ALPHA1));
        assert_eq!(of(&["v1alpha1"], Some("Equivalent")), Some(V1ALPHA1));
        assert_eq!(of(&["v1alpha1"], Some("Exact")), None);
        assert_eq!(of(&["v1alpha1", "v1beta1"], None), Some(V1BETA1));
        assert_eq!(of(&["v1alpha1", "*"], Some("Exact")), Some(V1BETA1));
        assert_eq!(of(&["v9"], None), None);
        let elsewhere = WebhookRules::new(vec![rule("*", "apps", "v1alpha1", "*")], None);
        assert_eq!(elsewhere.match_version(SUBJECT), None);
        assert!(!elsewhere.are_about(SUBJECT.group));
    }

    #[test]
    fn a_scope_is_that_of_the_resource() {
        let of = |scope: &str, is_namespaced| {
            let rule =
                RuleWithOperations { scope: Some(scope.to_owned()), ..rule("*", "*", "*", "*") };
            WebhookRules::new(vec![rule], None)
                .match_version(RuleSubject { is_namespaced, ..SUBJECT })
                .is_some()
        };
        for (scope, namespaced, cluster) in [
            ("*", true, true),
            ("Namespaced", true, false),
            ("Cluster", false, true),
            ("?", false, false),
        ] {
            assert_eq!((of(scope, true), of(scope, false)), (namespaced, cluster), "{scope}");
        }
    }
}
