//! Everything ends at once and comes back; a node is stopped in order; and intents that change
//! faster than a database can follow.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{
    bed::Bed,
    ring::{self, Ring, phase},
    seat::is_gone,
    seed::seed,
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn after_a_full_outage_all_come_back_as_the_same_cluster() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut trio = ring.nodes(&bed, 75, 3);
    trio.form().await;
    let before = ring.members();
    let databases = trio.databases();
    for node in &mut trio.all {
        node.running.take().unwrap().kill();
    }
    until("all databases are gone", PATIENCE, async || {
        if databases.iter().all(|pid| is_gone(*pid)) { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    trio.start_all();
    for node in 0..3 {
        trio.shows(node, "the new process serves", PATIENCE, |pilot| {
            let pid = pilot.status.process.as_ref()?.pid;
            let serves = pilot.status.phase.as_ref()?.to_string() == "Running";
            (serves && trio.database(node) == Some(pid)).then_some(())
        })
        .await;
    }
    assert_eq!(ring.members(), before);
    assert_eq!(ring.foundings().len(), 1);
    assert_eq!(ring.wrongs(), [""; 0]);
}

#[tokio::test]
async fn a_stop_drains_then_asks_and_kills_two_seconds_before_the_end_of_the_grace() {
    const GRACE: Duration = Duration::from_secs(10);
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut seat = ring.seat("cass-demo-a-0", [127, 0, 76, 1]);
    seat.flags.push(format!("--termination-grace-period={}", GRACE.as_secs()));
    for switch in ["deaf", "stuck-drain"] {
        ring::set(&seat, switch, "");
    }
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let database = running.database().unwrap();
    let start = Instant::now();
    assert_eq!(running.stop(PATIENCE).await, 137);
    let took = start.elapsed();
    assert!(took + Duration::from_secs(3) > GRACE, "killed after {took:?}");
    // A kill after the default grace period would come later.
    assert!(took < Duration::from_secs(25), "killed after {took:?}");
    assert!(is_gone(database));
    let notes = ring::notes(&seat);
    assert_eq!(notes[notes.len() - 2..], ["drain", "term"]);
    let pilot = bed.pilot(&seat.name).await;
    let ended = pilot.status.last_termination.unwrap();
    assert_eq!(ended.signal.as_deref(), Some("SIGKILL"));
}

#[tokio::test]
async fn intents_that_flap_end_in_one_process_that_runs() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("cass-demo-a-0", [127, 0, 77, 1]);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let walk: Vec<(u64, &str)> = (0..40)
        .map(|_| {
            let word = ["Running", "Stopped", "Fenced"][rng.random_range(0..3)];
            (rng.random_range(0..400), word)
        })
        .collect();
    for (pause, word) in &walk {
        bed.change(&seat.name, phase(word)).await;
        tokio::time::sleep(Duration::from_millis(*pause)).await;
    }
    bed.change(&seat.name, phase("Running")).await;
    let last = bed.pilot(&seat.name).await.metadata.generation;
    bed.shows(&seat.name, "the last intent is followed", PATIENCE, |pilot| {
        let phase = pilot.status.phase.as_ref()?.to_string();
        (phase == "Running" && pilot.status.observed_generation == last).then_some(())
    })
    .await;
    assert_eq!(ring.wrongs(), [""; 0], "seed {seed}: {walk:?}");
    assert_eq!(ring.foundings().len(), 1);
    let pid = running.database().unwrap();
    let noted = ring::notes(&seat);
    let starts: Vec<i32> = noted
        .iter()
        .filter_map(|note| note.strip_prefix("start "))
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert!(starts.iter().all(|one| is_gone(*one) == (*one != pid)), "seed {seed}: {noted:?}");
    assert_eq!(running.stop(PATIENCE).await, 0);
}
