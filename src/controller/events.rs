//! Kubernetes Events about clusters, one per change of state (docs/conditions.md).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;

use super::desired_state::{DesiredCluster, ORIGIN_REASONS};
pub(crate) use crate::runtime::events::EventNotice;
use crate::{
    api::v1beta1::{API_VERSION, ClusterStatus},
    controller::{
        observe::find_condition,
        plan::{Plan, PlannedStep, VACATE_POD},
        status,
    },
    runtime::events,
};

#[derive(Clone)]
pub(crate) struct ClusterEventPublisher(events::EventPublisher);

impl ClusterEventPublisher {
    pub(crate) fn new(client: Client, instance: String) -> Self {
        Self(events::EventPublisher::new(client, crate::api::names::CONTROLLER, instance))
    }

    /// Publishes an event about a cluster. A lost event does not fail the reconcile.
    pub(crate) async fn publish(&self, desired: &DesiredCluster, notice: &EventNotice) {
        let regarding = ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(desired.database.names.kind.to_owned()),
            namespace: Some(desired.namespace.clone()),
            name: Some(desired.name.clone()),
            uid: Some(desired.uid.clone()),
            ..ObjectReference::default()
        };
        self.publish_about(&regarding, notice).await;
    }

    pub(crate) async fn publish_about(&self, regarding: &ObjectReference, notice: &EventNotice) {
        self.0.publish(regarding, notice).await;
    }
}

/// Returns the event for a step that was carried out. A configuration that is only to be validated
/// gets its event when it is rejected, or when its node restarts.
pub(crate) fn notice_for_step(step: &PlannedStep) -> Option<EventNotice> {
    Some(match step {
        PlannedStep::Raise { pool, to } => EventNotice::normal(
            "ScaleOut",
            format!("node pool {pool} grows to {}", format_nodes(*to)),
        ),
        PlannedStep::Return { pool, to } => {
            let note = format!(
                "nodes of pool {pool} that have data come back, up to {}",
                format_nodes(*to)
            );
            EventNotice::normal("ScaleOut", note)
        }
        PlannedStep::Remove { pool, pilot, to } => {
            let note = format!("{pilot} goes; node pool {pool} shrinks to {}", format_nodes(*to));
            EventNotice::normal("Scale", note)
        }
        PlannedStep::Replace { pilot, .. } => {
            EventNotice::normal("ReplaceNode", format!("broken {pilot} gets the newest spec"))
        }
        PlannedStep::Renew { pilot, claim: Some(claim), .. } => {
            let note = format!("{pilot} joins again, empty: its claim {} is deleted", claim.name);
            EventNotice::normal("ReplaceNode", note)
        }
        PlannedStep::Renew { pilot, claim: None, .. } => {
            EventNotice::normal("ReplaceNode", format!("{pilot} joins again, empty"))
        }
        PlannedStep::Configure { .. } => return None,
        PlannedStep::Restart { pilot, .. } | PlannedStep::Recreate { pilot, .. } => {
            EventNotice::normal("RestartPilot", format!("{pilot} restarts with the newest spec"))
        }
        PlannedStep::Vacate { pilot, by, .. } if by.is_empty() => {
            EventNotice::normal("VacatePod", format!("{pilot} leaves its machine, as was asked"))
        }
        PlannedStep::Vacate { pilot, by, .. } => EventNotice::normal(
            "VacatePod",
            format!("{pilot} leaves its machine, as was asked: {by}"),
        ),
        PlannedStep::RestartInPlace { pilot } => EventNotice::normal(
            "RestartPilot",
            format!("the database of {pilot} restarts in its pod"),
        ),
        PlannedStep::Decommission { pilot } => {
            EventNotice::normal("DrainPilot", format!("{pilot} moves its data away"))
        }
        PlannedStep::Keep { pilot } => {
            EventNotice::normal("DrainPilot", format!("{pilot} is kept after all"))
        }
        PlannedStep::Forget { pilot, nodes } if nodes.is_empty() => {
            EventNotice::normal("Scale", format!("{pilot} has forgotten what it was asked to"))
        }
        PlannedStep::Forget { pilot, nodes } => EventNotice::normal(
            "Scale",
            format!("{pilot} lets its database forget {}", nodes.join(", ")),
        ),
        PlannedStep::BeginAnew { pilot, cluster } => EventNotice::normal(
            "UnsafeBootstrap",
            format!("{pilot} begins cluster {cluster} anew from what it has, as was asked"),
        ),
        PlannedStep::TakeWordBack { pilot, .. } => EventNotice::normal(
            "UnsafeBootstrap",
            format!("the word that {pilot} begins the cluster anew is taken back: it is over"),
        ),
        PlannedStep::KeepData { pilot } => EventNotice::normal(
            "GiveUp",
            format!("{pilot} serves, so the word that its data are lost is taken back"),
        ),
        PlannedStep::DeleteClaim { claim, .. } => EventNotice::normal(
            "Scale",
            format!("claim {} of a node that left is deleted", claim.name),
        ),
        PlannedStep::ResizeClaim { claim, size, .. } => {
            EventNotice::normal("ResizeStorage", format!("claim {} grows to {size}", claim.name))
        }
        PlannedStep::RenewSet { set, .. } => EventNotice::normal(
            "ResizeStorage",
            format!("StatefulSet {set} is made anew around its pods, for new claims"),
        ),
        PlannedStep::DeletePilot { pilot, .. } => {
            EventNotice::normal("Scale", format!("Pilot {pilot} of a node that left is deleted"))
        }
        PlannedStep::DeletePool { pool, .. } => {
            EventNotice::normal("RemoveNodePool", format!("node pool {pool} has no node left"))
        }
        PlannedStep::Stop { pilots } => {
            EventNotice::normal("ClusterStopped", format!("{} databases are stopped", pilots.len()))
        }
        PlannedStep::Start { pilots } => {
            EventNotice::normal("OperationStarted", format!("{} databases may run", pilots.len()))
        }
        PlannedStep::Empty { pool } => {
            EventNotice::normal("ClusterStopped", format!("pods of node pool {pool} are removed"))
        }
        PlannedStep::Deliver { pilot, image, .. } => EventNotice::normal(
            "UpdatePilot",
            format!("the pilot of {pilot} is replaced by {image}"),
        ),
    })
}

fn format_nodes(count: u32) -> String {
    format!("{count} {}", if count == 1 { "node" } else { "nodes" })
}

/// Conditions whose loss is worth an event: type, event of the loss, event of the return.
const TURNS: [(&str, &str, &str); 2] =
    [("Available", "AvailabilityLost", "Available"), ("Ready", "ReadyLost", "Ready")];

/// Reasons for which a cluster is not ready because the user requested it.
const AS_ASKED: [&str; 5] =
    ["ClusterPaused", "ClusterStopped", "ConfigureInProgress", "Deleting", "ResizeInProgress"];

/// Returns events for conditions that stopped being True although no user requested that, and for
/// those that are True again. An operation and a stall have events of their own.
fn condition_changes(old_status: &ClusterStatus, new_status: &ClusterStatus) -> Vec<EventNotice> {
    let operation = new_status.operation.as_ref().map(|operation| operation.type_.as_str());
    let stops = operation == Some("Stop") || new_status.phase.as_deref() == Some("Stopped");
    let stalled = find_condition(&new_status.conditions, "Stalled").is_some();
    let is_expected = |type_: &str, reason: &str| {
        stops || type_ == "Ready" && (operation.is_some() || stalled || AS_ASKED.contains(&reason))
    };
    let condition_change = |(type_, lost, back): (&str, &'static str, &'static str)| {
        let (old_condition, new_condition) = (
            find_condition(&old_status.conditions, type_)?,
            find_condition(&new_status.conditions, type_)?,
        );
        match (old_condition.status.as_str(), new_condition.status.as_str()) {
            ("True", "True") => None,
            (_, "True") => Some(EventNotice::normal(back, new_condition.message.clone())),
            ("True", _) if !is_expected(type_, &new_condition.reason) => {
                Some(EventNotice::warning(
                    lost,
                    format!("{}: {}", new_condition.reason, new_condition.message),
                ))
            }
            _ => None,
        }
    };
    TURNS.into_iter().filter_map(condition_change).collect()
}

/// Events about the certificates and users of a cluster.
fn security_changes(old_status: &ClusterStatus, new_status: &ClusterStatus) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    for (type_, event) in
        [("CertificatesValid", "CertificatesFailed"), ("UsersReady", "UsersFailed")]
    {
        let Some(new_condition) = find_condition(&new_status.conditions, type_) else { continue };
        let old_condition = find_condition(&old_status.conditions, type_);
        let is_new =
            old_condition.is_none_or(|old_condition| old_condition.reason != new_condition.reason);
        // What nodes wait for whenever something changes is no news.
        let is_waiting =
            ["CertificateRequested", "UsersPending"].contains(&new_condition.reason.as_str());
        if new_condition.status == "False" && !is_waiting && is_new {
            let note = format!("{}: {}", new_condition.reason, new_condition.message);
            notices.push(EventNotice::warning(event, note));
        }
    }
    let users = |status: &ClusterStatus| {
        let users = status.security.iter().flat_map(|security| &security.users);
        users.map(|user| (user.name.clone(), user.state.clone())).collect::<BTreeMap<_, _>>()
    };
    let (old_users, new_users) = (users(old_status), users(new_status));
    for (name, state) in &new_users {
        if state == "Applied" && old_users.get(name).is_none_or(|old_state| old_state != state) {
            let note = format!("each node lets {name} in with the password of its Secret");
            notices.push(EventNotice::normal("UserApplied", note));
        }
    }
    // A database that no longer requires passwords has no users to report.
    for name in
        old_users.keys().filter(|name| !new_users.is_empty() && !new_users.contains_key(*name))
    {
        let note = format!("{name} is a user of the cluster no more");
        notices.push(EventNotice::normal("UserRemoved", note));
    }
    notices
}

/// Returns the events for what changed between two statuses of a cluster.
pub(crate) fn notices_for_status(
    old_status: &ClusterStatus,
    new_status: &ClusterStatus,
    plan: &Plan,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    let mut changes = condition_changes(old_status, new_status);
    let operation_id = |status: &ClusterStatus| status.operation.as_ref().map(|o| o.id.clone());
    if operation_id(old_status) != operation_id(new_status) {
        if let Some(operation) = &new_status.last_operation
            && operation_id(old_status).as_ref() == Some(&operation.id)
        {
            // Both at once are one piece of news.
            let ready_note =
                changes.pop_if(|change| change.reason == "Ready").map(|change| change.note);
            let suffix = ready_note.map(|ready_note| format!(": {ready_note}")).unwrap_or_default();
            let note = match &operation.message {
                Some(message) if operation.phase == "Failed" => {
                    format!("{}: {message}", operation.type_)
                }
                _ => format!("{} has ended{suffix}", operation.type_),
            };
            notices.push(EventNotice::normal("OperationFinished", note));
        }
        if let Some(operation) = &new_status.operation {
            let reason =
                if operation.type_ == "Upgrade" { "UpdateVersion" } else { "OperationStarted" };
            notices.push(EventNotice::normal(reason, format!("{} has begun", operation.type_)));
        }
    }
    let reason_and_message = |status: &ClusterStatus, type_: &str| {
        find_condition(&status.conditions, type_).map(|c| (c.reason.clone(), c.message.clone()))
    };
    if let Some((reason, message)) = reason_and_message(new_status, "Stalled")
        && reason_and_message(old_status, "Stalled").map(|(reason, _)| reason).as_ref()
            != Some(&reason)
    {
        let event =
            ORIGIN_REASONS.into_iter().find(|origin| *origin == reason).unwrap_or("Stalled");
        notices.push(EventNotice::warning(event, message));
    }
    if let Some((reason, message)) = reason_and_message(new_status, "PilotsCurrent")
        && reason_and_message(old_status, "PilotsCurrent").map(|(reason, _)| reason).as_ref()
            != Some(&reason)
        && status::PILOT_FAILURES.contains(&&*reason)
    {
        notices.push(EventNotice::warning("PilotUpdateFailed", message));
    }
    notices.extend(changes);
    let old_reason =
        reason_and_message(old_status, "Progressing").map(|(reason, _)| reason).unwrap_or_default();
    let new_reason =
        reason_and_message(new_status, "Progressing").map(|(reason, _)| reason).unwrap_or_default();
    for (reason, note) in [
        ("ClusterPaused", "nothing is changed while spec.paused is true"),
        ("ClusterResumed", "spec.paused was taken back"),
    ] {
        if new_reason == reason && old_reason != reason {
            notices.push(EventNotice::normal(reason, note));
        }
    }
    let is_overdue =
        |status: &ClusterStatus| status.operation.as_ref().is_some_and(status::is_held_long);
    if is_overdue(new_status) && !is_overdue(old_status) {
        let blocker = plan.blocked.iter().find(|blocker| blocker.step.starts_with(VACATE_POD));
        let blocker_text =
            blocker.map(|blocker| format!(": {}: {}", blocker.predicate, blocker.message));
        let note = format!(
            "a node was asked to leave its machine an hour ago{}",
            blocker_text.unwrap_or_default()
        );
        notices.push(EventNotice::warning("VacateHeld", note));
    }
    let is_already_blocked = |predicate: &str| {
        let operation = old_status.operation.as_ref();
        operation.is_some_and(|o| o.blocked_by.iter().any(|entry| entry.predicate == predicate))
    };
    notices.extend(security_changes(old_status, new_status));
    for blocker in plan.blocked.iter().filter(|blocker| !is_already_blocked(&blocker.predicate)) {
        let note = format!("{}: {}; {}", blocker.predicate, blocker.message, blocker.remedy);
        notices.push(EventNotice::warning("PredicateBlocked", note));
    }
    notices
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::controller::{
        observe::ObservedCluster,
        plan::plan_next_step,
        status::build_status,
        testing::sample::{desired, observed},
    };

    /// Returns the events of a cluster of three healthy nodes that goes through `changes`.
    fn told(changes: &[fn(&mut DesiredCluster, &mut ObservedCluster)]) -> Vec<String> {
        let (mut desired, now) = (desired(&[("a", 3)], "new"), Timestamp::UNIX_EPOCH);
        let mut look = |change: fn(&mut DesiredCluster, &mut ObservedCluster)| {
            let mut observed = observed(&[("a", 3)], "new");
            change(&mut desired, &mut observed);
            let planned = plan_next_step(&desired, &observed);
            let after = build_status(&desired, &observed, &planned, now);
            let notices = notices_for_status(&desired.status, &after, &planned);
            desired.status = after;
            notices
        };
        look(|_, _| ());
        let mut texts = Vec::new();
        for change in changes {
            texts.extend(look(*change).into_iter().map(|notice| {
                let kind = if notice.warning { "Warning" } else { "Normal" };
                format!("{kind} {} {}", notice.reason, notice.note)
            }));
        }
        texts
    }

    fn down(observed: &mut ObservedCluster, nodes: u32) {
        for (_, member) in observed.pools[0].members.range_mut(..nodes) {
            member.pod.as_mut().unwrap().ready = false;
        }
    }

    #[test]
    fn an_outage_leaves_a_warning_and_its_end_an_event() {
        let outage = told(&[|_, o| down(o, 1), |_, o| down(o, 3), |_, _| ()]);
        assert_eq!(
            outage,
            [
                "Warning ReadyLost NodesNotReady: ex-demo-a-0 is starting",
                "Warning AvailabilityLost NodesNotReady: 0 of 3 nodes serve",
                "Normal Available 3 of 3 nodes serve",
                "Normal Ready 3 of 3 nodes serve",
            ]
        );
    }

    #[test]
    fn what_a_person_asked_for_is_no_loss() {
        let outdated: fn(&mut DesiredCluster, &mut ObservedCluster) = |_, o| {
            let member = o.pools[0].members.get_mut(&1).unwrap();
            member.pod.as_mut().unwrap().hash = "old".into();
        };
        let rolled = told(&[outdated, |_, _| ()]);
        assert!(!rolled.iter().any(|text| text.contains("Lost")), "{rolled:?}");
        let ended = "Normal OperationFinished Configure has ended: 3 of 3 nodes serve";
        assert!(rolled.contains(&ended.to_owned()), "{rolled:?}");
        assert!(!rolled.iter().any(|text| text.contains("Normal Ready")), "{rolled:?}");
        let stopped = told(&[|d, _| d.stopped = true, |_, o| down(o, 3)]);
        assert!(!stopped.iter().any(|text| text.contains("Lost")), "{stopped:?}");
    }

    #[test]
    fn certificates_and_users_leave_events_where_something_became_of_them() {
        let shown = |certificates: (&str, &str), users: (&str, &str), names: &[(&str, &str)]| {
            let conditions = [("CertificatesValid", certificates), ("UsersReady", users)];
            let status = json!({
                "conditions": conditions.map(|(type_, (status, reason))| json!({
                    "type": type_, "status": status, "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-11-28T10:00:00Z",
                })),
                "security": {"users": names.iter().map(|(name, state)| json!({"name": name, "state": state})).collect::<Vec<_>>()},
            });
            serde_json::from_value::<ClusterStatus>(status).unwrap()
        };
        let (good, ready) = (("True", "CertificatesCurrent"), ("True", "UsersCurrent"));
        let way = [
            shown(
                ("False", "CertificateRequested"),
                ("False", "UsersPending"),
                &[("app", "Pending")],
            ),
            shown(good, ready, &[("app", "Applied"), ("dba", "Applied")]),
            shown(
                ("True", "AuthorityRotating"),
                ("False", "PasswordUnusable"),
                &[("app", "Failed"), ("dba", "Applied")],
            ),
            shown(
                ("False", "SecretMissing"),
                ("False", "PasswordUnusable"),
                &[("app", "Failed"), ("dba", "Applied")],
            ),
            shown(("True", "AuthorityRotating"), ready, &[("dba", "Applied")]),
            shown(good, ready, &[("dba", "Applied")]),
            shown(good, ready, &[]),
        ];
        let told = |steps: &[ClusterStatus]| {
            let notices =
                security_changes(&steps[0], &steps[1]).into_iter().map(|notice| notice.reason);
            notices.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            way.windows(2).map(told).collect::<Vec<_>>(),
            ["UserApplied UserApplied", "UsersFailed", "CertificatesFailed", "UserRemoved", "", "",]
        );
    }
}
