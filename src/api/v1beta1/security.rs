//! Who may reach a cluster.

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a cluster is kept from those who are not meant to reach it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSecurity {
    /// Who may connect to the pods of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkAccess>,
}

impl ClusterSecurity {
    /// Returns who may connect, where Navigator keeps a NetworkPolicy.
    pub fn managed_network(&self) -> Option<&NetworkAccess> {
        self.network.as_ref().filter(|network| network.policy.as_deref() == Some("Managed"))
    }
}

/// Lists of peers, in the terms of a NetworkPolicy; one without entries lets everybody in. The pods of
/// a cluster always reach each other.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAccess {
    /// `Managed`: Navigator keeps a NetworkPolicy for the pods, and the lists below hold where the
    /// network enforces policies. `None` (default): it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Who may reach the ports for clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clients: Vec<NetworkPolicyPeer>,
    /// Who may reach the metrics of the pilots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub monitoring: Vec<NetworkPolicyPeer>,
    /// Who may reach the ports between nodes, beside the pods of the cluster: nodes of the same
    /// database cluster elsewhere. Without entries nobody else, unless the cluster joins such nodes
    /// (`additionalSeeds`): then everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub internode: Vec<NetworkPolicyPeer>,
}

impl NetworkAccess {
    /// Is anybody named in one of the lists?
    pub fn names_somebody(&self) -> bool {
        let Self { policy: _, clients, monitoring, internode } = self;
        [clients, monitoring, internode].into_iter().any(|peers| !peers.is_empty())
    }
}
