//! Roles and bindings: what is wanted, what is refused, and which writes lead there.

use super::*;

fn role(name: &str, second: i64, spec: &Value) -> AuthorizationRole {
    serde_json::from_value(json!({
        "apiVersion": "auth.containership.io/v3", "kind": "AuthorizationRole",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": Timestamp::from_second(second).unwrap().to_string(),
        },
        "spec": spec,
    }))
    .unwrap()
}

fn bound(name: &str, spec: &Value) -> AuthorizationRoleBinding {
    serde_json::from_value(json!({
        "apiVersion": "auth.containership.io/v3", "kind": "AuthorizationRoleBinding",
        "metadata": {"name": name, "uid": format!("uid-{name}")}, "spec": spec,
    }))
    .unwrap()
}

/// A role that may list pods.
fn pods(name: &str, second: i64) -> AuthorizationRole {
    role(name, second, &json!({"rules": [{"resources": ["pods"], "verbs": ["list"]}]}))
}

struct GrantPlan {
    roles: Vec<Result<Grant, Stall>>,
    bindings: Vec<Result<Grant, Stall>>,
}

/// Plans with all ClusterRoles that are wanted in place.
fn plan_grants(
    roles: &[AuthorizationRole],
    bindings: &[AuthorizationRoleBinding],
    privileged: bool,
) -> GrantPlan {
    let roles = plan_roles(roles, privileged);
    let stand = roles.iter().flatten().map(|grant| grant.key.name.clone()).collect();
    GrantPlan { bindings: plan_bindings(bindings, &stand), roles }
}

fn standing(grants: &[Grant]) -> BTreeMap<GrantKey, StandingGrant> {
    let found = |grant: &Grant| StandingGrant {
        labels: grant.labels(),
        content: grant.content.clone(),
        version: "7".to_owned(),
    };
    grants.iter().map(|grant| (grant.key.clone(), found(grant))).collect()
}

fn steps(wanted: &[Grant], standing: &BTreeMap<GrantKey, StandingGrant>) -> Vec<String> {
    let line = |step: GrantStep| match step {
        GrantStep::Create(grant) => format!("create {:?} {}", grant.key.kind, grant.key.name),
        GrantStep::Replace(grant, version) => {
            format!("replace {:?} {} {version}", grant.key.kind, grant.key.name)
        }
        GrantStep::Delete(key, version) => format!("delete {:?} {} {version}", key.kind, key.name),
    };
    grant_steps(wanted, standing).into_iter().map(line).collect()
}

#[test]
fn a_role_is_its_rules_for_kubernetes_under_its_id() {
    let spec = json!({
        "id": "2b1c", "name": "readers", "rules": [
            {"type": "containership", "resources": ["*"], "verbs": ["*"]},
            {
                "type": "kubernetes", "api_groups": ["apps"], "resources": ["deployments"],
                "resource_names": null, "verbs": ["get", "patch"], "non_resource_urls": null,
            },
            {"resources": ["pods"], "resource_names": ["a"], "verbs": ["get"]},
            {"non_resource_urls": ["/healthz"], "verbs": ["get"]},
        ],
    });
    let plan = plan_grants(&[role("a", 1, &spec)], &[], false);
    let grant = plan.roles[0].clone().unwrap();
    assert_eq!((grant.key.kind, grant.key.name.as_str()), (GrantKind::ClusterRole, "2b1c"));
    assert_eq!(
        grant.content,
        json!({"rules": [
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]},
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]},
            {"nonResourceURLs": ["/healthz"], "verbs": ["get"]},
        ]})
    );
    // Without rules it stands, and allows nothing.
    let empty = plan_grants(&[role("b", 1, &json!({"id": "", "rules": null}))], &[], false);
    let empty = empty.roles[0].clone().unwrap();
    assert_eq!((empty.key.name.as_str(), &empty.content), ("b", &json!({})));
    let mut found = standing(std::slice::from_ref(&empty));
    let read = role("b", 1, &json!({}));
    let kept = StandingGrant::new(&read, &json!({"rules": null}));
    found.get_mut(&empty.key).unwrap().content = kept.content;
    assert_eq!(steps(&[empty], &found), [""; 0]);
}

#[test]
fn rules_that_lead_to_further_rights_are_refused_unless_they_are_allowed() {
    let rule = |group: &str, resource: &str, verb: &str| json!({"api_groups": [group], "resources": [resource], "verbs": [verb]});
    for (rule, refused) in [
        (rule("", "pods", "*"), "\"*\""),
        (rule("*", "pods", "get"), "\"*\""),
        (rule("", "*", "get"), "\"*\""),
        (rule("", "*/exec", "create"), "\"*/exec\""),
        (json!({"non_resource_urls": ["*"], "verbs": ["get"]}), "\"*\""),
        (rule("", "secrets", "get"), "get of secrets"),
        (rule("", "pods/exec", "get"), "get of pods/exec"),
        (rule("", "pods/ephemeralcontainers", "patch"), "patch of pods/ephemeralcontainers"),
        (rule("", "nodes/proxy", "get"), "get of nodes/proxy"),
        (rule("", "serviceaccounts/token", "create"), "create of serviceaccounts/token"),
        (rule("", "users", "impersonate"), "to impersonate"),
        (rule(RBAC, "clusterroles", "bind"), "to bind"),
        (rule(RBAC, "clusterroles", "escalate"), "to escalate"),
        (rule(RBAC, "rolebindings", "create"), "create of rolebindings"),
        (rule("containership.io", "users", "update"), "update of users"),
        (rule("", "persistentvolumes", "create"), "create of persistentvolumes"),
        (rule("", "namespaces", "patch"), "patch of namespaces"),
        (
            rule("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
            "patch of customresourcedefinitions",
        ),
        (rule("apiregistration.k8s.io", "apiservices", "update"), "update of apiservices"),
        (rule("", "namespaces", "list"), ""),
        (rule("", "pods", "create"), ""),
        (rule("", "pods/log", "get"), ""),
        (rule("", "pods/ephemeralcontainers", "get"), ""),
        (rule("", "nodes", "get"), ""),
        (rule("apps", "secrets", "get"), ""),
        (rule(RBAC, "clusterroles", "list"), ""),
        (json!({"non_resource_urls": ["/healthz/*"], "verbs": ["get"]}), ""),
        (json!({"type": "containership", "resources": ["*"], "verbs": ["*"]}), ""),
    ] {
        let all =
            [role("a", 1, &json!({"rules": [{"resources": ["pods"], "verbs": ["list"]}, rule]}))];
        let told = match &plan_grants(&all, &[], false).roles[0] {
            Ok(_) => String::new(),
            Err((reason, said)) => format!("{reason}: {said}"),
        };
        let says = format!(
            "Privileged: rules[1] allows {refused}, for which the coordinator must run with \
             --allow-privileged-roles"
        );
        assert_eq!(told, if refused.is_empty() { "" } else { &says }, "{rule}");
        assert!(plan_grants(&all, &[], true).roles[0].is_ok(), "{rule}");
    }
}

#[test]
fn a_binding_gives_rights_of_accepted_roles_alone() {
    let secrets = json!({"rules": [{"resources": ["secrets"], "verbs": ["get"]}]});
    let roles = [pods("pods", 1), role("secrets", 1, &secrets)];
    let spec = |role: &str, more: Value| {
        let mut spec =
            json!({"type": "UserBinding", "authorization_role_id": role, "user_id": "u"});
        json_patch::merge(&mut spec, &more);
        spec
    };
    let bindings = [
        bound("wide", &spec("pods", json!({"id": "x", "namespace": ""}))),
        bound(
            "team",
            &spec("pods", json!({"type": "TeamBinding", "team_id": "t", "namespace": "shop"})),
        ),
        bound("refused", &spec("secrets", json!({}))),
        bound("foreign", &spec("cluster-admin", json!({}))),
    ];
    let plan = plan_grants(&roles, &bindings, false);
    let [wide, team] = [0, 1].map(|at| plan.bindings[at].clone().unwrap());
    assert_eq!(wide.key.kind, GrantKind::ClusterRoleBinding);
    assert_eq!((wide.key.namespace.as_str(), wide.key.name.as_str()), ("", "x"));
    assert_eq!(wide.content["roleRef"]["name"], "pods");
    assert_eq!(
        wide.content["subjects"],
        json!([{"apiGroup": RBAC, "kind": "User", "name": "containership.io/user_id#u"}])
    );
    assert_eq!(team.key.kind, GrantKind::RoleBinding);
    assert_eq!((team.key.namespace.as_str(), team.key.name.as_str()), ("shop", "team"));
    assert_eq!(team.content["subjects"][0]["kind"], "Group");
    assert_eq!(team.content["subjects"][0]["name"], "containership.io/team_id#t");
    for at in [2, 3] {
        let (reason, said) = plan.bindings[at].clone().unwrap_err();
        assert_eq!(reason, "RoleMissing", "{said}");
    }
}

#[test]
fn of_two_roles_with_one_id_the_older_has_it() {
    let id = |name, second| {
        let mut role = pods(name, second);
        role.spec.id = Some("one".to_owned());
        role
    };
    let plan = plan_grants(&[id("young", 2), id("old", 1)], &[], false);
    assert_eq!(plan.roles[1].clone().unwrap().owner, "uid-old");
    let (reason, said) = plan.roles[0].clone().unwrap_err();
    assert_eq!((reason, said.as_str()), ("IdTaken", "old is older and has the id \"one\""));
}

#[test]
fn writes_make_what_stands_as_it_is_wanted_and_then_there_are_none() {
    let spec =
        |role: &str| json!({"type": "UserBinding", "authorization_role_id": role, "user_id": "u"});
    let roles = [pods("a", 1), pods("b", 1)];
    let wanted = |roles: &[AuthorizationRole], bindings: &[AuthorizationRoleBinding]| {
        let plan = plan_grants(roles, bindings, false);
        plan.roles.into_iter().chain(plan.bindings).flatten().collect::<Vec<Grant>>()
    };
    let before = wanted(&roles, &[bound("x", &spec("a"))]);
    assert_eq!(
        steps(&before, &BTreeMap::new()),
        ["create ClusterRole a", "create ClusterRole b", "create ClusterRoleBinding x"]
    );
    assert_eq!(steps(&before, &standing(&before)), [""; 0]);

    // Drift: other rules, a label that would add the rights to Kubernetes' own roles, other subjects.
    for (at, content, label) in [
        (0, Some(json!({"rules": []})), None),
        (0, None, Some("rbac.authorization.k8s.io/aggregate-to-admin")),
        (2, Some(json!({"roleRef": before[2].content["roleRef"].clone()})), None),
    ] {
        let mut found = standing(&before);
        let drifted = found.get_mut(&before[at].key).unwrap();
        drifted.content = content.unwrap_or_else(|| drifted.content.clone());
        drifted.labels.extend(label.map(|label| (label.to_owned(), "true".to_owned())));
        let kind = before[at].key.kind;
        assert_eq!(
            steps(&before, &found),
            [format!("replace {kind:?} {} 7", before[at].key.name)],
            "{found:?}"
        );
    }

    // Another role: the binding is made anew.
    let after = wanted(&roles, &[bound("x", &spec("b"))]);
    assert_eq!(
        steps(&after, &standing(&before)),
        ["delete ClusterRoleBinding x 7", "create ClusterRoleBinding x"]
    );
    // Nothing is wanted any more: bindings go ahead of the roles.
    assert_eq!(
        steps(&[], &standing(&before)),
        ["delete ClusterRoleBinding x 7", "delete ClusterRole b 7", "delete ClusterRole a 7"]
    );
}
