//! An API server of one host in this process, and kubectl beside it.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use navigator::{
    controller,
    local::{
        api::{self, ApiServer, ClientIdentity, Config},
        homes::DatabaseHomes,
        node::{self, NodeAgent},
        state_folder::StateFolder,
    },
    runtime::Runtime,
};
use serde_json::Value;

/// A server over a folder.
pub(crate) struct Host {
    pub(crate) server: ApiServer,
    pub(crate) runtime: Runtime,
    pub(crate) folder: PathBuf,
    kubeconfig: PathBuf,
    /// Removed with the host that made it.
    _place: Option<tempfile::TempDir>,
}

impl Host {
    pub(crate) async fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("state");
        let host = Self::over(&folder).await.unwrap();
        Self { _place: Some(place), ..host }
    }

    pub(crate) async fn over(folder: &Path) -> Result<Self, api::Error> {
        let runtime = Runtime::new();
        let address = ([127, 0, 0, 1], 0).into();
        let config = Config { dir: folder.to_owned(), address };
        let server = api::start_server(config, crate::scheme(), &runtime).await?;
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, server.build_kubeconfig(&ClientIdentity::Admin)).unwrap();
        Ok(Self { server, runtime, folder: folder.to_owned(), kubeconfig, _place: None })
    }

    /// Ends the server and lets go of its folder.
    pub(crate) async fn stop(&self) {
        self.runtime.shutdown().trigger();
        self.runtime.tasks().join().await;
    }

    /// Runs the real controller, in a runtime of its own, which is returned.
    pub(crate) fn control(&self) -> Runtime {
        let runtime = Runtime::new();
        let config = controller::Config {
            page: controller::page::PageAccess::Nobody,
            pilot_image: "navigator".into(),
            namespace: None,
            install_namespace: "navigator".into(),
            leader_elect: false,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            owner_references: false,
            pilot_gc_after: Duration::from_secs(3600),
            admin: ([127, 0, 0, 1], 0).into(),
            identity: "test".into(),
        };
        let databases = navigator::database::managed_databases(navigator::databases::ALL);
        let client = self.server.controller_client();
        let run = controller::run_controller(config, databases, client, runtime.clone());
        runtime.tasks().spawn("controller", async { run.await.unwrap() });
        runtime
    }

    /// Runs a node on this host, with a program that only stands for ours, until the runtime's end.
    /// The pods' processes go on after it.
    pub(crate) fn carry_out(&self) -> (NodeAgent, Runtime) {
        let runtime = Runtime::new();
        let home = self.folder.join("homes/one");
        std::fs::create_dir_all(home.join("lib")).unwrap();
        std::fs::write(home.join("lib/apache-cassandra-5.0.6.jar"), "").unwrap();
        let folder = StateFolder::new(&self.folder);
        folder.create().unwrap();
        let databases: Vec<_> =
            navigator::databases::ALL.iter().map(|database| database.pilot).collect();
        let server = self.server.clone();
        let credentials = move |pod: &Pod| {
            Ok(server.build_kubeconfig(&ClientIdentity::Pod {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                service_account: "demo".into(),
                pod_name: pod.metadata.name.clone().unwrap_or_default(),
                pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
            }))
        };
        let config = node::Config {
            homes: DatabaseHomes::new(databases.clone(), &folder, Vec::new(), None),
            folder,
            program: Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/stand-in-pilot.sh"),
            databases,
            machine: "here".into(),
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            java: None,
            credentials: Arc::new(credentials),
        };
        let node = NodeAgent::start(config, self.server.admin_client(), &runtime).unwrap();
        (node, runtime)
    }

    /// A kubeconfig with the credentials of this identity.
    pub(crate) fn credentials(&self, who: &ClientIdentity) -> PathBuf {
        let path = self.folder.join("somebody.kubeconfig");
        std::fs::write(&path, self.server.build_kubeconfig(who)).unwrap();
        path
    }

    /// kubectl as the administrator, to be started.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        self.command_as(&self.kubeconfig, arguments)
    }

    #[expect(clippy::disallowed_methods, reason = "kubectl is a child of the test")]
    pub(crate) fn command_as(&self, kubeconfig: &Path, arguments: &str) -> Command {
        let mut command = Command::new(kubectl());
        // kubectl keeps what it discovers below HOME, which no other host shares.
        command.env_clear().env("HOME", &self.folder).arg("--kubeconfig").arg(kubeconfig);
        command.args(arguments.split_whitespace());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What kubectl prints; it must succeed.
    pub(crate) async fn kubectl(&self, arguments: &str) -> String {
        self.with(arguments, "").await
    }

    /// What kubectl says when it fails, as it must.
    pub(crate) async fn refused(&self, arguments: &str) -> String {
        self.refused_as(&self.kubeconfig, arguments, "").await
    }

    pub(crate) async fn refused_as(&self, who: &Path, arguments: &str, manifest: &str) -> String {
        let output = run(self.command_as(who, arguments), manifest).await;
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(!output.status.success(), "kubectl {arguments} succeeded: {stdout}{stderr}");
        stderr
    }

    /// kubectl with a manifest on its standard input.
    pub(crate) async fn with(&self, arguments: &str, manifest: &str) -> String {
        let output = run(self.command(arguments), manifest).await;
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments}:\n{stdout}{stderr}");
        stdout
    }

    pub(crate) async fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.kubectl(&format!("{arguments} -o json")).await).unwrap()
    }
}

pub(crate) async fn run(mut command: Command, manifest: &str) -> Output {
    let manifest = manifest.to_owned();
    let run = move || {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[expect(clippy::disallowed_methods, reason = "make says where the test bed is")]
fn kubectl() -> PathBuf {
    let bed = std::env::var_os("NAVIGATOR_TESTBED").map(PathBuf::from);
    let bed = bed.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"));
    let path = bed.join("bin/kubectl");
    assert!(path.exists(), "{} is missing: run `make testbed`", path.display());
    path
}
