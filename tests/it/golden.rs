//! Expected outputs in `tests/golden`, and why they are as they are.
//!
//! `UPDATE_GOLDEN=NAME` rewrites those whose path contains `NAME`, one of several names, or `1` for all;
//! read the diff first. `make golden NAME=…` does so. Then `tests/golden/REASONS` wants a reason.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Equal lines that are shown before and after a difference.
const CONTEXT: usize = 3;
/// Differences that are shown, and lines of each side of one.
const SHOWN: usize = 5;
const LINES: usize = 12;
/// Characters of a line that are shown.
const WIDTH: usize = 160;
/// As many equal lines end a difference: a lone bracket is equal to any other.
const AGAIN: usize = 3;
/// File of the reasons, beside the expected outputs.
const REASONS: &str = "REASONS";
/// Stands in the place of a digest where a test judges the contents by something else.
const TESTED: &str = "-";
/// Hexadecimal digits of a digest.
const DIGITS: usize = 8;

/// Compares `text` with the file `tests/golden/NAME`.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    check_file(&format!("tests/golden/{name}"), text);
}

/// Compares `text` with a file of the repository that is written by the program.
#[track_caller]
pub(crate) fn check_file(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if names_to_update().is_some_and(|names| contains_any(name, &names)) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("failed to read {}: {error}; make golden NAME={name} writes it", path.display())
    });
    assert!(
        text == expected,
        "{} differs: - is what it holds, + what came; make golden NAME={name} rewrites it\n{}",
        path.display(),
        differences(&expected, text)
    );
}

/// The names of the files that shall be rewritten; `None` where none shall.
fn names_to_update() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "a switch of the tests, not of the product")]
    std::env::var("UPDATE_GOLDEN").ok()
}

/// Returns whether a path contains one of these names; the name `1` stands for all paths.
fn contains_any(path: &str, names: &str) -> bool {
    names.split_whitespace().any(|name| name == "1" || path.contains(name))
}

/// A line of `tests/golden/REASONS`: what paths begin with, a digest of their contents, and why these are so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reason {
    prefix: String,
    digest: String,
    text: String,
}

/// Reads the lines that are no comments.
fn parse_reasons(file: &str) -> Vec<Reason> {
    let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields =
                line.splitn(3, char::is_whitespace).map(|field| field.trim().to_owned());
            let mut field = || fields.next().unwrap_or_default();
            Reason { prefix: field(), digest: field(), text: field() }
        })
        .collect()
}

/// Returns the longest prefix of a path for which there is a reason.
fn prefix_of<'a>(path: &str, reasons: &'a [Reason]) -> Option<&'a str> {
    let prefixes = reasons.iter().map(|reason| reason.prefix.as_str());
    prefixes.filter(|prefix| path.starts_with(prefix)).max_by_key(|prefix| prefix.len())
}

/// Returns the digest of the files that a reason is about; `None` where there are none.
fn digest_of(
    reason: &Reason,
    reasons: &[Reason],
    goldens: &BTreeMap<String, Vec<u8>>,
) -> Option<String> {
    let own = goldens.iter().filter(|(path, _)| prefix_of(path, reasons) == Some(&*reason.prefix));
    let digests: Vec<_> =
        own.map(|(path, content)| format!("{path} {:x}\n", Sha256::digest(content))).collect();
    let all = (!digests.is_empty()).then(|| format!("{:x}", Sha256::digest(digests.concat())))?;
    Some(if reason.digest == TESTED { TESTED.to_owned() } else { all[..DIGITS].to_owned() })
}

/// Lists what is wrong with the reasons, one line each.
fn wrong_reasons(reasons: &[Reason], goldens: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let without = goldens.keys().filter(|path| prefix_of(path, reasons).is_none());
    let mut wrong: Vec<_> = without.map(|path| format!("{path}: no line is about it")).collect();
    for reason in reasons {
        let Reason { prefix, digest, text } = reason;
        let namesakes = reasons.iter().filter(|other| other.prefix == *prefix).count();
        match digest_of(reason, reasons, goldens) {
            _ if namesakes > 1 => wrong.push(format!("{prefix}: {namesakes} lines are about it")),
            None => wrong.push(format!("{prefix}: there is no such expected output any more")),
            Some(actual) if actual != *digest => wrong.push(format!(
                "{prefix}: changed, and the reason is of before; say why: {prefix} {actual} …"
            )),
            Some(_) if text.is_empty() => wrong.push(format!("{prefix}: has no reason")),
            Some(_) => {}
        }
    }
    wrong
}

/// Returns the file with the digests of today. A line whose digest changes loses its reason: a person
/// writes the next one.
fn without_stale_reasons(file: &str, goldens: &BTreeMap<String, Vec<u8>>) -> String {
    let reasons = parse_reasons(file);
    let mut left = reasons.iter();
    let lines = file.lines().map(|line| {
        if line.is_empty() || line.starts_with('#') {
            return line.to_owned() + "\n";
        }
        let reason = left.next().expect("each such line is a reason");
        match digest_of(reason, &reasons, goldens) {
            Some(digest) if digest != reason.digest => format!("{} {digest}\n", reason.prefix),
            _ => line.to_owned() + "\n",
        }
    });
    lines.collect()
}

/// Returns the contents of all files below a folder but the reasons, by path.
fn read_goldens(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut goldens = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path != Path::new(REASONS) {
                goldens.insert(path.to_str().unwrap().to_owned(), fs::read(entry.path()).unwrap());
            }
        }
    }
    goldens
}

#[test]
fn every_golden_has_a_reason_of_its_content() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (path, goldens) = (folder.join(REASONS), read_goldens(&folder));
    let file = fs::read_to_string(&path).unwrap();
    if names_to_update().is_some() {
        fs::write(&path, without_stale_reasons(&file, &goldens)).unwrap();
        return;
    }
    let wrong = wrong_reasons(&parse_reasons(&file), &goldens);
    assert!(wrong.is_empty(), "tests/golden/{REASONS}:\n{}", wrong.join("\n"));
}

#[test]
fn a_changed_golden_needs_another_reason() {
    let goldens = |content: &str| {
        let files = [("a/1", "x"), ("a/2", content), ("ab", "x"), ("c/1", "x")];
        let files = files.map(|(path, content)| (path.to_owned(), content.as_bytes().to_vec()));
        BTreeMap::from(files)
    };
    let before = goldens("before");
    let blank = "# Why.\n\na ?\nab ?\nc/ - tested\n";
    let digests = without_stale_reasons(blank, &before);
    assert_eq!(
        wrong_reasons(&parse_reasons(&digests), &before),
        ["a: has no reason", "ab: has no reason"]
    );
    let good: String = digests
        .lines()
        .map(|line| match line.split_once(' ') {
            Some(("a" | "ab", _)) => format!("{line} so it is\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    assert_eq!(wrong_reasons(&parse_reasons(&good), &before), [""; 0]);
    assert_eq!(without_stale_reasons(&good, &before), good);

    let after = goldens("after");
    let wrong = wrong_reasons(&parse_reasons(&good), &after);
    assert!(wrong.len() == 1 && wrong[0].starts_with("a: changed"), "{wrong:?}");
    let updated = without_stale_reasons(&good, &after);
    assert_eq!(wrong_reasons(&parse_reasons(&updated), &after), ["a: has no reason"]);
    assert!(updated.contains("ab") && updated.matches("so it is").count() == 1, "{updated}");

    let mut fewer = before.clone();
    fewer.remove("ab");
    fewer.insert("d".to_owned(), Vec::new());
    let wrong = wrong_reasons(&parse_reasons(&good), &fewer);
    assert!(wrong.len() == 2 && wrong[0].starts_with("d: no line"), "{wrong:?}");
    assert!(wrong[1].starts_with("ab: there is no such"), "{wrong:?}");
    let twice = parse_reasons(&format!("{good}c/ - tested\n"));
    assert_eq!(wrong_reasons(&twice, &before).len(), 2);
}

#[test]
fn goldens_to_update_are_named() {
    let path = "tests/golden/plugin/list.txt";
    assert!(contains_any(path, "1") && contains_any(path, "page plugin/l"));
    assert!(!contains_any(path, "page docs/1") && !contains_any(path, ""));
}

/// The first differing lines with some around them, numbered as in the file.
fn differences(expected: &str, actual: &str) -> String {
    let (old, new) = (lines(expected), lines(actual));
    let (mut at, mut shown, mut count) = ((0, 0), Vec::new(), 0);
    while let Some(((from, to), (end, until))) = next(&old, &new, at) {
        count += 1;
        if count <= SHOWN {
            let before = from.saturating_sub(CONTEXT).max(at.0);
            let after = (end + CONTEXT).min(old.len());
            shown.extend((before..from).map(|n| line(' ', n, old[n], 0)));
            // A long line is shown from shortly before where it differs.
            let skip = match (old.get(from), new.get(to)) {
                (Some(one), Some(other)) => {
                    one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count()
                }
                _ => 0,
            };
            shown.extend(side('-', &old[from..end], from, skip));
            shown.extend(side('+', &new[to..until], to, skip));
            shown.extend((end..after).map(|n| line(' ', n, old[n], 0)));
            shown.push("  --".to_owned());
        }
        at = (end, until);
    }
    if count > SHOWN {
        shown.push(format!("  and {} more differences", count - SHOWN));
    }
    shown.join("\n")
}

/// Lines with their ends, so that a missing one differs.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

type Place = (usize, usize);

/// Where the next difference begins and ends on both sides: at the nearest lines that go on alike.
fn next(old: &[&str], new: &[&str], (mut from, mut to): Place) -> Option<(Place, Place)> {
    while from < old.len() && to < new.len() && old[from] == new[to] {
        (from, to) = (from + 1, to + 1);
    }
    let (rest, other) = (&old[from..], &new[to..]);
    if rest.is_empty() && other.is_empty() {
        return None;
    }
    for far in 1..rest.len() + other.len() {
        for skip in far.saturating_sub(other.len())..=far.min(rest.len()) {
            let (one, two) = (&rest[skip..], &other[far - skip..]);
            let alike = one.iter().zip(two).take(AGAIN).take_while(|(a, b)| a == b).count();
            let ends = one.len() == two.len() && alike == one.len();
            if alike == AGAIN || (ends && alike > 0) {
                return Some(((from, to), (from + skip, to + far - skip)));
            }
        }
    }
    Some(((from, to), (old.len(), new.len())))
}

fn side(sign: char, lines: &[&str], from: usize, skip: usize) -> Vec<String> {
    let shown = lines.iter().take(LINES).enumerate();
    let mut shown: Vec<_> = shown.map(|(n, text)| line(sign, from + n, text, skip)).collect();
    if lines.len() > LINES {
        shown.push(format!("{sign}      … {} lines more", lines.len() - LINES));
    }
    shown
}

fn line(sign: char, number: usize, text: &str, skip: usize) -> String {
    let ended = text.ends_with('\n');
    let text = text.trim_end_matches('\n');
    let end = if ended { "" } else { " (no newline at the end)" };
    let length = text.chars().count();
    if length <= WIDTH {
        return format!("{sign}{:5} {text}{end}", number + 1);
    }
    let begin = skip.saturating_sub(WIDTH / 4).min(length - WIDTH);
    let part: String = text.chars().skip(begin).take(WIDTH).collect();
    let (left, right) =
        (if begin > 0 { "…" } else { "" }, if begin + WIDTH < length { "…" } else { "" });
    format!("{sign}{:5} {left}{part}{right}{end}", number + 1)
}

#[test]
fn a_difference_is_shown_with_the_lines_around_it() {
    let old: Vec<_> = (1..=40).map(|n| format!("line {n}\n")).collect();
    let mut new = old.clone();
    new[9] = "other\n".to_owned();
    new.remove(29);
    let shown = differences(&old.concat(), &new.concat());
    let wanted = [
        "     8 line 8",
        "     9 line 9",
        "-   10 line 10",
        "+   10 other",
        "    11 line 11",
        "-   30 line 30",
        "    31 line 31",
    ];
    for line in wanted {
        assert!(
            shown.lines().any(|shown| shown.trim_start() == line.trim_start()),
            "{line}\n{shown}"
        );
    }
    assert!(!shown.contains("line 20") && shown.lines().count() < 20, "{shown}");
}

#[test]
fn a_long_line_is_shown_where_it_differs() {
    let (old, new) = (format!("{}a\n", "x".repeat(5000)), format!("{}b\n", "x".repeat(5000)));
    let shown = differences(&old, &new);
    assert!(shown.contains("xa\n") && shown.contains("xb\n") && shown.len() < 500, "{shown}");
}

#[test]
fn a_text_that_ends_early_or_late_differs() {
    assert_eq!(differences("a\n", "a\nb\n"), "     1 a\n+    2 b\n  --");
    assert_eq!(differences("a\nb\n", "a\n"), "     1 a\n-    2 b\n  --");
    let shown = differences("a\n", "a");
    assert!(shown.contains("+    1 a (no newline at the end)"), "{shown}");
}
