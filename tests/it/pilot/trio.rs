//! Three nodes of one ring that run.

use std::time::Duration;

use crate::support::{
    bed::Bed,
    ring::Ring,
    seat::{Running, Seat, until_gone},
};

const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Trio {
    pub(super) ring: Ring,
    pub(super) seats: Vec<Seat>,
    pub(super) running: Vec<Running>,
}

impl Trio {
    /// On 127.x.`net`.1 to .3.
    pub(super) async fn start(bed: &Bed, net: u8) -> Self {
        let ring = Ring::new(bed.world.folder.path(), "demo");
        let mut trio = Self { ring, seats: Vec::new(), running: Vec::new() };
        for node in 0..3 {
            let name = format!("cass-demo-a-{node}");
            bed.create(&trio.ring.pilot(&name)).await;
            let seat = trio.ring.seat(&name, [127, 0, net, node + 1]);
            trio.running.push(seat.start(&bed.credentials(&name)));
            trio.seats.push(seat);
        }
        trio.until_running(bed).await;
        trio
    }

    pub(super) async fn until_running(&self, bed: &Bed) {
        for seat in &self.seats {
            bed.phase(&seat.name, "Running", PATIENCE).await;
        }
    }

    /// Processes of the databases.
    pub(super) fn databases(&self) -> Vec<i32> {
        self.running.iter().map(|pilot| pilot.database().unwrap()).collect()
    }

    /// The pilot of a node comes back, as a kubelet would have it.
    pub(super) fn restart(&mut self, bed: &Bed, node: usize) {
        let seat = &self.seats[node];
        self.running.insert(node, seat.start(&bed.credentials(&seat.name)));
    }

    /// Kills the pilot of a node, and the kernel its database; waits for both.
    pub(super) async fn kill(&mut self, node: usize) {
        let pilot = self.running.remove(node);
        let database = pilot.database();
        pilot.kill();
        if let Some(database) = database {
            until_gone(database, PATIENCE).await;
        }
    }
}
