//! What a node remembers about itself beside its data, in `.navigator/elasticsearch.json`.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::volume::state::StateFile;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeState {
    /// The address at which the running process listens; a later pilot finds it there.
    pub(super) address: Option<IpAddr>,
    /// Version that ran on the data last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    /// UUID of the cluster that the node is a member of.
    pub(super) cluster_id: Option<String>,
    /// Since when the node gives its shards away.
    #[serde(rename = "retiringSince")]
    pub(super) decommissioning_since: Option<Time>,
    /// Plugins that we installed; only these are ever removed.
    pub(super) plugins: Vec<InstalledPlugin>,
    /// The installation under way, if any.
    pub(super) installing: Option<PluginInstallation>,
}

/// A plugin that we installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InstalledPlugin {
    /// The plugin's name, URL or coordinates, as in the spec.
    pub(super) source: String,
    /// The plugin's folder below `plugins/`, by its own name.
    pub(super) folder: String,
    pub(super) sha512: Option<String>,
}

/// Written before a plugin is installed: the folder that is new afterwards is the plugin's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PluginInstallation {
    pub(super) source: String,
    pub(super) sha512: Option<String>,
    /// Folders that were there before the installation.
    pub(super) before: BTreeSet<String>,
}

impl StateFile for NodeState {
    const FILE: &'static str = "elasticsearch.json";
}
