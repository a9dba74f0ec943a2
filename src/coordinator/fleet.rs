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
    pub(crate) async fn read(&self, now: Timestamp) -> Result<FleetReading, LookError> {
        let failed = |what: &'static str| move |error| LookError::request("read", what, error);
        let mut nodes = BTreeMap::new();
        let all: Api<Node> = Api::all(self.client.clone());
        let keep = |mut node: Node| {
            node.metadata.managed_fields = None;
            nodes.insert(node.metadata.name.clone().unwrap_or_default(), node);
        };
        pages(&all, keep).await.map_err(failed("nodes"))?;
        let mut volumes = Vec::new();
        let all: Api<PersistentVolume> = Api::all(self.client.clone());
        pages(&all, |volume| volumes.push(volume)).await.map_err(failed("volumes"))?;
        let claims = volumes::by_claim(&volumes);
        let (mut found, mut control_planes) = (Vec::new(), Vec::new());
        let all: Api<Pod> = Api::all(self.client.clone());
        let keep = |pod: Pod| {
            found.push(pods::pod(&pod, &claims, self.refusals));
            if machines::is_control_plane(&pod) {
                control_planes.push(pod);
            }
        };
        pages(&all, keep).await.map_err(failed("pods"))?;
        let told = self.client.apiserver_version().await.map_err(failed("the version"))?;
        let objects = DatabaseObjects::read(self.client, self.databases).await?;
        let (pilots, clusters) = match &objects {
            DatabaseObjects::Read { pilots, clusters } => {
                (members::pilots(pilots), members::clusters(clusters))
            }
            DatabaseObjects::Silent(why) => {
                members::silent(&found, self.databases, self.awaited, why)
            }
        };
        let view = FleetView {
            now,
            machines: nodes.values().map(|node| machines::machine(node, &control_planes)).collect(),
            volumes: volumes.iter().map(|volume| volumes::volume(volume, &nodes)).collect(),
            pods: found,
            pilots,
            clusters,
            others: Vec::new(),
            api_server: KubeVersion::parse(&told.git_version),
            deprecated: Vec::new(),
        };
        Ok(FleetReading { view, nodes })
    }
}

/// Reads all objects of a kind in pages, so that they are never held all at once.
async fn pages<K>(api: &Api<K>, mut each: impl FnMut(K)) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut each);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
