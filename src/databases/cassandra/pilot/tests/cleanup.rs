//! Tests cleanup from beginning to end against a scripted Jolokia: a node gives ranges away,
//! reports that, is cleaned up, refused, restarted half-way and asked again.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{super::CassandraDriver, driver, node_in};
use crate::{
    api::names::annotation::CLEANUP,
    databases::cassandra::{
        names,
        v1beta1::{CassandraBehind, CassandraCleanup, PilotCassandraStatus},
    },
    databases::testing::serve,
    pilot::{
        clients::jolokia,
        driver::{DatabaseNode, Driver, NodeObservation},
        upkeep_job::RUNNING,
    },
};

/// The state of the node's ring, and the cleanups that Cassandra was told to run.
#[derive(Debug, Default)]
struct ScriptedRing {
    /// True when another node is a member, and has half of each keyspace.
    shared: bool,
    /// True when the two nodes have copies of all ranges, and do not share them out.
    has_copies: bool,
    joining: bool,
    /// True when there is a fourth keyspace, `late`.
    has_late_keyspace: bool,
    /// Answers of cleanups that do not succeed, by keyspace.
    answers: BTreeMap<&'static str, Value>,
    cleaned: Vec<String>,
}

const OTHER: &str = "127.9.202.2";

impl ScriptedRing {
    fn part(&mut self, own: IpAddr, part: &Value) -> Value {
        let said = |value: Value| json!({"status": 200, "value": value});
        let bean = part["mbean"].as_str().unwrap().rsplit('=').next().unwrap();
        let operation = part["operation"].as_str().unwrap_or_default();
        match (bean, operation.split('(').next().unwrap()) {
            ("StorageService", "") => said(self.storage(own)),
            ("StorageService", "getRangeToEndpointMap") if self.has_copies => {
                said(json!({"[0, 0]": [own, OTHER]}))
            }
            ("StorageService", "getRangeToEndpointMap") => said(if self.shared {
                json!({"[0, 50]": [own], "[50, 0]": [OTHER]})
            } else {
                json!({"[0, 0]": [own]})
            }),
            ("StorageService", "forceKeyspaceCleanup") => {
                let keyspace = part["arguments"][1].as_str().unwrap();
                assert_eq!(part["arguments"], json!([2, keyspace, []]));
                self.cleaned.push(keyspace.to_owned());
                self.answers.get(keyspace).cloned().unwrap_or_else(|| said(json!(0)))
            }
            ("StreamManager", _) => said(json!({"CurrentStreams": []})),
            ("FailureDetector", _) => said(json!({"AllEndpointStates": format!(
                "/{own}\n  generation:1\n  STATUS:20:NORMAL,-1\n  SCHEMA:12:{}\n  DC:8:eu\n",
                if self.has_late_keyspace { "t" } else { "s" }
            )})),
            ("Memory", _) => said(json!({"HeapMemoryUsage": {"used": 7}})),
            _ => said(json!({"Count": 9})),
        }
    }

    fn storage(&self, own: IpAddr) -> Value {
        let mut ids = json!({own.to_string(): "id-1"});
        if self.shared || self.joining {
            ids[OTHER] = json!("id-2");
        }
        let joining = if self.joining { json!([OTHER]) } else { json!([]) };
        let mut keyspaces = vec!["system_auth", "shop", "logs"];
        keyspaces.extend(self.has_late_keyspace.then_some("late"));
        json!({
            "OperationMode": "NORMAL", "ReleaseVersion": "5.0.6", "LocalHostId": "id-1",
            "EndpointToHostId": ids, "LiveNodes": [own.to_string(), OTHER.to_owned()],
            "UnreachableNodes": [],
            "JoiningNodes": joining, "LeavingNodes": [], "MovingNodes": [],
            "NativeTransportRunning": true, "Tokens": ["1"],
            "NonLocalStrategyKeyspaces": keyspaces,
        })
    }
}

struct Stage {
    ring: Arc<Mutex<ScriptedRing>>,
    node: DatabaseNode,
    _place: tempfile::TempDir,
}

impl Stage {
    async fn set() -> Self {
        let ring = Arc::<Mutex<ScriptedRing>>::default();
        let own = Arc::<std::sync::OnceLock<IpAddr>>::default();
        let (told, at) = (Arc::clone(&ring), Arc::clone(&own));
        let answer = move |_: &str, _: &str, body: &axum::body::Bytes| {
            let request: Value = serde_json::from_slice(body).unwrap();
            let (own, mut ring) = (*at.get().unwrap(), told.lock().unwrap());
            Ok(match &request {
                Value::Array(parts) => parts.iter().map(|part| ring.part(own, part)).collect(),
                part => ring.part(own, part),
            })
        };
        let address = serve(jolokia::PORT, Box::new(answer)).await;
        own.set(address).unwrap();
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.address = address;
        fs::create_dir_all(&node.config).unwrap();
        let way = format!("host={address}\npassword=p\n");
        fs::write(node.config.join(jolokia::SETTINGS), way).unwrap();
        Self { ring, node, _place: place }
    }

    fn ring<T>(&self, change: impl FnOnce(&mut ScriptedRing) -> T) -> T {
        change(&mut self.ring.lock().unwrap())
    }

    /// Makes a new pilot on this volume.
    fn pilot(&self) -> CassandraDriver {
        driver(&self.node)
    }

    fn ask(&mut self, request: &str) {
        self.node.pilot.metadata.annotations =
            Some([(CLEANUP.to_owned(), request.to_owned())].into());
    }

    /// Runs the pilot's regular upkeep once; returns the keyspaces that Cassandra was told to clean
    /// up.
    async fn goes_on(&self, pilot: &CassandraDriver) -> Vec<String> {
        self.ring(|ring| ring.cleaned.clear());
        if pilot.has_pending_task(&self.node.pilot) {
            pilot.run_task(&self.node).await.unwrap();
        }
        self.ring(|ring| ring.cleaned.clone())
    }
}

fn due(seen: &NodeObservation) -> (Option<bool>, &str) {
    let told = seen.conditions.first().unwrap();
    (told.status, &told.reason)
}

fn progress(seen: &NodeObservation) -> Option<CassandraCleanup> {
    seen.detail.get::<PilotCassandraStatus>(names::NAMES.word).unwrap().cleanup
}

fn behind(seen: &NodeObservation) -> Option<CassandraBehind> {
    seen.detail.get::<PilotCassandraStatus>(names::NAMES.word).unwrap().behind
}

#[tokio::test]
async fn absence_is_reported_where_ranges_have_copies() {
    let stage = Stage::set().await;
    stage.ring(|ring| ring.shared = true);
    let own = stage.node.data.join(".navigator");
    fs::create_dir_all(&own).unwrap();
    let last = Timestamp::now().as_second() - 4 * 3600;
    let last = Timestamp::from_second(last).unwrap().to_string();
    let state = json!({"joined": true, "presence": {"lastSeen": last, "hintsKept": 10_800_000}});
    fs::write(own.join("cassandra.json"), state.to_string()).unwrap();
    let pilot = stage.pilot();
    assert_eq!(behind(&pilot.observe().await.unwrap()), None, "each row is on one node alone");
    stage.ring(|ring| ring.has_copies = true);
    let next = stage.pilot();
    let reported = behind(&next.observe().await.unwrap()).unwrap();
    assert_eq!(reported.away_since.unwrap().0.to_string(), last);
    assert!(reported.since.0 > Timestamp::now() - SignedDuration::from_mins(1));
}

async fn gave_away() -> (Stage, CassandraDriver) {
    let stage = Stage::set().await;
    let pilot = stage.pilot();
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(false), "NothingDue"));
    stage.ring(|ring| ring.joining = true);
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(false), "NothingDue"));
    stage.ring(|ring| (ring.joining, ring.shared) = (false, true));
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(true), "RangesGivenAway"));
    (stage, pilot)
}

#[tokio::test]
async fn a_node_that_gave_ranges_away_is_told_and_cleaned_up_once() {
    let (mut stage, pilot) = gave_away().await;
    assert_eq!(stage.goes_on(&pilot).await, [""; 0], "nobody asked for it");
    stage.ask("monday");
    assert_eq!(stage.goes_on(&pilot).await, ["logs", "shop", "system_auth"]);
    let seen = pilot.observe().await.unwrap();
    assert_eq!(due(&seen), (Some(false), "NothingDue"));
    let done = progress(&seen).unwrap();
    assert_eq!((&*done.request, &*done.phase, done.keyspaces_done), ("monday", "Done", 3));
    assert_eq!(stage.goes_on(&pilot).await, [""; 0], "it is done");

    let next = stage.pilot();
    assert_eq!(due(&next.observe().await.unwrap()), (Some(false), "NothingDue"));
    assert_eq!(stage.goes_on(&next).await, [""; 0], "a later pilot knows that");
    stage.ask("tuesday");
    assert_eq!(stage.goes_on(&next).await.len(), 3);
}

#[tokio::test]
async fn a_keyspace_created_during_a_join_is_due_for_cleanup() {
    let stage = Stage::set().await;
    let pilot = stage.pilot();
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(false), "NothingDue"));
    stage.ring(|ring| (ring.joining, ring.has_late_keyspace) = (true, true));
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(false), "NothingDue"));
    stage.ring(|ring| (ring.joining, ring.shared) = (false, true));
    let seen = pilot.observe().await.unwrap();
    assert_eq!(due(&seen), (Some(true), "RangesGivenAway"));
    let message = &seen.conditions.first().unwrap().message;
    assert!(message.contains(" of: late, logs, shop"), "{message}");
}

#[tokio::test]
async fn a_cleanup_that_is_cut_off_goes_on_where_it_was() {
    let (mut stage, pilot) = gave_away().await;
    stage.ask("monday");
    let refusal = json!({
        "status": 500, "error": "Node is involved in cluster membership changes. Not safe to run cleanup.",
    });
    stage.ring(|ring| ring.answers.insert("shop", refusal));
    assert_eq!(stage.goes_on(&pilot).await, ["logs", "shop"]);
    let seen = pilot.observe().await.unwrap();
    assert_eq!(due(&seen), (Some(true), "CleanupWaits"));
    assert_ne!(progress(&seen).unwrap().phase, RUNNING, "another node may go meanwhile");
    stage.ring(|ring| ring.answers.clear());
    let next = stage.pilot();
    assert_eq!(due(&next.observe().await.unwrap()), (Some(true), "RangesGivenAway"));
    assert_eq!(stage.goes_on(&next).await, ["shop", "system_auth"]);
    assert_eq!(due(&next.observe().await.unwrap()), (Some(false), "NothingDue"));
}

#[tokio::test]
async fn a_cleanup_that_failed_is_told_and_tried_again_when_it_is_asked_for_again() {
    let (mut stage, pilot) = gave_away().await;
    stage.ask("monday");
    stage.ring(|ring| ring.answers.insert("shop", json!({"status": 500, "error": "no room"})));
    assert_eq!(stage.goes_on(&pilot).await, ["logs", "shop"]);
    let seen = pilot.observe().await.unwrap();
    assert_eq!(due(&seen), (Some(true), "CleanupFailed"));
    assert!(progress(&seen).unwrap().message.unwrap().contains("no room"));
    stage.ring(|ring| ring.answers.clear());
    for pilot in [&pilot, &stage.pilot()] {
        pilot.observe().await.unwrap();
        assert_eq!(stage.goes_on(pilot).await, [""; 0]);
    }
    stage.ask("tuesday");
    assert_eq!(stage.goes_on(&pilot).await, ["logs", "shop", "system_auth"]);
    assert_eq!(due(&pilot.observe().await.unwrap()), (Some(false), "NothingDue"));
}

#[tokio::test]
async fn a_cleanup_waits_for_the_ring_and_ends_when_nobody_asks_for_it() {
    let (mut stage, pilot) = gave_away().await;
    stage.ask("monday");
    stage.ring(|ring| ring.joining = true);
    assert_eq!(stage.goes_on(&pilot).await, [""; 0]);
    assert_eq!(due(&pilot.observe().await.unwrap()).1, "CleanupWaits");
    stage.node.pilot.metadata.annotations = None;
    assert_eq!(stage.goes_on(&pilot).await, [""; 0]);
    let seen = pilot.observe().await.unwrap();
    assert_eq!((due(&seen).1, progress(&seen)), ("RangesGivenAway", None));
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_not_nothing_due() {
    let stage = Stage::set().await;
    let own = stage.node.data.join(".navigator");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("cassandra-ranges.json"), "{").unwrap();
    let seen = stage.pilot().observe().await.unwrap();
    assert_eq!(due(&seen), (None, "NotHeard"));
    assert!(seen.unsaved.unwrap().contains("cassandra-ranges.json"));
}
