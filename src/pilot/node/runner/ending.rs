//! How the database ended, and how an earlier one ended that nobody saw.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::{info, warn};

use super::{Message, Note, Runner};
use crate::{
    api::v1beta1::{DatabaseStatus, Pilot, PilotIntent, Termination},
    pilot::{
        kube::cluster::LastState,
        node::machine::{Effect, Event, Life},
        process::{
            cgroup,
            supervisor::{Exit, signal_name, write_termination_log},
        },
        volume::files::Run,
    },
};

/// How long the rest of the output is waited for. It is there at once, but on a busy machine,
/// and where whoever reads ours stalls: longer would delay the pilot's own end.
const OUTPUT: std::time::Duration = std::time::Duration::from_secs(1);

/// Did the kernel kill it at the memory limit, where it killed so many meanwhile? The launcher of
/// a database may outlive a server that was killed, and ends with the code that a shell gives.
fn is_oom_kill(exit: Exit, kills: u64) -> bool {
    const KILLED: u8 = 128 + 9;
    exit.status() == KILLED && kills > 0
}

impl Runner {
    pub(super) async fn ended(&mut self, exit: Exit) {
        let Some(child) = self.child.take() else { return };
        child.tail.finish(OUTPUT).await;
        self.following.cancel();
        self.supervisor.reclaim_terminal(child.pid);
        let asked = matches!(self.state.life, Life::Stopping { .. });
        let tail = child.tail.lines();
        // A node that answered in this run had not left, whatever its log says.
        let answered = matches!(&self.state.life, Life::Up(up) if up.answered);
        let explained = self
            .driver
            .explain_exit(exit.status().into(), &tail)
            .filter(|ending| !(ending.left && (answered || asked)));
        let by_kernel =
            !asked && is_oom_kill(exit, cgroup::oom_kills().saturating_sub(self.oom_kills));
        let title = self.settings.database.title;
        let (reason, message) = match (asked, by_kernel, explained) {
            (_, true, _) => (
                "OutOfMemory",
                format!("{title} was killed by the kernel at the memory limit; raise it"),
            ),
            (false, _, Some(ending)) => (ending.reason, ending.message.to_owned()),
            (true, ..) => ("Stopped", format!("{title} {exit}")),
            (false, ..) => ("ProcessExited", format!("{title} {exit}")),
        };
        if asked {
            info!(pid = child.pid, code = exit.status(), "Database stopped");
        } else {
            self.metrics.crashes.inc();
            warn!(
                pid = child.pid,
                code = exit.status(),
                reason,
                explanation = message,
                "Database ended by itself"
            );
        }
        if self.state.is_ending() && exit.answer(self.state.limits().stop.success) != 0 {
            let text = format!("{message}\n{}", tail.join("\n"));
            if let Err(error) = write_termination_log(&self.settings.termination_log, &text) {
                warn!(%error, "Termination log cannot be written");
            }
        }
        self.facts.observation.gauges.clear();
        let start_time = self.facts.process.take().and_then(|process| process.start_time);
        self.facts.termination = Some(Termination {
            exit_code: Some(exit.status().into()),
            signal: exit.signal.map(|signal| signal_name(signal).into_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            start_time,
            finish_time: Some(Time(Timestamp::now())),
            log_tail: tail,
        });
        self.write_down(Note::Ended);
        if explained.is_some_and(|ending| ending.left) && !self.is_left() {
            self.carry_out(Effect::RecordDecommissioned);
            self.step(Event::Decommissioned);
        }
        self.step(Event::Exited(exit));
    }

    /// A run that an earlier pilot left without an end.
    pub(super) fn lost(&mut self, run: Run) {
        warn!(pid = run.pid, "An earlier run has no end: its pilot was killed with it");
        self.facts.termination = Some(Termination {
            reason: Some("ProcessExited".to_owned()),
            message: Some("the pilot was killed together with the database".to_owned()),
            start_time: Some(run.start_time),
            ..Termination::default()
        });
        let (Some(cluster), messages) = (self.cluster.clone(), self.messages.clone()) else {
            return;
        };
        self.rt.tasks().spawn("last-state", async move {
            // Without an answer, what is known already stands.
            drop(
                messages.send(Message::LastState(cluster.last_state().await.ok().flatten())).await,
            );
        });
    }

    /// The kubelet saw what the pilot could not: on cgroup v2 the kernel may kill both at once.
    pub(super) fn explain_lost_run(&mut self, state: Option<LastState>) {
        let (Some(state), Some(lost)) = (state, self.facts.termination.as_mut()) else { return };
        if lost.exit_code.is_some() {
            return;
        }
        lost.exit_code = Some(state.exit_code);
        lost.finish_time = state.finish_time;
        if state.reason.as_deref() == Some("OOMKilled") {
            lost.reason = Some("OutOfMemory".to_owned());
            lost.message =
                Some("the kernel killed the container at its memory limit; raise it".to_owned());
        }
    }

    /// Takes over from an earlier pilot's report what this one cannot know by itself.
    pub(super) fn continue_report(&mut self, pilot: &Pilot) {
        if self.facts.termination.is_none() {
            self.facts.termination.clone_from(&pilot.status.last_termination);
        }
        // A node whose disk was lost is replaced by its old id and address: they stay until it
        // has new ones.
        if self.facts.identity.is_none() {
            self.facts.identity.clone_from(&pilot.status.identity);
        }
        let observation = &mut self.facts.observation;
        observation.version.clone_from(&pilot.status.version);
        observation.endpoints.clone_from(&pilot.status.endpoints);
        observation.detail = DatabaseStatus::from(&pilot.status);
        // Its help goes by this progress, and would be taken back for as long as it is not there.
        if pilot.spec.phase == Some(PilotIntent::Decommissioned) {
            self.facts.decommission.clone_from(&pilot.status.decommission);
        }
        self.told.clone_from(&pilot.status);
        let conditions = pilot.status.conditions.clone();
        self.reports.send_modify(|status| status.conditions = conditions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_the_kernel_killed_behind_its_launcher_ran_out_of_memory() {
        let exit = |code, signal| Exit { code, signal };
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
