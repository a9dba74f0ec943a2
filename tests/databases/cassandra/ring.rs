//! A Cassandra cluster of whole pilots: its Pilots in a real API, its hosts on loopback.
//!
//! Owns what stands for the controller (it writes Pilots), the kubelet (it starts pilots) and
//! the volumes (they outlive both).

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, time::Duration};

use navigator::{api::v1beta1::Pilot, databases::cassandra::names::label};
use serde_json::{Value, json};

use crate::{
    cql::{Cql, Row},
    host::{home, java_home, repository},
    support::{
        bed::{Bed, condition, member},
        seat::{Running, Seat},
        wait::until,
    },
};

/// A node that founds or comes back. Measured at 14 to 50 s on a loaded machine of two cores.
pub(crate) const START: Duration = Duration::from_secs(240);
/// Joins and departures announce themselves for 30 s; measured at 67 to 116 s each, and they
/// wait for one another.
pub(crate) const JOIN: Duration = Duration::from_secs(600);
/// What needs no process to start.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) struct Ring {
    pub(crate) bed: Bed,
    pub(crate) hosts: Vec<Host>,
    home: PathBuf,
    /// Third byte of the hosts' addresses: rings of one run do not meet.
    net: u8,
    spec: Value,
    root: tempfile::TempDir,
    /// How often the cluster object was made again.
    made: u32,
}

/// A host, and the pilot that runs on it.
pub(crate) struct Host {
    pub(crate) seat: Seat,
    pub(crate) running: Option<Running>,
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
        Self { bed: Bed::start().await, hosts: Vec::new(), home, net, spec: all, root, made: 0 }
    }

    /// Another host and its Pilot, not started. Returns its index.
    pub(crate) async fn add(&mut self) -> usize {
        let index = self.hosts.len();
        let number = u8::try_from(index + 1).unwrap();
        let name = format!("cass-demo-a-{index}");
        let address = [127, 31, self.net, number];
        let mut seat = Seat::new("cassandra", &name, address, &self.home, self.root.path());
        let agent = repository().join(".cache/jolokia-agent-jvm-2.2.9.jar");
        std::fs::copy(agent, seat.place.join("shared/jolokia.jar"))
            .expect("the Jolokia agent is missing: make deps");
        seat.env.push(("JAVA_HOME".to_owned(), java_home().display().to_string()));
        // Longer than anything that is waited for: no test is about being killed late.
        seat.flags.push("--termination-grace-period=300".to_owned());
        let pilot = member("CassandraCluster", label::CLUSTER, &name, &self.spec);
        self.bed.create(&pilot).await;
        self.hosts.push(Host { seat, running: None });
        index
    }

    /// The cluster object goes, and all that belongs to it but the volumes; another one of this
    /// name comes, with Pilots for these hosts.
    pub(crate) async fn make_again(&mut self, indexes: &[usize]) {
        let none = kube::api::DeleteParams::default();
        self.made += 1;
        for index in 0..self.hosts.len() {
            self.stop(index).await;
            self.bed.delete(&self.name(index)).await;
        }
        self.bed.leases().delete("cassandra-demo-leaderelection", &none).await.unwrap();
        for index in indexes {
            self.create(*index).await;
        }
    }

    /// Makes the Pilot of a host in the cluster object that there is now.
    pub(crate) async fn create(&self, index: usize) {
        let name = self.name(index);
        let mut pilot = member("CassandraCluster", label::CLUSTER, &name, &self.spec);
        let uid = format!("8d2c5f3e-0000-4000-8000-00000000010{}", self.made);
        pilot.metadata.owner_references.as_mut().unwrap()[0].uid = uid;
        self.bed.create(&pilot).await;
    }

    /// A node's tokens, as it wrote them down.
    pub(crate) fn tokens(&self, index: usize) -> Vec<Row> {
        let tokens = self.cql(index).run("SELECT tokens FROM system.local");
        assert!(tokens[0][0].is_some());
        tokens
    }

    /// Adds hosts, starts them all at once, and waits until every host serves.
    pub(crate) async fn form(&mut self, count: usize) {
        for _ in 0..count {
            let index = self.add().await;
            self.start(index);
        }
        for index in 0..self.hosts.len() {
            self.serves(index, JOIN).await;
        }
    }

    pub(crate) fn start(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.running = Some(host.seat.start(&self.bed.credentials(&host.seat.name)));
    }

    /// Ends a pilot as a pod is deleted, its database with it.
    pub(crate) async fn stop(&mut self, index: usize) {
        let code = self.hosts[index].running.take().unwrap().stop(START).await;
        assert_eq!(code, 0, "{}", self.name(index));
    }

    /// Ends a pilot as a machine is lost, its database with it.
    pub(crate) fn kill(&mut self, index: usize) {
        self.hosts[index].running.take().unwrap().kill();
    }

    pub(crate) fn name(&self, index: usize) -> String {
        self.hosts[index].seat.name.clone()
    }

    pub(crate) fn address(&self, index: usize) -> IpAddr {
        self.hosts[index].seat.address
    }

    pub(crate) fn running(&self, index: usize) -> &Running {
        self.hosts[index].running.as_ref().unwrap()
    }

    /// Does a database run there?
    pub(crate) fn serving(&self, index: usize) -> bool {
        self.hosts[index].running.as_ref().is_some_and(|pilot| pilot.database().is_some())
    }

    pub(crate) fn data(&self, index: usize) -> PathBuf {
        self.hosts[index].seat.data()
    }

    pub(crate) fn cql(&self, index: usize) -> Cql {
        Cql::connect(self.address(index))
    }

    pub(crate) async fn pilot(&self, index: usize) -> Pilot {
        self.bed.pilot(&self.name(index)).await
    }

    pub(crate) async fn change(&self, index: usize, spec: Value) {
        self.bed.change(&self.name(index), spec).await;
    }

    pub(crate) async fn shows<T>(
        &self,
        index: usize,
        what: &str,
        deadline: Duration,
        look: impl FnMut(&Pilot) -> Option<T>,
    ) -> T {
        self.bed.shows(&self.name(index), what, deadline, look).await
    }

    /// Waits until the process that runs now serves: a Pilot may still show what the last one
    /// reported.
    pub(crate) async fn serves(&self, index: usize, deadline: Duration) -> Pilot {
        let name = self.name(index);
        until(&format!("{name} serves"), deadline, async || {
            let pid = self.running(index).database();
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

    /// Waits for a condition's status and reason; returns its message.
    pub(crate) async fn says(
        &self,
        index: usize,
        type_: &str,
        (status, reason): (&str, &str),
        deadline: Duration,
    ) -> String {
        let what = format!("{type_} is {status}, {reason}");
        self.shows(index, &what, deadline, |pilot| {
            let (is, why, message) = condition(pilot, type_)?;
            (is == status && why == reason).then(|| message.to_owned())
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

    /// The host id that a node's pilot reports.
    pub(crate) async fn id(&self, index: usize) -> Option<String> {
        self.pilot(index).await.status.identity.and_then(|identity| identity.node_id)
    }

    /// A gauge of a node's pilot.
    pub(crate) fn gauge(&self, index: usize, name: &str) -> Option<f64> {
        let (_, page) = self.hosts[index].seat.get(8080)?;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}
