//! A stopped cluster, and its way back.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, World, absence, departure, under_way,
};
use crate::{
    api::v1beta1::PilotIntent,
    controller::observe::{Member, ObservedPool},
};

/// Stops every database, then removes the pods of pools that keep their data on claims. A node that
/// cannot answer holds no other pool.
pub(super) fn stop(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let round = &world.desired.round;
    let operation = if round.stops_all { OperationType::Secure } else { OperationType::Stop };
    let pools = &world.observed.pools;
    let running =
        || pools.iter().flat_map(|pool| pool.members.values()).filter(|m| m.pod.is_some());
    // If the pod of a leaving node was lost, that node got the phase Stopped with the others, and leaves
    // no more.
    let leaves = |member: &&Member| {
        let pilot = member.pilot.as_ref();
        pilot.is_some_and(|pilot| pilot.irreversible && !pilot.decommissioned)
            && member.intent() != PilotIntent::Stopped
            && answers(member)
    };
    if let Some(member) = running().find(leaves) {
        let awaited = AwaitedStep::new("DrainPilot", &member.name, departure::progress(member));
        return vec![Candidate::wait(operation, awaited)];
    }
    // A phase that a person wrote is left alone: it stops the database too, or that person takes it
    // back.
    let ask: Vec<String> = running()
        .filter(|member| member.pilot.is_some() && !member.decommissioned())
        .filter(|member| member.held().is_none() && !member.intends(&PilotIntent::Stopped))
        .map(|member| member.name.clone())
        .collect();
    if !ask.is_empty() {
        return vec![Candidate::step(operation, PlannedStep::Stop { pilots: ask })];
    }
    // A pod that holds its data is kept, with its database stopped.
    let mut candidates: Vec<Candidate> = pools
        .iter()
        .filter(|pool| world.desired.pool(&pool.name).is_some() && pool.replicas() > 0)
        .filter(|pool| !pool.members.values().any(Member::dies_with_pod))
        .filter(|pool| !pool.members.values().any(stops))
        .map(|pool| Candidate::step(operation, PlannedStep::Empty { pool: pool.name.clone() }))
        .collect();
    let ends = |member: &&Member| member.pod.as_ref().is_some_and(|pod| pod.terminating);
    candidates.extend(running().filter(ends).map(|member| absence::ends(operation, member)));
    candidates.extend(running().filter(|member| stops(member)).map(|member| {
        let message = format!("{} is stopping its database", member.name);
        Candidate::wait(operation, AwaitedStep::new("RemovePilot", &member.name, message))
    }));
    candidates
}

/// Will the pilot of the node say when its database has stopped? Not where the pod ends already,
/// where its containers do not run, or where the pilot is silent. The end of the pod stops the
/// database then.
fn answers(member: &Member) -> bool {
    let Some(pod) = &member.pod else { return false };
    let silent = member.pilot.as_ref().is_none_or(|pilot| pilot.hearing.is_over());
    !pod.terminating
        && pod.started
        && pod.trouble.as_ref().is_none_or(|found| !found.lasts)
        && !silent
}

/// Is the database of the node being stopped?
fn stops(member: &Member) -> bool {
    let stopped = member.pilot.as_ref().is_some_and(|p| p.stopped || p.decommissioned);
    answers(member) && !stopped && member.held().is_none()
}

/// Lets stopped databases run again and brings back nodes that have data: all at once, because
/// pilots order themselves, and a quorum may need several.
pub(super) fn resume(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let pools = &world.observed.pools;
    let members = || pools.iter().flat_map(|pool| pool.members.values());
    let asked = || members().filter(|member| member.intends(&PilotIntent::Stopped));
    let stopped: Vec<String> = asked().map(|member| member.name.clone()).collect();
    let operation = under_way(world.desired)
        .filter(|operation| *operation == OperationType::Secure)
        .unwrap_or(OperationType::Start);
    if !stopped.is_empty() {
        let step = PlannedStep::Start { pilots: stopped };
        return vec![Candidate::step(operation, step)];
    }
    let to = |pool: &ObservedPool| pool.returning_of(world.wanted_of(pool));
    let returns = |pool: &&ObservedPool| pool.set.is_some() && to(pool) > pool.replicas();
    let raise = |pool: &ObservedPool| {
        let step = PlannedStep::Return { pool: pool.name.clone(), to: to(pool) };
        Candidate::step(operation, step)
    };
    pools.iter().filter(returns).map(raise).collect()
}
