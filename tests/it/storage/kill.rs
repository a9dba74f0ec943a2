//! `kill -9` and power failures under write load: what was acknowledged is there afterwards, as it
//! was acknowledged, key by key.
//!
//! The test binary runs itself as the process that is killed: with [`DIRECTORY`] in its
//! environment, [`writer_process`] writes until it dies and says every acknowledgement. On a disk
//! that loses what was not synced ([`super::power`]) the same kill is a power failure.

use std::{
    collections::BTreeMap,
    env,
    fmt::{self, Write as _},
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use navigator::apiserver::storage::{
    Key, PageRequest, Revision, Storage, StoreEntry,
    embedded::{EmbeddedStore, HistoryLimits},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    keys::{key, pilots},
    open,
    power::Power,
};

const DIRECTORY: &str = "NAVIGATOR_TEST_KILL_DIRECTORY";
const ROUND: &str = "NAVIGATOR_TEST_KILL_ROUND";
const DISK: &str = "NAVIGATOR_TEST_KILL_DISK";
const WRITERS: usize = 8;
/// Keys that one writer takes in turns.
const KEYS: u64 = 16;
const SYNC: Duration = Duration::from_millis(1);
/// Acknowledgements after which a process is killed, at most.
const MOST_WRITES: usize = 300;
/// Microseconds from the last of them to the kill, at most: writes go together, and a kill between two
/// of them is to hit some of each stage.
const MOST_PAUSE: u64 = 5_000;
/// Limit for the acknowledgements of a process.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a kill takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// Only the process.
    Whole,
    /// All that was not synced, too.
    Power,
}

#[test]
fn sixty_kills_lose_no_acknowledged_write() {
    rounds(Disk::Whole, 60, 200).assert();
}

#[test]
fn forty_power_failures_lose_no_acknowledged_write() {
    rounds(Disk::Power, 40, 200).assert();
}

#[test]
#[ignore = "minutes: make kill-store"]
fn a_thousand_kills_of_a_store_of_ten_thousand_objects_lose_no_acknowledged_write() {
    rounds(Disk::Whole, 1_000, 10_000).assert();
}

#[test]
#[ignore = "minutes: make kill-store"]
fn two_hundred_power_failures_of_a_store_of_ten_thousand_objects_lose_no_acknowledged_write() {
    rounds(Disk::Power, 200, 10_000).assert();
}

/// Not a test of its own: this binary as the process that is killed.
#[test]
#[ignore = "a process of the tests above"]
fn writer_process() {
    let Some(directory) = told(DIRECTORY).map(PathBuf::from) else { return };
    let round = told(ROUND).expect("it is told the round");
    let disk = if told(DISK).as_deref() == Some("Power") { Disk::Power } else { Disk::Whole };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = reopen(disk, &directory).await;
        join_all((0..WRITERS).map(|n| write(&store, n, &round))).await;
    });
}

#[expect(clippy::disallowed_methods, reason = "this process was started with it")]
fn told(name: &str) -> Option<String> {
    env::var(name).ok()
}

async fn reopen(disk: Disk, path: &Path) -> EmbeddedStore {
    match disk {
        Disk::Whole => open(path).await,
        Disk::Power => {
            EmbeddedStore::open_backend(Power::at(path, SYNC).unwrap(), HistoryLimits::default())
                .unwrap()
        }
    }
}

fn name(writer: usize, count: u64) -> Key {
    key("ns", &format!("k{writer}-{}", count % KEYS))
}

fn value(round: &str, count: u64) -> Bytes {
    Bytes::from(format!("{round}-{count}-{}", "x".repeat(500)))
}

/// Creates, updates and deletes its keys for ever; says each acknowledgement in one write.
async fn write(store: &dyn Storage, writer: usize, round: &str) {
    let mut at = BTreeMap::new();
    for count in 0..KEYS {
        let key = name(writer, count);
        at.insert(key.clone(), store.get(&key).await.unwrap().map(|entry| entry.revision));
    }
    for count in 0_u64.. {
        let key = name(writer, count);
        let (revision, present) = match at[&key] {
            None => (store.create(&key, value(round, count)).await.unwrap(), true),
            Some(at) if is_deletion(count) => (store.delete(&key, at).await.unwrap(), false),
            Some(at) => (store.update(&key, at, value(round, count)).await.unwrap(), true),
        };
        at.insert(key, present.then_some(revision));
        let line = format!("ack {writer} {count} {revision} {present}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// Every seventh write of a process, if its key is there.
fn is_deletion(count: u64) -> bool {
    count % 7 == 6
}

/// What the store holds under each key, as far as it was acknowledged or found after a kill.
type Known = BTreeMap<Key, (Revision, Bytes)>;

/// What came of a run.
struct Figures {
    /// The seed of the moments of the kills: `NAVIGATOR_TEST_SEED` repeats them.
    seed: u64,
    disk: Disk,
    rounds: usize,
    objects: usize,
    acknowledged: usize,
    /// Writes that were on their way and are there.
    unacknowledged: usize,
    slowest: Duration,
    lost: Vec<String>,
    changed: Vec<String>,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, disk, rounds, objects, acknowledged, unacknowledged, slowest, .. } = self;
        let what = if *disk == Disk::Whole { "kills" } else { "power failures" };
        write!(
            f,
            "{rounds} {what}, {objects} keys looked at after each, {acknowledged} acknowledged \
             writes: {} lost, {} changed; {unacknowledged} more were on their way and are there; \
             longest reopening {slowest:?}; NAVIGATOR_TEST_SEED={seed}",
            self.lost.len(),
            self.changed.len()
        )
    }
}

impl Figures {
    #[expect(clippy::print_stdout, reason = "the figures are what a long run is for")]
    fn assert(&self) {
        println!("{self}");
        let mut wrong = String::new();
        for (what, found) in [("lost", &self.lost), ("changed", &self.changed)] {
            found.iter().take(10).for_each(|line| writeln!(wrong, "{what}: {line}").unwrap());
        }
        assert!(wrong.is_empty(), "{self}\n{wrong}");
    }
}

/// Kills this many processes that write, beside `bystanders` objects that no process writes.
fn rounds(disk: Disk, rounds: usize, bystanders: usize) -> Figures {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut known = runtime.block_on(fill(disk, &path, bystanders));
    let (objects, slowest) =
        (bystanders + WRITERS * usize::try_from(KEYS).unwrap(), Duration::ZERO);
    let (lost, changed) = (Vec::new(), Vec::new());
    let (acknowledged, unacknowledged) = (0, 0);
    let seed = crate::support::seed::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut figures = Figures {
        seed,
        disk,
        rounds,
        objects,
        acknowledged,
        unacknowledged,
        slowest,
        lost,
        changed,
    };
    for round in 0..rounds {
        let moment = KillMoment {
            writes: rng.random_range(1..=MOST_WRITES),
            pause: Duration::from_micros(rng.random_range(0..=MOST_PAUSE)),
        };
        let next = write_and_kill(moment, &path, &mut known, round, &mut figures);
        let started = Instant::now();
        let store = runtime.block_on(reopen(disk, &path));
        figures.slowest = figures.slowest.max(started.elapsed());
        runtime.block_on(check(&store, &mut known, &next, round, &mut figures));
    }
    figures
}

/// Objects that no process writes any more.
async fn fill(disk: Disk, path: &Path, bystanders: usize) -> Known {
    let store = reopen(disk, path).await;
    let created = join_all((0..bystanders).map(|n| {
        let (key, value) = (key("bystanders", &format!("b{n}")), value("none", n as u64));
        let store = &store;
        async move { (key.clone(), (store.create(&key, value.clone()).await.unwrap(), value)) }
    }));
    created.await.into_iter().collect()
}

/// When a writer is killed.
#[derive(Clone, Copy, Debug)]
struct KillMoment {
    /// After so many acknowledgements.
    writes: usize,
    pause: Duration,
}

/// Runs a writer and kills it at this moment. Returns the write that each had on its way.
fn write_and_kill(
    moment: KillMoment,
    path: &Path,
    known: &mut Known,
    round: usize,
    figures: &mut Figures,
) -> Vec<u64> {
    #[expect(clippy::disallowed_methods, reason = "the process that is killed")]
    let mut writer = Command::new(env::current_exe().unwrap())
        .args(["--exact", "storage::kill::writer_process", "--ignored", "--nocapture"])
        .env(DIRECTORY, path)
        .env(ROUND, round.to_string())
        .env(DISK, format!("{:?}", figures.disk))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(writer.stderr.take().unwrap());
    let (acknowledges, acknowledgements) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        let mut acknowledged = Vec::new();
        for line in output.lines().map_while(Result::ok) {
            // A line that the kill cut short was not received whole, so it counts for nothing.
            let fields: Vec<_> = line.split(' ').collect();
            let ["ack", writer, count, revision, present @ ("true" | "false")] = fields[..] else {
                continue;
            };
            let numbers = (writer.parse(), count.parse(), revision.parse());
            let (Ok(writer), Ok(count), Ok(revision)) = numbers else { continue };
            acknowledged.push((writer, count, Revision(revision), present == "true"));
            acknowledges.send(()).ok();
        }
        acknowledged
    });
    for write in 0..moment.writes {
        let came = acknowledgements.recv_timeout(PATIENCE);
        came.unwrap_or_else(|error| {
            let seed = figures.seed;
            panic!("round {round}: {error} after {write} writes of {moment:?}; seed {seed}")
        });
    }
    thread::sleep(moment.pause);
    writer.kill().unwrap();
    writer.wait().unwrap();
    let acknowledged: Vec<(usize, u64, Revision, bool)> = reader.join().unwrap();
    figures.acknowledged += acknowledged.len();
    let mut next = vec![0; WRITERS];
    for (writer, count, revision, present) in acknowledged {
        next[writer] = count + 1;
        let value = value(&round.to_string(), count);
        if present {
            known.insert(name(writer, count), (revision, value));
        } else {
            known.remove(&name(writer, count));
        }
    }
    next
}

/// Every key holds what was acknowledged last; one for each writer may hold what that had on its
/// way. What was found is what is known from here on.
async fn check(
    store: &dyn Storage,
    known: &mut Known,
    next: &[u64],
    round: usize,
    figures: &mut Figures,
) {
    let page = store.list(&pilots(), PageRequest::default()).await.unwrap();
    let highest = known.values().map(|(revision, _)| *revision).max();
    let seed = figures.seed;
    let is_later = highest.is_none_or(|known| known <= page.revision);
    assert!(is_later, "round {round}: {highest:?}; seed {seed}");
    let mut found: Known = BTreeMap::new();
    for StoreEntry { key, value, revision } in page.entries {
        found.insert(key, (revision, value));
    }
    let mut on_their_way: BTreeMap<Key, u64> = BTreeMap::new();
    for (writer, count) in next.iter().enumerate() {
        on_their_way.insert(name(writer, *count), *count);
    }
    let keys: std::collections::BTreeSet<&Key> = known.keys().chain(found.keys()).collect();
    for key in keys {
        let (had, has) = (known.get(key), found.get(key));
        if had == has {
            continue;
        }
        let written = on_their_way.get(key).is_some_and(|count| match (had, has) {
            (Some(_), None) => is_deletion(*count),
            (had, Some((revision, found))) => {
                let newer = had.is_none_or(|(before, _)| before < revision);
                newer && *found == value(&round.to_string(), *count)
            }
            (None, None) => false,
        });
        if written {
            figures.unacknowledged += 1;
            continue;
        }
        let short = |known: Option<&(Revision, Bytes)>| {
            known.map(|(at, value)| format!("{at} {:?}", value.slice(..value.len().min(20))))
        };
        let (had_shown, has_shown) = (short(had), short(has));
        let line = format!("round {round}: {key:?} was {had_shown:?}, and is {has_shown:?}");
        // A deletion that came back is a lost write as well.
        let lost = has.is_none_or(|(now, _)| had.is_none_or(|(before, _)| now < before));
        if lost { figures.lost.push(line) } else { figures.changed.push(line) }
    }
    *known = found;
}
