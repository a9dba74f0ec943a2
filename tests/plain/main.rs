//! A database that is no JVM, under the real pilot: it dies of a QUIT, is asked to end by INT and
//! then by TERM, and ends with a code of its own.
//!
//! This program is both the test and, with `pilot plain` as its first arguments, the pilot: what
//! `main` hands to `cli` is a list of databases, and this one is nobody else's.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the harness reports like libtest")]

mod database;
#[path = "../support/lib.rs"]
mod support;

use std::{env, fs, process::ExitCode, time::Duration};

use nix::sys::signal::Signal;

use self::support::{
    seat::{Running, Seat},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "pilot") {
        rustls::crypto::ring::default_provider().install_default().unwrap();
        // Nothing but its pilot is asked for here.
        const PLAIN: navigator::database::Database = navigator::database::Database {
            pilot: &database::DATABASE,
            ..navigator::databases::ALL[0]
        };
        return navigator::cli::main(env::args_os(), &[PLAIN]);
    }
    let filter: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    if filter.iter().any(|word| !"plain".contains(word.as_str())) {
        println!("plain: filtered out by {filter:?}");
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(it_is_stopped_by_its_own_signals_in_their_order());
    println!("plain: it_is_stopped_by_its_own_signals_in_their_order ok");
    runtime.block_on(one_that_falls_silent_is_continued_and_sent_nothing_that_ends_it());
    println!("plain: one_that_falls_silent_is_continued_and_sent_nothing_that_ends_it ok");
    ExitCode::SUCCESS
}

/// One running node. A panic in here ends the program with a code other than 0.
async fn node(host: u8, place: &tempfile::TempDir) -> (Seat, Running) {
    let mut seat = Seat::new("plain", "plain-0", [127, 0, 76, host], place.path(), place.path());
    seat.program = env::current_exe().unwrap();
    seat.flags.push("--silence-limit=10".to_owned());
    let intent = place.path().join("pilot.yaml");
    fs::write(&intent, "metadata: {name: plain-0}\nspec: {phase: Running}\n").unwrap();
    let running = seat.start_with(&["--config".as_ref(), intent.as_os_str()]);
    serves(&seat, &running).await;
    (seat, running)
}

async fn serves(seat: &Seat, running: &Running) {
    until("that it serves", PATIENCE, async || match seat.get(12001) {
        Some((200, _)) => Ok(()),
        other => Err(format!("{other:?}\n{}", running.tail())),
    })
    .await;
}

/// What the database noted down.
fn notes(seat: &Seat) -> Vec<String> {
    let text = fs::read_to_string(seat.place.join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Before that note it has no handlers, and a signal ends it.
async fn has_begun(seat: &Seat, running: &Running) {
    until("that it notes its start", PATIENCE, async || {
        let notes = notes(seat);
        if notes.last().is_some_and(|note| note == "start") {
            Ok(())
        } else {
            Err(format!("{notes:?}\n{}", running.tail()))
        }
    })
    .await;
}

async fn it_is_stopped_by_its_own_signals_in_their_order() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node(1, &place).await;
    let metrics = seat.get(8080).unwrap().1;
    assert!(metrics.contains("\nnavigator_pilot_role{role=\"replica\"} 1\n"), "{metrics}");
    has_begun(&seat, &running).await;
    assert_eq!(running.stop(PATIENCE).await, 0, "its code of success is the pilot's 0");
    assert_eq!(notes(&seat), ["start", "int", "term"]);
}

async fn one_that_falls_silent_is_continued_and_sent_nothing_that_ends_it() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node(2, &place).await;
    has_begun(&seat, &running).await;
    let database = running.database().unwrap();
    fs::write(seat.place.join("mute"), "").unwrap();
    until("that it is continued", PATIENCE, async || {
        let notes = notes(&seat);
        if notes.last().is_some_and(|note| note == "cont") { Ok(()) } else { Err(running.tail()) }
    })
    .await;
    fs::remove_file(seat.place.join("mute")).unwrap();
    serves(&seat, &running).await;
    assert_eq!(running.database(), Some(database), "{}", running.tail());
    let metrics = seat.get(8080).unwrap().1;
    assert!(metrics.contains("\nnavigator_pilot_process_hangs_total 1\n"), "{metrics}");
    // A QUIT would have ended it.
    running.signal(Signal::SIGQUIT);
    until("another process", PATIENCE, async || match running.database() {
        Some(other) if other != database => Ok(()),
        _ => Err(running.tail()),
    })
    .await;
    has_begun(&seat, &running).await;
    serves(&seat, &running).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
    assert_eq!(notes(&seat), ["start", "cont", "start", "int", "term"]);
}
