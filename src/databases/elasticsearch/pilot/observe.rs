//! What Elasticsearch says about itself, and what follows from it.
//!
//! Liveness needs no master; readiness needs one. Blockers regard this node's own shards and
//! vote only: its pilot decides for it alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{api::Api, state::Plugin};
use crate::{
    api::{pilot_part::Parts, v1beta1::Health},
    databases::elasticsearch::{
        kind::{PilotElasticsearchStatus, PluginStatus},
        names,
    },
    pilot::{
        database::Gauge,
        driver::{Error, Observation},
    },
};

/// What one round of questions brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) node_id: String,
    pub(super) version: Option<String>,
    pub(super) master_eligible: bool,
    pub(super) holds_data: bool,
    /// UUID of the cluster; absent until it was founded.
    pub(super) cluster_id: Option<String>,
    /// Id of the elected master, when this node follows one.
    pub(super) master: Option<String>,
    /// `green`, `yellow`, `red`; absent without a master.
    pub(super) health: Option<String>,
    /// Shards on the move or being built, in the whole cluster.
    pub(super) moving: u64,
    /// Id → name of the nodes in the cluster.
    pub(super) nodes: BTreeMap<String, String>,
    pub(super) shards: Vec<Shard>,
    /// Indices that no table says the places of: closed ones, as versions before 7.2 close them.
    pub(super) unlisted: Vec<String>,
    /// Indices that take no writes until a disk has room again.
    pub(super) read_only: BTreeSet<String>,
    /// Ids that vote, in version 7 and later.
    pub(super) voters: BTreeSet<String>,
    /// Names that were excluded from voting.
    pub(super) excluded_voters: BTreeSet<String>,
    pub(super) documents: Option<i64>,
    pub(super) bytes: Option<i64>,
    pub(super) heap_used: Option<f64>,
    pub(super) plugins: Vec<PluginStatus>,
}

/// One shard with all its copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shard {
    pub(super) index: String,
    pub(super) name: String,
    /// Node and state of each copy; a copy without a node is unassigned.
    pub(super) copies: Vec<(Option<String>, String)>,
}

impl Shard {
    pub(super) fn is_on(&self, node: &str) -> bool {
        self.copies.iter().any(|(at, _)| at.as_deref() == Some(node))
    }

    fn is_served(&self) -> bool {
        self.copies.iter().any(|(_, state)| matches!(state.as_str(), "STARTED" | "RELOCATING"))
    }

    /// The only copy that serves is on this node.
    fn only_started_on(&self, node: &str) -> bool {
        let serves = |state: &str| matches!(state, "STARTED" | "RELOCATING");
        let here =
            self.copies.iter().any(|(at, state)| at.as_deref() == Some(node) && serves(state));
        let elsewhere =
            self.copies.iter().any(|(at, state)| at.as_deref() != Some(node) && serves(state));
        here && !elsewhere
    }

    /// Where no other copy is wanted, waiting for one does not help.
    fn wants_copies(&self) -> bool {
        self.copies.len() > 1
    }
}

const LOCAL: &str = "/_nodes/_local?filter_path=nodes.*.version,nodes.*.roles,\
                     nodes.*.plugins.name,nodes.*.plugins.version";
const HEALTH: &str = "/_cluster/health?timeout=1s&master_timeout=1s";
const STATE: &str = "/_cluster/state/master_node,nodes,routing_table,metadata,blocks?local=true\
                     &filter_path=cluster_uuid,master_node,nodes.*.name,\
                     routing_table.indices.*.shards.*.state,routing_table.indices.*.shards.*.node,\
                     metadata.cluster_uuid,metadata.cluster_coordination,metadata.indices.*.state,\
                     blocks.indices.*.12.description";
const STATS: &str = "/_nodes/_local/stats/indices,jvm?filter_path=nodes.*.indices.docs.count,\
                     nodes.*.indices.store.size_in_bytes,nodes.*.jvm.mem.heap_used_in_bytes";

/// Id of the block that Elasticsearch puts on every index of a disk that passed its flood stage.
const FLOOD_STAGE: &str = "12";

impl Facts {
    pub(super) async fn ask(api: &Api) -> Result<Self, Error> {
        let (local, health, state, stats) =
            futures::join!(api.ask(LOCAL), api.get(HEALTH), api.get(STATE), api.get(STATS));
        // Only the first decides whether it lives: the others may wait for a master.
        let local = local?.body;
        let or_nothing = |answer: Result<Value, Error>| answer.unwrap_or_default();
        Ok(Self::parse(&local, &or_nothing(health), &or_nothing(state), &or_nothing(stats)))
    }

    fn parse(local: &Value, health: &Value, state: &Value, stats: &Value) -> Self {
        let own = local["nodes"].as_object().and_then(|nodes| nodes.iter().next());
        let node_id = own.map(|(id, _)| id.clone()).unwrap_or_default();
        let node = own.map_or(&Value::Null, |(_, node)| node);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let list = |value: &Value| -> BTreeSet<String> {
            value.as_array().into_iter().flatten().filter_map(text).collect()
        };
        let coordination = &state["metadata"]["cluster_coordination"];
        let stats = &stats["nodes"][&node_id];
        let roles = list(&node["roles"]);
        let routed = &state["routing_table"]["indices"];
        let count = |name: &str| health[name].as_u64().unwrap_or_default();
        Self {
            version: text(&node["version"]),
            master_eligible: roles.contains("master"),
            holds_data: roles.iter().any(|role| role.starts_with("data")),
            cluster_id: text(&state["metadata"]["cluster_uuid"])
                .or_else(|| text(&state["cluster_uuid"]))
                .filter(|uuid| uuid != "_na_"),
            master: text(&state["master_node"]),
            health: text(&health["status"]),
            moving: count("relocating_shards") + count("initializing_shards"),
            nodes: entries(&state["nodes"])
                .map(|(id, node)| (id.clone(), text(&node["name"]).unwrap_or_default()))
                .collect(),
            shards: shards(routed),
            unlisted: entries(&state["metadata"]["indices"])
                .map(|(name, _)| name.clone())
                .filter(|name| routed.get(name).is_none())
                .collect(),
            read_only: entries(&state["blocks"]["indices"])
                .filter(|(_, blocks)| blocks.get(FLOOD_STAGE).is_some())
                .map(|(name, _)| name.clone())
                .collect(),
            voters: list(&coordination["last_committed_config"]),
            excluded_voters: coordination["voting_config_exclusions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|exclusion| text(&exclusion["node_name"]))
                .collect(),
            documents: stats["indices"]["docs"]["count"].as_i64(),
            bytes: stats["indices"]["store"]["size_in_bytes"].as_i64(),
            heap_used: stats["jvm"]["mem"]["heap_used_in_bytes"].as_f64(),
            plugins: node["plugins"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|plugin| PluginStatus {
                    name: text(&plugin["name"]).unwrap_or_default(),
                    status: Some("Installed".to_owned()),
                    version: text(&plugin["version"]),
                    message: None,
                })
                .collect(),
            node_id,
        }
    }

    pub(super) fn shards_here(&self) -> usize {
        self.shards.iter().filter(|shard| shard.is_on(&self.node_id)).count()
    }

    /// Why indices that have a shard here take no writes, when some do not.
    fn refuses_writes(&self) -> Option<String> {
        let here = |index: &&String| {
            self.shards.iter().any(|shard| shard.index == **index && shard.is_on(&self.node_id))
        };
        let blocked: Vec<_> = self.read_only.iter().filter(here).collect();
        let first = blocked.first()?;
        Some(format!(
            "Elasticsearch refuses writes to {} indices with shards here, one of them {first}: \
             the disk of a node that holds it has passed the flood stage; enlarge the volume, or \
             delete data. Before version 7.4 clear index.blocks.read_only_allow_delete then",
            blocked.len()
        ))
    }

    /// Shards that a leaving node has not given away. One that no node serves is among them: right
    /// after a crash its only copy lies on this node's disk, and no table says so.
    pub(super) fn shards_left(&self) -> usize {
        self.shards.iter().filter(|shard| shard.is_on(&self.node_id) || !shard.is_served()).count()
    }

    /// Why nobody can say yet that this node holds nothing that the others lack.
    pub(super) fn unserved(&self) -> Option<String> {
        if let Some(shard) = self.shards.iter().find(|shard| !shard.is_served()) {
            return Some(format!(
                "no node serves index {}, and its only copy may be on this node's disk; waits until \
                 it is served or its index is deleted",
                shard.name
            ));
        }
        (self.health.as_deref() == Some("red")).then(|| "waits until health is not red".to_owned())
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn shards(indices: &Value) -> Vec<Shard> {
    let mut found = Vec::new();
    for (index, routing) in entries(indices) {
        for (number, copies) in entries(&routing["shards"]) {
            let copies = copies.as_array().into_iter().flatten().map(|copy| {
                let state = copy["state"].as_str().unwrap_or_default().to_owned();
                (copy["node"].as_str().map(str::to_owned), state)
            });
            let name = format!("{index} shard {number}");
            found.push(Shard { index: index.clone(), name, copies: copies.collect() });
        }
    }
    found
}

/// The gauges of an [`Observation`].
pub(super) const GAUGES: &[Gauge] = &[
    Gauge { name: "elasticsearch_documents", help: "Documents that the node holds." },
    Gauge { name: "elasticsearch_heap_used_bytes", help: "Use of the heap." },
    Gauge { name: "elasticsearch_nodes", help: "Nodes of the cluster, as this one sees it." },
    Gauge { name: "elasticsearch_shards", help: "Shards on the node." },
    Gauge { name: "elasticsearch_store_bytes", help: "Data that the node holds." },
];

/// Turns facts into what the pilot reports. Blockers come apart, for their `since`.
/// `installed`: plugins that we installed, which the spec may name otherwise than they do.
pub(super) fn summarize(
    facts: &Facts,
    installed: &[Plugin],
) -> (Observation, Vec<(&'static str, String)>) {
    let serving = facts.health.is_some();
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    let number = |value: i64| value as f64;
    let shards = i64::try_from(facts.shards_here()).unwrap_or(i64::MAX);
    let mut gauges = BTreeMap::from([
        ("elasticsearch_nodes", number(i64::try_from(facts.nodes.len()).unwrap_or(i64::MAX))),
        ("elasticsearch_shards", number(shards)),
    ]);
    for (name, value) in [
        ("elasticsearch_documents", facts.documents.map(number)),
        ("elasticsearch_store_bytes", facts.bytes.map(number)),
        ("elasticsearch_heap_used_bytes", facts.heap_used),
    ] {
        if let Some(value) = value {
            gauges.insert(name, value);
        }
    }
    let observation = Observation {
        alive: true,
        serving,
        role: None,
        reason: (!serving).then_some("Joining"),
        message: (!serving).then(|| "no elected master is known".to_owned()),
        version: facts.version.clone(),
        node_id: facts.cluster_id.as_ref().map(|_| facts.node_id.clone()),
        cluster_id: facts.cluster_id.clone(),
        health: facts.health.as_deref().and_then(|health| match health {
            "green" => Some(Health::Green),
            "yellow" => Some(Health::Yellow),
            "red" => Some(Health::Red),
            _ => None,
        }),
        refuses_writes: facts.refuses_writes(),
        blockers: Vec::new(),
        endpoints: Vec::new(),
        gauges,
        detail: Parts::new(
            names::NAMES.word,
            &PilotElasticsearchStatus {
                documents: facts.documents,
                version: facts.version.clone(),
                elected_master: (facts.master.as_deref() == Some(&facts.node_id)).then_some(true),
                plugins: facts.plugins.iter().map(|plugin| named(plugin, installed)).collect(),
            },
        ),
        unsaved: None,
    };
    (observation, blockers(facts))
}

fn named(plugin: &PluginStatus, installed: &[Plugin]) -> PluginStatus {
    let ours = installed.iter().find(|ours| ours.folder == plugin.name);
    let name = ours.map_or(&plugin.name, |ours| &ours.source).clone();
    PluginStatus { name, ..plugin.clone() }
}

fn blockers(facts: &Facts) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if facts.health.as_deref() == Some("red") {
        found.push(("HealthNotRed", "some shard has no copy that serves".to_owned()));
    }
    if facts.moving > 0 {
        found.push(("NoShardMovement", format!("{} shards move or recover", facts.moving)));
    }
    let (alone, single): (Vec<&Shard>, Vec<&Shard>) = facts
        .shards
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
    // That speaks against the end of its pod, where data are in the pod; a restart alone is fine.
    if let Some(shard) = single.first().or(alone.first()) {
        let count = single.len() + alone.len();
        let what = format!("{count} shards have no copy on another node, one of them: index ");
        found.push(("DataOutlivesPod", format!("{what}{}", shard.name)));
    } else if let Some(index) = facts.unlisted.first().filter(|_| facts.holds_data) {
        let why = "is closed, and no table says which nodes hold it";
        found.push(("DataOutlivesPod", format!("index {index} {why}")));
    }
    let live = facts.voters.iter().filter(|voter| facts.nodes.contains_key(*voter)).count();
    // With one or two voters no order of restarts keeps the quorum.
    if facts.voters.contains(&facts.node_id)
        && facts.voters.len() > 2
        && live.saturating_sub(1) < facts.voters.len() / 2 + 1
    {
        found.push((
            "QuorumKept",
            format!("only {live} of {} voting masters are up", facts.voters.len()),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Facts {
        Facts::parse(
            &json!({"nodes": {"n1": {"version": "7.17.29", "roles": ["master", "data"]}}}),
            &json!({"status": "green", "relocating_shards": 0, "initializing_shards": 0}),
            &json!({
                "master_node": "n2", "nodes": {"n1": {"name": "a"}, "n2": {"name": "b"}, "n3": {"name": "c"}},
                "routing_table": {"indices": {"logs": {"shards": {"0": [
                    {"state": "STARTED", "node": "n1"}, {"state": "STARTED", "node": "n2"},
                ]}}}},
                "metadata": {"cluster_uuid": "u", "cluster_coordination": {
                    "last_committed_config": ["n1", "n2", "n3"],
                    "voting_config_exclusions": [{"node_id": "n9", "node_name": "z"}]}},
            }),
            &json!({"nodes": {"n1": {
                "indices": {"docs": {"count": 7}, "store": {"size_in_bytes": 9}},
                "jvm": {"mem": {"heap_used_in_bytes": 5}},
            }}}),
        )
    }

    fn rules(facts: &Facts) -> Vec<&'static str> {
        summarize(facts, &[]).1.into_iter().map(|(rule, _)| rule).collect()
    }

    /// As it is right after the node crashed: its shards are listed and on no node.
    #[test]
    fn a_shard_that_no_node_serves_counts_as_held_by_a_node_that_leaves() {
        let mut facts = facts();
        assert_eq!((facts.shards_left(), facts.unserved()), (1, None));
        let lost = Shard {
            name: "orders shard 3".into(),
            copies: vec![(None, "UNASSIGNED".into()), (Some("n1".into()), "INITIALIZING".into())],
            ..Shard::default()
        };
        let given = Shard {
            name: "gone".into(),
            copies: vec![(Some("n2".into()), "STARTED".into())],
            ..Shard::default()
        };
        facts.shards = vec![lost, given.clone()];
        assert_eq!(facts.shards_left(), 1);
        let why = facts.unserved().unwrap();
        assert!(why.contains("orders shard 3"), "{why}");
        facts.shards = vec![given];
        assert_eq!((facts.shards_left(), facts.unserved()), (0, None));
        facts.health = Some("red".into());
        assert!(facts.unserved().is_some());
    }

    #[test]
    fn an_index_that_no_table_lists_is_known() {
        let parse = |state: &Value| {
            let local = json!({"nodes": {"n1": {"roles": ["data", "master"]}}});
            Facts::parse(&local, &Value::Null, state, &Value::Null)
        };
        let listed = json!({"indices": {"logs": {"shards": {}}}});
        let known = json!({"indices": {"logs": {"state": "open"}, "old": {"state": "close"}}});
        let facts = parse(&json!({"routing_table": listed, "metadata": known}));
        assert_eq!((facts.holds_data, facts.unlisted), (true, vec!["old".to_owned()]));
        assert!(parse(&json!({"routing_table": listed})).unlisted.is_empty());
    }

    #[test]
    fn a_settled_node_serves_and_may_stop() {
        let facts = facts();
        let (seen, blockers) = summarize(&facts, &[]);
        assert!(seen.serving && blockers.is_empty(), "{blockers:?}");
        let known: Vec<_> = GAUGES.iter().map(|gauge| gauge.name).collect();
        assert_eq!(seen.gauges.into_keys().collect::<Vec<_>>(), known, "all of them are told");
        assert_eq!(seen.cluster_id.as_deref(), Some("u"));
        assert_eq!(
            seen.detail.get::<PilotElasticsearchStatus>(names::NAMES.word).unwrap().documents,
            Some(7)
        );
        assert!(facts.excluded_voters.contains("z"));
    }

    #[test]
    fn the_elected_master_says_so_and_nobody_else() {
        let elected = |facts: &Facts| {
            let detail = summarize(facts, &[]).0.detail;
            detail.get::<PilotElasticsearchStatus>(names::NAMES.word).unwrap().elected_master
        };
        assert_eq!(elected(&facts()), None);
        let master = Facts { master: Some("n1".to_owned()), ..facts() };
        assert_eq!(elected(&master), Some(true));
        assert_eq!(elected(&Facts { master: None, ..facts() }), None);
    }

    #[test]
    fn a_node_without_a_master_lives_and_does_not_serve() {
        let local = json!({"nodes": {"n1": {"version": "7.17.29"}}});
        let facts = Facts::parse(&local, &Value::Null, &Value::Null, &Value::Null);
        let (seen, _) = summarize(&facts, &[]);
        assert!(seen.alive && !seen.serving);
        assert_eq!((seen.node_id, seen.health), (None, None));
        assert_eq!(
            seen.detail.get::<PilotElasticsearchStatus>(names::NAMES.word).unwrap().documents,
            None
        );
    }

    #[test]
    fn indices_that_the_flood_stage_blocks_are_told_by_the_nodes_that_hold_them() {
        let told = |blocks: &Value| {
            let table = json!({"indices": {
                "logs": {"shards": {"0": [{"state": "STARTED", "node": "n1"}]}},
                "theirs": {"shards": {"0": [{"state": "STARTED", "node": "n2"}]}},
            }});
            let local = json!({"nodes": {"n1": {"roles": ["data"]}}});
            let state = json!({"routing_table": table, "blocks": {"indices": blocks}});
            summarize(&Facts::parse(&local, &Value::Null, &state, &Value::Null), &[])
                .0
                .refuses_writes
        };
        let flood = json!({"description": "disk usage exceeded flood-stage watermark"});
        let text = told(&json!({"logs": {FLOOD_STAGE: flood}})).unwrap();
        assert!(text.contains("1 indices") && text.contains("logs"), "{text}");
        assert_eq!(told(&json!({"theirs": {FLOOD_STAGE: flood}})), None);
        // Somebody made it read-only for good, with the blocks of another purpose.
        assert_eq!(told(&json!({"logs": {"5": {}}})), None);
        assert_eq!(told(&Value::Null), None);
    }

    #[test]
    fn every_reason_not_to_stop_is_named() {
        let settled = facts();
        let red = Facts { health: Some("red".to_owned()), ..settled.clone() };
        assert_eq!(rules(&red), ["HealthNotRed"]);
        assert_eq!(rules(&Facts { moving: 2, ..settled.clone() }), ["NoShardMovement"]);
        let mut alone = settled.clone();
        alone.shards[0].copies[1] = (None, "UNASSIGNED".to_owned());
        assert_eq!(rules(&alone), ["ShardCopyElsewhere", "DataOutlivesPod"]);
        alone.shards[0].copies.pop();
        assert_eq!(rules(&alone), ["DataOutlivesPod"], "no other copy is wanted");
        let mut outage = settled;
        outage.nodes.remove("n3");
        assert_eq!(rules(&outage), ["QuorumKept"]);
    }
}
