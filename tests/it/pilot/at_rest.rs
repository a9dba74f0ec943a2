//! What pilots ask of the API while nothing happens.

use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use crate::support::{bed::Bed, nodes::Nodes, ring::Ring, wait::until};

/// Reports after which what belongs to the start is over: the first reports, and a look at the peers.
const SETTLED: usize = 2;
/// A pilot at rest reports as often.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Limit for the reports, on any machine.
const PATIENCE: Duration = Duration::from_secs(3600);

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

/// Counts the reports of a pilot.
fn reports(asked: &[String], name: &str) -> usize {
    let of_it = format!("/pilots/{name}/");
    asked.iter().filter(|one| one.starts_with("PATCH") && one.contains(&of_it)).count()
}

/// Waits until each of the nodes has sent so many more reports. Returns how long that took, and all that
/// was asked for meanwhile.
async fn until_reports(trio: &Nodes, count: usize) -> (Duration, Vec<String>) {
    let start = Instant::now();
    let what = format!("{count} reports of each pilot");
    let asked = until(&what, PATIENCE, async || {
        let asked = trio.bed.world.kube.asked_since(start);
        let each: Vec<_> = (0..3).map(|node| reports(&asked, trio.name(node))).collect();
        if each.iter().all(|sent| *sent >= count) { Ok(asked) } else { Err(format!("{each:?}")) }
    })
    .await;
    (start.elapsed(), asked)
}

/// Three nodes of a cluster that are left alone until each has sent so many reports. Returns what they
/// asked for, and the most reports that so long a time has.
async fn idle(net: u8, count: usize) -> (BTreeMap<&'static str, usize>, usize) {
    let bed = Rc::new(Bed::start().await);
    let mut trio = Ring::new(bed.world.folder.path(), "demo").nodes(&bed, net, 3);
    trio.form().await;
    until_reports(&trio, SETTLED).await;
    let (time, asked) = until_reports(&trio, count).await;
    trio.stop_all().await;
    let kinds = by_kind(&asked);
    #[allow(clippy::print_stdout, reason = "shown with --nocapture")]
    {
        println!("three pilots in {time:?}: {kinds:?}");
    }
    // One that was late may come beside the next one.
    let periods = usize::try_from(time.as_secs() / HEARTBEAT.as_secs()).unwrap();
    (kinds, 3 * (periods + 2))
}

#[tokio::test]
async fn pilots_at_rest_send_heartbeats_and_nothing_else() {
    let (kinds, most) = idle(110, 3).await;
    let count = |kind| kinds.get(kind).copied().unwrap_or_default();
    assert!(count("report") <= most, "more than {most}: {kinds:?}");
    assert_eq!(count("lease") + count("other"), 0, "{kinds:?}");
    // A watch lasts five minutes at most, and peers are listed as often.
    let others = ["watch", "peers", "own list"].map(count);
    assert!(others.iter().all(|count| *count <= most), "{kinds:?}");
}

/// The figure of docs/benchmarks.md: 150 requests an hour, of which 120 are heartbeats.
#[tokio::test]
#[ignore = "lasts 20 minutes"]
async fn pilots_at_rest_send_150_requests_an_hour_at_most() {
    let (kinds, most) = idle(111, 40).await;
    let all: usize = kinds.values().sum();
    assert!(all <= most * 150 / 120, "{kinds:?}");
}
