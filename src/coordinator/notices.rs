//! What people are told by events: what a written status says that the one before did not.

use crate::{
    api::containership::{ClusterUpgradeStatus, MachinePhase, MachineStatus, UpgradePhase},
    runtime::events::EventNotice,
};

/// Returns the events of a change of status.
pub(crate) fn status_notices(
    old_status: &ClusterUpgradeStatus,
    new_status: &ClusterUpgradeStatus,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    if old_status.nodes.is_empty() && !new_status.nodes.is_empty() {
        let count = new_status.nodes.len();
        let note = format!("the upgrade is accepted, for {count} machines");
        notices.push(EventNotice::normal("Accepted", note));
    }
    for node in &new_status.nodes {
        let phase = old_status
            .nodes
            .iter()
            .find(|old_node| old_node.name == node.name)
            .map(|old_node| old_node.phase);
        notices.extend(machine_notice(phase.unwrap_or_default(), node));
    }
    for wait in &new_status.waits_for {
        let is_known = old_status.waits_for.iter().any(|old_wait| {
            (&old_wait.machine, &old_wait.cluster, &old_wait.pilot, &old_wait.predicate)
                == (&wait.machine, &wait.cluster, &wait.pilot, &wait.predicate)
        });
        if let (Some(cluster), false) = (&wait.cluster, is_known) {
            let machine = wait.machine.as_deref().unwrap_or_default();
            let note = format!("{machine}: {cluster}: {}: {}", wait.predicate, wait.message);
            notices.push(EventNotice::normal("NodeWaitsForDatabase", note));
        }
    }
    if new_status.is_finished() && !old_status.is_finished() {
        let message = new_status.message.clone().unwrap_or_default();
        notices.push(if new_status.nodes.is_empty() {
            EventNotice::warning("PreflightFailed", message)
        } else if new_status.phase == Some(UpgradePhase::Success) {
            let note = format!("{} machines are as wanted", new_status.done);
            EventNotice::normal("ClusterUpgradeComplete", note)
        } else {
            EventNotice::warning("ClusterUpgradeComplete", message)
        });
    }
    notices
}

fn machine_notice(old_phase: MachinePhase, node: &MachineStatus) -> Option<EventNotice> {
    let (name, phase) = (&node.name, node.phase);
    let message = node.message.as_deref().unwrap_or_default();
    if old_phase == phase {
        return None;
    }
    match (old_phase, phase) {
        (_, MachinePhase::Done) => {
            let note = match &node.to {
                Some(version) => format!("{name} runs {version}, and its databases serve"),
                None => format!("{name} was rebooted, and its databases serve"),
            };
            Some(EventNotice::normal("NodeUpgradeSuccess", note))
        }
        (_, MachinePhase::Failed) => {
            Some(EventNotice::warning("NodeUpgradeFailure", format!("{name}: {message}")))
        }
        (MachinePhase::Drain, MachinePhase::Run) => {
            Some(EventNotice::normal("NodeDrained", format!("{name} is drained")))
        }
        (MachinePhase::Pending, _) if phase.is_under_way() => {
            Some(EventNotice::normal("NodeInProgress", format!("{name} begins")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(fields: Value) -> ClusterUpgradeStatus {
        serde_json::from_value(fields).unwrap()
    }

    fn told(before: Value, after: Value) -> Vec<&'static str> {
        let notices = status_notices(&status(before), &status(after));
        notices.into_iter().map(|notice| notice.reason).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let node = |phase: &str| json!([{"name": "m-1", "phase": phase}]);
        let pending = json!({"phase": "InProgress", "nodes": node("Pending")});
        let wait = json!({
            "machine": "m-1", "cluster": "db/examplecluster/demo", "predicate": "PeersUp",
            "message": "a peer is down",
        });
        for (before, after, reasons) in [
            (json!({}), pending.clone(), &["Accepted"][..]),
            (pending.clone(), pending.clone(), &[]),
            (pending, json!({"nodes": node("Cordon")}), &["NodeInProgress"]),
            (json!({"nodes": node("Cordon")}), json!({"nodes": node("Drain")}), &[]),
            (
                json!({"nodes": node("Drain")}),
                json!({"nodes": node("Drain"), "waitsFor": [wait]}),
                &["NodeWaitsForDatabase"],
            ),
            (
                json!({"nodes": node("Drain"), "waitsFor": [wait]}),
                json!({"nodes": node("Run"), "waitsFor": [wait]}),
                &["NodeDrained"],
            ),
            (
                json!({"nodes": node("Settle")}),
                json!({"nodes": node("Done"), "phase": "Success"}),
                &["NodeUpgradeSuccess", "ClusterUpgradeComplete"],
            ),
            (
                json!({"nodes": node("Run")}),
                json!({"nodes": node("Failed")}),
                &["NodeUpgradeFailure"],
            ),
            (json!({}), json!({"phase": "Failed", "message": "no"}), &["PreflightFailed"]),
        ] {
            assert_eq!(told(before.clone(), after.clone()), reasons, "{before} {after}");
        }
    }
}
