//! From the run to the Node: the agent writes the job, the runner does it, the agent says so.

use std::time::Duration;

use http::Method;
use kube::Client;
use navigator::{
    agent::{self, Config},
    runtime::Runtime,
};
use serde_json::{Value, json};

use super::{Host, NEW, OLD, digest};
use crate::{
    api::containership::define,
    storage::kube_apiserver::{self, Server},
    support::wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "runner-handed";

async fn ask(server: &Server, method: Method, path: &str, body: &Value) -> Value {
    let (status, said) = server.ask(method, path, body).await;
    assert!(matches!(status, 200 | 201), "{path}: {said}");
    said
}

/// What the agent says on its Node, once it is so.
async fn said(server: &Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, PATIENCE, async || {
        let node = ask(server, Method::GET, &format!("/api/v1/nodes/{NAME}"), &Value::Null).await;
        let text = node["metadata"]["annotations"]["containership.io/upgrade"].as_str();
        let report = text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
        if is(&report) { Ok(report) } else { Err(report.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_becomes_a_job_and_its_end_stands_on_the_node() {
    let server = kube_apiserver::shared();
    define(server).await;
    let host = Host::new("500 Sick");
    host.set_policy(|policy| {
        policy.health_seconds = 5;
        policy.base_urls = vec!["https://127.0.0.1:1".to_owned()];
    });
    for (path, object) in [
        ("/api/v1/namespaces", json!({"metadata": {"name": NAME}})),
        ("/api/v1/nodes", json!({"metadata": {"name": NAME}})),
    ] {
        ask(server, Method::POST, path, &object).await;
    }
    let runtime = Runtime::new();
    let config = Config {
        node: NAME.to_owned(),
        namespace: NAME.to_owned(),
        folder: host.path("etc"),
        upgrades: host.path("jobs"),
        shared: false,
        mending_period: Duration::from_secs(1),
        admin: ([127, 0, 0, 1], 0).into(),
    };
    let client = Client::try_from(server.config().await).unwrap();
    let given = runtime.clone();
    runtime.tasks().spawn("agent", async move {
        agent::run_agent(config, client, given).await.unwrap();
    });
    let report = said(server, "the machine", |report| report["cgroup"].is_u64()).await;
    assert_eq!((&report["runner"], &report["id"]), (&Value::Null, &Value::Null));

    let runs = format!("/apis/provision.containership.io/v3/namespaces/{NAME}/clusterupgrades");
    let run = json!({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
        "metadata": {"name": "to-34"},
        "spec": {"type": "kubernetes", "targetVersion": NEW, "runner": {
            "mode": "Kubeadm", "artifacts": {
                "baseURL": "https://127.0.0.1:1", "sha256": {
                    "kubelet": host.new, "kubeadm": digest(&host.path("web/kubeadm")),
                },
            },
        }},
    });
    let run = ask(server, Method::POST, &runs, &run).await;
    let id = run["metadata"]["uid"].as_str().unwrap();
    let turn = async |attempt: i32| {
        let status = json!({"status": {"phase": "InProgress", "nodes": [{
            "name": NAME, "phase": "Run", "from": OLD, "to": NEW, "attempt": attempt,
        }]}});
        let path = format!("{runs}/to-34/status");
        ask(server, Method::PATCH, &path, &status).await;
        until("the job", PATIENCE, async || {
            let text = std::fs::read(host.path(&format!("jobs/{id}/job.json"))).unwrap_or_default();
            let job: Value = serde_json::from_slice(&text).unwrap_or_default();
            // (which one is current is written after it)
            let current = std::fs::read_to_string(host.path("jobs/current")).unwrap_or_default();
            let there = job["attempt"] == attempt && current == id;
            if there { Ok(()) } else { Err(format!("{job}, current: {current}")) }
        })
        .await;
    };
    turn(1).await;
    // Nobody serves programs there.
    let code = tokio::task::block_in_place(|| host.run());
    assert_eq!(code, 10);
    let report = said(server, "another try", |report| report["code"] == 10).await;
    assert_eq!((&report["id"], &report["step"]), (&json!(id), &json!("fetch")));
    // They were fetched before.
    for name in ["kubelet", "kubeadm"] {
        std::fs::copy(host.path("web").join(name), host.path("state").join(name)).unwrap();
    }
    let code = tokio::task::block_in_place(|| host.run());
    assert_eq!(code, 20);
    let report = said(server, "the way back", |report| report["code"] == 20).await;
    assert_eq!((&report["attempt"], &report["step"]), (&json!(1), &json!("rollback")));
    let message = report["message"].as_str().unwrap();
    assert!(message.starts_with("the kubelet was not well within 5 s"), "{message}");
    host.is_of(OLD);
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    until("an event", PATIENCE, async || {
        let all = ask(server, Method::GET, events, &Value::Null).await;
        let mut all = all["items"].as_array().unwrap().iter();
        let ours = |event: &&Value| {
            event["reason"] == "NodeUpgradeRunner"
                && event["regarding"]["name"] == NAME
                && event["note"].as_str().unwrap().contains("was not well within 5 s")
        };
        all.find(ours).map(drop).ok_or_else(|| "none".to_owned())
    })
    .await;
    turn(2).await;
    runtime.shutdown().trigger();
    runtime.tasks().join().await;
}
