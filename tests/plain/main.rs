//! A database that is no JVM, under the real pilot: it dies of a QUIT, is asked to end by INT and
//! then by TERM, and ends with a code of its own.
//!
//! This program is both the test and, with `pilot plain` as its first arguments, the pilot: what
//! `main` hands to `cli` is a list of databases, and this one is in no other program's list.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the harness reports like libtest")]

mod database;
#[path = "../support/lib.rs"]
mod support;

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::support::{
    seat::{Running, Seat, signal},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "pilot") {
        rustls::crypto::ring::default_provider().install_default().unwrap();
        // This test uses the database's part for the pilot only.
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
    runtime.block_on(records_hold_all_that_it_writes_also_across_an_upgrade_amid_a_line());
    println!("plain: records_hold_all_that_it_writes_also_across_an_upgrade_amid_a_line ok");
    runtime.block_on(what_is_asked_for_raw_is_passed_on_byte_for_byte());
    println!("plain: what_is_asked_for_raw_is_passed_on_byte_for_byte ok");
    ExitCode::SUCCESS
}

const PILOT: &str = "metadata:
  name: plain-0
  labels: {navigator.jetstack.io/plain-cluster-name: demo}
spec: {phase: Running}
";

/// One running node. A panic in here ends the program with a code other than 0.
async fn node(host: u8, place: &tempfile::TempDir) -> (Seat, Running) {
    node_with(host, place, &[]).await
}

/// A running node with more flags, whose program may be replaced.
async fn node_with(host: u8, place: &tempfile::TempDir, flags: &[&str]) -> (Seat, Running) {
    let mut seat = Seat::new("plain", "plain-0", [127, 0, 76, host], place.path(), place.path());
    seat.program = place.path().join("program");
    std::os::unix::fs::symlink(env::current_exe().unwrap(), &seat.program).unwrap();
    let flags = ["--silence-limit=10"].iter().chain(flags).map(|flag| (*flag).to_owned());
    seat.flags.extend(flags);
    let intent = place.path().join("pilot.yaml");
    fs::write(&intent, PILOT).unwrap();
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

/// Waits for the script's first note: before it the script has no handlers, and a signal ends it.
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
    // The pilot sent no QUIT: it would have ended the script, as it does now.
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

/// Lets the database write these bytes, and waits until it has.
async fn say(seat: &Seat, running: &Running, words: &[u8]) {
    let before = notes(seat).len();
    fs::write(seat.place.join("say.new"), words).unwrap();
    fs::rename(seat.place.join("say.new"), seat.place.join("say")).unwrap();
    signal(running.database().unwrap(), Signal::SIGUSR1);
    until("that it has said so", PATIENCE, async || {
        if notes(seat).len() > before { Ok(()) } else { Err(running.tail()) }
    })
    .await;
}

/// Words for a log: long, odd, and with an end of their line or without.
fn words() -> Vec<Vec<u8>> {
    let long = format!("{}\n", "\u{e9}\u{20ac}".repeat(20_000));
    vec![b"first\n\n".to_vec(), long.into_bytes(), (0..=255).collect(), b"\r\nask? ".to_vec()]
}

async fn records_hold_all_that_it_writes_also_across_an_upgrade_amid_a_line() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node_with(3, &place, &["--takeover-interval=0.02"]).await;
    has_begun(&seat, &running).await;
    let mut said: Vec<u8> = Vec::new();
    for words in words() {
        say(&seat, &running, &words).await;
        said.extend(words);
    }
    let told = String::from_utf8_lossy(&said).into_owned();
    until("the question, though its line has no end", PATIENCE, async || {
        let written = seat.written("stdout");
        if written == told { Ok(()) } else { Err(format!("{} of {}", written.len(), told.len())) }
    })
    .await;
    let copy = place.path().join("copy");
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    // Each of the two takes the other's place in turn.
    for program in
        [copy.clone(), env::current_exe().unwrap(), copy.clone(), env::current_exe().unwrap()]
    {
        upgrade_amid_a_line(&seat, &running, &program, &mut said).await;
    }
    serves(&seat, &running).await;
    for words in [&b"and on\n"[..], b"last words"] {
        say(&seat, &running, words).await;
        said.extend(words);
    }
    assert_eq!(running.stop(PATIENCE).await, 0);
    let (written, told) = (seat.written("stdout"), String::from_utf8_lossy(&said).into_owned());
    let same = written.chars().zip(told.chars()).take_while(|(one, other)| one == other).count();
    let rest = |text: &str| text.chars().skip(same).take(200).collect::<String>();
    assert!(written == told, "{:?} in the place of {:?}", rest(&written), rest(&told));
    let log = fs::read_to_string(seat.log()).unwrap();
    assert!(log.contains("Took over a running database"), "{log}");
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["ts"].is_string() && line["level"].is_string(), "{line}");
        assert_eq!(
            (&line["cluster"], &line["pilot"]),
            (&json!("default/demo"), &json!("default/plain-0"))
        );
        match line["record"].as_str() {
            Some(record) => {
                assert!(record.len() <= 16 * 1024 && line["target"] == "plain", "{line}");
            }
            None => assert!(line["msg"].is_string(), "{line}"),
        }
    }
}

/// Puts a program in the place of the one that runs, and lets the database write on a line until it
/// has taken over.
async fn upgrade_amid_a_line(seat: &Seat, running: &Running, program: &Path, said: &mut Vec<u8>) {
    let new = seat.place.join("new");
    std::os::unix::fs::symlink(program, &new).unwrap();
    fs::rename(&new, &seat.program).unwrap();
    let inode = fs::metadata(program).unwrap().ino();
    let begun = Instant::now();
    for piece in 0.. {
        let words = format!("piece {piece}, ").into_bytes();
        say(seat, running, &words).await;
        said.extend(words);
        if fs::metadata(format!("/proc/{}/exe", running.pid())).unwrap().ino() == inode {
            return;
        }
        // A check alone may take 20 s on a busy machine, and is then made again.
        assert!(begun.elapsed() < 5 * PATIENCE, "no upgrade: {}", running.tail());
    }
}

async fn what_is_asked_for_raw_is_passed_on_byte_for_byte() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node_with(4, &place, &["--database-log=raw"]).await;
    has_begun(&seat, &running).await;
    let before = fs::read(seat.log()).unwrap();
    let said = words().concat();
    say(&seat, &running, &said).await;
    until("its words", PATIENCE, async || {
        let log = fs::read(seat.log()).unwrap();
        if log[before.len()..].ends_with(&said) { Ok(()) } else { Err(running.tail()) }
    })
    .await;
    assert_eq!(running.stop(PATIENCE).await, 0);
}
