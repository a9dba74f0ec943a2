//! The agent: keeps the SSH keys of all Users on one machine, hands the jobs of upgrades to the machine's
//! runner, and says on its Node how both stand.
//!
//! A machine keeps the keys that it has while the agent or the API is away, and a job that was begun is
//! finished. The agent reads Users, ClusterUpgrades and the namespace around them, writes below two folders,
//! two annotations and events, and needs no other right. The runner is no part of its pod: the machine itself starts it.

mod folder_watch;
mod host_install;
mod job_folder;
mod key_file;
mod keys;
mod mending_pace;
mod metrics;
mod own_node;
mod report;
pub mod runner;
mod upgrade;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{net::TcpListener, sync::watch};

pub use self::{host_install::HostInstall, key_file::KeyFile};
use self::{
    keys::{KeyKeeper, UserView},
    metrics::Metrics,
    own_node::OwnNode,
    report::{NodeReporter, Standing},
    upgrade::JobKeeper,
};
use crate::{
    api::containership::{ClusterUpgrade, User, name},
    engine::{machines::UpgradeJob, terminate::TerminateProgress},
    runtime::{
        Runtime, admin, build_info,
        deadline::bounded,
        metric_catalogue::{MetricDescription, described},
        watch::{WatchedReplica, follow, paged},
    },
};

/// Settings of the agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this machine's Node.
    pub node: String,
    /// Namespace of the Users.
    pub namespace: String,
    /// Home folder in which `.ssh/authorized_keys` lies. It must exist.
    pub folder: PathBuf,
    /// Folder in which jobs of upgrades are written for the runner; none are while it is not there.
    pub upgrades: PathBuf,
    /// Lines of others in the file stay as they are; else they are removed.
    pub shared: bool,
    /// Time in which the file is mended at most ten times; then once in that time.
    pub mending_period: Duration,
    /// Address that serves metrics and health.
    pub admin: SocketAddr,
}

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("failed to open {folder:?}")]
    Folder { folder: PathBuf, source: std::io::Error },
}

/// Timeout of one request to the API server.
const REQUEST: Duration = Duration::from_secs(30);

/// Runs the agent until shutdown. The key file stays.
///
/// # Errors
/// See [`Error`].
pub async fn run(config: Config, client: Client, runtime: Runtime) -> Result<(), Error> {
    let client = bounded(client, REQUEST);
    let metrics = Metrics::register(runtime.metrics());
    let address = config.admin;
    let listener =
        TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let router =
        admin::router(Arc::new(|| None), runtime.readiness().clone(), runtime.metrics().clone());
    runtime.tasks().spawn_vital("admin", admin::serve(listener, router, runtime.shutdown()));

    let file = KeyFile::new(&config.folder, config.shared);
    let folder = config.folder;
    let prepared = file.prepare();
    let stirs = prepared.and_then(|()| folder_watch::FolderWatch::new(file.folders()));
    let stirs = stirs.map_err(|source| Error::Folder { folder, source })?;

    let users: Api<User> = Api::namespaced(client.clone(), &config.namespace);
    let (view, seen) = watch::channel(None);
    let mut replica = WatchedReplica::default();
    let watched = follow(
        "watch-users",
        watcher(users.clone(), paged()).default_backoff(),
        move |event| {
            let changed = replica.take(event, |user: &User| user.spec.clone());
            if let (true, Some(users)) = (changed, replica.held().cloned()) {
                let listed = matches!(event, watcher::Event::InitDone);
                view.send_replace(Some(UserView { users, listed }));
            }
        },
        Some(runtime.readiness().add("watch-users")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-users", watched);

    let ended = watch_namespace(&client, &config.namespace, &runtime);
    let (standing, told) = watch::channel(Standing::default());
    let own_node = || OwnNode::new(client.clone(), config.node.clone());
    let runs: Api<ClusterUpgrade> = Api::namespaced(client.clone(), &config.namespace);
    let (jobs, wanted) = watch::channel(None);
    let (mut replica, machine) = (WatchedReplica::default(), config.node.clone());
    let watched = follow(
        "watch-upgrades",
        watcher(runs, paged()).default_backoff(),
        move |event| {
            if replica.take(event, |run: &ClusterUpgrade| UpgradeJob::of(run, &machine)) {
                jobs.send_replace(replica.held().cloned());
            }
        },
        // Keys are kept where there are no upgrades, or no right to read them.
        None,
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-upgrades", watched);
    let jobs = JobKeeper::new(own_node(), config.upgrades);
    runtime.tasks().spawn_vital("upgrades", jobs.work(wanted, runtime.shutdown()));
    let reporter = NodeReporter::new(own_node());
    runtime.tasks().spawn_vital("report", reporter.work(told, runtime.shutdown()));
    let keeper = KeyKeeper::new(file, users, standing, config.mending_period, metrics);
    let shutdown = runtime.shutdown();
    runtime.tasks().spawn_vital("keys", keeper.work(seen, ended, stirs, shutdown.clone()));
    shutdown.triggered().await;
    Ok(())
}

/// Watches the namespace of the Users for the coordinator's word that the cluster manager is being taken
/// away: the id of the cluster while it is. What a person asks for is the coordinator's to judge.
fn watch_namespace(
    client: &Client,
    name: &str,
    runtime: &Runtime,
) -> watch::Receiver<Option<String>> {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    // An account may watch one object by its name.
    let own = paged().fields(&format!("metadata.name={name}"));
    let (ending, ended) = watch::channel(None);
    let mut replica = WatchedReplica::default();
    let word = |namespace: &PartialObjectMeta<Namespace>| {
        let text = namespace.annotations().get(name::TERMINATE_PROGRESS)?;
        Some(TerminateProgress::read(text)?.cluster)
    };
    let watched = follow(
        "watch-namespace",
        watcher(namespaces, own).default_backoff(),
        move |event| {
            if replica.take(event, word) {
                let held = replica.held().and_then(|all| all.values().next());
                ending.send_replace(held.cloned().flatten());
            }
        },
        None,
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-namespace", watched);
    ended
}

/// Describes the metrics that the agent exports to Prometheus.
pub fn metrics_catalogue() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(build_info::collector());
    described(&collectors)
}
