//! The control plane goes away and comes back: databases do not notice, and pilots do not storm it.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::sys::signal::Signal;

use crate::support::{
    bed::Bed,
    fleet::{Fleet, apart},
    gateway::Way,
    ring::{self, Ring},
    seat::signal,
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_node_that_ran_before_starts_while_the_api_is_away() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("cass-demo-a-0", [127, 0, 69, 1]);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    seat.wait_for_record("run.json", "pid", running.database().unwrap(), PATIENCE).await;
    seat.wait_for_record("cassandra.json", "joined", true, PATIENCE).await;
    running.kill();
    bed.set_away(true);
    bed.kill_server();
    let running = seat.start(&bed.credentials(&seat.name));
    until("the node serves", PATIENCE, async || match seat.get(12001) {
        Some((200, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let database = running.database().unwrap();
    bed.set_away(false);
    bed.start_server().await;
    bed.shows(&seat.name, "the new process", PATIENCE, |pilot| {
        (pilot.status.process.as_ref()?.pid == database).then_some(())
    })
    .await;
    assert_eq!(ring::count(&seat, "start"), 2);
    assert_eq!(running.database(), Some(database), "the return of the API is no reason to restart");
    assert_eq!(running.stop(PATIENCE).await, 0);
}

/// The pilot's ServiceAccount is deleted and made again: its token is dead until kubelet renews it.
#[tokio::test]
async fn a_pilot_whose_token_is_dead_says_so_and_its_database_runs_on() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("cass-demo-a-0", [127, 0, 69, 2]);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let database = running.database();
    bed.world.kube.remove_token(&format!("token-{}", seat.name));
    running.says("The API turns the pilot away (401)", PATIENCE).await;
    seat.until(200, "Running; the API turns this pilot away (401)", PATIENCE).await;
    let renewed = Timestamp::now();
    bed.credentials(&seat.name);
    running.says("The API accepts the pilot's token again", PATIENCE).await;
    bed.shows(&seat.name, "a new heartbeat", PATIENCE, |pilot| {
        (pilot.status.last_heartbeat_time.as_ref()?.0 > renewed).then_some(())
    })
    .await;
    seat.until(200, "Running", PATIENCE).await;
    assert_eq!(running.database(), database);
    assert_eq!(ring::count(&seat, "start"), 1);
    assert_eq!(running.stop(PATIENCE).await, 0);
}

/// How long the API is away: the pauses between tries have grown by then. It is what is done to the
/// pilots, so nothing can be waited for instead.
const AWAY: Duration = Duration::from_secs(25);
/// Tries of a pilot meanwhile, at most: three times what grown pauses allow, and a tenth of a storm, in
/// which each of its loops tries ten times a second. A slow machine makes them fewer. The exact pauses
/// are held on a clock of the test's own, in `src/pilot/kube/breaker/tests.rs`.
const MOST_TRIES: usize = 25;

#[tokio::test]
async fn an_api_that_is_away_stops_no_database_and_is_not_stormed() {
    let bed = Rc::new(Bed::start().await);
    let mut trio = Ring::new(bed.world.folder.path(), "demo").nodes(&bed, 70, 3);
    trio.form().await;
    let pids = trio.databases();
    let gone = Instant::now();
    bed.set_away(true);
    bed.kill_server();
    signal(pids[1], Signal::SIGKILL);
    tokio::time::sleep(AWAY).await;
    // A busy machine may have slept longer, so only tries of this time count.
    let tries = bed.world.kube.asked_between(gone, gone + AWAY);
    assert!(tries.len() <= 3 * MOST_TRIES, "{} tries: {tries:#?}", tries.len());
    for (at, pid) in pids.iter().enumerate() {
        trio.seat(at).until(200, "Running", PATIENCE).await;
        let same = trio.database(at) == Some(*pid);
        assert_eq!(same, at != 1, "only the one that was killed was started again");
    }
    bed.set_away(false);
    bed.start_server().await;
    let (back, time) = (Instant::now(), Timestamp::now());
    for node in 0..3 {
        trio.shows(node, "a new heartbeat", PATIENCE, |pilot| {
            (pilot.status.last_heartbeat_time.as_ref()?.0 > time).then_some(())
        })
        .await;
    }
    let restarts = trio
        .shows(1, "the restart", PATIENCE, |pilot| Some(pilot.status.process.as_ref()?.restarts))
        .await;
    assert_eq!(restarts, 1);
    let asked = bed.world.kube.asked_since(back);
    let lists = |selector: &str| {
        let list = |one: &&String| one.contains(selector) && !one.contains("watch=true");
        asked.iter().filter(list).count()
    };
    for node in 0..3 {
        let name = trio.name(node);
        let own = lists(&format!("fieldSelector=metadata.name%3D{name}"));
        assert!(own <= 1, "{own} lists by {name}: {asked:#?}");
    }
    assert!(lists("labelSelector") <= 2 * 3, "{asked:#?}");
    trio.stop_all().await;
}

/// A time in which pauses of up to 1, 2, 4 and 8 s begin.
const SHORT: Duration = Duration::from_secs(12);

#[tokio::test]
async fn pilots_that_are_refused_or_never_answered_try_ever_less_often_and_report_on_return() {
    let mut fleet = Fleet::start(96, 2).await;
    let cut = Instant::now();
    fleet.cut(|number| [Way::Refusing, Way::Silent][number]).await;
    fleet.pass(SHORT).await;
    for (number, gateway) in fleet.gateways.iter().enumerate() {
        let name = fleet.nodes.name(number);
        until("a try", PATIENCE, async || {
            let tried = !gateway.calls().is_empty();
            if tried { Ok(()) } else { Err(format!("none by {name}")) }
        })
        .await;
        // Loops that ask in the very moment of the cut are not held back yet. A busy machine
        // takes longer, which is time for more tries.
        let mut calls = gateway.calls();
        calls.retain(|call| *call - cut <= SHORT);
        assert!(calls.len() <= MOST_TRIES, "{name}: {:?}", apart(&calls));
    }
    let (took, lists) = fleet.restore().await;
    assert_eq!(took.len(), 2);
    assert!(lists.len() <= 2 * 2, "{lists:#?}");
    fleet.pass(Duration::from_secs(1)).await;
    fleet.nodes.stop_all().await;
}
