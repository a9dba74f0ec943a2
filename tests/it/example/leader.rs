//! Three pilots of one cluster elect a leader through the real API server, and lose it. The
//! example's pilots always have a duty, so one of them leads all the time.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use navigator::api::v1beta1::LeaderLeaseSpec;
use nix::sys::signal::Signal;

use super::{PATIENCE, bed, form};
use crate::support::{bed::Bed, nodes::Nodes, seat::Seat, wait::until};

const LEASE: &str = "redis-demo-leaderelection";

/// A lease lasts 15 s; the rest is for a machine that is busy with something else.
const TAKEOVER: Duration = Duration::from_secs(120);

async fn lease(bed: &Bed) -> LeaderLeaseSpec {
    bed.leases().get(LEASE).await.unwrap().spec
}

/// Waits for another holder than `old` whose own metrics agree; says who and when.
async fn next(nodes: &Nodes, old: Option<usize>) -> (usize, LeaderLeaseSpec) {
    until("a leader", TAKEOVER, async || {
        let spec = lease(&nodes.bed).await;
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let found = nodes.all.iter().position(|node| node.seat.name == holder);
        match found.filter(|index| Some(*index) != old) {
            Some(index) if leads(nodes.seat(index)) => Ok((index, spec)),
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
    let bed = Rc::new(bed().await);
    let (mut nodes, ..) = form(&bed, 78).await;
    let (first, before) = next(&nodes, None).await;
    assert_eq!(nodes.all.iter().filter(|node| leads(&node.seat)).count(), 1);
    let founder = before.founder.clone();
    assert!(founder.is_some());

    let killed = Instant::now();
    nodes.all[first].running.take().unwrap().kill();
    let (second, after) = next(&nodes, Some(first)).await;
    println!("a killed leader was followed after {:?}", killed.elapsed());
    assert_eq!(after.lease_transitions, before.lease_transitions.map(|count| count + 1));
    assert_eq!(after.founder, founder, "the founding record outlives every holder");

    // A leader that stands still does not know that it was deposed.
    let stopped = Instant::now();
    nodes.running(second).signal(Signal::SIGSTOP);
    let third = (0..3).find(|index| ![first, second].contains(index)).unwrap();
    let (now, led) = next(&nodes, Some(second)).await;
    println!("a stopped leader was followed after {:?}", stopped.elapsed());
    assert_eq!(now, third);
    nodes.running(second).signal(Signal::SIGCONT);
    until("the woken pilot knows that it does not lead", PATIENCE, async || {
        if leads(nodes.seat(second)) { Err("it leads".to_owned()) } else { Ok(()) }
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

    // A leader that ends frees the lease, so no other pilot waits for the lease to expire.
    let asked = Instant::now();
    nodes.stop(third).await;
    let (last, _) = next(&nodes, Some(third)).await;
    println!("a leader that was asked to end was followed after {:?}", asked.elapsed());
    assert_eq!(last, second);
    let told = bed.world.kube.list("/apis/events.k8s.io/v1/namespaces/db/events");
    let elections = told.iter().filter(|event| event["reason"] == "LeaderElection");
    let regarding: Vec<_> =
        elections.filter(|event| event["regarding"]["kind"] == "LeaderLease").collect();
    assert!(regarding.len() >= 4, "{regarding:#?}");
}
