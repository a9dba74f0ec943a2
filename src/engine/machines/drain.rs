//! How pods leave a machine: ordinary ones are evicted, databases are asked, Navigator's own go last.

use super::{Look, MachinePod, MemberPilot, PodRole, UpgradeAction};
use crate::api::{
    containership::{MachineStatus, select},
    leave_request::LeaveRequest,
};

/// Who asks a pilot to leave, in the words of a request.
fn asks_for(run: &str, machine: &str) -> String {
    format!("upgrade {run} of {machine}")
}

/// Returns the name of the upgrade that asks a pilot to leave.
pub fn asked_by(pilot: &MemberPilot) -> Option<&str> {
    let by = pilot.leave.as_ref()?.by.strip_prefix("upgrade ")?;
    Some(by.split_once(" of ")?.0)
}

/// Brings a drain one step further, and says what it waits for. Returns whether pods are left.
///
/// A pilot is named in the status before it is asked, so that a request is taken back whatever
/// happens.
pub(super) fn drain(look: &mut Look<'_>, node: &mut MachineStatus) -> bool {
    let fleet = look.fleet;
    let selector = &look.run.spec.drain.pod_selector;
    let there = fleet.pods.iter().filter(|pod| {
        let on = pod.machine.as_deref() == Some(&node.name);
        on && pod.role != PodRole::Left
            && !is_last_coordinator(look, pod)
            && select(selector, &pod.labels)
    });
    let mut there: Vec<&MachinePod> = there.collect();
    there.sort_by_cached_key(|pod| (pod.role, pod.place()));
    let turn = there.first().map(|pod| pod.role);
    for pod in there.iter().filter(|pod| Some(pod.role) == turn) {
        if pod.role == PodRole::Database {
            ask(look, node, pod);
        } else {
            evict(look, node, pod);
        }
    }
    tell_bound(look, node);
    turn.is_some()
}

/// Is this a coordinator that may not go because no other machine takes the one that would lead then? It
/// comes back with its machine, and goes on from the status.
fn is_last_coordinator(look: &Look<'_>, pod: &MachinePod) -> bool {
    let of = |pod: &MachinePod| pod.role == PodRole::Coordinator;
    let waits = |other: &MachinePod| of(other) && other.machine.is_none();
    of(pod) && pod.refusal.is_some() && look.fleet.pods.iter().any(waits)
}

fn evict(look: &mut Look<'_>, node: &MachineStatus, pod: &MachinePod) {
    let place = pod.place();
    let (predicate, message) = if pod.ends {
        ("PodEnds", format!("pod {place} ends"))
    } else if !pod.has_owner {
        (
            "PodUnmanaged",
            format!("pod {place} has no controller, so nothing makes it again: delete it"),
        )
    } else if pod.has_local_data && !look.run.spec.drain.delete_empty_dir_data {
        let message = format!(
            "pod {place} keeps data in an emptyDir: delete it, or set drain.deleteEmptyDirData"
        );
        ("PodHoldsData", message)
    } else {
        look.actions.push(UpgradeAction::Evict {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
        });
        let refusal = pod.refusal.clone();
        ("PodEvicted", refusal.unwrap_or_else(|| format!("pod {place} is evicted")))
    };
    look.wait_for(Some(&node.name), (None, Some(&place)), predicate, message);
}

fn ask(look: &mut Look<'_>, node: &mut MachineStatus, pod: &MachinePod) {
    let place = pod.place();
    let Some(pilot) = look.fleet.pilot(pod) else {
        let message = format!("pod {place} has no Pilot that could be asked");
        look.wait_for(Some(&node.name), (None, Some(&place)), "PilotMissing", message);
        return;
    };
    let asked = pilot.leave.as_ref().is_some_and(|request| request.pod == pod.uid);
    if !asked && !pod.ends {
        if node.asked.contains(&place) {
            let by = asks_for(look.run.name, &node.name);
            look.actions.push(UpgradeAction::Ask {
                namespace: pilot.namespace.clone(),
                pilot: pilot.name.clone(),
                version: pilot.version.clone(),
                request: LeaveRequest { pod: pod.uid.clone(), by },
            });
        } else {
            node.asked.push(place.clone());
        }
    }
    let waits = pilot.waits.as_deref().filter(|_| asked && !pod.ends);
    let (predicate, message) = match waits.and_then(|waits| waits.split_once(": ")) {
        Some((predicate, message)) => (predicate, message.to_owned()),
        None if pod.ends => ("PodEnds", format!("{place} leaves")),
        None => ("PilotAsked", format!("{place} is asked to leave")),
    };
    look.wait_for(Some(&node.name), (Some(&pilot.cluster), Some(&place)), predicate, message);
}

/// Tells of the pods of databases that can be on this machine only, and wait for it.
pub(super) fn tell_bound(look: &mut Look<'_>, node: &MachineStatus) {
    for pod in &look.fleet.pods {
        let bound = pod.machine.is_none() && look.fleet.belongs(pod, &node.name);
        if bound && pod.role == PodRole::Database {
            let place = pod.place();
            let cluster = look.fleet.pilot(pod).map(|pilot| pilot.cluster.as_str());
            let message =
                format!("{place} stays with its volume, and comes back with {}", node.name);
            look.wait_for(Some(&node.name), (cluster, Some(&place)), "StaysWithVolume", message);
        }
    }
}
