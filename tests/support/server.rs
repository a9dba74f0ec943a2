//! The real binary beside a scripted kube-apiserver.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    cgroup::Cgroup,
    client::{Client, Reply},
    clock::on_processor,
    kube::{APISERVICES, Kube},
    pki::{Ca, Identity},
    wait::until,
};

/// Limit for conditions on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the API server needs to find: a kube-apiserver that publishes the CAs that it trusts.
pub(crate) struct World {
    pub(crate) kube: Kube,
    /// What is run as the server.
    program: PathBuf,
    proxy_ca: Ca,
    pub(crate) client_ca: Ca,
    pub(crate) folder: tempfile::TempDir,
}

/// A running API server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let world = Self {
            kube: Kube::start().await,
            program: env!("CARGO_BIN_EXE_navigator").into(),
            proxy_ca: Ca::new("proxy-ca"),
            client_ca: Ca::new("client-ca"),
            folder: tempfile::tempdir().unwrap(),
        };
        world.publish_trust();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
             clusters: [{{name: t, cluster: {{server: \"{}\"}}}}]\nusers: [{{name: t, user: {{}}}}]\n\
             contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n",
            world.kube.url
        );
        std::fs::write(world.folder.path().join("kubeconfig"), kubeconfig).unwrap();
        world
    }

    /// This world with another program as the server.
    pub(crate) fn running(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    pub(crate) fn publish_trust(&self) {
        let data = json!({
            "client-ca-file": self.client_ca.pem,
            "requestheader-client-ca-file": self.proxy_ca.pem,
            "requestheader-allowed-names": "[\"front-proxy\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        });
        let collection = "/api/v1/namespaces/kube-system/configmaps";
        self.kube.put(collection, "extension-apiserver-authentication", json!({"data": data}));
    }

    /// Another CA signs for the front proxy from now on.
    pub(crate) fn replace_proxy_ca(&mut self) {
        self.proxy_ca = Ca::new("proxy-ca-2");
        self.publish_trust();
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The aggregator's certificate.
    pub(crate) fn proxy(&self) -> Identity {
        self.proxy_ca.issue("front-proxy", &[])
    }

    /// Starts a server with an embedded store of this name.
    pub(crate) fn start(&self, store: &str, more: &[&str]) -> Server {
        let mut args = self.args(store);
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        Server::spawn(command(&self.program).args(args))
    }

    /// Starts a server within a control group.
    pub(crate) fn start_in(&self, group: &Cgroup, store: &str, more: &[String]) -> Server {
        let (mut entering, program) = (entering(), command(&self.program));
        entering.arg(group.folder()).arg(program.get_program()).args(self.args(store)).args(more);
        Server::spawn(&mut entering)
    }

    pub(crate) fn args(&self, store: &str) -> Vec<String> {
        let args = [
            "apiserver",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--log-format=json",
            "--namespace=navigator",
        ];
        let mut args: Vec<String> = args.map(str::to_owned).into();
        args.push(format!("--kubeconfig={}", self.path("kubeconfig")));
        args.push(format!("--store-path={}", self.path(store)));
        args
    }

    /// The CA that our APIServices tell kube-apiserver to trust.
    pub(crate) fn ca_bundle(&self, version: &str) -> Option<String> {
        let path = format!("{APISERVICES}/{version}.navigator.jetstack.io");
        let bundle = self.kube.get(&path)?["spec"]["caBundle"].as_str()?.to_owned();
        Some(String::from_utf8(BASE64_STANDARD.decode(bundle).unwrap()).unwrap())
    }
}

/// A command without any environment.
#[expect(clippy::disallowed_methods, reason = "the binary under test is a child of the test")]
fn command(program: impl AsRef<OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    command.env_clear();
    command
}

/// What the manifest sets for the allocator.
const MEMORY: [(&str, &str); 5] = [
    ("MIMALLOC_GENERIC_COLLECT", "50"),
    ("MIMALLOC_MINIMAL_PURGE_SIZE", "16"),
    ("MIMALLOC_PAGE_FULL_RETAIN", "0"),
    ("MIMALLOC_PAGE_RECLAIM_ON_FREE", "1"),
    ("MIMALLOC_PURGE_DELAY", "5"),
];

/// Enters the control group that is its first argument and becomes the program that follows, with
/// the environment of the manifest.
fn entering() -> std::process::Command {
    let mut shell = command("/bin/sh");
    shell.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).envs(MEMORY);
    shell
}

/// Runs a command to its end: exit code and standard error.
pub(crate) fn run(args: &[String]) -> (Option<i32>, String) {
    let Ended { code, stderr, .. } = run_to_end(args);
    (code, stderr)
}

/// What a finished process left.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn run_to_end(args: &[String]) -> Ended {
    let output = command(env!("CARGO_BIN_EXE_navigator")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Server {
    fn spawn(command: &mut std::process::Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (found, address) = mpsc::channel();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
                if let Some(address) = parsed["address"].as_str() {
                    // The test takes the first address only.
                    found.send(address.parse().unwrap()).ok();
                }
                lines.lock().unwrap().push(line);
            }
        });
        let mut server = Self { child, address: ([127, 0, 0, 1], 0).into(), log };
        match address.recv_timeout(PATIENCE) {
            Ok(address) => server.address = address,
            Err(error) => panic!("the server did not listen: {error}\n{}", server.log()),
        }
        server
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// A client without credentials that trusts any certificate.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.address, None, None)
    }

    pub(crate) async fn until_ready(&self) {
        self.until("/readyz answers 200", async || {
            let reply = self.stranger().get("/readyz").await;
            if reply.status == 200 { Ok(()) } else { Err(format!("{reply:?}")) }
        })
        .await;
    }

    /// Asks until `check` is content; names its last complaint when it never is.
    pub(crate) async fn until(&self, what: &str, check: impl AsyncFn() -> Result<(), String>) {
        let told = |seen| format!("{seen}\n{}", self.log());
        until(what, PATIENCE, async || check().await.map_err(told)).await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time that the server has used so far.
    pub(crate) fn spent(&self) -> Duration {
        on_processor(self.pid())
    }

    /// Number of files and connections that the server has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the server's end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let log = Arc::clone(&self.log);
        until("the server's end", PATIENCE, async || {
            self.child.try_wait().unwrap().ok_or_else(|| log.lock().unwrap().join("\n"))
        })
        .await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Every line of a file, as JSON. The last one may be half written.
pub(crate) fn json_lines(path: impl AsRef<Path>) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A reply's status and reason, for messages.
pub(crate) fn brief(reply: &Reply) -> String {
    format!("{} {}", reply.status, reply.body)
}
