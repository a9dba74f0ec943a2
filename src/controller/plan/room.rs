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
    fn min_share(&self) -> i64 {
        let even_share = self.bytes / (self.nodes + 1);
        let Some(copies) = self.copies else { return even_share };
        let is_new = self.rack_nodes == 0;
        if self.racks.len() + usize::from(is_new) > copies {
            return even_share;
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
pub(super) fn missing_space(world: World<'_>, pool: &str) -> Option<String> {
    let desired_pool = world.desired.pool(pool)?;
    let size = desired_pool.volume_size()?;
    let place_of = world.desired.database.place;
    let NodePlace { datacenter, rack } = place_of(&desired_pool.pilot)?;
    let observed_pool = world.observed.pools.iter().find(|other| other.name == pool)?;
    // On a volume that is there a node comes back, and joins no more.
    let next_member = observed_pool.members.get(&observed_pool.replicas());
    if next_member.is_some_and(|member| member.claim.is_some()) {
        return None;
    }
    let members = world.running_nodes().filter_map(|(_, _, member)| member);
    let pilots = members
        .filter(|member| !member.is_decommissioned())
        .filter_map(|member| member.pilot.as_ref());
    // A node that reports no load still has its place in its rack.
    let places: Vec<(NodePlace, NodeLoad)> = pilots
        .filter_map(|pilot| Some((place_of(&pilot.spec)?, pilot.load.unwrap_or_default())))
        .filter(|(place, _)| place.datacenter == datacenter)
        .collect();
    let mut datacenter_load = DatacenterLoad::default();
    for (place, load) in &places {
        datacenter_load.bytes += load.bytes;
        datacenter_load.nodes += 1;
        datacenter_load.racks.extend(place.rack.as_deref());
        datacenter_load.copies = datacenter_load.copies.max(load.copies);
        if place.rack == rack {
            datacenter_load.rack_bytes += load.bytes;
            datacenter_load.rack_nodes += 1;
        }
    }
    let share = datacenter_load.min_share();
    (i128::from(share) > quantity::parse_units(size)?).then(|| {
        let rack_note = match &rack {
            Some(rack) if datacenter_load.rack_nodes == 0 && datacenter_load.nodes > 0 => {
                format!("as the first node of rack {rack} ")
            }
            _ => String::new(),
        };
        format!(
            "the next node of pool {pool} would get at least {share} bytes {rack_note}and its volume \
             has {size}: give the pool larger volumes, or the rack of a pool that has nodes"
        )
    })
}
