//! Tests of a cluster's budget: closed before each step, open while nothing speaks against a drain,
//! and the only budget over the cluster's pods.

use serde_json::{Value, json};

use super::{
    api::{Fault, Id, id},
    harness::{Harness, STORE, cluster_id},
};
use crate::api::names::{annotation, label};

fn budget() -> Id {
    id("poddisruptionbudgets", "ex-shop")
}

fn of_pool() -> Id {
    id("poddisruptionbudgets", "ex-shop-a")
}

/// Returns how many pods must be ready according to the budget.
fn least(harness: &Harness) -> Value {
    harness.object("poddisruptionbudgets", "ex-shop")["spec"]["minAvailable"].clone()
}

fn why(harness: &Harness) -> String {
    let budget = harness.object("poddisruptionbudgets", "ex-shop");
    budget["metadata"]["annotations"][annotation::DRAINABLE_WHY].as_str().unwrap_or("").to_owned()
}

fn budgets(harness: &Harness) -> Vec<String> {
    let server = harness.api.server();
    server.objects.keys().filter(|id| id.0 == budget().0).map(|id| id.1.clone()).collect()
}

async fn settled(replicas: u32) -> Harness {
    let harness = Harness::new(replicas);
    harness.settle().await;
    harness
}

/// Replaces our budget by one for a pool: as an earlier release made it, or as this release made it
/// for an earlier cluster of the name.
fn as_before(harness: &Harness, owner: &Value, marks: &Value) {
    let mut server = harness.api.server();
    server.objects.remove(&budget());
    server.add(
        &of_pool(),
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {
                "name": "ex-shop-a", "namespace": "default", "annotations": marks,
                "labels": {
                    label::K8S_MANAGED_BY: "navigator",
                    "navigator.jetstack.io/example-cluster-name": "shop",
                },
                "ownerReferences": owner,
            },
            "spec": {"maxUnavailable": 1},
        }),
    );
}

#[tokio::test(start_paused = true)]
async fn budgets_of_pools_are_replaced_in_one_look_and_the_new_one_comes_first_and_closed() {
    let owner = json!([{
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ExampleCluster", "name": "shop",
        "uid": "exampleclusters/shop#1", "controller": true,
    }]);
    let rows = [
        (owner, json!({annotation::STORE_ID: STORE})),
        (
            json!([]),
            json!({annotation::STORE_ID: STORE, annotation::CLUSTER_UID: "an-earlier-one"}),
        ),
    ];
    for (owner, marks) in rows {
        let harness = settled(3).await;
        as_before(&harness, &owner, &marks);
        let (before, from) = (harness.copy(), harness.writes());
        harness.reconcile().await;
        let writes = harness.api.server().writes[from..].to_vec();
        let at = |what: &str| writes.iter().position(|write| write == what).unwrap();
        let made = at("PATCH poddisruptionbudgets/ex-shop");
        assert!(made < at("DELETE poddisruptionbudgets/ex-shop-a"), "{writes:#?}");
        assert_eq!(budgets(&harness), ["ex-shop"], "no pod is under two after one look");
        assert_eq!(least(&harness), 3);
        assert!(why(&harness).starts_with("BudgetReplaced: "), "{}", why(&harness));
        harness.settle().await;
        assert_eq!((least(&harness), why(&harness).as_str()), (json!(2), ""));

        for number in 0..writes.len() {
            for fault in Fault::ALL {
                let harness = before.copy();
                harness.api.server().fault = Some((from + number, fault));
                for _ in 0..4 {
                    harness.reconcile().await;
                    assert!(!budgets(&harness).is_empty(), "{fault:?} at {number}");
                }
                harness.settle().await;
                assert_eq!(budgets(&harness), ["ex-shop"], "{fault:?} at {number}");
                assert_eq!(least(&harness), 2, "{fault:?} at {number}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_somebody_elses_for_these_pods_is_left_alone() {
    let harness = settled(2).await;
    as_before(&harness, &json!([]), &json!({}));
    harness.settle().await;
    assert_eq!(budgets(&harness), ["ex-shop", "ex-shop-a"]);
}

#[tokio::test(start_paused = true)]
async fn for_an_older_release_to_go_on_with_the_budgets_are_those_of_pools() {
    let mut harness = settled(2).await;
    harness.owner_references = true;
    let from = harness.writes();
    harness.settle().await;
    let writes = harness.api.server().writes[from..].to_vec();
    let at = |what: &str| writes.iter().position(|write| write.contains(what)).unwrap();
    assert!(at("poddisruptionbudgets/ex-shop-a") < at("DELETE poddisruptionbudgets/ex-shop"));
    assert_eq!(budgets(&harness), ["ex-shop-a"]);
    let former = harness.object("poddisruptionbudgets", "ex-shop-a");
    assert_eq!(former["spec"]["maxUnavailable"], 1);
    assert_eq!(former["metadata"]["ownerReferences"][0]["name"], "shop");
    harness.owner_references = false;
    harness.settle().await;
    assert_eq!(budgets(&harness), ["ex-shop"]);
    assert_eq!(least(&harness), 1);
}

#[tokio::test(start_paused = true)]
async fn each_step_finds_the_budget_closed() {
    type Change = fn(&mut Harness);
    let changes: [(Change, u32); 5] = [
        (|harness| harness.scale(4), 4),
        (|harness| harness.scale(2), 2),
        (|harness| harness.ask_for_a_restart("2026-01-01T00:00:00Z"), 3),
        (|harness| harness.set_heap("1Gi"), 3),
        (|harness| harness.image = "navigator:2", 3),
    ];
    for (number, (change, nodes)) in changes.into_iter().enumerate() {
        let mut harness = settled(3).await;
        assert_eq!(least(&harness), 2);
        change(&mut harness);
        let mut steps = 0;
        for _ in 0..40 {
            let (from, before) = (harness.writes(), harness.replicas());
            harness.reconcile().await;
            let writes = harness.api.server().writes[from..].to_vec();
            let resized = before != harness.replicas();
            let step = writes.iter().rposition(|write| {
                write.starts_with("DELETE pods/")
                    || write.ends_with("/ephemeralcontainers")
                    || (resized && write.starts_with("PATCH statefulsets/"))
            });
            if let Some(step) = step {
                steps += 1;
                let pods = harness.api.server().of("pods").count();
                assert!(least(&harness).as_u64() >= Some(pods as u64), "{number}: {writes:#?}");
                assert!(!why(&harness).is_empty());
                let budget = writes.iter().rposition(|write| write.ends_with("budgets/ex-shop"));
                assert!(budget.is_none_or(|budget| budget < step), "{number}: {writes:#?}");
            }
            harness.kubelet();
        }
        assert!(steps > 0, "{number}");
        harness.settle().await;
        assert_eq!(least(&harness), nodes - 1, "{number}");
        assert_eq!(harness.condition("Drainable")["status"], "True");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_closes_the_budget_and_is_told_where_people_look() {
    let harness = settled(3).await;
    let blockers = |list: Value| {
        harness.api.server().edit(&id("pilots", "ex-shop-a-1"), |pilot| {
            pilot["status"]["blockers"] = list;
        });
    };
    blockers(json!([{"predicate": "StreamsIdle", "message": "two streams"}]));
    harness.reconcile().await;
    let told = harness.condition("Drainable");
    assert_eq!((&told["status"], &told["reason"]), (&json!("False"), &json!("StreamsIdle")));
    assert_eq!(told["message"], "ex-shop-a-1: two streams");
    assert_eq!(
        (least(&harness), why(&harness)),
        (json!(3), "StreamsIdle: ex-shop-a-1: two streams".to_owned())
    );
    blockers(json!([]));
    harness.reconcile().await;
    assert_eq!((least(&harness), why(&harness).as_str()), (json!(2), ""));
    assert_eq!(harness.condition("Drainable")["reason"], "MayLeave");
}

#[tokio::test(start_paused = true)]
async fn no_step_is_taken_while_a_pod_is_let_go_or_the_budget_cannot_be_closed() {
    let harness = settled(3).await;
    let pods = harness.pods();
    let noted = |pods: Value| {
        harness.api.server().edit(&budget(), |budget| {
            budget["status"] = json!({ "disruptedPods": pods });
        });
    };
    // Kubernetes has granted the eviction of a pod, and deletes the pod in a moment.
    noted(json!({"ex-shop-a-0": "2026-01-01T00:00:00Z"}));
    harness.ask_for_a_restart("2026-01-01T00:00:00Z");
    for _ in 0..5 {
        harness.reconcile().await;
        harness.kubelet();
    }
    assert_eq!((harness.pods(), least(&harness)), (pods, json!(3)));
    noted(json!({}));
    harness.settle().await;
    assert_eq!(least(&harness), 2);

    let pods = harness.pods();
    harness.api.server().refuses.insert(budget(), 403);
    harness.ask_for_a_restart("2026-01-02T00:00:00Z");
    harness.settle().await;
    assert_eq!(harness.pods(), pods);
    assert_eq!(harness.condition("Stalled")["reason"], "ObjectRefused");
    harness.api.server().refuses.clear();
    harness.settle().await;
    assert!(harness.pods().iter().all(|pod| !pods.contains(pod)));
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_paused_cluster_is_left_as_it_is() {
    let harness = settled(3).await;
    harness.api.server().edit(&cluster_id(), |cluster| cluster["spec"]["paused"] = json!(true));
    harness.api.server().edit(&budget(), |budget| budget["spec"]["minAvailable"] = json!(0));
    harness.api.server().edit(&id("pilots", "ex-shop-a-1"), |pilot| {
        pilot["status"]["blockers"] = json!([{"predicate": "StreamsIdle", "message": "one"}]);
    });
    harness.reconcile().await;
    harness.reconcile().await;
    assert_eq!(least(&harness), 0);
    assert_eq!(harness.condition("Drainable")["reason"], "MayLeave", "as it was said last");
}
