//! Tests of deletion: what goes with a cluster, what stays, and changes that other clients made to
//! its objects before.

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    super::{context::ControllerContext, owner_references},
    OBJECTS,
    api::id,
    harness::{Harness, cluster_id},
};
use crate::{
    api::names::{FINALIZER_TEARDOWN, annotation, label},
    runtime::leader::LeaderClaim,
};

const UID: &str = "exampleclusters/shop#1";

/// Plurals of the kinds of Kubernetes objects that a cluster has, without pods and claims.
const KINDS: [&str; 6] = [
    "poddisruptionbudgets",
    "rolebindings",
    "roles",
    "serviceaccounts",
    "services",
    "statefulsets",
];

async fn settled(replicas: u32) -> Harness {
    let harness = Harness::new(replicas);
    harness.settle().await;
    harness
}

fn count(harness: &Harness) -> usize {
    KINDS.iter().map(|kind| harness.api.server().of(kind).count()).sum()
}

fn is_gone(harness: &Harness) -> bool {
    harness.object("exampleclusters", "shop").is_null()
}

/// Returns what the status says that the deletion waits for.
fn waits_for(harness: &Harness) -> String {
    let (ready, reconciling) = (harness.condition("Ready"), harness.condition("Reconciling"));
    assert_eq!((&ready["status"], &ready["message"]), (&json!("False"), &reconciling["message"]));
    assert_eq!(
        (&reconciling["status"], &reconciling["reason"]),
        (&json!("True"), &json!("Deleting"))
    );
    assert_eq!(harness.object("exampleclusters", "shop")["status"]["phase"], "Deleting");
    reconciling["message"].as_str().unwrap().to_owned()
}

async fn give_up(harness: &Harness) {
    owner_references::remove_owner_references(&harness.leading()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_cluster_stops_its_databases_first_and_then_lets_the_rest_go() {
    let harness = settled(2).await;
    harness.api.server().delete(&cluster_id());
    // The kubelet does not end the pods yet.
    for _ in 0..3 {
        harness.reconcile().await;
        assert_eq!(harness.api.server().of("statefulsets").count(), 0);
        assert_eq!(count(&harness), OBJECTS.len() - 1, "pilots need the rest to stop cleanly");
        assert_eq!(harness.api.server().of("pilots").count(), 2);
        assert_eq!(harness.api.server().of("persistentvolumeclaims").count(), 2);
        let message = waits_for(&harness);
        assert!(message.ends_with("Pod ex-shop-a-0, Pod ex-shop-a-1"), "{message}");
    }
    let writes = harness.writes();
    harness.reconcile().await;
    assert_eq!(harness.writes(), writes, "nothing is written while nothing changes");
    harness.settle().await;
    assert_eq!(count(&harness), 0);
    assert_eq!(harness.api.server().of("persistentvolumeclaims").count(), 0);
    assert!(is_gone(&harness));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_its_finalizer_before_anything_is_made_for_it() {
    let harness = Harness::new(1);
    while count(&harness) == 0 {
        harness.reconcile().await;
    }
    let writes = harness.api.server().writes.clone();
    let first = |what: &str| writes.iter().position(|write| write.contains(what));
    assert!(first("PATCH exampleclusters/shop") < first("services/"), "{writes:#?}");
    // A person takes the finalizer off, and the controller puts it back.
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["finalizers"] = json!([]);
    });
    harness.settle().await;
    let cluster = harness.object("exampleclusters", "shop");
    assert_eq!(cluster["metadata"]["finalizers"], json!([FINALIZER_TEARDOWN]));
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_of_somebody_else_on_a_child_is_named_and_force_delete_leads_on() {
    let harness = settled(1).await;
    harness.api.server().edit(&id("services", "ex-shop-seeds"), |service| {
        service["metadata"]["finalizers"] = json!(["example.org/balancer"]);
    });
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    let message = waits_for(&harness);
    assert_eq!(
        message,
        "waiting for these to go: Service ex-shop-seeds (held by example.org/balancer)"
    );
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["annotations"] = json!({annotation::FORCE_DELETE: "true"});
    });
    harness.settle().await;
    assert!(is_gone(&harness));
    assert_eq!(count(&harness), 1, "it is on its way out, and somebody else's to let go");
}

#[tokio::test(start_paused = true)]
async fn force_delete_waits_for_no_pod_and_keeps_claims() {
    let harness = settled(2).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["annotations"] = json!({annotation::FORCE_DELETE: "true"});
    });
    harness.api.server().delete(&cluster_id());
    harness.reconcile().await;
    assert!(is_gone(&harness));
    assert_eq!(count(&harness), 0);
    assert_eq!(harness.api.server().of("persistentvolumeclaims").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn retained_claims_outlive_their_cluster() {
    let harness = settled(2).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["nodePools"][0]["persistence"]["retention"] = Value::Null;
    });
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert!(is_gone(&harness) && count(&harness) == 0);
    assert_eq!(harness.api.server().of("persistentvolumeclaims").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn deletes_name_the_object_that_was_read() {
    let harness = settled(2).await;
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    let server = harness.api.server();
    assert!(server.deletes.len() > OBJECTS.len(), "{:?}", server.deletes);
    for preconditions in &server.deletes {
        for key in ["uid", "resourceVersion"] {
            assert!(preconditions[key].is_string(), "{preconditions}");
        }
    }
}

/// Pods without a StatefulSet are found by name: their Pilot shows the cluster. One without an owner shows none.
#[tokio::test(start_paused = true)]
async fn orphan_pod_of_another_cluster_is_kept() {
    for (uid, left) in [(Some(UID), 0), (Some("another"), 1), (None, 1)] {
        let harness = settled(1).await;
        {
            let mut server = harness.api.server();
            server.edit(&id("pods", "ex-shop-a-0"), |pod| {
                pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            });
            server.delete(&id("statefulsets", "ex-shop-a"));
            server.edit(&id("pilots", "ex-shop-a-0"), |pilot| {
                let Some(uid) = uid else {
                    for field in ["ownerReferences", "annotations"] {
                        pilot["metadata"].as_object_mut().unwrap().remove(field);
                    }
                    return;
                };
                pilot["metadata"]["ownerReferences"][0]["uid"] = json!(uid);
                pilot["metadata"]["annotations"][annotation::CLUSTER_UID] = json!(uid);
            });
            server.delete(&cluster_id());
        }
        harness.settle().await;
        assert!(is_gone(&harness), "{uid:?}");
        assert_eq!(harness.pods().len(), left, "{uid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_bear_our_marks_no_more_and_are_no_later_clusters() {
    let harness = settled(2).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["metadata"]["annotations"] = json!({annotation::ORPHAN: "true"});
    });
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert!(is_gone(&harness));
    let server = harness.api.server().clone();
    for (plural, name) in OBJECTS.into_iter().filter(|(_, name)| !name.is_empty()) {
        let meta = &server.objects[&id(plural, name)]["metadata"];
        assert_eq!(meta["labels"].get(label::K8S_MANAGED_BY), None, "{plural}/{name}");
        for mark in [annotation::CLUSTER_UID, annotation::STORE_ID] {
            assert_eq!(meta["annotations"].get(mark), None, "{plural}/{name}");
        }
    }
    assert_eq!(server.of("pods").count(), 2);
    assert_eq!(server.of("persistentvolumeclaims").count(), 2, "whatever whenDeleted says");
}

#[tokio::test(start_paused = true)]
async fn what_was_made_for_another_cluster_stays() {
    for (plural, name) in OBJECTS.into_iter().filter(|(_, name)| !name.is_empty()) {
        let harness = settled(1).await;
        harness.api.server().edit(&id(plural, name), |object| {
            object["metadata"]["annotations"][annotation::CLUSTER_UID] = json!("another");
        });
        harness.api.server().delete(&cluster_id());
        harness.settle().await;
        assert!(is_gone(&harness), "{plural}/{name}");
        assert_eq!(count(&harness), 1, "{plural}/{name}");
        assert!(!harness.object(plural, name).is_null(), "{plural}/{name}");
    }
}

/// A leader that does not know yet that the store was exchanged sees the marks of another store.
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_nor_let_go_while_the_store_may_be_another() {
    let stores = |harness: &Harness, plural: &str, name: &str, store: &str| {
        harness.api.server().edit(&id(plural, name), |object| {
            object["metadata"]["annotations"][annotation::STORE_ID] = json!(store);
        });
    };
    for (plural, name) in OBJECTS.into_iter().filter(|(_, name)| !name.is_empty()) {
        let harness = settled(1).await;
        stores(&harness, plural, name, "another");
        harness.api.server().delete(&cluster_id());
        harness.settle().await;
        assert_eq!(count(&harness), OBJECTS.len(), "{plural}/{name}");
        let message = waits_for(&harness);
        assert!(message.contains(name) && message.contains("force-delete"), "{message}");
        let by_hand = harness.copy();
        // The next leader knows the store, so the marks are right.
        stores(&harness, plural, name, super::harness::STORE);
        harness.settle().await;
        assert!(is_gone(&harness) && count(&harness) == 0, "{plural}/{name}");
        // Or a person forces the deletion.
        by_hand.api.server().edit(&cluster_id(), |cluster| {
            cluster["metadata"]["annotations"] = json!({annotation::FORCE_DELETE: "true"});
        });
        by_hand.settle().await;
        assert!(is_gone(&by_hand) && count(&by_hand) == 1, "{plural}/{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_lost_its_labels_goes_with_its_cluster() {
    for (plural, name) in OBJECTS.into_iter().filter(|(_, name)| !name.is_empty()) {
        let harness = settled(1).await;
        harness.api.server().delete(&cluster_id());
        harness.api.server().edit(&id(plural, name), |object| {
            object["metadata"]["labels"] = json!({});
        });
        harness.settle().await;
        assert!(is_gone(&harness) && count(&harness) == 0, "{plural}/{name}");
    }
}

/// Changes the objects to what a release before 0.3 left.
fn age(harness: &Harness) {
    let owner = json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ExampleCluster",
        "name": "shop", "uid": UID, "controller": true, "blockOwnerDeletion": true,
    });
    let mut server = harness.api.server();
    let ids: Vec<_> =
        server.objects.keys().filter(|(p, _)| KINDS.contains(&p.as_str())).cloned().collect();
    for one in ids {
        server.edit(&one, |object| {
            object["metadata"]["ownerReferences"] =
                json!([owner, {"kind": "Other", "apiVersion": "v1", "name": "o", "uid": "o"}]);
            object["metadata"]["annotations"]
                .as_object_mut()
                .unwrap()
                .remove(annotation::CLUSTER_UID);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_takes_owner_references_away_and_touches_no_pod() {
    for paused in [false, true] {
        let harness = settled(2).await;
        age(&harness);
        harness
            .api
            .server()
            .edit(&cluster_id(), |cluster| cluster["spec"]["paused"] = json!(paused));
        let pods = harness.pods();
        // An older release left the cluster without a finalizer: deleted now, its objects would
        // stay.
        harness.api.server().edit(&cluster_id(), |cluster| {
            cluster["metadata"]["finalizers"] = json!([]);
        });
        let writes = harness.writes();
        give_up(&harness).await;
        assert_eq!(harness.writes(), writes, "its cluster has no finalizer yet");
        harness.reconcile().await;
        give_up(&harness).await;
        let left = |harness: &Harness| -> Vec<Value> {
            let server = harness.api.server();
            KINDS.iter().flat_map(|kind| server.of(kind).cloned()).collect()
        };
        for object in left(&harness) {
            let meta = &object["metadata"];
            assert_eq!(meta["ownerReferences"].as_array().unwrap().len(), 1, "{meta}");
            assert_eq!(meta["ownerReferences"][0]["uid"], "o", "an owner of others stays");
            assert_eq!(meta["annotations"][annotation::CLUSTER_UID], UID, "{meta}");
        }
        let writes = harness.writes();
        give_up(&harness).await;
        assert_eq!(harness.writes(), writes, "once");
        harness.settle().await;
        assert_eq!(harness.pods(), pods);
        assert_eq!(
            harness.object("exampleclusters", "shop")["status"]["phase"],
            if paused { "Paused" } else { "Running" }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_takes_no_owner_reference_away() {
    let harness = settled(1).await;
    age(&harness);
    let writes = harness.writes();
    let deposed: ControllerContext =
        harness.context(&harness.caches(), watch::channel(LeaderClaim::Lost).1);
    assert!(owner_references::remove_owner_references(&deposed).await.is_err());
    assert_eq!(harness.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn objects_are_prepared_for_an_older_release_when_asked_to() {
    let mut harness = settled(1).await;
    let pods = harness.pods();
    harness.owner_references = true;
    harness.settle().await;
    give_up(&harness).await;
    for kind in KINDS {
        for object in harness.api.server().of(kind) {
            let owner = &object["metadata"]["ownerReferences"][0];
            assert_eq!(
                (&owner["uid"], &owner["controller"]),
                (&json!(UID), &json!(true)),
                "{kind}"
            );
        }
    }
    // The controller is set back to owner references.
    harness.owner_references = false;
    give_up(&harness).await;
    harness.settle().await;
    for kind in KINDS {
        for object in harness.api.server().of(kind) {
            let owners = object["metadata"]["ownerReferences"].as_array();
            assert!(owners.is_none_or(Vec::is_empty), "{kind}");
        }
    }
    assert_eq!(harness.pods(), pods);
}

/// Returns a harness in which a person took the finalizer off a cluster that was being deleted, and
/// made the cluster again.
async fn made_again() -> Harness {
    let harness = settled(1).await;
    let mut cluster = harness.object("exampleclusters", "shop");
    cluster["metadata"] = json!({"name": "shop", "namespace": "default"});
    cluster.as_object_mut().unwrap().remove("status");
    harness.api.server().objects.remove(&cluster_id());
    assert_eq!(owner_references::find_orphans(&harness.leading()).len(), 1, "it is told");
    // The Pilots are collected, since their owner is gone from the store that holds both.
    harness.api.server().objects.retain(|(plural, _), _| plural != "pilots");
    harness.api.server().add(&cluster_id(), cluster);
    harness
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_of_an_earlier_cluster_is_left_alone_until_it_is_handed_over() {
    let harness = made_again().await;
    let (set, pods) = (id("statefulsets", "ex-shop-a"), harness.pods());
    let before = harness.object(&set.0, &set.1);
    assert_eq!(owner_references::find_orphans(&harness.leading()).len(), 1, "another uid");
    for _ in 0..6 {
        harness.reconcile().await;
    }
    let stalled = harness.condition("Stalled");
    assert_eq!(stalled["reason"], "ForeignObject");
    let message = stalled["message"].as_str().unwrap();
    assert!(message.contains("earlier ExampleCluster of this name (uid exampleclusters/shop#1)"));
    let way = "annotate --overwrite statefulset ex-shop-a \
               navigator.jetstack.io/cluster-uid=exampleclusters/shop#2";
    assert!(message.contains(way), "{message}");
    assert_eq!(harness.object(&set.0, &set.1), before);

    // A person does what the condition's message says.
    harness.api.server().edit(&set, |set| {
        set["metadata"]["annotations"][annotation::CLUSTER_UID] = json!("exampleclusters/shop#2");
        set["metadata"]["annotations"].as_object_mut().unwrap().remove(annotation::STORE_ID);
    });
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
    assert_eq!(harness.pods(), pods, "its pods run on");
    for (plural, name) in OBJECTS.into_iter().filter(|(_, name)| !name.is_empty()) {
        let uid = &harness.object(plural, name)["metadata"]["annotations"][annotation::CLUSTER_UID];
        assert_eq!(uid, "exampleclusters/shop#2", "{plural}/{name}");
    }
    assert!(owner_references::find_orphans(&harness.leading()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_of_an_earlier_cluster_can_be_deleted_instead() {
    let harness = made_again().await;
    harness.reconcile().await;
    harness.api.server().delete(&id("statefulsets", "ex-shop-a"));
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

/// A cluster of two pools whose store was lost, made again from its manifest in a new store: every
/// object bears the mark of the lost one, and of the former cluster.
async fn made_again_in_a_new_store() -> Harness {
    let harness = Harness::new(2);
    harness.api.server().edit(&cluster_id(), |cluster| {
        let mut other = cluster["spec"]["nodePools"][0].clone();
        other["name"] = json!("b");
        cluster["spec"]["nodePools"].as_array_mut().unwrap().push(other);
    });
    harness.settle().await;
    let mut cluster = harness.object("exampleclusters", "shop");
    cluster["metadata"] = json!({"name": "shop", "namespace": "default"});
    cluster.as_object_mut().unwrap().remove("status");
    let mut server = harness.api.server();
    server.objects.retain(|(plural, _), _| !["pilots", "exampleclusters"].contains(&&**plural));
    for object in server.objects.values_mut() {
        if let Some(mark) = object["metadata"]["annotations"].get_mut(annotation::STORE_ID) {
            *mark = json!("lost-store");
        }
    }
    // A release before 0.3 made a budget for each pool.
    let (_, budget) =
        server.objects.iter().find(|((plural, _), _)| plural == "poddisruptionbudgets").unwrap();
    let mut of_pool = budget.clone();
    of_pool["metadata"]["name"] = json!("ex-shop-a");
    server.add(&id("poddisruptionbudgets", "ex-shop-a"), of_pool);
    server.add(&cluster_id(), cluster);
    drop(server);
    harness
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_store_left_is_adopted_on_a_persons_word_and_nothing_restarts() {
    let harness = made_again_in_a_new_store().await;
    let (pods, mut handed_over) = (harness.pods(), Vec::new());
    for _ in 0..2 {
        let sets: Vec<Value> = harness.api.server().of("statefulsets").cloned().collect();
        for _ in 0..6 {
            harness.reconcile().await;
        }
        let left: Vec<Value> = harness.api.server().of("statefulsets").cloned().collect();
        assert_eq!(left, sets, "no set is touched before the last one is handed over");
        let stalled = harness.condition("Stalled");
        assert_eq!(stalled["reason"], "ForeignObject");
        // A person runs the command that the condition's message has.
        let message = stalled["message"].as_str().unwrap();
        let command = message.split_once("annotate --overwrite statefulset ").unwrap().1;
        let [set, word, taken_off] = command.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let ((key, uid), taken_off) =
            (word.split_once('=').unwrap(), taken_off.trim_end_matches('-'));
        harness.api.server().edit(&id("statefulsets", set), |found| {
            let annotations = found["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.insert(key.to_owned(), json!(uid));
            annotations.remove(taken_off);
        });
        handed_over.push(set.to_owned());
    }
    assert_eq!(handed_over, ["ex-shop-a", "ex-shop-b"]);
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
    assert_eq!(harness.condition("Stalled"), Value::Null);
    assert_eq!(harness.pods(), pods, "its pods run on");
    let server = harness.api.server();
    let marked = server.objects.iter().filter_map(|(id, object)| {
        let annotations = object["metadata"]["annotations"].as_object()?;
        Some((
            id,
            annotations.get(annotation::CLUSTER_UID)?,
            annotations.get(annotation::STORE_ID)?,
        ))
    });
    let marked: Vec<_> = marked.collect();
    for plural in KINDS {
        assert!(marked.iter().any(|((found, _), ..)| found == plural), "{plural}");
    }
    for (id, uid, store) in marked {
        assert_eq!((uid, store), (&json!("exampleclusters/shop#2"), &json!("our-store")), "{id:?}");
    }
    let budgets = server.of("poddisruptionbudgets").count();
    assert_eq!(budgets, 1, "of two budgets for one pod, evictions are refused");
}
