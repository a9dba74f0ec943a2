//! Handles a failed reconcile: when it is tried again, and where it is reported.

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tracing::{debug, warn};

use super::{
    WHILE_FOREIGN, observation,
    status_writer::{self, write_status},
};
use crate::{
    controller::{
        context::{ControllerContext, Error, stall_for_refusal},
        desired_state::{DesiredCluster, StallCause},
        events::EventNotice,
        observe::ObservedCluster,
        plan::{Plan, plan_next_step},
        queue::{ClusterKey, ReconcileOutcome},
        status::{self, build_status},
    },
    error::chain,
};

/// Failures in a row after which the cluster's status names the error.
const REPORTED_AFTER: u32 = 5;

/// Reports a cluster object that cannot be read. Its status cannot be written, so only the log
/// tells.
pub(super) fn report_unreadable(
    key: &ClusterKey,
    error: &Error,
) -> (ReconcileOutcome, &'static str) {
    let text = chain(error).to_string();
    warn!(namespace = key.namespace, name = key.name, error = text, "Sync failed");
    (ReconcileOutcome::Failed, error.outcome())
}

/// Records for the status why an object was not written, where the error is about a single object.
/// Returns other errors, which end the reconcile.
pub(super) fn record_failure<T: Default>(
    observed: &mut ObservedCluster,
    result: Result<T, Error>,
) -> Result<T, Error> {
    match result {
        Ok(value) => return Ok(value),
        Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
        Err(error) => observed.refused = Some(stall_for_refusal(error)?),
    }
    Ok(T::default())
}

/// Reports a reconcile that ended early, and says when to try again. `failures` is how many times
/// in a row it failed before.
pub(super) async fn handle_error(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    error: &Error,
    failures: u32,
) -> (ReconcileOutcome, &'static str) {
    let (namespace, name) = (&desired.namespace, &desired.name);
    let outcome = match error {
        Error::Conflict { .. } => {
            debug!(namespace, name, error = %error, "Conflict");
            ReconcileOutcome::Conflict
        }
        Error::NamespaceTerminating(_) => ReconcileOutcome::Settled,
        // The cluster stays in the queue, in case this process leads again.
        Error::NotLeading => ReconcileOutcome::Failed,
        Error::Foreign(_) => ReconcileOutcome::Again(WHILE_FOREIGN),
        Error::Request { .. } | Error::Unreadable { .. } | Error::Unmade { .. } => {
            let text = chain(error).to_string();
            warn!(namespace, name, error = text, "Sync failed");
            ctx.events.publish(desired, &EventNotice::warning("ErrSync", text)).await;
            ReconcileOutcome::Failed
        }
    };
    let is_lasting = failures + 1 >= REPORTED_AFTER;
    if is_lasting && matches!(error, Error::Conflict { .. } | Error::Request { .. }) {
        report_failure(ctx, cluster, desired, error).await;
    }
    (outcome, error.outcome())
}

/// Says in the cluster's status that nothing is done for it, as objects of its namespace take more
/// memory than the controller has for them.
pub(super) async fn report_left_out(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    kind: &str,
    now: Timestamp,
) -> Result<ReconcileOutcome, Error> {
    let namespace = &desired.namespace;
    let message = format!(
        "objects of the kind {kind} in namespace {namespace} with the label \
         app.kubernetes.io/managed-by=navigator take more memory than the controller has for them: \
         delete those that Navigator did not make; nothing is done for this cluster until then, and \
         its nodes go on"
    );
    if desired.deleted {
        status_writer::write_deleting(ctx, cluster, desired, &message).await?;
    } else {
        let cause = StallCause { reason: "TooManyObjects", message };
        let status = status::unknown_status(desired, &cause, now);
        write_status(ctx, cluster, desired, status, &Plan::default()).await?;
    }
    Ok(ReconcileOutcome::Again(WHILE_FOREIGN))
}

/// Says in the cluster's status why every reconcile fails. If that write fails too, the log has the
/// reason already.
async fn report_failure(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    error: &Error,
) {
    if desired.deleted {
        let message = format!("every try fails: {}", chain(error));
        if let Err(error) = status_writer::write_deleting(ctx, cluster, desired, &message).await {
            debug!(name = desired.name, error = %chain(&error), "Failed to tell of failures");
        }
        return;
    }
    let now = Timestamp::now();
    let mut observed = observation::from_caches(ctx, desired, now);
    let suffix = match error {
        Error::Conflict { .. } => {
            "; another client changes it again and again, or takes off labels"
        }
        _ => "",
    };
    let message = format!("{}{suffix}", chain(error));
    observed.refused = Some(StallCause { reason: "SyncFailed", message });
    let desired = desired.clone().fit_to_pools(&observed.existing_pools());
    let plan = plan_next_step(&desired, &observed);
    let status = build_status(&desired, &observed, &plan, now);
    if let Err(error) = write_status(ctx, cluster, &desired, status, &plan).await {
        debug!(name = desired.name, error = %chain(&error), "Failed to tell of failures");
    }
}
