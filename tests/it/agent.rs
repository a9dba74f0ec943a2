//! The agent around one machine's key file, before a real kube-apiserver: what readers of the file see
//! while others change it, what stays when the API or the agent is away, what its account may do, and
//! whom sshd lets in.

mod ends;
mod fire;
mod rights;
mod sshd;
mod standing;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use http::{Method, Request};
use kube::{Client, client::Body};
use navigator::{
    agent::{self, Config},
    engine::keys::KeySet,
    runtime::Runtime,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    api::containership::define,
    storage::kube_apiserver::{self, Server},
    support::wait::until,
};

/// What may take long on a busy machine, and is far from the agent's own intervals.
const PATIENCE: Duration = Duration::from_secs(60);

/// Marks on Nodes: a coordinator takes those away of runs that are not there, on the Nodes of all tests.
static MARKS: Mutex<()> = Mutex::const_new(());

/// A machine: its Node, a namespace of Users, a folder.
struct Machine {
    server: &'static Server,
    name: &'static str,
    home: tempfile::TempDir,
}

/// An agent that runs, in this process.
struct RunningAgent(Runtime);

impl Machine {
    async fn new(name: &'static str) -> Self {
        let server = kube_apiserver::shared();
        define(server).await;
        let machine = Self { server, name, home: tempfile::tempdir().unwrap() };
        machine.make("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
        machine.make("/api/v1/nodes", &json!({"metadata": {"name": name}})).await;
        machine
    }

    async fn make(&self, path: &str, object: &Value) -> Value {
        let (status, said) = self.server.ask(Method::POST, path, object).await;
        assert_eq!(status, 201, "{path}: {said}");
        said
    }

    fn users(&self) -> String {
        format!("/apis/containership.io/v3/namespaces/{}/users", self.name)
    }

    /// Makes a User, or gives one other keys.
    async fn set(&self, user: &str, keys: &[&str]) {
        let keys: Vec<Value> = keys.iter().map(|key| json!({"key": key})).collect();
        let spec = json!({"spec": {"ssh_keys": keys}});
        let path = format!("{}/{user}", self.users());
        let (status, said) = self.server.ask(Method::PATCH, &path, &spec).await;
        assert!(matches!(status, 200 | 404), "{said}");
        if status == 404 {
            let mut object = spec;
            object["apiVersion"] = json!("containership.io/v3");
            object["kind"] = json!("User");
            object["metadata"]["name"] = json!(user);
            self.make(&self.users(), &object).await;
        }
    }

    async fn delete(&self, user: &str) {
        let path = format!("{}/{user}", self.users());
        let (status, said) = self.server.ask(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(status, 200, "{said}");
    }

    fn file(&self) -> PathBuf {
        self.home.path().join(".ssh/authorized_keys")
    }

    fn config(&self, mending_period: Duration) -> Config {
        Config {
            node: self.name.to_owned(),
            namespace: self.name.to_owned(),
            folder: self.home.path().to_owned(),
            upgrades: self.home.path().join("upgrade"),
            shared: false,
            mending_period,
            admin: ([127, 0, 0, 1], 0).into(),
        }
    }

    async fn agent(&self, config: Config) -> RunningAgent {
        let client = Client::try_from(self.server.config().await).unwrap();
        RunningAgent::start(config, client)
    }

    /// The report on the Node.
    async fn report(&self) -> Value {
        let path = format!("/api/v1/nodes/{}", self.name);
        let (_, node) = self.server.ask(Method::GET, &path, &Value::Null).await;
        let text = node["metadata"]["annotations"]["containership.io/agent"].as_str();
        text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    /// Waits until the file is that of these Users and their keys.
    async fn until_file_is(&self, wanted: &str) {
        until("the key file", PATIENCE, async || {
            let text = fs::read_to_string(self.file()).unwrap_or_default();
            if text == wanted { Ok(()) } else { Err(text) }
        })
        .await;
    }
}

impl RunningAgent {
    fn start(config: Config, client: Client) -> Self {
        let runtime = Runtime::new();
        let given = runtime.clone();
        runtime.tasks().spawn("agent", async move {
            agent::run_agent(config, client, given).await.unwrap();
        });
        Self(runtime)
    }

    fn metric(&self, name: &str) -> u64 {
        let families = self.0.metrics().gather();
        let found = families.iter().find(|family| family.name() == name).unwrap();
        found.get_metric()[0].get_counter().get_value().to_string().parse().unwrap()
    }

    async fn stop(self) {
        self.0.shutdown().trigger();
        self.0.tasks().join().await;
    }
}

/// The file as these Users make it.
fn file_of(users: &[(&str, &[&str])]) -> String {
    let spec = |keys: &[&str]| {
        let keys: Vec<Value> = keys.iter().map(|key| json!({"key": key})).collect();
        serde_json::from_value(json!({"ssh_keys": keys})).unwrap()
    };
    let specs: Vec<_> = users.iter().map(|(name, keys)| (*name, spec(keys))).collect();
    let set = KeySet::new(specs.iter().map(|(name, spec)| (*name, spec)));
    String::from_utf8(set.build_block().render_file(b"", false)).unwrap()
}

/// A key that nobody has.
fn new_key() -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let bytes = [&b"\0\0\0\x0bssh-ed25519\0\0\0\x20"[..], &[number; 32]].concat();
    format!("ssh-ed25519 {}", BASE64_STANDARD.encode(bytes))
}

/// Sends a request by a client; returns the code and the answer.
async fn send(client: &Client, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let form = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder().method(&method).uri(path).header("content-type", form);
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Puts a file into the place of another in one moment.
fn swap(path: &Path, text: &str) {
    let mut new =
        tempfile::NamedTempFile::new_in(path.parent().unwrap().parent().unwrap()).unwrap();
    std::io::Write::write_all(&mut new, text.as_bytes()).unwrap();
    new.persist(path).unwrap();
}
