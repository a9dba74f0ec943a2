//! `docs/conformance.md`: each line names a test that exists, or says why there is none; the table
//! at its top counts them.

use std::{collections::BTreeMap, fs, path::Path};

use clap::error::ErrorKind;
use navigator::{cli, databases};

use super::page;

const PAGE: &str = "docs/conformance.md";

/// What is said of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Shown,
    /// Shown, but we differ in a point, or no test shows all of it.
    ShownBut,
    Not,
    /// Work on this line has begun.
    InWork,
}

/// A line of the page: the behaviour, and below it what shows it.
struct Row<'a> {
    section: &'a str,
    behaviour: &'a str,
    shown_by: String,
    verdict: Verdict,
}

/// The lines of all numbered sections but that of the flags.
fn rows(page: &str) -> Vec<Row<'_>> {
    let mut section = "";
    let mut found: Vec<Row<'_>> = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            section = heading;
        }
        let numbered = section.starts_with(|first: char| first.is_ascii_digit());
        if !numbered || section.starts_with("21.") {
            continue;
        }
        if let Some(behaviour) = line.strip_prefix("- ") {
            let (shown_by, verdict) = (String::new(), Verdict::Shown);
            found.push(Row { section, behaviour, shown_by, verdict });
        } else if let Some(more) = line.strip_prefix("  ") {
            let row = found.last_mut().expect("it goes on with a line that began");
            if !row.shown_by.is_empty() {
                row.shown_by.push(' ');
            }
            row.shown_by.push_str(more);
        }
    }
    for row in &mut found {
        row.verdict = if row.shown_by.starts_with("**not:** ") {
            Verdict::Not
        } else if row.shown_by.starts_with("**in work:** ") {
            Verdict::InWork
        } else if row.shown_by.contains(". **But:** ") {
            Verdict::ShownBut
        } else {
            Verdict::Shown
        };
    }
    found
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// Is there a test of that name? Names are those that `cargo test` takes, and of the lists of
/// cases in `storage::conformance` and the like the file that holds the case; other tests are
/// files, and `file#text` is what stands in them.
fn exists(name: &str) -> bool {
    if name.starts_with("tests/") || name.starts_with("scripts/") || name.starts_with("benches/") {
        let (file, part) = name.split_once('#').unwrap_or((name, ""));
        return read(file).is_some_and(|text| text.contains(part));
    }
    let Some((modules, function)) = name.rsplit_once("::") else { return false };
    let file = modules.trim_end_matches("::tests").replace("::", "/");
    let begin = format!("fn {function}(");
    let among = |path: String| {
        read(&path).is_some_and(|text| {
            text.match_indices(&begin).any(|(at, _)| {
                // An attribute above, or a case of a list that runs each for every store.
                let above: Vec<&str> = text[..at].lines().rev().take(6).collect();
                let test = |line: &&str| line.contains("test") && line.trim().starts_with("#[");
                above.iter().any(test) || path.contains("/storage/conformance/")
            })
        })
    };
    let unit = modules.ends_with("::tests");
    let roots: &[&str] = if unit { &["src"] } else { &["tests/it", "src"] };
    roots.iter().any(|root| {
        among(format!("{root}/{file}.rs")) || unit && among(format!("{root}/{file}/tests.rs"))
    })
}

#[test]
fn every_line_names_a_test_or_says_why_there_is_none() {
    let page = page(PAGE);
    let mut wrong = Vec::new();
    for Row { behaviour, shown_by, verdict, .. } in rows(&page) {
        let (shown_by, but) = shown_by.split_once(". **But:** ").unwrap_or((&shown_by, "a reason"));
        let reason = match verdict {
            Verdict::Not | Verdict::InWork => {
                shown_by.split_once(":** ").map_or("", |(_, why)| why)
            }
            Verdict::Shown | Verdict::ShownBut => but,
        };
        let names: Vec<&str> = quoted(shown_by).collect();
        if reason.len() < 8 || (names.is_empty() && reason == but) {
            wrong.push(format!("neither test nor reason: {behaviour}"));
        }
        let tests = names.iter().filter(|name| name.contains("::") || name.contains('/'));
        let tests: Vec<_> = tests.collect();
        if tests.len() < names.len() && reason == but {
            wrong.push(format!("something that is no test: {shown_by}"));
        }
        let missing = tests.into_iter().filter(|name| !exists(name));
        wrong.extend(missing.map(|name| format!("there is no test {name}")));
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
}

#[test]
fn the_summary_counts_the_lines() {
    let page = page(PAGE);
    let mut counts: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    let mut total = [0; 4];
    let mut order = Vec::new();
    for Row { section, verdict, .. } in rows(&page) {
        if !order.contains(&section) {
            order.push(section);
        }
        counts.entry(section).or_default()[verdict as usize] += 1;
        total[verdict as usize] += 1;
    }
    assert!(order.len() > 20, "{order:?}");
    let row = |name: &str, [shown, but, not, work]: [usize; 4]| {
        format!("| {name} | {shown} | {but} | {not} | {work} |\n")
    };
    let mut expected: String = order.iter().map(|name| row(name, counts[name])).collect();
    expected.push_str(&row("all", total));
    assert!(page.contains(&expected), "the summary of {PAGE} should be\n{expected}");
}

/// Returns whether the API server reads a flag. One that it accepts for a release more, and does not
/// read, is hidden.
fn is_read(program: &clap::Command, flag: &str) -> bool {
    let typed = ["navigator", "apiserver", &format!("{flag}=x")];
    let refused = program.clone().try_get_matches_from(typed).err();
    let is_accepted = refused.is_none_or(|error| error.kind() != ErrorKind::UnknownArgument);
    let server = program.find_subcommand("apiserver").unwrap();
    let is_hidden = server
        .get_arguments()
        .any(|one| one.is_hide_set() && one.get_long() == flag.strip_prefix("--"));
    is_accepted && !is_hidden
}

/// Section 21 is a list of its own: which of upstream's flags there are.
#[test]
fn flags_are_read_as_the_page_says() {
    let page = page(PAGE);
    let flags = page.split("\n## 21.").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let program = cli::build_command(databases::ALL);
    let mut seen = 0;
    for group in flags.split("\n- ").skip(1) {
        let group = group.split("\n\n").next().unwrap();
        let (yes, no) = group.split_once("  not served:").unwrap_or((group, ""));
        for (names, served) in [(yes, true), (no, false)] {
            for name in quoted(names) {
                assert_eq!(is_read(&program, name), served, "{name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
}
