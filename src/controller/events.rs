//! What the controller tells people: one event per change of state (docs/conditions.md).

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use super::desired::Desired;
pub(crate) use crate::runtime::events::News;
use crate::{
    api::v1beta1::{API_VERSION, ClusterStatus},
    controller::{
        observe::condition,
        plan::{Plan, Step},
        status,
    },
    runtime::events,
};

#[derive(Clone)]
pub(crate) struct Events(events::Events);

impl Events {
    pub(crate) fn new(client: Client, instance: String) -> Self {
        Self(events::Events::new(client, crate::api::names::CONTROLLER, instance))
    }

    /// Publishes news about a cluster. Lost news is no reason to stop working.
    pub(crate) async fn tell(&self, desired: &Desired, news: &News) {
        let regarding = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(desired.database.kind.to_owned()),
            namespace: Some(desired.namespace.clone()),
            name: Some(desired.name.clone()),
            uid: Some(desired.uid.clone()),
            ..ObjectReference::default()
        };
        self.publish(&regarding, news).await;
    }

    pub(crate) async fn publish(&self, regarding: &ObjectReference, news: &News) {
        self.0.publish(regarding, news).await;
    }
}

/// News of a step that was carried out.
pub(crate) fn of_step(step: &Step) -> News {
    match step {
        Step::Raise { pool, to } => {
            News::normal("ScaleOut", format!("node pool {pool} grows to {}", nodes(*to)))
        }
        Step::Remove { pool, pilot, to } => {
            let note = format!("{pilot} goes; node pool {pool} shrinks to {}", nodes(*to));
            News::normal("Scale", note)
        }
        Step::Mend { pilot, .. } => {
            News::normal("ReplaceNode", format!("broken {pilot} gets the newest spec"))
        }
        Step::Tell { pilot } => {
            News::normal("RestartPilot", format!("{pilot} is told the newest configuration"))
        }
        Step::Restart { pilot, .. } => {
            News::normal("RestartPilot", format!("{pilot} restarts with the newest spec"))
        }
        Step::RestartInPlace { pilot } => {
            News::normal("RestartPilot", format!("the database of {pilot} restarts in its pod"))
        }
        Step::Drain { pilot } => News::normal("DrainPilot", format!("{pilot} moves its data away")),
        Step::Keep { pilot } => News::normal("DrainPilot", format!("{pilot} is kept after all")),
        Step::DeleteClaim { claim, .. } => {
            News::normal("Scale", format!("claim {claim} of a node that left is deleted"))
        }
        Step::DeletePilot { pilot, .. } => {
            News::normal("Scale", format!("Pilot {pilot} of a node that left is deleted"))
        }
        Step::DeletePool { pool, .. } => {
            News::normal("RemoveNodePool", format!("node pool {pool} has no node left"))
        }
        Step::Stop { pilots } => {
            News::normal("ClusterStopped", format!("{} databases are stopped", pilots.len()))
        }
        Step::Start { pilots } => {
            News::normal("OperationStarted", format!("{} databases may run", pilots.len()))
        }
        Step::Empty { pool } => {
            News::normal("ClusterStopped", format!("pods of node pool {pool} are removed"))
        }
        Step::Deliver { pilot, image, .. } => {
            News::normal("UpdatePilot", format!("the pilot of {pilot} is replaced by {image}"))
        }
    }
}

fn nodes(count: u32) -> String {
    format!("{count} {}", if count == 1 { "node" } else { "nodes" })
}

/// News that follow from a change of status.
pub(crate) fn of_status(before: &ClusterStatus, after: &ClusterStatus, plan: &Plan) -> Vec<News> {
    let mut news = Vec::new();
    let id = |status: &ClusterStatus| status.operation.as_ref().map(|o| o.id.clone());
    if id(before) != id(after) {
        if let Some(operation) = &after.last_operation
            && id(before).as_ref() == Some(&operation.id)
        {
            let note = format!("{} has ended", operation.type_);
            news.push(News::normal("OperationFinished", note));
        }
        if let Some(operation) = &after.operation {
            let reason =
                if operation.type_ == "Upgrade" { "UpdateVersion" } else { "OperationStarted" };
            news.push(News::normal(reason, format!("{} has begun", operation.type_)));
        }
    }
    let said = |status: &ClusterStatus, type_: &str| {
        condition(&status.conditions, type_).map(|c| (c.reason.clone(), c.message.clone()))
    };
    if let Some((reason, message)) = said(after, "Stalled")
        && said(before, "Stalled").map(|(reason, _)| reason).as_ref() != Some(&reason)
    {
        let known = ["ForeignObject", "NameConflict", "StoreMismatch"];
        let event = known.into_iter().find(|known| *known == reason).unwrap_or("Stalled");
        news.push(News::warning(event, message));
    }
    if let Some((reason, message)) = said(after, "PilotsCurrent")
        && said(before, "PilotsCurrent").map(|(reason, _)| reason).as_ref() != Some(&reason)
        && status::PILOT_FAILURES.contains(&&*reason)
    {
        news.push(News::warning("PilotUpdateFailed", message));
    }
    let was = said(before, "Progressing").map(|(reason, _)| reason).unwrap_or_default();
    let is = said(after, "Progressing").map(|(reason, _)| reason).unwrap_or_default();
    for (reason, note) in [
        ("ClusterPaused", "nothing is changed while spec.paused is true"),
        ("ClusterResumed", "spec.paused was taken back"),
    ] {
        if is == reason && was != reason {
            news.push(News::normal(reason, note));
        }
    }
    let held = |predicate: &str| {
        let operation = before.operation.as_ref();
        operation.is_some_and(|o| o.blocked_by.iter().any(|entry| entry.predicate == predicate))
    };
    for block in plan.blocked.iter().filter(|block| !held(&block.predicate)) {
        let note = format!("{}: {}; {}", block.predicate, block.message, block.hint);
        news.push(News::warning("PredicateBlocked", note));
    }
    news
}
