//! Decommissions a node: gives its shards and its vote away.
//!
//! The leaving node decides whether it may go, asks through its Pilot's progress, and watches. The
//! leading pilot writes the lists that move its shards and its vote (`lead_duties`), so no two
//! pilots write them.

use std::collections::BTreeSet;

use super::{configure::release, state::NodeState};
use crate::{
    api::{predicate::SPACE_ELSEWHERE, v1beta1::Decommission},
    databases::elasticsearch::{
        predicates::{COPIES_ELSEWHERE, MASTERS_REMAIN},
        v1beta1::ElasticsearchNode,
    },
    pilot::{
        clients::search_engine::{
            AllocationExclusion, ClusterHealth, NodeUsage, NodeView, SearchClient, StuckShard,
        },
        driver::{DatabaseNode, DecommissionState, DepartureRefusal, Error},
        node::blockers::now,
        volume::remembered_state::RememberedState,
    },
};

pub(super) async fn decommission(
    api: &SearchClient,
    node: &DatabaseNode,
    state: &RememberedState<NodeState>,
    most_shards: &mut usize,
) -> Result<DecommissionState, Error> {
    let release = release(node)?;
    state.read()?;
    let facts = api.view().await?;
    let Some(elected) = &facts.elected else {
        return Err(Error::NotYet("waits for an elected master".to_owned()));
    };
    let health = elected.health.as_ref().or_fail()?;
    let stats = facts.stats.as_ref().or_fail()?;
    let excluded = match api.exclusion().await? {
        AllocationExclusion::Hidden(theirs) => {
            let refusal = DepartureRefusal::new(&COPIES_ELSEWHERE, hidden(&theirs));
            return Ok(DecommissionState::Refused(refusal));
        }
        AllocationExclusion::Ids(ids) => ids,
    };
    let quorum = if release.votes() { None } else { quorum(node) };
    let rest = RemainingNodes::ask(api, &facts, &excluded).await?;
    if let Some(refusal) = rest.obstacle(&facts, stats.bytes, quorum.unwrap_or(1)) {
        return Ok(DecommissionState::Refused(refusal));
    }
    let (since, _) =
        state.change(|state| state.decommissioning_since.get_or_insert_with(now).clone())?;
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
    match holds(&facts, health, stats, &excluded, release.votes()) {
        Some(DecommissionHold::Waits(why)) => return moving(Some(why)),
        Some(DecommissionHold::Data) => {
            return Ok(match api.why_nothing_moves(&facts).await {
                Some(stuck) => {
                    DecommissionState::Stuck(progress(Some(stuck.why.clone())), nowhere(stuck))
                }
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

/// Returns what keeps the node from leaving. `None`: it is excluded, and has no shard, no document
/// and no vote; only then may it leave.
fn holds(
    facts: &NodeView,
    health: &ClusterHealth,
    stats: &NodeUsage,
    excluded: &BTreeSet<String>,
    votes: bool,
) -> Option<DecommissionHold> {
    if !excluded.contains(&facts.node_id) {
        // An empty node waits for the exclusion, too: otherwise it could get a new shard.
        return Some(DecommissionHold::Waits(WAITS_FOR_LIST.to_owned()));
    }
    if let Some(why) = facts.unserved(health) {
        return Some(DecommissionHold::Waits(why));
    }
    if facts.shards_left() > 0 || stats.documents > 0 {
        return Some(DecommissionHold::Data);
    }
    let votes = votes && facts.tables.voters.contains(&facts.node_id);
    votes.then(|| DecommissionHold::Waits(WAITS_FOR_VOTE.to_owned()))
}

pub(super) const WAITS_FOR_LIST: &str = "waits for the leading pilot to exclude it from allocation";
const WAITS_FOR_VOTE: &str = "waits for the leading pilot to take its vote";
const WAITS_FOR_QUORUM: &str = "waits for the leading pilot to set minimum_master_nodes";

/// Returns the refusal for a shard that may go nowhere.
pub(super) fn nowhere(StuckShard { why, by_disks }: StuckShard) -> DepartureRefusal {
    if by_disks {
        let remedy = "add a node, enlarge volumes or delete data";
        DepartureRefusal::new(&SPACE_ELSEWHERE, format!("{why}; {remedy}"))
    } else {
        let remedy = "add a node that may hold it, or change that rule";
        DepartureRefusal::new(&COPIES_ELSEWHERE, format!("{why}; {remedy}"))
    }
}

pub(super) fn hidden(theirs: &str) -> String {
    format!(
        "the transient setting cluster.routing.allocation.exclude._id ({theirs:?}) hides the one \
         that would move the shards away; remove it, or exclude by _name"
    )
}

/// The setting of the quorum that running nodes follow before version 7.
pub(super) const MINIMUM_MASTERS: &str = "discovery.zen.minimum_master_nodes";

/// Returns the number of masters that must remain, before version 7.
pub(super) fn quorum(node: &DatabaseNode) -> Option<i32> {
    node.pilot.spec.part::<ElasticsearchNode>()?.minimum_masters
}

/// The nodes of the cluster that would remain after a decommission.
#[derive(Debug, Default)]
pub(super) struct RemainingNodes {
    pub(super) data_nodes: usize,
    masters: i32,
    free_bytes: i64,
}

impl RemainingNodes {
    pub(super) async fn ask(
        api: &SearchClient,
        facts: &NodeView,
        excluded: &BTreeSet<String>,
    ) -> Result<Self, Error> {
        let mut rest = Self::default();
        for (id, node) in api.capacities().await? {
            if id == facts.node_id {
                continue;
            }
            rest.masters += i32::from(node.is_master_eligible());
            if node.holds_data() && !excluded.contains(&id) {
                rest.data_nodes += 1;
                rest.free_bytes += node.free_bytes;
            }
        }
        Ok(rest)
    }

    /// Returns why the node may not leave; `None` when it may. `quorum`: masters that must remain.
    fn obstacle(&self, facts: &NodeView, bytes: i64, quorum: i32) -> Option<DepartureRefusal> {
        if facts.master_eligible && self.masters == 0 {
            let why = "this is the last node that may be master; add one first";
            return Some(DepartureRefusal::new(&MASTERS_REMAIN, why));
        }
        if facts.master_eligible && self.masters < quorum {
            let why = format!(
                "{} masters would remain, and minimumMasters is {quorum}; lower it or add one first",
                self.masters
            );
            return Some(DepartureRefusal::new(&MASTERS_REMAIN, why));
        }
        self.no_room(facts, bytes)
    }

    /// Returns why the node's shards may not move away; `None` when they may.
    pub(super) fn no_room(&self, facts: &NodeView, bytes: i64) -> Option<DepartureRefusal> {
        if let Some(index) = facts.tables.unlisted.first().filter(|_| facts.holds_data) {
            let why = format!(
                "index {index} was closed by a version before 7.2, which moves no closed index away and \
                 does not say where it lies; open or delete it first"
            );
            return Some(DepartureRefusal::new(&COPIES_ELSEWHERE, why));
        }
        let here = facts.tables.shards.iter().filter(|shard| shard.is_on(&facts.node_id));
        let widest = here.max_by_key(|shard| shard.copies.len())?;
        let copies = widest.copies.len();
        if copies > self.data_nodes {
            let why = format!(
                "index {} wants {copies} copies, and {} data nodes would remain; lower \
                 number_of_replicas or add a node first",
                widest.name, self.data_nodes
            );
            return Some(DepartureRefusal::new(&COPIES_ELSEWHERE, why));
        }
        // Elasticsearch fills a disk only to 85 % (the low watermark), so the rest is not counted
        // as room.
        let room = self.free_bytes / 100 * 85;
        (room < bytes).then(|| {
            let why = format!(
                "the other data nodes have room for {room} bytes, and this node holds {bytes}; add a \
                 node, enlarge volumes or delete data first"
            );
            DepartureRefusal::new(&SPACE_ELSEWHERE, why)
        })
    }
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
            holds(facts, &health("green", 0), &stats, listed, votes)
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

    #[test]
    fn a_node_is_held_back_when_the_rest_cannot_do_without_it() {
        let facts = with(vec![shard(&[(Some("n1"), "STARTED"), (Some("n2"), "STARTED")])], &[]);
        let rest =
            |data_nodes, masters, free_bytes| RemainingNodes { data_nodes, masters, free_bytes };
        assert_eq!(rest(2, 1, 1000).obstacle(&facts, 100, 1), None);
        let short = rest(2, 1, 1000).obstacle(&facts, 100, 2).unwrap().why;
        assert!(short.contains("minimumMasters is 2"), "{short}");
        for (rest, rule, word) in [
            (rest(2, 0, 1000), "MastersRemain", "master"),
            (rest(1, 1, 1000), "CopiesElsewhere", "copies"),
            (rest(2, 1, 100), "SpaceElsewhere", "room"),
        ] {
            let refusal = rest.obstacle(&facts, 100, 1).unwrap();
            assert_eq!(refusal.predicate.name, rule);
            assert!(refusal.why.contains(word), "{refusal:?}");
        }
        let empty = with(Vec::new(), &[]);
        assert_eq!(rest(0, 1, 0).obstacle(&empty, 0, 1), None);
        let mut closed = empty;
        Arc::make_mut(&mut closed.tables).unlisted = vec!["old".to_owned()];
        let reason = rest(2, 1, 1000).obstacle(&closed, 0, 1).unwrap().why;
        assert!(reason.contains("index old was closed"), "{reason}");
        let master = NodeView { holds_data: false, ..closed };
        assert_eq!(rest(2, 1, 1000).obstacle(&master, 0, 1), None);
    }
}
