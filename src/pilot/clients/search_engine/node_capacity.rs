//! What each node of the cluster can take: its roles, and the room on its disks.
//!
//! A node says itself with which roles it runs, in every release. The cluster's state says it in
//! late ones only (`DiscoveryNode.toXContent`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::SearchClient;
use crate::pilot::{
    driver::Error,
    query_answer::{QueryAnswer, UnansweredQuery},
};

const ROLES: &str = "/_nodes?timeout=3s&filter_path=_nodes.failed,nodes.*.version,nodes.*.roles";
const ROOM: &str = "/_nodes/stats/fs?timeout=3s&filter_path=_nodes.failed,nodes.*.name,\
                    nodes.*.fs.total.available_in_bytes";
/// Query for the roles of some nodes, with a part of the answer that costs a node little.
const SOME_ROLES: &str = "process?timeout=3s&filter_path=_nodes.failed,nodes.*.roles";

/// What a node can take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    pub roles: BTreeSet<String>,
    /// A node that joined between the two answers has no room yet.
    pub free_bytes: i64,
}

impl NodeCapacity {
    pub fn is_master_eligible(&self) -> bool {
        self.roles.contains("master")
    }

    pub fn holds_data(&self) -> bool {
        self.roles.iter().any(|role| role.starts_with("data"))
    }
}

/// An answer with one entry for each node. Nodes that do not answer the master in time are left
/// out, and counted.
#[derive(Debug, Deserialize)]
struct NodesResponse<T> {
    #[serde(rename = "_nodes")]
    answered: NodesHeader,
    nodes: BTreeMap<String, T>,
}

#[derive(Debug, Deserialize)]
struct NodesHeader {
    failed: u32,
}

#[derive(Debug, Deserialize)]
struct NodeRoles {
    #[serde(default)]
    roles: BTreeSet<String>,
}

impl NodeRoles {
    fn is_master_eligible(&self) -> bool {
        self.roles.contains("master")
    }
}

#[derive(Debug, Deserialize)]
struct NodeDiskSpace {
    fs: FileSystems,
}

#[derive(Debug, Deserialize)]
struct FileSystems {
    total: FileSystem,
}

#[derive(Debug, Deserialize)]
struct FileSystem {
    available_in_bytes: i64,
}

impl<T> NodesResponse<T> {
    /// Returns the entries, unless a node did not answer.
    fn into_nodes(self, question: &str) -> QueryAnswer<BTreeMap<String, T>> {
        match self.answered.failed {
            0 => QueryAnswer::Said(self.nodes),
            count => QueryAnswer::Not(UnansweredQuery::new(
                question,
                format!("{count} nodes do not answer"),
            )),
        }
    }
}

impl NodesResponse<NodeRoles> {
    /// Returns the ids of the nodes that run with the role `master`, unless a node did not answer.
    fn into_master_eligible_ids(self, question: &str) -> QueryAnswer<BTreeSet<String>> {
        self.into_nodes(question).map(|nodes| {
            let masters = nodes.into_iter().filter(|(_, node)| node.is_master_eligible());
            masters.map(|(id, _)| id).collect()
        })
    }
}

impl SearchClient {
    /// Returns what each node can take, by its id. Fails when a node did not answer.
    pub async fn node_capacities(&self) -> Result<BTreeMap<String, NodeCapacity>, Error> {
        let (nodes, room) = futures::join!(
            self.query::<NodesResponse<NodeRoles>>(ROLES),
            self.query::<NodesResponse<NodeDiskSpace>>(ROOM),
        );
        let nodes = nodes.and_then(|nodes| nodes.into_nodes(ROLES)).or_fail()?;
        let room = room.and_then(|room| room.into_nodes(ROOM)).or_fail()?;
        let free_space =
            |id: &String| room.get(id).map_or(0, |room| room.fs.total.available_in_bytes);
        let capacity = |(id, NodeRoles { roles })| {
            let free_bytes = free_space(&id);
            (id, NodeCapacity { roles, free_bytes })
        };
        Ok(nodes.into_iter().map(capacity).collect())
    }

    /// Returns the ids of the nodes that run with the role `master`. Fails when a node did not
    /// answer.
    pub async fn master_eligible_ids(&self) -> Result<BTreeSet<String>, Error> {
        let nodes = self.query::<NodesResponse<NodeRoles>>(ROLES).await;
        Ok(nodes.and_then(|nodes| nodes.into_master_eligible_ids(ROLES)).or_fail()?)
    }

    /// Returns those of the nodes with these ids that run with the role `master`.
    pub(super) async fn masters_among(&self, ids: &[&str]) -> QueryAnswer<BTreeSet<String>> {
        let path = format!("/_nodes/{}/{SOME_ROLES}", ids.join(","));
        let nodes = self.query::<NodesResponse<NodeRoles>>(&path).await;
        nodes.and_then(|nodes| nodes.into_master_eligible_ids(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_answer_is_not_left_out_of_what_remains() {
        let answer = |failed: u32| -> NodesResponse<NodeRoles> {
            let said = serde_json::json!({"_nodes": {"failed": failed}, "nodes": {"n1": {}}});
            serde_json::from_value(said).unwrap()
        };
        assert!(
            matches!(answer(0).into_nodes(ROLES), QueryAnswer::Said(nodes) if nodes.len() == 1)
        );
        assert!(matches!(answer(1).into_nodes(ROLES), QueryAnswer::Not(_)));
        assert!(matches!(answer(1).into_master_eligible_ids(ROLES), QueryAnswer::Not(_)));
    }
}
