//! The node's own state beside its data, in `.navigator/elasticsearch.json`.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::volume::state_file::StateFile;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeState {
    /// Address at which the running process listens; a later pilot finds it here.
    pub(super) address: Option<IpAddr>,
    /// Elasticsearch version that last ran on the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    /// UUID of the cluster that the node is a member of.
    pub(super) cluster_id: Option<String>,
    /// Name of the cluster with which the database was started last; `None` where a release before
    /// 0.3 started it, with the object's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cluster_name: Option<String>,
    /// What was done last to the node's membership of a cluster whose quorum is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) begun_anew: Option<MembershipChange>,
    /// Time since which the node gives its shards away.
    #[serde(rename = "retiringSince")]
    pub(super) decommissioning_since: Option<Time>,
    /// Roles with which the database was started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) roles: Option<Vec<String>>,
    /// Roles that are wanted, while the node may have shards or a vote that do not go with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_roles: Option<Vec<String>>,
    /// The node is to lose its master role, and by the last answer of the cluster it has no vote
    /// and gets none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) vote_moved_away: bool,
    /// Users whom the node was to let in, since the tokens of those that are gone were ended.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) users: BTreeSet<String>,
    /// Plugins that Navigator installed; only these are ever removed.
    pub(super) plugins: Vec<InstalledPlugin>,
    /// The plugin installation under way, if any.
    pub(super) installing: Option<PluginInstallation>,
}

/// A change of the node's membership by the vendor's tool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MembershipChange {
    /// UUID of the cluster whose quorum is lost.
    pub(super) cluster_id: String,
    pub(super) command: NodeCommand,
}

/// A command of `elasticsearch-node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NodeCommand {
    /// Makes the node the only voter of another cluster with the same state.
    UnsafeBootstrap,
    /// Lets the node join any cluster.
    DetachCluster,
}

/// A plugin that Navigator installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InstalledPlugin {
    /// The plugin's name, URL or coordinates, as in the spec.
    pub(super) source: String,
    /// The plugin's folder below `plugins/`, by its own name.
    pub(super) folder: String,
    pub(super) sha512: Option<String>,
}

/// A plugin installation under way, saved before it begins: the folder that is new afterwards is
/// the plugin's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PluginInstallation {
    pub(super) source: String,
    pub(super) sha512: Option<String>,
    /// Plugin folders that existed before the installation.
    pub(super) before: BTreeSet<String>,
}

impl StateFile for NodeState {
    const FILE: &'static str = "elasticsearch.json";
}
