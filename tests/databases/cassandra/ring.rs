//! Nodes of a real Cassandra under whole pilots, and what they answer to CQL.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::{Deref, DerefMut},
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use navigator::{api::v1beta1::Pilot, databases::cassandra::names::label};
use serde_json::{Value, json};

use crate::{
    cql::{Cql, Row},
    host::{home, java_home, repository},
    support::{
        bed::{Bed, condition},
        nodes::{Cluster, Nodes},
        seat::Seat,
        wait::until,
    },
};

/// A node that founds or comes back. Measured at 14 to 50 s on a loaded machine of two cores, and
/// at 245 s with a load of 20 on them.
pub(crate) const START: Duration = Duration::from_secs(600);
/// Joins and departures announce themselves for 30 s; measured at 67 to 116 s each, and they
/// wait for one another.
pub(crate) const JOIN: Duration = Duration::from_secs(600);
/// Limit for what needs no process to start.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// The nodes of one ring, and requests that only a Cassandra answers.
pub(crate) struct Ring {
    nodes: Nodes,
    home: PathBuf,
    /// Third byte of the hosts' addresses: rings of one run do not meet.
    net: u8,
    root: tempfile::TempDir,
}

impl Deref for Ring {
    type Target = Nodes;

    fn deref(&self) -> &Nodes {
        &self.nodes
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut Nodes {
        &mut self.nodes
    }
}

impl Ring {
    /// An API and nothing else. `spec` is laid over what every node's Pilot says.
    pub(crate) async fn new(version: &'static str, net: u8, spec: Value) -> Self {
        let (root, home) = (tempfile::tempdir().unwrap(), home("cassandra", version));
        let mut all = json!({
            "version": version, "jvm": {"heap": "384Mi"},
            "cassandra": {"clusterName": "demo", "datacenter": "dc1", "rack": "a"},
            // Spread tokens need the schema of a second node and 30 s of waiting for it.
            "config": {"allocate_tokens_for_local_replication_factor": null},
        });
        json_patch::merge(&mut all, &spec);
        let cluster = Cluster {
            kind: "CassandraCluster",
            label: label::CLUSTER,
            name: "demo".to_owned(),
            lease: "cassandra-demo-leaderelection".to_owned(),
            spec: all,
        };
        let nodes = Nodes::new(&Rc::new(Bed::start().await), cluster);
        Self { nodes, home, net, root }
    }

    /// Another host and its Pilot, not started. Returns its index.
    pub(crate) async fn add(&mut self) -> usize {
        let index = self.all.len();
        let number = u8::try_from(index + 1).unwrap();
        let name = format!("cass-demo-a-{index}");
        let address = [127, 31, self.net, number];
        let mut seat = Seat::new("cassandra", &name, address, &self.home, self.root.path());
        let agent = repository().join(".cache/agent/jolokia-agent-jvm-2.2.9.jar");
        std::fs::copy(agent, seat.place.join("shared/jolokia.jar"))
            .expect("the Jolokia agent is missing: make deps");
        seat.env.push(("JAVA_HOME".to_owned(), java_home().display().to_string()));
        // The grace period is longer than any wait: no scenario is about a late kill.
        seat.flags.push("--termination-grace-period=300".to_owned());
        self.push(seat);
        self.create(index).await;
        index
    }

    /// A node's tokens, as it wrote them down.
    pub(crate) fn tokens(&self, index: usize) -> Vec<Row> {
        let tokens = self.cql(index).run("SELECT tokens FROM system.local");
        assert!(tokens[0][0].is_some());
        tokens
    }

    /// Adds hosts, starts them all at once, and waits until every host serves.
    pub(crate) async fn grow(&mut self, count: usize) {
        for _ in 0..count {
            let index = self.add().await;
            self.start(index);
        }
        for index in 0..self.all.len() {
            self.serves(index, JOIN).await;
        }
    }

    pub(crate) fn address(&self, index: usize) -> IpAddr {
        self.seat(index).address
    }

    pub(crate) fn cql(&self, index: usize) -> Cql {
        Cql::connect(self.address(index))
    }

    /// Waits until the process that runs now serves: a Pilot may still show what the last one
    /// reported.
    pub(crate) async fn serves(&self, index: usize, deadline: Duration) -> Pilot {
        until(&format!("{} serves", self.name(index)), deadline, async || {
            let pid = self.database(index);
            let pilot = self.pilot(index).await;
            let reported = pilot.status.process.as_ref().map(|process| process.pid);
            let ready = condition(&pilot, "Ready").is_some_and(|(status, ..)| status == "True");
            if ready && pid.is_some() && reported == pid {
                return Ok(pilot);
            }
            Err(format!(
                "pid {pid:?}, reported {reported:?}, {:?}\n{}",
                condition(&pilot, "Ready"),
                self.running(index).tail()
            ))
        })
        .await
    }

    /// Waits until every one of these nodes counts exactly them to its ring.
    pub(crate) async fn is_one(&self, indexes: &[usize]) -> BTreeSet<String> {
        until("all nodes count each other", SOON, async || {
            let mut seen = Vec::new();
            let mut reported = BTreeSet::new();
            for index in indexes {
                seen.push(self.cql(*index).ring().map_err(|error| error.to_string())?);
                reported.extend(self.id(*index).await);
            }
            let agree = seen.iter().all(|ids| *ids == reported);
            if agree && reported.len() == indexes.len() {
                Ok(reported)
            } else {
                Err(format!("{seen:?}, reported {reported:?}"))
            }
        })
        .await
    }

    /// Waits for a condition's status and reason, and for a part of its message.
    pub(crate) async fn told(
        &self,
        index: usize,
        type_: &str,
        status: &str,
        reason: &str,
        part: &str,
    ) {
        let what = format!("{type_}={status}/{reason} with {part:?}");
        self.bed
            .shows(self.name(index), &what, START, |pilot| {
                let (now, why, message) = condition(pilot, type_)?;
                (now == status && why == reason && message.contains(part)).then_some(())
            })
            .await;
    }

    /// The host id that a node's pilot reports.
    pub(crate) async fn id(&self, index: usize) -> Option<String> {
        self.pilot(index).await.status.identity.and_then(|identity| identity.node_id)
    }
}
