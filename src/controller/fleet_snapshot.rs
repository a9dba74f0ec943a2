//! A snapshot of the caches, for readers that only show it: the status page and the cluster
//! metrics.
//!
//! Sends no request, and decides nothing.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tokio::time::Instant;

use super::{heartbeats::HeartbeatTracker, object_caches::ObjectCaches};
use crate::api::{
    containership::ClusterUpgrade,
    picture::{ClusterPicture, NodePicture},
    v1beta1::Pilot,
};

/// A snapshot of all clusters and Pilots.
#[derive(Clone, Debug)]
pub struct FleetSnapshot {
    pub now: Timestamp,
    /// This controller leads; false while it waits for the lease.
    pub leads: bool,
    /// Names of the readiness checks that have not passed yet, while the caches are not filled.
    pub waiting_for: Vec<String>,
    pub clusters: Vec<CachedCluster>,
    pub pilots: Vec<CachedPilot>,
    /// Upgrades and reboots of machines.
    pub runs: Vec<ClusterUpgrade>,
}

/// A cluster object of any database's kind.
#[derive(Clone, Debug)]
pub struct CachedCluster {
    pub kind: String,
    pub object: Arc<DynamicObject>,
}

/// A Pilot, and how long ago its pilot last reported, by our own clock.
#[derive(Clone, Debug)]
pub struct CachedPilot {
    pub pilot: Arc<Pilot>,
    pub heard: Duration,
}

/// A function that makes a [`FleetSnapshot`] for a request to the status page or for metrics. It
/// must not wait.
pub type SnapshotSource = Arc<dyn Fn() -> FleetSnapshot + Send + Sync>;

impl FleetSnapshot {
    /// Returns the snapshot for the time before the caches are filled.
    pub fn empty(waiting_for: Vec<String>) -> Self {
        let now = Timestamp::now();
        Self {
            now,
            leads: false,
            waiting_for,
            clusters: Vec::new(),
            pilots: Vec::new(),
            runs: Vec::new(),
        }
    }

    pub(super) fn from_caches(
        stores: &ObjectCaches,
        heartbeats: &HeartbeatTracker,
        leads: bool,
    ) -> Self {
        Self::of_pilots(stores, heartbeats, leads, stores.pilots.all_objects())
    }

    /// Returns the snapshot for the figures of clusters. Of the Pilots it has those that may be
    /// silent only: to unpack all of them at each scrape would cost more than the rest of it.
    pub(super) fn for_metrics(
        stores: &ObjectCaches,
        heartbeats: &HeartbeatTracker,
        leads: bool,
    ) -> Self {
        let (now, mut silent) = (Instant::now(), Vec::new());
        if leads {
            stores.pilots.for_each_outline(|pilot| {
                if heartbeats.may_be_marked(&pilot.uid, now) {
                    silent.push((pilot.namespace.clone(), pilot.name.clone()));
                }
            });
        }
        let find_pilot =
            |(namespace, name): &(Box<str>, Box<str>)| stores.pilots.get_object(namespace, name);
        Self::of_pilots(stores, heartbeats, leads, silent.iter().filter_map(find_pilot).collect())
    }

    fn of_pilots(
        stores: &ObjectCaches,
        heartbeats: &HeartbeatTracker,
        leads: bool,
        pilots: Vec<Arc<Pilot>>,
    ) -> Self {
        let now = Instant::now();
        let cached_pilot = |pilot: Arc<Pilot>| {
            let uid = pilot.metadata.uid.as_deref().unwrap_or_default();
            CachedPilot { heard: heartbeats.heartbeat_age(uid, now).ago, pilot }
        };
        let clusters = stores.all_clusters().map(|(database, object)| CachedCluster {
            kind: database.names.kind.to_owned(),
            object,
        });
        Self {
            leads,
            clusters: clusters.collect(),
            pilots: pilots.into_iter().map(cached_pilot).collect(),
            ..Self::empty(Vec::new())
        }
    }
}

impl CachedCluster {
    pub(super) fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the kind, namespace and name of the cluster.
    pub(super) fn key(&self) -> [&str; 3] {
        [&self.kind, self.namespace(), self.name()]
    }

    /// Returns the picture of the cluster, without its nodes.
    pub(super) fn summary(&self) -> ClusterPicture<'_> {
        ClusterPicture::from_parts(&self.object.metadata, &self.object.data)
    }
}

impl CachedPilot {
    pub(super) fn summary(&self) -> NodePicture<'_> {
        NodePicture::new(&self.pilot)
    }

    /// Returns kind, namespace and name of the cluster that the Pilot belongs to.
    pub(super) fn key(&self) -> Option<[&str; 3]> {
        let namespace = self.pilot.metadata.namespace.as_deref().unwrap_or_default();
        let owner = self.pilot.spec.cluster_ref.as_ref()?;
        Some([&owner.kind, namespace, &owner.name])
    }
}
