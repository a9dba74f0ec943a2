//! `navigator install` over the program of a running pilot, as an ephemeral container does it, and
//! how the Pilot then reports the program that it runs.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{fs, path::Path, process::Command, time::Duration};

use crate::support::{
    bed::{Bed, condition},
    ring::Ring,
    seat::Seat,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// Installs this build's program where the seat's pilot has its own; returns its last word.
fn install(seat: &Seat) -> String {
    let word = seat.place.join("termination-log");
    fs::write(&word, "").unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_navigator"))
        .args(["install".as_ref(), shared(seat).as_os_str()])
        .args(["--termination-log".as_ref(), word.as_os_str()])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    fs::read_to_string(word).unwrap()
}

fn shared(seat: &Seat) -> &Path {
    seat.program.parent().unwrap()
}

#[tokio::test]
async fn what_was_installed_is_told_when_it_runs_and_why_when_it_cannot() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut seat = ring.seat("cass-demo-a-0", [127, 0, 91, 1]);
    seat.flags.push("--takeover-interval=0.05".to_owned());
    // On the volume of the build: a program may not be run from every temporary folder.
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    seat.program = kept.path().join("navigator");
    let first = install(&seat);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let (pilot, database) = (running.pid(), running.database());
    let status = bed.pilot(&seat.name).await.status;
    assert_eq!(status.pilot_program.as_deref(), Some(first.as_str()));

    let other = kept.path().join("other");
    fs::copy("/bin/true", &other).unwrap();
    fs::rename(&other, &seat.program).unwrap();
    let refused = bed.shows(&seat.name, "why it does not run", PATIENCE, |pilot| {
        let (_, reason, message) = condition(pilot, "ProgramCurrent")?;
        (reason == "TakeoverRefused").then(|| message.to_owned())
    });
    let why = refused.await;
    assert!(why.contains("cannot take over: its check"), "{why}");
    let status = bed.pilot(&seat.name).await.status;
    assert_eq!(status.pilot_program.as_deref(), Some(first.as_str()));

    let second = install(&seat);
    assert_ne!(second, first);
    bed.shows(&seat.name, "that the second installation runs", PATIENCE, |pilot| {
        let runs = pilot.status.pilot_program.as_ref() == Some(&second);
        (runs && condition(pilot, "ProgramCurrent").is_none()).then_some(())
    })
    .await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!((running.pid(), running.database()), (pilot, database), "the same processes");
    assert_eq!(running.stop(PATIENCE).await, 0);
}
