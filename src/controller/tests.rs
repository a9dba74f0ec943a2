//! Tests of whole reconciles against a scripted API: what is written, what never is, and that the
//! next reconcile repairs one that was cut off anywhere.

mod administrator;
mod api;
mod deletion;
mod doubtful_objects;
mod drains;
mod foreign_claims;
mod harness;
mod left_out;
mod origin;
mod pins;
mod refusals;
mod security;
mod security_rounds;
mod term;
mod trust;
mod two_clusters;
mod user_secrets;
mod vacate;
mod volumes;

use std::collections::BTreeSet;

use k8s_openapi::{api::apps::v1::StatefulSet, jiff::Timestamp};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use self::{
    api::{Fault, id},
    harness::{Harness, cluster_id},
};
use super::{context::ControllerContext, pilot_lifecycle::check_all, queue::ReconcileOutcome};
use crate::{
    api::names::{FINALIZER_TEARDOWN, annotation},
    runtime::leader::LeaderClaim,
};

/// Objects of a cluster without its Pilots, pods and claims.
const OBJECTS: [(&str, &str); 8] = [
    ("poddisruptionbudgets", "ex-shop"),
    ("rolebindings", ""),
    ("roles", ""),
    ("serviceaccounts", ""),
    ("services", "ex-shop-a-pods"),
    ("services", "ex-shop-nodes"),
    ("services", "ex-shop-seeds"),
    ("statefulsets", "ex-shop-a"),
];

#[tokio::test(start_paused = true)]
async fn a_new_cluster_gets_every_object_once_and_then_nothing_is_written() {
    let harness = Harness::new(2);
    harness.settle().await;
    check_objects(&harness);
    assert_eq!(harness.condition("Ready")["status"], "True");

    let writes = harness.writes();
    for _ in 0..3 {
        assert_eq!(harness.reconcile().await, Some((ReconcileOutcome::Settled, "ok")));
    }
    assert_eq!(harness.writes(), writes, "an idle cluster is not written");
}

#[tokio::test(start_paused = true)]
async fn only_a_namespace_that_is_being_deleted_is_told_that_its_pods_are_gone() {
    let harness = Harness::new(1);
    let leads = || watch::channel(LeaderClaim::for_single_process()).1;
    let written = || {
        let conditions = &harness.object("namespaces", "default")["status"]["conditions"];
        conditions.as_array().into_iter().flatten().any(|c| c["status"] == "True")
    };
    super::namespace_termination::report_emptied(&harness.context(&[], leads()), "default")
        .await
        .unwrap();
    assert!(!written());

    harness.api.server().edit(&id("namespaces", "default"), |namespace| {
        namespace["metadata"]["finalizers"] = json!(["kubernetes"]);
        namespace["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let deposed = watch::channel(LeaderClaim::Lost).1;
    assert!(
        super::namespace_termination::report_emptied(&harness.context(&[], deposed), "default")
            .await
            .is_err()
    );
    assert!(!written(), "a former leader writes nothing");
    super::namespace_termination::report_emptied(&harness.context(&[], leads()), "default")
        .await
        .unwrap();
    assert!(written());

    super::namespace_termination::report_emptied(&harness.context(&[], leads()), "gone")
        .await
        .unwrap();
}

fn check_objects(harness: &Harness) {
    let server = harness.api.server();
    let mut found: Vec<_> = server.objects.keys().cloned().collect();
    found.retain(|(plural, _)| {
        let others = ["controllerrevisions", "exampleclusters", "namespaces", "pods"];
        plural != "persistentvolumeclaims" && !others.contains(&plural.as_str())
    });
    let pilots = [("pilots", "ex-shop-a-0"), ("pilots", "ex-shop-a-1")];
    let mut wanted: Vec<_> = OBJECTS.into_iter().chain(pilots).collect();
    wanted.sort_unstable();
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for ((plural, name), (wanted, called)) in found.iter().zip(wanted) {
        assert_eq!(plural, wanted);
        assert!(called.is_empty() || name == called, "{plural}/{name}");
        let object = &server.objects[&(plural.clone(), name.clone())];
        assert_eq!(object["metadata"]["annotations"][annotation::STORE_ID], harness::STORE);
        // A Pilot is in one store with its cluster, which owns it; objects in Kubernetes have no
        // such owner.
        let uid = "exampleclusters/shop#1";
        assert_eq!(object["metadata"]["annotations"][annotation::CLUSTER_UID], uid);
        let owner = if plural == "pilots" { json!(uid) } else { Value::Null };
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], owner, "{plural}/{name}");
    }
    let creations: Vec<_> = server
        .writes
        .iter()
        .filter(|write| write.starts_with("POST") || write.contains("PATCH statefulsets"))
        .collect();
    // The StatefulSet is made empty, in three writes, and grows twice; each Pilot is made once.
    assert_eq!(creations.len(), 3 + 2 + 2, "{creations:#?}");
}

#[tokio::test(start_paused = true)]
async fn the_status_names_the_pilot_that_leads_and_only_by_the_clusters_own_lease() {
    let harness = Harness::new(1);
    harness.settle().await;
    let lease = id("leaderleases", "example-shop-leaderelection");
    let owner = |uid: &str| json!({"kind": "ExampleCluster", "name": "shop", "uid": uid});
    harness.api.server().add(
        &lease,
        json!({
            "apiVersion": "navigator.jetstack.io/v1beta1",
            "kind": "LeaderLease",
            "metadata": {
                "name": lease.1, "namespace": "default", "ownerReferences": [owner("another")],
            },
            "spec": {"holderIdentity": "ex-shop-a-0"},
        }),
    );
    let leader = || harness.object("exampleclusters", "shop")["status"]["leader"].clone();
    harness.settle().await;
    assert_eq!(leader(), Value::Null);
    let ours = owner("exampleclusters/shop#1");
    harness.api.server().edit(&lease, |lease| lease["metadata"]["ownerReferences"][0] = ours);
    harness.settle().await;
    assert_eq!(leader(), "ex-shop-a-0");
    harness.api.server().edit(&lease, |lease| lease["spec"]["holderIdentity"] = json!(""));
    harness.settle().await;
    assert_eq!(leader(), Value::Null, "it was given up");
}

/// The life of a cluster: it has two nodes, three, larger volumes, one node, and is deleted.
const LIFE: [fn(&Harness); 5] = [
    |_| {},
    |harness| harness.scale(3),
    |harness| harness.enlarge("2Gi"),
    |harness| harness.scale(1),
    |harness| harness.api.server().delete(&cluster_id()),
];

mod searches {
    use super::*;
    use crate::testing::search_cases;

    #[tokio::test(start_paused = true)]
    async fn wherever_a_look_ends_the_next_ones_come_to_the_same_state() {
        let clean = Harness::new(2);
        let mut all = BTreeSet::new();
        for (chapter, change) in LIFE.into_iter().enumerate() {
            clean.api.server().writes.clear();
            let before = clean.copy();
            change(&clean);
            clean.settle().await;
            let (wanted, writes) = (clean.state(), clean.api.server().writes.clone());
            for (at, fault) in search_cases(Fault::all(writes.len()), Fault::APART) {
                let write = &writes[at];
                let harness = before.copy();
                harness.api.server().fault = Some((at, fault));
                change(&harness);
                harness.settle().await;
                if fault == Fault::Forbidden && write.contains("persistentvolumeclaims") {
                    // Whether a claim can grow is asked again after a minute.
                    tokio::time::advance(Duration::from_secs(61)).await;
                    harness.settle().await;
                }
                assert!(harness.writes() > at, "the fault was met");
                assert_eq!(
                    harness.state(),
                    wanted,
                    "{fault:?} at {write}, {at} of chapter {chapter}"
                );
            }
            all.extend(writes.iter().filter_map(|write| Some(write.split_once('/')?.0.to_owned())));
        }
        for kind in ["persistentvolumeclaims", "pilots", "statefulsets"] {
            assert!(all.contains(&format!("DELETE {kind}")), "{all:?}");
        }
        assert!(all.contains("PATCH persistentvolumeclaims"), "{all:?}");
        let deletes = clean.api.server().deletes.clone();
        let exact = |said: &Value| said["uid"].is_string() && said["resourceVersion"].is_string();
        assert!(!deletes.is_empty() && deletes.iter().all(exact), "{deletes:#?}");
        assert!(clean.object("exampleclusters", "shop").is_null(), "the cluster is let go");
        let claims = clean.api.server().of("persistentvolumeclaims").count();
        assert_eq!(claims, 0, "its claim goes with it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_former_leader_that_comes_late_resizes_nothing() {
    let clean = Harness::new(2);
    clean.settle().await;
    let writes = clean.api.server().writes.clone();
    let of_set = |number: &usize| writes[*number].contains(" statefulsets/");
    let numbers: Vec<usize> = (0..writes.len()).filter(of_set).collect();
    assert!(numbers.len() > 2, "{writes:#?}");
    for number in numbers {
        let harness = Harness::new(2);
        harness.api.server().fault = Some((number, Fault::CrashBefore));
        harness.settle().await;
        let (before, pods) = (harness.replicas(), harness.pods());
        assert_eq!(before, 2);
        harness.api.server().carry_out_late();
        harness.kubelet();
        assert_eq!((harness.replicas(), harness.pods()), (before, pods), "{}", writes[number]);
    }
}

#[tokio::test(start_paused = true)]
async fn caches_that_lag_behind_end_in_conflicts_and_change_nothing() {
    let harness = Harness::new(2);
    let mut pasts = vec![harness.caches()];
    for _ in 0..12 {
        harness.reconcile().await;
        harness.kubelet();
        pasts.push(harness.caches());
    }
    harness.settle().await;
    let settled = harness.state();
    for past in pasts {
        harness.reconcile_with(&past).await;
        harness.settle().await;
        assert_eq!(harness.state(), settled);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_no_events_holds_nothing_up() {
    let harness = Harness::new(1);
    harness.api.server().events_refused = true;
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

fn service(name: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name, "namespace": "default", "labels": {}, "ownerReferences": owner,
        },
        "spec": {"clusterIP": "10.0.0.1"},
    })
}

fn stateful_set(owner: &Value) -> Value {
    let mut set = json!(StatefulSet::default());
    set["metadata"] = json!({
        "name": "ex-shop-a", "namespace": "default", "ownerReferences": owner,
    });
    set["spec"] = json!({
        "replicas": 3,
        "serviceName": "theirs",
        "selector": {},
        "template": {"spec": {"containers": []}},
    });
    set
}

#[tokio::test(start_paused = true)]
async fn an_object_of_somebody_else_is_never_adopted_nor_changed() {
    let nobody = json!([]);
    let other = json!([{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "x", "uid": "x",
        "controller": true,
    }]);
    // The reference names our cluster, but not as controller.
    let named = json!([{
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ExampleCluster",
        "name": "shop", "uid": "exampleclusters/shop#1",
    }]);
    let ours = json!({"app.kubernetes.io/managed-by": "navigator",
        "navigator.jetstack.io/example-cluster-name": "shop"});
    for owner in [nobody, other, named] {
        for labels in [json!({}), ours.clone()] {
            for (plural, mut body) in [
                ("services", service("ex-shop-seeds", &owner)),
                ("services", service("ex-shop-a-pods", &owner)),
                ("statefulsets", stateful_set(&owner)),
            ] {
                body["metadata"]["labels"] = labels.clone();
                let harness = Harness::new(2);
                let theirs = id(plural, body["metadata"]["name"].as_str().unwrap());
                harness.api.server().add(&theirs, body);
                let before = harness.object(&theirs.0, &theirs.1);
                for _ in 0..6 {
                    harness.reconcile().await;
                }
                let stalled = harness.condition("Stalled");
                assert_eq!(stalled["status"], "True", "{theirs:?} {labels} {owner}");
                assert_eq!(stalled["reason"], "ForeignObject", "{theirs:?} {labels} {owner}");
                assert_eq!(harness.object(&theirs.0, &theirs.1), before);
                assert_eq!(harness.api.server().of("pilots").count(), 0);

                // Once the object is deleted, the cluster comes up by itself.
                harness.api.server().delete(&theirs);
                harness.settle().await;
                assert_eq!(harness.condition("Ready")["status"], "True", "{theirs:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_in_a_namespace_that_is_being_deleted() {
    let harness = Harness::new(2);
    // The cluster has its first status and its finalizer, but no object yet.
    harness.reconcile().await;
    harness.reconcile().await;
    let objects = harness.api.server().objects.len();
    harness.api.server().objects.get_mut(&id("namespaces", "default")).unwrap()["metadata"]["deletionTimestamp"] =
        json!("2026-01-01T00:00:00Z");
    let writes = harness.writes();
    assert_eq!(harness.reconcile().await, Some((ReconcileOutcome::Settled, "terminating")));
    assert_eq!(harness.writes(), writes, "it does not even try");
    assert_eq!(harness.api.server().objects.len(), objects);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_cluster_that_is_being_deleted() {
    let harness = Harness::new(2);
    // A finalizer of another controller keeps the cluster for a while.
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["finalizers"] = json!(["example.org/backup"]);
    });
    harness.reconcile().await;
    harness.reconcile().await;
    harness.api.server().delete(&cluster_id());
    let objects = harness.api.server().objects.len();
    for _ in 0..3 {
        harness.reconcile().await;
    }
    assert_eq!(harness.api.server().objects.len(), objects);
    let cluster = harness.object("exampleclusters", "shop");
    assert_eq!(cluster["metadata"]["finalizers"], json!(["example.org/backup"]));
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_the_cache_has_not_seen_survives_the_teardown() {
    let harness = Harness::new(1);
    harness.settle().await;
    harness.api.server().delete(&cluster_id());
    let stale = harness.caches();
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["finalizers"] = json!([FINALIZER_TEARDOWN, "example.org/backup"]);
    });
    harness.reconcile_with(&stale).await;
    harness.settle().await;
    let cluster = harness.object("exampleclusters", "shop");
    assert_eq!(cluster["metadata"]["finalizers"], json!(["example.org/backup"]));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_writes_nothing() {
    let until = Instant::now();
    let expired = LeaderClaim::Held { until, transition: 3 };
    for claim in [LeaderClaim::Waiting, LeaderClaim::Lost, expired] {
        let harness = Harness::new(2);
        assert_eq!(
            harness.reconcile_as(&harness.caches(), claim).await,
            Some((ReconcileOutcome::Failed, "fenced")),
            "{claim:?}"
        );
        // A controller whose claim to lead has ended writes nothing, at the deletion or where much
        // is to be done.
        harness.reconcile().await;
        harness.reconcile().await;
        let writes = harness.writes();
        harness.reconcile_as(&harness.caches(), claim).await;
        harness.settle().await;
        let settled = harness.writes();
        assert!(settled > writes);
        harness.scale(3);
        assert_eq!(harness.reconcile_as(&harness.caches(), claim).await.unwrap().1, "fenced");
        harness.api.server().delete(&cluster_id());
        assert_eq!(harness.reconcile_as(&harness.caches(), claim).await.unwrap().1, "fenced");
        assert_eq!(harness.writes(), settled, "{claim:?}");
    }
    tokio::time::advance(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_another_store_are_left_alone_and_the_cluster_says_so() {
    for (plural, name) in [("statefulsets", "ex-shop-a"), ("pilots", "ex-shop-a-0")] {
        let harness = Harness::new(2);
        harness.settle().await;
        harness.api.server().edit(&id(plural, name), |object| {
            object["metadata"]["annotations"][annotation::STORE_ID] = json!("another");
        });
        harness.scale(3);
        let mut before = harness.api.server().objects.clone();
        for _ in 0..4 {
            harness.reconcile().await;
        }
        let stalled = harness.condition("Stalled");
        assert_eq!(
            (&stalled["status"], &stalled["reason"]),
            (&json!("True"), &json!("StoreMismatch"))
        );
        let mut after = harness.api.server().objects.clone();
        before.remove(&cluster_id());
        after.remove(&cluster_id());
        assert_eq!(after, before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_deleted_while_its_objects_are_not_ours_takes_no_claim_with_it() {
    // The store was lost, the cluster was created again from its manifest, and is deleted.
    for (key, value) in [(annotation::CLUSTER_UID, "earlier"), (annotation::STORE_ID, "another")] {
        let harness = Harness::new(2);
        harness.settle().await;
        harness.api.server().edit(&id("statefulsets", "ex-shop-a"), |set| {
            set["metadata"]["annotations"][key] = json!(value);
        });
        harness.reconcile().await;
        assert_eq!(harness.condition("Stalled")["status"], "True");
        harness.api.server().delete(&cluster_id());
        harness.settle().await;
        let server = harness.api.server();
        assert_eq!(server.of("persistentvolumeclaims").count(), 2, "{key}");
        let left = usize::from(key == annotation::STORE_ID);
        assert_eq!(server.of("exampleclusters").count(), left, "let go, but for another store");
    }
}

#[tokio::test(start_paused = true)]
async fn scale_out_goes_one_by_one_and_only_while_every_node_is_ready() {
    let mut harness = Harness::new(1);
    harness.settle().await;
    harness.pods_start = false;
    harness.scale(3);
    harness.settle().await;
    assert_eq!(harness.replicas(), 2, "the third waits for the second");
    assert_eq!(harness.condition("Ready")["status"], "False");
    assert!(harness.object("pilots", "ex-shop-a-2").is_null());

    harness.pods_start = true;
    let mut seen = Vec::new();
    for _ in 0..20 {
        harness.kubelet();
        harness.reconcile().await;
        seen.push(harness.replicas().as_u64().unwrap());
    }
    seen.dedup();
    assert_eq!(seen.last(), Some(&3));
    assert!(seen.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_made_again_on_its_volumes_starts_all_its_nodes_at_once() {
    let mut harness = Harness::new(3);
    harness.settle().await;
    let since = harness.writes();
    harness.make_again();
    // No node serves before a quorum is up.
    harness.pods_start = false;
    harness.settle().await;
    assert_eq!(harness.replicas(), 3);
    harness.pods_start = true;
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");

    let writes = harness.api.server().writes[since..].to_vec();
    let at = |what: &str| writes.iter().position(|write| write.ends_with(what)).unwrap();
    for pilot in 0..3 {
        let made = at(&format!("pilots/ex-shop-a-{pilot}"));
        assert!(made < at("statefulsets/ex-shop-a"), "no pod comes before every Pilot");
    }

    // Fewer nodes are wanted than there are volumes: all start, and the surplus leaves.
    harness.make_again();
    harness.scale(1);
    harness.pods_start = false;
    harness.settle().await;
    assert_eq!(harness.replicas(), 3);
    harness.pods_start = true;
    harness.settle().await;
    assert_eq!(harness.replicas(), 1);
    assert_eq!(harness.api.server().of("persistentvolumeclaims").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_start_goes_when_it_is_taken_back_and_its_claim_stays() {
    let harness = Harness::new(1);
    harness.settle().await;
    // The bad heap is set for the new pool only: the first node does not restart for it.
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["nodePools"].as_array_mut().unwrap().push(json!({
            "name": "b", "replicas": 2, "persistence": {"size": "1Gi"}, "jvm": {"heap": "64Mi"},
        }));
    });
    harness.settle().await;
    let replicas =
        |harness: &Harness| harness.object("statefulsets", "ex-shop-b")["spec"]["replicas"].clone();
    assert_eq!(replicas(&harness), 1);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["nodePools"].as_array_mut().unwrap().pop();
    });
    harness.settle().await;
    assert!(harness.object("statefulsets", "ex-shop-b").is_null());
    assert!(harness.object("pilots", "ex-shop-b-0").is_null());
    assert!(!harness.object("persistentvolumeclaims", "example-data-ex-shop-b-0").is_null());
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_makes_no_new_volume_an_old_one() {
    for claims_of in ["2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z"] {
        let harness = Harness::new(1);
        harness.settle().await;
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["nodePools"].as_array_mut().unwrap().push(json!({
                "name": "b", "replicas": 1, "persistence": {"size": "1Gi"}, "jvm": {"heap": "64Mi"},
            }));
        });
        harness.settle().await;
        harness.api.server().edit(
            &id("persistentvolumeclaims", "example-data-ex-shop-b-0"),
            |claim| {
                claim["metadata"]["creationTimestamp"] = json!(claims_of);
            },
        );
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["nodePools"].as_array_mut().unwrap().pop();
        });
        harness.settle().await;
        assert!(harness.object("pilots", "ex-shop-b-0").is_null(), "{claims_of}");
    }
    // A cluster is made again on a volume that was kept, which may hold data, whatever the times
    // say.
    let mut harness = Harness::new(1);
    harness.settle().await;
    harness.make_again();
    harness.pods_start = false;
    harness.reconcile().await;
    harness.reconcile().await;
    harness.reconcile().await;
    let claim = harness.object("persistentvolumeclaims", "example-data-ex-shop-a-0");
    let pilot = harness.object("pilots", "ex-shop-a-0");
    let noted = &pilot["metadata"]["annotations"][annotation::EARLIER_CLAIM];
    assert_eq!(*noted, claim["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn adopted_pilot_notes_present_claim() {
    let harness = Harness::new(1);
    harness.settle().await;
    // As it is put back from a copy: it has no owner, and there was no claim when it was made first.
    harness.api.server().edit(&id("pilots", "ex-shop-a-0"), |pilot| {
        pilot["metadata"]["ownerReferences"] = json!([]);
        pilot["metadata"]["annotations"][annotation::EARLIER_CLAIM] = json!("");
    });
    harness.settle().await;
    let pilot = harness.object("pilots", "ex-shop-a-0");
    assert_eq!(pilot["metadata"]["ownerReferences"][0]["name"], "shop");
    let claim = harness.object("persistentvolumeclaims", "example-data-ex-shop-a-0");
    let noted = &pilot["metadata"]["annotations"][annotation::EARLIER_CLAIM];
    assert_eq!(*noted, claim["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn a_newer_pilot_reaches_running_pods_one_by_one_and_restarts_none() {
    let mut harness = Harness::new(3);
    harness.settle().await;
    let (pods, hash) = (harness.pods(), harness.object("pods", "ex-shop-a-0")["metadata"].clone());
    harness.image = "navigator:2";
    let first = harness.writes();
    harness.settle().await;
    let server = harness.api.server();
    let delivered = |write: &&String| write.contains("/ephemeralcontainers");
    let order: Vec<_> = server.writes[first..].iter().filter(delivered).cloned().collect();
    drop(server);
    let patch = |ordinal| format!("PATCH pods/ex-shop-a-{ordinal}/ephemeralcontainers");
    assert_eq!(order, [patch(2), patch(1), patch(0)]);
    assert_eq!(harness.pods(), pods, "no pod is made anew");
    let pod = harness.object("pods", "ex-shop-a-0");
    assert_eq!(pod["metadata"]["annotations"], hash["annotations"]);
    let [container] = pod["spec"]["ephemeralContainers"].as_array().unwrap().as_slice() else {
        panic!("one container: {pod}");
    };
    assert_eq!(container["image"], "navigator:2");
    assert_eq!(container["command"], pod["spec"]["initContainers"][0]["command"]);
    assert_eq!(container["securityContext"], pod["spec"]["initContainers"][0]["securityContext"]);
    assert!(container.get("resources").is_none(), "the server refuses it");
    let set = harness.object("statefulsets", "ex-shop-a");
    assert_eq!(set["spec"]["template"]["spec"]["initContainers"][0]["image"], "navigator:2");
    assert_eq!(harness.condition("PilotsCurrent")["status"], "True");
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_nobody_has_goes_to_one_pod_and_disturbs_nothing() {
    let mut harness = Harness::new(2);
    harness.settle().await;
    let pods = harness.pods();
    harness.image = harness.unpulled;
    harness.settle().await;
    let current = harness.condition("PilotsCurrent");
    assert_eq!(
        (&current["status"], &current["reason"]),
        (&json!("False"), &json!("ImagePullFailed"))
    );
    let message = current["message"].as_str().unwrap();
    assert!(message.starts_with("0 of 2 pilots are of navigator:none; ex-shop-a-1:"), "{message}");
    assert_eq!(harness.condition("Ready")["status"], "True");
    assert!(harness.object("pods", "ex-shop-a-0")["spec"].get("ephemeralContainers").is_none());
    harness.image = "navigator:2";
    harness.settle().await;
    assert_eq!(harness.condition("PilotsCurrent")["status"], "True");
    assert_eq!(harness.pods(), pods);
}

#[tokio::test(start_paused = true)]
async fn scale_in_shrinks_only_after_the_pilot_said_that_it_has_left() {
    let mut harness = Harness::new(3);
    harness.settle().await;
    harness.drains_end = false;
    harness.scale(2);
    harness.settle().await;
    assert_eq!(harness.object("pilots", "ex-shop-a-2")["spec"]["phase"], "Decommissioned");
    assert_eq!(harness.replicas(), 3, "it is still moving its data away");

    // A user scales out again: the node is kept.
    harness.scale(3);
    harness.settle().await;
    assert_ne!(harness.object("pilots", "ex-shop-a-2")["spec"]["phase"], "Decommissioned");
    assert_eq!(harness.replicas(), 3);

    harness.scale(2);
    harness.settle().await;
    assert_eq!(harness.replicas(), 3);
    harness.drains_end = true;
    harness.settle().await;
    assert_eq!(harness.replicas(), 2);
    assert!(harness.object("pilots", "ex-shop-a-2").is_null());
    assert!(harness.object("persistentvolumeclaims", "example-data-ex-shop-a-2").is_null());
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_bad_configuration_stops_no_node_and_the_good_one_that_follows_is_rolled_out() {
    let harness = Harness::new(2);
    harness.settle().await;
    let before = harness.pods();
    let heap = |name: &str| harness.object("pilots", name)["spec"]["jvm"]["heap"].clone();

    harness.set_heap("64Mi");
    harness.settle().await;
    assert_eq!(harness.pods(), before, "nothing was restarted");
    assert_eq!(heap("ex-shop-a-1"), "64Mi", "one node validated it");
    assert_eq!(heap("ex-shop-a-0"), Value::Null);
    let stalled = harness.condition("Stalled");
    assert_eq!(
        (&stalled["status"], &stalled["reason"]),
        (&json!("True"), &json!("ConfigRejected"))
    );

    harness.set_heap("1Gi");
    harness.settle().await;
    assert_eq!((heap("ex-shop-a-0"), heap("ex-shop-a-1")), (json!("1Gi"), json!("1Gi")));
    assert!(harness.pods().iter().all(|pod| !before.contains(pod)), "both were restarted");
    assert_eq!(harness.condition("Ready")["status"], "True");
    assert_eq!(harness.condition("Stalled"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_bad_configuration_keeps_down_gets_the_good_one_at_once() {
    let harness = Harness::new(2);
    harness.set_heap("64Mi");
    harness.settle().await;
    assert_eq!(harness.replicas(), 1, "no second node joins with it");
    assert_eq!(harness.condition("Stalled")["reason"], "ConfigRejected");
    let before = harness.pods();

    harness.set_heap("1Gi");
    harness.reconcile().await;
    assert_eq!(harness.object("pilots", "ex-shop-a-0")["spec"]["jvm"]["heap"], "1Gi");
    harness.settle().await;
    assert_eq!(harness.pods()[0], before[0], "its pod is as good as it was");
    assert_eq!(harness.replicas(), 2);
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_restart_replaces_pods_and_not_while_the_configuration_is_bad() {
    let harness = Harness::new(2);
    harness.settle().await;
    let first = harness.pods();
    harness.set_heap("64Mi");
    harness.ask_for_a_restart("2026-01-01T00:00:00Z");
    harness.settle().await;
    assert_eq!(harness.pods(), first);
    harness.set_heap("1Gi");
    harness.settle().await;
    let second = harness.pods();
    assert!(second.iter().all(|pod| !first.contains(pod)), "{second:?}");
    harness.ask_for_a_restart("2026-01-02T00:00:00Z");
    harness.settle().await;
    assert!(harness.pods().iter().all(|pod| !second.contains(pod)), "a restart alone, too");
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_pods_where_pilots_restart_their_databases() {
    let mut harness = Harness::new(2);
    harness.in_place = true;
    harness.settle().await;
    let first = harness.pods();
    let hashes = |harness: &Harness| {
        let server = harness.api.server();
        let pilots = server.objects.iter().filter(|((plural, _), _)| plural == "pilots");
        pilots.map(|(_, pilot)| pilot["status"]["configHash"].clone()).collect::<Vec<_>>()
    };
    let before = hashes(&harness);
    harness.set_heap("64Mi");
    harness.settle().await;
    assert_eq!(hashes(&harness), before, "not while the configuration is bad");
    harness.set_heap("1Gi");
    harness.ask_for_a_restart("2026-01-01T00:00:00Z");
    harness.settle().await;
    let after = hashes(&harness);
    assert!(after.iter().all(|hash| !before.contains(hash)), "{after:?}");
    assert_eq!(harness.pods(), first);
    assert_eq!(harness.condition("Ready")["status"], "True");
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "an idle cluster writes nothing");
}

/// Returns what one check of all Pilots writes after `silence` seconds in which none reported.
async fn writes_after(harness: &Harness, ctx: &ControllerContext, silence: u64) -> Vec<String> {
    let before = harness.writes();
    tokio::time::advance(Duration::from_secs(silence)).await;
    check_all(ctx, Duration::from_secs(3600)).await;
    harness.api.server().writes[before..].to_vec()
}

#[tokio::test(start_paused = true)]
async fn only_pilots_that_could_have_been_heard_are_marked_silent() {
    let harness = Harness::new(1);
    harness.settle().await;
    let ctx = harness.leading();
    assert_eq!(writes_after(&harness, &ctx, 89).await, [""; 0]);
    // The API failed all that time, and answers again.
    ctx.heard.api_is_away(Instant::now());
    assert_eq!(writes_after(&harness, &ctx, 60).await, [""; 0]);
    assert_eq!(writes_after(&harness, &ctx, 31).await, ["PATCH pilots/ex-shop-a-0/status"]);
    let ready = &harness.object("pilots", "ex-shop-a-0")["status"]["conditions"][0];
    assert_eq!(ready["reason"], "PilotSilent");
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_account_are_told_and_made_anew_one_by_one_on_a_persons_word() {
    let harness = Harness::new(3);
    harness.settle().await;
    let first = harness.pods();
    let account = harness.api.server().of("serviceaccounts").next().cloned().unwrap();
    {
        let mut server = harness.api.server();
        server.epoch = Timestamp::now();
        server.delete(&id("serviceaccounts", account["metadata"]["name"].as_str().unwrap()));
    }
    harness.settle().await;
    let ctx = harness.leading();
    assert_eq!(writes_after(&harness, &ctx, 91).await.len(), 3);
    let pilot = harness.object("pilots", "ex-shop-a-0");
    assert_eq!(pilot["status"]["conditions"][0]["reason"], "PilotTurnedAway", "{pilot}");
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["reason"], "PilotTurnedAway");
    assert_eq!(harness.object("exampleclusters", "shop")["status"]["health"], Value::Null);
    assert_eq!(harness.pods(), first, "nobody asked for that");

    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["updateStrategy"] = json!({"skipPredicates": ["TokenRenewal"]});
    });
    let old = || harness.pods().iter().filter(|pod| first.contains(pod)).count();
    for left in (0..3).rev() {
        harness.reconcile().await;
        assert_eq!(harness.pods().len(), 2, "{:#?}", harness.condition("Ready"));
        assert_eq!(old(), left);
        // No other pod is deleted before the new pod's pilot has reported.
        let deletes = harness.api.server().deletes.len();
        harness.reconcile().await;
        assert_eq!(harness.api.server().deletes.len(), deletes);
        harness.kubelet();
    }
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_told_to_stop_is_not_called_silent() {
    let harness = Harness::new(1);
    harness.settle().await;
    harness.api.server().edit(&id("pilots", "ex-shop-a-0"), |pilot| {
        pilot["spec"]["phase"] = json!("Stopped");
    });
    let ctx = harness.leading();
    let marked = writes_after(&harness, &ctx, 100).await;
    assert_eq!(marked, ["PATCH pilots/ex-shop-a-0/status"], "its pod is there, and its pilot not");
    harness.api.server().delete(&id("pods", "ex-shop-a-0"));
    harness.api.server().edit(&id("pilots", "ex-shop-a-0"), |pilot| {
        pilot["status"]["conditions"] = json!([]);
    });
    assert_eq!(writes_after(&harness, &harness.leading(), 100).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_pilot_is_collected_only_when_the_server_itself_knows_nobody_who_wants_it() {
    let harness = Harness::new(1);
    harness.settle().await;
    harness.api.server().delete(&id("pods", "ex-shop-a-0"));
    let mut caches = harness.caches();
    caches.retain(|object| object["kind"] != "ExampleCluster");
    let until = Instant::now() + Duration::from_secs(36_000);
    let (_lead, claim) = watch::channel(LeaderClaim::Held { until, transition: 0 });
    let blind = harness.context(&caches, claim);
    assert_eq!(writes_after(&harness, &blind, 3600).await, [""; 0], "its cache lacks the cluster");
    harness.api.server().objects.remove(&cluster_id());
    assert_eq!(writes_after(&harness, &blind, 10).await, ["DELETE pilots/ex-shop-a-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_held_while_it_is_deleted_says_so() {
    let harness = Harness::new(1);
    harness.settle().await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["finalizers"] = json!(["example.org/backup"]);
    });
    harness.api.server().delete(&cluster_id());
    harness.reconcile().await;
    let writes = harness.writes();
    let status = || harness.object("exampleclusters", "shop")["status"].clone();
    assert_eq!(status()["phase"], "Deleting");
    let waits = harness.condition("Reconciling");
    assert_eq!(waits["reason"], "Deleting");
    assert!(waits["message"].as_str().unwrap().contains("example.org/backup"), "{waits}");
    assert_eq!(status()["readyReplicas"], 1, "the rest stands as it was");
    harness.reconcile().await;
    assert_eq!(harness.writes(), writes);
}
