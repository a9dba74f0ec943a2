//! The cost of reading, showing and converting an object of the largest size that is allowed.
//!
//! `cargo bench --bench conversion` prints one row of a Markdown table per step: the median of
//! many runs. The object takes nearly all of the memory that a body may take, 8 MiB: 50 node
//! pools, each with settings and a pod template of its own.
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use navigator::{
    api::{V1ALPHA1, V1BETA1},
    database, databases,
    machinery::{decode, served_kind::ServedKind},
};
use serde_json::{Value, json};

const RUNS: usize = 31;
const POOLS: usize = 50;
/// Settings and pod template of one pool.
const SETTINGS: usize = 120;
const TOLERATIONS: usize = 80;

fn largest() -> Value {
    let pools: Vec<Value> = (0..POOLS)
        .map(|pool| {
            let config: serde_json::Map<String, Value> = (0..SETTINGS)
                .map(|n| (format!("indices.setting.number_{n}"), json!(format!("value {n}"))))
                .collect();
            let tolerations: Vec<Value> = (0..TOLERATIONS)
                .map(|n| json!({"key": format!("key-{n}"), "operator": "Equal", "value": "databases", "effect": "NoSchedule"}))
                .collect();
            json!({"name": format!("pool-{pool}"), "replicas": 3, "rack": format!("r{pool}"),
                "resources": {"limits": {"memory": "8Gi"}}, "persistence": {"size": "100Gi"},
                "config": config,
                "podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": tolerations}}})
        })
        .collect();
    json!({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
        "metadata": {"name": "largest", "namespace": "default"},
        "spec": {"version": "5.0.6", "nodePools": pools}})
}

/// Median of many runs, and the slowest.
fn timed<T>(mut run: impl FnMut() -> T) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            black_box(run());
            start.elapsed()
        })
        .collect();
    times.sort();
    (times[RUNS / 2], times[RUNS - 1])
}

fn main() {
    let kind: &dyn ServedKind = database::build_scheme(databases::ALL)
        .by_plural("cassandraclusters")
        .expect("the kind is served");
    let bytes = serde_json::to_vec(&largest()).expect("JSON");
    let body = decode::parse_json(&bytes).expect("a valid body");
    let hub = kind.decode(V1BETA1, body.clone(), None).expect("a valid object").hub;
    let shown = kind.encode(V1ALPHA1, &hub);
    let older =
        decode::parse_json(&serde_json::to_vec(&shown).expect("JSON")).expect("a valid body");
    assert!(bytes.len() <= 1024 * 1024, "{} bytes do not fit the store", bytes.len());

    println!("| object of {} KiB | median ms | slowest ms |\n|---|---|---|", bytes.len() / 1024);
    let row = |what: &str, (median, slowest): (Duration, Duration)| {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!("| {what} | {:.2} | {:.2} |", ms(median), ms(slowest));
    };
    row("parse JSON, find duplicates", timed(|| decode::parse_json(&bytes)));
    row("decode v1beta1, strict", timed(|| kind.decode(V1BETA1, body.clone(), Some(&hub))));
    row(
        "decode v1alpha1, strict, lift",
        timed(|| kind.decode(V1ALPHA1, older.clone(), Some(&hub))),
    );
    row(
        "decode v1alpha1, surplus from annotation",
        timed(|| kind.decode(V1ALPHA1, older.clone(), None)),
    );
    row("read stored", timed(|| kind.decode_stored(hub.clone())));
    row("show v1beta1", timed(|| kind.encode(V1BETA1, &hub)));
    row("show v1alpha1, project", timed(|| kind.encode(V1ALPHA1, &hub)));
    row("serialise", timed(|| serde_json::to_vec(&hub)));
}
