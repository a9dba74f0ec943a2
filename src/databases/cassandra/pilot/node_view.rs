//! One observation of Cassandra: this node's own view of itself and of its ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::Value;

use super::jolokia::{
    FAILURE_DETECTOR, JolokiaClient, PATIENCE, STORAGE_SERVICE, STREAM_MANAGER, attribute, read,
};
use crate::pilot::{
    driver::Error,
    query_answer::{QueryAnswer, UnansweredQuery},
};

/// The answers of the database in one observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeView {
    /// Operation mode: `STARTING`, `JOINING`, `NORMAL`, `LEAVING`, `DECOMMISSIONED`, `DRAINED` …
    pub(super) mode: String,
    pub(super) version: Option<String>,
    pub(super) host_id: Option<String>,
    /// Address of this node, found by its host id.
    pub(super) address: Option<IpAddr>,
    /// Host ids of the ring's members, by address.
    pub(super) ids: BTreeMap<IpAddr, String>,
    pub(super) live: BTreeSet<IpAddr>,
    pub(super) unreachable: BTreeSet<IpAddr>,
    pub(super) joining: BTreeSet<IpAddr>,
    pub(super) leaving: BTreeSet<IpAddr>,
    pub(super) moving: BTreeSet<IpAddr>,
    pub(super) serves_clients: bool,
    /// True when data of a join have begun to arrive, and have not all arrived.
    pub(super) bootstrapping: bool,
    pub(super) tokens: usize,
    pub(super) load: Option<i64>,
    /// Bytes that this process received and sent by streaming.
    pub(super) received: Option<i64>,
    pub(super) sent: Option<i64>,
    pub(super) streams: Vec<StreamState>,
    /// Gossip's state of the nodes that it knows, including nodes that left.
    pub(super) gossip: BTreeMap<IpAddr, EndpointState>,
    pub(super) heap_used: Option<f64>,
}

/// A running exchange of data with other nodes, as Cassandra lists it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StreamState {
    pub(super) plan: String,
    pub(super) description: String,
    pub(super) sending: i64,
    pub(super) sent: i64,
    pub(super) receiving: i64,
    /// Addresses of the nodes at the stream's other ends.
    pub(super) peers: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EndpointState {
    pub(super) schema: Option<String>,
    pub(super) datacenter: Option<String>,
    /// Gossip's status of the node: `NORMAL`, `LEFT`, `BOOT` …
    pub(super) status: Option<String>,
}

/// Number of JMX requests in one observation.
const PARTS: usize = 7;
/// The answers to the JMX requests of one observation.
type JmxAnswers = [Option<Value>; PARTS];

impl NodeView {
    pub(super) async fn ask(jolokia: &JolokiaClient) -> Result<Self, Error> {
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
                            "BootstrapMode",
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
        Ok(Self::parse(answers).or_fail()?)
    }

    /// Builds the node's view from the answers. A member must have answered what decisions depend
    /// on, in a form that is understood; a node that starts may leave values out.
    pub(super) fn parse(answers: Vec<QueryAnswer<Value>>) -> QueryAnswer<Self> {
        let mut open = Vec::new();
        let mut answers = answers.into_iter().map(|answer| answer.or_note(&mut open));
        let parts: JmxAnswers = std::array::from_fn(|_| answers.next().flatten());
        let Some(storage) = &parts[0] else { return QueryAnswer::Not(open.remove(0)) };
        // While the service is not registered, the JVM runs and Cassandra is still starting.
        if storage.is_null() {
            return QueryAnswer::Said(Self { mode: "STARTING".to_owned(), ..Self::default() });
        }
        attribute(storage, "OperationMode").and_then(|mode: String| {
            let facts = Self { mode, ..Self::read(&parts) };
            let open = open.into_iter().next();
            let missing = match facts.mode.as_str() {
                _ if facts.is_member() => open.or_else(|| facts.missing(&parts)),
                // A join that has no stream for too long is given up, so the list must be known.
                "JOINING" => open.or_else(|| not_a_list(&parts, 1, "CurrentStreams")),
                _ => None,
            };
            missing.map_or(QueryAnswer::Said(facts), QueryAnswer::Not)
        })
    }

    /// Returns the first value that a member must report and did not.
    fn missing(&self, parts: &JmxAnswers) -> Option<UnansweredQuery> {
        let lists = [
            "LiveNodes",
            "UnreachableNodes",
            "JoiningNodes",
            "LeavingNodes",
            "MovingNodes",
            "Tokens",
        ];
        let list = lists.into_iter().find_map(|name| not_a_list(parts, 0, name));
        let own = self.address.and_then(|own| self.gossip.get(&own));
        let known = own.is_some_and(|own| own.schema.is_some() && own.datacenter.is_some());
        list.or_else(|| not_a_list(parts, 1, "CurrentStreams")).or_else(|| {
            [
                (0, "EndpointToHostId", self.address.is_some()),
                (
                    0,
                    "NativeTransportRunning",
                    said(parts, 0, "NativeTransportRunning").is_boolean(),
                ),
                (2, "Count", self.load.is_some()),
                (5, "AllEndpointStates", known),
            ]
            .into_iter()
            .find_map(|(part, name, known)| (!known).then(|| not(name, said(parts, part, name))))
        })
    }

    fn read(parts: &JmxAnswers) -> Self {
        let part = |index: usize| parts[index].as_ref().unwrap_or(&Value::Null);
        let storage = part(0);
        let said = |name: &str| {
            storage[name].as_str().filter(|text| !text.starts_with("ERROR")).map(str::to_owned)
        };
        let host_id = said("LocalHostId");
        let members: Option<BTreeMap<IpAddr, String>> =
            storage["EndpointToHostId"].as_object().map(|ids| {
                let member = |(endpoint, id): (&String, &Value)| {
                    Some((parse_address(endpoint)?, id.as_str().unwrap_or_default().to_owned()))
                };
                ids.iter().filter_map(member).collect()
            });
        let address = members.iter().flatten().find(|(_, id)| Some(*id) == host_id.as_ref());
        let address = address.map(|(address, _)| *address);
        let count = |index: usize| part(index)["Count"].as_i64();
        Self {
            mode: String::new(),
            version: said("ReleaseVersion"),
            host_id,
            address,
            live: addresses(&storage["LiveNodes"]),
            // Gossip remembers a node that left the ring for three days; only members count as
            // unreachable.
            unreachable: addresses(&storage["UnreachableNodes"])
                .into_iter()
                .filter(|node| members.as_ref().is_none_or(|members| members.contains_key(node)))
                .collect(),
            ids: members.unwrap_or_default(),
            joining: addresses(&storage["JoiningNodes"]),
            leaving: addresses(&storage["LeavingNodes"]),
            moving: addresses(&storage["MovingNodes"]),
            serves_clients: storage["NativeTransportRunning"] == true,
            bootstrapping: storage["BootstrapMode"] == true,
            tokens: storage["Tokens"].as_array().map_or(0, Vec::len),
            load: count(2),
            received: count(3),
            sent: count(4),
            streams: part(1)["CurrentStreams"]
                .as_array()
                .map_or_else(Vec::new, |streams| streams.iter().map(StreamState::parse).collect()),
            gossip: parse_gossip(part(5)["AllEndpointStates"].as_str().unwrap_or_default()),
            heap_used: part(6)["HeapMemoryUsage"]["used"].as_f64(),
        }
    }

    /// Returns how many versions of the schema the live nodes have: one when they agree.
    pub(super) fn schemas(&self) -> usize {
        let live = self.gossip.iter().filter(|(node, _)| self.live.contains(node));
        live.filter_map(|(_, gossip)| gossip.schema.as_ref()).collect::<BTreeSet<_>>().len()
    }

    /// Does the node own ranges of the ring?
    pub(super) fn is_member(&self) -> bool {
        matches!(self.mode.as_str(), "NORMAL" | "LEAVING" | "MOVING" | "DECOMMISSION_FAILED")
    }
}

fn said<'a>(parts: &'a JmxAnswers, part: usize, name: &str) -> &'a Value {
    parts[part].as_ref().map_or(&Value::Null, |part| &part[name])
}

fn not_a_list(parts: &JmxAnswers, part: usize, name: &str) -> Option<UnansweredQuery> {
    let value = said(parts, part, name);
    (!value.is_array()).then(|| not(name, value))
}

fn not(name: &str, value: &Value) -> UnansweredQuery {
    UnansweredQuery::new(name, format!("answered {value}"))
}

impl StreamState {
    fn parse(stream: &Value) -> Self {
        let text = |name: &str| stream[name].as_str().unwrap_or_default().to_owned();
        let sessions = stream["sessions"].as_array().into_iter().flatten();
        let peers = sessions.filter_map(|one| one["peer"].as_str()).filter_map(parse_address);
        Self {
            peers: peers.collect(),
            plan: text("planId"),
            description: text("description"),
            sending: stream["totalTxBytes"].as_i64().unwrap_or_default(),
            sent: stream["currentTxBytes"].as_i64().unwrap_or_default(),
            receiving: stream["totalRxBytes"].as_i64().unwrap_or_default(),
        }
    }
}

fn streaming(name: &str) -> String {
    format!("org.apache.cassandra.metrics:type=Streaming,name={name}")
}

pub(super) fn addresses(list: &Value) -> BTreeSet<IpAddr> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter_map(parse_address)
        .collect()
}

/// Parses an address in Cassandra's spellings: `10.0.0.1`, `host/10.0.0.1`, `/10.0.0.1:7000`,
/// `fd00:0:0:0:0:0:0:1`.
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.rsplit('/').next().unwrap_or(text);
    text.parse()
        .ok()
        .or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()))
}

/// Parses the failure detector's text: a line `/ADDRESS`, then indented `KEY:VERSION:VALUE`.
fn parse_gossip(text: &str) -> BTreeMap<IpAddr, EndpointState> {
    let mut nodes: BTreeMap<IpAddr, EndpointState> = BTreeMap::new();
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

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::databases::cassandra::pilot) const OWN: IpAddr =
        IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
    pub(in crate::databases::cassandra::pilot) const PEER: IpAddr =
        IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 2));

    /// Returns the answers of a settled ring of two nodes.
    pub(in crate::databases::cassandra::pilot) fn answers(mode: &str) -> Vec<Value> {
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

    pub(in crate::databases::cassandra::pilot) fn parse(answers: Vec<Value>) -> NodeView {
        NodeView::parse(answers.into_iter().map(QueryAnswer::Said).collect()).or_fail().unwrap()
    }

    pub(in crate::databases::cassandra::pilot) fn facts(mode: &str) -> NodeView {
        parse(answers(mode))
    }

    #[test]
    fn a_member_that_does_not_say_all_was_not_heard() {
        let heard = |answers: Vec<Value>| {
            NodeView::parse(answers.into_iter().map(QueryAnswer::Said).collect())
        };
        let storage = answers("NORMAL")[0].clone();
        for name in storage.as_object().unwrap().keys().filter(|name| *name != "ReleaseVersion") {
            for damage in [Value::Null, json!("ERROR: java.lang.IllegalStateException")] {
                let mut answers = answers("NORMAL");
                answers[0][name] = damage;
                let answer = heard(answers);
                assert!(matches!(answer, QueryAnswer::Not(_)), "{name}: {answer:?}");
            }
        }
        for part in [1, 2, 5] {
            let mut answers = answers("NORMAL");
            answers[part] = json!({});
            assert!(matches!(heard(answers), QueryAnswer::Not(_)), "{part}");
        }
        for part in 0..PARTS {
            let mut all: Vec<_> = answers("NORMAL").into_iter().map(QueryAnswer::Said).collect();
            all[part] = QueryAnswer::Not(UnansweredQuery::new("it", "failed"));
            assert!(matches!(NodeView::parse(all), QueryAnswer::Not(_)), "{part}");
        }
        let starts = parse(vec![Value::Null; PARTS]);
        assert_eq!(starts.mode, "STARTING", "nothing is registered yet");
    }

    #[test]
    fn what_the_ring_says_is_read() {
        let facts = facts("NORMAL");
        assert_eq!((facts.address, facts.tokens), (Some(OWN), 2));
        assert_eq!(facts.live, [OWN, PEER].into());
        assert_eq!(facts.gossip[&OWN].datacenter.as_deref(), Some("eu"));
        assert_eq!(facts.gossip[&OWN].status.as_deref(), Some("NORMAL"));
        assert_eq!((facts.load, facts.received), (Some(4096), Some(1234)));
    }

    #[test]
    fn a_stream_says_with_whom_it_is() {
        let mut answers = answers("JOINING");
        let session = json!({"peer": "127.0.1.2", "peer port": 7000, "state": "STREAMING"});
        answers[1] = json!({"CurrentStreams": [{
            "planId": "p", "description": "Bootstrap", "totalRxBytes": 9, "sessions": [session]}]});
        let streams = parse(answers).streams;
        assert_eq!((streams[0].receiving, &streams[0].peers), (9, &[PEER].into()));
    }

    #[test]
    fn addresses_are_read_as_every_release_writes_them() {
        for (text, address) in [
            ("10.0.0.1", "10.0.0.1"),
            ("host/10.0.0.1", "10.0.0.1"),
            ("/10.0.0.1:7000", "10.0.0.1"),
            ("fd00:0:0:0:0:0:0:1", "fd00::1"),
        ] {
            assert_eq!(parse_address(text), address.parse().ok(), "{text}");
        }
        assert_eq!(parse_address("host"), None);
    }
}
