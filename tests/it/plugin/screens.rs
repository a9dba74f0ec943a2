//! What people see, from objects in `tests/data/plugin` at noon.

use std::{collections::BTreeSet, fs, path::Path};

use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use navigator::{
    api::{
        predicate::SkipPolicy,
        v1beta1::{NodeChange, Pilot},
    },
    database::shown_databases,
    databases,
    plugin::{
        ShownDatabase,
        certificates::ClusterCertificates,
        lookup::ClusterObject,
        predicates::{self, find_blockers},
        status::{self, ClusterSnapshot},
        text::OutputStyle,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{golden, scheme};

const WIDE: OutputStyle = OutputStyle { colour: false, width: Some(120) };
const NARROW: OutputStyle = OutputStyle { colour: false, width: Some(72) };
const COLOUR: OutputStyle = OutputStyle { colour: true, width: Some(120) };

fn noon() -> Timestamp {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

/// The objects of one file: a cluster, its Pilots, events.
fn picture(name: &str) -> ClusterSnapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/plugin/{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap();
    let objects =
        serde_yaml::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap());
    let (mut found, mut pilots, mut events) = (None, Vec::new(), Vec::new());
    for object in objects {
        match object["kind"].as_str().unwrap() {
            "Pilot" => pilots.push(serde_json::from_value::<Pilot>(object).unwrap()),
            "Event" => events.push(serde_json::from_value::<Event>(object).unwrap()),
            kind => {
                let kind = scheme().by_kind(kind).unwrap();
                let shown = shown_databases(databases::ALL);
                let names = shown.into_iter().map(|database| database.names);
                let names = names.into_iter().find(|names| names.kind == kind.kind());
                found = Some(ClusterObject { kind, names, object });
            }
        }
    }
    let found = found.unwrap();
    let shown = shown_databases(databases::ALL);
    let database = shown.into_iter().find(|database| database.names.kind == found.kind.kind());
    ClusterSnapshot { found, database, pilots, events }
}

#[test]
fn one_screen_says_how_a_cluster_is() {
    for name in ["upgrade", "ready", "scale-in", "fresh"] {
        let picture = picture(name);
        for (style, form) in [(WIDE, "txt"), (NARROW, "narrow.txt")] {
            let screen = picture.render(noon(), false, style);
            golden::check(&format!("plugin/status-{name}.{form}"), &screen);
            let width = style.width.unwrap();
            for line in screen.lines() {
                assert!(line.chars().count() <= width, "longer than {width}: {line}");
            }
        }
        assert_eq!(picture.picture().is_ready(), name == "ready", "{name}");
    }
}

#[test]
fn wide_and_colours_show_more_of_the_same() {
    let picture = picture("upgrade");
    let lines = OutputStyle { colour: false, width: None };
    golden::check("plugin/status-upgrade.wide.txt", &picture.render(noon(), true, lines));
    // From this one the picture in docs/images is made: scripts/screenshot.py.
    let coloured = picture.render(noon(), false, COLOUR);
    golden::check("plugin/status-upgrade.ansi", &coloured);
    let codes = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"];
    let bare = codes.iter().fold(coloured, |text, code| text.replace(code, ""));
    assert_eq!(bare, picture.render(noon(), false, WIDE));
}

#[test]
fn clusters_are_listed_a_row_each() {
    let found: Vec<ClusterObject> =
        ["fresh", "scale-in", "ready", "upgrade"].map(|name| picture(name).found).into();
    golden::check("plugin/list.txt", &status::render_clusters(&found, noon(), false, false, WIDE));
    golden::check(
        "plugin/list.all.txt",
        &status::render_clusters(&found, noon(), true, true, WIDE),
    );
}

#[test]
fn predicates_are_listed_and_those_that_hold_are_found() {
    let shown = shown_databases(databases::ALL);
    golden::check("plugin/predicates.txt", &predicates::render_predicates(&shown, WIDE));
    for name in ["upgrade", "ready", "scale-in"] {
        let picture = picture(name);
        let held = find_blockers(&picture.found, &picture.pilots, noon());
        let text = predicates::render_blockers(&picture.found, &held, noon(), WIDE);
        golden::check(&format!("plugin/holding-{name}.txt"), &text);
        assert_eq!(held.is_empty(), name == "ready", "{name}");
    }
}

#[test]
fn certificates_have_a_row_each_and_their_authorities_too() {
    let picture = picture("secured");
    let all = ClusterCertificates::new(&picture.found, &picture.pilots);
    golden::check("plugin/certificates.txt", &all.render(noon(), WIDE));
    golden::check("plugin/certificates.narrow.txt", &all.render(noon(), NARROW));
    golden::check("plugin/certificates.json", &format!("{:#}\n", all.json()));
    assert!(!all.are_well(noon()));
    let mut well = picture.found.clone();
    well.object["status"]["conditions"][0]["status"] = json!("True");
    let current = ClusterCertificates::new(&well, &picture.pilots[..1]);
    assert!(current.are_well(noon()));
    assert!(!current.are_well("2027-01-30T08:00:00Z".parse().unwrap()), "it has expired");
    for pilots in [&picture.pilots[1..2], &picture.pilots[2..]] {
        assert!(!ClusterCertificates::new(&well, pilots).are_well(noon()));
    }
}

#[test]
fn only_data_that_would_go_with_a_pod_are_said_to() {
    let mut picture = picture("ready");
    let mut named = |persistence: &Value| {
        for pool in picture.found.object["spec"]["nodePools"].as_array_mut().unwrap() {
            pool["persistence"] = persistence.clone();
        }
        for pilot in &mut picture.pilots {
            let blocker = json!({"predicate": "DataOutlivesPod", "message": "index a"});
            pilot.status.blockers = vec![serde_json::from_value(blocker).unwrap()];
        }
        let held = find_blockers(&picture.found, &picture.pilots[..1], noon());
        held.iter().any(|one| one.name == "DataOutlivesPod")
    };
    assert!(named(&Value::Null));
    assert!(named(&json!({"enabled": false})));
    assert!(!named(&json!({"size": "1Gi"})));
    let mut gone = self::picture("ready");
    gone.found.object["spec"]["nodePools"] = json!([]);
    let blocker = json!({"predicate": "DataOutlivesPod", "message": "index a"});
    gone.pilots[0].status.blockers = vec![serde_json::from_value(blocker).unwrap()];
    assert!(!find_blockers(&gone.found, &gone.pilots[..1], noon()).is_empty(), "nobody says where");
}

/// Each rule has its judge: the controller by the rule's name, the pilots by its declaration.
#[test]
fn the_list_of_predicates_is_closed() {
    let shown: Vec<&ShownDatabase> = shown_databases(databases::ALL);
    let listed = predicates::all_predicates(&shown);
    let sources: String = crate::architecture::all_sources()
        .into_iter()
        .filter(|(path, _)| !path.ends_with("predicates.rs") && !path.contains("test"))
        .filter(|(path, _)| {
            ["src/controller/", "src/databases/", "src/pilot/"]
                .iter()
                .any(|room| path.starts_with(room))
        })
        .map(|(_, text)| text)
        .collect();
    let judged = |name: &str| {
        sources.contains(&format!("\"{name}\"")) || sources.contains(&declaration(name))
    };
    let invented: Vec<&str> =
        listed.iter().map(|(_, rule)| rule.name).filter(|name| !judged(name)).collect();
    assert!(invented.is_empty(), "nothing judges these: {invented:?}");
    let without_effect = shown.iter().flat_map(|database| database.names.without_effect);
    for name in without_effect {
        assert!(!judged(name), "{name} has an effect");
    }
    let never: Vec<&str> = listed
        .iter()
        .filter(|(_, rule)| rule.skip == SkipPolicy::Never)
        .filter(|(_, rule)| rule.against != [NodeChange::Leave])
        .map(|(_, rule)| rule.name)
        .collect();
    let expected = [
        "ShardsMovedAway",
        "ShardsMayMove",
        "VoteMovedAway",
        "VoteMayMove",
        "CanaryHeld",
        "PhaseHeld",
        "RestartHelps",
        "VersionSettled",
        "MaxUnavailable",
        "ClaimKept",
        "PodAdmitted",
        "VolumeExpands",
        "MachineCordoned",
        "QuorumLost",
        "RolesReplicated",
    ];
    assert_eq!(never, expected);
    for database in &shown {
        let names = listed
            .iter()
            .filter(|(of, _)| of.is_none_or(|names| std::ptr::eq(names, database.names)));
        let names: Vec<&str> = names.map(|(_, rule)| rule.name).collect();
        let different: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), different.len(), "one rule has one declaration: {names:?}");
    }
}

/// Returns the name of the constant that declares a predicate.
fn declaration(name: &str) -> String {
    let mut constant = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !constant.is_empty() {
            constant.push('_');
        }
        constant.extend(letter.to_uppercase());
    }
    constant
}

/// The pictures of docs/images are drawn of golden screens: each word of those is in them.
#[test]
fn pictures_show_the_screens_of_today() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let help = read("tests/golden/plugin/help.txt");
    let help = help.split("\n$ ").next().unwrap().replacen("$ ", "", 1);
    for (screen, picture) in [
        (help, "docs/images/plugin-help.svg"),
        (read("tests/golden/plugin/status-upgrade.txt"), "docs/images/plugin-status.svg"),
    ] {
        let drawn = read(picture);
        let drawn = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'")]
            .iter()
            .fold(drawn, |text, (escaped, plain)| text.replace(escaped, plain))
            .replace("&amp;", "&");
        let missing: Vec<&str> =
            screen.split_whitespace().filter(|word| !drawn.contains(word)).collect();
        assert_eq!(missing, [""; 0], "{picture}: rewrite it with `make golden`");
    }
}
