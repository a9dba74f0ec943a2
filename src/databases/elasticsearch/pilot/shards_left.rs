//! Says what is left to move away from a node that is to lose its data role, and why it does not
//! move.

use std::collections::BTreeSet;

use super::decommission::{RemainingNodes, WAITS_FOR_LIST, hidden_message, stuck_refusal};
use crate::{
    api::predicate::Predicate,
    databases::elasticsearch::predicates::{SHARDS_MAY_MOVE, SHARDS_MOVED_AWAY},
    error::chain,
    pilot::{
        clients::search_engine::{AllocationExclusion, CLUSTER_STATE, NodeView, SearchClient},
        driver::{Error, NodeObservation},
        query_answer::UnansweredQuery,
    },
};

/// The rules that hold, each with a sentence.
type HeldRules = Vec<(&'static Predicate, String)>;

/// Adds the rule that holds the node's next roles back, while it has shards.
pub(super) async fn add_blockers(
    api: &SearchClient,
    facts: &NodeView,
    on_disk: Option<usize>,
    without_shards: &BTreeSet<String>,
    observation: &mut NodeObservation,
) {
    match find_blockers(api, facts, on_disk, without_shards).await {
        Ok(blockers) => observation.blockers.extend(blockers),
        Err(error) => {
            observation.not_heard.push(to_unanswered_query(error));
            observation
                .add_blocker(&SHARDS_MOVED_AWAY, "does not say which shards are left to move away");
        }
    }
}

/// Returns the question that the database left open, by the error of one that needs its answer.
pub(super) fn to_unanswered_query(error: Error) -> UnansweredQuery {
    match error {
        Error::NotHeard(query) => query,
        error => UnansweredQuery::new(CLUSTER_STATE, chain(&error).to_string()),
    }
}

async fn find_blockers(
    api: &SearchClient,
    facts: &NodeView,
    on_disk: Option<usize>,
    without_shards: &BTreeSet<String>,
) -> Result<HeldRules, Error> {
    let Some(elected) = &facts.elected else {
        return Err(Error::NotYet("no elected master is known".to_owned()));
    };
    let health = elected.health.as_ref().or_fail()?;
    let stats = facts.stats.as_ref().or_fail()?;
    let shards = facts.shards_here();
    let is_empty = shards == 0 && stats.documents == 0 && on_disk == Some(0);
    let cannot_move = |message: String| Ok(vec![(&SHARDS_MAY_MOVE, message)]);
    let moved_away_blocker = |message: String| (&SHARDS_MOVED_AWAY, message);
    let excluded = match api.allocation_exclusion().await? {
        AllocationExclusion::Hidden(transient_ids) => {
            return cannot_move(hidden_message(&transient_ids));
        }
        AllocationExclusion::Ids(ids) => ids,
    };
    let remaining = RemainingNodes::query(api, facts, &excluded, without_shards).await?;
    if remaining.data_nodes == 0 {
        let message = format!(
            "it holds {shards} shards, and no other node has a data role and keeps it; {ADD_ONE}"
        );
        return if is_empty { Ok(Vec::new()) } else { cannot_move(message) };
    }
    if let Some(refusal) = remaining.no_room(facts, stats.bytes) {
        return cannot_move(refusal.why);
    }
    if !excluded.contains(&facts.node_id) {
        // An empty node waits, too: otherwise it could get a new shard.
        return Ok(vec![moved_away_blocker(WAITS_FOR_LIST.to_owned())]);
    }
    if let Some(message) = facts.unserved_reason(health) {
        return Ok(vec![moved_away_blocker(message)]);
    }
    if is_empty {
        return Ok(Vec::new());
    }
    if shards == 0 {
        let folders =
            on_disk.map_or("an unknown number of".to_owned(), |number| number.to_string());
        let message = format!(
            "{folders} folders of shards are on its volume; Elasticsearch deletes each when every \
             copy of its shard is on other nodes"
        );
        return Ok(vec![moved_away_blocker(message)]);
    }
    let message = format!(
        "{shards} shards with {} bytes are left to move away, then it restarts without its data role",
        stats.bytes
    );
    let stuck = api.why_nothing_moves(facts).await.map(stuck_refusal);
    let stuck = stuck.map(|refusal| (&SHARDS_MAY_MOVE, refusal.why));
    Ok([moved_away_blocker(message)].into_iter().chain(stuck).collect())
}

const ADD_ONE: &str = "add a node pool with one, or put the role back";
