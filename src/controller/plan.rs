//! Decides the next step for a cluster: at most one.
//!
//! Owns the order of steps: first repair what is broken, then finish what was begun, and only while
//! every node serves begin something new: cleanup, roll, growth, shrinking, newer pilots. Reads
//! nothing but [`ObservedCluster`] and [`DesiredCluster`]; writes nothing.
//!
//! Invariants, held by the random walks in the tests:
//! - a node is stopped, decommissioned or added only while every other node serves;
//! - a node that holds data is removed only after its pilot reported that it left;
//! - a crash between steps is safe: the next reconcile observes again and decides again.

use std::borrow::Cow;

use super::{
    desired_state::{DesiredCluster, DesiredPool},
    observe::{Member, ObservedCluster, ObservedPool, PilotFacts},
};
use crate::api::v1beta1::PilotIntent;

mod deliver;
mod drain;
mod renewal;
mod roll;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use deliver::{PilotRollout, RolloutState, pilots};
pub(crate) use drain::{DrainHold, drain_hold, nodes};
pub(crate) use renewal::{turned_away, waits_for_renewal};
pub(crate) use roll::{outdated, without_restart};

/// The kind of change that is under way in a cluster; `status.operation.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationType {
    Bootstrap,
    ScaleUp,
    ScaleDown,
    Upgrade,
    Configure,
    Replace,
    Stop,
    Start,
}

impl OperationType {
    const ALL: [Self; 8] = [
        Self::Bootstrap,
        Self::ScaleUp,
        Self::ScaleDown,
        Self::Upgrade,
        Self::Configure,
        Self::Replace,
        Self::Stop,
        Self::Start,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Bootstrap => "Bootstrap",
            Self::ScaleUp => "ScaleUp",
            Self::ScaleDown => "ScaleDown",
            Self::Upgrade => "Upgrade",
            Self::Configure => "Configure",
            Self::Replace => "Replace",
            Self::Stop => "Stop",
            Self::Start => "Start",
        }
    }

    /// Returns the reason of the Ready condition while the operation lasts.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Bootstrap | Self::Start => "BootstrapInProgress",
            Self::ScaleUp => "ScaleUpInProgress",
            Self::ScaleDown => "ScaleDownInProgress",
            Self::Upgrade => "UpgradeInProgress",
            Self::Configure => "ConfigureInProgress",
            Self::Replace => "ReplaceInProgress",
            Self::Stop => "ClusterStopped",
        }
    }
}

/// One change of a cluster. Each step is safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlannedStep {
    /// Raise the replicas of a pool; Pilots of the new nodes are made first.
    Raise { pool: String, to: u32 },
    /// Give a broken node the newest spec and a new pod.
    Replace { pilot: String, pod: String },
    /// Give a node the newest spec and nothing else. A running node validates it; one that could
    /// not start tries again.
    Configure { pilot: String },
    /// Give a serving node the newest spec and a new pod.
    Restart { pilot: String, pod: String },
    /// Give a serving node the newest spec and let its pilot stop and restart the database. For a
    /// node whose data would be deleted with its pod.
    RestartInPlace { pilot: String },
    /// Ask a pilot to move its node's data away and leave the database cluster.
    Decommission { pilot: String },
    /// Take back the request for a decommission.
    Keep { pilot: String },
    /// Lower the replicas of a pool by one: its last node left the database cluster, or never
    /// served.
    Remove { pool: String, pilot: String, to: u32 },
    /// Delete the claim of a node that left.
    DeleteClaim { pilot: String, claim: String, uid: String },
    /// Delete the Pilot of a node that no longer exists.
    DeletePilot { pilot: String, uid: String },
    /// Delete the objects of a pool that is no longer wanted and has no node left.
    DeletePool { pool: String, set: String },
    /// Ask these pilots to stop their databases.
    Stop { pilots: Vec<String> },
    /// Let these pilots run their databases again.
    Start { pilots: Vec<String> },
    /// Remove the pods of a stopped pool; claims and Pilots stay.
    Empty { pool: String },
    /// Bring another pilot into a running pod. No database is disturbed.
    Deliver { pilot: String, pod: String, container: String, image: String },
}

impl PlannedStep {
    /// Returns the name of the step in `status.operation.steps`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Raise { .. } | Self::Start { .. } | Self::Keep { .. } => "StartPilot",
            Self::Configure { .. } | Self::RestartInPlace { .. } => "RestartPilot",
            Self::Replace { .. } | Self::Restart { .. } => "RecreatePod",
            Self::Decommission { .. } => "DrainPilot",
            Self::Remove { .. }
            | Self::Stop { .. }
            | Self::Empty { .. }
            | Self::DeletePilot { .. }
            | Self::DeletePool { .. } => "RemovePilot",
            Self::DeleteClaim { .. } => "Cleanup",
            Self::Deliver { .. } => "UpdatePilot",
        }
    }

    pub(crate) fn pilot(&self) -> Option<&str> {
        match self {
            Self::Replace { pilot, .. }
            | Self::Configure { pilot }
            | Self::RestartInPlace { pilot }
            | Self::Restart { pilot, .. }
            | Self::Decommission { pilot }
            | Self::Keep { pilot }
            | Self::Remove { pilot, .. }
            | Self::DeleteClaim { pilot, .. }
            | Self::DeletePilot { pilot, .. }
            | Self::Deliver { pilot, .. } => Some(pilot),
            Self::Raise { .. }
            | Self::DeletePool { .. }
            | Self::Stop { .. }
            | Self::Start { .. }
            | Self::Empty { .. } => None,
        }
    }
}

/// A rule that holds up a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepBlocker {
    pub(crate) predicate: Cow<'static, str>,
    /// The step and its pilot, as `step/pilot`.
    pub(crate) step: String,
    pub(crate) message: String,
    pub(crate) hint: String,
}

/// What was decided for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The operation that is under way; `None` when the cluster is as desired, or nothing may be
    /// done.
    pub(crate) operation: Option<OperationType>,
    pub(crate) step: Option<PlannedStep>,
    /// The step and the pilot that the plan waits for, when there is nothing to do but wait.
    pub(crate) waiting: Option<AwaitedStep>,
    pub(crate) blocked: Vec<StepBlocker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedStep {
    pub(crate) step: &'static str,
    pub(crate) pilot: String,
    pub(crate) message: String,
}

impl AwaitedStep {
    /// Does the wait come before its step begins? That is so for `RecreatePod`; any other step has
    /// begun, and the wait is for its end.
    pub(crate) fn is_ahead_of_its_step(&self) -> bool {
        self.step == "RecreatePod"
    }
}

#[expect(clippy::unnecessary_wraps, reason = "each stage of the plan may find nothing to do")]
impl Plan {
    fn act(operation: OperationType, step: PlannedStep) -> Option<Self> {
        Some(Self { operation: Some(operation), step: Some(step), ..Self::default() })
    }

    fn wait(
        operation: impl Into<Option<OperationType>>,
        step: &'static str,
        pilot: &str,
        message: String,
    ) -> Option<Self> {
        let waiting = AwaitedStep { step, pilot: pilot.to_owned(), message };
        Some(Self { operation: operation.into(), waiting: Some(waiting), ..Self::default() })
    }

    fn blocked(
        operation: impl Into<Option<OperationType>>,
        blocked: Vec<StepBlocker>,
    ) -> Option<Self> {
        Some(Self { operation: operation.into(), blocked, ..Self::default() })
    }
}

/// Returns what to do next for the cluster. The caller does it, and asks again.
pub(crate) fn plan(desired: &DesiredCluster, observed: &ObservedCluster) -> Plan {
    if desired.deleted || desired.paused || desired.stalled.is_some() || observed.stalled.is_some()
    {
        return Plan::default();
    }
    let decided = if desired.stopped {
        stop(desired, observed)
    } else {
        resume(desired, observed)
            .or_else(|| replace(desired, observed))
            .or_else(|| decommission(desired, observed))
            .or_else(|| clean_up(desired, observed))
            .or_else(|| settle(desired, observed))
            .or_else(|| change(desired, observed))
            .or_else(|| deliver::deliver(desired, observed))
    };
    decided.unwrap_or_default()
}

/// Stops every database, then removes the pods of pools that keep their data on claims.
fn stop(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let running =
        || observed.pools.iter().flat_map(|pool| pool.members.values()).filter(|m| m.pod.is_some());
    let leaving = running().find(|member| {
        member.pilot.as_ref().is_some_and(|pilot| pilot.irreversible && !pilot.decommissioned)
    });
    if let Some(member) = leaving {
        return Plan::wait(OperationType::Stop, "DrainPilot", &member.name, progress(member));
    }
    // A phase that a person wrote is left alone: it stops the database too, or that person takes it
    // back.
    let ask: Vec<String> = running()
        .filter(|member| member.pilot.is_some() && !member.decommissioned())
        .filter(|member| member.held().is_none() && !member.intends(&PilotIntent::Stopped))
        .map(|member| member.name.clone())
        .collect();
    if !ask.is_empty() {
        return Plan::act(OperationType::Stop, PlannedStep::Stop { pilots: ask });
    }
    let stops = |member: &&Member| {
        let answered = member.pilot.as_ref().is_some_and(|p| p.stopped || p.decommissioned);
        !answered && member.held().is_none() && !member.never_ran()
    };
    if let Some(member) = running().find(stops) {
        let message = format!("{} is stopping its database", member.name);
        return Plan::wait(OperationType::Stop, "RemovePilot", &member.name, message);
    }
    // A pod that holds its data is kept, with its database stopped.
    observed
        .pools
        .iter()
        .filter(|pool| desired.pool(&pool.name).is_some())
        .filter(|pool| !pool.members.values().any(Member::dies_with_pod))
        .find(|pool| pool.replicas() > 0)
        .and_then(|pool| {
            Plan::act(OperationType::Stop, PlannedStep::Empty { pool: pool.name.clone() })
        })
}

/// Lets stopped databases run again and brings back nodes that have data: all at once, because
/// pilots order themselves, and a quorum may need several.
fn resume(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let members = || observed.pools.iter().flat_map(|pool| pool.members.values());
    let asked = || members().filter(|member| member.intends(&PilotIntent::Stopped));
    // A restart in place goes on only when the database has stopped.
    let stopping = asked().find(|member| {
        let pilot = member.pilot.as_ref();
        let stops = |pilot: &PilotFacts| !pilot.stopped && !pilot.hearing.is_over();
        member.dies_with_pod() && pilot.is_some_and(stops)
    });
    if let Some(member) = stopping {
        let operation = under_way(desired).unwrap_or(OperationType::Start);
        let message = format!("{} is stopping its database", member.name);
        return Plan::wait(operation, "RestartPilot", &member.name, message);
    }
    let stopped: Vec<String> = asked().map(|member| member.name.clone()).collect();
    if !stopped.is_empty() {
        let operation = under_way(desired).filter(|begun| *begun == OperationType::Configure);
        let operation = operation.unwrap_or(OperationType::Start);
        return Plan::act(operation, PlannedStep::Start { pilots: stopped });
    }
    let pool = observed
        .pools
        .iter()
        .find(|pool| pool.set.is_some() && pool.returning() > pool.replicas())?;
    let step = PlannedStep::Raise { pool: pool.name.clone(), to: pool.returning() };
    Plan::act(OperationType::Start, step)
}

/// Gives a broken node the newest spec, without waiting for other nodes. If only its database
/// cannot run, the pilot takes the spec without a new pod. A node that a person keeps down is left
/// alone, and a node that moves data is not broken.
fn replace(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    for (pool, wanted) in wanted(desired, observed) {
        for (_, member) in pool.running() {
            let Some(member) = member else { continue };
            let Some(pod) = member.pod.as_ref().filter(|pod| !pod.terminating) else { continue };
            let failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
            if !(pod.trouble.is_some() || failed) || !roll::differs(member, wanted) {
                continue;
            }
            if roll::in_vain(member, wanted) {
                continue;
            }
            if member.held().is_some() || member.at_work() {
                continue;
            }
            let pilot = member.name.clone();
            let step = if pod.trouble.is_none() && roll::fits(member, wanted) {
                PlannedStep::Configure { pilot }
            } else if roll::lost_with_pod(desired, member).is_some() {
                // `settle` reports this, where it waits for the node.
                continue;
            } else {
                PlannedStep::Replace { pilot, pod: pod.uid.clone() }
            };
            return Plan::act(OperationType::Replace, step);
        }
    }
    None
}

/// Continues a decommission that was begun, or takes it back.
fn decommission(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    for pool in &observed.pools {
        let replicas = pool.replicas();
        let wanted = desired.pool(&pool.name).map_or(0, |pool| pool.replicas);
        for (ordinal, member) in pool.running() {
            let Some(member) = member else { continue };
            let last = ordinal + 1 == replicas;
            let remove = || PlannedStep::Remove {
                pool: pool.name.clone(),
                pilot: member.name.clone(),
                to: ordinal,
            };
            if !member.intends(&PilotIntent::Decommissioned) {
                // The node left by itself, or it has no data to move away and no database that
                // could move data.
                let empty =
                    member.held().is_none() && (member.never_ran() || given_up(member, observed));
                if last && replicas > wanted && (member.decommissioned() || empty) {
                    return Plan::act(OperationType::ScaleDown, remove());
                }
                continue;
            }
            // A node that never joined, and whose database does not run, has nothing to move away.
            let needless = replicas > wanted && member.held().is_none();
            if member.decommissioned() || (needless && given_up(member, observed)) {
                if last {
                    return Plan::act(OperationType::ScaleDown, remove());
                }
                continue;
            }
            let irreversible = member.pilot.as_ref().is_some_and(|pilot| pilot.irreversible);
            if ordinal < wanted && !irreversible {
                let step = PlannedStep::Keep { pilot: member.name.clone() };
                return Plan::act(OperationType::ScaleUp, step);
            }
            if member.turned_away().is_some() {
                // The API turns this pilot away, so its progress is unknown. `renewal` reports it.
                continue;
            }
            let message = progress(member);
            return Plan::wait(OperationType::ScaleDown, "DrainPilot", &member.name, message);
        }
    }
    None
}

/// Did the database of a node never serve, so that the node may go as it is? Only once another node
/// is a member: until then, all others may wait for this node to found the cluster.
fn given_up(member: &Member, observed: &ObservedCluster) -> bool {
    let mut members = observed.pools.iter().flat_map(|pool| pool.members.values());
    let founded = members.any(|other| other.has_identity() && !other.decommissioned());
    founded && member.never_served()
}

/// Removes the claims, Pilots and StatefulSets of nodes and pools that no longer exist.
fn clean_up(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    for pool in &observed.pools {
        let wanted = desired.pool(&pool.name);
        for (ordinal, member) in pool.members.range(pool.replicas()..) {
            let Some(pilot) = &member.pilot else { continue };
            // A Pilot is made before the StatefulSet grows, so a wanted Pilot may still wait for
            // its pod.
            let awaited = wanted.is_some_and(|wanted| *ordinal < wanted.replicas);
            let needless = pilot.decommissioned || (!member.may_be_member() && !awaited);
            if member.pod.is_some() || !needless {
                continue;
            }
            let pilot_name = member.name.clone();
            // A pool that left the spec took its retention rule with it, so its claims are kept.
            let delete = wanted.is_some_and(DesiredPool::delete_claim_when_scaled);
            let step = match &member.claim {
                Some(claim) if delete && pilot.decommissioned && !claim.terminating => {
                    let (claim, uid) = (claim.name.clone(), claim.uid.clone());
                    PlannedStep::DeleteClaim { pilot: pilot_name, claim, uid }
                }
                _ => PlannedStep::DeletePilot { pilot: pilot_name, uid: pilot.uid.clone() },
            };
            return Plan::act(OperationType::ScaleDown, step);
        }
        let empty = pool.members.values().all(|member| member.pod.is_none());
        if wanted.is_none() && pool.set.is_some() && pool.replicas() == 0 && empty {
            let step =
                PlannedStep::DeletePool { pool: pool.name.clone(), set: pool.set_name.clone() };
            return Plan::act(OperationType::ScaleDown, step);
        }
    }
    None
}

/// Waits until every node serves: no new change is begun before.
fn settle(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let operation = under_way(desired);
    for pool in &observed.pools {
        for (ordinal, member) in pool.running() {
            let Some(member) = member else {
                let name = crate::api::names::pilot(&pool.set_name, ordinal);
                let message = format!("waiting for pod {name}");
                return Plan::wait(operation, "WaitHealthy", &name, message);
            };
            if member.serving() {
                continue;
            }
            if let Some(phase) = member.held() {
                return Plan::blocked(
                    operation,
                    vec![StepBlocker {
                        predicate: "PhaseHeld".into(),
                        step: format!("WaitHealthy/{}", member.name),
                        message: format!(
                            "{} is kept {phase} by a person or a program",
                            member.name
                        ),
                        hint: format!("set spec.phase of Pilot {} back to Running", member.name),
                    }],
                );
            }
            if member.turned_away().is_some() {
                // Nodes that do not serve for other reasons come first.
                continue;
            }
            if let Some(block) = desired.pool(&pool.name).and_then(|w| kept(desired, member, w)) {
                return Plan::blocked(operation.or(Some(OperationType::Replace)), vec![block]);
            }
            let mut message = unready(member);
            let wanted = desired.pool(&pool.name).map_or(0, |wanted| wanted.replicas);
            if ordinal >= wanted && member.pod.is_some() {
                message += "; it may hold data, so it leaves only once it serves: want it again, \
                            with a spec that lets it start";
            }
            return Plan::wait(operation, "WaitHealthy", &member.name, message);
        }
        let leaving =
            pool.members.range(pool.replicas()..).find(|(_, member)| member.pod.is_some());
        if let Some((_, member)) = leaving {
            let message = format!("waiting for pod {} to end", member.name);
            return Plan::wait(OperationType::ScaleDown, "RemovePilot", &member.name, message);
        }
    }
    renewal::renew(desired, observed, operation)
}

/// Returns the rule that keeps a broken node from getting the newest spec.
fn kept(desired: &DesiredCluster, member: &Member, wanted: &DesiredPool) -> Option<StepBlocker> {
    let failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let trouble = member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some());
    let broken = (failed || trouble) && roll::differs(member, wanted);
    (broken && (trouble || !roll::fits(member, wanted)))
        .then(|| roll::lost_with_pod(desired, member))?
}

/// Begins the next change, if one is wanted. Called only while every node serves.
fn change(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let rolled = roll::roll(desired, observed);
    if let Some(plan) = &rolled
        && (plan.step.is_some()
            || plan.waiting.is_some()
            || plan.operation == Some(OperationType::Upgrade))
    {
        // Nodes join and leave a ring of one version only, and none joins with a configuration
        // that is not known to be good.
        return rolled;
    }
    let resized = grow(desired, observed).or_else(|| shrink(desired, observed));
    let mixed = |plan: &Plan| mixed(desired, observed, plan.step.as_ref()?);
    match resized.as_ref().and_then(mixed) {
        // A roll to another version was returned above; with `OnDelete` there is none.
        Some(block) => Plan::blocked(resized?.operation, vec![block]),
        None => resized.or(rolled),
    }
}

/// Returns the block that keeps a node from joining or leaving: nodes of several versions would
/// stream to each other.
fn mixed(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    step: &PlannedStep,
) -> Option<StepBlocker> {
    let mut members = observed.pools.iter().flat_map(ObservedPool::running);
    let (member, version) = members.find_map(|(_, member)| {
        let version = member?.pilot.as_ref()?.spec.version.as_ref()?;
        (*version != desired.version).then_some((member?, version))
    })?;
    let node = step.pilot().map(|pilot| format!("/{pilot}")).unwrap_or_default();
    Some(StepBlocker {
        predicate: roll::VERSION_SETTLED.into(),
        step: format!("{}{node}", step.name()),
        message: format!("{} is of {version}, and {} is wanted", member.name, desired.version),
        hint: "delete the pods of the other version, or set spec.version back".to_owned(),
    })
}

fn grow(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    // Masters come first, because no other node serves without one; then the order of the spec.
    let (pool, _) = wanted(desired, observed)
        .filter(|(pool, wanted)| pool.set.is_some() && pool.replicas() < wanted.replicas)
        .min_by_key(|(_, wanted)| !wanted.eligible)?;
    let step = PlannedStep::Raise { pool: pool.name.clone(), to: pool.replicas() + 1 };
    let bootstrap = under_way(desired) == Some(OperationType::Bootstrap);
    let operation = if bootstrap { OperationType::Bootstrap } else { OperationType::ScaleUp };
    Plan::act(operation, step)
}

fn shrink(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let surplus = |pool: &&ObservedPool| {
        pool.replicas() > desired.pool(&pool.name).map_or(0, |wanted| wanted.replicas)
    };
    // Pools that left the spec come last in the list and are decommissioned first; masters stay
    // longest.
    let pool = observed.pools.iter().rev().filter(surplus).min_by_key(|pool| pool.eligible())?;
    let member = pool.members.get(&(pool.replicas() - 1))?;
    let count = |counts: &dyn Fn(&ObservedPool) -> bool| {
        observed.pools.iter().filter(|pool| counts(pool)).map(ObservedPool::replicas).sum::<u32>()
    };
    let last = if pool.eligible() && count(&ObservedPool::eligible) == 1 {
        let message = format!("{} is the last node that can be elected master", member.name);
        Some(("QuorumKept", message))
    } else if count(&|_| true) == 1 {
        let message = format!("{} is the last node; its data have nowhere to go", member.name);
        Some(("RangesKeepQuorum", message))
    } else {
        None
    };
    if let Some((predicate, message)) = last {
        return Plan::blocked(
            OperationType::ScaleDown,
            vec![StepBlocker {
                predicate: predicate.into(),
                step: format!("DrainPilot/{}", member.name),
                message,
                hint: "keep one node, set spec.stopped, or delete the cluster".to_owned(),
            }],
        );
    }
    owed(desired, observed, member).or_else(|| {
        Plan::act(
            OperationType::ScaleDown,
            PlannedStep::Decommission { pilot: member.name.clone() },
        )
    })
}

/// Holds a node's decommission until the other nodes have cleaned up. They get ranges back from the
/// node that leaves, and may still hold rows of those ranges from before they gave them away. Rows
/// that were deleted since would come back.
fn owed(desired: &DesiredCluster, observed: &ObservedCluster, leaving: &Member) -> Option<Plan> {
    if desired.strategy.skips(roll::CLEANUP_PENDING) {
        return None;
    }
    let members = observed.pools.iter().flat_map(ObservedPool::running);
    let heard = members.filter_map(|(_, member)| Some((member?, member?.pilot.as_ref()?)));
    let heard: Vec<_> = heard.filter(|(member, _)| !member.decommissioned()).collect();
    let others = || heard.iter().filter(|(other, _)| other.name != leaving.name);
    let owes = others().find_map(|(other, pilot)| {
        Some((other, pilot.cleanup.as_ref().filter(|cleanup| cleanup.due)?))
    });
    if let Some((other, cleanup)) = owes {
        return Plan::blocked(
            OperationType::ScaleDown,
            vec![StepBlocker {
                predicate: roll::CLEANUP_PENDING.into(),
                step: format!("DrainPilot/{}", leaving.name),
                message: format!("{}: {}", other.name, cleanup.message),
                hint: format!(
                    "run kubectl navigator cleanup {}, {}",
                    desired.name,
                    roll::hint(desired.database, roll::CLEANUP_PENDING)
                ),
            }],
        );
    }
    // A node that has just joined may have taken ranges of a node that has not checked since.
    let mut speak = others().filter(|(_, pilot)| pilot.cleanup.is_some());
    let unsaid = speak.find(|(_, pilot)| {
        heard.iter().any(|(_, joined)| joined.hearing.returned <= pilot.hearing.ago)
    });
    let (other, _) = unsaid?;
    let message = format!("waits until {} has said whether it gave ranges away", other.name);
    Plan::wait(OperationType::ScaleDown, "DrainPilot", &leaving.name, message)
}

/// Returns the wanted pools in the order of the spec, as observed and as desired.
fn wanted<'a>(
    desired: &'a DesiredCluster,
    observed: &'a ObservedCluster,
) -> impl Iterator<Item = (&'a ObservedPool, &'a DesiredPool)> {
    observed.pools.iter().filter_map(|pool| Some((pool, desired.pool(&pool.name)?)))
}

/// Returns the operation that was begun; it goes on until every node serves. `None` when nothing
/// was begun: nodes that do not serve then have reasons of their own.
fn under_way(desired: &DesiredCluster) -> Option<OperationType> {
    let initialized = super::observe::condition(&desired.status.conditions, "Initialized")
        .is_some_and(|condition| condition.status == "True");
    if !initialized {
        return Some(OperationType::Bootstrap);
    }
    let begun = desired.status.operation.as_ref()?.type_.as_str();
    OperationType::ALL.into_iter().find(|operation| operation.as_str() == begun)
}

fn progress(member: &Member) -> String {
    let said = member.pilot.as_ref().and_then(|pilot| pilot.progress.clone());
    said.unwrap_or_else(|| format!("{} is moving its data away", member.name))
}

/// Says why a node does not serve, in one sentence.
fn unready(member: &Member) -> String {
    let name = &member.name;
    let Some(pod) = &member.pod else { return format!("waiting for pod {name}") };
    if pod.terminating {
        return format!("waiting for pod {name} to end");
    }
    if let Some(trouble) = &pod.trouble {
        return trouble.message.clone();
    }
    // Until the pilot of a new pod has reported, the Pilot is still marked as silent for an earlier
    // pod.
    let earlier = |pilot: &PilotFacts| {
        pilot.marked_unheard && pilot.instance.as_ref().is_some_and(|uid| *uid != pod.uid)
    };
    let pilot = member.pilot.as_ref().filter(|pilot| !earlier(pilot));
    match pilot.and_then(|pilot| pilot.not_ready.as_ref()) {
        Some(said) => format!("{name}: {said}"),
        None if pod.ready => format!("{name} is ready and its pilot has not said so yet"),
        None => format!("{name} is starting"),
    }
}
