//! One node of the example under its real pilot, with a scripted server in the place of Redis: what
//! every pilot does for a database that is no JVM and that nothing has to be asked for.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::program;
use crate::support::{
    seat::{Running, Seat, signal},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

const PILOT: &str = "metadata:
  name: redis-0
  labels: {navigator.jetstack.io/redis-cluster-name: demo}
spec: {phase: Running, version: 7.0.15}
";

async fn node(host: u8, place: &tempfile::TempDir) -> (Seat, Running) {
    node_with(host, place, &[]).await
}

/// Returns a running node with more flags, whose program may be replaced.
async fn node_with(host: u8, place: &tempfile::TempDir, flags: &[&str]) -> (Seat, Running) {
    let home = place.path().join("redis-0/home");
    let mut seat = Seat::new("redis", "redis-0", [127, 0, 76, host], &home, place.path());
    fs::create_dir_all(home.join("bin")).unwrap();
    // Perl finds the script's folder by the path that it was started by: no link may stand there.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/scripted-redis.pl");
    fs::copy(script, home.join("bin/redis-server")).unwrap();
    seat.program = place.path().join("program");
    std::os::unix::fs::symlink(program(), &seat.program).unwrap();
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

/// Waits until this is the script's last note.
async fn noted(seat: &Seat, running: &Running, last: &str) {
    until(&format!("that it notes {last}"), PATIENCE, async || {
        let notes = notes(seat);
        if notes.last().is_some_and(|note| note == last) {
            Ok(())
        } else {
            Err(format!("{notes:?}\n{}", running.tail()))
        }
    })
    .await;
}

#[tokio::test]
async fn it_is_stopped_by_its_own_signals_in_their_order() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node(1, &place).await;
    let metrics = seat.get(8080).unwrap().1;
    assert!(metrics.contains("\nnavigator_pilot_role{role=\"primary\"} 1\n"), "{metrics}");
    fs::write(seat.place.join("stubborn"), "").unwrap();
    running.signal(Signal::SIGTERM);
    noted(&seat, &running, "term").await;
    // A second one takes the next step at once.
    assert_eq!(running.stop(PATIENCE).await, 0, "its code of success is the pilot's 0");
    assert_eq!(notes(&seat), ["start", "term", "int"]);
}

#[tokio::test]
async fn one_that_falls_silent_is_continued_and_sent_nothing_that_ends_it() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node(2, &place).await;
    let database = running.database().unwrap();
    fs::write(seat.place.join("mute"), "").unwrap();
    noted(&seat, &running, "cont").await;
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
    noted(&seat, &running, "start").await;
    serves(&seat, &running).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
    assert_eq!(notes(&seat), ["start", "cont", "start", "term"]);
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

#[tokio::test]
async fn records_hold_all_that_it_writes_also_across_an_upgrade_amid_a_line() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node_with(3, &place, &["--takeover-interval=0.02"]).await;
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
    fs::copy(program(), &copy).unwrap();
    // Each of the two takes the other's place in turn.
    for program in [copy.clone(), program(), copy.clone(), program()] {
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
            (&json!("default/demo"), &json!("default/redis-0"))
        );
        match line["record"].as_str() {
            Some(record) => {
                assert!(record.len() <= 16 * 1024 && line["target"] == "redis", "{line}");
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

#[tokio::test]
async fn what_is_asked_for_raw_is_passed_on_byte_for_byte() {
    let place = tempfile::tempdir().unwrap();
    let (seat, running) = node_with(4, &place, &["--database-log=raw"]).await;
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
