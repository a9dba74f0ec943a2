//! `status`: one screen that shows a cluster's state, the change under way, and what that waits
//! for.

mod events;
mod screen;

use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};

pub use self::events::{EventSummary, latest_events};
use super::{
    ShownDatabase,
    error::Error,
    lookup::{ClusterName, ClusterObject, PluginSession, name_of},
    text::OutputStyle,
};
use crate::api::{picture::ClusterPicture, v1beta1::Pilot};

/// The objects that were read for the screen of one cluster.
#[derive(Clone)]
pub struct ClusterSnapshot {
    pub found: ClusterObject,
    pub database: Option<&'static ShownDatabase>,
    pub pilots: Vec<Pilot>,
    /// Events about the cluster and its nodes.
    pub events: Vec<Event>,
}

impl PluginSession {
    /// Reads the objects that the screen of one cluster shows.
    pub async fn read_snapshot(
        &self,
        cluster_name: &ClusterName,
    ) -> Result<ClusterSnapshot, Error> {
        let cluster = self.find_cluster(cluster_name).await?;
        let pilots = self.list_pilots(&cluster).await?;
        let events = self.read_events(&cluster, &pilots).await?;
        Ok(ClusterSnapshot {
            database: self.database(cluster.kind),
            found: cluster,
            pilots,
            events,
        })
    }

    /// Reads the events about a cluster and its nodes. None where the user may not read events: the
    /// screen is of use without them.
    async fn read_events(
        &self,
        cluster: &ClusterObject,
        pilots: &[Pilot],
    ) -> Result<Vec<Event>, Error> {
        let nodes: Vec<&str> = pilots.iter().map(name_of).collect();
        let namespace_events = match events::read_events(&self.client, cluster.namespace()).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Vec::new(),
            result => result?,
        };
        let cluster_events = namespace_events
            .into_iter()
            .filter(|event| events::is_about(event, cluster.kind.kind(), cluster.name(), &nodes))
            .collect();
        Ok(cluster_events)
    }
}

impl ClusterSnapshot {
    /// Returns the picture of the cluster with its nodes.
    pub fn picture(&self) -> ClusterPicture<'_> {
        self.found.picture().with_nodes(&self.pilots)
    }

    /// Draws the screen. `wide` shows more of everything.
    pub fn render(
        &self,
        now: k8s_openapi::jiff::Timestamp,
        wide: bool,
        style: OutputStyle,
    ) -> String {
        screen::draw_cluster(self, now, wide, style)
    }

    /// Returns the objects that were read, as JSON for programs.
    pub fn json(&self) -> Value {
        json!({"cluster": self.found.object, "pilots": self.pilots, "events": self.events})
    }
}

/// Draws several clusters, a row each, as `kubectl get` shows one kind of them.
pub fn render_clusters(
    clusters: &[ClusterObject],
    now: k8s_openapi::jiff::Timestamp,
    namespaces: bool,
    wide: bool,
    style: OutputStyle,
) -> String {
    screen::draw_clusters(clusters, now, namespaces, wide, style)
}

/// Returns several clusters as JSON for programs.
pub fn list_json(clusters: &[ClusterObject]) -> Value {
    let items: Vec<&Value> = clusters.iter().map(|cluster| &cluster.object).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
