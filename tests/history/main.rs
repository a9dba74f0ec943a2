//! Clients and watchers against real API servers while things break, and a checker that judges
//! what they saw. `make test-history`; the same schedule again with `HISTORY_SEED=7`, many with
//! `HISTORY_SEED=1..200`; `cargo test --test history -- FILE` judges a recorded history again.
//!
//! Each run prints its seed, and leaves what it recorded in `.cache/history/SEED.jsonl`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints its runs")]

#[path = "check/lib.rs"]
mod check;
mod clients;
#[path = "../it/storage/etcd_server.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod etcd_server;
mod plan;
#[path = "../it/storage/power.rs"]
mod power;
mod powered;
mod proxy;
mod recorder;
mod run;
mod servers;
#[path = "../support/lib.rs"]
mod support;
mod watchers;
mod wire;

use std::{env, ops::RangeInclusive, path::Path, process::ExitCode, time::Instant};

use tokio::runtime::Runtime;

use self::{plan::Plan, run::Verdict};

/// The seeds of CI: each kind of run at least once.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// Runs of one seed, as long as they are invalid.
const ATTEMPTS: usize = 3;

fn main() -> ExitCode {
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let runtime = Runtime::new().unwrap();
    match arguments.first().map(String::as_str) {
        // This program as the server whose disk loses what was not synced.
        Some("apiserver") => {
            runtime.block_on(powered::serve(&arguments));
            ExitCode::SUCCESS
        }
        Some(file) if Path::new(file).is_file() => {
            let found = check::check(&recorder::read(Path::new(file)));
            for violation in &found {
                println!("{violation}");
            }
            if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        _ => {
            let begun = Instant::now();
            let seeds = seeds();
            let wrong: Vec<u64> = seeds.clone().filter(|seed| !is_right(&runtime, *seed)).collect();
            let (runs, took) = (seeds.count(), begun.elapsed().as_secs());
            println!("{runs} histories in {took} s, {} of them wrong: {wrong:?}", wrong.len());
            if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// A machine that is busy with something else may make a run invalid, but not every time.
fn is_right(runtime: &Runtime, seed: u64) -> bool {
    let plan = Plan::of(seed);
    let mut verdicts = (0..ATTEMPTS).map(|_| runtime.block_on(run::run(&plan)));
    verdicts.find(|verdict| *verdict != Verdict::Invalid) == Some(Verdict::AsPromised)
}

#[expect(clippy::disallowed_methods, reason = "says which schedule to repeat")]
fn seeds() -> RangeInclusive<u64> {
    let Ok(told) = env::var("HISTORY_SEED") else { return SEEDS };
    let number = |text: &str| text.parse().expect("HISTORY_SEED is 7 or 1..200");
    let (first, last) = told.split_once("..").unwrap_or((&told, &told));
    number(first)..=number(last)
}
