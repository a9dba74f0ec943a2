//! What every part of the runner works with: the database, its volume, the API, and the way to
//! the loop. Cheap to clone: each task has its own.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{sync::mpsc, time::timeout};
use tracing::debug;

use super::{RunnerMessage, RunnerSettings};
use crate::{
    api::v1beta1::Pilot,
    error::chain,
    pilot::{
        driver::{DatabaseNode, Driver, PeerAddresses},
        kube::pilot_api::PilotApi,
        node::metrics::Metrics,
        process::supervisor::Supervisor,
        security::NodeSecurity,
        volume::{data_volume::Volume, records::VolumeRecords, ring},
    },
    runtime::{Runtime, cgroup},
};

/// How long the API server may take to answer; then the pilot goes on with what it knows already.
const PEERS_LIMIT: Duration = Duration::from_secs(5);

/// Returns the smaller of two limits, where there are any: both bind.
fn smaller_limit(configured_limit: Option<u64>, detected_limit: Option<u64>) -> Option<u64> {
    configured_limit.into_iter().chain(detected_limit).min()
}

#[derive(Clone)]
pub(super) struct RunnerContext {
    pub(super) settings: Arc<RunnerSettings>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) supervisor: Supervisor,
    pub(super) rt: Runtime,
    pub(super) cluster: Option<PilotApi>,
    pub(super) volume: Volume,
    pub(super) records: VolumeRecords,
    pub(super) security: NodeSecurity,
    pub(super) metrics: Metrics,
    pub(super) messages: mpsc::Sender<RunnerMessage>,
    pub(super) known_peers: KnownPeers,
}

/// The peers as they were last listed; `None` before that. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownPeers(Arc<Mutex<Option<Arc<[Pilot]>>>>);

impl KnownPeers {
    pub(super) fn get(&self) -> Option<Arc<[Pilot]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, peers: &[Pilot]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(peers.into());
    }
}

impl RunnerContext {
    /// Makes the node as the database sees it. Boxed: tasks that hold a node are moved about on the
    /// main thread's stack, and pages of the stack that were used once stay resident.
    pub(super) fn build_node(
        &self,
        pilot: &Pilot,
        peers: &[Pilot],
        may_found: bool,
    ) -> Box<DatabaseNode> {
        let settings = &self.settings;
        Box::new(DatabaseNode {
            pilot: pilot.clone(),
            peers: peers.to_vec(),
            addresses: PeerAddresses::default(),
            cluster_uid: ring::cluster_owner(pilot).map(|owner| owner.uid.clone()),
            address: settings.address,
            home: settings.home.clone(),
            data: settings.data.clone(),
            config: settings.config.clone(),
            shared: settings.shared.clone(),
            memory_limit: smaller_limit(settings.memory_limit, cgroup::memory_limit()),
            may_found,
            ring: None,
        })
    }

    /// Gives the node its peers as the API has them now, where the API answers.
    pub(super) async fn refresh_peers(&self, node: &mut DatabaseNode) {
        if self.cluster.as_ref().is_some_and(|cluster| cluster.breaker().is_away()) {
            return;
        }
        if let Some(peers) = self.list_peers(&node.pilot).await {
            node.peers = peers;
        }
    }

    /// Lists the node's peers as the API has them now; `None` when the API does not say, and an
    /// empty list where there is no API.
    pub(super) async fn peers_or_empty(&self, pilot: &Pilot) -> Option<Vec<Pilot>> {
        if self.cluster.is_none() {
            return Some(Vec::new());
        }
        self.list_peers(pilot).await
    }

    async fn list_peers(&self, pilot: &Pilot) -> Option<Vec<Pilot>> {
        let cluster = self.cluster.as_ref()?;
        match timeout(PEERS_LIMIT, cluster.list_peers(pilot)).await {
            Ok(Ok(peers)) => {
                // Only the leader's duties go by peers that were listed before.
                if self.driver.has_lead_duties() {
                    self.known_peers.set(&peers);
                }
                Some(peers)
            }
            Ok(Err(error)) => {
                debug!(error = %chain(&error), "Peers cannot be listed");
                None
            }
            Err(_) => None,
        }
    }

    /// Returns the time of the API server's clock; `None` when the API does not answer, and on a
    /// host: there it may be this machine's own clock, which proves nothing.
    pub(super) async fn api_time(&self) -> Option<SystemTime> {
        let cluster = self.cluster.as_ref().filter(|api| !api.breaker().is_away())?;
        self.settings.pod_uid.as_ref()?;
        timeout(PEERS_LIMIT, cluster.server_time()).await.ok().flatten()
    }

    /// Sends the loop a message. When the loop is gone, the message is of no use any more.
    pub(super) async fn send_message(&self, message: RunnerMessage) {
        drop(self.messages.send(message).await);
    }
}

#[cfg(test)]
mod tests {
    use super::smaller_limit;

    #[test]
    fn the_smaller_limit_binds() {
        assert_eq!(smaller_limit(None, None), None);
        assert_eq!(smaller_limit(Some(2), None), Some(2));
        assert_eq!(smaller_limit(None, Some(3)), Some(3));
        assert_eq!(smaller_limit(Some(2), Some(3)), Some(2));
        assert_eq!(smaller_limit(Some(4), Some(3)), Some(3));
    }
}
