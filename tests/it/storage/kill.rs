//! `kill -9` under write load: what was acknowledged is there afterwards.
//!
//! The test binary runs itself as the process that is killed: with [`DIRECTORY`] in its
//! environment, [`write_if_told`] writes until it dies and prints every acknowledgement.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use navigator::apiserver::storage::{PageRequest, Revision, Storage};
use rand::Rng;

use super::{
    keys::{key, pilots},
    open,
};

const DIRECTORY: &str = "NAVIGATOR_TEST_KILL_DIRECTORY";
const ROUND: &str = "NAVIGATOR_TEST_KILL_ROUND";
const WRITERS: usize = 8;

#[test]
fn thirty_kills_lose_no_acknowledged_write() {
    let figures =
        rounds(30, &["--exact", "storage::kill::writer_process", "--ignored", "--nocapture"]);
    println!("{figures}");
}

/// Not a test of its own: this binary as the process that is killed.
#[test]
#[ignore = "a process of the test above"]
fn writer_process() {
    write_if_told();
}

/// Writes until it is killed, if this process was started for that.
pub(crate) fn write_if_told() {
    #[expect(clippy::disallowed_methods, reason = "this process was started with it")]
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = open(&directory).await;
        #[expect(clippy::disallowed_methods, reason = "this process was started with it")]
        let round = env::var(ROUND).unwrap();
        join_all((0..WRITERS).map(|n| write(&store, n, &round))).await;
    });
}

/// Creates, updates and deletes one key for ever; prints each acknowledgement in one write.
async fn write(store: &dyn Storage, n: usize, round: &str) {
    let key = key("ns", &format!("k{n}"));
    let mut at = store.get(&key).await.unwrap().map(|entry| entry.revision);
    for count in 0_u64.. {
        let value = Bytes::from(format!("{round}-{count}-{}", "x".repeat(500)));
        let (what, revision) = match at {
            None => ("put", store.create(&key, value).await.unwrap()),
            Some(at) if is_deletion(count) => ("del", store.delete(&key, at).await.unwrap()),
            Some(at) => ("put", store.update(&key, at, value).await.unwrap()),
        };
        at = (what == "put").then_some(revision);
        let line = format!("ack {n} {what} {revision} {count}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// Every seventh write of a process to a key that is there.
fn is_deletion(count: u64) -> bool {
    count % 7 == 6
}

/// What is known of a key: its last acknowledged write, or what was found after a kill.
#[derive(Clone, Debug, Default)]
struct Known {
    revision: Revision,
    present: bool,
    round: usize,
    count: u64,
}

/// Kills this many times the process that `arguments` make of this binary. Returns the figures.
pub(crate) fn rounds(rounds: usize, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let acknowledged: Arc<Mutex<BTreeMap<usize, Known>>> = Arc::default();
    let (mut slowest, mut total) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let lines = write_and_kill(&path, &acknowledged, round, arguments);
        total += lines;
        let started = Instant::now();
        let store = runtime.block_on(open(&path));
        slowest = slowest.max(started.elapsed());
        runtime.block_on(check(&store, &mut acknowledged.lock().unwrap(), round));
    }
    assert!(total > rounds, "the processes hardly wrote: {total} writes");
    format!("{rounds} kills, {total} acknowledged writes, slowest reopening {slowest:?}")
}

/// Runs a writer, kills it at a random moment, returns how many writes it acknowledged.
fn write_and_kill(
    path: &Path,
    acknowledged: &Arc<Mutex<BTreeMap<usize, Known>>>,
    round: usize,
    arguments: &[&str],
) -> usize {
    #[expect(clippy::disallowed_methods, reason = "the process that is killed")]
    let mut writer = Command::new(env::current_exe().unwrap())
        .args(arguments)
        .env(DIRECTORY, path)
        .env(ROUND, round.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(writer.stderr.take().unwrap());
    let acknowledged = Arc::clone(acknowledged);
    let (first, began) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let mut lines = 0;
        for line in output.lines() {
            let Ok(line) = line else { break };
            let fields: Vec<_> = line.split(' ').collect();
            // A line that the kill cut short was not received whole, so it counts for nothing.
            let ["ack", n, what, revision, count] = fields[..] else { continue };
            let (Ok(n), Ok(revision), Ok(count)) = (n.parse(), revision.parse(), count.parse())
            else {
                continue;
            };
            let (revision, present) = (Revision(revision), what == "put");
            acknowledged.lock().unwrap().insert(n, Known { revision, present, round, count });
            lines += 1;
            first.send(()).ok();
        }
        lines
    });
    began.recv_timeout(Duration::from_secs(60)).expect("the writer writes");
    thread::sleep(Duration::from_micros(rand::rng().random_range(0..150_000)));
    writer.kill().unwrap();
    writer.wait().unwrap();
    reader.join().unwrap()
}

/// What the store shows of a key is what was acknowledged last, or what its writer had on its way
/// then: the next write of the same process, or the first of this one.
async fn check(store: &dyn Storage, known: &mut BTreeMap<usize, Known>, round: usize) {
    let current = store.current_revision().await.unwrap();
    let page = store.list(&pilots(), PageRequest::default()).await.unwrap();
    for (n, last) in known {
        assert!(current >= last.revision, "round {round}: {current} before {last:?}");
        let key = key("ns", &format!("k{n}"));
        let next = if last.round == round { last.count + 1 } else { 0 };
        let Some(entry) = page.entries.iter().find(|entry| entry.key == key) else {
            let deleted = last.present && is_deletion(next);
            assert!(!last.present || deleted, "round {round}: {last:?}, but key {n} is gone");
            *last = Known { revision: current, present: false, round, count: next };
            continue;
        };
        let value = String::from_utf8_lossy(&entry.value);
        let mut fields = value.split('-').map(|field| field.parse::<u64>().ok());
        let (Some(Some(of)), Some(Some(count))) = (fields.next(), fields.next()) else {
            panic!("round {round}: key {n} holds {value:?}");
        };
        let acknowledged = last.present && entry.revision == last.revision;
        if acknowledged {
            assert_eq!((of, count), (last.round as u64, last.count), "round {round}: key {n}");
        } else {
            assert!(entry.revision > last.revision, "round {round}: key {n} went back: {last:?}");
            assert_eq!((of, count), (round as u64, next), "round {round}: key {n} after {last:?}");
            let revision = entry.revision;
            *last = Known { revision, present: true, round, count };
        }
    }
}
