//! How long ConfigMaps with CAs of nodes elsewhere have been as they are.
//!
//! Who has a certificate of such a CA is a node, and more people may write ConfigMaps than Secrets. So a
//! CA that is new in one is trusted only once the same version of the ConfigMap was read twice, a minute
//! apart. A controller that starts again waits again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::queue::ClusterKey;

/// How long a ConfigMap has to stay as it is before its new CAs are trusted.
const SETTLES_AFTER: Duration = Duration::from_secs(60);

/// Observations by the name of the object and its key.
type SourceObservations = BTreeMap<String, TrustObservation>;

#[derive(Clone, Default)]
pub(crate) struct TrustObservations(Arc<Mutex<HashMap<ClusterKey, SourceObservations>>>);

/// A version of an object that was read.
#[derive(Clone, Debug)]
struct TrustObservation {
    version: String,
    /// When it was read first.
    since: Instant,
    /// Was an event published about it?
    is_published: bool,
}

impl TrustObservations {
    /// Notes that this version of an object was read. Returns whether it has been the same for long
    /// enough.
    pub(crate) fn record_version(&self, cluster: &ClusterKey, source: &str, version: &str) -> bool {
        let now = Instant::now();
        let new_observation =
            || TrustObservation { version: version.to_owned(), since: now, is_published: false };
        let mut all_clusters = self.lock();
        let observations = all_clusters.entry(cluster.clone()).or_default();
        let observation = observations.entry(source.to_owned()).or_insert_with(new_observation);
        if observation.version != version {
            *observation = new_observation();
        }
        now.duration_since(observation.since) >= SETTLES_AFTER
    }

    /// Returns whether this is the first call about the version of the object that was noted last.
    pub(crate) fn is_first(&self, cluster: &ClusterKey, source: &str) -> bool {
        let mut all_clusters = self.lock();
        let observation =
            all_clusters.get_mut(cluster).and_then(|observations| observations.get_mut(source));
        observation
            .is_some_and(|observation| !std::mem::replace(&mut observation.is_published, true))
    }

    /// Forgets an object that has no new CA.
    pub(crate) fn remove_source(&self, cluster: &ClusterKey, source: &str) {
        if let Some(observations) = self.lock().get_mut(cluster) {
            observations.remove(source);
        }
    }

    /// Forgets a cluster that is gone.
    pub(crate) fn remove_cluster(&self, cluster: &ClusterKey) {
        self.lock().remove(cluster);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClusterKey, SourceObservations>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
