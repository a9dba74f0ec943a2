//! What the status says of a run as a whole: figures, what is waited for, conditions.

use k8s_openapi::jiff::SignedDuration;

use super::{Look, k8s_time};
use crate::{
    api::containership::{MachinePhase, MachineWait, UpgradePhase, UpgradeVerdict},
    engine::conditions::{ObjectVerdict, build_conditions},
};

/// Waits that are shown, at most.
const SHOWN: usize = 20;
/// Characters of the line that says what is waited for, at most.
const LINE: usize = 160;
/// Minutes after which a wait makes the run Stalled.
const STALLED_MINUTES: i64 = 30;

/// Completes the status after a look.
pub(super) fn complete_status(plan: &mut Look<'_>) {
    update_waits(plan);
    let status = &mut plan.status;
    let count = |phase: MachinePhase| {
        let count = status.nodes.iter().filter(|node| node.phase == phase).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    };
    let (done_count, failed_count, gone_count) =
        (count(MachinePhase::Done), count(MachinePhase::Failed), count(MachinePhase::Gone));
    let total = i32::try_from(status.nodes.len()).unwrap_or(i32::MAX) - gone_count;
    (status.done, status.failed, status.total) = (done_count, failed_count, total);
    status.progress = (!status.nodes.is_empty()).then(|| format!("{done_count}/{total}"));
    let current = status.nodes.iter().find(|node| node.phase.is_under_way());
    status.current_node = current.map(|node| node.name.clone());
    status.current_start_time = current.and_then(|node| node.start_time.clone());
    let is_idle = current.is_none();
    let verdicts = status.nodes.iter().filter_map(|node| {
        let verdict = match node.phase {
            MachinePhase::Pending | MachinePhase::Gone => return None,
            MachinePhase::Done => UpgradeVerdict::Success,
            MachinePhase::Failed => UpgradeVerdict::Failed,
            _ => UpgradeVerdict::InProgress,
        };
        Some((node.name.clone(), verdict))
    });
    status.node_statuses = verdicts.collect();
    if !status.is_finished() && !status.nodes.is_empty() {
        let is_paused = is_idle && plan.run.spec.paused;
        status.phase =
            Some(if is_paused { UpgradePhase::Paused } else { UpgradePhase::InProgress });
    }
    status.cluster_status = match status.phase {
        Some(UpgradePhase::InProgress | UpgradePhase::Paused) => Some(UpgradeVerdict::InProgress),
        Some(UpgradePhase::Success) => Some(UpgradeVerdict::Success),
        Some(UpgradePhase::Failed) => Some(UpgradeVerdict::Failed),
        Some(UpgradePhase::Pending | UpgradePhase::Preflight) | None => None,
    };
    status.observed_generation = Some(plan.run.generation);
    update_conditions(plan);
}

/// Notes since when each wait holds, and says the first on one line.
fn update_waits(plan: &mut Look<'_>) {
    let now = k8s_time(plan.now());
    plan.waits.truncate(SHOWN);
    for wait in &mut plan.waits {
        let is_same = |earlier: &&MachineWait| {
            (&earlier.machine, &earlier.cluster, &earlier.pilot, &earlier.predicate)
                == (&wait.machine, &wait.cluster, &wait.pilot, &wait.predicate)
        };
        let earlier_wait = plan.run.status.waits_for.iter().find(is_same);
        let since = earlier_wait.and_then(|earlier| earlier.since.clone());
        wait.since = Some(since.unwrap_or_else(|| now.clone()));
    }
    let line = plan.waits.first().map(|wait| {
        let machine = wait.machine.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let hidden_count = plan.waits.len() - 1;
        let suffix =
            if hidden_count > 0 { format!(" (and {hidden_count} more)") } else { String::new() };
        let text = format!("{machine}{}: {}", wait.predicate, wait.message.replace('\n', " "));
        let short_line: String = text.chars().take(LINE).collect();
        let dots = if short_line.len() < text.len() { "…" } else { "" };
        format!("{short_line}{dots}{suffix}")
    });
    plan.status.waits_for_text = line;
    plan.status.waits_for = std::mem::take(&mut plan.waits);
}

/// Says in conditions how the run stands.
fn update_conditions(plan: &mut Look<'_>) {
    let now = plan.now();
    let status = &plan.status;
    let patience = SignedDuration::from_mins(STALLED_MINUTES);
    let is_old = |wait: &&MachineWait| {
        wait.since.as_ref().is_some_and(|since| now.duration_since(since.0) >= patience)
    };
    let stalled = match (status.phase, status.waits_for.iter().find(is_old)) {
        (Some(UpgradePhase::Failed), _) => {
            let message = status.message.clone().unwrap_or_default();
            let is_unsupported = message.starts_with("Unsupported");
            Some((if is_unsupported { "Unsupported" } else { "UpgradeFailed" }.to_owned(), message))
        }
        (_, Some(wait)) => Some((wait.predicate.clone(), wait.message.clone())),
        (_, None) => None,
    };
    let phase = status.phase.map_or_else(|| "Pending".to_owned(), |phase| format!("{phase:?}"));
    let verdict = ObjectVerdict {
        ready: status.phase == Some(UpgradePhase::Success),
        reconciling: !status.is_finished(),
        reason: phase.into(),
        message: status.waits_for_text.clone().unwrap_or_default(),
        stalled: stalled.map(|(reason, message)| (reason.into(), message)),
    };
    let generation = Some(plan.run.generation);
    plan.status.conditions = build_conditions(&status.conditions, generation, verdict, now);
}
