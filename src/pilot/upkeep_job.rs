//! Work on the nodes' own data that a person asks for by an annotation of the Pilots: one node of
//! the cluster after the other, step by step, in a way that outlives pilots and processes.
//!
//! Owns whose turn it is, and how far a request is. What a step does is the database's.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    api::v1beta1::Pilot,
    pilot::kube::peers::{is_ready, peer_name},
};

pub const WAITING: &str = "Waiting";
pub const RUNNING: &str = "Running";
pub const DONE: &str = "Done";
pub const FAILED: &str = "Failed";

/// One kind of work, and where Pilots tell of it.
#[derive(Debug)]
pub struct UpkeepRequests {
    /// The annotation that asks for the work; a request is any text.
    pub annotation: &'static str,
    /// A condition that the pilots report which know this work.
    pub condition: &'static str,
    /// Returns the request that a Pilot's status tells of, and its phase.
    pub shown: fn(&Pilot) -> Option<(String, String)>,
}

impl UpkeepRequests {
    /// Returns the request of a Pilot, unless it is empty.
    pub fn request_of<'a>(&self, pilot: &'a Pilot) -> Option<&'a str> {
        let annotations = pilot.metadata.annotations.as_ref()?;
        annotations.get(self.annotation).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Does the Pilot's status say that the work for this request is over?
    pub fn is_over(&self, pilot: &Pilot, request: &str) -> bool {
        (self.shown)(pilot).is_some_and(|(shown_request, phase)| {
            shown_request == request && [DONE, FAILED].contains(&&*phase)
        })
    }

    /// Returns a peer that goes ahead of this node, if any: one whose work runs, whose request is
    /// earlier, or whose request is equal and whose name comes first (a whole cluster gets equal
    /// requests). Peers that do not serve, or whose pilot is of a release without such work, are
    /// not waited for.
    pub fn find_peer_ahead<'a>(&self, own_pilot: &Pilot, peers: &'a [Pilot]) -> Option<&'a str> {
        let own_rank = (self.request_of(own_pilot), peer_name(own_pilot));
        let is_participant = |peer: &&Pilot| {
            let mut conditions = peer.status.conditions.iter();
            is_ready(peer) && conditions.any(|condition| condition.type_ == self.condition)
        };
        let is_ahead = |peer: &&Pilot| {
            let is_running = (self.shown)(peer).is_some_and(|(_, phase)| phase == RUNNING);
            let pending_request =
                self.request_of(peer).filter(|request| !self.is_over(peer, request));
            is_running
                || (pending_request.is_some() && (pending_request, peer_name(peer)) < own_rank)
        };
        peers.iter().filter(is_participant).find(is_ahead).map(peer_name)
    }
}

/// A request, and how far the work for it is; part of a state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpkeepJob {
    /// The request, as the Pilot's annotation has it.
    pub request: String,
    /// Names of the steps that are finished.
    pub done: BTreeSet<String>,
    pub finished: bool,
    /// Why the work failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl UpkeepJob {
    /// Returns the recorded job for `request`; begins a new one where the recorded one is for
    /// another request.
    pub fn ensure_job<'a>(recorded: &'a mut Option<Self>, request: &str) -> &'a mut Self {
        if recorded.as_ref().is_none_or(|job| job.request != request) {
            *recorded = Some(Self { request: request.to_owned(), ..Self::default() });
        }
        recorded.get_or_insert_default()
    }

    pub fn is_over(&self) -> bool {
        self.finished || self.failure.is_some()
    }

    pub fn finish_job(&mut self, failure: Option<String>) {
        self.finished = failure.is_none();
        self.failure = failure;
    }

    /// Returns the job's phase, and a message about it.
    pub fn phase(&self, activity: &UpkeepActivity) -> (&'static str, Option<String>) {
        match (activity, &self.failure) {
            (UpkeepActivity::Runs { step, .. }, _) => (RUNNING, Some(step.clone())),
            (UpkeepActivity::None, Some(reason)) => (FAILED, Some(reason.clone())),
            (UpkeepActivity::None, None) if self.finished => (DONE, None),
            (UpkeepActivity::Waits(reason), _) => (WAITING, Some(reason.clone())),
            (UpkeepActivity::None, None) => (WAITING, None),
        }
    }
}

/// What this process does about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UpkeepActivity {
    #[default]
    None,
    Waits(String),
    /// The step under way, its number, and how many steps there are.
    Runs {
        step: String,
        number: usize,
        of: usize,
    },
}

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub enum StepOutcome {
    Finished,
    /// The database refused for now, with its reason.
    Later(String),
    Failed(String),
}
