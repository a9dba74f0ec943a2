//! What Cassandra needs of its host beyond what every database needs.

use super::{
    configure::{Intent, LEFT, has_data},
    memory::Memory,
};
use crate::{
    engine::cassandra::AGENT_JAR,
    pilot::{
        database::{FailedCheck, Node},
        memory::Remembered,
    },
};

pub(super) fn check(node: &Node) -> Vec<FailedCheck> {
    let mut failed = Vec::new();
    let mut fail = |reason, message: String| failed.push(FailedCheck { reason, message });
    for (path, remedy) in [
        (node.home.join("bin/cassandra"), "set --home or CASSANDRA_HOME to where Cassandra is"),
        (node.shared.join(AGENT_JAR), "run `navigator install` into that folder"),
    ] {
        if !path.is_file() {
            fail("PreflightFailed", format!("{} is missing; {remedy}", path.display()));
        }
    }
    let memory = match Memory::load(&node.data) {
        Ok(memory) => memory,
        Err(error) => {
            fail("PreflightFailed", crate::error::chain(&error).to_string());
            return failed;
        }
    };
    if memory.left {
        fail("NodeDecommissioned", LEFT.to_owned());
    }
    match Intent::of(node) {
        Err(error) => fail("ConfigRejected", error.to_string()),
        Ok(intent) if memory.joined && has_data(&node.data) => {
            for (what, was, wanted) in [
                ("cluster name", &memory.cluster_name, &intent.cluster_name),
                ("datacenter", &memory.datacenter, &intent.datacenter),
                ("rack", &memory.rack, &intent.rack),
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pilot::cassandra::tests::node_in;

    fn reasons(node: &Node) -> Vec<&'static str> {
        check(node).into_iter().map(|failed| failed.reason).collect()
    }

    #[test]
    fn a_host_without_cassandra_or_agent_is_told_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let node = node_in(place.path());
        assert_eq!(reasons(&node), ["PreflightFailed", "PreflightFailed"]);
        for file in [node.home.join("bin/cassandra"), node.shared.join(AGENT_JAR)] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert!(reasons(&node).is_empty());
        let mut moved = node.clone();
        Memory {
            joined: true,
            rack: "other".to_owned(),
            cluster_name: "shop".to_owned(),
            datacenter: crate::api::names::cassandra::DEFAULT_DATACENTER.to_owned(),
            ..Memory::default()
        }
        .save(&node.data)
        .unwrap();
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        assert_eq!(reasons(&moved), ["IdentityMismatch"]);
        moved.pilot.spec.version = Some("3.11.4".to_owned());
        assert_eq!(reasons(&moved), ["ConfigRejected"]);
    }
}
