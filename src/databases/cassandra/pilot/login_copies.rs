//! How many copies the keyspace of logins is to have, so that a lost node locks nobody out. Pure.
//!
//! By itself Cassandra keeps one copy. Copies are raised one by one: then a quorum of any new count
//! holds one of the old copies, and each raise is followed by reads that mend all copies.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    cql::{Consistency, CqlRow, CqlRows, CqlStatement, quote_name, quote_text},
    node_view::{LiveNodes, TRANSPORT},
    resolved_spec::datacenter_of,
};
use crate::{
    api::v1beta1::{Pilot, PilotIntent},
    pilot::{
        driver::DatabaseNode,
        kube::peers::{self, is_decommissioned, is_member},
    },
};

pub(super) const KEYSPACE: &str = "system_auth";
/// Most copies in a datacenter.
const MOST: u32 = 3;

/// Copies in each datacenter.
pub(super) type Copies = BTreeMap<String, u32>;

/// Returns how many copies the datacenters of this cluster are to have: as many as they have nodes
/// that stay, up to three. Where nodes of another cluster are in the same datacenter, which `live` tells,
/// they count, too, and the copies that there are stay: nobody sees how many of those nodes are to go.
pub(super) fn desired_copies(node: &DatabaseNode, existing: &Copies, live: &LiveNodes) -> Copies {
    let mut copies = Copies::new();
    let pilots = || node.peers.iter().chain([&node.pilot]);
    for pilot in pilots() {
        if is_member(pilot) && !is_decommissioned(pilot) && !is_to_leave(pilot) {
            *copies.entry(datacenter_of(pilot)).or_default() += 1;
        }
    }
    let host = |pilot| peers::find_endpoint(pilot, TRANSPORT)?.host.parse().ok();
    let cluster_addresses: BTreeSet<IpAddr> =
        pilots().filter_map(host).chain([node.address]).collect();
    for (datacenter, count) in &mut copies {
        let addresses = live.get(datacenter).into_iter().flatten();
        let others =
            u32::try_from(addresses.filter(|address| !cluster_addresses.contains(address)).count());
        let others = others.unwrap_or(MOST);
        *count = (*count + others).min(MOST);
        if others > 0 {
            *count = (*count).max(existing.get(datacenter).copied().unwrap_or_default());
        }
    }
    copies
}

/// Returns how many copies a datacenter of so many nodes is to have.
pub(super) fn copies_for_nodes(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(MOST).min(MOST)
}

/// Is the node told to leave its ring?
pub(super) fn is_to_leave(pilot: &Pilot) -> bool {
    pilot.spec.phase == Some(PilotIntent::Decommissioned)
}

/// Asks for the copies there are.
pub(super) fn replication_statement() -> CqlStatement {
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    CqlStatement::new(text, Consistency::One).bind_text(KEYSPACE)
}

/// Reads an answer to [`replication_statement`]; `None` for a keyspace whose copies are counted otherwise.
pub(super) fn parse_replication(row: &CqlRow<'_>) -> Option<Copies> {
    let entries = row.text_map("replication");
    let class = entries.iter().find(|(key, _)| *key == "class")?.1;
    if !class.ends_with("NetworkTopologyStrategy") {
        return None;
    }
    let counts = entries.into_iter().filter(|(key, _)| *key != "class");
    Some(counts.filter_map(|(dc, count)| Some((dc.to_owned(), count.parse().ok()?))).collect())
}

/// Returns the datacenters that are to have copies and of which the ring has no node any more.
/// `others` are the datacenters of the other nodes, also of those that are down.
///
/// Cassandra cannot write to them: it refuses to change roles, and to change the keyspace while its
/// replication names such a datacenter.
pub(super) fn without_nodes(
    existing: &Copies,
    own_datacenter: &str,
    other_datacenters: &[String],
) -> BTreeSet<String> {
    let has_node = |name: &String| name == own_datacenter || other_datacenters.contains(name);
    existing.keys().filter(|name| !has_node(name)).cloned().collect()
}

/// Returns the copies to have next on the way to `wanted`; `None` where nothing is to be done.
/// Datacenters that `wanted` does not name stay as they are, but for those without nodes.
pub(super) fn next_copies(
    existing: &Copies,
    desired: &Copies,
    without_nodes: &BTreeSet<String>,
) -> Option<Copies> {
    let mut next = existing.clone();
    next.retain(|datacenter, _| !without_nodes.contains(datacenter));
    for (datacenter, count) in desired {
        let current = existing.get(datacenter).copied().unwrap_or_default();
        next.insert(datacenter.clone(), (*count).min(current + 1));
    }
    (next != *existing).then_some(next)
}

/// Reads the datacenters in an answer to [`peers_statement`].
pub(super) fn parse_datacenters(rows: &CqlRows) -> Vec<String> {
    let name = |row: CqlRow<'_>| row.text("data_center").unwrap_or_default().to_owned();
    rows.iter().map(name).collect()
}

/// Returns the copies by which each node has one: this one and `others`, by their datacenters. Where
/// copies were not counted by datacenter, any node may have the only one, so all have to live.
pub(super) fn copies_on_all_nodes(
    own_datacenter: &str,
    other_datacenters: &[String],
    live: &LiveNodes,
) -> Result<Copies, String> {
    let mut copies = Copies::new();
    for datacenter in other_datacenters.iter().map(String::as_str).chain([own_datacenter]) {
        *copies.entry(datacenter.to_owned()).or_default() += 1;
    }
    let (node_count, live_count) =
        (other_datacenters.len() + 1, live.values().map(BTreeSet::len).sum::<usize>());
    if node_count > 1 && live_count != node_count {
        return Err(format!(
            "to have the ring's logins kept in each datacenter, all nodes that it knows have to be up once: \
             {node_count}, of which {live_count} are; or raise them yourself: ALTER KEYSPACE {KEYSPACE} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', DATACENTER: COPIES}}, then repair it"
        ));
    }
    Ok(copies)
}

/// Asks for the datacenters and releases of the other nodes.
pub(super) fn peers_statement() -> CqlStatement {
    CqlStatement::new("SELECT data_center, release_version FROM system.peers", Consistency::One)
}

/// Asks for the release of this node.
pub(super) fn local_statement() -> CqlStatement {
    CqlStatement::new("SELECT release_version FROM system.local", Consistency::One)
}

/// The statement that sets copies.
pub(super) fn alter_statement(copies: &Copies) -> CqlStatement {
    CqlStatement::new(change_text(copies), Consistency::One)
}

fn change_text(copies: &Copies) -> String {
    let class = [(quote_text("class"), quote_text("NetworkTopologyStrategy"))];
    let counts = copies.iter().map(|(name, count)| (quote_text(name), count.to_string()));
    let entries: Vec<_> =
        class.into_iter().chain(counts).map(|(key, value)| format!("{key}: {value}")).collect();
    format!("ALTER KEYSPACE {KEYSPACE} WITH replication = {{{}}}", entries.join(", "))
}

/// Asks for the tables of the keyspace.
pub(super) fn tables_statement() -> CqlStatement {
    let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    CqlStatement::new(text, Consistency::One).bind_text(KEYSPACE)
}

/// Reads a table from all its copies. A copy that lacks a row is given it before the answer: this is
/// the repair of a table of a few rows.
pub(super) fn read_all(table: &str) -> CqlStatement {
    CqlStatement::new(format!("SELECT * FROM {KEYSPACE}.{}", quote_name(table)), Consistency::All)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::tests::{node, peer};

    fn copies(counts: &[(&str, u32)]) -> Copies {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn copies_rise_one_by_one_and_fall_at_once() {
        let none = BTreeSet::new();
        let way = |from: u32, to: u32| {
            next_copies(&copies(&[("eu", from)]), &copies(&[("eu", to)]), &none)
        };
        assert_eq!(way(1, 3), Some(copies(&[("eu", 2)])));
        assert_eq!(way(2, 3), Some(copies(&[("eu", 3)])));
        assert_eq!(way(3, 3), None);
        assert_eq!(way(3, 1), Some(copies(&[("eu", 1)])));
        // Another cluster's datacenter is its own business; a new one begins with one copy.
        let has = copies(&[("eu", 3), ("us", 2)]);
        assert_eq!(next_copies(&has, &copies(&[("eu", 3)]), &none), None);
        let grown = next_copies(&copies(&[("eu", 3)]), &copies(&[("eu", 3), ("us", 3)]), &none);
        assert_eq!(grown, Some(copies(&[("eu", 3), ("us", 1)])));
    }

    #[test]
    fn a_datacenter_that_left_the_ring_keeps_no_copies() {
        let has = copies(&[("ap", 1), ("eu", 2), ("us", 2)]);
        let others = ["eu", "us"].map(str::to_owned);
        let gone = without_nodes(&has, "eu", &others);
        assert_eq!(gone, BTreeSet::from(["ap".to_owned()]));
        let left = next_copies(&has, &copies(&[("eu", 3)]), &gone);
        assert_eq!(left, Some(copies(&[("eu", 3), ("us", 2)])));
        assert_eq!(without_nodes(&has, "ap", &others), BTreeSet::new(), "its own");
    }

    #[test]
    fn nodes_that_stay_are_counted() {
        let mut node = node();
        let has = Copies::new();
        let wanted = |node: &DatabaseNode| {
            let wanted = super::desired_copies(node, &has, &LiveNodes::new());
            wanted.into_values().collect::<Vec<_>>()
        };
        assert_eq!(wanted(&node), [0; 0], "nobody is a member yet");
        node.pilot.status = peer("a", "10.0.0.1", true).status;
        assert_eq!(wanted(&node), [1]);
        node.peers = ["b", "c", "d"].map(|name| peer(name, "10.0.0.2", true)).into();
        assert_eq!(wanted(&node), [3]);
        node.peers.truncate(2);
        node.peers[0].spec.phase = Some(PilotIntent::Decommissioned);
        assert_eq!(wanted(&node), [2], "before it has left");
    }

    #[test]
    fn nodes_of_another_cluster_in_the_same_datacenter_count_and_keep_their_copies() {
        let mut node = node();
        node.pilot.status = peer("a", "10.0.0.1", true).status;
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let datacenter = datacenter_of(&node.pilot);
        let wanted = |has: u32, live: &[u8]| {
            let live = live.iter().map(|last| IpAddr::from([10, 0, 0, *last])).collect();
            let live = LiveNodes::from([(datacenter.clone(), live)]);
            super::desired_copies(&node, &copies(&[(&datacenter, has)]), &live)[&datacenter]
        };
        assert_eq!(wanted(3, &[1, 2]), 2, "alone");
        assert_eq!(wanted(1, &[1, 2, 9]), 3);
        assert_eq!(wanted(1, &[1, 2, 8, 9]), 3);
        assert_eq!(wanted(5, &[1, 2, 9]), 5, "as the other cluster's people have it");
    }

    #[test]
    fn copies_that_were_counted_in_another_way_are_on_each_node_first_and_each_has_to_live() {
        let live = |nodes: &[(&str, u8)]| {
            let mut live = LiveNodes::new();
            for (datacenter, last) in nodes {
                let nodes = live.entry((*datacenter).to_owned()).or_default();
                nodes.insert(IpAddr::from([10, 0, 0, *last]));
            }
            live
        };
        let others = ["eu", "us"].map(str::to_owned);
        let all = live(&[("eu", 1), ("eu", 2), ("us", 3)]);
        assert_eq!(copies_on_all_nodes("eu", &others, &all), Ok(copies(&[("eu", 2), ("us", 1)])));
        let why = copies_on_all_nodes("eu", &others, &live(&[("eu", 1), ("us", 3)])).unwrap_err();
        assert!(why.contains("up once: 3, of which 2 are; or raise them yourself"), "{why}");
        assert_eq!(
            copies_on_all_nodes("eu", &[], &live(&[])),
            Ok(copies(&[("eu", 1)])),
            "a ring begins"
        );
    }

    #[test]
    fn names_of_datacenters_are_quoted() {
        let text = change_text(&copies(&[("e'u", 2)]));
        assert!(text.contains("'class': 'NetworkTopologyStrategy', 'e''u': 2}"), "{text}");
    }
}
