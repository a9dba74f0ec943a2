//! What the status says of a run as a whole: figures, what is waited for, conditions.

use k8s_openapi::jiff::SignedDuration;

use super::{Look, k8s_time};
use crate::{
    api::containership::{MachinePhase, MachineWait, UpgradePhase, UpgradeVerdict},
    engine::conditions::{ObjectVerdict, conditions},
};

/// Waits that are shown, at most.
const SHOWN: usize = 20;
/// Characters of the line that says what is waited for, at most.
const LINE: usize = 160;
/// Minutes after which a wait makes the run Stalled.
const STALLED_MINUTES: i64 = 30;

/// Completes the status after a look.
pub(super) fn write(look: &mut Look<'_>) {
    waits(look);
    let status = &mut look.status;
    let count = |phase: MachinePhase| {
        let count = status.nodes.iter().filter(|node| node.phase == phase).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    };
    let (done, failed, gone) =
        (count(MachinePhase::Done), count(MachinePhase::Failed), count(MachinePhase::Gone));
    let total = i32::try_from(status.nodes.len()).unwrap_or(i32::MAX) - gone;
    (status.done, status.failed, status.total) = (done, failed, total);
    status.progress = (!status.nodes.is_empty()).then(|| format!("{done}/{total}"));
    let current = status.nodes.iter().find(|node| node.phase.is_under_way());
    status.current_node = current.map(|node| node.name.clone());
    status.current_start_time = current.and_then(|node| node.start_time.clone());
    let idle = current.is_none();
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
        let paused = idle && look.run.spec.paused;
        status.phase = Some(if paused { UpgradePhase::Paused } else { UpgradePhase::InProgress });
    }
    status.cluster_status = match status.phase {
        Some(UpgradePhase::InProgress | UpgradePhase::Paused) => Some(UpgradeVerdict::InProgress),
        Some(UpgradePhase::Success) => Some(UpgradeVerdict::Success),
        Some(UpgradePhase::Failed) => Some(UpgradeVerdict::Failed),
        Some(UpgradePhase::Pending | UpgradePhase::Preflight) | None => None,
    };
    status.observed_generation = Some(look.run.generation);
    judge(look);
}

/// Notes since when each wait holds, and says the first on one line.
fn waits(look: &mut Look<'_>) {
    let now = k8s_time(look.now());
    look.waits.truncate(SHOWN);
    for wait in &mut look.waits {
        let same = |before: &&MachineWait| {
            (&before.machine, &before.cluster, &before.pilot, &before.predicate)
                == (&wait.machine, &wait.cluster, &wait.pilot, &wait.predicate)
        };
        let before = look.run.status.waits_for.iter().find(same);
        let since = before.and_then(|before| before.since.clone());
        wait.since = Some(since.unwrap_or_else(|| now.clone()));
    }
    let line = look.waits.first().map(|wait| {
        let machine = wait.machine.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let more = look.waits.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let text = format!("{machine}{}: {}", wait.predicate, wait.message.replace('\n', " "));
        let cut: String = text.chars().take(LINE).collect();
        let dots = if cut.len() < text.len() { "…" } else { "" };
        format!("{cut}{dots}{more}")
    });
    look.status.waits_for_text = line;
    look.status.waits_for = std::mem::take(&mut look.waits);
}

/// Says in conditions how the run stands.
fn judge(look: &mut Look<'_>) {
    let now = look.now();
    let status = &look.status;
    let patience = SignedDuration::from_mins(STALLED_MINUTES);
    let old = |wait: &&MachineWait| {
        wait.since.as_ref().is_some_and(|since| now.duration_since(since.0) >= patience)
    };
    let stalled = match (status.phase, status.waits_for.iter().find(old)) {
        (Some(UpgradePhase::Failed), _) => {
            let message = status.message.clone().unwrap_or_default();
            let unsupported = message.starts_with("Unsupported");
            Some((if unsupported { "Unsupported" } else { "UpgradeFailed" }.to_owned(), message))
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
        stalled: stalled.map(|(why, said)| (why.into(), said)),
    };
    let generation = Some(look.run.generation);
    look.status.conditions = conditions(&status.conditions, generation, verdict, now);
}
