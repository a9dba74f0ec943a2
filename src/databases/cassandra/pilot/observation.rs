//! Turns Cassandra's answers about itself into the pilot's observation. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{node_view::NodeView, range_availability::RangeAvailability, seeds::TRANSPORT};
use crate::{
    api::{
        names::annotation::ADOPT_DATA,
        pilot_part::PilotParts,
        v1beta1::{Endpoint, Health},
    },
    databases::cassandra::{
        names::{self, port},
        v1beta1::{CassandraCleanup, CassandraPeer, PilotCassandraStatus},
    },
    pilot::{
        database::DatabaseGauge,
        driver::{JOIN_FAILED, JOINED_EMPTY, NodeObservation},
    },
};

/// Builds the pilot's observation from the node's view and the state of its ranges.
pub(super) fn summarize(
    facts: &NodeView,
    ranges: &RangeAvailability,
    bootstrap_bytes: Option<i64>,
    joined: Option<bool>,
) -> NodeObservation {
    let normal = facts.mode == "NORMAL";
    let sees_itself = facts.address.is_some_and(|own| facts.live.contains(&own));
    let serving = normal && facts.serves_clients && sees_itself;
    let state = match facts.mode.as_str() {
        _ if serving => None,
        "NORMAL" => Some(("Starting", "joined the ring, does not serve clients yet".to_owned())),
        "JOINING" => {
            let received = facts.received.unwrap_or_default();
            Some(("Joining", format!("joins the ring, received {received} bytes")))
        }
        "LEAVING" => Some(("Leaving", "moves its data to the other nodes".to_owned())),
        "DECOMMISSION_FAILED" => Some(("Leaving", "the decommission failed".to_owned())),
        "DECOMMISSIONED" => Some(("NodeDecommissioned", "left the ring".to_owned())),
        mode => Some(("Starting", format!("operation mode {mode}"))),
    };
    let health = facts.is_member().then_some(match () {
        () if ranges.quorum_lost => Health::Red,
        () if facts.unreachable.is_empty() => Health::Green,
        () => Health::Yellow,
    });
    let endpoint = |name: &str, host: IpAddr, port: u16| Endpoint {
        name: name.to_owned(),
        host: host.to_string(),
        port: port.into(),
    };
    NodeObservation {
        alive: true,
        serving,
        role: None,
        reason: state.as_ref().map(|(reason, _)| *reason),
        message: state.map(|(_, message)| message),
        version: facts.version.clone(),
        // While a node joins, its id is new and not yet known to the ring; and a replacement needs
        // the old address in the Pilot.
        node_id: facts.host_id.clone().filter(|_| facts.is_member()),
        cluster_id: None,
        health,
        refuses_writes: None,
        blockers: blockers(facts, ranges),
        not_heard: Vec::new(),
        conditions: Vec::new(),
        endpoints: facts
            .address
            .filter(|_| facts.is_member())
            .map(|host| {
                vec![endpoint(TRANSPORT, host, port::STORAGE), endpoint("client", host, port::CQL)]
            })
            .unwrap_or_default(),
        gauges: gauges(facts, bootstrap_bytes),
        detail: PilotParts::new(
            names::NAMES.word,
            &PilotCassandraStatus {
                version: facts.version.clone(),
                operation_mode: Some(facts.mode.clone()),
                joined: if facts.is_member() { Some(true) } else { joined },
                tokens: i32::try_from(facts.tokens).ok().filter(|tokens| *tokens > 0),
                load_bytes: facts.load,
                bootstrap_bytes_received: bootstrap_bytes,
                unreachable: facts.is_member().then(|| missed(facts, ranges)),
                cleanup: None,
            },
        ),
        unsaved: None,
    }
}

/// Adds the progress of a requested cleanup to the observation.
pub(super) fn tell_cleanup(observation: &mut NodeObservation, progress: Option<CassandraCleanup>) {
    let word = names::NAMES.word;
    if let Some(mut part) = observation.detail.get::<PilotCassandraStatus>(word) {
        part.cleanup = progress;
        observation.detail = PilotParts::new(word, &part);
    }
}

/// Reports that the join failed: this process has nothing more to do.
pub(super) fn give_up(observation: &mut NodeObservation, why: String) {
    observation.reason = Some(JOIN_FAILED);
    observation.message = Some(why);
}

/// Reports a node that joined and received none of the data that other nodes hold as not serving:
/// it would answer for their rows with its empty tables.
pub(super) fn hold_back(observation: &mut NodeObservation, load: i64) {
    if !observation.serving {
        return;
    }
    let message = format!(
        "joined the ring and received nothing, while a member of its datacenter held {load} bytes; \
         empty its volume to let it join again, or run `nodetool rebuild` on it; when it is as it \
         should be, annotate its Pilot with {ADOPT_DATA}=true"
    );
    observation.serving = false;
    observation.reason = Some(JOINED_EMPTY);
    observation.message = Some(message.clone());
    observation.blockers.push((JOINED_EMPTY, message));
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

fn blockers(facts: &NodeView, ranges: &RangeAvailability) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let unsettled: Vec<String> =
        [("joins", &facts.joining), ("leaves", &facts.leaving), ("moves", &facts.moving)]
            .into_iter()
            .flat_map(|(what, nodes)| nodes.iter().map(move |node| format!("{node} {what}")))
            .collect();
    if !unsettled.is_empty() {
        found.push(("RingSettled", unsettled.join(", ")));
    }
    if !facts.unreachable.is_empty() {
        found.push(("PeersUp", format!("{} down as seen from here", list(&facts.unreachable))));
    }
    if let Some(keyspace) = &ranges.stopping_loses {
        found.push((
            "RangesKeepQuorum",
            format!(
                "a range of keyspace {keyspace} has other replicas down and would lose its quorum"
            ),
        ));
    }
    if let Some(stream) = facts.streams.first() {
        found.push((
            "StreamsIdle",
            format!("{} streams run, one of them: {}", facts.streams.len(), stream.description),
        ));
    }
    let schemas = facts.schemas();
    if schemas > 1 {
        found.push(("SchemaAgreement", format!("live nodes have {schemas} schema versions")));
    }
    found
}

/// The gauges that [`gauges`] may set.
pub(super) const GAUGES: &[DatabaseGauge] = &[
    DatabaseGauge {
        name: "cassandra_bootstrap_received_bytes",
        help: "What the node received as it joined.",
    },
    DatabaseGauge { name: "cassandra_heap_used_bytes", help: "Use of the heap." },
    DatabaseGauge {
        name: "cassandra_live_nodes",
        help: "Nodes that this one sees up, itself among them.",
    },
    DatabaseGauge { name: "cassandra_load_bytes", help: "Data that the node holds." },
    DatabaseGauge {
        name: "cassandra_stream_received_bytes",
        help: "Received by the streams that are open.",
    },
    DatabaseGauge {
        name: "cassandra_stream_sent_bytes",
        help: "Sent by the streams that are open.",
    },
    DatabaseGauge { name: "cassandra_streams", help: "Streams that are open." },
    DatabaseGauge { name: "cassandra_tokens", help: "Tokens that the node owns." },
    DatabaseGauge { name: "cassandra_unreachable_nodes", help: "Nodes that this one sees down." },
];

fn gauges(facts: &NodeView, bootstrap_bytes: Option<i64>) -> BTreeMap<&'static str, f64> {
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    let number = |value: i64| value as f64;
    let count = |value: usize| number(i64::try_from(value).unwrap_or(i64::MAX));
    let mut gauges = BTreeMap::from([
        ("cassandra_live_nodes", count(facts.live.len())),
        ("cassandra_unreachable_nodes", count(facts.unreachable.len())),
        ("cassandra_streams", count(facts.streams.len())),
        ("cassandra_tokens", count(facts.tokens)),
    ]);
    for (name, value) in [
        ("cassandra_load_bytes", facts.load),
        ("cassandra_stream_received_bytes", facts.received),
        ("cassandra_stream_sent_bytes", facts.sent),
        ("cassandra_bootstrap_received_bytes", bootstrap_bytes),
    ] {
        if let Some(value) = value {
            gauges.insert(name, number(value));
        }
    }
    if let Some(used) = facts.heap_used {
        gauges.insert("cassandra_heap_used_bytes", used);
    }
    gauges
}

fn list(nodes: &BTreeSet<IpAddr>) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::databases::cassandra::pilot::node_view::{
        StreamState,
        tests::{PEER, answers, facts, parse},
    };

    fn predicates(facts: &NodeView, ranges: &RangeAvailability) -> Vec<&'static str> {
        summarize(facts, ranges, None, None).blockers.into_iter().map(|(rule, _)| rule).collect()
    }

    #[test]
    fn a_settled_member_serves_and_may_stop() {
        let seen =
            summarize(&facts("NORMAL"), &RangeAvailability::default(), Some(1234), Some(true));
        assert!(seen.serving && seen.blockers.is_empty());
        let known: Vec<_> = GAUGES.iter().map(|gauge| gauge.name).collect();
        assert_eq!(seen.gauges.into_keys().collect::<Vec<_>>(), known, "all of them are told");
        assert_eq!(seen.health, Some(Health::Green));
        assert_eq!(seen.node_id.as_deref(), Some("id-1"));
        assert_eq!(seen.endpoints[0].host, "127.0.1.1");
        assert_eq!(
            seen.detail
                .get::<PilotCassandraStatus>(names::NAMES.word)
                .unwrap()
                .bootstrap_bytes_received,
            Some(1234)
        );
    }

    #[test]
    fn a_member_that_received_nothing_does_not_serve_and_may_not_be_restarted() {
        let mut seen =
            summarize(&facts("NORMAL"), &RangeAvailability::default(), Some(0), Some(true));
        hold_back(&mut seen, 1 << 30);
        assert!(seen.alive && !seen.serving && seen.node_id.is_some());
        assert_eq!(seen.reason, Some("JoinedEmpty"));
        assert_eq!(seen.blockers[0].0, "JoinedEmpty");
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
    }
}
