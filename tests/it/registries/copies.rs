//! Copies of credentials: made, mended, moved with what is asked for, and taken away.

use std::{fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::cluster::Cluster;

/// Registry of 2019, whose credentials are in the object.
const OLD: &str = "6a0bc4f9-9b62-4c8e-8f5c-5f7a9d3c1d10";

fn secret(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

fn account(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
}

/// Returns the `auth` of the only server of a Secret that kubelets pull with, decoded.
fn login(secret: &Value) -> String {
    let decoded = |text: &str| String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap();
    let config = decoded(secret["data"][".dockerconfigjson"].as_str().unwrap_or_default());
    let config: Value = serde_json::from_str(&config).unwrap_or_default();
    let servers = config["auths"].as_object().cloned().unwrap_or_default();
    let auth = servers.values().next().map(|server| server["auth"].clone()).unwrap_or_default();
    decoded(auth.as_str().unwrap_or_default())
}

fn pulls(account: Option<&Value>) -> Vec<String> {
    let secrets = account.and_then(|account| account["imagePullSecrets"].as_array());
    let name = |secret: &Value| secret["name"].as_str().unwrap().to_owned();
    let mut names: Vec<String> = secrets.into_iter().flatten().map(name).collect();
    names.sort();
    names
}

/// A Registry of 2019 as the file has it, and one that names a Secret and selects namespaces.
async fn two_registries(cluster: &Cluster) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership/registry-2019.yaml");
    let mut old: Value = serde_yaml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    old["metadata"]["namespace"] = cluster.core.clone().into();
    let applied = json!({"kubectl.kubernetes.io/last-applied-configuration": old.to_string()});
    old["metadata"]["annotations"] = applied;
    cluster.make(&cluster.kind("registries"), &old).await;
    let basic = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "source"},
        "type": "kubernetes.io/basic-auth", "stringData": {"username": "bob", "password": "one"},
    });
    let secrets = format!("/api/v1/namespaces/{}/secrets", cluster.core);
    cluster.make(&secrets, &basic).await;
    let new = json!({
        "apiVersion": "containership.io/v3", "kind": "Registry", "metadata": {"name": "second"},
        "spec": {
            "serveraddress": "registry.example", "credentialsSecretRef": {"name": "source"},
            "namespaceSelector": {"matchLabels": {"team": "a"}},
            "serviceAccounts": ["containership", "default"],
        },
    });
    cluster.make(&cluster.kind("registries"), &new).await;
}

#[tokio::test]
async fn credentials_reach_the_namespaces_that_are_meant_and_are_mended_and_taken_away() {
    let mut cluster = Cluster::new("core-copies").await;
    let team = json!({"labels": {"team": "a"}});
    cluster.namespace("shop", &team).await;
    cluster.namespace("office", &team).await;
    let mine = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "second"},
        "stringData": {"mine": "yes"},
    });
    let mine = cluster.make("/api/v1/namespaces/office/secrets", &mine).await;
    two_registries(&cluster).await;
    cluster.start(&["--registries"]);

    // All namespaces but kube-system: default, two of Kubernetes, core, shop, office.
    let old = format!("{}/{OLD}", cluster.kind("registries"));
    // The server makes its own a moment after it answers.
    let all = |one: Option<&Value>| one.is_some_and(|one| one["status"]["progress"] == "6/6");
    cluster.until(&old, all).await;
    let found = cluster.condition(&old, "Ready", "Synced").await;
    assert_eq!(found["status"]["observedGeneration"], found["metadata"]["generation"]);
    let moved = format!("{OLD}-credentials");
    assert_eq!(found["spec"]["credentialsSecretRef"]["name"], moved, "{found}");
    assert!(!found.to_string().contains("correct horse"), "{found}");
    assert!(!found.to_string().contains("YW5uZTpjb3JyZWN0IGhvcnNl"), "{found}");
    assert!(cluster.get(&secret(&cluster.core, &moved)).await.is_some());
    let copy = cluster.get(&secret("shop", OLD)).await.unwrap();
    assert_eq!(copy["type"], "kubernetes.io/dockerconfigjson");
    assert_eq!(login(&copy), "anne:correct horse");
    assert!(cluster.get(&secret("kube-system", OLD)).await.is_none());

    // A Secret of another stays, is told, and is not pulled with.
    let second = format!("{}/second", cluster.kind("registries"));
    let found = cluster.condition(&second, "Stalled", "ForeignSecret").await;
    assert_eq!(found["status"]["foreignSecrets"], json!(["office"]));
    assert_eq!(found["status"]["progress"], "1/2");
    assert_eq!(cluster.get(&secret("office", "second")).await.unwrap(), mine);
    let both = [OLD, "second"];
    cluster.until(&account("shop", "containership"), |one| pulls(one) == both).await;
    cluster.until(&account("office", "containership"), |one| pulls(one) == [OLD]).await;
    assert!(cluster.get(&account("kube-system", "containership")).await.is_none());

    // A ServiceAccount that others made is changed where it is named, once it is there.
    let default = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        "imagePullSecrets": [{"name": "of-a-person"}],
    });
    cluster.make("/api/v1/namespaces/shop/serviceaccounts", &default).await;
    let merged = ["of-a-person", "second"];
    cluster.until(&account("shop", "default"), |one| pulls(one) == merged).await;

    // A namespace that is made later.
    cluster.namespace("late", &team).await;
    cluster.until(&account("late", "containership"), |one| pulls(one) == both).await;
    assert_eq!(login(&cluster.get(&secret("late", "second")).await.unwrap()), "bob:one");

    // Drift.
    cluster.delete(&secret("shop", OLD)).await;
    cluster.until(&secret("shop", OLD), |one| one.is_some()).await;
    let wrong =
        json!({"data": {".dockerconfigjson": BASE64_STANDARD.encode("{}"), "more": "eA=="}});
    cluster.patch(&secret("shop", "second"), &wrong).await;
    let right = |one: Option<&Value>| {
        one.is_some_and(|one| login(one) == "bob:one" && one["data"]["more"].is_null())
    };
    cluster.until(&secret("shop", "second"), right).await;
    cluster
        .patch(&secret("shop", "second"), &json!({"immutable": true, "data": {"more": "eA=="}}))
        .await;
    cluster.until(&secret("shop", "second"), right).await;
    cluster.patch(&account("shop", "containership"), &json!({"imagePullSecrets": null})).await;
    cluster.until(&account("shop", "containership"), |one| pulls(one) == both).await;
    cluster.delete(&account("shop", "containership")).await;
    cluster.until(&account("shop", "containership"), |one| pulls(one) == both).await;

    // New credentials.
    let change = json!({"stringData": {"password": "two"}});
    cluster.patch(&secret(&cluster.core, "source"), &change).await;
    for namespace in ["shop", "late"] {
        cluster
            .until(&secret(namespace, "second"), |one| {
                one.is_some_and(|one| login(one) == "bob:two")
            })
            .await;
    }

    // A namespace that will have none.
    let annotated = |value: Value| json!({"metadata": {"annotations": {"containership.io/registry-sync": value}}});
    cluster.patch("/api/v1/namespaces/shop", &annotated("disabled".into())).await;
    for name in both {
        cluster.until(&secret("shop", name), |one| one.is_none()).await;
    }
    cluster.until(&account("shop", "default"), |one| pulls(one) == ["of-a-person"]).await;
    cluster.until(&account("shop", "containership"), |one| pulls(one).is_empty()).await;
    cluster.patch("/api/v1/namespaces/shop", &annotated(Value::Null)).await;
    cluster.until(&account("shop", "default"), |one| pulls(one) == merged).await;

    // The end, while nobody leads at first.
    cluster.kill();
    cluster.delete(&old).await;
    assert!(cluster.get(&old).await.unwrap()["metadata"]["deletionTimestamp"].is_string());
    cluster.start(&["--registries"]);
    cluster.until(&old, |one| one.is_none()).await;
    for namespace in ["default", "shop", "office", "late", &cluster.core] {
        assert!(cluster.get(&secret(namespace, OLD)).await.is_none(), "{namespace}");
    }
    assert!(cluster.get(&secret(&cluster.core, &moved)).await.is_none());
    assert_eq!(pulls(cluster.get(&account("shop", "containership")).await.as_ref()), ["second"]);
    cluster.delete(&second).await;
    cluster.until(&second, |one| one.is_none()).await;
    assert_eq!(pulls(cluster.get(&account("shop", "default")).await.as_ref()), ["of-a-person"]);
    assert_eq!(cluster.get(&secret("office", "second")).await.unwrap(), mine);
    assert!(cluster.get(&secret(&cluster.core, "source")).await.is_some());
}

#[tokio::test]
async fn a_registry_without_usable_credentials_says_so_in_one_sentence() {
    let mut cluster = Cluster::new("core-held").await;
    let made = async |name: &str, spec: Value| {
        let registry = json!({
            "apiVersion": "containership.io/v3", "kind": "Registry", "metadata": {"name": name},
            "spec": spec,
        });
        cluster.make(&cluster.kind("registries"), &registry).await;
    };
    made("none", json!({"serveraddress": "a.example", "credentials": null})).await;
    made("absent", json!({"credentialsSecretRef": {"name": "absent"}})).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "opaque"}});
    cluster.make(&format!("/api/v1/namespaces/{}/secrets", cluster.core), &secret).await;
    made("opaque", json!({"credentialsSecretRef": {"name": "opaque"}})).await;
    let keys = json!({"aws_access_key_id": "a", "aws_secret_access_key": "b"});
    made("amazon", json!({"provider": "amazon_ec2_registry", "credentials": keys})).await;
    cluster.start(&["--registries"]);
    for (name, reason, says) in [
        ("none", "CredentialsMissing", "neither credentials nor credentialsSecretRef is given"),
        ("absent", "CredentialsMissing", "is not there"),
        ("opaque", "CredentialsMissing", "must be of kubernetes.io/basic-auth"),
        ("amazon", "Unsupported", "are not renewed"),
    ] {
        let path = format!("{}/{name}", cluster.kind("registries"));
        let found = cluster.condition(&path, "Stalled", reason).await;
        assert!(found["status"]["conditions"].to_string().contains(says), "{found}");
        assert!(found["spec"]["credentials"].is_null(), "{found}");
    }
    let copies = "/api/v1/secrets?labelSelector=containership.io/registry";
    let copies = cluster.list(copies).await;
    assert!(copies.is_empty(), "{copies:?}");
}
