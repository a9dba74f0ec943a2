//! Pilots around scripted databases, each with a way of its own to the API: what one of them does
//! while the way is cut can be told from what the others do.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{
    bed::Bed,
    gateway::{Gateway, Way},
    nodes::Nodes,
    ring::Ring,
};

const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Fleet {
    pub(crate) nodes: Nodes,
    /// The way of each node.
    pub(crate) gateways: Vec<Gateway>,
    /// The databases' processes, as they were when all ran.
    databases: Vec<i32>,
}

impl Fleet {
    /// So many nodes on 127.x.`net`.1 and on, all of them running.
    pub(crate) async fn start(net: u8, count: u8) -> Self {
        let bed = Rc::new(Bed::start().await);
        let mut nodes = Ring::new(bed.world.folder.path(), "demo").nodes(&bed, net, count);
        let mut gateways = Vec::new();
        for (number, node) in (1..).zip(&mut nodes.all) {
            let gateway = Gateway::start([127, 0, net, number], bed.address()).await;
            node.way = Some(gateway.url());
            gateways.push(gateway);
        }
        nodes.form().await;
        let databases = nodes.databases();
        Self { nodes, gateways, databases }
    }

    /// Kills the API server, and cuts every way to it: `how` says in which manner.
    pub(crate) async fn cut(&self, how: impl Fn(usize) -> Way) {
        let ways = self.gateways.iter().enumerate();
        join_all(ways.map(|(number, gateway)| gateway.set(how(number)))).await;
        self.nodes.bed.kill_server();
    }

    /// Lets time pass in which no database may notice anything.
    pub(crate) async fn pass(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            assert_eq!(self.nodes.databases(), self.databases);
            for node in &self.nodes.all {
                let ready = node.seat.get(12001);
                assert_eq!(ready.as_ref().map(|(code, _)| *code), Some(200), "{ready:?}");
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Starts the API server and opens all ways at once; returns how long it took until each
    /// node's heartbeat was seen, and the lists that were asked for.
    pub(crate) async fn restore(&self) -> (Vec<Duration>, Vec<String>) {
        let bed = &self.nodes.bed;
        bed.start_server().await;
        let (back, time) = (Instant::now(), Timestamp::now());
        join_all(self.gateways.iter().map(|gateway| gateway.set(Way::Open))).await;
        let heartbeats = (0..self.gateways.len()).map(|node| async move {
            self.nodes
                .shows(node, "a new heartbeat", PATIENCE, |pilot| {
                    (pilot.status.last_heartbeat_time.as_ref()?.0 > time).then_some(())
                })
                .await;
            back.elapsed()
        });
        let took = join_all(heartbeats).await;
        // This test itself asks for single objects only.
        let lists = bed.world.kube.asked_since(back).into_iter().filter(|one| {
            let selects = one.contains("labelSelector") || one.contains("fieldSelector");
            one.starts_with("GET") && selects && !one.contains("watch=true")
        });
        (took, lists.collect())
    }
}

/// Seconds between calls, in their order.
pub(crate) fn apart(calls: &[Instant]) -> Vec<f64> {
    calls.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect()
}
