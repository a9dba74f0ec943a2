//! What is known of the node, and what is told of it when that changed: the report, events,
//! probes and metrics.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::{context::RunnerContext, intent_tracker::IntentTracker, startup};
use crate::{
    api::{
        predicate::{DISK_HEADROOM, HOLDINGS_KNOWN, Predicate},
        v1beta1::{
            Blocker, Instance, Pilot, PilotIntent, PilotSecurity, PilotStatus, Process, Termination,
        },
    },
    error::chain,
    pilot::{
        database::DrivenDatabase,
        driver::{
            self, DatabaseCondition, DepartureRefusal, NodeObservation, ProcessSpec,
            ReplicationRole,
        },
        kube::{
            events, name_holder::NameHolder, peers::is_decommissioned,
            pilot_api::LastContainerState,
        },
        node::{
            blockers::{StopBlockers, is_refusal},
            machine::{MachineEvent, NodeMachine, NodePhase, StopStage},
            preflight::VolumeSpace,
            probes::ProbeAnswers,
            report::{self, NodeFacts},
        },
        process::takeover::SuccessorState,
        volume::{contents, pilot_files::DatabaseRun},
    },
    runtime::events::{EventPublisher, EventQueue},
};

/// Name of the component in events, upstream's.
const COMPONENT: &str = "generic-pilot";

pub(super) struct ReportPublisher {
    pub(super) facts: NodeFacts,
    /// The latest intent is being validated while the process runs.
    pub(super) validating: bool,
    blockers: StopBlockers,
    headroom: StopBlockers,
    departure: StopBlockers,
    reports: watch::Sender<PilotStatus>,
    answers: watch::Sender<ProbeAnswers>,
    /// `None` without an API.
    events: Option<EventQueue>,
    /// The report whose changes were last told as events.
    told: PilotStatus,
}

impl ReportPublisher {
    pub(super) fn new(
        ctx: &RunnerContext,
        reports: watch::Sender<PilotStatus>,
        answers: watch::Sender<ProbeAnswers>,
        (instance, program): (Instance, String),
    ) -> Self {
        let events = ctx.cluster.as_ref().map(|cluster| {
            let (client, name) = (cluster.hasty_client(), cluster.name().to_owned());
            let events = EventPublisher::new(client, COMPONENT, name);
            let dropped = ctx.metrics.events_dropped.clone();
            let (queue, work) = EventQueue::new(events, dropped, ctx.rt.shutdown());
            ctx.rt.tasks().spawn("events", work);
            queue
        });
        let facts =
            NodeFacts { instance: Some(instance), program: Some(program), ..NodeFacts::default() };
        Self {
            facts,
            validating: false,
            blockers: StopBlockers::default(),
            headroom: StopBlockers::default(),
            departure: StopBlockers::default(),
            reports,
            answers,
            events,
            told: PilotStatus::default(),
        }
    }

    pub(super) fn event_queue(&self) -> Option<EventQueue> {
        self.events.clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<PilotStatus> {
        self.reports.subscribe()
    }

    /// The status as it was last reported.
    pub(super) fn status(&self) -> PilotStatus {
        self.reports.borrow().clone()
    }

    /// Publishes what is to be reported, when it changed.
    pub(super) fn publish_status(
        &mut self,
        ctx: &RunnerContext,
        state: &NodeMachine,
        tracker: &IntentTracker,
        successor: Option<&SuccessorState>,
    ) {
        let now = Time(Timestamp::now());
        self.validating &= matches!(state.life, NodePhase::Up(_));
        self.facts.successor = successor.cloned();
        // A generation counts as observed once its configuration has been validated.
        if let Some(pilot) = tracker.pilot.as_ref().filter(|_| !self.validating) {
            self.facts.generation = pilot.metadata.generation;
            self.facts.wanted_hash.clone_from(&pilot.spec.config_hash);
        }
        // Before the Pilot was seen, nothing may overwrite what an earlier pilot reported.
        if let Some(pilot) = &tracker.pilot {
            let (database, facts) = (ctx.settings.database, &self.facts);
            let has_changed = self.reports.send_if_modified(|status| {
                let next = report::build_status(database, state, facts, &status.conditions, &now);
                let has_changed = *status != next;
                *status = next;
                has_changed
            });
            if has_changed && tracker.is_ours() {
                self.publish_events(pilot, database);
            }
        }
        self.update_probes(ctx, state, &tracker.holder);
    }

    /// Sets what probes and requests for metrics are answered from now on.
    fn update_probes(&self, ctx: &RunnerContext, state: &NodeMachine, holder: &NameHolder) {
        let facts = &self.facts;
        let is_ready = report::is_ready(state);
        ctx.metrics.ready.set(is_ready.into());
        let is_up = matches!(state.life, NodePhase::Up(_) | NodePhase::Stopping { .. });
        ctx.metrics.up.set(is_up.into());
        ctx.metrics.set_security(facts.security.as_deref().filter(|_| is_up));
        ctx.metrics
            .set_role(facts.observation.role.filter(|_| matches!(state.life, NodePhase::Up(_))));
        let gauges: BTreeMap<String, f64> = facts
            .observation
            .gauges
            .iter()
            .map(|(name, value)| (format!("navigator_{name}"), *value))
            .collect();
        let message = match holder {
            NameHolder::Theirs(reason) => reason.clone(),
            NameHolder::Open | NameHolder::Ours { .. } => {
                let is_turned_away =
                    ctx.cluster.as_ref().is_some_and(|api| api.breaker().is_turned_away());
                let suffix =
                    if is_turned_away { "; the API turns this pilot away (401)" } else { "" };
                format!("{}{suffix}", report::pilot_phase(state, facts))
            }
        };
        self.answers.send_if_modified(|answers| {
            let has_changed = answers.ready != is_ready || answers.message != message;
            answers.ready = is_ready;
            // A process that survives KILL is stuck in the kernel: only a new container helps.
            answers.live =
                !matches!(state.life, NodePhase::Stopping { stage: StopStage::Kill, .. });
            answers.message = message;
            answers.gauges = gauges;
            has_changed
        });
    }

    /// Tells as events what changed since the last report.
    fn publish_events(&mut self, pilot: &Pilot, database: &DrivenDatabase) {
        let Some(events) = &self.events else { return };
        let new_status = self.reports.borrow().clone();
        for notice in events::build_notices(&self.told, &new_status, database.preparation.as_ref())
        {
            events.enqueue(&pilot.object_ref(&()), notice);
        }
        self.told = new_status;
    }

    /// Takes over from an earlier pilot's report what this pilot cannot know by itself.
    pub(super) fn continue_from(&mut self, ctx: &RunnerContext, pilot: &Pilot) {
        let facts = &mut self.facts;
        if facts.termination.is_none() {
            facts.termination.clone_from(&pilot.status.last_termination);
        }
        // A node whose disk was lost is replaced by its old id and address: they stay until it
        // has new ones. One that left is nobody's predecessor; if this is its volume, that says so.
        if facts.identity.is_none() && !is_decommissioned(pilot) {
            facts.identity.clone_from(&pilot.status.identity);
        }
        let observation = &mut facts.observation;
        observation.version.clone_from(&pilot.status.version);
        observation.endpoints.clone_from(&pilot.status.endpoints);
        observation.detail = pilot.status.parts.clone();
        ctx.driver.forget_process(&mut observation.detail);
        let own_conditions = ctx.settings.database.conditions;
        let reported_conditions = pilot.status.conditions.iter();
        observation.conditions = reported_conditions
            .filter_map(|condition| restore_condition(own_conditions, condition))
            .collect();
        // The leading pilot's help for a node that leaves goes by this progress: without it the
        // help would be taken back.
        if pilot.spec.phase == Some(PilotIntent::Decommissioned) {
            facts.decommission.clone_from(&pilot.status.decommission);
        }
        self.told.clone_from(&pilot.status);
        let conditions = pilot.status.conditions.clone();
        self.reports.send_modify(|status| status.conditions = conditions);
    }

    /// Takes what is wanted of the node's security; `remembered`: as it was stored on the volume.
    pub(super) fn set_security(
        &mut self,
        desired_security: Option<&PilotSecurity>,
        remembered: bool,
    ) {
        let facts = &mut self.facts;
        facts.rungs = desired_security.map(PilotSecurity::security_modes).unwrap_or_default();
        match desired_security {
            None => (facts.security, facts.security_stored) = (None, None),
            Some(security) if remembered => facts.security_stored = Some(security.revision()),
            Some(_) => {}
        }
    }

    /// Records in the report that a run of the database has begun.
    pub(super) fn record_start(&mut self, run: &DatabaseRun, restarts: i32, process: &ProcessSpec) {
        let facts = &mut self.facts;
        facts.holds = Some(true);
        let start_time = Some(run.start_time.clone());
        facts.process = Some(Process { pid: run.pid, start_time, restarts });
        facts.running_hash = Some(process.config_hash.clone());
        facts.running_rungs.clone_from(&process.rungs);
        // Addresses and figures of the last run stand until this one has its own.
        let NodeObservation { version, conditions, endpoints, detail, .. } =
            std::mem::take(&mut facts.observation);
        facts.observation = NodeObservation {
            version,
            conditions,
            endpoints,
            detail,
            ..NodeObservation::default()
        };
        (self.blockers, facts.blockers) = (StopBlockers::default(), Vec::new());
        self.set_refusal(None);
    }

    /// Takes the database's answer to the question how it is, or the error in its place. Returns
    /// the event for the machine; `serving`: the node served so far.
    pub(super) fn record_observation(
        &mut self,
        serving: bool,
        result: Result<NodeObservation, driver::Error>,
    ) -> MachineEvent {
        match result {
            Ok(mut observation) => {
                let unanswered: Vec<_> =
                    observation.not_heard.iter().map(ToString::to_string).collect();
                let unanswered = (!unanswered.is_empty()).then(|| unanswered.join("; "));
                self.set_blockers(std::mem::take(&mut observation.blockers), unanswered);
                let (alive, serving) = (observation.alive, observation.serving);
                self.tell_unsaved(observation.unsaved.as_ref());
                self.tell_role(observation.role);
                // A value that is not known yet changes nothing: a node that joins in a dead one's
                // place needs the old address, which stands only in its Pilot.
                let old_observation = std::mem::replace(&mut self.facts.observation, observation);
                let new_observation = &mut self.facts.observation;
                if new_observation.endpoints.is_empty() {
                    new_observation.endpoints = old_observation.endpoints;
                }
                new_observation.version =
                    new_observation.version.take().or(old_observation.version);
                if new_observation.conditions.is_empty() {
                    new_observation.conditions = old_observation.conditions;
                }
                MachineEvent::Observed { alive, serving }
            }
            Err(error) => {
                let text = chain(&error).to_string();
                debug!(error = text, "Database did not say how it is");
                if matches!(error, driver::Error::Read { .. } | driver::Error::Write { .. }) {
                    self.tell_unsaved(Some(&text));
                    self.facts.observation.unsaved = Some(text.clone());
                }
                if matches!(error, driver::Error::Evasive | driver::Error::NotHeard(_)) {
                    self.set_blockers(Vec::new(), Some(text));
                }
                event_for_error(&error, serving)
            }
        }
    }

    /// Sets the blockers that the database names; `unanswered` names the questions that the
    /// database left open.
    fn set_blockers(
        &mut self,
        active_rules: Vec<(&'static Predicate, String)>,
        unanswered: Option<String>,
    ) {
        let is_held = |blockers: &[Blocker]| {
            blockers.iter().any(|blocker| blocker.predicate == HOLDINGS_KNOWN.name)
        };
        if let Some(what) = unanswered.as_ref().filter(|_| !is_held(&self.facts.blockers)) {
            warn!(what, "Database is not asked to stop while it does not say what it holds");
        }
        self.facts.blockers = self.blockers.update(active_rules, unanswered);
    }

    /// Goes on from the blockers that an earlier program of this process reported.
    pub(super) fn resume_blockers(&mut self, mut reported_blockers: Vec<Blocker>) {
        // The pilot looks at the volume again at once, which decides this rule anew.
        reported_blockers.retain(|blocker| blocker.predicate != DISK_HEADROOM.name);
        let (refusals, other_blockers): (Vec<_>, Vec<_>) =
            reported_blockers.into_iter().partition(is_refusal);
        (self.blockers, self.departure) =
            (StopBlockers::from_reported(&other_blockers), StopBlockers::from_reported(&refusals));
        (self.facts.blockers, self.facts.departure) = (other_blockers, refusals);
    }

    /// Sets why the database does not let the node leave; nothing where it does, or where the node
    /// is to stay.
    pub(super) fn set_refusal(&mut self, refusal: Option<DepartureRefusal>) {
        let rules = refusal.map(|refusal| (refusal.predicate, refusal.why));
        self.facts.departure = self.departure.update(rules.into_iter().collect(), None);
    }

    /// Logs why the node's state cannot be saved, once for each cause.
    fn tell_unsaved(&self, why: Option<&String>) {
        if let Some(why) = why.filter(|why| self.facts.observation.unsaved.as_ref() != Some(*why)) {
            warn!(why, "State of the node cannot be saved");
        }
    }

    fn tell_role(&self, role: Option<ReplicationRole>) {
        if let Some(role) = role.filter(|_| self.facts.observation.role != role) {
            info!(role = role.name(), "Node has a role among those with the same data");
        }
    }

    /// Takes the result of validating the latest intent; `rejected`: why it cannot be followed.
    pub(super) fn record_validation(&mut self, rejected: Option<String>) {
        self.validating = false;
        match rejected {
            Some(reason) => startup::report_rejection(&mut self.facts, reason),
            None => self.facts.rejected = None,
        }
    }

    /// Takes the size and use of the data volume; `None`: it does not answer, and what was seen
    /// last stands.
    pub(super) fn looked_at(
        &mut self,
        ctx: &RunnerContext,
        space: Option<VolumeSpace>,
    ) -> Option<MachineEvent> {
        let VolumeSpace { storage, free: _, full } = space?;
        let full = full.map(|full| match contents::describe_shares(&storage.contents) {
            contents_text if contents_text.is_empty() => full,
            contents_text => format!("{full}. It holds {contents_text}"),
        });
        ctx.metrics.storage_capacity.set(storage.capacity_bytes);
        ctx.metrics.storage_used.set(storage.used_bytes);
        self.facts.storage = Some(storage);
        match (&self.facts.full, &full) {
            (None, Some(what)) => warn!(what, "Data volume is full"),
            (Some(_), None) => info!("Data volume has room again"),
            _ => {}
        }
        let headroom_rule = full.as_ref().map(|_| {
            let reason = "the data volume is full, so the database would not start again";
            (&DISK_HEADROOM, reason.to_owned())
        });
        self.facts.headroom = self.headroom.update(headroom_rule.into_iter().collect(), None);
        let is_full = full.is_some();
        self.facts.full = full;
        Some(MachineEvent::Space { full: is_full })
    }

    /// Reports the end of a run that an earlier pilot left without one.
    pub(super) fn record_lost_run(&mut self, run: DatabaseRun) {
        warn!(pid = run.pid, "An earlier run has no end: its pilot was killed with it");
        self.facts.termination = Some(Termination {
            reason: Some("ProcessExited".to_owned()),
            message: Some("the pilot was killed together with the database".to_owned()),
            start_time: Some(run.start_time),
            ..Termination::default()
        });
    }

    /// Adds to the report of a lost run what the kubelet saw of its end: on cgroup v2 the kernel
    /// may kill the pilot together with its database.
    pub(super) fn explain_lost_run(&mut self, state: Option<LastContainerState>) {
        let (Some(state), Some(termination)) = (state, self.facts.termination.as_mut()) else {
            return;
        };
        if termination.exit_code.is_some() {
            return;
        }
        termination.exit_code = Some(state.exit_code);
        termination.finish_time = state.finish_time;
        if state.reason.as_deref() == Some("OOMKilled") {
            termination.reason = Some("OutOfMemory".to_owned());
            termination.message =
                Some("the kernel killed the container at its memory limit; raise it".to_owned());
        }
    }
}

/// Reads a condition of the database's own as an earlier pilot reported it.
fn restore_condition(
    own_types: &[&'static str],
    condition: &Condition,
) -> Option<DatabaseCondition> {
    let type_ = own_types.iter().find(|own_type| **own_type == condition.type_)?;
    let status = match condition.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    let (reason, message) = (condition.reason.clone().into(), condition.message.clone());
    Some(DatabaseCondition { type_, status, reason, message })
}

/// Returns the event for the machine when the database could not be observed; `serving`: the node
/// served so far. Only silence may lead to a restart, and a failure of the pilot itself changes
/// nothing.
fn event_for_error(error: &driver::Error, serving: bool) -> MachineEvent {
    let alive = !error.is_silence();
    let is_refused = matches!(error, driver::Error::Refused(_));
    MachineEvent::Observed { alive, serving: alive && serving && !is_refused }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use super::*;
    use crate::pilot::query_answer::UnansweredQuery;

    #[test]
    fn only_silence_counts_against_the_database() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let path = || PathBuf::from("/data/.navigator/state.json");
        let rows = [
            (driver::Error::Unreachable { source: "refused".into() }, false, false),
            (driver::Error::Write { path: path(), source: full() }, true, true),
            (driver::Error::Read { path: path(), source: full() }, true, true),
            (driver::Error::Refused("401".to_owned()), true, false),
            (driver::Error::Evasive, true, true),
            (driver::Error::NotHeard(UnansweredQuery::new("/state", "answered 429")), true, true),
        ];
        for (error, alive, serving) in rows {
            assert_eq!(
                event_for_error(&error, true),
                MachineEvent::Observed { alive, serving },
                "{error}"
            );
            let started = MachineEvent::Observed { alive, serving: false };
            assert_eq!(event_for_error(&error, false), started, "{error}");
        }
    }
}
