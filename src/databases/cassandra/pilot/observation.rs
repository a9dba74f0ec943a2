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
pub(super) fn summarize_node(
    facts: &NodeView,
    ranges: &RangeAvailability,
    state: Option<&NodeState>,
    cleanup: Option<CassandraCleanup>,
) -> NodeObservation {
    let received_bytes = state.and_then(|state| state.received_bytes(facts));
    let mut observation =
        NodeObservation::from_readiness(facts.version.clone(), unready_reason(facts));
    if facts.is_member() {
        // While a node joins, its id is new and not yet known to the ring; and a replacement needs
        // the old address in the Pilot.
        observation.node_id.clone_from(&facts.host_id);
        observation.health = Some(match () {
            () if ranges.quorum_lost => Health::Red,
            () if facts.unreachable.is_empty() => Health::Green,
            () => Health::Yellow,
        });
        if let Some(host) = facts.address {
            observation.add_endpoint(TRANSPORT, host, port::STORAGE);
            observation.add_endpoint("client", host, port::CQL);
        }
    }
    observation.misses_peers = !facts.unreachable.is_empty();
    add_blockers(&mut observation, facts, ranges);
    observation.set_gauge("cassandra_live_nodes", facts.live.len());
    observation.set_gauge("cassandra_unreachable_nodes", facts.unreachable.len());
    observation.set_gauge("cassandra_streams", facts.streams.len());
    observation.set_gauge("cassandra_tokens", facts.tokens);
    observation.set_gauge("cassandra_load_bytes", facts.load);
    observation.set_gauge("cassandra_stream_received_bytes", facts.received);
    observation.set_gauge("cassandra_stream_sent_bytes", facts.sent);
    observation.set_gauge("cassandra_bootstrap_received_bytes", received_bytes);
    observation.set_gauge("cassandra_heap_used_bytes", facts.heap_used);
    let name = state.map(|state| state.cluster_name.clone()).filter(|name| !name.is_empty());
    observation.set_part::<CassandraNode>(&PilotCassandraStatus {
        cluster_name: name,
        version: facts.version.clone(),
        operation_mode: Some(facts.mode.clone()),
        joined: if facts.is_member() { Some(true) } else { state.map(|state| state.joined) },
        tokens: i32::try_from(facts.tokens).ok().filter(|tokens| *tokens > 0),
        load_bytes: facts.load,
        replication_factor: None,
        bootstrap_bytes_received: received_bytes,
        unreachable: facts.is_member().then(|| missed_peers(facts, ranges)),
        cleanup,
        behind: state.and_then(|state| state.presence.behind.clone()),
    });
    if let Some(load) = state.and_then(NodeState::starved_of).filter(|_| observation.serving) {
        // The node would answer for rows of other nodes with its empty tables.
        let message = format!(
            "joined the ring and received nothing, while a member of its datacenter held {load} \
             bytes; empty its volume to let it join again, or run `nodetool rebuild` on it; when \
             it is as it should be, annotate its Pilot with {ADOPT_DATA}=true"
        );
        observation.hold_back(JOINED_EMPTY, message.clone());
        observation.add_blocker(&predicates::JOINED_EMPTY, message);
    }
    observation
}

/// Reports a node that runs for its pilot alone, which makes the ring's logins: nobody is to know its
/// address yet, and join. `has_login`: they are there, and it may start again.
pub(super) fn restrict_to_pilot(observation: &mut NodeObservation, has_login: bool) {
    observation.node_id = None;
    observation.health = None;
    observation.endpoints.clear();
    observation.change_part::<CassandraNode>(|part| part.joined = None);
    if has_login {
        observation
            .hold_back(NEXT_LIFE, "the ring has its first login, and starts again to ask for it");
    } else if observation.serving {
        observation
            .hold_back("Founding", "nobody but the pilot can connect until the ring has a login");
    }
}

/// Returns why the node does not serve.
fn unready_reason(facts: &NodeView) -> Option<(&'static str, String)> {
    let is_live = facts.address.is_some_and(|address| facts.live.contains(&address));
    let (reason, message) = match facts.mode.as_str() {
        "NORMAL" if facts.serves_clients && is_live => return None,
        "NORMAL" => ("Starting", "joined the ring, does not serve clients yet".to_owned()),
        "JOINING" => {
            let received_bytes = facts.received.unwrap_or_default();
            ("Joining", format!("joins the ring, received {received_bytes} bytes"))
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
fn missed_peers(facts: &NodeView, ranges: &RangeAvailability) -> Vec<CassandraPeer> {
    let peer = |node: &IpAddr| {
        let (datacenter, rack) = ranges.places.get(node).cloned().unzip();
        let host_id = facts.ids.get(node).cloned();
        CassandraPeer { address: node.to_string(), host_id, datacenter, rack }
    };
    facts.unreachable.iter().take(MISSED).map(peer).collect()
}

/// Adds the rules that hold now.
fn add_blockers(observation: &mut NodeObservation, facts: &NodeView, ranges: &RangeAvailability) {
    let unsettled_nodes: Vec<String> =
        [("joins", &facts.joining), ("leaves", &facts.leaving), ("moves", &facts.moving)]
            .into_iter()
            .flat_map(|(verb, nodes)| nodes.iter().map(move |node| format!("{node} {verb}")))
            .collect();
    if !unsettled_nodes.is_empty() {
        observation.add_blocker(&RING_SETTLED, unsettled_nodes.join(", "));
    }
    if !facts.unreachable.is_empty() {
        let predicate =
            if ranges.are_down_elsewhere(facts) { &PEERS_UP_ELSEWHERE } else { &PEERS_UP };
        observation.add_blocker(
            predicate,
            format!("{} down as seen from here", join_addresses(&facts.unreachable)),
        );
    }
    if let Some(LostQuorum { keyspace, datacenter }) = &ranges.stopping_loses {
        let place = datacenter.as_ref().map(|name| format!(" in datacenter {name}"));
        let place = place.unwrap_or_default();
        let reason = "has other replicas down and would lose its quorum";
        observation.add_blocker(
            &RANGES_KEEP_QUORUM,
            format!("a range of keyspace {keyspace} {reason}{place}"),
        );
    }
    if let Some(stream) = facts.streams.first() {
        let count = facts.streams.len();
        observation.add_blocker(
            &STREAMS_IDLE,
            format!("{count} streams run, one of them: {}", stream.description),
        );
    }
    let schemas = facts.schemas_of_a_release();
    if schemas > 1 {
        observation
            .add_blocker(&SCHEMA_AGREEMENT, format!("live nodes have {schemas} schema versions"));
    }
}

/// The gauges that [`summarize_node`] may set.
pub(super) const GAUGES: &[DatabaseGauge] = &[
    build_gauge("cassandra_bootstrap_received_bytes", "What the node received as it joined."),
    build_gauge("cassandra_heap_used_bytes", "Use of the heap."),
    build_gauge("cassandra_live_nodes", "Nodes that this one sees up, itself among them."),
    build_gauge("cassandra_load_bytes", "Data that the node holds."),
    build_gauge("cassandra_stream_received_bytes", "Received by the streams that are open."),
    build_gauge("cassandra_stream_sent_bytes", "Sent by the streams that are open."),
    build_gauge("cassandra_streams", "Streams that are open."),
    build_gauge("cassandra_tokens", "Tokens that the node owns."),
    build_gauge("cassandra_unreachable_nodes", "Nodes that this one sees down."),
];

const fn build_gauge(name: &'static str, help: &'static str) -> DatabaseGauge {
    DatabaseGauge { name, help }
}

fn join_addresses(nodes: &BTreeSet<IpAddr>) -> String {
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
        summarize_node(facts, ranges, None, None)
            .blockers
            .into_iter()
            .map(|(rule, _)| rule.name)
            .collect()
    }

    #[test]
    fn a_settled_member_serves_and_may_stop() {
        let seen = summarize_node(
            &facts("NORMAL"),
            &RangeAvailability::default(),
            Some(&joined(1234)),
            None,
        );
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
        let seen =
            summarize_node(&facts("NORMAL"), &RangeAvailability::default(), Some(&state), None);
        assert!(seen.alive && !seen.serving && seen.node_id.is_some());
        assert_eq!(seen.reason, Some("JoinedEmpty"));
        assert_eq!(seen.blockers[0].0.name, "JoinedEmpty");
        assert!(seen.message.unwrap().contains(ADOPT_DATA));
    }

    #[test]
    fn a_joining_node_is_alive_and_claims_no_identity_yet() {
        let seen = summarize_node(&facts("JOINING"), &RangeAvailability::default(), None, None);
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
        let seen = summarize_node(&parse(answers), &RangeAvailability::default(), None, None);
        assert_eq!(seen.health, Some(Health::Green));
        assert!(seen.blockers.is_empty());
    }

    #[test]
    fn a_jvm_without_its_services_is_starting() {
        let seen =
            summarize_node(&parse(vec![Value::Null; 7]), &RangeAvailability::default(), None, None);
        assert!(seen.alive && !seen.serving);
        assert_eq!(seen.reason, Some("Starting"));
    }

    #[test]
    fn a_node_that_is_down_in_another_datacenter_holds_no_stop() {
        let mut facts = NodeView { unreachable: [PEER].into(), ..facts("NORMAL") };
        let against = |facts: &NodeView| {
            let seen = summarize_node(facts, &RangeAvailability::default(), None, None);
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
