//! Expected outputs in `tests/golden`. `UPDATE_GOLDEN=1` rewrites them; read the diff first.

use std::{fs, path::Path};

/// Equal lines that are shown before and after a difference.
const CONTEXT: usize = 3;
/// Differences that are shown, and lines of each side of one.
const SHOWN: usize = 5;
const LINES: usize = 12;
/// Characters of a line that are shown.
const WIDTH: usize = 160;
/// As many equal lines end a difference: a lone bracket is equal to any other.
const AGAIN: usize = 3;

/// Compares `text` with the file `tests/golden/NAME`.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    check_file(&format!("tests/golden/{name}"), text);
}

/// Compares `text` with a file of the repository that is written by the program.
#[track_caller]
pub(crate) fn check_file(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    #[expect(clippy::disallowed_methods, reason = "a switch of the tests, not of the product")]
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    if update {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("failed to read {}: {error}; UPDATE_GOLDEN=1 writes it", path.display())
    });
    assert!(
        text == expected,
        "{} differs: - is what it holds, + what came; UPDATE_GOLDEN=1 rewrites it\n{}",
        path.display(),
        differences(&expected, text)
    );
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
