//! A kube-apiserver small enough to read: objects in a map, reviews as told.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::client::{Client, SERVICE};

/// Resources that it keeps, by the last part of their collections' paths.
const COLLECTIONS: [(&str, &str, &str); 16] = [
    ("configmaps", "v1", "ConfigMap"),
    ("nodes", "v1", "Node"),
    ("events", "v1", "Event"),
    ("pods", "v1", "Pod"),
    ("secrets", "v1", "Secret"),
    ("namespaces", "v1", "Namespace"),
    ("apiservices", "apiregistration.k8s.io/v1", "APIService"),
    ("statefulsets", "apps/v1", "StatefulSet"),
    ("deployments", "apps/v1", "Deployment"),
    ("services", "v1", "Service"),
    ("persistentvolumeclaims", "v1", "PersistentVolumeClaim"),
    ("poddisruptionbudgets", "policy/v1", "PodDisruptionBudget"),
    ("storageclasses", "storage.k8s.io/v1", "StorageClass"),
    ("clusterupgrades", "provision.containership.io/v3", "ClusterUpgrade"),
    (
        "validatingwebhookconfigurations",
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
    ),
    (
        "mutatingwebhookconfigurations",
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
    ),
];

/// A running server; everything about it can be changed while it runs.
#[derive(Clone)]
pub(crate) struct Kube {
    pub(crate) url: String,
    state: Arc<Mutex<Inner>>,
    events: broadcast::Sender<(String, Value)>,
    hold: watch::Sender<bool>,
    away: watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    revision: u64,
    objects: BTreeMap<String, Value>,
    /// What happened: revision, path and event, for watches that begin in the past.
    history: Vec<(u64, String, Value)>,
    /// Paths of pods → what they logged.
    logs: BTreeMap<String, String>,
    /// Token → user of the TokenReview's answer.
    tokens: BTreeMap<String, Value>,
    /// `user verb resource-or-path`
    allowed: Vec<String>,
    /// The same, of what an authorizer refuses whatever another one says.
    denied: Vec<String>,
    reviews: Vec<Value>,
    /// TokenReviews that wait, while they are held.
    held: usize,
    down: bool,
    /// Watches cannot begin before this revision.
    forgotten: u64,
    /// Requests that were refused because it is away.
    refused: Vec<String>,
    /// Objects that nobody may read, by their paths.
    hidden: Vec<String>,
    /// A collection that is not shown yet, by the last part of its path.
    withheld: String,
    /// Our API server, as the aggregator calls it.
    aggregated: Option<Arc<Client>>,
    /// Requests for our group: when, and method with path and query.
    asked: Vec<(Instant, String)>,
}

pub(crate) const APISERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

impl Kube {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kube = Self {
            url,
            state: Arc::default(),
            events: broadcast::channel(1000).0,
            hold: watch::Sender::default(),
            away: watch::Sender::default(),
        };
        let router = Router::new().fallback(answer).with_state(kube.clone());
        #[expect(clippy::disallowed_methods, reason = "lives as long as the test's runtime")]
        tokio::spawn(async move { axum::serve(listener, router).await });
        for version in ["v1beta1", "v1alpha1"] {
            let name = format!("{version}.navigator.jetstack.io");
            kube.put(APISERVICES, &name, json!({"spec": {"group": "navigator.jetstack.io"}}));
        }
        for namespace in ["navigator", "db"] {
            kube.put("/api/v1/namespaces", namespace, json!({}));
        }
        kube
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    pub(crate) fn put(&self, collection: &str, name: &str, object: Value) {
        self.store(&format!("{collection}/{name}"), object);
    }

    /// What a pod has logged.
    pub(crate) fn set_log(&self, pod: &str, log: &str) {
        self.lock().logs.insert(pod.to_owned(), log.to_owned());
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut state = self.lock();
        if let Some(mut object) = state.objects.remove(path) {
            state.revision += 1;
            object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
            self.happened(&mut state, path, json!({"type": "DELETED", "object": object}));
        }
    }

    /// Keeps an event and sends it to watches. The caller's lock keeps new watches from beginning.
    fn happened(&self, state: &mut Inner, path: &str, event: Value) {
        let revision = state.revision;
        state.history.push((revision, path.to_owned(), event.clone()));
        drop(self.events.send((path.to_owned(), event)));
    }

    pub(crate) fn add_token(&self, token: &str, user: Value) {
        self.lock().tokens.insert(token.to_owned(), user);
    }

    /// Lets `user` do `verb` to a resource (`pilots/status`) or a path.
    pub(crate) fn allow(&self, user: &str, verb: &str, what: &str) {
        self.lock().allowed.push(format!("{user} {verb} {what}"));
    }

    /// Has an authorizer refuse that, whatever another one allows.
    pub(crate) fn deny(&self, user: &str, verb: &str, what: &str) {
        self.lock().denied.push(format!("{user} {verb} {what}"));
    }

    pub(crate) fn remove_token(&self, token: &str) {
        self.lock().tokens.remove(token);
    }

    /// Takes back what was allowed.
    pub(crate) fn forbid(&self, user: &str, verb: &str, what: &str) {
        let rule = format!("{user} {verb} {what}");
        self.lock().allowed.retain(|allowed| *allowed != rule);
    }

    /// Lets nobody read an object, by its path.
    pub(crate) fn hide(&self, path: &str) {
        self.lock().hidden.push(path.to_owned());
    }

    /// Leaves TokenReviews without an answer, or answers those that wait.
    pub(crate) fn hold_token_reviews(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    pub(crate) fn held_token_reviews(&self) -> usize {
        self.lock().held
    }

    /// How many reviews of this kind were asked for.
    pub(crate) fn reviews(&self, kind: &str) -> usize {
        self.lock().reviews.iter().filter(|review| review["kind"] == kind).count()
    }

    /// SubjectAccessReviews for this user, each by `spec`; the first ones first.
    pub(crate) fn asked_of(&self, user: &str) -> Vec<Value> {
        let state = self.lock();
        let specs = state.reviews.iter().map(|review| &review["spec"]);
        specs.filter(|spec| spec["user"] == user).cloned().collect()
    }

    /// Answers 503 to everything.
    pub(crate) fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// Ends all watches and answers 503 to everything, with the advice to come back in an hour; or
    /// is back, and knows no changes from before.
    pub(crate) fn set_away(&self, away: bool) {
        let mut state = self.lock();
        state.refused.clear();
        state.forgotten = state.revision;
        drop(state);
        self.away.send_replace(away);
    }

    /// Paths that were asked for while it was away, as often as they were.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.lock().refused.clone()
    }

    /// Answers 503 to requests for one collection; an empty name shows all again.
    pub(crate) fn withhold(&self, plural: &str) {
        plural.clone_into(&mut self.lock().withheld);
    }

    /// Requests for our group since then, whatever became of them: method, path and query.
    pub(crate) fn asked_since(&self, start: Instant) -> Vec<String> {
        let state = self.lock();
        let since = state.asked.iter().filter(|(when, _)| *when >= start);
        since.map(|(_, what)| what.clone()).collect()
    }

    /// Requests for our group between two moments.
    pub(crate) fn asked_between(&self, start: Instant, end: Instant) -> Vec<String> {
        let state = self.lock();
        let within = state.asked.iter().filter(|(when, _)| (start..end).contains(when));
        within.map(|(_, what)| what.clone()).collect()
    }

    /// Passes requests for our group on to `server`, in the name of the token's user.
    pub(crate) fn aggregate(&self, server: Option<Arc<Client>>) {
        self.lock().aggregated = server;
    }

    /// All objects of a collection, by their path.
    pub(crate) fn list(&self, collection: &str) -> Vec<Value> {
        let below = format!("{collection}/");
        let state = self.lock();
        let found = state.objects.iter().filter(|(path, _)| path.starts_with(&below));
        found.map(|(_, object)| object.clone()).collect()
    }

    fn store(&self, path: &str, mut object: Value) -> Value {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let plural = collection.rsplit('/').next().unwrap();
        let (_, version, kind) = COLLECTIONS.iter().find(|(own, ..)| *own == plural).unwrap();
        let mut state = self.lock();
        state.revision += 1;
        // Two groups serve Events, so they name their own version.
        if object["apiVersion"].is_null() {
            object["apiVersion"] = json!(version);
        }
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let known = state.objects.insert(path.to_owned(), object.clone()).is_some();
        let kind = if known { "MODIFIED" } else { "ADDED" };
        self.happened(&mut state, path, json!({"type": kind, "object": object}));
        object
    }
}

fn reply_json(code: StatusCode, body: &Value) -> Response {
    (code, [("content-type", "application/json")], body.to_string()).into_response()
}

fn status(code: u16, reason: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": reason, "reason": reason, "code": code,
    });
    reply_json(StatusCode::from_u16(code).unwrap(), &body)
}

/// Forwards as the aggregator does: user, groups and extras in headers, its certificate to vouch.
async fn forward(user: &Value, server: &Client, mut request: Request) -> std::io::Result<Response> {
    let text = |value: &Value| value.as_str().unwrap_or_default().parse::<HeaderValue>().unwrap();
    let headers = request.headers_mut();
    headers.remove("authorization");
    headers.insert("host", SERVICE.parse().unwrap());
    headers.insert("x-remote-user", text(&user["username"]));
    for group in user["groups"].as_array().into_iter().flatten() {
        headers.append("x-remote-group", text(group));
    }
    for (key, values) in user["extra"].as_object().into_iter().flatten() {
        let key = format!("x-remote-extra-{}", key.replace('/', "%2f"));
        let key: HeaderName = key.parse().unwrap();
        for value in values.as_array().into_iter().flatten() {
            headers.append(key.clone(), text(value));
        }
    }
    let failed = |error: hyper::Error| std::io::Error::other(error);
    let io = TokioIo::new(server.connect().await?);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(failed)?;
    #[expect(clippy::disallowed_methods, reason = "ends with the connection")]
    tokio::spawn(connection);
    Ok(sender.send_request(request).await.map_err(failed)?.map(Body::new))
}

async fn answer(State(kube): State<Kube>, request: Request) -> Response {
    let ours = request.uri().path().starts_with("/apis/navigator.jetstack.io/");
    if ours {
        let what = format!("{} {}", request.method(), request.uri());
        kube.lock().asked.push((Instant::now(), what));
    }
    if ours && !kube.lock().down {
        let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        let (user, server) = {
            let state = kube.lock();
            (state.tokens.get(token).cloned(), state.aggregated.clone())
        };
        let Some(user) = user else { return status(401, "Unauthorized") };
        let Some(server) = server else { return status(503, "ServiceUnavailable") };
        let answer = forward(&user, &server, request).await;
        return answer.unwrap_or_else(|_| status(503, "ServiceUnavailable"));
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let body = axum::body::to_bytes(body, 1 << 22).await.unwrap();
    if kube.lock().down {
        return status(503, "ServiceUnavailable");
    }
    if *kube.away.borrow() {
        kube.lock().refused.push(path);
        let mut answer = status(503, "ServiceUnavailable");
        answer.headers_mut().insert("retry-after", HeaderValue::from_static("3600"));
        return answer;
    }
    if kube.lock().hidden.contains(&path) {
        return status(403, "Forbidden");
    }
    let plural = path.rsplit('/').next().unwrap_or_default();
    if kube.lock().withheld == plural {
        return status(503, "ServiceUnavailable");
    }
    if path == "/version" {
        let info = json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "", "buildDate": "",
            "gitTreeState": "", "goVersion": "", "compiler": "", "platform": "linux/amd64",
        });
        return reply_json(StatusCode::OK, &info);
    }
    if let Some(pod) = path.strip_suffix("/log") {
        let log = kube.lock().logs.get(pod).cloned().filter(|_| !query.contains("previous=true"));
        return log.map_or_else(|| status(404, "NotFound"), IntoResponse::into_response);
    }
    match plural {
        "tokenreviews" => {
            if *kube.hold.borrow() {
                kube.lock().held += 1;
                // The sender is in `kube`.
                drop(kube.hold.subscribe().wait_for(|hold| !hold).await);
            }
            return review_token(&kube, &body);
        }
        "subjectaccessreviews" => return review_access(&kube, &body),
        "selfsubjectaccessreviews" => {
            let header = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
            let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
            let user = kube.lock().tokens.get(token).cloned().unwrap_or_default();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            review["spec"]["user"] = user["username"].clone();
            review["spec"]["groups"] = user["groups"].clone();
            return review_access(&kube, &review.to_string().into());
        }
        _ => {}
    }
    let collection = COLLECTIONS.iter().find(|(own, ..)| *own == plural);
    match (&parts.method, collection) {
        (&Method::GET, Some(_)) if query.contains("watch=true") => stream(&kube, &path, &query),
        (&Method::GET, Some((_, version, kind))) => {
            let state = kube.lock();
            let below = format!("{path}/");
            // A list of all namespaces names none.
            let group = path.strip_suffix(plural).unwrap_or_default();
            let of_any_namespace = |key: &str| {
                let rest = key.strip_prefix(group).and_then(|key| key.strip_prefix("namespaces/"));
                rest.is_some_and(|rest| rest.split('/').nth(1) == Some(plural))
            };
            let items: Vec<_> = state
                .objects
                .iter()
                .filter(|(key, _)| {
                    let named = key.strip_prefix(&below);
                    named.is_some_and(|name| !name.contains('/')) || of_any_namespace(key)
                })
                .map(|(_, object)| object.clone())
                .collect();
            reply_json(
                StatusCode::OK,
                &json!({
                    "apiVersion": version, "kind": format!("{kind}List"),
                    "metadata": {"resourceVersion": state.revision.to_string()}, "items": items,
                }),
            )
        }
        (&Method::POST, Some(_)) => {
            let object: Value = serde_json::from_slice(&body).unwrap();
            let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
            if kube.get(&path).is_some() {
                return status(409, "AlreadyExists");
            }
            let stored = kube.store(&path, object);
            reply_json(StatusCode::CREATED, &stored)
        }
        (method, _) => {
            let Some(mut found) = kube.get(&path) else { return status(404, "NotFound") };
            match *method {
                Method::GET => {}
                Method::PUT => {
                    let object: Value = serde_json::from_slice(&body).unwrap();
                    let seen = &object["metadata"]["resourceVersion"];
                    if !seen.is_null() && *seen != found["metadata"]["resourceVersion"] {
                        return status(409, "Conflict");
                    }
                    found = kube.store(&path, object);
                }
                Method::PATCH => {
                    json_patch::merge(&mut found, &serde_json::from_slice(&body).unwrap());
                    if !query.contains("dryRun=All") {
                        found = kube.store(&path, found);
                    }
                }
                _ => return status(405, "MethodNotAllowed"),
            }
            reply_json(StatusCode::OK, &found)
        }
    }
}

/// Changes after a revision; without one from now on.
fn stream(kube: &Kube, collection: &str, query: &str) -> Response {
    let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
    let from = from.and_then(|from| from.parse::<u64>().ok());
    if from.is_some_and(|from| from > 0 && from < kube.lock().forgotten) {
        let object = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
            "message": "too old resource version", "code": 410,
        });
        return format!("{}\n", json!({"type": "ERROR", "object": object})).into_response();
    }
    let below = format!("{collection}/");
    let (earlier, receiver) = {
        let state = kube.lock();
        let from = from.filter(|from| *from > 0).unwrap_or(u64::MAX);
        let earlier = state.history.iter().filter(|(at, ..)| *at > from);
        let earlier: Vec<_> =
            earlier.map(|(_, path, event)| (path.clone(), event.clone())).collect();
        (earlier, kube.events.subscribe())
    };
    let later = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.ok().map(|event| (event, receiver))
    });
    let events = futures::stream::iter(earlier).chain(later);
    let lines = events.filter_map(move |(path, event)| {
        let line = path.starts_with(&below).then(|| Ok::<_, Infallible>(format!("{event}\n")));
        std::future::ready(line)
    });
    let mut away = kube.away.subscribe();
    let cut = async move { drop(away.wait_for(|away| *away).await) };
    Body::from_stream(lines.take_until(Box::pin(cut))).into_response()
}

fn review_token(kube: &Kube, body: &Bytes) -> Response {
    let mut review: Value = serde_json::from_slice(body).unwrap();
    let mut state = kube.lock();
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    review["status"] = match state.tokens.get(token) {
        Some(user) => json!({"authenticated": true, "user": user}),
        None => json!({"authenticated": false}),
    };
    state.reviews.push(review.clone());
    reply_json(StatusCode::CREATED, &review)
}

fn review_access(kube: &Kube, body: &Bytes) -> Response {
    let mut review: Value = serde_json::from_slice(body).unwrap();
    let mut state = kube.lock();
    let spec = &review["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resource = &spec["resourceAttributes"];
    let (verb, what) = if resource.is_object() {
        let mut what = text(&resource["resource"]);
        if let Some(subresource) = resource["subresource"].as_str() {
            what = format!("{what}/{subresource}");
        }
        (text(&resource["verb"]), what)
    } else {
        let path = &spec["nonResourceAttributes"];
        (text(&path["verb"]), text(&path["path"]))
    };
    let asked = format!("{} {verb} {what}", text(&spec["user"]));
    let masters =
        spec["groups"].as_array().is_some_and(|all| all.contains(&json!("system:masters")));
    let allowed = masters || state.allowed.contains(&asked);
    let denied = state.denied.contains(&asked);
    let reason = if allowed && !denied { "" } else { "told so" };
    review["status"] = json!({"allowed": allowed, "denied": denied, "reason": reason});
    state.reviews.push(review.clone());
    reply_json(StatusCode::CREATED, &review)
}
