//! The coordinator's way to kube-apiserver: every request passes, and writes are seen.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use http::{Method, StatusCode, header::CONTENT_TYPE, request::Parts};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

/// What becomes of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// They pass.
    Open,
    /// One that changed something is told, and never answered: its author is to be killed.
    Told,
    /// Before each, a person edits the object, so that it fails with a conflict once.
    Disputed,
}

/// The way, at an address of its own; ends with this.
pub(super) struct Wire {
    pub(super) url: String,
    state: Arc<WireState>,
    told: mpsc::UnboundedReceiver<String>,
    _task: JoinSet<()>,
}

struct WireState {
    client: Client,
    course: Course,
    /// Writes that changed something, as `PATCH /api/v1/nodes/m-1`.
    writes: Mutex<Vec<String>>,
    /// Navigator's API is away.
    silent: AtomicBool,
    /// Writes that were met by an edit, and were not asked for again yet.
    disputed: Mutex<BTreeSet<String>>,
    tell: mpsc::UnboundedSender<String>,
}

impl Wire {
    /// A way to the server of this client, in its name.
    pub(super) async fn start(client: Client, course: Course) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, told) = mpsc::unbounded_channel();
        let state = Arc::new(WireState {
            client,
            course,
            writes: Mutex::default(),
            silent: AtomicBool::new(false),
            disputed: Mutex::default(),
            tell,
        });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&state));
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, told, _task: task }
    }

    /// Waits for the next write that is told.
    pub(super) async fn told(&mut self) -> String {
        self.told.recv().await.expect("the wire is there")
    }

    /// Navigator's API is away from now on, or back.
    pub(super) fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::SeqCst);
    }

    /// Returns what was written so far.
    pub(super) fn writes(&self) -> Vec<String> {
        self.state.writes.lock().unwrap().clone()
    }
}

async fn pass(State(wire): State<Arc<WireState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = parts.uri.path().to_owned();
    let course = wire.course;
    if path.starts_with("/apis/navigator.jetstack.io/") && wire.silent.load(Ordering::SeqCst) {
        // As the aggregation layer answers for a server that does not.
        let text = axum::body::Body::from("service unavailable");
        return Response::builder().status(StatusCode::SERVICE_UNAVAILABLE).body(text).unwrap();
    }
    // Leases and events say nothing of machines.
    let spoken = path.contains("/events") || path.contains("/leases");
    if parts.method == Method::GET || spoken {
        return wire.forward(&parts, body).await;
    }
    let write = format!("{} {path}", parts.method);
    let given: Value = serde_json::from_slice(&body).unwrap_or_default();
    let version = given["metadata"]["resourceVersion"].clone();
    if course == Course::Disputed && !version.is_null() && wire.is_new(&write) {
        wire.edit(&path).await;
    }
    let answer = wire.forward(&parts, body).await;
    if !answer.status().is_success() {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let found: Value = serde_json::from_slice(&body).unwrap_or_default();
    // A patch that changes nothing leaves the version as it was.
    if version.is_null() || found["metadata"]["resourceVersion"] != version {
        wire.writes.lock().unwrap().push(write.clone());
        if course == Course::Told {
            wire.tell.send(write).unwrap();
            std::future::pending::<()>().await;
        }
    }
    Response::from_parts(head, axum::body::Body::from(body))
}

impl WireState {
    async fn forward(&self, parts: &Parts, body: Bytes) -> Response {
        let path = parts.uri.path_and_query().unwrap().as_str();
        let mut request = http::Request::builder().method(&parts.method).uri(path);
        for (name, value) in &parts.headers {
            if ["accept", "content-type", "user-agent"].contains(&name.as_str()) {
                request = request.header(name, value);
            }
        }
        let mut response = Response::builder();
        match self.client.send(request.body(Body::from(body)).unwrap()).await {
            Ok(answer) => {
                response = response.status(answer.status());
                if let Some(form) = answer.headers().get(CONTENT_TYPE) {
                    response = response.header(CONTENT_TYPE, form);
                }
                response.body(axum::body::Body::new(answer.into_body())).unwrap()
            }
            Err(error) => {
                let text = axum::body::Body::from(error.to_string());
                response.status(StatusCode::BAD_GATEWAY).body(text).unwrap()
            }
        }
    }

    /// Was this write not met by an edit just now?
    fn is_new(&self, write: &str) -> bool {
        let mut disputed = self.disputed.lock().unwrap();
        !disputed.remove(write) && disputed.insert(write.to_owned())
    }

    /// A person edits the object.
    async fn edit(&self, path: &str) {
        let at = self.writes.lock().unwrap().len();
        let edit = json!({"metadata": {"annotations": {"of-a-person": format!("{at} {path}")}}});
        let request = http::Request::builder()
            .method(Method::PATCH)
            .uri(path.trim_end_matches("/status"))
            .header(CONTENT_TYPE, "application/merge-patch+json")
            .body(Body::from(edit.to_string().into_bytes()));
        let answer = self.client.send(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200, "{path} is edited");
    }
}
