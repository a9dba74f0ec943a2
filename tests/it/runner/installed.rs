//! What `navigator agent host-install` lays, as systemd reads it.

use std::fs;

use serde_json::Value;

use super::command;

#[test]
fn systemd_finds_nothing_wrong_with_what_is_laid() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let install = |urls: &[&str]| {
        let mut install = command(env!("CARGO_BIN_EXE_navigator"));
        install.args(["agent", "host-install", "--root"]).arg(root);
        for url in urls {
            install.args(["--base-url", url]);
        }
        assert!(install.status().unwrap().success());
        let policy = fs::read(root.join("etc/containership/policy.json")).unwrap();
        serde_json::from_slice::<Value>(&policy).unwrap()
    };
    let policy = install(&["https://a.example/k8s"]);
    assert_eq!(policy["enabled"], true);
    assert_eq!(install(&["https://b.example"]), policy, "a policy that is there stays");
    let units = root.join("etc/systemd/system");
    for unit in ["containership-upgrade.path", "containership-upgrade.service"] {
        // Where a unit is not found by its name, neither are those that it needs.
        let mut verify = command("systemd-analyze");
        verify.args(["verify", "--man=no", "--recursive-errors=no", "--root"]).arg(root);
        let done = verify.arg(units.join(unit)).output();
        let done = done.expect("systemd-analyze is missing: please install systemd");
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success() && said.is_empty(), "{unit}: {said}");
        assert!(units.join("multi-user.target.wants").join(unit).exists());
    }
}
