//! The calls of Elasticsearch's REST interface that the pilot makes.
//!
//! Requests that may wait for an elected master limit that wait, where they can: without
//! `master_timeout` a cluster without a master answers after 30 s (measured).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use http::Method;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    databases::elasticsearch::{facts::Release, names::port},
    pilot::{
        driver::Error,
        http::{HttpAnswer, HttpClient},
        query_answer::QueryAnswer,
    },
};

/// Limit for an answer: longer than `master_timeout`, shorter than the probes' time limit.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct RestClient {
    client: HttpClient,
    answers_for_itself: bool,
}

impl RestClient {
    /// Makes a client for the node at `address`. A node in a pod listens on every address, a node
    /// on a loopback address on that one only.
    pub(super) fn new(address: IpAddr, release: Option<Release>) -> Self {
        let host = match address {
            IpAddr::V4(v4) if v4.is_loopback() => v4.to_string(),
            _ => "127.0.0.1".to_owned(),
        };
        Self {
            client: HttpClient::new(format!("http://{host}:{}", port::HTTP), None),
            answers_for_itself: release.is_some_and(Release::answers_for_itself),
        }
    }

    /// Sends a request that any answer satisfies: whatever the answer says, the node lives.
    pub(super) async fn ask(&self, path: &str) -> Result<HttpAnswer, Error> {
        self.client
            .send(Method::GET, path, None, PATIENCE)
            .await
            .map_err(|error| Error::Unreachable { source: error.into() })
    }

    /// Sends a request that only a successful answer satisfies, one with all fields that `T`
    /// requires.
    pub(super) async fn hear<T: DeserializeOwned>(&self, path: &str) -> QueryAnswer<T> {
        if self.answers_for_itself {
            return self.client.hear(&path.replace("local=true&", ""), PATIENCE).await;
        }
        self.client.hear(path, PATIENCE).await
    }

    /// Changes something in the cluster; a refusal is an error in Elasticsearch's words.
    pub(super) async fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Value, Error> {
        let answer = self
            .client
            .send(method, path, body, patience)
            .await
            .map_err(|error| Error::Unreachable { source: error.into() })?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let reason = answer.body["error"]["reason"].as_str().map(str::to_owned);
        Err(Error::Refused(reason.unwrap_or_else(|| answer.body.to_string())))
    }

    /// Returns the node ids in the persistent setting that keeps shards off nodes. A transient
    /// setting may hide it: see [`Self::exclusion`]. Ids of nodes without a Pilot were not written
    /// by Navigator.
    pub(super) async fn excluded(&self) -> Result<BTreeSet<String>, Error> {
        Ok(ids(self.settings().await?.persistent.get(EXCLUDE)))
    }

    /// Returns the exclusion that is in force: a transient setting hides the persistent one.
    pub(super) async fn exclusion(&self) -> Result<AllocationExclusion, Error> {
        let ClusterSettings { persistent, transient } = self.settings().await?;
        // An empty transient setting hides Navigator's as well.
        if let Some(theirs) = transient.get(EXCLUDE).and_then(Value::as_str) {
            return Ok(AllocationExclusion::Hidden(theirs.to_owned()));
        }
        Ok(AllocationExclusion::Ids(ids(persistent.get(EXCLUDE))))
    }

    /// Returns the cluster's settings. Not knowing them is an error: lists are written back as a
    /// whole.
    async fn settings(&self) -> Result<ClusterSettings, Error> {
        // 5.6 refuses `master_timeout` here; without a master the client's time limit ends the
        // request.
        Ok(self.hear("/_cluster/settings?flat_settings=true").await.or_fail()?)
    }

    pub(super) async fn exclude(&self, ids: &BTreeSet<String>) -> Result<(), Error> {
        // 5 and 6 require an empty text where 7 and later take null; both take the text.
        let text = ids.iter().cloned().collect::<Vec<_>>().join(",");
        self.set(EXCLUDE, &json!(text)).await
    }

    /// Returns the quorum that running nodes follow before version 7, where it was set since they
    /// started.
    pub(super) async fn minimum_masters(&self) -> Result<Option<i32>, Error> {
        let settings = self.settings().await?;
        let set = settings.persistent.get(MINIMUM_MASTERS).and_then(Value::as_str);
        Ok(set.and_then(|text| text.parse().ok()))
    }

    pub(super) async fn set_minimum_masters(&self, count: i32) -> Result<(), Error> {
        self.set(MINIMUM_MASTERS, &json!(count)).await
    }

    async fn set(&self, key: &str, value: &Value) -> Result<(), Error> {
        let body = json!({"persistent": {key: value}});
        let path = "/_cluster/settings?master_timeout=2s";
        self.change(Method::PUT, path, Some(&body), PATIENCE).await.map(drop)
    }
}

/// The cluster's settings. Both parts are in every answer, also when they are empty.
#[derive(Debug, Deserialize)]
struct ClusterSettings {
    persistent: BTreeMap<String, Value>,
    transient: BTreeMap<String, Value>,
}

/// The allocation exclusion that is in force.
pub(super) enum AllocationExclusion {
    Ids(BTreeSet<String>),
    /// Navigator's exclusion is hidden by this list, a transient setting that Navigator did not
    /// write.
    Hidden(String),
}

fn ids(list: Option<&Value>) -> BTreeSet<String> {
    let ids = list.and_then(Value::as_str).unwrap_or_default().split(',').map(str::trim);
    ids.filter(|id| !id.is_empty()).map(str::to_owned).collect()
}

const EXCLUDE: &str = "cluster.routing.allocation.exclude._id";
const MINIMUM_MASTERS: &str = "discovery.zen.minimum_master_nodes";
