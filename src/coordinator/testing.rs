//! A kube-apiserver in memory, as far as the coordinator goes: lists, merge patches and status by
//! resourceVersion, evictions, deletion with finalizers. Some answers can be scripted.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::{metrics::Metrics, stirring::StatusWriter, upgrade::UpgradeCoordinator};
use crate::{
    api::{database_names::DatabaseNames, names},
    runtime::events::EventPublisher,
};

/// A database of which there is nothing but its names.
pub(crate) const EXAMPLE: DatabaseNames = DatabaseNames {
    kind: "ExampleCluster",
    plural: "exampleclusters",
    singular: "examplecluster",
    short_names: &[],
    word: "example",
    title: "Example",
    prefix: "ex",
    container: "example",
    data_volume: "example-data",
    data_dir: "/var/lib/example",
    cluster_label: "navigator.jetstack.io/example-cluster-name",
    pool_label: "navigator.jetstack.io/example-node-pool-name",
    predicates: &[],
    without_effect: &[],
    ports: &[],
    node_ports: &[],
    leader_lease: |cluster| format!("example-{cluster}-leaderelection"),
    role: "-pilot",
    services: &["-nodes"],
};

/// What writes status by this client.
pub(crate) fn status_writer(client: Client) -> StatusWriter {
    StatusWriter {
        writer: client.clone(),
        namespace: names::CORE_NAMESPACE.to_owned(),
        events: EventPublisher::new(client, names::COORDINATOR, "test".to_owned()),
    }
}

/// A coordinator that reads by one client and writes by another.
pub(crate) fn coordinator(client: Client, writer: Client, metrics: Metrics) -> UpgradeCoordinator {
    UpgradeCoordinator {
        writer,
        events: EventPublisher::new(client.clone(), names::COORDINATOR, "test".to_owned()),
        client,
        namespace: names::CORE_NAMESPACE.to_owned(),
        databases: vec![&EXAMPLE],
        enabled: true,
        metrics,
        refusals: BTreeMap::new(),
    }
}

#[derive(Clone, Default)]
pub(crate) struct FakeServer(Arc<Mutex<FakeObjects>>);

#[derive(Default)]
pub(crate) struct FakeObjects {
    /// By path.
    pub(crate) objects: BTreeMap<String, Value>,
    /// Writes that were asked for, as `PATCH /api/v1/nodes/m-1`, without events.
    pub(crate) writes: Vec<String>,
    /// Methods and paths of all requests so far.
    pub(crate) requests: BTreeSet<(String, String)>,
    /// Codes by which requests are answered whose method and path begin so.
    pub(crate) refuses: BTreeMap<String, u16>,
    /// Called with each write that was carried out, before it is answered.
    pub(crate) written: Option<WriteHook>,
    version: u64,
}

type FakeAnswer = (u16, Value);
type WriteHook = Box<dyn Fn(&str) + Send>;

fn failure(code: u16, reason: &str) -> FakeAnswer {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": reason,
    });
    (code, body)
}

impl FakeServer {
    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let mut objects = server.lock();
                let before = objects.writes.len();
                let (code, body) = objects.answer(&parts.method, parts.uri.path(), &body);
                if let (Some(written), Some(write)) = (&objects.written, objects.writes.get(before))
                {
                    written(write);
                }
                drop(objects);
                let body = Full::new(Bytes::from(body.to_string()));
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FakeObjects> {
        self.0.lock().unwrap()
    }
}

impl FakeObjects {
    /// Puts an object at a path, as another client would.
    pub(crate) fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["name"] = json!(path.rsplit('/').next());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    /// Changes an object as another client would.
    pub(crate) fn edit(&mut self, path: &str, change: &Value) {
        let mut object = self.objects[path].clone();
        json_patch::merge(&mut object, change);
        self.put(path, object);
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> FakeAnswer {
        self.requests.insert((method.to_string(), path.to_owned()));
        let request = format!("{method} {path}");
        if path.ends_with("/events") {
            return (201, body.clone());
        }
        if *method != Method::GET {
            self.writes.push(request.clone());
        }
        let refused = self.refuses.iter().find(|(start, _)| request.starts_with(start.as_str()));
        if let Some((_, code)) = refused {
            return failure(*code, "refused");
        }
        if path == "/version" {
            return (
                200,
                json!({
                    "major": "1", "minor": "34", "gitVersion": "v1.34.4", "gitCommit": "",
                    "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
                    "platform": "",
                }),
            );
        }
        let stem = path.trim_end_matches("/status").trim_end_matches("/eviction");
        let Some(found) = self.objects.get(stem).cloned() else {
            return self.list(method, path);
        };
        let given = body["metadata"]["resourceVersion"].clone();
        if !given.is_null() && given != found["metadata"]["resourceVersion"] {
            return failure(409, "Conflict");
        }
        match method.as_str() {
            "GET" => (200, found),
            // An eviction.
            "POST" => {
                let uid = &body["deleteOptions"]["preconditions"]["uid"];
                if !uid.is_null() && *uid != found["metadata"]["uid"] {
                    return failure(409, "Conflict");
                }
                self.objects.remove(stem);
                (201, json!({"kind": "Status", "status": "Success"}))
            }
            "DELETE" => {
                let mut next = found;
                next["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                (200, self.settle(stem, next))
            }
            "PUT" => {
                assert!(path.ends_with("/status"), "only status is replaced");
                let mut next = found;
                next["status"] = body["status"].clone();
                (200, self.settle(stem, next))
            }
            "PATCH" => {
                let mut next = found.clone();
                json_patch::merge(&mut next, body);
                if next == found { (200, found) } else { (200, self.settle(stem, next)) }
            }
            other => panic!("unexpected {other}"),
        }
    }

    /// Stores an object, or lets it go where it is deleted and nothing holds it.
    fn settle(&mut self, path: &str, object: Value) -> Value {
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let object = self.put(path, object);
        if object["metadata"].get("deletionTimestamp").is_some() && !held {
            self.objects.remove(path);
        }
        object
    }

    /// Lists the objects below a path, of one namespace or of all.
    fn list(&self, method: &Method, path: &str) -> FakeAnswer {
        let (_, plural) = path.rsplit_once('/').unwrap();
        let is_of = |at: &str| {
            let mut parts = at.rsplit('/');
            parts.next();
            parts.next() == Some(plural)
        };
        let is_list = ["nodes", "pods", "persistentvolumes", "pilots", "exampleclusters"];
        if *method != Method::GET || !(is_list.contains(&plural) || plural == "clusterupgrades") {
            return failure(404, "NotFound");
        }
        let items: Vec<_> =
            self.objects.iter().filter(|(at, _)| is_of(at)).map(|(_, object)| object).collect();
        (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
    }
}
