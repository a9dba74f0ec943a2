//! Counts the names of types: within a room none stands for two types, and most have two words.

use std::collections::BTreeMap;

use super::code;

/// One of each may be in every module.
const IN_EVERY_MODULE: [&str; 5] = ["Args", "Config", "Error", "Metrics", "Result"];
/// Types of one word are the field's own words, of a hundred.
const ONE_WORD_SHARE: usize = 35;

/// The types that a file defines beside its functions.
fn types(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        });
        let mut words = line.split_ascii_whitespace();
        // What is indented belongs to an impl or to a function.
        let is_type = !line.starts_with("    ")
            && words.next().is_some_and(|word| ["struct", "enum", "trait", "type"].contains(&word));
        let name = words.next().filter(|_| is_type)?;
        Some(name.split(|c: char| !c.is_alphanumeric()).next().unwrap())
    })
}

/// A first folder below src, or a database. Versions of the published schema repeat their names.
fn room(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut parts: Vec<_> = path.split('/').collect();
    let version = ["v1alpha1", "v1beta1"].into_iter().find(|version| parts.contains(version));
    parts.truncate(if parts[0] == "databases" { 2 } else { 1 });
    [parts.join("/"), version.unwrap_or_default().to_owned()].join(" ").trim().to_owned()
}

#[test]
fn within_a_room_no_two_types_have_one_name() {
    let mut found = BTreeMap::<(String, String), Vec<String>>::new();
    for (path, text) in code() {
        for name in types(&text).filter(|name| !IN_EVERY_MODULE.contains(name)) {
            found.entry((room(&path), name.to_owned())).or_default().push(path.clone());
        }
    }
    assert!(found.len() > 500, "{} types were found", found.len());
    let twice: Vec<_> = found.iter().filter(|(_, paths)| paths.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

#[test]
fn most_types_have_names_of_two_words() {
    let sources = code();
    let names: Vec<_> = sources
        .iter()
        .flat_map(|(_, text)| types(text))
        .filter(|name| !IN_EVERY_MODULE.contains(name))
        .collect();
    let is_one_word = |name: &&&str| name.chars().skip(1).all(|c| !c.is_uppercase());
    let short: Vec<_> = names.iter().filter(is_one_word).collect();
    assert!(
        short.len() * 100 <= names.len() * ONE_WORD_SHARE,
        "{} of {} types are called by one word: {short:?}",
        short.len(),
        names.len()
    );
}
