//! Which ClusterRoles and bindings AuthorizationRoles and AuthorizationRoleBindings ask for.
//!
//! An object of RBAC is Navigator's where it bears the uid of one of these as label
//! [`name::AUTHORIZATION`], and no other is ever changed. What stands is what an accepted object says and
//! nothing else: where one is refused, its rights are taken away.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::rbac::v1::PolicyRule, jiff::Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::conditions::Stall;
use crate::api::containership::{
    AuthorizationRole, AuthorizationRoleBinding, AuthorizationRoleBindingType, AuthorizationRule,
    AuthorizationRuleType, name,
};

/// Group of RBAC.
pub const RBAC: &str = "rbac.authorization.k8s.io";
/// Verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];
/// Verbs that let their holder take rights beyond those that are named.
const GRANTING: [&str; 3] = ["escalate", "bind", "impersonate"];
/// Resources that let their holder take rights beyond those that are named, by group: one, or all where it
/// is empty; and whether reading them does so, too.
const GRANTS: [(&str, &str, bool); 16] = [
    ("", "secrets", true),
    ("", "pods/exec", true),
    ("", "pods/attach", true),
    ("", "pods/ephemeralcontainers", false),
    ("", "nodes/proxy", true),
    ("", "serviceaccounts/token", false),
    // A volume may be any folder of a machine, and a label of a namespace allows any pod.
    ("", "persistentvolumes", false),
    ("", "namespaces", false),
    // Who answers for a kind sees, and may change, what others write of it.
    ("apiextensions.k8s.io", "", false),
    ("apiregistration.k8s.io", "", false),
    (RBAC, "", false),
    ("certificates.k8s.io", "", false),
    ("admissionregistration.k8s.io", "", false),
    ("auth.containership.io", "", false),
    ("containership.io", "", false),
    ("provision.containership.io", "", false),
];

/// A kind of RBAC. Roles come ahead of what binds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GrantKind {
    ClusterRole,
    ClusterRoleBinding,
    RoleBinding,
}

/// Which object of RBAC is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantKey {
    pub kind: GrantKind,
    /// Empty for those of the whole cluster.
    pub namespace: String,
    pub name: String,
}

/// An object of RBAC as it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub key: GrantKey,
    /// uid of the object that asks for it.
    pub owner: String,
    /// Its fields without metadata.
    pub content: Value,
}

/// An object of RBAC with our label, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingGrant {
    pub labels: BTreeMap<String, String>,
    pub content: Value,
    /// Its resourceVersion.
    pub version: String,
}

impl StandingGrant {
    /// Reads what matters of an object whose fields beside the metadata are these.
    pub fn new(object: &impl ResourceExt, content: &Value) -> Self {
        let version = object.resource_version().unwrap_or_default();
        Self { labels: object.labels().clone(), content: normalize_content(content), version }
    }

    /// Returns the uid of the object that asked for it.
    pub fn owner(&self) -> &str {
        self.labels.get(name::AUTHORIZATION).map_or("", String::as_str)
    }
}

impl Grant {
    fn new(key: GrantKey, owner: Option<String>, content: &Value) -> Self {
        Self { key, owner: owner.unwrap_or_default(), content: normalize_content(content) }
    }

    /// Returns the labels that it bears, and no others: one of Kubernetes' own would add the rights to other
    /// roles.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [(name::AUTHORIZATION.to_owned(), self.owner.clone())].into()
    }

    /// Is an object as it is wanted?
    pub fn is_applied(&self, existing: Option<&StandingGrant>) -> bool {
        existing.is_some_and(|grant| grant.content == self.content && grant.labels == self.labels())
    }
}

/// Returns the fields that say something: kube-apiserver writes null for an empty list.
fn normalize_content(content: &Value) -> Value {
    let mut content = content.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != json!([]));
    }
    content
}

/// One write of an object of RBAC. The version is that of the object that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantStep {
    Create(Grant),
    Replace(Grant, String),
    Delete(GrantKey, String),
}

/// Decides what is written, in this order. What a binding refers to cannot be changed, so that such a one is
/// made anew.
pub fn grant_steps(
    desired_grants: &[Grant],
    existing_grants: &BTreeMap<GrantKey, StandingGrant>,
) -> Vec<GrantStep> {
    let by_key: BTreeMap<&GrantKey, &Grant> =
        desired_grants.iter().map(|grant| (&grant.key, grant)).collect();
    let (mut deletes, mut writes) = (Vec::new(), Vec::new());
    for (key, existing) in existing_grants.iter().rev() {
        if !by_key.contains_key(key) {
            deletes.push(GrantStep::Delete(key.clone(), existing.version.clone()));
        }
    }
    for (key, grant) in by_key {
        match existing_grants.get(key) {
            None => writes.push(GrantStep::Create(grant.clone())),
            Some(existing) if grant.is_applied(Some(existing)) => {}
            Some(existing) if existing.content.get("roleRef") == grant.content.get("roleRef") => {
                writes.push(GrantStep::Replace(grant.clone(), existing.version.clone()));
            }
            Some(existing) => {
                writes.push(GrantStep::Delete(key.clone(), existing.version.clone()));
                writes.push(GrantStep::Create(grant.clone()));
            }
        }
    }
    deletes.append(&mut writes);
    deletes
}

/// Decides which ClusterRole each AuthorizationRole has, in their order, or why it has none. Those that are
/// being deleted ask for nothing, and are left out. `privileged`: roles may let their holders take further
/// rights.
pub fn plan_roles(roles: &[AuthorizationRole], privileged: bool) -> Vec<Result<Grant, Stall>> {
    without_doubles(roles, |role| cluster_role(role, privileged))
}

/// Decides the same of bindings. `roles` has the names of ClusterRoles that stand by an AuthorizationRole: no
/// other is bound, or who may make these objects could give any right.
pub fn plan_bindings(
    bindings: &[AuthorizationRoleBinding],
    roles: &BTreeSet<String>,
) -> Vec<Result<Grant, Stall>> {
    without_doubles(bindings, |role_binding| binding_grant(role_binding, roles))
}

/// Of two objects that ask for one name the older has it.
fn without_doubles<K: ResourceExt>(
    objects: &[K],
    build_grant: impl Fn(&K) -> Result<Grant, Stall>,
) -> Vec<Result<Grant, Stall>> {
    let mut grants: Vec<Result<Grant, Stall>> = objects.iter().map(build_grant).collect();
    let age = |index: &usize| {
        let created = objects[*index].creation_timestamp().map_or(Timestamp::MIN, |time| time.0);
        (created, objects[*index].name_any())
    };
    let mut order: Vec<usize> = (0..objects.len()).collect();
    order.sort_by_key(age);
    let mut key_owners: BTreeMap<GrantKey, String> = BTreeMap::new();
    for index in order {
        let Ok(grant) = &grants[index] else { continue };
        if let Some(older) = key_owners.get(&grant.key) {
            let message = format!("{older} is older and has the id {:?}", grant.key.name);
            grants[index] = Err(("IdTaken", message));
        } else {
            key_owners.insert(grant.key.clone(), objects[index].name_any());
        }
    }
    grants
}

fn object_id(id: Option<&String>, object: &impl ResourceExt) -> String {
    id.filter(|id| !id.is_empty()).cloned().unwrap_or_else(|| object.name_any())
}

fn cluster_role(role: &AuthorizationRole, privileged: bool) -> Result<Grant, Stall> {
    let mut rules = Vec::new();
    for (place, rule) in role.spec.rules.iter().flatten().enumerate() {
        if rule.type_ == AuthorizationRuleType::Containership {
            continue;
        }
        let rule = policy_rule(rule);
        match find_privilege(&rule) {
            Some(right) if !privileged => {
                let message = format!(
                    "rules[{place}] allows {right}, for which the coordinator must run with \
                     --allow-privileged-roles"
                );
                return Err(("Privileged", message));
            }
            _ => rules.push(rule),
        }
    }
    let name = object_id(role.spec.id.as_ref(), role);
    let key = GrantKey { kind: GrantKind::ClusterRole, namespace: String::new(), name };
    Ok(Grant::new(key, role.uid(), &json!({"rules": rules})))
}

fn policy_rule(rule: &AuthorizationRule) -> PolicyRule {
    let non_empty = |words: &Option<Vec<String>>| words.clone().filter(|words| !words.is_empty());
    let resources = non_empty(&rule.resources);
    // What names resources must name a group.
    let core = || resources.as_ref().map(|_| vec![String::new()]);
    PolicyRule {
        api_groups: non_empty(&rule.api_groups).or_else(core),
        resource_names: non_empty(&rule.resource_names),
        verbs: rule.verbs.clone().unwrap_or_default(),
        non_resource_urls: non_empty(&rule.non_resource_urls),
        resources,
    }
}

/// Says by what a rule lets its holder take rights beyond those that it names.
fn find_privilege(rule: &PolicyRule) -> Option<String> {
    let words = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let (groups, resources) = (words(&rule.api_groups), words(&rule.resources));
    let urls = words(&rule.non_resource_urls);
    let mut entries = rule.verbs.iter().chain(&groups).chain(&resources).chain(&urls);
    if let Some(word) = entries.find(|word| word.starts_with('*') || *word == "/*") {
        return Some(format!("{word:?}"));
    }
    if let Some(verb) = rule.verbs.iter().find(|verb| GRANTING.contains(&verb.as_str())) {
        return Some(format!("to {verb}"));
    }
    let is_writing = rule.verbs.iter().any(|verb| !READS.contains(&verb.as_str()));
    let candidate_grants = GRANTS.iter().filter(|(_, _, reads)| *reads || is_writing);
    candidate_grants
        .filter(|(group, _, _)| groups.iter().any(|rule_group| rule_group == group))
        .find_map(|(_, grants, _)| {
            let mut rule_resources = resources.iter();
            rule_resources.find(|resource| {
                grants.is_empty() || resource == grants || is_subresource(resource, grants)
            })
        })
        .map(|resource| format!("{} of {resource}", rule.verbs.join(", ")))
}

/// Is a resource a part of another that is whole?
fn is_subresource(resource: &str, grants: &str) -> bool {
    !grants.contains('/') && resource.split('/').next() == Some(grants)
}

fn binding_grant(
    binding: &AuthorizationRoleBinding,
    roles: &BTreeSet<String>,
) -> Result<Grant, Stall> {
    let spec = &binding.spec;
    let role = spec.authorization_role_id.as_str();
    if !roles.contains(role) {
        let message = format!("no AuthorizationRole with the id {role:?} is accepted and stands");
        return Err(("RoleMissing", message));
    }
    let (kind, subject) = match spec.type_ {
        AuthorizationRoleBindingType::UserBinding => ("User", ("user_id", &spec.user_id)),
        AuthorizationRoleBindingType::TeamBinding => ("Group", ("team_id", &spec.team_id)),
    };
    let subject =
        format!("containership.io/{}#{}", subject.0, subject.1.as_deref().unwrap_or_default());
    let namespace = spec.namespace.clone().unwrap_or_default();
    let is_cluster_wide = namespace.is_empty();
    let binding_kind =
        if is_cluster_wide { GrantKind::ClusterRoleBinding } else { GrantKind::RoleBinding };
    let key =
        GrantKey { kind: binding_kind, namespace, name: object_id(spec.id.as_ref(), binding) };
    let content = json!({
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
    });
    Ok(Grant::new(key, binding.uid(), &content))
}
