//! Preflight checks for Cassandra, beyond those for every database.

use std::path::Path;

use super::{
    configure::{LEFT, has_data},
    resolved_spec::ResolvedSpec,
    state::NodeState,
};
use crate::{
    databases::cassandra::{facts::Release, v1beta1::CassandraNode},
    pilot::{
        clients::jolokia::AGENT,
        driver::{DatabaseNode, FailedCheck, KernelNeeds},
        node::preflight::{installed, unresolved},
        volume::state_file::StateFile,
    },
};

pub(super) fn check(node: &DatabaseNode) -> Vec<FailedCheck> {
    let mut failed = Vec::new();
    let mut fail = |reason, message: String| failed.push(FailedCheck { reason, message });
    let agent = node.shared.join(AGENT.name);
    if !agent.is_file() {
        let remedy = "run `navigator install` into that folder";
        fail("PreflightFailed", format!("{} is missing; {remedy}", agent.display()));
    }
    let state = match NodeState::load(&node.data) {
        Ok(state) => state,
        Err(error) => {
            fail("PreflightFailed", crate::error::chain(&error).to_string());
            return failed;
        }
    };
    if state.left {
        fail("NodeDecommissioned", LEFT.to_owned());
    }
    // A version that this build does not know is later than all that it knows.
    let unreadable = |by: Release| {
        let written = state.version.as_deref().map(str::parse::<Release>);
        written.is_some_and(|written| {
            written.is_err() || written.is_ok_and(|written| !by.reads(written))
        })
    };
    // The program in `home` is the one that will run: an image may hold another version than the
    // spec names.
    let program: Option<Release> = version(&node.home).and_then(|version| version.parse().ok());
    match ResolvedSpec::of(node) {
        Err(error) => fail("ConfigRejected", error.to_string()),
        Ok(ResolvedSpec { release, .. })
            if has_data(&node.data) && unreadable(program.unwrap_or(release)) =>
        {
            let written = state.version.unwrap_or_default();
            let release = program.unwrap_or(release);
            let place = program.map_or(String::new(), |_| {
                format!(", which is the program in {},", node.home.display())
            });
            fail(
                "IdentityMismatch",
                format!(
                    "the data were written by Cassandra {written}, and {release}{place} cannot read \
                     them; set spec.version, and spec.image if it is set, to that or a later one"
                ),
            );
        }
        Ok(intent) if state.joined && has_data(&node.data) => {
            for (what, was, wanted) in [
                ("cluster name", &state.cluster_name, &intent.cluster_name),
                ("datacenter", &state.datacenter, &intent.datacenter),
                ("rack", &state.rack, &intent.rack),
            ] {
                if was != wanted {
                    fail(
                        "IdentityMismatch",
                        format!(
                            "the data were written in {what} {was:?}, and {wanted:?} is wanted; set it back"
                        ),
                    );
                }
            }
        }
        Ok(_) => {}
    }
    failed
}

/// Names of Cassandra's own jar, in its releases and in the Java package registry.
const JARS: &[&str] = &["apache-cassandra", "cassandra-all"];

/// Returns the Cassandra version that is installed in the folder `home`.
pub(super) fn version(home: &Path) -> Option<String> {
    installed(home, JARS)
}

/// Kernel limits for Cassandra. It asks for more open files than this, and warns; with fewer it
/// fails as soon as it has a few tables.
pub(super) const NEEDS: KernelNeeds =
    KernelNeeds { open_files: 8192, processes: 0, mappings: 0, locks_memory: false };

/// Checks that at least one of the additional seeds resolves. A node without data joins through
/// them; a node with data does not depend on them.
pub(super) async fn seeds(node: &DatabaseNode) -> Vec<FailedCheck> {
    let told = node.pilot.spec.part::<CassandraNode>().map(|spec| spec.additional_seeds);
    let told = told.unwrap_or_default();
    if told.is_empty() || has_data(&node.data) {
        return Vec::new();
    }
    let missing = unresolved(&told).await;
    if missing.len() < told.len() {
        return Vec::new();
    }
    let names = missing.join(", ");
    let message = format!("no seed can be resolved: {names}; mend additionalSeeds, or the DNS");
    vec![FailedCheck { reason: "PreflightFailed", message }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::databases::cassandra::pilot::tests::node_in;

    fn reasons(node: &DatabaseNode) -> Vec<&'static str> {
        check(node).into_iter().map(|failed| failed.reason).collect()
    }

    #[test]
    fn a_host_without_cassandra_or_agent_is_told_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let node = node_in(place.path());
        assert_eq!(reasons(&node), ["PreflightFailed", "PreflightFailed"]);
        for file in [node.home.join("bin/cassandra"), node.shared.join(AGENT.name)] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert!(reasons(&node).is_empty());
        let mut moved = node.clone();
        NodeState {
            joined: true,
            rack: "other".to_owned(),
            cluster_name: "shop".to_owned(),
            datacenter: crate::databases::cassandra::names::DEFAULT_DATACENTER.to_owned(),
            ..NodeState::default()
        }
        .save(&node.data)
        .unwrap();
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        assert_eq!(reasons(&moved), ["IdentityMismatch"]);
        let mut state = NodeState::load(&node.data).unwrap();
        state.rack = ResolvedSpec::of(&node).unwrap().rack;
        state.version = Some("5.0.6".to_owned());
        state.save(&node.data).unwrap();
        assert_eq!(reasons(&moved), [""; 0]);
        moved.pilot.spec.version = Some("4.1.10".to_owned());
        let told = check(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("written by Cassandra 5.0.6"), "{}", told[0].message);
        moved.pilot.spec.version = Some("3.11.4".to_owned());
        assert_eq!(reasons(&moved), ["ConfigRejected"]);
        // The data are of a later version than this build knows.
        moved.pilot.spec.version = Some("5.0.6".to_owned());
        state.version = Some("6.0.1".to_owned());
        state.save(&node.data).unwrap();
        let told = check(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("written by Cassandra 6.0.1"), "{told:?}");
        state.version = Some("5.0.6".to_owned());
        state.save(&node.data).unwrap();
        // The image holds an older version than the spec names.
        moved.pilot.spec.version = Some("5.0.6".to_owned());
        fs::create_dir_all(moved.home.join("lib")).unwrap();
        fs::write(moved.home.join("lib/apache-cassandra-4.1.10.jar"), "").unwrap();
        let told = check(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("and 4.1, which is the program in"), "{told:?}");
    }
    #[tokio::test]
    async fn a_node_without_data_needs_a_seed_that_resolves() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let tell = |node: &mut DatabaseNode, seeds: &[&str]| {
            let seeds = seeds.iter().map(|seed| (*seed).to_owned()).collect();
            node.pilot.spec.change_part::<CassandraNode>(|part| part.additional_seeds = seeds);
        };
        tell(&mut node, &["no-such-host.invalid"]);
        assert_eq!(seeds(&node).await[0].reason, "PreflightFailed");
        tell(&mut node, &["no-such-host.invalid", "127.0.0.1:7000"]);
        assert_eq!(seeds(&node).await, []);
        tell(&mut node, &["no-such-host.invalid"]);
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        assert_eq!(seeds(&node).await, [], "it comes back by itself");
    }
}
