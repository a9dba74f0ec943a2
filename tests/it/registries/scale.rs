//! Many namespaces, many Registries: nothing is written at rest, a namespace that is made later is served
//! at once, and the coordinator stays small.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use serde_json::json;
use tokio::time::sleep;

use super::cluster::Cluster;
use crate::support::wait;

/// Resident memory of the coordinator, at most.
const MEMORY_KIB: u64 = 100 * 1024;

#[tokio::test]
async fn many_copies_are_made_and_nothing_is_written_at_rest() {
    copies("core-scale", 40, 5, Duration::from_secs(5)).await;
}

#[tokio::test]
#[ignore = "a minute at rest: make full"]
async fn five_hundred_namespaces_of_ten_registries() {
    copies("core-full", 500, 10, Duration::from_secs(60)).await;
}

async fn copies(core: &str, namespaces: usize, registries: usize, rest: Duration) {
    let mut cluster = Cluster::new(core).await;
    let team = json!({"labels": {"team": "a"}});
    let names = (0..namespaces).map(|index| format!("{core}-{index}"));
    let made = stream::iter(names).map(|name| {
        let (cluster, team) = (&cluster, &team);
        async move { cluster.namespace(&name, team).await }
    });
    made.buffer_unordered(8).collect::<Vec<()>>().await;
    for index in 0..registries {
        let registry = json!({
            "apiVersion": "containership.io/v3", "kind": "Registry",
            "metadata": {"name": format!("registry-{index}")},
            "spec": {
                "serveraddress": format!("registry-{index}.example"),
                "credentials": {"username": "u", "password": "p".repeat(40)},
                "namespaceSelector": {"matchLabels": {"team": "a"}},
            },
        });
        cluster.make(&cluster.kind("registries"), &registry).await;
    }
    let begun = Instant::now();
    cluster.start(&["--registries"]);
    let synced = async |count: usize| {
        let all = format!("{count}/{count}");
        wait::until("the copies", Duration::from_secs(300), async || {
            let found = cluster.list(&cluster.kind("registries")).await;
            let told = found.iter().map(|one| one["status"]["progress"].as_str());
            if told.clone().all(|one| one == Some(&all)) {
                return Ok(());
            }
            Err(format!("{:?}", told.collect::<Vec<_>>()))
        })
        .await;
    };
    synced(namespaces).await;
    let took = begun.elapsed();
    // The ServiceAccounts are written in the same look.
    let before = wait::until("rest", Duration::from_secs(60), async || {
        let before = Cluster::writes().len();
        sleep(Duration::from_secs(2)).await;
        let after = Cluster::writes().len();
        if before == after { Ok(after) } else { Err(format!("{before} {after}")) }
    })
    .await;
    sleep(rest).await;
    let writes = Cluster::writes();
    assert_eq!(writes[before..], [""; 0], "written at rest");

    let begun = Instant::now();
    cluster.namespace(&format!("{core}-late"), &team).await;
    let account = format!("/api/v1/namespaces/{core}-late/serviceaccounts/containership");
    cluster
        .until(&account, |one| {
            let pulls = one.and_then(|one| one["imagePullSecrets"].as_array());
            pulls.is_some_and(|pulls| pulls.len() == registries)
        })
        .await;
    let late = begun.elapsed();
    synced(namespaces + 1).await;

    // One that begins finds all as it should be.
    cluster.kill();
    let before = Cluster::writes().len();
    cluster.start(&["--registries"]);
    sleep(rest.min(Duration::from_secs(15))).await;
    assert_eq!(Cluster::writes()[before..], [""; 0], "written by the next one");
    let (now, most) = cluster.memory();
    #[allow(clippy::print_stderr, reason = "the figures of docs/registries.md")]
    {
        eprintln!(
            "{namespaces} x {registries}: copies {took:.1?}, a namespace {late:.1?}, {now} KiB, at most {most}"
        );
    }
    assert!(most < MEMORY_KIB, "{most} KiB");
}
