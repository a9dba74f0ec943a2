//! Random walks through a simulated cluster. A broken rule is printed with its seed.

use super::*;
use crate::{
    controller::testing::simulation::{Budgets, Simulation},
    testing::search_seeds,
};

/// Lets the simulation run until everything is as desired.
fn converge(simulation: &mut Simulation) {
    let mut quiet = 0;
    for _ in 0..2_000 {
        let plan = simulation.reconcile();
        quiet = if plan == Plan::default() && simulation.settled() { quiet + 1 } else { 0 };
        if quiet == 3 {
            return;
        }
        simulation.tick();
    }
    let ObservedCluster { pools, .. } = &simulation.observed;
    panic!(
        "did not converge; next {:?}\n{}\n{pools:#?}",
        plan_next_step(&simulation.desired, &simulation.observed),
        simulation.log.join("\n"),
    );
}

#[test]
fn random_walks_keep_the_rules_and_converge() {
    // Pools that begin with `m` hold masters; pods of those with `e` hold their data.
    let beginnings = [[("a", 2), ("b", 1)], [("d", 1), ("m", 3)], [("e", 2), ("a", 1)]];
    for (seed, pools) in search_seeds(100).zip(beginnings.iter().cycle()) {
        let mut simulation = Simulation::new(desired(pools, "first"), seed);
        converge(&mut simulation);
        for turn in 0..60 {
            match (seed + turn) % 7 {
                0 => simulation.edit(),
                3 => simulation.disturb(),
                5 if turn % 20 == 5 => simulation.make_again(),
                _ => simulation.tick(),
            }
            simulation.reconcile();
        }
        simulation.take_back();
        converge(&mut simulation);
        // An idle cluster writes nothing.
        let before = simulation.desired.status.clone();
        simulation.reconcile();
        assert_eq!(simulation.desired.status, before, "seed {seed}");
    }
}

/// Random walks on which the ServiceAccount is deleted and made again. No pod goes until a person
/// names the predicate, then one at a time, and never two that are not ready. Or the kubelet renews
/// the tokens, and no pod goes at all.
#[test]
fn pods_with_dead_tokens_are_made_anew_one_at_a_time_or_not_at_all() {
    let named = "TokenRenewal".to_owned();
    let beginnings = [[("a", 3), ("b", 1)], [("d", 2), ("m", 3)]];
    for (seed, pools) in search_seeds(20).zip(beginnings.iter().cycle()) {
        let mut simulation = Simulation::new(desired(pools, "first"), seed);
        converge(&mut simulation);
        lose_account(&mut simulation.observed, Timestamp::MAX);
        let uids = |simulation: &Simulation| -> Vec<String> {
            let members = simulation.observed.pools.iter().flat_map(|pool| pool.members.values());
            members.filter_map(|member| Some(member.pod.as_ref()?.uid.clone())).collect()
        };
        let before = uids(&simulation);
        for _ in 0..20 {
            simulation.tick();
            assert_eq!(simulation.reconcile().step, None, "seed {seed}");
        }
        assert_eq!(uids(&simulation), before);
        if seed % 3 == 0 {
            simulation.renew_tokens();
            converge(&mut simulation);
            assert_eq!(uids(&simulation), before, "seed {seed}");
            continue;
        }
        simulation.desired.strategy.skip_predicates.insert(named.clone());
        converge(&mut simulation);
        let after = uids(&simulation);
        assert_eq!(after.len(), before.len());
        assert!(after.iter().all(|uid| !before.contains(uid)), "seed {seed}: {after:?}");
    }
}

/// Walks of drained machines in CI.
const DRAINS: usize = 24;

/// Random walks in which every pod is evicted that Kubernetes lets go, while nodes come, go and
/// restart. Returns how many pods went, and how often more than one node was without its data.
fn drained(budgets: Budgets, evicting: bool) -> (usize, usize) {
    let beginnings: [&[(&str, u32)]; 4] = [
        &[("a", 1), ("b", 1), ("c", 1)],
        &[("a", 3)],
        &[("d", 2), ("m", 3)],
        &[("e", 2), ("a", 2)],
    ];
    let (mut evictions, mut lost) = (0, 0);
    for (seed, pools) in search_seeds(DRAINS).zip(beginnings.iter().cycle()) {
        let mut simulation = Simulation::new(desired(pools, "first"), seed);
        converge(&mut simulation);
        simulation.drained_under(budgets);
        for turn in 0..120 {
            if (seed + turn) % 17 == 0 {
                simulation.edit();
                // A stopped cluster has no quorum to lose.
                simulation.desired.stopped = false;
            }
            if evicting && (seed + turn) % 3 > 0 {
                simulation.drain();
            }
            simulation.tick();
            if evicting && (seed + turn) % 5 > 2 {
                simulation.drain();
            }
            simulation.reconcile();
        }
        let drains = simulation.drains.as_ref().unwrap();
        (evictions, lost) = (evictions + drains.evictions, lost + drains.lost);
        if budgets == Budgets::OfCluster {
            assert_eq!(drains.lost, 0, "seed {seed}\n{}", simulation.log.join("\n"));
        }
    }
    (evictions, lost)
}

#[test]
fn whoever_evicts_what_the_budget_lets_go_takes_no_quorum_away() {
    assert_eq!(drained(Budgets::OfCluster, false), (0, 0), "nor do steps of our own");
    let (evictions, _) = drained(Budgets::OfCluster, true);
    assert!(evictions > 4 * DRAINS, "{evictions}");
}

#[test]
fn under_a_budget_for_each_pool_evictions_take_the_quorum_away() {
    let (evictions, lost) = drained(Budgets::OfPools, true);
    assert!(evictions > 4 * DRAINS && lost > DRAINS / 2, "{evictions} {lost}");
}

/// Random walks on which nodes are asked to leave while they come, go and restart.
#[test]
fn requests_in_random_walks_keep_the_rules_and_end() {
    let beginnings = [[("a", 2), ("b", 1)], [("d", 1), ("m", 3)], [("e", 2), ("a", 1)]];
    for (seed, pools) in search_seeds(30).zip(beginnings.iter().cycle()) {
        let mut simulation = Simulation::new(desired(pools, "first"), seed);
        converge(&mut simulation);
        for turn in 0..60 {
            match (seed + turn) % 5 {
                0 => simulation.ask(),
                2 if turn % 4 == 0 => simulation.edit(),
                3 if turn % 7 == 0 => simulation.disturb(),
                _ => simulation.tick(),
            }
            simulation.reconcile();
        }
        simulation.take_back();
        simulation.ask_no_more();
        converge(&mut simulation);
    }
}
