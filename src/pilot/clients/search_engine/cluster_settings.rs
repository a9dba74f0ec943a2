//! The cluster's settings, and the list in them that keeps shards off nodes.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PATIENCE, SearchClient};
use crate::pilot::driver::Error;

const EXCLUDE: &str = "cluster.routing.allocation.exclude._id";

/// The cluster's settings. Both parts are in every answer, also when they are empty.
#[derive(Debug, Deserialize)]
struct ClusterSettings {
    persistent: BTreeMap<String, Value>,
    transient: BTreeMap<String, Value>,
}

/// The allocation exclusion that is in force.
#[derive(Clone, Debug)]
pub enum AllocationExclusion {
    /// Ids of the nodes that may hold no shard.
    Ids(BTreeSet<String>),
    /// Navigator's exclusion is hidden by this list, a transient setting that Navigator did not
    /// write.
    Hidden(String),
}

impl SearchClient {
    /// Returns the node ids in the persistent setting that keeps shards off nodes. A transient
    /// setting may hide it: see [`Self::allocation_exclusion`]. Ids of nodes without a Pilot were not written
    /// by Navigator.
    pub async fn excluded_node_ids(&self) -> Result<BTreeSet<String>, Error> {
        Ok(parse_ids(self.read_settings().await?.persistent.get(EXCLUDE)))
    }

    /// Returns the exclusion that is in force: a transient setting hides the persistent one.
    pub async fn allocation_exclusion(&self) -> Result<AllocationExclusion, Error> {
        let ClusterSettings { persistent, transient } = self.read_settings().await?;
        // An empty transient setting hides Navigator's as well.
        if let Some(transient_ids) = transient.get(EXCLUDE).and_then(Value::as_str) {
            return Ok(AllocationExclusion::Hidden(transient_ids.to_owned()));
        }
        Ok(AllocationExclusion::Ids(parse_ids(persistent.get(EXCLUDE))))
    }

    pub async fn exclude_nodes(&self, ids: &BTreeSet<String>) -> Result<(), Error> {
        // 5 and 6 require an empty text where 7 and later take null; both take the text.
        let text = ids.iter().cloned().collect::<Vec<_>>().join(",");
        self.set_persistent(EXCLUDE, &json!(text)).await
    }

    /// Returns a persistent setting that is a number; `None` where it is not set.
    pub async fn persistent_number(&self, key: &str) -> Result<Option<i32>, Error> {
        let settings = self.read_settings().await?;
        let value = settings.persistent.get(key).and_then(Value::as_str);
        Ok(value.and_then(|text| text.parse().ok()))
    }

    pub async fn set_persistent(&self, key: &str, value: &Value) -> Result<(), Error> {
        let body = json!({"persistent": {key: value}});
        let path = "/_cluster/settings?master_timeout=2s";
        self.send_change(Method::PUT, path, Some(&body), PATIENCE).await.map(drop)
    }

    /// Returns the cluster's settings. Not knowing them is an error: lists are written back as a
    /// whole.
    async fn read_settings(&self) -> Result<ClusterSettings, Error> {
        // 5.6 refuses `master_timeout` here; without a master the client's time limit ends the
        // request.
        Ok(self.query("/_cluster/settings?flat_settings=true").await.or_fail()?)
    }
}

fn parse_ids(list: Option<&Value>) -> BTreeSet<String> {
    let ids = list.and_then(Value::as_str).unwrap_or_default().split(',').map(str::trim);
    ids.filter(|id| !id.is_empty()).map(str::to_owned).collect()
}
