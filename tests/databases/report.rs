//! The results of scenarios: each claim that was shown, with the seconds that it took, and the page
//! that keeps every scenario's last run.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{Read, Seek, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use jiff::{Timestamp, Unit};

const HEAD: &str = "\
# The pilots against the real databases

The last run of each scenario. `make test-databases-full` runs all of them and writes this page. `cargo test --test databases -- --report
docs/test-databases.md NAME…` runs those that you name, and writes only their sections. CI runs the scenarios that `tests/databases/main.rs` marks
`Quick`, and writes nothing here. Every scenario runs real databases as plain processes on loopback addresses; `bootstraps` and `api-away` run a scripted
one. A row is a claim that the scenario showed, with the seconds that it took. The table of a failed scenario ends where it failed.
";

/// Takes down the claims of one scenario as they are shown.
pub(crate) struct Told {
    scenario: &'static str,
    begun: Instant,
    /// Read at the beginning: a commit may be made before the end.
    commit: String,
    claims: RefCell<Vec<Claim>>,
    last: RefCell<Instant>,
}

struct Claim {
    text: String,
    took: Duration,
}

/// One scenario's end.
pub(crate) struct Outcome {
    pub(crate) scenario: &'static str,
    pub(crate) passed: bool,
    took: Duration,
    commit: String,
    claims: Vec<Claim>,
}

impl Told {
    pub(crate) fn begin(scenario: &'static str) -> Self {
        println!("{scenario}");
        let now = Instant::now();
        let (claims, last) = (RefCell::default(), RefCell::new(now));
        Self { scenario, begun: now, commit: commit(), claims, last }
    }

    /// Notes what was shown, and the seconds since the last claim.
    pub(crate) fn claim(&self, text: impl Into<String>) {
        let (text, now) = (text.into(), Instant::now());
        let took = now - self.last.replace(now);
        println!("{:>7.1} s  {text}", took.as_secs_f64());
        self.claims.borrow_mut().push(Claim { text, took });
    }

    /// A figure that is worth reading beside the claims.
    #[expect(clippy::unused_self, reason = "said within a scenario")]
    pub(crate) fn note(&self, text: &str) {
        println!("           {text}");
    }

    pub(crate) fn end(self, passed: bool) -> Outcome {
        let took = self.begun.elapsed();
        let word = if passed { "passed" } else { "FAILED" };
        println!("{}: {word} in {} s", self.scenario, took.as_secs());
        let Self { scenario, commit, claims, .. } = self;
        Outcome { scenario, passed, took, commit, claims: claims.into_inner() }
    }
}

impl Outcome {
    /// The scenario's section of the page, without the heading.
    fn section(&self) -> String {
        let now = Timestamp::now().round(Unit::Minute).unwrap_or_default();
        let word = if self.passed { "Passed" } else { "**Failed**" };
        let (took, commit) = (self.took.as_secs(), &self.commit);
        let mut text = format!("{word} in {took} s on {now}, commit {commit}, {}.\n", machine());
        if !self.claims.is_empty() {
            text.push_str("\n| shown | s |\n|---|---|\n");
        }
        for claim in &self.claims {
            writeln!(text, "| {} | {} |", claim.text, claim.took.as_secs()).unwrap();
        }
        text
    }
}

/// Puts one scenario's end into the page at the place that `order` gives it; the other
/// scenarios' last runs stay, those that exist no more go.
pub(crate) fn keep(path: &Path, outcome: &Outcome, order: &[&str]) {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.as_mut().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // Another run may write the end of another scenario at the same time.
    file.lock().unwrap();
    let mut page = String::new();
    file.read_to_string(&mut page).unwrap();
    let page = merged(&page, outcome.scenario, &outcome.section(), order);
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    file.write_all(page.as_bytes()).unwrap();
}

fn merged(page: &str, scenario: &str, section: &str, order: &[&str]) -> String {
    let mut sections: BTreeMap<&str, &str> = page
        .split("\n## ")
        .skip(1)
        .filter_map(|text| text.split_once("\n\n"))
        .map(|(name, text)| (name.trim_matches('`'), text))
        .collect();
    sections.insert(scenario, section);
    let mut page = HEAD.to_owned();
    for name in order {
        let text = sections.get(name).unwrap_or(&"Never run.");
        write!(page, "\n## `{name}`\n\n{}\n", text.trim_end()).unwrap();
    }
    page
}

#[expect(clippy::disallowed_methods, reason = "tests start processes")]
fn commit() -> String {
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = commit.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.map(|commit| commit.trim().to_owned()).filter(|commit| !commit.is_empty());
    let Some(commit) = commit else { return "unknown".to_owned() };
    // Changes below docs do not count, because this program writes there.
    let changed = Command::new("git")
        .args(["status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs"])
        .output();
    let clean = changed.is_ok_and(|output| output.status.success() && output.stdout.is_empty());
    if clean { commit } else { format!("{commit} with changes") }
}

/// The machine, and how busy it was.
fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!(
        "{} cores, {} GiB of memory, load {}",
        std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib(),
        load.split(' ').nth(2).unwrap_or("unknown"),
    )
}

fn memory_gib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0");
    kib.parse::<u64>().unwrap_or_default() >> 20
}
