//! Packets that are dropped.

#![expect(clippy::disallowed_methods, reason = "tests change the network")]

use std::process::Command;

/// Drops packets to a TCP port that match the rules, until the wall itself is dropped.
pub(crate) struct Wall(Vec<Vec<String>>);

impl Wall {
    pub(crate) fn before(port: u16, rules: &[&[&str]]) -> Self {
        let port = port.to_string();
        let port = ["-p", "tcp", "--dport", &port, "-j", "DROP"];
        let rule = |rule: &&[&str]| rule.iter().chain(&port).map(ToString::to_string).collect();
        let wall = Self(rules.iter().map(rule).collect());
        for rule in &wall.0 {
            assert!(iptables("-I", rule), "iptables failed: this scenario needs root");
        }
        wall
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        for rule in &self.0 {
            iptables("-D", rule);
        }
    }
}

fn iptables(what: &str, rule: &[String]) -> bool {
    let status = Command::new("iptables").arg("-w").arg(what).args(rule).status();
    status.expect("iptables is missing: apt-get install iptables").success()
}
