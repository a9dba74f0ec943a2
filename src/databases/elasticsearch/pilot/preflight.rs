//! Preflight checks for Elasticsearch, beyond those for every database.
//!
//! On an address that other machines reach, Elasticsearch checks the machine itself and ends with
//! 78; here the pilot reports the same before the start, with the remedy.

use std::path::Path;

use super::{
    configure::{has_data, node_release},
    state::NodeState,
};
use crate::{
    databases::elasticsearch::facts::Release,
    engine::settings::dotted_names::find_setting,
    pilot::{
        driver::{DatabaseNode, FailedCheck, KernelNeeds},
        node::preflight::{find_installed_version, out_of_turn},
        volume::state_file::StateFile,
    },
};

/// Kernel limits that Elasticsearch itself requires; 5.6 requires one open file more than later
/// versions.
const NEEDS: KernelNeeds =
    KernelNeeds { open_files: 65_536, processes: 4096, mappings: 262_144, locks_memory: false };

/// Returns the check that failed, if one did.
pub(super) fn check_node(node: &DatabaseNode) -> Option<FailedCheck> {
    let failed_check = |reason, message| Some(FailedCheck { reason, message });
    // The program in `home` is the one that will run: an image may hold another version than the
    // spec names.
    let installed = installed_version(&node.home);
    let program: Option<Release> = installed.as_ref().and_then(|version| version.parse().ok());
    let release = match node_release(node) {
        Ok(release) => program.unwrap_or(release),
        Err(error) => return failed_check("ConfigRejected", error.to_string()),
    };
    let data_version = match NodeState::load(&node.data) {
        Ok(state) => state.version?,
        Err(error) => {
            return failed_check("PreflightFailed", crate::error::chain(&error).to_string());
        }
    };
    if !has_data(&node.data) {
        return None;
    }
    let is_unreadable =
        data_version.parse().is_ok_and(|data_release| !release.can_read(data_release));
    if !is_unreadable {
        return out_of_turn(node, installed.as_deref(), Some(&data_version));
    }
    let Release { major, minor } = release;
    failed_check(
        "IdentityMismatch",
        format!(
            "the data were written by Elasticsearch {data_version}, and {major}.{minor} cannot read \
             them; go forward, to the last minor version before another major one"
        ),
    )
}

/// Returns the Elasticsearch version that is installed in the folder `home`.
pub(super) fn installed_version(home: &Path) -> Option<String> {
    find_installed_version(home, &["elasticsearch"])
}

/// Returns the kernel limits that a node needs, where Elasticsearch insists on them.
pub(super) fn kernel_needs(node: &DatabaseNode) -> KernelNeeds {
    let config = &node.pilot.spec.config;
    let is_set = |path: &[&str], desired: bool| {
        let text = if desired { "true" } else { "false" };
        find_setting(config, path).is_some_and(|value| *value == desired || *value == text)
    };
    let locks_memory = is_set(&["bootstrap", "memory_lock"], true);
    // A loopback address is not reached from other machines, and Elasticsearch only warns there.
    if node.address.is_loopback() {
        return KernelNeeds::default();
    }
    let mappings = if is_set(&["node", "store", "allow_mmap"], false) { 0 } else { NEEDS.mappings };
    KernelNeeds { mappings, locks_memory, ..NEEDS }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::databases::elasticsearch::pilot::tests::node_in;

    #[test]
    fn the_bootstrap_checks_are_made_where_elasticsearch_makes_them() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        assert_eq!(kernel_needs(&node), NEEDS);
        for config in [
            json!({"bootstrap.memory_lock": true, "node.store.allow_mmap": false}),
            json!({"bootstrap": {"memory_lock": "true"}, "node": {"store": {"allow_mmap": false}}}),
            json!({"bootstrap": {"memory_lock": true}, "node": {"store.allow_mmap": "false"}}),
        ] {
            node.pilot.spec.config = serde_json::from_value(config).unwrap();
            assert_eq!(
                kernel_needs(&node),
                KernelNeeds { mappings: 0, locks_memory: true, ..NEEDS }
            );
        }
        node.address = [127, 0, 0, 1].into();
        assert_eq!(kernel_needs(&node), KernelNeeds::default());
    }

    #[test]
    fn data_of_a_later_version_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.address = [127, 0, 0, 1].into();
        fs::create_dir_all(node.home.join("bin")).unwrap();
        fs::write(node.home.join("bin/elasticsearch"), "").unwrap();
        fs::create_dir_all(node.data.join("data/nodes")).unwrap();
        let state = NodeState { version: Some("7.17.29".to_owned()), ..NodeState::default() };
        state.save(&node.data).unwrap();
        assert_eq!(check_node(&node), None);
        node.pilot.spec.version = Some("7.10.2".to_owned());
        let told = check_node(&node).unwrap();
        assert_eq!(told.reason, "IdentityMismatch");
        assert!(told.message.contains("written by Elasticsearch 7.17.29"), "{told:?}");
        node.pilot.spec.version = Some("7.17.29".to_owned());
        assert_eq!(check_node(&node), None);
        // The image holds an older version than the spec names.
        fs::create_dir_all(node.home.join("lib")).unwrap();
        fs::write(node.home.join("lib/elasticsearch-7.10.2.jar"), "").unwrap();
        let told = check_node(&node).unwrap();
        assert_eq!(told.reason, "IdentityMismatch");
        assert!(told.message.contains("7.10 cannot"), "{told:?}");
    }
}
