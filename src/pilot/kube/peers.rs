//! Waits until the other nodes of the cluster have changed.
//!
//! Owns which changes count: a peer that became a member, became ready or no longer is, says
//! something else about the data on its volume, moved, or is gone; not its heartbeats and figures.
//! A node watches its peers only while it waits for them, so a running cluster does not pay for it.

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

use crate::{
    api::v1beta1::{Endpoint, Pilot, PilotPhase},
    pilot::{
        kube::{backoff::RetryBackoff, pilot_api::PilotApi},
        volume::ring,
    },
};

pub use crate::api::names::condition::VOLUME_HOLDS_DATA;

/// Returns whether the volume of `peer` holds data, as its Pilot says; `None` while its pilot has
/// not looked. A Pilot of an earlier cluster of this name does not speak for the present one.
pub fn holds_data(peer: &Pilot, own_pilot: &Pilot) -> Option<bool> {
    let uid = |pilot| ring::cluster_owner(pilot).map(|owner| &owner.uid);
    if uid(peer) != uid(own_pilot) {
        return None;
    }
    data_report(peer)
}

/// Is `peer` a member of the database cluster, and does its Pilot not say that its data are gone?
pub fn is_member(peer: &Pilot) -> bool {
    was_member(peer) && data_report(peer) != Some(false)
}

/// Was the peer a member once? Its data may be lost.
pub fn was_member(peer: &Pilot) -> bool {
    peer.status.identity.as_ref().is_some_and(|identity| identity.node_id.is_some())
}

/// Is the peer a node that serves, as its pilot reports?
pub fn is_ready(peer: &Pilot) -> bool {
    peer.status
        .conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Has the peer left the database cluster? Its Pilot may exist for a while longer, and its volume
/// with it. The phase tells more than that while the node ends.
pub fn is_decommissioned(peer: &Pilot) -> bool {
    let is_decommission =
        |condition: &Condition| condition.type_ == "Decommissioned" && condition.status == "True";
    peer.status.phase == Some(PilotPhase::Decommissioned)
        || peer.status.conditions.iter().any(is_decommission)
}

/// Returns the name of the database cluster that the peers are in, by the first member among those
/// that are ready, or among all. `reported_name` returns the name that a peer reports. Pilots of
/// releases before 0.3 report none, and their clusters have the object's name.
pub fn cluster_name(
    own_pilot: &Pilot,
    peers: &[Pilot],
    reported_name: impl Fn(&Pilot) -> Option<String>,
) -> Option<String> {
    let members = peers.iter().filter(|peer| is_member(peer) && !is_decommissioned(peer));
    let first_member = members.min_by_key(|peer| !is_ready(peer))?;
    let object = || own_pilot.spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone());
    reported_name(first_member).or_else(object)
}

/// Returns the address under which the peer's node listens, by the name of the endpoint.
pub fn find_endpoint<'a>(peer: &'a Pilot, name: &str) -> Option<&'a Endpoint> {
    let mut endpoints = peer.status.endpoints.iter();
    endpoints.find(|endpoint| endpoint.name == name && !endpoint.host.is_empty())
}

/// Returns the name of the Pilot, for people.
pub fn peer_name(peer: &Pilot) -> &str {
    peer.metadata.name.as_deref().unwrap_or("a peer")
}

fn data_report(peer: &Pilot) -> Option<bool> {
    let status = |type_: &str| {
        let conditions = peer.status.conditions.iter();
        conditions.clone().find(|c| c.type_ == type_).map(|c| c.status.as_str())
    };
    if status("Decommissioned") == Some("True") {
        return Some(false);
    }
    match status(VOLUME_HOLDS_DATA) {
        Some("True") => Some(true),
        Some("False") => Some(false),
        // Pilots of releases before this condition do not report it.
        _ if was_member(peer) => Some(true),
        _ => (status("PreflightPassed") == Some("True")).then_some(false),
    }
}

/// Returns when the peers of `own_pilot` differ from `known_peers`; never for a node without a
/// cluster. Waits for an API that is away.
pub async fn wait_for_change(cluster: &PilotApi, own_pilot: &Pilot, known_peers: &[Pilot]) {
    let Some(selector) = cluster.peer_selector(own_pilot) else {
        return std::future::pending().await;
    };
    let own_name = own_pilot.name_any();
    let known_states: BTreeMap<String, PeerState> =
        known_peers.iter().map(|peer| (peer.name_any(), PeerState::from_pilot(peer))).collect();
    let config = watcher::Config::default().labels(&selector);
    let mut events =
        std::pin::pin!(watcher(cluster.pilots(), config).backoff(RetryBackoff::of_watch()));
    let mut missing: Vec<&String> = Vec::new();
    while let Some(event) = events.next().await {
        let is_different = match event {
            Ok(Event::Init) => {
                missing = known_states.keys().collect();
                false
            }
            Ok(Event::InitApply(peer) | Event::Apply(peer)) => {
                let name = peer.name_any();
                missing.retain(|missing_name| **missing_name != name);
                // A new peer that is not ready and has no identity, data and addresses does not
                // count.
                let old_state = known_states.get(&name).cloned().unwrap_or_default();
                name != own_name && old_state != PeerState::from_pilot(&peer)
            }
            Ok(Event::InitDone) => !missing.is_empty(),
            Ok(Event::Delete(peer)) => known_states.contains_key(&peer.name_any()),
            // The backoff tries again.
            Err(_) => false,
        };
        if is_different {
            return;
        }
    }
}

/// The parts of a peer that a start may depend on.
#[derive(Clone, Debug, Default, PartialEq)]
struct PeerState {
    node_id: Option<String>,
    ready: bool,
    holds: Option<bool>,
    endpoints: Vec<Endpoint>,
}

impl PeerState {
    fn from_pilot(peer: &Pilot) -> Self {
        let status = &peer.status;
        Self {
            node_id: status.identity.as_ref().and_then(|identity| identity.node_id.clone()),
            ready: is_ready(peer),
            holds: data_report(peer),
            endpoints: status.endpoints.clone(),
        }
    }
}
