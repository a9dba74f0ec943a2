//! Every rule of `docs/rules.md` has a bad or odd object in `tests/data/api/invalid` and its exact
//! answer in `tests/golden/api/invalid`.
//!
//! A file holds the object that is created, or the stored one and the one that is written over
//! it. Its first line may say `# update` or `# update status`; `# beside` or `# update beside` when
//! the first object is another one of the same namespace.

use std::{collections::BTreeSet, fmt::Write, fs, path::Path};

use navigator::{
    api::{GROUP, validation},
    machinery::{
        decode::{self, ParsedBody},
        field_error::{ErrorList, join_errors},
        served_kind::{DecodeError, ObjectPart, ServedKind, ServedVersion},
    },
};
use serde_json::Value;

use crate::{golden, scheme};

const FOLDER: &str = "tests/data/api/invalid";

/// The rules of `docs/rules.md`: each number, and the sentences of its row.
fn rules() -> Vec<(String, Vec<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
        let [rule, _, says] = cells[..] else { return None };
        let numbered = rule.len() > 1 && rule[1..].bytes().all(|byte| byte.is_ascii_digit());
        let quoted = says.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        numbered.then(|| (rule.to_owned(), quoted))
    });
    rows.collect()
}

/// Does the text hold the sentence, with whatever at each `…`, all on one line?
fn holds(text: &str, sentence: &str) -> bool {
    text.lines().any(|line| {
        let mut rest = Some(line);
        for part in sentence.split('…') {
            let found = rest.and_then(|rest| rest.split_once(part.trim()));
            rest = found.map(|(_, after)| after);
        }
        rest.is_some()
    })
}

/// Names of the cases, without `.yaml`.
fn cases() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_rule_has_a_case_and_every_case_a_rule() {
    let (cases, rules) = (cases(), rules());
    let numbers: BTreeSet<&str> = rules.iter().map(|(rule, _)| &**rule).collect();
    assert_eq!(numbers.len(), rules.len(), "a number stands twice");
    let tried: BTreeSet<&str> = cases.iter().filter_map(|case| case.split('-').next()).collect();
    assert_eq!(numbers, tried, "left: docs/rules.md; right: {FOLDER}");
}

#[test]
fn the_server_says_what_the_page_says() {
    let cases = cases();
    let mut wrong = Vec::new();
    for (rule, sentences) in rules().into_iter().filter(|(rule, _)| !rule.starts_with('T')) {
        let own = cases.iter().filter(|case| case.split('-').next() == Some(&*rule));
        let answers: String = own.map(|case| answer(case)).collect();
        let unsaid = sentences.into_iter().filter(|sentence| !holds(&answers, sentence));
        wrong.extend(unsaid.map(|sentence| format!("{rule}: {sentence:?}")));
    }
    assert!(wrong.is_empty(), "no answer says:\n{}", wrong.join("\n"));
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
        ([other, new], "# beside") => new.write_beside(&other.stored(case), None),
        ([other, old, new], "# update beside") => {
            new.write_beside(&other.stored(case), Some(&old.stored(case)))
        }
        ([new], _) => new.write(None, ObjectPart::Main),
        ([old, new], "# update") => new.write(Some(&old.stored(case)), ObjectPart::Main),
        ([old, new], "# update status") => new.write(Some(&old.stored(case)), ObjectPart::Status),
        _ => panic!("{case}: what shall be done with its objects?"),
    }
}

struct Object {
    kind: &'static dyn ServedKind,
    version: ServedVersion,
    body: ParsedBody,
}

impl Object {
    fn read(case: &str, text: &str) -> Self {
        let body =
            decode::parse_yaml(text.as_bytes()).unwrap_or_else(|error| panic!("{case}: {error}"));
        let kind = scheme().kinds().iter().find(|kind| kind.kind() == body.value["kind"]).unwrap();
        let version = body.value["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap();
        Self { kind: *kind, version: kind.find_version(version).unwrap(), body }
    }

    /// The object as a store would hold it.
    fn stored(&self, case: &str) -> Value {
        let decoded = self.kind.decode(self.version, self.body.clone(), None);
        decoded.unwrap_or_else(|error| panic!("{case}: {error:?}")).hub
    }

    /// What a client is told whose object is valid by itself.
    fn write_beside(&self, other: &Value, stored: Option<&Value>) -> String {
        let hub = self.kind.decode(self.version, self.body.clone(), stored).unwrap().hub;
        let alone = match stored {
            None => self.kind.validate_create(self.version, &hub),
            Some(old) => self.kind.validate_update(self.version, ObjectPart::Main, &hub, old),
        };
        assert_eq!(alone.errors, Vec::new());
        let verdict = self.kind.validate_beside(self.version, &hub, stored, other);
        let refused = !verdict.errors.is_empty();
        let mut answer = if refused { self.refusal(&verdict.errors) } else { "200\n".to_owned() };
        for warning in verdict.warnings {
            writeln!(answer, "Warning: {}", shortened(&warning)).unwrap();
        }
        answer
    }

    /// What a client is told.
    fn write(&self, stored: Option<&Value>, part: ObjectPart) -> String {
        let decoded = match self.kind.decode(self.version, self.body.clone(), stored) {
            Ok(decoded) => decoded,
            Err(DecodeError::Malformed(text)) => return format!("400 {text}\n"),
            Err(DecodeError::Invalid(errors)) => return self.refusal(&errors),
        };
        let mut warnings = decoded.warnings;
        if part == ObjectPart::Main && stored.is_some() {
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
            let part = if part == ObjectPart::Status { "status" } else { "spec" };
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
        let (kind, all) = (self.kind.kind(), join_errors(errors));
        let message = format!("{kind}.{GROUP} {name:?} is invalid: {all}");
        let mut answer = format!("422 {}\n", shortened(&message));
        for error in errors {
            let (reason, body) = (error.reason(), shortened(&error.cause_message()));
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
