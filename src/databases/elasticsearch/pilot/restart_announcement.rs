//! Announces restarts to the cluster, so that the master does not build the node's shard copies
//! elsewhere meanwhile.
//!
//! Owns two ways. Where the node shutdown API exists (the default distribution from 7.15 on), a
//! shutdown record of the node; elsewhere the delay of every index that has no delay of its own,
//! set to a value that no other client writes. The node that stops announces the restart, with its
//! last requests. The leading pilot takes the announcement back when every node is back: it
//! searches for the announcements of any pilot, and remembers none. Records and delays that people
//! set are never written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Duration,
};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::{
    lead_duties::{NODES, NodesAnswer, name, node_id},
    rest_client::RestClient,
};
use crate::{
    api::v1beta1::{Pilot, PilotIntent, PilotPhase},
    pilot::{
        driver::{DatabaseNode, Error, LeaderPermit},
        query_answer::{QueryAnswer, UnansweredQuery},
    },
};

/// How long a node may be away. The odd figure tells Navigator's delay from those of people.
const DELAY: &str = "300007ms";
/// Reason in a shutdown record, which tells Navigator's records from those of people.
const REASON: &str = "navigator: the node restarts";
const SETTING: &str = "index.unassigned.node_left.delayed_timeout";
/// JSON pointer to the delay in an answer. 5.6 cannot be asked for flat settings.
const SETTING_AT: &str = "/index/unassigned/node_left/delayed_timeout";

const RECORDS: &str = "/_nodes/shutdown";
/// Path that asks for the delays of indices. Indices whose name begins with a dot are the system's,
/// whose settings may not be changed.
const DELAYS: &str = "/*,-.*/_settings/index.unassigned.node_left.delayed_timeout\
                      ?expand_wildcards=open,closed&allow_no_indices=true";
/// Path that sets the delay of every index that has none of its own.
const DELAY_ALL: &str = "/*,-.*/_settings\
                         ?preserve_existing=true&expand_wildcards=open,closed&allow_no_indices=true";

const PATIENCE: Duration = Duration::from_secs(5);
/// Limit for a whole announcement: the flush before a stop gets the rest of the time.
const ANNOUNCEMENT: Duration = Duration::from_secs(8);
/// Pause between two searches for announcements. Every node must be back in two of them.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Time after which an announcement is taken back although a node is still away: it has lost its
/// purpose.
const LONGEST: Duration = Duration::from_secs(600);
/// Most bytes of index names in one request, whose first line may have 4 KiB at most.
const NAMES: usize = 2 << 10;

/// Announces that the node stops and comes back, where the cluster has other nodes.
pub(super) async fn announce(api: &RestClient, node: &DatabaseNode) -> Result<(), Error> {
    let Some(id) = node_id(&node.pilot).filter(|_| comes_back(&node.pilot)) else { return Ok(()) };
    tokio::time::timeout(ANNOUNCEMENT, announce_as(api, id)).await?
}

async fn announce_as(api: &RestClient, id: &str) -> Result<(), Error> {
    let NodesAnswer { master_node, nodes } = api.hear::<NodesAnswer>(NODES).await.or_fail()?;
    if master_node.is_none() || nodes.len() < 2 {
        return Ok(());
    }
    if let Some(records) = records(api).await? {
        if records.iter().any(|record| record.node_id == id) {
            return Ok(());
        }
        let body = json!({"type": "restart", "reason": REASON, "allocation_delay": DELAY});
        let path = format!("/_nodes/{id}/shutdown");
        match api.change(Method::PUT, &path, Some(&body), PATIENCE).await {
            // 7.13 and 7.14 do not accept a delay in a record.
            Err(Error::Refused(why)) => info!(why, "The restart is announced by delays instead"),
            done => return done.map(drop),
        }
    }
    let body = json!({SETTING: DELAY});
    api.change(Method::PUT, DELAY_ALL, Some(&body), PATIENCE).await.map(drop)
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
pub(super) async fn take_back(
    api: &RestClient,
    node: &DatabaseNode,
    lead: &LeaderPermit,
    watch: &mut AnnouncementWatch,
) -> Result<(), Error> {
    let now = Instant::now();
    if watch.looked.is_some_and(|looked| now - looked < LOOK_EVERY) {
        return Ok(());
    }
    watch.looked = Some(now);
    let NodesAnswer { master_node, nodes } = api.hear::<NodesAnswer>(NODES).await.or_fail()?;
    if master_node.is_none() {
        return Ok(());
    }
    let present: BTreeSet<String> = nodes.into_values().map(|node| node.name).collect();
    let mut pilots = node.peers.iter().chain([&node.pilot]);
    let awaited = pilots.any(|pilot| is_awaited(pilot, &present));
    // A failed request about records does not stop that about delays, nor the reverse.
    let (records, delays) = (records(api).await, delays(api).await);
    let ours = |all: Option<Vec<ShutdownRecord>>| -> Vec<ShutdownRecord> {
        all.into_iter().flatten().filter(|record| record.reason == REASON).collect()
    };
    let found = RestartAnnouncements {
        records: records.as_ref().ok().cloned().map(ours).unwrap_or_default(),
        delays: delays.as_ref().ok().cloned().unwrap_or_default(),
    };
    if watch.is_over(awaited, !found.is_nothing(), now) && lead.holds() {
        found.take_back(api, lead).await?;
    }
    records.and(delays.map(drop))
}

impl AnnouncementWatch {
    /// Records a search, and decides whether the announced restarts are over. `awaited`: a node is
    /// still away; `found`: there is an announcement.
    fn is_over(&mut self, awaited: bool, found: bool, now: Instant) -> bool {
        if !found {
            (self.found, self.back) = (None, None);
            return false;
        }
        let first = *self.found.get_or_insert(now);
        self.back = if awaited { None } else { self.back.or(Some(now)) };
        self.back.is_some_and(|back| now - back >= LOOK_EVERY) || now - first >= LONGEST
    }

    /// Returns the watch of a leader in whose earlier searches every node was back.
    #[cfg(test)]
    pub(super) fn of_old() -> Self {
        let then = Instant::now().checked_sub(2 * LOOK_EVERY);
        Self { looked: then, found: then, back: then }
    }
}

/// Navigator's announcements of restarts, as the leader finds them.
#[derive(Debug, Default)]
struct RestartAnnouncements {
    records: Vec<ShutdownRecord>,
    /// Names of indices with Navigator's delay.
    delays: Vec<String>,
}

impl RestartAnnouncements {
    fn is_nothing(&self) -> bool {
        self.records.is_empty() && self.delays.is_empty()
    }

    async fn take_back(self, api: &RestClient, lead: &LeaderPermit) -> Result<(), Error> {
        info!(records = self.records.len(), indices = self.delays.len(), "Restarts are over");
        let body = json!({SETTING: Value::Null});
        let records = self
            .records
            .iter()
            .map(|record| (Method::DELETE, format!("/_nodes/{}/shutdown", record.node_id), None));
        let delays = batches(&self.delays).into_iter().map(|names| {
            let path = format!("/{names}/_settings?ignore_unavailable=true&allow_no_indices=true");
            (Method::PUT, path, Some(&body))
        });
        let mut first = Ok(());
        for (method, path, body) in records.chain(delays) {
            if !lead.holds() {
                break;
            }
            // The next search finds what is left.
            let done = api.change(method, &path, body, PATIENCE).await;
            first = first.and(done.map(drop));
        }
        first
    }
}

/// A record of the node shutdown API.
#[derive(Clone, Debug, Deserialize)]
struct ShutdownRecord {
    node_id: String,
    #[serde(default)]
    reason: String,
}

#[derive(Debug, Deserialize)]
struct ShutdownAnswer {
    nodes: Value,
}

impl ShutdownAnswer {
    /// Returns the records; `None` where the server has no node shutdown API: it then takes the
    /// request for one about nodes with the id `shutdown`, of which there are none.
    fn records(self) -> QueryAnswer<Option<Vec<ShutdownRecord>>> {
        match self.nodes {
            Value::Object(_) => QueryAnswer::Said(None),
            list => match Vec::deserialize(list) {
                Ok(records) => QueryAnswer::Said(Some(records)),
                Err(error) => QueryAnswer::Not(UnansweredQuery::new(RECORDS, error.to_string())),
            },
        }
    }
}

async fn records(api: &RestClient) -> Result<Option<Vec<ShutdownRecord>>, Error> {
    Ok(api.hear::<ShutdownAnswer>(RECORDS).await.and_then(ShutdownAnswer::records).or_fail()?)
}

#[derive(Debug, Deserialize)]
struct IndexSettings {
    settings: Value,
}

/// Returns the names of the indices with Navigator's delay.
async fn delays(api: &RestClient) -> Result<Vec<String>, Error> {
    let all = api.hear::<BTreeMap<String, IndexSettings>>(DELAYS).await.or_fail()?;
    let ours = |index: &IndexSettings| {
        index.settings.pointer(SETTING_AT).is_some_and(|delay| delay == DELAY)
    };
    Ok(all.into_iter().filter(|(_, index)| ours(index)).map(|(name, _)| name).collect())
}

/// Does the Pilot's spec want the node to run again right away?
fn comes_back(pilot: &Pilot) -> bool {
    matches!(pilot.spec.phase, None | Some(PilotIntent::Running))
}

/// Is the Pilot's node a member that is away, or about to be, and comes back?
fn is_awaited(pilot: &Pilot, present: &BTreeSet<String>) -> bool {
    let serves = pilot.status.phase == Some(PilotPhase::Running) && present.contains(name(pilot));
    node_id(pilot).is_some() && comes_back(pilot) && !serves
}

/// Joins encoded index names for request paths, in as many batches as [`NAMES`] requires.
fn batches(names: &[String]) -> Vec<String> {
    let mut batches: Vec<String> = Vec::new();
    for name in names {
        let name = encoded(name);
        match batches.last_mut().filter(|batch| batch.len() + name.len() < NAMES) {
            Some(batch) => {
                batch.push(',');
                batch.push_str(&name);
            }
            None => batches.push(name),
        }
    }
    batches
}

fn encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            write!(text, "%{byte:02X}").ok();
        }
    }
    text
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

    #[test]
    fn names_go_into_paths_in_as_many_requests_as_they_need() {
        let names = ["logs", "größe+1"].map(str::to_owned);
        assert_eq!(batches(&names), ["logs,gr%C3%B6%C3%9Fe%2B1"]);
        let many: Vec<String> = (0..1000).map(|n| format!("index-{n:04}")).collect();
        let batches = batches(&many);
        assert!(batches.len() > 3 && batches.iter().all(|batch| batch.len() <= NAMES));
        assert_eq!(batches.join(",").split(',').count(), 1000);
        assert!(super::batches(&[]).is_empty());
    }

    #[test]
    fn who_keeps_no_records_is_told_from_who_has_none() {
        let read = |text: &str| {
            let answer = serde_json::from_str::<ShutdownAnswer>(text).unwrap();
            answer.records().or_fail().map(|records| records.map(|records| records.len()))
        };
        assert_eq!(read(r#"{"nodes": []}"#), Ok(Some(0)));
        let other = r#"{"_nodes": {"total": 0}, "cluster_name": "x", "nodes": {}}"#;
        assert_eq!(read(other), Ok(None));
        let one = r#"{"nodes": [{"node_id": "n", "type": "RESTART", "reason": "mine"}]}"#;
        assert_eq!(read(one), Ok(Some(1)));
        assert!(read(r#"{"nodes": [{"type": "RESTART"}]}"#).is_err());
        assert!(read(r#"{"nodes": null}"#).is_err());
        assert!(serde_json::from_str::<ShutdownAnswer>("{}").is_err());
    }
}
