//! Decides through which seeds a node finds its ring, and whether it takes a dead node's place.
//!
//! The rule behind all decisions here: a node that names itself as a seed does not bootstrap. So a
//! node without data of its own names itself only when it is the recorded founder and no other node
//! was ever a member; otherwise it waits for a ready node.

use std::{collections::BTreeSet, net::IpAddr};

use super::{node_view::TRANSPORT, resolved_spec::ResolvedSpec, security, state::NodeState};
use crate::{
    api::{v1beta1::Pilot, validation::DatabaseVersion},
    databases::cassandra::v1beta1::{CassandraNode, CassandraPeer},
    pilot::{
        driver::{DatabaseNode, Error},
        kube::peers::{self, is_decommissioned, is_member, is_ready, peer_name, was_member},
    },
};

/// Most ready peers, and most silent ones, that a node uses as seeds: more would only add gossip.
const ENOUGH: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeedPlan {
    pub(super) seeds: Vec<String>,
    /// True when the node begins a ring.
    pub(super) founds: bool,
    /// Address of the dead node whose tokens and data this node takes.
    pub(super) replaces: Option<IpAddr>,
}

/// Decides how a node finds its ring. `has_data`: its volume holds system tables.
pub(super) fn choose_seeds(
    node: &DatabaseNode,
    state: &NodeState,
    has_data: bool,
) -> Result<SeedPlan, Error> {
    let spec = node.pilot.spec.part::<CassandraNode>().unwrap_or_default();
    let mut others = Vec::new();
    let mut silent = Vec::new();
    for peer in &node.peers {
        let addresses = if is_ready(peer) { &mut others } else { &mut silent };
        addresses.extend(node.addresses.hosts_of(peer));
    }
    others.sort();
    others.truncate(ENOUGH);
    others.extend(spec.additional_seeds.iter().cloned());

    if state.joined && has_data {
        // A member may start as its own seed: it does not bootstrap any more, and after a full
        // outage one node has to come up first.
        let mut seeds = vec![node.address.to_string()];
        silent.sort();
        seeds.extend(others);
        seeds.extend(silent.into_iter().take(ENOUGH));
        return Ok(SeedPlan { seeds, founds: false, replaces: None });
    }
    if others.is_empty() {
        let members: Vec<&str> =
            node.peers.iter().filter(|peer| is_member(peer)).map(peer_name).collect();
        let ready: Vec<&str> =
            node.peers.iter().filter(|peer| is_ready(peer)).map(peer_name).collect();
        if !ready.is_empty() {
            return Err(Error::NotYet(format!(
                "waits for DNS, or for a report, that says at which address {} is now",
                ready.join(", ")
            )));
        }
        if !node.may_found {
            return Err(Error::NotYet("waits for a node of the cluster to be ready".to_owned()));
        }
        if !members.is_empty() {
            return Err(Error::NotYet(format!(
                "waits for {} to be ready: the ring exists, so this node may not found another",
                members.join(", ")
            )));
        }
        return Ok(SeedPlan {
            seeds: vec![node.address.to_string()],
            founds: true,
            replaces: None,
        });
    }
    let is_recreated = node.ring.as_ref().is_some_and(|ring| ring.remade);
    let replaced_address = find_predecessor(node, state, has_data);
    let replaces = match replaced_address {
        None if is_recreated && !has_data => former_self(node, state)?,
        address => address,
    };
    Ok(SeedPlan { seeds: others, founds: false, replaces })
}

/// Is the node the first of its cluster in a ring that others have made? It brings the login of its
/// cluster's pilots into the ring.
pub(super) fn comes_first(node: &DatabaseNode) -> bool {
    let spec = node.pilot.spec.part::<CassandraNode>().unwrap_or_default();
    !spec.additional_seeds.is_empty() && !node.peers.iter().any(is_member)
}

/// Checks whether a node may start that is to ask for passwords: the logins that it goes by are
/// rows of its ring. `is_open`: it is a member of a ring without logins. `has_begun`: it is a
/// member already, or begins a ring.
pub(super) fn check_login_required(
    node: &DatabaseNode,
    is_open: bool,
    has_begun: bool,
) -> Result<(), Error> {
    if is_open {
        return Err(Error::ConfigRejected(
            "the ring of this node has no logins of Navigator's, and cassandra/cassandra would be \
             let in: delete the cluster, whose volumes stay, and make it again with \
             spec.security.mode: Open"
                .to_owned(),
        ));
    }
    if has_begun || node.peers.iter().any(|peer| is_ready(peer) && requires_login(peer)) {
        return Ok(());
    }
    Err(Error::NotYet("waits for a ready node that asks for passwords".to_owned()))
}

/// Returns the addresses of the peers that run another major release, for a node that joins.
///
/// A node joins once it has the schema of each version that gossip names, and a node receives the
/// schema only from nodes of its own major release (`MigrationCoordinator.shouldPullFromEndpoint`,
/// `awaitSchemaRequests`). So it must not wait for the schema of the other release, which has the
/// same tables of users. Without a ready node of its own release it would join with no tables and
/// receive no rows.
pub(super) fn peers_of_other_majors(node: &DatabaseNode) -> Result<Vec<String>, Error> {
    let version_of = |pilot: &Pilot| {
        let version = pilot.status.version.as_ref().or(pilot.spec.version.as_ref());
        DatabaseVersion::parse(version?)
    };
    let version = node.pilot.spec.version.as_deref().and_then(DatabaseVersion::parse);
    let Some(own_major) = version.map(|version| version.major) else { return Ok(Vec::new()) };
    let members = node.peers.iter().filter(|peer| !is_decommissioned(peer));
    let (others, near): (Vec<&Pilot>, Vec<&Pilot>) = members
        .partition(|peer| version_of(peer).is_some_and(|version| version.major != own_major));
    let spec = node.pilot.spec.part::<CassandraNode>().unwrap_or_default();
    let is_alone = spec.additional_seeds.is_empty() && !near.iter().any(|peer| is_ready(peer));
    if is_alone && others.iter().any(|peer| is_ready(peer)) {
        let message = format!(
            "a node that joins receives its tables from nodes of its own major release only, and no \
             node of Cassandra {own_major} is ready"
        );
        if near.iter().any(|peer| was_member(peer)) {
            return Err(Error::NotYet(format!("waits: {message}")));
        }
        // The controller gives another version at once to a node that cannot start.
        let mut ready = others.iter().filter(|peer| is_ready(peer));
        let version = ready.find_map(|peer| peer.status.version.as_ref());
        let version = version.map_or("theirs", String::as_str);
        return Err(Error::ConfigRejected(format!(
            "{message}; set spec.version of the cluster to {version} until this node has joined"
        )));
    }
    let near: BTreeSet<String> = near.into_iter().filter_map(transport_host).collect();
    let addresses = others.into_iter().filter_map(transport_host);
    Ok(addresses.filter(|address| !near.contains(address)).collect())
}

/// Does the peer run with logins: it has users, or runs with the configuration that asks for them?
fn requires_login(peer: &Pilot) -> bool {
    let Pilot { spec, status, .. } = peer;
    let is_requested = security::requires_passwords(spec.security.as_ref());
    let has_users = status.security.as_ref().is_some_and(|security| security.users.is_some());
    let is_running = spec.config_hash.is_some() && spec.config_hash == status.config_hash;
    is_requested && (has_users || is_running)
}

/// Returns the address of a missing member that this empty node replaces, in a ring that is older
/// than the cluster object. No Pilot records which member this node was, so an empty node of a rack
/// may replace any of the rack's missing members that no other volume stands for, as long as each
/// replaces another one.
fn former_self(node: &DatabaseNode, state: &NodeState) -> Result<Option<IpAddr>, Error> {
    let mut reported_peers = node
        .peers
        .iter()
        .filter(|peer| is_ready(peer))
        .filter_map(|peer| peer.status.part::<CassandraNode>()?.unreachable);
    let Some(first) = reported_peers.next() else {
        let text = "waits for a ready node to say which members it misses";
        return Err(Error::NotYet(text.to_owned()));
    };
    let intent = ResolvedSpec::from_node(node, state)?;
    let other_lists: Vec<Vec<CassandraPeer>> = reported_peers.collect();
    let stands_for = |id: &str| {
        let node_id_of = |pilot: &Pilot| pilot.status.identity.as_ref()?.node_id.clone();
        node.peers.iter().any(|peer| node_id_of(peer).as_deref() == Some(id))
    };
    let mut missed_addresses: Vec<IpAddr> = first
        .iter()
        .filter(|peer| {
            other_lists.iter().all(|list| list.iter().any(|other| other.address == peer.address))
        })
        .filter(|peer| peer.host_id.as_ref().is_some_and(|id| !stands_for(id)))
        .filter(|peer| peer.datacenter.as_ref() == Some(&intent.datacenter))
        .filter(|peer| peer.rack.as_ref() == Some(&intent.rack))
        .filter_map(|peer| peer.address.parse().ok())
        .collect();
    missed_addresses.sort();
    if missed_addresses.contains(&node.address) {
        return Ok(Some(node.address));
    }
    let own_name = node.pilot.metadata.name.as_deref().unwrap_or_default();
    let empty =
        node.peers.iter().filter(|peer| !is_member(peer) && peer_name(peer) < own_name).count();
    Ok(missed_addresses.get(empty).copied())
}

/// Returns the address under which this Pilot's node was a member before its volume was lost.
fn find_predecessor(node: &DatabaseNode, state: &NodeState, has_data: bool) -> Option<IpAddr> {
    if state.replacing.is_some() {
        return state.replacing;
    }
    if has_data || !is_successor(node) {
        return None;
    }
    let id = node.pilot.status.identity.as_ref()?.node_id.as_ref();
    let ready = || node.peers.iter().filter(|peer| is_ready(peer));
    let lists = ready().filter_map(|peer| peer.status.part::<CassandraNode>()?.unreachable);
    let missed_peers: Vec<CassandraPeer> = lists.flatten().collect();
    // The address may have changed since the last report of this node, so its id counts.
    if let Some(former_self) = missed_peers.iter().find(|peer| peer.host_id.as_ref() == id) {
        return former_self.address.parse().ok();
    }
    let old_address = transport_host(&node.pilot)?.parse().ok()?;
    let is_old = |host: &String| host.parse().ok() == Some(old_address);
    // The address belongs to another node now, which lives or is missed itself. The ring knows one
    // node by an address, and forgets the former one (`TokenMetadata.updateNormalTokens`). A Pilot
    // may have a former address: a node that is neither ready nor found at that does not count.
    let is_other = missed_peers.iter().any(|peer| peer.host_id.is_some() && is_old(&peer.address));
    let is_live = ready().filter_map(transport_host).any(|host| is_old(&host));
    let is_starting =
        node.peers.iter().any(|peer| node.addresses.hosts_of(peer).iter().any(is_old));
    (!is_other && !is_live && !is_starting).then_some(old_address)
}

/// Returns whether the Pilot's node was a member of this ring, and did not leave it: a node that joins
/// takes the place of a lost one.
pub(super) fn is_successor(node: &DatabaseNode) -> bool {
    was_member(&node.pilot) && !is_decommissioned(&node.pilot) && !was_elsewhere(node)
}

/// Does the Pilot's identity name a member of another ring, one that was lost as a whole?
fn was_elsewhere(node: &DatabaseNode) -> bool {
    let ring_id =
        node.pilot.status.identity.as_ref().and_then(|identity| identity.ring_id.as_ref());
    let ring = node.ring.as_ref().map(|ring| &ring.id);
    ring_id.is_some_and(|ring_id| ring.is_some_and(|ring| ring != ring_id))
}

fn transport_host(pilot: &Pilot) -> Option<String> {
    Some(peers::find_endpoint(pilot, TRANSPORT)?.host.clone())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;
    use crate::{
        databases::cassandra::pilot::tests::{node, peer},
        pilot::driver::{PeerAddresses, Ring},
    };

    const DATA: bool = true;
    const EMPTY: bool = false;

    fn joined() -> NodeState {
        NodeState { joined: true, ..NodeState::default() }
    }

    #[test]
    fn a_fresh_node_waits_until_there_is_somebody_to_ask() {
        let mut node = node();
        assert!(matches!(choose_seeds(&node, &NodeState::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", false)];
        assert!(matches!(choose_seeds(&node, &NodeState::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let way = choose_seeds(&node, &NodeState::default(), EMPTY).unwrap();
        assert_eq!(
            way,
            SeedPlan { seeds: vec!["10.0.0.2".to_owned()], founds: false, replaces: None }
        );
    }

    #[test]
    fn only_the_founder_of_an_unborn_ring_names_itself() {
        let mut node = node();
        node.may_found = true;
        let way = choose_seeds(&node, &NodeState::default(), EMPTY).unwrap();
        assert!(way.founds);
        assert_eq!(way.seeds, ["10.0.0.1"]);
        // A founder that lost its volume finds members: it must bootstrap from them, not begin a
        // ring again.
        node.peers = vec![peer("b", "10.0.0.2", false)];
        assert!(matches!(choose_seeds(&node, &NodeState::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", true)];
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().seeds, ["10.0.0.2"]);
    }

    #[test]
    fn a_founder_with_seeds_elsewhere_joins_them() {
        let mut node = node();
        node.may_found = true;
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            part.additional_seeds = vec!["seed.example.org".to_owned()];
        });
        let way = choose_seeds(&node, &NodeState::default(), EMPTY).unwrap();
        assert_eq!(
            (way.seeds.as_slice(), way.founds),
            (&["seed.example.org".to_owned()][..], false)
        );
    }

    #[test]
    fn the_first_node_of_a_cluster_brings_its_login_into_the_ring_that_it_joins() {
        let mut node = node();
        assert!(!comes_first(&node), "its ring is its own");
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            part.additional_seeds = vec!["seed.example.org".to_owned()];
        });
        assert!(comes_first(&node));
        node.peers = vec![peer("b", "10.0.0.2", true)];
        assert!(!comes_first(&node));
    }

    #[test]
    fn a_member_starts_alone_after_a_full_outage() {
        let mut node = node();
        node.peers = vec![peer("b", "10.0.0.2", false)];
        let way = choose_seeds(&node, &joined(), DATA).unwrap();
        assert_eq!(way.seeds, ["10.0.0.1", "10.0.0.2"]);
        assert!(!way.founds);
    }

    #[test]
    fn former_address_of_peer_is_no_seed() {
        // After a power cut each address may be that of another cluster's pod.
        let mut node = node();
        node.peers = vec![peer("b", "10.0.0.2", true), peer("c", "10.0.0.3", false)];
        let seeds = |current: &[(&str, &str)], node: &mut DatabaseNode, state, has_data| {
            let current =
                current.iter().map(|(peer, host)| ((*peer).to_owned(), vec![(*host).to_owned()]));
            node.addresses = PeerAddresses::Current(current.collect());
            choose_seeds(node, state, has_data).map(|way| way.seeds)
        };
        let moved = [("b", "10.0.0.8"), ("c", "10.0.0.9")];
        let member = joined();
        let chosen = seeds(&moved, &mut node, &member, DATA).unwrap();
        assert_eq!(chosen, ["10.0.0.1", "10.0.0.8", "10.0.0.9"]);
        assert_eq!(seeds(&[], &mut node, &member, DATA).unwrap(), ["10.0.0.1"], "DNS is away");
        let fresh = NodeState::default();
        assert_eq!(seeds(&moved, &mut node, &fresh, EMPTY).unwrap(), ["10.0.0.8"]);
        let Err(Error::NotYet(waits)) = seeds(&[], &mut node, &fresh, EMPTY) else {
            panic!("an empty node joins nowhere");
        };
        assert!(waits.contains("at which address b is now"), "{waits}");
        node.may_found = true;
        assert!(seeds(&[], &mut node, &fresh, EMPTY).is_err(), "the ring is there");
    }

    #[test]
    fn a_member_whose_data_are_gone_is_not_a_member() {
        let node = node();
        assert!(matches!(choose_seeds(&node, &joined(), EMPTY), Err(Error::NotYet(_))));
    }

    #[test]
    fn in_a_ring_that_was_there_before_an_empty_node_takes_the_place_of_one_that_nobody_is() {
        let gone = |last: u8, rack: &str| CassandraPeer {
            address: format!("10.0.0.{last}"),
            host_id: Some(format!("id-{last}")),
            datacenter: Some(crate::databases::cassandra::names::DEFAULT_DATACENTER.to_owned()),
            rack: Some(rack.to_owned()),
        };
        let says = |name: &str, missed: Vec<CassandraPeer>| {
            let mut peer = peer(name, "10.0.0.2", true);
            peer.status.change_part::<CassandraNode>(|part| part.unreachable = Some(missed));
            peer
        };
        let chosen = |node: &DatabaseNode| {
            choose_seeds(node, &NodeState::default(), EMPTY).unwrap().replaces
        };
        let mut node = node();
        let ring = |id: &str, remade| Some(Ring { id: id.to_owned(), remade });
        node.ring = ring("r", true);
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let waits = choose_seeds(&node, &NodeState::default(), EMPTY);
        assert!(matches!(waits, Err(Error::NotYet(_))), "nobody said whom it misses");
        let missed = vec![gone(7, "r1"), gone(8, "r1"), gone(9, "r2")];
        node.peers = vec![says("b", missed.clone())];
        assert_eq!(chosen(&node), Some([10, 0, 0, 7].into()));
        // One of the missing members still has its volume, and comes back at another address.
        let mut returns = peer("c", "10.0.0.3", false);
        returns.status.identity.as_mut().unwrap().node_id = Some("id-7".to_owned());
        node.peers.push(returns);
        assert_eq!(chosen(&node), Some([10, 0, 0, 8].into()));
        // A second ready node misses only a member of another rack.
        node.peers.push(says("d", vec![gone(9, "r2")]));
        assert_eq!(chosen(&node), None);
        // Two empty nodes replace different members; a node whose own old address is missed
        // replaces that one.
        node.peers = vec![says("b", missed.clone()), Pilot::default()];
        assert_eq!(chosen(&node), Some([10, 0, 0, 7].into()));
        node.pilot.metadata.name = Some("z".to_owned());
        node.peers[1].metadata.name = Some("y".to_owned());
        assert_eq!(chosen(&node), Some([10, 0, 0, 8].into()));
        node.address = [10, 0, 0, 7].into();
        assert_eq!(chosen(&node), Some([10, 0, 0, 7].into()));
        // In a ring that was founded under this cluster object every member has its Pilot.
        node.ring = ring("r", false);
        assert_eq!(chosen(&node), None);
    }

    #[test]
    fn an_empty_volume_of_a_known_member_takes_the_place_of_the_dead_one() {
        let mut node = node();
        node.pilot.status = peer("a", "10.0.0.9", false).status;
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let old: IpAddr = [10, 0, 0, 9].into();
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, Some(old));
        assert_eq!(choose_seeds(&node, &NodeState::default(), DATA).unwrap().replaces, None);
        // The replacement survives a restart in the middle, when the volume already holds data.
        let state = NodeState { replacing: Some(old), ..NodeState::default() };
        assert_eq!(choose_seeds(&node, &state, DATA).unwrap().replaces, Some(old));
        // The identity names another ring, which was lost as a whole.
        node.pilot.status.identity.as_mut().unwrap().ring_id = Some("lost".to_owned());
        node.ring = Some(Ring { id: "new".to_owned(), remade: false });
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, None);
        node.ring = Some(Ring { id: "lost".to_owned(), remade: false });
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, Some(old));
        // Another node has the address now.
        node.peers.push(peer("c", "10.0.0.9", true));
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, None);
        node.peers.pop();
        node.pilot.status.phase = Some(crate::api::v1beta1::PilotPhase::Decommissioned);
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, None);
        // The pilot of a node that left says another phase while it ends. Nobody knows its token.
        node.pilot.status.phase = Some(crate::api::v1beta1::PilotPhase::Stopping);
        node.pilot.status.conditions = vec![left()];
        assert_eq!(choose_seeds(&node, &NodeState::default(), EMPTY).unwrap().replaces, None);
    }

    #[test]
    fn former_self_is_found_by_its_id() {
        let old: IpAddr = [10, 0, 0, 9].into();
        let mut node = node();
        node.pilot.status = peer("a", "10.0.0.9", false).status;
        let misses = |missed: &[(&str, &str)]| {
            let mut ready = peer("b", "10.0.0.2", true);
            let missed = missed.iter().map(|(id, address)| CassandraPeer {
                address: (*address).to_owned(),
                host_id: Some((*id).to_owned()),
                ..CassandraPeer::default()
            });
            let missed = Some(missed.collect());
            ready.status.change_part::<CassandraNode>(|part| part.unreachable = missed);
            ready
        };
        let replaces = |node: &DatabaseNode| {
            choose_seeds(node, &NodeState::default(), EMPTY).unwrap().replaces
        };
        // The Pilot of another node that is lost still has the address, which it had earlier.
        let lost = peer("c", "10.0.0.9", false);
        node.peers = vec![misses(&[("id-c", "10.0.0.3"), ("id-a", "10.0.0.9")]), lost.clone()];
        assert_eq!(replaces(&node), Some(old));
        // The node moved after its last report.
        node.peers = vec![misses(&[("id-a", "10.0.0.7")])];
        assert_eq!(replaces(&node), Some([10, 0, 0, 7].into()));
        // All addresses were permuted: another node took this one's, and is lost with it.
        node.peers = vec![misses(&[("id-c", "10.0.0.9")])];
        assert_eq!(replaces(&node), None);
        // The ring does not miss it yet. By DNS, the other node is elsewhere now, or there.
        node.peers = vec![misses(&[]), lost];
        for (host, expected) in [("10.0.0.3", Some(old)), ("10.0.0.9", None)] {
            let hosts = [("b", "10.0.0.2"), ("c", host)];
            let hosts = hosts.map(|(peer, host)| (peer.to_owned(), vec![host.to_owned()]));
            node.addresses = PeerAddresses::Current(hosts.into());
            assert_eq!(replaces(&node), expected, "{host}");
        }
    }

    fn of_version(name: &str, host: &str, ready: bool, version: &str) -> Pilot {
        let mut peer = peer(name, host, ready);
        peer.status.version = Some(version.to_owned());
        peer
    }

    #[test]
    fn schema_is_not_awaited_from_other_majors() {
        let mut node = node();
        node.pilot.spec.version = Some("4.1.10".to_owned());
        let others = |node: &DatabaseNode| peers_of_other_majors(node).unwrap();
        node.peers = vec![of_version("b", "10.0.0.2", true, "4.1.10")];
        assert_eq!(others(&node), [""; 0], "all of one major");
        node.peers.push(of_version("c", "10.0.0.3", true, "4.0.19"));
        assert_eq!(others(&node), [""; 0], "4.0 gives its schema to 4.1");
        for (name, host, ready) in
            [("d", "10.0.0.4", true), ("e", "10.0.0.5", false), ("f", "10.0.0.6", true)]
        {
            node.peers.push(of_version(name, host, ready, "5.0.6"));
        }
        // One that is down is in gossip as well.
        assert_eq!(others(&node), ["10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        node.pilot.spec.version = Some("5.0.6".to_owned());
        assert_eq!(others(&node), ["10.0.0.2", "10.0.0.3"]);
        // A node that left is not in gossip, and another one may have its address.
        node.peers[0].status.conditions = vec![left()];
        assert_eq!(others(&node), ["10.0.0.3"]);
        node.peers.push(of_version("g", "10.0.0.3", true, "5.0.6"));
        assert_eq!(others(&node), [""; 0], "its address is that of a node of the own release");
        // A peer whose version is not known may have the schema.
        node.peers = vec![peer("b", "10.0.0.2", true), of_version("c", "10.0.0.3", true, "4.1.10")];
        assert_eq!(others(&node), ["10.0.0.3"]);
    }

    #[test]
    fn node_without_peer_of_its_major_does_not_join() {
        let mut node = node();
        // The lost node was the only one of the new release.
        node.peers = vec![
            of_version("b", "10.0.0.2", true, "4.1.10"),
            of_version("c", "10.0.0.3", true, "4.1.10"),
        ];
        let rejected = peers_of_other_majors(&node).unwrap_err();
        assert!(matches!(rejected, Error::ConfigRejected(_)), "{rejected}");
        assert!(rejected.to_string().contains("spec.version of the cluster to 4.1.10"));
        node.peers.push(of_version("d", "10.0.0.4", false, "5.0.6"));
        let waits = peers_of_other_majors(&node).unwrap_err();
        assert!(matches!(waits, Error::NotYet(_)), "d comes back: {waits}");
        node.peers[2] = of_version("d", "10.0.0.4", true, "5.0.6");
        assert_eq!(peers_of_other_majors(&node).unwrap(), ["10.0.0.2", "10.0.0.3"]);
        node.peers.truncate(2);
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            part.additional_seeds = vec!["seed.example.org".to_owned()];
        });
        assert_eq!(peers_of_other_majors(&node).unwrap().len(), 2, "nodes elsewhere may be of 5");
    }

    fn left() -> Condition {
        serde_json::from_value(serde_json::json!({
            "type": "Decommissioned", "status": "True", "reason": "NodeDecommissioned",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }
}
