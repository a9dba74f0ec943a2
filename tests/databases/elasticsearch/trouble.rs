//! Troubles of a cluster: lost machines, a bad configuration, a hang.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    ensemble::{Ensemble, START},
    writer::Writer,
};
use crate::{
    report::Told,
    support::{seat::signal, wait::until},
};

pub(crate) async fn outage_and_bad_configuration(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 1).await;
    let writer = Writer::new(&ensemble, 0);
    for _ in 0..100 {
        writer.write().await;
    }

    for node in 0..3 {
        ensemble.kill(node).await;
    }
    ensemble.start_all();
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    writer.check().await;
    told.claim("all machines lost and back: the same cluster forms, and nothing is lost");

    let name = ensemble.name(1).to_owned();
    let bad = json!({"config": {"no.such.setting": 1}, "restartedAt": "2026-01-01T00:00:00Z"});
    ensemble.bed.change(&name, bad).await;
    ensemble
        .bed
        .shows(&name, "the refused key", START, |pilot| {
            let ended = pilot.status.last_termination.as_ref()?;
            let named = ended.log_tail.iter().any(|line| line.contains("no.such.setting"));
            (ended.reason.as_deref() == Some("ConfigRejected") && named).then_some(())
        })
        .await;
    let (documents, _) = writer.check().await;
    told.claim(format!(
        "a key that Elasticsearch does not know: the Pilot says so; {documents} documents are served"
    ));
    ensemble.bed.change(&name, json!({"config": {"no.such.setting": null}})).await;
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    told.claim("the key taken away: the node is back");
}

/// 8.x has a launcher before its server: the one that hangs is not the pilot's own child.
pub(crate) async fn a_hang(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 1).await;
    ensemble.all[0].seat.flags = vec!["--silence-limit=15".to_owned()];
    ensemble.start_all();
    ensemble.settled(&[0]).await;
    let own = ensemble.database(0).unwrap();
    let server = server(own);
    signal(server, Signal::SIGSTOP);
    let hung = format!("{version}: hung and not ready");
    ensemble
        .bed
        .shows(ensemble.name(0), &hung, START, |pilot| {
            let (status, ..) = crate::support::bed::condition(pilot, "Ready")?;
            (status == "False").then_some(())
        })
        .await;
    ensemble.settled(&[0]).await;
    let log = ensemble.running(0).log();
    assert!(log.contains("Full thread dump"), "no thread dump was asked for");
    assert_eq!(server, self::server(own), "it was restarted, and need not have been");
    let metrics = ensemble.seat(0).get(8080).unwrap().1;
    assert!(metrics.contains("navigator_pilot_process_hangs_total 1"), "{metrics}");
    told.claim(format!(
        "{version}: a stopped process is found, asked for a thread dump and continued"
    ));
    until("it serves", START, async || {
        ensemble.try_ask(0, http::Method::GET, "/_cluster/health", None).await
    })
    .await;
}

/// The JVM that serves: the child itself, or the one that it launched.
pub(super) fn server(child: i32) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{child}/task")).unwrap();
    let children = tasks.flatten().flat_map(|task| {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
    });
    let is_java = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "java\n")
    };
    children.into_iter().find(is_java).unwrap_or(child)
}
