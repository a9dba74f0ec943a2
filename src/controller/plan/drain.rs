//! Decides whether a node of a cluster may be evicted now, and why not.
//!
//! The cluster's PodDisruptionBudget follows from this decision. An eviction is a stop like a
//! restart by the controller, so a rule that holds such a restart holds an eviction too, and so
//! does a step of the controller. Reads nothing but the plan, and what the plan reads.

use std::borrow::Cow;

use super::{
    OperationType, Plan, StepBlocker, World,
    absence::describe_unready,
    behind,
    roll::{self, FOR_PEOPLE, PEERS_READY},
    volumes::RESIZE,
};
use crate::controller::{
    desired_state::DesiredCluster,
    observe::{Member, ObservedCluster, ObservedPool},
};

/// Why no node may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainHold {
    /// A predicate, or a reason of the condition Ready.
    pub(crate) reason: Cow<'static, str>,
    /// The node, and a sentence about it.
    pub(crate) message: String,
}

impl DrainHold {
    pub(crate) fn new(reason: impl Into<Cow<'static, str>>, message: String) -> Self {
        Self { reason: reason.into(), message }
    }

    fn for_node(reason: impl Into<Cow<'static, str>>, node: &str, sentence: &str) -> Self {
        let is_named = node.is_empty() || sentence.contains(node);
        let message = if is_named { sentence.to_owned() } else { format!("{node}: {sentence}") };
        Self::new(reason, message)
    }

    /// Returns whether a heartbeat of pilots ends this hold. Then the controller has to check the
    /// cluster again after a while, because a heartbeat alone triggers no reconcile.
    pub(crate) fn ends_by_reports(&self) -> bool {
        self.reason == PEERS_READY
    }
}

impl From<&StepBlocker> for DrainHold {
    fn from(block: &StepBlocker) -> Self {
        let node = block.step.split_once('/').map_or("", |(_, node)| node);
        Self::for_node(block.predicate.clone(), node, &block.message)
    }
}

/// Returns what blocks the eviction of any node; `None` while one node may be evicted. The only
/// node of a cluster and the nodes of a stopped one may always go, because no other node could
/// serve for them. The exception is a node whose data would be deleted with its pod.
pub(crate) fn drain_hold(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
) -> Option<DrainHold> {
    let find_data_loss = || {
        let mut members = observed.pools.iter().flat_map(|pool| pool.members.values());
        let data_loss_blocker = |member: &Member| {
            let find_replica_blocker =
                || behind::node_blocker(World { desired, observed }, "RecreatePod", member);
            let replica_blocker = member.dies_with_pod().then(find_replica_blocker).flatten();
            roll::pod_data_blocker(desired, member).or(replica_blocker)
        };
        members.find_map(data_loss_blocker).as_ref().map(Into::into)
    };
    if desired.stopped || node_count(desired, observed) <= 1 {
        return find_data_loss();
    }
    plan_blocker(desired, plan)
        .or_else(|| unavailable_node_blocker(desired, observed))
        .or_else(|| {
            running_members(observed).find_map(|member| stop_blocker(desired, observed, member))
        })
        .or_else(find_data_loss)
}

/// Returns the number of nodes that run or should run. With this number as `minAvailable`, no node
/// may be evicted. A pool that is about to grow counts as grown.
pub(crate) fn node_count(desired: &DesiredCluster, observed: &ObservedCluster) -> u32 {
    let find_pool = |name: &str| observed.pools.iter().find(|pool| pool.name == name);
    let desired_counts = desired.pools.iter().map(|pool| {
        let existing_count = find_pool(&pool.name).map_or(0, existing_replicas);
        pool.replicas.max(existing_count)
    });
    let surplus_pools = observed.pools.iter().filter(|pool| desired.pool(&pool.name).is_none());
    desired_counts.chain(surplus_pools.map(existing_replicas)).sum()
}

fn existing_replicas(pool: &ObservedPool) -> u32 {
    pool.replicas().max(pool.returning_replicas())
}

fn running_members(observed: &ObservedCluster) -> impl Iterator<Item = &Member> {
    observed.pools.iter().flat_map(ObservedPool::nodes).filter_map(|(_, member)| member)
}

/// Returns a hold for what the plan does, waits for or is blocked by. Blocks that wait for a
/// person, while every node serves, do not count, and neither do blocks of a new spec.
fn plan_blocker(desired: &DesiredCluster, plan: &Plan) -> Option<DrainHold> {
    let Plan { operation, step, waiting, blocked } = plan;
    let is_counted = |block: &&StepBlocker| {
        let rule = &block.predicate;
        !FOR_PEOPLE.contains(&&**rule) && !roll::is_of_spec(desired.database, rule)
    };
    if let Some(block) = blocked.iter().find(is_counted) {
        return Some(block.into());
    }
    if let Some(waiting) = waiting {
        if waiting.step == RESIZE {
            // A volume grows with its node or without, and may need the restart.
            return None;
        }
        let reason = operation.map_or("NodesNotReady", OperationType::ready_reason);
        return Some(DrainHold::for_node(reason, &waiting.pilot, &waiting.message));
    }
    let Some(step) = step else {
        // The step was decided from caches that lag behind, or waits for a pod that is being
        // evicted.
        let pending_operation = operation.filter(|_| blocked.is_empty())?;
        return Some(DrainHold::new(
            pending_operation.ready_reason(),
            "the next step is decided anew".to_owned(),
        ));
    };
    let reason = operation.map_or("PilotUpdateInProgress", OperationType::ready_reason);
    let sentence = format!("step {} is carried out", step.name());
    Some(DrainHold::for_node(reason, step.pilot().unwrap_or_default(), &sentence))
}

/// Returns a hold for the first node that does not serve.
fn unavailable_node_blocker(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Option<DrainHold> {
    let is_unavailable = |member: &&Member| !member.is_serving();
    if let Some(member) = running_members(observed).find(is_unavailable) {
        return Some(DrainHold::for_node("NodesNotReady", &member.name, &describe_unready(member)));
    }
    let surplus_start = |pool: &'_ ObservedPool| pool.replicas();
    let mut leaving_members =
        observed.pools.iter().flat_map(|pool| pool.members.range(surplus_start(pool)..));
    if let Some((_, member)) = leaving_members.find(|(_, member)| member.pod.is_some()) {
        let message = format!("waiting for pod {} to end", member.name);
        return Some(DrainHold::new("NodesNotReady", message));
    }
    let (serving_count, desired_count) =
        (running_members(observed).count(), node_count(desired, observed));
    (serving_count < usize::try_from(desired_count).unwrap_or(usize::MAX)).then(|| {
        DrainHold::new("NodesNotReady", format!("{serving_count} of {desired_count} nodes serve"))
    })
}

/// Returns what blocks a stop of `member`, as before a restart by the controller.
fn stop_blocker(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    member: &Member,
) -> Option<DrainHold> {
    let mut blockers = roll::stop_blockers(desired, observed, member);
    blockers.retain(|block| !roll::is_of_spec(desired.database, &block.predicate));
    if let Some(block) = blockers.first() {
        return Some(match &*block.predicate {
            // This block is about another node's pilot, so this node is not named.
            PEERS_READY => DrainHold::new(PEERS_READY, block.message.clone()),
            _ => block.into(),
        });
    }
    let missing_report = roll::missing_report(observed, member)
        .filter(|_| !desired.strategy.is_skipped(PEERS_READY));
    Some(DrainHold::new(PEERS_READY, missing_report?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::plan_next_step, *};
    use crate::{
        api::v1beta1::PilotIntent,
        controller::{
            heartbeats::HeartbeatAge,
            observe::{BlockerFacts, PilotFacts, PodFacts},
            testing::sample::{desired, initialized, observed},
        },
    };

    type Change = fn(&mut DesiredCluster, &mut ObservedCluster);

    /// A cluster of three racks with one node each.
    const RACKS: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

    fn pilot(observed: &mut ObservedCluster, pool: usize) -> &mut PilotFacts {
        observed.pools[pool].members.get_mut(&0).unwrap().pilot.as_mut().unwrap()
    }

    fn pod(observed: &mut ObservedCluster, pool: usize) -> &mut PodFacts {
        observed.pools[pool].members.get_mut(&0).unwrap().pod.as_mut().unwrap()
    }

    fn hold_of(pools: &[(&str, u32)], change: Change) -> Option<DrainHold> {
        let (mut desired, mut observed) = (desired(pools, "new"), observed(pools, "new"));
        change(&mut desired, &mut observed);
        drain_hold(&desired, &observed, &plan_next_step(&desired, &observed))
    }

    #[test]
    fn a_node_may_go_while_all_serve_and_nothing_is_done() {
        assert_eq!(hold_of(&RACKS, |_, _| ()), None);
        let held: Change = |d, o| {
            d.strategy.canary = Some((["a".to_owned()].into(), 1));
            pod(o, 1).hash = "old".into();
        };
        assert_eq!(hold_of(&RACKS, held), None, "a canary is held for a person");
        let on_delete: Change = |d, o| {
            d.strategy.on_delete = true;
            pod(o, 1).hash = "old".into();
        };
        assert_eq!(hold_of(&RACKS, on_delete), None, "whoever deletes pods may drain machines");
    }

    #[test]
    fn each_reason_not_to_go_is_told_with_its_node() {
        let rows: [(&str, &str, Change); 12] = [
            ("ConfigureInProgress", "ex-demo-b-0: step RecreatePod", |_, o| {
                pod(o, 1).hash = "old".into();
            }),
            ("ScaleUpInProgress", "step StartPilot", |d, _| {
                d.pools[0].replicas = 2;
                d.status.conditions = vec![initialized()];
            }),
            ("NodesNotReady", "ex-demo-c-0 is starting", |d, o| {
                d.status.conditions = vec![initialized()];
                pod(o, 2).ready = false;
            }),
            ("PhaseHeld", "ex-demo-c-0 is kept Fenced", |_, o| {
                pod(o, 2).ready = false;
                pilot(o, 2).spec.phase = Some(PilotIntent::Fenced);
            }),
            ("ScaleDownInProgress", "waiting for pod ex-demo-a-1 to end", |d, o| {
                d.status.conditions = vec![initialized()];
                let mut gone = o.pools[0].members[&0].clone();
                gone.name = "ex-demo-a-1".into();
                gone.pod.as_mut().unwrap().terminating = true;
                gone.pilot = None;
                o.pools[0].members.insert(1, gone);
            }),
            ("NodesNotReady", "3 of 4 nodes serve", |d, o| {
                // Nothing is done for a cluster that is stalled.
                d.pools[0].replicas = 2;
                o.stalled = Some(crate::controller::desired_state::StallCause {
                    reason: "ForeignObject",
                    message: String::new(),
                });
            }),
            ("PeersReady", "the pilot of ex-demo-b-0 has not reported", |_, o| {
                pilot(o, 1).hearing.ago = Duration::from_secs(60);
            }),
            ("PeersReady", "waits for a report of ex-demo-b-0", |_, o| {
                pilot(o, 1).hearing.heard = false;
            }),
            ("PeersReady", "ex-demo-a-0 has judged again, since ex-demo-b-0 came back", |_, o| {
                pilot(o, 1).hearing.returned = Duration::from_secs(5);
                pilot(o, 1).hearing.ago = Duration::from_secs(1);
                pilot(o, 0).hearing.ago = Duration::from_secs(6);
            }),
            ("PeersReady", "a report of ex-demo-c-0 from its new pod", |_, o| {
                pilot(o, 2).instance = Some("earlier".into());
            }),
            ("NoShardMovement", "ex-demo-c-0: 2 shards recover", |_, o| {
                pilot(o, 2).blockers =
                    vec![BlockerFacts::of_stop("NoShardMovement", "2 shards recover")];
            }),
            ("DataOutlivesPod", "the data of ex-demo-b-0 are in its pod", |_, o| {
                pod(o, 1).holds_data = true;
            }),
        ];
        for (reason, message, change) in rows {
            let hold = hold_of(&RACKS, change).unwrap_or_else(|| panic!("{reason}: {message}"));
            assert_eq!(hold.reason, reason, "{hold:?}");
            assert!(hold.message.contains(message), "{message}: {hold:?}");
        }
    }

    #[test]
    fn what_was_begun_holds_while_its_next_step_is_decided_anew() {
        let (desired, observed) = (desired(&RACKS, "new"), observed(&RACKS, "new"));
        let begun = Plan { operation: Some(OperationType::Configure), ..Plan::default() };
        let hold = drain_hold(&desired, &observed, &begun).unwrap();
        assert_eq!(hold.reason, "ConfigureInProgress");
    }

    #[test]
    fn a_rule_that_a_person_skips_holds_nothing() {
        let skipped = |rule: &str| {
            let (mut desired, mut observed) = (desired(&RACKS, "new"), observed(&RACKS, "new"));
            desired.strategy.skip_predicates.insert(rule.to_owned());
            pilot(&mut observed, 0).blockers = vec![BlockerFacts::of_stop("StreamsIdle", "one")];
            pilot(&mut observed, 1).hearing = HeartbeatAge::default();
            pod(&mut observed, 2).holds_data = true;
            drain_hold(&desired, &observed, &Plan::default()).map(|hold| hold.reason)
        };
        assert_eq!(skipped("StreamsIdle").as_deref(), Some("PeersReady"));
        assert_eq!(skipped("PeersReady").as_deref(), Some("StreamsIdle"));
        assert_eq!(skipped("*").as_deref(), Some("DataOutlivesPod"));
    }

    #[test]
    fn the_only_node_and_a_stopped_cluster_hold_no_drain_unless_data_would_go() {
        let one = [("a", 1)];
        let starting: Change = |_, o| pod(o, 0).ready = false;
        assert_eq!(hold_of(&one, starting), None);
        let stopped: Change = |d, o| {
            d.stopped = true;
            pod(o, 0).ready = false;
        };
        assert_eq!(hold_of(&RACKS, stopped), None);
        let in_pod: Change = |_, o| pod(o, 0).holds_data = true;
        assert_eq!(hold_of(&one, in_pod).unwrap().reason, "DataOutlivesPod");
        let stopped: Change = |d, o| {
            d.stopped = true;
            pod(o, 1).holds_data = true;
        };
        assert_eq!(hold_of(&RACKS, stopped).unwrap().reason, "DataOutlivesPod");
    }

    #[test]
    fn a_node_that_is_about_to_be_made_counts() {
        let count = |wanted: &[(&str, u32)], there: &[(&str, u32)]| {
            node_count(&desired(wanted, "new"), &observed(there, "new"))
        };
        assert_eq!(count(&[("a", 3)], &[("a", 1)]), 3);
        assert_eq!(count(&[("a", 1)], &[("a", 3)]), 3, "until they have left");
        assert_eq!(count(&[("a", 1)], &[("a", 1), ("b", 2)]), 3);
        assert_eq!(count(&[("a", 2)], &[]), 2);
    }
}
