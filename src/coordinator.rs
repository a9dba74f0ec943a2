//! The coordinator: upgrades and reboots the machines of a Kubernetes cluster, labels them, says on which
//! of them the keys of Users stand, copies the credentials of image registries into namespaces, gives
//! people rights, applies plugins, and keeps the objects of a hub, one leader at a time.
//!
//! What is done next is decided in `engine/machines`; this role reads, carries out and writes down.
//! It stands on kube-apiserver alone: where Navigator's own API does not answer, no further database
//! is asked for anything, and machines that are under way are still finished.

mod agenda;
mod fleet;
mod gauges;
mod hub;
mod labels;
mod look_error;
mod metrics;
mod namespace_events;
mod notices;
mod plugins;
mod registries;
mod roles;
mod stirring;
mod terminate;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod upgrade;
mod users;
mod watches;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::warn;

pub use self::hub::{HubConfig, hub_address};
use self::{
    agenda::UpgradeAgenda,
    gauges::UpgradeGauges,
    hub::HubSync,
    labels::LabelCoordinator,
    metrics::Metrics,
    namespace_events::NamespaceEvents,
    plugins::{PluginCoordinator, PluginHub},
    registries::RegistryCoordinator,
    roles::RoleCoordinator,
    stirring::{StatusWriter, WatchedLedger},
    terminate::TerminateCoordinator,
    upgrade::UpgradeCoordinator,
    users::UserCoordinator,
};
use crate::{
    api::{database_names::DatabaseNames, names},
    error::chain,
    runtime::{
        Runtime, Shutdown, TaskGroup, admin, build_info,
        deadline::with_request_timeout,
        events::EventPublisher,
        leader::{self, ElectionConfig, KubernetesLease, LeaderClaim, LeaderElector, fence_client},
        metric_catalogue::{MetricDescription, describe_collectors},
    },
};

/// Settings of the coordinator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the objects of the cluster manager and of the leader lease.
    pub namespace: String,
    /// The databases whose clusters are heeded.
    pub databases: Vec<&'static DatabaseNames>,
    /// Carry upgrades out; else new ones are refused.
    pub upgrades_enabled: bool,
    /// Copy the credentials of Registries, which takes rights over all Secrets.
    pub registries: bool,
    /// Apply Plugins, which takes the right to act as the ServiceAccounts of the core namespace.
    pub plugins: bool,
    /// Keep the ClusterRoles and bindings that AuthorizationRoles ask for, which takes the right to give
    /// any right.
    pub rbac_sync: bool,
    /// Accept AuthorizationRoles that let their holders take rights beyond those that are named.
    pub allow_privileged_roles: bool,
    /// The hub whose objects are kept; none without it.
    pub hub: Option<HubConfig>,
    /// Id of this cluster; the uid of `kube-system` without it.
    pub cluster_id: Option<String>,
    /// Take away what is the cluster manager's own where a person asks for it.
    pub allow_terminate: bool,
    /// Take part in leader election; off where only one coordinator can run.
    pub leader_elect: bool,
    pub election: ElectionConfig,
    /// Address that serves metrics and health.
    pub admin: SocketAddr,
}

/// Why the coordinator ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("lost the leadership")]
    Deposed,
}

/// User agent of the coordinator in audit logs; the number of the leader's term is added to it.
const AGENT: &str = concat!("navigator-coordinator/v", env!("CARGO_PKG_VERSION"));
/// Timeout of one request to the API server.
const REQUEST: Duration = Duration::from_secs(30);
/// Timeout of one look. One that is dropped is done anew, from what was written.
const LOOK: Duration = Duration::from_secs(300);
/// Pause between two looks, at least.
const BREATH: Duration = Duration::from_secs(1);
/// Interval of looks while a run is under way, or after a look that failed.
const OFTEN: Duration = Duration::from_secs(5);
/// Interval of looks else.
const SELDOM: Duration = Duration::from_secs(60);
/// How long marks of runs that are over are looked for after the last one: a leader that was stopped
/// in the middle may make one late.
const LATE: Duration = Duration::from_secs(150);

/// Runs the coordinator until shutdown, or until it may no longer act as leader.
///
/// # Errors
/// See [`Error`].
pub async fn run_coordinator(
    config: Config,
    client: Client,
    runtime: Runtime,
) -> Result<(), Error> {
    let client = with_request_timeout(client, REQUEST);
    let metrics = Metrics::register(runtime.metrics());
    let address = config.admin;
    let listener =
        TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    // A look that hangs is given up, so nothing is stuck for good.
    let router = admin::build_router(
        Arc::new(|| None),
        runtime.readiness().clone(),
        runtime.metrics().clone(),
    );
    runtime.tasks().spawn_vital("admin", admin::serve_plain(listener, router, runtime.shutdown()));
    // A candidate that waits for the lead watches too, so that it is ready to lead.
    let gauges = UpgradeGauges::new(metrics.clone());
    let (agenda, users) = watches::start_watches(&client, &config.namespace, gauges, &runtime);
    let labels = labels::watch_labels(&client, &config.namespace, &runtime);
    let registries = config
        .registries
        .then(|| registries::watch_registries(&client, &config.namespace, &runtime));
    let plugins =
        config.plugins.then(|| plugins::watch_plugins(&client, &config.namespace, &runtime));
    let roles = config.rbac_sync.then(|| roles::watch_roles(&client, &config.namespace, &runtime));

    // This shutdown outlives the other tasks: the lease is released after the last write.
    let term_over = Shutdown::new();
    let (claim_sender, mut claim) = watch::channel(LeaderClaim::Waiting);
    if config.leader_elect {
        let lease = names::COORDINATOR.to_owned();
        let lease = KubernetesLease::new(client.clone(), &config.namespace, lease);
        let mut elector = LeaderElector::new(lease, config.election.clone());
        let election_end = term_over.clone();
        // The election runs once only: a deposed coordinator ends its process.
        runtime
            .tasks()
            .spawn("leader", async move { elector.run(&claim_sender, election_end).await });
    } else {
        claim_sender.send_replace(LeaderClaim::for_single_process());
    }
    let shutdown = runtime.shutdown();
    tokio::select! {
        wait_result = claim.wait_for(|claim| claim.is_held()) => drop(wait_result),
        () = shutdown.triggered() => {
            term_over.trigger();
            return Ok(());
        }
    }
    metrics.leader.set(1);

    let identity = config.election.identity.clone();
    let writer = fence_client(client.clone(), claim.clone(), AGENT);
    let events = EventPublisher::new(client.clone(), names::COORDINATOR, identity);
    let new_status_writer = || StatusWriter {
        writer: writer.clone(),
        namespace: config.namespace.clone(),
        events: events.clone(),
    };
    let users = UserCoordinator { seen: users, status: new_status_writer() };
    let labels =
        LabelCoordinator { seen: labels, status: new_status_writer(), metrics: metrics.clone() };
    let registries = registries.map(|ledger| RegistryCoordinator {
        seen: ledger,
        client: client.clone(),
        status: new_status_writer(),
        metrics: metrics.clone(),
    });
    let plugins = plugins.map(|ledger| PluginCoordinator {
        seen: ledger,
        client: client.clone(),
        hub: config.hub.clone().map(|hub| PluginHub::new(hub, metrics.hub_requests.clone()).into()),
        status: new_status_writer(),
        metrics: metrics.clone(),
    });
    let roles = roles.map(|ledger| RoleCoordinator {
        seen: ledger,
        status: new_status_writer(),
        allow_privileged: config.allow_privileged_roles,
    });
    let new_namespace_events = || NamespaceEvents::new(events.clone(), &config.namespace);
    let terminate = TerminateCoordinator {
        client: client.clone(),
        writer: writer.clone(),
        namespace: config.namespace.clone(),
        events: new_namespace_events(),
        cluster_id: config.cluster_id,
        allowed: config.allow_terminate,
        registries: config.registries,
    };
    let needs_hub_task = config.hub.is_some() || config.allow_terminate;
    let hub = config.hub.map(|hub| {
        let clients = (client.clone(), writer.clone());
        HubSync::new(
            hub,
            clients,
            &config.namespace,
            new_namespace_events(),
            metrics.clone(),
            config.registries,
        )
    });
    let coordinator = UpgradeCoordinator {
        writer,
        events,
        client,
        namespace: config.namespace,
        databases: config.databases,
        enabled: config.upgrades_enabled,
        metrics: metrics.clone(),
        refusals: std::collections::BTreeMap::new(),
    };
    // A look may be dropped anywhere: the next leader decides anew from what was written.
    let halt = Shutdown::new();
    let work = TaskGroup::new(shutdown.child());
    work.spawn(
        "upgrades",
        run_until(halt.clone(), run_upgrade_loop(coordinator, agenda, metrics.clone())),
    );
    work.spawn("users", run_until(halt.clone(), stirring::run_reconcile_loop(users)));
    work.spawn("labels", run_until(halt.clone(), stirring::run_reconcile_loop(labels)));
    if let Some(registries) = registries {
        work.spawn("registries", run_until(halt.clone(), stirring::run_reconcile_loop(registries)));
    }
    if let Some(plugins) = plugins {
        work.spawn("plugins", run_until(halt.clone(), stirring::run_reconcile_loop(plugins)));
    }
    if let Some(roles) = roles {
        work.spawn("roles", run_until(halt.clone(), stirring::run_reconcile_loop(roles)));
    }
    if needs_hub_task {
        work.spawn("hub", run_until(halt.clone(), hub::run_hub_loop(terminate, hub)));
    }
    let result = tokio::select! {
        () = shutdown.triggered() => Ok(()),
        () = leader::wait_for_end(&mut claim) => Err(Error::Deposed),
    };
    halt.trigger();
    work.join().await;
    metrics.leader.set(0);
    term_over.trigger();
    shutdown.trigger();
    result
}

/// Describes the metrics that the coordinator exports to Prometheus.
pub fn metrics_catalogue() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(build_info::collector());
    describe_collectors(&collectors)
}

/// Works until it is halted, and is dropped then.
async fn run_until(halt: Shutdown, work: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = halt.triggered() => {}
        () = work => {}
    }
}

/// Looks whenever something is to be done and a watch stirs, and from time to time.
async fn run_upgrade_loop(
    mut coordinator: UpgradeCoordinator,
    agenda: WatchedLedger<UpgradeAgenda>,
    metrics: Metrics,
) {
    let mut next_poll = Instant::now();
    let mut poll_until = next_poll + LATE;
    loop {
        let is_notified = tokio::select! {
            () = agenda.wait_for_change() => true,
            () = sleep_until(next_poll) => false,
        };
        let needs_reconcile = agenda.lock().needs_reconcile(Timestamp::now());
        // Nodes stir by their heartbeats, too.
        if !needs_reconcile && (is_notified || Instant::now() >= poll_until) {
            if !is_notified {
                next_poll = Instant::now() + SELDOM;
            }
            continue;
        }
        let start = Instant::now();
        let (outcome, has_failed) = match timeout(LOOK, coordinator.reconcile()).await {
            Ok(Ok(())) => ("done", false),
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "A look failed, trying again");
                (error.outcome(), true)
            }
            Err(_) => {
                warn!(seconds = LOOK.as_secs(), "A look took too long");
                ("timeout", true)
            }
        };
        metrics.looks.with_label_values(&[outcome]).inc();
        let now = Instant::now();
        // One that failed found nothing out.
        if needs_reconcile || has_failed {
            poll_until = now + LATE;
        }
        next_poll = now + if has_failed || agenda.lock().is_under_way() { OFTEN } else { SELDOM };
        sleep_until(start + BREATH).await;
    }
}
