//! A real kube-apiserver on a loopback port, without the rest of Kubernetes, ended with the test
//! process whatever becomes of it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, OnceLock},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{Method, Request};
use kube::{Client, client::Body};
use navigator::{
    apiserver::{
        role::STORED_OBJECTS,
        storage::kubernetes::{Config, KubernetesStore},
    },
    engine::stored_object,
};
use serde_json::{Value, json};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep},
};

use super::etcd_server;
use crate::support::{kube_apiserver, pki::Ca, port::Port};

/// Runs a program; kills it and starts it again as the lines say that it reads; cleans up at the
/// end.
const SCRIPT: &str = r#"
folder=$1; shift
start() { "$@" >>"$folder/log" 2>&1 & pid=$!; }
start "$@"
while read -r what; do
    case "$what" in
        down) kill -9 "$pid"; wait "$pid" ;;
        up) start "$@" ;;
    esac
    echo "$what"
done
kill -9 "$pid"; wait "$pid"; rm -rf "$folder"
"#;

/// A busy machine takes its time to start it.
const PATIENCE: Duration = Duration::from_secs(120);

/// kube-apiserver is killed when this is dropped or the process ends.
pub(crate) struct Server {
    port: Port,
    folder: PathBuf,
    ca: Ca,
    /// The shell, what it reads and where it answers.
    shell: Child,
    wires: Mutex<(Option<ChildStdin>, BufReader<ChildStdout>)>,
    /// Done once the kind of our objects is known.
    defined: OnceCell<()>,
}

/// The server that cases of different namespaces share.
pub(crate) fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Server::start(etcd_server::shared().url(), &[]))
}

impl Server {
    pub(crate) fn start(etcd: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let (ca, port) = (Ca::new("client-ca"), Port::reserve());
        kube_apiserver::write_certificates(&folder, &ca);
        #[expect(clippy::disallowed_methods, reason = "tests start servers of their own")]
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&folder)
            .arg(binary())
            .args(kube_apiserver::arguments(etcd, &folder))
            .args(kube_apiserver::serving(&folder))
            .args(kube_apiserver::at(&port))
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let said = BufReader::new(shell.stdout.take().expect("it is piped"));
        let wires = Mutex::new((shell.stdin.take(), said));
        Self { port, folder, ca, shell, wires, defined: OnceCell::new() }
    }

    fn tell(&self, what: &str) {
        let (told, said) = &mut *self.wires.lock().unwrap();
        told.as_mut().unwrap().write_all(format!("{what}\n").as_bytes()).unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), what);
    }

    /// Kills kube-apiserver. What was written stays, and so does the address.
    pub(crate) fn down(&self) {
        self.tell("down");
    }

    pub(crate) fn up(&self) {
        self.tell("up");
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// A kubeconfig for this user in these groups.
    pub(crate) fn kubeconfig(&self, user: &str, groups: &[&str]) -> PathBuf {
        let path = self.folder.join(format!("{}.kubeconfig", user.replace(':', "-")));
        let identity = self.ca.client(user, groups);
        let [ca, certificate, key] = [&self.ca.pem, &identity.certificate, &identity.key]
            .map(|pem| BASE64_STANDARD.encode(pem));
        let server = format!("https://{}", self.port.address);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {
                "server": server, "certificate-authority-data": ca,
            }}],
            "users": [{"name": "t", "user": {
                "client-certificate-data": certificate, "client-key-data": key,
            }}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        });
        let (text, new) = (config.to_string(), tempfile::NamedTempFile::new_in(&self.folder));
        let mut new = new.unwrap();
        new.write_all(text.as_bytes()).unwrap();
        new.persist(&path).unwrap();
        path
    }

    pub(crate) fn master(&self) -> PathBuf {
        self.kubeconfig("master", &["system:masters"])
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address
    }

    /// How a user who may do everything gets here.
    pub(crate) async fn config(&self) -> kube::Config {
        let config = kube::config::Kubeconfig::read_from(self.master()).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        kube::Config::from_custom_kubeconfig(config, &options).await.unwrap()
    }

    /// A request of a user who may do everything.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let client = Client::try_from(self.config().await).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let form = if method == Method::PATCH {
                "application/merge-patch+json"
            } else {
                "application/json"
            };
            let request = Request::builder().method(&method).uri(path).header("content-type", form);
            let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
            let answer = client.send(request.body(Body::from(body)).unwrap()).await;
            let seen = match answer {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let body = answer.into_body().collect_bytes().await.unwrap();
                    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                    // Before it is ready, it knows no roles of its own and no namespaces.
                    let early = status >= 500 || status == 429;
                    if !early {
                        return (status, body);
                    }
                    format!("{status} {body}")
                }
                Err(error) => format!("{error:?}"),
            };
            assert!(Instant::now() < deadline, "{method} {path}: {seen}\n{}", self.log());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Makes our objects known, as the manifest does.
    pub(crate) async fn define(&self) {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": stored_object::definition_name()},
            "spec": stored_object::crd_spec(),
        });
        let (status, said) = self.ask(Method::POST, definitions, &definition).await;
        assert!(matches!(status, 201 | 409), "{said}");
        let collection = format!("/apis/{}/v1/storedobjects?limit=1", stored_object::GROUP);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, said) = self.ask(Method::GET, &collection, &Value::Null).await;
            if status == 200 {
                return;
            }
            assert!(Instant::now() < deadline, "{status} {said}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// A namespace in which a store may be.
    pub(crate) async fn namespace(&self, name: &str) {
        self.defined.get_or_init(|| self.define()).await;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let (status, said) = self.ask(Method::POST, "/api/v1/namespaces", &namespace).await;
        assert!(matches!(status, 201 | 409), "{said}");
    }

    /// A store of its own.
    pub(crate) async fn store(&self, name: &str) -> KubernetesStore {
        let mut name = name.replace('_', "-");
        name.truncate(60);
        let name = name.trim_end_matches('-');
        self.namespace(name).await;
        self.open(name).await
    }

    /// The store of a namespace.
    pub(crate) async fn open(&self, namespace: &str) -> KubernetesStore {
        let config = Config {
            kubeconfig: Some(self.master()),
            namespace: namespace.to_owned(),
            kind: &STORED_OBJECTS,
        };
        let store = KubernetesStore::connect(&config).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = store.establish_id().await {
            assert!(Instant::now() < deadline, "{error:?}\n{}", self.log());
            sleep(Duration::from_millis(50)).await;
        }
        store
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.wires.lock().unwrap().0.take());
        drop(self.shell.wait());
    }
}

#[expect(clippy::disallowed_methods, reason = "make exports where its test bed is")]
fn binary() -> PathBuf {
    let testbed = env::var_os("NAVIGATOR_TESTBED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"), PathBuf::from);
    let path = testbed.join("bin/kube-apiserver");
    assert!(path.exists(), "kube-apiserver is missing: run make testbed");
    path
}
