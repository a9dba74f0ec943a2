//! Preflight checks for Cassandra, beyond those for every database.

use std::path::Path;

use super::{
    configure::LEFT,
    resolved_spec::ResolvedSpec,
    state::{NodeState, has_data},
};
use crate::{
    databases::cassandra::{facts::Release, v1beta1::CassandraNode},
    error::chain,
    pilot::{
        driver::{DatabaseNode, FailedCheck, KernelNeeds},
        node::preflight::{failed_check, find_installed_version, find_unresolved, out_of_turn},
        volume::state_file::StateFile,
    },
};

pub(super) fn check_node(node: &DatabaseNode) -> Vec<FailedCheck> {
    let state = match NodeState::load(&node.data) {
        Ok(state) => state,
        Err(error) => return vec![failed_check("PreflightFailed", chain(&error).to_string())],
    };
    let mut failed_checks = Vec::new();
    if state.left {
        failed_checks.push(failed_check("NodeDecommissioned", LEFT.to_owned()));
    }
    match ResolvedSpec::from_node(node, &state) {
        Err(error) => failed_checks.push(failed_check("ConfigRejected", error.to_string())),
        Ok(intent) if has_data(&node.data) => {
            let mismatches = version_mismatch(node, &state, intent.release)
                .map_or_else(|| identity_mismatches(&state, &intent), |version| vec![version]);
            failed_checks.extend(
                mismatches.into_iter().map(|message| failed_check("IdentityMismatch", message)),
            );
        }
        Ok(_) => {}
    }
    if failed_checks.is_empty() && has_data(&node.data) {
        let program = installed_version(&node.home);
        failed_checks.extend(out_of_turn(node, program.as_deref(), state.version.as_deref()));
    }
    failed_checks
}

/// Returns why the program cannot read the data of the version that wrote them. A version that this
/// build does not know is later than all that it knows.
fn version_mismatch(node: &DatabaseNode, state: &NodeState, release: Release) -> Option<String> {
    let data_version = state.version.as_deref()?;
    // The program in `home` is the one that will run: an image may hold another version than the
    // spec names.
    let program: Option<Release> =
        installed_version(&node.home).and_then(|version| version.parse().ok());
    let release = program.unwrap_or(release);
    if data_version.parse().is_ok_and(|data_release| release.can_read(data_release)) {
        return None;
    }
    let home = node.home.display();
    let place = program.map_or(String::new(), |_| format!(", which is the program in {home},"));
    Some(format!(
        "the data were written by Cassandra {data_version}, and {release}{place} cannot read them; set \
         spec.version, and spec.image if it is set, to that or a later one"
    ))
}

/// Returns what differs between the place in the ring where a member's data were written and the
/// one that is wanted.
fn identity_mismatches(state: &NodeState, intent: &ResolvedSpec) -> Vec<String> {
    let pairs = [
        ("cluster name", &state.cluster_name, &intent.cluster_name),
        ("datacenter", &state.datacenter, &intent.datacenter),
        ("rack", &state.rack, &intent.rack),
    ];
    let mismatches =
        pairs.into_iter().filter(|(_, recorded, desired)| state.joined && recorded != desired);
    let text = |(field, recorded, desired)| {
        format!(
            "the data were written in {field} {recorded:?}, and {desired:?} is wanted; set it back"
        )
    };
    mismatches.map(text).collect()
}

/// Names of Cassandra's own jar, in its releases and in the Java package registry.
const JARS: &[&str] = &["apache-cassandra", "cassandra-all"];

/// Returns the Cassandra version that is installed in the folder `home`.
pub(super) fn installed_version(home: &Path) -> Option<String> {
    find_installed_version(home, JARS)
}

/// Kernel limits below which the preflight check fails: with fewer open files Cassandra fails as
/// soon as it has a few tables. Cassandra itself asks for more, and only warns.
pub(super) const NEEDS: KernelNeeds =
    KernelNeeds { open_files: 8192, processes: 0, mappings: 0, locks_memory: false };

/// Checks that at least one of the additional seeds resolves. A node without data joins through
/// them; a node with data does not depend on them.
pub(super) async fn check_seeds(node: &DatabaseNode) -> Vec<FailedCheck> {
    let seeds = node.pilot.spec.part::<CassandraNode>().map(|spec| spec.additional_seeds);
    let seeds = seeds.unwrap_or_default();
    if seeds.is_empty() || has_data(&node.data) {
        return Vec::new();
    }
    let unresolved_seeds = find_unresolved(&seeds).await;
    if unresolved_seeds.len() < seeds.len() {
        return Vec::new();
    }
    let names = unresolved_seeds.join(", ");
    let message = format!("no seed can be resolved: {names}; mend additionalSeeds, or the DNS");
    vec![failed_check("PreflightFailed", message)]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        databases::cassandra::pilot::{DATABASE, tests::node_in},
        pilot::{clients::jolokia::AGENT, node::preflight::missing_files},
    };

    fn reasons(node: &DatabaseNode) -> Vec<&'static str> {
        check_node(node).into_iter().map(|failed| failed.reason).collect()
    }

    #[test]
    fn a_host_without_cassandra_or_agent_is_told_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let node = node_in(place.path());
        let missing = || missing_files(&DATABASE, &node).into_iter().map(|failed| failed.message);
        assert_eq!(missing().count(), 2);
        assert!(missing().any(|told| told.contains("set --home or CASSANDRA_HOME to where Cass")));
        assert!(missing().any(|told| told.contains("run `navigator install` into that folder")));
        for file in [node.home.join("bin/cassandra"), node.shared.join(AGENT.name)] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert_eq!(missing().count(), 0);
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
        state.rack = ResolvedSpec::from_node(&node, &state).unwrap().rack;
        state.version = Some("5.0.6".to_owned());
        state.save(&node.data).unwrap();
        assert_eq!(reasons(&moved), [""; 0]);
        moved.pilot.spec.version = Some("4.1.10".to_owned());
        let told = check_node(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("written by Cassandra 5.0.6"), "{}", told[0].message);
        moved.pilot.spec.version = Some("3.11.4".to_owned());
        assert_eq!(reasons(&moved), ["ConfigRejected"]);
        // The data are of a later version than this build knows.
        moved.pilot.spec.version = Some("5.0.6".to_owned());
        state.version = Some("6.0.1".to_owned());
        state.save(&node.data).unwrap();
        let told = check_node(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("written by Cassandra 6.0.1"), "{told:?}");
        state.version = Some("5.0.6".to_owned());
        state.save(&node.data).unwrap();
        // The image holds an older version than the spec names.
        moved.pilot.spec.version = Some("5.0.6".to_owned());
        fs::create_dir_all(moved.home.join("lib")).unwrap();
        fs::write(moved.home.join("lib/apache-cassandra-4.1.10.jar"), "").unwrap();
        let told = check_node(&moved);
        assert_eq!(told[0].reason, "IdentityMismatch");
        assert!(told[0].message.contains("and 4.1, which is the program in"), "{told:?}");
    }

    #[test]
    fn node_that_left_fails_preflight() {
        let place = tempfile::tempdir().unwrap();
        let node = node_in(place.path());
        NodeState { left: true, ..NodeState::default() }.save(&node.data).unwrap();
        assert_eq!(reasons(&node), ["NodeDecommissioned"]);
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
        assert_eq!(check_seeds(&node).await[0].reason, "PreflightFailed");
        tell(&mut node, &["no-such-host.invalid", "127.0.0.1:7000"]);
        assert_eq!(check_seeds(&node).await, []);
        tell(&mut node, &["no-such-host.invalid"]);
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        assert_eq!(check_seeds(&node).await, [], "it comes back by itself");
    }
}
