//! Turns Elasticsearch's answers about itself into the pilot's observation. Pure.
//!
//! Liveness needs no master; readiness needs one. Blockers concern this node's own shards and vote
//! only: its pilot decides for it alone.

use super::{
    seeds,
    state::{InstalledPlugin, NodeState},
};
use crate::{
    api::{predicate::DATA_OUTLIVES_POD, v1beta1::Health},
    databases::elasticsearch::{
        names::port,
        predicates::{HEALTH_NOT_RED, NO_SHARD_MOVEMENT, QUORUM_KEPT, SHARD_COPY_ELSEWHERE},
        v1beta1::{ElasticsearchNode, PilotElasticsearchStatus, PluginStatus},
    },
    pilot::{
        clients::search_engine::{
            CLUSTER_STATE, ClusterHealth, ClusterTables, HealthStatus, NodePlugin, NodeView, Shard,
        },
        database::DatabaseGauge,
        driver::NodeObservation,
        query_answer::UnansweredQuery,
    },
};

const NO_MASTER: &str = "no elected master is known";

/// The gauges that a [`NodeObservation`] of Elasticsearch may hold.
pub(super) const GAUGES: &[DatabaseGauge] = &[
    DatabaseGauge { name: "elasticsearch_documents", help: "Documents that the node holds." },
    DatabaseGauge { name: "elasticsearch_heap_used_bytes", help: "Use of the heap." },
    DatabaseGauge {
        name: "elasticsearch_nodes",
        help: "Nodes of the cluster, as this one sees it.",
    },
    DatabaseGauge { name: "elasticsearch_shards", help: "Shards on the node." },
    DatabaseGauge { name: "elasticsearch_store_bytes", help: "Data that the node holds." },
];

/// Builds the pilot's observation from the node's view. `serving`: the node follows a master, or
/// did until a moment ago. `state` names the plugins that Navigator installed, whose source in the
/// spec may differ from their own name.
pub(super) fn summarize_node(
    facts: &NodeView,
    is_serving: bool,
    state: &NodeState,
) -> NodeObservation {
    let unready_reason = (!is_serving).then(|| ("Joining", NO_MASTER.to_owned()));
    let mut observation =
        NodeObservation::from_readiness(Some(facts.version.clone()), unready_reason);
    let health_answer = facts.elected.as_ref().map(|elected| elected.health.as_ref());
    if is_serving && health_answer.is_none() {
        // Without a master the tables are unknown: the blockers of the last observation must stay.
        observation.not_heard.push(UnansweredQuery::new(CLUSTER_STATE, NO_MASTER));
    }
    let health = health_answer.and_then(|health| observation.record_answer(health));
    let stats = facts.stats.as_ref().into_option();
    observation.set_gauge("elasticsearch_nodes", facts.nodes.len());
    observation.set_gauge("elasticsearch_shards", facts.shards_here());
    observation.set_gauge("elasticsearch_documents", stats.map(|stats| stats.documents));
    observation.set_gauge("elasticsearch_store_bytes", stats.map(|stats| stats.bytes));
    observation.set_gauge("elasticsearch_heap_used_bytes", stats.map(|stats| stats.heap_used));
    observation.node_id = facts.cluster_id.as_ref().map(|_| facts.node_id.clone());
    observation.cluster_id.clone_from(&facts.cluster_id);
    observation.health = health.map(|health| match health.status {
        HealthStatus::Green => Health::Green,
        HealthStatus::Yellow => Health::Yellow,
        HealthStatus::Red => Health::Red,
    });
    observation.refuses_writes = refuses_writes(facts);
    add_blockers(&mut observation, facts, health);
    observation.set_part::<ElasticsearchNode>(&PilotElasticsearchStatus {
        cluster_name: state.cluster_name.clone(),
        documents: stats.map(|stats| stats.documents),
        version: Some(facts.version.clone()),
        elected_master: facts.is_master().then_some(true),
        plugins: facts.plugins.iter().map(|plugin| plugin_status(plugin, &state.plugins)).collect(),
    });
    if let Some(host) = state.address {
        // Endpoints are reported before there is a master: other nodes must find this one to elect
        // a master.
        observation.add_endpoint(seeds::TRANSPORT, host, port::TRANSPORT);
        observation.add_endpoint("client", host, port::HTTP);
    }
    observation
}

fn plugin_status(plugin: &NodePlugin, installed: &[InstalledPlugin]) -> PluginStatus {
    let installed_plugin = installed.iter().find(|candidate| candidate.folder == plugin.name);
    PluginStatus {
        name: installed_plugin
            .map_or(&plugin.name, |installed_plugin| &installed_plugin.source)
            .clone(),
        status: Some("Installed".to_owned()),
        version: plugin.version.clone(),
        message: None,
    }
}

/// Returns why indices with a shard on this node take no writes; `None` when all do.
fn refuses_writes(facts: &NodeView) -> Option<String> {
    let blocked_indices = facts.tables.read_only_on(&facts.node_id);
    let first = blocked_indices.first()?;
    Some(format!(
        "Elasticsearch refuses writes to {} indices with shards here, one of them {first}: the \
         disk of a node that holds it has passed the flood stage; enlarge the volume, or delete \
         data. Before version 7.4 clear index.blocks.read_only_allow_delete then",
        blocked_indices.len()
    ))
}

/// Adds the rules that hold now.
fn add_blockers(
    observation: &mut NodeObservation,
    facts: &NodeView,
    health: Option<&ClusterHealth>,
) {
    if health.is_some_and(|health| health.status == HealthStatus::Red) {
        let message = match facts.tables.unserved_shard() {
            Some(shard) => format!("no copy of index {} serves", shard.name),
            None => "some shard has no copy that serves".to_owned(),
        };
        observation.add_blocker(&HEALTH_NOT_RED, message);
    }
    let ClusterTables { shards, unlisted, voters, read_only: _ } = &*facts.tables;
    let recovering = health.map_or(0, |health| health.initializing_shards);
    let moving = shards.iter().filter(|shard| shard.moves_at(&facts.node_id)).count();
    if recovering > 0 {
        observation.add_blocker(&NO_SHARD_MOVEMENT, format!("{recovering} shards recover"));
    } else if moving > 0 {
        observation.add_blocker(
            &NO_SHARD_MOVEMENT,
            format!("{moving} shards move to this node or away from it"),
        );
    }
    let (lone_shards, single_copy_shards): (Vec<&Shard>, Vec<&Shard>) = shards
        .iter()
        .filter(|shard| shard.only_started_on(&facts.node_id))
        .partition(|shard| shard.wants_copies());
    if let Some(Shard { name, .. }) = lone_shards.first() {
        let message = match lone_shards.len() {
            1 => format!("index {name} has its only started copy here"),
            count => {
                format!(
                    "{count} shards have their only started copy here, one of them: index {name}"
                )
            }
        };
        observation.add_blocker(&SHARD_COPY_ELSEWHERE, message);
    }
    // This blocker forbids deleting the pod, where the data are in the pod; a restart alone is
    // fine.
    if let Some(Shard { name, .. }) = single_copy_shards.first().or(lone_shards.first()) {
        let count = single_copy_shards.len() + lone_shards.len();
        let message =
            format!("{count} shards have no copy on another node, one of them: index {name}");
        observation.add_blocker(&DATA_OUTLIVES_POD, message);
    } else if let Some(index) = unlisted.first().filter(|_| facts.holds_data) {
        let message = format!("index {index} is closed, and no table says which nodes hold it");
        observation.add_blocker(&DATA_OUTLIVES_POD, message);
    }
    let Some(voters_up) = &facts.voters_up else { return };
    // Voters that do not say with which roles they run may all be up; no more than those are.
    let present = voters.iter().filter(|voter| facts.nodes.contains_key(*voter)).count();
    let live = observation.record_answer(voters_up.as_ref()).copied().unwrap_or(present);
    if live.saturating_sub(1) < voters.len() / 2 + 1 {
        let message = format!("only {live} of {} voting masters are up", voters.len());
        observation.add_blocker(&QUORUM_KEPT, message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        databases::elasticsearch::{
            names::NAMES,
            pilot::testing::{facts, health, shard},
        },
        pilot::query_answer::QueryAnswer,
    };

    fn rules(facts: &NodeView) -> Vec<&'static str> {
        let seen = summarize_node(facts, true, &NodeState::default());
        assert_eq!(seen.not_heard, []);
        seen.blockers.into_iter().map(|(rule, _)| rule.name).collect()
    }

    fn with_health(health: QueryAnswer<ClusterHealth>) -> NodeView {
        let mut facts = facts();
        facts.elected.as_mut().unwrap().health = health;
        facts
    }

    #[test]
    fn a_settled_node_serves_and_may_stop() {
        let seen = summarize_node(&facts(), true, &NodeState::default());
        assert!(seen.serving && seen.blockers.is_empty(), "{:?}", seen.blockers);
        let known: Vec<_> = GAUGES.iter().map(|gauge| gauge.name).collect();
        assert_eq!(seen.gauges.into_keys().collect::<Vec<_>>(), known, "all of them are told");
        assert_eq!(seen.cluster_id.as_deref(), Some("u"));
        assert_eq!(
            seen.detail.get::<PilotElasticsearchStatus>(NAMES.word).unwrap().documents,
            Some(7)
        );
    }

    #[test]
    fn the_elected_master_says_so_and_nobody_else() {
        let elected = |facts: &NodeView| {
            let detail = summarize_node(facts, true, &NodeState::default()).detail;
            detail.get::<PilotElasticsearchStatus>(NAMES.word).unwrap().elected_master
        };
        assert_eq!(elected(&facts()), None);
        let mut master = facts();
        master.elected.as_mut().unwrap().id = "n1".to_owned();
        assert_eq!(elected(&master), Some(true));
        assert_eq!(elected(&NodeView { elected: None, ..facts() }), None);
    }

    #[test]
    fn a_node_without_a_master_lives_and_says_what_it_does_not_know_while_it_serves() {
        let alone = NodeView { elected: None, cluster_id: None, tables: Arc::default(), ..facts() };
        let joins = summarize_node(&alone, false, &NodeState::default());
        assert!(joins.alive && !joins.serving && joins.not_heard.is_empty());
        assert_eq!((joins.node_id, joins.health), (None, None));
        let serves = summarize_node(&alone, true, &NodeState::default());
        assert_eq!(
            serves.not_heard,
            [UnansweredQuery::new("/_cluster/state/version,master_node,nodes", NO_MASTER)]
        );
    }

    #[test]
    fn a_master_that_hangs_costs_neither_readiness_nor_a_blocker() {
        let why = UnansweredQuery::new("/_cluster/health", "no answer within 5s");
        let seen = summarize_node(
            &with_health(QueryAnswer::Not(why.clone())),
            true,
            &NodeState::default(),
        );
        assert!(seen.serving);
        assert_eq!((seen.health, seen.not_heard), (None, vec![why]));
    }

    #[test]
    fn every_reason_not_to_stop_is_named() {
        let red = with_health(QueryAnswer::Said(health("red", 0)));
        assert_eq!(rules(&red), ["HealthNotRed"]);
        assert_eq!(rules(&with_health(QueryAnswer::Said(health("green", 2)))), ["NoShardMovement"]);
        let with_shard = |copies: &[(Option<&str>, &str)]| {
            let mut facts = facts();
            Arc::make_mut(&mut facts.tables).shards = vec![shard(copies)];
            facts
        };
        let alone = with_shard(&[(Some("n1"), "STARTED"), (None, "UNASSIGNED")]);
        assert_eq!(rules(&alone), ["ShardCopyElsewhere", "DataOutlivesPod"]);
        let moving = |from: &str, to: &str| {
            let mut facts = with_shard(&[(Some(from), "RELOCATING"), (Some("n4"), "STARTED")]);
            let copies = &mut Arc::make_mut(&mut facts.tables).shards[0].copies;
            copies[0].relocating_node = Some(to.to_owned());
            rules(&facts)
        };
        assert_eq!(moving("n1", "n2"), ["NoShardMovement"]);
        assert_eq!(moving("n2", "n1"), ["NoShardMovement"]);
        assert_eq!(moving("n2", "n3"), [""; 0], "rebalancing elsewhere may never end");
        let single = with_shard(&[(Some("n1"), "STARTED")]);
        assert_eq!(rules(&single), ["DataOutlivesPod"], "no other copy is wanted");
        let outage = NodeView { voters_up: Some(QueryAnswer::Said(2)), ..facts() };
        assert_eq!(rules(&outage), ["QuorumKept"]);
    }

    #[test]
    fn voters_that_do_not_say_their_roles_are_an_open_question() {
        let why = UnansweredQuery::new("/_nodes/n1,n2,n3/process", "1 nodes do not answer");
        let silent = |present: usize| {
            let mut facts = facts();
            facts.nodes = facts.nodes.into_iter().take(present).collect();
            facts.voters_up = Some(QueryAnswer::Not(why.clone()));
            let seen = summarize_node(&facts, true, &NodeState::default());
            assert_eq!(seen.not_heard, std::slice::from_ref(&why));
            seen.blockers.iter().map(|(rule, _)| rule.name).collect::<Vec<_>>()
        };
        assert!(silent(3).is_empty(), "what held before still holds");
        assert_eq!(silent(2), ["QuorumKept"], "a voter is gone, whatever the others say");
    }

    #[test]
    fn a_red_cluster_says_which_index_it_is() {
        let mut red = with_health(QueryAnswer::Said(health("red", 0)));
        Arc::make_mut(&mut red.tables).shards = vec![shard(&[(None, "UNASSIGNED")])];
        let (_, why) = summarize_node(&red, true, &NodeState::default()).blockers.remove(0);
        assert_eq!(why, "no copy of index logs shard 0 serves");
    }

    #[test]
    fn a_node_that_holds_an_index_behind_the_flood_stage_says_so() {
        let mut full = facts();
        Arc::make_mut(&mut full.tables).read_only = ["logs".to_owned()].into();
        let text = refuses_writes(&full).unwrap();
        assert!(text.contains("1 indices") && text.contains("logs"), "{text}");
        assert_eq!(refuses_writes(&facts()), None);
    }
}
