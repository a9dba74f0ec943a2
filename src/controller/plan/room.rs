//! Has the volume of a node that joins room for the data that it would get?
//!
//! Most of all the first node of a new rack may lack it: where there are no more racks than copies,
//! each rack gets a copy of everything (`NetworkTopologyStrategy.DatacenterEndpoints`).

use std::collections::BTreeSet;

use super::World;
use crate::{
    controller::desired_state::{NodeLoad, NodePlace},
    machinery::quantity,
};

/// Predicate: no node joins that would get more data than its volume holds.
pub(super) const SPACE_HERE: &str = "SpaceHere";

/// The data of one datacenter, as far as pilots report them.
#[derive(Debug, Default)]
struct DatacenterLoad<'a> {
    bytes: i64,
    nodes: i64,
    racks: BTreeSet<&'a str>,
    /// The same of the rack of the node that joins.
    rack_bytes: i64,
    rack_nodes: i64,
    copies: Option<usize>,
}

impl DatacenterLoad<'_> {
    /// Returns how many bytes a further node gets at least.
    fn share(&self) -> i64 {
        let even = self.bytes / (self.nodes + 1);
        let Some(copies) = self.copies else { return even };
        let is_new = self.rack_nodes == 0;
        if self.racks.len() + usize::from(is_new) > copies {
            return even;
        }
        // Each rack has at least one copy of each row.
        match i64::try_from(copies) {
            Ok(copies) if is_new => self.bytes / copies,
            _ => self.rack_bytes / (self.rack_nodes + 1),
        }
    }
}

/// Returns why the next node of the pool has too little room; `None` where it has enough, and where
/// that is not known. What silent nodes hold does not count.
pub(super) fn lack(world: World<'_>, pool: &str) -> Option<String> {
    let wanted = world.desired.pool(pool)?;
    let size = wanted.volume_size()?;
    let place_of = world.desired.database.place;
    let NodePlace { datacenter, rack } = place_of(&wanted.pilot)?;
    let observed = world.observed.pools.iter().find(|found| found.name == pool)?;
    // On a volume that is there a node comes back, and joins no more.
    let next = observed.members.get(&observed.replicas());
    if next.is_some_and(|member| member.claim.is_some()) {
        return None;
    }
    let members = world.running().filter_map(|(_, _, member)| member);
    let pilots = members
        .filter(|member| !member.decommissioned())
        .filter_map(|member| member.pilot.as_ref());
    // A node that reports no load still has its place in its rack.
    let places: Vec<(NodePlace, NodeLoad)> = pilots
        .filter_map(|pilot| Some((place_of(&pilot.spec)?, pilot.load.unwrap_or_default())))
        .filter(|(place, _)| place.datacenter == datacenter)
        .collect();
    let mut near = DatacenterLoad::default();
    for (place, load) in &places {
        near.bytes += load.bytes;
        near.nodes += 1;
        near.racks.extend(place.rack.as_deref());
        near.copies = near.copies.max(load.copies);
        if place.rack == rack {
            near.rack_bytes += load.bytes;
            near.rack_nodes += 1;
        }
    }
    let share = near.share();
    (i128::from(share) > quantity::units(size)?).then(|| {
        let first = match &rack {
            Some(rack) if near.rack_nodes == 0 && near.nodes > 0 => {
                format!("as the first node of rack {rack} ")
            }
            _ => String::new(),
        };
        format!(
            "the next node of pool {pool} would get at least {share} bytes {first}and its volume \
             has {size}: give the pool larger volumes, or the rack of a pool that has nodes"
        )
    })
}
