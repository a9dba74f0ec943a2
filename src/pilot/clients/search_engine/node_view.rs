//! One look at a node: its own view of itself and of its cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use http::{Method, StatusCode};
use serde::Deserialize;

use super::{ClusterTables, NamedNode, SearchClient, node_names};
use crate::{
    error::chain,
    pilot::{
        driver::Error,
        http::HttpAnswer,
        query_answer::{QueryAnswer, UnansweredQuery},
    },
};

const ROOT: &str = "/";
const LOCAL: &str = "/_nodes/_local?filter_path=nodes.*.version,nodes.*.roles,\
                     nodes.*.plugins.name,nodes.*.plugins.version";
const HEALTH: &str = "/_cluster/health?timeout=1s&master_timeout=1s";
/// Path that asks for the node's own state of the cluster.
pub const CLUSTER_STATE: &str = "/_cluster/state/version,master_node,nodes?local=true\
                     &filter_path=state_uuid,cluster_uuid,master_node,nodes.*.name";
/// Part of the reason for which a node without a state refuses to answer.
const NOT_RECOVERED: &str = "SERVICE_UNAVAILABLE/1/state not recovered";
const STATS: &str = "/_nodes/_local/stats/indices,jvm?filter_path=nodes.*.indices.docs.count,\
                     nodes.*.indices.store.size_in_bytes,nodes.*.jvm.mem.heap_used_in_bytes";

/// The answers of the database in one observation.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub node_id: String,
    pub version: String,
    pub master_eligible: bool,
    pub holds_data: bool,
    pub plugins: Vec<NodePlugin>,
    /// The elected master; `None` while this node follows none.
    pub elected: Option<ElectedMaster>,
    /// UUID of the cluster; `None` before the cluster was founded, and while there is no master.
    pub cluster_id: Option<String>,
    /// Names of the nodes in the cluster, by id.
    pub nodes: BTreeMap<String, String>,
    pub tables: Arc<ClusterTables>,
    /// How many of the voters are in the cluster and run with the role `master`. A voter that was
    /// restarted without the role keeps its id and cannot vote. `None` where it was not asked: this
    /// node is no voter, or one of at most two.
    pub voters_up: Option<QueryAnswer<usize>>,
    pub stats: QueryAnswer<NodeUsage>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ElectedMaster {
    /// Node id of the master.
    pub id: String,
    /// The cluster's health, by the master's answer.
    pub health: QueryAnswer<ClusterHealth>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ClusterHealth {
    pub status: HealthStatus,
    /// Shards that are being built, in the whole cluster, without those that only move
    /// (`ClusterShardHealth`).
    pub initializing_shards: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    Green,
    Yellow,
    Red,
}

/// What the node itself holds and uses, by its statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUsage {
    pub documents: i64,
    pub bytes: i64,
    pub heap_used: f64,
}

/// A plugin that the node runs with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodePlugin {
    pub name: String,
    pub version: Option<String>,
}

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
    plugins: Vec<NodePlugin>,
}

#[derive(Debug, Deserialize)]
struct RootAnswer {
    cluster_uuid: String,
}

#[derive(Debug, Deserialize)]
struct StateAnswer {
    state_uuid: String,
    /// UUID of the cluster; older versions leave it out.
    cluster_uuid: Option<String>,
    master_node: Option<String>,
    nodes: BTreeMap<String, NamedNode>,
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

impl SearchClient {
    /// Asks for the node's view. Fails where the node does not say which node it is or what its
    /// cluster's state is. The master's answer and the statistics may be missing by themselves.
    pub async fn read_view(&self) -> Result<NodeView, Error> {
        let (root, local, state, health, stats) = futures::join!(
            self.get_answer(ROOT),
            self.query::<LocalAnswer>(LOCAL),
            self.own_state(),
            self.query::<ClusterHealth>(HEALTH),
            self.query::<StatsAnswer>(STATS),
        );
        // Only the answer at `/` decides whether the node lives: the other requests may wait for a
        // master, or be heavy.
        let root = root?;
        let (node_id, node) = local.and_then(LocalAnswer::into_local_node).or_fail()?;
        let StateAnswer { state_uuid, cluster_uuid, master_node, nodes } = state.or_fail()?;
        let nodes = node_names(nodes);
        let (mut tables, mut cluster_id, mut elected) = (Arc::default(), None, None);
        let mut voters_up = None;
        // Without a master the tables may be out of date.
        if let Some(id) = master_node {
            // A bare archive of 9 lacks the module that answers at `/`.
            let cluster_uuid = match (root.status, cluster_uuid) {
                (StatusCode::METHOD_NOT_ALLOWED, Some(uuid)) => uuid,
                _ => root.parse_body::<RootAnswer>(ROOT).or_fail()?.cluster_uuid,
            };
            tables = self.read_tables(&state_uuid, (self.traits.votes)(&node.version)).await?;
            // With one or two voters no order of restarts keeps the quorum.
            if tables.voters.len() > 2 && tables.voters.contains(&node_id) {
                voters_up = Some(self.voters_up(&state_uuid, &tables.voters, &nodes).await);
            }
            cluster_id = Some(cluster_uuid).filter(|uuid| uuid != "_na_");
            elected = Some(ElectedMaster { id, health });
        }
        let stats = stats.and_then(|answer| answer.into_usage(&node_id));
        Ok(NodeView {
            node_id,
            master_eligible: node.roles.contains("master"),
            holds_data: node.roles.iter().any(|role| role.starts_with("data")),
            version: node.version,
            plugins: node.plugins,
            elected,
            cluster_id,
            nodes,
            tables,
            voters_up,
            stats,
        })
    }

    /// Counts the voters that are in the cluster and run with the role `master`. A node gets other
    /// roles only by a restart, which makes another state of the cluster: so each state is asked
    /// about once.
    async fn voters_up(
        &self,
        state: &str,
        voters: &BTreeSet<String>,
        nodes: &BTreeMap<String, String>,
    ) -> QueryAnswer<usize> {
        if let Some((cached_state, cached_count)) =
            &*self.voters_up.lock().expect("no panic while held")
            && cached_state == state
        {
            return QueryAnswer::Said(*cached_count);
        }
        let present = voters.iter().filter(|id| nodes.contains_key(*id)).map(String::as_str);
        let voters_up =
            self.masters_among(&present.collect::<Vec<_>>()).await.map(|masters| masters.len());
        if let QueryAnswer::Said(count) = voters_up {
            let cache_entry = Some((state.to_owned(), count));
            *self.voters_up.lock().expect("no panic while held") = cache_entry;
        }
        voters_up
    }

    /// Does the node say that it follows no elected master?
    pub async fn has_no_master(&self) -> bool {
        matches!(self.own_state().await, QueryAnswer::Said(StateAnswer { master_node: None, .. }))
    }

    async fn own_state(&self) -> QueryAnswer<StateAnswer> {
        let path = self.local_path(CLUSTER_STATE);
        match self.client.send(Method::GET, &path, None, super::PATIENCE).await {
            Ok(answer) => StateAnswer::from_answer(answer),
            Err(error) => {
                QueryAnswer::Not(UnansweredQuery::new(CLUSTER_STATE, chain(&error).to_string()))
            }
        }
    }
}

impl StateAnswer {
    /// Reads the answer. A node of 8.19 that followed no master since it was made has a block in place of
    /// the state (`GatewayService.STATE_NOT_RECOVERED_BLOCK`); one of 7.17 has a state without a master.
    fn from_answer(answer: HttpAnswer) -> QueryAnswer<Self> {
        let error = &answer.body["error"];
        let is_not_recovered = error["type"] == "cluster_block_exception"
            && error["reason"].as_str().is_some_and(|reason| reason.contains(NOT_RECOVERED));
        if answer.status != StatusCode::SERVICE_UNAVAILABLE || !is_not_recovered {
            return answer.parse_body(CLUSTER_STATE);
        }
        QueryAnswer::Said(Self {
            state_uuid: String::new(),
            cluster_uuid: None,
            master_node: None,
            nodes: BTreeMap::new(),
        })
    }
}

impl NodeView {
    /// Is this node the elected master?
    pub fn is_master(&self) -> bool {
        self.elected.as_ref().is_some_and(|elected| elected.id == self.node_id)
    }

    pub fn shards_here(&self) -> usize {
        self.tables.shards.iter().filter(|shard| shard.is_on(&self.node_id)).count()
    }

    /// Returns the number of shards that a leaving node has not given away. A shard that no node
    /// serves counts, too: right after a crash its only copy lies on this node's disk, and no table
    /// says so.
    pub fn shards_left(&self) -> usize {
        let shards = self.tables.shards.iter();
        shards.filter(|shard| shard.is_on(&self.node_id) || !shard.is_served()).count()
    }

    /// Returns why this node may still hold data that the other nodes lack; `None` when it does
    /// not.
    pub fn unserved_reason(&self, health: &ClusterHealth) -> Option<String> {
        if let Some(shard) = self.tables.unserved_shard() {
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
    fn into_local_node(self) -> QueryAnswer<(String, LocalNode)> {
        match self.nodes.into_iter().next() {
            Some(local_node) => QueryAnswer::Said(local_node),
            None => QueryAnswer::Not(UnansweredQuery::new(LOCAL, "leaves this node out")),
        }
    }
}

impl StatsAnswer {
    fn into_usage(mut self, node: &str) -> QueryAnswer<NodeUsage> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{
            Shard,
            testing::{facts, health, shard},
        },
        *,
    };

    /// What a node of 8.19.4 answered that was made anew while two of three masters were lost.
    #[test]
    fn a_node_that_has_no_state_yet_follows_no_master() {
        let blocked = |reason: &str| {
            let error = json!({"type": "cluster_block_exception", "reason": reason});
            let body = json!({"error": error, "status": 503});
            StateAnswer::from_answer(HttpAnswer { status: StatusCode::SERVICE_UNAVAILABLE, body })
        };
        let reason = "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];";
        let QueryAnswer::Said(state) = blocked(reason) else { panic!("it counts as unheard") };
        assert_eq!((state.master_node, state.nodes.len()), (None, 0));
        let other = blocked("blocked by: [SERVICE_UNAVAILABLE/2/no master];");
        assert!(matches!(other, QueryAnswer::Not(_)));
    }

    /// The cluster's state right after a crash of the node: its shards are listed and on no node.
    #[test]
    fn a_shard_that_no_node_serves_counts_as_held_by_a_node_that_leaves() {
        let with = |shards: Vec<Shard>| {
            let tables = Arc::new(ClusterTables { shards, ..ClusterTables::default() });
            NodeView { tables, ..facts() }
        };
        let green = health("green", 0);
        assert_eq!((facts().shards_left(), facts().unserved_reason(&green)), (1, None));
        let lost = shard(&[(None, "UNASSIGNED"), (Some("n1"), "INITIALIZING")]);
        let given = shard(&[(Some("n2"), "STARTED")]);
        let crashed = with(vec![lost, given.clone()]);
        assert_eq!(crashed.shards_left(), 1);
        let why = crashed.unserved_reason(&green).unwrap();
        assert!(why.contains("logs shard 0"), "{why}");
        let empty = with(vec![given]);
        assert_eq!((empty.shards_left(), empty.unserved_reason(&green)), (0, None));
        assert!(empty.unserved_reason(&health("red", 0)).is_some());
    }
}
