//! Counts names: within a room none stands for two types, most types have two words, most functions
//! are a verb with its object, and variables are nouns. docs/words.md says which.

use std::collections::BTreeMap;

use super::code;

/// One of each may be in every module.
const IN_EVERY_MODULE: [&str; 5] = ["Args", "Config", "Error", "Metrics", "Result"];
/// Types of one word are the field's own words, of a hundred.
const ONE_WORD_TYPES: usize = 10;
/// Functions of one word, of a hundred: getters, and methods whose type is the object.
const ONE_WORD_FUNCTIONS: usize = 40;
/// Names that traits of other crates, or all Rust programs, give to functions.
const USUAL_FUNCTIONS: [&str; 15] = [
    "new", "fmt", "from", "default", "main", "drop", "next", "clone", "eq", "cmp", "hash", "deref",
    "into", "try_from", "source",
];
/// Variables that are called by one of these, of a thousand.
const NO_NOUNS_SHARE: usize = 10;
/// Participles, pronouns and question words. They do not say what a variable holds.
const NO_NOUNS: &str = "asked begun done due ended forgotten former found given gone heard held here \
    kept known left made mine named noted ours owed own refused said seen shown standing taken \
    theirs there told wanted what which who whom whose why written";

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
        short.len() * 100 <= names.len() * ONE_WORD_TYPES,
        "{} of {} types are called by one word: {short:?}",
        short.len(),
        names.len()
    );
}

/// Returns the names that follow a keyword, as `fn` or `let`, outside comments.
fn names_after<'a>(text: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(move |line| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut names = Vec::new();
        while let Some(word) = words.next() {
            if word == keyword {
                names.extend(words.find(|word| !word.is_empty() && *word != "mut"));
            }
        }
        names
    })
}

#[test]
fn most_functions_are_a_verb_with_its_object() {
    let sources = code();
    let names: Vec<_> = sources
        .iter()
        .flat_map(|(_, text)| names_after(text, "fn"))
        .filter(|name| !USUAL_FUNCTIONS.contains(name))
        .collect();
    assert!(names.len() > 5000, "{} functions were found", names.len());
    let short = names.iter().filter(|name| !name.contains('_')).count();
    assert!(
        short * 100 <= names.len() * ONE_WORD_FUNCTIONS,
        "{short} of {} functions are called by one word",
        names.len()
    );
}

#[test]
fn variables_are_nouns() {
    let sources = code();
    let variables = |text: &str| names_after(text, "let").map(str::to_owned).collect::<Vec<_>>();
    let mut all = 0;
    let mut poor = Vec::new();
    for (path, text) in &sources {
        for name in variables(text) {
            all += 1;
            if NO_NOUNS.split(' ').any(|poor| poor == name) {
                poor.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(all > 10_000, "{all} variables were found");
    assert!(poor.len() * 1000 <= all * NO_NOUNS_SHARE, "{} of {all}: {poor:#?}", poor.len());
}
