//! Three pilots of one cluster elect a leader through the real API server, and lose it.

use std::time::{Duration, Instant};

use navigator::api::v1beta1::LeaderLeaseSpec;
use nix::sys::signal::Signal;

use super::follows::PATIENCE;
use crate::support::{
    bed::Bed,
    ring::Ring,
    seat::{Running, Seat},
    wait::until,
};

const LEASE: &str = "cassandra-demo-leaderelection";

/// A lease lasts 15 s; the rest is for a machine that is busy with something else.
const TAKEOVER: Duration = Duration::from_secs(120);

async fn lease(bed: &Bed) -> LeaderLeaseSpec {
    bed.leases().get(LEASE).await.unwrap().spec
}

/// Waits for another holder than `old` whose own metrics agree; says who and when.
async fn next(bed: &Bed, seats: &[Seat], old: &str) -> (usize, LeaderLeaseSpec) {
    until("a leader", TAKEOVER, async || {
        let spec = lease(bed).await;
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let found = seats.iter().position(|seat| seat.name == holder && holder != old);
        match found {
            Some(index) if leads(&seats[index]) => Ok((index, spec)),
            _ => Err(format!("{spec:?}")),
        }
    })
    .await
}

fn leads(seat: &Seat) -> bool {
    let metrics = seat.get(8080).map(|(_, body)| body).unwrap_or_default();
    metrics.lines().any(|line| line == "navigator_pilot_leader 1")
}

#[tokio::test]
async fn another_pilot_leads_when_the_leader_is_killed_or_stopped_and_a_woken_one_does_not() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seats: Vec<Seat> = (0..3)
        .map(|number| ring.seat(&format!("cass-demo-a-{number}"), [127, 0, 78, number + 1]))
        .collect();
    let mut running: Vec<Option<Running>> = Vec::new();
    for seat in &seats {
        bed.create(&ring.pilot(&seat.name)).await;
        running.push(Some(seat.start(&bed.credentials(&seat.name))));
    }
    for seat in &seats {
        bed.phase(&seat.name, "Running", PATIENCE).await;
    }
    let (first, before) = next(&bed, &seats, "").await;
    assert_eq!(seats.iter().filter(|seat| leads(seat)).count(), 1);
    let founder = before.founder.clone();
    assert!(founder.is_some());

    let killed = Instant::now();
    running[first].take().unwrap().kill();
    let (second, after) = next(&bed, &seats, &seats[first].name).await;
    println!("a killed leader was followed after {:?}", killed.elapsed());
    assert_eq!(after.lease_transitions, before.lease_transitions.map(|count| count + 1));
    assert_eq!(after.founder, founder, "the founding record outlives every holder");

    // A leader that stands still does not know that it was deposed.
    let stopped = Instant::now();
    running[second].as_ref().unwrap().signal(Signal::SIGSTOP);
    let third = (0..3).find(|index| ![first, second].contains(index)).unwrap();
    let (now, led) = next(&bed, &seats[third..=third], "").await;
    println!("a stopped leader was followed after {:?}", stopped.elapsed());
    assert_eq!(now, 0);
    running[second].as_ref().unwrap().signal(Signal::SIGCONT);
    until("the woken pilot knows that it does not lead", PATIENCE, async || {
        if leads(&seats[second]) { Err("it leads".to_owned()) } else { Ok(()) }
    })
    .await;
    let renewed = lease(&bed).await.renew_time;
    until("the third one renews", PATIENCE, async || {
        let spec = lease(&bed).await;
        assert_eq!(spec.holder_identity, led.holder_identity);
        assert_eq!(spec.lease_transitions, led.lease_transitions);
        if spec.renew_time > renewed { Ok(()) } else { Err(format!("{spec:?}")) }
    })
    .await;

    // One that ends frees the lease, and nobody waits for its expiry.
    let asked = Instant::now();
    assert_eq!(running[third].take().unwrap().stop(PATIENCE).await, 0);
    let (last, _) = next(&bed, &seats, &seats[third].name).await;
    println!("a leader that was asked to end was followed after {:?}", asked.elapsed());
    assert_eq!(last, second);
    let told = bed.world.kube.list("/apis/events.k8s.io/v1/namespaces/db/events");
    let elections = told.iter().filter(|event| event["reason"] == "LeaderElection");
    let regarding: Vec<_> =
        elections.filter(|event| event["regarding"]["kind"] == "LeaderLease").collect();
    assert!(regarding.len() >= 4, "{regarding:#?}");
}
