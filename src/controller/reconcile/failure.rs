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
        context::{ControllerContext, Error, refused},
        desired_state::{DesiredCluster, StallCause},
        events::EventNotice,
        observe::ObservedCluster,
        plan::{Plan, plan},
        queue::{ClusterKey, ReconcileOutcome},
        status::{self, status},
    },
    error::chain,
};

/// Failures in a row after which the cluster's status names the error.
const REPORTED_AFTER: u32 = 5;

/// Reports a cluster object that cannot be read. Its status cannot be written, so only the log
/// tells.
pub(super) fn unreadable(key: &ClusterKey, error: &Error) -> (ReconcileOutcome, &'static str) {
    let text = chain(error).to_string();
    warn!(namespace = key.namespace, name = key.name, error = text, "Sync failed");
    (ReconcileOutcome::Failed, error.outcome())
}

/// Records for the status why an object was not written, where the error is about a single object.
/// Returns other errors, which end the reconcile.
pub(super) fn note<T: Default>(
    observed: &mut ObservedCluster,
    done: Result<T, Error>,
) -> Result<T, Error> {
    match done {
        Ok(done) => return Ok(done),
        Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
        Err(error) => observed.refused = Some(refused(error)?),
    }
    Ok(T::default())
}

/// Reports a reconcile that ended early, and says when to try again. `failures` is how many times
/// in a row it failed before.
pub(super) async fn handle(
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
    let lasts = failures + 1 >= REPORTED_AFTER;
    if lasts && matches!(error, Error::Conflict { .. } | Error::Request { .. }) {
        report(ctx, cluster, desired, error).await;
    }
    (outcome, error.outcome())
}

/// Says in the cluster's status that nothing is done for it, as objects of its namespace take more
/// memory than the controller has for them.
pub(super) async fn left_out(
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
        status_writer::deleting(ctx, cluster, desired, &message).await?;
    } else {
        let cause = StallCause { reason: "TooManyObjects", message };
        let status = status::unknown(desired, &cause, now);
        write_status(ctx, cluster, desired, status, &Plan::default()).await?;
    }
    Ok(ReconcileOutcome::Again(WHILE_FOREIGN))
}

/// Says in the cluster's status why every reconcile fails. If that write fails too, the log has the
/// reason already.
async fn report(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    error: &Error,
) {
    if desired.deleted {
        let message = format!("every try fails: {}", chain(error));
        if let Err(error) = status_writer::deleting(ctx, cluster, desired, &message).await {
            debug!(name = desired.name, error = %chain(&error), "Failed to tell of failures");
        }
        return;
    }
    let now = Timestamp::now();
    let mut observed = observation::from_caches(ctx, desired, now);
    let what = match error {
        Error::Conflict { .. } => {
            "; another client changes it again and again, or takes off labels"
        }
        _ => "",
    };
    let message = format!("{}{what}", chain(error));
    observed.refused = Some(StallCause { reason: "SyncFailed", message });
    let desired = desired.clone().fitting(&observed.existing());
    let plan = plan(&desired, &observed);
    let status = status(&desired, &observed, &plan, now);
    if let Err(error) = write_status(ctx, cluster, &desired, status, &plan).await {
        debug!(name = desired.name, error = %chain(&error), "Failed to tell of failures");
    }
}
