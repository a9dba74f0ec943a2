//! Draws the arrows of ARCHITECTURE.md: which module may import which.

mod circles;
mod names;

use std::{fs, path::Path};

/// Top-level module → the top-level modules that it may name as `crate::…`.
const ARROWS: &[(&str, &[&str])] = &[
    ("machinery", &["machinery"]),
    ("api", &["api", "machinery"]),
    ("engine", &["engine", "machinery", "api"]),
    ("runtime", &["runtime", "error"]),
    ("error", &["error"]),
    ("agent", &["agent", "engine", "runtime", "api", "error"]),
    ("apiserver", &["apiserver", "engine", "runtime", "machinery", "api", "error"]),
    ("controller", &["controller", "engine", "runtime", "machinery", "api", "error"]),
    ("coordinator", &["coordinator", "engine", "runtime", "api", "error"]),
    ("pilot", &["pilot", "engine", "runtime", "machinery", "api", "error"]),
    ("plugin", &["plugin", "engine", "runtime", "machinery", "api", "error"]),
    ("database", &["database", "controller", "pilot", "plugin", "machinery", "api"]),
    (
        "databases",
        &[
            "databases",
            "database",
            "controller",
            "pilot",
            "plugin",
            "engine",
            "runtime",
            "machinery",
            "api",
            "error",
        ],
    ),
    (
        "local",
        &[
            "local",
            "database",
            "apiserver",
            "controller",
            "pilot",
            "engine",
            "runtime",
            "machinery",
            "api",
            "error",
        ],
    ),
    ("manifest", &["manifest", "engine", "machinery", "api", "error"]),
    (
        "cli",
        &[
            "cli",
            "agent",
            "apiserver",
            "controller",
            "coordinator",
            "pilot",
            "plugin",
            "database",
            "local",
            "manifest",
            "engine",
            "runtime",
            "machinery",
            "api",
            "error",
        ],
    ),
];

/// What unit tests of any module may name: `src/testing.rs`, of which nothing is shipped.
const TESTING: &str = "testing";

/// Words that must not occur below a folder, and why.
const BANNED: &[(&str, &str, &str)] = &[
    ("src/machinery/", "async fn", "machinery has no async"),
    ("src/machinery/", "tokio", "machinery performs no I/O"),
    ("src/machinery/", "std::fs", "machinery performs no I/O"),
    ("src/api/", "async fn", "api has no async"),
    ("src/api/", "tokio", "api performs no I/O"),
    ("src/api/", "std::fs", "api performs no I/O"),
    ("src/engine/", "async fn", "engine holds pure facts"),
    ("src/engine/", "std::fs", "engine holds pure facts"),
];

pub(crate) fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

pub(crate) fn all_sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    sources(&root.join("src"), &mut found);
    for (path, _) in &mut found {
        *path = path.trim_start_matches(&format!("{}/", root.display())).to_owned();
    }
    found
}

/// The sources without their tests.
pub(crate) fn code() -> Vec<(String, String)> {
    let sources = all_sources().into_iter().filter(|(path, _)| !path.contains("tests"));
    let own = |text: &str| text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
    sources.map(|(path, text)| (path, own(&text))).collect()
}

/// Returns the top-level modules that a source names as `crate::…`, each with the line's number.
fn named(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for part in line.split("crate::").skip(1) {
            let names = match part.strip_prefix('{') {
                Some(group) => group.split(['}', ';']).next().unwrap().split(',').collect(),
                None => vec![part],
            };
            for name in names {
                let target = name.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next();
                found.extend(target.filter(|target| !target.is_empty()).map(|t| (number + 1, t)));
            }
        }
    }
    found
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        let module = path.trim_start_matches("src/").split(['/', '.']).next().unwrap().to_owned();
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == module) else { continue };
        for (number, target) in named(&text) {
            if target != TESTING && !allowed.contains(&target) {
                wrong.push(format!("{path}:{number}: {module} names {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "imports against the arrows:\n{}", wrong.join("\n"));
}

#[test]
fn leaves_stay_pure() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        for (folder, word, reason) in BANNED {
            if !path.starts_with(folder) {
                continue;
            }
            for (number, line) in text.lines().enumerate() {
                if line.contains(word) && !line.trim_start().starts_with("//") {
                    wrong.push(format!("{path}:{}: {word:?}: {reason}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Only tests may stop tokio's clock: docs/decisions/0009-one-set-of-features.md.
#[test]
fn what_is_shipped_never_stops_its_clock() {
    let mut wrong = Vec::new();
    for (path, text) in code() {
        for (number, line) in text.lines().enumerate() {
            let words = ["time::pause", "time::advance", ".start_paused("];
            if words.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn conversion_names_every_field() {
    // `..` in a pattern or a literal would let a new field slip through unconverted.
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        if !path.starts_with("src/api/conversion") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("..") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "`..` in conversion code:\n{}", wrong.join("\n"));
}

/// The role: Navigator's kinds, names and rules, handed to the server.
const ROLE: &[&str] = &["src/apiserver/role.rs", "src/apiserver/role/"];

/// The wall: what any API server needs, and a server that is handed its kinds, name none of ours.
/// What they name may be handed to another server (docs/decisions/0015-one-crate-with-a-wall.md).
#[test]
fn the_server_knows_no_kind_of_ours() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in code() {
        let is_server = path.starts_with("src/machinery") || path.starts_with("src/apiserver/");
        if !is_server || ROLE.iter().any(|role| path.starts_with(role)) {
            continue;
        }
        seen += 1;
        for (number, target) in named(&text) {
            if ["api", "engine"].contains(&target) {
                wrong.push(format!("{path}:{number}: names {target}"));
            }
        }
        for (number, line) in text.lines().enumerate() {
            let names = ["navigator.jetstack.io", "leaderlease", "\"pilots\"", "\"Pilot\""];
            let ours = names.iter().any(|name| line.contains(name));
            if ours && !line.trim_start().starts_with("//") {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(seen > 150, "{seen} files were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where a database is named: its own folder, and the list.
const AT_HOME: &[&str] = &["src/databases/", "src/databases.rs"];

/// Names on the wire that were released, in the test that holds them.
const WIRE: &[(&str, &str)] = &[
    (
        "src/pilot/process/takeover/handoff.rs",
        r#""arguments":["/shared/navigator","pilot","cassandra"]"#,
    ),
    ("src/pilot/process/takeover/handoff.rs", r#""node":{"flavour":"cassandra""#),
];

#[test]
fn a_database_is_named_in_its_own_folder() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        if AT_HOME.iter().any(|home| path.starts_with(home)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            let names = ["cassandra", "elasticsearch"].iter().any(|name| lower.contains(name));
            let released = WIRE.iter().any(|(file, part)| path == *file && line.contains(part));
            if names && !released {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
