//! When each pilot last reported, by our own clock.
//!
//! A report counts from the moment at which this controller saw its heartbeat, or whether the node
//! is ready, change. So a wrong clock of a pilot makes the pilot neither silent nor fresh. Decides
//! nothing.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use crate::api::{
    silence::{self, is_silent_reason},
    v1beta1::Pilot,
};

/// Records when pilots reported. The watch of Pilots writes it; reconciles and the page read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatTracker(Arc<Mutex<HeartbeatState>>);

#[derive(Debug, Default)]
struct HeartbeatState {
    /// Last report of each pilot, by the uid of its Pilot.
    pilots: HashMap<String, LastReport>,
    /// When the API last failed to answer; no pilot could report until then.
    api_away: Option<Instant>,
}

#[derive(Debug)]
struct LastReport {
    /// The time in it. Every report of a pilot carries another one; of pilots before 0.3 every
    /// heartbeat does.
    heartbeat: Option<Time>,
    ready: bool,
    /// When this controller saw the report change last, or saw it first.
    at: Instant,
    /// The report changed while this controller watched. Otherwise its age is unknown.
    moved: bool,
    /// When this controller saw the node become ready, or saw the node first.
    returned: Option<Instant>,
    /// When this controller saw that the node does not serve; `None` while it does.
    gone: Option<SeenAt>,
}

/// A moment of our own clock.
#[derive(Clone, Copy, Debug)]
enum SeenAt {
    Time(Instant),
    #[cfg(test)]
    LongAgo,
}

/// How old the report of one pilot is at a moment. The default is that of a pilot seen just now for
/// the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeartbeatAge {
    /// Time since the pilot's last report.
    pub(crate) ago: Duration,
    /// The pilot reported while this controller watched.
    pub(crate) heard: bool,
    /// Time since this controller saw the node become ready, or saw the node first.
    pub(crate) returned: Duration,
    /// Time since this controller saw that the node does not serve; zero while it serves.
    pub(crate) gone: Duration,
}

impl HeartbeatAge {
    /// A pilot that reports on time, of a node that became ready long ago.
    #[cfg(test)]
    pub(crate) const STEADY: Self =
        Self { ago: Duration::ZERO, heard: true, returned: Duration::MAX, gone: Duration::MAX };

    pub(crate) fn is_fresh(&self) -> bool {
        self.heard && !self.is_over()
    }

    /// Returns whether the pilot's last report is too old to count.
    pub(crate) fn is_over(&self) -> bool {
        self.ago >= silence::COUNTS_FOR
    }
}

impl HeartbeatTracker {
    /// Records the report in a Pilot that the watch delivered.
    pub(crate) fn record_heartbeat(&self, pilot: &Pilot, now: Instant) {
        let ready_condition =
            pilot.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        // The controller wrote this condition itself, so it is no report.
        if ready_condition.is_some_and(|condition| is_silent_reason(&condition.reason)) {
            return;
        }
        let is_ready = ready_condition.is_some_and(|condition| condition.status == "True");
        let heartbeat = &pilot.status.last_heartbeat_time;
        let mut state = self.state();
        let uid = pilot.metadata.uid.clone().unwrap_or_default();
        let last_report = state.pilots.entry(uid).or_insert_with(|| LastReport {
            heartbeat: heartbeat.clone(),
            ready: is_ready,
            at: now,
            moved: false,
            returned: Some(now),
            gone: None,
        });
        if last_report.heartbeat != *heartbeat || last_report.ready != is_ready {
            (last_report.at, last_report.moved) = (now, true);
            last_report.heartbeat.clone_from(heartbeat);
        }
        if is_ready && !last_report.ready {
            last_report.returned = Some(now);
        }
        last_report.ready = is_ready;
    }

    /// Records that the API does not answer. A pilot's silence counts from this moment at the
    /// earliest, so that pilots have time to notice that the API is back.
    pub(crate) fn api_is_away(&self, now: Instant) {
        self.state().api_away = Some(now);
    }

    /// Returns the age of a pilot's report, by the uid of its Pilot.
    pub(crate) fn heartbeat_age(&self, pilot: &str, now: Instant) -> HeartbeatAge {
        let state = self.state();
        let age_of = |last_report: &LastReport| HeartbeatAge {
            ago: now.duration_since(last_report.at),
            heard: last_report.moved,
            returned: last_report
                .returned
                .map_or(Duration::MAX, |returned_at| now.duration_since(returned_at)),
            gone: Duration::ZERO,
        };
        state.pilots.get(pilot).map(age_of).unwrap_or_default()
    }

    /// Records whether the node of the Pilot of this uid serves; returns for how long it has not.
    pub(crate) fn record_serving(&self, pilot: &str, is_serving: bool, now: Instant) -> Duration {
        let mut state = self.state();
        let Some(last_report) = state.pilots.get_mut(pilot) else { return Duration::ZERO };
        if is_serving {
            last_report.gone = None;
            return Duration::ZERO;
        }
        match *last_report.gone.get_or_insert(SeenAt::Time(now)) {
            SeenAt::Time(at) => now.duration_since(at),
            #[cfg(test)]
            SeenAt::LongAgo => Duration::MAX,
        }
    }

    /// Makes every pilot one that reported just now, of a node that became ready long ago, or went
    /// long ago.
    #[cfg(test)]
    pub(crate) fn hear_all(&self, pilots: &[Arc<Pilot>]) {
        for pilot in pilots {
            self.record_heartbeat(pilot, Instant::now());
        }
        for last in self.state().pilots.values_mut() {
            (last.moved, last.returned, last.gone) = (true, None, Some(SeenAt::LongAgo));
        }
    }

    /// Returns for how long the pilot of the Pilot of this uid has not reported, counted from the API's last failure at the
    /// earliest.
    pub(crate) fn silence_duration(&self, pilot: &str, now: Instant) -> Duration {
        let ago = self.heartbeat_age(pilot, now).ago;
        let api_away = self.state().api_away;
        api_away.map_or(ago, |away_since| ago.min(now.duration_since(away_since)))
    }

    /// Returns whether the Pilot of this uid may be marked as silent. Its pilot has not reported,
    /// or was marked before this controller saw it.
    pub(crate) fn may_be_marked(&self, pilot: &str, now: Instant) -> bool {
        let state = self.state();
        state
            .pilots
            .get(pilot)
            .is_none_or(|last_report| now - last_report.at >= silence::SILENT_AFTER)
    }

    /// Forgets the pilots of all Pilots but those of these uids.
    pub(crate) fn forget_all_but(&self, alive: &HashSet<Box<str>>) {
        self.state().pilots.retain(|uid, _| alive.contains(uid.as_str()));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, HeartbeatState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn beating(at: i64) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.uid = Some("u".into());
        pilot.status.last_heartbeat_time = Some(Time(Timestamp::from_second(at).unwrap()));
        pilot
    }

    fn saying(at: i64, status: &str, reason: &str) -> Pilot {
        let mut pilot = beating(at);
        pilot.status.conditions = vec![Condition {
            type_: "Ready".into(),
            status: status.into(),
            reason: reason.into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }];
        pilot
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_report_seen_to_change_whatever_its_clock_says() {
        let heard = HeartbeatTracker::default();
        let silence = |pilot: &Pilot| {
            heard.record_heartbeat(pilot, Instant::now());
            heard.silence_duration("u", Instant::now())
        };
        assert_eq!(silence(&beating(7200)), Duration::ZERO);
        tokio::time::advance(MINUTE).await;
        assert_eq!(silence(&beating(7200)), MINUTE);
        // The new heartbeat is an hour in the past, but the report changed, so it counts. A
        // condition that the controller writes is no report.
        assert_eq!(silence(&beating(3600)), Duration::ZERO);
        tokio::time::advance(MINUTE).await;
        assert_eq!(silence(&saying(3600, "Unknown", "PilotSilent")), MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_silent_while_the_api_is_away_nor_right_after() {
        let heard = HeartbeatTracker::default();
        heard.record_heartbeat(&beating(0), Instant::now());
        tokio::time::advance(10 * MINUTE).await;
        heard.api_is_away(Instant::now());
        assert_eq!(heard.silence_duration("u", Instant::now()), Duration::ZERO);
        tokio::time::advance(MINUTE).await;
        assert_eq!(heard.silence_duration("u", Instant::now()), MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_returns_when_it_is_seen_to_become_ready() {
        let heard = HeartbeatTracker::default();
        let hearing = |pilot: &Pilot| {
            heard.record_heartbeat(pilot, Instant::now());
            heard.heartbeat_age("u", Instant::now())
        };
        let first = hearing(&saying(0, "True", "Up"));
        assert_eq!((first.heard, first.returned), (false, Duration::ZERO), "its age is unknown");
        tokio::time::advance(MINUTE).await;
        assert!(hearing(&saying(1, "True", "Up")).heard);
        assert_eq!(hearing(&saying(2, "True", "Up")).returned, MINUTE);
        hearing(&saying(3, "False", "Down"));
        tokio::time::advance(MINUTE).await;
        assert_eq!(hearing(&saying(4, "True", "Up")).returned, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_gone_since_it_was_first_seen_not_to_serve() {
        let heard = HeartbeatTracker::default();
        let see = |serves: bool| heard.record_serving("u", serves, Instant::now());
        assert_eq!(see(false), Duration::ZERO, "its pilot was never seen");
        heard.record_heartbeat(&beating(0), Instant::now());
        assert_eq!(see(false), Duration::ZERO);
        tokio::time::advance(MINUTE).await;
        assert_eq!((see(false), see(true)), (MINUTE, Duration::ZERO));
        tokio::time::advance(MINUTE).await;
        assert_eq!(see(false), Duration::ZERO, "it went again");
    }
}
