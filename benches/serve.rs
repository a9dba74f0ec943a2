//! Our API server beside the same kind as a CRD on the real kube-apiserver, and beside
//! sample-apiserver: the same requests, over TLS, each server with a fresh etcd of its own.
//!
//! `make bench-serve` prints Markdown tables, and writes them into docs/benchmarks.md when all
//! was measured and the machine did nothing else. `SIZES=1000 ONLY=etcd,sample,get,http2` measures
//! a part; creating and deleting is always part of it. `NAVIGATOR=PATH` measures another binary.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints tables, and how far it is")]
#![expect(clippy::disallowed_methods, reason = "starts processes, and clients beside each other")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]

#[path = "serve/client.rs"]
mod client;
#[path = "serve/fan_out.rs"]
mod fan_out;
#[path = "serve/kinds.rs"]
mod kinds;
#[path = "serve/load.rs"]
mod load;
#[path = "serve/sender.rs"]
mod sender;
#[path = "serve/servers.rs"]
mod servers;
#[path = "serve/support.rs"]
mod support;
#[path = "serve/tables.rs"]
mod tables;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::future::join_all;
use nix::sys::resource::UsageWho;

use self::{
    client::{Client, Protocol},
    load::{Operation, Plan, count, used},
    servers::{Bed, Programs, Server, Store, Which, etcd_alone},
    tables::Outcome,
};

const CLIENTS: usize = 16;
/// Clients that list all objects: for 16 lists of many objects at one time, kube-apiserver takes
/// more memory than many machines have.
const LISTING: usize = 4;
/// 20 000 objects of 2.7 KiB each would be more than one namespace may hold of a server without a
/// memory limit.
const SIZES: [usize; 2] = [1_000, 5_000];
/// No measurement is begun after this; the slowest takes less than five minutes.
const BOUND: Duration = Duration::from_secs(25 * 60);
/// What other programs may take of the processors on a machine that counts as idle.
const IDLE: f64 = 0.05;
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/benchmarks.md");
const BEGIN: &str = "<!-- written by make bench-serve -->\n";
const END: &str = "<!-- until here -->\n";

/// What is measured.
struct Choice {
    sizes: Vec<usize>,
    servers: Vec<Which>,
    operations: Vec<Operation>,
    protocols: Vec<Protocol>,
}

impl Choice {
    fn from_environment() -> Self {
        let words = |name: &str| -> Vec<String> {
            let text = env::var(name).unwrap_or_default();
            text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let sizes: Vec<usize> = words("SIZES").iter().map(|word| word.parse().unwrap()).collect();
        assert!(sizes.iter().all(|size| *size >= CLIENTS), "each client has an object of its own");
        let mut only = words("ONLY");
        let choice = Self {
            sizes: if sizes.is_empty() { SIZES.into() } else { sizes },
            servers: chosen(&mut only, Which::ALL, Which::word),
            operations: chosen(&mut only, Operation::ALL, Operation::word),
            protocols: chosen(&mut only, Protocol::ALL, Protocol::word),
        };
        assert!(only.is_empty(), "ONLY: {only:?} name no server, no operation and no protocol");
        choice
    }

    fn is_all(&self) -> bool {
        self.sizes == SIZES
            && self.servers.len() == Which::ALL.len()
            && self.operations.len() == Operation::ALL.len()
            && self.protocols.len() == Protocol::ALL.len()
    }

    fn has(&self, operation: Operation) -> bool {
        self.operations.contains(&operation)
    }
}

/// The items whose words are given, or all.
fn chosen<T: Copy, const N: usize>(
    only: &mut Vec<String>,
    all: [T; N],
    word: fn(T) -> &'static str,
) -> Vec<T> {
    let found: Vec<T> =
        all.into_iter().filter(|one| only.iter().any(|given| given == word(*one))).collect();
    only.retain(|given| !all.iter().any(|one| given == word(*one)));
    if found.is_empty() { all.into() } else { found }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some(sender::ARGUMENT) {
        let [certificate, key] = [(); 2].map(|()| arguments.next().unwrap());
        return runtime.block_on(sender::serve(&certificate, &key));
    }
    let choice = Choice::from_environment();
    // On this thread: the processes that it starts die with it.
    runtime.block_on(compare(&choice));
}

async fn compare(choice: &Choice) {
    let (began, busy, ours) = (Instant::now(), busy(), ours());
    let bed = Bed::new(programs()).await;
    let mut outcomes = Vec::new();
    let (mut alone, mut sent) = (Vec::new(), Vec::new());
    let mut complete = true;
    for &objects in &choice.sizes {
        if choice.servers.contains(&Which::Etcd) {
            let took = etcd_alone(&bed, CLIENTS, objects, kinds::SIZE).await;
            alone.push(format!(
                "{} with {objects}",
                tables::three(count(objects) / took.as_secs_f64())
            ));
        }
        for &which in &choice.servers {
            if began.elapsed() > BOUND {
                eprintln!("{objects} objects, {}: left out, it took too long", which.title());
                complete = false;
                continue;
            }
            outcomes.extend(measure(&bed, choice, which, objects).await);
        }
        sent.extend(only_sent(&bed, choice, &outcomes, objects).await);
    }
    let took = began.elapsed();
    let cores = std::thread::available_parallelism().unwrap().get();
    let ours = self::ours().saturating_sub(ours);
    let others = self::busy().saturating_sub(busy).saturating_sub(ours).as_secs_f64();
    let share = others / took.as_secs_f64() / count(cores);

    let tables: Vec<String> =
        choice.sizes.iter().map(|objects| tables::of(&outcomes, *objects)).collect();
    let how = format!(
        "{}, {cores} cores, of which other processes took {:.0} %, data on {}; {:.0} minutes. \
         What etcd alone does of the transactions by which an object is created, per second: {}. \
         A server that only sends out of memory, over HTTP/1.1: {}.\n",
        jiff::Timestamp::now().strftime("%-d %B %Y"),
        share * 100.0,
        file_system(&env::temp_dir()),
        took.as_secs_f64() / 60.0,
        told(&alone),
        told(&sent),
    );
    let text = format!("{how}\n{}", tables.join("\n"));
    println!("{text}");
    if cfg!(debug_assertions) {
        eprintln!("docs/benchmarks.md is left as it is: this is a build for development");
    } else if !choice.is_all() || !complete {
        eprintln!("docs/benchmarks.md is left as it is: this is a part");
    } else if share > IDLE {
        eprintln!("docs/benchmarks.md is left as it is: the machine did other things too");
    } else {
        write_down(&text);
    }
}

fn told(figures: &[String]) -> String {
    if figures.is_empty() { "not measured".to_owned() } else { figures.join(", ") }
}

/// The cost of only sending a list of our objects, and one object of it.
async fn only_sent(
    bed: &Bed,
    choice: &Choice,
    outcomes: &[Outcome],
    objects: usize,
) -> Option<String> {
    let ours = outcomes.iter().find(|one| one.objects == objects && one.which.is_ours());
    let ours = ours.filter(|_| choice.has(Operation::List))?;
    let one = sender::measure(bed, CLIENTS, ours.object).await;
    let list = sender::measure(bed, LISTING, ours.object * objects).await;
    let three = tables::three;
    Some(format!(
        "{} objects a second for {} ms of a processor each and {} lists of {objects} for {} ms",
        three(one.per_second),
        three(one.milliseconds),
        three(list.per_second),
        three(list.milliseconds),
    ))
}

/// Measures one server with so many objects, over each protocol. Each protocol has a store of its
/// own: a store that is emptied again still has its log.
async fn measure(bed: &Bed, choice: &Choice, which: Which, objects: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for &protocol in &choice.protocols {
        let store = bed.store(which).await;
        let began = Instant::now();
        let outcome = live(bed, &store, choice, which, protocol, objects).await;
        eprintln!(
            "{objects} objects, {}, {}: {:.0?}",
            which.title(),
            protocol.title(),
            began.elapsed()
        );
        outcomes.push(outcome);
    }
    outcomes
}

/// The life of a server: all operations, and a start with all objects before they are deleted.
async fn live(
    bed: &Bed,
    store: &Store,
    choice: &Choice,
    which: Which,
    protocol: Protocol,
    objects: usize,
) -> Outcome {
    let (server, started) = bed.start(which, store, protocol, true).await;
    let clients = clients(&server).await;
    let kind = server.kind;
    let salt = format!("{}-{}", protocol.word(), which.word());
    let plan = |operation, seen| Plan {
        operation,
        kind,
        clients: CLIENTS,
        objects,
        salt: format!("{salt}-{}", Operation::word(operation)),
        seen,
    };
    let mut phases = BTreeMap::new();
    let mut cut = 0;
    let create = load::run(&server, store, &clients, plan(Operation::Create, None)).await;
    phases.insert(Operation::Create, create);
    let seen = load::look(&clients[0], kind, objects).await;
    let object = seen.object(objects);
    let between = [Operation::Get, Operation::List, Operation::Page, Operation::Patch];
    for operation in between.into_iter().filter(|operation| choice.has(*operation)) {
        let asking = if operation == Operation::List { LISTING } else { CLIENTS };
        let plan = plan(operation, Some(seen.clone()));
        let phase = load::run(&server, store, &clients[..asking], plan).await;
        phases.insert(operation, phase);
    }
    if choice.has(Operation::Apply) && load::applies(&clients[0], kind).await {
        let plan = plan(Operation::Apply, None);
        phases.insert(Operation::Apply, load::run(&server, store, &clients, plan).await);
    }
    if choice.has(Operation::Watch) {
        let from = load::look(&clients[0], kind, objects).await.revision;
        let salt = format!("{salt}-watch");
        let (phase, ended) = fan_out::run(&server, store, &clients, objects, &salt, from).await;
        phases.insert(Operation::Watch, phase);
        cut = ended;
    }
    let (resident, peak) = server.memory();
    drop(clients);
    server.stop().await;

    let (server, restarted) = bed.start(which, store, protocol, true).await;
    let clients = self::clients(&server).await;
    load::look(&clients[0], kind, objects).await;
    let delete = load::run(&server, store, &clients, plan(Operation::Delete, None)).await;
    phases.insert(Operation::Delete, delete);
    load::look(&clients[0], kind, 0).await;
    drop(clients);
    server.stop().await;
    Outcome { which, protocol, objects, phases, started, restarted, resident, peak, object, cut }
}

async fn clients(server: &Server) -> Vec<Client> {
    let entered = join_all((0..CLIENTS).map(|_| server.door.enter())).await;
    entered.into_iter().map(Result::unwrap).collect()
}

fn programs() -> Programs {
    let bed = env::var_os("NAVIGATOR_TESTBED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"), PathBuf::from);
    let navigator = env::var_os("NAVIGATOR")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_navigator")), PathBuf::from);
    let of_bed = |name: &str| bed.join("bin").join(name);
    let programs = Programs {
        navigator,
        kube_apiserver: of_bed("kube-apiserver"),
        sample_apiserver: of_bed("sample-apiserver"),
        etcd: of_bed("etcd"),
    };
    let Programs { navigator, kube_apiserver, sample_apiserver, etcd } = &programs;
    for program in [navigator, kube_apiserver, sample_apiserver, etcd] {
        assert!(program.exists(), "{} is missing: make bench-serve builds it", program.display());
    }
    programs
}

/// Processor time of all programs since the machine came up.
fn busy() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<u64> =
        text.lines().next().unwrap().split_whitespace().skip(1).flat_map(str::parse).collect();
    // user, nice, system; then idle and waiting; then interrupts, hard and soft.
    let ticks = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6];
    Duration::from_millis(ticks * 10)
}

/// Processor time of this program, and of all that it started and that ended.
fn ours() -> Duration {
    used(UsageWho::RUSAGE_SELF) + used(UsageWho::RUSAGE_CHILDREN)
}

fn file_system(folder: &Path) -> String {
    let kind = nix::sys::statfs::statfs(folder).unwrap().filesystem_type();
    if kind == nix::sys::statfs::TMPFS_MAGIC { "tmpfs".to_owned() } else { "a disk".to_owned() }
}

/// Replaces the text between the marks.
fn write_down(text: &str) {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the document has the first mark");
    let (_, after) = rest.split_once(END).expect("the document has the second mark");
    fs::write(DOCUMENT, format!("{before}{BEGIN}\n{text}\n{END}{after}")).unwrap();
    eprintln!("docs/benchmarks.md is written");
}
