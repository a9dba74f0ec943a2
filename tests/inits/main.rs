//! Puts our init, tini, dumb-init and no init at all to the same cases, and prints the table.
//!
//! `make compare-inits`, or `cargo test --test inits -- WORD` for the rows that contain WORD.
//! Fails when our own column is not as it should be; the other columns say what was seen.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints a table, and its progress")]

// By path, as in tests/it: then the files below are found from both.
#[path = "suite.rs"]
mod suite;

use std::{fmt::Write, process::ExitCode};

use suite::{
    Bench, CASES, Case, Seen,
    inits::{ALL, Init},
    process::Mode,
};

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let versions: Vec<String> = ALL.iter().filter_map(|init| init.version()).collect();
    let mut table = format!("| |{}\n|---|", titles(" {} |"));
    table.push_str(&titles("---|"));
    table.push('\n');
    let mut failed = Vec::new();
    for case in CASES.iter().copied().flatten() {
        if !wanted.is_empty() && !wanted.iter().any(|word| case.says.contains(word.as_str())) {
            continue;
        }
        eprintln!("{}", case.says);
        write!(table, "| {} |", case.says).unwrap();
        for init in ALL {
            let seen = see(case, init);
            let cell = cell(&seen);
            eprintln!("    {}: {cell}", init.title());
            write!(table, " {cell} |").unwrap();
            if init == Init::Ours && seen.iter().any(|(_, seen)| seen.is_err()) {
                failed.push(format!("{}: {cell}", case.says));
            }
        }
        table.push('\n');
    }
    println!("{table}\n{}", versions.join("; "));
    for row in &failed {
        eprintln!("ours falls short: {row}");
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn titles(pattern: &str) -> String {
    ALL.map(|init| pattern.replace("{}", init.title())).concat()
}

/// What was seen in each mode in which the case has a meaning.
fn see(case: &Case, init: Init) -> Vec<(Mode, Seen)> {
    let modes = case.modes.iter().copied();
    let meant = modes.filter(|mode| init != Init::None || case.without_init && *mode == Mode::Pid1);
    meant.map(|mode| (mode, (case.run)(Bench { init, mode }))).collect()
}

fn cell(seen: &[(Mode, Seen)]) -> String {
    let text = |seen: &Seen| match seen {
        Ok("") => "✓".to_owned(),
        Ok(fact) => (*fact).to_owned(),
        Err(instead) => format!("✗ {instead}"),
    };
    match seen {
        [] => "–".to_owned(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => text(first),
        several => {
            let name = |mode: &Mode| match mode {
                Mode::Pid1 => "as PID 1",
                Mode::Subreaper => "elsewhere",
            };
            let parts =
                several.iter().map(|(mode, seen)| format!("{}: {}", name(mode), text(seen)));
            parts.collect::<Vec<_>>().join("; ")
        }
    }
}
