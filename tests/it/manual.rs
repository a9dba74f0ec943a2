//! Pages of `docs/` that list what the code knows: nothing is missing, and nothing is made up.

mod conformance;
mod failures;
mod rights;

use std::{collections::BTreeSet, fs, path::Path};

use navigator::{
    api::{predicate::WITHOUT_EFFECT, v1beta1::NodeChange, validation::releases::ReleaseLine},
    database::shown_databases,
    databases,
    plugin::predicates,
};
use serde_json::Value;

use crate::architecture::code;

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The words that begin a row of a table of the page, written as `code`.
fn rows(page: &str) -> BTreeSet<&str> {
    let begun = page.lines().filter_map(|line| line.strip_prefix("| `"));
    begun.map(|row| row.split('`').next().unwrap()).collect()
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap()
}

#[test]
fn names_below_our_domain_are_those_of_the_code() {
    const DOMAIN: &str = "navigator.jetstack.io/";
    // Whole literals: a name in a sentence is an example. Versions of the API are none, but for
    // the annotation of that name.
    let versions = ["v1", "v1alpha1"];
    let literal = format!("\"{DOMAIN}");
    let mut known: BTreeSet<String> = code()
        .iter()
        .flat_map(|(_, text)| text.split(&literal).skip(1))
        .map(|rest| word(rest).to_owned())
        .filter(|name| !name.is_empty() && !versions.contains(&&**name))
        // Names that begin so are of the database that unit tests know.
        .filter(|name| !name.starts_with("example-"))
        .collect();
    // A prefix, followed by the role.
    assert!(known.remove("elasticsearch-role-"));
    let page = page("docs/names.md");
    let listed: BTreeSet<String> = rows(&page)
        .into_iter()
        .filter_map(|name| name.strip_prefix(DOMAIN))
        .filter(|name| *name != "elasticsearch-role-…")
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, known, "left: docs/names.md; right: src");
}

/// A line of a table of releases, as its page has it.
fn release_row(database: &str, line: &ReleaseLine) -> String {
    let version = |(major, minor)| format!("{major}.{minor}");
    let first = version(line.first);
    let accepted = if line.name.contains('.') || line.first.1 == 0 {
        line.name.to_owned()
    } else {
        format!("{}, from {first}", line.name)
    };
    let (tested, from) = (line.tested.join(", "), line.upgraded_from.join(", "));
    let reads = format!("{} and later", version(line.reads));
    let around = line.around_upgrade;
    let cells = [database, &accepted, &reads, line.java, &tested, &from, around];
    format!("| {} |", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
}

#[test]
fn releases_are_those_of_the_tables() {
    let page = page("docs/releases.md");
    let tables = [
        &navigator::databases::cassandra::releases::RELEASES,
        &navigator::databases::elasticsearch::releases::RELEASES,
    ];
    let rows = tables
        .iter()
        .flat_map(|table| table.lines.iter().map(|line| release_row(table.database, line)));
    let missing: Vec<_> = rows.filter(|row| !page.contains(&format!("{row}\n"))).collect();
    assert!(missing.is_empty(), "not in docs/releases.md:\n{}", missing.join("\n"));
    let listed = page.lines().filter(|line| {
        tables.iter().any(|table| line.starts_with(&format!("| {} |", table.database)))
    });
    assert_eq!(listed.count(), tables.iter().map(|table| table.lines.len()).sum::<usize>());
}

#[test]
fn predicates_are_those_of_the_code() {
    let page = page("docs/predicates.md");
    let shown = shown_databases(databases::ALL);
    let all = predicates::all_predicates(&shown);
    let mut known = BTreeSet::new();
    for (names, rule) in &all {
        known.insert(rule.name);
        let begin = format!("| `{}` | ", rule.name);
        let mut rows = page.lines().filter(|line| line.starts_with(&begin));
        let row = rows.next().unwrap_or_else(|| panic!("not in docs/predicates.md: {}", rule.name));
        assert_eq!(rows.next(), None, "{} has one row", rule.name);
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let against: Vec<&str> = rule.against.iter().map(NodeChange::as_str).collect();
        assert_eq!(cells[3], against.join(", "), "{}", rule.name);
        assert_eq!(cells[4], rule.skip.as_str(), "{}", rule.name);
        if let Some(names) = names {
            assert_eq!(cells[2], names.title, "{}", rule.name);
        }
    }
    assert_eq!(rows(&page), known, "left: docs/predicates.md; right: src");

    let accepted_only = page.split("rules that no step waits for today:").nth(1).unwrap();
    let accepted_only: BTreeSet<&str> =
        accepted_only.split("\n\n").next().unwrap().split('`').skip(1).step_by(2).collect();
    let lists = shown.iter().map(|database| database.names.without_effect);
    let without_effect: BTreeSet<&str> = lists.chain([WITHOUT_EFFECT]).flatten().copied().collect();
    assert_eq!(accepted_only, without_effect, "left: docs/predicates.md; right: src");

    // The controller waits for what is declared, and for nothing else.
    let mut judged = BTreeSet::new();
    let code = code();
    for (_, text) in code.iter().filter(|(path, _)| path.starts_with("src/controller/plan")) {
        let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let found = ["predicate:\"", "Some((\""].into_iter().flat_map(|it| dense.split(it).skip(1));
        judged.extend(found.map(|rest| word(rest).to_owned()));
    }
    let undeclared: Vec<_> = judged.iter().filter(|name| !known.contains(&***name)).collect();
    assert!(undeclared.is_empty(), "not declared: {undeclared:?}");
}

/// `kubectl explain` prints the description of a field and then that of its type.
#[test]
fn no_description_of_a_type_repeats_that_of_the_field() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/api/schema/v1beta1.json");
    let types: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let words = |text: &str| -> Vec<String> {
        let lower = text.trim_end_matches('.').to_lowercase();
        let articles = ["a", "an", "the"];
        let all =
            lower.split_whitespace().map(|word| word.trim_matches([',', ';', '.']).to_owned());
        all.filter(|word| !articles.contains(&word.as_str())).collect()
    };
    let repeated = |field: &Value| {
        let list = field["allOf"].as_array().and_then(|all| all.first());
        let reference = field["$ref"].as_str().or_else(|| list?["$ref"].as_str())?;
        let of_type = types[reference.rsplit('/').next()?]["description"].as_str()?;
        let (own, others) = (words(field["description"].as_str()?), words(of_type));
        (own.starts_with(&others) || others.starts_with(&own)).then(|| of_type.to_owned())
    };
    let mut found = Vec::new();
    for (name, schema) in types.as_object().unwrap() {
        let fields = schema["properties"].as_object().into_iter().flatten();
        found.extend(
            fields.filter_map(|(field, schema)| {
                Some(format!("{name} {field}: {}", repeated(schema)?))
            }),
        );
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn every_sample_is_on_its_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/samples");
    let page = page("docs/samples.md");
    let mut folders = vec![root.clone()];
    let mut missing = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
            // A twin is found beside the manifest that the page names.
            let name = name.replace(".v1beta1.yaml", ".yaml");
            if !page.contains(&format!("(../deploy/samples/{name})")) {
                missing.push(name);
            }
        }
    }
    assert_eq!(missing, [""; 0], "not in docs/samples.md");
}
