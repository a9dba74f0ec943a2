//! A node of a settled cluster, for tests of what its view means, here and in drivers.

use std::sync::Arc;

use serde_json::json;

use crate::pilot::{
    clients::search_engine::{
        ClusterHealth, ClusterTables, ElectedMaster, NodeUsage, NodeView, Shard, ShardCopy,
    },
    query_answer::QueryAnswer,
};

pub(crate) fn health(status: &str, initializing: u64) -> ClusterHealth {
    let said = json!({"status": status, "initializing_shards": initializing});
    serde_json::from_value(said).unwrap()
}

/// Returns a shard of index `logs` with the given copies.
pub(crate) fn shard(copies: &[(Option<&str>, &str)]) -> Shard {
    let copy = |(node, state): &(Option<&str>, &str)| ShardCopy {
        state: (*state).to_owned(),
        node: node.map(str::to_owned),
        relocating_node: None,
    };
    Shard {
        index: "logs".to_owned(),
        name: "logs shard 0".to_owned(),
        copies: copies.iter().map(copy).collect(),
    }
}

/// Returns the view of node `n1` in a settled cluster of three that `n2` leads.
pub(crate) fn facts() -> NodeView {
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
        voters_up: Some(QueryAnswer::Said(ids.len())),
        stats: QueryAnswer::Said(NodeUsage { documents: 7, bytes: 9, heap_used: 5.0 }),
    }
}
