//! Every rule of the contract has a bad or odd object in `tests/data/api/invalid` and its exact
//! answer in `tests/golden/api/invalid`.
//!
//! A file holds the object that is created, or the stored one and the one that is written over
//! it. Its first line may say `# update` or `# update status`.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use navigator::api::{
    GROUP,
    decode::{self, Document},
    field::{ErrorList, aggregate},
    scheme::{DecodeError, Kind, Part, Version, kinds},
    validation,
};
use serde_json::Value;

use crate::golden;

const FOLDER: &str = "tests/data/api/invalid";

/// Numbers that the contract gives to its rules.
const RULES: &[(&str, &[u32])] = &[
    (
        "V",
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27,
            30, 31, 32, 33, 34, 35, 36, 40, 41, 42, 43, 44, 45, 50,
        ],
    ),
    ("W", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21]),
    ("T", &[1, 2, 3, 4, 5, 6, 7, 8]),
];

/// Names of the cases, without `.yaml`.
fn cases() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_rule_has_a_case() {
    let cases = cases();
    let missing: Vec<String> = RULES
        .iter()
        .flat_map(|(letter, numbers)| numbers.iter().map(move |number| format!("{letter}{number}")))
        .filter(|rule| !cases.iter().any(|case| case.split('-').next() == Some(rule)))
        .collect();
    assert!(missing.is_empty(), "rules without a case in {FOLDER}: {missing:?}");
}

#[test]
fn every_case_gets_its_exact_answer() {
    for case in cases() {
        golden::check(&format!("api/invalid/{case}.txt"), &answer(&case));
    }
}

#[test]
fn many_problems_are_told_at_once() {
    let answer = answer("V14-size");
    let message = answer.lines().next().unwrap();
    assert!(message.contains("is invalid: [") && message.matches("persistence.size").count() == 4);
}

fn answer(case: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(format!("{case}.yaml"));
    let text = fs::read_to_string(path).unwrap();
    let head = text.lines().next().unwrap_or_default().to_owned();
    let documents: Vec<Object> =
        text.split("\n---\n").map(|text| Object::read(case, text)).collect();
    match (&documents[..], head.as_str()) {
        ([new], _) => new.write(None, Part::Main),
        ([old, new], "# update") => new.write(Some(&old.stored(case)), Part::Main),
        ([old, new], "# update status") => new.write(Some(&old.stored(case)), Part::Status),
        _ => panic!("{case}: what shall be done with its objects?"),
    }
}

struct Object {
    kind: &'static dyn Kind,
    version: Version,
    body: Document,
}

impl Object {
    fn read(case: &str, text: &str) -> Self {
        let body = decode::yaml(text.as_bytes()).unwrap_or_else(|error| panic!("{case}: {error}"));
        let kind = kinds().iter().find(|kind| kind.kind() == body.value["kind"]).unwrap();
        let version = body.value["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap();
        Self { kind: *kind, version: Version::parse(version).unwrap(), body }
    }

    /// The object as a store would hold it.
    fn stored(&self, case: &str) -> Value {
        let decoded = self.kind.decode(self.version, self.body.clone(), None);
        decoded.unwrap_or_else(|error| panic!("{case}: {error:?}")).hub
    }

    /// What a client is told.
    fn write(&self, stored: Option<&Value>, part: Part) -> String {
        let decoded = match self.kind.decode(self.version, self.body.clone(), stored) {
            Ok(decoded) => decoded,
            Err(DecodeError::Malformed(text)) => return format!("400 {text}\n"),
            Err(DecodeError::Invalid(errors)) => return self.refusal(&errors),
        };
        let mut warnings = decoded.warnings;
        if part == Part::Main && stored.is_some() {
            warnings.extend(validation::warning::status_ignored(&decoded.hub, stored));
        }
        let (hub, verdict) = match stored {
            None => {
                let verdict = self.kind.validate_create(self.version, &decoded.hub);
                (decoded.hub, verdict)
            }
            Some(old) => {
                let merged = self.kind.merge_update(part, decoded.hub, old);
                let verdict = self.kind.validate_update(self.version, part, &merged, old);
                (merged, verdict)
            }
        };
        warnings.extend(verdict.warnings);
        let mut answer = if verdict.errors.is_empty() {
            let shown = self.kind.encode(self.version, &hub);
            let part = if part == Part::Status { "status" } else { "spec" };
            format!("200 {part}: {}\n", shown[part])
        } else {
            self.refusal(&verdict.errors)
        };
        for warning in warnings.into_iter().chain(decoded.strict) {
            writeln!(answer, "Warning: {}", shortened(&warning)).unwrap();
        }
        shortened_lines(&answer)
    }

    fn refusal(&self, errors: &ErrorList) -> String {
        let name = self.body.value["metadata"]["name"].as_str().unwrap_or_default();
        let (kind, all) = (self.kind.kind(), aggregate(errors));
        let message = format!("{kind}.{GROUP} {name:?} is invalid: {all}");
        let mut answer = format!("422 {}\n", shortened(&message));
        for error in errors {
            let (reason, body) = (error.reason(), shortened(&error.body()));
            writeln!(answer, "{reason} {}: {body}", error.path).unwrap();
        }
        answer
    }
}

/// Values that are long on purpose, shortened.
fn shortened(text: &str) -> String {
    let mut short = String::new();
    let mut run = 0;
    let mut last = None;
    for letter in text.chars() {
        run = if last == Some(letter) { run + 1 } else { 0 };
        last = Some(letter);
        match run {
            0..60 => short.push(letter),
            60 => short.push('…'),
            _ => {}
        }
    }
    short
}

fn shortened_lines(text: &str) -> String {
    text.lines().map(|line| shortened(line) + "\n").collect()
}
