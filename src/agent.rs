//! The agent: keeps the SSH keys of all Users on one machine, and passes upgrade jobs to the
//! machine's runner. It reports the state of both on its `Node`.
//!
//! While the agent or the API is unavailable, a machine keeps the keys that it has, and finishes a
//! job that it began. The agent reads Users, ClusterUpgrades and their namespace. It writes below
//! two directories, two annotations and events, and needs no other right. The runner is not part of
//! its pod: the machine itself starts it.

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
        deadline::with_request_timeout,
        metric_catalogue::{MetricDescription, describe_collectors},
        watch::{WatchedReplica, follow_watch, paged_config},
    },
};

/// Settings of the agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this machine's Node.
    pub node: String,
    /// Namespace of the Users.
    pub namespace: String,
    /// Home directory that contains `.ssh/authorized_keys`. It must exist.
    pub folder: PathBuf,
    /// Directory in which the agent writes upgrade jobs for the runner. It writes none while the
    /// directory does not exist.
    pub upgrades: PathBuf,
    /// Lines of others in the file stay as they are; else they are removed.
    pub shared: bool,
    /// Time in which the agent restores the file at most ten times; after that, once in that time.
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
pub async fn run_agent(config: Config, client: Client, runtime: Runtime) -> Result<(), Error> {
    let client = with_request_timeout(client, REQUEST);
    let metrics = Metrics::register(runtime.metrics());
    let address = config.admin;
    let listener =
        TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let router = admin::build_router(
        Arc::new(|| None),
        runtime.readiness().clone(),
        runtime.metrics().clone(),
    );
    runtime.tasks().spawn_vital("admin", admin::serve_plain(listener, router, runtime.shutdown()));

    let file = KeyFile::new(&config.folder, config.shared);
    let folder = config.folder;
    let preparation = file.create_folder();
    let file_watch =
        preparation.and_then(|()| folder_watch::FolderWatch::new(file.watched_folders()));
    let file_watch = file_watch.map_err(|source| Error::Folder { folder, source })?;

    let users: Api<User> = Api::namespaced(client.clone(), &config.namespace);
    let (view_sender, view_receiver) = watch::channel(None);
    let mut replica = WatchedReplica::default();
    let users_watch = follow_watch(
        "watch-users",
        watcher(users.clone(), paged_config()).default_backoff(),
        move |event| {
            let has_changed = replica.apply_event(event, |user: &User| user.spec.clone());
            if let (true, Some(users)) = (has_changed, replica.objects().cloned()) {
                let is_listed = matches!(event, watcher::Event::InitDone);
                view_sender.send_replace(Some(UserView { users, listed: is_listed }));
            }
        },
        Some(runtime.readiness().add("watch-users")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-users", users_watch);

    let terminating_cluster = watch_namespace(&client, &config.namespace, &runtime);
    let (status_sender, status_receiver) = watch::channel(Standing::default());
    let own_node = || OwnNode::new(client.clone(), config.node.clone());
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), &config.namespace);
    let (job_sender, job_receiver) = watch::channel(None);
    let (mut replica, machine) = (WatchedReplica::default(), config.node.clone());
    let upgrades_watch = follow_watch(
        "watch-upgrades",
        watcher(upgrades, paged_config()).default_backoff(),
        move |event| {
            if replica.apply_event(event, |upgrade: &ClusterUpgrade| {
                UpgradeJob::for_machine(upgrade, &machine)
            }) {
                job_sender.send_replace(replica.objects().cloned());
            }
        },
        // Keys are kept where there are no upgrades, or no right to read them.
        None,
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-upgrades", upgrades_watch);
    let job_keeper = JobKeeper::new(own_node(), config.upgrades);
    runtime.tasks().spawn_vital("upgrades", job_keeper.run(job_receiver, runtime.shutdown()));
    let reporter = NodeReporter::new(own_node());
    runtime.tasks().spawn_vital("report", reporter.run(status_receiver, runtime.shutdown()));
    let keeper = KeyKeeper::new(file, users, status_sender, config.mending_period, metrics);
    let shutdown = runtime.shutdown();
    runtime.tasks().spawn_vital(
        "keys",
        keeper.run(view_receiver, terminating_cluster, file_watch, shutdown.clone()),
    );
    shutdown.triggered().await;
    Ok(())
}

/// Watches the namespace of the Users for the coordinator's report of an uninstall: the id of the
/// cluster while it runs. The coordinator alone judges what a user requests.
fn watch_namespace(
    client: &Client,
    name: &str,
    runtime: &Runtime,
) -> watch::Receiver<Option<String>> {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    // An account may watch one object by its name.
    let watch_config = paged_config().fields(&format!("metadata.name={name}"));
    let (cluster_sender, terminating_cluster) = watch::channel(None);
    let mut replica = WatchedReplica::default();
    let read_cluster_id = |namespace: &PartialObjectMeta<Namespace>| {
        let text = namespace.annotations().get(name::TERMINATE_PROGRESS)?;
        Some(TerminateProgress::parse(text)?.cluster)
    };
    let namespace_watch = follow_watch(
        "watch-namespace",
        watcher(namespaces, watch_config).default_backoff(),
        move |event| {
            if replica.apply_event(event, read_cluster_id) {
                let cluster_id = replica.objects().and_then(|entries| entries.values().next());
                cluster_sender.send_replace(cluster_id.cloned().flatten());
            }
        },
        None,
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-namespace", namespace_watch);
    terminating_cluster
}

/// Describes the metrics that the agent exports to Prometheus.
pub fn metrics_catalogue() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(build_info::collector());
    describe_collectors(&collectors)
}
