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
            let report_progress = async |detail: &mut PilotParts| {
                driver.report_preparation(detail);
                ctx.send_message(RunnerMessage::Preparing { attempt, detail: detail.clone() })
                    .await;
            };
            let work = async {
                let (task_driver, task_node) = (driver.clone(), node.clone());
                let programs = volume
                    .visit_async(async move { task_driver.preparation_programs(&task_node).await })
                    .await;
                report_progress(&mut detail).await;
                for (index, program) in flatten_answer(programs)?.iter().enumerate() {
                    info!(what = program.what, "Preparing the database");
                    ctx.send_message(RunnerMessage::Waiting(program.what.clone())).await;
                    let result = run_program(supervisor, program, settings.user, &cancelled).await;
                    let outcome = match &result {
                        Err(PreparationError::Failed(reason)) => Some(Err(reason.clone())),
                        Ok(()) => Some(Ok(())),
                        Err(PreparationError::Cancelled) => None,
                    };
                    if let Some(outcome) = outcome {
                        let (task_driver, task_node) = (driver.clone(), node.clone());
                        let record_outcome = volume.visit(move |_| {
                            task_driver.record_preparation(
                                &task_node,
                                index,
                                outcome.as_ref().copied().map_err(String::as_str),
                            )
                        });
                        flatten_answer(record_outcome.await)?;
                        report_progress(&mut detail).await;
                    }
                    result?;
                }
                Ok(())
            };
            let result = work.await;
            ctx.send_message(RunnerMessage::Prepared { attempt, result }).await;
        });
    }

    pub(in super::super) fn cancel_programs(&self) {
        self.programs.cancel();
    }
}

/// Takes how the programs of `attempt` ended, and returns the event for the machine.
pub(in super::super) fn handle_preparation(
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
        Err(PreparationError::Failed(reason)) => {
            let outcome = Some(Err(reason));
            if facts.preparation != outcome
                && let Some(Err(why)) = &outcome
            {
                warn!(why, "Database could not be prepared");
            }
            facts.preparation = outcome;
            MachineEvent::NotPrepared(attempt)
        }
    }
}

fn flatten_answer<T>(
    answer: Result<Result<T, driver::Error>, VolumeTimeout>,
) -> Result<T, PreparationError> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(PreparationError::Failed(chain(&error).to_string())),
        Err(volume_timeout) => Err(PreparationError::Failed(volume_timeout.to_string())),
    }
}

async fn run_program(
    supervisor: &Supervisor,
    preparation: &PreparationProgram,
    user: Option<ProcessUser>,
    cancelled: &CancellationToken,
) -> Result<(), PreparationError> {
    if cancelled.is_cancelled() {
        return Err(PreparationError::Cancelled);
    }
    let PreparationProgram { what, program, input } = preparation;
    let program_path = program.program.display();
    let start_error = |error: io::Error| {
        PreparationError::Failed(format!("{what}: {program_path} cannot be started: {error}"))
    };
    let input = input.map(|text| pipe_with_text(text).map_err(start_error)).transpose()?;
    let command = ChildCommand { user, input, ..program.into() };
    let HelperOutcome { exit, last_lines } =
        supervisor.run_helper(&command, LIMIT, cancelled.cancelled()).await.map_err(start_error)?;
    let end = match exit {
        Err(AbortReason::Cancelled) => return Err(PreparationError::Cancelled),
        Ok(exit) if exit.status() == 0 => return Ok(()),
        Ok(exit) => exit.to_string(),
        Err(AbortReason::TooLate) => format!("was ended after {LIMIT:?}"),
    };
    Err(PreparationError::Failed(format!(
        "{what}: {program_path} {end}: {}",
        join_last_lines(&last_lines)
    )))
}

/// Makes a file of a text that a pipe holds: a program reads the text, and then the end.
fn pipe_with_text(text: &str) -> io::Result<Arc<File>> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(text.as_bytes())?;
    Ok(Arc::new(File::from(OwnedFd::from(reader))))
}

/// Joins as many of the last lines as a condition can hold.
fn join_last_lines(lines: &[String]) -> String {
    let mut room = TOLD;
    let kept_lines = lines.iter().rev().take_while(|line| {
        let fits = line.len() < room;
        room = room.saturating_sub(line.len() + 2);
        fits
    });
    let mut kept_lines: Vec<&str> = kept_lines.map(String::as_str).collect();
    kept_lines.reverse();
    kept_lines.join("; ")
}
