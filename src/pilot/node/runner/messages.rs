//! The messages of tasks to the loop, and the parts of the runner that take them.

use super::{
    Runner,
    ledger::{Ledger, Recalled},
    running::{cancel_answered, decommission_answered},
    starting::{self, Failure},
};
use crate::{
    api::{pilot_part::Parts, v1beta1::Pilot},
    pilot::{
        driver::{self, DecommissionState, FailedCheck, Observation, ProcessSpec},
        kube::{cluster::LastState, founding::Turn},
        node::{
            machine::{Attempt, Event, Life, Timer, Want},
            preflight::Space,
        },
        volume::files::Mark,
    },
};

#[derive(Debug)]
pub(super) enum Message {
    Checked {
        attempt: Attempt,
        failed: Vec<FailedCheck>,
        holds: Option<bool>,
    },
    Turn {
        attempt: Attempt,
        turn: Turn,
    },
    Waiting(String),
    Configured {
        attempt: Attempt,
        peers: Vec<Pilot>,
        result: Result<ProcessSpec, driver::Error>,
    },
    /// Peers that a start waits for have changed.
    PeersMoved,
    Preparing {
        attempt: Attempt,
        detail: Parts,
    },
    Prepared {
        attempt: Attempt,
        result: Result<(), Failure>,
    },
    Validated {
        attempt: Attempt,
        rejected: Option<String>,
    },
    Observed {
        pid: i32,
        result: Box<Result<Observation, driver::Error>>,
        /// The node's identity as written down, before the node is reported as serving.
        mark: Option<Mark>,
    },
    Recalled(Box<Recalled>),
    Decommission(Result<DecommissionState, driver::Error>),
    Cancelled(Result<(), driver::Error>),
    /// The leaving of the node is written down, or was tried for long enough.
    Left,
    /// Why the leaving is not written down yet.
    LeftUnsaid(String),
    Flushed,
    Peers(Vec<Pilot>),
    LastState(Option<LastState>),
    Space(Option<Space>),
    #[cfg(debug_assertions)]
    Fault,
}

impl Runner {
    pub(super) fn hear(&mut self, message: Message) {
        let facts = &mut self.report.facts;
        let event = match message {
            Message::Checked { attempt, failed, holds } => {
                return self.checked(attempt, failed, holds);
            }
            Message::Turn { attempt, turn } if self.state.is_latest(attempt) => {
                Some(self.starting.turned(&self.ctx, facts, attempt, turn))
            }
            Message::Turn { .. } => None,
            Message::Waiting(what) => {
                starting::waiting(facts, what);
                None
            }
            Message::Configured { attempt, peers, result } => {
                self.starting.peers = peers;
                let pilot = self.wanted.pilot.as_ref();
                let answer = (attempt, result);
                Some(self.starting.configured(&self.ctx, pilot, facts, answer))
            }
            Message::PeersMoved => {
                (self.state.life == Life::Rejected).then_some(Event::Timer(Timer::Recheck))
            }
            Message::Preparing { attempt, detail } => {
                if self.state.is_preparing(attempt) {
                    facts.observation.detail = detail;
                }
                None
            }
            Message::Prepared { attempt, result } => {
                Some(starting::prepared(facts, attempt, result))
            }
            Message::Validated { attempt, rejected } => self.state.is_latest(attempt).then(|| {
                let good = rejected.is_none();
                self.report.validated(rejected);
                Event::Validated { attempt, good }
            }),
            Message::Recalled(recalled) => return self.recalled(*recalled),
            Message::Observed { pid, result, mark } => {
                if let Some(mark) = mark {
                    facts.identity = self.ledger.marked_as(&mark);
                }
                let serving = matches!(&self.state.life, Life::Up(up) if up.serving);
                let current = self.state.pid() == Some(pid);
                let gave_up =
                    result.as_ref().as_ref().is_ok_and(|it| it.reason == Some(driver::JOIN_FAILED));
                let event = current.then(|| self.report.observed(serving, *result));
                match event {
                    Some(event) if gave_up => {
                        self.step(event);
                        Some(Event::GaveUp)
                    }
                    event => event,
                }
            }
            Message::Decommission(result) => {
                let wanted = self.state.want() == Some(Want::Decommissioned);
                Some(decommission_answered(facts, wanted, result))
            }
            Message::Cancelled(result) => Some(cancel_answered(facts, result)),
            Message::Left => Some(Event::DecommissionRecorded),
            Message::LeftUnsaid(why) => {
                facts.refused = Some(format!("the node left, which cannot be written down: {why}"));
                None
            }
            Message::Flushed => Some(Event::Flushed),
            Message::Peers(peers) => {
                if self.starting.peers != peers {
                    self.starting.peers = peers;
                    self.refresh();
                }
                None
            }
            Message::LastState(state) => {
                self.report.explain_lost_run(state);
                None
            }
            Message::Space(space) => self.report.looked_at(&self.ctx, space),
            #[cfg(debug_assertions)]
            Message::Fault => panic!("the loop was asked to"),
        };
        if let Some(event) = event {
            self.step(event);
        }
    }

    fn checked(&mut self, attempt: Attempt, failed: Vec<FailedCheck>, holds: Option<bool>) {
        self.report.facts.holds = holds.or(self.report.facts.holds);
        if failed.is_empty() {
            self.ledger.ours = true;
            self.ledger.remember_intent(&self.wanted);
        }
        if failed.iter().any(|check| check.reason == "NodeDecommissioned") {
            // An earlier pilot was killed after the node left and before it wrote that down.
            Ledger::decommissioned(&self.ctx);
            self.step(Event::Decommissioned);
        }
        let event = self.starting.checked(&self.ctx, &mut self.report.facts, attempt, failed);
        self.step(event);
    }

    /// What an earlier pilot left on the volume is known: now intents are acted upon.
    fn recalled(&mut self, recalled: Recalled) {
        let known = self.ledger.take_recalled(recalled);
        if known.decommissioned {
            self.step(Event::Decommissioned);
        }
        if let Some(identity) = known.identity {
            self.report.facts.identity = Some(identity);
        }
        if let Some(run) = known.lost {
            self.report.lost(run);
            self.ask_for_last_state();
        }
        self.take_intent();
        self.go_on();
    }

    /// Asks the API how the last container ended. Without an answer, the report stays as it is.
    fn ask_for_last_state(&self) {
        let Some(cluster) = self.ctx.cluster.clone() else { return };
        let ctx = self.ctx.clone();
        self.ctx.rt.tasks().spawn("last-state", async move {
            ctx.tell(Message::LastState(cluster.last_state().await.ok().flatten())).await;
        });
    }
}
