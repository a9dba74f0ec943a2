//! Pilots around scripted databases, each with a way of its own to the API: what one of them does
//! while the way is cut can be told from what the others do.

use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{
    bed::Bed,
    gateway::{Gateway, Way},
    ring::Ring,
    seat::{Running, Seat},
};

const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Fleet {
    pub(crate) bed: Bed,
    pub(crate) nodes: Vec<Member>,
}

/// One node of the ring.
pub(crate) struct Member {
    pub(crate) seat: Seat,
    pub(crate) gateway: Gateway,
    pub(crate) running: Running,
    /// The database's process, as it was when all ran.
    database: i32,
}

impl Fleet {
    /// So many nodes on 127.x.`net`.1 and on, all of them running.
    pub(crate) async fn start(net: u8, count: u8) -> Self {
        let bed = Bed::start().await;
        let ring = Ring::new(bed.world.folder.path(), "demo");
        let mut nodes = Vec::new();
        for number in 0..count {
            let name = format!("cass-demo-a-{number}");
            bed.create(&ring.pilot(&name)).await;
            let seat = ring.seat(&name, [127, 0, net, number + 1]);
            let gateway = Gateway::start([127, 0, net, number + 1], bed.address()).await;
            let running = seat.start(&bed.credentials_at(&gateway.url(), &name));
            nodes.push(Member { seat, gateway, running, database: 0 });
        }
        for node in &mut nodes {
            bed.phase(&node.seat.name, "Running", PATIENCE).await;
            node.database = node.running.database().unwrap();
        }
        Self { bed, nodes }
    }

    /// Kills the API server, and cuts every way to it: `how` says in which manner.
    pub(crate) async fn cut(&self, how: impl Fn(usize) -> Way) {
        let ways = self.nodes.iter().enumerate();
        join_all(ways.map(|(number, node)| node.gateway.set(how(number)))).await;
        self.bed.kill_server();
    }

    /// Lets time pass in which no database may notice anything.
    pub(crate) async fn pass(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            for node in &self.nodes {
                assert_eq!(node.running.database(), Some(node.database), "{}", node.seat.name);
                let ready = node.seat.get(12001);
                assert_eq!(ready.as_ref().map(|(code, _)| *code), Some(200), "{ready:?}");
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Starts the API server and opens all ways at once; returns how long it took until each
    /// node's heartbeat was seen, and the lists that were asked for.
    pub(crate) async fn restore(&self) -> (Vec<Duration>, Vec<String>) {
        self.bed.start_server().await;
        let (back, time) = (Instant::now(), Timestamp::now());
        join_all(self.nodes.iter().map(|node| node.gateway.set(Way::Open))).await;
        let heartbeats = self.nodes.iter().map(|node| async move {
            let name = &node.seat.name;
            self.bed
                .shows(name, "a new heartbeat", PATIENCE, |pilot| {
                    (pilot.status.last_heartbeat_time.as_ref()?.0 > time).then_some(())
                })
                .await;
            back.elapsed()
        });
        let took = join_all(heartbeats).await;
        // This test's own questions are for single objects.
        let lists = self.bed.world.kube.asked_since(back).into_iter().filter(|one| {
            let selects = one.contains("labelSelector") || one.contains("fieldSelector");
            one.starts_with("GET") && selects && !one.contains("watch=true")
        });
        (took, lists.collect())
    }

    /// Ends all pilots as a kubelet would.
    pub(crate) async fn stop(self) {
        for node in self.nodes {
            assert_eq!(node.running.stop(PATIENCE).await, 0);
        }
    }
}

/// Seconds between calls, in their order.
pub(crate) fn apart(calls: &[Instant]) -> Vec<f64> {
    calls.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect()
}
