//! Programs that come before the database: run one by one, to their end.
//!
//! Owns the programs' time limit and what is said of one that failed. The machine asks for the next
//! round only after the last round was answered, so two programs never run at once; a cancelled
//! program is ended before its round is answered.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{NodeStartup, RunnerContext, RunnerMessage};
use crate::{
    api::pilot_part::PilotParts,
    error::chain,
    pilot::{
        driver::{self, DatabaseNode, PreparationProgram},
        node::{
            machine::{AttemptId, MachineEvent},
            report::NodeFacts,
        },
        process::supervisor::{AbortReason, ChildCommand, HelperOutcome, ProcessUser, Supervisor},
        volume::data_volume::VolumeTimeout,
    },
};

/// How long one program may run: a download on a slow line takes minutes, more is a hang.
const LIMIT: Duration = Duration::from_secs(600);
/// Most bytes of a program's last lines: a condition can hold them beside what was tried.
const TOLD: usize = 800;

/// Why the preparation is not done.
#[derive(Debug)]
pub(in super::super) enum PreparationError {
    Cancelled,
    Failed(String),
}

impl NodeStartup {
    pub(in super::super) fn run_programs(
        &mut self,
        ctx: &RunnerContext,
        node: Box<DatabaseNode>,
        mut detail: PilotParts,
        attempt: AttemptId,
    ) {
        self.programs = CancellationToken::new();
        let (ctx, cancelled) = (ctx.clone(), self.programs.clone());
        let tasks = ctx.rt.tasks().clone();
        // The task is never dropped half-way: it ends when its programs have ended.
        tasks.spawn("prepare", async move {
            let RunnerContext { driver, volume, supervisor, settings, .. } = &ctx;
            let tell = async |detail: &mut PilotParts| {
                driver.report_preparation(detail);
                ctx.tell(RunnerMessage::Preparing { attempt, detail: detail.clone() }).await;
            };
            let work = async {
                let (asked, about) = (driver.clone(), node.clone());
                let programs = volume.during(async move { asked.prepare(&about).await }).await;
                tell(&mut detail).await;
                for (index, one) in known(programs)?.iter().enumerate() {
                    info!(what = one.what, "Preparing the database");
                    ctx.tell(RunnerMessage::Waiting(one.what.clone())).await;
                    let result = run(supervisor, one, settings.user, &cancelled).await;
                    let outcome = match &result {
                        Err(PreparationError::Failed(why)) => Some(Err(why.clone())),
                        Ok(()) => Some(Ok(())),
                        Err(PreparationError::Cancelled) => None,
                    };
                    if let Some(outcome) = outcome {
                        let (told, about) = (driver.clone(), node.clone());
                        let noted = volume.visit(move |_| {
                            told.prepared(
                                &about,
                                index,
                                outcome.as_ref().copied().map_err(String::as_str),
                            )
                        });
                        known(noted.await)?;
                        tell(&mut detail).await;
                    }
                    result?;
                }
                Ok(())
            };
            let result = work.await;
            ctx.tell(RunnerMessage::Prepared { attempt, result }).await;
        });
    }

    pub(in super::super) fn cancel_programs(&self) {
        self.programs.cancel();
    }
}

/// Takes how the programs of `attempt` ended, and returns the event for the machine.
pub(in super::super) fn prepared(
    facts: &mut NodeFacts,
    attempt: AttemptId,
    result: Result<(), PreparationError>,
) -> MachineEvent {
    facts.waiting = None;
    match result {
        Ok(()) => {
            facts.preparation = Some(Ok(()));
            MachineEvent::Prepared(attempt)
        }
        Err(PreparationError::Cancelled) => MachineEvent::NotPrepared(attempt),
        Err(PreparationError::Failed(why)) => {
            let told = Some(Err(why));
            if facts.preparation != told
                && let Some(Err(why)) = &told
            {
                warn!(why, "Database could not be prepared");
            }
            facts.preparation = told;
            MachineEvent::NotPrepared(attempt)
        }
    }
}

fn known<T>(
    answer: Result<Result<T, driver::Error>, VolumeTimeout>,
) -> Result<T, PreparationError> {
    match answer {
        Ok(Ok(known)) => Ok(known),
        Ok(Err(error)) => Err(PreparationError::Failed(chain(&error).to_string())),
        Err(hangs) => Err(PreparationError::Failed(hangs.to_string())),
    }
}

async fn run(
    supervisor: &Supervisor,
    preparation: &PreparationProgram,
    user: Option<ProcessUser>,
    cancelled: &CancellationToken,
) -> Result<(), PreparationError> {
    if cancelled.is_cancelled() {
        return Err(PreparationError::Cancelled);
    }
    let PreparationProgram { what, program, input } = preparation;
    let shown = program.program.display();
    let not_started = |error: io::Error| {
        PreparationError::Failed(format!("{what}: {shown} cannot be started: {error}"))
    };
    let input = input.map(|text| readable(text).map_err(not_started)).transpose()?;
    let command = ChildCommand { user, input, ..program.into() };
    let HelperOutcome { exit, last_lines } =
        supervisor.run(&command, LIMIT, cancelled.cancelled()).await.map_err(not_started)?;
    let end = match exit {
        Err(AbortReason::Cancelled) => return Err(PreparationError::Cancelled),
        Ok(exit) if exit.status() == 0 => return Ok(()),
        Ok(exit) => exit.to_string(),
        Err(AbortReason::TooLate) => format!("was ended after {LIMIT:?}"),
    };
    Err(PreparationError::Failed(format!("{what}: {shown} {end}: {}", last(&last_lines))))
}

/// Makes a file of a text that a pipe holds: a program reads the text, and then the end.
fn readable(text: &str) -> io::Result<Arc<File>> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(text.as_bytes())?;
    Ok(Arc::new(File::from(OwnedFd::from(reader))))
}

/// Joins as many of the last lines as a condition can hold.
fn last(lines: &[String]) -> String {
    let mut room = TOLD;
    let kept = lines.iter().rev().take_while(|line| {
        let fits = line.len() < room;
        room = room.saturating_sub(line.len() + 2);
        fits
    });
    let mut kept: Vec<&str> = kept.map(String::as_str).collect();
    kept.reverse();
    kept.join("; ")
}
