//! Recreates pods whose pilots the API rejects, because their ServiceAccount was deleted and made
//! again: only when a person asks for it, and one at a time.
//!
//! Meanwhile no pilot can report what speaks against a stop, and the kubelet ends the trouble by
//! itself within the hour. So the step waits for a person who names its predicate. Each next pod
//! waits until the one before serves, reports, and says that nothing speaks against a stop.

use k8s_openapi::jiff::Timestamp;

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World, absence,
    current_operation,
    roll::{self, OUTLIVES, PEERS_READY},
};
use crate::{
    api::{predicate, v1beta1::NodeChange},
    controller::observe::{Member, ObservedCluster, ObservedPool},
};

const TOKEN_RENEWAL: &str = predicate::TOKEN_RENEWAL.name;
const REMEDY: Remedy = Remedy::RenewTokens { predicate: TOKEN_RENEWAL };

/// Nodes whose pilots the API rejects, and when the last of them has a valid token again.
struct UnauthorizedPilots<'a> {
    members: Vec<&'a Member>,
    renewed_by: Timestamp,
}

impl<'a> UnauthorizedPilots<'a> {
    fn find(observed: &'a ObservedCluster) -> Option<Self> {
        let running_members = observed.pools.iter().flat_map(ObservedPool::nodes);
        let rejections =
            running_members.filter_map(|(_, member)| member?.unauthorized_until().zip(member));
        let (times, members): (Vec<_>, Vec<_>) = rejections.unzip();
        Some(Self { members, renewed_by: times.into_iter().max()? })
    }

    fn description(&self) -> String {
        let names: Vec<&str> = self.members.iter().map(|member| &*member.name).collect();
        format!(
            "the API turns the pilots of {} away: their tokens are of a ServiceAccount that was \
             deleted and made again; kubelet renews them by {}",
            names.join(", "),
            self.renewed_by
        )
    }

    /// Returns the node whose pod is recreated next. A pod that is not ready goes first, since it
    /// serves no client; then the order of a roll.
    fn next_member(&self) -> Option<&'a Member> {
        let order = |member: &&&Member| {
            let is_ready = member.pod.as_ref().is_some_and(|pod| pod.ready);
            let is_elected = member.pilot.as_ref().is_some_and(|pilot| pilot.elected);
            (is_ready, is_elected, member.is_eligible())
        };
        self.members.iter().rev().min_by_key(order).copied()
    }

    fn contains(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }
}

/// Says which nodes' pilots the API rejects, until when, and what a person can do.
pub(crate) fn describe_unauthorized(observed: &ObservedCluster) -> Option<String> {
    let unauthorized_pilots = UnauthorizedPilots::find(observed)?;
    Some(format!("{}; {REMEDY}", unauthorized_pilots.description()))
}

/// Is the plan blocked until tokens are renewed?
pub(crate) fn waits_for_renewal(plan: &Plan) -> bool {
    plan.blocked.iter().any(|block| block.predicate == TOKEN_RENEWAL)
}

/// Recreates a pod whose pilot the API rejects, when all other nodes serve.
pub(super) fn recreate_unauthorized_pods(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let is_rejected = |member: &Member| member.unauthorized_until().is_some();
    let is_other_unavailable =
        absence::unavailable_nodes(world).any(|node| !node.member.is_some_and(is_rejected));
    if is_other_unavailable || absence::terminating_nodes(world).next().is_some() {
        return Vec::new();
    }
    recreate_next_pod(world).into_iter().collect()
}

fn recreate_next_pod(world: World<'_>) -> Option<Candidate> {
    let World { desired, observed } = world;
    let unauthorized_pilots = UnauthorizedPilots::find(observed)?;
    let member = unauthorized_pilots.next_member()?;
    let operation = current_operation(desired).unwrap_or(OperationType::Replace);
    let build_blocker = |predicate: &str, message: String, remedy: Remedy| StepBlocker {
        predicate: predicate.to_owned().into(),
        step: format!("RecreatePod/{}", member.name),
        message,
        remedy,
    };
    if !desired.strategy.is_skipped_by_name(TOKEN_RENEWAL) {
        let blocker = build_blocker(TOKEN_RENEWAL, unauthorized_pilots.description(), REMEDY);
        return Some(Candidate::from_blockers(operation, [blocker]));
    }
    let mut blockers: Vec<StepBlocker> =
        roll::pod_data_blocker(desired, member).into_iter().collect();
    for (other, pilot) in
        roll::ready_pilots(observed).filter(|(name, _)| !unauthorized_pilots.contains(name))
    {
        if !pilot.hearing.is_fresh() && !desired.strategy.is_skipped(PEERS_READY) {
            let message = format!("waits for a report of {other}");
            let awaited_step = AwaitedStep::new("RecreatePod", &member.name, message);
            return Some(Candidate::from_wait(operation, awaited_step));
        }
        // A rule that holds for a node whose pilot reports may hold for this one as well.
        let stop_blockers = pilot
            .blockers
            .iter()
            .filter(|blocker| {
                blocker.blocks_change(&NodeChange::Stop) && blocker.predicate != OUTLIVES
            })
            .filter(|blocker| !desired.strategy.is_skipped(&blocker.predicate));
        blockers.extend(stop_blockers.map(|blocker| {
            let message = format!("{other}: {}", blocker.message);
            build_blocker(
                &blocker.predicate,
                message,
                roll::skip_remedy(desired.database, &blocker.predicate),
            )
        }));
    }
    if !blockers.is_empty() {
        return Some(Candidate::from_blockers(operation, blockers));
    }
    let (pilot, pod) = (member.name.clone(), member.pod.as_ref()?.uid.clone());
    Some(Candidate::from_step(operation, PlannedStep::Recreate { pilot, pod }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{plan_next_step, tests::lose_account},
        *,
    };
    use crate::controller::{
        heartbeats::HeartbeatAge,
        observe::BlockerFacts,
        testing::sample::{desired, observed},
    };

    const POOLS: [(&str, u32); 2] = [("a", 2), ("m", 1)];

    /// Returns the plan for three nodes whose pilots the API rejects; `skipped` are the predicates
    /// that a person overrides.
    fn planned(skipped: &[&str], change: impl FnOnce(&mut ObservedCluster)) -> Plan {
        let (mut desired, mut observed) = (desired(&POOLS, "new"), observed(&POOLS, "new"));
        desired.strategy.skip_predicates.extend(skipped.iter().map(|name| (*name).to_owned()));
        lose_account(&mut observed, Timestamp::UNIX_EPOCH);
        observed.pools[1].members.get_mut(&0).unwrap().pilot.as_mut().unwrap().eligible = true;
        change(&mut observed);
        plan_next_step(&desired, &observed)
    }

    fn remade(observed: &mut ObservedCluster, pool: usize, ordinal: u32) -> &mut Member {
        let member = observed.pools[pool].members.get_mut(&ordinal).unwrap();
        let pod = member.pod.as_mut().unwrap();
        (pod.uid, pod.token_renewed_by) = ("new".into(), None);
        member
    }

    /// Gives a node a new pod whose pilot has reported since.
    fn heard(observed: &mut ObservedCluster, pool: usize, ordinal: u32) -> &mut Member {
        let member = remade(observed, pool, ordinal);
        let pilot = member.pilot.as_mut().unwrap();
        (pilot.ready, pilot.marked_unheard) = (true, false);
        (pilot.instance, pilot.hearing) = (Some("new".into()), HeartbeatAge::STEADY);
        member
    }

    fn restarted(plan: &Plan) -> Option<&str> {
        plan.step.as_ref().map(|step| match step {
            PlannedStep::Recreate { pilot, .. } => pilot.as_str(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn pods_with_dead_tokens_wait_for_a_person_who_names_that() {
        for skipped in [&[][..], &["*"]] {
            let waits = planned(skipped, |_| ());
            assert_eq!((&waits.step, &*waits.blocked[0].predicate), (&None, "TokenRenewal"));
            assert_eq!(waits.blocked.len(), 1);
            let message = &waits.blocked[0].message;
            for told in ["ex-demo-a-0, ex-demo-a-1, ex-demo-m-0", "by 1970-01-01T00:00:00Z"] {
                assert!(message.contains(told), "{message}");
            }
        }
    }

    #[test]
    fn masters_are_last_and_what_does_not_serve_is_first() {
        let named = &["TokenRenewal"][..];
        assert_eq!(restarted(&planned(named, |_| ())), Some("ex-demo-a-1"));
        let down = planned(named, |observed| {
            observed.pools[1].members.get_mut(&0).unwrap().pod.as_mut().unwrap().ready = false;
        });
        assert_eq!(restarted(&down), Some("ex-demo-m-0"));
    }

    #[test]
    fn the_next_pod_waits_until_the_last_one_serves_is_heard_and_judges_well() {
        let named = &["TokenRenewal"][..];
        let starts = planned(named, |observed| {
            remade(observed, 0, 1).pod.as_mut().unwrap().ready = false;
        });
        assert_eq!(
            (&starts.step, starts.waiting.unwrap().message.as_str()),
            (&None, "ex-demo-a-1 is starting")
        );
        let unheard = planned(named, |observed| drop(remade(observed, 0, 1).clone()));
        assert_eq!((&unheard.step, unheard.waiting.is_some()), (&None, true));
        let late = planned(named, |observed| {
            let pilot = heard(observed, 0, 1).pilot.as_mut().unwrap();
            pilot.hearing.ago = Duration::from_secs(60);
        });
        assert_eq!(late.waiting.unwrap().message, "waits for a report of ex-demo-a-1");
        let moving = |skipped: &[&str]| {
            planned(skipped, |observed| {
                let pilot = heard(observed, 0, 1).pilot.as_mut().unwrap();
                pilot.blockers = vec![BlockerFacts::of_stop("NoShardMovement", "2 shards recover")];
            })
        };
        let held = moving(named);
        assert_eq!((&held.step, &*held.blocked[0].predicate), (&None, "NoShardMovement"));
        assert_eq!(held.blocked[0].message, "ex-demo-a-1: 2 shards recover");
        let both = moving(&["TokenRenewal", "NoShardMovement"]);
        assert_eq!(restarted(&both), Some("ex-demo-a-0"));
        let next = planned(named, |observed| drop(heard(observed, 0, 1).clone()));
        assert_eq!(restarted(&next), Some("ex-demo-a-0"));
    }

    #[test]
    fn data_that_would_go_with_a_pod_are_named_apart() {
        let in_pods = |observed: &mut ObservedCluster| {
            for member in observed.pools[0].members.values_mut() {
                member.pod.as_mut().unwrap().holds_data = true;
            }
        };
        let held = planned(&["TokenRenewal", "*"], in_pods);
        assert_eq!((&held.step, &*held.blocked[0].predicate), (&None, "DataOutlivesPod"));
        let named = planned(&["TokenRenewal", "DataOutlivesPod"], in_pods);
        assert_eq!(restarted(&named), Some("ex-demo-a-1"));
    }

    #[test]
    fn another_node_that_does_not_serve_comes_first() {
        let plan = planned(&["TokenRenewal"], |observed| {
            let member = heard(observed, 1, 0);
            member.pod.as_mut().unwrap().ready = false;
            member.pilot.as_mut().unwrap().ready = false;
        });
        assert_eq!((&plan.step, plan.waiting.unwrap().pilot.as_str()), (&None, "ex-demo-m-0"));
    }

    #[test]
    fn nothing_is_waited_for_once_the_tokens_are_renewed_and_the_pilots_heard() {
        let plan = planned(&[], |observed| {
            for (pool, ordinal) in [(0, 0), (0, 1), (1, 0)] {
                heard(observed, pool, ordinal);
            }
        });
        assert_eq!(plan, Plan::default());
    }
}
