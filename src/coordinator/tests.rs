//! When the coordinator looks, and what becomes of a look in which the lead is lost.

use std::{convert::Infallible, future::pending, time::Duration};

use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::json;
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{
    AGENT,
    agenda::UpgradeAgenda,
    metrics::Metrics,
    run_upgrade_loop,
    stirring::WatchedLedger,
    testing::{FakeServer, coordinator},
};
use crate::{
    api::containership::ClusterUpgrade,
    runtime::leader::{LeaderClaim, fence_client},
};

const RUN: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/clusterupgrades/to-34";

/// The looks of one leader, which end with this.
struct Looks {
    agenda: WatchedLedger<UpgradeAgenda>,
    metrics: Metrics,
    _task: JoinSet<()>,
}

impl Looks {
    fn start(client: Client, writer: Client) -> Self {
        let (agenda, metrics) = (WatchedLedger::default(), Metrics::new());
        let coordinator = coordinator(client, writer, metrics.clone());
        let mut task = JoinSet::new();
        task.spawn(run_upgrade_loop(coordinator, agenda.clone(), metrics.clone()));
        Self { agenda, metrics, _task: task }
    }

    fn count(&self, outcome: &str) -> u64 {
        self.metrics.looks.with_label_values(&[outcome]).get()
    }

    /// Returns how many looks succeed in so many seconds.
    async fn within(&self, seconds: u64) -> u64 {
        let before = self.count("done");
        sleep(Duration::from_secs(seconds)).await;
        self.count("done") - before
    }

    /// The watch sees a run in this phase.
    fn sees(&self, phase: &str) {
        let run = json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {"name": "to-34"}, "spec": {"targetVersion": "v1.34.4"},
            "status": {"phase": phase},
        });
        let run: ClusterUpgrade = serde_json::from_value(run).unwrap();
        self.agenda.modify(|agenda| {
            agenda.record_upgrade(&run);
            true
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_looks_for_late_marks_and_then_leaves_an_idle_cluster_alone() {
    let client = FakeServer::default().client();
    let looks = Looks::start(client.clone(), client);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(looks.count("done"), 1, "a former leader may have left something");
    assert_eq!(looks.within(600).await, 2, "and may still do so");
    for _ in 0..100 {
        // A node's heartbeat.
        looks.agenda.modify(|_| true);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(looks.within(600).await, 0);
}

#[tokio::test(start_paused = true)]
async fn looks_come_at_once_when_a_watch_stirs_and_often_while_a_run_is_under_way() {
    let client = FakeServer::default().client();
    let looks = Looks::start(client.clone(), client);
    // (not at the moment at which it would wake by itself)
    sleep(Duration::from_secs(630)).await;
    let before = looks.count("done");
    looks.sees("Pending");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(looks.count("done"), before + 1);
    assert_eq!(looks.within(119).await, 1, "what waits for something else is looked at seldom");
    looks.sees("InProgress");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(looks.within(60).await, 12);
    let before = looks.count("done");
    for _ in 0..1000 {
        looks.agenda.modify(|_| true);
        sleep(Duration::from_millis(10)).await;
    }
    let busy = looks.count("done") - before;
    assert!((9..=11).contains(&busy), "{busy} looks in 10 s, however much is written");
    looks.sees("Success");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(looks.within(600).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_or_hangs_is_done_anew() {
    let server = FakeServer::default();
    server.lock().refuses.insert("GET /api/v1/pods".to_owned(), 500);
    let looks = Looks::start(server.client(), server.client());
    sleep(Duration::from_secs(12)).await;
    assert_eq!((looks.count("error"), looks.count("done")), (3, 0));
    server.lock().refuses.clear();
    sleep(Duration::from_secs(5)).await;
    assert_eq!((looks.count("error"), looks.count("done")), (3, 1));

    let silent = tower::service_fn(|_: Request<Body>| async {
        pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let client = Client::new(silent, "default");
    let looks = Looks::start(client.clone(), client);
    sleep(Duration::from_secs(620)).await;
    assert_eq!(looks.count("timeout"), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_once_the_lead_is_lost_in_the_middle_of_a_look() {
    let server = FakeServer::default();
    for name in ["m-1", "m-2"] {
        let node = json!({
            "metadata": {}, "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {
                    "kubeletVersion": "v1.33.13", "bootID": "boot-1", "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        });
        server.lock().put(&format!("/api/v1/nodes/{name}"), node);
    }
    let run = json!({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
        "metadata": {"namespace": "containership-core", "generation": 1},
        "spec": {"targetVersion": "v1.34.4"},
    });
    server.lock().put(RUN, run);
    let (lead, claim) = watch::channel(LeaderClaim::for_single_process());
    let looks = Looks::start(server.client(), fence_client(server.client(), claim, AGENT));
    looks.sees("InProgress");
    // It is accepted, held by a finalizer, and the first of two machines is marked.
    let marked = "PATCH /api/v1/nodes/m-1";
    server.lock().written = Some(Box::new(move |write| {
        if write == marked {
            lead.send_replace(LeaderClaim::Lost);
        }
    }));
    sleep(Duration::from_secs(60)).await;
    let writes = server.lock().writes.clone();
    assert_eq!(writes.last().map(String::as_str), Some(marked), "{writes:?}");
    assert!(looks.count("fenced") > 0);
}
