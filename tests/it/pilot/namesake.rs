//! Two pilots of one name: one of them runs and reports, and the other says why it does not.

use std::time::Duration;

use navigator::api::v1beta1::Pilot;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    bed::Bed,
    ring::{self, Ring},
    seat::Seat,
    wait::until,
};

/// Signs of life come every 30 s.
const PATIENCE: Duration = Duration::from_secs(120);

fn holder(pilot: &Pilot) -> Option<String> {
    pilot.status.instance.as_ref()?.uid.clone()
}

/// Another place for a node of this name.
fn second(ring: &Ring, place: &str, address: [u8; 4], name: &str) -> Seat {
    let mut seat = ring.seat(place, address);
    name.clone_into(&mut seat.name);
    seat
}

#[tokio::test]
async fn on_hosts_the_second_waits_until_the_first_has_ended() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let first = ring.seat("host-a", [127, 0, 72, 1]);
    let other = second(&ring, "elsewhere", [127, 0, 72, 2], &first.name);
    let credentials = bed.credentials(&first.name);
    bed.create(&ring.pilot(&first.name)).await;
    let running = first.start(&credentials);
    bed.phase(&first.name, "Running", PATIENCE).await;
    let before = bed.pilot(&first.name).await;
    assert!(holder(&before).is_some());

    let late = other.start(&credentials);
    late.says("Another pilot may be this node", PATIENCE).await;
    late.says("Another pilot is this node", PATIENCE).await;
    let (code, body) = other.get(12001).unwrap();
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("Stop one of them"), "{body}");
    assert_eq!(ring::count(&other, "start"), 0, "{}", late.tail());
    let now = bed.pilot(&first.name).await;
    assert_eq!(holder(&now), holder(&before));
    assert_eq!((ring::count(&first, "start"), ring::count(&first, "term")), (1, 0));

    // A pilot that ends in order gives its name back: the other pilot need not wait until the last
    // heartbeat is old.
    assert_eq!(running.stop(PATIENCE).await, 0);
    bed.shows(&first.name, "the second pilot", PATIENCE, |pilot| {
        holder(pilot).filter(|uid| Some(uid) != holder(&before).as_ref())
    })
    .await;
    late.says("The other pilot is gone", PATIENCE).await;
    late.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_pod_that_kubernetes_has_no_more_stops_its_database_and_reports_nothing() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let name = "cass-demo-a-0";
    let pods = "/api/v1/namespaces/db/pods";
    let mut old = second(&ring, "old", [127, 0, 72, 3], name);
    let mut new = second(&ring, "new", [127, 0, 72, 4], name);
    for (seat, uid) in [(&mut old, "old-uid"), (&mut new, "new-uid")] {
        seat.env.push(("NAVIGATOR_POD_UID".into(), uid.into()));
        seat.flags.push("--allow-unmounted-data".into());
    }
    let credentials = bed.credentials(name);
    bed.create(&ring.pilot(name)).await;
    bed.world.kube.put(pods, name, json!({"metadata": {"uid": "old-uid"}}));
    let running = old.start(&credentials);
    bed.phase(name, "Running", PATIENCE).await;
    assert_eq!(holder(&bed.pilot(name).await).as_deref(), Some("old-uid"));

    // The old pod was deleted by force, on a machine whose kubelet does not answer.
    bed.world.kube.put(pods, name, json!({"metadata": {"uid": "new-uid"}}));
    let successor = new.start(&credentials);
    let is_new = |pilot: &Pilot| (holder(pilot)? == "new-uid").then_some(());
    bed.shows(name, "the new pod's pilot", PATIENCE, is_new).await;
    running.says("Another pilot is this node", PATIENCE).await;
    until("the old pod's database is stopped", PATIENCE, async || match running.database() {
        None => Ok(()),
        Some(pid) => Err(format!("{pid} runs\n{}", running.tail())),
    })
    .await;
    assert!(ring::count(&old, "drain") > 0, "{:?}", ring::notes(&old));
    let (code, body) = old.get(12001).unwrap();
    assert_eq!(code, 503, "{body}");

    // The deposed pilot does not even write a last status.
    running.signal(Signal::SIGTERM);
    let before = bed.pilot(name).await.status;
    let mut running = running;
    assert_eq!(running.ended(PATIENCE).await, 0);
    let after = bed.pilot(name).await.status;
    assert_eq!(after.instance, before.instance);
    assert_ne!(after.phase.map(|phase| phase.to_string()).as_deref(), Some("Stopping"));

    // The container that the old machine starts again.
    let again = old.start(&credentials);
    again.says("Another pilot is this node", PATIENCE).await;
    assert_eq!(ring::count(&old, "start"), 1);
    again.stop(PATIENCE).await;
    successor.stop(PATIENCE).await;
}
