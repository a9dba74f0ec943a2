//! What a node remembers about itself beside its data, in `.navigator/elasticsearch.json`.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::memory::Remembered;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    /// Where the running process listens; a later pilot finds it there.
    pub(super) address: Option<IpAddr>,
    /// UUID of the cluster that the node is a member of.
    pub(super) cluster_id: Option<String>,
    /// Since when it gives its shards away.
    pub(super) retiring_since: Option<Time>,
    /// It gave everything away.
    pub(super) left: bool,
    /// Plugins that we installed; only these are ever removed.
    pub(super) plugins: Vec<String>,
}

impl Remembered for Memory {
    const FILE: &'static str = "elasticsearch.json";
}
