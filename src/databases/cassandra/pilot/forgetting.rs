//! Forgets a node that is lost for good: takes it out of the ring by its host id.
//!
//! Every call reads the ring first and takes the next step from there, so that any member may go on
//! where another one ended. The members copy what the lost node held from its other replicas before
//! the ring forgets it. A node that is up is never removed.

use std::time::{Duration, Instant};

use serde_json::json;
use tracing::warn;

use super::{
    CassandraDriver,
    node_view::{NodeView, STORAGE_SERVICE},
};
use crate::pilot::{
    clients::jolokia::JolokiaClient,
    driver::{Error, ForgetState},
};

/// How long to wait for Cassandra to refuse a removal: it blocks until it is done.
const REFUSAL: Duration = Duration::from_secs(3);
/// How long a removal may neither stream nor say anything new before it is completed by force: a
/// member that was to confirm it may have ended meanwhile. Longer than a stream that is cut off
/// takes to fail (5 minutes).
const HANGS: Duration = Duration::from_secs(1800);
/// Words of Cassandra's.
const NOT_FOUND: &str = "Host ID not found";
const UNDER_WAY: &str = "already processing a removal";
const NONE_HERE: &str = "No token removals in process";

/// What was last heard of a removal, and since when that stands.
#[derive(Debug)]
pub(super) struct RemovalWatch {
    status: String,
    since: Instant,
}

/// The next step of a removal, from what the ring reports.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RemovalStep {
    Gone,
    Refuse(String),
    Wait(String),
    /// The ring takes the node out already.
    Watch,
    Begin,
}

fn next_step(facts: &NodeView, lost: &str) -> RemovalStep {
    if !facts.is_member() {
        return RemovalStep::Wait("waits until this node is a member of the ring".to_owned());
    }
    let mut members = facts.ids.iter();
    let Some((address, _)) = members.find(|(_, id)| *id == lost) else { return RemovalStep::Gone };
    if facts.host_id.as_deref() == Some(lost) {
        return RemovalStep::Refuse("this node has that id itself".to_owned());
    }
    if facts.live.contains(address) {
        let message =
            format!("{address} has that id and is up: a node that serves is decommissioned");
        return RemovalStep::Refuse(message);
    }
    if facts.leaving.contains(address) {
        return RemovalStep::Watch;
    }
    let mut moving_nodes = facts.joining.iter().chain(&facts.leaving).chain(&facts.moving);
    match moving_nodes.find(|other| *other != address) {
        Some(other) => RemovalStep::Wait(format!("waits until {other} has joined, left or moved")),
        None => RemovalStep::Begin,
    }
}

impl CassandraDriver {
    pub(super) async fn remove_member(&self, lost: &str) -> Result<ForgetState, Error> {
        let jolokia = self.jolokia()?;
        let facts = NodeView::query(&jolokia).await?;
        match next_step(&facts, lost) {
            RemovalStep::Gone => {
                self.driver_state().removal = None;
                Ok(ForgetState::Forgotten)
            }
            RemovalStep::Refuse(message) => Ok(ForgetState::Refused(message)),
            RemovalStep::Wait(message) => Ok(ForgetState::Removing(message)),
            RemovalStep::Begin => start_removal(&jolokia, lost).await,
            RemovalStep::Watch => self.watch_removal(&jolokia, &facts, lost).await,
        }
    }

    async fn watch_removal(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
        lost: &str,
    ) -> Result<ForgetState, Error> {
        let status: String = jolokia.read_attribute(STORAGE_SERVICE, "RemovalStatus").await?;
        if status.contains(NONE_HERE) {
            // Another member began it, and may have ended since. Cassandra goes on with it here.
            return start_removal(jolokia, lost).await;
        }
        if self.is_hung(&status, facts.streams.is_empty()) {
            warn!(lost, status, "Removal of a lost node hangs; completing it by force");
            let no_arguments = json!([]);
            let completion = jolokia
                .execute_operation(
                    STORAGE_SERVICE,
                    "forceRemoveCompletion()",
                    &no_arguments,
                    REFUSAL,
                )
                .await?;
            self.driver_state().removal = None;
            let message = completion.refusal().unwrap_or_else(|| {
                "completed by force, since it hung: repair the keyspaces of users".to_owned()
            });
            return Ok(ForgetState::Removing(message));
        }
        Ok(ForgetState::Removing(status))
    }

    /// Has the removal neither streamed nor said anything new for too long?
    fn is_hung(&self, status: &str, is_idle: bool) -> bool {
        let mut state = self.driver_state();
        let same_removal =
            state.removal.as_ref().filter(|removal| removal.status == status && is_idle);
        let since = same_removal.map_or_else(Instant::now, |removal| removal.since);
        state.removal = Some(RemovalWatch { status: status.to_owned(), since });
        since.elapsed() > HANGS
    }
}

/// Tells Cassandra to take the node out of the ring, without waiting for the end.
async fn start_removal(jolokia: &JolokiaClient, lost: &str) -> Result<ForgetState, Error> {
    let arguments = json!([lost]);
    let operation = "removeNode(java.lang.String)";
    let refusal =
        jolokia.execute_operation(STORAGE_SERVICE, operation, &arguments, REFUSAL).await?.refusal();
    Ok(match refusal {
        Some(message) if message.contains(NOT_FOUND) => ForgetState::Forgotten,
        Some(message) if !message.contains(UNDER_WAY) => ForgetState::Refused(message),
        _ => ForgetState::Removing("the ring takes the node out".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::databases::cassandra::pilot::tests::{PEER, driver, facts, node_in};

    #[test]
    fn a_lost_node_is_removed_and_one_that_is_up_never() {
        let settled = facts("NORMAL");
        assert_eq!(next_step(&settled, "id-9"), RemovalStep::Gone);
        for id in ["id-1", "id-2"] {
            assert!(matches!(next_step(&settled, id), RemovalStep::Refuse(_)), "{id} is up");
        }
        let mut lost = settled;
        lost.live.remove(&PEER);
        lost.unreachable.insert(PEER);
        assert_eq!(next_step(&lost, "id-2"), RemovalStep::Begin);
        let other = IpAddr::from([127, 0, 1, 3]);
        let joins = NodeView { joining: [other].into(), ..lost.clone() };
        assert!(matches!(next_step(&joins, "id-2"), RemovalStep::Wait(_)));
        let removing = NodeView { leaving: [PEER].into(), ..lost.clone() };
        assert_eq!(next_step(&removing, "id-2"), RemovalStep::Watch);
        let joining = NodeView { mode: "JOINING".to_owned(), ..lost };
        assert!(matches!(next_step(&joining, "id-2"), RemovalStep::Wait(_)));
    }

    #[test]
    fn only_a_removal_that_stands_still_for_long_hangs() {
        let place = tempfile::tempdir().unwrap();
        let cassandra = driver(&node_in(place.path()));
        let long_ago = || Instant::now().checked_sub(HANGS + Duration::from_secs(1)).unwrap();
        let stood = |status: &str| {
            let watch = RemovalWatch { status: status.to_owned(), since: long_ago() };
            cassandra.driver_state().removal = Some(watch);
        };
        assert!(!cassandra.is_hung("waits for a", true), "it has just begun");
        stood("waits for a");
        assert!(cassandra.is_hung("waits for a", true));
        stood("waits for a, b");
        assert!(!cassandra.is_hung("waits for a", true), "b has confirmed");
        stood("waits for a");
        assert!(!cassandra.is_hung("waits for a", false), "it streams");
    }
}
