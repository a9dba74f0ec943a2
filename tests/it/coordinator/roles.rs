//! Rights by AuthorizationRoles and their bindings: given, mended, refused and taken away.

use std::{fs, path::Path};

use http::Method;
use navigator::engine::rbac;
use serde_json::{Value, json};

use crate::registries::cluster::Cluster;

/// Role and binding of 2019.
const ROLE: &str = "5c6b2a0e-0d6c-4a53-9f0a-6a2f6f6d1e11";
const BINDING: &str = "9a1d4e77-2b3c-4d5e-8f60-7b8c9d0e1f44";
const USER: &str = "containership.io/user_id#3c1f8f52-7c6e-4d68-9a4d-1b0b8a3f6b21";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn cluster_role(name: &str) -> String {
    format!("{RBAC}/clusterroles/{name}")
}

fn wide_binding(name: &str) -> String {
    format!("{RBAC}/clusterrolebindings/{name}")
}

fn of_2019(file: &str, core: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership");
    let mut object: Value =
        serde_yaml::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap();
    object["metadata"]["namespace"] = core.into();
    object
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "auth.containership.io/v3", "kind": kind, "metadata": {"name": name},
        "spec": spec,
    })
}

fn role(name: &str, resource: &str, verb: &str) -> Value {
    let spec = json!({"rules": [{"api_groups": [""], "resources": [resource], "verbs": [verb]}]});
    object("AuthorizationRole", name, &spec)
}

fn binding(name: &str, role: &str, namespace: &str) -> Value {
    let spec = json!({
        "type": "TeamBinding", "team_id": "t", "authorization_role_id": role,
        "namespace": namespace,
    });
    object("AuthorizationRoleBinding", name, &spec)
}

/// May the person of 2019 do this to pods in a namespace?
async fn may(cluster: &Cluster, verb: &str, namespace: &str) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": USER,
            "resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"},
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let (status, said) = cluster.ask(Method::POST, path, &review).await;
    assert_eq!(status, 201, "{said}");
    said["status"]["allowed"] == true
}

async fn started(core: &str) -> Cluster {
    let (wide, own) = (rbac::role_rules(), rbac::role_core_rules());
    Cluster::with_rights(core, "the-coordinator-of-roles", wide, own).await
}

#[tokio::test]
async fn people_have_the_rights_that_objects_give_until_these_are_gone() {
    let mut cluster = started("core-roles").await;
    let (roles, bindings) =
        (cluster.kind("authorizationroles"), cluster.kind("authorizationrolebindings"));
    for (path, file) in
        [(&roles, "authorizationrole-2019.yaml"), (&bindings, "authorizationrolebinding-2019.yaml")]
    {
        let path = format!("{path}?fieldValidation=Strict");
        let (status, said) = cluster.ask(Method::POST, &path, &of_2019(file, &cluster.core)).await;
        assert_eq!(status, 201, "{file}: {said}");
    }
    cluster.namespace("bureau", &json!({})).await;
    cluster.start(&["--rbac-sync"]);
    let ready = cluster.condition(&format!("{bindings}/{BINDING}"), "Ready", "Granted").await;
    assert_eq!(ready["status"]["observedGeneration"], 1);
    cluster.condition(&format!("{roles}/{ROLE}"), "Ready", "Granted").await;
    assert!(may(&cluster, "list", "bureau").await && !may(&cluster, "delete", "bureau").await);
    let made = cluster.get(&cluster_role(ROLE)).await.unwrap();
    assert_eq!(
        made["rules"],
        json!([{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]),
        "what is about the cloud is left out"
    );

    // Drift: more rules, a label by which Kubernetes adds the rights to `admin`, a binding that is gone.
    let more = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]);
    let admin = json!({"rbac.authorization.k8s.io/aggregate-to-admin": "true"});
    let change = json!({"metadata": {"labels": admin}, "rules": more});
    cluster.patch(&cluster_role(ROLE), &change).await;
    cluster
        .until(&cluster_role(ROLE), |found| {
            found.is_some_and(|found| {
                found["rules"] == made["rules"]
                    && found["metadata"]["labels"] == made["metadata"]["labels"]
            })
        })
        .await;
    let before = cluster.get(&wide_binding(BINDING)).await.unwrap();
    cluster.delete(&wide_binding(BINDING)).await;
    cluster.until(&wide_binding(BINDING), |found| found.is_some()).await;
    let subjects = json!({"subjects": [{
        "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory",
    }]});
    cluster.patch(&wide_binding(BINDING), &subjects).await;
    cluster
        .until(&wide_binding(BINDING), |found| {
            found.is_some_and(|found| found["subjects"] == before["subjects"])
        })
        .await;

    // Another role: what binds it is made anew.
    cluster.make(&roles, &role("deleters", "pods", "delete")).await;
    let before = cluster.get(&wide_binding(BINDING)).await.unwrap();
    let change = json!({"spec": {"authorization_role_id": "deleters"}});
    cluster.patch(&format!("{bindings}/{BINDING}"), &change).await;
    let after = cluster
        .until(&wide_binding(BINDING), |found| {
            found.is_some_and(|found| found["roleRef"]["name"] == "deleters")
        })
        .await;
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(may(&cluster, "delete", "bureau").await && !may(&cluster, "list", "bureau").await);
    // Another place.
    cluster
        .patch(&format!("{bindings}/{BINDING}"), &json!({"spec": {"namespace": "bureau"}}))
        .await;
    cluster.until(&wide_binding(BINDING), |found| found.is_none()).await;
    let narrow = format!("{RBAC}/namespaces/bureau/rolebindings/{BINDING}");
    cluster.until(&narrow, |found| found.is_some()).await;
    assert!(may(&cluster, "delete", "bureau").await && !may(&cluster, "delete", "default").await);

    // The end, while nobody leads at first.
    cluster.kill();
    cluster.delete(&format!("{bindings}/{BINDING}")).await;
    cluster.delete(&format!("{roles}/{ROLE}")).await;
    assert!(may(&cluster, "delete", "bureau").await);
    cluster.start(&["--rbac-sync"]);
    for path in [format!("{bindings}/{BINDING}"), format!("{roles}/{ROLE}")] {
        cluster.until(&path, |found| found.is_none()).await;
    }
    assert!(cluster.get(&cluster_role(ROLE)).await.is_none());
    assert!(cluster.get(&narrow).await.is_none());
    assert!(!may(&cluster, "delete", "bureau").await);
    assert!(cluster.get(&cluster_role("deleters")).await.is_some());
    cluster.delete(&format!("{roles}/deleters")).await;
    cluster.until(&format!("{roles}/deleters"), |found| found.is_none()).await;
}

#[tokio::test]
async fn roles_that_lead_to_further_rights_and_objects_of_others_are_left_alone() {
    let mut cluster = started("core-refused").await;
    let (roles, bindings) =
        (cluster.kind("authorizationroles"), cluster.kind("authorizationrolebindings"));
    let path = format!("{RBAC}/clusterroles");
    let mine = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "of-a-person"}, "rules": [],
    });
    cluster.make(&path, &mine).await;
    let mine = cluster.get(&cluster_role("of-a-person")).await.unwrap();
    cluster.make(&roles, &role("secrets", "secrets", "get")).await;
    cluster.make(&roles, &role("of-a-person", "pods", "get")).await;
    cluster.make(&roles, &role("pods", "pods", "get")).await;
    cluster.make(&bindings, &binding("wide", "cluster-admin", "")).await;
    cluster.make(&bindings, &binding("keys", "secrets", "")).await;
    cluster.make(&bindings, &binding("borrowed", "of-a-person", "")).await;
    cluster.make(&bindings, &binding("lost", "pods", "nowhere")).await;
    cluster.start(&["--rbac-sync"]);
    for (path, reason, says) in [
        (format!("{roles}/secrets"), "Privileged", "must run with --allow-privileged-roles"),
        (format!("{roles}/of-a-person"), "ForeignObject", "is not Navigator's stays as it is"),
        (format!("{bindings}/wide"), "RoleMissing", "no AuthorizationRole with the id"),
        (format!("{bindings}/keys"), "RoleMissing", "no AuthorizationRole with the id"),
        (format!("{bindings}/borrowed"), "RoleMissing", "no AuthorizationRole with the id"),
        (format!("{bindings}/lost"), "NamespaceMissing", "is not there, or not for long"),
    ] {
        let found = cluster.condition(&path, "Stalled", reason).await;
        assert!(found["status"]["conditions"].to_string().contains(says), "{found}");
    }
    assert_eq!(cluster.get(&cluster_role("of-a-person")).await.unwrap(), mine);
    assert!(cluster.get(&cluster_role("secrets")).await.is_none());
    for name in ["wide", "keys", "borrowed"] {
        assert!(cluster.get(&wide_binding(name)).await.is_none(), "{name}");
    }
    cluster.namespace("nowhere", &json!({})).await;
    let touch = json!({"metadata": {"annotations": {"touched": "yes"}}});
    cluster.patch(&format!("{bindings}/lost"), &touch).await;
    cluster.condition(&format!("{bindings}/lost"), "Ready", "Granted").await;

    // Where such roles are let through, and where they are no longer.
    cluster.kill();
    cluster.start(&["--rbac-sync", "--allow-privileged-roles"]);
    cluster.condition(&format!("{bindings}/keys"), "Ready", "Granted").await;
    assert!(cluster.get(&cluster_role("secrets")).await.is_some());
    cluster.kill();
    cluster.start(&["--rbac-sync"]);
    cluster.condition(&format!("{bindings}/keys"), "Stalled", "RoleMissing").await;
    assert!(cluster.get(&wide_binding("keys")).await.is_none());
    assert!(cluster.get(&cluster_role("secrets")).await.is_none());

    for (kind, plural, spec, says) in [
        (
            "AuthorizationRole",
            &roles,
            json!({"rules": [{"resources": ["pods"]}]}),
            "a rule for Kubernetes must name verbs",
        ),
        (
            "AuthorizationRole",
            &roles,
            json!({"rules": [{"verbs": ["get"]}]}),
            "must name either resources or non_resource_urls",
        ),
        (
            "AuthorizationRole",
            &roles,
            json!({"rules": [
                {"verbs": ["get"], "resources": ["pods"], "non_resource_urls": ["/healthz"]},
            ]}),
            "must name either resources or non_resource_urls",
        ),
        ("AuthorizationRole", &roles, json!({"id": "system:x"}), "spec.id"),
        (
            "AuthorizationRoleBinding",
            &bindings,
            json!({"type": "TeamBinding", "user_id": "u", "authorization_role_id": "r"}),
            "a UserBinding must name user_id, and a TeamBinding team_id",
        ),
        (
            "AuthorizationRoleBinding",
            &bindings,
            json!({"type": "UserBinding", "user_id": "u"}),
            "spec.authorization_role_id: Required value",
        ),
    ] {
        let path = format!("{plural}?fieldValidation=Strict");
        let (status, said) = cluster.ask(Method::POST, &path, &object(kind, "bad", &spec)).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert!(matches!(status, 400 | 422) && message.contains(says), "{spec}: {message}");
    }
    for (plural, names) in [
        (&bindings, &["wide", "keys", "borrowed", "lost"][..]),
        (&roles, &["secrets", "of-a-person", "pods"]),
    ] {
        for name in names {
            let path = format!("{plural}/{name}");
            cluster.delete(&path).await;
            cluster.until(&path, |found| found.is_none()).await;
        }
    }
    assert_eq!(cluster.get(&cluster_role("of-a-person")).await.unwrap(), mine);
}
