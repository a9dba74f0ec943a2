//! One reconcile of a cluster: observe → ensure → plan → budget → confirm → execute → status.
//!
//! Invariant: a step is decided twice, from the caches and then from what the server says at
//! that moment; it is carried out only when both agree. See [`confirm`].

mod answers;
mod budget;
mod confirm;
mod expansion;
mod failure;
mod observation;
mod status_writer;
mod teardown;

use std::{borrow::Cow, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tracing::info;

use self::{
    budget::keep_budget,
    confirm::{ConfirmedStep, confirm_step},
    failure::record_failure,
    status_writer::{write_first_status, write_status},
};
use super::{
    context::{ControllerContext, Error},
    desired_state::{DesiredCluster, ManagedDatabase, SecurityRound},
    ensure, events, execute,
    observe::ObservedCluster,
    ownership::name_conflict,
    plan::{OperationType, Plan, drain_hold, plan_next_step},
    queue::{ClusterKey, ReconcileOutcome},
    security, security_round,
    status::build_status,
};
use crate::api::v1beta1::ClusterStatus;

/// Pause before a cluster whose plan waits is reconciled without an event: watches do not report
/// that time passed. The pauses below are those after a step, after a status write, and while an
/// object of another owner is in the way.
const WHILE_WAITING: Duration = Duration::from_secs(15);
const AFTER_A_STEP: Duration = Duration::from_secs(5);
const AFTER_STATUS: Duration = Duration::from_millis(200);
const WHILE_FOREIGN: Duration = Duration::from_secs(30);
/// Longest pause between two looks at the Secrets and certificates of a cluster.
const SECURITY_LOOK: Duration = Duration::from_secs(60);

/// Reconciles one cluster. Returns when to do it again, and the value of the metric's label.
/// `failures` is how many times in a row it failed before.
pub(crate) async fn reconcile(
    ctx: &ControllerContext,
    database: &'static ManagedDatabase,
    key: &ClusterKey,
    cluster: Option<Arc<DynamicObject>>,
    failures: u32,
) -> (ReconcileOutcome, &'static str) {
    let Some(cluster) = cluster else {
        ctx.causes.remove_cluster(key);
        ctx.expansion.remove_cluster(key);
        ctx.trust.remove_cluster(key);
        ctx.pace.remove_cluster(key);
        return (ReconcileOutcome::Gone, "gone");
    };
    let desired = match parse_desired(ctx, database, &cluster, None) {
        Ok(desired) => desired,
        Err(error) => return failure::report_unreadable(key, &error),
    };
    match Box::pin(run_steps(ctx, &cluster, &desired)).await {
        Ok(outcome) => (outcome, "ok"),
        Err(error) => failure::handle_error(ctx, &cluster, &desired, &error, failures).await,
    }
}

/// Runs the steps of one reconcile, a line each.
async fn run_steps(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<ReconcileOutcome, Error> {
    let now = Timestamp::now();
    if let Some(kind) = ctx.stores.left_out(&desired.namespace) {
        return failure::report_left_out(ctx, cluster, desired, kind, now).await;
    }
    if desired.deleted {
        return teardown::tear_down(ctx, cluster, desired).await;
    }
    let mut observed = observation::from_caches(ctx, desired, now);
    if desired.status.observed_generation.is_none() {
        return write_first_status(ctx, cluster, desired).await;
    }
    teardown::keep_finalizer(ctx, cluster, desired).await?;
    let round = security_round::next_security_round(desired, &observed);
    let desired = &in_round(ctx, cluster, desired, round)?
        .into_owned()
        .fit_to_pools(&observed.existing_pools());
    observation::observe_causes(ctx, desired, &mut observed).await;
    if observed.stalled.is_none() {
        observed.stalled = name_conflict(ctx, desired, &observed).await?;
    }
    let is_foreign = observed.stalled.is_some();
    ensure_cluster(ctx, desired, &mut observed).await?;
    let mut plan = plan_next_step(desired, &observed);
    if !is_foreign {
        keep_budget(ctx, desired, &mut observed, &mut plan).await?;
    }
    let confirmed_step =
        record_failure(&mut observed, confirm_step(ctx, desired, &mut plan, now).await)?;
    let starting_status = build_status(desired, &observed, &plan, now);
    let mut cluster = Cow::Borrowed(cluster);
    let mut desired = Cow::Borrowed(desired);
    // An operation is written before its first step: neither a conflict nor a crash after the step
    // loses what was begun.
    if confirmed_step.is_some()
        && operation_type(&starting_status) != operation_type(&desired.status)
    {
        let written_cluster =
            write_status(ctx, &cluster, &desired, starting_status.clone(), &plan).await?;
        cluster = written_cluster.map_or(cluster, Cow::Owned);
        desired.to_mut().status = starting_status;
    }
    record_failure(&mut observed, Box::pin(execute_confirmed(ctx, confirmed_step)).await)?;
    let status = build_status(&desired, &observed, &plan, now);
    let status_delay = ctx.pace.remaining_delay(&desired.key(), &desired.status, &status);
    let status_delay = status_delay.filter(|_| desired.status != status);
    if status_delay.is_none() {
        write_status(ctx, &cluster, &desired, status, &plan).await?;
    }
    answers::answer_requests(ctx, &desired, &observed, &plan).await?;
    let outcome = next_outcome(&plan, &observed, &desired);
    // Certificates grow old, and Secrets that people name are not watched.
    let security_delay = desired.security.as_ref().map(|_| SECURITY_LOOK);
    let conflict_cause = observed.refused.as_ref().filter(|cause| cause.is_about_origin());
    let conflict_delay = conflict_cause.map(|_| WHILE_FOREIGN);
    let delay = [status_delay, security_delay, conflict_delay].into_iter().flatten().min();
    Ok(delay.map_or(outcome, |delay| outcome.retry_within(delay)))
}

fn operation_type(status: &ClusterStatus) -> Option<&str> {
    status.operation.as_ref().map(|operation| operation.type_.as_str())
}

/// Describes the cluster object in the terms that every database shares.
fn parse_desired(
    ctx: &ControllerContext,
    database: &'static ManagedDatabase,
    cluster: &DynamicObject,
    round: Option<SecurityRound>,
) -> Result<DesiredCluster, Error> {
    (database.desired)(cluster, &ctx.settings, round).map_err(|source| Error::Unreadable {
        kind: database.names.kind,
        name: cluster.metadata.name.clone().unwrap_or_default(),
        source,
    })
}

/// Describes the cluster as its nodes are to be in this round.
fn in_round<'a>(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &'a DesiredCluster,
    round: SecurityRound,
) -> Result<Cow<'a, DesiredCluster>, Error> {
    if round == desired.round {
        return Ok(Cow::Borrowed(desired));
    }
    Ok(Cow::Owned(parse_desired(ctx, desired.database, cluster, Some(round))?))
}

/// Makes every object that the cluster needs, unless nothing may be changed. An object of doubtful
/// origin stops what needs it.
async fn ensure_cluster(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &mut ObservedCluster,
) -> Result<(), Error> {
    if desired.paused || desired.stalled.is_some() || observed.is_left_alone() {
        return Ok(());
    }
    // Before any pod: what pods mount, and what their nodes are signed by, is there.
    let mut findings = security::ensure_security(ctx, desired, Timestamp::now()).await?;
    observed.refused = findings.refusal.take();
    observed.security = findings;
    let security_refusal = observed.refused.take();
    match ensure::ensure_objects(ctx, desired, observed).await {
        Ok(refusal) => observed.refused = security_refusal.or(refusal),
        // The status shows the object of another owner as if the caches had found it.
        Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Carries out the step on which caches and server agree, if there is one.
async fn execute_confirmed(
    ctx: &ControllerContext,
    confirmed_step: Option<ConfirmedStep>,
) -> Result<(), Error> {
    let Some(ConfirmedStep { operation, step, desired, observed }) = confirmed_step else {
        return Ok(());
    };
    execute::execute_step(ctx, &desired, &observed, &step).await?;
    info!(
        namespace = desired.namespace,
        name = desired.name,
        step = step.name(),
        detail = ?step,
        "Carried out step"
    );
    // A step that is part of no operation counts under its own name.
    let operation = operation.map_or(step.name(), OperationType::as_str);
    ctx.metrics.steps.with_label_values(&[desired.database.names.kind, operation]).inc();
    if let Some(notice) = events::notice_for_step(&step) {
        ctx.events.publish(&desired, &notice).await;
    }
    Ok(())
}

/// Decides when to reconcile again.
fn next_outcome(
    plan: &Plan,
    observed: &ObservedCluster,
    desired: &DesiredCluster,
) -> ReconcileOutcome {
    let needs_reports =
        || drain_hold(desired, observed, plan).is_some_and(|hold| hold.ends_by_reports());
    if observed.refused.as_ref().is_some_and(|cause| !cause.is_about_origin()) {
        ReconcileOutcome::Failed
    } else if observed.stalled.is_some() {
        ReconcileOutcome::Again(WHILE_FOREIGN)
    } else if plan.step.is_some() {
        ReconcileOutcome::Again(AFTER_A_STEP)
    } else if desired.paused || desired.stalled.is_some() {
        ReconcileOutcome::Settled
    } else if plan.operation.is_some() || plan.waiting.is_some() || needs_reports() {
        ReconcileOutcome::Again(WHILE_WAITING)
    } else {
        ReconcileOutcome::Settled
    }
}
