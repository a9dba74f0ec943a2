//! At which addresses the nodes of peers can be reached now.
//!
//! A Pilot has the address that its pilot reported last. After a power cut, or a stop and a start,
//! addresses are handed out again, and a pod of another cluster may have that one: a database that
//! took it as a seed could join the other cluster. So a node in a pod goes by what DNS has for the
//! pod of each peer, under the headless Service of its pool, which lists pods that are not ready, too.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::{net::lookup_host, time::timeout};

use super::peers::{self, is_ready};
use crate::{
    api::{names, silence::SILENT_AFTER, v1beta1::Pilot},
    pilot::driver::{DatabaseNode, PeerAddresses, TRANSPORT},
};

/// Most ready peers, and most others, whose addresses are looked up: a node needs a few seeds only.
const LOOKUPS: usize = 6;

/// Longest time for all lookups. A database does not wait longer for a DNS that is away.
const LIMIT: Duration = Duration::from_secs(5);

/// Looks up the addresses of the pods of some peers. A runner of pods on one machine gives each
/// pod a loopback address for good.
///
/// Where DNS has no address, or does not answer, a peer counts only while it is ready and its
/// pilot has reported lately: with the address of that report.
pub async fn look_up(node: &DatabaseNode) -> PeerAddresses {
    if node.address.is_loopback() {
        return PeerAddresses::AsReported;
    }
    let members = node.peers.iter().filter(|peer| peers::find_endpoint(peer, TRANSPORT).is_some());
    let (ready, others): (Vec<&Pilot>, Vec<&Pilot>) = members.partition(|peer| is_ready(peer));
    let lookup_peers = ready.into_iter().take(LOOKUPS).chain(others.into_iter().take(LOOKUPS));
    let answers = lookup_peers.map(|peer| async move {
        let answer = timeout(LIMIT, lookup_host((host_name(peer), 0))).await;
        let sockets = answer.ok().and_then(Result::ok).into_iter().flatten();
        let addresses = sockets.map(|socket| socket.ip()).collect();
        (peer.name_any(), peer_hosts(peer, node.address, addresses, Timestamp::now()))
    });
    PeerAddresses::Current(join_all(answers).await.into_iter().collect())
}

/// Returns the name of the peer's pod in DNS. With its namespace it is the name of nothing else.
fn host_name(peer: &Pilot) -> String {
    let pod = peer.name_any();
    let set = pod.rsplit_once('-').map_or(pod.as_str(), |(set, _)| set);
    let service = names::pods_service(set);
    format!("{pod}.{service}.{}.svc", peer.namespace().unwrap_or_default())
}

/// Returns the hosts at which a peer listens, from what DNS has for its pod. `own_address`: the
/// address of the node that asks, which talks to addresses of its own family only.
fn peer_hosts(
    peer: &Pilot,
    own_address: IpAddr,
    resolved_addresses: Vec<IpAddr>,
    now: Timestamp,
) -> Vec<String> {
    let addresses =
        resolved_addresses.into_iter().filter(|address| address.is_ipv4() == own_address.is_ipv4());
    let mut hosts: Vec<String> = addresses.map(|address| address.to_string()).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.is_empty() && is_ready(peer) && has_reported_lately(peer, now) {
        hosts.extend(PeerAddresses::AsReported.hosts_of(peer));
    }
    hosts
}

/// Returns whether the pilot's last report is no older than a silent pilot's. A clock that differs
/// by more makes the report count for nothing.
fn has_reported_lately(peer: &Pilot, now: Timestamp) -> bool {
    let age = peer.status.last_heartbeat_time.as_ref().map(|time| now.duration_since(time.0).abs());
    age.and_then(|age| Duration::try_from(age).ok()).is_some_and(|age| age < SILENT_AFTER)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::ToSpan};

    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    /// Returns a Pilot whose node listens at 10.0.0.9, by a report of so many seconds ago.
    fn peer(ready: bool, ago: i64) -> Pilot {
        let since = (now() - ago.seconds()).to_string();
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "cass-shop-a-1", "namespace": "n1"},
            "spec": {},
            "status": {
                "lastHeartbeatTime": since,
                "endpoints": [{"name": "transport", "host": "10.0.0.9", "port": 7000}],
                "conditions": [{
                    "type": "Ready", "status": if ready { "True" } else { "False" },
                    "reason": "X", "message": "", "lastTransitionTime": since,
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn address_of_dns_replaces_reported_one() {
        for ready in [true, false] {
            let found =
                vec![[10, 0, 0, 7].into(), "fd00::7".parse().unwrap(), [10, 0, 0, 7].into()];
            assert_eq!(peer_hosts(&peer(ready, 5), OWN, found, now()), ["10.0.0.7"]);
        }
    }

    #[test]
    fn reported_address_without_dns_needs_fresh_report() {
        let without = |ready, ago| peer_hosts(&peer(ready, ago), OWN, Vec::new(), now());
        assert_eq!(without(true, 5), ["10.0.0.9"]);
        assert_eq!(without(true, 90), [""; 0], "as after a power cut");
        assert_eq!(without(true, -90), [""; 0], "by another clock");
        assert_eq!(without(false, 5), [""; 0], "it is silent");
        let Pilot { status, .. } = peer(true, 5);
        let mut unheard = peer(true, 5);
        unheard.status = crate::api::v1beta1::PilotStatus { last_heartbeat_time: None, ..status };
        assert_eq!(peer_hosts(&unheard, OWN, Vec::new(), now()), [""; 0]);
        unheard.status.last_heartbeat_time = Some(Time(now()));
        assert_eq!(peer_hosts(&unheard, OWN, Vec::new(), now()), ["10.0.0.9"]);
    }

    #[test]
    fn name_in_dns_names_pod_and_namespace() {
        assert_eq!(host_name(&peer(true, 0)), "cass-shop-a-1.cass-shop-a-pods.n1.svc");
    }

    #[test]
    fn peer_without_answer_has_no_address() {
        let addresses = PeerAddresses::Current(BTreeMap::new());
        assert_eq!(addresses.hosts_of(&peer(true, 5)), [""; 0]);
        assert_eq!(PeerAddresses::AsReported.hosts_of(&peer(false, 900)), ["10.0.0.9"]);
    }
}
