//! One observation of Elasticsearch: this node's own view of itself and of its cluster.
//!
//! The tables of a large cluster are heavy for the node that makes them, and seldom change: each
//! observation asks for the state's identity, and for the tables only where that is new. The pilot
//! never asks for the metadata of indices: with many fields the answer takes longer than the pilot
//! waits (5 s at 30 MB, seen).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::rest_client::RestClient;
use crate::{
    databases::elasticsearch::{facts::Release, v1beta1::PluginStatus},
    pilot::{
        driver::Error,
        query_answer::{QueryAnswer, UnansweredQuery},
    },
};

/// The answers of the database in one observation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeView {
    pub(super) node_id: String,
    pub(super) version: String,
    pub(super) master_eligible: bool,
    pub(super) holds_data: bool,
    pub(super) plugins: Vec<PluginStatus>,
    /// The elected master; `None` while this node follows none.
    pub(super) elected: Option<ElectedMaster>,
    /// UUID of the cluster; `None` before the cluster was founded, and while there is no master.
    pub(super) cluster_id: Option<String>,
    /// Names of the nodes in the cluster, by id.
    pub(super) nodes: BTreeMap<String, String>,
    pub(super) tables: Arc<ClusterTables>,
    pub(super) stats: QueryAnswer<NodeUsage>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ElectedMaster {
    /// Node id of the master.
    pub(super) id: String,
    /// The cluster's health, by the master's answer.
    pub(super) health: QueryAnswer<ClusterHealth>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ClusterHealth {
    pub(super) status: HealthStatus,
    relocating_shards: u64,
    initializing_shards: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HealthStatus {
    Green,
    Yellow,
    Red,
}

/// The parts of the cluster's state that depend on indices, shards and votes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClusterTables {
    pub(super) shards: Vec<Shard>,
    /// Names of indices whose shards no table lists: closed ones, as versions before 7.2 close
    /// them.
    pub(super) unlisted: Vec<String>,
    /// Names of indices that take no writes until a disk has room again.
    pub(super) read_only: BTreeSet<String>,
    /// Ids of the nodes that vote; used in version 7 and later.
    pub(super) voters: BTreeSet<String>,
}

/// What the node itself holds and uses, by its statistics.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeUsage {
    pub(super) documents: i64,
    pub(super) bytes: i64,
    pub(super) heap_used: f64,
}

/// One shard with all its copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shard {
    pub(super) index: String,
    pub(super) name: String,
    /// The shard's copies; a copy without a node is unassigned.
    pub(super) copies: Vec<ShardCopy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ShardCopy {
    pub(super) state: String,
    pub(super) node: Option<String>,
}

/// The tables that were asked for last, with the identity of the state that they belong to.
pub(super) type TablesCache = Mutex<Option<(String, Arc<ClusterTables>)>>;

const ROOT: &str = "/";
const LOCAL: &str = "/_nodes/_local?filter_path=nodes.*.version,nodes.*.roles,\
                     nodes.*.plugins.name,nodes.*.plugins.version";
const HEALTH: &str = "/_cluster/health?timeout=1s&master_timeout=1s";
pub(super) const STATE: &str = "/_cluster/state/version,master_node,nodes?local=true\
                     &filter_path=state_uuid,cluster_uuid,master_node,nodes.*.name";
const TABLES: &str = "/_cluster/state/version,routing_table,blocks?local=true\
                      &filter_path=state_uuid,routing_table.indices.*.shards.*.state,\
                      routing_table.indices.*.shards.*.node,\
                      blocks.indices.*.4.description,blocks.indices.*.12.description";
/// Path that asks for the votes. It names an index that does not exist, so that the answer has only
/// the cluster's metadata and no index's.
pub(super) const VOTES: &str = "/_cluster/state/version,metadata/navigator-asks-for-no-index?local=true\
                                &ignore_unavailable=true&allow_no_indices=true\
                                &filter_path=state_uuid,metadata.cluster_coordination";
const STATS: &str = "/_nodes/_local/stats/indices,jvm?filter_path=nodes.*.indices.docs.count,\
                     nodes.*.indices.store.size_in_bytes,nodes.*.jvm.mem.heap_used_in_bytes";

/// Id of the block that Elasticsearch puts on every closed index.
const CLOSED: &str = "4";
/// Id of the block that Elasticsearch puts on indices with a shard on a disk that passed its flood
/// stage.
const FLOOD_STAGE: &str = "12";

/// The answer about this node. `filter_path` leaves out of an answer whatever it finds nothing for,
/// so lists may be absent.
#[derive(Debug, Deserialize)]
struct LocalAnswer {
    nodes: BTreeMap<String, LocalNode>,
}

#[derive(Debug, Deserialize)]
struct LocalNode {
    version: String,
    #[serde(default)]
    roles: BTreeSet<String>,
    #[serde(default)]
    plugins: Vec<PluginInfo>,
}

#[derive(Debug, Deserialize)]
struct PluginInfo {
    name: String,
    version: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RootAnswer {
    cluster_uuid: String,
}

#[derive(Debug, Deserialize)]
struct StateAnswer {
    state_uuid: String,
    /// UUID of the cluster; present from 6.4 on.
    cluster_uuid: Option<String>,
    master_node: Option<String>,
    nodes: BTreeMap<String, StateNode>,
}

#[derive(Debug, Deserialize)]
struct StateNode {
    name: String,
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

#[derive(Debug, Deserialize)]
pub(super) struct VotesAnswer {
    state_uuid: String,
    pub(super) metadata: VotesMetadata,
}

#[derive(Debug, Deserialize)]
pub(super) struct VotesMetadata {
    pub(super) cluster_coordination: CoordinationMetadata,
}

#[derive(Debug, Deserialize)]
pub(super) struct CoordinationMetadata {
    pub(super) last_committed_config: BTreeSet<String>,
    pub(super) voting_config_exclusions: Vec<VotingExclusion>,
}

#[derive(Debug, Deserialize)]
pub(super) struct VotingExclusion {
    pub(super) node_name: String,
}

#[derive(Debug, Deserialize)]
struct StatsAnswer {
    nodes: BTreeMap<String, NodeStats>,
}

#[derive(Debug, Deserialize)]
struct NodeStats {
    indices: IndexStats,
    jvm: JvmStats,
}

#[derive(Debug, Deserialize)]
struct IndexStats {
    docs: DocsStats,
    store: StoreStats,
}

#[derive(Debug, Deserialize)]
struct DocsStats {
    count: i64,
}

#[derive(Debug, Deserialize)]
struct StoreStats {
    size_in_bytes: i64,
}

#[derive(Debug, Deserialize)]
struct JvmStats {
    mem: JvmMemory,
}

#[derive(Debug, Deserialize)]
struct JvmMemory {
    heap_used_in_bytes: f64,
}

impl NodeView {
    /// Asks for the node's view. Fails where the node does not say which node it is or what its
    /// cluster's state is. The master's answer and the statistics may be missing by themselves.
    pub(super) async fn ask(api: &RestClient, kept: &TablesCache) -> Result<Self, Error> {
        let (root, local, state, health, stats) = futures::join!(
            api.ask(ROOT),
            api.hear::<LocalAnswer>(LOCAL),
            api.hear::<StateAnswer>(STATE),
            api.hear::<ClusterHealth>(HEALTH),
            api.hear::<StatsAnswer>(STATS),
        );
        // Only the answer at `/` decides whether the node lives: the other requests may wait for a
        // master, or be heavy.
        let root = root?;
        let (node_id, node) = local.and_then(LocalAnswer::own).or_fail()?;
        let StateAnswer { state_uuid, cluster_uuid, master_node, nodes } = state.or_fail()?;
        let nodes = nodes.into_iter().map(|(id, node)| (id, node.name)).collect();
        let (mut tables, mut cluster_id, mut elected) = (Arc::default(), None, None);
        // Without a master the tables may be out of date.
        if let Some(id) = master_node {
            // A bare archive of 9 lacks the module that answers at `/`.
            let cluster_uuid = match (root.status, cluster_uuid) {
                (StatusCode::METHOD_NOT_ALLOWED, Some(uuid)) => uuid,
                _ => root.heard::<RootAnswer>(ROOT).or_fail()?.cluster_uuid,
            };
            tables = ClusterTables::ask(api, kept, &state_uuid, node.version.parse().ok()).await?;
            cluster_id = Some(cluster_uuid).filter(|uuid| uuid != "_na_");
            elected = Some(ElectedMaster { id, health });
        }
        let stats = stats.and_then(|answer| answer.of(&node_id));
        let plugin = |PluginInfo { name, version }| PluginStatus {
            name,
            status: Some("Installed".to_owned()),
            version,
            message: None,
        };
        Ok(Self {
            node_id,
            master_eligible: node.roles.contains("master"),
            holds_data: node.roles.iter().any(|role| role.starts_with("data")),
            version: node.version,
            plugins: node.plugins.into_iter().map(plugin).collect(),
            elected,
            cluster_id,
            nodes,
            tables,
            stats,
        })
    }

    pub(super) fn shards_here(&self) -> usize {
        self.tables.shards.iter().filter(|shard| shard.is_on(&self.node_id)).count()
    }

    /// Returns why indices with a shard on this node take no writes; `None` when all do.
    pub(super) fn refuses_writes(&self) -> Option<String> {
        let shards = &self.tables.shards;
        let here = |index: &&String| {
            shards.iter().any(|shard| shard.index == **index && shard.is_on(&self.node_id))
        };
        let blocked: Vec<_> = self.tables.read_only.iter().filter(here).collect();
        let first = blocked.first()?;
        Some(format!(
            "Elasticsearch refuses writes to {} indices with shards here, one of them {first}: \
             the disk of a node that holds it has passed the flood stage; enlarge the volume, or \
             delete data. Before version 7.4 clear index.blocks.read_only_allow_delete then",
            blocked.len()
        ))
    }

    /// Returns the number of shards that a leaving node has not given away. A shard that no node
    /// serves counts, too: right after a crash its only copy lies on this node's disk, and no table
    /// says so.
    pub(super) fn shards_left(&self) -> usize {
        let left = |shard: &&Shard| shard.is_on(&self.node_id) || !shard.is_served();
        self.tables.shards.iter().filter(left).count()
    }

    /// Returns why this node may still hold data that the other nodes lack; `None` when it does
    /// not.
    pub(super) fn unserved(&self, health: &ClusterHealth) -> Option<String> {
        if let Some(shard) = self.tables.unserved() {
            return Some(format!(
                "no node serves index {}, and its only copy may be on this node's disk; waits until \
                 it is served or its index is deleted",
                shard.name
            ));
        }
        (health.status == HealthStatus::Red).then(|| "waits until health is not red".to_owned())
    }
}

impl LocalAnswer {
    fn own(self) -> QueryAnswer<(String, LocalNode)> {
        match self.nodes.into_iter().next() {
            Some(own) => QueryAnswer::Said(own),
            None => QueryAnswer::Not(UnansweredQuery::new(LOCAL, "leaves this node out")),
        }
    }
}

impl StatsAnswer {
    fn of(mut self, node: &str) -> QueryAnswer<NodeUsage> {
        match self.nodes.remove(node) {
            Some(NodeStats { indices, jvm }) => QueryAnswer::Said(NodeUsage {
                documents: indices.docs.count,
                bytes: indices.store.size_in_bytes,
                heap_used: jvm.mem.heap_used_in_bytes,
            }),
            None => QueryAnswer::Not(UnansweredQuery::new(STATS, "leaves this node out")),
        }
    }
}

impl ClusterHealth {
    /// Returns the number of shards that are moving or being built, in the whole cluster.
    pub(super) fn moving(&self) -> u64 {
        self.relocating_shards + self.initializing_shards
    }
}

impl ClusterTables {
    async fn ask(
        api: &RestClient,
        kept: &TablesCache,
        state: &str,
        release: Option<Release>,
    ) -> Result<Arc<Self>, Error> {
        if let Some((of, tables)) = &*kept.lock().expect("no panic while held")
            && of == state
        {
            return Ok(Arc::clone(tables));
        }
        let votes = async {
            match release {
                Some(release) if !release.votes() => Ok(None),
                _ => api.hear::<VotesAnswer>(VOTES).await.or_fail().map(Some),
            }
        };
        let (tables, votes) = futures::join!(api.hear::<TablesAnswer>(TABLES), votes);
        let (answer, votes) = (tables.or_fail()?, votes?);
        let of = answer.state_uuid.clone();
        let of = votes.as_ref().is_none_or(|votes| votes.state_uuid == of).then_some(of);
        let tables = Arc::new(Self::new(answer, votes));
        // When the state changed between two answers, the tables are not cached, and asked for
        // again.
        *kept.lock().expect("no panic while held") = of.map(|of| (of, Arc::clone(&tables)));
        Ok(tables)
    }

    fn new(answer: TablesAnswer, votes: Option<VotesAnswer>) -> Self {
        let (routed, blocks) = (answer.routing_table.indices, answer.blocks.indices);
        let with = |id: &'static str| {
            let those = blocks.iter().filter(move |(_, blocks)| blocks.contains_key(id));
            those.map(|(index, _)| index.clone())
        };
        let unlisted = with(CLOSED).filter(|index| !routed.contains_key(index)).collect();
        let read_only = with(FLOOD_STAGE).collect();
        let voters = votes.map(|votes| votes.metadata.cluster_coordination.last_committed_config);
        let shards = routed.into_iter().flat_map(|(index, routing)| {
            routing.shards.into_iter().map(move |(number, copies)| Shard {
                name: format!("{index} shard {number}"),
                index: index.clone(),
                copies,
            })
        });
        Self { shards: shards.collect(), unlisted, read_only, voters: voters.unwrap_or_default() }
    }

    pub(super) fn unserved(&self) -> Option<&Shard> {
        self.shards.iter().find(|shard| !shard.is_served())
    }
}

impl Shard {
    pub(super) fn is_on(&self, node: &str) -> bool {
        self.copies.iter().any(|copy| copy.node.as_deref() == Some(node))
    }

    pub(super) fn is_served(&self) -> bool {
        self.copies.iter().any(ShardCopy::serves)
    }

    /// Does `node` hold the only copy that serves?
    pub(super) fn only_started_on(&self, node: &str) -> bool {
        let serves = |here: bool| {
            let copies = self.copies.iter().filter(|copy| copy.serves());
            copies.filter(|copy| (copy.node.as_deref() == Some(node)) == here).count() > 0
        };
        serves(true) && !serves(false)
    }

    /// Does the index have replicas? Where it has none, waiting for another copy does not help.
    pub(super) fn wants_copies(&self) -> bool {
        self.copies.len() > 1
    }
}

impl ShardCopy {
    fn serves(&self) -> bool {
        matches!(self.state.as_str(), "STARTED" | "RELOCATING")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::databases::elasticsearch::pilot) fn health(
        status: &str,
        moving: u64,
    ) -> ClusterHealth {
        let said = json!({"status": status, "relocating_shards": moving, "initializing_shards": 0});
        serde_json::from_value(said).unwrap()
    }

    /// Returns a shard of index `logs` with the given copies.
    pub(in crate::databases::elasticsearch::pilot) fn shard(
        copies: &[(Option<&str>, &str)],
    ) -> Shard {
        let copy = |(node, state): &(Option<&str>, &str)| ShardCopy {
            state: (*state).to_owned(),
            node: node.map(str::to_owned),
        };
        Shard {
            index: "logs".to_owned(),
            name: "logs shard 0".to_owned(),
            copies: copies.iter().map(copy).collect(),
        }
    }

    /// Returns the view of node `n1` in a settled cluster of three that `n2` leads.
    pub(in crate::databases::elasticsearch::pilot) fn facts() -> NodeView {
        let ids = ["n1", "n2", "n3"];
        NodeView {
            node_id: "n1".to_owned(),
            version: "7.17.29".to_owned(),
            master_eligible: true,
            holds_data: true,
            plugins: Vec::new(),
            elected: Some(ElectedMaster {
                id: "n2".to_owned(),
                health: QueryAnswer::Said(health("green", 0)),
            }),
            cluster_id: Some("u".to_owned()),
            nodes: ids.iter().map(|id| ((*id).to_owned(), format!("es-{id}"))).collect(),
            tables: Arc::new(ClusterTables {
                shards: vec![shard(&[(Some("n1"), "STARTED"), (Some("n2"), "STARTED")])],
                voters: ids.iter().map(|id| (*id).to_owned()).collect(),
                ..ClusterTables::default()
            }),
            stats: QueryAnswer::Said(NodeUsage { documents: 7, bytes: 9, heap_used: 5.0 }),
        }
    }

    fn tables(answer: &Value) -> ClusterTables {
        ClusterTables::new(serde_json::from_value(answer.clone()).unwrap(), None)
    }

    /// The cluster's state right after a crash of the node: its shards are listed and on no node.
    #[test]
    fn a_shard_that_no_node_serves_counts_as_held_by_a_node_that_leaves() {
        let with = |shards: Vec<Shard>| {
            let tables = Arc::new(ClusterTables { shards, ..ClusterTables::default() });
            NodeView { tables, ..facts() }
        };
        let green = health("green", 0);
        assert_eq!((facts().shards_left(), facts().unserved(&green)), (1, None));
        let lost = shard(&[(None, "UNASSIGNED"), (Some("n1"), "INITIALIZING")]);
        let given = shard(&[(Some("n2"), "STARTED")]);
        let crashed = with(vec![lost, given.clone()]);
        assert_eq!(crashed.shards_left(), 1);
        let why = crashed.unserved(&green).unwrap();
        assert!(why.contains("logs shard 0"), "{why}");
        let empty = with(vec![given]);
        assert_eq!((empty.shards_left(), empty.unserved(&green)), (0, None));
        assert!(empty.unserved(&health("red", 0)).is_some());
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
            NodeView { tables: Arc::new(tables), ..facts() }.refuses_writes()
        };
        let flood = json!({"description": "disk usage exceeded flood-stage watermark"});
        let text = told(&json!({"logs": {FLOOD_STAGE: flood}})).unwrap();
        assert!(text.contains("1 indices") && text.contains("logs"), "{text}");
        assert_eq!(told(&json!({"theirs": {FLOOD_STAGE: flood}})), None);
        // A person made the index read-only for good, by a block with another id.
        assert_eq!(told(&json!({"logs": {"5": {}}})), None);
        assert_eq!(told(&json!({})), None);
    }
}
