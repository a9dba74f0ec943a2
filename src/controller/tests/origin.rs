//! Secrets that lie there before their cluster is created: a stranger's are not used, and those of a
//! cluster that is made again are. The API is scripted; hashes and keys are real.

use k8s_openapi::{ByteString, jiff::Timestamp};
use serde_json::{Value, json};

use super::{
    api::id,
    harness::{Harness, cluster_id},
    security::{NODE, ask, secured, told, values},
};
use crate::{
    api::names::{annotation, label},
    controller::testing::example::EXAMPLE,
    engine::{
        password,
        pki::{CertificateAuthority, PrivateKey},
        users::UsersDocument,
    },
};

/// Adds a Secret as somebody would who knows the names and labels of Navigator.
fn add_secret(harness: &Harness, name: &str, values: &[(&str, &str)]) {
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let data: serde_json::Map<_, _> =
        values.iter().map(|(key, text)| ((*key).to_owned(), bytes(text))).collect();
    harness.api.server().add(
        &id("secrets", name),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {
                    (label::K8S_MANAGED_BY): "navigator",
                    (EXAMPLE.names.cluster_label): "shop",
                },
                "annotations": {(annotation::CLUSTER_UID): "of-another"},
            },
            "data": data,
        }),
    );
}

/// A secured cluster that is created after these Secrets.
async fn created_after(secrets: &[(&str, Vec<(&str, &str)>)]) -> Harness {
    let harness = Harness::new(1);
    let mut cluster = harness.object("exampleclusters", "shop");
    harness.api.server().delete(&cluster_id());
    for (name, values) in secrets {
        add_secret(&harness, name, values);
    }
    cluster["metadata"] = json!({"name": "shop", "namespace": "default"});
    cluster["spec"]["security"] = json!({"mode": "Secure", "users": [{"name": "app"}]});
    harness.api.server().add(&cluster_id(), cluster);
    harness.settle().await;
    harness
}

fn accept(harness: &Harness, secret: &str) {
    let uid = harness.object("secrets", secret)["metadata"]["uid"].clone();
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["annotations"][annotation::ACCEPT_SECRETS] = uid;
    });
}

fn document(harness: &Harness) -> UsersDocument {
    UsersDocument::from_json(values(harness, "ex-shop-pilot")["users.json"].as_bytes()).unwrap()
}

pub(super) fn names(harness: &Harness) -> Vec<String> {
    document(harness).users().iter().map(|user| user.name.clone()).collect()
}

/// Checks that a condition names the Secret, and what to type.
fn tells(harness: &Harness, condition: &str, secret: &str) {
    let found = harness.condition(condition);
    assert_eq!(
        (&found["status"], &found["reason"]),
        (&json!("False"), &json!("SecretNotConfirmed"))
    );
    let message = found["message"].as_str().unwrap();
    let uid = harness.object("secrets", secret)["metadata"]["uid"].clone();
    let types = format!(
        "kubectl annotate examplecluster shop -n default --overwrite {}={}",
        annotation::ACCEPT_SECRETS,
        uid.as_str().unwrap()
    );
    assert!(message.contains(secret) && message.contains(&types), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_login_of_pilots_that_a_stranger_made_is_not_used_until_a_person_says_so() {
    let hash = password::hash_bcrypt("pw").unwrap();
    let users = json!({
        "revision": "0123456789abcdef",
        "users": [],
        "own": {"mark": "evil", "password": "pw", "hash": hash},
    })
    .to_string();
    let harness = created_after(&[("ex-shop-pilot", vec![("users.json", &users)])]).await;
    let before = harness.object("secrets", "ex-shop-pilot");
    tells(&harness, "UsersReady", "ex-shop-pilot");
    assert_eq!(told(&harness)["users"], Value::Null, "no node is told of it");
    let key = PrivateKey::generate().unwrap();
    ask(&harness, NODE, &key);
    harness.settle().await;
    assert_eq!(
        told(&harness)["key"]["sha256"],
        json!(key.public_key_sha256()),
        "certificates go on"
    );
    assert_eq!(harness.object("secrets", "ex-shop-pilot"), before, "and it is not written");

    accept(&harness, "ex-shop-pilot");
    harness.settle().await;
    assert_eq!(document(&harness).pilot_user().unwrap().mark, "evil");
    assert_eq!(told(&harness)["users"], json!(document(&harness).revision()));
    assert_ne!(harness.condition("UsersReady")["reason"], "SecretNotConfirmed");

    // What was deleted is made again, whoever made it before.
    let harness = created_after(&[("ex-shop-pilot", vec![("users.json", &users)])]).await;
    harness.api.server().delete(&id("secrets", "ex-shop-pilot"));
    harness.settle().await;
    assert_ne!(document(&harness).pilot_user().unwrap().mark, "evil");
}

#[tokio::test(start_paused = true)]
async fn a_password_that_a_stranger_chose_lets_nobody_in() {
    let harness = created_after(&[
        ("ex-shop-user-app", vec![("username", "app"), ("password", "known")]),
        ("ex-shop-admin", vec![("username", "root"), ("password", "known")]),
    ])
    .await;
    tells(&harness, "UsersReady", "ex-shop-admin");
    assert_eq!(names(&harness), [""; 0]);
    let before = values(&harness, "ex-shop-user-app");
    assert_eq!(before.len(), 2, "it is not written: {before:?}");
    harness.api.server().delete(&id("secrets", "ex-shop-admin"));
    harness.settle().await;
    assert_eq!(names(&harness), ["admin"]);
    tells(&harness, "UsersReady", "ex-shop-user-app");
    accept(&harness, "ex-shop-user-app");
    harness.settle().await;
    assert_eq!(names(&harness), ["admin", "app"]);
    assert!(password::verify_bcrypt("known", &document(&harness).users()[1].hash));
    // From then on it is one of the cluster's.
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["annotations"] = json!({});
    });
    super::security::set(&harness, "ex-shop-user-app", "password", "another");
    harness.settle().await;
    assert!(password::verify_bcrypt("another", &document(&harness).users()[1].hash));
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_a_stranger_made_signs_nobody() {
    let ca = CertificateAuthority::create("a stranger's", Timestamp::now()).unwrap();
    let (chain, key) = (ca.chain_pem(), ca.key_pem());
    let harness =
        created_after(&[("ex-shop-internode-ca", vec![("tls.crt", &chain), ("tls.key", &key)])])
            .await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    tells(&harness, "CertificatesValid", "ex-shop-internode-ca");
    assert_eq!(told(&harness)["internodeCertificate"], Value::Null);
    assert!(!values(&harness, "ex-shop-client-ca").is_empty(), "the other CA goes on");
    assert_eq!(names(&harness), ["admin", "app"], "and so do users");
    harness.api.server().delete(&id("secrets", "ex-shop-internode-ca"));
    harness.settle().await;
    let trust = told(&harness)["internodeCertificate"]["trust"].clone();
    assert_eq!(trust, json!(values(&harness, "ex-shop-internode-ca")["tls.crt"]));
    assert_ne!(trust, json!(chain));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_made_again_uses_the_secrets_of_its_predecessor_without_a_word() {
    let harness = secured(1).await;
    let made = ["ex-shop-pilot", "ex-shop-admin", "ex-shop-user-app", "ex-shop-internode-ca"];
    let before = made.map(|name| values(&harness, name));
    // As a tool for backups puts them back: other uids, and older than the cluster.
    let copies = made.map(|name| harness.object("secrets", name));
    let put_back = |copies: &[Value]| {
        harness.make_again();
        let cluster = harness.object("exampleclusters", "shop");
        let mut server = harness.api.server();
        server.delete(&cluster_id());
        for copy in copies {
            let name = copy["metadata"]["name"].as_str().unwrap();
            server.add(&id("secrets", name), copy.clone());
        }
        let mut again = json!({"apiVersion": cluster["apiVersion"], "kind": cluster["kind"]});
        again["metadata"] = json!({"name": "shop", "namespace": "default"});
        again["spec"] = cluster["spec"].clone();
        server.add(&cluster_id(), again);
    };
    put_back(&copies);
    harness.settle().await;
    for (name, before) in made.iter().zip(&before).skip(1) {
        let after = values(&harness, name);
        for key in ["username", "password", "tls.crt", "tls.key"] {
            assert_eq!(after.get(key), before.get(key), "{name} {key}");
        }
    }
    let own = |all: &std::collections::BTreeMap<String, String>| {
        UsersDocument::from_json(all["users.json"].as_bytes())
            .unwrap()
            .pilot_user()
            .cloned()
            .unwrap()
    };
    assert_eq!(own(&values(&harness, "ex-shop-pilot")), own(&before[0]));
    assert_ne!(harness.condition("UsersReady")["reason"], "SecretNotConfirmed");

    // A copy with another password in it is not what was sealed.
    let mut changed = copies.clone();
    changed[2]["data"]["password"] = json!(ByteString(b"another".to_vec()));
    put_back(&changed);
    harness.settle().await;
    tells(&harness, "UsersReady", "ex-shop-user-app");
}
