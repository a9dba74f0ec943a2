//! A stopped cluster, and its way back.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, World, absence, current_operation,
    departure,
};
use crate::{
    api::v1beta1::PilotIntent,
    controller::observe::{Member, ObservedPool},
};

/// Stops every database, then removes the pods of pools that keep their data on claims. A node that
/// cannot answer holds no other pool.
pub(super) fn stop_cluster(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let round = &world.desired.round;
    let operation = if round.stops_all { OperationType::Secure } else { OperationType::Stop };
    let pools = &world.observed.pools;
    let running_members =
        || pools.iter().flat_map(|pool| pool.members.values()).filter(|m| m.pod.is_some());
    // If the pod of a leaving node was lost, that node got the phase Stopped with the others, and leaves
    // no more.
    let is_leaving = |member: &&Member| {
        let pilot = member.pilot.as_ref();
        pilot.is_some_and(|pilot| pilot.irreversible && !pilot.decommissioned)
            && member.intent() != PilotIntent::Stopped
            && can_report_stop(member)
    };
    if let Some(member) = running_members().find(is_leaving) {
        let awaited_step =
            AwaitedStep::new("DrainPilot", &member.name, departure::decommission_progress(member));
        return vec![Candidate::from_wait(operation, awaited_step)];
    }
    // A phase that a person wrote is left alone: it stops the database too, or that person takes it
    // back.
    let pilots_to_stop: Vec<String> = running_members()
        .filter(|member| member.pilot.is_some() && !member.is_decommissioned())
        .filter(|member| {
            member.user_intent().is_none() && !member.has_intent(&PilotIntent::Stopped)
        })
        .map(|member| member.name.clone())
        .collect();
    if !pilots_to_stop.is_empty() {
        return vec![Candidate::from_step(operation, PlannedStep::Stop { pilots: pilots_to_stop })];
    }
    // A pod that holds its data is kept, with its database stopped.
    let mut candidates: Vec<Candidate> = pools
        .iter()
        .filter(|pool| world.desired.pool(&pool.name).is_some() && pool.replicas() > 0)
        .filter(|pool| !pool.members.values().any(Member::dies_with_pod))
        .filter(|pool| !pool.members.values().any(is_stopping))
        .map(|pool| Candidate::from_step(operation, PlannedStep::Empty { pool: pool.name.clone() }))
        .collect();
    let is_terminating = |member: &&Member| member.pod.as_ref().is_some_and(|pod| pod.terminating);
    candidates.extend(
        running_members()
            .filter(is_terminating)
            .map(|member| absence::wait_for_pod_end(operation, member)),
    );
    candidates.extend(running_members().filter(|member| is_stopping(member)).map(|member| {
        let message = format!("{} is stopping its database", member.name);
        Candidate::from_wait(operation, AwaitedStep::new("RemovePilot", &member.name, message))
    }));
    candidates
}

/// Will the pilot of the node say when its database has stopped? Not where the pod ends already,
/// where its containers do not run, or where the pilot is silent. The end of the pod stops the
/// database then.
fn can_report_stop(member: &Member) -> bool {
    let Some(pod) = &member.pod else { return false };
    let is_silent = member.pilot.as_ref().is_none_or(|pilot| pilot.hearing.is_over());
    !pod.terminating
        && pod.started
        && pod.trouble.as_ref().is_none_or(|trouble| !trouble.lasts)
        && !is_silent
}

/// Is the database of the node being stopped?
fn is_stopping(member: &Member) -> bool {
    let is_stopped = member.pilot.as_ref().is_some_and(|p| p.stopped || p.decommissioned);
    can_report_stop(member) && !is_stopped && member.user_intent().is_none()
}

/// Lets stopped databases run again and brings back nodes that have data: all at once, because
/// pilots order themselves, and a quorum may need several.
pub(super) fn start_cluster(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let pools = &world.observed.pools;
    let members = || pools.iter().flat_map(|pool| pool.members.values());
    let stopped_members = || members().filter(|member| member.has_intent(&PilotIntent::Stopped));
    let stopped_names: Vec<String> = stopped_members().map(|member| member.name.clone()).collect();
    let operation = current_operation(world.desired)
        .filter(|operation| *operation == OperationType::Secure)
        .unwrap_or(OperationType::Start);
    if !stopped_names.is_empty() {
        let step = PlannedStep::Start { pilots: stopped_names };
        return vec![Candidate::from_step(operation, step)];
    }
    let target_replicas = |pool: &ObservedPool| pool.returning_of(world.desired_replicas(pool));
    let needs_scale_up =
        |pool: &&ObservedPool| pool.set.is_some() && target_replicas(pool) > pool.replicas();
    let scale_up = |pool: &ObservedPool| {
        let step = PlannedStep::Return { pool: pool.name.clone(), to: target_replicas(pool) };
        Candidate::from_step(operation, step)
    };
    pools.iter().filter(needs_scale_up).map(scale_up).collect()
}
