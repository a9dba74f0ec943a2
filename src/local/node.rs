//! The node of a local installation. It does the work of a kubelet, the StatefulSet controller and
//! the garbage collector, on this host and with processes.
//!
//! Owns pods, claims and garbage collection. Talks to the API through a client only, and knows a
//! database by its pilot's reports only. Leaves processes running when it ends, unless it is told
//! to stop them.

mod addresses;
mod claims;
mod garbage;
mod launch;
mod node_object;
mod pod;
mod pod_status;
mod pod_workers;
mod probes;
mod process;
mod referenced_objects;
mod stateful_sets;
mod variables;
mod volumes;
mod watch;

use std::{
    ffi::OsString, fs, io, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration,
};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{Api, Client};
use tokio::time::sleep;
use tracing::info;

use self::{
    addresses::PodAddresses, claims::ClaimController, garbage::GarbageCollector,
    pod_workers::PodWorkers, stateful_sets::StatefulSetController, watch::ChangeNotifier,
};
pub use self::{node_object::read_memory, pod::PodRecord};
use crate::{
    error::chain,
    local::{homes::DatabaseHomes, state_folder::StateFolder},
    pilot::database::DrivenDatabase,
    runtime::{
        Runtime, Shutdown, TaskGroup, deadline::with_request_timeout, events::EventPublisher,
    },
};

/// Field manager of the node's writes.
const MANAGER: &str = "navigator-local";
/// Timeout of one request to the API.
const REQUEST: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// A function that makes the kubeconfig with a pod's own identity.
pub type KubeconfigProvider = Arc<dyn Fn(&Pod) -> Result<String, String> + Send + Sync>;

/// Settings of the node.
pub struct Config {
    pub folder: StateFolder,
    /// Path of this program; pods get copies of it.
    pub program: PathBuf,
    pub databases: Vec<&'static DrivenDatabase>,
    pub homes: DatabaseHomes,
    /// Name of the machine.
    pub machine: String,
    /// Environment variables that every process gets.
    pub environment: Vec<(OsString, OsString)>,
    /// Installation folder of the Java on the search path.
    pub java: Option<PathBuf>,
    pub credentials: KubeconfigProvider,
}

/// What the parts of the node share.
struct NodeContext {
    folder: StateFolder,
    program: PathBuf,
    /// Id of this build of the program.
    installation: String,
    databases: Vec<&'static DrivenDatabase>,
    homes: DatabaseHomes,
    machine: String,
    environment: Vec<(OsString, OsString)>,
    java: Option<PathBuf>,
    credentials: KubeconfigProvider,
    addresses: PodAddresses,
    client: Client,
    events: EventPublisher,
    root: bool,
    /// Triggers when processes are to be stopped; the next daemon starts them again.
    stopping: Shutdown,
    /// Triggers when the node ends and leaves processes running.
    shutdown: Shutdown,
}

/// A running node.
pub struct NodeAgent {
    stopping: Shutdown,
    workers: TaskGroup,
}

impl NodeAgent {
    /// Starts the node, which carries out what the objects in the API say.
    ///
    /// # Errors
    /// When the records of an earlier run cannot be read.
    pub fn start(config: Config, client: Client, rt: &Runtime) -> io::Result<Self> {
        let Config { folder, program, databases, homes, machine, environment, java, credentials } =
            config;
        let client = with_request_timeout(client, REQUEST);
        let stopping = Shutdown::new();
        let workers = TaskGroup::new(rt.shutdown());
        let metadata = fs::metadata(&program)?;
        let host = Arc::new(NodeContext {
            installation: format!(
                "{}-{}.{}",
                metadata.size(),
                metadata.mtime(),
                metadata.mtime_nsec()
            ),
            addresses: PodAddresses::open(folder.addresses())?,
            events: EventPublisher::new(client.clone(), MANAGER, machine.clone()),
            root: nix::unistd::geteuid().is_root(),
            stopping: stopping.clone(),
            shutdown: rt.shutdown(),
            client: client.clone(),
            folder: folder.clone(),
            machine: machine.clone(),
            program,
            databases,
            homes,
            environment,
            java,
            credentials,
        });
        let (set_notifier, pod_notifier, claim_notifier) =
            (ChangeNotifier::default(), ChangeNotifier::default(), ChangeNotifier::default());
        let all = |client: &Client| Api::all(client.clone());
        let pods = watch::watch_objects(
            rt,
            "watch-pods",
            all(&client),
            (),
            &[&set_notifier, &pod_notifier, &claim_notifier],
        );
        let sets = watch::watch_objects::<StatefulSet>(
            rt,
            "watch-statefulsets",
            Api::all(client.clone()),
            (),
            &[&set_notifier],
        );
        let claims = watch::watch_objects::<PersistentVolumeClaim>(
            rt,
            "watch-claims",
            Api::all(client.clone()),
            (),
            &[&claim_notifier],
        );
        let pod_workers =
            PodWorkers { host, store: pods.clone(), bell: pod_notifier, tasks: workers.clone() };
        rt.tasks().spawn_vital("pods", pod_workers.run(rt.shutdown()));
        let sets = StatefulSetController {
            client: client.clone(),
            store: sets,
            pods: pods.clone(),
            bell: set_notifier,
            machine: machine.clone(),
            stopping: stopping.clone(),
        };
        rt.tasks().spawn_vital("sets", sets.run(rt.shutdown()));
        let claims = ClaimController {
            client: client.clone(),
            folder: folder.clone(),
            store: claims,
            pods,
            bell: claim_notifier,
        };
        rt.tasks().spawn_vital("claims", claims.run(rt.shutdown()));
        rt.tasks().spawn_vital("garbage", run_garbage_collector(client.clone(), rt.clone()));
        rt.tasks().spawn_vital(
            "machine",
            node_object::maintain_node(client, machine, folder, rt.shutdown()),
        );
        Ok(Self { stopping, workers })
    }

    /// Stops every pod's process and waits until they have ended.
    pub async fn stop(&self) {
        self.stopping.trigger();
        self.workers.join().await;
    }
}

async fn run_garbage_collector(client: Client, rt: Runtime) {
    let shutdown = rt.shutdown();
    let mut last_error = String::new();
    loop {
        match GarbageCollector::start(client.clone(), &rt).await {
            Ok(garbage) => return garbage.run(shutdown).await,
            Err(error) => {
                let text = chain(&error).to_string();
                if text != last_error {
                    info!(error = text, "Waiting for the API");
                    last_error = text;
                }
            }
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = shutdown.triggered() => return,
        }
    }
}

/// Drops the error of a write to an object that is gone (404), or was changed or replaced meanwhile
/// (409): the watch brings the present object.
fn ignore_stale_write(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        other => other,
    }
}
