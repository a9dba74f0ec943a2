//! The rooms of these tests: a filter such as `pilot::` selects one, `tests/README.md` lists all.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Names of all tests of this binary.
#[expect(clippy::disallowed_methods, reason = "asks the test binary for its list")]
fn tests() -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--list", "--format=terse"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[test]
fn a_room_with_two_colons_selects_that_room_only() {
    let tests = tests();
    let rooms: BTreeSet<_> = tests.iter().map(|test| test.split("::").next().unwrap()).collect();
    assert!(rooms.len() > 5, "{rooms:?}");
    for room in &rooms {
        let begin = format!("{room}::");
        let others = tests.iter().filter(|test| test.contains(&begin) && !test.starts_with(&begin));
        assert_eq!(others.collect::<Vec<_>>(), [""; 0], "cargo test --test it {begin}");
        let alike = rooms.iter().filter(|other| *other != room && other.contains(room));
        assert_eq!(alike.collect::<Vec<_>>(), [&""; 0], "cargo test --test it {room}");
    }
}

#[test]
fn the_readme_names_every_folder_and_every_room() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let page = fs::read_to_string(tests.join("README.md")).unwrap();
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        entries.map(|path| name(&path) + if path.is_dir() { "/" } else { "" }).collect()
    };
    let folders = names(&tests).into_iter().filter(|name| name.ends_with('/'));
    let files = names(&tests.join("it")).into_iter().filter(|name| name != "main.rs");
    let rooms = files.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned));
    let missing = folders.chain(rooms).filter(|name| !page.contains(&format!("| `{name}` |")));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "not in tests/README.md");
}
