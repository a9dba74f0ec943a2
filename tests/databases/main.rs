//! The pilot's flavours against the real databases, as plain processes on loopback addresses.
//!
//! Run by `make test-databases`, one scenario after the other: the names given as arguments, or
//! all. Needs Java and, once, the Java package registry. Nothing is skipped: what is missing
//! fails with a line that says what to install.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "steps and times are this program's output")]

mod cassandra;
mod cql;
mod elasticsearch;
mod host;
#[path = "../support/lib.rs"]
mod support;

use std::time::Instant;

type Scenario = (&'static str, fn() -> futures::future::LocalBoxFuture<'static, ()>);

const SCENARIOS: &[Scenario] = &[
    ("cassandra", || Box::pin(cassandra::a_node_joins_and_leaves())),
    ("elasticsearch", || Box::pin(elasticsearch::three_nodes_form_one_cluster_and_one_leaves())),
];

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut ran = 0;
    for (name, run) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        println!("{name}");
        runtime.block_on(run());
        println!("{name}: passed in {} s", start.elapsed().as_secs());
        ran += 1;
    }
    assert!(ran > 0, "no scenario is named {wanted:?}");
}
