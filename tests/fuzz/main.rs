//! Throws damaged manifests at the decoding of both versions, and of the cluster manager's kinds.
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
    api::{V1ALPHA1, V1BETA1, containership, scheme::Scheme},
    database, databases,
    machinery::{
        decode::{self, ParsedBody},
        served_kind::{ObjectPart, ServedKind, ServedVersion},
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Serialize, de::DeserializeOwned};
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
    let (ours, machines) = (corpus("api"), corpus("containership"));
    let manifests = ours.len() + machines.len();
    println!("fuzz: {manifests} manifests, {seconds} s, seed {seed}");
    // Once: it lives as long as the program.
    let scheme = database::build_scheme(databases::ALL);
    let targets: [FuzzTarget<'_>; 3] = [
        ("decode_v1alpha1", &ours, &|body, yaml| judge(scheme, V1ALPHA1, body, yaml)),
        ("decode_v1beta1", &ours, &|body, yaml| judge(scheme, V1BETA1, body, yaml)),
        ("decode_containership", &machines, &judge_containership),
    ];
    let mut outcome = ExitCode::SUCCESS;
    for (name, corpus, judge) in targets {
        let budget = Duration::from_secs(seconds) / 3;
        match run(judge, corpus, seed, budget) {
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

/// Judges a body, which is YAML or not: was it understood? An error where it changes on its way.
type Judge<'a> = &'a dyn Fn(&[u8], bool) -> Result<bool, String>;
/// A name, the manifests that are damaged, and what judges them.
type FuzzTarget<'a> = (&'static str, &'a [Value], Judge<'a>);

/// Every manifest of a folder of `tests/data`, valid and invalid.
fn corpus(folder: &str) -> Vec<Value> {
    fn read(folder: &Path, found: &mut Vec<Value>) {
        let mut entries: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                read(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = fs::read_to_string(&path).unwrap();
                let parsed = text.split("\n---\n").map(|part| decode::parse_yaml(part.as_bytes()));
                found.extend(parsed.map(|parsed| parsed.unwrap().value));
            }
        }
    }
    let mut found = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder), &mut found);
    assert!(found.len() > 10, "only {} manifests found", found.len());
    found
}

struct Tally {
    cases: u64,
    understood: u64,
}

fn run(judge: Judge<'_>, corpus: &[Value], seed: u64, budget: Duration) -> Result<Tally, String> {
    let start = Instant::now();
    let mut tally = Tally { cases: 0, understood: 0 };
    while start.elapsed() < budget {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(tally.cases));
        let body = Mutator { rng: &mut rng, corpus }.body();
        let yaml = rng.random_bool(0.5);
        let failed = |why: String| {
            let body = String::from_utf8_lossy(&body);
            format!("case {}, yaml {yaml}: {why}\n{body}", tally.cases)
        };
        match catch_unwind(AssertUnwindSafe(|| judge(&body, yaml))) {
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
    let parsed = if yaml { decode::parse_yaml(body) } else { decode::parse_json(body) };
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

/// As [`judge`], for the kinds that kube-apiserver serves and Navigator reads.
fn judge_containership(body: &[u8], yaml: bool) -> Result<bool, String> {
    let parsed = if yaml { decode::parse_yaml(body) } else { decode::parse_json(body) };
    let Ok(document) = parsed else { return Ok(false) };
    let value = document.value;
    match value["kind"].as_str().unwrap_or_default() {
        "AuthorizationRole" => comes_back::<containership::AuthorizationRole>(value),
        "AuthorizationRoleBinding" => comes_back::<containership::AuthorizationRoleBinding>(value),
        "ClusterLabel" => comes_back::<containership::ClusterLabel>(value),
        "ClusterUpgrade" => comes_back::<containership::ClusterUpgrade>(value),
        "NodePoolLabel" => comes_back::<containership::NodePoolLabel>(value),
        "Plugin" => comes_back::<containership::Plugin>(value),
        "Registry" => comes_back::<containership::Registry>(value),
        "User" => comes_back::<containership::User>(value),
        _ => Ok(false),
    }
}

/// What was understood and is written reads the same.
fn comes_back<T: Serialize + DeserializeOwned>(value: Value) -> Result<bool, String> {
    let Ok(object) = serde_json::from_value::<T>(value) else { return Ok(false) };
    let written = serde_json::to_value(&object).map_err(|error| format!("is lost: {error}"))?;
    let again: T = serde_json::from_value(written.clone())
        .map_err(|error| format!("written as\n{written}\nand refused: {error}"))?;
    let twice = serde_json::to_value(&again).map_err(|error| format!("is lost: {error}"))?;
    if twice == written {
        Ok(true)
    } else {
        Err(format!("written as\n{written}\nthen as\n{twice}"))
    }
}
