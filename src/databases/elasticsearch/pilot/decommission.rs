//! Decommissions a node: gives its shards and its vote away.
//!
//! The leaving node decides whether it may go, asks through its Pilot's progress, and watches. The
//! leading pilot writes the lists that move its shards and its vote (`lead_duties`), so no two
//! pilots write them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    configure::node_release,
    data_role,
    master_role::{self, MasterIntents, RemainingMasters},
    state::NodeState,
};
use crate::{
    api::{predicate::SPACE_ELSEWHERE, v1beta1::Decommission},
    databases::elasticsearch::{
        facts::Release,
        predicates::{COPIES_ELSEWHERE, MASTERS_REMAIN},
        v1beta1::ElasticsearchNode,
    },
    pilot::{
        clients::search_engine::{
            AllocationExclusion, ClusterHealth, NodeUsage, NodeView, ReplicaRange, SearchClient,
            Shard, StuckShard,
        },
        driver::{DatabaseNode, DecommissionState, DepartureRefusal, Error},
        node::blockers::current_time,
        volume::remembered_state::RememberedState,
    },
};

pub(super) async fn decommission_node(
    api: &SearchClient,
    node: &DatabaseNode,
    state: &RememberedState<NodeState>,
    most_shards: &mut usize,
) -> Result<DecommissionState, Error> {
    let release = node_release(node)?;
    let has_begun = state.read()?.decommissioning_since.is_some();
    let facts = api.read_view().await?;
    let Some(elected) = &facts.elected else {
        return Err(Error::NotYet("waits for an elected master".to_owned()));
    };
    let health = elected.health.as_ref().or_fail()?;
    let stats = facts.stats.as_ref().or_fail()?;
    let excluded = match api.allocation_exclusion().await? {
        AllocationExclusion::Hidden(transient_ids) => {
            let refusal = DepartureRefusal::new(&COPIES_ELSEWHERE, hidden_message(&transient_ids));
            return Ok(DecommissionState::Refused(refusal));
        }
        AllocationExclusion::Ids(ids) => ids,
    };
    let quorum = if release.has_voting() { None } else { node_quorum(node) };
    let without_shards = data_role::without_shards(&node.peers);
    let rest = RemainingNodes::query(api, &facts, &excluded, &without_shards).await?;
    let intents: MasterIntents = node.peers.iter().collect();
    let masters = intents.remaining_without(&rest.masters, master_role::own_name(&facts));
    let refusal = find_master_refusal(&facts, &masters, has_begun, quorum.unwrap_or(1));
    if let Some(refusal) = refusal.or_else(|| rest.no_room(&facts, stats.bytes)) {
        return Ok(DecommissionState::Refused(refusal));
    }
    let (since, _) = state
        .change(|state| state.decommissioning_since.get_or_insert_with(current_time).clone())?;
    let shards = facts.shards_left();
    *most_shards = shards.max(*most_shards);
    let progress = |message: Option<String>| Decommission {
        start_time: Some(since.clone()),
        percent: i32::try_from(((*most_shards - shards) * 100) / (*most_shards).max(1))
            .ok()
            .map(|percent| percent.min(99)),
        bytes_left: Some(stats.bytes),
        shards_left: i32::try_from(shards).ok(),
        documents_left: Some(stats.documents),
        irreversible: false,
        message,
    };
    let moving = |message: Option<String>| Ok(DecommissionState::Moving(progress(message)));
    let has_voting = release.has_voting();
    match data_hold(&facts, health, stats, &excluded)
        .or_else(|| vote_hold(&facts, &masters, has_voting))
    {
        Some(DecommissionHold::Waits(message)) => return moving(Some(message)),
        Some(DecommissionHold::Data) => {
            return Ok(match api.why_nothing_moves(&facts).await {
                Some(stuck) => DecommissionState::Stuck(
                    progress(Some(stuck.why.clone())),
                    stuck_refusal(stuck),
                ),
                None => DecommissionState::Moving(progress(None)),
            });
        }
        None => {}
    }
    // The remaining masters need the new quorum before this node is gone.
    if quorum.is_some() && api.persistent_number(MINIMUM_MASTERS).await? != quorum {
        return moving(Some(WAITS_FOR_QUORUM.to_owned()));
    }
    // Only the pilot's own state file says later that the node left. Until it is written, the pilot
    // asks again, because shards may have come back meanwhile.
    Ok(DecommissionState::Done)
}

/// What keeps a node from leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DecommissionHold {
    Data,
    Waits(String),
}

/// Returns what keeps the node from leaving. `None`: it is excluded, and has no shard and no
/// document. Only then, and without a vote, may it leave.
fn data_hold(
    facts: &NodeView,
    health: &ClusterHealth,
    stats: &NodeUsage,
    excluded: &BTreeSet<String>,
) -> Option<DecommissionHold> {
    if !excluded.contains(&facts.node_id) {
        // An empty node waits for the exclusion, too: otherwise it could get a new shard.
        return Some(DecommissionHold::Waits(WAITS_FOR_LIST.to_owned()));
    }
    if let Some(message) = facts.unserved_reason(health) {
        return Some(DecommissionHold::Waits(message));
    }
    (facts.shards_left() > 0 || stats.documents > 0).then_some(DecommissionHold::Data)
}

/// Returns what keeps an empty node from leaving: the other masters, or its vote. `votes`: there is
/// a voting configuration.
fn vote_hold(
    facts: &NodeView,
    masters: &RemainingMasters,
    has_voting: bool,
) -> Option<DecommissionHold> {
    let absence = masters.absence_message().filter(|_| facts.master_eligible);
    let has_vote = has_voting && facts.tables.voters.contains(&facts.node_id);
    let waiting_reason = absence.or_else(|| has_vote.then(|| WAITS_FOR_VOTE.to_owned()));
    waiting_reason.map(DecommissionHold::Waits)
}

pub(super) const WAITS_FOR_LIST: &str = "waits for the leading pilot to exclude it from allocation";
const WAITS_FOR_VOTE: &str = "waits for the leading pilot to take its vote";
const WAITS_FOR_QUORUM: &str = "waits for the leading pilot to set minimum_master_nodes";

/// Returns the refusal for a shard that may go nowhere.
pub(super) fn stuck_refusal(StuckShard { why: message, by_disks }: StuckShard) -> DepartureRefusal {
    if by_disks {
        let remedy = "add a node, enlarge volumes or delete data";
        DepartureRefusal::new(&SPACE_ELSEWHERE, format!("{message}; {remedy}"))
    } else {
        let remedy = "add a node that may hold it, or change that rule";
        DepartureRefusal::new(&COPIES_ELSEWHERE, format!("{message}; {remedy}"))
    }
}

pub(super) fn hidden_message(transient_ids: &str) -> String {
    format!(
        "the transient setting cluster.routing.allocation.exclude._id ({transient_ids:?}) hides the one \
         that would move the shards away; remove it, or exclude by _name"
    )
}

/// The setting of the quorum that running nodes follow before version 7.
pub(super) const MINIMUM_MASTERS: &str = "discovery.zen.minimum_master_nodes";

/// Returns the number of masters that must remain, before version 7.
pub(super) fn node_quorum(node: &DatabaseNode) -> Option<i32> {
    node.pilot.spec.part::<ElasticsearchNode>()?.minimum_masters
}

/// The nodes of the cluster that would remain after a decommission.
#[derive(Debug, Default)]
pub(super) struct RemainingNodes {
    pub(super) data_nodes: usize,
    /// Names of those that run with the role `master`.
    masters: BTreeSet<String>,
    free_bytes: i64,
    /// The ranges of `index.auto_expand_replicas`, by index. Known of indices with a shard on the
    /// node and more copies than data nodes would remain.
    replica_ranges: BTreeMap<String, ReplicaRange>,
    /// Elasticsearch lowers the replicas of such an index before the node has left.
    lowers_replicas: bool,
}

impl RemainingNodes {
    pub(super) async fn query(
        api: &SearchClient,
        facts: &NodeView,
        excluded: &BTreeSet<String>,
        without_shards: &BTreeSet<String>,
    ) -> Result<Self, Error> {
        let rejects_shards = |id: &String| {
            let name = facts.nodes.get(id);
            excluded.contains(id) || name.is_some_and(|name| without_shards.contains(name))
        };
        let mut remaining = Self::default();
        for (id, node) in api.node_capacities().await? {
            if id == facts.node_id {
                continue;
            }
            if node.is_master_eligible() {
                remaining.masters.extend(facts.nodes.get(&id).cloned());
            }
            if node.holds_data() && !rejects_shards(&id) {
                remaining.data_nodes += 1;
                remaining.free_bytes += node.free_bytes;
            }
        }
        let own_shards = facts.tables.shards.iter().filter(|shard| shard.is_on(&facts.node_id));
        let wide_shards = own_shards.filter(|shard| shard.copies.len() > remaining.data_nodes);
        let wide_indices: BTreeSet<&str> = wide_shards.map(|shard| shard.index.as_str()).collect();
        if !wide_indices.is_empty() {
            remaining.replica_ranges = api.replica_ranges(&wide_indices).await?;
            remaining.lowers_replicas =
                facts.version.parse().is_ok_and(Release::lowers_replicas_by_filters);
        }
        Ok(remaining)
    }

    /// Returns how many copies of the shard's index the remaining nodes must hold at least.
    fn required_copies(&self, shard: &Shard) -> usize {
        match self.replica_ranges.get(&shard.index) {
            Some(range) if self.lowers_replicas => shard.copies.len().min(range.least + 1),
            _ => shard.copies.len(),
        }
    }

    /// Returns why the node's shards may not move away; `None` when they may.
    pub(super) fn no_room(&self, facts: &NodeView, bytes: i64) -> Option<DepartureRefusal> {
        if let Some(index) = facts.tables.unlisted.first().filter(|_| facts.holds_data) {
            let message = format!(
                "index {index} was closed by a version before 7.2, which moves no closed index away and \
                 does not say where it lies; open or delete it first"
            );
            return Some(DepartureRefusal::new(&COPIES_ELSEWHERE, message));
        }
        let own_shards = facts.tables.shards.iter().filter(|shard| shard.is_on(&facts.node_id));
        let widest = own_shards.max_by_key(|shard| self.required_copies(shard))?;
        let copies = self.required_copies(widest);
        if copies > self.data_nodes {
            let remedy = match self.replica_ranges.get(&widest.index) {
                Some(ReplicaRange { text, .. }) => {
                    format!("change index.auto_expand_replicas, which is {text},")
                }
                None => "lower number_of_replicas".to_owned(),
            };
            let message = format!(
                "index {} wants {copies} copies, and {} data nodes would remain; {remedy} or add a \
                 node first",
                widest.name, self.data_nodes
            );
            return Some(DepartureRefusal::new(&COPIES_ELSEWHERE, message));
        }
        // Elasticsearch fills a disk only to 85 % (the low watermark), so the rest is not counted
        // as room.
        let room = self.free_bytes / 100 * 85;
        (room < bytes).then(|| {
            let message = format!(
                "the other data nodes have room for {room} bytes, and this node holds {bytes}; add a \
                 node, enlarge volumes or delete data first"
            );
            DepartureRefusal::new(&SPACE_ELSEWHERE, message)
        })
    }
}

/// Returns why a master may not leave; `None` when it may, or is none. `begun`: the departure has
/// begun, so it keeps its vote while it waits for the other masters, and moves its shards.
/// `quorum`: masters that must remain.
fn find_master_refusal(
    facts: &NodeView,
    masters: &RemainingMasters,
    has_begun: bool,
    quorum: i32,
) -> Option<DepartureRefusal> {
    if !facts.master_eligible {
        return None;
    }
    let refuse = |message: String| Some(DepartureRefusal::new(&MASTERS_REMAIN, message));
    if masters.is_none() {
        return refuse("this is the last node that may be master; add one first".to_owned());
    }
    if let Some(absence) = masters.absence_message().filter(|_| !has_begun) {
        return refuse(format!("{absence}; bring them back, or wait until they do"));
    }
    let present = masters.present;
    (present < usize::try_from(quorum).unwrap_or(0)).then(|| {
        let message = format!(
            "{present} masters would remain, and minimumMasters is {quorum}; lower it or add one \
             first"
        );
        DepartureRefusal::new(&MASTERS_REMAIN, message)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        databases::elasticsearch::pilot::testing::{facts, health, shard},
        pilot::clients::search_engine::{ClusterTables, Shard},
    };

    fn with(shards: Vec<Shard>, voters: &[&str]) -> NodeView {
        let voters = voters.iter().map(|id| (*id).to_owned()).collect();
        NodeView {
            tables: Arc::new(ClusterTables { shards, voters, ..ClusterTables::default() }),
            ..facts()
        }
    }

    #[test]
    fn a_node_leaves_with_no_shard_no_document_and_no_vote() {
        let own = || shard(&[(Some("n1"), "STARTED")]);
        let listed = BTreeSet::from(["n1".to_owned()]);
        let holds = |facts: &NodeView, documents: i64, listed: &BTreeSet<String>, votes: bool| {
            let stats = NodeUsage { documents, bytes: 0, heap_used: 0.0 };
            let held = data_hold(facts, &health("green", 0), &stats, listed);
            held.or_else(|| vote_hold(facts, &masters(2, &[]), votes))
        };
        let empty = with(Vec::new(), &[]);
        assert_eq!(holds(&empty, 0, &listed, true), None);
        let waits = |why: &str| Some(DecommissionHold::Waits(why.to_owned()));
        assert_eq!(holds(&empty, 0, &BTreeSet::new(), true), waits(WAITS_FOR_LIST));
        assert_eq!(holds(&with(vec![own()], &[]), 0, &listed, true), Some(DecommissionHold::Data));
        assert_eq!(holds(&empty, 1, &listed, true), Some(DecommissionHold::Data));
        let voter = with(Vec::new(), &["n1"]);
        assert_eq!(holds(&voter, 0, &listed, true), waits(WAITS_FOR_VOTE));
        assert_eq!(holds(&voter, 0, &listed, false), None, "before version 7 there are no votes");
        assert_eq!(
            holds(&with(vec![own()], &["n1"]), 0, &listed, true),
            Some(DecommissionHold::Data)
        );
    }

    fn masters(present: usize, absent: &[&str]) -> RemainingMasters {
        let absent = absent.iter().map(|name| (*name).to_owned()).collect();
        RemainingMasters { present, absent }
    }

    fn rest(data_nodes: usize, free_bytes: i64) -> RemainingNodes {
        RemainingNodes { data_nodes, free_bytes, ..RemainingNodes::default() }
    }

    #[test]
    fn a_node_is_held_back_when_the_rest_has_no_room_for_its_shards() {
        let facts = with(vec![shard(&[(Some("n1"), "STARTED"), (Some("n2"), "STARTED")])], &[]);
        assert_eq!(rest(2, 1000).no_room(&facts, 100), None);
        for (rest, rule, word) in
            [(rest(1, 1000), "CopiesElsewhere", "copies"), (rest(2, 100), "SpaceElsewhere", "room")]
        {
            let refusal = rest.no_room(&facts, 100).unwrap();
            assert_eq!(refusal.predicate.name, rule);
            assert!(refusal.why.contains(word), "{refusal:?}");
        }
        let empty = with(Vec::new(), &[]);
        assert_eq!(rest(0, 0).no_room(&empty, 0), None);
        let mut closed = empty;
        Arc::make_mut(&mut closed.tables).unlisted = vec!["old".to_owned()];
        let reason = rest(2, 1000).no_room(&closed, 0).unwrap().why;
        assert!(reason.contains("index old was closed"), "{reason}");
        let master = NodeView { holds_data: false, ..closed };
        assert_eq!(rest(2, 1000).no_room(&master, 0), None);
    }

    #[test]
    fn an_index_that_expands_by_itself_needs_the_lower_bound_of_its_range_alone() {
        let copies = [(Some("n1"), "STARTED"), (Some("n2"), "STARTED"), (Some("n3"), "STARTED")];
        let facts = with(vec![shard(&copies)], &[]);
        let refused = |data_nodes: usize, range: &str, lowers_replicas: bool| {
            let least = range.split('-').next().unwrap().parse().unwrap();
            let range = ReplicaRange { text: range.to_owned(), least };
            let rest = RemainingNodes {
                replica_ranges: BTreeMap::from([("logs".to_owned(), range)]),
                lowers_replicas,
                ..rest(data_nodes, 1000)
            };
            rest.no_room(&facts, 100).map(|refusal| refusal.why)
        };
        assert_eq!(refused(2, "0-all", true), None);
        assert_eq!(refused(1, "0-1", true), None);
        let short = refused(1, "1-all", true).unwrap();
        assert!(short.contains("wants 2 copies, and 1 data nodes"), "{short}");
        assert!(short.contains("index.auto_expand_replicas, which is 1-all"), "{short}");
        assert!(refused(0, "0-1", true).unwrap().contains("wants 1 copies"));
        let old = refused(2, "0-all", false).unwrap();
        assert!(old.contains("wants 3 copies") && old.contains("0-all"), "{old}");
        let plain = rest(2, 1000).no_room(&facts, 100).unwrap().why;
        assert!(plain.contains("lower number_of_replicas"), "{plain}");
    }

    #[test]
    fn a_master_leaves_only_when_those_that_are_to_stay_run() {
        let refused = |masters: &RemainingMasters, begun: bool, quorum: i32| {
            find_master_refusal(&facts(), masters, begun, quorum).map(|refusal| {
                assert_eq!(refusal.predicate.name, "MastersRemain");
                refusal.why
            })
        };
        assert_eq!(refused(&masters(1, &[]), false, 1), None);
        assert!(refused(&masters(0, &[]), true, 1).unwrap().contains("last node"));
        let waits = masters(1, &["es-d-0", "es-d-1"]);
        assert!(refused(&waits, false, 1).unwrap().contains("es-d-0, es-d-1"));
        assert_eq!(refused(&masters(3, &["es-d-1"]), false, 1), None, "enough run");
        let short = refused(&masters(1, &[]), false, 2).unwrap();
        assert!(short.contains("1 masters would remain, and minimumMasters is 2"), "{short}");
        let data = NodeView { master_eligible: false, ..facts() };
        assert_eq!(find_master_refusal(&data, &masters(0, &[]), false, 1), None);
        // A departure that has begun goes on, and the node keeps its vote.
        assert_eq!(refused(&waits, true, 1), None);
        let Some(DecommissionHold::Waits(why)) = vote_hold(&facts(), &waits, true) else {
            panic!("it leaves")
        };
        assert!(why.contains("es-d-0"), "{why}");
        assert_eq!(vote_hold(&data, &waits, false), None);
    }
}
