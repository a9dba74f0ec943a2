//! `status`: one screen that shows a cluster's state, the change under way, and what that waits
//! for.

mod events;
mod screen;

use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};

pub use self::events::{EventSummary, told};
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
    pub async fn snapshot(&self, wanted: &ClusterName) -> Result<ClusterSnapshot, Error> {
        let found = self.cluster(wanted).await?;
        let pilots = self.pilots(&found).await?;
        let events = self.events(&found, &pilots).await?;
        Ok(ClusterSnapshot { database: self.database(found.kind), found, pilots, events })
    }

    /// Reads the events about a cluster and its nodes. None where the user may not read events: the
    /// screen is of use without them.
    async fn events(&self, found: &ClusterObject, pilots: &[Pilot]) -> Result<Vec<Event>, Error> {
        let nodes: Vec<&str> = pilots.iter().map(name_of).collect();
        let all = match events::read(&self.client, found.namespace()).await {
            Err(kube::Error::Api(status)) if status.code == 403 => Vec::new(),
            all => all?,
        };
        let about = all
            .into_iter()
            .filter(|event| events::is_about(event, found.kind.kind(), found.name(), &nodes))
            .collect();
        Ok(about)
    }
}

impl ClusterSnapshot {
    /// Returns the picture of the cluster with its nodes.
    pub fn picture(&self) -> ClusterPicture<'_> {
        self.found.picture().with_nodes(&self.pilots)
    }

    /// Draws the screen. `wide` shows more of everything.
    pub fn screen(
        &self,
        now: k8s_openapi::jiff::Timestamp,
        wide: bool,
        style: OutputStyle,
    ) -> String {
        screen::draw(self, now, wide, style)
    }

    /// Returns the objects that were read, as JSON for programs.
    pub fn json(&self) -> Value {
        json!({"cluster": self.found.object, "pilots": self.pilots, "events": self.events})
    }
}

/// Draws several clusters, a row each, as `kubectl get` shows one kind of them.
pub fn list(
    found: &[ClusterObject],
    now: k8s_openapi::jiff::Timestamp,
    namespaces: bool,
    wide: bool,
    style: OutputStyle,
) -> String {
    screen::list(found, now, namespaces, wide, style)
}

/// Returns several clusters as JSON for programs.
pub fn list_json(found: &[ClusterObject]) -> Value {
    let items: Vec<&Value> = found.iter().map(|found| &found.object).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
