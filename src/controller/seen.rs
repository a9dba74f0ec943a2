//! What the caches hold, for those who only look: the status page and the figures about clusters.
//!
//! Sends no request, and decides nothing.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tokio::time::Instant;

use super::{
    heard::{Heard, says_unheard},
    observe::condition,
    stores::Stores,
};
use crate::api::v1beta1::{ClusterStatus, Pilot};

/// All that there is to look at, at one moment.
#[derive(Clone, Debug)]
pub struct Seen {
    pub now: Timestamp,
    /// Whether this controller acts, or waits until another one does not.
    pub leads: bool,
    /// What has to come before anything is known.
    pub waiting_for: Vec<String>,
    pub clusters: Vec<SeenCluster>,
    pub pilots: Vec<SeenPilot>,
}

/// A cluster of some kind.
#[derive(Clone, Debug)]
pub struct SeenCluster {
    pub kind: String,
    pub object: Arc<DynamicObject>,
}

/// A Pilot, and how long ago it was heard by our own clock.
#[derive(Clone, Debug)]
pub struct SeenPilot {
    pub pilot: Arc<Pilot>,
    pub heard: Duration,
}

/// Where a [`Seen`] comes from. Called by whoever is asked; must not wait.
pub type Source = Arc<dyn Fn() -> Seen + Send + Sync>;

impl Seen {
    /// Nothing yet.
    pub fn nothing(waiting_for: Vec<String>) -> Self {
        let now = Timestamp::now();
        Self { now, leads: false, waiting_for, clusters: Vec::new(), pilots: Vec::new() }
    }

    pub(super) fn through(stores: &Stores, heard: &Heard, leads: bool) -> Self {
        let now = Instant::now();
        let seen = |pilot: Arc<Pilot>| {
            let uid = pilot.metadata.uid.as_deref().unwrap_or_default();
            SeenPilot { heard: heard.of(uid, now).ago, pilot }
        };
        let clusters = stores
            .all_clusters()
            .map(|(database, object)| SeenCluster { kind: database.names.kind.to_owned(), object });
        Self {
            leads,
            clusters: clusters.collect(),
            pilots: stores.pilots.state().into_iter().map(seen).collect(),
            ..Self::nothing(Vec::new())
        }
    }
}

impl SeenCluster {
    pub(super) fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Kind, namespace and name.
    pub(super) fn key(&self) -> [&str; 3] {
        [&self.kind, self.namespace(), self.name()]
    }

    /// What the status says; nothing where nobody wrote one that we understand.
    pub(super) fn status(&self) -> ClusterStatus {
        let status = self.object.data.get("status").cloned();
        status.and_then(|status| serde_json::from_value(status).ok()).unwrap_or_default()
    }

    /// A switch of the spec that is on.
    pub(super) fn is_asked(&self, switch: &str) -> bool {
        self.object.data.pointer(&format!("/spec/{switch}")) == Some(&true.into())
    }
}

impl SeenPilot {
    /// Nobody hears it. The leader says so, who knows when nobody could be heard at all.
    pub(super) fn is_silent(&self) -> bool {
        let ready = condition(&self.pilot.status.conditions, "Ready");
        ready.is_some_and(|ready| ready.status == "Unknown" && says_unheard(&ready.reason))
    }

    /// Kind, namespace and name of the cluster that it belongs to.
    pub(super) fn key(&self) -> Option<[&str; 3]> {
        let namespace = self.pilot.metadata.namespace.as_deref().unwrap_or_default();
        let owner = self.pilot.spec.cluster_ref.as_ref()?;
        Some([&owner.kind, namespace, &owner.name])
    }
}
