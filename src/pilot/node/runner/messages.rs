//! The messages of tasks to the loop, and the parts of the runner that take them.

use super::{
    NodeRunner,
    database_process::{handle_cancel_answer, handle_decommission_answer},
    ledger::{RecalledRecords, VolumeLedger},
    startup::{self, PreparationError},
};
use crate::{
    api::{
        pilot_part::PilotParts,
        v1beta1::{ForgottenNode, Pilot},
    },
    pilot::{
        driver::{self, DecommissionState, FailedCheck, NodeObservation, ProcessSpec},
        kube::{founding::StartTurn, pilot_api::LastContainerState},
        node::{
            machine::{AttemptId, MachineEvent, MachineTimer, NodeIntent, NodePhase},
            preflight::VolumeSpace,
        },
        security::SecurityReport,
        volume::pilot_files::VolumeMark,
    },
};

#[derive(Debug)]
pub(super) enum RunnerMessage {
    Checked {
        attempt: AttemptId,
        failed: Vec<FailedCheck>,
        holds: Option<bool>,
    },
    Turn {
        attempt: AttemptId,
        turn: StartTurn,
    },
    Waiting(String),
    Configured {
        attempt: AttemptId,
        peers: Vec<Pilot>,
        /// What the node needs to have signed, where it is to be secured.
        security: Option<Box<SecurityReport>>,
        result: Result<ProcessSpec, driver::Error>,
    },
    /// Peers that a start waits for have changed.
    PeersMoved,
    Preparing {
        attempt: AttemptId,
        detail: PilotParts,
    },
    Prepared {
        attempt: AttemptId,
        result: Result<(), PreparationError>,
    },
    Validated {
        attempt: AttemptId,
        rejected: Option<String>,
    },
    Observed {
        pid: i32,
        result: Box<Result<NodeObservation, driver::Error>>,
        /// The node's identity as written down, before the node is reported as serving.
        mark: Option<VolumeMark>,
    },
    Recalled(Box<RecalledRecords>),
    Decommission(Result<DecommissionState, driver::Error>),
    Cancelled(Result<(), driver::Error>),
    /// The leaving of the node is written down, or was tried for long enough.
    Left,
    /// Why the leaving is not written down yet.
    LeftUnsaid(String),
    /// How far the database is with the nodes that it is to forget.
    Forgotten(Vec<ForgottenNode>),
    Flushed,
    Peers(Vec<Pilot>),
    LastState(Option<LastContainerState>),
    Space(Option<VolumeSpace>),
    /// What the keeper of a running database's security found.
    Security {
        pid: i32,
        report: Box<SecurityReport>,
    },
    /// The intent with this revision of `spec.security` is on the disk.
    SecurityStored(String),
    #[cfg(debug_assertions)]
    Fault,
}

impl NodeRunner {
    pub(super) fn handle_message(&mut self, message: RunnerMessage) {
        let facts = &mut self.report.facts;
        let event = match message {
            RunnerMessage::Checked { attempt, failed, holds } => {
                return self.handle_checks(attempt, failed, holds);
            }
            RunnerMessage::Turn { attempt, turn } if self.state.is_latest(attempt) => {
                Some(self.starting.handle_turn(&self.ctx, facts, attempt, turn))
            }
            RunnerMessage::Turn { .. } => None,
            RunnerMessage::Waiting(reason) => {
                startup::report_waiting(facts, reason);
                None
            }
            RunnerMessage::Configured { attempt, peers, security, result } => {
                self.starting.peers = peers;
                facts.security = security.or(facts.security.take());
                let pilot = self.wanted.pilot.as_ref();
                let answer = (attempt, result);
                Some(self.starting.handle_configuration(&self.ctx, pilot, facts, answer))
            }
            RunnerMessage::PeersMoved => (self.state.life == NodePhase::Rejected)
                .then_some(MachineEvent::Timer(MachineTimer::Recheck)),
            RunnerMessage::Preparing { attempt, detail } => {
                if self.state.is_preparing(attempt) {
                    facts.observation.detail = detail;
                }
                None
            }
            RunnerMessage::Prepared { attempt, result } => {
                Some(startup::handle_preparation(facts, attempt, result))
            }
            RunnerMessage::Validated { attempt, rejected } => {
                self.state.is_latest(attempt).then(|| {
                    let good = rejected.is_none();
                    self.report.record_validation(rejected);
                    MachineEvent::Validated { attempt, good }
                })
            }
            RunnerMessage::Recalled(recalled) => return self.handle_recalled_records(*recalled),
            RunnerMessage::Observed { pid, result, mark } => {
                if let Some(mark) = mark {
                    facts.identity = self.ledger.marked_as(&mark);
                }
                let serving = matches!(&self.state.life, NodePhase::Up(up) if up.serving);
                let is_current = self.state.pid() == Some(pid);
                let reason =
                    result.as_ref().as_ref().ok().and_then(|observation| observation.reason);
                let ending = reason.and_then(MachineEvent::from_reason);
                let event = is_current.then(|| self.report.record_observation(serving, *result));
                match (event, ending) {
                    (Some(event), Some(ending)) => {
                        self.handle_event(event);
                        Some(ending)
                    }
                    (event, _) => event,
                }
            }
            RunnerMessage::Decommission(result) => {
                let is_desired = self.state.desired_intent() == Some(NodeIntent::Decommissioned);
                Some(handle_decommission_answer(&mut self.report, is_desired, result))
            }
            RunnerMessage::Cancelled(result) => {
                Some(handle_cancel_answer(&mut self.report, result))
            }
            RunnerMessage::Left => {
                if let Some(progress) = &mut facts.decommission {
                    progress.message = Some("the node left, and its database ends".to_owned());
                }
                Some(MachineEvent::DecommissionRecorded)
            }
            RunnerMessage::LeftUnsaid(reason) => {
                facts.refused =
                    Some(format!("the node left, which cannot be written down: {reason}"));
                None
            }
            RunnerMessage::Forgotten(nodes) => {
                facts.forgotten = nodes;
                None
            }
            RunnerMessage::Flushed => Some(MachineEvent::Flushed),
            RunnerMessage::Peers(peers) => {
                if self.starting.peers != peers {
                    self.starting.peers = peers;
                    self.refresh_peers();
                }
                None
            }
            RunnerMessage::LastState(state) => {
                self.report.explain_lost_run(state);
                None
            }
            RunnerMessage::Security { pid, report } => {
                let pilot = self.wanted.pilot.as_ref();
                let is_secured = pilot.is_some_and(|pilot| pilot.spec.security.is_some());
                if is_secured && self.state.pid() == Some(pid) {
                    facts.security = Some(report);
                }
                None
            }
            RunnerMessage::SecurityStored(revision) => {
                facts.security_stored = Some(revision);
                None
            }
            RunnerMessage::Space(space) => self.report.looked_at(&self.ctx, space),
            #[cfg(debug_assertions)]
            RunnerMessage::Fault => panic!("the loop was asked to"),
        };
        if let Some(event) = event {
            self.handle_event(event);
        }
    }

    fn handle_checks(&mut self, attempt: AttemptId, failed: Vec<FailedCheck>, holds: Option<bool>) {
        self.report.facts.holds = holds.or(self.report.facts.holds);
        if failed.is_empty() {
            self.ledger.ours = true;
            self.ledger.remember_intent(&self.wanted);
        }
        if failed.iter().any(|check| check.reason == "NodeDecommissioned") {
            // An earlier pilot was killed after the node left and before it wrote that down.
            VolumeLedger::record_decommission(&self.ctx);
            self.handle_event(MachineEvent::Decommissioned);
        }
        let event = self.starting.handle_checks(&self.ctx, &mut self.report.facts, attempt, failed);
        self.handle_event(event);
    }

    /// Takes what an earlier pilot left on the volume. From now on intents are acted upon.
    fn handle_recalled_records(&mut self, recalled: RecalledRecords) {
        let history = self.ledger.take_recalled(recalled);
        if history.decommissioned {
            self.handle_event(MachineEvent::Decommissioned);
        }
        if let Some(identity) = history.identity {
            self.report.facts.identity = Some(identity);
        }
        if let Some(run) = history.lost {
            self.report.record_lost_run(run);
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
            ctx.send_message(RunnerMessage::LastState(cluster.last_state().await.ok().flatten()))
                .await;
        });
    }
}
