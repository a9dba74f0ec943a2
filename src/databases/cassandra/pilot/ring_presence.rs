//! Since when the node may lack writes that other nodes of its ring have. Pure.
//!
//! Other nodes keep hints of what a node misses for `max_hint_window` after they saw it go. A node
//! that was away for longer lacks the writes after that, until it is repaired. So may a node that
//! joined in place of a lost one: it got each range from one replica, which may lack writes that the
//! lost node had. Owns the record of this, which is kept on the volume in `.navigator/cassandra.json`.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{data_resurrection::PeerRuns, node_view::NodeView};
use crate::{api::repair_report::RepairReport, databases::cassandra::v1beta1::CassandraBehind};

/// Pause between two writes of the time at which the node was last seen in its ring.
const SEEN_EVERY: Duration = Duration::from_secs(60);
/// Time without an observation in the ring that counts as an absence of a process that runs: more
/// than the pause above, and the exchange of the pilot's program, take together.
const UNSEEN: Duration = Duration::from_secs(180);

/// The node's presence in its ring, and what it missed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RingPresence {
    /// When the node was last seen in its ring, within [`SEEN_EVERY`]; `None` before a pilot that
    /// keeps this saw it there.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<Time>,
    /// Milliseconds for which hints were kept then.
    #[serde(skip_serializing_if = "Option::is_none")]
    hints_kept: Option<u64>,
    /// Time since which the node is away from its ring.
    #[serde(skip_serializing_if = "Option::is_none")]
    away_since: Option<Time>,
    /// True for the empty node that joins in place of a lost one, until it has joined.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) replaces_lost: bool,
    /// Since when the node is behind, unless a user reported its repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) behind: Option<CassandraBehind>,
}

/// What is known beside the node's own view when it comes back.
#[derive(Clone, Debug, Default)]
pub(super) struct AbsenceFacts {
    /// For how long the ring keeps hints, by the node's settings.
    pub(super) hints_kept: Option<Duration>,
    /// When the other nodes ran, as last listed.
    pub(super) peers: Option<PeerRuns>,
}

impl RingPresence {
    /// Makes the presence of an empty node, which has not joined.
    pub(super) fn of_newcomer(replaces_lost: bool) -> Self {
        Self { replaces_lost, ..Self::default() }
    }

    /// Begins an absence, if none has begun: a process is about to start.
    pub(super) fn mark_away(&mut self) {
        if self.away_since.is_none() {
            self.away_since.clone_from(&self.last_seen);
        }
    }

    /// Takes over an observation of the node. When an absence ends, or the node has joined in place of
    /// a lost one, this decides whether it is behind.
    pub(super) fn update(&mut self, view: &NodeView, facts: &AbsenceFacts, now: Timestamp) {
        if !view.is_member() {
            return;
        }
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        if view.is_cut_off() {
            self.away_since.get_or_insert(Time(now));
            return;
        }
        let since = Time(now);
        let unseen_since = self.last_seen.clone().filter(|last| time_between(last.0, now) > UNSEEN);
        let away_since = self.away_since.take().or(unseen_since);
        if mem::take(&mut self.replaces_lost) {
            info!("This node took the place of a lost one, and is to be repaired");
            self.behind = Some(CassandraBehind { since, away_since: None });
        } else if let Some(away_since) =
            away_since.filter(|time| self.has_missed_writes(time.0, view, facts, now))
        {
            warn!(since = %away_since.0, "This node was away for longer than hints are kept, and is to be repaired");
            // Of two absences without a repair between them the first one counts.
            let first_away_since =
                self.behind.take().map_or(Some(away_since.clone()), |behind| behind.away_since);
            self.behind = Some(CassandraBehind { since, away_since: first_away_since });
        }
        if self.last_seen.as_ref().is_none_or(|last| time_between(last.0, now) >= SEEN_EVERY) {
            self.last_seen = Some(Time(now));
        }
        if let Some(window) = facts.hints_kept {
            self.hints_kept = Some(window.as_millis().try_into().unwrap_or(u64::MAX));
        }
    }

    /// Did the node miss writes of which no hints were kept? Not while no other node ran: then
    /// nothing was written. Settings reach one node after the other, so the shorter of the former
    /// time and the present one counts.
    fn has_missed_writes(
        &self,
        away_since: Timestamp,
        view: &NodeView,
        facts: &AbsenceFacts,
        now: Timestamp,
    ) -> bool {
        let stored_window = self.hints_kept.map(Duration::from_millis);
        let hint_window =
            stored_window.into_iter().chain(facts.hints_kept).min().unwrap_or_default();
        let peer_run_time = facts.peers.as_ref().and_then(|peers| {
            peers.longest_run(
                Some(view.ids.len()),
                SystemTime::from(away_since),
                SystemTime::from(now),
            )
        });
        time_between(away_since, now) > hint_window
            && peer_run_time.is_none_or(|run_time| run_time > hint_window)
    }

    /// Takes over a user's report that the node was repaired.
    pub(super) fn clear_when_repaired(&mut self, pilot: &ObjectMeta, now: Timestamp) {
        let Some(behind) = &self.behind else { return };
        if RepairReport::from_metadata(pilot, behind.since.0, now) == RepairReport::Repaired {
            info!("A user reports that this node was repaired");
            self.behind = None;
        }
    }
}

/// Returns the time from `earlier` to `later`; zero where the clock was set back.
fn time_between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{
            names::annotation::REPAIRED,
            v1beta1::{Process, Termination},
        },
        databases::cassandra::pilot::tests::{PEER, facts, peer},
    };

    const HOUR: i64 = 3600;
    /// The time at which each test begins.
    const BEGIN: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(BEGIN + seconds).unwrap()
    }

    /// Returns the facts of a ring whose other node has run since `begun`, after a run that ended at
    /// `ended`, and in which hints are kept for three hours.
    fn ring(begun: i64, ended: Option<i64>) -> AbsenceFacts {
        let mut other = peer("b", "127.0.1.2", true);
        other.status.process =
            Some(Process { start_time: Some(Time(at(begun))), ..Process::default() });
        other.status.last_termination = ended.map(|ended| Termination {
            finish_time: Some(Time(at(ended))),
            ..Termination::default()
        });
        let hints_kept = Some(Duration::from_secs(3 * 3600));
        AbsenceFacts { hints_kept, peers: Some(PeerRuns::from_peers(&[other])) }
    }

    /// Returns the node after it was in its ring at [`BEGIN`], and was restarted `away` seconds later.
    fn back(away: i64, facts_then: &AbsenceFacts, facts_now: &AbsenceFacts) -> RingPresence {
        let mut presence = RingPresence::default();
        presence.update(&facts("NORMAL"), facts_then, at(0));
        presence.mark_away();
        presence.update(&facts("JOINING"), facts_now, at(away - 1));
        presence.update(&facts("NORMAL"), facts_now, at(away));
        presence
    }

    fn behind(since: i64, away_since: Option<i64>) -> CassandraBehind {
        let away_since = away_since.map(|away| Time(at(away)));
        CassandraBehind { since: Time(at(since)), away_since }
    }

    #[test]
    fn absence_beyond_hints_leaves_node_behind() {
        let long = ring(-HOUR, None);
        assert_eq!(back(3 * HOUR, &long, &long).behind, None, "hints cover it");
        let late = 3 * HOUR + 1;
        assert_eq!(back(late, &long, &long).behind, Some(behind(late, Some(0))));
        // What a peer's Pilot does not say is not nothing.
        let unknown = AbsenceFacts { peers: None, ..long.clone() };
        assert_eq!(back(late, &long, &unknown).behind, Some(behind(late, Some(0))));
    }

    #[test]
    fn stopped_ring_leaves_no_node_behind() {
        // The other node ended a minute later, and started ten minutes before this one was back.
        let (running, slept) = (ring(-HOUR, None), ring(9 * HOUR, Some(60)));
        assert_eq!(back(9 * HOUR + 600, &running, &slept).behind, None);
        // It ran for four hours in between.
        let served = ring(5 * HOUR, Some(60));
        assert_eq!(back(9 * HOUR, &running, &served).behind, Some(behind(9 * HOUR, Some(0))));
    }

    #[test]
    fn ring_without_hints_leaves_each_restart_behind() {
        let running = ring(-HOUR, None);
        let off = AbsenceFacts { hints_kept: Some(Duration::ZERO), ..running.clone() };
        assert_eq!(back(40, &off, &off).behind, Some(behind(40, Some(0))));
        // The setting reaches the node before it reaches the others.
        assert_eq!(back(40, &off, &running).behind, Some(behind(40, Some(0))));
        assert_eq!(back(40, &running, &running).behind, None);
    }

    #[test]
    fn observation_without_absence_changes_nothing_but_time() {
        let off = AbsenceFacts { hints_kept: Some(Duration::ZERO), ..ring(-HOUR, None) };
        let mut presence = RingPresence::default();
        for seconds in (0..600).step_by(5) {
            presence.update(&facts("NORMAL"), &off, at(seconds));
        }
        assert_eq!((presence.behind, presence.last_seen), (None, Some(Time(at(540)))));
    }

    #[test]
    fn first_record_of_node_is_not_behind() {
        let mut presence = RingPresence::default();
        presence.mark_away();
        presence.update(&facts("NORMAL"), &ring(-99 * HOUR, None), at(0));
        assert_eq!(presence.behind, None, "an older pilot kept no record");
    }

    #[test]
    fn hung_process_counts_as_away() {
        let mut presence = RingPresence::default();
        let running = ring(-HOUR, None);
        presence.update(&facts("NORMAL"), &running, at(0));
        presence.update(&facts("NORMAL"), &running, at(4 * HOUR));
        assert_eq!(presence.behind, Some(behind(4 * HOUR, Some(0))));
    }

    #[test]
    fn partition_counts_as_away_unless_others_were_down() {
        let mut alone = facts("NORMAL");
        alone.live.remove(&PEER);
        alone.unreachable.insert(PEER);
        let after = |facts_now: &AbsenceFacts| {
            let mut presence = RingPresence::default();
            presence.update(&facts("NORMAL"), facts_now, at(0));
            for hour in 0..5 {
                presence.update(&alone, facts_now, at(60 + hour * HOUR));
            }
            presence.update(&facts("NORMAL"), facts_now, at(5 * HOUR));
            presence.behind
        };
        assert_eq!(after(&ring(-HOUR, None)), Some(behind(5 * HOUR, Some(60))));
        assert_eq!(after(&ring(5 * HOUR - 90, Some(50))), None, "it was the other that was away");
    }

    #[test]
    fn replacement_is_behind_once_joined() {
        let mut presence = RingPresence { replaces_lost: true, ..RingPresence::default() };
        presence.mark_away();
        presence.update(&facts("JOINING"), &AbsenceFacts::default(), at(10));
        assert_eq!(presence.behind, None);
        presence.update(&facts("NORMAL"), &AbsenceFacts::default(), at(20));
        assert_eq!(presence.behind, Some(behind(20, None)));
        presence.update(&facts("NORMAL"), &AbsenceFacts::default(), at(30));
        assert_eq!(presence.behind, Some(behind(20, None)));
    }

    #[test]
    fn repair_counts_until_next_absence() {
        let running = ring(-HOUR, None);
        let mut presence = back(4 * HOUR, &running, &running);
        let report = |seconds: i64| {
            let annotations = Some([(REPAIRED.to_owned(), at(seconds).to_string())].into());
            ObjectMeta { annotations, ..ObjectMeta::default() }
        };
        presence.clear_when_repaired(&ObjectMeta::default(), at(6 * HOUR));
        presence.clear_when_repaired(&report(4 * HOUR), at(6 * HOUR));
        presence.clear_when_repaired(&report(9 * HOUR), at(6 * HOUR));
        assert!(presence.behind.is_some(), "too early, or not yet");
        presence.clear_when_repaired(&report(5 * HOUR), at(6 * HOUR));
        assert_eq!(presence.behind, None);
        presence.update(&facts("NORMAL"), &running, at(6 * HOUR));
        presence.behind = None;
        presence.mark_away();
        presence.update(&facts("NORMAL"), &running, at(10 * HOUR));
        presence.clear_when_repaired(&report(5 * HOUR), at(11 * HOUR));
        assert_eq!(presence.behind, Some(behind(10 * HOUR, Some(6 * HOUR))));
    }

    #[test]
    fn second_absence_keeps_begin_of_first() {
        let running = ring(-HOUR, None);
        let mut presence = back(4 * HOUR, &running, &running);
        presence.mark_away();
        presence.update(&facts("NORMAL"), &running, at(9 * HOUR));
        assert_eq!(presence.behind, Some(behind(9 * HOUR, Some(0))));
    }
}
