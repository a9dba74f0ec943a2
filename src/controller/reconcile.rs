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
    confirm::{ConfirmedStep, confirm},
    failure::note,
    status_writer::{first_sight, write_status},
};
use super::{
    context::{ControllerContext, Error},
    desired_state::{DesiredCluster, ManagedDatabase, SecurityRound},
    ensure, events, execute,
    observe::ObservedCluster,
    ownership::name_conflict,
    plan::{OperationType, Plan, drain_hold, plan},
    queue::{ClusterKey, ReconcileOutcome},
    security, security_round,
    status::status,
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
        ctx.causes.forget(key);
        ctx.expansion.forget(key);
        ctx.trust.forget(key);
        ctx.pace.forget(key);
        return (ReconcileOutcome::Gone, "gone");
    };
    let desired = match read(ctx, database, &cluster, None) {
        Ok(desired) => desired,
        Err(error) => return failure::unreadable(key, &error),
    };
    match Box::pin(steps(ctx, &cluster, &desired)).await {
        Ok(outcome) => (outcome, "ok"),
        Err(error) => failure::handle(ctx, &cluster, &desired, &error, failures).await,
    }
}

/// Runs the steps of one reconcile, a line each.
async fn steps(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<ReconcileOutcome, Error> {
    let now = Timestamp::now();
    if let Some(kind) = ctx.stores.left_out(&desired.namespace) {
        return failure::left_out(ctx, cluster, desired, kind, now).await;
    }
    if desired.deleted {
        return teardown::tear_down(ctx, cluster, desired).await;
    }
    let mut observed = observation::from_caches(ctx, desired, now);
    if desired.status.observed_generation.is_none() {
        return first_sight(ctx, cluster, desired).await;
    }
    teardown::keep_finalizer(ctx, cluster, desired).await?;
    let round = security_round::next(desired, &observed);
    let desired =
        &in_round(ctx, cluster, desired, round)?.into_owned().fitting(&observed.existing());
    observation::ask(ctx, desired, &mut observed).await;
    if observed.stalled.is_none() {
        observed.stalled = name_conflict(ctx, desired, &observed).await?;
    }
    let foreign = observed.stalled.is_some();
    ensure(ctx, desired, &mut observed).await?;
    let mut plan = plan(desired, &observed);
    if !foreign {
        keep_budget(ctx, desired, &mut observed, &mut plan).await?;
    }
    let confirmed = note(&mut observed, confirm(ctx, desired, &mut plan, now).await)?;
    let begun = status(desired, &observed, &plan, now);
    let mut cluster = Cow::Borrowed(cluster);
    let mut desired = Cow::Borrowed(desired);
    // An operation is written before its first step: neither a conflict nor a crash after the step
    // loses what was begun.
    if confirmed.is_some() && operation_type(&begun) != operation_type(&desired.status) {
        let written = write_status(ctx, &cluster, &desired, begun.clone(), &plan).await?;
        cluster = written.map_or(cluster, Cow::Owned);
        desired.to_mut().status = begun;
    }
    note(&mut observed, Box::pin(execute(ctx, confirmed)).await)?;
    let status = status(&desired, &observed, &plan, now);
    let later = ctx.pace.waits(&desired.key(), &desired.status, &status);
    let later = later.filter(|_| desired.status != status);
    if later.is_none() {
        write_status(ctx, &cluster, &desired, status, &plan).await?;
    }
    answers::answer(ctx, &desired, &observed, &plan).await?;
    let next = next(&plan, &observed, &desired);
    // Certificates grow old, and Secrets that people name are not watched.
    let secured = desired.security.as_ref().map(|_| SECURITY_LOOK);
    let in_the_way = observed.refused.as_ref().filter(|cause| cause.is_about_origin());
    let in_the_way = in_the_way.map(|_| WHILE_FOREIGN);
    let waits = [later, secured, in_the_way].into_iter().flatten().min();
    Ok(waits.map_or(next, |waits| next.within(waits)))
}

fn operation_type(status: &ClusterStatus) -> Option<&str> {
    status.operation.as_ref().map(|operation| operation.type_.as_str())
}

/// Describes the cluster object in the terms that every database shares.
fn read(
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
    Ok(Cow::Owned(read(ctx, desired.database, cluster, Some(round))?))
}

/// Makes every object that the cluster needs, unless nothing may be changed. An object of doubtful
/// origin stops what needs it.
async fn ensure(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &mut ObservedCluster,
) -> Result<(), Error> {
    if desired.paused || desired.stalled.is_some() || observed.is_left_alone() {
        return Ok(());
    }
    // Before any pod: what pods mount, and what their nodes are signed by, is there.
    let mut findings = security::keep(ctx, desired, Timestamp::now()).await?;
    observed.refused = findings.refusal.take();
    observed.security = findings;
    let secured = observed.refused.take();
    match ensure::ensure(ctx, desired, observed).await {
        Ok(refused) => observed.refused = secured.or(refused),
        // The status shows the object of another owner as if the caches had found it.
        Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Carries out the step on which caches and server agree, if there is one.
async fn execute(ctx: &ControllerContext, confirmed: Option<ConfirmedStep>) -> Result<(), Error> {
    let Some(ConfirmedStep { operation, step, desired, observed }) = confirmed else {
        return Ok(());
    };
    execute::execute(ctx, &desired, &observed, &step).await?;
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
    if let Some(notice) = events::of_step(&step) {
        ctx.events.publish(&desired, &notice).await;
    }
    Ok(())
}

/// Decides when to reconcile again.
fn next(plan: &Plan, observed: &ObservedCluster, desired: &DesiredCluster) -> ReconcileOutcome {
    let reports_are_due =
        || drain_hold(desired, observed, plan).is_some_and(|hold| hold.ends_by_reports());
    if observed.refused.as_ref().is_some_and(|cause| !cause.is_about_origin()) {
        ReconcileOutcome::Failed
    } else if observed.stalled.is_some() {
        ReconcileOutcome::Again(WHILE_FOREIGN)
    } else if plan.step.is_some() {
        ReconcileOutcome::Again(AFTER_A_STEP)
    } else if desired.paused || desired.stalled.is_some() {
        ReconcileOutcome::Settled
    } else if plan.operation.is_some() || plan.waiting.is_some() || reports_are_due() {
        ReconcileOutcome::Again(WHILE_WAITING)
    } else {
        ReconcileOutcome::Settled
    }
}
