//! Gives a node's shards and its vote away.
//!
//! The leaving node decides whether it may go, asks through its Pilot's progress, and watches. The
//! lists that move its shards and its vote are the leading pilot's (`lead_duties`), so no two write them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    api::{Api, Exclusion},
    observe::Facts,
    state::NodeState,
    stuck,
};
use crate::{
    api::v1beta1::Decommission,
    databases::elasticsearch::{facts::Release, kind::ElasticsearchNode},
    pilot::{
        driver::{DecommissionState, Error, Node},
        node::blockers::now,
        volume::state::StateFile,
    },
};

pub(super) async fn decommission(
    api: &Api,
    node: &Node,
    release: Release,
    most_shards: &mut usize,
) -> Result<DecommissionState, Error> {
    let mut state = NodeState::load(&node.data)?;
    let facts = Facts::ask(api).await?;
    if facts.health.is_none() {
        return Err(Error::NotYet("waits for an elected master".to_owned()));
    }
    let excluded = match api.exclusion().await? {
        Exclusion::Hidden(theirs) => return Ok(DecommissionState::Refused(hidden(&theirs))),
        Exclusion::Ids(ids) => ids,
    };
    let quorum = if release.votes() { None } else { quorum(node) };
    let rest = Rest::ask(api, &facts, &excluded).await?;
    if let Some(reason) = rest.obstacle(&facts, quorum.unwrap_or(1)) {
        return Ok(DecommissionState::Refused(reason));
    }
    if state.decommissioning_since.is_none() {
        state.decommissioning_since = Some(now());
        state.save(&node.data)?;
    }
    let shards = facts.shards_left();
    *most_shards = shards.max(*most_shards);
    let moving = |message: Option<String>| {
        Ok(DecommissionState::Moving(Decommission {
            start_time: state.decommissioning_since.clone(),
            percent: i32::try_from(((*most_shards - shards) * 100) / (*most_shards).max(1))
                .ok()
                .map(|percent| percent.min(99)),
            bytes_left: facts.bytes,
            shards_left: i32::try_from(shards).ok(),
            documents_left: facts.documents,
            irreversible: false,
            message,
        }))
    };
    match holds(&facts, &excluded, release.votes()) {
        Some(Holds::Waits(why)) => return moving(Some(why)),
        Some(Holds::Data) => return moving(stuck::why(api, &facts).await),
        None => {}
    }
    // The remaining masters need the new quorum before this one is gone.
    if quorum.is_some() && api.minimum_masters().await? != quorum {
        return moving(Some(WAITS_FOR_QUORUM.to_owned()));
    }
    // Only the pilot's own note says later that it left: until that is written, this is asked
    // again, because shards may have come back meanwhile.
    Ok(DecommissionState::Done)
}

/// What a node still has that others may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holds {
    Data,
    Waits(String),
}

/// `None`: it is excluded, and has no shard, no document and no vote. Only then it leaves.
fn holds(facts: &Facts, excluded: &BTreeSet<String>, votes: bool) -> Option<Holds> {
    if !excluded.contains(&facts.node_id) {
        // Also when it is empty: a new shard could come.
        return Some(Holds::Waits(WAITS_FOR_LIST.to_owned()));
    }
    if let Some(why) = facts.unserved() {
        return Some(Holds::Waits(why));
    }
    if facts.shards_left() > 0 || facts.documents.is_none_or(|documents| documents > 0) {
        return Some(Holds::Data);
    }
    let votes = votes && facts.voters.contains(&facts.node_id);
    votes.then(|| Holds::Waits(WAITS_FOR_VOTE.to_owned()))
}

/// Takes the node back into the cluster. Possible until its process is stopped; the leading pilot
/// takes it off the lists.
pub(super) fn cancel(node: &Node) -> Result<(), Error> {
    let state = NodeState::load(&node.data)?;
    NodeState { decommissioning_since: None, ..state }.save(&node.data)
}

const WAITS_FOR_LIST: &str = "waits for the leading pilot to exclude it from allocation";
const WAITS_FOR_VOTE: &str = "waits for the leading pilot to take its vote";
const WAITS_FOR_QUORUM: &str = "waits for the leading pilot to set minimum_master_nodes";

fn hidden(theirs: &str) -> String {
    format!(
        "the transient setting cluster.routing.allocation.exclude._id ({theirs:?}) hides the one \
         that would move the shards away; remove it, or exclude by _name"
    )
}

/// Masters that must remain, before version 7.
pub(super) fn quorum(node: &Node) -> Option<i32> {
    node.pilot.spec.part::<ElasticsearchNode>()?.minimum_masters
}

/// The nodes that would remain.
#[derive(Debug, Default)]
struct Rest {
    data_nodes: usize,
    masters: i32,
    free_bytes: i64,
}

impl Rest {
    async fn ask(api: &Api, facts: &Facts, excluded: &BTreeSet<String>) -> Result<Self, Error> {
        let (nodes, stats) = futures::join!(
            api.get("/_nodes?timeout=3s&filter_path=nodes.*.roles"),
            api.get("/_nodes/stats/fs?timeout=3s&filter_path=nodes.*.fs.total.available_in_bytes"),
        );
        let (nodes, stats) = (nodes?, stats?);
        let mut rest = Self::default();
        for (id, node) in nodes["nodes"].as_object().into_iter().flatten() {
            if *id == facts.node_id {
                continue;
            }
            let has = |wanted: &dyn Fn(&str) -> bool| {
                node["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).any(wanted)
            };
            if has(&|role| role == "master") {
                rest.masters += 1;
            }
            if has(&|role| role.starts_with("data")) && !excluded.contains(id) {
                rest.data_nodes += 1;
                let free = &stats["nodes"][id]["fs"]["total"]["available_in_bytes"];
                rest.free_bytes += free.as_i64().unwrap_or_default();
            }
        }
        Ok(rest)
    }

    /// `quorum`: masters that must remain.
    fn obstacle(&self, facts: &Facts, quorum: i32) -> Option<String> {
        if facts.master_eligible && self.masters == 0 {
            return Some("this is the last node that may be master".to_owned());
        }
        if facts.master_eligible && self.masters < quorum {
            return Some(format!(
                "{} masters would remain, and minimumMasters is {quorum}; lower it or add one first",
                self.masters
            ));
        }
        if let Some(index) = facts.unlisted.first().filter(|_| facts.holds_data) {
            return Some(format!(
                "index {index} was closed by a version before 7.2, which moves no closed index away and \
                 does not say where it lies; open or delete it first"
            ));
        }
        let here = facts.shards.iter().filter(|shard| shard.is_on(&facts.node_id));
        let widest = here.max_by_key(|shard| shard.copies.len())?;
        let copies = widest.copies.len();
        if copies > self.data_nodes {
            return Some(format!(
                "index {} wants {copies} copies, and {} data nodes would remain; lower \
                 number_of_replicas or add a node first",
                widest.name, self.data_nodes
            ));
        }
        // Elasticsearch fills a disk to 85 % (the low watermark), so the last part is not room.
        let room = self.free_bytes / 100 * 85;
        let bytes = facts.bytes.unwrap_or_default();
        (room < bytes).then(|| {
            format!("the other data nodes have room for {room} bytes, and this node holds {bytes}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::elasticsearch::pilot::observe::Shard;

    #[test]
    fn a_node_leaves_with_no_shard_no_document_and_no_vote() {
        let shard = || Shard {
            name: "logs shard 0".to_owned(),
            copies: vec![(Some("n1".to_owned()), "STARTED".to_owned())],
            ..Shard::default()
        };
        let empty = Facts {
            node_id: "n1".to_owned(),
            health: Some("green".to_owned()),
            documents: Some(0),
            ..Facts::default()
        };
        let listed = BTreeSet::from(["n1".to_owned()]);
        assert_eq!(holds(&empty, &listed, true), None);
        let waits = |why: &str| Some(Holds::Waits(why.to_owned()));
        assert_eq!(holds(&empty, &BTreeSet::new(), true), waits(WAITS_FOR_LIST));
        let full = Facts { shards: vec![shard()], ..empty.clone() };
        assert_eq!(holds(&full, &listed, true), Some(Holds::Data));
        for documents in [None, Some(1)] {
            let unsure = Facts { documents, ..empty.clone() };
            assert_eq!(holds(&unsure, &listed, true), Some(Holds::Data), "{documents:?}");
        }
        let voter = Facts { voters: listed.clone(), ..empty.clone() };
        assert_eq!(holds(&voter, &listed, true), waits(WAITS_FOR_VOTE));
        assert_eq!(holds(&voter, &listed, false), None, "before version 7 there are no votes");
        let both = Facts { shards: vec![shard()], ..voter };
        assert_eq!(holds(&both, &listed, true), Some(Holds::Data));
    }

    #[test]
    fn a_node_is_held_back_when_the_rest_cannot_do_without_it() {
        let started = |node: &str| (Some(node.to_owned()), "STARTED".to_owned());
        let facts = Facts {
            node_id: "n1".to_owned(),
            master_eligible: true,
            bytes: Some(100),
            shards: vec![Shard {
                name: "logs shard 0".to_owned(),
                copies: vec![started("n1"), started("n2")],
                ..Shard::default()
            }],
            ..Facts::default()
        };
        let rest = |data_nodes, masters, free_bytes| Rest { data_nodes, masters, free_bytes };
        assert_eq!(rest(2, 1, 1000).obstacle(&facts, 1), None);
        let short = rest(2, 1, 1000).obstacle(&facts, 2).unwrap();
        assert!(short.contains("minimumMasters is 2"), "{short}");
        for (rest, word) in
            [(rest(2, 0, 1000), "master"), (rest(1, 1, 1000), "copies"), (rest(2, 1, 100), "room")]
        {
            let reason = rest.obstacle(&facts, 1).unwrap();
            assert!(reason.contains(word), "{reason}");
        }
        let empty = Facts { shards: Vec::new(), ..facts };
        assert_eq!(rest(0, 1, 0).obstacle(&empty, 1), None);
        let closed = Facts { unlisted: vec!["old".to_owned()], holds_data: true, ..empty.clone() };
        let reason = rest(2, 1, 1000).obstacle(&closed, 1).unwrap();
        assert!(reason.contains("index old was closed"), "{reason}");
        let master = Facts { holds_data: false, ..closed };
        assert_eq!(rest(2, 1, 1000).obstacle(&master, 1), None);
    }
}
