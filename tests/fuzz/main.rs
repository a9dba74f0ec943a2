//! Throws damaged manifests at the decoding of both versions.
//!
//! `cargo test --test fuzz -- SECONDS [SEED]`; 2 seconds when nothing is said. Nothing may
//! panic; what was understood must come out of encode and decode as it went in. A failure prints
//! the seed and the number of its case, with which it repeats itself, and the body.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the harness reports like libtest")]

mod mutate;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use navigator::{
    api::{V1ALPHA1, V1BETA1, scheme::Scheme},
    database, databases,
    machinery::{
        decode::{self, ParsedBody},
        served_kind::{ObjectPart, ServedKind, ServedVersion},
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;

use self::mutate::Mutator;

const DEFAULT_SECONDS: u64 = 2;
/// How many bodies must be understood at least: a quarter is usual.
const UNDERSTOOD_PERCENT: u64 = 5;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if numbers.is_empty() && words.iter().any(|word| !"fuzz".contains(word.as_str())) {
        println!("fuzz: filtered out by {words:?}");
        return ExitCode::SUCCESS;
    }
    let seconds = numbers.first().copied().unwrap_or(DEFAULT_SECONDS);
    let seed = numbers.get(1).copied().unwrap_or_else(rand::random);
    let corpus = corpus();
    println!("fuzz: {} manifests, {seconds} s, seed {seed}", corpus.len());
    let mut outcome = ExitCode::SUCCESS;
    for (name, version) in [("decode_v1alpha1", V1ALPHA1), ("decode_v1beta1", V1BETA1)] {
        let budget = Duration::from_secs(seconds) / 2;
        match run(version, &corpus, seed, budget) {
            // A decoder that understands nothing would otherwise pass.
            Ok(Tally { cases, understood }) if understood * 100 < cases * UNDERSTOOD_PERCENT => {
                println!("fuzz: {name}: FAILED, only {understood} of {cases} were understood");
                outcome = ExitCode::FAILURE;
            }
            Ok(Tally { cases, understood }) => {
                println!("fuzz: {name}: {cases} cases, {understood} understood, ok");
            }
            Err(report) => {
                println!("fuzz: {name}: FAILED, seed {seed}\n{report}");
                outcome = ExitCode::FAILURE;
            }
        }
    }
    outcome
}

/// Every manifest of `tests/data/api`, valid and invalid.
fn corpus() -> Vec<Value> {
    fn read(folder: &Path, found: &mut Vec<Value>) {
        let mut entries: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                read(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = fs::read_to_string(&path).unwrap();
                let parsed = text.split("\n---\n").map(|part| decode::yaml(part.as_bytes()));
                found.extend(parsed.map(|parsed| parsed.unwrap().value));
            }
        }
    }
    let mut found = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/api"), &mut found);
    assert!(found.len() > 20, "only {} manifests found", found.len());
    found
}

struct Tally {
    cases: u64,
    understood: u64,
}

fn run(
    version: ServedVersion,
    corpus: &[Value],
    seed: u64,
    budget: Duration,
) -> Result<Tally, String> {
    let start = Instant::now();
    let mut tally = Tally { cases: 0, understood: 0 };
    // Once: it lives as long as the program.
    let scheme = database::scheme(databases::ALL);
    while start.elapsed() < budget {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(tally.cases));
        let body = Mutator { rng: &mut rng, corpus }.body();
        let yaml = rng.random_bool(0.5);
        let failed = |why: String| {
            let body = String::from_utf8_lossy(&body);
            format!("case {}, yaml {yaml}: {why}\n{body}", tally.cases)
        };
        match catch_unwind(AssertUnwindSafe(|| judge(scheme, version, &body, yaml))) {
            Ok(Ok(understood)) => tally.understood += u64::from(understood),
            Ok(Err(why)) => return Err(failed(why)),
            Err(_) => return Err(failed("panicked".to_owned())),
        }
        tally.cases += 1;
    }
    Ok(tally)
}

/// Was the body understood? An error when writing and reading then changes it.
fn judge(scheme: &Scheme, version: ServedVersion, body: &[u8], yaml: bool) -> Result<bool, String> {
    let parsed = if yaml { decode::yaml(body) } else { decode::json(body) };
    let Ok(document) = parsed else { return Ok(false) };
    let served = || scheme.kinds().iter().filter(|kind| kind.versions().contains(&version));
    let Some(kind) = served().find(|kind| kind.kind() == document.value["kind"]) else {
        return Ok(false);
    };
    let kind: &dyn ServedKind = *kind;
    let Ok(decoded) = kind.decode(version, document.clone(), None) else { return Ok(false) };
    let hub = decoded.hub;
    drop(kind.validate_create(version, &hub));
    drop(kind.validate_update(version, ObjectPart::Main, &hub, &hub));
    drop(kind.validate_update(version, ObjectPart::Status, &hub, &hub));
    drop(kind.cells(&hub, 0));
    let stored =
        kind.decode_stored(hub.clone()).map_err(|error| format!("is not read back: {error:?}"))?;
    if stored != hub {
        return Err(format!("stored as\n{hub}\nread as\n{stored}"));
    }
    let shown = kind.encode(version, &hub);
    let again = kind
        .decode(version, ParsedBody::from(shown.clone()), None)
        .map_err(|error| format!("shown as\n{shown}\nand refused: {error:?}"))?;
    if again.hub != hub {
        return Err(format!("decoded as\n{hub}\nshown as\n{shown}\nread again as\n{}", again.hub));
    }
    Ok(true)
}
