//! PodDisruptionBudget of a cluster: how many of its pods must stay ready during evictions.
//!
//! One budget covers all pools, because copies of the same rows are in several pools. It sets
//! `minAvailable`: with `maxUnavailable`, Kubernetes counts the existing pods only, and would allow
//! another eviction between the end of a pool's only pod and the start of its next one.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{
    DesiredObject, Labels, ObjectSettings, build_metadata, cluster_labels, pool_labels,
    selector_labels,
};
use crate::{
    api::names::annotation,
    controller::{
        desired_state::{DesiredCluster, DesiredPool},
        observe::{Member, ObservedCluster},
        plan::{DrainHold, node_count},
    },
};

/// Builds the budget. It is closed while there is a hold: then all nodes must be ready. An open
/// budget allows the eviction of one node.
pub(crate) fn disruption_budget(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    settings: &ObjectSettings,
    hold: Option<&DrainHold>,
) -> DesiredObject {
    let nodes = node_count(desired, observed);
    let available = match hold {
        Some(_) => nodes,
        None if desired.stopped => 0,
        None => nodes.saturating_sub(1),
    };
    let drain_annotation = hold.map(|DrainHold { reason, message }| {
        (annotation::DRAINABLE_WHY.to_owned(), format!("{reason}: {message}"))
    });
    let name = desired.database.names.disruption_budget(&desired.name);
    let annotations = drain_annotation.into_iter().collect();
    DesiredObject::from_object(&PodDisruptionBudget {
        metadata: build_metadata(desired, settings, &name, cluster_labels(desired), annotations),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(i32::try_from(available).unwrap_or(i32::MAX))),
            selector: Some(LabelSelector {
                match_labels: Some(selector_labels(desired, None)),
                match_expressions: None,
            }),
            unhealthy_pod_eviction_policy: Some(unready_pods(observed).to_owned()),
            max_unavailable: None,
        }),
        status: None,
    })
}

/// Decides whether pods that are not ready may be evicted whatever the budget says. A pod that
/// starts may not: it would be evicted again and again, and never come up. Pods whose databases
/// cannot run may, so that they hold up no drain. Where pods hold data, no pod may: when no node
/// can serve, none is ready.
fn unready_pods(observed: &ObservedCluster) -> &'static str {
    let members = || observed.pools.iter().flat_map(|pool| pool.members.values());
    let has_data = |member: &Member| member.pod.as_ref().is_some_and(|pod| pod.holds_data);
    let is_unready = |member: &&Member| member.pod.as_ref().is_some_and(|pod| !pod.ready);
    let is_broken = members().any(|member| is_unready(&member))
        && members().filter(is_unready).all(Member::has_failed);
    if is_broken && !members().any(has_data) { "AlwaysAllow" } else { "IfHealthyBudget" }
}

/// Builds the budget of a pool as a release before 0.3 makes it, for that release to take over. A
/// pod under two budgets could not be evicted.
pub(crate) fn former_budget(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    pool: &DesiredPool,
) -> DesiredObject {
    let labels = pool_labels(desired, pool);
    DesiredObject::from_object(&PodDisruptionBudget {
        metadata: build_metadata(desired, settings, &pool.set, labels, Labels::new()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(selector_labels(desired, Some(pool))),
                match_expressions: None,
            }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            min_available: None,
        }),
        status: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::controller::{
        observe::BlockerFacts,
        plan::{drain_hold, plan_next_step},
        resources::PreparedObject,
        testing::sample::{desired, observed},
    };

    const RACKS: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

    fn budget(
        pools: &[(&str, u32)],
        change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster),
    ) -> Value {
        let (mut desired, mut observed) = (desired(pools, "new"), observed(pools, "new"));
        change(&mut desired, &mut observed);
        let hold = drain_hold(&desired, &observed, &plan_next_step(&desired, &observed));
        let settings = ObjectSettings {
            pilot_image: "p".into(),
            store_id: "s".into(),
            owner_references: false,
        };
        let budget = disruption_budget(&desired, &observed, &settings, hold.as_ref());
        let PreparedObject { mut body, .. } = budget.into();
        body["spec"]["why"] = body["metadata"]["annotations"][annotation::DRAINABLE_WHY].clone();
        body["spec"].take()
    }

    fn member(observed: &mut ObservedCluster, pool: usize) -> &mut Member {
        observed.pools[pool].members.get_mut(&0).unwrap()
    }

    fn fail(observed: &mut ObservedCluster, pool: usize) {
        let member = member(observed, pool);
        member.pod.as_mut().unwrap().ready = false;
        let pilot = member.pilot.as_mut().unwrap();
        (pilot.ready, pilot.failed) = (false, true);
    }

    #[test]
    fn all_pods_of_a_cluster_are_under_one_budget_that_lets_one_go() {
        let open = budget(&RACKS, |_, _| ());
        assert_eq!((&open["minAvailable"], &open["maxUnavailable"]), (&2.into(), &Value::Null));
        let selected = open["selector"]["matchLabels"].as_object().unwrap();
        assert_eq!(selected.len(), 1, "{selected:?}");
        assert!(selected.contains_key("navigator.jetstack.io/example-cluster-name"));
        assert_eq!(
            (&open["unhealthyPodEvictionPolicy"], &open["why"]),
            (&"IfHealthyBudget".into(), &Value::Null)
        );
    }

    #[test]
    fn a_closed_one_wants_all_of_them_and_says_why() {
        let closed = budget(&RACKS, |_, o| {
            let pilot = member(o, 1).pilot.as_mut().unwrap();
            pilot.blockers = vec![BlockerFacts::of_stop("RingSettled", "a node joins")];
        });
        assert_eq!(closed["minAvailable"], 3);
        assert_eq!(closed["why"], "RingSettled: ex-demo-b-0: a node joins");
        let grows = budget(&[("a", 3)], |d, _| d.pools[0].replicas = 4);
        assert_eq!(grows["minAvailable"], 4, "the one that comes next is closed in already");
    }

    #[test]
    fn the_only_node_and_a_stopped_cluster_can_be_drained() {
        assert_eq!(budget(&[("a", 1)], |_, _| ())["minAvailable"], 0);
        assert_eq!(budget(&RACKS, |d, _| d.stopped = true)["minAvailable"], 0);
        let in_pod = budget(&[("a", 1)], |_, o| {
            member(o, 0).pod.as_mut().unwrap().holds_data = true;
        });
        assert_eq!(in_pod["minAvailable"], 1);
    }

    #[test]
    fn a_pod_that_is_not_ready_is_let_go_only_when_its_database_cannot_run() {
        let policy = |change: fn(&mut ObservedCluster)| {
            let spec = budget(&RACKS, |_, o| change(o));
            assert_eq!(spec["minAvailable"], 3);
            spec["unhealthyPodEvictionPolicy"].as_str().unwrap().to_owned()
        };
        let starts = |o: &mut ObservedCluster| member(o, 0).pod.as_mut().unwrap().ready = false;
        assert_eq!(policy(starts), "IfHealthyBudget");
        assert_eq!(policy(|o| fail(o, 0)), "AlwaysAllow");
        let both = policy(|o| {
            fail(o, 0);
            member(o, 1).pod.as_mut().unwrap().ready = false;
        });
        assert_eq!(both, "IfHealthyBudget", "another one starts");
        let earlier = policy(|o| {
            fail(o, 0);
            member(o, 0).pilot.as_mut().unwrap().instance = Some("earlier".into());
        });
        assert_eq!(earlier, "IfHealthyBudget", "that was said of another pod");
        let in_pods = policy(|o| {
            fail(o, 0);
            member(o, 1).pod.as_mut().unwrap().holds_data = true;
        });
        assert_eq!(in_pods, "IfHealthyBudget", "without a master none is ready");
    }
}
