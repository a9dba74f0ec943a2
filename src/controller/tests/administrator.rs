//! Tests of the administrator, whose Secret says its name, and of users when Secrets cannot be read or
//! written. The API is scripted; hashes are real.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    api::id,
    harness::{Harness, cluster_id},
    security::{NODE, ask, secured, set, told, values},
};
use crate::engine::{
    password,
    pki::PrivateKey,
    users::{DocumentedUser, UsersDocument},
};

fn documented(harness: &Harness) -> Vec<DocumentedUser> {
    let document = values(harness, "ex-shop-pilot")["users.json"].clone();
    UsersDocument::from_json(document.as_bytes()).unwrap().users().to_vec()
}

fn names(harness: &Harness) -> Vec<String> {
    documented(harness).into_iter().map(|user| user.name).collect()
}

/// Nodes would refuse all users with such a name, and one that restarts would have none.
#[tokio::test(start_paused = true)]
async fn a_name_that_no_user_may_have_changes_nobody_and_is_told() {
    let harness = secured(1).await;
    let (users, document) = (told(&harness)["users"].clone(), values(&harness, "ex-shop-pilot"));
    for name in ["", "admin\n", "a b", "a:b", "\u{e4}", "known", "navigator_1a2b3c4d"] {
        set(&harness, "ex-shop-admin", "username", name);
        set(&harness, "ex-shop-admin", "password", "of somebody else");
        harness.settle().await;
        let writes = harness.writes();
        harness.settle().await;
        assert_eq!(harness.writes(), writes, "nothing is written without cause: {name:?}");
        assert_eq!(told(&harness)["users"], users, "{name:?}");
        assert_eq!(values(&harness, "ex-shop-pilot"), document, "{name:?}");
        let ready = harness.condition("UsersReady");
        assert_eq!(ready["reason"], "UserNameUnusable", "{name:?}");
        let message = ready["message"].as_str().unwrap();
        let begins = "the administrator's name, Secret ex-shop-admin, key username: ";
        assert!(message.starts_with(begins), "{message}");
        assert!(message.ends_with("admin stays the administrator"), "{message}");
    }
    set(&harness, "ex-shop-admin", "username", "root");
    set(&harness, "ex-shop-admin", "password", "");
    harness.settle().await;
    assert_eq!(names(&harness), ["admin", "app"], "a name without a password is nobody yet");
    assert_eq!(told(&harness)["users"], users);
    set(&harness, "ex-shop-admin", "password", "of somebody else");
    harness.settle().await;
    assert_eq!(names(&harness), ["root", "app"]);
    assert!(password::verify_bcrypt("of somebody else", &documented(&harness)[0].hash));
    assert_ne!(harness.condition("UsersReady")["reason"], "UserNameUnusable");
}

#[tokio::test(start_paused = true)]
async fn an_administrator_whose_secret_is_gone_stays_whatever_its_name() {
    let harness = Harness::new(1);
    let text = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let dba = id("secrets", "dba");
    harness.api.server().add(
        &dba,
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "dba", "namespace": "default"},
            "data": {"username": text("dba"), "password": text("correct horse")},
        }),
    );
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"] = json!({"mode": "Secure", "adminSecret": {"name": "dba"}});
    });
    harness.settle().await;
    assert_eq!(names(&harness), ["dba"]);
    let users = told(&harness)["users"].clone();
    assert_ne!(users, Value::Null);

    harness.api.server().edit(&dba, |secret| {
        secret["data"].as_object_mut().unwrap().remove("username");
    });
    harness.settle().await;
    assert_eq!(told(&harness)["users"], users, "a key that is gone is no other name");
    harness.api.server().objects.remove(&dba);
    harness.settle().await;
    assert_eq!(told(&harness)["users"], users);
    let ready = harness.condition("UsersReady");
    let message =
        "user dba: Secret dba is not there: create it; the password before it stays in force";
    assert_eq!((&ready["reason"], &ready["message"]), (&json!("SecretMissing"), &json!(message)));

    // Another Secret without a name is of the administrator that is the default.
    harness.api.server().add(
        &id("secrets", "other"),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "other", "namespace": "default"},
            "data": {"password": text("battery staple")},
        }),
    );
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["adminSecret"] = json!({"name": "other"});
    });
    harness.settle().await;
    assert_eq!(names(&harness), ["admin"]);
}

#[tokio::test(start_paused = true)]
async fn name_of_the_administrator_is_no_users() {
    let harness = secured(1).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["users"] = json!([{"name": "admin", "roles": ["viewer"]}]);
    });
    harness.settle().await;
    let users = documented(&harness);
    assert_eq!(users.len(), 1, "{users:?}");
    assert!(users[0].superuser && users[0].name == "admin", "{users:?}");
    let admin = &values(&harness, "ex-shop-admin")["password"];
    assert!(password::verify_bcrypt(admin, &users[0].hash));
    assert_eq!(harness.condition("UsersReady")["reason"], "UserNameTaken");
}

#[tokio::test(start_paused = true)]
async fn secret_that_a_user_made_is_never_written() {
    let harness = Harness::new(1);
    let secret = id("secrets", "ex-shop-user-app");
    let text = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    harness.api.server().add(
        &secret,
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": secret.1, "namespace": "default"},
            "data": {"username": text("app"), "password": text("correct horse")},
        }),
    );
    let before = harness.object(&secret.0, &secret.1);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"] = json!({"mode": "Secure", "users": [{"name": "app"}]});
    });
    harness.settle().await;
    assert_eq!(harness.object(&secret.0, &secret.1), before);
}

#[tokio::test(start_paused = true)]
async fn users_that_cannot_be_read_are_not_made_anew() {
    let harness = secured(1).await;
    let users = told(&harness)["users"].clone();
    let before = values(&harness, "ex-shop-pilot")["users.json"].clone();
    set(&harness, "ex-shop-pilot", "users.json", &before[..before.len() / 2]);
    harness.settle().await;
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!((harness.writes(), &told(&harness)["users"]), (writes, &users));
    let ready = harness.condition("UsersReady");
    assert_eq!(ready["reason"], "SecretInvalid");
    assert!(ready["message"].as_str().unwrap().starts_with("Secret ex-shop-pilot, key users.json"));

    // A name that an earlier release took is no reason to hash all passwords again.
    let own = |text: &str| UsersDocument::from_json(text.as_bytes()).unwrap().pilot_user().cloned();
    let named = before.replace("\"name\":\"admin\"", "\"name\":\"ad\\nmin\"");
    assert_ne!(named, before);
    set(&harness, "ex-shop-pilot", "users.json", &named);
    harness.settle().await;
    let after = values(&harness, "ex-shop-pilot")["users.json"].clone();
    assert_eq!(own(&after), own(&before));
    let hash =
        |text: &str| UsersDocument::from_json(text.as_bytes()).unwrap().users()[1].hash.clone();
    assert_eq!(hash(&after), hash(&before));
}

/// A quota, a policy or a webhook may refuse one object; everything else of the look is done.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_refused_stops_no_signing_and_is_not_taken_for_none() {
    let harness = secured(2).await;
    harness.api.server().refuses.insert(id("secrets", "ex-shop-user-late"), 403);
    harness.api.server().edit(&cluster_id(), |cluster| {
        let users = json!([{"name": "late"}, {"name": "app", "roles": ["viewer"]}]);
        cluster["spec"]["security"]["users"] = users;
    });
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    assert_ne!(told(&harness)["key"], Value::Null, "its key is signed");
    assert_eq!(names(&harness), ["admin", "app"]);
    assert_eq!(harness.condition("Stalled")["reason"], "ObjectRefused");
    let ready = harness.condition("UsersReady");
    assert_eq!(ready["reason"], "SecretMissing", "{ready}");

    let users = told(&harness)["users"].clone();
    harness.api.server().refuses.insert(id("secrets", "ex-shop-pilot"), 403);
    set(&harness, "ex-shop-admin", "password", "correct horse");
    harness.settle().await;
    assert_eq!(told(&harness)["users"], users, "nodes wait for nothing that does not come");
    assert_eq!(harness.condition("UsersReady")["status"], "False");
    let stated = &harness.object("exampleclusters", "shop")["status"]["security"];
    assert_eq!(stated["users"].as_array().map(Vec::len), Some(3), "{stated}");

    harness.api.server().refuses.clear();
    harness.api.server().refuses.insert(id("pilots", NODE), 403);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["users"] = json!([]);
    });
    harness.settle().await;
    let other = harness.object("pilots", "ex-shop-a-1")["spec"]["security"]["users"].clone();
    assert_ne!(other, told(&harness)["users"], "the other is told");
    harness.api.server().refuses.clear();
    harness.settle().await;
    assert_eq!(told(&harness)["users"], other);
}
