//! Decides whether a node that served clients has stopped to, by comparing one observation of
//! Cassandra with the next.
//!
//! Cassandra closes its ports and keeps its process when it cannot read or write a file
//! (`StorageService.stopTransports`, called by `DefaultFSErrorHandler` with `disk_failure_policy:
//! stop` and by `CommitLog.handleCommitError` with `commit_failure_policy: stop`). It does not open
//! them again. `nodetool disablebinary` has the same effect for clients.

use std::time::{Duration, Instant};

use super::node_view::NodeView;
use crate::pilot::driver::TRANSPORTS_STOPPED;

/// A node that has served no client for this long is restarted.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether the current process serves clients, and since when it does not.
#[derive(Debug, Default)]
pub(super) struct ClientService {
    /// The configuration of the process lets it serve no client.
    is_off: bool,
    has_served: bool,
    stopped: Option<Instant>,
}

impl ClientService {
    pub(super) fn new(is_off: bool) -> Self {
        Self { is_off, ..Self::default() }
    }

    /// Takes a new observation. Returns reason and message of a node that served and does not, or
    /// may not; `None` for any other.
    ///
    /// A process that has not served yet still starts. In any other mode than `NORMAL` the node
    /// leaves or was drained, as the pilot or a user asked.
    pub(super) fn update(&mut self, facts: &NodeView) -> Option<(&'static str, String)> {
        let is_normal = facts.mode == "NORMAL";
        self.has_served |= is_normal && facts.serves_clients;
        if self.is_off && is_normal && !facts.serves_clients {
            let message = "serves no client: start_native_transport is false in its configuration";
            return Some(("Starting", message.to_owned()));
        }
        if !self.has_served || !is_normal || facts.serves_clients {
            self.stopped = None;
            return None;
        }
        let stopped_at = *self.stopped.get_or_insert_with(Instant::now);
        let seconds = LIMIT.as_secs();
        Some(if stopped_at.elapsed() < LIMIT {
            let message = format!("serves clients no longer; after {seconds} s it is restarted");
            ("Starting", message)
        } else {
            let message = format!(
                "has served no client for {seconds} s and is restarted: Cassandra closes its ports \
                 when it cannot read or write a file, which its log names, or a user ran \
                 `nodetool disablebinary`"
            );
            (TRANSPORTS_STOPPED, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::tests::facts;

    fn node(mode: &str, serves_clients: bool) -> NodeView {
        NodeView { serves_clients, ..facts(mode) }
    }

    fn reason(service: &mut ClientService, facts: &NodeView) -> Option<&'static str> {
        service.update(facts).map(|(reason, _)| reason)
    }

    #[test]
    fn node_that_served_is_restarted_after_a_minute() {
        let mut service = ClientService::default();
        assert_eq!(reason(&mut service, &node("NORMAL", false)), None, "it starts");
        assert_eq!(reason(&mut service, &node("NORMAL", true)), None);
        let (reason_at_once, message) = service.update(&node("NORMAL", false)).unwrap();
        assert_eq!(reason_at_once, "Starting");
        assert!(message.contains("after 60 s"), "{message}");
        service.stopped = Instant::now().checked_sub(LIMIT);
        let (reason_at_last, message) = service.update(&node("NORMAL", false)).unwrap();
        assert_eq!(reason_at_last, TRANSPORTS_STOPPED);
        assert!(message.contains("its log names"), "{message}");
        assert_eq!(reason(&mut service, &node("NORMAL", true)), None);
        assert_eq!(
            reason(&mut service, &node("NORMAL", false)),
            Some("Starting"),
            "from the start"
        );
    }

    #[test]
    fn node_that_is_stopped_on_request_is_left_alone() {
        for mode in ["DRAINING", "DRAINED", "LEAVING", "DECOMMISSIONED", "JOINING", "STARTING"] {
            let mut service = ClientService::default();
            assert_eq!(reason(&mut service, &node("NORMAL", true)), None);
            service.stopped = Instant::now().checked_sub(LIMIT);
            assert_eq!(reason(&mut service, &node(mode, false)), None, "{mode}");
        }
    }

    #[test]
    fn setting_that_keeps_clients_out_is_named() {
        let mut service = ClientService::new(true);
        assert_eq!(service.update(&node("STARTING", false)), None);
        let (reason, message) = service.update(&node("NORMAL", false)).unwrap();
        assert_eq!(reason, "Starting");
        assert!(message.contains("start_native_transport is false"), "{message}");
        // It is never restarted for that.
        service.stopped = Instant::now().checked_sub(LIMIT);
        let (again, _) = service.update(&node("NORMAL", false)).unwrap();
        assert_eq!(again, "Starting");
        assert_eq!(service.update(&node("NORMAL", true)), None, "a user ran nodetool enablebinary");
    }
}
