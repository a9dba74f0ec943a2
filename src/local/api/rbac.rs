//! Authorization: the controller may do everything; any other user may do what the stored Roles and
//! RoleBindings of the namespace allow.
//!
//! Requests of members of `system:masters` do not come here. Rules are read from the store for each
//! request, so a binding counts as soon as it is written.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, Subject};
use serde::de::DeserializeOwned;

use super::pki;
use crate::apiserver::{
    authn::User,
    authz::{AccessReviewer, AuthorizationDecision},
    delegate::ReviewCallError,
    operation::ResourceOperation,
    request_info::RequestInfo,
    storage::{self, Key, KeyPrefix, PageRequest, Storage},
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Authorizes requests by the rules in a store.
pub(super) struct RbacAuthorizer {
    store: Arc<dyn Storage>,
    controller: String,
}

impl RbacAuthorizer {
    pub(super) fn new(store: Arc<dyn Storage>) -> Self {
        Self { store, controller: pki::controller_user_name() }
    }

    async fn is_allowed(&self, user: &User, request: &RequestInfo) -> storage::Result<bool> {
        if user.name == self.controller {
            return Ok(true);
        }
        // There are no ClusterRoles: rules are in namespaces only.
        let Some(operation) = &request.operation else { return Ok(false) };
        let namespace = &operation.namespace;
        if namespace.is_empty() {
            return Ok(false);
        }
        let Ok(bindings) = KeyPrefix::for_namespace(GROUP, "rolebindings", namespace) else {
            return Ok(false);
        };
        for entry in self.store.list(&bindings, PageRequest::default()).await?.entries {
            let Some(RoleBinding { role_ref, subjects, .. }) = decode_object(&entry.value) else {
                continue;
            };
            let is_bound =
                subjects.iter().flatten().any(|subject| is_user_subject(subject, user, namespace));
            if !is_bound || role_ref.kind != "Role" || role_ref.api_group != GROUP {
                continue;
            }
            let Ok(role) = Key::new(GROUP, "roles", namespace, &role_ref.name) else { continue };
            let Some(entry) = self.store.get(&role).await? else { continue };
            let Some(Role { rules, .. }) = decode_object(&entry.value) else { continue };
            if rules.iter().flatten().any(|rule| is_permitted(rule, operation)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl AccessReviewer for RbacAuthorizer {
    fn review<'a>(
        &'a self,
        user: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
        Box::pin(async move {
            match self.is_allowed(user, request).await {
                Ok(true) => Ok(AuthorizationDecision::Allow(String::new())),
                Ok(false) => Ok(AuthorizationDecision::NoOpinion(String::new())),
                Err(error) => Err(Arc::new(error.into())),
            }
        })
    }
}

fn decode_object<T: DeserializeOwned>(stored: &[u8]) -> Option<T> {
    serde_json::from_slice(stored).ok()
}

/// Does a binding's subject name this user?
fn is_user_subject(subject: &Subject, user: &User, binding_namespace: &str) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user.name,
        "Group" => user.in_group(&subject.name),
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().unwrap_or(binding_namespace);
            user.name.strip_prefix("system:serviceaccount:").and_then(|id| id.split_once(':'))
                == Some((namespace, subject.name.as_str()))
        }
        _ => false,
    }
}

/// Does the rule allow the request?
fn is_permitted(rule: &PolicyRule, operation: &ResourceOperation) -> bool {
    let has_item =
        |list: &[String], word: &str| list.iter().any(|item| item == "*" || item == word);
    let groups = rule.api_groups.as_deref().unwrap_or_default();
    let names = rule.resource_names.as_deref().unwrap_or_default();
    has_item(&rule.verbs, operation.verb_name())
        && has_item(groups, &operation.group)
        && rule.resources.iter().flatten().any(|resource| is_covered(resource, operation))
        && (names.is_empty() || names.contains(&operation.name))
}

/// Does the resource of a rule (`pods`, `pods/log`, `*/status` or `*`) cover the request?
fn is_covered(resource: &str, operation: &ResourceOperation) -> bool {
    let ResourceOperation { resource: requested_resource, subresource, .. } = operation;
    match resource.split_once('/') {
        _ if resource == "*" => true,
        None => subresource.is_empty() && resource == requested_resource,
        Some(("*", part)) => !subresource.is_empty() && part == subresource,
        Some((resource, part)) => resource == requested_resource && part == subresource,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(method: &str, path: &str) -> ResourceOperation {
        let request = http::Request::builder().method(method).uri(path).body(()).unwrap();
        RequestInfo::from_request(&request).operation.unwrap()
    }

    #[test]
    fn rules_name_verbs_groups_resources_subresources_and_names() {
        const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
        let rule =
            |rule: serde_json::Value| -> PolicyRule { serde_json::from_value(rule).unwrap() };
        let ours = "navigator.jetstack.io";
        let pilots = rule(json!({"apiGroups": [ours], "resources": ["pilots"], "verbs": ["get"]}));
        let named = rule(json!({"apiGroups": [ours], "resources": ["pilots"], "verbs": ["*"],
            "resourceNames": ["a"]}));
        let status =
            rule(json!({"apiGroups": ["*"], "resources": ["*/status"], "verbs": ["patch"]}));
        let rows = [
            (&pilots, "GET", format!("{PILOTS}/a"), true),
            (&pilots, "GET", PILOTS.to_owned(), false),
            (&pilots, "GET", format!("{PILOTS}/a/status"), false),
            (&pilots, "GET", "/api/v1/namespaces/db/pilots/a".to_owned(), false),
            (&named, "DELETE", format!("{PILOTS}/a"), true),
            (&named, "DELETE", format!("{PILOTS}/b"), false),
            (&named, "POST", PILOTS.to_owned(), false),
            (&named, "GET", format!("{PILOTS}?fieldSelector=metadata.name=a"), true),
            (&status, "PATCH", format!("{PILOTS}/a/status"), true),
            (&status, "PATCH", format!("{PILOTS}/a"), false),
        ];
        for (rule, method, path, expected) in rows {
            assert_eq!(is_permitted(rule, &request(method, &path)), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_subject_is_one_service_account_or_a_group_of_them() {
        let user = User {
            name: "system:serviceaccount:db:demo".into(),
            groups: vec!["system:serviceaccounts:db".into()],
            ..User::default()
        };
        for (subject, expected) in [
            (json!({"kind": "ServiceAccount", "name": "demo"}), true),
            (json!({"kind": "ServiceAccount", "name": "demo", "namespace": "db"}), true),
            (json!({"kind": "ServiceAccount", "name": "demo", "namespace": "other"}), false),
            (json!({"kind": "ServiceAccount", "name": "dem"}), false),
            (json!({"kind": "User", "name": "system:serviceaccount:db:demo"}), true),
            (json!({"kind": "Group", "name": "system:serviceaccounts:db"}), true),
            (json!({"kind": "Group", "name": "system:masters"}), false),
        ] {
            let parsed: Subject = serde_json::from_value(subject.clone()).unwrap();
            assert_eq!(is_user_subject(&parsed, &user, "db"), expected, "{subject}");
        }
    }
}
