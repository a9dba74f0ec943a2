//! The nodes of one cluster: a seat for each, their Pilots in an API, and the pilots that run.
//!
//! Stands for the controller (it writes Pilots), the kubelet (it starts and ends pilots) and the
//! volumes (they outlive both). The seats decide what runs as the database.

use std::{fs, rc::Rc, time::Duration};

use kube::api::DeleteParams;
use navigator::api::v1beta1::Pilot;
use serde_json::Value;

use super::{
    bed::{Bed, condition, member_of},
    seat::{Running, Seat, until_gone},
};

/// Limit for the end of a process, or for a phase of a scripted database. A real one that serves
/// clients drains for a while.
const PATIENCE: Duration = Duration::from_secs(240);

/// A cluster object, as the Pilots of its nodes name it.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) kind: &'static str,
    /// Key of the label that names it.
    pub(crate) label: &'static str,
    pub(crate) name: String,
    /// Name of its LeaderLease, which also holds its founding.
    pub(crate) lease: String,
    /// What the Pilot of each node says.
    pub(crate) spec: Value,
}

pub(crate) struct Nodes {
    pub(crate) bed: Rc<Bed>,
    pub(crate) cluster: Cluster,
    pub(crate) all: Vec<Node>,
    /// How often the cluster object was made.
    made: u32,
}

/// Where a node lives, and the pilot that runs there.
pub(crate) struct Node {
    pub(crate) seat: Seat,
    /// The API's URL for its pilot, when it is not the bed's own.
    pub(crate) way: Option<String>,
    pub(crate) running: Option<Running>,
}

impl Nodes {
    /// The first cluster object of its name, and no nodes.
    pub(crate) fn new(bed: &Rc<Bed>, cluster: Cluster) -> Self {
        Self { bed: Rc::clone(bed), cluster, all: Vec::new(), made: 1 }
    }

    /// A place for one more node, without a Pilot. Returns its index.
    pub(crate) fn push(&mut self, seat: Seat) -> usize {
        self.all.push(Node { seat, way: None, running: None });
        self.all.len() - 1
    }

    /// The uid of the cluster object that there is now.
    pub(crate) fn uid(&self) -> String {
        format!("8d2c5f3e-0000-4000-8000-{:012}", self.made)
    }

    /// The Pilot of a node, as the controller would write it now.
    pub(crate) fn wanted(&self, node: usize) -> Pilot {
        let Cluster { kind, label, name, lease: _, spec } = &self.cluster;
        let mut pilot = member_of(name, kind, label, self.name(node), spec);
        pilot.metadata.owner_references.as_mut().unwrap()[0].uid = self.uid();
        pilot
    }

    /// Writes the Pilot of a node.
    pub(crate) async fn create(&self, node: usize) {
        self.bed.create(&self.wanted(node)).await;
    }

    /// Starts the pilot of a node, as a kubelet would.
    pub(crate) fn start(&mut self, node: usize) {
        let Node { seat, way, running } = &mut self.all[node];
        let credentials = match way {
            Some(url) => self.bed.credentials_at(url, &seat.name),
            None => self.bed.credentials(&seat.name),
        };
        *running = Some(seat.start(&credentials));
    }

    pub(crate) fn start_all(&mut self) {
        (0..self.all.len()).for_each(|node| self.start(node));
    }

    /// Writes all Pilots, starts everything and waits until all of it runs.
    pub(crate) async fn form(&mut self) {
        for node in 0..self.all.len() {
            self.create(node).await;
        }
        self.start_all();
        for node in 0..self.all.len() {
            self.phase(node, "Running").await;
        }
    }

    /// Ends a pilot as a pod is deleted, its database with it.
    pub(crate) async fn stop(&mut self, node: usize) {
        let running = self.all[node].running.take().expect("its pilot runs");
        assert_eq!(running.stop(PATIENCE).await, 0, "{}", self.name(node));
    }

    /// Ends every pilot that runs.
    pub(crate) async fn stop_all(&mut self) {
        for node in 0..self.all.len() {
            if self.all[node].running.is_some() {
                self.stop(node).await;
            }
        }
    }

    /// Kills a pilot as a machine is lost, and the kernel its database; waits for both.
    pub(crate) async fn kill(&mut self, node: usize) {
        let running = self.all[node].running.take().expect("its pilot runs");
        let database = running.database();
        running.kill();
        if let Some(database) = database {
            until_gone(database, PATIENCE).await;
        }
    }

    /// Deletes the cluster object and all that belongs to it but the volumes.
    pub(crate) async fn delete(&mut self) {
        let (pilots, none) = (self.bed.pilots(), DeleteParams::default());
        for node in 0..self.all.len() {
            if self.all[node].running.is_some() {
                self.stop(node).await;
            }
            match pilots.delete(self.name(node), &none).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other.unwrap()),
            }
        }
        self.bed.leases().delete(&self.cluster.lease, &none).await.unwrap();
        self.made += 1;
    }

    /// Deletes the cluster object, then makes another one of its name, with Pilots for these nodes.
    pub(crate) async fn make_again(&mut self, nodes: &[usize]) {
        self.delete().await;
        for node in nodes {
            self.create(*node).await;
        }
    }

    /// Empties a volume.
    pub(crate) fn lose(&self, node: usize) {
        let data = self.seat(node).data();
        fs::remove_dir_all(&data).unwrap();
        fs::create_dir(&data).unwrap();
    }

    pub(crate) fn seat(&self, node: usize) -> &Seat {
        &self.all[node].seat
    }

    pub(crate) fn name(&self, node: usize) -> &str {
        &self.seat(node).name
    }

    /// The running pilot of a node.
    pub(crate) fn running(&self, node: usize) -> &Running {
        self.all[node].running.as_ref().expect("its pilot runs")
    }

    /// The database's process under a running pilot, while there is one.
    pub(crate) fn database(&self, node: usize) -> Option<i32> {
        self.running(node).database()
    }

    /// The processes of the databases of all nodes.
    pub(crate) fn databases(&self) -> Vec<i32> {
        let found = (0..self.all.len()).map(|node| self.database(node));
        found.map(|pid| pid.expect("its database runs")).collect()
    }

    pub(crate) async fn pilot(&self, node: usize) -> Pilot {
        self.bed.pilot(self.name(node)).await
    }

    /// Merges into the spec of a Pilot.
    pub(crate) async fn change(&self, node: usize, spec: Value) {
        self.bed.change(self.name(node), spec).await;
    }

    /// Waits until the Pilot shows something.
    pub(crate) async fn shows<T>(
        &self,
        node: usize,
        what: &str,
        deadline: Duration,
        look: impl FnMut(&Pilot) -> Option<T>,
    ) -> T {
        self.bed.shows(self.name(node), what, deadline, look).await
    }

    pub(crate) async fn phase(&self, node: usize, phase: &str) {
        self.bed.phase(self.name(node), phase, PATIENCE).await;
    }

    /// Waits for a condition's status and reason; returns its message.
    pub(crate) async fn says(
        &self,
        node: usize,
        type_: &str,
        (status, reason): (&str, &str),
        deadline: Duration,
    ) -> String {
        let what = format!("{type_} is {status}, {reason}");
        self.shows(node, &what, deadline, |pilot| {
            let (now, why, message) = condition(pilot, type_)?;
            (now == status && why == reason).then(|| message.to_owned())
        })
        .await
    }
}
