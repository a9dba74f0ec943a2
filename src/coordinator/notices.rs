//! What people are told by events: what a written status says that the one before did not.

use crate::{
    api::containership::{ClusterUpgradeStatus, MachinePhase, MachineStatus, UpgradePhase},
    runtime::events::EventNotice,
};

/// Returns the events of a change of status.
pub(crate) fn notices(
    before: &ClusterUpgradeStatus,
    after: &ClusterUpgradeStatus,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    if before.nodes.is_empty() && !after.nodes.is_empty() {
        let count = after.nodes.len();
        let note = format!("the upgrade is accepted, for {count} machines");
        notices.push(EventNotice::normal("Accepted", note));
    }
    for node in &after.nodes {
        let phase = before.nodes.iter().find(|old| old.name == node.name).map(|old| old.phase);
        notices.extend(of_machine(phase.unwrap_or_default(), node));
    }
    for wait in &after.waits_for {
        let same = before.waits_for.iter().any(|old| {
            (&old.machine, &old.cluster, &old.pilot, &old.predicate)
                == (&wait.machine, &wait.cluster, &wait.pilot, &wait.predicate)
        });
        if let (Some(cluster), false) = (&wait.cluster, same) {
            let machine = wait.machine.as_deref().unwrap_or_default();
            let note = format!("{machine}: {cluster}: {}: {}", wait.predicate, wait.message);
            notices.push(EventNotice::normal("NodeWaitsForDatabase", note));
        }
    }
    if after.is_finished() && !before.is_finished() {
        let message = after.message.clone().unwrap_or_default();
        notices.push(if after.nodes.is_empty() {
            EventNotice::warning("PreflightFailed", message)
        } else if after.phase == Some(UpgradePhase::Success) {
            let note = format!("{} machines are as wanted", after.done);
            EventNotice::normal("ClusterUpgradeComplete", note)
        } else {
            EventNotice::warning("ClusterUpgradeComplete", message)
        });
    }
    notices
}

fn of_machine(before: MachinePhase, node: &MachineStatus) -> Option<EventNotice> {
    let (name, phase) = (&node.name, node.phase);
    let message = node.message.as_deref().unwrap_or_default();
    if before == phase {
        return None;
    }
    match (before, phase) {
        (_, MachinePhase::Done) => {
            let note = match &node.to {
                Some(to) => format!("{name} runs {to}, and its databases serve"),
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
        let notices = notices(&status(before), &status(after));
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
