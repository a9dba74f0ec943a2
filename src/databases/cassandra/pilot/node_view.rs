//! One observation of Cassandra: this node's own view of itself and of its ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::Value;

use crate::{
    api::validation::{DatabaseVersion, releases::MinorVersion},
    pilot::{
        clients::jolokia::{BeanAttributes, JolokiaClient, parse_address, parse_addresses},
        driver::Error,
        query_answer::{QueryAnswer, UnansweredQuery},
    },
};

/// Addresses of the members of a ring that live, by datacenter.
pub(super) type LiveNodes = BTreeMap<String, BTreeSet<IpAddr>>;

pub(super) use crate::pilot::driver::TRANSPORT;
pub(super) const STORAGE_SERVICE: &str = "org.apache.cassandra.db:type=StorageService";

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
    pub(super) release: Option<String>,
    pub(super) datacenter: Option<String>,
    pub(super) rack: Option<String>,
}

/// The beans of one observation, and their attributes.
const BEANS: [(&str, &[&str]); 7] = [
    (
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
    ("org.apache.cassandra.net:type=StreamManager", &["CurrentStreams"]),
    ("org.apache.cassandra.metrics:type=Storage,name=Load", &["Count"]),
    ("org.apache.cassandra.metrics:type=Streaming,name=TotalIncomingBytes", &["Count"]),
    ("org.apache.cassandra.metrics:type=Streaming,name=TotalOutgoingBytes", &["Count"]),
    ("org.apache.cassandra.net:type=FailureDetector", &["AllEndpointStates"]),
    ("java.lang:type=Memory", &["HeapMemoryUsage"]),
];
/// Lists of `StorageService` without which nothing can be decided about a member.
const LISTS: [&str; 6] =
    ["LiveNodes", "UnreachableNodes", "JoiningNodes", "LeavingNodes", "MovingNodes", "Tokens"];
type ObservedBeans = [BeanAttributes; BEANS.len()];

impl NodeView {
    /// Returns the ring's members that live, by datacenter.
    pub(super) fn live_members(&self) -> LiveNodes {
        let mut nodes = LiveNodes::new();
        for address in self.live.iter().filter(|address| self.ids.contains_key(address)) {
            let gossip = self.gossip.get(address);
            if let Some(datacenter) = gossip.and_then(|state| state.datacenter.clone()) {
                nodes.entry(datacenter).or_default().insert(*address);
            }
        }
        nodes
    }

    pub(super) async fn query(jolokia: &JolokiaClient) -> Result<Self, Error> {
        Ok(Self::parse(jolokia.read_beans(&BEANS).await?).or_fail()?)
    }

    /// Builds the node's view from the answers. A member must have answered what decisions depend
    /// on, in a form that is understood; a node that starts may leave values out.
    pub(super) fn parse(answers: Vec<QueryAnswer<Value>>) -> QueryAnswer<Self> {
        if let Some(QueryAnswer::Not(unanswered_query)) = answers.first() {
            return QueryAnswer::Not(unanswered_query.clone());
        }
        let mut unanswered_queries = Vec::new();
        let beans: ObservedBeans = BeanAttributes::parse_all(answers, &mut unanswered_queries);
        let [storage, streams, ..] = &beans;
        // While the service is not registered, the JVM runs and Cassandra is still starting.
        if storage.is_empty() {
            return QueryAnswer::Said(Self { mode: "STARTING".to_owned(), ..Self::default() });
        }
        storage.read_attribute("OperationMode").and_then(|mode: String| {
            let facts = Self { mode, ..Self::from_beans(&beans) };
            let unanswered_query = unanswered_queries.into_iter().next();
            let missing_answer = match facts.mode.as_str() {
                _ if facts.is_member() => {
                    unanswered_query.or_else(|| facts.missing_attribute(&beans))
                }
                // A join that has no stream for too long is given up, so the list must be known.
                "JOINING" => unanswered_query
                    .or_else(|| streams.check_attribute("CurrentStreams", Value::is_array)),
                _ => None,
            };
            missing_answer.map_or(QueryAnswer::Said(facts), QueryAnswer::Not)
        })
    }

    /// Returns the first value that a member must report and did not.
    fn missing_attribute(&self, beans: &ObservedBeans) -> Option<UnansweredQuery> {
        let [storage, streams, load, .., detector, _] = beans;
        let has_own_gossip = self
            .own_endpoint()
            .is_some_and(|endpoint| endpoint.schema.is_some() && endpoint.datacenter.is_some());
        LISTS
            .into_iter()
            .find_map(|name| storage.check_attribute(name, Value::is_array))
            .or_else(|| streams.check_attribute("CurrentStreams", Value::is_array))
            .or_else(|| storage.check_attribute("EndpointToHostId", |_| self.address.is_some()))
            .or_else(|| storage.check_attribute("NativeTransportRunning", Value::is_boolean))
            .or_else(|| load.check_attribute("Count", |_| self.load.is_some()))
            .or_else(|| detector.check_attribute("AllEndpointStates", |_| has_own_gossip))
    }

    fn from_beans(beans: &ObservedBeans) -> Self {
        let [storage, streams, load, received, sent, detector, memory] = beans;
        let host_id = storage.optional_text("LocalHostId");
        let member = |(endpoint, id): (&String, &Value)| {
            Some((parse_address(endpoint)?, id.as_str().unwrap_or_default().to_owned()))
        };
        let ids = storage.get("EndpointToHostId").as_object();
        let members: Option<BTreeMap<IpAddr, String>> =
            ids.map(|ids| ids.iter().filter_map(member).collect());
        let mut own_members =
            members.iter().flatten().filter(|(_, id)| Some(*id) == host_id.as_ref());
        let address = own_members.next().map(|(address, _)| *address);
        let nodes = |name: &str| parse_addresses(storage.get(name));
        let mut unreachable = nodes("UnreachableNodes");
        // Gossip remembers a node that left the ring for three days; only members count as
        // unreachable.
        unreachable.retain(|node| {
            members.as_ref().is_none_or(|known_members| known_members.contains_key(node))
        });
        let count = |bean: &BeanAttributes| bean.get("Count").as_i64();
        let exchanges = streams.get("CurrentStreams").as_array().into_iter().flatten();
        Self {
            mode: String::new(),
            version: storage.optional_text("ReleaseVersion"),
            host_id,
            address,
            ids: members.unwrap_or_default(),
            live: nodes("LiveNodes"),
            unreachable,
            joining: nodes("JoiningNodes"),
            leaving: nodes("LeavingNodes"),
            moving: nodes("MovingNodes"),
            serves_clients: *storage.get("NativeTransportRunning") == true,
            bootstrapping: *storage.get("BootstrapMode") == true,
            tokens: storage.get("Tokens").as_array().map_or(0, Vec::len),
            load: count(load),
            received: count(received),
            sent: count(sent),
            streams: exchanges.map(StreamState::parse).collect(),
            gossip: parse_gossip(detector.get("AllEndpointStates").as_str().unwrap_or_default()),
            heap_used: memory.get("HeapMemoryUsage")["used"].as_f64(),
        }
    }

    /// Returns what gossip knows of this node.
    pub(super) fn own_endpoint(&self) -> Option<&EndpointState> {
        self.gossip.get(&self.address?)
    }

    /// Returns how many versions of the schema the live nodes have: one when they agree.
    pub(super) fn count_schemas(&self) -> usize {
        let live = self.gossip.iter().filter(|(node, _)| self.live.contains(node));
        live.filter_map(|(_, gossip)| gossip.schema.as_ref()).collect::<BTreeSet<_>>().len()
    }

    /// Returns how many versions of the schema the live nodes of one release have, of that release with
    /// the most: one when all agree that can. A release has tables and columns of its own in the schema,
    /// so nodes of two never agree, and an upgrade that waited for that would never end.
    pub(super) fn schemas_of_a_release(&self) -> usize {
        let mut releases = BTreeMap::<Option<MinorVersion>, BTreeSet<&String>>::new();
        let live = self.gossip.iter().filter(|(node, _)| self.live.contains(node));
        for (_, EndpointState { schema, release, datacenter: _, rack: _ }) in live {
            let release = release.as_deref().and_then(DatabaseVersion::parse);
            let release = release.map(|version| (version.major, version.minor));
            releases.entry(release).or_default().extend(schema);
        }
        releases.values().map(BTreeSet::len).max().unwrap_or_default()
    }

    /// Returns whether the node sees none of the other members of its ring live.
    pub(super) fn is_cut_off(&self) -> bool {
        let mut others = self.ids.keys().filter(|node| Some(**node) != self.address).peekable();
        others.peek().is_some() && !others.any(|node| self.live.contains(node))
    }

    /// Does the node own ranges of the ring?
    pub(super) fn is_member(&self) -> bool {
        matches!(self.mode.as_str(), "NORMAL" | "LEAVING" | "MOVING" | "DECOMMISSION_FAILED")
    }
}

impl StreamState {
    fn parse(stream: &Value) -> Self {
        let text = |name: &str| stream[name].as_str().unwrap_or_default().to_owned();
        let sessions = stream["sessions"].as_array().into_iter().flatten();
        let peers =
            sessions.filter_map(|session| session["peer"].as_str()).filter_map(parse_address);
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
            "RELEASE_VERSION" => entry.release = Some(value.to_owned()),
            "DC" => entry.datacenter = Some(value.to_owned()),
            "RACK" => entry.rack = Some(value.to_owned()),
            _ => {}
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::databases::cassandra::pilot::tests::{OWN, PEER, answers, facts, parse};

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
        for part in 0..BEANS.len() {
            let mut all: Vec<_> = answers("NORMAL").into_iter().map(QueryAnswer::Said).collect();
            all[part] = QueryAnswer::Not(UnansweredQuery::new("it", "failed"));
            assert!(matches!(NodeView::parse(all), QueryAnswer::Not(_)), "{part}");
        }
        let starts = parse(vec![Value::Null; BEANS.len()]);
        assert_eq!(starts.mode, "STARTING", "nothing is registered yet");
    }

    #[test]
    fn what_the_ring_says_is_read() {
        let facts = facts("NORMAL");
        assert_eq!((facts.address, facts.tokens), (Some(OWN), 2));
        assert_eq!(facts.live, [OWN, PEER].into());
        let own = &facts.gossip[&OWN];
        assert_eq!((own.datacenter.as_deref(), own.rack.as_deref()), (Some("eu"), Some("r1")));
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
}
