//! CAs of nodes elsewhere that come from a ConfigMap: who may write that is no node yet. The API is
//! scripted; CAs are real.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{Id, id},
    harness::{Harness, cluster_id},
    security::{NODE, ask, lead_on, secured, told, values},
};
use crate::{
    engine::pki::{CertificateAuthority, PrivateKey, TrustBundle},
    machinery::x509::CertificateDetails,
};

const BUNDLE: &str = "internode-ca.crt";

fn map() -> Id {
    id("configmaps", "there")
}

fn new_ca(name: &str) -> String {
    CertificateAuthority::create(name, k8s_openapi::jiff::Timestamp::now()).unwrap().chain_pem()
}

fn trust_map(harness: &Harness, name: &str) {
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["security"]["internode"] =
            json!({"trust": [{"kind": "ConfigMap", "name": name, "key": BUNDLE}]});
    });
}

fn add_map(harness: &Harness, pem: &str) {
    harness.api.server().add(
        &map(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {BUNDLE: pem},
            "metadata": {"name": "there", "namespace": "default"},
        }),
    );
}

/// The CAs that the node was told to trust between nodes.
fn trusted(harness: &Harness) -> String {
    let pem =
        told(harness)["internodeCertificate"]["trust"].as_str().unwrap_or_default().to_owned();
    TrustBundle::from_pem(pem.as_bytes()).unwrap_or_default().to_pem()
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

/// A secured cluster of one node that is signed.
async fn signed() -> Harness {
    let harness = secured(1).await;
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    lead_on(&harness, &[NODE]).await;
    harness
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_is_new_in_a_config_map_is_trusted_once_that_has_stayed_for_a_minute() {
    let harness = signed().await;
    let (own, first, second) = (trusted(&harness), new_ca("first"), new_ca("second"));
    add_map(&harness, &first);
    trust_map(&harness, "there");
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trusted(&harness), own);
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["status"], "True", "{valid}");
    let sha256 = CertificateDetails::from_pem(&first).unwrap().sha256;
    assert!(valid["message"].as_str().unwrap().contains(&sha256), "{valid}");
    pass(59).await;
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trusted(&harness), own);
    // A controller that starts again waits again.
    let restarted = harness.copy();
    pass(1).await;
    lead_on(&restarted, &[NODE]).await;
    assert_eq!(trusted(&restarted), own);
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trusted(&harness), format!("{own}{first}"));
    let events = harness.api.server().events.clone();
    let notes = events.iter().filter(|(reason, _)| reason == "AuthorityTrusted").map(|one| &one.1);
    let note = format!(
        "nodes trust the CA with SHA-256 {sha256} of ConfigMap there, key internode-ca.crt"
    );
    assert_eq!(notes.collect::<Vec<_>>(), [&note]);

    // Nothing is held back of what nodes were told already, and each change begins the minute.
    for _ in 0..3 {
        harness.api.server().edit(&map(), |map| map["data"][BUNDLE] = json!(second));
        lead_on(&harness, &[NODE]).await;
        assert_eq!(trusted(&harness), own, "what is taken out is trusted no more");
        harness.api.server().edit(&map(), |map| {
            map["data"][BUNDLE] = json!(format!("{first}{second}"));
        });
        pass(50).await;
        lead_on(&harness, &[NODE]).await;
        assert_eq!(trusted(&harness), own);
    }
    pass(60).await;
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trusted(&harness), format!("{own}{first}{second}"));
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_is_there_for_a_moment_at_each_look_is_never_trusted() {
    let harness = signed().await;
    let (own, strange) = (trusted(&harness), new_ca("a stranger's"));
    add_map(&harness, &own);
    trust_map(&harness, "there");
    lead_on(&harness, &[NODE]).await;
    for _ in 0..5 {
        // Between two looks somebody puts it back.
        harness.api.server().edit(&map(), |map| map["data"][BUNDLE] = json!(own));
        harness.api.server().edit(&map(), |map| {
            map["data"][BUNDLE] = json!(format!("{own}{strange}"));
        });
        harness.settle().await;
        assert_eq!(trusted(&harness), own);
        pass(60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_config_map_of_another_cluster_counts_as_that_cluster_tells_its_nodes() {
    let harness = signed().await;
    let mut cluster = harness.object("exampleclusters", "shop");
    cluster["metadata"] = json!({"name": "eu", "namespace": "default"});
    cluster.as_object_mut().unwrap().remove("status");
    harness.api.server().add(&id("exampleclusters", "eu"), cluster);
    let other = harness.beside("eu");
    other.settle().await;
    ask(&other, "ex-eu-a-0", &PrivateKey::generate().unwrap());
    other.settle().await;
    let (own, theirs) =
        (trusted(&harness), values(&harness, "ex-eu-internode-ca")["tls.crt"].clone());
    let map = id("configmaps", "ex-eu-ca");
    let strange = new_ca("a stranger's");
    harness.api.server().edit(&map, |map| {
        map["data"][BUNDLE] = json!(format!("{theirs}{strange}"));
    });
    trust_map(&harness, "ex-eu-ca");
    for _ in 0..3 {
        lead_on(&harness, &[NODE]).await;
        assert_eq!(trusted(&harness), own);
        pass(60).await;
    }
    let valid = harness.condition("CertificatesValid");
    assert_eq!(valid["reason"], "TrustNotConfirmed", "{valid}");
    let message = valid["message"].as_str().unwrap();
    let sha256 = CertificateDetails::from_pem(&strange).unwrap().sha256;
    assert!(message.contains(&sha256) && message.contains("ExampleCluster eu"), "{message}");

    // Its controller puts back what it tells its nodes.
    other.settle().await;
    lead_on(&harness, &[NODE]).await;
    pass(60).await;
    lead_on(&harness, &[NODE]).await;
    assert_eq!(trusted(&harness), format!("{own}{theirs}"));
    assert_eq!(harness.condition("CertificatesValid")["reason"], "CertificatesCurrent");
}

#[tokio::test(start_paused = true)]
async fn the_first_nodes_wait_until_those_elsewhere_are_trusted() {
    let harness = secured(1).await;
    add_map(&harness, &new_ca("there"));
    trust_map(&harness, "there");
    ask(&harness, NODE, &PrivateKey::generate().unwrap());
    harness.settle().await;
    assert_eq!(told(&harness)["internodeCertificate"], Value::Null);
    let published = harness.object("configmaps", "ex-shop-ca")["data"][BUNDLE].clone();
    assert_eq!(published, values(&harness, "ex-shop-internode-ca")["tls.crt"], "for the others");
    pass(60).await;
    harness.settle().await;
    let there = harness.object("configmaps", "there")["data"][BUNDLE].clone();
    assert!(trusted(&harness).ends_with(there.as_str().unwrap()));
}
