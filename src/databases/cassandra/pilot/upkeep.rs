//! The state of a node's ranges and of its cleanup, and how the condition `CleanupDue` and the
//! Pilot's status show it. Pure.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    held_ranges::{HeldRanges, OwnedRanges},
    keyspaces::is_users,
    node_view::NodeView,
};
use crate::{
    api::names::condition::CLEANUP_DUE,
    databases::cassandra::v1beta1::CassandraCleanup,
    pilot::{
        driver::DatabaseCondition,
        upkeep_job::{UpkeepActivity, UpkeepJob},
    },
};

/// Name of the keyspace of roles and permissions: a role that was dropped must not come back.
const LOGINS: &str = "system_auth";
/// Pause between two requests for the ranges while only the schema changes and no node joins: the
/// maps may be large.
const SURVEY_EVERY: Duration = Duration::from_secs(60);

/// The state of the node's ranges, and of its cleanup.
#[derive(Debug, Default)]
pub(super) struct UpkeepState {
    /// Recorded ranges and cleanup; `None` until read from the volume.
    pub(super) holdings: Option<HeldRanges>,
    /// Ranges that the node owns, as asked last; `None` when the last request was not answered.
    pub(super) owned: Option<OwnedRanges>,
    /// Has any range of a keyspace that counts a second replica, as asked last? `None` while that is
    /// not known.
    pub(super) is_shared: Option<bool>,
    /// Most replicas that a keyspace of users has in the node's datacenter by
    /// `NetworkTopologyStrategy`, as asked last; `None` where there is no such keyspace.
    pub(super) replication_factor: Option<i32>,
    pub(super) surveyed: Option<(RingState, Instant)>,
    /// True when clients need a login.
    logins: bool,
    pub(super) activity: UpkeepActivity,
    /// Why it is unknown whether a cleanup is due.
    pub(super) open: Option<String>,
}

/// The facts about the ring on which ranges depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RingState {
    pub(super) members: BTreeSet<String>,
    schema: Option<String>,
}

impl RingState {
    pub(super) fn from_view(facts: &NodeView) -> Self {
        let member =
            |(node, id): (&IpAddr, &String)| (!facts.joining.contains(node)).then(|| id.clone());
        Self {
            members: facts.ids.iter().filter_map(member).collect(),
            schema: facts.own_endpoint().and_then(|endpoint| endpoint.schema.clone()),
        }
    }
}

impl UpkeepState {
    /// Sets whether clients need a login. Called for each new process and each new intent.
    pub(super) fn set_logins(&mut self, logins: bool) {
        if std::mem::replace(&mut self.logins, logins) != logins {
            self.surveyed = None;
        }
    }

    /// Must Cassandra be asked again which ranges the node owns?
    pub(super) fn is_stale(&self, facts: &NodeView) -> bool {
        let Some((surveyed_state, surveyed_at)) = &self.surveyed else { return true };
        let ring_state = RingState::from_view(facts);
        let has_moved = ring_state.members != surveyed_state.members || !facts.moving.is_empty();
        // This node gives ranges away when a join ends. Before that, the ranges of a new or altered
        // keyspace must be recorded.
        let pause = if facts.joining.is_empty() { SURVEY_EVERY } else { Duration::ZERO };
        has_moved || (ring_state != *surveyed_state && surveyed_at.elapsed() >= pause)
    }

    /// Does it matter which rows of `keyspace` are here? Users' keyspaces count, and the logins where
    /// clients need one. Cassandra's other keyspaces with copies do not: `system_traces` holds
    /// traces, and `system_distributed` the history of repairs and the progress of views.
    pub(super) fn is_tracked(&self, keyspace: &str) -> bool {
        is_users(keyspace) || (self.logins && keyspace == LOGINS)
    }

    /// Clears the current activity, when the process has ended.
    pub(super) fn clear_activity(&mut self) {
        self.activity = UpkeepActivity::None;
    }

    /// Drops a cleanup that the Pilot no longer requests, unless it is over.
    pub(super) fn cancel_job(&mut self) {
        self.activity = UpkeepActivity::None;
        if let Some(holdings) = &mut self.holdings {
            holdings.errand.take_if(|errand| !errand.is_over());
        }
    }

    pub(super) fn pending_keyspaces(&self) -> Option<Vec<String>> {
        Some(self.holdings.as_ref()?.given_away(self.owned.as_ref()?))
    }

    pub(super) fn current_job(&self) -> Option<&UpkeepJob> {
        self.holdings.as_ref()?.errand.as_ref()
    }

    /// Returns the condition `CleanupDue` of the Pilot; `None` before anything is known.
    pub(super) fn cleanup_condition(&self) -> Option<DatabaseCondition> {
        let pending = self.pending_keyspaces();
        if pending.is_none() && self.open.is_none() {
            return None;
        }
        let failure = self.current_job().and_then(|errand| errand.failure.as_ref());
        let has_pending = pending.as_ref().is_none_or(|keyspaces| !keyspaces.is_empty());
        let (reason, message) = match (&self.activity, &pending) {
            (UpkeepActivity::Runs { step: keyspace, number, of: total }, _) => {
                ("CleanupInProgress", format!("keyspace {number} of {total}: {keyspace}"))
            }
            (UpkeepActivity::Waits(message), _) => ("CleanupWaits", message.clone()),
            (UpkeepActivity::None, _) if has_pending && failure.is_some() => {
                let message = failure.map(String::as_str).unwrap_or_default();
                ("CleanupFailed", format!("{message}; it may be asked for again"))
            }
            (UpkeepActivity::None, None) => ("NotHeard", self.open.clone().unwrap_or_default()),
            (UpkeepActivity::None, Some(keyspaces)) if keyspaces.is_empty() => {
                ("NothingDue", "no rows are here that are other nodes' now".to_owned())
            }
            (UpkeepActivity::None, Some(keyspaces)) => {
                let names = keyspaces.join(", ");
                let message = format!(
                    "rows are here that are other nodes' now, of: {names}. When a node leaves, rows \
                     that were deleted may come back: kubectl navigator cleanup"
                );
                ("RangesGivenAway", message)
            }
        };
        let status = pending.map(|keyspaces| !keyspaces.is_empty());
        Some(DatabaseCondition { type_: CLEANUP_DUE, status, reason: reason.into(), message })
    }

    /// Returns the progress of the last requested cleanup; `None` when none was ever requested.
    pub(super) fn cleanup_progress(&self) -> Option<CassandraCleanup> {
        let errand = self.current_job()?;
        let (phase, message) = errand.phase(&self.activity);
        let total = match self.activity {
            UpkeepActivity::Runs { of: count, .. } => Some(count),
            _ => None,
        };
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        Some(CassandraCleanup {
            request: errand.request.clone(),
            phase: phase.to_owned(),
            keyspaces_done: number(errand.done.len()),
            keyspaces: total.map(number),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::tests::{OWN, PEER, facts};

    fn ranges(all: &[(i64, i64)]) -> OwnedRanges {
        OwnedRanges::from([("shop".to_owned(), all.iter().copied().collect())])
    }

    /// Returns the state of a node that once owned the whole ring, and owns the ranges `now`.
    fn upkeep(now: &[(i64, i64)]) -> UpkeepState {
        let mut holdings = HeldRanges::default();
        holdings.record_owned(&ranges(&[(0, 0)]));
        UpkeepState { holdings: Some(holdings), owned: Some(ranges(now)), ..UpkeepState::default() }
    }

    fn told(upkeep: &UpkeepState) -> (Option<bool>, String, String) {
        let DatabaseCondition { status, reason, message, .. } = upkeep.cleanup_condition().unwrap();
        (status, reason.into_owned(), message)
    }

    #[test]
    fn what_is_due_is_told_and_what_is_done_about_it() {
        assert_eq!(UpkeepState::default().cleanup_condition(), None, "nothing is known yet");
        let (status, reason, _) = told(&upkeep(&[(0, 0)]));
        assert_eq!((status, &*reason), (Some(false), "NothingDue"));
        let mut owes = upkeep(&[(0, 50)]);
        let (status, reason, message) = told(&owes);
        assert_eq!((status, &*reason), (Some(true), "RangesGivenAway"));
        assert!(message.contains("shop") && message.contains("navigator cleanup"), "{message}");
        assert_eq!(owes.cleanup_progress(), None);

        UpkeepJob::ensure_job(&mut owes.holdings.as_mut().unwrap().errand, "monday");
        owes.activity = UpkeepActivity::Waits("waits until b is cleaned up".to_owned());
        assert_eq!(told(&owes).1, "CleanupWaits");
        assert_eq!(owes.cleanup_progress().unwrap().phase, "Waiting");
        owes.activity = UpkeepActivity::Runs { step: "shop".to_owned(), number: 2, of: 5 };
        assert_eq!(
            told(&owes),
            (Some(true), "CleanupInProgress".into(), "keyspace 2 of 5: shop".into())
        );
        assert_eq!(owes.cleanup_progress().unwrap().keyspaces, Some(5));

        owes.activity = UpkeepActivity::None;
        UpkeepJob::ensure_job(&mut owes.holdings.as_mut().unwrap().errand, "monday").failure =
            Some("no room".to_owned());
        let (status, reason, message) = told(&owes);
        assert_eq!((status, &*reason), (Some(true), "CleanupFailed"));
        assert!(message.contains("no room") && message.contains("again"), "{message}");
        assert_eq!(owes.cleanup_progress().unwrap().phase, "Failed");
        owes.owned = Some(ranges(&[(0, 0)]));
        assert_eq!(told(&owes).1, "NothingDue", "the ranges came back");
        UpkeepJob::ensure_job(&mut owes.holdings.as_mut().unwrap().errand, "tuesday").finished =
            true;
        assert_eq!(owes.cleanup_progress().unwrap().phase, "Done");
    }

    #[test]
    fn what_was_not_heard_is_not_nothing_due() {
        let mut unheard = upkeep(&[(0, 0)]);
        unheard.owned = None;
        unheard.open = Some("getRangeToEndpointMap: answered 500".to_owned());
        let (status, reason, message) = told(&unheard);
        assert_eq!((status, &*reason), (None, "NotHeard"));
        assert!(message.contains("500"), "{message}");
    }

    #[test]
    fn ranges_are_asked_for_when_members_or_the_schema_changed() {
        let mut upkeep = UpkeepState::default();
        let settled = facts("NORMAL");
        assert!(upkeep.is_stale(&settled));
        let seen = |ago: u64| {
            let when = Instant::now().checked_sub(Duration::from_secs(ago)).unwrap();
            Some((RingState::from_view(&settled), when))
        };
        upkeep.surveyed = seen(0);
        assert!(!upkeep.is_stale(&settled));
        let newcomer: IpAddr = [127, 0, 1, 3].into();
        let mut joins = settled.clone();
        joins.ids.insert(newcomer, "id-3".to_owned());
        joins.joining.insert(newcomer);
        assert!(!upkeep.is_stale(&joins), "it owns nothing yet");
        joins.joining.clear();
        assert!(upkeep.is_stale(&joins));
        assert!(upkeep.is_stale(&NodeView { moving: [PEER].into(), ..settled.clone() }));
        let mut altered = settled.clone();
        altered.gossip.get_mut(&OWN).unwrap().schema = Some("s2".to_owned());
        assert!(!upkeep.is_stale(&altered), "not more often than once a minute");
        let mut altered_in_join = altered.clone();
        altered_in_join.joining.insert(newcomer);
        assert!(upkeep.is_stale(&altered_in_join), "at once while a node joins");
        upkeep.surveyed = seen(61);
        assert!(upkeep.is_stale(&altered) && !upkeep.is_stale(&settled));
    }

    #[test]
    fn logins_count_where_there_are_any() {
        let mut upkeep = UpkeepState::default();
        assert!(upkeep.is_tracked("shop") && !upkeep.is_tracked("system_auth"));
        upkeep.surveyed = Some((RingState::from_view(&facts("NORMAL")), Instant::now()));
        upkeep.set_logins(true);
        assert!(upkeep.is_tracked("system_auth") && !upkeep.is_tracked("system_traces"));
        assert_eq!(upkeep.surveyed, None, "it is asked again");
    }
}
