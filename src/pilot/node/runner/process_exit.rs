//! How the database ended, and what that means.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::{info, warn};

use super::{
    NodeRunner,
    ledger::{LedgerEntry, VolumeLedger},
};
use crate::{
    api::v1beta1::Termination,
    engine::exit_explanation::find_error_line,
    pilot::{
        driver::JOIN_FAILED,
        node::machine::{HoldReason, MachineEvent, NodePhase},
        process::supervisor::{ChildExit, signal_name, write_termination_log},
    },
    runtime::cgroup,
};

/// How long the pilot waits for the rest of a database's output after its end. The output is there
/// at once, except on a busy machine and where the reader of the pilot's own output stalls: a
/// longer wait would delay the pilot's own end.
const OUTPUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Did the kernel kill the database at the memory limit? `kills` counts the OOM kills since its
/// start. The launcher of a database may outlive a server that was killed, and ends with the code
/// that a shell gives.
fn is_oom_kill(exit: ChildExit, kills: u64) -> bool {
    const KILLED: u8 = 128 + 9;
    exit.status() == KILLED && kills > 0
}

const DISK_FULL: &str = "DiskFull";

/// Returns the reason and message of an end. One that nothing else explains, on a volume that is
/// `full`, was for want of room: not every database finds room to say so.
fn blamed_on_the_volume(
    full: Option<String>,
    (reason, message): (&'static str, String),
) -> (&'static str, String) {
    match full {
        Some(full) if reason == "ProcessExited" => (DISK_FULL, format!("{message}; {full}")),
        _ => (reason, message),
    }
}

impl NodeRunner {
    pub(super) async fn handle_exit(&mut self, exit: ChildExit) {
        let Some(child) = self.running.child.take() else { return };
        child.tail.wait_until_written(OUTPUT).await;
        self.running.cease_following();
        let is_stop_requested = matches!(self.state.life, NodePhase::Stopping { .. });
        let tail = child.tail.last_lines();
        // A node that served in this run had not left, whatever its log says. An answer is no sign:
        // a database may answer before it has read its own data.
        let has_served = matches!(&self.state.life, NodePhase::Up(up) if up.served);
        let explanation = self
            .ctx
            .driver
            .explain_exit(exit.status().into(), &tail)
            .filter(|ending| !(ending.left && (has_served || is_stop_requested)));
        let kills = cgroup::oom_kills().saturating_sub(self.running.oom_kills);
        let is_killed_by_kernel = !is_stop_requested && is_oom_kill(exit, kills);
        let title = self.ctx.settings.database.names.title;
        let observation = &mut self.report.facts.observation;
        let give_up_reason = self.state.gave_up().then(|| {
            let reason = observation.reason.unwrap_or(JOIN_FAILED);
            (reason, observation.message.clone().unwrap_or_default())
        });
        self.ctx.driver.forget_process(&mut observation.detail);
        let full = self.report.facts.full.clone();
        let (reason, message) =
            match (is_stop_requested, is_killed_by_kernel, explanation, give_up_reason) {
                (true, .., Some(cause)) => cause,
                (_, true, ..) => (
                    "OutOfMemory",
                    format!("{title} was killed by the kernel at the memory limit; raise it"),
                ),
                (false, _, Some(ending), _) => (ending.reason, ending.message.to_owned()),
                (true, ..) => ("Stopped", format!("{title} {exit}")),
                (false, ..) => ("ProcessExited", format!("{title} {exit}")),
            };
        let (reason, message) = blamed_on_the_volume(full, (reason, message));
        let needs_quote = !is_stop_requested
            && !is_killed_by_kernel
            && explanation.is_none_or(|ending| !ending.left);
        let exits = self.ctx.driver.exit_table();
        let line = find_error_line(exits, exit.status().into(), &tail, !has_served)
            .filter(|_| needs_quote);
        let message = match line {
            Some(line) => format!("{message}; its log says: {line}"),
            None => message,
        };
        if reason == DISK_FULL {
            self.starting.shortage.record_shortage(Instant::now());
        }
        if is_stop_requested {
            info!(pid = child.pid, code = exit.status(), "Database stopped");
        } else {
            self.ctx.metrics.crashes.inc();
            warn!(
                pid = child.pid,
                code = exit.status(),
                reason,
                explanation = message,
                "Database ended by itself"
            );
        }
        if self.state.is_ending() && exit.pilot_exit_code(self.state.limits().stop.success) != 0 {
            let text = format!("{message}\n{}", tail.join("\n"));
            if let Err(error) = write_termination_log(&self.ctx.settings.termination_log, &text) {
                warn!(%error, "Termination log cannot be written");
            }
        }
        let facts = &mut self.report.facts;
        facts.observation.gauges.clear();
        let start_time = facts.process.take().and_then(|process| process.start_time);
        facts.termination = Some(Termination {
            exit_code: Some(exit.status().into()),
            signal: exit.signal.map(|signal| signal_name(signal).into_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            start_time,
            finish_time: Some(Time(Timestamp::now())),
            log_tail: tail,
        });
        self.ledger.write_down(LedgerEntry::Ended);
        if explanation.is_some_and(|ending| ending.left) && !self.is_left() {
            VolumeLedger::record_decommission(&self.ctx);
            self.handle_event(MachineEvent::Decommissioned);
        }
        self.handle_event(MachineEvent::Exited(exit));
    }

    fn is_left(&self) -> bool {
        self.state.life == NodePhase::Held(HoldReason::Decommissioned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_on_a_full_volume_that_nothing_else_explains_was_for_want_of_room() {
        let why = || Some("1 MiB left".to_owned());
        let told = |full, reason| blamed_on_the_volume(full, (reason, "exit 1".to_owned()));
        assert_eq!(told(why(), "ProcessExited"), (DISK_FULL, "exit 1; 1 MiB left".to_owned()));
        assert_eq!(told(None, "ProcessExited").0, "ProcessExited");
        assert_eq!(told(why(), "OutOfMemory").0, "OutOfMemory");
        assert_eq!(told(why(), "Stopped").0, "Stopped");
    }

    #[test]
    fn a_server_that_the_kernel_killed_behind_its_launcher_ran_out_of_memory() {
        let exit = |code, signal| ChildExit { code, signal };
        for (exit, kills, expected) in [
            (exit(None, Some(9)), 1, true),
            (exit(Some(137), None), 1, true),
            (exit(Some(137), None), 0, false),
            (exit(Some(1), None), 1, false),
            (exit(None, Some(11)), 1, false),
        ] {
            assert_eq!(is_oom_kill(exit, kills), expected, "{exit}, {kills}");
        }
    }
}
