//! Starts that the checks refuse: real data of another cluster, node or version, and a host on
//! which the port or the volume is taken. Each says what is wrong; mended, the node serves.

use std::{fs, net::TcpListener};

use serde_json::{Value, json};

use super::{
    VERSION,
    ring::{Ring, START},
};
use crate::report::Told;

/// The node at 0 serves before and afterwards, and its database is started once in between.
pub(super) async fn what_the_checks_refuse(ring: &mut Ring, told: &Told) {
    ring.change(0, json!({"phase": "Stopped"})).await;
    ring.bed.phase(ring.name(0), "Stopped", START).await;

    // Another node's pilot, given this one's volume.
    let stranger = ring.add().await;
    let data = ring.seat(stranger).data();
    fs::remove_dir(&data).unwrap();
    std::os::unix::fs::symlink(ring.seat(0).data(), &data).unwrap();
    ring.start(stranger);
    refused(ring, stranger, "PreflightFailed", &["in use by another pilot"]).await;
    told.claim("a second pilot on the volume starts nothing: PreflightFailed");
    ring.stop(0).await;
    refused(ring, stranger, "IdentityMismatch", &["holds the data of", ring.name(0)]).await;
    ring.stop(stranger).await;
    told.claim("with the first one gone it is told whose data they are: IdentityMismatch");

    let taken = TcpListener::bind((ring.address(0), 7000)).unwrap();
    ring.start(0);
    ring.change(0, json!({"phase": "Running"})).await;
    refused(ring, 0, "PreflightFailed", &["port 7000", "in use"]).await;
    told.claim("somebody else listens at a port of it: PreflightFailed, and which");

    // What lies beside the pilot counts, not what the spec says: so the data are said to be of a later version.
    let state = ring.seat(0).data().join(".navigator/cassandra.json");
    let written = fs::read_to_string(&state).unwrap();
    let later = written.replace(VERSION, "6.0.1");
    assert_ne!(later, written);
    fs::write(&state, later).unwrap();
    drop(taken);
    refused(ring, 0, "IdentityMismatch", &["6.0.1", "5.0", "cannot read"]).await;
    told.claim("the data are of a later version: IdentityMismatch, and both versions");
    fs::write(&state, written).unwrap();

    let elsewhere = json!({"clusterName": "other", "rack": "b"});
    ring.change(0, json!({"cassandra": elsewhere})).await;
    refused(ring, 0, "IdentityMismatch", &["cluster name", "rack"]).await;
    told.claim("the data were written in another cluster and rack: IdentityMismatch, and which");

    assert_eq!(ring.database(0), None, "nothing was started");
    let back: Value = json!({"clusterName": "demo", "rack": "a"});
    ring.change(0, json!({"cassandra": back})).await;
    ring.serves(0, START).await;
    told.claim("with all of it mended the node serves");
}

/// Waits for the checks' word; the database is not started.
async fn refused(ring: &Ring, index: usize, reason: &str, words: &[&str]) {
    let what = format!("the checks fail: {reason}, {words:?}");
    ring.shows(index, &what, START, |pilot| {
        let (status, why, message) = crate::support::bed::condition(pilot, "PreflightPassed")?;
        let told = words.iter().all(|word| message.contains(word));
        (status == "False" && why == reason && told).then_some(())
    })
    .await;
    assert_eq!(ring.database(index), None, "nothing is started");
}
