//! Tests of encryption and logins that are turned on and off while the database serves. The API is
//! scripted, and so are pilots.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    api::id,
    harness::{Harness, cluster_id},
};
use crate::{
    api::v1beta1::SecurityRungs,
    controller::{security_round::engine_modes, testing::example::SWITCHING},
    engine::ladder::{LadderRung, SecurityPosture},
};

const NODES: [&str; 3] = ["ex-shop-a-0", "ex-shop-a-1", "ex-shop-a-2"];

fn rungs(harness: &Harness, node: &str, field: &str) -> SecurityRungs {
    let pilot = harness.object("pilots", node);
    let at = if field == "told" {
        &pilot["spec"]["security"]
    } else {
        &pilot["status"]["security"]["rungs"]
    };
    serde_json::from_value(at.clone()).unwrap_or_default()
}

fn words(rungs: &SecurityRungs) -> String {
    let SecurityRungs { internode, client, authentication } = rungs;
    format!("{internode} {client} {authentication}")
}

/// Lets the cluster come to rest. At each moment all nodes go together, whichever of them start anew.
/// Returns on which rungs each node runs in the end.
async fn rest(harness: &Harness) -> [String; 3] {
    let mut quiet = 0;
    for _ in 0..200 {
        let before = harness.caches();
        harness.reconcile().await;
        harness.kubelet();
        let mut all: Vec<SecurityPosture> = Vec::new();
        for node in NODES {
            let both =
                ["told", "runs"].map(|field| engine_modes(&rungs(harness, node, field)).unwrap());
            all.extend(both);
        }
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let near = a.internode.mode_rank().abs_diff(b.internode.mode_rank()) <= 1
                && a.client.mode_rank().abs_diff(b.client.mode_rank()) <= 1;
            assert!(near, "{all:#?}");
        }
        quiet = if harness.caches() == before { quiet + 1 } else { 0 };
        if quiet == 2 {
            return NODES.map(|node| words(&rungs(harness, node, "runs")));
        }
    }
    panic!("the cluster does not come to rest");
}

fn edit(harness: &Harness, change: impl FnOnce(&mut Value)) {
    harness.api.server().edit(&cluster_id(), |cluster| change(&mut cluster["spec"]));
}

/// Has each node say something of its security.
fn say(harness: &Harness, field: &str, value: impl Fn(&Value) -> Value) {
    for node in NODES {
        harness.api.server().edit(&id("pilots", node), |pilot| {
            let said = value(pilot);
            pilot["status"]["security"][field] = said;
        });
    }
}

/// What the operation waits for: its type, a predicate and the way out.
fn held(harness: &Harness) -> (String, String, String) {
    let status = harness.object("exampleclusters", "shop")["status"].clone();
    let operation = &status["operation"];
    let block = &operation["blockedBy"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&operation["type"]), text(&block["predicate"]), text(&block["hint"]))
}

/// What the cluster says that all of its nodes run at least.
fn lowest(harness: &Harness) -> String {
    let status = harness.object("exampleclusters", "shop")["status"].clone();
    words(&serde_json::from_value(status["security"]["rungs"].clone()).unwrap())
}

fn on_all(words: &str) -> [String; 3] {
    NODES.map(|_| words.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_running_cluster_is_secured_in_three_rounds_and_opened_in_three() {
    let harness = Harness::new(3);
    assert_eq!(rest(&harness).await, on_all("Off Off Off"));
    let first = harness.object("pods", NODES[0])["metadata"]["uid"].clone();

    edit(&harness, |spec| spec["security"] = json!({"mode": "Secure"}));
    assert_eq!(rest(&harness).await, on_all("Allow Optional Off"));
    assert_eq!(lowest(&harness), "Allow Optional Off");
    assert_ne!(harness.object("pods", NODES[0])["metadata"]["uid"], first);
    let volumes = harness.object("pods", NODES[0])["spec"]["volumes"].to_string();
    assert!(
        volumes.contains("ex-shop-pilot"),
        "users are mounted before anybody is asked: {volumes}"
    );
    let (operation, predicate, hint) = held(&harness);
    assert_eq!((operation.as_str(), predicate.as_str()), ("Secure", "RolesReplicated"));
    assert_eq!(hint, "wait");
    let secured = harness.condition("Secured");
    assert_eq!(secured["reason"], "SecurityInProgress");
    assert!(secured["message"].as_str().unwrap().starts_with("RolesReplicated: ex-shop-a-0"));

    say(&harness, "users", |pilot| pilot["spec"]["security"]["users"].clone());
    assert_eq!(rest(&harness).await, on_all("Allow Optional Off"));
    let (_, predicate, hint) = held(&harness);
    assert_eq!(predicate, "ClientsSendLogins");
    assert!(hint.contains("add ClientsSendLogins to spec.updateStrategy.skipPredicates"), "{hint}");

    edit(&harness, |spec| {
        spec["updateStrategy"] = json!({"skipPredicates": ["ClientsSendLogins"]});
    });
    assert_eq!(rest(&harness).await, on_all("Prefer Optional Password"));
    // What no pilot says is not taken for nothing.
    assert_eq!(held(&harness).1, "ClientsEncrypted");
    say(&harness, "clients", |_| json!({"tls": 1, "plain": 2, "plainFrom": ["10.0.0.9"]}));
    assert_eq!(rest(&harness).await, on_all("Prefer Optional Password"));
    let secured = harness.condition("Secured")["message"].clone();
    assert_eq!(secured, "ClientsEncrypted: ex-shop-a-0: 2 connections without TLS, from 10.0.0.9");
    say(&harness, "clients", |_| json!({"tls": 3, "plain": 0}));
    assert_eq!(rest(&harness).await, on_all("Required Required Password"));
    assert_eq!(lowest(&harness), "Required Required Password");
    let last = id("pilots", NODES[2]);
    let stays = harness.copy();
    stays.api.server().edit(&last, |pilot| {
        pilot["status"]["security"]["rungs"] =
            json!({"internode": "Prefer", "client": "Required", "authentication": "Password"});
    });
    stays.reconcile().await;
    assert_eq!(lowest(&stays), "Prefer Required Password");
    let operation = &harness.object("exampleclusters", "shop")["status"]["operation"];
    assert_eq!(*operation, Value::Null);

    edit(&harness, |spec| spec["security"] = json!({"mode": "Open"}));
    assert_eq!(rest(&harness).await, on_all("Allow Optional Off"));
    assert_eq!(held(&harness).1, "ClientsPlain");
    say(&harness, "clients", |_| json!({"tls": 0, "plain": 4}));
    assert_eq!(rest(&harness).await, on_all("Off Off Off"));
    for node in NODES {
        assert_eq!(harness.object("pilots", node)["spec"].get("security"), None);
        let volumes = harness.object("pods", node)["spec"]["volumes"].to_string();
        assert!(!volumes.contains("ex-shop-pilot"), "{volumes}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_in_the_middle_of_a_round_has_a_way_back() {
    let harness = Harness::new(3);
    rest(&harness).await;
    edit(&harness, |spec| {
        spec["security"] = json!({"mode": "Secure"});
        spec["updateStrategy"] =
            json!({"skipPredicates": ["ClientsSendLogins", "ClientsEncrypted", "ClientsPlain"]});
    });
    // Until one node is on the first rung, and the others are not.
    for _ in 0..50 {
        harness.reconcile().await;
        harness.kubelet();
        let on = NODES.map(|node| words(&rungs(&harness, node, "runs")));
        if on.iter().filter(|on| on.starts_with("Allow")).count() == 1 {
            break;
        }
    }
    let on = NODES.map(|node| words(&rungs(&harness, node, "runs")));
    assert_eq!(on.iter().filter(|on| on.starts_with("Off")).count(), 2, "{on:?}");
    edit(&harness, |spec| spec["security"] = json!({"mode": "Open"}));
    assert_eq!(rest(&harness).await, on_all("Off Off Off"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_made_on_the_way_is_on_the_rungs_of_the_others() {
    let harness = Harness::new(2);
    harness.settle().await;
    edit(&harness, |spec| spec["security"] = json!({"mode": "Secure"}));
    harness.settle().await;
    harness.scale(3);
    assert_eq!(rest(&harness).await, on_all("Allow Optional Off"));
}

/// A cluster of two pools whose nodes change at once, on these settings of security.
async fn switching(security: Value) -> Harness {
    let mut harness = Harness::new(2);
    harness.database = &SWITCHING;
    edit(&harness, |spec| {
        let mut second = spec["nodePools"][0].clone();
        second["name"] = json!("b");
        spec["nodePools"].as_array_mut().unwrap().push(second);
        spec["security"] = security;
        spec["updateStrategy"] = json!({"skipPredicates": ["KeepsServing"]});
    });
    switched(&harness).await;
    harness
}

/// Lets the cluster come to rest. At no moment do two nodes run that cannot talk to each other. Returns on
/// which rungs the nodes run in the end, and with which heap, if all are alike.
async fn switched(harness: &Harness) -> (String, Value) {
    let pilots = || -> Vec<Value> { harness.api.server().of("pilots").cloned().collect() };
    let runs = |pilot: &Value| -> (String, Value) {
        let rungs = serde_json::from_value(pilot["status"]["security"]["rungs"].clone());
        (words(&rungs.unwrap_or_default()), pilot["spec"]["jvm"]["heap"].clone())
    };
    let mut quiet = 0;
    for _ in 0..100 {
        let before = harness.caches();
        harness.reconcile().await;
        harness.kubelet();
        let up = pilots().into_iter().filter(|pilot| pilot["status"]["phase"] == "Running");
        let up = up.filter(|pilot| {
            let name = pilot["metadata"]["name"].as_str().unwrap();
            let conditions = pilot["status"]["conditions"].as_array().unwrap();
            let has_left = conditions.iter().any(|one| one["type"] == "Decommissioned");
            !has_left && harness.object("pods", name).is_object()
        });
        let up: BTreeSet<String> = up.map(|pilot| runs(&pilot).0).collect();
        assert!(up.len() <= 1, "nodes that cannot talk run together: {up:?}");
        quiet = if harness.caches() == before { quiet + 1 } else { 0 };
        if quiet == 2 {
            let mut all: Vec<_> = pilots().iter().map(runs).collect();
            all.dedup();
            assert_eq!(all.len(), 1, "{all:?}");
            return all.remove(0);
        }
    }
    let server = harness.api.server();
    panic!("the cluster does not come to rest: {:#?}", server.writes.iter().rev().take(12));
}

const ON: &str = "Required Required Password";
const OFF: &str = "Off Off Off";

#[tokio::test(start_paused = true)]
async fn all_pools_of_a_cluster_that_changes_at_once_are_told_before_one_starts() {
    let harness = switching(json!({"mode": "Open"})).await;
    edit(&harness, |spec| spec["security"] = json!({"mode": "Secure"}));
    assert_eq!(switched(&harness).await.0, ON);
    edit(&harness, |spec| spec["security"] = json!({"mode": "Open"}));
    assert_eq!(switched(&harness).await.0, OFF);
}

#[tokio::test(start_paused = true)]
async fn what_else_an_edit_changes_comes_with_the_nodes_that_change_at_once() {
    let asks = json!({"mode": "Secure", "client": {
        "clientAuth": "Required", "clientCA": {"kind": "ConfigMap", "name": "cas", "key": "ca.crt"},
    }});
    let harness = switching(asks).await;
    edit(&harness, |spec| spec["security"] = json!({"mode": "Open"}));
    assert_eq!(switched(&harness).await.0, OFF, "the word that clients show certificates");
    edit(&harness, |spec| {
        spec["security"] = json!({"mode": "Secure"});
        spec["jvm"] = json!({"heap": "2Gi"});
    });
    assert_eq!(switched(&harness).await, (ON.to_owned(), json!("2Gi")));
}

#[tokio::test(start_paused = true)]
async fn another_version_and_a_pool_that_leaves_come_before_nodes_change_at_once() {
    let harness = switching(json!({"mode": "Open"})).await;
    edit(&harness, |spec| {
        spec["security"] = json!({"mode": "Secure"});
        spec["version"] = json!("5.0.7");
    });
    // As long as a node runs the former version, all are on the former rungs.
    let mut mixed = 0;
    for _ in 0..100 {
        harness.reconcile().await;
        harness.kubelet();
        let pilots: Vec<Value> = harness.api.server().of("pilots").cloned().collect();
        if pilots.iter().all(|pilot| pilot["spec"]["version"] == "5.0.7") {
            break;
        }
        mixed += 1;
        assert!(pilots.iter().all(|pilot| pilot["spec"].get("security").is_none()));
        assert!(pilots.iter().all(|pilot| pilot["spec"]["phase"] != "Stopped"), "{pilots:#?}");
    }
    assert!(mixed > 2, "{mixed}");
    assert_eq!(switched(&harness).await.0, ON);
    edit(&harness, |spec| {
        spec["security"] = json!({"mode": "Open"});
        spec["nodePools"].as_array_mut().unwrap().pop();
    });
    assert_eq!(switched(&harness).await.0, OFF);
    assert_eq!(harness.api.server().of("pilots").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_canary_is_not_ended_by_nodes_that_change_at_once() {
    let harness = switching(json!({"mode": "Open"})).await;
    edit(&harness, |spec| {
        spec["updateStrategy"]["canary"] = json!({"replicas": 1});
        spec["jvm"] = json!({"heap": "2Gi"});
    });
    harness.settle().await;
    edit(&harness, |spec| spec["security"] = json!({"mode": "Secure"}));
    harness.settle().await;
    let heaps = |harness: &Harness| -> Vec<Value> {
        let server = harness.api.server();
        server.of("pilots").map(|pilot| pilot["spec"]["jvm"]["heap"].clone()).collect()
    };
    let new = heaps(&harness).iter().filter(|heap| **heap == "2Gi").count();
    assert_eq!(new, 1, "{:?}", heaps(&harness));
    assert_eq!(held(&harness).1, "CanaryHeld");
    edit(&harness, |spec| drop(spec["updateStrategy"].as_object_mut().unwrap().remove("canary")));
    assert_eq!(switched(&harness).await, (ON.to_owned(), json!("2Gi")));
}
