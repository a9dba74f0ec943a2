//! The HTTP interface of search engines: the requests of a pilot, and the answers as types.
//!
//! Owns paths, the forms of answers, and how long an answer may take. An answer that was not heard
//! is never an empty one. Requests that may wait for an elected master limit that wait, where they
//! can: without `master_timeout` a cluster without a master answers after 30 s (measured).

mod allocation_explain;
mod cluster_settings;
mod cluster_tables;
mod credentials;
mod index_settings;
mod node_capacity;
mod node_view;
mod shutdown_records;
#[cfg(test)]
mod testing;
mod voting;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderValue, Method, StatusCode};
use rustls::ClientConfig;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub use self::{
    allocation_explain::StuckShard,
    cluster_settings::AllocationExclusion,
    cluster_tables::{ClusterTables, Shard, ShardCopy},
    index_settings::{ReplicaRange, batch_names},
    node_capacity::NodeCapacity,
    node_view::{
        CLUSTER_STATE, ClusterHealth, ElectedMaster, HealthStatus, NodePlugin, NodeUsage, NodeView,
    },
    shutdown_records::ShutdownRecord,
    voting::VotingConfiguration,
};
use crate::pilot::{
    driver::Error,
    http::{HttpAnswer, HttpClient},
    query_answer::QueryAnswer,
};

/// Limit for an answer: longer than `master_timeout`, shorter than the probes' time limit.
const PATIENCE: Duration = Duration::from_secs(5);

/// How releases differ in this interface.
#[derive(Clone, Copy, Debug)]
pub struct EngineTraits {
    /// A node always answers for its own state, and warns when `local` asks for that.
    pub answers_for_itself: bool,
    /// Is a node of this version given votes by a voting configuration?
    pub votes: fn(&str) -> bool,
}

/// The tables that were asked for last, with the identity of the state that they belong to.
type TablesCache = Mutex<Option<(String, Arc<ClusterTables>)>>;

/// How many voters are up, with the identity of the state that the figure belongs to.
type VotersCache = Mutex<Option<(String, usize)>>;

/// A client for the node beside the pilot.
#[derive(Clone, Debug)]
pub struct SearchClient {
    client: HttpClient,
    traits: EngineTraits,
    tables: Arc<TablesCache>,
    voters_up: Arc<VotersCache>,
}

/// How a node is spoken to: nothing is said of the client, in plain text, by default.
#[derive(Debug, Default)]
pub struct SearchLogin {
    pub authorization: Option<HeaderValue>,
    /// Whom the client trusts; `None` for plain text.
    pub tls: Option<ClientConfig>,
}

/// As whom an engine knows its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticatedUser {
    Known { roles: Vec<String> },
    Refused(StatusCode),
}

/// Whether this client has privileges that were asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrivilegesAnswer {
    All,
    /// It has not all of them.
    Some,
    /// The engine does not know what is asked about, or has none of this: in its words.
    Refused(String),
}

/// The nodes of a cluster, as its elected master knows them.
#[derive(Clone, Debug, Default)]
pub struct ClusterNodes {
    pub has_master: bool,
    /// Names of the nodes, by id.
    pub names: BTreeMap<String, String>,
}

const NODES: &str = "/_cluster/state/master_node,nodes?master_timeout=2s\
                     &filter_path=master_node,nodes.*.name";

#[derive(Debug, Deserialize)]
struct NodesAnswer {
    master_node: Option<String>,
    nodes: BTreeMap<String, NamedNode>,
}

#[derive(Debug, Deserialize)]
struct NamedNode {
    name: String,
}

fn node_names(nodes: BTreeMap<String, NamedNode>) -> BTreeMap<String, String> {
    nodes.into_iter().map(|(id, node)| (id, node.name)).collect()
}

impl SearchClient {
    /// Makes a client for the node at `address`. A node in a pod listens on every address, a node
    /// on a loopback address on that one only.
    pub fn new(address: IpAddr, port: u16, traits: EngineTraits, login: SearchLogin) -> Self {
        let host = match address {
            IpAddr::V4(v4) if v4.is_loopback() => v4.to_string(),
            _ => "127.0.0.1".to_owned(),
        };
        let SearchLogin { authorization, tls } = login;
        let client = match tls {
            None => HttpClient::new(format!("http://{host}:{port}"), authorization),
            Some(tls) => HttpClient::with_tls(format!("https://{host}:{port}"), authorization, tls),
        };
        Self { client, traits, tables: Arc::default(), voters_up: Arc::default() }
    }

    /// Asks the engine as whom it knows this client; returns the answer, whatever it is.
    pub async fn authenticate(&self) -> Result<AuthenticatedUser, Error> {
        #[derive(Deserialize)]
        struct UserAnswer {
            #[serde(default)]
            roles: Vec<String>,
        }
        let answer = self.get_answer("/_security/_authenticate").await?;
        if !answer.status.is_success() {
            return Ok(AuthenticatedUser::Refused(answer.status));
        }
        let UserAnswer { roles } = answer.parse_body("/_security/_authenticate").or_fail()?;
        Ok(AuthenticatedUser::Known { roles })
    }

    /// Asks the engine whether this client has privileges; an engine that is not ready is an error.
    pub async fn check_privileges(&self, question: &Value) -> Result<PrivilegesAnswer, Error> {
        let path = "/_security/user/_has_privileges";
        let answer = self.send(Method::POST, path, Some(question), PATIENCE).await?;
        if answer.status.is_client_error() {
            let reason = answer.body["error"]["reason"].as_str().map(str::to_owned);
            return Ok(PrivilegesAnswer::Refused(
                reason.unwrap_or_else(|| answer.body.to_string()),
            ));
        }
        match answer.body["has_all_requested"].as_bool() {
            Some(true) => Ok(PrivilegesAnswer::All),
            Some(false) => Ok(PrivilegesAnswer::Some),
            None => Err(Error::NotYet(format!("{path} was answered with {}", answer.status))),
        }
    }

    /// Sends a request that any answer satisfies: whatever the answer says, the node lives.
    pub async fn get_answer(&self, path: &str) -> Result<HttpAnswer, Error> {
        self.send(Method::GET, path, None, PATIENCE).await
    }

    /// Returns the nodes of the cluster, by the master's answer.
    pub async fn read_nodes(&self) -> Result<ClusterNodes, Error> {
        let NodesAnswer { master_node, nodes } = self.query(NODES).await.or_fail()?;
        Ok(ClusterNodes { has_master: master_node.is_some(), names: node_names(nodes) })
    }

    /// Writes out what only memory holds, so that the next start has nothing to replay.
    pub async fn flush(&self, limit: Duration) -> Result<(), Error> {
        self.send_change(Method::POST, "/_flush", None, limit).await.map(drop)
    }

    /// Sends a request that only a successful answer satisfies, one with all fields that `T`
    /// requires.
    async fn query<T: DeserializeOwned>(&self, path: &str) -> QueryAnswer<T> {
        self.client.query(&self.local_path(path), PATIENCE).await
    }

    /// Returns the path by which a node answers for itself.
    fn local_path<'a>(&self, path: &'a str) -> Cow<'a, str> {
        if self.traits.answers_for_itself {
            return path.replace("local=true&", "").into();
        }
        path.into()
    }

    /// Changes something in the cluster; a refusal is an error in the engine's words.
    async fn send_change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Value, Error> {
        let answer = self.send(method, path, body, limit).await?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let reason = answer.body["error"]["reason"].as_str().map(str::to_owned);
        Err(Error::Refused(reason.unwrap_or_else(|| answer.body.to_string())))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<HttpAnswer, Error> {
        let answer = self.client.send(method, path, body, limit).await;
        answer.map_err(|error| Error::Unreachable { source: error.into() })
    }
}
