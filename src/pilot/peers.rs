//! Waits until the other nodes of the cluster are not what they were.
//!
//! Owns what counts: a peer that became a member, became ready or no longer is, moved, or is
//! gone; not its heartbeats and figures. Peers are watched only by a node that waits for them,
//! so a running cluster does not pay for it.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};

use super::{backoff::Backoff, cluster::Cluster};
use crate::api::v1beta1::{Endpoint, Pilot};

/// Returns when the peers of `own` differ from `known`; never for a node without a cluster. An
/// API that is away is waited for.
pub async fn changed(cluster: &Cluster, own: &Pilot, known: &[Pilot]) {
    let Some(selector) = cluster.selector(own) else { return std::future::pending().await };
    let own = own.name_any();
    let known: BTreeMap<String, Standing> =
        known.iter().map(|peer| (peer.name_any(), Standing::of(peer))).collect();
    let config = watcher::Config::default().labels(&selector);
    let mut events = std::pin::pin!(watcher(cluster.pilots(), config).backoff(Backoff::of_watch()));
    let mut missing: Vec<&String> = Vec::new();
    while let Some(event) = events.next().await {
        let different = match event {
            Ok(Event::Init) => {
                missing = known.keys().collect();
                false
            }
            Ok(Event::InitApply(peer) | Event::Apply(peer)) => {
                let name = peer.name_any();
                missing.retain(|one| **one != name);
                // A peer that is nothing yet is no news.
                let before = known.get(&name).cloned().unwrap_or_default();
                name != own && before != Standing::of(&peer)
            }
            Ok(Event::InitDone) => !missing.is_empty(),
            Ok(Event::Delete(peer)) => known.contains_key(&peer.name_any()),
            // The backoff tries again.
            Err(_) => false,
        };
        if different {
            return;
        }
    }
}

/// What a start may depend on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Standing {
    node_id: Option<String>,
    ready: bool,
    endpoints: Vec<Endpoint>,
}

impl Standing {
    fn of(peer: &Pilot) -> Self {
        let status = &peer.status;
        Self {
            node_id: status.identity.as_ref().and_then(|identity| identity.node_id.clone()),
            ready: status.conditions.iter().any(is_ready),
            endpoints: status.endpoints.clone(),
        }
    }
}

fn is_ready(condition: &Condition) -> bool {
    condition.type_ == "Ready" && condition.status == "True"
}
