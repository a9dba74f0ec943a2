//! How long the Secrets that were made for users stay. The API is scripted; hashes are real.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    api::id,
    harness::{Harness, cluster_id},
    security::{NODE, ask, lead_on, secured, set, told, values},
};
use crate::{
    api::names::{annotation, label},
    controller::testing::example::EXAMPLE,
    engine::{password, pki::PrivateKey, users::UsersDocument},
};

const APP: &str = "ex-shop-user-app";

/// Has the spec declare these users.
async fn declare(harness: &Harness, users: Value) {
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["users"] = users;
    });
    harness.settle().await;
}

fn secret(harness: &Harness, name: &str) -> Value {
    harness.object("secrets", name)
}

fn password_of(harness: &Harness, name: &str) -> String {
    values(harness, name)["password"].clone()
}

/// Does the password in the Secret let the user `app` in?
fn lets_in(harness: &Harness, text: &str) -> bool {
    let document = values(harness, "ex-shop-pilot")["users.json"].clone();
    let document = UsersDocument::from_json(document.as_bytes()).unwrap();
    assert_eq!(told(harness)["users"], json!(document.revision()));
    let app = document.users().iter().find(|user| user.name == "app").unwrap();
    password::verify_bcrypt(text, &app.hash)
}

#[tokio::test(start_paused = true)]
async fn a_user_that_is_added_again_gets_another_password() {
    let harness = secured(1).await;
    let leaked = password_of(&harness, APP);
    assert!(lets_in(&harness, &leaked));
    declare(&harness, json!([])).await;
    assert_eq!(secret(&harness, APP), Value::Null);
    assert_ne!(secret(&harness, "ex-shop-admin"), Value::Null);
    declare(&harness, json!([{"name": "app"}])).await;
    let next = password_of(&harness, APP);
    assert!(next != leaked && lets_in(&harness, &next) && !lets_in(&harness, &leaked));
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "nothing is written without cause");
}

#[tokio::test(start_paused = true)]
async fn a_user_whose_password_comes_from_a_persons_secret_has_no_other() {
    let harness = secured(1).await;
    let own = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "mine", "namespace": "default"},
        "data": {"password": ByteString(b"correct horse".to_vec())},
    });
    harness.api.server().add(&id("secrets", "mine"), own);
    let before = secret(&harness, "mine");
    declare(&harness, json!([{"name": "app", "passwordSecret": {"name": "mine"}}])).await;
    assert!(lets_in(&harness, "correct horse"));
    assert_eq!(secret(&harness, APP), Value::Null);
    declare(&harness, json!([])).await;
    assert_eq!(secret(&harness, "mine"), before, "what a person made stays");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_made_again_deletes_what_it_used_itself_and_nothing_else() {
    let harness = secured(1).await;
    let before = password_of(&harness, APP);
    let kept = ["ex-shop-pilot", "ex-shop-admin", APP].map(|name| (name, secret(&harness, name)));
    harness.make_again();
    for (name, copy) in kept {
        harness.api.server().add(&id("secrets", name), copy);
    }
    declare(&harness, json!([])).await;
    assert_eq!(password_of(&harness, APP), before, "the predecessor used it");
    declare(&harness, json!([{"name": "app"}])).await;
    assert_eq!(password_of(&harness, APP), before);
    assert!(lets_in(&harness, &before));
    declare(&harness, json!([])).await;
    assert_eq!(secret(&harness, APP), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_an_earlier_release_is_marked_while_its_user_is_there_and_else_stays() {
    let harness = secured(1).await;
    let unmark = |name: &str| {
        harness.api.server().edit(&id("secrets", name), |secret| {
            let annotations = secret["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(annotation::USED_BY);
        });
    };
    unmark(APP);
    let mut left = secret(&harness, APP);
    left["metadata"] = json!({
        "name": "ex-shop-user-gone", "namespace": "default",
        "labels": {(label::K8S_MANAGED_BY): "navigator", (EXAMPLE.names.cluster_label): "shop"},
    });
    harness.api.server().add(&id("secrets", "ex-shop-user-gone"), left);
    harness.settle().await;
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let annotations = |name: &str| secret(&harness, name)["metadata"]["annotations"].clone();
    assert_eq!(annotations(APP)[annotation::USED_BY], uid);
    assert_eq!(annotations("ex-shop-user-gone")[annotation::USED_BY], Value::Null);
    declare(&harness, json!([])).await;
    assert_eq!(secret(&harness, APP), Value::Null);
    assert_ne!(secret(&harness, "ex-shop-user-gone"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn who_may_change_labels_and_annotations_of_a_secret_cannot_have_it_deleted() {
    let harness = secured(1).await;
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let metadata = |name: &str, seal: &Value| {
        json!({
            "name": name, "namespace": "default",
            "labels": {(label::K8S_MANAGED_BY): "navigator", (EXAMPLE.names.cluster_label): "shop"},
            "annotations": {(annotation::USED_BY): uid, (annotation::SEAL): seal},
        })
    };
    let mut strange = secret(&harness, APP);
    let seal = strange["metadata"]["annotations"][annotation::SEAL].clone();
    strange["metadata"] = metadata("theirs", &seal);
    harness.api.server().add(&id("secrets", "theirs"), strange);
    harness.api.server().edit(&id("secrets", "ex-shop-pilot"), |pilot| {
        pilot["metadata"]["annotations"][annotation::USED_BY] = uid.clone();
    });
    harness.settle().await;
    declare(&harness, json!([])).await;
    assert_eq!(secret(&harness, APP), Value::Null);
    for name in ["theirs", "ex-shop-pilot"] {
        assert_ne!(secret(&harness, name), Value::Null, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn users_stay_while_the_mounted_secret_cannot_be_read() {
    let harness = secured(1).await;
    set(&harness, "ex-shop-pilot", "users.json", "{");
    declare(&harness, json!([])).await;
    assert_eq!(harness.condition("UsersReady")["reason"], "SecretInvalid");
    assert_ne!(secret(&harness, APP), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_pass_that_finds_new_users_says_that_nodes_do_not_have_them_yet() {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    let users = told(&harness)["users"].clone();
    harness.api.server().edit(&id("pilots", NODE), |pilot| {
        pilot["status"]["security"]["users"] = users;
    });
    harness.settle().await;
    assert_eq!(harness.condition("UsersReady")["status"], "True");
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["users"] = json!([{"name": "app"}, {"name": "later"}]);
    });
    harness.reconcile().await;
    let ready = harness.condition("UsersReady");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("UsersPending")));
}
