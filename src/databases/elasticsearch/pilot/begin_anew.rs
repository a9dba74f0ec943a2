//! A cluster whose quorum of voters is lost for good, begun anew from one node by the vendor's tool.
//!
//! The controller asks one node, by `spec.unsafeBootstrap` of its Pilot, and names the lost cluster's
//! UUID. That node's pilot stops the database, has `elasticsearch-node unsafe-bootstrap` give it a
//! cluster of its own, and starts it. The pilots of the other nodes read the request in their peers:
//! a node with data of the lost cluster waits until the new one serves, and is then detached from the
//! former one, so that it joins with the shards that it has. In this order a node whose bootstrap
//! failed spoils no other, and no former quorum elects a master beside the new cluster.
//!
//! Each is done once to data of one cluster, and noted beside them. Both may be done twice: a pilot
//! that ended between the tool and the note has not started the database.

use super::{
    configure,
    state::{MembershipChange, NodeCommand, NodeState},
};
use crate::{
    api::v1beta1::Pilot,
    databases::elasticsearch::facts::heap_bytes,
    engine::heap::MIB,
    pilot::{
        driver::{DatabaseNode, Error, PreparationProgram, ProcessSpec},
        kube::peers::is_ready,
    },
};

/// Returns what the tool has to do before the database starts; `None` for data of another cluster,
/// and where it was done.
pub(super) fn pending_change(node: &DatabaseNode, state: &NodeState) -> Option<MembershipChange> {
    let cluster_id = state.cluster_id.clone().filter(|_| configure::has_data(&node.data))?;
    let is_requested = |pilot: &Pilot| pilot.spec.unsafe_bootstrap.as_ref() == Some(&cluster_id);
    let is_serving = |peer: &Pilot| is_ready(peer) && cluster_of(peer) == Some(&cluster_id);
    // Where a node of the cluster serves, the cluster is not lost.
    let is_lost = !node.peers.iter().any(is_serving);
    let command = if is_requested(&node.pilot) {
        NodeCommand::UnsafeBootstrap
    } else {
        node.peers.iter().any(is_requested).then_some(NodeCommand::DetachCluster)?
    };
    let change = MembershipChange { cluster_id, command };
    (is_lost && state.begun_anew.as_ref() != Some(&change)).then_some(change)
}

fn cluster_of(pilot: &Pilot) -> Option<&String> {
    pilot.status.identity.as_ref()?.cluster_id.as_ref()
}

/// Holds a node of the lost cluster back until the new cluster serves.
pub(super) fn wait_for_cluster(node: &DatabaseNode, state: &NodeState) -> Result<(), Error> {
    let Some(MembershipChange { cluster_id, command }) = pending_change(node, state) else {
        return Ok(());
    };
    let has_new_cluster = |peer: &Pilot| {
        is_ready(peer) && cluster_of(peer).is_some_and(|peer_id| *peer_id != cluster_id)
    };
    if command == NodeCommand::UnsafeBootstrap || node.peers.iter().any(has_new_cluster) {
        return Ok(());
    }
    Err(Error::NotYet(format!("waits for the node that begins cluster {cluster_id} anew")))
}

/// Says why the database is stopped.
pub(super) fn describe_change(change: &MembershipChange) -> String {
    let MembershipChange { cluster_id, command } = change;
    match command {
        NodeCommand::UnsafeBootstrap => {
            format!("stops, to begin cluster {cluster_id} anew from this node")
        }
        NodeCommand::DetachCluster => {
            format!("stops, to leave cluster {cluster_id}, which was begun anew")
        }
    }
}

/// Returns the run of the vendor's tool.
pub(super) fn build_program(
    node: &DatabaseNode,
    change: &MembershipChange,
) -> Result<PreparationProgram, Error> {
    let mut env = configure::build_environment(node, configure::node_release(node)?);
    // The tool reads the whole state of the cluster, for which its own 64 MiB may be too little.
    let heap = heap_bytes(node.pilot.spec.jvm.as_ref(), node.memory_limit)
        .map_err(|error| Error::ConfigRejected(error.to_string()))?;
    for variable in ["ES_JAVA_OPTS", "CLI_JAVA_OPTS"] {
        env.insert(variable.to_owned(), format!("-Xmx{}m", heap / MIB));
    }
    let MembershipChange { cluster_id, command } = change;
    let command = match command {
        NodeCommand::UnsafeBootstrap => "unsafe-bootstrap",
        NodeCommand::DetachCluster => "detach-cluster",
    };
    Ok(PreparationProgram {
        what: format!("{command} of cluster {cluster_id}"),
        program: ProcessSpec {
            program: node.home.join("bin/elasticsearch-node"),
            args: vec![command.to_owned()],
            env,
            working_directory: Some(node.home.clone()),
            config_hash: String::new(),
            ..ProcessSpec::default()
        },
        input: Some("y\n"),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::json;

    use super::*;
    use crate::{
        api::v1beta1::{Identity, PilotStatus},
        databases::elasticsearch::pilot::tests::node_in,
    };

    fn state() -> NodeState {
        NodeState { cluster_id: Some("old".to_owned()), ..NodeState::default() }
    }

    fn node(place: &Path) -> DatabaseNode {
        let node = node_in(place);
        fs::create_dir_all(node.data.join("data/nodes")).unwrap();
        node
    }

    fn peer(cluster: &str, ready: bool, asked: bool) -> Pilot {
        let status = if ready { "True" } else { "False" };
        let mut pilot = Pilot::default();
        pilot.spec.unsafe_bootstrap = asked.then(|| "old".to_owned());
        pilot.status = PilotStatus {
            identity: Some(Identity { cluster_id: Some(cluster.into()), ..Identity::default() }),
            conditions: serde_json::from_value(json!([{
                "type": "Ready", "status": status, "reason": "x", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap(),
            ..PilotStatus::default()
        };
        pilot
    }

    #[test]
    fn the_node_that_is_asked_begins_anew_once_and_in_no_cluster_that_serves() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node(place.path());
        let due = |node: &DatabaseNode, state: &NodeState| {
            pending_change(node, state).map(|due| due.command)
        };
        assert_eq!(due(&node, &state()), None);
        node.pilot.spec.unsafe_bootstrap = Some("old".to_owned());
        assert_eq!(due(&node, &state()), Some(NodeCommand::UnsafeBootstrap));
        let change = MembershipChange {
            cluster_id: "old".to_owned(),
            command: NodeCommand::UnsafeBootstrap,
        };
        assert_eq!(build_program(&node, &change).unwrap().program.args, ["unsafe-bootstrap"]);
        let done = NodeState { begun_anew: Some(change), ..state() };
        assert_eq!(due(&node, &done), None);
        let anew = NodeState { cluster_id: Some("new".to_owned()), ..state() };
        assert_eq!(due(&node, &anew), None, "the request is about another cluster");
        assert_eq!(due(&node, &NodeState::default()), None, "an empty node");
        node.peers = vec![peer("old", true, false)];
        assert_eq!(due(&node, &state()), None, "the others came back");
        node.peers = vec![peer("old", false, false)];
        fs::remove_dir_all(node.data.join("data")).unwrap();
        assert_eq!(due(&node, &state()), None, "its data are gone");
    }

    #[test]
    fn the_others_are_detached_when_the_new_cluster_serves() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node(place.path());
        node.peers = vec![peer("old", false, true)];
        let waits = wait_for_cluster(&node, &state());
        assert!(matches!(waits, Err(Error::NotYet(_))), "{waits:?}");
        node.peers = vec![peer("new", true, true)];
        assert!(wait_for_cluster(&node, &state()).is_ok());
        let change = pending_change(&node, &state()).unwrap();
        assert_eq!(change.command, NodeCommand::DetachCluster);
        let done = NodeState { begun_anew: Some(change), ..state() };
        assert_eq!(pending_change(&node, &done), None);
        // A person chose another node, whose tool failed; now this one is asked.
        node.pilot.spec.unsafe_bootstrap = Some("old".to_owned());
        assert_eq!(pending_change(&node, &done).unwrap().command, NodeCommand::UnsafeBootstrap);
        let stored = serde_json::to_value(&done).unwrap();
        assert_eq!(stored["begunAnew"], json!({"clusterId": "old", "command": "detach-cluster"}));
    }
}
