//! Tests that no verb of the driver goes on by an answer that it did not get: every request fails,
//! one by one and all from one on, at each stage of a node's life.
//!
//! A scripted Elasticsearch answers the few requests of the pilot as real ones do (7.17 and 8.19,
//! with `filter_path`).

use std::{collections::BTreeSet, net::IpAddr, path::Path, sync::Arc};

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    super::{ElasticsearchDriver, lead_duties, restart_announcement, state::NodeState},
    driver, node_in,
};
use crate::{
    api::{
        predicate::Predicate,
        v1beta1::{Decommission, Identity, Pilot, PilotIntent, PilotPhase},
    },
    databases::elasticsearch::{
        names::port,
        predicates::{SHARDS_MAY_MOVE, SHARDS_MOVED_AWAY, VOTE_MAY_MOVE, VOTE_MOVED_AWAY},
        v1beta1::{ElasticsearchNode, PilotElasticsearchSpec},
    },
    databases::testing::{Failure, Fault, Script, answered, serve},
    pilot::{
        driver::{
            DatabaseNode, DecommissionState, Driver, Error, LeaderDuty, LeaderPermit,
            NodeObservation,
        },
        node::blockers::StopBlockers,
        volume::state_file::StateFile,
    },
};

/// The state of a cluster in which `n1` is the node under test.
#[derive(Clone, Debug)]
struct Cluster {
    what: &'static str,
    health: &'static str,
    moving: u64,
    nodes: &'static [&'static str],
    /// Node and state of each copy of the cluster's one shard.
    copies: &'static [(&'static str, &'static str)],
    documents: i64,
    voters: &'static [&'static str],
    /// Ids that the allocation exclusion lists.
    excluded: &'static str,
    leaves: bool,
    /// Names of the nodes that have no vote.
    voteless: &'static [&'static str],
    /// The Pilot of `n1` takes roles off it: those that are left, and the rules that it reported
    /// last.
    loses_role: Option<(&'static str, &'static [&'static Predicate])>,
    /// Nodes that run without a data role, and without the master role.
    without_data: &'static [&'static str],
    without_master: &'static [&'static str],
    /// The one role that the Pilots of `n2` and `n3` leave them.
    peers_keep: Option<&'static str>,
    /// The range in which the cluster's one index chooses its replicas.
    expands: &'static str,
    /// The delay of the cluster's one index, where the index has one of its own.
    delay: Option<&'static str>,
    /// Reasons in the shutdown records of `n1`; `None` where the node shutdown API does not exist.
    records: Option<&'static [&'static str]>,
}

const SETTLED: Cluster = Cluster {
    what: "settled",
    health: "green",
    moving: 0,
    nodes: &["n1", "n2", "n3"],
    copies: &[("n1", "STARTED"), ("n2", "STARTED")],
    documents: 7,
    voters: &["n1", "n2", "n3"],
    excluded: "",
    leaves: false,
    voteless: &[],
    loses_role: None,
    without_data: &[],
    without_master: &[],
    peers_keep: None,
    expands: "false",
    delay: None,
    records: None,
};

const STAGES: &[Cluster] = &[
    SETTLED,
    Cluster { what: "recovers", health: "yellow", moving: 2, ..SETTLED },
    Cluster {
        what: "has the only copy of a red cluster",
        health: "red",
        copies: &[("n1", "STARTED"), ("", "UNASSIGNED")],
        ..SETTLED
    },
    Cluster { what: "was restarted", delay: Some("300007ms"), ..SETTLED },
    Cluster {
        what: "was restarted, and keeps records",
        records: Some(&["navigator: the node restarts"]),
        ..SETTLED
    },
    Cluster { what: "another voter is down", nodes: &["n1", "n2"], ..SETTLED },
    Cluster { what: "another voter runs without its role", without_master: &["n3"], ..SETTLED },
    Cluster { what: "has the one copy", copies: &[("n1", "STARTED")], ..SETTLED },
    Cluster { what: "asks to leave", leaves: true, ..SETTLED },
    Cluster {
        what: "may not leave",
        copies: &[("n1", "STARTED"), ("n2", "STARTED"), ("n3", "STARTED")],
        leaves: true,
        ..SETTLED
    },
    Cluster {
        what: "may leave, since its index wants fewer copies then",
        copies: &[("n1", "STARTED"), ("n2", "STARTED"), ("n3", "STARTED")],
        expands: "0-all",
        leaves: true,
        ..SETTLED
    },
    Cluster {
        what: "may not leave while another master does not run",
        without_master: &["n3"],
        leaves: true,
        ..SETTLED
    },
    Cluster { what: "moves its data", excluded: "n1", leaves: true, ..SETTLED },
    Cluster {
        what: "is empty, and votes",
        copies: &[("n2", "STARTED"), ("n3", "STARTED")],
        documents: 0,
        excluded: "n1",
        leaves: true,
        ..SETTLED
    },
    Cluster {
        what: "is empty, and another has a shard that nobody serves",
        health: "red",
        copies: &[("", "UNASSIGNED")],
        documents: 0,
        voters: &["n2", "n3"],
        excluded: "n1",
        leaves: true,
        ..SETTLED
    },
    Cluster {
        what: "has left",
        copies: &[("n2", "STARTED"), ("n3", "STARTED")],
        documents: 0,
        voters: &["n2", "n3"],
        excluded: "n1",
        leaves: true,
        ..SETTLED
    },
    Cluster {
        what: "is to lose its role",
        loses_role: Some(("master", &[&SHARDS_MOVED_AWAY])),
        ..SETTLED
    },
    Cluster {
        what: "moves its shards away",
        excluded: "n1",
        loses_role: Some(("master", &[&SHARDS_MOVED_AWAY])),
        ..SETTLED
    },
    Cluster {
        what: "may not lose its role",
        copies: &[("n1", "STARTED"), ("n2", "STARTED"), ("n3", "STARTED")],
        loses_role: Some(("master", &[&SHARDS_MAY_MOVE])),
        ..SETTLED
    },
    Cluster {
        what: "may lose its role, since its index wants fewer copies then",
        copies: &[("n1", "STARTED"), ("n2", "STARTED"), ("n3", "STARTED")],
        expands: "0-1",
        loses_role: Some(("master", &[&SHARDS_MOVED_AWAY])),
        ..SETTLED
    },
    Cluster {
        what: "is the only one with the role that it is to lose",
        copies: &[("n1", "STARTED")],
        without_data: &["n2", "n3"],
        loses_role: Some(("master", &[&SHARDS_MAY_MOVE])),
        ..SETTLED
    },
    Cluster {
        what: "is to lose its role with all others that have it",
        peers_keep: Some("master"),
        loses_role: Some(("master", &[&SHARDS_MAY_MOVE])),
        ..SETTLED
    },
    Cluster {
        what: "has no shard left, and its role",
        copies: &[("n2", "STARTED"), ("n3", "STARTED")],
        documents: 0,
        excluded: "n1",
        loses_role: Some(("master", &[])),
        ..SETTLED
    },
    Cluster {
        what: "has lost its role",
        copies: &[("n2", "STARTED"), ("n3", "STARTED")],
        documents: 0,
        excluded: "n1",
        without_data: &["n1"],
        loses_role: Some(("master", &[])),
        ..SETTLED
    },
    Cluster {
        what: "is to lose its master role",
        loses_role: Some(("data", &[&VOTE_MOVED_AWAY])),
        ..SETTLED
    },
    Cluster {
        what: "has an excluded vote that counts",
        voteless: &["es-n1"],
        loses_role: Some(("data", &[&VOTE_MOVED_AWAY])),
        ..SETTLED
    },
    Cluster {
        what: "is the only one with the master role",
        voters: &["n1"],
        without_master: &["n2", "n3"],
        peers_keep: Some("data"),
        loses_role: Some(("data", &[&VOTE_MAY_MOVE])),
        ..SETTLED
    },
    Cluster {
        what: "has no vote, and its master role",
        voters: &["n2"],
        voteless: &["es-n1"],
        loses_role: Some(("data", &[])),
        ..SETTLED
    },
    Cluster {
        what: "has lost its master role",
        voters: &["n2"],
        voteless: &["es-n1"],
        without_master: &["n1"],
        loses_role: Some(("data", &[])),
        ..SETTLED
    },
];

const MOVED_AWAY: &str = SHARDS_MOVED_AWAY.name;
const MAY_MOVE: &str = SHARDS_MAY_MOVE.name;
/// The rules that hold the next roles of a node back.
const OF_ROLES: [&Predicate; 4] =
    [&SHARDS_MOVED_AWAY, &SHARDS_MAY_MOVE, &VOTE_MOVED_AWAY, &VOTE_MAY_MOVE];

struct Server {
    cluster: Cluster,
    address: IpAddr,
    script: Arc<Script>,
}

impl Server {
    async fn start(cluster: Cluster) -> Self {
        let script = Arc::<Script>::default();
        let (said, heard) = (cluster.clone(), Arc::clone(&script));
        let answer =
            move |method: &str, path: &str, _: &_| match heard.ask(&format!("{method} {path}")) {
                Some(failure) => Err(failure),
                None => Ok(said.answer(path)),
            };
        let address = serve(port::HTTP, Box::new(answer)).await;
        Self { cluster, address, script }
    }

    /// Returns the requests that would change something.
    fn changes(&self) -> BTreeSet<String> {
        let mut asked = self.script.asked();
        asked.retain(|asked| !asked.starts_with("GET "));
        asked
    }
}

impl Cluster {
    fn answer(&self, path: &str) -> Value {
        let &Self { health, moving, nodes, copies, documents, voters, excluded, .. } = self;
        let reasons = self.records.map(|reasons| {
            let record = |reason| json!({"node_id": "n1", "type": "RESTART", "reason": reason});
            reasons.iter().map(record).collect::<Value>()
        });
        let delays = self.delay.map(|delay| {
            let left = json!({"node_left": {"delayed_timeout": delay}});
            json!({"logs": {"settings": {"index": {"unassigned": left}}}})
        });
        let each = |value: &dyn Fn(&str) -> Value| -> Value {
            nodes.iter().map(|id| ((*id).to_owned(), value(id))).collect()
        };
        let own = |value: Value| json!({"nodes": {"n1": value}});
        let of_all =
            |value: &dyn Fn(&str) -> Value| json!({"_nodes": {"failed": 0}, "nodes": each(value)});
        let names = each(&|id| json!({"name": format!("es-{id}")}));
        let roles = |id: &str| {
            let data = (!self.without_data.contains(&id)).then_some("data");
            let master = (!self.without_master.contains(&id)).then_some("master");
            json!(data.into_iter().chain(master).collect::<Vec<_>>())
        };
        let voteless = self.voteless.iter().map(|name| json!({"node_name": name}));
        let excluded_voters: Value = voteless.collect();
        let node = |id: &str| (!id.is_empty()).then(|| id.to_owned());
        let copies: Vec<_> =
            copies.iter().map(|(id, state)| json!({"node": node(id), "state": state})).collect();
        match path {
            _ if path.ends_with("/process") => of_all(&|id| json!({"roles": roles(id)})),
            "/*/_settings/index.number_of_replicas,index.auto_expand_replicas" => {
                let index = json!({
                    "number_of_replicas": (copies.len() - 1).to_string(),
                    "auto_expand_replicas": self.expands,
                });
                json!({"logs": {"settings": {"index": index}}})
            }
            "/" => json!({"cluster_uuid": "u"}),
            "/_nodes/_local" => own(json!({"version": "7.17.29", "roles": roles("n1")})),
            "/_nodes/_local/stats/indices,jvm" => own(json!({
                "indices": {"docs": {"count": documents}, "store": {"size_in_bytes": 9}},
                "jvm": {"mem": {"heap_used_in_bytes": 5}},
            })),
            "/_nodes" => of_all(&|id| json!({"version": "7.17.29", "roles": roles(id)})),
            "/_nodes/stats/fs" => {
                of_all(&|id| json!({"name": id, "fs": {"total": {"available_in_bytes": 1000}}}))
            }
            "/_cluster/health" => {
                json!({"status": health, "initializing_shards": moving})
            }
            "/_cluster/state/version,master_node,nodes" => {
                json!({"state_uuid": "s", "master_node": "n2", "nodes": names})
            }
            "/_cluster/state/master_node,nodes" => json!({"master_node": "n2", "nodes": names}),
            "/_cluster/state/version,routing_table,blocks" => json!({
                "state_uuid": "s",
                "routing_table": {"indices": {"logs": {"shards": {"0": copies}}}},
            }),
            "/_cluster/state/version,metadata/navigator-asks-for-no-index" => json!({
                "state_uuid": "s",
                "metadata": {"cluster_coordination": {
                    "last_committed_config": voters, "voting_config_exclusions": excluded_voters,
                }},
            }),
            "/_cluster/settings" => json!({
                "persistent": {"cluster.routing.allocation.exclude._id": excluded},
                "transient": {},
            }),
            "/_nodes/shutdown" => json!({"nodes": reasons.unwrap_or_else(|| json!({}))}),
            DELAYS => delays.unwrap_or_else(|| json!({})),
            _ => json!({"acknowledged": true}),
        }
    }
}

/// Returns a driver and its node, whose database is `server`.
fn driven(server: &Server, place: &Path) -> (ElasticsearchDriver, DatabaseNode) {
    let mut node = node_in(place);
    node.address = server.address;
    node.pilot = pilot("n1", server.cluster.leaves);
    if server.cluster.leaves {
        let empty = server.cluster.documents == 0;
        node.pilot.status.decommission = Some(Decommission {
            shards_left: Some(i32::from(!empty)),
            documents_left: Some(server.cluster.documents),
            ..Decommission::default()
        });
    }
    node.peers = vec![pilot("n2", false), pilot("n3", false)];
    if let Some(role) = server.cluster.peers_keep {
        for peer in &mut node.peers {
            let roles = vec![role.to_owned()];
            peer.spec.change_part::<ElasticsearchNode>(|part| part.roles = roles);
        }
    }
    let mut state = NodeState { address: Some(node.address), ..NodeState::default() };
    if let Some((left, reported)) = server.cluster.loses_role {
        let roles = vec![left.to_owned()];
        node.pilot.spec.change_part::<ElasticsearchNode>(|part| part.roles.clone_from(&roles));
        let held = reported.iter().map(|rule| (*rule, String::new())).collect();
        node.pilot.status.blockers = StopBlockers::default().update(held, None);
        state.next_roles = Some(roles);
    }
    state.save(&node.data).unwrap();
    let driver = self::driver(&node.data);
    driver.restore_state();
    driver.note_roles(&node).unwrap();
    driver.seen.lock().unwrap().restarts = restart_announcement::AnnouncementWatch::of_old();
    (driver, node)
}

fn pilot(id: &str, leaves: bool) -> Pilot {
    let mut pilot = Pilot::default();
    pilot.metadata.name = Some(format!("es-{id}"));
    pilot.spec.version = Some("7.17.29".to_owned());
    let phase = if leaves { PilotIntent::Decommissioned } else { PilotIntent::Running };
    pilot.spec.phase = Some(phase);
    pilot.spec.set_part::<ElasticsearchNode>(&PilotElasticsearchSpec {
        roles: vec!["master".to_owned(), "data".to_owned()],
        ..PilotElasticsearchSpec::default()
    });
    pilot.status.phase = Some(PilotPhase::Running);
    pilot.status.identity = Some(Identity { node_id: Some(id.to_owned()), ..Identity::default() });
    pilot
}

/// Returns the names of the blockers; `None` when some request was not answered.
fn rules(seen: &NodeObservation) -> Option<BTreeSet<&'static str>> {
    seen.not_heard.is_empty().then(|| seen.blockers.iter().map(|(rule, _)| rule.name).collect())
}

/// Returns the state of a decommission, without its time and its text.
fn stands(state: DecommissionState) -> DecommissionState {
    match state {
        DecommissionState::Moving(progress) => {
            DecommissionState::Moving(Decommission { start_time: None, message: None, ..progress })
        }
        other => other,
    }
}

async fn decommission(
    driver: &ElasticsearchDriver,
    node: &DatabaseNode,
) -> Result<DecommissionState, Error> {
    driver.decommission(node).await.map(stands)
}

/// Compares each verb's result under a fault with its result without one.
async fn hold(server: &Server, fault: &Fault, place: &Path) {
    let what = format!("{}: {fault:?}", server.cluster.what);
    let alone = LeaderPermit::for_single_node();

    server.script.set(None);
    let (driver, node) = driven(server, place);
    let heard = answered(&what, || driver.observe()).await;
    let departure = if server.cluster.leaves {
        Some(answered(&what, || Box::pin(decommission(&driver, &node))).await)
    } else {
        None
    };
    server.script.set(None);
    answered(&what, || driver.lead_duties(&node, &alone)).await;
    let changes = server.changes();
    server.script.set(None);
    answered(&what, || driver.announce_restart(&node)).await;
    let mut announcement = server.changes();
    if !announcement.is_empty() {
        // This request follows where a record is refused.
        announcement.insert(DELAY_ALL.to_owned());
    }

    // Both a pilot without any earlier answer, and one that once had all answers.
    let (newcomer, _) = driven(server, place);
    for driver in [&driver, &newcomer] {
        server.script.set(Some(fault.clone()));
        if let Ok(seen) = driver.observe().await {
            assert_eq!(seen.serving, heard.serving, "{what}");
            let rules = rules(&seen);
            assert!(rules.is_none() || rules == self::rules(&heard), "{what}: {seen:?}");
        }
    }
    let (newcomer, _) = driven(server, place);
    if let Some(departure) = &departure {
        server.script.set(Some(fault.clone()));
        if let Ok(state) = decommission(&newcomer, &node).await {
            let refused = matches!(state, DecommissionState::Refused(_));
            assert!(refused || state == *departure, "{what}: {state:?}");
        }
    }
    server.script.set(Some(fault.clone()));
    drop(newcomer.lead_duties(&node, &alone).await);
    let done = server.changes();
    assert!(done.is_subset(&changes), "{what}: {done:?} and not {changes:?}");
    server.script.set(Some(fault.clone()));
    drop(newcomer.announce_restart(&node).await);
    let done = server.changes();
    assert!(done.is_subset(&announcement), "{what}: {done:?} and not {announcement:?}");
}

/// A flush without a master waits for one, and takes the time that the database has to end.
#[tokio::test]
async fn a_node_is_flushed_unless_it_says_that_it_has_no_master() {
    const STATE: &str = "/_cluster/state/version,master_node,nodes";
    let rows = [
        (Ok(json!({"state_uuid": "s", "master_node": "n2", "nodes": {}})), true),
        (Ok(json!({"state_uuid": "s", "master_node": null, "nodes": {}})), false),
        (Err(Failure::Status(503)), true),
        (Err(Failure::Empty), true),
    ];
    for (state, is_flushed) in rows {
        let script = Arc::new(Script::default());
        let (state_answer, requests) = (state.clone(), Arc::clone(&script));
        let answer = move |method: &str, path: &str, _: &_| {
            requests.ask(&format!("{method} {path}"));
            if path == STATE { state_answer.clone() } else { Ok(json!({})) }
        };
        let address = serve(port::HTTP, Box::new(answer)).await;
        let place = tempfile::tempdir().unwrap();
        let data = node_in(place.path()).data;
        NodeState { address: Some(address), ..NodeState::default() }.save(&data).unwrap();
        let driver = driver(&data);
        driver.restore_state();
        answered("flush", || driver.flush()).await;
        assert_eq!(script.asked().contains("POST /_flush"), is_flushed, "{state:?}");
    }
}

const DELAY_ALL: &str = "PUT /*,-.*/_settings";
const DELAYS: &str = "/*,-.*/_settings/index.unassigned.node_left.delayed_timeout,index.blocks.*";

async fn asked(server: &Server, place: &Path) -> BTreeSet<String> {
    server.script.set(None);
    let (driver, node) = driven(server, place);
    let (what, alone) = (server.cluster.what, LeaderPermit::for_single_node());
    answered(what, || driver.observe()).await;
    if server.cluster.leaves {
        answered(what, || driver.decommission(&node)).await;
    }
    answered(what, || driver.lead_duties(&node, &alone)).await;
    answered(what, || driver.announce_restart(&node)).await;
    server.script.asked()
}

#[tokio::test]
async fn what_holds_the_next_roles_back_is_told_with_a_way_out() {
    for (what, rules, words) in [
        ("is to lose its role", &[MOVED_AWAY][..], "waits for the leading pilot"),
        ("moves its shards away", &[MOVED_AWAY], "1 shards with 9 bytes are left to move away"),
        ("may not lose its role", &[MAY_MOVE], "wants 3 copies, and 2 data nodes would remain"),
        (
            "may lose its role, since its index wants fewer copies then",
            &[MOVED_AWAY],
            "waits for the leading pilot",
        ),
        (
            "is the only one with the role that it is to lose",
            &[MAY_MOVE],
            "it holds 1 shards, and no other node has a data role and keeps it; add a node pool \
             with one, or put the role back",
        ),
        (
            "is to lose its role with all others that have it",
            &[MAY_MOVE],
            "no other node has a data role and keeps it",
        ),
        ("has no shard left, and its role", &[], ""),
        ("has lost its role", &[], ""),
    ] {
        let place = tempfile::tempdir().unwrap();
        let stage = STAGES.iter().find(|stage| stage.what == what).unwrap();
        let server = Server::start(stage.clone()).await;
        let (driver, node) = driven(&server, place.path());
        let of_role = |seen: NodeObservation| {
            let all = seen.blockers.into_iter();
            all.filter(|(rule, _)| OF_ROLES.contains(rule)).collect::<Vec<_>>()
        };
        let told = of_role(driver.observe().await.unwrap());
        assert_eq!(told.iter().map(|(rule, _)| rule.name).collect::<Vec<_>>(), rules, "{what}");
        assert!(told.iter().all(|(_, why)| why.contains(words)), "{told:?}");
        // A shard that Elasticsearch has not deleted yet counts, too.
        std::fs::create_dir_all(node.data.join("data/nodes/0/indices/x/0")).unwrap();
        let told = of_role(driver.observe().await.unwrap());
        assert_eq!(told.is_empty(), what == "has lost its role", "{what}: {told:?}");
        // The person puts the role back.
        let mut back = node.clone();
        let roles = vec!["master".to_owned(), "data".to_owned()];
        back.pilot.spec.change_part::<ElasticsearchNode>(|part| part.roles = roles);
        driver.refresh_peers(&back).await.unwrap_or_default();
        assert_eq!(of_role(driver.observe().await.unwrap()), [], "{what}");
    }
}

/// The node keeps its id when it is restarted without the role, and Elasticsearch counts its vote.
#[tokio::test]
async fn a_voter_that_runs_without_the_master_role_is_not_up() {
    let stage = |what: &str| STAGES.iter().find(|stage| stage.what == what).unwrap().clone();
    for (what, rule) in [
        ("settled", None),
        ("another voter is down", Some("QuorumKept")),
        ("another voter runs without its role", Some("QuorumKept")),
    ] {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(stage(what)).await;
        let (driver, _) = driven(&server, place.path());
        let seen = rules(&driver.observe().await.unwrap()).unwrap();
        assert_eq!(seen, rule.into_iter().collect(), "{what}");
        // The voters are asked once about each state of the cluster.
        server.script.set(None);
        driver.observe().await.unwrap();
        assert!(server.script.asked().iter().all(|path| !path.ends_with("/process")), "{what}");
    }
    // With two voters no order of restarts keeps the quorum.
    let two = Cluster { nodes: &["n1", "n2"], voters: &["n1", "n2"], ..SETTLED };
    let server = Server::start(Cluster { without_master: &["n2"], ..two }).await;
    let place = tempfile::tempdir().unwrap();
    let (driver, _) = driven(&server, place.path());
    assert_eq!(rules(&driver.observe().await.unwrap()).unwrap(), BTreeSet::new());
}

#[tokio::test]
async fn a_departure_is_refused_with_the_names_and_the_setting_that_are_in_its_way() {
    const THREE: &[(&str, &str)] = &[("n1", "STARTED"), ("n2", "STARTED"), ("n3", "STARTED")];
    let leaves = Cluster { leaves: true, ..SETTLED };
    let waits = Cluster { without_master: &["n3"], ..leaves.clone() };
    let leaving = Cluster { leaves: true, copies: THREE, ..SETTLED };
    for (cluster, refusal) in [
        (leaves, None),
        (waits, Some(("MastersRemain", "do not run with that role yet: es-n3"))),
        (leaving.clone(), Some(("CopiesElsewhere", "lower number_of_replicas"))),
        (Cluster { expands: "0-all", ..leaving.clone() }, None),
        (Cluster { expands: "2-all", ..leaving }, Some(("CopiesElsewhere", "which is 2-all"))),
    ] {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(cluster).await;
        let (driver, node) = driven(&server, place.path());
        match (driver.decommission(&node).await.unwrap(), refusal) {
            (DecommissionState::Moving(_), None) => {}
            (DecommissionState::Refused(found), Some((rule, why))) => {
                assert_eq!(found.predicate.name, rule);
                assert!(found.why.contains(why), "{found:?}");
            }
            other => panic!("{other:?}: {:?}", server.cluster),
        }
        // The replicas are asked about only where they are in the way.
        let asked = server.script.asked().iter().any(|path| path.contains("auto_expand"));
        assert_eq!(asked, server.cluster.copies.len() > 2);
    }
}

#[tokio::test]
async fn the_master_role_is_kept_through_restarts_until_its_vote_is_gone() {
    let moved = VOTE_MOVED_AWAY.name;
    for (what, rules, words) in [
        ("is to lose its master role", &[moved][..], "waits for the leading pilot to exclude"),
        ("has an excluded vote that counts", &[moved], "still counts it"),
        ("is the only one with the master role", &[VOTE_MAY_MOVE.name], "put the role back"),
        ("has no vote, and its master role", &[], ""),
    ] {
        let place = tempfile::tempdir().unwrap();
        let stage = STAGES.iter().find(|stage| stage.what == what).unwrap();
        let server = Server::start(stage.clone()).await;
        let (driver, mut node) = driven(&server, place.path());
        let had = vec!["master".to_owned(), "data".to_owned()];
        driver.state.change(|state| state.roles = Some(had.clone())).unwrap();
        let seen = driver.observe().await.unwrap();
        assert!(seen.misses_peers, "{what}: what their Pilots say matters soon");
        let told = seen.blockers.into_iter().filter(|(rule, _)| OF_ROLES.contains(rule));
        let told: Vec<_> = told.collect();
        assert_eq!(told.iter().map(|(rule, _)| rule.name).collect::<Vec<_>>(), rules, "{what}");
        assert!(told.iter().all(|(_, why)| why.contains(words)), "{told:?}");

        // The next start, whatever the reason for it.
        let starts_with = || {
            let settings = std::fs::read_to_string(node.config.join("elasticsearch.yml")).unwrap();
            let settings: serde_yaml::Value = serde_yaml::from_str(&settings).unwrap();
            let roles = settings["node.roles"].as_sequence().unwrap().iter();
            roles.map(|role| role.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        driver.configure(&node).await.unwrap();
        let wanted = vec!["data".to_owned()];
        assert_eq!(starts_with(), if rules.is_empty() { wanted } else { had.clone() }, "{what}");
        let state = NodeState::load(&node.data).unwrap();
        assert_eq!((state.next_roles.is_none(), state.vote_moved_away), (rules.is_empty(), false));
        // The edit is reverted.
        node.pilot.spec.change_part::<ElasticsearchNode>(|part| part.roles.clone_from(&had));
        driver.configure(&node).await.unwrap();
        let settings = std::fs::read_to_string(node.config.join("elasticsearch.yml")).unwrap();
        assert!(settings.contains("master"), "{settings}");
        assert_eq!(NodeState::load(&node.data).unwrap().next_roles, None);
    }
}

/// What is on the volume decides about the next start: an answer that was not heard changes nothing
/// of it, and a vote that came back does.
#[tokio::test]
async fn that_the_vote_is_gone_is_noted_and_taken_back() {
    let stage = |what: &str| STAGES.iter().find(|stage| stage.what == what).unwrap().clone();
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(stage("has no vote, and its master role")).await;
    let (driver, node) = driven(&server, place.path());
    let moved = || NodeState::load(&node.data).unwrap().vote_moved_away;
    driver.observe().await.unwrap();
    assert!(moved());
    let votes = "GET /_cluster/state/version,metadata/navigator-asks-for-no-index".to_owned();
    let fault = Fault { request: votes, from_there_on: true, failure: Failure::Status(503) };
    server.script.set(Some(fault));
    drop(driver.observe().await);
    assert!(moved(), "it did not say");
    // A user cleared the list by hand.
    let back = Server::start(stage("is to lose its master role")).await;
    let (driver, _) = driven(&back, place.path());
    driver.state.change(|state| state.vote_moved_away = true).unwrap();
    let seen = driver.observe().await.unwrap();
    assert!(seen.blockers.iter().any(|(rule, _)| *rule == &VOTE_MOVED_AWAY));
    assert!(!moved());
}

#[tokio::test]
async fn each_stage_is_what_it_is_called() {
    let mut seen = BTreeSet::new();
    for stage in STAGES {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(stage.clone()).await;
        let (driver, node) = driven(&server, place.path());
        seen.extend(rules(&driver.observe().await.unwrap()).unwrap());
        if stage.leaves {
            seen.insert(match driver.decommission(&node).await.unwrap() {
                DecommissionState::Moving(_) => "moves",
                DecommissionState::Stuck(..) => "stuck",
                DecommissionState::Refused(_) => "refused",
                DecommissionState::Done => "done",
            });
        }
        server.script.set(None);
        driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
        seen.extend(server.changes().iter().map(|change| match change.as_str() {
            "PUT /_cluster/settings" => "excludes",
            "POST /_cluster/voting_config_exclusions" => "takes the vote",
            "DELETE /_cluster/voting_config_exclusions" => "gives the vote back",
            "PUT /logs/_settings" => "takes its delay back",
            "DELETE /_nodes/n1/shutdown" => "takes its record back",
            other => panic!("{}: {other}", stage.what),
        }));
    }
    let all = [
        "DataOutlivesPod",
        "HealthNotRed",
        "NoShardMovement",
        "QuorumKept",
        "ShardCopyElsewhere",
        MAY_MOVE,
        MOVED_AWAY,
        VOTE_MAY_MOVE.name,
        VOTE_MOVED_AWAY.name,
        "done",
        "excludes",
        "gives the vote back",
        "moves",
        "refused",
        "takes its delay back",
        "takes its record back",
        "takes the vote",
    ];
    assert_eq!(seen, all.into());
}

/// Elasticsearch needs half a minute to give up a master that hangs, and elects the next one in
/// seconds.
#[tokio::test]
async fn a_node_serves_on_for_two_looks_without_a_master() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(SETTLED).await;
    let (driver, _) = driven(&server, place.path());
    assert!(driver.observe().await.unwrap().serving);
    let looks: Vec<bool> = (0..4).map(|_| driver.update_serving(false)).collect();
    assert_eq!(looks, [true, true, false, false]);
    assert!(!self::driver(place.path()).update_serving(false), "it never served");
}

#[tokio::test]
async fn a_restart_is_announced_in_the_way_that_the_cluster_knows_and_to_nobody_where_nobody_is() {
    const RECORD: &str = "PUT /_nodes/n1/shutdown";
    let bare = SETTLED;
    let records = Cluster { records: Some(&[]), ..SETTLED };
    for (cluster, announced) in [
        (bare.clone(), &[DELAY_ALL][..]),
        (Cluster { nodes: &["n1"], ..bare.clone() }, &[]),
        (Cluster { leaves: true, ..bare }, &[]),
        (records.clone(), &[RECORD]),
        (Cluster { records: Some(&["new disks"]), ..records }, &[]),
    ] {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(cluster).await;
        let (driver, node) = driven(&server, place.path());
        driver.announce_restart(&node).await.unwrap();
        let changes = server.changes();
        assert_eq!(changes.iter().collect::<Vec<_>>(), announced, "{:?}", server.cluster);
        // The release does not accept a delay in its records.
        let failure = Failure::Status(400);
        let refused = Fault { request: RECORD.to_owned(), from_there_on: false, failure };
        server.script.set(Some(refused));
        driver.announce_restart(&node).await.unwrap();
        let falls_back = announced.contains(&RECORD);
        let both = server.changes().contains(DELAY_ALL);
        assert_eq!(both, falls_back || announced.contains(&DELAY_ALL));
    }
}

#[tokio::test]
async fn a_restart_is_taken_back_when_the_node_is_back_whoever_leads_by_then() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(Cluster { delay: Some("300007ms"), ..SETTLED }).await;
    let (driver, mut node) = driven(&server, place.path());
    node.peers[0].status.phase = Some(PilotPhase::Stopping);
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
    assert_eq!(server.changes(), BTreeSet::new(), "one is about to be away");
    node.peers[0].status.phase = Some(PilotPhase::Running);
    // A new leader does not know of the restart.
    let driver = self::driver(&node.data);
    driver.restore_state();
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
    assert_eq!(server.changes(), BTreeSet::new(), "the first look");
    driver.seen.lock().unwrap().restarts = restart_announcement::AnnouncementWatch::of_old();
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
    assert_eq!(server.changes(), ["PUT /logs/_settings".to_owned()].into());
}

/// Elasticsearch refuses the request of several indices when one of them refuses.
#[tokio::test]
async fn one_index_that_is_refused_does_not_hold_the_others() {
    let server = |refused: &'static str, read_only: &'static str| async move {
        let script = Arc::new(Script::default());
        let requests = Arc::clone(&script);
        let answer = move |method: &str, path: &str, _: &_| {
            requests.ask(&format!("{method} {path}"));
            if method == "PUT" && path.contains(refused) {
                return Err(Failure::Status(403));
            }
            let delayed = |name: &str| {
                let left = json!({"node_left": {"delayed_timeout": "300007ms"}});
                let blocks = json!({"read_only": (name == read_only).to_string()});
                json!({"settings": {"index": {"unassigned": left, "blocks": blocks}}})
            };
            Ok(match path {
                DELAYS => json!({"a": delayed("a"), "b": delayed("b"), "c": delayed("c")}),
                _ => SETTLED.answer(path),
            })
        };
        let address = serve(port::HTTP, Box::new(answer)).await;
        Server { cluster: SETTLED, address, script }
    };
    let place = tempfile::tempdir().unwrap();
    let refuses = server("b", "").await;
    let (driver, node) = driven(&refuses, place.path());
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap_err();
    let each = ["a,b,c", "a", "b", "c"].map(|names| format!("PUT /{names}/_settings"));
    assert_eq!(refuses.changes(), each.into());

    let read_only = server("b", "b").await;
    let (driver, node) = driven(&read_only, place.path());
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
    assert_eq!(read_only.changes(), ["PUT /a,c/_settings".to_owned()].into());
}

/// An index that became read-only keeps the delay until it takes changes again: that is no reason to
/// lead meanwhile.
#[tokio::test]
async fn a_delay_that_cannot_be_taken_back_yet_needs_no_leader() {
    for (read_only, duty) in [("true", LeaderDuty::None), ("false", LeaderDuty::Cluster)] {
        let answer = move |_: &str, path: &str, _: &_| {
            Ok(match path {
                DELAYS => json!({"logs": {"settings": {"index": {
                    "unassigned": {"node_left": {"delayed_timeout": "300007ms"}},
                    "blocks": {"read_only_allow_delete": read_only},
                }}}}),
                _ => SETTLED.answer(path),
            })
        };
        let address = serve(port::HTTP, Box::new(answer)).await;
        let server = Server { cluster: SETTLED, address, script: Arc::default() };
        let place = tempfile::tempdir().unwrap();
        let (driver, node) = driven(&server, place.path());
        assert_eq!(driver.leader_duty(&node).await.unwrap(), duty, "{read_only}");
    }
}

#[tokio::test]
async fn what_people_set_is_never_taken_back() {
    let theirs = Cluster { delay: Some("5m"), records: Some(&["new disks"]), ..SETTLED };
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(theirs).await;
    let (driver, node) = driven(&server, place.path());
    driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
    assert_eq!(server.changes(), BTreeSet::new());
}

/// While no pilot leads, none keeps the lists: so each reason to lead must be noticed.
#[tokio::test]
async fn a_leader_is_asked_for_while_there_is_something_to_do_and_at_no_other_time() {
    let theirs = Cluster { delay: Some("5m"), records: Some(&["new disks"]), ..SETTLED };
    let left_behind = Cluster { what: "was excluded and stays", excluded: "n2", ..SETTLED };
    let of_people =
        Cluster { what: "without a Pilot", nodes: &["n1", "n2", "n3", "n4"], ..SETTLED };
    let of_people = Cluster { excluded: "n4", ..of_people };
    let moves = |rule: &Predicate| [&SHARDS_MOVED_AWAY, &VOTE_MOVED_AWAY].contains(&rule);
    for stage in STAGES.iter().chain([&theirs, &left_behind, &of_people]) {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(stage.clone()).await;
        let (driver, node) = driven(&server, place.path());
        driver.observe().await.unwrap();
        server.script.set(None);
        let duty = driver.leader_duty(&node).await.unwrap();
        assert_eq!(server.changes(), BTreeSet::new(), "a look changes nothing");
        driver.lead_duties(&node, &LeaderPermit::for_single_node()).await.unwrap();
        let expected = match server.changes().is_empty() {
            _ if stage.leaves => LeaderDuty::Departure,
            _ if stage.loses_role.is_some_and(|(_, told)| told.iter().any(|rule| moves(rule))) => {
                LeaderDuty::Cluster
            }
            true => LeaderDuty::None,
            false => LeaderDuty::Cluster,
        };
        assert_eq!(duty, expected, "{}", stage.what);
    }
}

#[tokio::test]
async fn a_departure_of_a_peer_needs_a_leader_until_its_pilot_is_gone_or_a_while_has_passed() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(SETTLED).await;
    let (driver, mut node) = driven(&server, place.path());
    assert_eq!(driver.leader_duty(&node).await.unwrap(), LeaderDuty::None);
    node.peers[0] = pilot("n2", true);
    assert_eq!(driver.leader_duty(&node).await.unwrap(), LeaderDuty::None, "it was refused");
    node.peers[0].status.decommission = Some(Decommission::default());
    assert_eq!(driver.leader_duty(&node).await.unwrap(), LeaderDuty::Cluster);
    let mut left = |ago: i64| {
        let since = Timestamp::now() - SignedDuration::from_secs(ago);
        node.peers[0].status.conditions = vec![Condition {
            type_: "Decommissioned".into(),
            status: "True".into(),
            reason: "NodeDecommissioned".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(since),
        }];
        lead_duties::decommission_duty(&node, Timestamp::now())
    };
    assert_eq!(left(60), LeaderDuty::Cluster);
    assert_eq!(left(3600), LeaderDuty::None, "its Pilot stands for good");
}

mod searches {
    use super::*;
    use crate::testing::search_cases;

    /// One in so many faults is tried in CI.
    const EVERY: usize = 5;

    #[tokio::test]
    async fn nothing_goes_on_by_what_was_not_heard() {
        // The stages run concurrently, since each mostly waits.
        let stages = STAGES.iter().map(async |stage| {
            let place = tempfile::tempdir().unwrap();
            let server = Server::start(stage.clone()).await;
            let faults = Fault::all(&asked(&server, place.path()).await, &Failure::QUICK);
            let mut tried = 0;
            for fault in search_cases(faults, EVERY) {
                hold(&server, &fault, place.path()).await;
                tried += 1;
            }
            tried
        });
        let tried: usize = join_all(stages).await.into_iter().sum();
        assert!(tried > 500 / EVERY, "{tried}");
    }

    /// Each fault takes its five seconds, so they run concurrently.
    #[tokio::test]
    async fn nothing_goes_on_by_what_hangs() {
        let stages = ["has the only copy of a red cluster", "is empty, and votes"];
        let mut tried = Vec::new();
        for stage in STAGES.iter().filter(|stage| stages.contains(&stage.what)) {
            let place = tempfile::tempdir().unwrap();
            let server = Server::start(stage.clone()).await;
            for fault in Fault::all(&asked(&server, place.path()).await, &[Failure::Hangs]) {
                let stage = stage.clone();
                tried.push(async move {
                    let place = tempfile::tempdir().unwrap();
                    hold(&Server::start(stage).await, &fault, place.path()).await;
                });
            }
        }
        assert!(tried.len() > 20);
        join_all(tried).await;
    }
}
