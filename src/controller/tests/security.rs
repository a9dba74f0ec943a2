//! Tests of Secrets, CAs and certificates. The API is scripted; keys, requests and certificates are
//! real.

use std::{collections::BTreeMap, sync::Mutex};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    api::{Id, id},
    harness::{Harness, cluster_id},
};
use crate::{
    api::{names::annotation, v1beta1::PilotSecurity},
    engine::{
        password,
        pki::{
            CertificateAuthority, CertificateUse, KeyRequest, LeafOrder, PrivateKey, TrustBundle,
            check_chain, create_proof, find_authority,
        },
        users::UsersDocument,
    },
    machinery::x509::CertificateDetails,
};

pub(super) const NODE: &str = "ex-shop-a-0";

fn pilot() -> Id {
    id("pilots", NODE)
}

/// A secured cluster whose nodes run, and whose pilots have asked for nothing yet.
pub(super) async fn secured(replicas: u32) -> Harness {
    let harness = Harness::new(replicas);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"] = json!({
            "mode": "Secure", "client": {"altNames": ["shop.example.org"]},
            "users": [{"name": "app", "roles": ["viewer"]}],
        });
    });
    harness.settle().await;
    harness
}

/// The keys that scripted pilots have, as PEM, by the SHA-256 of their public keys.
static KEYS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn keep_key(key: &PrivateKey) {
    KEYS.lock().unwrap().insert(key.public_key_sha256(), key.to_pem());
}

fn kept_key(sha256: &str) -> Option<PrivateKey> {
    let keys = KEYS.lock().unwrap();
    keys.get(sha256).map(|pem| PrivateKey::from_pem(pem.as_bytes()).unwrap())
}

/// Has the node's pilot ask to have this key signed, from its pod.
pub(super) fn ask(harness: &Harness, node: &str, key: &PrivateKey) {
    keep_key(key);
    let csr = KeyRequest::create(key).unwrap();
    let mut server = harness.api.server();
    let pod = id("pods", node);
    let uid = server.objects[&pod]["metadata"]["uid"].clone();
    server.edit(&id("pilots", node), |pilot| {
        pilot["status"]["instance"] = json!({"runtime": "Kubernetes", "uid": uid});
        pilot["status"]["security"] = json!({"request": {"csr": csr, "reason": "First"}});
    });
}

pub(super) fn told(harness: &Harness) -> Value {
    harness.object("pilots", NODE)["spec"]["security"].clone()
}

pub(super) fn values(harness: &Harness, secret: &str) -> BTreeMap<String, String> {
    let secret = harness.object("secrets", secret);
    let values: BTreeMap<String, ByteString> =
        serde_json::from_value(secret["data"].clone()).unwrap_or_default();
    let text = |(key, value): (String, ByteString)| (key, String::from_utf8(value.0).unwrap());
    values.into_iter().map(text).collect()
}

pub(super) fn set(harness: &Harness, secret: &str, key: &str, value: &str) {
    harness.api.server().edit(&id("secrets", secret), |secret| {
        secret["data"][key] = json!(ByteString(value.as_bytes().to_vec()));
    });
}

fn names(harness: &Harness, plural: &str) -> Vec<String> {
    let server = harness.api.server();
    server.objects.keys().filter(|(p, _)| p == plural).map(|(_, name)| name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_secured_cluster_has_its_secrets_and_signs_what_its_nodes_ask_for() {
    let harness = secured(2).await;
    assert_eq!(
        names(&harness, "secrets"),
        [
            "ex-shop-admin",
            "ex-shop-client-ca",
            "ex-shop-internode-ca",
            "ex-shop-pilot",
            "ex-shop-user-app",
        ]
    );
    assert_eq!(names(&harness, "configmaps"), ["ex-shop-ca"]);
    assert_eq!(told(&harness)["internode"], "Required");
    assert_eq!(told(&harness)["key"], Value::Null, "nothing is signed that nobody asked for");
    assert_eq!(harness.condition("Secured")["reason"], "SecurityInProgress");

    let key = PrivateKey::generate().unwrap();
    ask(&harness, NODE, &key);
    harness.settle().await;
    let told = told(&harness);
    assert_eq!(told["key"]["sha256"], json!(key.public_key_sha256()));
    let now = k8s_openapi::jiff::Timestamp::now();
    for (field, ca, names) in [
        ("internodeCertificate", "ex-shop-internode-ca", vec![NODE, "10.0.0.7", "127.0.0.1"]),
        (
            "clientCertificate",
            "ex-shop-client-ca",
            vec![
                "ex-shop-a-0.ex-shop-a-pods.default.svc",
                "ex-shop-nodes.default.svc",
                "shop.example.org",
                "localhost",
            ],
        ),
    ] {
        let trust = values(&harness, ca)["tls.crt"].clone();
        assert_eq!(told[field]["trust"], json!(trust), "{field}");
        let trust = TrustBundle::from_pem(trust.as_bytes()).unwrap();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let chain = told[field]["chain"].as_str().unwrap();
        assert_eq!(
            check_chain(chain, &key.public_key_sha256(), &trust, &names, now),
            [],
            "{field}"
        );
    }
    let between = told["internodeCertificate"]["chain"].as_str().unwrap();
    let details = CertificateDetails::from_pem(between).unwrap();
    assert!(!details.names.contains(&"shop.example.org".to_owned()), "{details:?}");
    let status = harness.object("exampleclusters", "shop")["status"]["security"].clone();
    let authorities = status["certificateAuthorities"].as_array().unwrap();
    let shown = |one: &Value| format!("{} {} {}", one["use"], one["source"], one["phase"]);
    let shown: Vec<_> = authorities.iter().map(shown).collect();
    assert_eq!(
        shown,
        [r#""Internode" "Managed" "Current""#, r#""Client" "Managed" "Current""#],
        "{status}"
    );
    let users = json!([
        {"name": "admin", "secret": "ex-shop-admin", "state": "Pending"},
        {"name": "app", "secret": "ex-shop-user-app", "state": "Pending"},
    ]);
    assert_eq!(status["users"], users);
    let bundle = harness.object("configmaps", "ex-shop-ca")["data"]["ca.crt"].clone();
    assert_eq!(bundle, told["clientCertificate"]["trust"]);
    assert_eq!(harness.object("pilots", "ex-shop-a-1")["spec"]["security"]["key"], Value::Null);

    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "what is signed is not signed again");
}

#[tokio::test(start_paused = true)]
async fn applications_find_what_they_need_and_nothing_secret_stands_elsewhere() {
    let harness = secured(1).await;
    let key = PrivateKey::generate().unwrap();
    ask(&harness, NODE, &key);
    harness.settle().await;
    let admin = values(&harness, "ex-shop-admin");
    let keys: Vec<&str> = admin.keys().map(String::as_str).collect();
    assert_eq!(keys, ["ca.crt", "host", "password", "port", "type", "username"]);
    assert_eq!(admin["host"], "ex-shop-nodes.default.svc");
    let document = values(&harness, "ex-shop-pilot")["users.json"].clone();
    let document = UsersDocument::from_json(document.as_bytes()).unwrap();
    let [first, app] = document.users() else { panic!("{document:?}") };
    assert!(
        first.superuser
            && first.name == "admin"
            && password::verify_bcrypt(&admin["password"], &first.hash)
    );
    assert_eq!(
        (app.name.as_str(), app.superuser, &app.roles[..]),
        ("app", false, &["viewer".to_owned()][..])
    );
    assert_eq!(told(&harness)["users"], json!(document.revision()));
    let status = harness.object("exampleclusters", "shop")["status"].clone();
    assert_eq!(status["security"]["adminSecret"], "ex-shop-admin");
    assert_eq!(status["binding"]["name"], "ex-shop-user-app");

    let mut secrets =
        vec![admin["password"].clone(), values(&harness, "ex-shop-user-app")["password"].clone()];
    secrets.extend(document.users().iter().map(|user| user.hash.clone()));
    for ca in ["ex-shop-client-ca", "ex-shop-internode-ca"] {
        let pem = values(&harness, ca)["tls.key"].clone();
        secrets.push(pem.lines().nth(1).unwrap().to_owned());
    }
    let server = harness.api.server();
    for ((plural, name), object) in server.objects.iter().filter(|((p, _), _)| p != "secrets") {
        let text = object.to_string();
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{plural}/{name} holds a secret");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_key_is_signed_on_a_new_volume_or_on_a_persons_word_alone() {
    let harness = secured(1).await;
    let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    ask(&harness, NODE, &key);
    harness.settle().await;
    ask(&harness, NODE, &other);
    harness.settle().await;
    assert_eq!(told(&harness)["key"]["sha256"], json!(key.public_key_sha256()));
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "RequestRefused");
    let word =
        format!("annotate the Pilot with {}={}", annotation::ACCEPT_KEY, other.public_key_sha256());
    assert!(valid["message"].as_str().unwrap().contains(&word), "{valid}");

    let person = harness.copy();
    person.api.server().edit(&pilot(), |pilot| {
        pilot["metadata"]["annotations"][annotation::ACCEPT_KEY] = json!(other.public_key_sha256());
    });
    person.settle().await;
    assert_eq!(told(&person)["key"]["sha256"], json!(other.public_key_sha256()));
    assert_ne!(person.condition("CertificatesValid")["reason"], "RequestRefused");

    harness.api.server().edit(&id("persistentvolumeclaims", "example-data-ex-shop-a-0"), |claim| {
        claim["metadata"]["uid"] = json!("another volume");
    });
    harness.settle().await;
    assert_eq!(told(&harness)["key"]["sha256"], json!(other.public_key_sha256()));
}

#[tokio::test(start_paused = true)]
async fn a_pilot_that_is_made_again_has_the_key_on_record_for_its_volume() {
    let harness = secured(1).await;
    let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    ask(&harness, NODE, &key);
    harness.settle().await;
    let record = told(&harness)["key"].clone();
    let forget = || {
        harness.api.server().edit(&pilot(), |pilot| {
            for field in ["key", "internodeCertificate", "clientCertificate"] {
                pilot["spec"]["security"][field] = Value::Null;
            }
        });
    };
    forget();
    ask(&harness, NODE, &other);
    harness.settle().await;
    assert_eq!(told(&harness)["key"], Value::Null);
    assert_eq!(harness.condition("CertificatesValid")["reason"], "RequestRefused");
    forget();
    ask(&harness, NODE, &key);
    harness.settle().await;
    assert_eq!(told(&harness)["key"], record);
}

#[tokio::test(start_paused = true)]
async fn only_a_request_of_the_current_pod_is_signed() {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    let pod = harness.object("pods", NODE);
    let report = |uid: &Value| {
        harness.api.server().edit(&pilot(), |pilot| {
            pilot["status"]["instance"]["uid"] = uid.clone();
        });
    };
    report(&json!("an earlier pod"));
    for _ in 0..3 {
        harness.reconcile().await;
    }
    assert_eq!(told(&harness)["key"], Value::Null);

    // A pod of this name, which another client made.
    report(&pod["metadata"]["uid"]);
    harness.api.server().edit(&id("pods", NODE), |pod| {
        pod["metadata"]["ownerReferences"][0]["name"] = json!("another");
    });
    for _ in 0..3 {
        harness.reconcile().await;
    }
    assert_eq!(told(&harness)["key"], Value::Null);

    harness.api.server().edit(&id("pods", NODE), |found| {
        found["metadata"]["ownerReferences"] = pod["metadata"]["ownerReferences"].clone();
    });
    for _ in 0..3 {
        harness.reconcile().await;
    }
    assert_ne!(told(&harness)["key"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn pilot_of_another_cluster_gets_no_certificate() {
    let harness = secured(1).await;
    let node = "ex-shop-a-7";
    {
        let mut server = harness.api.server();
        let places = [
            ("pods", NODE, node),
            ("pilots", NODE, node),
            ("persistentvolumeclaims", "example-data-ex-shop-a-0", "example-data-ex-shop-a-7"),
        ];
        for (plural, from, name) in places {
            let mut copy = server.objects[&id(plural, from)].clone();
            copy["metadata"]["name"] = json!(name);
            server.add(&id(plural, name), copy);
        }
        server.edit(&id("pilots", node), |pilot| {
            pilot["metadata"]["ownerReferences"][0]["uid"] = json!("another cluster");
        });
    }
    for name in [NODE, node] {
        ask(&harness, name, &PrivateKey::generate().unwrap());
    }
    for _ in 0..3 {
        harness.reconcile().await;
    }
    assert_ne!(told(&harness)["key"], Value::Null);
    assert_eq!(harness.object("pilots", node)["spec"]["security"]["key"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn ca_is_renewed_with_its_key_before_it_expires() {
    let harness = secured(1).await;
    let now = k8s_openapi::jiff::Timestamp::now();
    let made = now - k8s_openapi::jiff::SignedDuration::from_hours(8 * 365 * 24);
    let old = CertificateAuthority::create("aging", made).unwrap();
    assert!(old.details().is_due(now.as_second()) && !old.details().is_expired(now.as_second()));
    for (key, text) in [("tls.crt", old.chain_pem()), ("tls.key", old.key_pem())] {
        set(&harness, "ex-shop-internode-ca", key, &text);
    }
    harness.settle().await;
    let renewed = values(&harness, "ex-shop-internode-ca");
    let details = CertificateDetails::from_pem(&renewed["tls.crt"]).unwrap();
    assert!(!details.is_due(now.as_second()), "{details:?}");
    assert_eq!(details.key_sha256, old.details().key_sha256);
}

#[tokio::test(start_paused = true)]
async fn ca_does_not_overwrite_a_foreign_secret() {
    let harness = Harness::new(1);
    let foreign = id("secrets", "ex-shop-internode-ca");
    let ours = CertificateAuthority::create("ours", k8s_openapi::jiff::Timestamp::now()).unwrap();
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    {
        let mut server = harness.api.server();
        for (id, certificate, key) in [
            (&foreign, "of another program".to_owned(), "of another program".to_owned()),
            (&id("secrets", "ours"), ours.chain_pem(), ours.key_pem()),
        ] {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": id.1, "namespace": "default"},
                "data": {"tls.crt": bytes(&certificate), "tls.key": bytes(&key)},
            });
            server.add(id, secret);
        }
        server.edit(&cluster_id(), |cluster| {
            let given = json!({"caSecret": {"name": "ours"}});
            cluster["spec"]["security"] = json!({"mode": "Secure", "internode": given});
        });
    }
    let before = harness.object(&foreign.0, &foreign.1);
    harness.settle().await;
    assert_eq!(harness.object(&foreign.0, &foreign.1), before);
    let states = ["CertificatesValid", "Stalled"].map(|type_| harness.condition(type_));
    assert!(format!("{states:?}").contains("ex-shop-internode-ca"), "{states:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_is_lost_moves_nothing_until_it_is_back() {
    let harness = secured(2).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    let (before, ca) = (told(&harness), id("secrets", "ex-shop-internode-ca"));
    let kept = harness.api.server().objects.remove(&ca).unwrap();
    ask(&harness, "ex-shop-a-1", &PrivateKey::generate().unwrap());
    harness.settle().await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretMissing");
    assert!(valid["message"].as_str().unwrap().starts_with("Secret ex-shop-internode-ca is gone"));
    assert!(!names(&harness, "secrets").contains(&ca.1), "no other CA takes its place");
    assert_eq!(told(&harness), before);

    let mut damaged = kept.clone();
    damaged["data"]["tls.key"] = json!(ByteString(b"x".to_vec()));
    harness.api.server().objects.insert(ca.clone(), damaged);
    harness.settle().await;
    assert_eq!(harness.condition("CertificatesValid")["reason"], "SecretInvalid");
    assert_eq!(told(&harness), before);

    harness.api.server().edit(&ca, |secret| secret["data"] = kept["data"].clone());
    harness.settle().await;
    assert_ne!(harness.condition("CertificatesValid")["status"], "False");
    assert_eq!(told(&harness), before);
    assert_ne!(harness.object("pilots", "ex-shop-a-1")["spec"]["security"]["key"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_password_that_changed_is_hashed_once_and_one_that_cannot_be_used_is_told() {
    let harness = secured(1).await;
    let before = told(&harness)["users"].clone();
    set(&harness, "ex-shop-admin", "password", "correct horse");
    harness.settle().await;
    let changed = told(&harness)["users"].clone();
    assert_ne!(changed, before);
    let hash = |harness: &Harness| {
        let document = values(harness, "ex-shop-pilot")["users.json"].clone();
        UsersDocument::from_json(document.as_bytes()).unwrap().users()[0].hash.clone()
    };
    assert!(password::verify_bcrypt("correct horse", &hash(&harness)));
    // The Secret changes, and its password does not.
    set(&harness, "ex-shop-admin", "note", "mine");
    harness.settle().await;
    assert_eq!(told(&harness)["users"], changed);

    set(&harness, "ex-shop-admin", "password", "");
    harness.settle().await;
    assert_eq!(told(&harness)["users"], changed);
    assert!(password::verify_bcrypt("correct horse", &hash(&harness)));
    let ready = harness.condition("UsersReady");
    assert_eq!(ready["reason"], "PasswordUnusable");
    let message = "user admin: Secret ex-shop-admin, key password: the password is empty: put \
                   another one there; the password before it stays in force";
    assert_eq!(ready["message"], json!(message));

    harness.api.server().objects.remove(&id("secrets", "ex-shop-admin"));
    harness.settle().await;
    assert_eq!(values(&harness, "ex-shop-admin")["password"].len(), 43, "one is made again");
    assert_ne!(told(&harness)["users"], changed);
}

#[tokio::test(start_paused = true)]
async fn pilots_keep_their_login_whatever_becomes_of_the_users() {
    let harness = secured(1).await;
    let own = |harness: &Harness| {
        let document = values(harness, "ex-shop-pilot")["users.json"].clone();
        UsersDocument::from_json(document.as_bytes()).unwrap().pilot_user().cloned().unwrap()
    };
    let first = own(&harness);
    assert!(password::verify_bcrypt(&first.password, &first.hash) && first.mark.len() == 8);
    set(&harness, "ex-shop-admin", "password", "correct horse");
    harness.settle().await;
    assert_eq!(own(&harness), first);
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "nothing is written without cause");

    harness.api.server().objects.remove(&id("secrets", "ex-shop-pilot"));
    harness.settle().await;
    assert_ne!(own(&harness).password, first.password, "it is made anew");
}

#[tokio::test(start_paused = true)]
async fn a_time_in_renewed_at_has_each_certificate_signed_once_more() {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    let before = told(&harness);
    tokio::task::spawn_blocking(|| std::thread::sleep(std::time::Duration::from_millis(1100)))
        .await
        .unwrap();
    harness.api.server().edit(&cluster_id(), |cluster| {
        let now = k8s_openapi::jiff::Timestamp::from_second(
            k8s_openapi::jiff::Timestamp::now().as_second(),
        );
        cluster["spec"]["security"]["certificates"] = json!({"renewedAt": now.unwrap()});
    });
    harness.settle().await;
    let after = told(&harness);
    for field in ["internodeCertificate", "clientCertificate"] {
        assert_ne!(after[field]["chain"], before[field]["chain"], "{field}");
        assert_eq!(after[field]["trust"], before[field]["trust"], "{field}");
    }
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "it is signed once");
}

const PORTS: [(&str, &str); 2] =
    [("internode", "internodeCertificate"), ("client", "clientCertificate")];

/// Who signed what a node was told to show on this port, and whom it was told to trust.
fn told_on(pilot: &Value, field: &str) -> (String, Vec<String>) {
    let certificate = &pilot["spec"]["security"][field];
    let trust = certificate["trust"].as_str().unwrap_or_default();
    let trust = TrustBundle::from_pem(trust.as_bytes()).unwrap_or_default();
    let chain = certificate["chain"].as_str().unwrap_or_default();
    let by = find_authority(chain, &trust, k8s_openapi::jiff::Timestamp::now());
    (by.unwrap_or_default(), trust.key_sha256s())
}

/// Has the node's pilot do what it was told, and say so.
fn obey(harness: &Harness, node: &str) {
    let told = harness.object("pilots", node);
    let security: PilotSecurity = serde_json::from_value(told["spec"]["security"].clone()).unwrap();
    harness.api.server().edit(&id("pilots", node), |pilot| {
        let status = &mut pilot["status"]["security"];
        status["stored"] = json!(security.revision());
        if let Some(key) = security.key.as_ref().and_then(|key| kept_key(&key.sha256)) {
            replace_key(status, &security, &key);
        }
        for (port, field) in PORTS {
            let (by, trust) = told_on(&told, field);
            let shown = told["spec"]["security"][field]["chain"].as_str().unwrap_or_default();
            let Some(shown) = CertificateDetails::from_pem(shown) else { continue };
            let end = k8s_openapi::jiff::Timestamp::from_second(shown.not_after).unwrap();
            status[port] = json!({"sha256": shown.sha256, "authority": by, "notAfter": end});
            if port == "internode" {
                status[port]["trust"] = json!(trust);
            }
        }
    });
}

/// Has the node's pilot, with this key on record, make a new one where it is asked for one.
fn replace_key(status: &mut Value, security: &PilotSecurity, on_record: &PrivateKey) {
    let asked = status["request"]["newKey"]["askedAt"].clone();
    if let Some(asked_at) = &security.new_key_at {
        if asked != json!(asked_at) {
            let key = PrivateKey::generate().unwrap();
            keep_key(&key);
            let csr = KeyRequest::create(&key).unwrap();
            let proof = create_proof(on_record, &KeyRequest::from_pem(&csr).unwrap()).unwrap();
            status["request"]["newKey"] = json!({"csr": csr, "proof": proof, "askedAt": asked_at});
        }
    } else if asked != Value::Null {
        let csr = KeyRequest::create(on_record).unwrap();
        status["request"] = json!({"csr": csr, "reason": "Standing"});
    }
}

/// Settles, and lets one node after the other obey, until nothing is written any more. After each
/// write every node must trust who signed what any node was told to show, or shows.
pub(super) async fn lead_on(harness: &Harness, nodes: &[&str]) -> Vec<String> {
    let (mut messages, mut quiet): (Vec<String>, usize) = (Vec::new(), 0);
    for turn in 0..80 {
        let before = harness.writes();
        harness.settle().await;
        let valid = harness.condition("CertificatesValid");
        if valid["reason"] == "AuthorityRotating" {
            assert_eq!(valid["status"], "True", "{valid}");
            messages.push(valid["message"].as_str().unwrap().to_owned());
        }
        let pilots: Vec<_> = nodes.iter().map(|node| harness.object("pilots", node)).collect();
        // Nodes check nobody on the port of clients, so one that was given may come all at once.
        let client_is_given = harness.object("secrets", "given") != Value::Null;
        for (port, field) in
            PORTS.into_iter().filter(|(port, _)| !client_is_given || *port != "client")
        {
            // One that waits for a new key has no certificate yet.
            let signed = |one: &&Value| one["spec"]["security"][field]["chain"].is_string();
            for pilot in pilots.iter().filter(signed) {
                let (_, trust) = told_on(pilot, field);
                for other in pilots.iter().filter(signed) {
                    let (by, _) = told_on(other, field);
                    assert!(trust.contains(&by), "{port}: {trust:?} lacks {by}");
                    let shown = &other["status"]["security"][port]["authority"];
                    let is_trusted = shown.as_str().is_none_or(|by| trust.contains(&by.to_owned()));
                    assert!(is_trusted, "{port}: {trust:?} lacks {shown}");
                }
            }
        }
        quiet = if harness.writes() == before { quiet + 1 } else { 0 };
        if quiet > nodes.len() {
            return messages;
        }
        obey(harness, nodes[turn % nodes.len()]);
    }
    panic!("no end is reached: {messages:#?}");
}

/// The time in a second from now, once it is.
pub(super) async fn in_a_second() -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    let wait = || std::thread::sleep(std::time::Duration::from_millis(1100));
    tokio::task::spawn_blocking(wait).await.unwrap();
    json!(k8s_openapi::jiff::Timestamp::from_second(now + 1).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_takes_the_place_of_the_former_one_step_by_step() {
    let harness = secured(2).await;
    let nodes = ["ex-shop-a-0", "ex-shop-a-1"];
    for node in nodes {
        ask(&harness, node, &PrivateKey::generate().unwrap());
    }
    harness.settle().await;
    assert_eq!(lead_on(&harness, &nodes).await, [""; 0]);
    let (before, ca) = (told(&harness), values(&harness, "ex-shop-client-ca")["tls.crt"].clone());
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] = json!({"caRotatedAt": asked});
    });
    let messages = lead_on(&harness, &nodes).await;
    let text = messages.join("; ");
    let word = "the CA for nodes is replaced: waits for ex-shop-a-1";
    assert!(text.contains(word), "{messages:#?}");
    let (between, clients) = (values(&harness, "ex-shop-internode-ca"), "ex-shop-client-ca");
    assert_eq!(between.keys().collect::<Vec<_>>(), ["tls.crt", "tls.key"], "nothing is left");
    let after = told(&harness);
    assert_eq!(after["internodeCertificate"]["trust"], json!(between["tls.crt"]));
    assert_ne!(after["internodeCertificate"]["trust"], before["internodeCertificate"]["trust"]);

    // Clients have a day, unless the spec says otherwise.
    assert_eq!(values(&harness, clients)["tls.crt"], ca);
    let bundle = || {
        let text = harness.object("configmaps", "ex-shop-ca")["data"]["ca.crt"].clone();
        TrustBundle::from_pem(text.as_str().unwrap().as_bytes()).unwrap().key_sha256s().len()
    };
    assert_eq!(bundle(), 2, "they may learn of it");
    let by = |told: &Value| told_on(&json!({"spec": {"security": told}}), "clientCertificate").0;
    assert_eq!(by(&after), by(&before));
    let message = "the CA for clients is replaced: gives clients time to learn of the new CA";
    assert!(messages.last().unwrap().starts_with(message), "{messages:#?}");
    assert_eq!(values(&harness, "ex-shop-admin")["ca.crt"].matches("BEGIN CERT").count(), 2);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"]["caOverlap"] = json!("0s");
    });
    lead_on(&harness, &nodes).await;
    assert_ne!(values(&harness, clients)["tls.crt"], ca);
    assert_eq!(bundle(), 1);
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "one time asks for one CA");
}

#[tokio::test(start_paused = true)]
async fn a_new_ca_signs_no_key_that_others_may_have() {
    let harness = secured(2).await;
    let nodes = ["ex-shop-a-0", "ex-shop-a-1"];
    let keys = nodes.map(|_| PrivateKey::generate().unwrap());
    for (node, key) in nodes.into_iter().zip(&keys) {
        ask(&harness, node, key);
    }
    lead_on(&harness, &nodes).await;
    let former = told(&harness)["internodeCertificate"]["trust"].clone();
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] =
            json!({"caRotatedAt": asked, "caOverlap": "0s"});
    });
    // Everything that is signed from here on, for either port of either node.
    let mut by_new_ca = std::collections::BTreeSet::new();
    let mut asked_for = 0;
    // Pilots of an earlier release do all but make a key.
    let stolen = keys.each_ref().map(PrivateKey::public_key_sha256);
    KEYS.lock().unwrap().retain(|key, _| !stolen.contains(key));
    for turn in 0..90 {
        harness.settle().await;
        if turn == 30 {
            assert!(values(&harness, "ex-shop-internode-ca").contains_key("previous.crt"));
            assert!(by_new_ca.is_empty(), "{by_new_ca:?}");
            let valid = harness.condition("CertificatesValid");
            let message = valid["message"].as_str().unwrap();
            let waits = "replace their private keys: waits for ex-shop-a-0, ex-shop-a-1";
            assert!(message.contains(waits), "{message}");
            keys.iter().for_each(keep_key);
        }
        for node in nodes {
            let security = harness.object("pilots", node)["spec"]["security"].clone();
            asked_for += usize::from(security["newKeyAt"] == asked);
            for (_, field) in PORTS {
                let chain = security[field]["chain"].as_str().unwrap();
                let former = TrustBundle::from_pem(former.as_str().unwrap().as_bytes()).unwrap();
                let now = k8s_openapi::jiff::Timestamp::now();
                let is_internode = field == "internodeCertificate";
                if is_internode && find_authority(chain, &former, now).is_none() {
                    by_new_ca.insert(CertificateDetails::from_pem(chain).unwrap().key_sha256);
                }
            }
        }
        obey(&harness, nodes[turn % 2]);
    }
    assert!(asked_for > 0);
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
    assert!(stolen.iter().all(|key| !by_new_ca.contains(key)), "{by_new_ca:?}");
    assert_eq!(by_new_ca.len(), 2, "each node has one new key");
    for node in nodes {
        let security = harness.object("pilots", node)["spec"]["security"].clone();
        assert_eq!(security["newKeyAt"], Value::Null);
        assert_ne!(security["internodeCertificate"]["trust"], former);
        for (_, field) in PORTS {
            let chain = security[field]["chain"].as_str().unwrap();
            let key = CertificateDetails::from_pem(chain).unwrap().key_sha256;
            assert_eq!(json!(key), security["key"]["sha256"], "{field}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_loses_its_volume_while_keys_are_replaced_is_signed_by_the_new_ca() {
    let harness = secured(1).await;
    let key = PrivateKey::generate().unwrap();
    ask(&harness, NODE, &key);
    lead_on(&harness, &[NODE]).await;
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] =
            json!({"caRotatedAt": asked, "caOverlap": "0s"});
    });
    KEYS.lock().unwrap().remove(&key.public_key_sha256());
    for _ in 0..20 {
        harness.settle().await;
        obey(&harness, NODE);
    }
    assert!(values(&harness, "ex-shop-internode-ca").contains_key("previous.crt"));
    assert_eq!(
        told(&harness)["key"]["sha256"],
        json!(key.public_key_sha256()),
        "it waits for a new key"
    );
    let other = PrivateKey::generate().unwrap();
    harness.api.server().edit(&id("persistentvolumeclaims", "example-data-ex-shop-a-0"), |claim| {
        claim["metadata"]["uid"] = json!("another volume");
    });
    ask(&harness, NODE, &other);
    lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["key"]["sha256"], json!(other.public_key_sha256()));
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
}

#[tokio::test(start_paused = true)]
async fn keys_alone_are_replaced_and_only_by_a_proof_of_the_former_one() {
    let harness = secured(1).await;
    let key = PrivateKey::generate().unwrap();
    ask(&harness, NODE, &key);
    lead_on(&harness, &[NODE]).await;
    let before = told(&harness);
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] = json!({"keysRenewedAt": asked});
    });
    harness.settle().await;
    assert_eq!(told(&harness)["newKeyAt"], asked);
    let valid = harness.condition("CertificatesValid");
    assert_eq!((&valid["status"], &valid["reason"]), (&json!("True"), &json!("KeysRenewing")));
    assert!(valid["message"].as_str().unwrap().contains("waits for ex-shop-a-0"), "{valid}");

    // Somebody with the pod's token and without the key.
    let thief = PrivateKey::generate().unwrap();
    let csr = KeyRequest::create(&thief).unwrap();
    let proof = create_proof(&thief, &KeyRequest::from_pem(&csr).unwrap()).unwrap();
    harness.api.server().edit(&pilot(), |pilot| {
        pilot["status"]["security"]["request"]["newKey"] =
            json!({"csr": csr, "proof": proof, "askedAt": asked});
    });
    harness.settle().await;
    assert_eq!(told(&harness)["key"], before["key"]);
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "RequestRefused");
    let message = valid["message"].as_str().unwrap();
    assert!(message.starts_with("ex-shop-a-0: its new private key is not signed"), "{message}");

    harness.api.server().edit(&pilot(), |pilot| {
        pilot["status"]["security"]["request"]["newKey"] = Value::Null;
    });
    obey(&harness, NODE);
    harness.settle().await;
    let after = told(&harness);
    assert_ne!(after["key"]["sha256"], before["key"]["sha256"]);
    for (_, field) in PORTS {
        assert_eq!(after[field]["trust"], before[field]["trust"], "{field}");
        let chain = after[field]["chain"].as_str().unwrap();
        let details = CertificateDetails::from_pem(chain).unwrap();
        assert_eq!(json!(details.key_sha256), after["key"]["sha256"], "{field}");
    }
    // The pilot has not seen that yet, and is no stranger meanwhile.
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "CertificatesCurrent", "{valid}");
    lead_on(&harness, &[NODE]).await;
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "one time asks for one key");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_holds_a_new_ca_up_and_is_named() {
    let harness = secured(2).await;
    let nodes = ["ex-shop-a-0", "ex-shop-a-1"];
    for node in nodes {
        ask(&harness, node, &PrivateKey::generate().unwrap());
    }
    lead_on(&harness, &nodes).await;
    let signer = || told_on(&harness.object("pilots", NODE), "internodeCertificate").0;
    let before = signer();
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] =
            json!({"caRotatedAt": asked, "caOverlap": "0s"});
    });
    for _ in 0..20 {
        harness.settle().await;
        obey(&harness, nodes[0]);
    }
    assert_eq!(signer(), before);
    let valid = harness.condition("CertificatesValid");
    let message = valid["message"].as_str().unwrap();
    assert!(
        message.starts_with("the CA for nodes is replaced: waits for ex-shop-a-1"),
        "{message}"
    );
    assert!(message.contains("private keys: waits for ex-shop-a-1"), "{message}");
    assert!(values(&harness, "ex-shop-internode-ca").contains_key("next.key"));
    lead_on(&harness, &nodes).await;
    assert_ne!(signer(), before);
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_a_person_puts_into_the_secret_is_spread_and_a_lost_one_is_made_on_a_word() {
    let harness = secured(2).await;
    let nodes = ["ex-shop-a-0", "ex-shop-a-1"];
    for node in nodes {
        ask(&harness, node, &PrivateKey::generate().unwrap());
    }
    lead_on(&harness, &nodes).await;
    let ca = id("secrets", "ex-shop-internode-ca");
    let now = k8s_openapi::jiff::Timestamp::now();
    let given = CertificateAuthority::create("ours", now).unwrap();
    harness.api.server().edit(&ca, |secret| {
        for (key, text) in [("tls.crt", given.chain_pem()), ("tls.key", given.key_pem())] {
            secret["data"][key] = json!(ByteString(text.into_bytes()));
        }
    });
    lead_on(&harness, &nodes).await;
    let trust = told(&harness)["internodeCertificate"]["trust"].clone();
    assert_eq!(trust, json!(given.chain_pem()));

    harness.api.server().objects.remove(&ca);
    harness.settle().await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretMissing");
    assert!(valid["message"].as_str().unwrap().contains("certificates.caRotatedAt"), "{valid}");
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] = json!({"caRotatedAt": asked});
    });
    lead_on(&harness, &nodes).await;
    let made = told(&harness)["internodeCertificate"]["trust"].clone();
    assert!(made != trust && made == json!(values(&harness, &ca.1)["tls.crt"]), "{made}");
}

#[tokio::test(start_paused = true)]
async fn a_ca_of_a_persons_secret_is_taken_and_followed_and_never_written() {
    let now = k8s_openapi::jiff::Timestamp::now();
    let harness = Harness::new(1);
    harness.api.server().edit(&cluster_id(), |cluster| {
        let given = json!({"caSecret": {"name": "ours"}});
        cluster["spec"]["security"] = json!({"mode": "Secure", "internode": given});
    });
    harness.settle().await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretMissing");
    assert!(valid["message"].as_str().unwrap().starts_with("Secret ours, which is to hold"));
    assert_eq!(harness.object("secrets", "ex-shop-internode-ca"), Value::Null, "none is made");

    let given = |name: &str| {
        let authority = CertificateAuthority::create(name, now).unwrap();
        let data = [("tls.crt", authority.chain_pem()), ("tls.key", authority.key_pem())];
        (authority.chain_pem(), data.map(|(key, text)| (key, ByteString(text.into_bytes()))))
    };
    let (first, data) = given("first");
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ours", "namespace": "default"},
    });
    for (key, value) in data {
        secret["data"][key] = json!(value);
    }
    harness.api.server().add(&id("secrets", "ours"), secret);
    harness.settle().await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["internodeCertificate"]["trust"], json!(first));
    assert_ne!(told(&harness)["clientCertificate"]["trust"], json!(first));

    let (second, data) = given("second");
    for (key, value) in data {
        set(&harness, "ours", key, std::str::from_utf8(&value.0).unwrap());
    }
    let before = harness.object("secrets", "ours");
    lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["internodeCertificate"]["trust"], json!(second));
    assert_eq!(harness.object("secrets", "ours"), before);

    set(&harness, "ours", "tls.key", "none");
    harness.settle().await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretInvalid");
    assert!(valid["message"].as_str().unwrap().starts_with("Secret ours: "), "{valid}");
    assert_eq!(told(&harness)["internodeCertificate"]["trust"], json!(second), "what runs goes on");

    // The copy cannot be used any more, as when it has ended before the other came.
    let (third, data) = given("third");
    set(&harness, "ex-shop-internode-ca", "tls.key", "none");
    for (key, value) in data {
        set(&harness, "ours", key, std::str::from_utf8(&value.0).unwrap());
    }
    lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["internodeCertificate"]["trust"], json!(third));
    assert_eq!(harness.condition("CertificatesValid")["status"], "True");
}

/// That a CA is old says nothing of how long clients have been told of it.
#[tokio::test(start_paused = true)]
async fn clients_have_their_time_from_when_a_ca_came_however_old_it_is() {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    let week = std::time::Duration::from_secs(7 * 24 * 3600);
    let then = k8s_openapi::jiff::Timestamp::now() - week;
    let given = CertificateAuthority::create("ours", then).unwrap();
    for (key, text) in [("tls.crt", given.chain_pem()), ("tls.key", given.key_pem())] {
        set(&harness, "ex-shop-client-ca", key, &text);
    }
    let before = told(&harness)["clientCertificate"]["chain"].clone();
    let messages = lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["clientCertificate"]["chain"], before);
    let waits = "the CA for clients is replaced: gives clients time to learn of the new CA";
    assert!(messages.iter().any(|message| message == waits), "{messages:?}");
    let trust = values(&harness, "ex-shop-user-app")["ca.crt"].clone();
    assert!(trust.contains(&given.chain_pem()), "clients are told of it");

    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] = json!({"caOverlap": "0s"});
    });
    lead_on(&harness, &[NODE]).await;
    assert_eq!(told(&harness)["clientCertificate"]["trust"], json!(given.chain_pem()));
    let left = values(&harness, "ex-shop-client-ca");
    assert_eq!(left.keys().collect::<Vec<_>>(), ["tls.crt", "tls.key"]);
}

/// A CA that cannot be used signs nothing, and the other goes on; a word has another made.
#[tokio::test(start_paused = true)]
async fn a_ca_that_cannot_be_used_stops_the_other_nowhere_and_gives_way_to_another() {
    let harness = secured(2).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    lead_on(&harness, &[NODE]).await;
    let before = told(&harness)["clientCertificate"].clone();
    let bundle = harness.object("configmaps", "ex-shop-ca")["data"].clone();
    set(&harness, "ex-shop-client-ca", "tls.key", "none");
    ask(&harness, "ex-shop-a-1", &PrivateKey::generate().unwrap());
    harness.settle().await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretInvalid");
    assert!(
        valid["message"]
            .as_str()
            .unwrap()
            .contains("or set spec.security.certificates.caRotatedAt")
    );
    let other = harness.object("pilots", "ex-shop-a-1")["spec"]["security"].clone();
    assert_ne!(other["internodeCertificate"]["chain"], Value::Null, "it is signed for its port");
    assert_eq!(other["clientCertificate"]["chain"], Value::Null);
    assert_eq!(told(&harness)["clientCertificate"], before);
    assert_eq!(harness.object("configmaps", "ex-shop-ca")["data"], bundle);

    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] =
            json!({"caRotatedAt": asked, "caOverlap": "0s"});
    });
    tokio::task::spawn_blocking(|| std::thread::sleep(std::time::Duration::from_millis(1100)))
        .await
        .unwrap();
    lead_on(&harness, &[NODE, "ex-shop-a-1"]).await;
    let after = told(&harness)["clientCertificate"].clone();
    assert_ne!(after["trust"], before["trust"], "another CA is there");
    assert_eq!(harness.condition("CertificatesValid")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_a_persons_secret_is_shown_to_clients_by_all_nodes() {
    let now = k8s_openapi::jiff::Timestamp::now();
    let harness = secured(2).await;
    let nodes = [NODE, "ex-shop-a-1"];
    for node in nodes {
        ask(&harness, node, &PrivateKey::generate().unwrap());
    }
    lead_on(&harness, &nodes).await;
    let own = told(&harness)["clientCertificate"].clone();
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["client"] = json!({"certificateSecret": {"name": "given"}});
    });
    lead_on(&harness, &nodes).await;
    assert_eq!(harness.condition("CertificatesValid")["reason"], "SecretMissing");
    assert_eq!(told(&harness)["clientCertificate"], own, "what runs goes on");
    let bundle = || harness.object("configmaps", "ex-shop-ca")["data"]["ca.crt"].clone();
    assert_eq!(bundle(), own["trust"]);

    let authority = CertificateAuthority::create("given", now).unwrap();
    let made = |name: &str| {
        let key = PrivateKey::generate().unwrap();
        let request = KeyRequest::from_pem(&KeyRequest::create(&key).unwrap()).unwrap();
        let order = LeafOrder {
            common_name: name,
            dns_names: &[name.to_owned()],
            addresses: &[],
            usage: CertificateUse::Client,
            life: std::time::Duration::from_secs(90 * 24 * 3600),
        };
        (authority.issue_certificate(&request, &order, now).unwrap(), key)
    };
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let (chain, key) = made("db.example.org");
    harness.api.server().add(
        &id("secrets", "given"),
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "given", "namespace": "default"},
            "data": {
                "tls.crt": bytes(&chain), "tls.key": bytes(&key.to_pem()),
                "ca.crt": bytes(&authority.chain_pem()),
            },
        }),
    );
    lead_on(&harness, &nodes).await;
    let expected = json!({
        "chain": chain, "trust": authority.chain_pem(), "mountedKey": key.public_key_sha256(),
    });
    for node in nodes {
        let told = harness.object("pilots", node)["spec"]["security"].clone();
        assert_eq!(told["clientCertificate"], expected, "{node}");
    }
    assert_eq!(bundle(), expected["trust"]);
    assert_eq!(values(&harness, "ex-shop-user-app")["ca.crt"], authority.chain_pem());
    assert_eq!(values(&harness, "ex-shop-pilot")["client.key"], key.to_pem());
    let valid = harness.condition("CertificatesValid");
    let lacks = "does not cover ex-shop-nodes.default.svc";
    assert!(valid["message"].as_str().unwrap().contains(lacks), "{valid}");
    let revision = told(&harness)["users"].as_str().unwrap().to_owned();
    let pod = harness.object("pods", NODE)["metadata"]["annotations"][annotation::USERS].clone();
    assert_eq!(pod, format!("{revision}.{}", &key.public_key_sha256()[..16]), "kubelet is to look");
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes);

    // Another one in it is shown; what cannot be used is not.
    let (chain, key) = made("ex-shop-nodes.default.svc");
    set(&harness, "given", "tls.crt", &chain);
    lead_on(&harness, &nodes).await;
    assert_eq!(harness.condition("CertificatesValid")["reason"], "SecretInvalid");
    assert_eq!(told(&harness)["clientCertificate"], expected);
    set(&harness, "given", "tls.key", &key.to_pem());
    lead_on(&harness, &nodes).await;
    assert_eq!(told(&harness)["clientCertificate"]["mountedKey"], json!(key.public_key_sha256()));
    let valid = harness.condition("CertificatesValid");
    assert!(!valid["message"].as_str().unwrap().contains("does not cover"), "{valid}");

    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["client"] = Value::Null;
    });
    lead_on(&harness, &nodes).await;
    let back = told(&harness)["clientCertificate"].clone();
    assert_eq!((&back["trust"], back.get("mountedKey")), (&own["trust"], None), "{back}");
    assert_eq!(bundle(), own["trust"]);
    harness.settle().await;
    assert!(!values(&harness, "ex-shop-pilot").contains_key("client.key"));
}

#[tokio::test(start_paused = true)]
async fn clients_are_asked_for_certificates_of_the_cas_that_are_named() {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    let own = values(&harness, "ex-shop-internode-ca")["tls.crt"].clone();
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["client"] = json!({
            "clientAuth": "Required", "clientCA": {"kind": "ConfigMap", "name": "apps"},
        });
    });
    lead_on(&harness, &[NODE]).await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretMissing");
    let text = valid["message"].as_str().unwrap();
    assert!(text.starts_with("ConfigMap apps, key ca.crt, with CAs of clients: "), "{valid}");
    let now = k8s_openapi::jiff::Timestamp::now();
    let apps = CertificateAuthority::create("apps", now).unwrap().chain_pem();
    harness.api.server().add(
        &id("configmaps", "apps"),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "apps", "namespace": "default"}, "data": {"ca.crt": apps},
        }),
    );
    lead_on(&harness, &[NODE]).await;
    let clients = told(&harness)["clientCertificate"]["clients"].clone();
    assert_eq!(clients, json!(format!("{apps}{own}")), "pilots are clients, too");
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn nodes_trust_cas_of_nodes_elsewhere_beside_their_own_which_goes_its_own_way() {
    let now = k8s_openapi::jiff::Timestamp::now();
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    let own = values(&harness, "ex-shop-internode-ca")["tls.crt"].clone();
    let trust = || {
        let pem = told(&harness)["internodeCertificate"]["trust"].as_str().unwrap().to_owned();
        TrustBundle::from_pem(pem.as_bytes()).unwrap()
    };
    let made = |name: &str| CertificateAuthority::create(name, now).unwrap().chain_pem();
    let (first, second) = (made("first"), made("second"));
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["internode"] = json!({"trust": [
            {"kind": "ConfigMap", "name": "there", "key": "internode-ca.crt"},
            {"kind": "Secret", "name": "further"},
        ]});
    });
    lead_on(&harness, &[NODE]).await;
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "SecretMissing");
    let text = valid["message"].as_str().unwrap();
    assert!(text.starts_with("ConfigMap there, key internode-ca.crt"), "{valid}");
    assert_eq!(trust().to_pem(), own, "what runs goes on");

    let object = |kind: &str, name: &str| {
        json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"},
        })
    };
    let mut there = object("ConfigMap", "there");
    there["data"] = json!({"internode-ca.crt": first});
    harness.api.server().add(&id("configmaps", "there"), there);
    let mut further = object("Secret", "further");
    // Its own among them is its own all the same.
    further["data"] = json!({"ca.crt": ByteString(format!("{second}{own}").into_bytes())});
    harness.api.server().add(&id("secrets", "further"), further);
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trust().to_pem(), format!("{own}{second}"), "a Secret counts at once");
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trust().to_pem(), format!("{own}{first}{second}"));
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
    let bundle = || harness.object("configmaps", "ex-shop-ca")["data"]["internode-ca.crt"].clone();
    assert_eq!(bundle(), json!(own), "what those elsewhere are to trust");

    // Its own CA changes, and those elsewhere have time to learn of it.
    set(&harness, "further", "ca.crt", &second);
    let asked = in_a_second().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"] = json!({"caRotatedAt": asked});
    });
    let messages = lead_on(&harness, &[NODE]).await;
    let waits =
        "the CA for nodes is replaced: gives the clusters elsewhere time to trust the new CA";
    assert!(messages.last().unwrap().starts_with(waits), "{messages:#?}");
    assert_eq!(trust().key_sha256s().len(), 4);
    assert_eq!(bundle().as_str().unwrap().matches("BEGIN CERT").count(), 2);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["certificates"]["caOverlap"] = json!("0s");
    });
    lead_on(&harness, &[NODE]).await;
    let next = values(&harness, "ex-shop-internode-ca")["tls.crt"].clone();
    assert!(next != own && trust().to_pem() == format!("{next}{first}{second}"));

    // What cannot be read takes nothing away, and a source that is taken out does.
    harness.api.server().objects.remove(&id("configmaps", "there"));
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trust().key_sha256s().len(), 3);
    assert_eq!(harness.condition("CertificatesValid")["reason"], "SecretMissing");
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["internode"] = Value::Null;
    });
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trust().to_pem(), next);
}

#[tokio::test(start_paused = true)]
async fn what_people_copied_outlives_the_cluster_and_its_cas_do_not() {
    let harness = secured(1).await;
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert_eq!(harness.object("exampleclusters", "shop"), Value::Null);
    assert_eq!(
        names(&harness, "secrets"),
        ["ex-shop-admin", "ex-shop-pilot", "ex-shop-user-app"],
        "pilots of a cluster that is made again on its volumes log in as before"
    );
    assert_eq!(names(&harness, "configmaps"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_open_cluster_has_none_of_it() {
    let harness = Harness::new(1);
    harness.settle().await;
    assert_eq!(names(&harness, "secrets"), [""; 0]);
    assert_eq!(harness.object("pilots", NODE)["spec"].get("security"), None);
    assert_eq!(harness.condition("UsersReady"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn the_nodes_of_a_cluster_that_wants_none_are_told_to_close_its_logins() {
    let harness = secured(1).await;
    let hash = || harness.object("pilots", NODE)["spec"]["configHash"].clone();
    let (before, wants) = (hash(), |replicas: u32| {
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["nodePools"][0]["replicas"] = json!(replicas);
        });
    });
    assert_eq!(told(&harness)["closesLogins"], Value::Null);
    wants(0);
    harness.settle().await;
    assert_eq!(told(&harness)["closesLogins"], true);
    let pilot = harness.object("pilots", NODE);
    let mut security: PilotSecurity =
        serde_json::from_value(pilot["spec"]["security"].clone()).unwrap();
    let revision = security.revision();
    security.closes_logins = false;
    assert_eq!(security.revision(), revision, "pilots of an earlier release know nothing of it");
    assert_eq!(hash(), before, "nothing is restarted");
    wants(1);
    harness.settle().await;
    assert_eq!(told(&harness)["closesLogins"], Value::Null);
}
