//! The parts of the cluster's state that depend on indices, shards and votes.
//!
//! The tables of a large cluster are heavy for the node that makes them, and seldom change: they
//! are asked for only where the identity of the state is new. The metadata of indices is never
//! asked for: with many fields the answer takes longer than the pilot waits (5 s at 30 MB, seen).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    SearchClient,
    voting::{VotesAnswer, VotingConfiguration},
};
use crate::pilot::driver::Error;

const TABLES: &str = "/_cluster/state/version,routing_table,blocks?local=true\
                      &filter_path=state_uuid,routing_table.indices.*.shards.*.state,\
                      routing_table.indices.*.shards.*.node,\
                      routing_table.indices.*.shards.*.relocating_node,\
                      blocks.indices.*.4.description,blocks.indices.*.12.description";
/// Id of the block that stands on every closed index.
const CLOSED: &str = "4";
/// Id of the block that stands on indices with a shard on a disk that passed its flood stage.
const FLOOD_STAGE: &str = "12";

/// The parts of the cluster's state that depend on indices, shards and votes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterTables {
    pub shards: Vec<Shard>,
    /// Names of indices whose shards no table lists: closed ones, as older versions close them.
    pub unlisted: Vec<String>,
    /// Names of indices that take no writes until a disk has room again.
    pub read_only: BTreeSet<String>,
    /// Ids of the nodes that vote; empty in a version without a voting configuration.
    pub voters: BTreeSet<String>,
}

/// One shard with all its copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shard {
    pub index: String,
    pub name: String,
    /// The shard's copies; a copy without a node is unassigned.
    pub copies: Vec<ShardCopy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ShardCopy {
    pub state: String,
    pub node: Option<String>,
    /// The node that the copy moves to.
    #[serde(default)]
    pub relocating_node: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TablesAnswer {
    state_uuid: String,
    #[serde(default)]
    routing_table: IndexEntries<IndexRoutingTable>,
    #[serde(default)]
    blocks: IndexEntries<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct IndexEntries<T> {
    #[serde(default = "BTreeMap::new")]
    indices: BTreeMap<String, T>,
}

impl<T> Default for IndexEntries<T> {
    fn default() -> Self {
        Self { indices: BTreeMap::new() }
    }
}

#[derive(Debug, Deserialize)]
struct IndexRoutingTable {
    shards: BTreeMap<String, Vec<ShardCopy>>,
}

impl SearchClient {
    /// Returns the tables of the state with the identity `state`, from memory where they are known.
    /// `votes`: there is a voting configuration.
    pub(super) async fn read_tables(
        &self,
        state: &str,
        votes: bool,
    ) -> Result<Arc<ClusterTables>, Error> {
        if let Some((cached_state, tables)) = &*self.tables.lock().expect("no panic while held")
            && cached_state == state
        {
            return Ok(Arc::clone(tables));
        }
        let votes =
            async { if votes { self.read_votes().await.or_fail().map(Some) } else { Ok(None) } };
        let (tables, votes) = futures::join!(self.query::<TablesAnswer>(TABLES), votes);
        let (answer, votes) = (tables.or_fail()?, votes?);
        let state_uuid = answer.state_uuid.clone();
        let cache_key =
            votes.as_ref().is_none_or(|votes| votes.state_uuid == state_uuid).then_some(state_uuid);
        let tables = Arc::new(ClusterTables::new(answer, votes));
        // When the state changed between two answers, the tables are not cached, and asked for
        // again.
        *self.tables.lock().expect("no panic while held") =
            cache_key.map(|state_uuid| (state_uuid, Arc::clone(&tables)));
        Ok(tables)
    }
}

impl ClusterTables {
    fn new(answer: TablesAnswer, votes: Option<VotesAnswer>) -> Self {
        let (routing_tables, blocks) = (answer.routing_table.indices, answer.blocks.indices);
        let blocked_indices = |id: &'static str| {
            let blocked = blocks.iter().filter(move |(_, blocks)| blocks.contains_key(id));
            blocked.map(|(index, _)| index.clone())
        };
        let unlisted =
            blocked_indices(CLOSED).filter(|index| !routing_tables.contains_key(index)).collect();
        let read_only = blocked_indices(FLOOD_STAGE).collect();
        let VotingConfiguration { voters, .. } =
            votes.map(VotingConfiguration::from).unwrap_or_default();
        let shards = routing_tables.into_iter().flat_map(|(index, routing)| {
            routing.shards.into_iter().map(move |(number, copies)| Shard {
                name: format!("{index} shard {number}"),
                index: index.clone(),
                copies,
            })
        });
        Self { shards: shards.collect(), unlisted, read_only, voters }
    }

    /// Returns a shard that no node serves.
    pub fn unserved_shard(&self) -> Option<&Shard> {
        self.shards.iter().find(|shard| !shard.is_served())
    }

    /// Returns the names of indices that take no writes and have a shard on `node`.
    pub fn read_only_on(&self, node: &str) -> Vec<&str> {
        let is_on_node = |index: &&String| {
            self.shards.iter().any(|shard| shard.index == **index && shard.is_on(node))
        };
        self.read_only.iter().filter(is_on_node).map(String::as_str).collect()
    }
}

impl Shard {
    pub fn is_on(&self, node: &str) -> bool {
        self.copies.iter().any(|copy| copy.node.as_deref() == Some(node))
    }

    /// Does a copy of the shard move to `node`, or away from it?
    pub fn moves_at(&self, node: &str) -> bool {
        let is_relocating = |copy: &ShardCopy| {
            let target = copy.relocating_node.as_deref();
            target.is_some() && [copy.node.as_deref(), target].contains(&Some(node))
        };
        self.copies.iter().any(is_relocating)
    }

    pub fn is_served(&self) -> bool {
        self.copies.iter().any(ShardCopy::is_serving)
    }

    /// Does `node` hold the only copy that serves?
    pub fn only_started_on(&self, node: &str) -> bool {
        let is_served = |is_on_node: bool| {
            let copies = self.copies.iter().filter(|copy| copy.is_serving());
            copies.filter(|copy| (copy.node.as_deref() == Some(node)) == is_on_node).count() > 0
        };
        is_served(true) && !is_served(false)
    }

    /// Does the index have replicas? Where it has none, waiting for another copy does not help.
    pub fn wants_copies(&self) -> bool {
        self.copies.len() > 1
    }
}

impl ShardCopy {
    fn is_serving(&self) -> bool {
        matches!(self.state.as_str(), "STARTED" | "RELOCATING")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tables(answer: &Value) -> ClusterTables {
        ClusterTables::new(serde_json::from_value(answer.clone()).unwrap(), None)
    }

    #[test]
    fn an_index_that_no_table_lists_is_known_by_its_block() {
        let closed = json!({CLOSED: {"description": "index closed"}});
        let answer = json!({
            "state_uuid": "s",
            "routing_table": {"indices": {"logs": {"shards": {}}, "closed": {"shards": {}}}},
            "blocks": {"indices": {"old": closed, "closed": closed}},
        });
        assert_eq!(tables(&answer).unlisted, ["old"]);
        assert!(
            tables(&json!({"state_uuid": "s"})).unlisted.is_empty(),
            "there is no index at all"
        );
    }

    #[test]
    fn indices_that_the_flood_stage_blocks_are_told_by_the_nodes_that_hold_them() {
        let told = |blocks: &Value| {
            let on = |node: &str| json!({"shards": {"0": [{"state": "STARTED", "node": node}]}});
            let tables = tables(&json!({
                "state_uuid": "s",
                "routing_table": {"indices": {"logs": on("n1"), "theirs": on("n2")}},
                "blocks": {"indices": blocks},
            }));
            tables.read_only_on("n1").iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let flood = json!({"description": "disk usage exceeded flood-stage watermark"});
        assert_eq!(told(&json!({"logs": {FLOOD_STAGE: flood}})), ["logs"]);
        assert!(told(&json!({"theirs": {FLOOD_STAGE: flood}})).is_empty());
        // A person made the index read-only for good, by a block with another id.
        assert!(told(&json!({"logs": {"5": {}}})).is_empty());
        assert!(told(&json!({})).is_empty());
    }
}
