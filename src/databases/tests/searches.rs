//! The searches of `controller::plan::model`, for clusters of both databases. Each varies a few things
//! and must have met what belongs to them, so that none shrinks without notice.

use super::{cassandra, elasticsearch};
use crate::{
    controller::model::{
        BAD, BOTH, DEAF, EditKind, FaultKind, HOLDER, MASTER, ModelRules, ModelState, NEW,
        NodeRoles, OLD, SearchCoverage, TUNED, search_states,
    },
    testing::search_size,
};

/// Three racks or one, in which everything is varied that every cluster has.
const RING: ModelRules = ModelRules {
    database: &cassandra::controller::DATABASE,
    versions: ["4.1.10", "5.0.6"],
    ring: true,
    votes: false,
    copies: 1,
    datacenters: false,
    shared: [(0, 1), (1, 0)],
    expands: true,
    in_place: true,
    in_pods: false,
    late: false,
    slow: true,
    in_turn: false,
    patient: false,
    edits: &[
        EditKind::Sizes,
        EditKind::Revisions,
        EditKind::Stop,
        EditKind::Canary,
        EditKind::Volumes,
        EditKind::Phases,
        EditKind::Drain,
    ],
    revisions: &[OLD, NEW, BAD, TUNED],
    skips: &[],
    faults: &[FaultKind::Quota, FaultKind::Eviction, FaultKind::Machine, FaultKind::Crash],
};

const SHARDS: ModelRules = ModelRules {
    database: &elasticsearch::controller::DATABASE,
    versions: ["7.17.29", "8.19.4"],
    ring: false,
    copies: 2,
    expands: false,
    in_place: false,
    ..RING
};

const VOTERS: ModelRules = ModelRules { votes: true, ..SHARDS };

/// States of each broad search in CI.
const STATES: usize = 4_000;
/// States of each search of one thing in CI. Most of these searches have no more.
const FEW: usize = 5_000;

/// What a search must have met at least.
struct Least<'a> {
    /// States, where there are not as many as are searched.
    states: usize,
    /// Events from the start to the farthest states.
    depth: usize,
    /// Rests that are not as wanted.
    rests: usize,
    /// Kinds of steps and of remedies, and how often each is met.
    times: usize,
    steps: &'a [&'a str],
    remedies: &'a [&'a str],
}

/// Searches for traps, from a cluster that serves, with three edits and so many faults.
fn no_traps(
    rules: &ModelRules,
    (sizes, roles): ([u8; 2], [NodeRoles; 2]),
    faults: u8,
    most: usize,
    least: &Least<'_>,
) {
    let begun = std::time::Instant::now();
    let start = ModelState::build_healthy(rules, sizes, roles);
    let coverage = search_states(start, rules, 3, faults, most);
    println!("{:?}: {coverage:#?}", begun.elapsed());
    let SearchCoverage { states, depth, rests, steps, remedies } = &coverage;
    assert!(*states >= least.states.min(most), "the search ended after {states} states");
    assert!(*depth >= least.depth, "only {depth} events deep");
    assert!(*rests >= least.rests, "only {rests} rests that are not as wanted");
    for (kinds, met) in [(least.steps, steps), (least.remedies, remedies)] {
        for kind in kinds {
            let times = met.get(*kind).copied().unwrap_or_default();
            assert!(times >= least.times, "{kind} only {times} times: {met:?}");
        }
    }
}

/// What every broad search meets.
const STEPS: &[&str] = &[
    "Decommission",
    "DeletePilot",
    "Keep",
    "Raise",
    "Remove",
    "Replace",
    "Restart",
    "Start",
    "Stop",
    "Vacate",
];
const REMEDIES: &[&str] =
    &["EndPod", "GiveUp", "RaiseQuota", "ReleasePhase", "RenewByPhase", "Wait", "WantNode"];
const BROAD: Least<'_> =
    Least { states: usize::MAX, depth: 3, rests: 500, times: 1, steps: STEPS, remedies: REMEDIES };

#[test]
fn no_ring_of_racks_is_trapped() {
    no_traps(&RING, ([2, 1], [BOTH; 2]), 2, search_size(STATES), &BROAD);
}

#[test]
fn no_ring_of_one_rack_is_trapped() {
    no_traps(&RING, ([3, 0], [BOTH; 2]), 2, search_size(STATES), &BROAD);
}

#[test]
fn no_cluster_with_shards_in_two_pools_is_trapped() {
    no_traps(&SHARDS, ([2, 1], [BOTH; 2]), 2, search_size(STATES), &BROAD);
}

#[test]
fn no_cluster_with_shards_in_one_pool_is_trapped() {
    no_traps(&SHARDS, ([3, 0], [BOTH; 2]), 2, search_size(STATES), &BROAD);
}

#[test]
fn no_cluster_that_needs_a_leader_is_trapped() {
    no_traps(&VOTERS, ([3, 0], [BOTH; 2]), 2, search_size(STATES), &BROAD);
}

/// One thing at a time, so that a search of one thing goes far.
const IN_TURN: ModelRules =
    ModelRules { slow: false, in_turn: true, patient: true, faults: &[], ..RING };

/// A pool that is taken away, another one that is to grow and a new version, at once: three edits of one
/// apply once waited for each other (docs/decisions/0016-candidates-and-gates.md).
#[test]
fn no_edits_of_one_apply_wait_for_each_other() {
    let rules = ModelRules { edits: &[EditKind::Sizes, EditKind::Revisions], ..IN_TURN };
    let rules = rules.varied_of(&SHARDS);
    let steps = &["Decommission", "Raise", "Remove", "Replace", "Restart"];
    let remedies = &["WantNode", "Correct", "AllowMoreDown"];
    let least = Least { states: 2_000, depth: 30, rests: 50, times: 10, steps, remedies };
    no_traps(&rules, ([2, 1], [BOTH; 2]), 0, search_size(FEW), &least);
}

/// A setting with which no database serves, and databases that close their ports.
#[test]
fn no_node_that_runs_and_does_not_serve_waits_for_its_deadline() {
    let rules = ModelRules {
        edits: &[EditKind::Revisions],
        revisions: &[NEW, TUNED, DEAF],
        faults: &[FaultKind::Ports, FaultKind::Machine],
        ..IN_TURN
    };
    let steps = &["Configure", "RestartInPlace", "Restart"];
    let remedies = &["Correct", "GiveUp"];
    let least = Least { states: 1_000, depth: 10, rests: 10, times: 1, steps, remedies };
    no_traps(&rules, ([2, 1], [BOTH; 2]), 1, search_size(FEW), &least);
    let edits = &[EditKind::Revisions, EditKind::Sizes];
    let rules = ModelRules { edits, faults: &[], ..rules };
    let steps = &["Restart", "Decommission"];
    let least = Least { states: 500, steps, remedies: &["Correct"], ..least };
    no_traps(&rules.varied_of(&VOTERS), ([2, 1], [BOTH; 2]), 0, search_size(FEW), &least);
}

/// Pilots speak of a former state, while machines are drained and several nodes may be down.
#[test]
fn no_second_node_stops_by_a_report_of_before() {
    let rules = ModelRules {
        late: true,
        slow: false,
        patient: true,
        copies: 3,
        edits: &[EditKind::Revisions, EditKind::Drain, EditKind::MoreDown],
        revisions: &[NEW],
        faults: &[FaultKind::Eviction],
        ..RING
    };
    let steps = &["Restart", "Vacate"];
    let remedies = &["Uncordon", "Skip"];
    let least = Least { states: 4_000, depth: 30, rests: 15, times: 10, steps, remedies };
    no_traps(&rules, ([2, 1], [BOTH; 2]), 1, search_size(FEW), &least);
    let voters = ModelRules { shared: [(0, 1), (0, 2)], ..rules.varied_of(&VOTERS) };
    let least = Least { states: 2_000, depth: 15, rests: 5, ..least };
    no_traps(&voters, ([3, 0], [BOTH; 2]), 1, search_size(FEW), &least);
}

/// Two datacenters of three nodes, each with a quorum of its own; two nodes of one share a machine.
#[test]
fn no_datacenter_loses_its_quorum() {
    let rules = ModelRules {
        late: true,
        slow: false,
        patient: true,
        copies: 3,
        datacenters: true,
        shared: [(1, 1), (1, 2)],
        edits: &[EditKind::Revisions, EditKind::Drain, EditKind::MoreDown, EditKind::Skips],
        revisions: &[TUNED],
        skips: &["PeersUp"],
        faults: &[],
        ..RING
    };
    let steps = &["Restart", "Vacate"];
    let remedies = &["Uncordon", "Skip"];
    let least = Least { states: 8_000, depth: 20, rests: 5, times: 10, steps, remedies };
    no_traps(&rules, ([3, 3], [BOTH; 2]), 0, search_size(FEW), &least);
}

/// Roles are taken from pools and given to others, with pools that come and go.
#[test]
fn no_vote_and_no_shard_is_lost_with_a_role() {
    let rules = ModelRules { edits: &[EditKind::Roles, EditKind::Sizes], ..IN_TURN };
    let rules = ModelRules { copies: 1, ..rules.varied_of(&VOTERS) };
    let steps = &["Configure", "Decommission", "Raise", "Remove", "Restart"];
    let remedies = &["RevertSpec"];
    let least = Least { states: 2_500, depth: 40, rests: 0, times: 10, steps, remedies };
    no_traps(&rules, ([3, 0], [BOTH, MASTER]), 0, search_size(FEW), &least);
    // Two pools that may change their roles with each other in one edit.
    let least = Least { states: 500, depth: 10, times: 1, steps: &["Configure"], ..least };
    no_traps(&rules, ([2, 1], [HOLDER, MASTER]), 0, search_size(FEW), &least);
}

/// The nodes of one pool keep their data in their pods; people skip what speaks for these data.
#[test]
fn no_last_copy_goes_with_its_pod() {
    let rules = ModelRules {
        edits: &[EditKind::Revisions, EditKind::Sizes, EditKind::Skips, EditKind::Stop],
        revisions: &[NEW],
        skips: &["DataOutlivesPod"],
        ..IN_TURN
    };
    let rules = ModelRules { in_pods: true, ..rules.varied_of(&SHARDS) };
    let steps = &["Restart", "Stop", "Empty", "Decommission"];
    let least =
        Least { states: 1_900, depth: 30, rests: 5, times: 10, steps, remedies: &["WantNode"] };
    no_traps(&rules, ([2, 1], [BOTH; 2]), 0, search_size(FEW), &least);
}

/// Encryption between nodes and logins are turned on and off while pools come and go, and a person lets
/// all nodes stop for it.
#[test]
fn no_switch_of_security_stops_a_cluster_for_good() {
    let rules = ModelRules {
        edits: &[EditKind::Security, EditKind::Sizes, EditKind::Skips],
        skips: &["KeepsServing"],
        ..IN_TURN
    };
    let rules = rules.varied_of(&SHARDS);
    let steps = &["Stop", "Start", "Empty", "Return", "Decommission"];
    let remedies = &["Confirm", "WantNode"];
    let least = Least { states: 1_000, depth: 40, rests: 15, times: 10, steps, remedies };
    no_traps(&rules, ([2, 1], [BOTH; 2]), 0, search_size(FEW), &least);
}

/// An index is made on the first node of a newer version: no older node takes a copy, so this node waits
/// for the others.
#[test]
fn no_node_that_is_held_hides_the_others() {
    let rules = ModelRules {
        patient: false,
        edits: &[EditKind::Revisions, EditKind::Index],
        revisions: &[NEW, TUNED],
        faults: &[FaultKind::Eviction],
        ..IN_TURN
    };
    let steps = &["Configure", "Restart"];
    let least =
        Least { states: 4_000, depth: 30, rests: 0, times: 100, steps, remedies: &["Wait"] };
    no_traps(&rules.varied_of(&SHARDS), ([3, 0], [BOTH; 2]), 1, search_size(FEW), &least);
}
