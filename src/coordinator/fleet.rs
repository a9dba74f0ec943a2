//! What is read of a cluster for one look, and its translation into facts.

mod machines;
mod members;
mod pods;
mod volumes;

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume, Pod},
    jiff::Timestamp,
};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use self::members::DatabaseObjects;
use super::look_error::LookError;
use crate::{
    api::database_names::DatabaseNames,
    engine::machines::{FleetView, KubeVersion},
};

/// Most objects of one answer.
const PAGE: u32 = 500;

/// One reading of the cluster.
pub(crate) struct FleetReading {
    pub(crate) view: FleetView,
    /// The Nodes that the view speaks of, by name.
    pub(crate) nodes: BTreeMap<String, Node>,
}

/// What a reading is made with.
pub(crate) struct FleetReader<'a> {
    pub(crate) client: &'a Client,
    pub(crate) databases: &'a [&'static DatabaseNames],
    /// What the last eviction of a pod was answered where it was refused, by the pod's uid.
    pub(crate) refusals: &'a BTreeMap<String, String>,
    /// Clusters that runs wait for, as `namespace/kind/name`.
    pub(crate) awaited: &'a [String],
}

impl FleetReader<'_> {
    /// Reads the cluster. What is read is no older than the time in the view.
    ///
    /// # Errors
    /// When kube-apiserver does not answer, or refuses. That Navigator's own API does not answer is
    /// none: the view says of its clusters that they do not serve.
    pub(crate) async fn read_fleet(&self, now: Timestamp) -> Result<FleetReading, LookError> {
        let read_error =
            |subject: &'static str| move |error| LookError::for_request("read", subject, error);
        let mut nodes = BTreeMap::new();
        let node_api: Api<Node> = Api::all(self.client.clone());
        let record_node = |mut node: Node| {
            node.metadata.managed_fields = None;
            nodes.insert(node.metadata.name.clone().unwrap_or_default(), node);
        };
        list_in_pages(&node_api, record_node).await.map_err(read_error("nodes"))?;
        let mut volumes = Vec::new();
        let volume_api: Api<PersistentVolume> = Api::all(self.client.clone());
        list_in_pages(&volume_api, |volume| volumes.push(volume))
            .await
            .map_err(read_error("volumes"))?;
        let claims = volumes::by_claim(&volumes);
        let (mut machine_pods, mut control_planes) = (Vec::new(), Vec::new());
        let pod_api: Api<Pod> = Api::all(self.client.clone());
        let record_pod = |pod: Pod| {
            machine_pods.push(pods::machine_pod(&pod, &claims, self.refusals));
            if machines::is_control_plane(&pod) {
                control_planes.push(pod);
            }
        };
        list_in_pages(&pod_api, record_pod).await.map_err(read_error("pods"))?;
        let server_version =
            self.client.apiserver_version().await.map_err(read_error("the version"))?;
        let objects = DatabaseObjects::read(self.client, self.databases).await?;
        let (pilots, clusters) = match &objects {
            DatabaseObjects::Read { pilots, clusters } => {
                (members::member_pilots(pilots), members::database_clusters(clusters))
            }
            DatabaseObjects::Silent(reason) => {
                members::members_without_api(&machine_pods, self.databases, self.awaited, reason)
            }
        };
        let view = FleetView {
            now,
            machines: nodes
                .values()
                .map(|node| machines::machine_facts(node, &control_planes))
                .collect(),
            volumes: volumes.iter().map(|volume| volumes::machine_volume(volume, &nodes)).collect(),
            pods: machine_pods,
            pilots,
            clusters,
            others: Vec::new(),
            api_server: KubeVersion::parse(&server_version.git_version),
            deprecated: Vec::new(),
        };
        Ok(FleetReading { view, nodes })
    }
}

/// Reads all objects of a kind in pages, so that they are never held all at once.
async fn list_in_pages<K>(api: &Api<K>, mut visit: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
