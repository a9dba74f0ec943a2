//! Whole pilots around scripted databases, led by the API: the real server behind a scripted
//! kube-apiserver.

use std::time::Duration;

use serde_json::json;

use crate::{
    monitoring,
    support::{
        bed::{Bed, condition},
        ring::Ring,
        told::assert_described,
        wait::until,
    },
};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_node_follows_its_pilot_object() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("cass-demo-a-0", [127, 0, 67, 1]);
    let running = seat.start(&bed.credentials(&seat.name));
    bed.create(&ring.pilot(&seat.name)).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let pilot = bed.pilot(&seat.name).await;
    assert_eq!(condition(&pilot, "Ready").unwrap().0, "True");
    let lease = bed.leases().get("cassandra-demo-leaderelection").await.unwrap();
    assert_eq!(lease.spec.founder.unwrap().name, seat.name);
    until("figures of the database", PATIENCE, async || {
        seat.gauge("navigator_cassandra_live_nodes ").ok_or_else(|| format!("{:?}", seat.get(8080)))
    })
    .await;
    let (_, page) = seat.get(8080).unwrap();
    let roles = monitoring::catalogue();
    let of_pilots = roles.into_iter().filter(|(role, _)| role.starts_with("Pilot"));
    assert_described(&page, &of_pilots.flat_map(|(_, metrics)| metrics).collect::<Vec<_>>());
    bed.change(&seat.name, json!({"phase": "Stopped"})).await;
    bed.phase(&seat.name, "Stopped", PATIENCE).await;
    bed.change(&seat.name, json!({"phase": "Running"})).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
}
