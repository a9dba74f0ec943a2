//! Objects of a running cluster that lost the mark of whose they are: each stops what needs it, and all
//! else goes on. The API is scripted; keys and certificates are real.

use serde_json::{Value, json};

use super::{
    api::{Id, id},
    harness::{Harness, cluster_id},
    security::{NODE, ask, in_a_second, lead_on, secured, told, values},
};
use crate::{
    api::names::annotation,
    controller::testing::example::WITH_FILES,
    engine::pki::{CertificateAuthority, PrivateKey},
    machinery::x509::CertificateDetails,
};

const OTHER_NODE: &str = "ex-shop-a-1";
const LABEL: &str = "app.kubernetes.io/managed-by";

/// Objects that the controller makes, with one that another of them does not need.
const OBJECTS: [(&str, &str, &str); 7] = [
    ("services", "Service", "ex-shop-seeds"),
    ("services", "Service", "ex-shop-a-pods"),
    ("serviceaccounts", "ServiceAccount", "ex-shop"),
    ("roles", "Role", "ex-shop-pilot"),
    ("rolebindings", "RoleBinding", "ex-shop-pilot"),
    ("networkpolicies", "NetworkPolicy", "ex-shop"),
    ("poddisruptionbudgets", "PodDisruptionBudget", "ex-shop"),
];

/// A secured cluster that runs, with a NetworkPolicy.
async fn running() -> Harness {
    let harness = secured(2).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["network"] = json!({"policy": "Managed"});
    });
    harness.settle().await;
    harness
}

/// Takes off what says whose an object is; with the labels, no watch shows it either.
fn unmark(harness: &Harness, object: &Id, with_labels: bool) {
    harness.api.server().edit(object, |object| {
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(annotation::CLUSTER_UID)
            .unwrap();
        if with_labels {
            object["metadata"]["labels"] = json!({});
        }
    });
}

/// What the message of a condition has to say of such an object.
fn command(harness: &Harness, kind: &str, name: &str) -> String {
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let (kind, uid) = (kind.to_lowercase(), uid.as_str().unwrap().to_owned());
    format!("--overwrite {kind} {name} {}={uid}", annotation::CLUSTER_UID)
}

/// Has a node ask for its first certificates, and returns whether its key was signed.
async fn signs(harness: &Harness, node: &str) -> bool {
    let key = PrivateKey::generate().unwrap();
    ask(harness, node, &key);
    harness.settle().await;
    harness.object("pilots", node)["spec"]["security"]["key"]["sha256"]
        == json!(key.public_key_sha256())
}

#[tokio::test(start_paused = true)]
async fn an_object_without_its_mark_is_named_and_holds_up_nothing_that_does_not_need_it() {
    for (plural, kind, name) in OBJECTS {
        for with_labels in [false, true] {
            let harness = running().await;
            let object = id(plural, name);
            unmark(&harness, &object, with_labels);
            let before = harness.object(plural, name);
            // What another of the objects lost is put back.
            let (other, _, other_name) =
                if name == "ex-shop-seeds" { OBJECTS[3] } else { OBJECTS[0] };
            harness.api.server().edit(&id(other, other_name), |other| {
                other["metadata"]["labels"] = json!({(LABEL): "navigator"});
            });
            harness.enlarge("2Gi");
            assert!(signs(&harness, NODE).await, "{kind} {name}: a node is signed");
            assert_eq!(harness.object(plural, name), before, "{kind} {name} is left alone");
            let labels = &harness.object(other, other_name)["metadata"]["labels"];
            assert_eq!(labels["navigator.jetstack.io/example-cluster-name"], "shop", "{name}");
            let stalled = harness.condition("Stalled");
            assert_eq!(stalled["reason"], "ForeignObject", "{name}: {stalled}");
            let message = stalled["message"].as_str().unwrap();
            assert!(message.contains(&command(&harness, kind, name)), "{message}");
            let claim = harness.object("persistentvolumeclaims", "example-data-ex-shop-a-0");
            let size = &claim["spec"]["resources"]["requests"]["storage"];
            assert_eq!(size, "2Gi", "{kind} {name}: a step that takes no node is done");

            // A node is added, unless it could be evicted meanwhile.
            harness.scale(3);
            harness.settle().await;
            let waits = kind == "PodDisruptionBudget";
            assert_eq!(harness.replicas() == 3, !waits, "{kind} {name}");

            // A person runs the command of the message.
            let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
            harness.api.server().edit(&object, |object| {
                object["metadata"]["annotations"][annotation::CLUSTER_UID] = uid;
            });
            harness.settle().await;
            assert_eq!(harness.condition("Stalled"), Value::Null, "{name}");
            assert_eq!(harness.replicas(), json!(3), "{name}");
            assert!(harness.api.server().trespasses.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_cas_cannot_be_published_nodes_are_signed_and_no_other_ca_takes_their_place() {
    for with_labels in [false, true] {
        let harness = running().await;
        assert!(signs(&harness, NODE).await);
        let map = id("configmaps", "ex-shop-ca");
        unmark(&harness, &map, with_labels);
        let before = harness.object(&map.0, &map.1);
        assert!(signs(&harness, OTHER_NODE).await, "a node is signed");
        let valid = harness.condition("CertificatesValid");
        assert_eq!(valid["reason"], "ForeignObject");
        let message = valid["message"].as_str().unwrap();
        assert!(message.contains(&command(&harness, "ConfigMap", "ex-shop-ca")), "{message}");
        assert_eq!(harness.condition("Stalled"), Value::Null);

        // Clients could not learn of another CA.
        let nodes = [NODE, OTHER_NODE];
        lead_on(&harness, &nodes).await;
        let (between, clients) = ("ex-shop-internode-ca", "ex-shop-client-ca");
        let cas = [between, clients].map(|name| values(&harness, name)["tls.crt"].clone());
        let asked = in_a_second().await;
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["security"]["certificates"] =
                json!({"caRotatedAt": asked, "caOverlap": "0s"});
        });
        lead_on(&harness, &nodes).await;
        assert_ne!(values(&harness, between)["tls.crt"], cas[0], "the CA for nodes is replaced");
        assert_eq!(values(&harness, clients)["tls.crt"], cas[1], "the CA for clients waits");
        assert_eq!(harness.object(&map.0, &map.1), before);
        let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
        harness.api.server().edit(&map, |map| {
            map["metadata"]["annotations"][annotation::CLUSTER_UID] = uid;
        });
        lead_on(&harness, &nodes).await;
        assert_ne!(values(&harness, clients)["tls.crt"], cas[1]);
        let published = harness.object(&map.0, &map.1)["data"]["ca.crt"].clone();
        assert_eq!(published, values(&harness, clients)["tls.crt"]);
        assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_lost_its_mark_signs_on_where_its_seal_proves_whose_it_is() {
    let harness = running().await;
    let secret = id("secrets", "ex-shop-internode-ca");
    let before = values(&harness, &secret.1);
    unmark(&harness, &secret, false);
    assert!(signs(&harness, NODE).await);
    assert_eq!(values(&harness, &secret.1), before);
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let marked = harness.object(&secret.0, &secret.1)["metadata"]["annotations"].clone();
    assert_eq!(marked[annotation::CLUSTER_UID], uid, "it has its mark again");
    assert_ne!(harness.condition("CertificatesValid")["reason"], "ForeignObject");

    // Another CA without a seal is nobody's, and the CA for clients goes on.
    let now = k8s_openapi::jiff::Timestamp::now();
    let strange = CertificateAuthority::create("a stranger's", now).unwrap();
    super::security::set(&harness, &secret.1, "tls.crt", &strange.chain_pem());
    super::security::set(&harness, &secret.1, "tls.key", &strange.key_pem());
    unmark(&harness, &secret, false);
    let (kept, served) = (harness.object(&secret.0, &secret.1), told(&harness));
    assert!(signs(&harness, OTHER_NODE).await, "by the CA for clients");
    let other = harness.object("pilots", OTHER_NODE)["spec"]["security"].clone();
    assert!(other["clientCertificate"].is_object() && other["internodeCertificate"].is_null());
    assert_eq!(harness.object(&secret.0, &secret.1), kept);
    let trust = told(&harness)["internodeCertificate"]["trust"].clone();
    assert_eq!(trust, served["internodeCertificate"]["trust"], "nodes trust whom they trusted");
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "ForeignObject", "{valid}");
    let message = valid["message"].as_str().unwrap();
    assert!(message.contains(&command(&harness, "Secret", &secret.1)), "{message}");
}

#[tokio::test(start_paused = true)]
async fn users_that_lost_their_mark_are_kept_where_their_seal_proves_whose_they_are() {
    let mut harness = running().await;
    harness.database = &WITH_FILES;
    let secret = id("secrets", "ex-shop-pilot");
    harness.api.server().delete(&secret);
    harness.settle().await;
    unmark(&harness, &secret, false);
    let add = |users: Value| {
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["security"]["users"] = users;
        });
    };
    add(json!([{"name": "app"}, {"name": "more"}]));
    harness.settle().await;
    assert_eq!(super::origin::names(&harness), ["admin", "app", "more"]);
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let marked = harness.object(&secret.0, &secret.1)["metadata"]["annotations"].clone();
    assert_eq!(marked[annotation::CLUSTER_UID], uid);

    unmark(&harness, &secret, false);
    super::security::set(&harness, &secret.1, "sources.json", "[]");
    add(json!([{"name": "app"}]));
    assert!(signs(&harness, NODE).await);
    assert_eq!(super::origin::names(&harness), ["admin", "app", "more"], "it is not written");
    let ready = harness.condition("UsersReady");
    assert_eq!(ready["reason"], "ForeignObject", "{ready}");
}

#[tokio::test(start_paused = true)]
async fn addresses_of_a_service_that_lost_its_mark_stand_in_no_new_certificate() {
    let harness = running().await;
    let service = id("services", "ex-shop-nodes");
    harness.api.server().edit(&service, |service| {
        service["status"]["loadBalancer"]["ingress"] = json!([{"hostname": "far.example.org"}]);
    });
    let holds = |node: &str| {
        let told = harness.object("pilots", node)["spec"]["security"].clone();
        let chain = told["clientCertificate"]["chain"].as_str().unwrap().to_owned();
        let names = CertificateDetails::from_pem(&chain).unwrap().names;
        assert!(names.contains(&"ex-shop-nodes.default.svc".to_owned()), "{names:?}");
        names.contains(&"far.example.org".to_owned())
    };
    assert!(signs(&harness, NODE).await && holds(NODE));
    unmark(&harness, &service, false);
    assert!(signs(&harness, OTHER_NODE).await && !holds(OTHER_NODE));
    assert!(holds(NODE), "a certificate stays as it is");
}

#[tokio::test(start_paused = true)]
async fn without_its_stateful_set_a_cluster_does_no_step_and_signs_on() {
    for with_labels in [false, true] {
        let harness = running().await;
        let set = id("statefulsets", "ex-shop-a");
        unmark(&harness, &set, with_labels);
        let before = harness.object(&set.0, &set.1);
        harness.api.server().edit(&id("services", "ex-shop-seeds"), |service| {
            service["metadata"]["labels"] = json!({(LABEL): "navigator"});
        });
        harness.scale(3);
        assert!(signs(&harness, NODE).await, "a node is signed");
        assert_eq!(harness.object(&set.0, &set.1), before);
        let labels = &harness.object("services", "ex-shop-seeds")["metadata"]["labels"];
        assert_eq!(labels["navigator.jetstack.io/example-cluster-name"], "shop");
        let stalled = harness.condition("Stalled");
        assert_eq!(stalled["reason"], "ForeignObject");
        let message = stalled["message"].as_str().unwrap();
        assert!(message.contains(&command(&harness, "StatefulSet", "ex-shop-a")), "{message}");
        assert!(harness.api.server().trespasses.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_password_of_another_clusters_user_is_not_taken_for_a_user_that_is_added() {
    let harness = running().await;
    let (other, mut cluster) = ("shop-user", harness.object("exampleclusters", "shop"));
    cluster["metadata"] = json!({"name": other, "namespace": "default"});
    cluster["spec"]["security"] = json!({"mode": "Secure"});
    cluster.as_object_mut().unwrap().remove("status");
    harness.api.server().add(&id("exampleclusters", other), cluster);
    harness.beside(other).settle().await;
    let secret = harness.object("secrets", "ex-shop-user-admin");
    assert!(!secret.is_null());
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["users"] = json!([{"name": "admin"}, {"name": "app"}]);
    });
    assert!(signs(&harness, NODE).await);
    assert_eq!(harness.object("secrets", "ex-shop-user-admin"), secret);
    let ready = harness.condition("UsersReady");
    assert_eq!(ready["reason"], "NameConflict", "{ready}");
    assert!(ready["message"].as_str().unwrap().contains("\"shop-user\""), "{ready}");
    let names = super::origin::names(&harness);
    assert_eq!(names, ["admin", "app"], "the administrator and the other user");
    assert!(harness.api.server().trespasses.is_empty());
}
