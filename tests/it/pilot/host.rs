//! A pilot on a host, outside of Kubernetes: from its file alone, or with an API and the same
//! file.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    time::Duration,
};

use navigator::{api::v1beta1::PilotIntent, databases::cassandra::names::label};
use serde_json::json;

use crate::support::{
    bed::{Bed, account},
    ring::{self, Ring},
    seat::{Seat, USER},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The file of a host, with no more in it than a person would write.
fn file(ring: &Ring, seat: &Seat) -> PathBuf {
    let mut pilot = ring.pilot(&seat.name);
    pilot.metadata.labels = None;
    pilot.metadata.owner_references = None;
    let path = seat.place.join("pilot.yaml");
    fs::write(&path, json!(pilot).to_string()).unwrap();
    path
}

#[tokio::test]
async fn the_same_file_serves_alone_and_with_an_api_whose_spec_rules() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("host-a", [127, 0, 71, 1]);
    let file = file(&ring, &seat);
    let alone = ["--config".as_ref(), file.as_os_str()];
    let running = seat.start_with(&alone);
    seat.until(200, "Running", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
    assert!(bed.pilots().get_opt(&seat.name).await.unwrap().is_none());

    let credentials = bed.credentials(&seat.name);
    bed.world.kube.allow(&account(&seat.name), "create", "pilots");
    let way = [alone[0], alone[1], "--kubeconfig".as_ref(), credentials.as_os_str()];
    let running = seat.start_with(&way);
    // The node's data make it a member, so the cluster is founded once only.
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!(ring.foundings().len(), 1);
    let made = bed.pilot(&seat.name).await;
    assert_eq!(made.metadata.labels.as_ref().unwrap()[label::CLUSTER], "demo");
    bed.change(&seat.name, json!({"phase": "Stopped"})).await;
    bed.phase(&seat.name, "Stopped", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);

    // The file still says that the node runs; the Pilot at the API counts.
    let running = seat.start_with(&way);
    bed.shows(&seat.name, "a heartbeat of the new pilot", PATIENCE, |pilot| {
        (pilot.status.last_heartbeat_time != made.status.last_heartbeat_time).then_some(())
    })
    .await;
    bed.phase(&seat.name, "Stopped", PATIENCE).await;
    assert_eq!(ring::count(&seat, "start"), 2);

    // A Pilot that is deleted under its pilot is made again as it was, and not as in the file.
    bed.delete(&seat.name).await;
    let again = until("another Pilot of that name", PATIENCE, async || {
        let found = bed.pilots().get_opt(&seat.name).await.unwrap();
        let uid = |pilot: &navigator::api::v1beta1::Pilot| pilot.metadata.uid.clone();
        found.filter(|pilot| uid(pilot) != uid(&made)).ok_or_else(|| running.tail())
    })
    .await;
    assert_eq!(again.spec.phase, Some(PilotIntent::Stopped));
    bed.phase(&seat.name, "Stopped", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_host_that_may_not_make_its_pilot_says_so_and_waits_for_somebody_who_may() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("host-a", [127, 0, 71, 2]);
    let (file, credentials) = (file(&ring, &seat), bed.credentials(&seat.name));
    let running = seat.start_with(&[
        "--config".as_ref(),
        file.as_os_str(),
        "--kubeconfig".as_ref(),
        credentials.as_os_str(),
    ]);
    running.says("Pilot object cannot be made", PATIENCE).await;
    assert_eq!(ring::count(&seat, "start"), 0);
    bed.create(&ring.pilot(&seat.name)).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_database_that_runs_as_another_user_owns_its_folders() {
    let root = tempfile::tempdir().unwrap();
    let ring = Ring::new(root.path(), "demo");
    let mut seat = ring.seat("host-a", [127, 0, 71, 3]);
    let file = file(&ring, &seat);
    let alone = ["--config".as_ref(), file.as_os_str()];
    seat.flags.push(format!("--user={USER}"));
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: it gives files to another user"
    );
    // The script's user must reach its own notes, which the pilot has no part in.
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in [root.path().join("ring"), seat.place.clone(), seat.place.join("switches")] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(seat.data(), fs::Permissions::from_mode(0o700)).unwrap();
    let running = seat.start_with(&alone);
    seat.until(200, "Running", PATIENCE).await;
    let owner = |path: PathBuf| fs::metadata(path).unwrap().uid();
    assert_eq!(owner(format!("/proc/{}", running.database().unwrap()).into()), USER);
    for path in ["data", "data/data", "config", "config/cassandra.yaml"] {
        assert_eq!(owner(seat.place.join(path)), USER, "{path}");
    }
    assert_eq!(owner(seat.data().join(".navigator")), 0, "the pilot's own");
    assert_eq!(running.stop(PATIENCE).await, 0);
}
