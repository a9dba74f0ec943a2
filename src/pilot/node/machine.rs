//! The life of one database node: `step(state, event) -> (state, effects)`.
//!
//! Pure: no clock, no process, no database. `runner` carries the effects out and comes back
//! with events. What cannot happen, whatever comes in whatever order (tests walk at random):
//! - two children at once, be it the database or a program that prepares its start;
//! - a start while the node is wanted Fenced or Stopped, or after it left its cluster;
//! - a restart before the wanted configuration is known to be good;
//! - a KILL of a running child that no request to end preceded;
//! - anything but silence after `Exit`.

mod decommission;
mod events;
mod handover;
mod intent;
mod stop;
mod time_limits;

use std::time::Duration;

pub use self::{
    decommission::PendingDecommission,
    events::{AttemptId, MachineEffect, MachineEvent, MachineTimer, NodeIntent},
    time_limits::{
        BACKOFF, DECOMMISSION_POLL, DECOMMISSION_RETRY, FREED_WAIT, RECHECK, SILENCE, TimeLimits,
    },
};
use crate::pilot::{kube::leader::LeaderEligibility, process::supervisor::ChildExit};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMachine {
    limits: TimeLimits,
    want: Option<NodeIntent>,
    /// The last request for a restart that was acted upon.
    restart: Option<String>,
    attempt: AttemptId,
    /// Crashes, failed spawns and failed preparations in a row. A process that serves when it ends
    /// begins the count anew, and so do a wanted stop and a new intent.
    failures: u32,
    /// The node holds nothing that others lack and left its database cluster, for good.
    decommissioned: bool,
    /// The process that is being stopped was found hung.
    hung: bool,
    /// The process gave up, and is stopped to be started again like one that crashed.
    gave_up: bool,
    /// The pilot itself was asked to end.
    ending: bool,
    /// Where a start that failed is tried again: how it had ended, until it gets further.
    repeats: Option<NodePhase>,
    pub life: NodePhase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePhase {
    /// No intent has been seen.
    Waiting,
    Preflight,
    /// Preflight failed; it is tried again.
    Refused,
    /// The node waits for its turn to start.
    Turn,
    Configuring,
    /// There is no usable configuration yet; the start is tried again.
    Rejected,
    /// Programs that come before the database run now.
    Preparing {
        /// The programs' result is no longer wanted: the machine only waits for their end.
        cancelled: bool,
    },
    /// A program that comes before the database failed; the start is tried again.
    Unprepared,
    Spawning,
    Up(RunningNode),
    Stopping {
        pid: i32,
        stage: StopStage,
    },
    /// The database crashed and is started again soon.
    Backoff,
    Held(HoldReason),
    Exited(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningNode {
    pub pid: i32,
    /// The database answered at least once.
    pub answered: bool,
    /// The node served at least once.
    pub served: bool,
    /// The data volume was full when it was last looked at.
    pub full: bool,
    pub serving: bool,
    pub decommissioning: Option<PendingDecommission>,
    /// The database fell silent, was sent CONT, and was asked what it is doing where it can say
    /// that.
    pub suspected: bool,
    /// A restart was asked for, and waits until the configuration is known to be good.
    pub restart: bool,
    /// As `restart`, for the configuration that is wanted now: another one takes the order back.
    pub ordered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStage {
    Flush,
    /// The process was sent the signal at this index of its stop plan.
    Signal(usize),
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    Stopped,
    Fenced,
    Decommissioned,
}

impl NodeMachine {
    /// Tells whether the node's pilot may lead. `is_shared`: other pilots could lead. Then the
    /// pilot of a node that leaves leads for its own departure only: other duties go on after its
    /// end.
    pub fn leader_eligibility(&self, is_shared: bool) -> LeaderEligibility {
        match &self.life {
            NodePhase::Up(up) if up.decommissioning.is_some() && is_shared && up.serving => {
                LeaderEligibility::Departing
            }
            NodePhase::Up(up) if up.serving => LeaderEligibility::Yes,
            NodePhase::Up(up) if up.answered && !up.suspected => LeaderEligibility::Faltering,
            _ => LeaderEligibility::No,
        }
    }
}

impl NodeMachine {
    /// `decommissioned`: an earlier pilot wrote down that the node left its cluster.
    pub fn new(limits: TimeLimits, decommissioned: bool) -> Self {
        Self {
            limits,
            want: None,
            restart: None,
            attempt: 0,
            failures: 0,
            decommissioned,
            hung: false,
            gave_up: false,
            ending: false,
            repeats: None,
            life: NodePhase::Waiting,
        }
    }

    /// The child's pid, while there is one.
    pub fn pid(&self) -> Option<i32> {
        match &self.life {
            NodePhase::Up(up) => Some(up.pid),
            NodePhase::Stopping { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// Returns what the node is at, as people are told: while a start that failed is tried again,
    /// that it failed, until it gets further.
    pub fn reported_phase(&self) -> &NodePhase {
        match (&self.life, &self.repeats) {
            (
                NodePhase::Preflight | NodePhase::Turn | NodePhase::Configuring,
                Some(failed_phase),
            ) => failed_phase,
            (life, _) => life,
        }
    }

    /// Is `attempt` the number of the latest attempt or validation?
    pub fn is_latest(&self, attempt: AttemptId) -> bool {
        self.attempt == attempt
    }

    pub fn desired_intent(&self) -> Option<NodeIntent> {
        self.want
    }

    /// Has the node left its database cluster for good, with its process gone or ending with the
    /// pilot?
    pub fn is_gone(&self) -> bool {
        let is_running = matches!(self.life, NodePhase::Up(_) | NodePhase::Stopping { .. });
        self.decommissioned && (self.ending || !is_running)
    }

    /// Do the programs run that come before the database in `attempt`, be it that they were
    /// cancelled?
    pub fn is_preparing(&self, attempt: AttemptId) -> bool {
        matches!(self.life, NodePhase::Preparing { .. }) && self.attempt == attempt
    }

    /// Did the node leave its cluster, by what an earlier pilot wrote down or this one saw?
    pub fn is_decommissioned(&self) -> bool {
        self.decommissioned
    }

    /// Is the process stopped because it gave up?
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    pub fn limits(&self) -> TimeLimits {
        self.limits
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Takes one event; returns the next state and its effects. Events that do not fit the present
    /// phase are late answers, and dropped.
    #[must_use]
    pub fn step(mut self, event: MachineEvent) -> (Self, Vec<MachineEffect>) {
        let mut effects = Vec::new();
        if !matches!(self.life, NodePhase::Exited(_)) {
            self.apply_event(event, &mut effects);
        }
        (self, effects)
    }

    fn apply_event(&mut self, event: MachineEvent, effects: &mut Vec<MachineEffect>) {
        let attempt = self.attempt;
        match (event, &mut self.life) {
            (MachineEvent::Intent { want, restart, changed }, _) => {
                self.apply_intent(want, restart, changed, effects);
            }
            (MachineEvent::RestartOrdered(is_ordered), NodePhase::Up(up)) => {
                up.ordered = is_ordered;
            }
            (MachineEvent::SilenceLimit(limit), life) => {
                self.limits.silence = limit;
                if matches!(life, NodePhase::Up(up) if up.answered && !up.suspected) {
                    effects.push(MachineEffect::Arm(MachineTimer::Hung, limit));
                }
            }
            (MachineEvent::Signal(signal), _) => self.handle_signal(signal, effects),
            (MachineEvent::Decommissioned, _) => self.decommissioned = true,
            (MachineEvent::DecommissionRecorded, _) => self.finish_decommission(effects),

            (MachineEvent::PreflightPassed(answered_attempt), NodePhase::Preflight)
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Turn;
                self.repeats.take_if(|phase| *phase == NodePhase::Refused);
                effects.push(MachineEffect::TakeTurn(attempt));
            }
            (
                MachineEvent::PreflightFailed(answered_attempt),
                NodePhase::Preflight | NodePhase::Turn,
            ) if answered_attempt == attempt => {
                self.life = NodePhase::Refused;
                effects.push(MachineEffect::Arm(MachineTimer::Recheck, RECHECK));
            }
            (MachineEvent::Turn { attempt: answered_attempt, may_found }, NodePhase::Turn)
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Configuring;
                effects.push(MachineEffect::Configure { attempt, may_found });
            }
            (MachineEvent::Configured(answered_attempt), NodePhase::Configuring)
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Preparing { cancelled: false };
                effects.push(MachineEffect::Prepare(attempt));
            }
            (
                MachineEvent::Prepared(answered_attempt)
                | MachineEvent::NotPrepared(answered_attempt),
                NodePhase::Preparing { cancelled: true },
            ) if answered_attempt == attempt => {
                if self.ending {
                    self.exit_pilot(0, effects);
                } else {
                    self.begin_attempt(effects);
                }
            }
            (MachineEvent::Prepared(answered_attempt), NodePhase::Preparing { .. })
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Spawning;
                effects.push(MachineEffect::Spawn);
            }
            (MachineEvent::NotPrepared(answered_attempt), NodePhase::Preparing { .. })
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Unprepared;
                let delay = self.next_delay().max(RECHECK);
                effects.push(MachineEffect::Arm(MachineTimer::Recheck, delay));
            }
            (MachineEvent::NotConfigured(answered_attempt), NodePhase::Configuring)
                if answered_attempt == attempt =>
            {
                self.life = NodePhase::Rejected;
                effects.push(MachineEffect::Arm(MachineTimer::Recheck, RECHECK));
            }
            (
                MachineEvent::Timer(MachineTimer::Recheck),
                NodePhase::Refused | NodePhase::Rejected | NodePhase::Unprepared,
            ) => {
                let failed_phase = self.life.clone();
                self.begin_attempt(effects);
                self.repeats = Some(failed_phase);
            }
            (MachineEvent::Timer(MachineTimer::Backoff), NodePhase::Backoff) => {
                self.begin_attempt(effects);
            }

            (MachineEvent::Spawned { pid }, NodePhase::Spawning) => {
                self.life = NodePhase::Up(RunningNode {
                    pid,
                    answered: false,
                    served: false,
                    full: false,
                    serving: false,
                    decommissioning: None,
                    suspected: false,
                    restart: false,
                    ordered: false,
                });
                // The intent may have changed while the process was being started.
                if self.ending
                    || matches!(self.want, Some(NodeIntent::Stopped | NodeIntent::Fenced))
                {
                    self.terminate_process(pid, effects);
                }
            }
            (MachineEvent::SpawnFailed, NodePhase::Spawning) => self.handle_crash(effects),
            (MachineEvent::Exited(exit), NodePhase::Up(up)) => {
                let pid = up.pid;
                if up.serving {
                    self.failures = 0;
                }
                self.handle_exit(pid, exit, effects);
                if matches!(self.life, NodePhase::Up(_)) {
                    self.handle_crash(effects);
                }
            }
            (MachineEvent::Exited(exit), NodePhase::Stopping { pid, .. }) => {
                let pid = *pid;
                let gave_up = std::mem::take(&mut self.gave_up);
                self.handle_exit(pid, exit, effects);
                match self.life {
                    NodePhase::Stopping { .. } if gave_up => self.handle_crash(effects),
                    NodePhase::Stopping { .. } => {
                        self.failures = 0;
                        self.begin_attempt(effects);
                    }
                    _ => {}
                }
            }
            (MachineEvent::Validated { attempt: answered_attempt, good }, NodePhase::Up(up))
                if answered_attempt == attempt =>
            {
                if !good {
                    effects.push(MachineEffect::Arm(MachineTimer::Recheck, RECHECK));
                } else if up.restart || up.ordered {
                    let pid = up.pid;
                    self.stop_process(pid, effects);
                }
            }
            (MachineEvent::Timer(MachineTimer::Recheck), NodePhase::Up(_)) => {
                self.request_validation(effects);
            }
            (MachineEvent::Space { full }, NodePhase::Up(up)) => {
                let is_freed = std::mem::replace(&mut up.full, full) && !full;
                if is_freed && up.served && !up.serving {
                    effects.push(MachineEffect::Arm(MachineTimer::Freed, FREED_WAIT));
                }
            }
            (MachineEvent::Timer(MachineTimer::Freed), NodePhase::Up(up))
                if !up.serving && !up.full =>
            {
                // The database stopped serving when it could not write, and does not come back by
                // itself.
                up.restart = true;
                self.request_validation(effects);
            }

            (MachineEvent::Observed { alive, serving }, NodePhase::Up(up)) => {
                up.serving = serving;
                up.served |= serving;
                if alive {
                    up.answered = true;
                    up.suspected = false;
                    effects.push(MachineEffect::Arm(MachineTimer::Hung, self.limits.silence));
                    self.review_decommission(effects);
                }
            }
            (MachineEvent::GaveUp, NodePhase::Up(up)) => {
                let pid = up.pid;
                self.give_up(pid, effects);
            }
            // A start on a full volume would be refused.
            (MachineEvent::StoppedServing, NodePhase::Up(up)) if up.served && !up.full => {
                let pid = up.pid;
                self.give_up(pid, effects);
            }
            (MachineEvent::Timer(MachineTimer::Hung), NodePhase::Up(up)) if up.answered => {
                let pid = up.pid;
                up.serving = false;
                if up.suspected {
                    self.hung = true;
                    self.terminate_process(pid, effects);
                } else {
                    up.suspected = true;
                    // A stopped process acts on nothing but CONT and KILL: first CONT.
                    effects.push(MachineEffect::Continue { pid });
                    effects.extend(self.limits.dump.map(|dump| MachineEffect::Dump { pid, dump }));
                    effects.push(MachineEffect::Arm(MachineTimer::Hung, self.limits.dump_wait()));
                }
            }

            (
                event @ (MachineEvent::Timer(MachineTimer::Decommission)
                | MachineEvent::DecommissionMoving
                | MachineEvent::DecommissionRefused
                | MachineEvent::DecommissionDone
                | MachineEvent::DecommissionCancelled
                | MachineEvent::DecommissionIrreversible
                | MachineEvent::CancelFailed),
                NodePhase::Up(_),
            ) => self.handle_decommission_answer(&event, effects),

            (
                MachineEvent::Flushed | MachineEvent::Timer(MachineTimer::Flush),
                NodePhase::Stopping { stage: StopStage::Flush, .. },
            )
            | (
                MachineEvent::Timer(MachineTimer::Signal),
                NodePhase::Stopping { stage: StopStage::Signal(_), .. },
            ) => {
                self.advance_stop(effects);
            }
            (MachineEvent::Timer(MachineTimer::Kill), NodePhase::Stopping { .. }) => {
                self.kill_process(effects);
            }
            _ => {}
        }
    }

    /// Begins anew with what is wanted. Called while there is no child.
    fn begin_attempt(&mut self, effects: &mut Vec<MachineEffect>) {
        self.attempt += 1;
        self.repeats = None;
        effects.extend([
            MachineEffect::Disarm(MachineTimer::Recheck),
            MachineEffect::Disarm(MachineTimer::Backoff),
        ]);
        self.life = match self.want {
            None => NodePhase::Waiting,
            _ if self.decommissioned => NodePhase::Held(HoldReason::Decommissioned),
            Some(NodeIntent::Stopped) => NodePhase::Held(HoldReason::Stopped),
            Some(NodeIntent::Fenced) => NodePhase::Held(HoldReason::Fenced),
            Some(NodeIntent::Running | NodeIntent::Decommissioned) => {
                effects.push(MachineEffect::Preflight(self.attempt));
                NodePhase::Preflight
            }
        };
    }

    /// Cancels the programs that come before the database. The machine decides what is next when
    /// they have ended.
    fn cancel_preparation(&mut self, effects: &mut Vec<MachineEffect>) {
        if self.life == (NodePhase::Preparing { cancelled: false }) {
            self.life = NodePhase::Preparing { cancelled: true };
            effects.push(MachineEffect::CancelPreparation);
        }
    }

    fn is_held_by(&self, want: NodeIntent) -> bool {
        self.decommissioned || matches!(want, NodeIntent::Stopped | NodeIntent::Fenced)
    }

    /// Ends a process that another one shall follow, as after a crash.
    fn give_up(&mut self, pid: i32, effects: &mut Vec<MachineEffect>) {
        self.gave_up = true;
        self.terminate_process(pid, effects);
    }

    fn handle_crash(&mut self, effects: &mut Vec<MachineEffect>) {
        if self.ending {
            self.exit_pilot(0, effects);
            return;
        }
        let delay = self.next_delay();
        self.life = NodePhase::Backoff;
        effects.push(MachineEffect::Arm(MachineTimer::Backoff, delay));
        if self.want.is_some_and(|want| self.is_held_by(want)) {
            self.begin_attempt(effects);
        }
    }

    /// Counts one more failure and returns the restart back-off, which is longer after each failure
    /// in a row.
    fn next_delay(&mut self) -> Duration {
        let (first, longest) = BACKOFF;
        let delay = first.saturating_mul(1 << self.failures.min(6)).min(longest);
        self.failures += 1;
        delay
    }
}

#[cfg(test)]
mod tests;
