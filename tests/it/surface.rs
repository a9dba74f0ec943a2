//! The HTTP surface of resources, discovery and health: requests against the router, over an
//! embedded store in a folder of its own, without network or other processes.

mod apply;
mod capacity;
mod deletion;
mod discovery;
mod faults;
mod lists;
mod managers;
mod memory_store;
mod migration;
mod negotiation;
mod objects;
mod other_kind;
mod patches;
mod protobuf;
mod refusals;
mod revisions;
mod samples;
mod versions;
mod watches;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, BodyDataStream},
};
use futures::{StreamExt as _, future::BoxFuture};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use navigator::{
    apiserver::{
        admission::{AdmissionAttributes, AdmissionPlugin},
        authn::User,
        authz::{AccessReviewer, AuthorizationDecision, Authorizer},
        capacity::CapacityBounds,
        delegate::ReviewCallError,
        filters::Warnings,
        handlers::{AppState, build_router},
        metrics::Metrics,
        request_info::RequestInfo,
        status::ApiError,
        storage::{
            Storage,
            embedded::{EmbeddedStore, HistoryLimits},
        },
        store_identity::{StoreGuard, StoreVerdict},
    },
    machinery::served_kinds::ServedKinds,
    runtime::{Runtime, Shutdown},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt as _;

/// Limit for what should happen soon, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

const BETA: &str = "/apis/navigator.jetstack.io/v1beta1";
const ALPHA: &str = "/apis/navigator.jetstack.io/v1alpha1";

/// An admission plugin that refuses what the test tells it to: in turn, and then always.
#[derive(Default)]
struct Gatekeeper {
    in_turn: Mutex<Vec<ApiError>>,
    always: Mutex<Option<ApiError>>,
}

impl AdmissionPlugin for Gatekeeper {
    fn admit<'a>(&'a self, _: AdmissionAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        let next = self.in_turn.lock().unwrap().pop();
        let verdict = next.or_else(|| self.always.lock().unwrap().clone());
        Box::pin(async move { verdict.map_or(Ok(()), Err) })
    }
}

/// Allows everything that reaches a handler, except for what a test forbids.
#[derive(Default)]
struct Rules(Mutex<Option<&'static str>>);

impl AccessReviewer for Rules {
    fn review<'a>(
        &'a self,
        _: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
        let forbidden = *self.0.lock().unwrap() == Some(request.verb().as_str());
        let decision = if forbidden {
            AuthorizationDecision::Deny(String::new())
        } else {
            AuthorizationDecision::Allow(String::new())
        };
        Box::pin(async move { Ok(decision) })
    }
}

struct Server {
    rules: Arc<Rules>,
    router: Router,
    rt: Runtime,
    closing: Shutdown,
    verdict: watch::Sender<StoreVerdict>,
    gatekeeper: Arc<Gatekeeper>,
    store: Arc<dyn Storage>,
    _folder: Option<tempfile::TempDir>,
}

/// A response, read to its end.
#[derive(Debug)]
struct Answer {
    code: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    warnings: Vec<String>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The object of a success with this code.
    #[track_caller]
    fn expect(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The Status of a failure with this code and reason.
    #[track_caller]
    fn refusal(&self, code: u16, reason: &str) -> Value {
        let status = self.expect(code);
        let expected = json!(["Status", "v1", "Failure", reason, code]);
        let found = json!([
            status["kind"],
            status["apiVersion"],
            status["status"],
            status["reason"],
            status["code"]
        ]);
        assert_eq!(found, expected, "{status}");
        status
    }
}

impl Server {
    /// A server whose caches are filled.
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            EmbeddedStore::open(&folder.path().join("store"), HistoryLimits::default()).await;
        Self::over(Arc::new(store.unwrap()), Some(folder)).await
    }

    /// A server over a store in memory, for a test that stops the clock.
    async fn in_memory() -> Self {
        Self::over(memory_store::MemoryStore::new(), None).await
    }

    /// A server with other bounds of what may be stored.
    async fn bounded(bounds: CapacityBounds) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            EmbeddedStore::open(&folder.path().join("store"), HistoryLimits::default()).await;
        Self::begin_within(bounds, Arc::new(store.unwrap()), Some(folder)).filled().await
    }

    /// Another server over the same store.
    async fn restarted(&self) -> Self {
        Self::over(Arc::clone(&self.store), None).await
    }

    async fn over(store: Arc<dyn Storage>, folder: Option<tempfile::TempDir>) -> Self {
        Self::begin(store, folder).filled().await
    }

    /// Waits until the server's caches are filled.
    async fn filled(self) -> Self {
        let server = self;
        let begun = Instant::now();
        loop {
            let waiting = server.rt.readiness().waiting_for();
            if waiting.is_empty() {
                return server;
            }
            assert!(begun.elapsed() < PATIENCE, "still waiting for {waiting:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn begin(store: Arc<dyn Storage>, folder: Option<tempfile::TempDir>) -> Self {
        Self::begin_within(CapacityBounds::for_process(), store, folder)
    }

    fn begin_within(
        bounds: CapacityBounds,
        store: Arc<dyn Storage>,
        folder: Option<tempfile::TempDir>,
    ) -> Self {
        Self::begin_with(crate::scheme(), bounds, store, folder)
    }

    /// A server of any kinds.
    fn begin_with(
        kinds: &'static ServedKinds,
        bounds: CapacityBounds,
        store: Arc<dyn Storage>,
        folder: Option<tempfile::TempDir>,
    ) -> Self {
        let rt = Runtime::new();
        let closing = Shutdown::new();
        let (verdict, verdicts) = watch::channel(StoreVerdict::Ours);
        let gatekeeper = Arc::new(Gatekeeper::default());
        let admission: Arc<dyn AdmissionPlugin> = Arc::clone(&gatekeeper) as _;
        let guard = StoreGuard::from_verdicts(verdicts);
        let metrics = Metrics::new();
        metrics.register(rt.metrics());
        let stored = (&store, bounds);
        let state = AppState::start(kinds, stored, &admission, guard, &metrics, &rt, &closing);
        let rules = Arc::new(Rules::default());
        Self {
            rules,
            router: build_router(state),
            rt,
            closing,
            verdict,
            gatekeeper,
            store,
            _folder: folder,
        }
    }

    async fn respond(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> (http::Response<Body>, Warnings) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body).unwrap();
        let info = Arc::new(RequestInfo::from_request(&request));
        let warnings = Warnings::default();
        let user = User { name: "jane".into(), ..User::default() };
        request.extensions_mut().insert(info);
        request.extensions_mut().insert(user);
        let rules = Arc::clone(&self.rules) as _;
        let authorizer = Authorizer::new(rules, Arc::new(Metrics::new()));
        request.extensions_mut().insert(Arc::new(authorizer));
        request.extensions_mut().insert(warnings.clone());
        let Ok(response) = self.router.clone().oneshot(request).await;
        (response, warnings)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let (response, warnings) = self.respond(method, path, headers, body.into()).await;
        let (parts, body) = response.into_parts();
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes().to_vec(),
            warnings: warnings.texts(),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Body::empty()).await
    }

    async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send("GET", path, &[("accept", accept)], Body::empty()).await
    }

    async fn write(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &[("content-type", "application/json")], body.to_string()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.write("POST", path, body).await
    }

    async fn put(&self, path: &str, body: &Value) -> Answer {
        self.write("PUT", path, body).await
    }

    async fn merge(&self, path: &str, patch: &Value) -> Answer {
        let headers = [("content-type", "application/merge-patch+json")];
        self.send("PATCH", path, &headers, patch.to_string()).await
    }

    async fn delete(&self, path: &str, options: &Value) -> Answer {
        self.write("DELETE", path, options).await
    }

    /// Creates a Pilot in namespace `db`.
    async fn pilot(&self, name: &str) -> Value {
        self.post(&pilots(), &pilot(name)).await.expect(201)
    }

    /// Begins a watch; fails unless it is 200.
    async fn watch(&self, path: &str, accept: &str) -> Lines {
        let headers = [("accept", accept)];
        let headers = if accept.is_empty() { &headers[..0] } else { &headers[..] };
        let (response, _) = self.respond("GET", path, headers, Body::empty()).await;
        let code = response.status();
        let content_type = response.headers().get("content-type").cloned();
        assert_eq!(code, StatusCode::OK, "{path}");
        assert_eq!(content_type.unwrap(), "application/json");
        Lines { stream: response.into_body().into_data_stream(), buffer: Vec::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.trigger();
        self.rt.shutdown().trigger();
    }
}

/// The events of a watch.
struct Lines {
    stream: BodyDataStream,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next event; `None` when the stream ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = tokio::time::timeout(PATIENCE, self.stream.next()).await;
            let chunk = chunk.expect("the watch brings an event or ends");
            self.buffer.extend_from_slice(&chunk?.unwrap());
        }
    }

    /// The next event as `TYPE name`.
    async fn summary(&mut self) -> String {
        let event = self.next().await.expect("the watch goes on");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-").to_owned();
        format!("{} {name}", event["type"].as_str().unwrap())
    }
}

fn pilots() -> String {
    format!("{BETA}/namespaces/db/pilots")
}

fn pilot(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "kind": "Pilot",
        "metadata": {"name": name},
        "spec": {"nodePool": "a"},
    })
}

fn cassandra(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1",
        "kind": "CassandraCluster",
        "metadata": {"name": name},
        "spec": {
            "version": "5.0.6",
            "nodePools": [{"name": "a", "replicas": 1, "persistence": {"size": "1Gi"}}],
        },
    })
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
