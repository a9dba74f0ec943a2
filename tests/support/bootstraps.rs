//! Three nodes that are started at once, and killed in between: always exactly one cluster.
//!
//! Rounds run side by side on addresses of their own, over one API server that is killed or
//! away now and then. What is done to a round follows from its seed.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    rc::Rc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::api::{DeleteParams, PostParams};
use nix::sys::signal::Signal;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

use super::{
    bed::Bed,
    nodes::Nodes,
    ring::{self, Ring},
    seat::{Running, Seat, signal},
    wait::until,
};

const NODES: u8 = 3;
/// Rounds at a time.
const LANES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(180);

/// What a run of rounds did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) rounds: u64,
    pub(crate) pilots_killed: u32,
    pub(crate) databases_killed: u32,
    pub(crate) outages: u32,
    pub(crate) longest: Duration,
    pub(crate) all: Duration,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, pilots_killed, databases_killed, outages, longest, all } = self;
        write!(
            f,
            "{rounds} bootstraps of {NODES} nodes, {pilots_killed} pilots and {databases_killed} \
             databases killed, {outages} outages of the API; the longest took {:.1} s, all \
             together {:.0} s",
            longest.as_secs_f64(),
            all.as_secs_f64()
        )
    }
}

/// Runs so many rounds; panics with the seed of the first that fails.
pub(crate) async fn rounds(count: u64, seed: u64) -> Figures {
    let bed = Rc::new(Bed::start().await);
    let begin = Instant::now();
    let (next, outages) = (Cell::new(0), Cell::new(0));
    let lane = async || {
        let mut sum = Figures::default();
        while next.get() < count {
            let index = next.replace(next.get() + 1);
            let start = Instant::now();
            let killed = round(&bed, index, seed + index).await;
            sum.rounds += 1;
            sum.pilots_killed += killed.0;
            sum.databases_killed += killed.1;
            sum.longest = sum.longest.max(start.elapsed());
        }
        sum
    };
    let lanes = tokio::select! {
        lanes = join_all((0..LANES).map(|_| lane())) => lanes,
        () = disturb(&bed, seed, &outages) => unreachable!("it does not end"),
    };
    let add = |sum: Figures, lane: Figures| Figures {
        rounds: sum.rounds + lane.rounds,
        pilots_killed: sum.pilots_killed + lane.pilots_killed,
        databases_killed: sum.databases_killed + lane.databases_killed,
        longest: sum.longest.max(lane.longest),
        ..sum
    };
    let first = Figures { outages: outages.get(), all: begin.elapsed(), ..Figures::default() };
    lanes.into_iter().fold(first, add)
}

/// The API server is killed and started again, or does not answer for a while.
async fn disturb(bed: &Bed, seed: u64, outages: &Cell<u32>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pause =
        move |from: u64, to: u64| sleep(Duration::from_millis(rng.random_range(from..to)));
    loop {
        pause(2000, 8000).await;
        bed.set_away(true);
        outages.set(outages.get() + 1);
        pause(100, 1500).await;
        bed.set_away(false);
        pause(2000, 8000).await;
        bed.kill_server();
        outages.set(outages.get() + 1);
        pause(1, 1000).await;
        bed.start_server().await;
    }
}

/// Names the seed of a round that panics.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "what a failed test leaves to read")]
            {
                eprintln!("the round with seed {} failed", self.0);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Act {
    Start,
    KillPilot,
    KillDatabase,
}

/// When what is done to which node: all are started at once, and some killed soon after.
fn plan(rng: &mut StdRng) -> Vec<(Duration, Act, usize)> {
    let mut at = |until: u64| Duration::from_millis(rng.random_range(0..until));
    let mut plan: Vec<_> = (0..NODES).map(|node| (at(300), Act::Start, node.into())).collect();
    for _ in 0..rng.random_range(0..6) {
        let act = if rng.random() { Act::KillPilot } else { Act::KillDatabase };
        let at = Duration::from_millis(rng.random_range(50..4000));
        plan.push((at, act, rng.random_range(0..NODES.into())));
    }
    plan.sort_by_key(|(at, ..)| *at);
    plan
}

/// Runs one round; returns how many pilots and databases were killed.
async fn round(bed: &Rc<Bed>, index: u64, seed: u64) -> (u32, u32) {
    let _blame = Blame(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let cluster = format!("r{index}");
    let root = bed.world.folder.path().join(&cluster);
    let ring = Ring::new(&root, &cluster);
    let mut nodes = ring.nodes(bed, u8::try_from(index % 250).unwrap(), NODES);
    for node in 0..NODES.into() {
        let pilot = nodes.wanted(node);
        until("a Pilot is made", PATIENCE, async || {
            match bed.pilots().create(&PostParams::default(), &pilot).await {
                Err(error) if !error.to_string().contains("already exists") => {
                    Err(error.to_string())
                }
                _ => Ok(()),
            }
        })
        .await;
    }
    let mut killed = (0, 0);
    let start = tokio::time::Instant::now();
    for (at, act, node) in plan(&mut rng) {
        tokio::time::sleep_until(start + at).await;
        let runs = nodes.all[node].running.is_some();
        match act {
            Act::Start if !runs => nodes.start(node),
            Act::KillPilot if runs => {
                nodes.kill(node).await;
                killed.0 += 1;
                nodes.start(node);
            }
            Act::KillDatabase => {
                let pilot = nodes.all[node].running.as_ref();
                if let Some(database) = pilot.and_then(Running::database) {
                    signal(database, Signal::SIGKILL);
                    killed.1 += 1;
                }
            }
            Act::Start | Act::KillPilot => {}
        }
    }
    for node in 0..NODES.into() {
        let seat = nodes.seat(node);
        until(&format!("{} runs", seat.name), PATIENCE, async || {
            let answer = seat.get(12001);
            let runs = answer == Some((200, "Running".to_owned()));
            if runs { Ok(()) } else { Err(format!("{answer:?} {:?}", ring::notes(seat))) }
        })
        .await;
        nodes.phase(node, "Running").await;
    }
    judge(&nodes, &ring).await;
    for node in &mut nodes.all {
        drop(node.running.take());
        // The API may be away just now; no other round uses these names.
        bed.pilots().delete(&node.seat.name, &DeleteParams::default()).await.ok();
    }
    fs::remove_dir_all(&root).unwrap();
    killed
}

/// Checks that there is one cluster with one founder, and that every node is in it.
async fn judge(nodes: &Nodes, ring: &Ring) {
    assert_eq!(ring.wrongs(), [""; 0]);
    let foundings = ring.foundings();
    let [founding] = &foundings[..] else { panic!("not one founding: {foundings:?}") };
    let (cluster, founder) = founding.split_once(' ').unwrap();
    let members = ring.members();
    let of_it = members.values().filter(|one| one.cluster == cluster && one.mode == "NORMAL");
    let ids: BTreeSet<&String> = of_it.map(|one| &one.id).collect();
    assert_eq!(ids.len(), nodes.all.len(), "{members:?}");
    let seats = nodes.all.iter().map(|node| &node.seat);
    let founders: Vec<&Seat> = seats.filter(|seat| ring::count(seat, "founds") > 0).collect();
    let [alone] = founders[..] else { panic!("not one founder: {}", founders.len()) };
    assert_eq!(alone.address.to_string(), founder);
    let recorded = until("the founding record", PATIENCE, async || {
        nodes.bed.leases().get(&nodes.cluster.lease).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(recorded.spec.founder.unwrap().name, alone.name);
}
