//! What a run did: claims with the seconds that each took, and the Markdown table of it.

use std::{
    cell::RefCell,
    fmt::Write,
    path::Path,
    time::{Duration, Instant},
};

use jiff::{Timestamp, Unit};

/// Takes down the claims of one scenario as they are shown.
pub(crate) struct Told {
    scenario: &'static str,
    begun: Instant,
    claims: RefCell<Vec<Claim>>,
    last: RefCell<Instant>,
}

struct Claim {
    text: String,
    took: Duration,
}

/// One scenario's end.
pub(crate) struct Outcome {
    scenario: &'static str,
    passed: bool,
    took: Duration,
    claims: Vec<Claim>,
}

impl Told {
    pub(crate) fn begin(scenario: &'static str) -> Self {
        println!("{scenario}");
        let now = Instant::now();
        Self { scenario, begun: now, claims: RefCell::default(), last: RefCell::new(now) }
    }

    /// Something was shown to be so; it took since the last claim.
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
        Outcome { scenario: self.scenario, passed, took, claims: self.claims.into_inner() }
    }
}

/// The page that a run leaves.
pub(crate) fn page(outcomes: &[Outcome]) -> String {
    let today = Timestamp::now().round(Unit::Minute).unwrap_or_default();
    let all: Duration = outcomes.iter().map(|outcome| outcome.took).sum();
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let mut page = format!(
        "# The pilots against the real databases\n\n\
         Written by `make test-databases-full` on {today}: {} scenarios in {} minutes, {failed} failed.\n\
         {} cores, {} GiB of memory, shared with other work. Every scenario runs the real database as plain\n\
         processes on loopback addresses; a line below a scenario is a claim that was shown, with the seconds it took.\n\n\
         | scenario | result | s |\n|---|---|---|\n",
        outcomes.len(),
        all.as_secs() / 60,
        std::thread::available_parallelism().map_or(0, usize::from),
        memory_gib(),
    );
    for outcome in outcomes {
        let word = if outcome.passed { "passed" } else { "**failed**" };
        writeln!(page, "| `{}` | {word} | {} |", outcome.scenario, outcome.took.as_secs()).unwrap();
        for claim in &outcome.claims {
            writeln!(page, "| … {} | | {} |", claim.text, claim.took.as_secs()).unwrap();
        }
    }
    page
}

pub(crate) fn write(path: &Path, outcomes: &[Outcome]) {
    std::fs::write(path, page(outcomes))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn memory_gib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0");
    kib.parse::<u64>().unwrap_or_default() >> 20
}
