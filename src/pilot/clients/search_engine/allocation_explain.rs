//! Explains in the engine's own words why it does not move a shard away.
//!
//! Exclusion only asks for shards to move; rules of allocation (disk watermarks, awareness, filters
//! that people set) may forbid every other node, and then no shard moves and no request fails.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde_json::{Value, json};

use super::{NodeView, PATIENCE, SearchClient, ShardCopy};

/// Most bytes of the explanation; reasons repeat for each node.
const LONGEST: usize = 512;

/// A shard that may go to no other node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckShard {
    /// The rules that forbid it, in the engine's own words.
    pub why: String,
    /// Nothing but the disks of the other nodes forbids it.
    pub by_disks: bool,
}

impl SearchClient {
    /// Returns a shard when no shard of this node is moving and one of them has nowhere to go.
    /// `None`, too, when a request fails: the next observation asks again.
    pub async fn why_nothing_moves(&self, facts: &NodeView) -> Option<StuckShard> {
        let find_shard = |state: &str| {
            let is_match = |copy: &ShardCopy| {
                copy.state == state && copy.node.as_deref() == Some(&facts.node_id)
            };
            facts.tables.shards.iter().find(|shard| shard.copies.iter().any(is_match))
        };
        let shard = match find_shard("RELOCATING") {
            Some(_) => return None,
            None => find_shard("STARTED")?,
        };
        let (index, number) = shard.name.rsplit_once(" shard ")?;
        // The request must name primary or replica; either answer lists the same rules.
        for primary in [true, false] {
            let question = json!({
                "index": index, "shard": number.parse::<u64>().ok()?, "primary": primary,
                "current_node": facts.nodes.get(&facts.node_id)?,
            });
            let path = "/_cluster/allocation/explain";
            if let Ok(answer) =
                self.send_change(Method::POST, path, Some(&question), PATIENCE).await
            {
                return parse_stuck_shard(&shard.name, &answer);
            }
            if !shard.wants_copies() {
                break;
            }
        }
        None
    }
}

fn parse_stuck_shard(shard: &str, answer: &Value) -> Option<StuckShard> {
    if answer["can_move_to_other_node"] != "no" {
        return None;
    }
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // The other copies of the shard sit on the rest of the nodes, which are no room either.
    let mut deciders = BTreeSet::new();
    for node in answer["node_allocation_decisions"].as_array().into_iter().flatten() {
        let refusal =
            node["deciders"].as_array().into_iter().flatten().find(|d| d["decision"] == "NO");
        let reason = refusal.and_then(|refusal| refusal["explanation"].as_str())?;
        deciders.extend(refusal.and_then(|refusal| refusal["decider"].as_str()));
        reasons.entry(reason).or_default().push(node["node_name"].as_str()?);
    }
    let reasons = reasons.iter().map(|(reason, nodes)| format!("{}: {reason}", nodes.join(", ")));
    let mut text = format!(
        "index {shard} may not go to any other node. {}",
        reasons.collect::<Vec<_>>().join("; ")
    );
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
    }
    let by_disks = deciders.remove("disk_threshold") && deciders.is_subset(&["same_shard"].into());
    Some(StuckShard { why: text, by_disks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_may_go_nowhere_says_why_and_others_say_nothing() {
        let full = "the node is above the low watermark";
        let mut answer = json!({
            "can_move_to_other_node": "no",
            "node_allocation_decisions": [
                {"node_name": "a-0", "deciders": [
                    {"decider": "filter", "decision": "YES", "explanation": "fine"},
                    {"decider": "disk_threshold", "decision": "NO", "explanation": full},
                ]},
                {"node_name": "a-1", "deciders": [
                    {"decider": "disk_threshold", "decision": "NO", "explanation": full},
                ]},
            ],
        });
        let told = parse_stuck_shard("logs shard 0", &answer).unwrap();
        assert!(told.by_disks);
        assert_eq!(
            told.why,
            "index logs shard 0 may not go to any other node. \
             a-0, a-1: the node is above the low watermark"
        );
        let other = |decider: &str| {
            let mut answer = answer.clone();
            answer["node_allocation_decisions"][1]["deciders"][0]["decider"] = json!(decider);
            parse_stuck_shard("logs shard 0", &answer).unwrap().by_disks
        };
        assert!(other("same_shard"), "where a copy is, room would not help either");
        assert!(!other("filter"), "a filter is a person's");
        answer["can_move_to_other_node"] = json!("throttled");
        assert_eq!(parse_stuck_shard("logs shard 0", &answer), None);
    }
}
