//! Programs that come before the database: run one by one, to their end.
//!
//! Owns the programs' time limit and what is said of one that failed. The machine asks for the next
//! round only after the last round was answered, so two programs never run at once; a cancelled
//! program is ended before its round is answered.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Context, Message, Starting};
use crate::{
    api::pilot_part::Parts,
    error::chain,
    pilot::{
        driver::{self, Node, Preparation},
        node::{
            machine::{Attempt, Event},
            report::Facts,
        },
        process::supervisor::{Command, GivenUp, Helped, Supervisor, User},
        volume::lock::Hangs,
    },
};

/// A download on a slow line takes minutes; more is a hang.
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of a program's last lines that a condition can hold beside what was tried.
const TOLD: usize = 800;

/// Why the preparation is not done.
#[derive(Debug)]
pub(in super::super) enum Failure {
    Cancelled,
    Failed(String),
}

impl Starting {
    pub(in super::super) fn run_programs(
        &mut self,
        ctx: &Context,
        node: Box<Node>,
        mut detail: Parts,
        attempt: Attempt,
    ) {
        self.programs = CancellationToken::new();
        let (ctx, cancelled) = (ctx.clone(), self.programs.clone());
        let tasks = ctx.rt.tasks().clone();
        // The task is never dropped half-way: it ends when its programs have ended.
        tasks.spawn("prepare", async move {
            let Context { driver, volume, supervisor, settings, .. } = &ctx;
            let tell = async |detail: &mut Parts| {
                driver.report_preparation(detail);
                ctx.tell(Message::Preparing { attempt, detail: detail.clone() }).await;
            };
            let work = async {
                let (asked, about) = (driver.clone(), node.clone());
                let programs = volume.during(async move { asked.prepare(&about).await }).await;
                tell(&mut detail).await;
                for (index, one) in known(programs)?.iter().enumerate() {
                    info!(what = one.what, "Preparing the database");
                    ctx.tell(Message::Waiting(one.what.clone())).await;
                    let result = run(supervisor, one, settings.user, &cancelled).await;
                    let outcome = match &result {
                        Err(Failure::Failed(why)) => Some(Err(why.clone())),
                        Ok(()) => Some(Ok(())),
                        Err(Failure::Cancelled) => None,
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
            ctx.tell(Message::Prepared { attempt, result }).await;
        });
    }

    pub(in super::super) fn cancel_programs(&self) {
        self.programs.cancel();
    }
}

/// How the programs of this attempt ended.
pub(in super::super) fn prepared(
    facts: &mut Facts,
    attempt: Attempt,
    result: Result<(), Failure>,
) -> Event {
    facts.waiting = None;
    match result {
        Ok(()) => {
            facts.preparation = Some(Ok(()));
            Event::Prepared(attempt)
        }
        Err(Failure::Cancelled) => Event::NotPrepared(attempt),
        Err(Failure::Failed(why)) => {
            let told = Some(Err(why));
            if facts.preparation != told
                && let Some(Err(why)) = &told
            {
                warn!(why, "Database could not be prepared");
            }
            facts.preparation = told;
            Event::NotPrepared(attempt)
        }
    }
}

fn known<T>(answer: Result<Result<T, driver::Error>, Hangs>) -> Result<T, Failure> {
    match answer {
        Ok(Ok(known)) => Ok(known),
        Ok(Err(error)) => Err(Failure::Failed(chain(&error).to_string())),
        Err(hangs) => Err(Failure::Failed(hangs.to_string())),
    }
}

async fn run(
    supervisor: &Supervisor,
    preparation: &Preparation,
    user: Option<User>,
    cancelled: &CancellationToken,
) -> Result<(), Failure> {
    if cancelled.is_cancelled() {
        return Err(Failure::Cancelled);
    }
    let Preparation { what, program } = preparation;
    let command = Command { user, ..program.into() };
    let shown = program.program.display();
    let Helped { exit, last_lines } = supervisor
        .run(&command, LIMIT, cancelled.cancelled())
        .await
        .map_err(|error| Failure::Failed(format!("{what}: {shown} cannot be started: {error}")))?;
    let end = match exit {
        Err(GivenUp::Cancelled) => return Err(Failure::Cancelled),
        Ok(exit) if exit.status() == 0 => return Ok(()),
        Ok(exit) => exit.to_string(),
        Err(GivenUp::TooLate) => format!("was ended after {LIMIT:?}"),
    };
    Err(Failure::Failed(format!("{what}: {shown} {end}: {}", last(&last_lines))))
}

/// As many of the last lines as a condition can hold.
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
