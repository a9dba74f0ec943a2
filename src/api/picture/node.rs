//! One node of a cluster, from its Pilot: does it serve, was its pilot heard, what is wrong.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::Urgency;
use crate::api::{
    names::condition::CLEANUP_DUE,
    object_picture::ConditionPicture,
    silence::{self, ReportAge},
    v1beta1::{Pilot, PilotIntent, PilotPhase, Termination},
};

/// Conditions that may be False on a healthy node.
const QUIET: [&str; 5] = ["Stopped", "Decommissioned", "VolumeHoldsData", "Started", CLEANUP_DUE];

/// A node, as its Pilot shows it.
#[derive(Clone, Copy, Debug)]
pub struct NodePicture<'a> {
    pub pilot: &'a Pilot,
}

impl<'a> NodePicture<'a> {
    pub fn new(pilot: &'a Pilot) -> Self {
        Self { pilot }
    }

    pub fn name(self) -> &'a str {
        self.pilot.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the name of the node pool; empty for a node of no pool.
    pub fn pool(self) -> &'a str {
        self.pilot.spec.node_pool.as_deref().unwrap_or_default()
    }

    /// Returns where the node is in its life: as its pilot said last, or Unknown while the pilot is
    /// silent.
    pub fn phase(self) -> PilotPhase {
        match &self.pilot.status.phase {
            Some(_) if self.is_silent() => PilotPhase::Unknown,
            Some(phase) => phase.clone(),
            None => PilotPhase::Pending,
        }
    }

    pub fn intent(self) -> PilotIntent {
        self.pilot.spec.phase.clone().unwrap_or_default()
    }

    /// Returns the phase that the spec asks for, while the node has not reached it. A node that is
    /// to run is on its way as long as it lives, so it has none.
    pub fn intent_ahead(self) -> Option<PilotIntent> {
        match (self.intent(), self.phase()) {
            (PilotIntent::Running, _)
            | (PilotIntent::Fenced, PilotPhase::Fenced)
            | (PilotIntent::Stopped, PilotPhase::Stopped)
            | (PilotIntent::Decommissioned, PilotPhase::Decommissioned) => None,
            (intent, _) => Some(intent),
        }
    }

    pub fn conditions(self) -> impl Iterator<Item = ConditionPicture<'a>> {
        self.pilot.status.conditions.iter().map(ConditionPicture::from)
    }

    /// Returns the condition Ready.
    pub fn ready_condition(self) -> Option<ConditionPicture<'a>> {
        self.conditions().find(|condition| condition.type_ == "Ready")
    }

    /// Is the condition Ready True?
    pub fn is_serving(self) -> bool {
        self.ready_condition().is_some_and(|condition| condition.is_true())
    }

    /// Should the node serve, and is it not known to?
    pub fn is_unavailable(self) -> bool {
        self.intent() == PilotIntent::Running && !self.is_serving()
    }

    /// Returns the version that runs; empty while the database did not say.
    pub fn version(self) -> &'a str {
        self.pilot.status.version.as_deref().unwrap_or_default()
    }

    /// Returns the version that the spec asks for, while another one runs.
    pub fn version_ahead(self) -> Option<&'a str> {
        let desired_version = self.pilot.spec.version.as_deref();
        desired_version.filter(|version| !self.version().is_empty() && self.version() != *version)
    }

    /// Has the leading controller marked the pilot as silent?
    pub fn is_silent(self) -> bool {
        silence::is_marked_silent(&self.pilot.status)
    }

    /// Returns the time of the last report, by the pilot's own clock.
    pub fn last_report_time(self) -> Option<Timestamp> {
        self.pilot.status.last_heartbeat_time.as_ref().map(|time| time.0)
    }

    /// Judges the age of the last report by the pilot's own clock. `None` before the first report.
    pub fn report_age(self, now: Timestamp) -> Option<ReportAge> {
        let report_age = now.duration_since(self.last_report_time()?);
        // A clock that is ahead makes no report old.
        Some(ReportAge::new(Duration::try_from(report_age).unwrap_or_default()))
    }

    /// Was the node told to stop or to leave, so that its pilot may have nothing to report?
    pub fn is_dismissed(self) -> bool {
        matches!(self.intent(), PilotIntent::Stopped | PilotIntent::Decommissioned)
    }

    /// Returns the conditions that say what is wrong with the node, or what it is busy with; each
    /// reason with its sentence once.
    pub fn problem_conditions(self) -> Vec<ConditionPicture<'a>> {
        let is_decommissioning = self.intent() == PilotIntent::Decommissioned;
        let mut problems: Vec<ConditionPicture<'a>> = Vec::new();
        for condition in self.conditions() {
            let is_problem = condition.is_false() && !QUIET.contains(&condition.type_)
                || condition.status == "Unknown" && condition.type_ == "Ready"
                || is_decommissioning
                    && condition.type_ == "Decommissioned"
                    && condition.is_false()
                || condition.type_ == CLEANUP_DUE && condition.is_true();
            // The condition Ready repeats what a more specific one says.
            let is_repeated = problems
                .iter()
                .any(|o| (o.reason, o.message) == (condition.reason, condition.message));
            if is_problem && !is_repeated {
                problems.push(condition);
            }
        }
        problems
    }

    /// Returns how the last process ended, unless it ended as asked.
    pub fn last_exit(self) -> Option<&'a Termination> {
        self.pilot
            .status
            .last_termination
            .as_ref()
            .filter(|termination| termination.exit_code != Some(0))
    }

    pub fn urgency(self) -> Urgency {
        match self.phase() {
            PilotPhase::Failed => Urgency::Critical,
            PilotPhase::Stopped | PilotPhase::Fenced | PilotPhase::Decommissioned => {
                Urgency::Resting
            }
            PilotPhase::Running if self.is_serving() => Urgency::Fine,
            PilotPhase::Unknown | PilotPhase::Running => Urgency::Warning,
            _ => Urgency::Changing,
        }
    }
}

/// Returns a word for how a process ended: its reason, its signal, or empty.
pub fn exit_reason(termination: &Termination) -> &str {
    termination.reason.as_deref().or(termination.signal.as_deref()).unwrap_or_default()
}
