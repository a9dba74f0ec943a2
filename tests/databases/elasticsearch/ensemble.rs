//! Nodes of a real Elasticsearch under whole pilots, and what they tell over HTTP.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    os::unix::fs::PermissionsExt,
    rc::Rc,
    time::Duration,
};

use http::Method;
use navigator::{
    api::v1beta1::Pilot, databases::elasticsearch::names::label, pilot::http::HttpClient,
};
use serde_json::{Value, json};

use crate::{
    host::{home, java_home, newer_java_home},
    support::{
        bed::{Bed, condition},
        nodes::{Cluster, Nodes},
        seat::{Seat, USER},
        wait::until,
    },
};

/// Limit for a start or a recovery. Measured at 8 to 40 s on a loaded machine of two cores.
pub(super) const START: Duration = Duration::from_secs(600);
/// Limit for the end of a process.
pub(super) const STOP: Duration = Duration::from_secs(60);

/// The nodes of one cluster, and requests that only an Elasticsearch answers.
pub(super) struct Ensemble {
    nodes: Nodes,
    pub(super) version: &'static str,
    pub(super) place: tempfile::TempDir,
}

impl Deref for Ensemble {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl DerefMut for Ensemble {
    fn deref_mut(&mut self) -> &mut Nodes {
        &mut self.nodes
    }
}

impl Ensemble {
    /// So many nodes, none of them started.
    pub(super) async fn new(version: &'static str, count: u8) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let cluster = Cluster {
            kind: "ElasticsearchCluster",
            label: label::CLUSTER,
            name: "demo".to_owned(),
            lease: "elastic-demo-leaderelection".to_owned(),
            spec: spec(version, count),
        };
        let nodes = Nodes::new(&Rc::new(Bed::start().await), cluster);
        let mut ensemble = Self { nodes, version, place };
        for number in 0..count {
            ensemble.add(number).await;
        }
        ensemble
    }

    /// A volume and a Pilot for one more node.
    pub(super) async fn add(&mut self, number: u8) {
        let (name, address) = (format!("es-demo-a-{number}"), [127, 31, 21, number + 1]);
        let home = home("elasticsearch", self.version);
        let mut seat = Seat::new("elasticsearch", &name, address, &home, self.place.path());
        seat.user = Some(USER);
        seat.env = environment(self.version);
        let node = self.push(seat);
        self.create(node).await;
    }

    pub(super) fn major(&self) -> u32 {
        major(self.version)
    }

    pub(super) fn client(&self, node: usize) -> HttpClient {
        HttpClient::new(format!("http://{}:9200", self.seat(node).address), None)
    }

    /// The body of a good answer, or what was answered instead.
    pub(super) async fn try_ask(
        &self,
        node: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let answer = self.client(node).send(method, path, body, Duration::from_secs(60)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status.is_success() { Ok(answer.body) } else { Err(answer.body.to_string()) }
    }

    pub(super) async fn ask(
        &self,
        node: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Value {
        let answer = self.try_ask(node, method, path, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Waits until these nodes serve and see each other, and no other node; returns the one id that
    /// all of them call their cluster.
    pub(super) async fn settled(&self, members: &[usize]) -> String {
        let what = format!("nodes {members:?} are one cluster");
        until(&what, START, async || {
            let mut clusters = BTreeMap::new();
            for node in members {
                let pilot = self.bed.pilot(self.name(*node)).await;
                let ready = condition(&pilot, "Ready").map(|(status, ..)| status == "True");
                let identity = pilot.status.identity.as_ref();
                let cluster = identity.and_then(|identity| identity.cluster_id.clone());
                let (Some(true), Some(cluster)) = (ready, cluster) else {
                    return Err(shown(&pilot));
                };
                clusters.insert(cluster, shown(&pilot));
                let path = "/_cluster/health?timeout=1s&master_timeout=1s";
                let health = self.try_ask(*node, Method::GET, path, None).await?;
                if health["number_of_nodes"] != members.len() {
                    return Err(format!("node {node} says {health}"));
                }
            }
            // A wiped node's Pilot shows its former cluster until the new process was asked. Two
            // clusters that were founded never become one.
            if clusters.len() > 1 {
                return Err(format!("more than one cluster: {clusters:#?}"));
            }
            Ok(clusters.into_keys().next().unwrap())
        })
        .await
    }

    /// Waits until all shards have all their copies.
    pub(super) async fn green(&self, node: usize) {
        until("all copies are there", START, async || {
            let path = "/_cluster/health?timeout=1s&master_timeout=1s";
            let health = self.try_ask(node, Method::GET, path, None).await?;
            if health["status"] == "green" { Ok(()) } else { Err(health.to_string()) }
        })
        .await;
    }

    pub(super) async fn set(&self, node: usize, settings: &Value) {
        self.ask(node, Method::PUT, "/_cluster/settings", Some(settings)).await;
    }

    pub(super) async fn index(&self, node: usize, shards: u32, replicas: u32) {
        let settings = json!({"number_of_shards": shards, "number_of_replicas": replicas});
        self.ask(node, Method::PUT, "/orders", Some(&json!({"settings": settings}))).await;
    }

    /// Waits for a condition's status and reason, and for a part of its message.
    pub(super) async fn told(
        &self,
        node: usize,
        type_: &str,
        status: &str,
        reason: &str,
        part: &str,
    ) {
        let what = format!("{type_}={status}/{reason} with {part:?}");
        self.bed
            .shows(self.name(node), &what, START, |pilot| {
                let (now, why, message) = condition(pilot, type_)?;
                (now == status && why == reason && message.contains(part)).then_some(())
            })
            .await;
    }

    /// Waits until the node left for good.
    pub(super) async fn left(&self, node: usize) {
        self.told(node, "Decommissioned", "True", "NodeDecommissioned", "").await;
        self.bed.phase(self.name(node), "Decommissioned", STOP).await;
        assert_eq!(self.database(node), None);
    }
}

/// Where the Java is that a version starts on.
pub(super) fn environment(version: &str) -> Vec<(String, String)> {
    let java = if major(version) < 9 { java_home() } else { newer_java_home() };
    let java = java.display().to_string();
    vec![("JAVA_HOME".to_owned(), java.clone()), ("ES_JAVA_HOME".to_owned(), java)]
}

/// What the Pilot of each node says in a cluster of so many.
fn spec(version: &str, count: u8) -> Value {
    let mut spec = json!({
        "version": version,
        "jvm": {"heap": "384Mi"},
        "elasticsearch": {"roles": ["master", "data"]},
        // A machine whose disk is nearly full would otherwise refuse shards.
        "config": {"cluster.routing.allocation.disk.threshold_enabled": false},
    });
    if major(version) < 7 {
        spec["elasticsearch"]["minimumMasters"] = json!(count / 2 + 1);
    }
    spec
}

fn major(version: &str) -> u32 {
    version.split('.').next().unwrap().parse().unwrap()
}

fn shown(pilot: &Pilot) -> String {
    format!("{:?}: {}", pilot.metadata.name, serde_json::to_string(&pilot.status).unwrap())
}
