//! Whose turn it is: the order of machines, how many go at once, and what holds the next one.

use k8s_openapi::jiff::{civil::Time as HourAndMinute, civil::Weekday, tz::TimeZone};

use super::{Look, MachineFacts, OtherRun, advance, k8s_time};
use crate::api::containership::{
    MachinePhase, MachineStatus, MaintenanceWindow, WindowDay, name, select,
};

/// Sorts machines into the order in which they begin: control planes by name, then workers by pool
/// and name.
pub(super) fn sort(machines: &mut [&MachineFacts]) {
    machines.sort_by_key(|machine| {
        let pool = machine.labels.get(name::NODE_POOL_ID).filter(|_| !machine.control_plane);
        (!machine.control_plane, pool, &machine.name)
    });
}

/// Lets the machines begin whose turn it is, and says what holds the next one.
pub(super) fn begin(look: &mut Look<'_>) {
    while let Some(index) = next_pending(look) {
        let mut node = look.status.nodes[index].clone();
        let Some(machine) = look.fleet.machine(&node.name) else {
            node.phase = MachinePhase::Gone;
            node.message = Some("its Node was deleted".to_owned());
            look.status.nodes[index] = node;
            continue;
        };
        if advance::is_at_target(look.run, &node, machine) {
            node.phase = MachinePhase::Done;
            node.message = Some("was as wanted before its turn".to_owned());
            look.status.nodes[index] = node;
            continue;
        }
        if is_full(look, &node) || is_held(look, index, &node, machine) {
            return;
        }
        look.status.nodes[index] = MachineStatus {
            phase: MachinePhase::Cordon,
            start_time: Some(k8s_time(look.now())),
            attempt: node.attempt + 1,
            clusters: look.fleet.clusters_on(&node.name),
            marked: true,
            ..node
        };
    }
}

fn next_pending(look: &Look<'_>) -> Option<usize> {
    look.status.nodes.iter().position(|node| node.phase == MachinePhase::Pending)
}

/// Are as many machines under way as may be? The first goes alone, and control planes do.
fn is_full(look: &Look<'_>, next: &MachineStatus) -> bool {
    let nodes = &look.status.nodes;
    let under_way = || nodes.iter().filter(|node| node.phase.is_under_way());
    let proven = nodes.iter().any(|node| node.phase == MachinePhase::Done && node.attempt > 0);
    let alone = next.control_plane || !proven || under_way().any(|node| node.control_plane);
    let most = if alone { 1 } else { look.run.spec.max_unavailable };
    under_way().count() >= usize::try_from(most).unwrap_or(1)
}

/// Says what holds the machine whose turn it is. Returns whether anything does.
fn is_held(
    look: &mut Look<'_>,
    index: usize,
    node: &MachineStatus,
    machine: &MachineFacts,
) -> bool {
    let before = look.waits.len();
    let (run, fleet, name) = (look.run, look.fleet, Some(node.name.as_str()));
    if run.spec.paused {
        look.wait(None, "Paused", "spec.paused is true, so no further machine begins");
    }
    if let Some(window) = run.spec.window.as_ref().filter(|window| !is_open(window, look.now())) {
        let days = if window.days.is_empty() { "" } else { " on its days" };
        let hours = format!("machines begin from {} to {} UTC{days}", window.start, window.end);
        look.wait(None, "WindowClosed", hours);
    }
    let first = |other: &&OtherRun| other.under_way || (other.accepted && other.is_older(run));
    if let Some(other) = fleet.others.iter().find(first) {
        look.wait(None, "OtherUpgrade", format!("upgrade {} comes first", other.name));
    }
    for other in fleet.machines.iter().filter(|other| !other.ready) {
        let known = look.status.nodes.iter().find(|node| node.name == other.name);
        let ours =
            |node: &MachineStatus| node.phase.is_under_way() || node.phase == MachinePhase::Failed;
        if !known.is_some_and(ours) {
            let message = format!("machine {} is not Ready", other.name);
            look.wait(name, "MachinesReady", message);
        }
    }
    if node.control_plane && fleet.machines.iter().any(|other| other.etcd_ready == Some(false)) {
        look.wait(name, "EtcdHealthy", "a member of etcd is not ready");
    }
    let gates = run.spec.gates.iter().flat_map(|gates| &gates.blocking_pod_selectors);
    for blocking in gates {
        let blocks = |pod: &&super::MachinePod| {
            pod.machine.as_deref() == name && select(&blocking.labels, &pod.labels)
        };
        if let Some(pod) = fleet.pods.iter().find(blocks) {
            let place = pod.place();
            let message = format!("pod {place} blocks the machine");
            look.wait_for(name, (None, Some(&place)), "BlockingPod", message);
        }
    }
    let clusters = fleet.clusters_on(&machine.name);
    if let Some((other, cluster)) = advance::shared(look, index, &clusters, true) {
        let message = format!("{cluster} has members on {other} too, which comes first");
        look.wait_for(name, (Some(&cluster), None), "SharedCluster", message);
    }
    let drains = advance::drains(run, node);
    let there = fleet.clusters.iter().filter(|cluster| clusters.contains(&cluster.name));
    for cluster in there.filter(|cluster| drains && cluster.drainable == Some(false)) {
        look.wait_for(name, (Some(&cluster.name), None), "Drainable", cluster.why.clone());
    }
    look.waits.len() > before
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
        window.days.is_empty() || window.days.iter().any(|wanted| weekday(*wanted) == day)
    };
    if start < end {
        return begins_on(today) && start <= time && time < end;
    }
    (begins_on(today) && start <= time) || (begins_on(today.previous()) && time < end)
}

fn weekday(day: WindowDay) -> Weekday {
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
