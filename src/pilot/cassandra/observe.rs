//! What Cassandra says about itself, and what follows from it.
//!
//! [`Facts`] is read in one question; [`judge`] is pure. Everything is this node's own view:
//! whom its failure detector sees, which ranges it shares with whom.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    jolokia::{FAILURE_DETECTOR, Jolokia, STORAGE_SERVICE, STREAM_MANAGER, exec, read},
    seeds::TRANSPORT,
};
use crate::{
    api::{
        names::port,
        v1beta1::{Endpoint, Health, PilotCassandraStatus},
    },
    engine::cassandra::SYSTEM_KEYSPACES,
    pilot::database::{Error, FlavourStatus, Observation},
};

/// Shorter than the probes' patience, longer than a full garbage collection usually takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What one question to the database brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// `STARTING`, `JOINING`, `NORMAL`, `LEAVING`, `DECOMMISSIONED`, `DRAINED` …
    pub(super) mode: String,
    pub(super) version: Option<String>,
    pub(super) host_id: Option<String>,
    /// Own address, found by the own host id.
    pub(super) address: Option<IpAddr>,
    pub(super) live: BTreeSet<IpAddr>,
    pub(super) unreachable: BTreeSet<IpAddr>,
    pub(super) joining: BTreeSet<IpAddr>,
    pub(super) leaving: BTreeSet<IpAddr>,
    pub(super) moving: BTreeSet<IpAddr>,
    pub(super) serves_clients: bool,
    pub(super) tokens: usize,
    pub(super) load: Option<i64>,
    /// Bytes that this process received and sent by streaming.
    pub(super) received: Option<i64>,
    pub(super) sent: Option<i64>,
    pub(super) streams: Vec<Stream>,
    /// Of nodes that gossip knows, also of gone ones.
    pub(super) gossip: BTreeMap<IpAddr, Gossip>,
    pub(super) heap_used: Option<f64>,
}

/// A running exchange of data with other nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stream {
    pub(super) plan: String,
    pub(super) description: String,
    pub(super) sending: i64,
    pub(super) sent: i64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gossip {
    pub(super) schema: Option<String>,
    pub(super) datacenter: Option<String>,
    /// `NORMAL`, `LEFT`, `BOOT` …
    pub(super) status: Option<String>,
}

/// What stopping this node, or nodes that are down, mean for the users' ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ranges {
    /// Some range has no quorum of live replicas now.
    pub(super) quorum_lost: bool,
    /// A keyspace whose range would lose its quorum if this node stopped as well.
    pub(super) stopping_loses: Option<String>,
}

impl Facts {
    pub(super) async fn ask(jolokia: &Jolokia) -> Result<Self, Error> {
        let answers = jolokia
            .ask(
                &[
                    read(
                        STORAGE_SERVICE,
                        &[
                            "OperationMode",
                            "ReleaseVersion",
                            "LocalHostId",
                            "EndpointToHostId",
                            "LiveNodes",
                            "UnreachableNodes",
                            "JoiningNodes",
                            "LeavingNodes",
                            "MovingNodes",
                            "NativeTransportRunning",
                            "Tokens",
                        ],
                    ),
                    read(STREAM_MANAGER, &["CurrentStreams"]),
                    read("org.apache.cassandra.metrics:type=Storage,name=Load", &["Count"]),
                    read(&streaming("TotalIncomingBytes"), &["Count"]),
                    read(&streaming("TotalOutgoingBytes"), &["Count"]),
                    read(FAILURE_DETECTOR, &["AllEndpointStates"]),
                    read("java.lang:type=Memory", &["HeapMemoryUsage"]),
                ],
                PATIENCE,
            )
            .await?;
        Ok(Self::parse(&answers))
    }

    fn parse(answers: &[Value]) -> Self {
        let part = |index: usize| answers.get(index).unwrap_or(&Value::Null);
        let storage = part(0);
        let said = |name: &str| {
            storage[name].as_str().filter(|text| !text.starts_with("ERROR")).map(str::to_owned)
        };
        let host_id = said("LocalHostId");
        let ids = storage["EndpointToHostId"].as_object();
        let members: Option<BTreeSet<IpAddr>> =
            ids.map(|ids| ids.keys().filter_map(|endpoint| parse_address(endpoint)).collect());
        let address = ids.and_then(|ids| {
            ids.iter()
                .find(|(_, id)| id.as_str().is_some() && id.as_str() == host_id.as_deref())
                .and_then(|(endpoint, _)| parse_address(endpoint))
        });
        let count = |index: usize| part(index)["Count"].as_i64();
        Self {
            // Before the daemon registers its service, the JVM runs and Cassandra starts.
            mode: said("OperationMode").unwrap_or_else(|| "STARTING".to_owned()),
            version: said("ReleaseVersion"),
            host_id,
            address,
            live: addresses(&storage["LiveNodes"]),
            // Gossip remembers a node that left the ring for three days; only members are missed.
            unreachable: addresses(&storage["UnreachableNodes"])
                .into_iter()
                .filter(|node| members.as_ref().is_none_or(|members| members.contains(node)))
                .collect(),
            joining: addresses(&storage["JoiningNodes"]),
            leaving: addresses(&storage["LeavingNodes"]),
            moving: addresses(&storage["MovingNodes"]),
            serves_clients: storage["NativeTransportRunning"] == true,
            tokens: storage["Tokens"].as_array().map_or(0, Vec::len),
            load: count(2),
            received: count(3),
            sent: count(4),
            streams: part(1)["CurrentStreams"]
                .as_array()
                .map_or_else(Vec::new, |streams| streams.iter().map(Stream::parse).collect()),
            gossip: parse_gossip(part(5)["AllEndpointStates"].as_str().unwrap_or_default()),
            heap_used: part(6)["HeapMemoryUsage"]["used"].as_f64(),
        }
    }

    /// How many versions of the schema the live nodes have: one when they agree.
    pub(super) fn schemas(&self) -> usize {
        let live = self.gossip.iter().filter(|(node, _)| self.live.contains(node));
        live.filter_map(|(_, gossip)| gossip.schema.as_ref()).collect::<BTreeSet<_>>().len()
    }

    /// Does the node own ranges of the ring?
    pub(super) fn is_member(&self) -> bool {
        matches!(self.mode.as_str(), "NORMAL" | "LEAVING" | "MOVING" | "DECOMMISSION_FAILED")
    }
}

impl Stream {
    fn parse(stream: &Value) -> Self {
        let text = |name: &str| stream[name].as_str().unwrap_or_default().to_owned();
        Self {
            plan: text("planId"),
            description: text("description"),
            sending: stream["totalTxBytes"].as_i64().unwrap_or_default(),
            sent: stream["currentTxBytes"].as_i64().unwrap_or_default(),
        }
    }
}

impl Ranges {
    /// Asks who shares the users' ranges. Only worth it while somebody is down: with everybody
    /// up, no order of restarts is better than another.
    pub(super) async fn ask(jolokia: &Jolokia, facts: &Facts) -> Result<Self, Error> {
        let keyspaces = user_keyspaces(jolokia).await?;
        let requests: Vec<Value> = keyspaces
            .iter()
            .map(|keyspace| {
                exec(STORAGE_SERVICE, "getRangeToEndpointMap(java.lang.String)", &json!([keyspace]))
            })
            .collect();
        if requests.is_empty() {
            return Ok(Self::default());
        }
        let maps = jolokia.ask(&requests, PATIENCE).await?;
        let mut ranges = Self::default();
        for (keyspace, map) in keyspaces.iter().zip(&maps) {
            for replicas in map.as_object().into_iter().flat_map(serde_json::Map::values) {
                ranges.weigh(keyspace, &addresses(replicas), facts);
            }
        }
        Ok(ranges)
    }

    fn weigh(&mut self, keyspace: &str, replicas: &BTreeSet<IpAddr>, facts: &Facts) {
        let quorum = replicas.len() / 2 + 1;
        let live = replicas.difference(&facts.unreachable).count();
        let here = facts.address.is_some_and(|own| replicas.contains(&own));
        self.quorum_lost |= live < quorum;
        if here && live < replicas.len() && live - 1 < quorum {
            self.stopping_loses.get_or_insert_with(|| keyspace.to_owned());
        }
    }
}

/// Keyspaces that users made.
pub(super) async fn user_keyspaces(jolokia: &Jolokia) -> Result<Vec<String>, Error> {
    let answers =
        jolokia.ask(&[read(STORAGE_SERVICE, &["NonLocalStrategyKeyspaces"])], PATIENCE).await?;
    let keyspaces =
        answers.first().map_or(&Value::Null, |answer| &answer["NonLocalStrategyKeyspaces"]);
    Ok(keyspaces
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|keyspace| !SYSTEM_KEYSPACES.contains(keyspace))
        .map(str::to_owned)
        .collect())
}

/// Turns facts into what the pilot reports. Blockers come apart, for their `since`.
pub(super) fn judge(
    facts: &Facts,
    ranges: &Ranges,
    bootstrap_bytes: Option<i64>,
) -> (Observation, Vec<(&'static str, String)>) {
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
    let observation = Observation {
        alive: true,
        serving,
        reason: state.as_ref().map(|(reason, _)| *reason),
        message: state.map(|(_, message)| message),
        version: facts.version.clone(),
        // While it joins, the id is new and not yet the ring's business; and the old address
        // in the Pilot is what a replacement needs.
        node_id: facts.host_id.clone().filter(|_| facts.is_member()),
        cluster_id: None,
        health,
        blockers: Vec::new(),
        endpoints: facts
            .address
            .filter(|_| facts.is_member())
            .map(|host| {
                vec![
                    endpoint(TRANSPORT, host, port::CASSANDRA_STORAGE),
                    endpoint("client", host, port::CASSANDRA_CQL),
                ]
            })
            .unwrap_or_default(),
        gauges: gauges(facts, bootstrap_bytes),
        detail: FlavourStatus {
            cassandra: Some(PilotCassandraStatus {
                version: facts.version.clone(),
                operation_mode: Some(facts.mode.clone()),
                tokens: i32::try_from(facts.tokens).ok().filter(|tokens| *tokens > 0),
                load_bytes: facts.load,
                bootstrap_bytes_received: bootstrap_bytes,
            }),
            elasticsearch: None,
        },
    };
    (observation, blockers(facts, ranges))
}

fn blockers(facts: &Facts, ranges: &Ranges) -> Vec<(&'static str, String)> {
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

fn gauges(facts: &Facts, bootstrap_bytes: Option<i64>) -> BTreeMap<&'static str, f64> {
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

fn streaming(name: &str) -> String {
    format!("org.apache.cassandra.metrics:type=Streaming,name={name}")
}

fn addresses(list: &Value) -> BTreeSet<IpAddr> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter_map(parse_address)
        .collect()
}

/// `10.0.0.1`, `host/10.0.0.1`, `/10.0.0.1:7000`, `fd00:0:0:0:0:0:0:1`.
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.rsplit('/').next().unwrap_or(text);
    text.parse()
        .ok()
        .or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()))
}

/// Reads the failure detector's text: a line `/ADDRESS`, then indented `KEY:VERSION:VALUE`.
fn parse_gossip(text: &str) -> BTreeMap<IpAddr, Gossip> {
    let mut nodes: BTreeMap<IpAddr, Gossip> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if !line.starts_with(' ') {
            current = parse_address(line.trim());
            continue;
        }
        let Some(node) = current else { continue };
        let mut parts = line.trim().splitn(3, ':');
        let (Some(key), Some(_), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let entry = nodes.entry(node).or_default();
        match key {
            "SCHEMA" => entry.schema = Some(value.to_owned()),
            "DC" => entry.datacenter = Some(value.to_owned()),
            "STATUS" | "STATUS_WITH_PORT" => {
                entry.status = value.split(',').next().map(str::to_owned);
            }
            _ => {}
        }
    }
    nodes
}

fn list(nodes: &BTreeSet<IpAddr>) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 2));

    fn answers(mode: &str) -> Vec<Value> {
        vec![
            json!({
                "OperationMode": mode, "ReleaseVersion": "5.0.6", "LocalHostId": "id-1",
                "EndpointToHostId": {"127.0.1.1": "id-1", "127.0.1.2": "id-2"},
                "LiveNodes": ["127.0.1.1", "127.0.1.2"], "UnreachableNodes": [],
                "JoiningNodes": [], "LeavingNodes": [], "MovingNodes": [],
                "NativeTransportRunning": true, "Tokens": ["1", "2"],
            }),
            json!({"CurrentStreams": []}),
            json!({"Count": 4096}),
            json!({"Count": 1234}),
            json!({"Count": 0}),
            json!({"AllEndpointStates":
                "/127.0.1.1\n  generation:1\n  STATUS:20:NORMAL,-1\n  SCHEMA:12:s1\n  DC:8:eu\n\
                 /127.0.1.2\n  generation:1\n  SCHEMA:12:s1\n"}),
            json!({"HeapMemoryUsage": {"used": 7}}),
        ]
    }

    fn predicates(facts: &Facts, ranges: &Ranges) -> Vec<&'static str> {
        judge(facts, ranges, None).1.into_iter().map(|(rule, _)| rule).collect()
    }

    #[test]
    fn a_settled_member_serves_and_may_stop() {
        let facts = Facts::parse(&answers("NORMAL"));
        assert_eq!(facts.gossip[&OWN].datacenter.as_deref(), Some("eu"));
        let (seen, blockers) = judge(&facts, &Ranges::default(), Some(1234));
        assert!(seen.serving && blockers.is_empty());
        assert_eq!(seen.health, Some(Health::Green));
        assert_eq!(seen.node_id.as_deref(), Some("id-1"));
        assert_eq!(seen.endpoints[0].host, "127.0.1.1");
        assert_eq!(seen.detail.cassandra.unwrap().bootstrap_bytes_received, Some(1234));
    }

    #[test]
    fn a_joining_node_is_alive_and_claims_no_identity_yet() {
        let (seen, _) = judge(&Facts::parse(&answers("JOINING")), &Ranges::default(), None);
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
        let (seen, blockers) = judge(&Facts::parse(&answers), &Ranges::default(), None);
        assert_eq!(seen.health, Some(Health::Green));
        assert!(blockers.is_empty());
    }

    #[test]
    fn a_jvm_without_its_services_is_starting() {
        let (seen, _) = judge(&Facts::parse(&vec![Value::Null; 7]), &Ranges::default(), None);
        assert!(seen.alive && !seen.serving);
        assert_eq!(seen.reason, Some("Starting"));
    }

    #[test]
    fn every_reason_not_to_stop_is_named() {
        let settled = Facts::parse(&answers("NORMAL"));
        let none = Ranges::default();
        let facts = Facts { joining: [PEER].into(), ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["RingSettled"]);
        let facts = Facts { unreachable: [PEER].into(), ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["PeersUp"]);
        let facts = Facts { streams: vec![Stream::default()], ..settled.clone() };
        assert_eq!(predicates(&facts, &none), ["StreamsIdle"]);
        let mut facts = settled;
        facts.gossip.get_mut(&PEER).unwrap().schema = Some("s2".to_owned());
        assert_eq!(predicates(&facts, &none), ["SchemaAgreement"]);
    }

    #[test]
    fn quorum_is_weighed_over_the_ranges_of_this_node() {
        let third: IpAddr = [127, 0, 1, 3].into();
        let facts = Facts { unreachable: [PEER].into(), ..Facts::parse(&answers("NORMAL")) };
        let weigh = |replicas: &[IpAddr]| {
            let mut ranges = Ranges::default();
            ranges.weigh("shop", &replicas.iter().copied().collect(), &facts);
            (ranges.quorum_lost, ranges.stopping_loses.is_some())
        };
        assert_eq!(weigh(&[OWN]), (false, false), "one replica, here: any restart loses it");
        assert_eq!(weigh(&[PEER]), (true, false));
        assert_eq!(weigh(&[OWN, PEER, third]), (false, true));
        assert_eq!(weigh(&[OWN, third]), (false, false));
    }
}
