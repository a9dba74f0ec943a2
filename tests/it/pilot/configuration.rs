//! A new configuration is judged while the old process runs.

use std::{fs, os::unix::fs::MetadataExt};

use navigator::api::v1beta1::{Pilot, PilotPhase};
use serde_json::{Value, json};

use super::follows::PATIENCE;
use crate::support::{
    bed::{Bed, condition},
    ring::Ring,
    seat::Running,
};

const NAME: &str = "cass-demo-a-0";

/// Waits until the pilot has an opinion of the spec as it is now, and it is this one.
async fn judged(bed: &Bed, status: &str, reason: &str) -> Pilot {
    let what = format!("ConfigApplied {status}/{reason} of the newest spec");
    bed.shows(NAME, &what, PATIENCE, |pilot| {
        let newest = pilot.status.observed_generation == pilot.metadata.generation;
        let found = condition(pilot, "ConfigApplied").map(|(status, reason, _)| (status, reason));
        (newest && found == Some((status, reason))).then(|| pilot.clone())
    })
    .await
}

async fn running(bed: &Bed, pilot: &Running) -> i32 {
    bed.phase(NAME, "Running", PATIENCE).await;
    pilot.database().expect("a node that serves has a process")
}

fn heap(hash: &str, heap: &str) -> Value {
    json!({"configHash": hash, "jvm": {"heap": heap}})
}

#[tokio::test]
async fn a_rejected_configuration_leaves_the_running_database_alone() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat(NAME, [127, 0, 67, 20]);
    let pilot = seat.start(&bed.credentials(NAME));
    let mut wanted = ring.pilot(NAME);
    wanted.spec.config_hash = Some("one".to_owned());
    bed.create(&wanted).await;
    let first = running(&bed, &pilot).await;
    judged(&bed, "True", "ConfigCurrent").await;
    let rendered = || {
        let about = fs::metadata(seat.place.join("config/cassandra.yaml")).unwrap();
        (about.ino(), about.mtime_nsec())
    };
    let before = rendered();

    // A bad configuration is reported at once, and even a restart that is asked for does not stop
    // the node.
    bed.change(NAME, heap("two", "64Mi")).await;
    let told = judged(&bed, "False", "ConfigRejected").await;
    let (_, _, why) = condition(&told, "ConfigApplied").unwrap();
    assert!(why.contains("too small"), "{why}");
    assert_eq!(condition(&told, "Ready").unwrap().0, "True");
    bed.change(NAME, json!({"restartedAt": "2026-01-01T00:00:00Z"})).await;
    let told = judged(&bed, "False", "ConfigRejected").await;
    assert_eq!(told.status.phase, Some(PilotPhase::Running));
    assert_eq!((pilot.database(), rendered()), (Some(first), before));

    // The good configuration that follows is taken, and the restart is made up for.
    bed.change(NAME, heap("three", "400Mi")).await;
    judged(&bed, "True", "ConfigCurrent").await;
    let second = running(&bed, &pilot).await;
    assert_ne!(first, second);
    assert_ne!(rendered(), before);

    // A good configuration alone waits for a restart.
    bed.change(NAME, heap("four", "500Mi")).await;
    judged(&bed, "False", "RestartPending").await;
    assert_eq!(pilot.database(), Some(second));

    // An order to restart for an earlier configuration is without effect; the one for this
    // configuration is carried out, and once.
    bed.change(NAME, json!({"restartFor": "three"})).await;
    let told = judged(&bed, "False", "RestartPending").await;
    assert_eq!(pilot.database(), Some(second));
    assert_eq!(told.status.started_for.as_deref(), Some("three"));
    bed.change(NAME, json!({"restartFor": "four"})).await;
    let told = judged(&bed, "True", "ConfigCurrent").await;
    assert_eq!(told.status.config_hash.as_deref(), Some("four"));
    let third = running(&bed, &pilot).await;
    assert_ne!(second, third);
    bed.change(NAME, json!({"pilotSettings": {"silenceLimitSeconds": 60}})).await;
    judged(&bed, "True", "ConfigCurrent").await;
    assert_eq!(pilot.database(), Some(third));
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn another_cluster_name_is_refused_while_the_node_runs() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat(NAME, [127, 0, 67, 21]);
    let pilot = seat.start(&bed.credentials(NAME));
    bed.create(&ring.pilot(NAME)).await;
    let first = running(&bed, &pilot).await;
    judged(&bed, "True", "ConfigCurrent").await;

    // The data would be another cluster's then: a restart would only take the node away.
    let other =
        json!({"cassandra": {"clusterName": "other"}, "restartedAt": "2026-01-01T00:00:00Z"});
    bed.change(NAME, other).await;
    let told = judged(&bed, "False", "ConfigRejected").await;
    let (_, _, why) = condition(&told, "ConfigApplied").unwrap();
    assert!(why.contains("written in cluster name \"demo\""), "{why}");
    assert_eq!(condition(&told, "Ready").unwrap().0, "True");
    assert_eq!(pilot.database(), Some(first));

    bed.change(NAME, json!({"cassandra": {"clusterName": "demo"}})).await;
    judged(&bed, "True", "ConfigCurrent").await;
    assert_ne!(running(&bed, &pilot).await, first);
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}
