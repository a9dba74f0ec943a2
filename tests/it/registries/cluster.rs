//! A Kubernetes cluster without machines: a real kube-apiserver with an audit trail, one test at a time,
//! and the coordinator in a namespace of the test's own.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use http::{Method, Request};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::{Client, client::Body};
use navigator::engine::rbac;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex as Turn, MutexGuard};

use crate::{
    api::containership::define,
    storage::{etcd_server, kube_apiserver::Server},
    support::wait,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// User that a coordinator is; others have more of the name.
const USER: &str = "the-coordinator";

/// The server, and the audit trail of what is written there.
struct AuditedServer {
    server: Server,
    trail: PathBuf,
}

fn shared() -> &'static AuditedServer {
    static SHARED: OnceLock<AuditedServer> = OnceLock::new();
    SHARED.get_or_init(|| {
        // Kept: the server outlives every test. The files lie among those of the test run.
        let folder = tempfile::tempdir().unwrap().keep();
        let (policy, trail) = (folder.join("policy"), folder.join("trail"));
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "Metadata"},
            ],
        });
        fs::write(&policy, rules.to_string()).unwrap();
        let more = [
            "--etcd-prefix=/registries".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", trail.display()),
        ];
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        AuditedServer { server: Server::start(etcd_server::shared().url(), &more), trail }
    })
}

pub(crate) struct Cluster {
    client: Client,
    user: String,
    /// Namespace of the objects of the cluster manager.
    pub(crate) core: String,
    coordinator: Option<Coordinator>,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// The cluster with a core namespace of this name, and none of the namespaces and Nodes of other
    /// tests. The coordinator may do what Registries need.
    pub(crate) async fn new(core: &str) -> Self {
        Self::with_rights(core, USER, rbac::registry_rules(), rbac::registry_core_rules()).await
    }

    /// The same with a coordinator of another user, with these rights beside those that each has.
    pub(crate) async fn with_rights(
        core: &str,
        user: &str,
        wide: Vec<PolicyRule>,
        own: Vec<PolicyRule>,
    ) -> Self {
        static TURN: Turn<()> = Turn::const_new(());
        let turn = TURN.lock().await;
        let server = &shared().server;
        define(server).await;
        let client = Client::try_from(server.config().await).unwrap();
        let (core, user) = (core.to_owned(), user.to_owned());
        let cluster = Self { client, user, core, coordinator: None, _turn: turn };
        cluster.clear().await;
        cluster.namespace(&cluster.core, &json!({})).await;
        cluster.grant(wide, own).await;
        cluster
    }

    /// Nobody finishes the deletion of a namespace here; one that is being deleted is meant by nothing.
    async fn clear(&self) {
        for namespace in self.list("/api/v1/namespaces").await {
            let name = namespace["metadata"]["name"].as_str().unwrap();
            if name != "default" && !name.starts_with("kube-") {
                self.delete(&format!("/api/v1/namespaces/{name}")).await;
            }
        }
        for node in self.list("/api/v1/nodes").await {
            self.delete(&format!("/api/v1/nodes/{}", node["metadata"]["name"].as_str().unwrap()))
                .await;
        }
    }

    /// Gives the coordinator the rights of the manifest, with these.
    async fn grant(&self, more: Vec<PolicyRule>, own: Vec<PolicyRule>) {
        let roles = "/apis/rbac.authorization.k8s.io/v1";
        let mut wide = rbac::coordinator_rules(&["cassandraclusters"]);
        wide.extend(more);
        let mut core = rbac::coordinator_core_rules();
        core.extend(rbac::label_core_rules());
        core.extend(own);
        let [wide, core] = [wide, core].map(|rules| serde_json::to_value(rules).unwrap());
        for (place, kind, rules) in [
            (roles.to_owned(), "ClusterRole", wide),
            (format!("{roles}/namespaces/{}", self.core), "Role", core),
        ] {
            let user = &self.user;
            let role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"name": user}, "rules": rules,
            });
            let plural = format!("{}s", kind.to_lowercase());
            self.make(&format!("{place}/{plural}"), &role).await;
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
                "metadata": {"name": user},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": user},
                "subjects": [{
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user,
                }],
            });
            let plural = format!("{}bindings", kind.to_lowercase());
            self.make(&format!("{place}/{plural}"), &binding).await;
        }
    }

    /// Starts the only coordinator.
    pub(crate) fn start(&mut self, flags: &[&str]) {
        let kubeconfig = shared().server.kubeconfig(&self.user, &[]);
        let folder = tempfile::tempdir().unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the process is under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_navigator"));
        let child = command
            .args(["coordinator", "--leader-elect=false", "--admin-address=127.0.0.1:0"])
            .args(["--core-namespace", &self.core, "--kubeconfig"])
            .arg(kubeconfig)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.coordinator = Some(Coordinator { child, folder });
    }

    /// Kills the coordinator (-9).
    pub(crate) fn kill(&mut self) {
        self.coordinator = None;
    }

    /// Resident memory of the coordinator now and at most until now, in KiB.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let pid = self.coordinator.as_ref().unwrap().child.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let figure = |field: &str| {
            let line = status.lines().find(|line| line.starts_with(field)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (figure("VmRSS:"), figure("VmHWM:"))
    }

    /// Returns what coordinators wrote so far, as `verb resource namespace/name`.
    pub(crate) fn writes() -> Vec<String> {
        let text = fs::read_to_string(&shared().trail).unwrap();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ours = events.filter(|event| {
            event["user"]["username"].as_str().is_some_and(|user| user.starts_with(USER))
        });
        ours.map(|event| {
            let object = &event["objectRef"];
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!(
                "{} {} {}/{}",
                word(&event["verb"]),
                word(&object["resource"]),
                word(&object["namespace"]),
                word(&object["name"])
            )
        })
        .collect()
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let form = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", form);
        let answer = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect_bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub(crate) async fn make(&self, collection: &str, object: &Value) -> Value {
        let (status, said) = self.ask(Method::POST, collection, object).await;
        assert!(matches!(status, 201 | 409), "{collection}: {said}");
        said
    }

    pub(crate) async fn patch(&self, path: &str, change: &Value) -> Value {
        let (status, said) = self.ask(Method::PATCH, path, change).await;
        assert_eq!(status, 200, "{path} {change}: {said}");
        said
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let (status, found) = self.ask(Method::GET, path, &Value::Null).await;
        (status == 200).then_some(found)
    }

    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let (status, mut found) = self.ask(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {found}");
        std::mem::take(found["items"].as_array_mut().unwrap())
    }

    pub(crate) async fn delete(&self, path: &str) {
        let (status, said) = self.ask(Method::DELETE, path, &Value::Null).await;
        assert!(matches!(status, 200 | 202 | 404 | 409), "{path}: {said}");
    }

    /// Makes a namespace with these metadata.
    pub(crate) async fn namespace(&self, name: &str, meta: &Value) {
        let mut namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        json_patch::merge(&mut namespace["metadata"], meta);
        self.make("/api/v1/namespaces", &namespace).await;
    }

    /// Path of the objects of a kind of the cluster manager.
    pub(crate) fn kind(&self, plural: &str) -> String {
        let group = match plural {
            "nodepoollabels" => "provision.containership.io",
            "authorizationroles" | "authorizationrolebindings" => "auth.containership.io",
            _ => "containership.io",
        };
        format!("/apis/{group}/v3/namespaces/{}/{plural}", self.core)
    }

    /// Waits until what is at this path is as it should be; `None` stands for what is not there.
    pub(crate) async fn until(&self, path: &str, holds: impl Fn(Option<&Value>) -> bool) -> Value {
        wait::until(path, PATIENCE, async || {
            let found = self.get(path).await;
            let seen = format!("{found:?}");
            if holds(found.as_ref()) { Ok(found.unwrap_or_default()) } else { Err(seen) }
        })
        .await
    }

    /// Waits until a condition of an object holds for this reason.
    pub(crate) async fn condition(&self, path: &str, type_: &str, reason: &str) -> Value {
        self.until(path, |found| {
            let found = found.map(|found| found["status"]["conditions"].clone());
            let all = found.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
            all.iter().any(|one| {
                one["type"] == type_ && one["status"] == "True" && one["reason"] == reason
            })
        })
        .await
    }
}

/// A running coordinator; killed when this is dropped.
struct Coordinator {
    child: Child,
    folder: TempDir,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let text = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            #[allow(clippy::print_stderr, reason = "what a failed test leaves to read")]
            {
                eprintln!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
    }
}
