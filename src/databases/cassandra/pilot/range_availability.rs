//! Finds which nodes share the users' ranges with this one, and what a stop would mean for the
//! ranges.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::Value;

use super::{
    keyspaces::{self, unclear_replicas},
    node_view::NodeView,
};
use crate::pilot::{
    clients::jolokia::{JolokiaClient, parse_addresses},
    driver::Error,
    query_answer::QueryAnswer,
};

const SNITCH_INFO: &str = "org.apache.cassandra.db:type=EndpointSnitchInfo";
/// The answer of `GossipingPropertyFileSnitch` for a node of which it knows nothing (`DEFAULT_DC`).
const UNKNOWN_DATACENTER: &str = "UNKNOWN_DC";

/// What a stop of this node, and the nodes that are down, mean for the users' ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RangeAvailability {
    /// True when some range has no quorum of live replicas now, in the ring or in a datacenter.
    pub(super) quorum_lost: bool,
    /// A quorum that would be lost if this node stopped as well.
    pub(super) stopping_loses: Option<LostQuorum>,
    /// Datacenter and rack of each node that is down.
    pub(super) places: BTreeMap<IpAddr, (String, String)>,
}

/// A quorum that a range would lose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostQuorum {
    pub(super) keyspace: String,
    /// The datacenter whose replicas would have no quorum; `None`: those of the whole ring.
    pub(super) datacenter: Option<String>,
}

/// How many replicas a range has, and how many of them are live.
#[derive(Clone, Copy, Debug, Default)]
struct ReplicaCount {
    all: usize,
    live: usize,
}

impl ReplicaCount {
    fn add(&mut self, is_live: bool) {
        self.all += 1;
        self.live += usize::from(is_live);
    }

    fn has_quorum(self) -> bool {
        self.live > self.all / 2
    }

    /// Returns whether the stop of a live replica would lose a quorum while other replicas are down.
    /// With all replicas up, a range with fewer than three loses it by any restart.
    fn is_last_of_quorum(self) -> bool {
        let remaining = Self { live: self.live.saturating_sub(1), ..self };
        self.live < self.all && !remaining.has_quorum()
    }
}

impl RangeAvailability {
    /// Asks Cassandra which nodes share the users' ranges. Useful only while a node is down: with
    /// all nodes up, no order of restarts is better than another.
    pub(super) async fn query(jolokia: &JolokiaClient, facts: &NodeView) -> Result<Self, Error> {
        let mut ranges = Self { places: read_places(jolokia, facts).await?, ..Self::default() };
        let keyspaces = keyspaces::list_user_keyspaces(jolokia).await?;
        for group in keyspaces::read_replicas(jolokia, keyspaces).await? {
            let keyspace = &group.keyspaces[0];
            let Value::Object(map) = group.ranges.or_fail()? else {
                return Err(unclear_replicas(keyspace).into());
            };
            for replicas in map.values() {
                let replicas = parse_addresses(replicas);
                if replicas.is_empty() {
                    return Err(unclear_replicas(keyspace).into());
                }
                ranges.check_range(keyspace, &replicas, facts);
            }
        }
        Ok(ranges)
    }

    /// Judges one range, for `QUORUM` by the replicas of the whole ring, and for `LOCAL_QUORUM` and
    /// `EACH_QUORUM` by those of each datacenter (`ConsistencyLevel.quorumFor`, `localQuorumFor`).
    /// The strategy of the keyspace is not asked for: one with `SimpleStrategy` in several
    /// datacenters is judged in the same way, which is stricter than `QUORUM` needs.
    fn check_range(&mut self, keyspace: &str, replicas: &BTreeSet<IpAddr>, facts: &NodeView) {
        let mut ring = ReplicaCount::default();
        let mut datacenters = BTreeMap::<Option<&str>, ReplicaCount>::new();
        for node in replicas {
            let is_live = !facts.unreachable.contains(node);
            ring.add(is_live);
            datacenters.entry(self.datacenter_of(node, facts)).or_default().add(is_live);
        }
        // A replica whose datacenter is not known may be in any. For a stop, one that is down
        // counts in each datacenter and one that is live in none; for the health, the reverse.
        let unknown_replicas = datacenters.remove(&None).unwrap_or_default();
        let down_count = unknown_replicas.all - unknown_replicas.live;
        let is_lost = |count: &ReplicaCount| {
            let best_case = ReplicaCount {
                all: count.all + unknown_replicas.live,
                live: count.live + unknown_replicas.live,
            };
            !best_case.has_quorum()
        };
        let quorum_lost = !ring.has_quorum() || datacenters.values().any(is_lost);
        let own_address = facts.address.filter(|address| replicas.contains(address));
        let own_datacenter = own_address.map(|address| self.datacenter_of(&address, facts));
        let lost_datacenter = own_datacenter.and_then(|datacenter| {
            let count = datacenters.get(&datacenter).copied().unwrap_or_default();
            let worst_case = ReplicaCount { all: count.all + down_count, ..count };
            worst_case.is_last_of_quorum().then(|| datacenter.map(str::to_owned))
        });
        let is_lost_in_ring = own_datacenter.is_some() && ring.is_last_of_quorum();
        let datacenter = if is_lost_in_ring { Some(None) } else { lost_datacenter };
        self.quorum_lost |= quorum_lost;
        if let Some(datacenter) = datacenter {
            let keyspace = keyspace.to_owned();
            self.stopping_loses.get_or_insert(LostQuorum { keyspace, datacenter });
        }
    }

    /// Are all nodes that are down in other datacenters than this one? Not where a place is not known.
    pub(super) fn are_down_elsewhere(&self, facts: &NodeView) -> bool {
        let own_datacenter = facts.address.and_then(|address| self.datacenter_of(&address, facts));
        let is_elsewhere = |node: &IpAddr| {
            let other = self.datacenter_of(node, facts);
            own_datacenter.zip(other).is_some_and(|(datacenter, other)| datacenter != other)
        };
        facts.unreachable.iter().all(is_elsewhere)
    }

    /// Returns the datacenter of a replica, as gossip or the snitch knows it.
    fn datacenter_of<'a>(&'a self, node: &IpAddr, facts: &'a NodeView) -> Option<&'a str> {
        let gossip = facts.gossip.get(node).and_then(|state| state.datacenter.as_deref());
        let snitch = || Some(self.places.get(node)?.0.as_str());
        gossip.or_else(snitch).filter(|name| *name != UNKNOWN_DATACENTER)
    }
}

/// Asks for datacenter and rack of the nodes that are down: gossip forgets them when all nodes
/// restart.
async fn read_places(
    jolokia: &JolokiaClient,
    facts: &NodeView,
) -> Result<BTreeMap<IpAddr, (String, String)>, Error> {
    let down_nodes = &facts.unreachable;
    let snitch_calls = |node: &IpAddr| {
        ["getDatacenter(java.lang.String)", "getRack(java.lang.String)"]
            .map(|operation| (operation, node.to_string()))
    };
    let calls: Vec<_> = down_nodes.iter().flat_map(snitch_calls).collect();
    let answers = jolokia.call_each(SNITCH_INFO, &calls).await?;
    // The places are only reported, for an empty node that may replace one of these nodes.
    let text = |answer: Option<&QueryAnswer<Value>>| {
        Some(answer?.as_ref().into_option()?.as_str()?.to_owned())
    };
    let place = |(node, answer): (&IpAddr, &[QueryAnswer<Value>])| {
        Some((*node, (text(answer.first())?, text(answer.get(1))?)))
    };
    Ok(down_nodes.iter().zip(answers.chunks(2)).filter_map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::{
        node_view::EndpointState,
        tests::{OWN, PEER, facts},
    };

    #[test]
    fn quorum_is_weighed_over_the_ranges_of_this_node() {
        let third: IpAddr = [127, 0, 1, 3].into();
        let facts = NodeView { unreachable: [PEER].into(), ..facts("NORMAL") };
        let weigh = |replicas: &[IpAddr]| {
            let mut ranges = RangeAvailability::default();
            ranges.check_range("shop", &replicas.iter().copied().collect(), &facts);
            (ranges.quorum_lost, ranges.stopping_loses.is_some())
        };
        assert_eq!(weigh(&[OWN]), (false, false), "one replica, here: any restart loses it");
        assert_eq!(weigh(&[PEER]), (true, false));
        assert_eq!(weigh(&[OWN, PEER, third]), (false, true));
        assert_eq!(weigh(&[OWN, third]), (false, false));
    }

    /// Returns the address of node `last`: 1 to 3 are in `dc1`, 4 to 6 in `dc2`, the others in a
    /// datacenter that is not known.
    fn node(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// Judges a range with the replicas `all` on node `own`, while `down` are down.
    fn judged(own: u8, all: &[u8], down: &[u8]) -> RangeAvailability {
        let gossip = |last: u8| {
            let datacenter = Some(if last < 4 { "dc1" } else { "dc2" }.to_owned());
            (node(last), EndpointState { datacenter, ..EndpointState::default() })
        };
        let facts = NodeView {
            address: Some(node(own)),
            unreachable: down.iter().copied().map(node).collect(),
            gossip: (1..=6).map(gossip).collect(),
            ..NodeView::default()
        };
        let mut ranges = RangeAvailability::default();
        ranges.check_range("shop", &all.iter().copied().map(node).collect(), &facts);
        ranges
    }

    /// Returns the datacenter whose quorum a stop would lose, or `ring`.
    fn lost_in(ranges: &RangeAvailability) -> Option<&str> {
        let lost = ranges.stopping_loses.as_ref()?;
        Some(lost.datacenter.as_deref().unwrap_or("ring"))
    }

    #[test]
    fn quorum_of_one_datacenter_is_kept() {
        let all = [1, 2, 3, 4, 5, 6];
        let ranges = judged(4, &all, &[5]);
        assert_eq!(lost_in(&ranges), Some("dc2"), "one of three would be left there");
        assert!(!ranges.quorum_lost);
        assert_eq!(lost_in(&judged(1, &all, &[5])), None, "dc1 is whole, and four of six are left");
        assert_eq!(lost_in(&judged(1, &all, &[4, 5])), Some("ring"), "three of six would be left");
        assert!(judged(1, &all, &[5, 6]).quorum_lost, "LOCAL_QUORUM in dc2 is lost");
        assert_eq!(lost_in(&judged(1, &[1, 4, 5, 6], &[])), None, "one copy in dc1: any restart");
        assert_eq!(lost_in(&judged(1, &[2, 3, 4, 5, 6], &[2])), None, "no replica here");
    }

    #[test]
    fn replica_of_unknown_datacenter_makes_no_stop_safe() {
        let all = [1, 2, 3, 4, 5, 6];
        assert_eq!(lost_in(&judged(4, &[1, 2, 3, 4, 5, 7], &[7])), Some("dc2"));
        assert_eq!(lost_in(&judged(4, &[1, 2, 3, 4, 7, 8], &[7])), Some("dc2"));
        assert!(!judged(4, &[1, 2, 3, 4, 7, 8], &[7]).quorum_lost, "both may be in dc2");
        assert_eq!(lost_in(&judged(4, &all, &[])), None);
        // The snitch answers for a node that is down and that gossip has forgotten.
        let mut facts = NodeView {
            address: Some(node(4)),
            unreachable: [node(7)].into(),
            ..NodeView::default()
        };
        for last in [4, 5, 6] {
            let datacenter = Some("dc2".to_owned());
            let state = EndpointState { datacenter, ..EndpointState::default() };
            facts.gossip.insert(node(last), state);
        }
        for (answer, expected) in
            [("dc1", None), ("dc2", Some("dc2")), (UNKNOWN_DATACENTER, Some("dc2"))]
        {
            let places = [(node(7), (answer.to_owned(), "r1".to_owned()))].into();
            let mut ranges = RangeAvailability { places, ..RangeAvailability::default() };
            ranges.check_range("shop", &[4, 5, 6, 7, 8, 9].map(node).into(), &facts);
            assert_eq!(lost_in(&ranges), expected, "{answer}");
        }
    }
}
