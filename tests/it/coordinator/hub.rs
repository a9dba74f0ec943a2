//! A hub that answers wrongly in every way, before a real kube-apiserver: what must not be deleted is
//! not, and what must be is. The hub is a reference of these tests; Navigator has none.

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body, extract::Request, extract::State, response::Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    fleet::{Fleet, node},
    process::Coordinator,
    wire::{Course, Wire},
};

const ORGANIZATION: &str = "11111111-0000-4000-8000-000000000001";
pub(super) const CLUSTER: &str = "22222222-0000-4000-8000-000000000002";
const POOL: &str = "44444444-0000-4000-8000-000000000004";
const CORE: &str = "/api/v1/namespaces/containership-core";
const USERS: &str = "/apis/containership.io/v3/namespaces/containership-core/users";
const REGISTRIES: &str = "/apis/containership.io/v3/namespaces/containership-core/registries";

fn id(number: usize) -> String {
    format!("33333333-0000-4000-8000-{number:012}")
}

/// How the hub answers about Users, and about manifests.
#[derive(Clone, Debug)]
pub(super) enum HubFault {
    None,
    Code(u16),
    /// It accepts the request and says nothing.
    Slow,
    Cut,
    Redirect(String),
    /// So many MiB.
    Large(usize),
}

#[derive(Default)]
struct HubState {
    /// What is answered, by path.
    answers: BTreeMap<String, Value>,
    fault: Option<HubFault>,
    /// Path, answer's code and token of each request.
    requests: Vec<(String, u16, String)>,
}

/// A hub on this machine; it ends with this.
pub(super) struct ReferenceHub {
    url: String,
    state: Arc<Mutex<HubState>>,
    /// With the token.
    folder: TempDir,
    _task: JoinSet<()>,
}

impl ReferenceHub {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hub", listener.local_addr().unwrap());
        let state: Arc<Mutex<HubState>> = Arc::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&state));
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "secret-1\n").unwrap();
        Self { url, state, folder, _task: task }
    }

    /// Lists these objects from now on.
    fn list(&self, path: &str, items: Vec<Value>) {
        self.say(path, items.into());
    }

    /// Answers so from now on.
    pub(super) fn say(&self, path: &str, answer: Value) {
        let path = format!("/hub/v3/organizations/{ORGANIZATION}/{path}");
        self.state.lock().unwrap().answers.insert(path, answer);
    }

    pub(super) fn fail(&self, fault: HubFault) {
        self.state.lock().unwrap().fault = Some(fault);
    }

    /// Returns path, answer's code and token of each request.
    pub(super) fn requests(&self) -> Vec<(String, u16, String)> {
        self.state.lock().unwrap().requests.clone()
    }

    /// The flags by which a coordinator asks this.
    pub(super) fn flags(&self) -> [String; 4] {
        [
            format!("--hub={}", self.url),
            format!("--hub-folder={}", self.folder.path().display()),
            format!("--organization-id={ORGANIZATION}"),
            format!("--cluster-id={CLUSTER}"),
        ]
    }

    fn start_coordinator(&self, wire: &Wire) -> Coordinator {
        let own = self.flags();
        let mut flags: Vec<&str> = own.iter().map(String::as_str).collect();
        flags.push("--registries");
        Coordinator::only(&wire.url, &flags)
    }
}

async fn answer(State(state): State<Arc<Mutex<HubState>>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let path = head.uri.path().to_owned();
    let word = |name: &str| {
        let value = head.headers.get(name);
        value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    };
    let (token, known) = (word("authorization"), word("if-none-match"));
    let (said, fault) = {
        let state = state.lock().unwrap();
        let is_faulty = path.ends_with("/users") || path.contains("/plugins/");
        let fault = state.fault.clone().filter(|_| is_faulty);
        (state.answers.get(&path).cloned(), fault.unwrap_or(HubFault::None))
    };
    let text = json!(said).to_string();
    let tag = format!("\"{}-{}\"", text.len(), text.bytes().map(u64::from).sum::<u64>());
    let (code, text) = match fault {
        HubFault::None if said.is_none() => (404, String::new()),
        HubFault::None if known == tag => (304, String::new()),
        HubFault::None => (200, text),
        HubFault::Code(code) => (code, "[]".to_owned()),
        HubFault::Slow => pending().await,
        HubFault::Cut => (200, text[..text.len() / 2].to_owned()),
        HubFault::Redirect(_) => (302, String::new()),
        HubFault::Large(size) => (200, format!("[]{}", " ".repeat(size << 20))),
    };
    state.lock().unwrap().requests.push((path, code, token));
    let mut answer = Response::builder().status(code).header("etag", tag);
    if let HubFault::Redirect(to) = fault {
        answer = answer.header("location", to);
    }
    answer.body(Body::from(text)).unwrap()
}

fn user(number: usize) -> Value {
    json!({
        "id": id(number), "name": format!("Person {number}"), "email": "p@example.org",
        "avatar_url": null, "added_at": "1547475212", "ssh_keys": [],
    })
}

/// The uids of Users by name.
async fn uids(fleet: &Fleet) -> BTreeMap<String, String> {
    let word = |user: &Value, field: &str| user["metadata"][field].as_str().unwrap().to_owned();
    let users = fleet.list(USERS).await;
    users.iter().map(|user| (word(user, "name"), word(user, "uid"))).collect()
}

async fn until_users_are(fleet: &Fleet, wanted: usize) {
    let what = format!("{wanted} users");
    fleet
        .until(&what, async |fleet| {
            let count = fleet.list(USERS).await.len();
            if count == wanted { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
}

/// Writes of objects, and not of their status, to these kinds.
fn object_writes(wire: &Wire) -> Vec<String> {
    let of_hub = |write: &String| {
        let kinds = ["/users/", "labels/", "/registries/"];
        kinds.iter().any(|kind| write.contains(kind)) && !write.ends_with("/status")
    };
    wire.writes().into_iter().filter(of_hub).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_answers_wrongly_takes_nothing_away_and_a_real_deletion_is_carried_out() {
    let fleet = Fleet::new(&["m1"], Course::Open).await;
    fleet.clear_objects().await;
    let label = json!({"metadata": {"labels": {"containership.io/node-pool-id": POOL}}});
    fleet.patch(&node("m1"), &label).await;
    let person = |name: &str| {
        json!({
            "apiVersion": "containership.io/v3", "kind": "User",
            "metadata": {"name": name}, "spec": {"name": "of a person"},
        })
    };
    fleet.make(USERS, &person("anne")).await;
    // A name that the hub will use, too.
    fleet.make(USERS, &person(&id(99))).await;

    let hub = ReferenceHub::start().await;
    let below = |path: &str| format!("clusters/{CLUSTER}/{path}");
    let mut people: Vec<Value> = (0..10).map(user).collect();
    people.push(user(99));
    hub.list("users", people.clone());
    let tier = json!({"id": id(1), "key": "cluster.containership.io/tier", "value": "gold"});
    hub.list(&below("labels"), vec![tier]);
    hub.list(&below("node-pools"), vec![json!({"id": POOL, "name": "workers"})]);
    let disk = json!({"id": id(1), "key": "nodepool.containership.io/disk", "value": "ssd"});
    hub.list(&below(&format!("node-pools/{POOL}/labels")), vec![disk]);
    hub.list("registries", vec![json!({
        "id": id(1), "organization_id": ORGANIZATION, "description": "ours", "provider": "private",
        "serveraddress": "registry.example.org",
        "credentials": {"username": "bob", "password": "one"},
    })]);
    // Kinds that are not asked for yet answer, too.
    for path in [below("plugins"), below("roles"), "role-bindings".to_owned()] {
        hub.list(&path, Vec::new());
    }

    // All that it wants comes to the cluster, and on from there.
    let wire = fleet.limited_wire(Course::Open).await;
    let coordinator = hub.start_coordinator(&wire);
    until_users_are(&fleet, 12).await;
    fleet.told("ForeignObject", &id(99)).await;
    let foreign = fleet.get(&format!("{USERS}/{}", id(99))).await.unwrap();
    assert_eq!(foreign["spec"]["name"], "of a person");
    let ours = fleet.get(&format!("{USERS}/{}", id(0))).await.unwrap();
    assert_eq!(ours["spec"]["name"], "Person 0");
    assert_eq!(ours["metadata"]["labels"]["containership.io/managed"], "true");
    fleet
        .until("labels on the Node, credentials in a Secret", async |fleet| {
            let machine = fleet.get(&node("m1")).await.unwrap();
            let labels = machine["metadata"]["labels"].clone();
            let registry = fleet.get(&format!("{REGISTRIES}/{}", id(1))).await.unwrap_or_default();
            let moved = registry["spec"]["credentialsSecretRef"].is_object()
                && registry["spec"]["credentials"].is_null();
            let good = labels["cluster.containership.io/tier"] == "gold"
                && labels["nodepool.containership.io/disk"] == "ssd";
            if good && moved { Ok(()) } else { Err(format!("{labels} {registry}")) }
        })
        .await;
    let all = uids(&fleet).await;
    coordinator.kill();

    // A person's edits of objects of the hub's are undone. By a coordinator that knows nothing but the
    // cluster nothing else is written; Registries come last, and theirs are moved anew.
    let (first, last) = (format!("{USERS}/{}", id(4)), format!("{REGISTRIES}/{}", id(1)));
    fleet.patch(&first, &json!({"spec": {"name": "edited"}})).await;
    fleet.patch(&last, &json!({"spec": {"description": "edited"}})).await;
    let before = object_writes(&wire).len();
    let coordinator = hub.start_coordinator(&wire);
    fleet
        .until("the edits are undone", async |fleet| {
            let registry = fleet.get(&last).await.unwrap();
            let user = fleet.get(&first).await.unwrap();
            // What the former coordinator sent last may arrive after the edits.
            let undone =
                registry["spec"]["description"] == "ours" && user["spec"]["name"] == "Person 4";
            if undone { Ok(()) } else { Err(format!("{registry} {user}")) }
        })
        .await;
    let mut written = object_writes(&wire).split_off(before);
    written.retain(|write| !write.ends_with(&last));
    assert_eq!(written, [format!("PATCH {first}")]);
    coordinator.kill();
    assert!(hub.requests().iter().all(|(.., token)| token == "JWT secret-1"));

    // Each wrong answer is told, and takes nothing away.
    let elsewhere = ReferenceHub::start().await;
    let of_another = |field: &str| {
        let mut people = people.clone();
        people[7][field] = json!(id(77));
        people
    };
    let redirect = HubFault::Redirect(format!("{}/v3/users", elsewhere.url));
    let faults = [
        (HubFault::Code(500), people.clone(), "HubUnreachable", "answered with 500"),
        (HubFault::Code(401), people.clone(), "HubUnreachable", "answered with 401"),
        (HubFault::Code(304), people.clone(), "HubUnreachable", "answered with 304"),
        (HubFault::Code(204), people.clone(), "HubUnreachable", "answered with 204"),
        (HubFault::Slow, people.clone(), "HubUnreachable", "no whole answer within 10 s"),
        (HubFault::Cut, people.clone(), "HubUnreachable", "no list of objects"),
        (redirect, people.clone(), "HubUnreachable", "answered with 302"),
        (HubFault::Large(10), people.clone(), "HubUnreachable", "longer than 3 MiB"),
        (
            HubFault::None,
            of_another("organization_id"),
            "HubUnreachable",
            "another organization_id",
        ),
        (HubFault::None, of_another("cluster_id"), "HubUnreachable", "another cluster_id"),
        (HubFault::None, Vec::new(), "SuspiciousDeletion", "takes 10 of 10 users away"),
        (HubFault::None, people[..4].to_vec(), "SuspiciousDeletion", "takes 6 of 10 users away"),
    ];
    for (fault, list, reason, words) in faults {
        hub.list("users", list);
        hub.fail(fault.clone());
        let coordinator = hub.start_coordinator(&wire);
        fleet.told(reason, words).await;
        coordinator.kill();
        assert_eq!(uids(&fleet).await, all, "{fault:?} {words}");
    }
    assert_eq!(elsewhere.requests(), [], "the token went nowhere else");

    // A real deletion, and another token.
    fs::write(hub.folder.path().join("token"), "secret-2").unwrap();
    let without: Vec<Value> = people.iter().filter(|user| user["id"] != id(3)).cloned().collect();
    hub.list("users", without);
    hub.fail(HubFault::None);
    let coordinator = hub.start_coordinator(&wire);
    until_users_are(&fleet, 11).await;
    let mut left = all.clone();
    left.remove(&id(3)).unwrap();
    assert_eq!(uids(&fleet).await, left);
    assert_eq!(hub.requests().last().unwrap().2, "JWT secret-2");
    coordinator.kill();

    // Most of them: once a person says so, in the words of the event.
    hub.list("users", people[..3].to_vec());
    let asked = hub.requests().len();
    let coordinator = hub.start_coordinator(&wire);
    let note = fleet.told("SuspiciousDeletion", "takes 6 of 9 users away").await;
    let (_, word) = note.rsplit_once('=').unwrap();
    let confirm = json!({"metadata": {"annotations": {"containership.io/confirm-deletion": word}}});
    fleet.patch(CORE, &confirm).await;
    until_users_are(&fleet, 5).await;
    left.retain(|name, _| !(4..10).any(|number| *name == id(number)));
    assert_eq!(uids(&fleet).await, left);
    let again = hub.requests().split_off(asked);
    assert!(again.iter().any(|(_, code, _)| *code == 304), "unchanged lists are not sent again");
    coordinator.kill();
    fleet.clear_objects().await;
}
