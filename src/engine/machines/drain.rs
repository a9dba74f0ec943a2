//! How pods leave a machine: ordinary ones are evicted, databases are asked, Navigator's own go last.

use super::{Look, MachinePod, MemberPilot, PodRole, UpgradeAction};
use crate::api::{
    containership::{MachineStatus, matches_all},
    leave_request::LeaveRequest,
};

/// Who asks a pilot to leave, in the words of a request.
fn requester_name(run: &str, machine: &str) -> String {
    format!("upgrade {run} of {machine}")
}

/// Returns the name of the upgrade that asks a pilot to leave.
pub fn requesting_upgrade(pilot: &MemberPilot) -> Option<&str> {
    let by = pilot.leave.as_ref()?.by.strip_prefix("upgrade ")?;
    Some(by.split_once(" of ")?.0)
}

/// Brings a drain one step further, and says what it waits for. Returns whether pods are left.
///
/// A pilot is named in the status before it is asked, so that a request is taken back whatever
/// happens.
pub(super) fn drain_pods(plan: &mut Look<'_>, node: &mut MachineStatus) -> bool {
    let fleet = plan.fleet;
    let selector = &plan.run.spec.drain.pod_selector;
    let pods = fleet.pods.iter().filter(|pod| {
        let is_on_machine = pod.machine.as_deref() == Some(&node.name);
        is_on_machine
            && pod.role != PodRole::Left
            && !is_last_coordinator(plan, pod)
            && matches_all(selector, &pod.labels)
    });
    let mut pods: Vec<&MachinePod> = pods.collect();
    pods.sort_by_cached_key(|pod| (pod.role, pod.namespaced_name()));
    let current_role = pods.first().map(|pod| pod.role);
    for pod in pods.iter().filter(|pod| Some(pod.role) == current_role) {
        if pod.role == PodRole::Database {
            request_eviction(plan, node, pod);
        } else {
            evict_pod(plan, node, pod);
        }
    }
    report_bound_pods(plan, node);
    current_role.is_some()
}

/// Is this a coordinator that may not go because no other machine takes the one that would lead then? It
/// comes back with its machine, and goes on from the status.
fn is_last_coordinator(plan: &Look<'_>, pod: &MachinePod) -> bool {
    let is_coordinator = |pod: &MachinePod| pod.role == PodRole::Coordinator;
    let is_waiting = |other: &MachinePod| is_coordinator(other) && other.machine.is_none();
    is_coordinator(pod) && pod.refusal.is_some() && plan.fleet.pods.iter().any(is_waiting)
}

fn evict_pod(plan: &mut Look<'_>, node: &MachineStatus, pod: &MachinePod) {
    let place = pod.namespaced_name();
    let (predicate, message) = if pod.ends {
        ("PodEnds", format!("pod {place} ends"))
    } else if !pod.has_owner {
        (
            "PodUnmanaged",
            format!("pod {place} has no controller, so nothing makes it again: delete it"),
        )
    } else if pod.has_local_data && !plan.run.spec.drain.delete_empty_dir_data {
        let message = format!(
            "pod {place} keeps data in an emptyDir: delete it, or set drain.deleteEmptyDirData"
        );
        ("PodHoldsData", message)
    } else {
        plan.actions.push(UpgradeAction::Evict {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
        });
        let refusal = pod.refusal.clone();
        ("PodEvicted", refusal.unwrap_or_else(|| format!("pod {place} is evicted")))
    };
    plan.add_wait_for(Some(&node.name), (None, Some(&place)), predicate, message);
}

fn request_eviction(plan: &mut Look<'_>, node: &mut MachineStatus, pod: &MachinePod) {
    let place = pod.namespaced_name();
    let Some(pilot) = plan.fleet.find_pilot(pod) else {
        let message = format!("pod {place} has no Pilot that could be asked");
        plan.add_wait_for(Some(&node.name), (None, Some(&place)), "PilotMissing", message);
        return;
    };
    let is_requested = pilot.leave.as_ref().is_some_and(|request| request.pod == pod.uid);
    if !is_requested && !pod.ends {
        if node.asked.contains(&place) {
            let by = requester_name(plan.run.name, &node.name);
            plan.actions.push(UpgradeAction::Ask {
                namespace: pilot.namespace.clone(),
                pilot: pilot.name.clone(),
                version: pilot.version.clone(),
                request: LeaveRequest { pod: pod.uid.clone(), by },
            });
        } else {
            node.asked.push(place.clone());
        }
    }
    let blocker_text = pilot.waits.as_deref().filter(|_| is_requested && !pod.ends);
    let (predicate, message) = match blocker_text.and_then(|text| text.split_once(": ")) {
        Some((predicate, message)) => (predicate, message.to_owned()),
        None if pod.ends => ("PodEnds", format!("{place} leaves")),
        None => ("PilotAsked", format!("{place} is asked to leave")),
    };
    plan.add_wait_for(Some(&node.name), (Some(&pilot.cluster), Some(&place)), predicate, message);
}

/// Tells of the pods of databases that can be on this machine only, and wait for it.
pub(super) fn report_bound_pods(plan: &mut Look<'_>, node: &MachineStatus) {
    for pod in &plan.fleet.pods {
        let is_bound = pod.machine.is_none() && plan.fleet.is_bound_to(pod, &node.name);
        if is_bound && pod.role == PodRole::Database {
            let place = pod.namespaced_name();
            let cluster = plan.fleet.find_pilot(pod).map(|pilot| pilot.cluster.as_str());
            let message =
                format!("{place} stays with its volume, and comes back with {}", node.name);
            plan.add_wait_for(
                Some(&node.name),
                (cluster, Some(&place)),
                "StaysWithVolume",
                message,
            );
        }
    }
}
