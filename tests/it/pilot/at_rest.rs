//! What pilots ask of the API while nothing happens.

use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use crate::support::{bed::Bed, ring::Ring};

/// Requests that belong to the start: the first reports, and a look at the peers.
const SETTLES: Duration = Duration::from_secs(45);

/// Counts what `asked` asks for, by kind.
fn by_kind(asked: &[String]) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    for one in asked {
        let kind = match one {
            one if one.contains("leaderleases") => "lease",
            one if one.contains("watch=true") => "watch",
            one if one.contains("labelSelector") => "peers",
            one if one.contains("fieldSelector") => "own list",
            one if one.starts_with("PATCH") => "report",
            _ => "other",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Three nodes of a cluster that are left alone for so long; returns what they asked for.
async fn idle(net: u8, time: Duration) -> BTreeMap<&'static str, usize> {
    let bed = Rc::new(Bed::start().await);
    let mut trio = Ring::new(bed.world.folder.path(), "demo").nodes(&bed, net, 3);
    trio.form().await;
    tokio::time::sleep(SETTLES).await;
    let start = Instant::now();
    tokio::time::sleep(time).await;
    let asked = bed.world.kube.asked_between(start, start + time);
    trio.stop_all().await;
    let kinds = by_kind(&asked);
    #[allow(clippy::print_stdout, reason = "shown with --nocapture")]
    {
        println!("three pilots in {time:?}: {kinds:?}");
    }
    kinds
}

#[tokio::test]
async fn pilots_at_rest_send_heartbeats_and_nothing_else() {
    let time = Duration::from_secs(100);
    let kinds = idle(110, time).await;
    let count = |kind| kinds.get(kind).copied().unwrap_or_default();
    // A heartbeat each 30 s; of a window of 100 s four at most.
    assert!((3 * 3..=3 * 4).contains(&count("report")), "{kinds:?}");
    assert_eq!(count("lease") + count("other"), 0, "{kinds:?}");
    // A watch lasts five minutes at most, and peers are listed as often.
    assert!(count("watch") <= 3 && count("peers") <= 3 && count("own list") <= 3, "{kinds:?}");
}

/// The figure of docs/benchmarks.md.
#[tokio::test]
#[ignore = "lasts 20 minutes"]
async fn pilots_at_rest_send_150_requests_an_hour_at_most() {
    let time = Duration::from_secs(1200);
    let kinds = idle(111, time).await;
    let all: usize = kinds.values().sum();
    assert!(all <= 3 * 150 / 3, "{kinds:?}");
}
