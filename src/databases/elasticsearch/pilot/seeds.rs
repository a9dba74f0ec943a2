//! Decides through which seeds a node finds its cluster, and whether it begins one.
//!
//! Only the recorded founder may name initial masters, itself alone, and only while no other node
//! was ever a member. All other nodes wait for a member's identity. Before version 7 any quorum of
//! nodes that find each other makes a cluster, so a fresh node gets the addresses of members only:
//! two fresh nodes that cannot reach the founder do not meet.

use super::state::NodeState;
use crate::{
    api::v1beta1::Pilot,
    databases::elasticsearch::{facts::Release, names},
    pilot::{
        driver::{DatabaseNode, Error},
        kube::peers::{self, is_member, peer_name},
    },
};

pub(super) use crate::pilot::driver::TRANSPORT;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeedPlan {
    pub(super) seeds: Vec<String>,
    /// True when the node begins a cluster.
    pub(super) founds: bool,
}

/// Decides how a node finds its cluster. `has_data`: its volume holds the node's state.
pub(super) fn choose_seeds(
    node: &DatabaseNode,
    release: Release,
    state: &NodeState,
    has_data: bool,
) -> Result<SeedPlan, Error> {
    let has_joined = state.cluster_id.is_some() && has_data;
    let includes_all = release.has_voting() || has_joined;
    let seed_peers = node.peers.iter().filter(|peer| includes_all || is_member(peer));
    let mut seeds: Vec<String> =
        seed_peers.flat_map(|peer| transport_addresses(node, peer)).collect();
    seeds.sort();
    let cluster = node.pilot.spec.cluster_ref.as_ref();
    if let Some(cluster) = cluster.filter(|_| includes_all && in_a_pod(node)) {
        // Addresses change with pods; the Service's name stays.
        seeds.push(names::discovery_service(&cluster.name));
    }
    let members: Vec<&str> =
        node.peers.iter().filter(|peer| is_member(peer)).map(peer_name).collect();
    if !includes_all && seeds.is_empty() && !members.is_empty() {
        // Before version 7 a node that knows no other may be a cluster of its own.
        return Err(Error::NotYet(format!(
            "waits for DNS, or for a report, that says at which address {} is now",
            members.join(", ")
        )));
    }
    if has_joined || !members.is_empty() {
        return Ok(SeedPlan { seeds, founds: false });
    }
    if node.may_found {
        return Ok(SeedPlan { seeds, founds: true });
    }
    Err(Error::NotYet("waits for the founder of the cluster".to_owned()))
}

fn in_a_pod(node: &DatabaseNode) -> bool {
    !node.address.is_loopback()
}

/// Returns where the peer's node listens now: a former address may be that of a node of another
/// cluster, which a node without data would join.
fn transport_addresses(node: &DatabaseNode, peer: &Pilot) -> Vec<String> {
    let Some(endpoint) = peers::find_endpoint(peer, TRANSPORT) else { return Vec::new() };
    let bracketed = |host: String| if host.contains(':') { format!("[{host}]") } else { host };
    let hosts = node.addresses.hosts_of(peer).into_iter().map(bracketed);
    hosts.map(|host| format!("{host}:{}", endpoint.port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::{ClusterRef, Endpoint, Identity, PilotStatus},
        databases::elasticsearch::pilot::tests::node,
        pilot::driver::PeerAddresses,
    };

    fn member() -> Pilot {
        let mut pilot = Pilot::default();
        pilot.status.identity =
            Some(Identity { node_id: Some("n2".to_owned()), ..Identity::default() });
        pilot.status.endpoints =
            vec![Endpoint { name: TRANSPORT.to_owned(), host: "10.0.0.2".to_owned(), port: 9300 }];
        pilot
    }

    fn at(version: &str) -> Release {
        version.parse().unwrap()
    }

    #[test]
    fn before_seven_a_fresh_node_is_told_of_members_only() {
        let mut node = node();
        let fresh = Pilot { status: PilotStatus { identity: None, ..member().status }, ..member() };
        node.peers = vec![fresh.clone()];
        node.may_found = true;
        assert!(
            choose_seeds(&node, at("5.6.16"), &NodeState::default(), false)
                .unwrap()
                .seeds
                .is_empty()
        );
        let mut known = member();
        known.status.endpoints[0].host = "10.0.0.3".to_owned();
        node.peers = vec![fresh, known];
        let seeds = |release, state: &NodeState| {
            choose_seeds(&node, at(release), state, state.cluster_id.is_some()).unwrap().seeds.len()
        };
        let rejoins = NodeState { cluster_id: Some("u".to_owned()), ..NodeState::default() };
        assert_eq!(seeds("6.8.23", &NodeState::default()), 1);
        assert_eq!(seeds("6.8.23", &rejoins), 2);
        assert_eq!(seeds("7.17.29", &NodeState::default()), 2);
    }

    #[test]
    fn only_the_founder_of_an_unborn_cluster_founds() {
        let mut node = node();
        let fresh = NodeState::default();
        assert!(matches!(choose_seeds(&node, at("7.17.29"), &fresh, false), Err(Error::NotYet(_))));
        node.may_found = true;
        assert!(choose_seeds(&node, at("7.17.29"), &fresh, false).unwrap().founds);
        node.peers = vec![member()];
        let way = choose_seeds(&node, at("7.17.29"), &fresh, false).unwrap();
        assert_eq!((way.founds, way.seeds), (false, vec!["10.0.0.2:9300".to_owned()]));
    }

    #[test]
    fn former_address_of_peer_is_no_seed() {
        let mut node = node();
        node.pilot.spec.cluster_ref =
            Some(ClusterRef { kind: "ElasticsearchCluster".into(), name: "logs".into() });
        let mut peer = member();
        peer.metadata.name = Some("es-logs-a-1".to_owned());
        node.peers = vec![peer];
        let fresh = NodeState::default();
        let mut seeds = |release, current: &[&str]| {
            let current = current.iter().map(|host| (*host).to_owned()).collect();
            node.addresses = PeerAddresses::Current([("es-logs-a-1".to_owned(), current)].into());
            choose_seeds(&node, at(release), &fresh, false).map(|way| way.seeds)
        };
        let both = seeds("6.8.23", &["10.0.0.7", "fd00::7"]).unwrap();
        assert_eq!(both, ["10.0.0.7:9300", "[fd00::7]:9300"]);
        assert!(matches!(seeds("6.8.23", &[]), Err(Error::NotYet(_))), "DNS is away");
        let asks_itself = seeds("7.17.29", &[]).unwrap();
        assert_eq!(asks_itself, ["es-logs-discovery"]);
    }

    #[test]
    fn a_member_with_data_starts_whoever_is_up() {
        let state = NodeState { cluster_id: Some("u".to_owned()), ..NodeState::default() };
        assert!(!choose_seeds(&node(), at("7.17.29"), &state, true).unwrap().founds);
        assert!(choose_seeds(&node(), at("7.17.29"), &state, false).is_err(), "its data are gone");
    }
}
