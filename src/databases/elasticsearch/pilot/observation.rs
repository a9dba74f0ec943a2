//! Turns Elasticsearch's answers about itself into the pilot's observation. Pure.
//!
//! Liveness needs no master; readiness needs one. Blockers concern this node's own shards and vote
//! only: its pilot decides for it alone.

use std::collections::BTreeMap;

use super::{
    node_view::{ClusterHealth, ClusterTables, HealthStatus, NodeUsage, NodeView, STATE, Shard},
    state::InstalledPlugin,
};
use crate::{
    api::{pilot_part::PilotParts, v1beta1::Health},
    databases::elasticsearch::{
        names,
        v1beta1::{PilotElasticsearchStatus, PluginStatus},
    },
    pilot::{database::DatabaseGauge, driver::NodeObservation, query_answer::UnansweredQuery},
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
/// did until a moment ago. `installed`: plugins that Navigator installed, whose source in the spec
/// may differ from their own name.
pub(super) fn summarize(
    facts: &NodeView,
    serving: bool,
    installed: &[InstalledPlugin],
) -> NodeObservation {
    let mut not_heard = Vec::new();
    let asked = facts.elected.as_ref().map(|elected| elected.health.as_ref());
    if serving && asked.is_none() {
        // Without a master the tables are unknown: the blockers of the last observation must stay.
        not_heard.push(UnansweredQuery::new(STATE, NO_MASTER));
    }
    let health = asked.and_then(|health| health.or_note(&mut not_heard));
    let stats = facts.stats.as_ref().figure();
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    let number = |value: i64| value as f64;
    let shards = i64::try_from(facts.shards_here()).unwrap_or(i64::MAX);
    let mut gauges = BTreeMap::from([
        ("elasticsearch_nodes", number(i64::try_from(facts.nodes.len()).unwrap_or(i64::MAX))),
        ("elasticsearch_shards", number(shards)),
    ]);
    for (name, value) in [
        ("elasticsearch_documents", stats.map(|stats| number(stats.documents))),
        ("elasticsearch_store_bytes", stats.map(|stats| number(stats.bytes))),
        ("elasticsearch_heap_used_bytes", stats.map(|stats| stats.heap_used)),
    ] {
        if let Some(value) = value {
            gauges.insert(name, value);
        }
    }
    NodeObservation {
        alive: true,
        serving,
        role: None,
        reason: (!serving).then_some("Joining"),
        message: (!serving).then(|| NO_MASTER.to_owned()),
        version: Some(facts.version.clone()),
        node_id: facts.cluster_id.as_ref().map(|_| facts.node_id.clone()),
        cluster_id: facts.cluster_id.clone(),
        health: health.map(|health| match health.status {
            HealthStatus::Green => Health::Green,
            HealthStatus::Yellow => Health::Yellow,
            HealthStatus::Red => Health::Red,
        }),
        refuses_writes: facts.refuses_writes(),
        blockers: blockers(facts, health),
        not_heard,
        endpoints: Vec::new(),
        gauges,
        detail: PilotParts::new(
            names::NAMES.word,
            &PilotElasticsearchStatus {
                documents: stats.map(|NodeUsage { documents, .. }| *documents),
                version: Some(facts.version.clone()),
                elected_master: is_master(facts).then_some(true),
                plugins: facts.plugins.iter().map(|plugin| named(plugin, installed)).collect(),
            },
        ),
        conditions: Vec::new(),
        unsaved: None,
    }
}

fn is_master(facts: &NodeView) -> bool {
    facts.elected.as_ref().is_some_and(|elected| elected.id == facts.node_id)
}

fn named(plugin: &PluginStatus, installed: &[InstalledPlugin]) -> PluginStatus {
    let ours = installed.iter().find(|ours| ours.folder == plugin.name);
    let name = ours.map_or(&plugin.name, |ours| &ours.source).clone();
    PluginStatus { name, ..plugin.clone() }
}

fn blockers(facts: &NodeView, health: Option<&ClusterHealth>) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if health.is_some_and(|health| health.status == HealthStatus::Red) {
        found.push((
            "HealthNotRed",
            match facts.tables.unserved() {
                Some(shard) => format!("no copy of index {} serves", shard.name),
                None => "some shard has no copy that serves".to_owned(),
            },
        ));
    }
    let moving = health.map_or(0, ClusterHealth::moving);
    if moving > 0 {
        found.push(("NoShardMovement", format!("{moving} shards move or recover")));
    }
    let ClusterTables { shards, unlisted, voters, read_only: _ } = &*facts.tables;
    let (alone, single): (Vec<&Shard>, Vec<&Shard>) = shards
        .iter()
        .filter(|shard| shard.only_started_on(&facts.node_id))
        .partition(|shard| shard.wants_copies());
    if let Some(shard) = alone.first() {
        found.push((
            "ShardCopyElsewhere",
            match alone.len() {
                1 => format!("index {} has its only started copy here", shard.name),
                more => format!(
                    "{more} shards have their only started copy here, one of them: index {}",
                    shard.name
                ),
            },
        ));
    }
    // This blocker forbids deleting the pod, where the data are in the pod; a restart alone is
    // fine.
    if let Some(shard) = single.first().or(alone.first()) {
        let count = single.len() + alone.len();
        let what = format!("{count} shards have no copy on another node, one of them: index ");
        found.push(("DataOutlivesPod", format!("{what}{}", shard.name)));
    } else if let Some(index) = unlisted.first().filter(|_| facts.holds_data) {
        let why = "is closed, and no table says which nodes hold it";
        found.push(("DataOutlivesPod", format!("index {index} {why}")));
    }
    let live = voters.iter().filter(|voter| facts.nodes.contains_key(*voter)).count();
    // With one or two voters no order of restarts keeps the quorum.
    if voters.contains(&facts.node_id)
        && voters.len() > 2
        && live.saturating_sub(1) < voters.len() / 2 + 1
    {
        found
            .push(("QuorumKept", format!("only {live} of {} voting masters are up", voters.len())));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        databases::elasticsearch::pilot::node_view::tests::{facts, health, shard},
        pilot::query_answer::QueryAnswer,
    };

    fn rules(facts: &NodeView) -> Vec<&'static str> {
        let seen = summarize(facts, true, &[]);
        assert_eq!(seen.not_heard, []);
        seen.blockers.into_iter().map(|(rule, _)| rule).collect()
    }

    fn with_health(health: QueryAnswer<ClusterHealth>) -> NodeView {
        let mut facts = facts();
        facts.elected.as_mut().unwrap().health = health;
        facts
    }

    #[test]
    fn a_settled_node_serves_and_may_stop() {
        let seen = summarize(&facts(), true, &[]);
        assert!(seen.serving && seen.blockers.is_empty(), "{:?}", seen.blockers);
        let known: Vec<_> = GAUGES.iter().map(|gauge| gauge.name).collect();
        assert_eq!(seen.gauges.into_keys().collect::<Vec<_>>(), known, "all of them are told");
        assert_eq!(seen.cluster_id.as_deref(), Some("u"));
        assert_eq!(
            seen.detail.get::<PilotElasticsearchStatus>(names::NAMES.word).unwrap().documents,
            Some(7)
        );
    }

    #[test]
    fn the_elected_master_says_so_and_nobody_else() {
        let elected = |facts: &NodeView| {
            let detail = summarize(facts, true, &[]).detail;
            detail.get::<PilotElasticsearchStatus>(names::NAMES.word).unwrap().elected_master
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
        let joins = summarize(&alone, false, &[]);
        assert!(joins.alive && !joins.serving && joins.not_heard.is_empty());
        assert_eq!((joins.node_id, joins.health), (None, None));
        let serves = summarize(&alone, true, &[]);
        assert_eq!(
            serves.not_heard,
            [UnansweredQuery::new("/_cluster/state/version,master_node,nodes", NO_MASTER)]
        );
    }

    #[test]
    fn a_master_that_hangs_costs_neither_readiness_nor_a_blocker() {
        let why = UnansweredQuery::new("/_cluster/health", "no answer within 5s");
        let seen = summarize(&with_health(QueryAnswer::Not(why.clone())), true, &[]);
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
        let single = with_shard(&[(Some("n1"), "STARTED")]);
        assert_eq!(rules(&single), ["DataOutlivesPod"], "no other copy is wanted");
        let mut outage = facts();
        outage.nodes.remove("n3");
        assert_eq!(rules(&outage), ["QuorumKept"]);
    }

    #[test]
    fn a_red_cluster_says_which_index_it_is() {
        let mut red = with_health(QueryAnswer::Said(health("red", 0)));
        Arc::make_mut(&mut red.tables).shards = vec![shard(&[(None, "UNASSIGNED")])];
        let (_, why) = summarize(&red, true, &[]).blockers.remove(0);
        assert_eq!(why, "no copy of index logs shard 0 serves");
    }
}
