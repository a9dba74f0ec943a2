//! Turns Cassandra's answers about itself into the pilot's observation. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    node_view::{NodeView, TRANSPORT},
    range_availability::{LostQuorum, RangeAvailability},
    state::NodeState,
};
use crate::{
    api::{names::annotation::ADOPT_DATA, v1beta1::Health},
    databases::cassandra::{
        names::port,
        predicates::{
            self, PEERS_UP, PEERS_UP_ELSEWHERE, RANGES_KEEP_QUORUM, RING_SETTLED, SCHEMA_AGREEMENT,
            STREAMS_IDLE,
        },
        v1beta1::{CassandraCleanup, CassandraNode, CassandraPeer, PilotCassandraStatus},
    },
    pilot::{
        database::DatabaseGauge,
        driver::{JOINED_EMPTY, NEXT_LIFE, NodeObservation},
    },
};

/// Builds the pilot's observation from the node's view and the state of its ranges. `state`: what
/// the volume says of the node, once that was read. `cleanup`: the one that was asked for last.
pub(super) fn summarize(
    facts: &NodeView,
    ranges: &RangeAvailability,
    state: Option<&NodeState>,
    cleanup: Option<CassandraCleanup>,
) -> NodeObservation {
    let received = state.and_then(|state| state.received(facts));
    let mut seen = NodeObservation::answered(facts.version.clone(), unready(facts));
    if facts.is_member() {
        // While a node joins, its id is new and not yet known to the ring; and a replacement needs
        // the old address in the Pilot.
        seen.node_id.clone_from(&facts.host_id);
        seen.health = Some(match () {
            () if ranges.quorum_lost => Health::Red,
            () if facts.unreachable.is_empty() => Health::Green,
            () => Health::Yellow,
        });
        if let Some(host) = facts.address {
            seen.endpoint(TRANSPORT, host, port::STORAGE);
            seen.endpoint("client", host, port::CQL);
        }
    }
    seen.misses_peers = !facts.unreachable.is_empty();
    block(&mut seen, facts, ranges);
    seen.gauge("cassandra_live_nodes", facts.live.len());
    seen.gauge("cassandra_unreachable_nodes", facts.unreachable.len());
    seen.gauge("cassandra_streams", facts.streams.len());
    seen.gauge("cassandra_tokens", facts.tokens);
    seen.gauge("cassandra_load_bytes", facts.load);
    seen.gauge("cassandra_stream_received_bytes", facts.received);
    seen.gauge("cassandra_stream_sent_bytes", facts.sent);
    seen.gauge("cassandra_bootstrap_received_bytes", received);
    seen.gauge("cassandra_heap_used_bytes", facts.heap_used);
    let name = state.map(|state| state.cluster_name.clone()).filter(|name| !name.is_empty());
    seen.tell::<CassandraNode>(&PilotCassandraStatus {
        cluster_name: name,
        version: facts.version.clone(),
        operation_mode: Some(facts.mode.clone()),
        joined: if facts.is_member() { Some(true) } else { state.map(|state| state.joined) },
        tokens: i32::try_from(facts.tokens).ok().filter(|tokens| *tokens > 0),
        load_bytes: facts.load,
        replication_factor: None,
        bootstrap_bytes_received: received,
        unreachable: facts.is_member().then(|| missed(facts, ranges)),
        cleanup,
        behind: state.and_then(|state| state.presence.behind.clone()),
    });
    if let Some(load) = state.and_then(NodeState::starved_of).filter(|_| seen.serving) {
        // The node would answer for rows of other nodes with its empty tables.
        let message = format!(
            "joined the ring and received nothing, while a member of its datacenter held {load} \
             bytes; empty its volume to let it join again, or run `nodetool rebuild` on it; when \
             it is as it should be, annotate its Pilot with {ADOPT_DATA}=true"
        );
        seen.hold_back(JOINED_EMPTY, message.clone());
        seen.block(&predicates::JOINED_EMPTY, message);
    }
    seen
}

/// Reports a node that runs for its pilot alone, which makes the ring's logins: nobody is to know its
/// address yet, and join. `made`: they are there, and it may start again.
pub(super) fn alone(seen: &mut NodeObservation, made: bool) {
    seen.node_id = None;
    seen.health = None;
    seen.endpoints.clear();
    seen.change_part::<CassandraNode>(|part| part.joined = None);
    if made {
        seen.hold_back(NEXT_LIFE, "the ring has its first login, and starts again to ask for it");
    } else if seen.serving {
        seen.hold_back("Founding", "nobody but the pilot can connect until the ring has a login");
    }
}

/// Returns why the node does not serve.
fn unready(facts: &NodeView) -> Option<(&'static str, String)> {
    let sees_itself = facts.address.is_some_and(|own| facts.live.contains(&own));
    let (reason, message) = match facts.mode.as_str() {
        "NORMAL" if facts.serves_clients && sees_itself => return None,
        "NORMAL" => ("Starting", "joined the ring, does not serve clients yet".to_owned()),
        "JOINING" => {
            let received = facts.received.unwrap_or_default();
            ("Joining", format!("joins the ring, received {received} bytes"))
        }
        "LEAVING" => ("Leaving", "moves its data to the other nodes".to_owned()),
        "DECOMMISSION_FAILED" => ("Leaving", "the decommission failed".to_owned()),
        "DECOMMISSIONED" => ("NodeDecommissioned", "left the ring".to_owned()),
        mode => ("Starting", format!("operation mode {mode}")),
    };
    Some((reason, message))
}

/// Most missing members that are listed: the size of a status is limited.
const MISSED: usize = 30;

/// Returns the members that are down, with the facts by which a node that replaces one recognises
/// it.
fn missed(facts: &NodeView, ranges: &RangeAvailability) -> Vec<CassandraPeer> {
    let peer = |node: &IpAddr| {
        let (datacenter, rack) = ranges.places.get(node).cloned().unzip();
        let host_id = facts.ids.get(node).cloned();
        CassandraPeer { address: node.to_string(), host_id, datacenter, rack }
    };
    facts.unreachable.iter().take(MISSED).map(peer).collect()
}

/// Adds the rules that hold now.
fn block(seen: &mut NodeObservation, facts: &NodeView, ranges: &RangeAvailability) {
    let unsettled: Vec<String> =
        [("joins", &facts.joining), ("leaves", &facts.leaving), ("moves", &facts.moving)]
            .into_iter()
            .flat_map(|(what, nodes)| nodes.iter().map(move |node| format!("{node} {what}")))
            .collect();
    if !unsettled.is_empty() {
        seen.block(&RING_SETTLED, unsettled.join(", "));
    }
    if !facts.unreachable.is_empty() {
        let rule = if ranges.are_down_elsewhere(facts) { &PEERS_UP_ELSEWHERE } else { &PEERS_UP };
        seen.block(rule, format!("{} down as seen from here", list(&facts.unreachable)));
    }
    if let Some(LostQuorum { keyspace, datacenter }) = &ranges.stopping_loses {
        let place = datacenter.as_ref().map(|name| format!(" in datacenter {name}"));
        let place = place.unwrap_or_default();
        let lost = "has other replicas down and would lose its quorum";
        seen.block(&RANGES_KEEP_QUORUM, format!("a range of keyspace {keyspace} {lost}{place}"));
    }
    if let Some(stream) = facts.streams.first() {
        let count = facts.streams.len();
        seen.block(
            &STREAMS_IDLE,
            format!("{count} streams run, one of them: {}", stream.description),
        );
    }
    let schemas = facts.schemas_of_a_release();
    if schemas > 1 {
        seen.block(&SCHEMA_AGREEMENT, format!("live nodes have {schemas} schema versions"));
    }
}

/// The gauges that [`summarize`] may set.
pub(super) const GAUGES: &[DatabaseGauge] = &[
    gauge("cassandra_bootstrap_received_bytes", "What the node received as it joined."),
    gauge("cassandra_heap_used_bytes", "Use of the heap."),
    gauge("cassandra_live_nodes", "Nodes that this one sees up, itself among them."),
    gauge("cassandra_load_bytes", "Data that the node holds."),
    gauge("cassandra_stream_received_bytes", "Received by the streams that are open."),
    gauge("cassandra_stream_sent_bytes", "Sent by the streams that are open."),
    gauge("cassandra_streams", "Streams that are open."),
    gauge("cassandra_tokens", "Tokens that the node owns."),
    gauge("cassandra_unreachable_nodes", "Nodes that this one sees down."),
];

const fn gauge(name: &'static str, help: &'static str) -> DatabaseGauge {
    DatabaseGauge { name, help }
}

fn list(nodes: &BTreeSet<IpAddr>) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::v1beta1::NodeChange,
        databases::cassandra::{
            names,
            pilot::{
                node_view::StreamState,
                tests::{OWN, PEER, answers, facts, parse},
            },
        },
    };

    fn joined(received: i64) -> NodeState {
        NodeState {
            cluster_name: "shop-1a2b3c4d".to_owned(),
            joined: true,
            bootstrap_bytes_received: Some(received),
            ..NodeState::default()
        }
    }

    fn predicates(facts: &NodeView, ranges: &RangeAvailability) -> Vec<&'static str> {
        summarize(facts, ranges, None, None)
            .blockers
            .into_iter()
            .map(|(rule, _)| rule.name)
            .collect()
    }

    #[test]
    fn a_settled_member_serves_and_may_stop() {
        let seen =
            summarize(&facts("NORMAL"), &RangeAvailability::default(), Some(&joined(1234)), None);
        assert!(seen.serving && seen.blockers.is_empty());
        let known: Vec<_> = GAUGES.iter().map(|gauge| gauge.name).collect();
        assert_eq!(seen.gauges.into_keys().collect::<Vec<_>>(), known, "all of them are told");
        assert_eq!(seen.health, Some(Health::Green));
        assert_eq!(seen.node_id.as_deref(), Some("id-1"));
        assert_eq!(seen.endpoints[0].host, "127.0.1.1");
        let told: PilotCassandraStatus = seen.detail.get(names::NAMES.word).unwrap();
        assert_eq!(told.bootstrap_bytes_received, Some(1234));
        assert_eq!(told.cluster_name.as_deref(), Some("shop-1a2b3c4d"));
    }

    #[test]
    fn a_member_that_received_nothing_does_not_serve_and_may_not_be_restarted() {
        let state = NodeState { ring_load: Some(1 << 30), starved: true, ..joined(0) };
        let seen = summarize(&facts("NORMAL"), &RangeAvailability::default(), Some(&state), None);
        assert!(seen.alive && !seen.serving && seen.node_id.is_some());
        assert_eq!(seen.reason, Some("JoinedEmpty"));
        assert_eq!(seen.blockers[0].0.name, "JoinedEmpty");
        assert!(seen.message.unwrap().contains(ADOPT_DATA));
    }

    #[test]
    fn a_joining_node_is_alive_and_claims_no_identity_yet() {
        let seen = summarize(&facts("JOINING"), &RangeAvailability::default(), None, None);
        assert!(seen.alive && !seen.serving);
        assert_eq!(seen.reason, Some("Joining"));
        assert_eq!((seen.node_id, seen.health), (None, None));
        assert!(seen.endpoints.is_empty());
    }

    #[test]
    fn a_node_that_left_the_ring_is_not_missed() {
        let mut answers = answers("NORMAL");
        answers[0]["EndpointToHostId"] = json!({"127.0.1.1": "id-1"});
        answers[0]["LiveNodes"] = json!(["127.0.1.1"]);
        answers[0]["UnreachableNodes"] = json!(["127.0.1.2"]);
        let seen = summarize(&parse(answers), &RangeAvailability::default(), None, None);
        assert_eq!(seen.health, Some(Health::Green));
        assert!(seen.blockers.is_empty());
    }

    #[test]
    fn a_jvm_without_its_services_is_starting() {
        let seen =
            summarize(&parse(vec![Value::Null; 7]), &RangeAvailability::default(), None, None);
        assert!(seen.alive && !seen.serving);
        assert_eq!(seen.reason, Some("Starting"));
    }

    #[test]
    fn a_node_that_is_down_in_another_datacenter_holds_no_stop() {
        let mut facts = NodeView { unreachable: [PEER].into(), ..facts("NORMAL") };
        let against = |facts: &NodeView| {
            let seen = summarize(facts, &RangeAvailability::default(), None, None);
            assert_eq!(seen.blockers.len(), 1);
            seen.blockers[0].0.against.contains(&NodeChange::Stop)
        };
        for (node, datacenter) in [(OWN, "eu"), (PEER, "us")] {
            facts.gossip.get_mut(&node).unwrap().datacenter = Some(datacenter.to_owned());
        }
        assert!(!against(&facts));
        for datacenter in [Some("eu".to_owned()), Some("UNKNOWN_DC".to_owned()), None] {
            facts.gossip.get_mut(&PEER).unwrap().datacenter = datacenter;
            assert!(against(&facts), "it may be in this datacenter");
        }
    }

    #[test]
    fn every_reason_not_to_stop_is_named() {
        let settled = facts("NORMAL");
        let none = RangeAvailability::default();
        let facts = NodeView { joining: [PEER].into(), ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["RingSettled"]);
        let facts = NodeView { unreachable: [PEER].into(), ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["PeersUp"]);
        let facts = NodeView { streams: vec![StreamState::default()], ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["StreamsIdle"]);
        let mut facts = settled;
        facts.gossip.get_mut(&PEER).unwrap().schema = Some("s2".to_owned());
        assert_eq!(predicates(&facts, &none), ["SchemaAgreement"]);
        // In the middle of an upgrade they cannot agree.
        for (node, release) in [(OWN, "5.0.6"), (PEER, "4.1.10")] {
            facts.gossip.get_mut(&node).unwrap().release = Some(release.to_owned());
        }
        assert_eq!(predicates(&facts, &none), [""; 0]);
        facts.gossip.get_mut(&PEER).unwrap().release = Some("5.0.5".to_owned());
        assert_eq!(predicates(&facts, &none), ["SchemaAgreement"]);
    }
}
