//! Tests of the whole controller against a server that stops answering.

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::Frame;
use k8s_openapi::ByteString;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Duration, Instant, timeout},
};

use super::super::{
    Config, Error, STUCK,
    queue::{ClusterKey, ReconcileOutcome, WorkQueue},
    run_controller, stuck_check,
    testing::example::DATABASE,
};
use crate::{
    api::{names, v1beta1::API_VERSION},
    runtime::Runtime,
};

/// A server with a lease and one cluster that the controller has not seen yet. It hangs for good
/// with the first write to anything but the lease.
#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    hangs: AtomicBool,
    hung: Notify,
}

impl Server {
    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let query = parts.uri.query().unwrap_or_default();
                if query.contains("watch=true") {
                    let streamed = query.contains("sendInitialEvents=true");
                    let shown = if streamed { initial(parts.uri.path()) } else { Vec::new() };
                    let shown = shown.into_iter().map(|event| {
                        Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{event}\n"))))
                    });
                    let body = stream::iter(shown).chain(stream::pending());
                    return Ok::<_, Infallible>(Response::new(Either::Left(StreamBody::new(body))));
                }
                let given = serde_json::from_slice(&body).unwrap_or_default();
                let answer = server.answer(&parts.method, parts.uri.path(), given);
                let Some((code, answer)) = answer else { return pending().await };
                let body = Either::Right(Full::new(Bytes::from(answer.to_string())));
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Answers a request; `None` once the server hangs.
    fn answer(&self, method: &Method, path: &str, given: Value) -> Option<(u16, Value)> {
        let is_lease = path.contains("/leases");
        if *method != Method::GET && !is_lease {
            self.hangs.store(true, Ordering::Relaxed);
            self.hung.notify_one();
        }
        if self.hangs.load(Ordering::Relaxed) {
            return None;
        }
        let mut lease = self.lease.lock().unwrap();
        if is_lease && *method != Method::GET {
            let number = lease.as_ref().map_or(0, |l: &Value| l["number"].as_u64().unwrap());
            let mut given = given;
            given["number"] = json!(number + 1);
            given["metadata"]["resourceVersion"] = json!(number.to_string());
            *lease = Some(given.clone());
            return Some((200, given));
        }
        let none = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": 404, "reason": "NotFound", "message": "not found",
        });
        Some(match path.rsplit('/').next().unwrap() {
            "v1beta1" => {
                let list = json!({
                    "kind": "APIResourceList", "groupVersion": API_VERSION, "resources": [],
                });
                (200, list)
            }
            names::SEAL_SECRET => {
                (200, json!({"metadata": {}, "data": {"key": ByteString(vec![7; 32])}}))
            }
            names::STORE_CONFIG_MAP => (200, json!({"metadata": {}, "data": {"id": "store"}})),
            _ if is_lease => lease.clone().map_or((404, none), |lease| (200, lease)),
            _ => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
        })
    }
}

/// Returns the events that a watch with `sendInitialEvents` begins with.
fn initial(path: &str) -> Vec<Value> {
    let cluster = json!({
        "apiVersion": API_VERSION, "kind": "ExampleCluster",
        "metadata": {
            "name": "shop", "namespace": "default", "uid": "u", "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {"version": "5.0.6", "nodePools": []},
    });
    let end = json!({
        "apiVersion": API_VERSION, "kind": "ExampleCluster",
        "metadata": {
            "resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"},
        },
    });
    let added =
        path.ends_with("/exampleclusters").then(|| json!({"type": "ADDED", "object": cluster}));
    added.into_iter().chain([json!({"type": "BOOKMARK", "object": end})]).collect()
}

fn config() -> Config {
    Config {
        pilot_image: "navigator:1".to_owned(),
        namespace: None,
        install_namespace: names::NAMESPACE.to_owned(),
        leader_elect: true,
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
        owner_references: false,
        pilot_gc_after: Duration::from_secs(3600),
        admin: "127.0.0.1:0".parse().unwrap(),
        page: super::super::page::PageAccess::Nobody,
        identity: "controller-0".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_ends_in_time_while_the_server_answers_nothing() {
    for asked in [false, true] {
        let (server, runtime) = (Arc::new(Server::default()), Runtime::new());
        let running = run_controller(config(), vec![&DATABASE], server.client(), runtime.clone());
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => panic!("{ended:?}"),
            () = server.hung.notified() => {}
        }
        let hung = Instant::now();
        if asked {
            runtime.shutdown().trigger();
        }
        let ended = timeout(Duration::from_secs(600), running).await.expect("it ends");
        // A leader is deposed after the renew deadline, well before another process may lead.
        let within = if asked { 3 } else { 12 };
        assert!(hung.elapsed() < Duration::from_secs(within), "{:?}", hung.elapsed());
        assert_eq!(matches!(ended, Err(Error::Deposed)), !asked, "{ended:?}");
        runtime.tasks().join().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_makes_no_progress_is_told_by_livez() {
    let queue = WorkQueue::default();
    let stuck = stuck_check(&queue);
    let key = ClusterKey {
        kind: DATABASE.names.kind,
        namespace: "default".to_owned(),
        name: "shop".to_owned(),
    };
    queue.add(key.clone());
    // Without a leader no worker reconciles, and a cluster that is due is not stuck.
    tokio::time::advance(2 * STUCK).await;
    assert_eq!(stuck(), None);
    let key = queue.take_key().await;
    assert_eq!(stuck(), None);
    tokio::time::advance(STUCK + Duration::from_secs(1)).await;
    assert_eq!(stuck().unwrap(), "the look at ExampleCluster default/shop has lasted 181 s");
    queue.finish_reconcile(key, ReconcileOutcome::Settled);
    assert_eq!(stuck(), None);
}
