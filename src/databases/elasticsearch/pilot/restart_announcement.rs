//! Announces restarts to the cluster, so that the master does not build the node's shard copies
//! elsewhere meanwhile.
//!
//! Owns two ways. Where the node shutdown API exists (the default distribution from 7.15 on), a
//! shutdown record of the node; elsewhere the delay of every index that has no delay of its own,
//! set to a value that no other client writes. The node that stops announces the restart, with its
//! last requests. The leading pilot takes the announcement back when every node is back: it
//! searches for the announcements of any pilot, and remembers none. Records and delays that people
//! set are never written.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;
use tracing::info;

use super::lead_duties::{node_id, pilot_name};
use crate::{
    api::v1beta1::{Pilot, PilotIntent, PilotPhase},
    pilot::{
        clients::search_engine::{SearchClient, ShutdownRecord, batch_names},
        driver::{DatabaseNode, Error, LeaderPermit},
    },
};

/// How long a node may be away. The odd figure tells Navigator's delay from those of people.
const DELAY: &str = "300007ms";
/// Reason in a shutdown record, which tells Navigator's records from those of people.
const REASON: &str = "navigator: the node restarts";
const SETTING: &str = "index.unassigned.node_left.delayed_timeout";

/// Limit for a whole announcement: the flush before a stop gets the rest of the time.
const ANNOUNCEMENT: Duration = Duration::from_secs(8);
/// Pause between two searches for announcements. Every node must be back in two of them.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Time after which an announcement is taken back although a node is still away: it has lost its
/// purpose.
const LONGEST: Duration = Duration::from_secs(600);

/// Announces that the node stops and comes back, where the cluster has other nodes.
pub(super) async fn announce_restart(api: &SearchClient, node: &DatabaseNode) -> Result<(), Error> {
    let Some(id) = node_id(&node.pilot).filter(|_| comes_back(&node.pilot)) else { return Ok(()) };
    tokio::time::timeout(ANNOUNCEMENT, announce_as(api, id)).await?
}

async fn announce_as(api: &SearchClient, id: &str) -> Result<(), Error> {
    let nodes = api.read_nodes().await?;
    if !nodes.has_master || nodes.names.len() < 2 {
        return Ok(());
    }
    if let Some(records) = api.shutdown_records().await? {
        if records.iter().any(|record| record.node_id == id) {
            return Ok(());
        }
        match api.record_restart(id, REASON, DELAY).await {
            // 7.13 and 7.14 do not accept a delay in a record.
            Err(Error::Refused(why)) => info!(why, "The restart is announced by delays instead"),
            result => return result,
        }
    }
    api.set_where_unset(SETTING, DELAY).await
}

/// Is a restart announced, by any pilot?
pub(super) async fn is_announced(api: &SearchClient) -> Result<bool, Error> {
    let (records, delays) = (api.shutdown_records().await, api.indices_with(SETTING, DELAY).await);
    let is_recorded = records.iter().flatten().flatten().any(|record| record.reason == REASON);
    if is_recorded || delays.as_ref().is_ok_and(|indices| !indices.is_empty()) {
        return Ok(true);
    }
    records.and(delays.map(|_| false))
}

/// What a leader remembers of its searches for announcements. A new leader begins with an empty
/// one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnnouncementWatch {
    looked: Option<Instant>,
    /// Time of the first search, of those in a row, that found an announcement.
    found: Option<Instant>,
    /// Time since which every node is back.
    back: Option<Instant>,
}

/// Searches for announcements, and takes them back when every node is back.
pub(super) async fn clear_announcements(
    api: &SearchClient,
    node: &DatabaseNode,
    lead: &LeaderPermit,
    watch: &mut AnnouncementWatch,
) -> Result<(), Error> {
    let now = Instant::now();
    if watch.looked.is_some_and(|last| now - last < LOOK_EVERY) {
        return Ok(());
    }
    watch.looked = Some(now);
    let nodes = api.read_nodes().await?;
    if !nodes.has_master {
        return Ok(());
    }
    let present: BTreeSet<String> = nodes.names.into_values().collect();
    let mut pilots = node.peers.iter().chain([&node.pilot]);
    let has_awaited = pilots.any(|pilot| is_awaited(pilot, &present));
    // A failed request about records does not stop that about delays, nor the reverse.
    let (records, delays) = (api.shutdown_records().await, api.indices_with(SETTING, DELAY).await);
    let is_own = |record: &&ShutdownRecord| record.reason == REASON;
    let own_records: Vec<_> = records.iter().flatten().flatten().filter(is_own).collect();
    let indices = delays.as_deref().unwrap_or_default();
    let has_announcements = !(own_records.is_empty() && indices.is_empty());
    if watch.is_over(has_awaited, has_announcements, now) && lead.is_held() {
        info!(records = own_records.len(), indices = indices.len(), "Restarts are over");
        remove_announcements(api, lead, &own_records, indices).await?;
    }
    records.and(delays.map(drop))
}

/// Removes announcements while this pilot leads; the next search finds what is left. Returns the
/// first error.
async fn remove_announcements(
    api: &SearchClient,
    lead: &LeaderPermit,
    records: &[&ShutdownRecord],
    indices: &[String],
) -> Result<(), Error> {
    let mut result = Ok(());
    for record in records {
        if lead.is_held() {
            result = result.and(api.remove_record(&record.node_id).await);
        }
    }
    for names in batch_names(indices) {
        if !lead.is_held() {
            break;
        }
        let outcome = api.unset_setting(&names, SETTING).await;
        if !names.contains(',') || !matches!(outcome, Err(Error::Refused(_))) {
            result = result.and(outcome);
            continue;
        }
        // One index that is refused has all of its request refused.
        for name in names.split(',') {
            if lead.is_held() {
                result = result.and(api.unset_setting(name, SETTING).await);
            }
        }
    }
    result
}

impl AnnouncementWatch {
    /// Records a search, and decides whether the announced restarts are over. `awaited`: a node is
    /// still away; `found`: there is an announcement.
    fn is_over(&mut self, has_awaited: bool, has_announcements: bool, now: Instant) -> bool {
        if !has_announcements {
            (self.found, self.back) = (None, None);
            return false;
        }
        let first = *self.found.get_or_insert(now);
        self.back = if has_awaited { None } else { self.back.or(Some(now)) };
        self.back.is_some_and(|back| now - back >= LOOK_EVERY) || now - first >= LONGEST
    }

    /// Returns the watch of a leader in whose earlier searches every node was back.
    #[cfg(test)]
    pub(super) fn of_old() -> Self {
        let then = Instant::now().checked_sub(2 * LOOK_EVERY);
        Self { looked: then, found: then, back: then }
    }
}

/// Does the Pilot's spec want the node to run again right away?
fn comes_back(pilot: &Pilot) -> bool {
    matches!(pilot.spec.phase, None | Some(PilotIntent::Running))
}

/// Is the Pilot's node a member that is away, or about to be, and comes back?
fn is_awaited(pilot: &Pilot, present: &BTreeSet<String>) -> bool {
    let is_serving =
        pilot.status.phase == Some(PilotPhase::Running) && present.contains(pilot_name(pilot));
    node_id(pilot).is_some() && comes_back(pilot) && !is_serving
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::Identity;

    fn after(seconds: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_over_when_every_node_was_back_at_two_looks_in_a_row_or_after_ten_minutes() {
        let mut watch = AnnouncementWatch::default();
        let mut look = |seconds, awaited| watch.is_over(awaited, true, after(seconds));
        assert!(!look(0, false), "whoever announced it has not stopped yet");
        assert!(!look(20, true));
        assert!(!look(40, false));
        assert!(look(60, false));
        assert!(!watch.is_over(false, false, after(80)), "there is nothing any more");
        let mut look = |seconds, awaited| watch.is_over(awaited, true, after(seconds));
        assert!(!look(100, true));
        assert!(!look(699, true));
        assert!(look(700, true), "a node that does not come back");
    }

    #[test]
    fn a_member_is_awaited_until_it_serves_again_and_nobody_else_is() {
        let pilot = |intent: Option<PilotIntent>, phase: PilotPhase, member: bool| {
            let mut pilot = Pilot::default();
            pilot.metadata.name = Some("es-a".into());
            (pilot.spec.phase, pilot.status.phase) = (intent, Some(phase));
            pilot.status.identity =
                member.then(|| Identity { node_id: Some("a".into()), ..Identity::default() });
            pilot
        };
        let running = Some(PilotIntent::Running);
        let present = BTreeSet::from(["es-a".to_owned()]);
        for (intent, phase, member, present, awaited) in [
            (running.clone(), PilotPhase::Running, true, &present, false),
            (None, PilotPhase::Running, true, &BTreeSet::new(), true),
            (running.clone(), PilotPhase::Stopping, true, &present, true),
            (running.clone(), PilotPhase::Starting, true, &BTreeSet::new(), true),
            (running, PilotPhase::Starting, false, &BTreeSet::new(), false),
            (Some(PilotIntent::Stopped), PilotPhase::Stopped, true, &BTreeSet::new(), false),
            (Some(PilotIntent::Decommissioned), PilotPhase::Stopping, true, &present, false),
        ] {
            let pilot = pilot(intent, phase, member);
            assert_eq!(is_awaited(&pilot, present), awaited, "{pilot:?}");
        }
    }
}
