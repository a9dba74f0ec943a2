//! Decides whether a join goes on, by comparing one observation of Cassandra with the next.
//!
//! A join whose streams failed is over, and the process stays. 5.0 reports that by a mode of its
//! own; in 4.0 and 4.1 the mode stays `JOINING`, and the only sign is that nothing is streamed. No
//! release is asked to resume the join: 5.0 refuses that (CASSANDRA-17679), so every release begins
//! anew, in a new process.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::node_view::NodeView;

/// A join without a stream for this long has failed. A healthy join has none for the ring delay (30
/// s) and while it waits for the schema (30 s). A stuck stream still counts as one: Cassandra ends
/// it by itself after minutes.
const IDLE: Duration = Duration::from_secs(180);

/// What was seen of the join of the current process.
#[derive(Debug, Default)]
pub(super) struct JoinProgress {
    /// Bytes that the join's streams were to bring: the largest sum that was seen.
    expected: i64,
    /// Addresses of the nodes at the other ends of the streams that were seen last.
    peers: BTreeSet<IpAddr>,
    /// Bytes that the join had received, and the time since which that number has not changed while
    /// no stream was open.
    still: Option<(Option<i64>, Instant)>,
}

impl JoinProgress {
    /// Takes a new observation. Returns why the join failed; `None` while it goes on, after it
    /// succeeded, or when no join is under way.
    pub(super) fn update(&mut self, facts: &NodeView) -> Option<String> {
        let incoming: i64 = facts.streams.iter().map(|stream| stream.receiving).sum();
        self.expected = self.expected.max(incoming);
        if !facts.streams.is_empty() {
            self.peers = facts.streams.iter().flat_map(|stream| stream.peers.clone()).collect();
        }
        let has_failed = match facts.mode.as_str() {
            "JOINING_FAILED" => true,
            "JOINING" if facts.bootstrapping && facts.streams.is_empty() => {
                self.is_over(facts.received)
            }
            _ => {
                self.still = None;
                false
            }
        };
        has_failed.then(|| {
            let received_bytes = facts.received.unwrap_or_default();
            let total = match self.expected {
                0 => String::new(),
                expected => format!(" of {expected}"),
            };
            let peers: Vec<_> = self.peers.iter().map(IpAddr::to_string).collect();
            let last_peers = match &*peers {
                [] => String::new(),
                peers => format!(" (the last was with {})", peers.join(", ")),
            };
            format!(
                "the join failed: mode {}, received {received_bytes}{total} bytes, no stream is open{last_peers}; the \
                 log of Cassandra says why, here and there. It begins anew",
                facts.mode
            )
        })
    }

    fn is_over(&mut self, received_bytes: Option<i64>) -> bool {
        match self.still {
            Some((last_received, since)) if last_received == received_bytes => {
                since.elapsed() > IDLE
            }
            _ => {
                self.still = Some((received_bytes, Instant::now()));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::node_view::StreamState;

    fn joins(streams: Vec<StreamState>) -> NodeView {
        let mode = "JOINING".to_owned();
        NodeView { mode, bootstrapping: true, received: Some(7), streams, ..NodeView::default() }
    }

    #[test]
    fn a_join_is_over_by_its_mode_or_when_nothing_comes_for_minutes() {
        let mut join = JoinProgress::default();
        let peers = [IpAddr::from([127, 0, 1, 2])].into();
        let stream = StreamState { receiving: 900, peers, ..StreamState::default() };
        assert_eq!(join.update(&joins(vec![stream])), None);
        let failed = NodeView { mode: "JOINING_FAILED".to_owned(), ..joins(Vec::new()) };
        let why = join.update(&failed).unwrap();
        assert!(why.contains("JOINING_FAILED, received 7 of 900 bytes"), "{why}");
        assert!(why.contains("no stream is open (the last was with 127.0.1.2);"), "{why}");

        let mut join = JoinProgress::default();
        assert_eq!(join.update(&joins(Vec::new())), None, "the ring delay");
        let long_ago = Instant::now().checked_sub(IDLE + Duration::from_secs(1)).unwrap();
        let idle = |received| JoinProgress {
            still: Some((received, long_ago)),
            ..JoinProgress::default()
        };
        let (streams, none) = (joins(vec![StreamState::default()]), joins(Vec::new()));
        assert!(idle(Some(7)).update(&none).is_some());
        assert_eq!(idle(Some(6)).update(&none), None, "something came");
        assert_eq!(idle(Some(7)).update(&streams), None, "a stream is open");
        assert_eq!(
            idle(Some(7)).update(&NodeView { bootstrapping: false, ..none }),
            None,
            "it has not begun"
        );
    }
}
