//! The cost of a pilot beside its child, next to tini, dumb-init and no init at all.
//!
//! `make bench-pilot` prints a Markdown table: the median of several runs, with the least and
//! the most. Memory and idle processor time are taken from the same processes, five of each
//! kind at once, over two minutes; the times from rounds in which every kind has its turn. The
//! child is this program itself, so that its own start costs the same for all. The pilots run an
//! installed copy, as in a pod.

#![expect(clippy::print_stdout, reason = "prints a table")]
#![expect(clippy::disallowed_methods, reason = "starts processes")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]

#[path = "pilot/api.rs"]
mod api;
#[path = "../tests/support/lib.rs"]
mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};

use self::{
    api::Api,
    support::{clock, executable},
};

/// Processes of each kind that idle side by side.
const COPIES: u8 = 5;
const IDLE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 41;
const DATABASE_ROUNDS: u8 = 9;
const PATIENCE: Duration = Duration::from_secs(60);
/// The word by which this program knows that it is the child.
const CHILD: &str = "be-the-child";

const SCRIPT: &str = include_str!("../tests/support/scripted-cassandra.pl");
const PILOT: &str = "metadata: {name: host-a}\nspec: {version: 5.0.6, jvm: {heap: 384Mi}, cassandra: \
                     {clusterName: demo, datacenter: d, rack: r}}\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A pilot that has its intent from an API and reports to it.
    Connected,
    /// A pilot that has its intent from a file.
    Alone,
    Exec,
    Tini,
    DumbInit,
    None,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Connected, "navigator pilot cassandra, with an API"),
    (Kind::Alone, "the same, alone"),
    (Kind::Exec, "navigator pilot exec"),
    (Kind::Tini, "tini -s"),
    (Kind::DumbInit, "dumb-init"),
    (Kind::None, "no init"),
];

fn main() {
    if std::env::args().any(|argument| argument == CHILD) {
        be_the_child();
    }
    let place = Place::new();
    let mut columns: Vec<Column> = KINDS.map(|(kind, _)| Column::of(kind)).into();
    idle(&place, &mut columns);
    for _ in 0..ROUNDS {
        for column in columns.iter_mut().filter(|column| !column.kind.is_database()) {
            column.time(&place, 1);
        }
    }
    for round in 1..=DATABASE_ROUNDS {
        for column in columns.iter_mut().filter(|column| column.kind.is_database()) {
            column.time(&place, 100 + round);
        }
    }
    let titles = KINDS.map(|(_, title)| format!(" {title} |")).concat();
    println!("| median (least – most) |{titles}\n|---|{}", "---|".repeat(KINDS.len()));
    type Row = (&'static str, fn(&Column) -> &Vec<f64>, usize);
    let rows: [Row; 7] = [
        ("resident memory (RSS), MiB", |column| &column.resident, 2),
        ("of it private and not from a file, MiB", |column| &column.anonymous, 2),
        ("proportional share (PSS), MiB", |column| &column.share, 2),
        ("most resident memory since the start, MiB", |column| &column.peak, 2),
        ("idle for 120 s, % of a core", |column| &column.idle, 4),
        ("start to the child's first line, ms", |column| &column.start, 1),
        ("TERM to the end, ms", |column| &column.stop, 1),
    ];
    for (name, values, digits) in rows {
        let cells: Vec<String> =
            columns.iter().map(|column| spread(values(column), digits)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// Prints when it was started, and again when it receives TERM; ends at once.
fn be_the_child() -> ! {
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    term.thread_block().unwrap();
    println!("{}", now());
    term.wait().unwrap();
    #[expect(clippy::exit, reason = "the child ends here")]
    std::process::exit(0)
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}

#[derive(Default)]
struct Figures {
    peak: f64,
    resident: f64,
    anonymous: f64,
    share: f64,
}

struct Place {
    root: tempfile::TempDir,
    api: Api,
    /// The program as a pod has it: how a copy was written decides how much of it is resident.
    navigator: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let installed = root.path().join("installed");
        fs::create_dir(&installed).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_navigator"))
            .args(["install".as_ref(), installed.as_os_str()])
            .args(["--termination-log", "/nonexistent"])
            .status()
            .unwrap();
        assert!(done.success(), "navigator install: {done}");
        Self { root, api: Api::start(), navigator: installed.join("navigator") }
    }
}

impl Kind {
    fn is_database(self) -> bool {
        matches!(self, Self::Connected | Self::Alone)
    }
}

struct Column {
    kind: Kind,
    peak: Vec<f64>,
    resident: Vec<f64>,
    anonymous: Vec<f64>,
    share: Vec<f64>,
    idle: Vec<f64>,
    start: Vec<f64>,
    stop: Vec<f64>,
}

impl Column {
    fn of(kind: Kind) -> Self {
        let none = Vec::new;
        Self {
            kind,
            peak: none(),
            resident: none(),
            anonymous: none(),
            share: none(),
            idle: none(),
            start: none(),
            stop: none(),
        }
    }

    /// One start and one end.
    fn time(&mut self, place: &Place, copy: u8) {
        let (mut running, took) = Running::start(self.kind, place, copy);
        self.start.push(took);
        // Work that goes on after the start is no part of the stop.
        running.settle();
        let asked = Instant::now();
        running.signal(Signal::SIGTERM);
        running.process.wait().unwrap();
        self.stop.push(milliseconds(asked.elapsed()));
    }
}

/// Five of each kind at once, so that all have the same neighbours.
fn idle(place: &Place, columns: &mut [Column]) {
    let mut all = Vec::new();
    for copy in 1..=COPIES {
        for (index, (kind, _)) in KINDS.iter().enumerate() {
            if *kind != Kind::None {
                let (running, _) = Running::start(*kind, place, copy);
                running.settle();
                all.push((index, running));
            }
        }
    }
    let before: Vec<Duration> = all.iter().map(|(_, running)| running.on_processor()).collect();
    let since = Instant::now();
    std::thread::sleep(IDLE);
    let over = since.elapsed();
    for ((index, running), before) in all.iter().zip(before) {
        let used = running.on_processor().checked_sub(before).unwrap();
        let column = &mut columns[*index];
        column.idle.push(used.as_secs_f64() / over.as_secs_f64() * 100.0);
        let Figures { peak, resident, anonymous, share } = running.memory();
        column.peak.push(peak);
        column.resident.push(resident);
        column.anonymous.push(anonymous);
        column.share.push(share);
    }
}

struct Running {
    process: Child,
    /// Address at which a pilot of a database is asked whether its node serves.
    address: Option<String>,
}

impl Running {
    /// Starts a process; returns also the milliseconds until its child printed its first line.
    fn start(kind: Kind, place: &Place, copy: u8) -> (Self, f64) {
        let own = std::env::current_exe().unwrap();
        let navigator = place.navigator.to_str().unwrap();
        let words: &[&str] = match kind {
            Kind::Connected | Kind::Alone => return Self::start_database(kind, place, copy),
            Kind::Exec => &[navigator, "pilot", "exec", "--"],
            Kind::Tini => &["tini", "-s", "--"],
            Kind::DumbInit => &["dumb-init", "--"],
            Kind::None => &[],
        };
        let mut words: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
        words.extend([own, CHILD.into()]);
        let since = now();
        let mut process = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{words:?}: {error}; install tini and dumb-init"));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let begun: u128 = line.trim().parse().unwrap();
        let took = Duration::from_nanos(u64::try_from(begun - since).unwrap());
        (Self { process, address: None }, milliseconds(took))
    }

    /// A pilot on an address of its own, around the scripted Cassandra, which notes its start.
    fn start_database(kind: Kind, place: &Place, copy: u8) -> (Self, f64) {
        let name = format!("{kind:?}-{copy}").to_lowercase();
        let net = if kind == Kind::Connected { 74 } else { 73 };
        let address = format!("127.0.{net}.{copy}");
        let root = place.root.path().join(&name);
        for folder in ["home/bin", "home/conf", "data", "config", "shared"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        executable::write(&root.join("home/bin/cassandra"), SCRIPT);
        fs::write(root.join("shared/jolokia.jar"), "").unwrap();
        let (flag, intent) = if kind == Kind::Connected {
            ("--kubeconfig", place.api.credentials(&name))
        } else {
            fs::write(root.join("pilot.yaml"), PILOT).unwrap();
            ("--config", root.join("pilot.yaml"))
        };
        let since = Instant::now();
        let process = Command::new(&place.navigator)
            .args(["pilot", "cassandra", "--address", &address, "--bind-address", &address])
            .args(["--pilot-name", &name])
            .args([flag.into(), intent])
            .args(["--home".into(), root.join("home")])
            .args(["--data-dir".into(), root.join("data")])
            .args(["--config-dir".into(), root.join("config")])
            .args(["--shared-dir".into(), root.join("shared")])
            .env("NAVIGATOR_TERMINATION_LOG", "/nonexistent")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(root.join("log")).unwrap())
            .spawn()
            .unwrap();
        let until = Instant::now() + PATIENCE;
        let notes = root.join("notes");
        while !fs::metadata(&notes).is_ok_and(|about| about.len() > 0) {
            let log = || fs::read_to_string(root.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "the database was not started\n{}", log());
            std::thread::sleep(Duration::from_micros(200));
        }
        (Self { process, address: Some(address) }, milliseconds(since.elapsed()))
    }

    /// Waits until the start is over.
    fn settle(&self) {
        let Some(address) = &self.address else { return };
        let until = Instant::now() + PATIENCE;
        while !is_ready(address) {
            assert!(Instant::now() < until, "{address} does not serve");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    fn on_processor(&self) -> Duration {
        clock::on_processor(self.process.id())
    }

    fn memory(&self) -> Figures {
        let pid = self.process.id();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
            + &fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let mebibytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let kibibytes: u32 = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
            f64::from(kibibytes) / 1024.0
        };
        Figures {
            peak: mebibytes("VmHWM:"),
            resident: mebibytes("VmRSS:"),
            anonymous: mebibytes("RssAnon:"),
            share: mebibytes("Pss:"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            self.signal(Signal::SIGTERM);
            self.process.wait().unwrap();
        }
    }
}

/// Does the pilot at this address say that its node serves?
fn is_ready(address: &str) -> bool {
    let ask = || {
        let mut stream = std::net::TcpStream::connect((address, 12001))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        std::io::Result::Ok(line.contains(" 200 "))
    };
    ask().unwrap_or(false)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else {
        return "–".to_owned();
    };
    let median = sorted[sorted.len() / 2];
    format!("{median:.digits$} ({least:.digits$} – {most:.digits$})")
}
