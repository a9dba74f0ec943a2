//! Tests that no verb of the driver goes on by an answer that it did not get: every request fails,
//! attribute by attribute, part by part and as a whole, at each stage of a node's life.
//!
//! A scripted Jolokia answers as the agent does: HTTP 200, and in the body how each part ended.

use std::{collections::BTreeSet, fs, net::IpAddr, path::Path, sync::Arc};

use futures::future::join_all;
use serde_json::{Value, json};

use super::{
    super::{CassandraDriver, keyspaces},
    driver, node_in,
};
use crate::{
    api::{pilot_part::PilotPart, v1beta1::Decommission},
    databases::cassandra::v1beta1::{CassandraNode, PilotCassandraStatus},
    databases::testing::{Failure, Fault, Script, answered, serve},
    pilot::{
        clients::jolokia,
        driver::{DatabaseNode, DecommissionState, Driver, Error, NodeObservation},
    },
};

/// The state of a ring in which `n1` is the node under test; `n2` and `n3` are the others.
#[derive(Clone, Debug)]
struct Ring {
    what: &'static str,
    mode: &'static str,
    down: &'static [&'static str],
    joining: &'static [&'static str],
    streams: usize,
    schemas: [&'static str; 3],
    /// Replication factor of the one keyspace of users.
    factor: usize,
    leaves: bool,
}

const SETTLED: Ring = Ring {
    what: "settled",
    mode: "NORMAL",
    down: &[],
    joining: &[],
    streams: 0,
    schemas: ["s", "s", "s"],
    factor: 2,
    leaves: false,
};

const STAGES: &[Ring] = &[
    SETTLED,
    Ring { what: "another joins", joining: &["n3"], ..SETTLED },
    Ring { what: "another is down", down: &["n2"], ..SETTLED },
    Ring { what: "streams", streams: 1, ..SETTLED },
    Ring { what: "two schemas", schemas: ["s", "t", "s"], ..SETTLED },
    Ring { what: "joins itself", mode: "JOINING", ..SETTLED },
    Ring { what: "begins to leave", leaves: true, ..SETTLED },
    Ring { what: "may not leave a factor of 3", factor: 3, leaves: true, ..SETTLED },
    Ring { what: "may not leave with a node down", down: &["n2"], leaves: true, ..SETTLED },
    Ring { what: "is leaving", mode: "LEAVING", streams: 1, leaves: true, ..SETTLED },
    Ring { what: "has left", mode: "DECOMMISSIONED", leaves: true, ..SETTLED },
];

struct Server {
    ring: Ring,
    address: IpAddr,
    script: Arc<Script>,
}

/// Returns the address of a node; only `own` gets requests.
fn address(own: IpAddr, node: &str) -> String {
    match node {
        "n1" => own.to_string(),
        other => format!("127.9.201.{}", &other[1..]),
    }
}

impl Server {
    async fn start(ring: Ring) -> Self {
        let script = Arc::<Script>::default();
        let own = Arc::<std::sync::OnceLock<IpAddr>>::default();
        let (said, heard, at) = (ring.clone(), Arc::clone(&script), Arc::clone(&own));
        let answer = move |_: &str, _: &str, body: &axum::body::Bytes| {
            let request: Value = serde_json::from_slice(body).unwrap();
            let first = label(request.get(0).unwrap_or(&request));
            if let Some(failure) = heard.ask(&format!("all of {first}")) {
                return Err(failure);
            }
            let own = *at.get().unwrap();
            Ok(match &request {
                Value::Array(parts) => {
                    parts.iter().map(|part| said.part(own, &heard, part)).collect()
                }
                part => said.part(own, &heard, part),
            })
        };
        let address = serve(jolokia::PORT, Box::new(answer)).await;
        own.set(address).unwrap();
        Self { ring, address, script }
    }

    fn changes(&self) -> BTreeSet<String> {
        let mut asked = self.script.asked();
        asked.retain(|asked| asked.starts_with("StorageService.decommission"));
        asked
    }
}

/// Names a request as `Bean` or `Bean.operation`.
fn label(part: &Value) -> String {
    let bean = part["mbean"].as_str().unwrap().rsplit('=').next().unwrap();
    match part["operation"].as_str() {
        Some(operation) => format!("{bean}.{}", operation.split('(').next().unwrap()),
        None => bean.to_owned(),
    }
}

impl Ring {
    fn part(&self, own: IpAddr, script: &Script, part: &Value) -> Value {
        let label = label(part);
        match script.ask(&label) {
            Some(Failure::Empty | Failure::Cut) => return json!({}),
            Some(Failure::Garbage) => return json!({"status": 200, "value": "<html>"}),
            Some(_) => return json!({"status": 500, "error": "scripted"}),
            None => {}
        }
        let mut value = self.value(own, &label);
        for name in part["attribute"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            match script.ask(&format!("{label} {name}")) {
                Some(Failure::Empty | Failure::Cut) => {
                    value.as_object_mut().unwrap().remove(name);
                }
                Some(Failure::Garbage) => value[name] = json!({"x": 1}),
                Some(_) => value[name] = json!("ERROR: java.lang.IllegalStateException"),
                None => {}
            }
        }
        json!({"status": 200, "value": value})
    }

    fn value(&self, own: IpAddr, label: &str) -> Value {
        let all = ["n1", "n2", "n3"];
        let at = |node: &&str| address(own, node);
        let list = |nodes: &[&str]| nodes.iter().map(at).collect::<Value>();
        let live: Vec<&str> = all.into_iter().filter(|node| !self.down.contains(node)).collect();
        match label {
            "StorageService" => json!({
                "OperationMode": self.mode, "ReleaseVersion": "5.0.6", "LocalHostId": "id-n1",
                "EndpointToHostId": all.iter().map(|node| (at(node), json!(format!("id-{node}")))).collect::<serde_json::Map<_, _>>(),
                "LiveNodes": list(&live), "UnreachableNodes": list(self.down),
                "JoiningNodes": list(self.joining), "LeavingNodes": [], "MovingNodes": [],
                "NativeTransportRunning": true, "Tokens": ["1"],
                "NonLocalStrategyKeyspaces": ["shop", "system_auth"],
            }),
            "StreamManager" => {
                let stream = json!({"planId": "p", "description": "d", "totalTxBytes": 9, "currentTxBytes": 3});
                json!({"CurrentStreams": vec![stream; self.streams]})
            }
            "FailureDetector" => {
                let node = |(node, schema): (&&str, &&str)| {
                    format!(
                        "/{}\n  generation:1\n  STATUS:20:NORMAL,-1\n  SCHEMA:12:{schema}\n  DC:8:eu\n",
                        at(node)
                    )
                };
                json!({"AllEndpointStates": all.iter().zip(&self.schemas).map(node).collect::<String>()})
            }
            "EndpointSnitchInfo.getDatacenter" => json!("eu"),
            "EndpointSnitchInfo.getRack" => json!("r1"),
            "StorageService.getRangeToEndpointMap" => json!({"[1, 2]": list(&["n1", "n2"])}),
            "StorageService.getKeyspaceReplicationInfo" => json!(format!(
                "ReplicationParams{{class=org.apache.cassandra.locator.NetworkTopologyStrategy, eu={}}}",
                self.factor
            )),
            "Load" | "TotalIncomingBytes" | "TotalOutgoingBytes" => json!({"Count": 9}),
            _ => json!({"HeapMemoryUsage": {"used": 7}}),
        }
    }
}

/// Returns a new driver and its node, whose agent is `server`.
fn driven(server: &Server, place: &Path) -> (CassandraDriver, DatabaseNode) {
    let mut node = node_in(place);
    node.address = server.address;
    drop(fs::remove_dir_all(&node.data));
    fs::create_dir_all(&node.config).unwrap();
    let way = format!("host={}\npassword=p\n", server.address);
    fs::write(node.config.join(jolokia::SETTINGS), way).unwrap();
    (self::driver(&node), node)
}

fn rules(seen: &NodeObservation) -> BTreeSet<&'static str> {
    seen.blockers.iter().map(|(rule, _)| rule.name).collect()
}

/// Returns the state of a decommission, without its time and its text.
async fn decommission(
    driver: &CassandraDriver,
    node: &DatabaseNode,
) -> Result<DecommissionState, Error> {
    Ok(match driver.decommission(node).await? {
        DecommissionState::Moving(progress) => {
            DecommissionState::Moving(Decommission { start_time: None, message: None, ..progress })
        }
        other => other,
    })
}

async fn hold(server: &Server, fault: &Fault, place: &Path) {
    let what = format!("{}: {fault:?}", server.ring.what);
    server.script.set(None);
    let (driver, node) = driven(server, place);
    let heard = answered(&what, || driver.observe()).await;
    let (departure, changes) = if server.ring.leaves {
        let departure = answered(&what, || Box::pin(decommission(&driver, &node))).await;
        (Some(departure), server.changes())
    } else {
        (None, BTreeSet::new())
    };
    let (newcomer, _) = driven(server, place);
    for driver in [&newcomer, &driver] {
        server.script.set(Some(fault.clone()));
        if let Ok(seen) = driver.observe().await {
            assert_eq!(seen.serving, heard.serving, "{what}");
            assert_eq!((rules(&seen), &seen.health), (rules(&heard), &heard.health), "{what}");
        }
    }
    let (driver, node) = driven(server, place);
    if let Some(departure) = &departure {
        server.script.set(Some(fault.clone()));
        if let Ok(state) = decommission(&driver, &node).await {
            let refused = matches!(state, DecommissionState::Refused(_));
            assert!(refused || state == *departure, "{what}: {state:?}");
        }
        let done = server.changes();
        assert!(done.is_subset(&changes), "{what}: {done:?} and not {changes:?}");
    }
}

async fn asked(server: &Server, place: &Path) -> BTreeSet<String> {
    server.script.set(None);
    let (driver, node) = driven(server, place);
    answered(server.ring.what, || driver.observe()).await;
    if server.ring.leaves {
        answered(server.ring.what, || driver.decommission(&node)).await;
    }
    server.script.asked()
}

#[tokio::test]
async fn each_stage_is_what_it_is_called() {
    let mut seen = BTreeSet::new();
    for stage in STAGES {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(stage.clone()).await;
        let (driver, node) = driven(&server, place.path());
        seen.extend(rules(&driver.observe().await.unwrap()));
        if stage.leaves {
            let begun = server.changes().len();
            seen.insert(match driver.decommission(&node).await.unwrap() {
                DecommissionState::Moving(_) => "moves",
                DecommissionState::Stuck(..) => "stuck",
                DecommissionState::Refused(_) => "refused",
                DecommissionState::Done => "done",
            });
            let begins = server.changes().len() > begun;
            assert_eq!(begins, stage.what == "begins to leave", "{}", stage.what);
        }
    }
    let all = [
        "PeersUp",
        "RangesKeepQuorum",
        "RingSettled",
        "SchemaAgreement",
        "StreamsIdle",
        "done",
        "moves",
        "refused",
    ];
    assert_eq!(seen, all.into());
}

#[tokio::test]
async fn keyspaces_that_are_replicated_alike_are_asked_for_once() {
    let keyspaces = || ["logs", "shop", "system_auth"].map(str::to_owned).to_vec();
    let asked = async |failure: Option<Failure>| {
        let place = tempfile::tempdir().unwrap();
        let server = Server::start(SETTLED).await;
        let (driver, _) = driven(&server, place.path());
        let at = "StorageService.getKeyspaceReplicationInfo";
        server.script.set(failure.map(|failure| Fault {
            request: at.to_owned(),
            from_there_on: false,
            failure,
        }));
        let jolokia = driver.jolokia().unwrap();
        let found = keyspaces::read_replicas(&jolokia, keyspaces()).await.unwrap();
        found.into_iter().map(|alike| alike.keyspaces).collect::<Vec<_>>()
    };
    assert_eq!(asked(None).await, [keyspaces()]);
    let each: Vec<_> = keyspaces().into_iter().map(|one| vec![one]).collect();
    assert_eq!(asked(Some(Failure::Garbage)).await, each, "two answers that say nothing");
    assert_eq!(asked(Some(Failure::Empty)).await, each);
}

#[tokio::test]
async fn replication_factor_of_the_datacenter_is_reported() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::start(Ring { factor: 3, ..SETTLED }).await;
    let (driver, _) = driven(&server, place.path());
    let seen = driver.observe().await.unwrap();
    let part = seen.detail.get::<PilotCassandraStatus>(CassandraNode::NAMES.word).unwrap();
    assert_eq!(part.replication_factor, Some(3));
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
}
