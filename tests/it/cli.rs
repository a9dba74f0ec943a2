//! The binary as it is called: applets, links, exit codes.

use std::{os::unix::process::CommandExt, process::Output};

use crate::golden;

#[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
fn called(name: &str, args: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_navigator"))
        .arg0(name)
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn bad_usage_ends_with_64_and_says_why() {
    for args in [
        &["no-such-applet"][..],
        &["version", "--no-such-flag"],
        &["version", "--output", "xml"],
        &["manifest", "--store", "etcd"],
        &["manifest", "--etcd-servers", "http://etcd:2379"],
        &["manifest", "--store", "etcd", "--etcd-servers", "https://etcd:2379"],
        &["manifest", "--enable-cluster-upgrade"],
        &["manifest", "--cluster-manager", "--store", "kubernetes"],
        &["manifest", "--cluster-manager", "--watch-namespace", "shop"],
        &["apiserver", "--store", "cupboard"],
        &["controller", "--no-such-flag"],
        &["agent", "--keys-folder", "/nonexistent"],
        &["agent", "keys"],
        &["coordinator", "--no-such-flag"],
        &["coordinator", "--core-namespace="],
        &["pilot", "no-such-database"],
        &["install"],
        &["local", "up", "--file", "/nonexistent.yaml"],
        &["local", "up", "--home", "/nonexistent"],
        &["local", "status", "--dir", "/tmp/white space"],
    ] {
        let output = called("navigator", args);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {output:?}");
        let told = text(&output.stderr);
        assert!(
            told.starts_with("error: ") || told.starts_with("navigator: "),
            "{args:?}: {output:?}"
        );
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn help_of_every_applet_shows_examples_and_exit_codes() {
    for applet in [
        &["apiserver"][..],
        &["controller"],
        &["agent"],
        &["agent", "keys"],
        &["agent", "cleanup"],
        &["coordinator"],
        &["pilot", "cassandra"],
        &["pilot", "elasticsearch"],
        &["install"],
        &["manifest"],
        &["local"],
        &["local", "up"],
        &["local", "status"],
        &["local", "logs"],
        &["local", "kubeconfig"],
        &["local", "down"],
        &["version"],
    ] {
        let output = called("navigator", &[applet, &["--help"]].concat());
        let help = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{applet:?}: {output:?}");
        for part in ["Usage:", "Example", "Exit codes"] {
            assert!(help.contains(part), "{applet:?} lacks {part:?}:\n{help}");
        }
    }
}

#[test]
fn a_link_is_its_applet() {
    for (link, part) in [
        ("/usr/bin/navigator-apiserver", "--store"),
        ("navigator-controller", "--pilot-image"),
        ("navigator-agent", "--keys-folder"),
        ("navigator-coordinator", "--enable-cluster-upgrade"),
        ("pilot-cassandra", "--pilot-name"),
        ("pilot-elasticsearch", "--pilot-name"),
        ("kubectl-navigator", "predicates"),
    ] {
        let output = called(link, &["--help"]);
        assert!(text(&output.stdout).contains(part), "{link}: {output:?}");
    }
}

#[test]
fn version_is_one_json_object() {
    let output = called("navigator", &["version", "--output", "json"]);
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(version["version"], format!("v{}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn deploy_holds_what_manifest_prints() {
    for (file, args) in [
        ("deploy/navigator.yaml", &["manifest"][..]),
        ("deploy/cluster-manager.yaml", &["manifest", "--cluster-manager"]),
    ] {
        golden::check_file(file, &text(&called("navigator", args).stdout));
    }
}
