//! Decommissions a node: it leaves the ring with all data handed over.
//!
//! Every call reads the ring first and takes the next step from there, so a decommission resumes
//! after a crash of the pilot, of the database, or of both. Refuses before it begins when the other
//! nodes could not hold the data; once Cassandra says LEAVING there is no way back.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use tracing::warn;

use super::{
    CassandraDriver, keyspaces,
    node_view::{NodeView, STORAGE_SERVICE, StreamState},
    resolved_spec::{datacenter_of, in_datacenter, rack_of},
    state::NodeState,
};
use crate::{
    api::{
        predicate::{DEPARTURE_ACCEPTED, Predicate, SPACE_ELSEWHERE},
        v1beta1::{Decommission, Pilot},
    },
    databases::cassandra::predicates::{MEMBERS_REMAIN, RECEIVERS_READY, REPLICATION_FACTOR},
    error::chain,
    pilot::{
        clients::jolokia::JolokiaClient,
        driver::{DatabaseNode, DecommissionState, DepartureRefusal, Error},
        kube::peers::is_decommissioned,
        node::blockers::current_time,
        query_answer::UnansweredQuery,
        transfer_progress::TransferProgress,
    },
};

/// How long to wait for Cassandra to refuse a decommission. Refusals come at once; an operation
/// that takes longer has begun.
const REFUSAL: Duration = Duration::from_secs(3);
/// How long a leaving node may stream nothing before it is told to leave again: 4.x stays LEAVING
/// when a stream fails. Longer than the ring delay (30 s) for which the node announces itself
/// before the first stream and after the last one; told too early, Cassandra answers [`UNDER_WAY`].
const STALLED: Duration = Duration::from_secs(60);
const UNDER_WAY: &str = "still decommissioning";

/// What the pilot saw of the decommission since this process was last told to leave.
#[derive(Debug, Default)]
pub(super) struct DecommissionProgress {
    pub(super) streams: TransferProgress,
    /// Time since which this process knows that the node gives its data away: a full volume cannot
    /// store it.
    begun: Option<Time>,
}

impl DecommissionProgress {
    /// Takes the streams of a node that leaves. Returns whether it has to be told again, and then
    /// forgets what it saw; and the figures.
    pub(super) fn track_streams(&mut self, streams: &[StreamState]) -> (bool, Option<(i64, i32)>) {
        self.streams.record_transfers(
            streams.iter().map(|stream| (&*stream.plan, stream.sending, stream.sent)),
        );
        let is_stalled = self.streams.idle_duration() > STALLED;
        if is_stalled {
            self.streams = TransferProgress::default();
        }
        (is_stalled, self.streams.progress())
    }
}

/// The next step of a decommission, from what the ring reports.
#[derive(Clone, Debug, PartialEq)]
enum DecommissionStep {
    Left,
    Wait(&'static str),
    Watch,
    Begin,
}

fn next_step(mode: &str) -> DecommissionStep {
    match mode {
        "DECOMMISSIONED" => DecommissionStep::Left,
        "LEAVING" => DecommissionStep::Watch,
        "NORMAL" | "DECOMMISSION_FAILED" => DecommissionStep::Begin,
        "JOINING" => DecommissionStep::Wait("waits until the node has joined the ring"),
        "MOVING" => DecommissionStep::Wait("waits until the node has moved its tokens"),
        "DRAINING" | "DRAINED" => DecommissionStep::Wait(
            "somebody drained the node, and only another process leaves the ring: delete its pod",
        ),
        _ => DecommissionStep::Wait("waits until Cassandra has started"),
    }
}

impl CassandraDriver {
    pub(super) async fn decommission_node(
        &self,
        node: &DatabaseNode,
    ) -> Result<DecommissionState, Error> {
        let state = self.state.read()?;
        if state.left {
            return Ok(DecommissionState::Done);
        }
        let start_time = self.start_time(&state);
        let jolokia = self.jolokia()?;
        let facts = NodeView::query(&jolokia).await?;
        let mut report = Decommission { start_time: start_time.clone(), ..Decommission::default() };
        match next_step(&facts.mode) {
            DecommissionStep::Left => {
                self.note_departure(|state| state.left = true);
                return Ok(DecommissionState::Done);
            }
            DecommissionStep::Wait(message) => report.message = Some(message.to_owned()),
            DecommissionStep::Watch => {
                let (is_stalled, figures) =
                    self.driver_state().progress.track_streams(&facts.streams);
                let refusal =
                    if is_stalled { start_decommission(&jolokia, true).await? } else { None };
                let close_error = self.close_logins(node).await.err();
                let close_error = close_error
                    .map(|error| format!("logins of this cluster are not closed: {error}"));
                report.percent = Some(figures.map_or(0, |(_, percent)| percent));
                report.bytes_left = figures.map(|(bytes_left, _)| bytes_left).or(facts.load);
                report.irreversible = true;
                let idle_message = || "told the ring; no stream runs".to_owned();
                report.message =
                    refusal.or(close_error).or_else(|| facts.streams.is_empty().then(idle_message));
            }
            DecommissionStep::Begin => {
                if let Some(message) = self.login_copies_hold(node).await {
                    report.message = Some(message);
                    return Ok(DecommissionState::Moving(report));
                }
                if let Some(refusal) = find_refusal(&jolokia, node, &facts).await? {
                    return Ok(DecommissionState::Refused(refusal));
                }
                let since = start_time.unwrap_or_else(current_time);
                self.driver_state().progress.begun = Some(since.clone());
                self.note_departure(|state| {
                    state.decommissioning_since.get_or_insert_with(|| since.clone());
                });
                if let Some(message) = start_decommission(&jolokia, false).await? {
                    let refusal = DepartureRefusal::new(refused_predicate(&message), message);
                    return Ok(DecommissionState::Refused(refusal));
                }
                (report.start_time, report.percent) = (Some(since), Some(0));
                report.bytes_left = facts.load;
                // From here on only the ring knows whether the node has announced that it leaves.
                report.irreversible = true;
            }
        }
        Ok(DecommissionState::Moving(report))
    }

    /// Returns since when the node gives its data away, by its volume or, where that could not be
    /// written, by this process.
    fn start_time(&self, state: &NodeState) -> Option<Time> {
        state.decommissioning_since.clone().or_else(|| self.driver_state().progress.begun.clone())
    }

    /// Saves how far a decommission is. A full volume does not stop it: leaving frees the volume,
    /// and Cassandra itself reports how far the node is.
    fn note_departure(&self, change: impl FnOnce(&mut NodeState)) {
        if let Err(error) = self.state.change(change) {
            warn!(error = %chain(&error), "Where the departure stands is not written down");
        }
    }

    /// Takes a decommission back, unless it is too late for the node to stay.
    pub(super) async fn cancel_leaving(&self) -> Result<(), Error> {
        let state = self.state.read()?;
        if state.left {
            return Err(Error::TooLate("the node has left the ring".to_owned()));
        }
        if self.start_time(&state).is_none() {
            return Ok(());
        }
        let facts = NodeView::query(&self.jolokia()?).await?;
        if matches!(facts.mode.as_str(), "LEAVING" | "DECOMMISSIONED") {
            return Err(Error::TooLate("the node is leaving the ring".to_owned()));
        }
        self.driver_state().progress.begun = None;
        self.note_departure(|state| state.decommissioning_since = None);
        Ok(())
    }
}

/// Tells Cassandra to leave, without waiting for the end. Returns Cassandra's refusal in its own
/// words.
///
/// Forces the decommission only where Cassandra's refusal names one of its own keyspaces, or where
/// `force` is set: with three nodes or fewer it would otherwise never let a node go
/// (system_distributed has replication factor 3).
async fn start_decommission(jolokia: &JolokiaClient, force: bool) -> Result<Option<String>, Error> {
    let decommission = async |force: bool| {
        let arguments = json!([force]);
        jolokia
            .execute_operation(STORAGE_SERVICE, "decommission(boolean)", &arguments, REFUSAL)
            .await
    };
    let refusal = decommission(force).await?.refusal();
    match refusal.as_deref() {
        Some(message) if message.contains(UNDER_WAY) => Ok(None),
        Some(message) if message.contains("maintain replication factor in keyspace system_") => {
            Ok(decommission(true).await?.refusal())
        }
        _ => Ok(refusal),
    }
}

/// Returns the predicate that a refusal in Cassandra's own words belongs to.
fn refused_predicate(message: &str) -> &'static Predicate {
    if message.contains("maintain replication factor") {
        &REPLICATION_FACTOR
    } else if message.contains("no other normal nodes") {
        &MEMBERS_REMAIN
    } else {
        &DEPARTURE_ACCEPTED
    }
}

/// Returns why the rest of the ring could not take over this node's data; `None` when it could.
async fn find_refusal(
    jolokia: &JolokiaClient,
    node: &DatabaseNode,
    facts: &NodeView,
) -> Result<Option<DepartureRefusal>, Error> {
    let remaining = RemainingMembers::from_view(facts);
    if let Some(reason) = remaining.find_ring_refusal(facts) {
        return Ok(Some(reason));
    }
    let keyspaces = keyspaces::list_user_keyspaces(jolokia).await?;
    let mut largest = 0;
    for (keyspace, info) in
        keyspaces::call_for_keyspaces(jolokia, keyspaces::REPLICATION, keyspaces).await?
    {
        let info = info.or_fail()?;
        let factors = keyspaces::replication_factors(info.as_str().unwrap_or_default());
        if let Some(reason) = remaining.too_few_for(&keyspace, &factors)? {
            return Ok(Some(reason));
        }
        let factor = remaining.datacenter.and_then(|datacenter| factors.get(datacenter));
        largest = largest.max(factor.copied().unwrap_or_default());
    }
    let datacenter = datacenter_of(&node.pilot);
    let receivers =
        Receivers { datacenter: &datacenter, rack: remaining.rack_of_receivers(largest) };
    Ok(receivers.no_room(&node.peers, facts.load))
}

/// The members that remain after a decommission.
struct RemainingMembers<'a> {
    all: usize,
    /// Members in this node's datacenter, whose name is `datacenter`.
    near: usize,
    datacenter: Option<&'a str>,
    /// Members by rack in this node's datacenter, this node's own rack among them; `None` where the
    /// rack of one is not known.
    racks: Option<BTreeMap<&'a str, usize>>,
    rack: Option<&'a str>,
}

impl<'a> RemainingMembers<'a> {
    fn from_view(facts: &'a NodeView) -> Self {
        let own_node = facts.own_endpoint();
        let datacenter = own_node.and_then(|node| node.datacenter.as_deref());
        let rack = own_node.and_then(|node| node.rack.as_deref());
        let members: Vec<_> = facts
            .live
            .iter()
            .filter(|node| Some(**node) != facts.address)
            .filter(|node| !facts.joining.contains(node) && !facts.leaving.contains(node))
            .map(|node| facts.gossip.get(node))
            .collect();
        let near: Vec<_> = members
            .iter()
            .filter(|node| node.and_then(|node| node.datacenter.as_deref()) == datacenter)
            .collect();
        let racks = rack.and_then(|own_rack| {
            let mut racks = BTreeMap::from([(own_rack, 0)]);
            for node in &near {
                *racks.entry(node.as_ref()?.rack.as_deref()?).or_default() += 1;
            }
            Some(racks)
        });
        Self { all: members.len(), near: near.len(), datacenter, racks, rack }
    }

    /// Returns the rack whose nodes take all data of this node; `None` where nodes of the whole
    /// datacenter take them. `largest` is the largest replication factor of a keyspace in the
    /// datacenter.
    ///
    /// `NetworkTopologyStrategy.DatacenterEndpoints` puts the replicas of a range into different
    /// racks as long as there are enough. With as many racks as replicas, each rack has one replica
    /// of each range, so only the node's own rack can take over. With more racks, another rack may
    /// take over; with fewer, or if the node is the last of its rack, all racks share.
    fn rack_of_receivers(&self, largest: usize) -> Option<&'a str> {
        let racks = self.racks.as_ref()?;
        let rack = self.rack?;
        let is_shared = racks.get(rack).is_some_and(|nodes| *nodes > 0);
        (racks.len() > 1 && racks.len() == largest && is_shared).then_some(rack)
    }

    /// Returns why the remaining members could not take data now; `None` when they could.
    fn find_ring_refusal(&self, facts: &NodeView) -> Option<DepartureRefusal> {
        if let Some(down_node) = facts.unreachable.first() {
            let message = format!(
                "{down_node} is down and could not take its part of the data; bring it back, or replace or \
                 remove it first"
            );
            return Some(DepartureRefusal::new(&RECEIVERS_READY, message));
        }
        if self.all == 0 {
            let message =
                "this is the last node of the ring; add a node first, or delete the cluster";
            return Some(DepartureRefusal::new(&MEMBERS_REMAIN, message));
        }
        // Nodes that know different replication factors refuse each other's rows.
        (facts.count_schemas() > 1).then(|| {
            let message = "the nodes do not agree on the schema yet; where that lasts, restart the node \
                       that `nodetool describecluster` shows alone";
            DepartureRefusal::new(&RECEIVERS_READY, message)
        })
    }

    /// Returns why too few members remain for `keyspace`, which has these replication factors.
    fn too_few_for(
        &self,
        keyspace: &str,
        factors: &BTreeMap<String, usize>,
    ) -> Result<Option<DepartureRefusal>, Error> {
        let (factor, remaining_nodes) = match (factors.get("replication_factor"), self.datacenter) {
            (Some(factor), _) => (*factor, self.all),
            // The keyspace may be in other datacenters only.
            (None, Some(datacenter)) if !factors.is_empty() => match factors.get(datacenter) {
                Some(factor) => (*factor, self.near),
                None => return Ok(None),
            },
            _ => {
                let question = format!("{}({keyspace})", keyspaces::REPLICATION);
                return Err(UnansweredQuery::new(&question, format!("answered {factors:?}")).into());
            }
        };
        Ok((factor > remaining_nodes).then(|| {
            let message = format!(
                "keyspace {keyspace} has replication factor {factor}, and {remaining_nodes} nodes would \
                 remain for it; lower the factor or add a node first"
            );
            DepartureRefusal::new(&REPLICATION_FACTOR, message)
        }))
    }
}

/// The nodes that take the data of a node that leaves.
struct Receivers<'a> {
    datacenter: &'a str,
    /// `None`: nodes of all racks.
    rack: Option<&'a str>,
}

impl Receivers<'_> {
    /// Returns why they have no room for `load` bytes, by what their pilots report of their
    /// volumes. `None` when they have room, or when one of them reports nothing. A peer that left
    /// takes no data.
    fn no_room(&self, peers: &[Pilot], load: Option<i64>) -> Option<DepartureRefusal> {
        let load = load?;
        let mut free = 0;
        let peers: Vec<&Pilot> = in_datacenter(peers, self.datacenter)
            .filter(|peer| self.rack.is_none_or(|rack| rack_of(peer) == rack))
            .filter(|peer| !is_decommissioned(peer))
            .collect();
        for peer in &peers {
            let storage = peer.status.storage.as_ref()?;
            // A tenth stays free, for Cassandra's compactions.
            free += (storage.capacity_bytes * 9 / 10 - storage.used_bytes).max(0);
        }
        (!peers.is_empty() && free < load).then(|| {
            let (place, remedy) = match self.rack {
                Some(rack) => (format!(" of rack {rack}"), "add a node to that rack"),
                None => (String::new(), "add a node"),
            };
            let message = format!(
                "the other nodes{place} have room for {free} bytes, and this node holds {load}; \
                 {remedy}, enlarge volumes or delete data first"
            );
            DepartureRefusal::new(&SPACE_ELSEWHERE, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Instant};

    use super::*;
    use crate::{
        api::v1beta1::{PilotPhase, PilotStorage},
        databases::cassandra::{
            names::DEFAULT_DATACENTER,
            pilot::{node_view::EndpointState, tests::peer},
            v1beta1::CassandraNode,
        },
    };

    #[test]
    fn every_mode_has_its_next_step() {
        assert_eq!(next_step("NORMAL"), DecommissionStep::Begin);
        assert_eq!(next_step("DECOMMISSION_FAILED"), DecommissionStep::Begin);
        assert_eq!(next_step("LEAVING"), DecommissionStep::Watch);
        assert_eq!(next_step("DECOMMISSIONED"), DecommissionStep::Left);
        for mode in ["STARTING", "JOINING", "MOVING", "DRAINED", "anything"] {
            assert!(matches!(next_step(mode), DecommissionStep::Wait(_)), "{mode}");
        }
        let DecommissionStep::Wait(why) = next_step("DRAINED") else {
            panic!("a drained node does not leave")
        };
        assert!(why.contains("delete its pod"), "the way out: {why}");
    }

    #[test]
    fn progress_never_goes_back_when_sessions_drop_out() {
        let mut progress = DecommissionProgress::default();
        assert_eq!(progress.streams.progress(), None);
        let stream = |sending, sent| StreamState {
            plan: "p".to_owned(),
            sending,
            sent,
            ..StreamState::default()
        };
        let mut follow = |stream: StreamState| progress.track_streams(&[stream]).1;
        assert_eq!(follow(stream(200, 50)), Some((150, 25)));
        assert_eq!(follow(stream(100, 20)), Some((150, 25)));
        assert_eq!(follow(stream(200, 200)), Some((0, 99)), "only the ring says that it is done");
    }

    #[test]
    fn a_leaving_node_without_streams_is_asked_again_after_a_minute() {
        let mut progress = DecommissionProgress::default();
        assert!(!progress.track_streams(&[]).0);
        let ring_delay_over = Duration::from_secs(45);
        progress.streams.idle_since = Instant::now().checked_sub(ring_delay_over);
        assert!(!progress.track_streams(&[]).0);
        let minute_over = Instant::now().checked_sub(STALLED + Duration::from_secs(1));
        progress.streams.idle_since = minute_over;
        assert!(progress.track_streams(&[]).0);
        assert!(!progress.track_streams(&[]).0, "it was told");
        progress.streams.idle_since = minute_over;
        assert!(!progress.track_streams(&[StreamState::default()]).0);
    }

    #[test]
    fn nodes_that_are_down_absent_or_of_another_schema_take_nothing() {
        let node = |last: u8| IpAddr::from([10, 0, 0, last]);
        let gossip = |schema: &str| EndpointState {
            schema: Some(schema.to_owned()),
            ..EndpointState::default()
        };
        let mut facts = NodeView {
            address: Some(node(1)),
            live: [node(1), node(2)].into(),
            gossip: [(node(1), gossip("s1")), (node(2), gossip("s1"))].into(),
            ..NodeView::default()
        };
        let unfit = |facts: &NodeView| {
            let refusal = RemainingMembers::from_view(facts).find_ring_refusal(facts);
            refusal.map_or(("", String::new()), |it| (it.predicate.name, it.why))
        };
        assert_eq!(unfit(&facts).0, "");
        facts.gossip.insert(node(2), gossip("s2"));
        let (rule, why) = unfit(&facts);
        assert!(rule == "ReceiversReady" && why.contains("schema"), "{rule} {why}");
        facts.live.remove(&node(2));
        let (rule, why) = unfit(&facts);
        assert!(rule == "MembersRemain" && why.contains("last node"), "{rule} {why}");
        facts.unreachable.insert(node(2));
        let (rule, why) = unfit(&facts);
        assert!(rule == "ReceiversReady" && why.contains("10.0.0.2 is down"), "{rule} {why}");
    }

    #[test]
    fn a_refusal_in_the_words_of_cassandra_has_the_name_of_its_cause() {
        for (words, rule) in [
            (
                "Not enough live nodes to maintain replication factor in keyspace shop (RF = 3, N = \
                 3). Perform a forceful decommission to ignore.",
                "ReplicationFactor",
            ),
            ("no other normal nodes in the ring; decommission would be pointless", "MembersRemain"),
            ("Node in MOVING state; wait for status to become normal", "DepartureAccepted"),
        ] {
            assert_eq!(refused_predicate(words).name, rule);
        }
    }

    #[test]
    fn a_factor_that_the_rest_cannot_hold_is_an_obstacle() {
        let others =
            RemainingMembers { all: 4, near: 2, datacenter: Some("eu"), racks: None, rack: None };
        for (info, refused) in [
            (
                "ReplicationParams{class=org.apache.cassandra.locator.SimpleStrategy, replication_factor=3}",
                false,
            ),
            (
                "ReplicationParams{class=org.apache.cassandra.locator.SimpleStrategy, replication_factor=5}",
                true,
            ),
            ("{class=NetworkTopologyStrategy, eu=3, us=1}", true),
            ("{class=NetworkTopologyStrategy, eu=2, us=9}", false),
            ("{class=NetworkTopologyStrategy, us=9}", false),
            ("{class=NetworkTopologyStrategy, eu=3/1}", true),
        ] {
            let refusal =
                others.too_few_for("shop", &keyspaces::replication_factors(info)).unwrap();
            assert_eq!(refusal.is_some(), refused, "{info}");
        }
        for unsaid in ["", "null", "{class=NetworkTopologyStrategy}"] {
            let answer = others.too_few_for("shop", &keyspaces::replication_factors(unsaid));
            assert!(matches!(answer, Err(Error::NotHeard(_))), "{unsaid:?}: {answer:?}");
        }
        let nowhere = RemainingMembers { datacenter: None, ..others };
        let info = "{class=NetworkTopologyStrategy, eu=2}";
        let answer = nowhere.too_few_for("shop", &keyspaces::replication_factors(info));
        assert!(matches!(answer, Err(Error::NotHeard(_))), "{answer:?}");
    }

    #[test]
    fn a_node_stays_when_the_others_have_no_room() {
        let with_free = |free: i64| {
            let mut pilot = peer("b", "10.0.0.2", true);
            pilot.status.storage = Some(PilotStorage {
                path: String::new(),
                capacity_bytes: 1000,
                used_bytes: 900 - free,
                ..PilotStorage::default()
            });
            pilot
        };
        let receivers = Receivers { datacenter: DEFAULT_DATACENTER, rack: None };
        let no_room = |peers: &[Pilot], load| receivers.no_room(peers, load);
        assert_eq!(no_room(&[with_free(60), with_free(60)], Some(100)), None);
        assert!(no_room(&[with_free(10), with_free(60)], Some(100)).is_some());
        assert_eq!(no_room(&[with_free(10), peer("c", "10.0.0.3", true)], Some(100)), None);
        assert_eq!(no_room(&[], Some(100)), None);
        let mut gone = with_free(500);
        gone.status.phase = Some(PilotPhase::Decommissioned);
        assert!(no_room(&[with_free(60), gone], Some(100)).is_some(), "it takes no data");
        let mut far = with_free(500);
        far.spec.change_part::<CassandraNode>(|part| part.datacenter = Some("far".to_owned()));
        assert!(no_room(&[with_free(60), far], Some(100)).is_some(), "its disks take no replica");
    }

    /// Returns the racks of a ring, from this node's on: `ab` is one other node in rack a, one in b.
    fn ring(own: &str, others: &str) -> NodeView {
        let state = |rack: &str| EndpointState {
            datacenter: Some("eu".to_owned()),
            rack: Some(rack.to_owned()),
            ..EndpointState::default()
        };
        let own = ([10, 0, 0, 1].into(), state(own));
        let others = others
            .chars()
            .zip(2..)
            .map(|(rack, last)| (IpAddr::from([10, 0, 0, last]), state(&rack.to_string())));
        let gossip: BTreeMap<IpAddr, EndpointState> = others.chain([own]).collect();
        NodeView {
            address: Some([10, 0, 0, 1].into()),
            live: gossip.keys().copied().collect(),
            gossip,
            ..NodeView::default()
        }
    }

    #[test]
    fn own_rack_receives_data_with_a_rack_per_replica() {
        for (others, largest, expected) in [
            ("abbcc", 3, Some("a")),
            // With more racks than replicas, another rack may take a range.
            ("abbcc", 2, None),
            ("abbcc", 5, None),
            // It is the last node of its rack.
            ("bbcc", 3, None),
            ("aa", 1, None),
            ("aab", 2, Some("a")),
        ] {
            let facts = ring("a", others);
            let rack = RemainingMembers::from_view(&facts).rack_of_receivers(largest);
            assert_eq!(rack, expected, "{others} {largest}");
        }
        let mut facts = ring("a", "abbcc");
        facts.gossip.get_mut(&IpAddr::from([10, 0, 0, 3])).unwrap().rack = None;
        let rack = RemainingMembers::from_view(&facts).rack_of_receivers(3);
        assert_eq!(rack, None, "a rack is not known");
        let mut facts = ring("a", "abbccd");
        let far = facts.gossip.get_mut(&IpAddr::from([10, 0, 0, 7])).unwrap();
        far.datacenter = Some("us".to_owned());
        let rack = RemainingMembers::from_view(&facts).rack_of_receivers(3);
        assert_eq!(rack, Some("a"), "a rack of another datacenter does not count");
    }

    #[test]
    fn node_stays_when_its_rack_has_no_room() {
        let peer = |name: &str, free: i64| {
            let mut pilot = peer(name, "10.0.0.2", true);
            pilot.status.storage = Some(PilotStorage {
                path: String::new(),
                capacity_bytes: 1000,
                used_bytes: 900 - free,
                ..PilotStorage::default()
            });
            let rack = Some(name[..1].to_owned());
            pilot.spec.change_part::<CassandraNode>(|part| part.rack = rack);
            pilot
        };
        let peers = [peer("a-0", 60), peer("b-0", 500), peer("c-0", 500)];
        let no_room = |rack, load| {
            let receivers = Receivers { datacenter: DEFAULT_DATACENTER, rack };
            receivers.no_room(&peers, Some(load)).map(|refusal| refusal.why)
        };
        assert_eq!(no_room(None, 300), None, "the last node of its rack: all racks share");
        assert_eq!(no_room(Some("a"), 60), None);
        let why = no_room(Some("a"), 300).unwrap();
        assert!(why.contains("other nodes of rack a have room for 60 bytes"), "{why}");
        assert!(why.contains("add a node to that rack"), "{why}");
    }
}
