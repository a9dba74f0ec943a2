//! Whom a node asks for the ring, and whether it takes a dead node's place.
//!
//! The rule that everything hangs on: a node that names itself as a seed does not bootstrap.
//! So a node without data of its own names itself only when it is the recorded founder and
//! nobody else was ever a member; otherwise it waits for somebody to ask.

use std::net::IpAddr;

use super::memory::Memory;
use crate::{
    api::v1beta1::{Pilot, PilotPhase},
    pilot::database::{Error, Node},
};

/// Seeds beyond a few add gossip and nothing else.
const ENOUGH: usize = 3;

/// Name of the endpoint that other nodes of the ring connect to.
pub(super) const TRANSPORT: &str = "transport";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) seeds: Vec<String>,
    /// The node begins a ring.
    pub(super) founds: bool,
    /// Address of the dead node whose tokens and data this one takes.
    pub(super) replaces: Option<IpAddr>,
}

/// Decides how a node finds its ring. `has_data`: system tables lie on its volume.
pub(super) fn choose(node: &Node, memory: &Memory, has_data: bool) -> Result<Way, Error> {
    let spec = node.pilot.spec.cassandra.clone().unwrap_or_default();
    let mut others = Vec::new();
    let mut silent = Vec::new();
    for peer in &node.peers {
        let Some(host) = transport(peer) else { continue };
        let known = if is_ready(peer) { &mut others } else { &mut silent };
        known.push(host);
    }
    others.sort();
    others.truncate(ENOUGH);
    others.extend(spec.additional_seeds.iter().cloned());

    if memory.joined && has_data {
        // A member may start as its own seed: it streams nothing any more, and after a full
        // outage somebody has to answer first. Addresses of silent peers may still be right.
        let mut seeds = vec![node.address.to_string()];
        silent.sort();
        seeds.extend(others);
        seeds.extend(silent.into_iter().take(ENOUGH));
        return Ok(Way { seeds, founds: false, replaces: None });
    }
    if others.is_empty() {
        let members: Vec<&str> =
            node.peers.iter().filter(|peer| is_member(peer)).map(name).collect();
        if !node.may_found {
            return Err(Error::NotYet("waits for a node of the cluster to be ready".to_owned()));
        }
        if !members.is_empty() {
            return Err(Error::NotYet(format!(
                "waits for {} to be ready: the ring exists, so this node may not found another",
                members.join(", ")
            )));
        }
        return Ok(Way { seeds: vec![node.address.to_string()], founds: true, replaces: None });
    }
    Ok(Way { seeds: others, founds: false, replaces: predecessor(node, memory, has_data) })
}

/// The address under which this very Pilot was a member before its volume was lost.
fn predecessor(node: &Node, memory: &Memory, has_data: bool) -> Option<IpAddr> {
    if memory.replacing.is_some() {
        return memory.replacing;
    }
    let status = &node.pilot.status;
    let left = matches!(status.phase, Some(PilotPhase::Decommissioned));
    if has_data || left || !is_member(&node.pilot) {
        return None;
    }
    let old = transport(&node.pilot)?.parse().ok()?;
    // Somebody alive has the address now: Cassandra would refuse to replace it.
    let taken = node
        .peers
        .iter()
        .any(|peer| transport(peer).and_then(|host| host.parse().ok()) == Some(old));
    (!taken).then_some(old)
}

fn is_member(pilot: &Pilot) -> bool {
    pilot.status.identity.as_ref().is_some_and(|identity| identity.node_id.is_some())
}

fn is_ready(pilot: &Pilot) -> bool {
    pilot.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn transport(pilot: &Pilot) -> Option<String> {
    let endpoint = pilot.status.endpoints.iter().find(|endpoint| endpoint.name == TRANSPORT)?;
    Some(endpoint.host.clone()).filter(|host| !host.is_empty())
}

fn name(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or("a peer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pilot::cassandra::tests::{node, peer};

    const DATA: bool = true;
    const EMPTY: bool = false;

    fn joined() -> Memory {
        Memory { joined: true, ..Memory::default() }
    }

    #[test]
    fn a_fresh_node_waits_until_there_is_somebody_to_ask() {
        let mut node = node();
        assert!(matches!(choose(&node, &Memory::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", false)];
        assert!(matches!(choose(&node, &Memory::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let way = choose(&node, &Memory::default(), EMPTY).unwrap();
        assert_eq!(way, Way { seeds: vec!["10.0.0.2".to_owned()], founds: false, replaces: None });
    }

    #[test]
    fn only_the_founder_of_an_unborn_ring_names_itself() {
        let mut node = node();
        node.may_found = true;
        let way = choose(&node, &Memory::default(), EMPTY).unwrap();
        assert!(way.founds);
        assert_eq!(way.seeds, ["10.0.0.1"]);
        // A founder that lost its volume finds members: it must stream, not found again.
        node.peers = vec![peer("b", "10.0.0.2", false)];
        assert!(matches!(choose(&node, &Memory::default(), EMPTY), Err(Error::NotYet(_))));
        node.peers = vec![peer("b", "10.0.0.2", true)];
        assert_eq!(choose(&node, &Memory::default(), EMPTY).unwrap().seeds, ["10.0.0.2"]);
    }

    #[test]
    fn a_founder_with_seeds_elsewhere_joins_them() {
        let mut node = node();
        node.may_found = true;
        node.pilot.spec.cassandra = Some(crate::api::v1beta1::PilotCassandraSpec {
            additional_seeds: vec!["seed.example.org".to_owned()],
            ..Default::default()
        });
        let way = choose(&node, &Memory::default(), EMPTY).unwrap();
        assert_eq!(
            (way.seeds.as_slice(), way.founds),
            (&["seed.example.org".to_owned()][..], false)
        );
    }

    #[test]
    fn a_member_starts_alone_after_a_full_outage() {
        let mut node = node();
        node.peers = vec![peer("b", "10.0.0.2", false)];
        let way = choose(&node, &joined(), DATA).unwrap();
        assert_eq!(way.seeds, ["10.0.0.1", "10.0.0.2"]);
        assert!(!way.founds);
    }

    #[test]
    fn a_member_whose_data_are_gone_is_not_a_member() {
        let node = node();
        assert!(matches!(choose(&node, &joined(), EMPTY), Err(Error::NotYet(_))));
    }

    #[test]
    fn an_empty_volume_of_a_known_member_takes_the_place_of_the_dead_one() {
        let mut node = node();
        node.pilot.status = peer("a", "10.0.0.9", false).status;
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let old: IpAddr = [10, 0, 0, 9].into();
        assert_eq!(choose(&node, &Memory::default(), EMPTY).unwrap().replaces, Some(old));
        assert_eq!(choose(&node, &Memory::default(), DATA).unwrap().replaces, None);
        // Remembered over a restart in the middle, when data lie there already.
        let memory = Memory { replacing: Some(old), ..Memory::default() };
        assert_eq!(choose(&node, &memory, DATA).unwrap().replaces, Some(old));
        // The address went to somebody else meanwhile.
        node.peers.push(peer("c", "10.0.0.9", true));
        assert_eq!(choose(&node, &Memory::default(), EMPTY).unwrap().replaces, None);
        node.peers.pop();
        node.pilot.status.phase = Some(PilotPhase::Decommissioned);
        assert_eq!(choose(&node, &Memory::default(), EMPTY).unwrap().replaces, None);
    }
}
