//! What a kubelet, the StatefulSet controller and the garbage collector are to Kubernetes: carries
//! out what the objects say, on this host and by processes.
//!
//! Owns pods, claims and what is left over. Talks to the API through a client only, and knows a
//! database by what its pilot says of it. Leaves every process running when it ends, unless it is
//! told to stop them.

mod addresses;
mod claims;
mod garbage;
mod given;
mod launch;
mod machine;
mod pod;
mod pods;
mod probes;
mod process;
mod sets;
mod status;
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
    addresses::PodAddresses, claims::ClaimController, garbage::GarbageCollector, pods::PodWorkers,
    sets::StatefulSetController, watch::ChangeNotifier,
};
pub use self::{machine::memory, pod::PodRecord, process::start_time};
use crate::{
    error::chain,
    local::{folder::StateFolder, homes::DatabaseHomes},
    pilot::database::DrivenDatabase,
    runtime::{Runtime, Shutdown, TaskGroup, deadline::bounded, events::EventPublisher},
};

/// The node's field manager.
const MANAGER: &str = "navigator-local";
/// A request that takes longer has failed.
const REQUEST: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// Makes the kubeconfig of a pod's own identity.
pub type KubeconfigProvider = Arc<dyn Fn(&Pod) -> Result<String, String> + Send + Sync>;

/// Settings of the node.
pub struct Config {
    pub folder: StateFolder,
    /// This program; pods get copies of it.
    pub program: PathBuf,
    pub databases: Vec<&'static DrivenDatabase>,
    pub homes: DatabaseHomes,
    /// Name of the machine.
    pub machine: String,
    /// Variables that every process gets.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the Java of the search path is installed.
    pub java: Option<PathBuf>,
    pub credentials: KubeconfigProvider,
}

/// What all parts of the node work with.
struct NodeContext {
    folder: StateFolder,
    program: PathBuf,
    /// Which build of the program this is.
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
    /// Once triggered, processes are stopped; the next daemon starts them again.
    stopping: Shutdown,
    /// Once triggered, processes are left alone.
    shutdown: Shutdown,
}

/// A node that runs.
pub struct NodeAgent {
    stopping: Shutdown,
    workers: TaskGroup,
}

impl NodeAgent {
    /// Begins to carry out what the API says.
    ///
    /// # Errors
    /// When what was written down of an earlier run cannot be read.
    pub fn start(config: Config, client: Client, rt: &Runtime) -> io::Result<Self> {
        let Config { folder, program, databases, homes, machine, environment, java, credentials } =
            config;
        let client = bounded(client, REQUEST);
        let stopping = Shutdown::new();
        let workers = TaskGroup::new(rt.shutdown());
        let about = fs::metadata(&program)?;
        let host = Arc::new(NodeContext {
            installation: format!("{}-{}.{}", about.size(), about.mtime(), about.mtime_nsec()),
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
        let (of_sets, of_pods, of_claims) =
            (ChangeNotifier::default(), ChangeNotifier::default(), ChangeNotifier::default());
        let all = |client: &Client| Api::all(client.clone());
        let pods =
            watch::watch(rt, "watch-pods", all(&client), (), &[&of_sets, &of_pods, &of_claims]);
        let sets = watch::watch::<StatefulSet>(
            rt,
            "watch-statefulsets",
            Api::all(client.clone()),
            (),
            &[&of_sets],
        );
        let claims = watch::watch::<PersistentVolumeClaim>(
            rt,
            "watch-claims",
            Api::all(client.clone()),
            (),
            &[&of_claims],
        );
        let pods_of =
            PodWorkers { host, store: pods.clone(), bell: of_pods, tasks: workers.clone() };
        rt.tasks().spawn_vital("pods", pods_of.run(rt.shutdown()));
        let sets = StatefulSetController {
            client: client.clone(),
            store: sets,
            pods: pods.clone(),
            bell: of_sets,
            machine: machine.clone(),
            stopping: stopping.clone(),
        };
        rt.tasks().spawn_vital("sets", sets.run(rt.shutdown()));
        let claims = ClaimController {
            client: client.clone(),
            folder: folder.clone(),
            store: claims,
            pods,
            bell: of_claims,
        };
        rt.tasks().spawn_vital("claims", claims.run(rt.shutdown()));
        rt.tasks().spawn_vital("garbage", collect(client.clone(), rt.clone()));
        rt.tasks().spawn_vital("machine", machine::keep(client, machine, folder, rt.shutdown()));
        Ok(Self { stopping, workers })
    }

    /// Stops every pod's process and waits for their ends.
    pub async fn stop(&self) {
        self.stopping.trigger();
        self.workers.join().await;
    }
}

async fn collect(client: Client, rt: Runtime) {
    let shutdown = rt.shutdown();
    let mut last = String::new();
    loop {
        match GarbageCollector::start(client.clone(), &rt).await {
            Ok(garbage) => return garbage.run(shutdown).await,
            Err(error) => {
                let text = chain(&error).to_string();
                if text != last {
                    info!(error = text, "Waiting for the API");
                    last = text;
                }
            }
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = shutdown.triggered() => return,
        }
    }
}

/// A write to an object that is gone (404), or was changed or replaced meanwhile (409), is dropped:
/// the watch brings what is there now.
fn gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        other => other,
    }
}
