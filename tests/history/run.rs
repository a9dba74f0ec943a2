//! One run: the servers are started, clients and watchers are set upon them, the planned faults
//! happen, clients and watchers come to an end, and the history is judged.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    check::{self, Asked, Outcome, Violation},
    clients::Client,
    plan::{AFTER, Fault, Plan},
    proxy::Way,
    recorder::Recorder,
    servers::Servers,
    watchers::{self, Watcher},
};

/// Clients at most, and at least: one more comes when those that are there were answered so often. Where
/// the servers answer slowly, the faults begin with fewer clients.
const CLIENTS: usize = 8;
const LEAST_CLIENTS: usize = 3;
const ANSWERS_PER_CLIENT: usize = 5;
/// Time in which clients come.
const GATHERING: Duration = Duration::from_secs(10);
/// Least answers before each fault and after the last one. With fewer, the run tried nothing.
const ENOUGH: usize = 60;
/// How long the run waits for so many answers.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the last write, and its way to every watcher, may take before it is asked whether the
/// machine is slow or the server is wrong.
const SETTLE: Duration = Duration::from_secs(120);
/// Time for watchers after so many more writes as [`ENOUGH`].
const LATEST: Duration = Duration::from_secs(60);
/// Pause after a wipe, for requests to the wiped store.
const WIPED: Duration = Duration::from_secs(2);
/// Violations that are printed.
const SHOWN: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    AsPromised,
    Wrong,
    /// Nothing wrong was seen, but hardly anything was tried.
    Invalid,
}

/// Is everything as promised? Says what is not.
pub(crate) async fn run(plan: &Plan) -> Verdict {
    let Plan { seed, store, faults } = plan;
    println!("history {seed}: {store:?}, {faults:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/history");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{seed}.jsonl"));
    let servers = Arc::new(Servers::start(*store).await);
    let recorder = Arc::new(Recorder::new(&file));
    let (done, until_done) = watch::channel(false);
    let (last, until_last) = watch::channel(None);

    let (mut clients, mut watching) = (JoinSet::new(), JoinSet::new());
    let gathering = Instant::now();
    for number in 0..CLIENTS {
        let wanted = number * ANSWERS_PER_CLIENT;
        while number >= LEAST_CLIENTS
            && recorder.answered() < wanted
            && gathering.elapsed() < GATHERING
        {
            sleep(Duration::from_millis(20)).await;
        }
        if number >= LEAST_CLIENTS && recorder.answered() < wanted {
            break;
        }
        clients.spawn(Client::new(&servers, &recorder, number, *seed).run(until_done.clone()));
    }
    let gathered = clients.len();
    for (number, what) in watchers::all().into_iter().enumerate() {
        let watcher = Watcher::new(&servers, &recorder, number, what, *seed);
        watching.spawn(watcher.run(until_last.clone()));
    }
    let begun = Instant::now();
    let (mut wrong, mut slow) = (Vec::new(), None);
    let (mut wiped, mut tried, mut since) = (false, true, 0);
    for (pause, fault) in faults {
        sleep(*pause).await;
        tried &= enough(&recorder, since).await;
        wiped |= *fault == Fault::Wipe;
        if let Err(why) = break_it(*fault, &servers, &recorder).await {
            wrong.push(format!("after {fault:?}: {why}"));
            break;
        }
        since = recorder.answered();
    }
    sleep(AFTER).await;
    // The servers of a wiped store give no answers to count.
    tried &= wiped || !wrong.is_empty() || enough(&recorder, since).await;
    let rate = rate(&recorder, begun.elapsed());
    done.send_replace(true);
    while clients.join_next().await.transpose().unwrap().is_some() {}
    if wiped {
        watching.shutdown().await;
    } else if wrong.is_empty() {
        match settle(&servers, &recorder, &last, &mut watching, *seed).await {
            Ok(()) => {}
            Err(Unsettled::Slow(why)) => slow = Some(why),
            Err(Unsettled::Wrong(why)) => wrong.push(why),
        }
    }
    watching.shutdown().await;
    let history = recorder.finish();
    let events: usize = history.streams.iter().map(|stream| stream.lines.len()).sum();
    println!(
        "  {} operations of {gathered} clients, {rate} answers a second, {events} events in {} watches",
        history.operations.len(),
        history.streams.len()
    );
    let judged = Instant::now();
    let found = check::check(&history);
    wrong.extend(found.iter().map(ToString::to_string));
    let took = judged.elapsed();
    if wrong.is_empty() && !tried {
        println!("  invalid: not {ENOUGH} answers within {PATIENCE:?} around each fault");
        return Verdict::Invalid;
    }
    if let Some(why) = slow.filter(|_| wrong.is_empty()) {
        println!("  invalid: {why}");
        return Verdict::Invalid;
    }
    if wrong.is_empty() {
        println!("  as promised; judged in {took:?}");
        return Verdict::AsPromised;
    }
    for line in wrong.iter().take(SHOWN) {
        println!("  WRONG: {line}");
    }
    println!("  {} are wrong in all: {}", wrong.len(), counted(&found));
    println!("  again with HISTORY_SEED={seed}; recorded in {}", file.display());
    print!("{}", servers.logs());
    Verdict::Wrong
}

/// How often each promise was broken.
fn counted(found: &[Violation]) -> String {
    let mut counts = BTreeMap::new();
    for violation in found {
        *counts.entry(violation.guarantee).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(what, count)| format!("{what:?} {count}")).collect();
    counts.join(", ")
}

/// Waits until `ENOUGH` requests were answered since then. Were they?
async fn enough(recorder: &Recorder, since: usize) -> bool {
    let begun = Instant::now();
    while recorder.answered() < since + ENOUGH {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

fn rate(recorder: &Recorder, time: Duration) -> usize {
    recorder.answered() * 1_000 / usize::try_from(time.as_millis()).unwrap()
}

async fn break_it(fault: Fault, servers: &Arc<Servers>, recorder: &Recorder) -> Result<(), String> {
    let begin = recorder.now();
    match fault {
        Fault::Kill(n) => servers.kill(n).await?,
        Fault::Stop(n, pause) => {
            servers.signal(n, Signal::SIGSTOP);
            sleep(pause).await;
            servers.signal(n, Signal::SIGCONT);
        }
        Fault::Cut(n, pause) | Fault::Stall(n, pause) => {
            let cut = matches!(fault, Fault::Cut(..));
            servers.set_way(n, if cut { Way::Cut } else { Way::Stalled });
            sleep(pause).await;
            servers.set_way(n, Way::Open);
        }
        Fault::KillEtcd => servers.kill_etcd(),
        Fault::Compact(ago) => {
            let revision = recorder.highest().saturating_sub(ago).max(1);
            servers.compact(revision).await?;
            // From `begin` on, the compaction may have forgotten history.
            recorder.ended(1_000, begin, Asked::Compact { revision }, Outcome::Done);
        }
        Fault::Wipe => {
            // The cache of a server that was cut off from etcd may take long to get all writes.
            // From `begin` on the wipe may forget anything, and each server knows what was there
            // before.
            servers.level(recorder.highest()).await?;
            let begin = recorder.now();
            servers.level(recorder.highest()).await?;
            servers.wipe_etcd();
            recorder.ended(1_000, begin, Asked::Wipe, Outcome::Done);
            sleep(WIPED).await;
        }
    }
    Ok(())
}

/// Why watchers did not come to the last write.
enum Unsettled {
    /// The servers hardly answer: nothing can be said.
    Slow(String),
    Wrong(String),
}

/// Writes once more, and waits until every watcher has seen it. A watcher that has not, while the
/// servers acknowledge [`ENOUGH`] more writes, was not told: that is no matter of speed.
async fn settle(
    servers: &Arc<Servers>,
    recorder: &Arc<Recorder>,
    last: &watch::Sender<Option<u64>>,
    watching: &mut JoinSet<()>,
    seed: u64,
) -> Result<(), Unsettled> {
    let mut client = Client::new(servers, recorder, CLIENTS, seed);
    let mut writes = 0;
    let revision = write_once_more(&mut client, &mut writes).await?;
    last.send_replace(Some(revision));
    if come_to_an_end(watching, SETTLE).await {
        return Ok(());
    }
    for _ in 0..ENOUGH {
        write_once_more(&mut client, &mut writes).await?;
    }
    if come_to_an_end(watching, LATEST).await {
        return Ok(());
    }
    Err(Unsettled::Wrong(format!(
        "Reliable: {} watchers have not come to revision {revision}, {ENOUGH} writes later",
        watching.len()
    )))
}

/// Returns the revision of a write of a new object.
async fn write_once_more(client: &mut Client, writes: &mut usize) -> Result<u64, Unsettled> {
    let begun = Instant::now();
    loop {
        *writes += 1;
        let name = format!("last-{writes}");
        match client.ask(Asked::Create { key: name.clone(), main: name }).await {
            Some(Outcome::Written(version)) => return Ok(version.revision),
            other if begun.elapsed() > SETTLE => {
                let why = format!("nothing can be written after {SETTLE:?}: {other:?}");
                return Err(Unsettled::Slow(why));
            }
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Have all watchers ended within this time?
async fn come_to_an_end(watching: &mut JoinSet<()>, time: Duration) -> bool {
    let all = async { while watching.join_next().await.transpose().unwrap().is_some() {} };
    timeout(time, all).await.is_ok()
}
