//! The pilots against the real databases, as plain processes on loopback addresses.
//!
//! `make test-databases` runs the quick scenarios, `make test-databases-full` all of them, one
//! after the other; names given as arguments choose scenarios of both sets. Needs Java and,
//! once, the Java package registry. Nothing is skipped: what is missing fails with a line that
//! says what to install.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "steps and times are this program's output")]

mod cassandra;
mod cql;
mod elasticsearch;
mod host;
mod proxy;
mod report;
mod scripted;
#[path = "../support/lib.rs"]
mod support;
mod wall;

use std::{panic::AssertUnwindSafe, path::PathBuf, process::ExitCode};

use futures::future::LocalBoxFuture;

use self::report::Told;

/// When a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Set {
    /// In CI and in `make full`.
    Quick,
    /// With `--full`, or by name without `--quick`.
    Full,
}

type Run = for<'a> fn(&'a Told) -> LocalBoxFuture<'a, ()>;

const SCENARIOS: &[(&str, Set, Run)] = &[
    ("cassandra-life", Set::Full, |told| {
        Box::pin(cassandra::three_nodes_live_through_an_outage_and_one_leaves(told))
    }),
    ("cassandra-leaving", Set::Full, |told| {
        Box::pin(cassandra::departures_that_are_cut_off_go_on_to_their_end(told))
    }),
    ("cassandra-joins", Set::Full, |told| {
        Box::pin(cassandra::joins_that_are_cut_off_begin_anew(told))
    }),
    ("cassandra-cleanup", Set::Full, |told| {
        Box::pin(cassandra::deleted_rows_stay_dead_after_a_cleanup_and_come_back_without(told))
    }),
    ("cassandra-space", Set::Full, |told| {
        Box::pin(cassandra::a_node_stays_where_the_rest_has_no_room(told))
    }),
    ("cassandra-faults", Set::Full, |told| {
        Box::pin(cassandra::a_node_comes_back_from_every_fault(told))
    }),
    ("cassandra-full", Set::Full, |told| {
        Box::pin(cassandra::a_full_disk_is_told_and_waited_for(told))
    }),
    ("cassandra-forgotten", Set::Full, |told| Box::pin(cassandra::a_lost_node_is_forgotten(told))),
    ("cassandra-two-lost", Set::Full, |told| {
        Box::pin(cassandra::two_of_three_nodes_are_lost_and_replaced(told))
    }),
    ("cassandra-upgrade", Set::Full, |told| {
        Box::pin(cassandra::upgrade::node_by_node_to_the_next_major_version(told))
    }),
    ("cassandra-rounds", Set::Full, |told| {
        Box::pin(cassandra::rings_are_founded_once_and_a_lost_volume_is_replaced(told))
    }),
    ("cassandra-kept", Set::Full, |told| {
        Box::pin(cassandra::a_cluster_is_made_again_on_all_some_and_none_of_its_volumes(told))
    }),
    ("cassandra-older", Set::Full, |told| {
        Box::pin(cassandra::older_releases_found_join_and_return(told))
    }),
    ("cassandra-login", Set::Full, |told| {
        Box::pin(cassandra::roles_are_made_and_read_by_the_pilots_client(told))
    }),
    ("cassandra-secure", Set::Quick, |told| Box::pin(cassandra::a_ring_begins_secured(told))),
    ("cassandra-secure-whole", Set::Full, |told| {
        Box::pin(cassandra::a_secured_ring_lives("5.0.6", told))
    }),
    ("cassandra-secure-4.1", Set::Full, |told| {
        Box::pin(cassandra::a_secured_ring_lives("4.1.10", told))
    }),
    ("cassandra-unheard", Set::Full, |told| {
        Box::pin(cassandra::what_is_not_heard_lets_nothing_go(told))
    }),
    ("bootstraps", Set::Full, |told| Box::pin(scripted::five_hundred_bootstraps(told))),
    ("api-away", Set::Full, |told| Box::pin(scripted::an_api_that_is_away_for_minutes(told))),
    ("elasticsearch-7.17", Set::Full, |told| Box::pin(elasticsearch::one_version("7.17.29", told))),
    ("elasticsearch-5.6", Set::Full, |told| Box::pin(elasticsearch::one_version("5.6.16", told))),
    ("elasticsearch-6.8", Set::Full, |told| Box::pin(elasticsearch::one_version("6.8.23", told))),
    ("elasticsearch-8.19", Set::Full, |told| Box::pin(elasticsearch::one_version("8.19.4", told))),
    ("elasticsearch-9.5", Set::Full, |told| Box::pin(elasticsearch::one_version("9.5.0", told))),
    ("elasticsearch-founding-20", Set::Full, |told| {
        Box::pin(elasticsearch::many_foundings(20, told))
    }),
    ("elasticsearch-kept", Set::Full, |told| {
        Box::pin(elasticsearch::a_cluster_is_made_again_on_all_some_and_none_of_its_volumes(told))
    }),
    ("elasticsearch-quorum-7.17", Set::Full, |told| {
        Box::pin(elasticsearch::a_lost_quorum_is_begun_anew("7.17.29", told))
    }),
    ("elasticsearch-quorum-8.19", Set::Full, |told| {
        Box::pin(elasticsearch::a_lost_quorum_is_begun_anew("8.19.4", told))
    }),
    ("elasticsearch-quorum-9.5", Set::Full, |told| {
        Box::pin(elasticsearch::a_lost_quorum_is_begun_anew("9.5.0", told))
    }),
    ("elasticsearch-secure", Set::Quick, |told| {
        Box::pin(elasticsearch::a_secured_node("7.17.29", told))
    }),
    ("elasticsearch-secure-8.19", Set::Full, |told| {
        Box::pin(elasticsearch::a_secured_node("8.19.4", told))
    }),
    ("elasticsearch-trouble", Set::Quick, |told| {
        Box::pin(elasticsearch::outage_and_bad_configuration(told))
    }),
    ("elasticsearch-upgrade", Set::Full, |told| {
        Box::pin(elasticsearch::node_by_node_over_three_major_versions(told))
    }),
    ("elasticsearch-split", Set::Full, |told| {
        Box::pin(elasticsearch::a_node_is_cut_off_and_comes_back(told))
    }),
    ("elasticsearch-master", Set::Full, |told| {
        Box::pin(elasticsearch::the_master_hangs_and_is_cut_off(told))
    }),
    ("elasticsearch-unheard", Set::Full, |told| {
        Box::pin(elasticsearch::what_is_not_heard_lets_nothing_go(told))
    }),
    ("elasticsearch-space", Set::Full, |told| {
        Box::pin(elasticsearch::a_node_stays_where_the_rest_has_no_room(told))
    }),
    ("elasticsearch-leaving", Set::Full, |told| {
        Box::pin(elasticsearch::a_departure_is_cut_off_in_every_way_and_ends(told))
    }),
    ("elasticsearch-roles-7.17", Set::Full, |told| {
        Box::pin(elasticsearch::a_data_role_goes("7.17.29", told))
    }),
    ("elasticsearch-roles-8.19", Set::Full, |told| {
        Box::pin(elasticsearch::a_data_role_goes("8.19.4", told))
    }),
    ("elasticsearch-plugins-7.17", Set::Full, |told| {
        Box::pin(elasticsearch::plugins_come_and_go("7.17.29", told))
    }),
    ("elasticsearch-plugins-5.6", Set::Full, |told| {
        Box::pin(elasticsearch::plugins_come_and_go("5.6.16", told))
    }),
    ("elasticsearch-hang-7.17", Set::Quick, |told| {
        Box::pin(elasticsearch::a_hang("7.17.29", told))
    }),
    ("elasticsearch-hang-8.19", Set::Full, |told| Box::pin(elasticsearch::a_hang("8.19.4", told))),
];

fn main() -> ExitCode {
    let (mut full, mut quick, mut page, mut wanted) = (false, false, None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--full" => full = true,
            "--quick" => quick = true,
            "--report" => page = arguments.next().map(PathBuf::from),
            flag if flag.starts_with('-') => {}
            name => wanted.push(name.to_owned()),
        }
    }
    let chosen = |name: &str, set: Set| match wanted.as_slice() {
        _ if quick && set == Set::Full => false,
        [] => full || set == Set::Quick,
        // A whole name chooses that scenario, a part of a name all that have it.
        names => names.iter().any(|word| {
            let whole = SCENARIOS.iter().any(|(other, ..)| other == word);
            if whole { name == word } else { name.contains(word.as_str()) }
        }),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let scenarios: Vec<_> = SCENARIOS.iter().filter(|(name, set, _)| chosen(name, *set)).collect();
    let with_cassandra = scenarios.iter().any(|(name, ..)| name.starts_with("cassandra"));
    let _alone = with_cassandra.then(support::loopback::alone);
    let order: Vec<&str> = SCENARIOS.iter().map(|(name, ..)| *name).collect();
    let mut outcomes = Vec::new();
    for (name, _, run) in scenarios {
        let told = Told::begin(name);
        // A scenario that fails must not hide the others'.
        let run = AssertUnwindSafe(|| runtime.block_on(run(&told)));
        let passed = std::panic::catch_unwind(run).is_ok();
        let outcome = told.end(passed);
        if let Some(path) = &page {
            report::keep(path, &outcome, &order);
        }
        outcomes.push(outcome);
    }
    assert!(!outcomes.is_empty(), "no scenario is named {wanted:?}");
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.scenario).collect();
    println!("\n{} scenarios, failed: {failed:?}", outcomes.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
