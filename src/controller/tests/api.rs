//! A scripted Kubernetes API: objects in memory, behind the real client.
//!
//! It implements what the controller relies on: resource versions and their conflicts,
//! preconditions, finalizers, `status` as a subresource, server-side apply that drops what was
//! applied before, defaults, and no create in a namespace that is being deleted. Events are
//! accepted and dropped. One write can be made to fail. A request for which the controller's
//! ClusterRole holds no right ends the test.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    api::names::annotation::CLUSTER_UID, controller::testing::example::EXAMPLE, engine::rbac,
};

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The write is refused: another client was faster.
    Conflict,
    Forbidden,
    /// The write fails, and has no effect.
    FailBefore,
    /// The write fails, and was done all the same.
    FailAfter,
    /// The process dies before the request arrives.
    CrashBefore,
    /// The process dies before the answer arrives.
    CrashAfter,
}

impl Fault {
    pub(super) const ALL: [Self; 6] = [
        Self::Conflict,
        Self::Forbidden,
        Self::FailBefore,
        Self::FailAfter,
        Self::CrashBefore,
        Self::CrashAfter,
    ];
    /// Every so many of [`Fault::all`] are tried in CI. It has no divisor in common with the number of
    /// faults, so each of them comes.
    pub(super) const APART: usize = 7;

    /// Returns every fault at each of so many writes.
    pub(super) fn all(writes: usize) -> impl Iterator<Item = (usize, Self)> {
        (0..writes).flat_map(|at| Self::ALL.map(|fault| (at, fault)))
    }
}

/// Identifies an object by plural and name. Names in other namespaces than `default` have their namespace
/// in front: `other/shop`. A namespace itself is `namespaces/<name>`.
pub(super) type Id = (String, String);

/// Returns the name of an object in an [`Id`].
pub(super) fn in_namespace(namespace: &str, name: &str) -> String {
    if ["", "default"].contains(&namespace) {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// Returns the namespace of an object.
pub(super) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("default")
}

pub(super) fn id(plural: &str, name: &str) -> Id {
    (plural.to_owned(), name.to_owned())
}

#[derive(Clone, Default)]
pub(super) struct Api(Arc<Shared>);

#[derive(Default)]
struct Shared {
    server: Mutex<Server>,
    died: Notify,
}

#[derive(Clone, Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<Id, Value>,
    /// Log of the requested writes, also those that were refused.
    pub(super) writes: Vec<String>,
    /// Number of the write that fails, from 0, and how it fails.
    pub(super) fault: Option<(usize, Fault)>,
    pub(super) events_refused: bool,
    /// Reason and note of each event that was published.
    pub(super) events: Vec<(String, String)>,
    /// Preconditions of each delete, in order.
    pub(super) deletes: Vec<Value>,
    /// Objects whose writes are refused, with the status code.
    pub(super) refuses: BTreeMap<Id, u16>,
    /// Volumes that were enlarged stay small.
    pub(super) volumes_stay: bool,
    /// The write before which the process died; it may still arrive.
    late: Option<(Method, Id, bool, Value)>,
    /// Time from which creation times count: one second is added for each change before them.
    pub(super) epoch: Timestamp,
    /// Uid of the cluster that is reconciled.
    pub(super) writer: Option<String>,
    /// Writes of a cluster's reconcile to what is another cluster's, or not provably its own.
    pub(super) trespasses: Vec<String>,
    /// Number of requests of every kind, without those for events.
    pub(super) requests: usize,
    applied: BTreeMap<Id, Value>,
    created: BTreeMap<Id, u32>,
    version: u64,
}

struct Refusal {
    code: u16,
    reason: &'static str,
    details: Value,
}

type Answer = Result<Value, Refusal>;

fn refuse(code: u16, reason: &'static str) -> Refusal {
    Refusal { code, reason, details: json!({}) }
}

/// The object or collection that a path names.
struct Target {
    id: Id,
    status: bool,
    ephemeral: bool,
    /// The namespace of the collection or object, where the path names one.
    namespace: Option<String>,
    /// The path names a collection, to list it or to create objects in it.
    collection: bool,
    /// The API group; empty for the core.
    group: String,
}

impl Target {
    fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, parts) =
            if parts[0] == "api" { ("", &parts[2..]) } else { (parts[1], &parts[3..]) };
        let (namespace, plural, name, part) = match parts {
            ["namespaces", name] => (None, "namespaces", *name, ""),
            ["namespaces", name, "status"] => (None, "namespaces", *name, "status"),
            ["namespaces", ns, plural] => (Some(*ns), *plural, "", ""),
            ["namespaces", ns, plural, name] => (Some(*ns), *plural, *name, ""),
            ["namespaces", ns, plural, name, part @ ("status" | "ephemeralcontainers")] => {
                (Some(*ns), *plural, *name, *part)
            }
            other => panic!("unexpected path {other:?}"),
        };
        let (status, ephemeral) = (part == "status", part == "ephemeralcontainers");
        let (collection, group) = (name.is_empty(), group.to_owned());
        let namespace = namespace.map(str::to_owned);
        let name = match &namespace {
            Some(namespace) if !collection => in_namespace(namespace, name),
            _ => name.to_owned(),
        };
        Self { id: id(plural, &name), status, ephemeral, namespace, collection, group }
    }

    /// Returns the object that a write of `body` is for.
    fn named(&self, body: &Value) -> Id {
        if !self.collection {
            return self.id.clone();
        }
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        id(&self.id.0, &in_namespace(self.namespace.as_deref().unwrap_or_default(), name))
    }

    /// Returns the subresource, as it follows a resource or a name.
    fn part(&self) -> &'static str {
        match self {
            Self { status: true, .. } => "/status",
            Self { ephemeral: true, .. } => "/ephemeralcontainers",
            _ => "",
        }
    }

    /// Fails when the controller's ClusterRole does not allow the request.
    fn authorize(&self, method: &Method) {
        let verb = match method.as_str() {
            "GET" if self.collection => "list",
            "GET" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            other => panic!("unexpected method {other}"),
        };
        let (group, resource) = (&self.group, format!("{}{}", self.id.0, self.part()));
        let held = rbac::controller_rules(&[EXAMPLE.names.plural]);
        assert!(
            rbac::is_allowed(&held, group, &resource, verb),
            "the controller has no right to {verb} {resource} of group {group:?}"
        );
    }
}

impl Api {
    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let patch = parts.headers.get("content-type").map(|t| t.to_str().unwrap());
                let query = parts.uri.query().unwrap_or_default();
                let apply = patch.is_some_and(|patch| patch.contains("apply-patch"));
                let target = Target::of(parts.uri.path());
                target.authorize(&parts.method);
                Ok::<_, Infallible>(api.answer(&parts.method, &target, query, apply, &body).await)
            }
        });
        Client::new(service, "default")
    }

    /// Returns a copy of this server with all its objects.
    pub(super) fn copy(&self) -> Self {
        let server = Mutex::new(self.server().clone());
        Self(Arc::new(Shared { server, died: Notify::new() }))
    }

    /// Waits until the process under test was to die.
    pub(super) async fn died(&self) {
        self.0.died.notified().await;
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        self.0.server.lock().unwrap()
    }

    async fn answer(
        &self,
        method: &Method,
        target: &Target,
        query: &str,
        apply: bool,
        body: &[u8],
    ) -> Response<Full<Bytes>> {
        let body = serde_json::from_slice(body).unwrap_or_default();
        let (answer, died) = self.server().request(method, target, query, apply, body);
        if died {
            self.0.died.notify_one();
            std::future::pending::<()>().await;
        }
        let (code, body) = match answer {
            Ok(body) => (200, body),
            Err(Refusal { code, reason, details }) => {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "code": code, "reason": reason, "message": reason, "details": details,
                });
                (code, status)
            }
        };
        let body = Full::new(Bytes::from(body.to_string()));
        Response::builder().status(code).body(body).unwrap()
    }
}

impl Server {
    /// Returns the answer to a request, and whether the process dies instead of receiving it.
    fn request(
        &mut self,
        method: &Method,
        target: &Target,
        query: &str,
        apply: bool,
        body: Value,
    ) -> (Answer, bool) {
        self.requests += usize::from(target.id.0 != "events");
        if *method == Method::GET {
            return (self.read(target, query), false);
        }
        if target.id.0 == "events" {
            if self.events_refused {
                return (Err(refuse(403, "Forbidden")), false);
            }
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            self.events.push((text("reason"), text("note")));
            return (Ok(body), false);
        }
        if query.contains("dryRun=All") {
            let refused = self.refuses.get(&target.id);
            let answer =
                refused.map_or(Ok(body), |code| Err(refuse(*code, "a class of this server")));
            return (answer, false);
        }
        let named = target.named(&body);
        let name = &named.1;
        self.writes.push(format!("{method} {}/{name}{}", target.id.0, target.part()));
        let number = self.writes.len() - 1;
        if *method == Method::DELETE {
            self.deletes.push(body["preconditions"].clone());
        }
        if let Some(code) = self.refuses.get(&id(&target.id.0, name)) {
            let reason = if *code == 409 { "Conflict" } else { "a policy of this server" };
            return (Err(refuse(*code, reason)), false);
        }
        match self.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault) {
            None => (self.write(method, target, apply, body), false),
            Some(Fault::Conflict) => (Err(refuse(409, "Conflict")), false),
            Some(Fault::Forbidden) => (Err(refuse(403, "Forbidden")), false),
            Some(Fault::FailBefore) => (Err(refuse(500, "InternalError")), false),
            Some(Fault::FailAfter) => {
                drop(self.write(method, target, apply, body));
                (Err(refuse(500, "InternalError")), false)
            }
            Some(Fault::CrashBefore) => {
                self.late = Some((method.clone(), named, apply, body));
                (Ok(Value::Null), true)
            }
            Some(Fault::CrashAfter) => (self.write(method, target, apply, body), true),
        }
    }

    fn read(&self, target: &Target, query: &str) -> Answer {
        if !target.collection {
            return self.objects.get(&target.id).cloned().ok_or_else(|| refuse(404, "NotFound"));
        }
        if let Some(uid) = query.split('&').find_map(|p| p.strip_prefix("fieldSelector=")) {
            let uid = uid.replace("%3D", "=").replace("%2F", "/").replace("%23", "#");
            let uid = uid.strip_prefix("regarding.uid=").expect("events are read by uid");
            let about = |object: &&Value| object["regarding"]["uid"] == uid;
            let items: Vec<_> = self.of(&target.id.0).filter(about).collect();
            return Ok(json!({"metadata": {}, "items": items}));
        }
        let selector = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("labelSelector="))
            .unwrap_or_default()
            .replace("%2F", "/")
            .replace("%3D", "=");
        let (label, wanted) = selector.split_once('=').unwrap();
        let items: Vec<_> = self
            .of(&target.id.0)
            .filter(|object| object["metadata"]["labels"][label] == wanted)
            .filter(|object| target.namespace.as_ref().is_none_or(|ns| namespace(object) == ns))
            .collect();
        Ok(json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}))
    }

    /// Carries out the write before which the process died.
    pub(super) fn carry_out_late(&mut self) {
        let (method, id, apply, body) = self.late.take().unwrap();
        let collection = method == Method::POST;
        let group = String::new();
        let namespace = Some(namespace(&body).to_owned());
        let target = Target { id, status: false, ephemeral: false, namespace, collection, group };
        drop(self.write(&method, &target, apply, body));
    }

    /// Returns the objects of a kind.
    pub(super) fn of(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((p, _), _)| p == plural).map(|(_, object)| object)
    }

    fn write(&mut self, method: &Method, target: &Target, apply: bool, body: Value) -> Answer {
        let id = target.named(&body);
        let found = self.objects.get(&id).cloned();
        let trespass = match (&found, &self.writer) {
            (Some(found), Some(writer)) => self.trespass(method, &id, found, writer),
            _ => None,
        };
        let answer = self.carry_out(method, target, apply, body, (id, found));
        self.trespasses.extend(trespass.filter(|_| answer.is_ok()));
        answer
    }

    fn carry_out(
        &mut self,
        method: &Method,
        target: &Target,
        apply: bool,
        body: Value,
        (id, found): (Id, Option<Value>),
    ) -> Answer {
        match (method.as_str(), found) {
            ("POST", Some(_)) => Err(refuse(409, "AlreadyExists")),
            ("POST", None) => self.create(&id, body),
            ("PATCH", None) if apply => {
                if body["metadata"].get("resourceVersion").is_some() {
                    return Err(refuse(409, "Conflict"));
                }
                self.applied.insert(id.clone(), body.clone());
                self.create(&id, body)
            }
            ("PATCH" | "PUT" | "DELETE", None) => Err(refuse(404, "NotFound")),
            ("DELETE", Some(found)) => {
                agree(&body["preconditions"], &found)?;
                if body["propagationPolicy"] == "Orphan" {
                    self.orphan(&found["metadata"]["uid"]);
                }
                self.delete(&id);
                Ok(found)
            }
            ("PUT", Some(found)) => {
                assert!(target.status, "only status is replaced");
                agree(&body["metadata"], &found)?;
                Ok(self.put(&id, Value::Object(with(&found, "status", &body["status"]))))
            }
            ("PATCH", Some(found)) => {
                agree(&body["metadata"], &found)?;
                let mut next = found.clone();
                if target.ephemeral {
                    // The list is merged by name, new entries first; other fields of the patch are
                    // ignored.
                    let added = body["spec"]["ephemeralContainers"].as_array().unwrap();
                    let old = next["spec"]["ephemeralContainers"].as_array().cloned();
                    let mut list = added.clone();
                    list.extend(old.unwrap_or_default());
                    next["spec"]["ephemeralContainers"] = json!(list);
                    return Ok(self.put(&id, next));
                }
                if apply {
                    let before = self.applied.insert(id.clone(), body.clone());
                    withdraw(&mut next, &before.unwrap_or_default(), &body);
                }
                json_patch::merge(&mut next, &body);
                let other = if target.status { "spec" } else { "status" };
                if found.get(other).is_some() || next.get(other).is_some() {
                    next = Value::Object(with(&next, other, &found[other]));
                }
                Ok(self.put(&id, next))
            }
            (method, _) => panic!("unexpected {method}"),
        }
    }

    /// Returns what is wrong with a write of a cluster's reconcile: the object is another cluster's. An object of a
    /// cluster that is gone may be taken over by one of its name, a claim without marks gets those of the
    /// cluster whose pod uses it, and a claim is deleted by none but the cluster whose uid it bears.
    fn trespass(&self, method: &Method, at: &Id, found: &Value, writer: &str) -> Option<String> {
        let owner = self.owner(found);
        if owner.as_deref() == Some(writer) {
            return None;
        }
        let is_of = |cluster: &Value, uid: &str| cluster["metadata"]["uid"] == uid;
        let of_writer = self.of(EXAMPLE.names.plural).find(|cluster| is_of(cluster, writer));
        let is_near = of_writer.is_some_and(|cluster| namespace(cluster) == namespace(found));
        let name = of_writer.map(|cluster| cluster["metadata"]["name"].clone()).unwrap_or_default();
        let lives = owner.as_deref().is_some_and(|owner| {
            self.of(EXAMPLE.names.plural).any(|cluster| is_of(cluster, owner))
        });
        let labelled = &found["metadata"]["labels"][EXAMPLE.names.cluster_label];
        let pod = self.objects.get(&id("pods", &at.1.replace("example-data-", "")));
        let is_used =
            labelled.is_null() && pod.and_then(|pod| self.owner(pod)).as_deref() == Some(writer);
        let is_free = !lives && is_near && (*labelled == name || is_used);
        let is_deletion = *method == Method::DELETE && at.0 == "persistentvolumeclaims";
        if ["namespaces", "nodes"].contains(&at.0.as_str()) || is_free && !is_deletion {
            return None;
        }
        let owner = owner.unwrap_or_else(|| "no cluster".to_owned());
        Some(format!("{writer}: {method} {}/{} of {owner}", at.0, at.1))
    }

    /// Returns the uid of the cluster that an object was made for; for a pod, that of its
    /// StatefulSet.
    fn owner(&self, object: &Value) -> Option<String> {
        if object["kind"] == EXAMPLE.names.kind {
            return object["metadata"]["uid"].as_str().map(str::to_owned);
        }
        let set = object["metadata"]["ownerReferences"].as_array().into_iter().flatten().find_map(
            |owner| self.of("statefulsets").find(|set| set["metadata"]["uid"] == owner["uid"]),
        );
        let marked = set.unwrap_or(object);
        marked["metadata"]["annotations"][CLUSTER_UID].as_str().map(str::to_owned)
    }

    /// Takes an owner off its pods, as the garbage collector does.
    fn orphan(&mut self, owner: &Value) {
        let owned = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == *owner;
        let pods = self.objects.iter().filter(|((plural, _), pod)| plural == "pods" && owned(pod));
        for id in pods.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.edit(&id, |pod| {
                pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            });
        }
    }

    /// Gives each volume the size that its claim asks for.
    pub(super) fn grow_volumes(&mut self) {
        if self.volumes_stay {
            return;
        }
        let claims = self.objects.keys().filter(|(p, _)| p == "persistentvolumeclaims");
        for id in claims.cloned().collect::<Vec<_>>() {
            self.edit(&id, |claim| {
                claim["status"]["capacity"] = claim["spec"]["resources"]["requests"].clone();
            });
        }
    }

    /// Makes the event by which the StatefulSet controller tells that a quota refused a pod.
    pub(super) fn tell_refusal(&mut self, pod: &str, set: &Value) {
        let (set, uid) = (&set["metadata"]["name"], &set["metadata"]["uid"]);
        let name = format!("{pod}.refused");
        let note = format!(
            "create Pod {pod} in StatefulSet {} failed error: pods \"{pod}\" is forbidden: \
             exceeded quota: small",
            set.as_str().unwrap()
        );
        let body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Warning",
            "metadata": {"name": name, "namespace": "default"},
            "regarding": {"kind": "StatefulSet", "name": set, "uid": uid},
            "reason": "FailedCreate", "note": note, "eventTime": null,
            "deprecatedLastTimestamp": "2026-01-01T00:00:00Z",
        });
        if !self.objects.contains_key(&id("events", &name)) {
            self.add(&id("events", &name), body);
        }
    }

    /// Makes an object as another client would.
    pub(super) fn add(&mut self, id: &Id, body: Value) {
        assert!(self.create(id, body).is_ok(), "the namespace is open");
    }

    fn create(&mut self, id: &Id, mut body: Value) -> Answer {
        let closed = self.objects.get(&("namespaces".to_owned(), namespace(&body).to_owned()));
        if closed.is_some_and(|ns| ns["metadata"].get("deletionTimestamp").is_some()) {
            let causes = json!({"causes": [{"reason": "NamespaceTerminating", "message": ""}]});
            return Err(Refusal { code: 403, reason: "Forbidden", details: causes });
        }
        let times = self.created.entry(id.clone()).or_default();
        *times += 1;
        body["metadata"]["uid"] = json!(format!("{}/{}#{times}", id.0, id.1));
        body["metadata"]["generation"] = json!(1);
        let made = self.epoch.as_second() + i64::try_from(self.version).expect("it is small");
        let made = Timestamp::from_second(made).expect("it is no other age");
        body["metadata"]["creationTimestamp"] = json!(made);
        self.objects.insert(id.clone(), Value::Null);
        Ok(self.put(id, body))
    }

    /// Stores an object; an equal one keeps its resource version.
    pub(super) fn put(&mut self, id: &Id, mut object: Value) -> Value {
        let before = self.objects[id].clone();
        defaults(&mut object);
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        if object == before {
            return object;
        }
        if before["spec"] != object["spec"] && !before.is_null() {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if object["metadata"].get("deletionTimestamp").is_some() && !held {
            self.objects.remove(id);
        } else {
            self.objects.insert(id.clone(), object.clone());
        }
        object
    }

    /// Changes an object as another client would.
    pub(super) fn edit(&mut self, id: &Id, change: impl FnOnce(&mut Value)) {
        let mut object = self.objects[id].clone();
        change(&mut object);
        self.put(id, object);
    }

    pub(super) fn delete(&mut self, id: &Id) {
        self.edit(id, |object| {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    }
}

fn with(object: &Value, key: &str, value: &Value) -> serde_json::Map<String, Value> {
    let mut object = object.as_object().unwrap().clone();
    if value.is_null() {
        object.remove(key);
    } else {
        object.insert(key.to_owned(), value.clone());
    }
    object
}

/// Fails unless uid and resource version in `given`, where set, are those of `found`.
fn agree(given: &Value, found: &Value) -> Result<(), Refusal> {
    let differs = |key: &str| !given[key].is_null() && given[key] != found["metadata"][key];
    if differs("uid") || differs("resourceVersion") {
        return Err(refuse(409, "Conflict"));
    }
    Ok(())
}

/// Removes the fields that an earlier apply set and this one does not.
fn withdraw(object: &mut Value, before: &Value, now: &Value) {
    let (Some(object), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (key, before) in before {
        match (now.get(key), object.get_mut(key)) {
            (None, _) if key != "resourceVersion" => {
                object.remove(key);
            }
            (Some(now), Some(inner)) => withdraw(inner, before, now),
            _ => {}
        }
    }
}

/// Fills in a few of the fields that the server fills in.
fn defaults(object: &mut Value) {
    let missing = |part: &mut Value, key: &str, value: Value| {
        let part = part.as_object_mut().unwrap();
        part.entry(key.to_owned()).or_insert(value);
    };
    match object["kind"].as_str().unwrap() {
        "Service" => missing(&mut object["spec"], "sessionAffinity", json!("None")),
        "StatefulSet" => {
            let pod = &mut object["spec"]["template"]["spec"];
            missing(pod, "restartPolicy", json!("Always"));
            for container in pod["containers"].as_array_mut().unwrap() {
                missing(container, "terminationMessagePolicy", json!("File"));
            }
        }
        _ => {}
    }
}
