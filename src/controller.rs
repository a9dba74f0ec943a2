//! The controller: turns clusters into objects of Kubernetes, one leader at a time. It decides when
//! a node starts, stops or leaves; it speaks no database protocol.
//!
//! One reconcile is `observe → ensure → plan → budget → confirm → execute → status`; see
//! [`mod@reconcile`]. Each database describes its differences as a [`ManagedDatabase`].

mod context;
pub mod desired_state;
mod ensure;
mod event_causes;
mod events;
mod execute;
mod expansion;
mod fleet_metrics;
mod fleet_snapshot;
mod heartbeats;
mod machine_runs;
pub mod managed_cluster;
mod metrics;
mod namespace_termination;
mod object_caches;
pub(crate) mod observe;
mod owner_references;
pub(crate) mod ownership;
pub mod page;
mod pilot_lifecycle;
mod plan;
mod queue;
mod reconcile;
pub(crate) mod resources;
mod security;
mod security_findings;
mod security_round;
mod status;
mod status_pace;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod token_renewal;
mod trust_observations;
mod write;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{error, info, warn};

#[cfg(test)]
pub(crate) use self::plan::model;
use self::{
    context::ControllerContext,
    event_causes::EventCauses,
    events::ClusterEventPublisher,
    expansion::ExpansionAnswers,
    heartbeats::HeartbeatTracker,
    machine_runs::MachineRuns,
    metrics::Metrics,
    object_caches::ObjectCaches,
    queue::{ClusterKey, ReconcileOutcome, WorkQueue},
    status_pace::StatusPace,
    trust_observations::TrustObservations,
};
pub use self::{
    desired_state::{
        BehindReplica, ClusterService, DesiredCluster, ExistingPool, LoginNames, ManagedDatabase,
        NodeLabel, NodeLoad, NodePlace, NodeReport, ObjectSettings, SecuredCondition,
        ServiceExposure,
    },
    fleet_snapshot::{CachedCluster, CachedPilot, FleetSnapshot, SnapshotSource},
    managed_cluster::ManagedClusterKind,
};
use crate::{
    api::{names, v1beta1},
    engine::seal::{KEY_BYTES, SealKey},
    error::chain,
    runtime::{
        Runtime, Shutdown, admin, build_info,
        deadline::with_request_timeout,
        leader::{self, KubernetesLease, LeaderClaim, LeaderElector},
        metric_catalogue::{MetricDescription, describe_collectors},
    },
};

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Image that holds the pilot, for clusters whose spec names no pilot image.
    pub pilot_image: String,
    /// The one namespace whose clusters are reconciled; `None` for the clusters of all namespaces.
    pub namespace: Option<String>,
    /// Namespace of the install: the leader lease and the ConfigMap with the store's identity are
    /// there.
    pub install_namespace: String,
    /// Name clusters as owners of their objects, so that a release before 0.3 can take over.
    pub owner_references: bool,
    /// Take part in leader election; off where only one controller can run.
    pub leader_elect: bool,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// A Pilot that no cluster wants is deleted after this time without a heartbeat.
    pub pilot_gc_after: Duration,
    /// Address that serves metrics, health and the status page.
    pub admin: SocketAddr,
    /// Who may read the status page.
    pub page: page::PageAccess,
    /// Identity of this process as lease holder and in events: pod name and a random part.
    pub identity: String,
}

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("lost the leadership")]
    Deposed,
    #[error("the store is another one than before: {was:?} became {is:?}")]
    OtherStore { was: String, is: String },
}

/// Clusters that are reconciled at the same time: several may wait for slow servers. No cluster is
/// reconciled twice at a time.
const WORKERS: usize = 4;

/// Timeout of one request to the API server.
const REQUEST: Duration = Duration::from_secs(30);

/// Timeout of one reconcile. A reconcile that hangs fails, because the next one may reach a server
/// that answers.
const RECONCILE: Duration = Duration::from_secs(120);

/// Age at which a reconcile counts as stuck, and with it its worker: well past the timeout
/// `RECONCILE`.
const STUCK: Duration = Duration::from_secs(180);

/// How long reconciles that are under way may go on after a shutdown began; then they are dropped,
/// as by a crash. A process that no longer leads drops its reconciles at once.
const ENDING: Duration = Duration::from_secs(2);

/// Interval at which the ConfigMap with the store's identity is read again.
const STORE_CHECK: Duration = Duration::from_secs(10);

/// Runs the controller until shutdown, or until it may no longer act as leader.
///
/// # Errors
/// See [`Error`].
pub async fn run_controller(
    config: Config,
    databases: Vec<&'static ManagedDatabase>,
    client: Client,
    runtime: Runtime,
) -> Result<(), Error> {
    let client = with_request_timeout(client, REQUEST);
    let queue = WorkQueue::default();
    let metrics = Metrics::register(runtime.metrics());
    let address = config.admin;
    let listener =
        TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    let window = Arc::new(OnceLock::new());
    let metrics_source = snapshot_source(&window, &runtime, &metrics, FleetSnapshot::for_metrics);
    fleet_metrics::register_collector(runtime.metrics(), metrics_source);
    let fleet_source = snapshot_source(&window, &runtime, &metrics, FleetSnapshot::from_caches);
    // One that looks after a single namespace has no right to read those of the machines.
    let upgrades = MachineRuns::default();
    if config.namespace.is_none() {
        let poll_upgrades =
            run_until(runtime.shutdown(), upgrades.clone().poll_upgrades(client.clone()));
        runtime.tasks().spawn_vital("machine-runs", poll_upgrades);
    }
    let page_source: SnapshotSource = Arc::new(move || {
        let snapshot = fleet_source();
        FleetSnapshot { runs: upgrades.recent_upgrades(snapshot.now), ..snapshot }
    });
    let router = admin::build_router(
        stuck_check(&queue),
        runtime.readiness().clone(),
        runtime.metrics().clone(),
    );
    let router = router.merge(page::build_router(page_source, config.page));
    runtime.tasks().spawn_vital("admin", admin::serve_plain(listener, router, runtime.shutdown()));

    // A candidate that waits for the lead is ready too: a rollout of two must not wait for it.
    let shutdown = runtime.shutdown();
    let store_id = tokio::select! {
        store_id = wait_for_api(&client, &config, &runtime) => store_id,
        () = shutdown.triggered() => return Ok(()),
    };
    let heartbeats = HeartbeatTracker::default();
    let namespace = config.namespace.clone();
    let stores = ObjectCaches::start_watches(
        &databases,
        &runtime,
        client.clone(),
        namespace,
        queue.clone(),
        &heartbeats,
    );
    tokio::select! {
        () = stores.wait_until_filled() => {}
        () = shutdown.triggered() => return Ok(()),
    }
    info!("Caches are filled");
    // No other task fills the window, so `set` does not fail.
    drop(window.set((stores.clone(), heartbeats.clone())));

    // This shutdown outlives the other tasks: the lease is released after the last write.
    let term_over = Shutdown::new();
    let (claim_sender, mut claim) = watch::channel(LeaderClaim::Waiting);
    if config.leader_elect {
        let election = leader::ElectionConfig {
            lease_duration: config.lease_duration,
            renew_deadline: config.renew_deadline,
            retry_period: config.retry_period,
            ..leader::ElectionConfig::new(config.identity.clone())
        };
        let lease = names::CONTROLLER.to_owned();
        let lease = KubernetesLease::new(client.clone(), &config.install_namespace, lease);
        let mut elector = LeaderElector::new(lease, election);
        let election_shutdown = term_over.clone();
        // The election runs once only: a deposed controller ends its process.
        runtime
            .tasks()
            .spawn("leader", async move { elector.run(&claim_sender, election_shutdown).await });
    } else {
        claim_sender.send_replace(LeaderClaim::for_single_process());
    }
    tokio::select! {
        // `claim` has a value to wait for as long as the election runs: the election holds its
        // sender.
        held = claim.wait_for(|claim| claim.is_held()) => drop(held),
        () = shutdown.triggered() => {
            term_over.trigger();
            return Ok(());
        }
    }
    metrics.leader.set(1);
    if let LeaderClaim::Held { transition, .. } = *claim.borrow() {
        metrics.transitions.set(transition.into());
    }

    let seals = tokio::select! {
        seals = wait_for_seal_key(&client, &config) => seals,
        () = leader::wait_for_end(&mut claim) => {
            term_over.trigger();
            return Err(Error::Deposed);
        }
        () = shutdown.triggered() => {
            term_over.trigger();
            return Ok(());
        }
    };
    let ctx = Arc::new(ControllerContext {
        seals,
        events: ClusterEventPublisher::new(client.clone(), config.identity.clone()),
        settings: ObjectSettings {
            pilot_image: config.pilot_image.clone(),
            store_id: store_id.clone(),
            owner_references: config.owner_references,
        },
        writer: context::fenced_client(&client, &claim),
        client: client.clone(),
        claim: claim.clone(),
        metrics: metrics.clone(),
        stores,
        heard: heartbeats,
        causes: EventCauses::default(),
        expansion: ExpansionAnswers::default(),
        trust: TrustObservations::default(),
        pace: StatusPace::default(),
    });
    // Workers end by a shutdown of their own, so that they also end when the lead is lost: with
    // `work` after their reconcile, with `halt` in the middle of it.
    let work_shutdown = shutdown.child();
    let halt = Shutdown::new();
    let workers = crate::runtime::TaskGroup::new(work_shutdown.clone());
    for _ in 0..WORKERS {
        let worker = run_worker(Arc::clone(&ctx), queue.clone(), work_shutdown.clone());
        workers.spawn_vital("worker", run_until(halt.clone(), worker));
    }
    let pilots =
        pilot_lifecycle::watch_over(Arc::clone(&ctx), config.pilot_gc_after, work_shutdown.clone());
    workers.spawn_vital("pilots", run_until(halt.clone(), pilots));
    let owners = owner_references::watch_over(Arc::clone(&ctx), work_shutdown.clone());
    workers.spawn_vital("owners", run_until(halt.clone(), owners));
    let namespaces = namespace_termination::watch_over(Arc::clone(&ctx), work_shutdown.clone());
    workers.spawn_vital("namespaces", run_until(halt.clone(), namespaces));

    let outcome = tokio::select! {
        () = work_shutdown.triggered() => Ok(()),
        () = leader::wait_for_end(&mut claim) => Err(Error::Deposed),
        is = wait_for_other_store(&client, &config, &store_id) => {
            Err(Error::OtherStore { was: store_id.clone(), is })
        }
    };
    work_shutdown.trigger();
    if outcome.is_ok() && timeout(ENDING, workers.join()).await.is_err() {
        warn!("A look did not end in time and is dropped");
    }
    halt.trigger();
    workers.join().await;
    metrics.leader.set(0);
    // The lease is released after the last write.
    term_over.trigger();
    shutdown.trigger();
    outcome
}

/// Describes the metrics that the controller exports to Prometheus.
pub fn metrics_catalogue() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(fleet_metrics::fleet_collector(Arc::new(|| FleetSnapshot::empty(Vec::new()))));
    collectors.push(build_info::collector());
    describe_collectors(&collectors)
}

/// Returns the source of the status page or the cluster metrics: `look` through the caches. It gives
/// an empty snapshot until they are filled.
fn snapshot_source(
    window: &Arc<OnceLock<(ObjectCaches, HeartbeatTracker)>>,
    runtime: &Runtime,
    metrics: &Metrics,
    build_snapshot: fn(&ObjectCaches, &HeartbeatTracker, bool) -> FleetSnapshot,
) -> SnapshotSource {
    let (window, readiness) = (Arc::clone(window), runtime.readiness().clone());
    let leader = metrics.leader.clone();
    Arc::new(move || {
        if let Some((stores, heartbeats)) = window.get() {
            return build_snapshot(stores, heartbeats, leader.get() == 1);
        }
        let waiting_for = readiness.waiting_for();
        FleetSnapshot::empty(waiting_for.into_iter().map(str::to_owned).collect())
    })
}

/// Runs `work` to its end, and drops it as soon as `over` triggers. A reconcile may be dropped
/// anywhere: the next leader observes again.
async fn run_until(over: Shutdown, work: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = over.triggered() => {}
        () = work => {}
    }
}

/// Liveness check for `/livez`: only a restart of the process helps a worker that makes no
/// progress.
fn stuck_check(queue: &WorkQueue) -> admin::StuckCheck {
    let queue = queue.clone();
    Arc::new(move || {
        let (key, started_at) = queue.longest_reconcile()?;
        let elapsed = started_at.elapsed();
        (elapsed > STUCK).then(|| format!("the look at {key} has lasted {} s", elapsed.as_secs()))
    })
}

/// Waits until our API is served and the store's identity is recorded; returns that identity.
async fn wait_for_api(client: &Client, config: &Config, runtime: &Runtime) -> String {
    let readiness_handle = runtime.readiness().add("api");
    let mut last_error = String::new();
    let store_id = loop {
        let missing = match (check_api(client).await, read_store_id(client, config).await) {
            (Ok(()), Ok(id)) => break id,
            (Err(error), _) | (_, Err(error)) => error,
        };
        if missing != last_error {
            info!(reason = missing, "Waiting for the API");
            last_error = missing;
        }
        sleep(object_caches::RETRY).await;
    };
    info!(store = store_id, "The API is served");
    drop(readiness_handle);
    store_id
}

/// Checks that our API group is served. The error says why it is not.
async fn check_api(client: &Client) -> Result<(), String> {
    match client.list_api_group_resources(v1beta1::API_VERSION).await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} is not served: {}", v1beta1::API_VERSION, chain(&error))),
    }
}

/// Reads the store's identity from the ConfigMap that records it outside the store.
async fn read_store_id(client: &Client, config: &Config) -> Result<String, String> {
    let name = names::STORE_CONFIG_MAP;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &config.install_namespace);
    let map = api
        .get(name)
        .await
        .map_err(|error| format!("failed to read ConfigMap {name:?}: {}", chain(&error)))?;
    let id = map.data.as_ref().and_then(|data| data.get(STORE_ID_KEY)).cloned();
    id.ok_or_else(|| format!("ConfigMap {name:?} has no {STORE_ID_KEY:?}"))
}

/// Reads the key of the controller's seals, or makes it where there is none; tries until it succeeds.
async fn wait_for_seal_key(client: &Client, config: &Config) -> SealKey {
    loop {
        match read_seal_key(client, config).await {
            Ok(key) => return key,
            Err(error) => warn!(error, "Failed to read the key of seals, trying again"),
        }
        sleep(object_caches::RETRY).await;
    }
}

async fn read_seal_key(client: &Client, config: &Config) -> Result<SealKey, String> {
    let name = names::SEAL_SECRET;
    let api: Api<Secret> = Api::namespaced(client.clone(), &config.install_namespace);
    let describe_error = |error: kube::Error| format!("Secret {name:?}: {}", chain(&error));
    if let Some(secret) = api.get_opt(name).await.map_err(describe_error)? {
        let key = secret.data.as_ref().and_then(|data| data.get(SEAL_KEY));
        let key = key.and_then(|key| <[u8; KEY_BYTES]>::try_from(key.0.as_slice()).ok());
        let Some(key) = key else {
            return Err(format!(
                "Secret {name:?} has no {SEAL_KEY:?} of {KEY_BYTES} bytes: delete it"
            ));
        };
        return Ok(SealKey::new(&key));
    }
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| error.to_string())?;
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some([(SEAL_KEY.to_owned(), ByteString(key.to_vec()))].into()),
        ..Secret::default()
    };
    // Another process that makes one at the same time is read at the next try.
    api.create(&PostParams::default(), &secret).await.map_err(describe_error)?;
    Ok(SealKey::new(&key))
}

/// Key of the Secret with the key of seals.
const SEAL_KEY: &str = "key";

/// Key of the ConfigMap that records the store's identity.
const STORE_ID_KEY: &str = "id";

/// Waits until the ConfigMap names another store than `expected_id`, and returns that store's
/// identity. The caches then describe a store that is gone.
async fn wait_for_other_store(client: &Client, config: &Config, expected_id: &str) -> String {
    loop {
        sleep(STORE_CHECK).await;
        match read_store_id(client, config).await {
            Ok(id) if id != expected_id => {
                error!(was = expected_id, is = id, "The store is another one than before");
                return id;
            }
            Ok(_) => {}
            Err(error) => warn!(error, "Failed to check the store's identity"),
        }
    }
}

async fn run_worker(ctx: Arc<ControllerContext>, queue: WorkQueue, shutdown: Shutdown) {
    loop {
        ctx.metrics.queue_depth.set(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
        let key = tokio::select! {
            key = queue.take_key() => key,
            () = shutdown.triggered() => return,
        };
        let started_at = Instant::now();
        let failures = queue.failures(&key);
        let (outcome, label) = timeout(RECONCILE, reconcile_cluster(&ctx, &key, failures))
            .await
            .unwrap_or_else(|_| {
                let seconds = RECONCILE.as_secs();
                warn!(namespace = key.namespace, name = key.name, seconds, "A look took too long");
                (ReconcileOutcome::Failed, "timeout")
            });
        ctx.metrics
            .reconcile_seconds
            .with_label_values(&[key.kind, label])
            .observe(started_at.elapsed().as_secs_f64());
        queue.finish_reconcile(key, outcome);
    }
}

async fn reconcile_cluster(
    ctx: &ControllerContext,
    key: &ClusterKey,
    failures: u32,
) -> (ReconcileOutcome, &'static str) {
    let database = ctx.stores.databases().find(|database| database.names.kind == key.kind);
    let database = database.expect("keys are made of the databases that are looked after");
    let cluster = ctx.stores.cluster(database, &key.namespace, &key.name);
    reconcile::reconcile(ctx, database, key, cluster, failures).await
}
