//! Says what is left to move away from a node that is to lose its data role, and why it does not
//! move.

use std::collections::BTreeSet;

use super::decommission::{RemainingNodes, WAITS_FOR_LIST, hidden, nowhere};
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
pub(super) async fn block(
    api: &SearchClient,
    facts: &NodeView,
    on_disk: Option<usize>,
    without_shards: &BTreeSet<String>,
    seen: &mut NodeObservation,
) {
    match judge(api, facts, on_disk, without_shards).await {
        Ok(held) => seen.blockers.extend(held),
        Err(error) => {
            seen.not_heard.push(open_question(error));
            seen.block(&SHARDS_MOVED_AWAY, "does not say which shards are left to move away");
        }
    }
}

/// Returns the question that the database left open, by the error of one that needs its answer.
pub(super) fn open_question(error: Error) -> UnansweredQuery {
    match error {
        Error::NotHeard(open) => open,
        other => UnansweredQuery::new(CLUSTER_STATE, chain(&other).to_string()),
    }
}

async fn judge(
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
    let empty = shards == 0 && stats.documents == 0 && on_disk == Some(0);
    let may_not = |why: String| Ok(vec![(&SHARDS_MAY_MOVE, why)]);
    let moves = |why: String| (&SHARDS_MOVED_AWAY, why);
    let excluded = match api.exclusion().await? {
        AllocationExclusion::Hidden(theirs) => return may_not(hidden(&theirs)),
        AllocationExclusion::Ids(ids) => ids,
    };
    let rest = RemainingNodes::ask(api, facts, &excluded, without_shards).await?;
    if rest.data_nodes == 0 {
        let why = format!(
            "it holds {shards} shards, and no other node has a data role and keeps it; {ADD_ONE}"
        );
        return if empty { Ok(Vec::new()) } else { may_not(why) };
    }
    if let Some(refusal) = rest.no_room(facts, stats.bytes) {
        return may_not(refusal.why);
    }
    if !excluded.contains(&facts.node_id) {
        // An empty node waits, too: otherwise it could get a new shard.
        return Ok(vec![moves(WAITS_FOR_LIST.to_owned())]);
    }
    if let Some(why) = facts.unserved(health) {
        return Ok(vec![moves(why)]);
    }
    if empty {
        return Ok(Vec::new());
    }
    if shards == 0 {
        let folders = on_disk.map_or("an unknown number of".to_owned(), |some| some.to_string());
        let why = format!(
            "{folders} folders of shards are on its volume; Elasticsearch deletes each when every \
             copy of its shard is on other nodes"
        );
        return Ok(vec![moves(why)]);
    }
    let left = format!(
        "{shards} shards with {} bytes are left to move away, then it restarts without its data role",
        stats.bytes
    );
    let stuck = api.why_nothing_moves(facts).await.map(nowhere);
    let stuck = stuck.map(|refusal| (&SHARDS_MAY_MOVE, refusal.why));
    Ok([moves(left)].into_iter().chain(stuck).collect())
}

const ADD_ONE: &str = "add a node pool with one, or put the role back";
