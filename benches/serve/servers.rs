//! The servers that are measured, each a fresh process with the same certificate.
//!
//! Ours and sample-apiserver ask the scripted kube-apiserver what they would ask a real one; the
//! client is one of `system:masters`, whose requests need no authorization.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use http::StatusCode;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    client::{Ask, Client, Door, JSON, Protocol},
    kinds::{Kind, NAMESPACE, definition},
    sender,
    support::{clock::on_processor, kube_apiserver, pki::Identity, port::Port, server::World},
};

const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    Etcd,
    Embedded,
    Crd,
    Sample,
}

impl Which {
    pub(crate) const ALL: [Self; 4] = [Self::Etcd, Self::Embedded, Self::Crd, Self::Sample];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Embedded => "embedded",
            Self::Crd => "crd",
            Self::Sample => "sample",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Etcd => "Navigator on etcd",
            Self::Embedded => "Navigator, embedded store",
            Self::Crd => "kube-apiserver, CRD",
            Self::Sample => "sample-apiserver",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Etcd | Self::Embedded)
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Etcd | Self::Embedded | Self::Crd => Kind::CassandraCluster,
            Self::Sample => Kind::Flunder,
        }
    }
}

/// The programs that are run.
pub(crate) struct Programs {
    pub(crate) navigator: PathBuf,
    pub(crate) kube_apiserver: PathBuf,
    pub(crate) sample_apiserver: PathBuf,
    pub(crate) etcd: PathBuf,
}

/// What all servers share.
pub(crate) struct Bed {
    world: World,
    programs: Programs,
    master: Identity,
}

/// A store with nothing in it yet.
pub(crate) struct Store {
    folder: tempfile::TempDir,
    etcd: Option<(Process, String)>,
}

pub(crate) struct Server {
    process: Process,
    pub(crate) kind: Kind,
    pub(crate) door: Door,
}

/// A process that is killed when this is dropped, or when this program dies.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn spawn(name: &str, folder: &Path, program: &Path, args: &[String]) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(args)
            .env_clear()
            // The variables of our manifest; only our server reads them.
            .env("MIMALLOC_GENERIC_COLLECT", "50")
            .env("MIMALLOC_MINIMAL_PURGE_SIZE", "16")
            .env("MIMALLOC_PAGE_FULL_RETAIN", "0")
            .env("MIMALLOC_PAGE_RECLAIM_ON_FREE", "1")
            .env("MIMALLOC_PURGE_DELAY", "5")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("setpriv is there: make installs it");
        Self { child, log }
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Panics with the end of the log when the process has ended.
    fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{} ended, {status}:\n{}", self.log.display(), self.log());
        }
    }

    pub(crate) fn on_processor(&self) -> Duration {
        on_processor(self.child.id())
    }

    async fn stop(&mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let until = Instant::now() + Duration::from_secs(15);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Store {
    /// Processor time of etcd, where there is one.
    pub(crate) fn on_processor(&self) -> Duration {
        self.etcd.as_ref().map(|(process, _)| process.on_processor()).unwrap_or_default()
    }

    fn url(&self) -> &str {
        &self.etcd.as_ref().expect("this server has an etcd").1
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

impl Bed {
    pub(crate) async fn new(programs: Programs) -> Self {
        let world = World::new().await;
        let master = world.client_ca.issue("bench", &["system:masters"]);
        kube_apiserver::write_certificates(world.folder.path(), &world.client_ca);
        Self { world, programs, master }
    }

    /// A store of its own, in which this server's kind is known.
    pub(crate) async fn store(&self, which: Which) -> Store {
        let store = self.empty(which != Which::Embedded).await;
        if which.is_ours() {
            // The new store has another identity than the one on record, as it should.
            self.world.kube.delete("/api/v1/namespaces/navigator/configmaps/navigator-store");
        }
        // The first start also writes what every later start finds.
        let (mut server, _) = self.start(which, &store, Protocol::Http1, which != Which::Crd).await;
        if which == Which::Crd {
            self.define(&server).await;
        }
        server.process.stop().await;
        store
    }

    pub(crate) async fn empty(&self, with_etcd: bool) -> Store {
        let folder = tempfile::tempdir().unwrap();
        if !with_etcd {
            return Store { folder, etcd: None };
        }
        let ports = [Port::reserve(), Port::reserve()];
        let [url, peer] = ports.each_ref().map(|port| format!("http://{}", port.address));
        let data = folder.path().join("etcd");
        let args = [
            "--name=bench",
            "--log-level=error",
            "--socket-reuse-port",
            &format!("--data-dir={}", data.display()),
            &format!("--listen-client-urls={url}"),
            &format!("--advertise-client-urls={url}"),
            &format!("--listen-peer-urls={peer}"),
            &format!("--initial-advertise-peer-urls={peer}"),
            &format!("--initial-cluster=bench={peer}"),
        ];
        let args = args.map(str::to_owned);
        let mut process = Process::spawn("etcd", folder.path(), &self.programs.etcd, &args);
        let until = Instant::now() + PATIENCE;
        while let Err(error) = healthy(&url).await {
            process.must_run();
            assert!(Instant::now() < until, "etcd: {error}\n{}", process.log());
            sleep(Duration::from_millis(20)).await;
        }
        Store { folder, etcd: Some((process, url)) }
    }

    /// Starts a server; returns also the time from exec until it said that it was ready and had
    /// listed all objects: a kube-apiserver that is ready may still refuse to list.
    pub(crate) async fn start(
        &self,
        which: Which,
        store: &Store,
        protocol: Protocol,
        is_known: bool,
    ) -> (Server, Duration) {
        let port = Port::reserve();
        let (program, mut args) = match which {
            Which::Etcd | Which::Embedded => (&self.programs.navigator, self.ours(which, store)),
            Which::Crd => (
                &self.programs.kube_apiserver,
                kube_apiserver::arguments(store.url(), self.world.folder.path()),
            ),
            Which::Sample => (&self.programs.sample_apiserver, self.sample_apiserver(store)),
        };
        args.extend(kube_apiserver::serving(self.world.folder.path()));
        if which.is_ours() {
            args.push("--secure-port=0".to_owned());
        } else {
            args.extend(kube_apiserver::at(&port));
        }
        let began = Instant::now();
        let mut process = Process::spawn(which.word(), store.folder.path(), program, &args);
        let address = if which.is_ours() { listens_at(&mut process).await } else { port.address };
        let door = Door::new(address, protocol, &self.world.client_ca, &self.master);
        let kind = which.kind();
        let mut awaited = vec!["/readyz".to_owned()];
        if is_known {
            awaited.push(kind.collection());
        }
        until_ready(&mut process, &door, &awaited).await;
        (Server { process, kind, door }, began.elapsed())
    }

    /// Starts this program as a sender.
    pub(crate) async fn sender(
        &self,
        program: &Path,
        protocol: Protocol,
    ) -> (Process, Door, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let args =
            [sender::ARGUMENT.to_owned(), self.world.path("tls.crt"), self.world.path("tls.key")];
        let mut process = Process::spawn("sender", folder.path(), program, &args);
        let address = listens_at(&mut process).await;
        (process, Door::new(address, protocol, &self.world.client_ca, &self.master), folder)
    }

    fn ours(&self, which: Which, store: &Store) -> Vec<String> {
        let mut args = vec![
            "apiserver".to_owned(),
            "--log-format=json".to_owned(),
            "--namespace=navigator".to_owned(),
            format!("--kubeconfig={}", self.world.path("kubeconfig")),
        ];
        if which == Which::Etcd {
            args.push("--store=etcd".to_owned());
            args.push(format!("--etcd-servers={}", store.url()));
        } else {
            args.push(format!("--store-path={}", store.path("store")));
        }
        args
    }

    fn sample_apiserver(&self, store: &Store) -> Vec<String> {
        let kubeconfig = self.world.path("kubeconfig");
        vec![
            format!("--etcd-servers={}", store.url()),
            format!("--client-ca-file={}", self.world.path("ca.crt")),
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            // These watch kinds that the scripted kube-apiserver does not have; without them the
            // server has less to do.
            "--enable-priority-and-fairness=false".to_owned(),
            "--disable-admission-plugins=NamespaceLifecycle,MutatingAdmissionPolicy,\
             MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook"
                .to_owned(),
        ]
    }

    /// Makes the namespace and our kind known to kube-apiserver.
    async fn define(&self, server: &Server) {
        let ours = self.empty(false).await;
        self.world.kube.delete("/api/v1/namespaces/navigator/configmaps/navigator-store");
        let (reference, _) = self.start(Which::Embedded, &ours, Protocol::Http1, true).await;
        let path = "/openapi/v3/apis/navigator.jetstack.io/v1beta1".to_owned();
        let client = reference.door.enter().await.unwrap();
        let (status, openapi) = client.ask(Ask::get(path)).await.unwrap();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&openapi));
        drop(reference);
        let definition = definition(&serde_json::from_slice(&openapi).unwrap());
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let client = server.door.enter().await.unwrap();
        for (path, object) in [
            ("/api/v1/namespaces", namespace),
            ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition),
        ] {
            let body = object.to_string().into();
            let ask = Ask { method: "POST", path: path.to_owned(), content_type: JSON, body };
            let (status, answer) = client.ask(ask).await.unwrap();
            assert_eq!(status, 201, "{path}: {}", String::from_utf8_lossy(&answer));
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = client.ask(Ask::get(server.kind.collection())).await;
            if matches!(answer, Ok((StatusCode::OK, _))) {
                return;
            }
            assert!(Instant::now() < until, "the CRD is not served: {answer:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Server {
    pub(crate) fn on_processor(&self) -> Duration {
        self.process.on_processor()
    }

    /// Resident memory now and at most so far, in bytes.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.process.child.id());
        let text = fs::read_to_string(path).unwrap();
        let bytes = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
        };
        (bytes("VmRSS:"), bytes("VmHWM:"))
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub(crate) async fn stop(mut self) {
        self.process.stop().await;
    }
}

/// Our server says where it listens.
async fn listens_at(process: &mut Process) -> SocketAddr {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(&process.log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut addresses = lines.filter_map(|line| line["address"].as_str()?.parse().ok());
        if let Some(address) = addresses.next() {
            return address;
        }
        process.must_run();
        assert!(Instant::now() < until, "it does not listen:\n{}", process.log());
        sleep(Duration::from_millis(1)).await;
    }
}

/// Asks until all of these paths were once answered with 200.
async fn until_ready(process: &mut Process, door: &Door, awaited: &[String]) {
    let until = Instant::now() + PATIENCE;
    let mut awaited = awaited.iter().peekable();
    let mut open: Option<Client> = None;
    while let Some(path) = awaited.peek() {
        let asked = async {
            let client = match open.take() {
                Some(client) => client,
                None => door.enter().await?,
            };
            let answer = client.ask(Ask::get((*path).clone())).await?;
            Ok::<_, String>((client, answer))
        };
        let seen = match asked.await {
            Ok((client, (StatusCode::OK, _))) => {
                open = Some(client);
                awaited.next();
                continue;
            }
            Ok((client, (status, body))) => {
                open = Some(client);
                format!("{status} {}", String::from_utf8_lossy(&body))
            }
            Err(error) => error,
        };
        process.must_run();
        assert!(Instant::now() < until, "{path}: {seen}\n{}", process.log());
        sleep(Duration::from_millis(2)).await;
    }
}

async fn healthy(url: &str) -> Result<(), etcd_client::Error> {
    etcd_client::Client::connect([url], None).await?.status().await.map(drop)
}

/// etcd alone: so many clients create so many objects of this size in transactions such as ours;
/// returns the time that this takes.
pub(crate) async fn etcd_alone(bed: &Bed, clients: usize, objects: usize, size: usize) -> Duration {
    use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
    let store = bed.empty(true).await;
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Client::connect([store.url()], None).await.unwrap());
    }
    let began = Instant::now();
    let work = connections.into_iter().enumerate().map(|(own, client)| async move {
        let mut kv = client.kv_client();
        for number in (own..objects).step_by(clients) {
            let key = format!("/bench/{number:06}");
            let absent = Compare::mod_revision(key.clone(), CompareOp::Equal, 0);
            let put = TxnOp::put(key, vec![b'x'; size], None);
            let answer = kv.txn(Txn::new().when([absent]).and_then([put])).await.unwrap();
            assert!(answer.succeeded(), "the key was not there");
        }
    });
    futures::future::join_all(work).await;
    began.elapsed()
}
