//! The help of every command is as it was read last.

use std::process::Output;

use crate::golden;

#[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
pub(super) fn called(args: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    std::process::Command::new(env!("CARGO_BIN_EXE_navigator"))
        .arg0("kubectl-navigator")
        .args(args)
        .env_clear()
        .output()
        .unwrap()
}

const COMMANDS: &[&[&str]] = &[
    &[],
    &["status"],
    &["logs"],
    &["logs", "pretty"],
    &["shell"],
    &["get-credentials"],
    &["certificates"],
    &["restart"],
    &["pause"],
    &["resume"],
    &["stop"],
    &["start"],
    &["fence"],
    &["give-up"],
    &["unsafe-bootstrap"],
    &["drain"],
    &["machines"],
    &["cleanup"],
    &["scale"],
    &["upgrade"],
    &["predicates"],
    &["report"],
    &["install"],
    &["install", "generate"],
    &["install", "check"],
    &["completion"],
    &["version"],
];

fn help(command: &[&str]) -> String {
    let output = called(&[command, &["--help"]].concat());
    assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_command_has_its_page() {
    let mut all = Vec::new();
    for command in COMMANDS {
        let page = help(command);
        let name = [&["kubectl navigator"], *command].concat().join(" ");
        assert!(page.contains(&format!("Usage: {name}")), "{name} is not in its usage:\n{page}");
        let examples = page.split("Examples:").nth(1).unwrap_or_default();
        let examples = examples.lines().filter(|line| line.contains("navigator")).count();
        assert!(examples >= 2, "{name} has {examples} examples:\n{page}");
        all.push(format!("$ {name} --help\n{page}\n"));
    }
    golden::check("plugin/help.txt", &all.concat());
}

#[test]
fn no_command_is_without_a_page() {
    let listed = |page: &str| -> Vec<String> {
        let commands = page.split("Commands:\n").nth(1).unwrap_or_default();
        let lines = commands.lines().take_while(|line| !line.is_empty());
        let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    for above in [&[][..], &["logs"], &["install"]] {
        let below = listed(&help(above));
        assert!(!below.is_empty(), "{above:?}");
        for name in below {
            let command = [above, &[name.as_str()]].concat();
            assert!(COMMANDS.contains(&&command[..]), "{command:?} is not in COMMANDS");
        }
    }
}
