//! Nodes that join only where their volumes have room.

use serde_json::json;

use super::*;
use crate::controller::desired_state::NodeLoad;

const GIB: i64 = 1 << 30;

/// Returns the plan for a pool `b` that gets its first node, of `rack`, beside nodes that have so many
/// GiB in other racks, or report nothing where that is 0. Its volumes have 1 GiB.
fn joined(
    racks: &[(&str, i64)],
    copies: Option<usize>,
    rack: &str,
    change: impl FnOnce(&mut DesiredCluster),
) -> Plan {
    let names: Vec<String> = (0..racks.len()).map(|at| format!("a{at}")).collect();
    let mut pools: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    pools.push(("b", 1));
    let mut running = pools.clone();
    running.last_mut().unwrap().1 = 0;
    planned(&pools, &running, |desired, observed| {
        let part = |rack: &str| json!({"datacenter": "eu", "rack": rack});
        for (pool, (rack, gib)) in racks.iter().enumerate() {
            let found = pilot(observed, pool, 0);
            found.spec.parts.insert("example", part(rack));
            found.load = (*gib > 0).then_some(NodeLoad { bytes: gib * GIB, copies });
        }
        let new = desired.pools.last_mut().unwrap();
        new.pilot.parts.insert("example", part(rack));
        change(desired);
    })
}

fn is_held(plan: &Plan) -> bool {
    let raise = plan.step == Some(PlannedStep::Raise { pool: "b".into(), to: 1 });
    let held = plan.blocked.iter().any(|block| block.predicate == "SpaceHere");
    assert!(raise != held, "{plan:?}");
    held
}

#[test]
fn first_node_of_a_rack_waits_for_room_for_a_copy_of_everything() {
    // Three nodes of one rack, with three copies of each row: 4 GiB in all.
    let full = [("r1", 4), ("r1", 4), ("r1", 4)];
    let half = [("r1", 1), ("r1", 1), ("r1", 1)];
    assert!(is_held(&joined(&full, Some(3), "r2", |_| ())));
    assert!(!is_held(&joined(&half, Some(3), "r2", |_| ())));
    // With one copy the load is shared.
    let small = [("r1", 2), ("r1", 1), ("r1", 0)];
    assert!(!is_held(&joined(&small, Some(1), "r2", |_| ())));
    assert!(is_held(&joined(&small, Some(2), "r2", |_| ())), "one of two copies of 1.5 GiB");
    assert!(!is_held(&joined(&small, None, "r2", |_| ())), "the factor is not known");
    assert!(!is_held(&joined(&[], Some(3), "r2", |_| ())), "the first node of all");
}

#[test]
fn node_of_a_rack_shares_what_the_rack_has() {
    let racks = [("r1", 1), ("r2", 3), ("r3", 3)];
    assert!(!is_held(&joined(&racks, Some(3), "r1", |_| ())));
    assert!(is_held(&joined(&racks, Some(3), "r2", |_| ())));
    assert!(is_held(&joined(&racks, Some(2), "r1", |_| ())), "a quarter of 7 GiB");
}

#[test]
fn silent_node_keeps_its_rack_from_being_new() {
    let racks = [("r1", 2), ("r2", 0), ("r3", 2)];
    // A copy of everything is 4/3 GiB, and the rack has a node: less than that is certain.
    assert!(!is_held(&joined(&racks, Some(3), "r2", |_| ())));
}

#[test]
fn people_and_larger_volumes_let_a_node_join() {
    let full = [("r1", 4), ("r1", 4), ("r1", 4)];
    let plan = joined(&full, Some(3), "r2", |_| ());
    let block = &plan.blocked[0];
    assert_eq!(block.remedy, Remedy::Skip("SpaceHere".into()));
    let least = format!("at least {} bytes as the first node of rack r2", 4 * GIB);
    assert!(block.message.contains(&least), "{}", block.message);
    let skipped =
        |d: &mut DesiredCluster| d.strategy.skip_predicates.extend(["SpaceHere".to_owned()]);
    assert!(!is_held(&joined(&full, Some(3), "r2", skipped)));
    let larger = |d: &mut DesiredCluster| {
        let volume = d.pools.last_mut().unwrap().persistence.as_mut().unwrap();
        volume.size = Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity("5Gi".into()));
    };
    assert!(!is_held(&joined(&full, Some(3), "r2", larger)));
}
