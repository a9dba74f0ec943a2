//! With a terminal, the child is in front of it.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

#[test]
fn the_child_owns_the_terminal_and_hears_control_c() {
    let child = r#"use POSIX; $| = 1; print tcgetpgrp(0) == getpgrp() ? "front" : "behind", "\n";
        $SIG{INT} = sub { print "interrupted\n"; exit 5 }; print "ready\n"; sleep 60 while 1"#;
    let line = format!("'{}' pilot exec -- perl -e '{child}'", env!("CARGO_BIN_EXE_navigator"));
    // `script` gives its command a terminal and types what it reads.
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is in Debian's bsdutils");
    let mut seen = Vec::new();
    for text in BufReader::new(script.stdout.take().unwrap()).lines().map_while(Result::ok) {
        let text = text.trim_end().to_owned();
        if text == "ready" {
            script.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        }
        seen.push(text);
    }
    assert_eq!(script.wait().unwrap().code(), Some(5), "saw {seen:?}");
    assert!(seen.iter().any(|line| line == "front"), "saw {seen:?}");
    assert!(seen.iter().any(|line| line.ends_with("interrupted")), "saw {seen:?}");
}
