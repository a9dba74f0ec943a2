//! Whose turn it is: the order of machines, how many go at once, and what holds the next one.

use k8s_openapi::jiff::{civil::Time as HourAndMinute, civil::Weekday, tz::TimeZone};

use super::{Look, MachineFacts, OtherRun, advance, k8s_time};
use crate::api::containership::{
    MachinePhase, MachineStatus, MaintenanceWindow, WindowDay, matches_all, name,
};

/// Sorts machines into the order in which they begin: control planes by name, then workers by pool
/// and name.
pub(super) fn sort_machines(machines: &mut [&MachineFacts]) {
    machines.sort_by_key(|machine| {
        let pool = machine.labels.get(name::NODE_POOL_ID).filter(|_| !machine.control_plane);
        (!machine.control_plane, pool, &machine.name)
    });
}

/// Lets the machines begin whose turn it is, and says what holds the next one.
pub(super) fn start_machines(plan: &mut Look<'_>) {
    while let Some(index) = next_pending(plan) {
        let mut node = plan.status.nodes[index].clone();
        let Some(machine) = plan.fleet.find_machine(&node.name) else {
            node.phase = MachinePhase::Gone;
            node.message = Some("its Node was deleted".to_owned());
            plan.status.nodes[index] = node;
            continue;
        };
        if advance::is_at_target(plan.run, &node, machine) {
            node.phase = MachinePhase::Done;
            node.message = Some("was as wanted before its turn".to_owned());
            plan.status.nodes[index] = node;
            continue;
        }
        if is_full(plan, &node) || is_blocked(plan, index, &node, machine) {
            return;
        }
        plan.status.nodes[index] = MachineStatus {
            phase: MachinePhase::Cordon,
            start_time: Some(k8s_time(plan.now())),
            attempt: node.attempt + 1,
            clusters: plan.fleet.clusters_on(&node.name),
            marked: true,
            ..node
        };
    }
}

fn next_pending(plan: &Look<'_>) -> Option<usize> {
    plan.status.nodes.iter().position(|node| node.phase == MachinePhase::Pending)
}

/// Are as many machines under way as may be? The first goes alone, and control planes do.
fn is_full(plan: &Look<'_>, next: &MachineStatus) -> bool {
    let nodes = &plan.status.nodes;
    let nodes_under_way = || nodes.iter().filter(|node| node.phase.is_under_way());
    let has_proven_node =
        nodes.iter().any(|node| node.phase == MachinePhase::Done && node.attempt > 0);
    let is_alone =
        next.control_plane || !has_proven_node || nodes_under_way().any(|node| node.control_plane);
    let max_under_way = if is_alone { 1 } else { plan.run.spec.max_unavailable };
    nodes_under_way().count() >= usize::try_from(max_under_way).unwrap_or(1)
}

/// Says what holds the machine whose turn it is. Returns whether anything does.
fn is_blocked(
    plan: &mut Look<'_>,
    index: usize,
    node: &MachineStatus,
    machine: &MachineFacts,
) -> bool {
    let wait_count = plan.waits.len();
    let (run, fleet, name) = (plan.run, plan.fleet, Some(node.name.as_str()));
    if run.spec.paused {
        plan.add_wait(None, "Paused", "spec.paused is true, so no further machine begins");
    }
    if let Some(window) = run.spec.window.as_ref().filter(|window| !is_open(window, plan.now())) {
        let days = if window.days.is_empty() { "" } else { " on its days" };
        let hours = format!("machines begin from {} to {} UTC{days}", window.start, window.end);
        plan.add_wait(None, "WindowClosed", hours);
    }
    let is_first = |other: &&OtherRun| other.under_way || (other.accepted && other.is_older(run));
    if let Some(other) = fleet.others.iter().find(is_first) {
        plan.add_wait(None, "OtherUpgrade", format!("upgrade {} comes first", other.name));
    }
    for other in fleet.machines.iter().filter(|other| !other.ready) {
        let machine_status = plan.status.nodes.iter().find(|node| node.name == other.name);
        let is_own_change =
            |node: &MachineStatus| node.phase.is_under_way() || node.phase == MachinePhase::Failed;
        if !machine_status.is_some_and(is_own_change) {
            let message = format!("machine {} is not Ready", other.name);
            plan.add_wait(name, "MachinesReady", message);
        }
    }
    if node.control_plane && fleet.machines.iter().any(|other| other.etcd_ready == Some(false)) {
        plan.add_wait(name, "EtcdHealthy", "a member of etcd is not ready");
    }
    let gates = run.spec.gates.iter().flat_map(|gates| &gates.blocking_pod_selectors);
    for blocking in gates {
        let is_blocking = |pod: &&super::MachinePod| {
            pod.machine.as_deref() == name && matches_all(&blocking.labels, &pod.labels)
        };
        if let Some(pod) = fleet.pods.iter().find(is_blocking) {
            let place = pod.namespaced_name();
            let message = format!("pod {place} blocks the machine");
            plan.add_wait_for(name, (None, Some(&place)), "BlockingPod", message);
        }
    }
    let clusters = fleet.clusters_on(&machine.name);
    if let Some((other, cluster)) = advance::find_shared_cluster(plan, index, &clusters, true) {
        let message = format!("{cluster} has members on {other} too, which comes first");
        plan.add_wait_for(name, (Some(&cluster), None), "SharedCluster", message);
    }
    let needs_drain = advance::needs_drain(run, node);
    let affected_clusters =
        fleet.clusters.iter().filter(|cluster| clusters.contains(&cluster.name));
    for cluster in
        affected_clusters.filter(|cluster| needs_drain && cluster.drainable == Some(false))
    {
        plan.add_wait_for(name, (Some(&cluster.name), None), "Drainable", cluster.why.clone());
    }
    plan.waits.len() > wait_count
}

/// May machines begin at this time?
fn is_open(window: &MaintenanceWindow, now: k8s_openapi::jiff::Timestamp) -> bool {
    let hour = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        HourAndMinute::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
    };
    // The schema lets no other text in.
    let (Some(start), Some(end)) = (hour(&window.start), hour(&window.end)) else { return false };
    let now = now.to_zoned(TimeZone::UTC);
    let (time, today) = (now.time(), now.weekday());
    let begins_on = |day: Weekday| {
        window.days.is_empty()
            || window.days.iter().any(|window_day| to_weekday(*window_day) == day)
    };
    if start < end {
        return begins_on(today) && start <= time && time < end;
    }
    (begins_on(today) && start <= time) || (begins_on(today.previous()) && time < end)
}

fn to_weekday(day: WindowDay) -> Weekday {
    match day {
        WindowDay::Monday => Weekday::Monday,
        WindowDay::Tuesday => Weekday::Tuesday,
        WindowDay::Wednesday => Weekday::Wednesday,
        WindowDay::Thursday => Weekday::Thursday,
        WindowDay::Friday => Weekday::Friday,
        WindowDay::Saturday => Weekday::Saturday,
        WindowDay::Sunday => Weekday::Sunday,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
        // 2026-11-27 is a Friday.
        let night = MaintenanceWindow {
            days: vec![WindowDay::Friday],
            start: "22:00".into(),
            end: "02:00".into(),
        };
        let day = MaintenanceWindow { start: "09:30".into(), end: "10:00".into(), days: vec![] };
        for (window, time, open) in [
            (&night, "2026-11-27T21:59:59Z", false),
            (&night, "2026-11-27T22:00:00Z", true),
            (&night, "2026-11-28T01:59:59Z", true),
            (&night, "2026-11-28T02:00:00Z", false),
            (&night, "2026-11-27T01:00:00Z", false),
            (&night, "2026-11-28T23:00:00Z", false),
            (&day, "2026-11-28T09:30:00Z", true),
            (&day, "2026-11-28T10:00:00Z", false),
        ] {
            assert_eq!(is_open(window, time.parse().unwrap()), open, "{time}");
        }
    }
}
