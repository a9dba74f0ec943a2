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

/// What a stop of this node, and the nodes that are down, mean for the users' ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RangeAvailability {
    /// True when some range has no quorum of live replicas now.
    pub(super) quorum_lost: bool,
    /// Name of a keyspace with a range that would lose its quorum if this node stopped as well.
    pub(super) stopping_loses: Option<String>,
    /// Datacenter and rack of each node that is down.
    pub(super) places: BTreeMap<IpAddr, (String, String)>,
}

impl RangeAvailability {
    /// Asks Cassandra which nodes share the users' ranges. Useful only while a node is down: with
    /// all nodes up, no order of restarts is better than another.
    pub(super) async fn ask(jolokia: &JolokiaClient, facts: &NodeView) -> Result<Self, Error> {
        let mut ranges = Self { places: places(jolokia, facts).await?, ..Self::default() };
        let keyspaces = keyspaces::of_users(jolokia).await?;
        for (keyspace, map) in keyspaces::replicas(jolokia, keyspaces).await? {
            let Value::Object(map) = map.or_fail()? else {
                return Err(unclear_replicas(&keyspace).into());
            };
            for replicas in map.values() {
                let replicas = parse_addresses(replicas);
                if replicas.is_empty() {
                    return Err(unclear_replicas(&keyspace).into());
                }
                ranges.weigh(&keyspace, &replicas, facts);
            }
        }
        Ok(ranges)
    }

    fn weigh(&mut self, keyspace: &str, replicas: &BTreeSet<IpAddr>, facts: &NodeView) {
        let quorum = replicas.len() / 2 + 1;
        let live = replicas.difference(&facts.unreachable).count();
        let here = facts.address.is_some_and(|own| replicas.contains(&own));
        self.quorum_lost |= live < quorum;
        if here && live < replicas.len() && live - 1 < quorum {
            self.stopping_loses.get_or_insert_with(|| keyspace.to_owned());
        }
    }
}

/// Asks for datacenter and rack of the nodes that are down: gossip forgets them when all nodes
/// restart.
async fn places(
    jolokia: &JolokiaClient,
    facts: &NodeView,
) -> Result<BTreeMap<IpAddr, (String, String)>, Error> {
    let down = &facts.unreachable;
    let both = |node: &IpAddr| {
        ["getDatacenter(java.lang.String)", "getRack(java.lang.String)"]
            .map(|operation| (operation, node.to_string()))
    };
    let calls: Vec<_> = down.iter().flat_map(both).collect();
    let answers = jolokia.call_each(SNITCH_INFO, &calls).await?;
    // The places are only reported, for an empty node that may replace one of these nodes.
    let text =
        |answer: Option<&QueryAnswer<Value>>| Some(answer?.as_ref().figure()?.as_str()?.to_owned());
    let place = |(node, answer): (&IpAddr, &[QueryAnswer<Value>])| {
        Some((*node, (text(answer.first())?, text(answer.get(1))?)))
    };
    Ok(down.iter().zip(answers.chunks(2)).filter_map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::tests::{OWN, PEER, facts};

    #[test]
    fn quorum_is_weighed_over_the_ranges_of_this_node() {
        let third: IpAddr = [127, 0, 1, 3].into();
        let facts = NodeView { unreachable: [PEER].into(), ..facts("NORMAL") };
        let weigh = |replicas: &[IpAddr]| {
            let mut ranges = RangeAvailability::default();
            ranges.weigh("shop", &replicas.iter().copied().collect(), &facts);
            (ranges.quorum_lost, ranges.stopping_loses.is_some())
        };
        assert_eq!(weigh(&[OWN]), (false, false), "one replica, here: any restart loses it");
        assert_eq!(weigh(&[PEER]), (true, false));
        assert_eq!(weigh(&[OWN, PEER, third]), (false, true));
        assert_eq!(weigh(&[OWN, third]), (false, false));
    }
}
