//! Whole pilots around scripted databases, led by the API: the real server behind a scripted
//! kube-apiserver.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use navigator::api::names::label;
use serde_json::json;

use super::database::SCRIPT;
use crate::support::{
    bed::{Bed, condition, member},
    seat::Seat,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A host with the scripted Cassandra.
fn seat(bed: &Bed, name: &str, address: [u8; 4]) -> Seat {
    let root = bed.world.folder.path();
    let home = root.join(format!("home-{name}"));
    for folder in ["bin", "conf"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    let program = home.join("bin/cassandra");
    fs::write(&program, SCRIPT).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut seat = Seat::new("cassandra", name, address, &home, root);
    fs::write(seat.place.join("shared/jolokia.jar"), "").unwrap();
    seat.env.push(("SCRIPT_DATA".to_owned(), seat.data().display().to_string()));
    seat
}

#[tokio::test]
async fn a_node_follows_its_pilot_object() {
    let bed = Bed::start().await;
    let seat = seat(&bed, "cass-demo-a-0", [127, 0, 67, 1]);
    let running = seat.start(&bed.credentials(&seat.name));
    let spec = json!({
        "version": "5.0.6", "jvm": {"heap": "384Mi"},
        "cassandra": {"clusterName": "demo", "datacenter": "d", "rack": "r"},
    });
    let label = label::CASSANDRA_CLUSTER;
    bed.create(&member("CassandraCluster", label, &seat.name, &spec)).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let pilot = bed.pilot(&seat.name).await;
    assert_eq!(condition(&pilot, "Ready").unwrap().0, "True");
    let lease = bed.leases().get("cassandra-demo-leaderelection").await.unwrap();
    assert_eq!(lease.spec.founder.unwrap().name, seat.name);
    bed.change(&seat.name, json!({"phase": "Stopped"})).await;
    bed.phase(&seat.name, "Stopped", PATIENCE).await;
    bed.change(&seat.name, json!({"phase": "Running"})).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
}
