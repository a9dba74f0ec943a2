//! Start and shutdown of `navigator apiserver`.
//!
//! The server opens its port first and answers probes at once. It answers everything else with 503
//! until all is installed. The shutdown is the reverse: the server reports that it is not ready,
//! and still serves clients that have not noticed. Then it accepts no new connections, drains the
//! open ones, and only then stops what they used.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::oneshot};
use tracing::{error, info, warn};

use super::{
    account,
    admission::{
        AdmissionChain, AdmissionPlugin, TimedPlugin,
        namespace::{NamespaceLifecycle, NamespaceLister},
        webhook::{AdmissionMetrics, EnabledWebhookTypes, WebhookDispatcher},
    },
    audit::{self, AuditTrail},
    authn::{self, Authenticator, CachingTokenReviewer},
    authz::{Authorizer, CachingAccessReviewer},
    capacity::{CapacityBounds, survey_store},
    certs::{
        ServingCertificate,
        files::{CertificateContents, CertificateFiles, CertificateFilesError},
        rotator::{CertificateRotator, CertificateRotatorError},
    },
    filters::{FilterChain, GoawayChance, InflightLimits, InstalledServices, RequestTimeouts},
    handlers::{self, AppState},
    kube_client,
    metrics::Metrics,
    serve,
    storage::{
        Storage, embedded, etcd, kubernetes as objects,
        timed_store::{StoreMetrics, TimedStore},
    },
    store_identity::{self, StoreGuard},
};
use crate::{
    apiserver::installation::ServedApi,
    error::chain,
    runtime::{Runtime, Shutdown, process_metrics::ProcessMetrics, signals},
};

/// Most time for connections to finish after the last accept. Watches end at once, and so do most
/// requests; the kubelet kills after 30 s.
const DRAIN: Duration = Duration::from_secs(25);
/// Most time for writes that outlive their connections.
const WRITES: Duration = Duration::from_secs(3);
/// Pause between tries to reach the store.
const STORE_RETRY: Duration = Duration::from_secs(2);

/// Pause between surveys of a store that holds more than this process may load.
const SURVEY_RETRY: Duration = Duration::from_secs(30);

/// The settings of the API server, as its flags give them.
#[derive(Clone, Debug)]
pub struct Config {
    pub address: SocketAddr,
    /// The installation's own namespace, with its Secret, ConfigMap and Service.
    pub namespace: String,
    /// Path of a kubeconfig; in-cluster credentials count when absent.
    pub kubeconfig: Option<PathBuf>,
    pub store: StoreConfig,
    /// Files of the serving certificate; the server has its own CA when absent.
    pub certificate: Option<CertificateFiles>,
    pub spoken: serve::SecureServingOptions,
    pub audit: audit::Config,
    pub admission: EnabledAdmissionPlugins,
    pub limits: InflightLimits,
    pub deadlines: RequestTimeouts,
    pub goaway: GoawayChance,
    /// Least time that a watch without `timeoutSeconds` lasts; must not be zero.
    pub least_watch: Duration,
    /// Time to serve on after shutdown was asked for.
    pub shutdown_delay: Duration,
}

/// Which of the admission plugins that Kubernetes knows by name are enabled.
#[derive(Clone, Copy, Debug)]
pub struct EnabledAdmissionPlugins {
    /// Whether NamespaceLifecycle is enabled.
    pub namespaces: bool,
    /// Which of MutatingAdmissionWebhook and ValidatingAdmissionWebhook are enabled.
    pub webhooks: EnabledWebhookTypes,
}

/// Where objects are kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// Objects are stored in a directory, for one replica.
    Embedded(PathBuf),
    /// Objects are kept in etcd, for any number of replicas.
    Etcd(etcd::Config),
    /// Objects are kept in the Kubernetes API, for any number of replicas.
    Kubernetes(objects::Config),
}

/// Why the API server ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to find out how to reach kube-apiserver")]
    Kubernetes(#[source] kube_client::KubeClientError),
    #[error(transparent)]
    Audit(#[from] audit::AuditOpenError),
    #[error("the serving certificate cannot be used")]
    Files(#[from] CertificateFilesError),
    #[error("failed to listen on {address}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("failed to handle signals")]
    Signals(#[source] std::io::Error),
    #[error("the serving certificate cannot be used")]
    Certificates(#[from] CertificateRotatorError),
    #[error("it is not known whom this cluster trusts")]
    Trust(#[from] authn::TrustLoadError),
    #[error("failed to open the embedded store")]
    Embedded(#[from] embedded::StoreOpenError),
    #[error("the connection to etcd cannot be set up")]
    Etcd(#[from] etcd::EtcdConnectError),
    #[error("the connection to the store cannot be set up")]
    KubernetesStore(#[from] objects::KubernetesConnectError),
    #[error("only a new process can serve the store: {0}")]
    Store(String),
}

impl Error {
    /// Tells whether the fault is in the settings or in files that they name.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Kubernetes(_) | Self::KubernetesStore(_) | Self::Audit(_) | Self::Files(_)
        )
    }
}

/// Runs the server until SIGTERM, SIGINT or a failure, and ends in order.
pub async fn run_server(config: Config, api: ServedApi, rt: Runtime) -> Result<(), Error> {
    let metrics = Arc::new(Metrics::new());
    metrics.set_scheme(api.kinds);
    metrics.register(rt.metrics());
    let process = Box::new(ProcessMetrics::default());
    rt.metrics().register(process).expect("every metric has a name of its own");
    let account = Box::new(account::MemoryAccountMetrics::default());
    rt.metrics().register(account).expect("every metric has a name of its own");
    let start_check = rt.readiness().add("start");
    let client = kube_client::build_client(config.kubeconfig.as_deref()).await;
    let client = client.map_err(Error::Kubernetes)?;
    let audit = AuditTrail::open(&config.audit, api.names, &metrics, &rt).await?;
    let serving_certificate = Arc::new(ServingCertificate::new(Arc::clone(&metrics)));
    let files = match &config.certificate {
        Some(files) => Some((files.clone(), files.load(&serving_certificate).await?)),
        None => None,
    };
    let address = config.address;
    let listener =
        serve::bind_listener(address).map_err(|source| Error::Bind { address, source })?;
    info!(address = %listener.local_addr().unwrap_or(address), "Listening");

    // `drain`: shutdown was requested. `closing`: later, the server stops accepting connections.
    let (drain, closing) = (Shutdown::new(), Shutdown::new());
    let signals = signals::shutdown_on_signal(&drain).map_err(Error::Signals)?;
    rt.tasks().spawn("signals", signals);
    let chain = FilterChain::new(
        config.limits,
        config.deadlines,
        audit,
        Arc::clone(&metrics),
        rt.readiness().clone(),
        drain.clone(),
    );
    let chain = Arc::new(chain.going_away(config.goaway));
    let tls = serve::server_config(Arc::clone(&serving_certificate) as _, &config.spoken);
    let done_receiver = spawn_listener(listener, tls, &chain, &metrics, &rt, &closing);

    let outcome = {
        let setup = async {
            let certificates =
                follow_certificates(&config, &api, files, serving_certificate, &client, &rt);
            let install = Box::pin(async {
                let (services, mut guard, store) = Box::pin(build_services(
                    &config, &api, &client, &metrics, &rt, &closing, &chain,
                ))
                .await?;
                chain.install(services);
                drop(start_check);
                info!("Serving");
                let reason = tokio::select! {
                    why = guard.until_over() => why,
                    why = store.until_failed() => why,
                };
                Err(Error::Store(reason))
            });
            futures::future::try_join(certificates, install).await.map(|((), ())| ())
        };
        let shutdown = rt.shutdown();
        // Setting up is abandoned half-way only when the process ends.
        tokio::select! {
            outcome = Box::pin(setup) => outcome,
            () = drain.triggered() => {
                info!(delay = ?config.shutdown_delay, "Not ready any more; serving on for a while");
                tokio::time::sleep(config.shutdown_delay).await;
                Ok(())
            }
            () = shutdown.triggered() => Ok(()),
        }
    };
    drain.trigger();
    closing.trigger();
    // The listener's task only ends early when the process does.
    drop(done_receiver.await);
    // A write whose client has gone runs on; its line must get into the trail before that closes.
    chain.until_written(WRITES).await;
    rt.shutdown().trigger();
    drop(chain);
    rt.tasks().join().await;
    outcome
}

/// Starts to accept connections. The receiver hears when the last connection ended.
fn spawn_listener(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    chain: &Arc<FilterChain>,
    metrics: &Arc<Metrics>,
    rt: &Runtime,
    closing: &Shutdown,
) -> oneshot::Receiver<()> {
    let (done_sender, done_receiver) = oneshot::channel();
    let (chain, metrics, closing) = (Arc::clone(chain), Arc::clone(metrics), closing.clone());
    let tasks = rt.tasks().clone();
    rt.tasks().spawn("listener", async move {
        serve::accept_connections(listener, tls, chain, metrics, &tasks, closing, DRAIN).await;
        drop(done_sender);
    });
    done_receiver
}

/// Keeps the serving certificate fresh until shutdown.
async fn follow_certificates(
    config: &Config,
    api: &ServedApi,
    files: Option<(CertificateFiles, CertificateContents)>,
    serving_certificate: Arc<ServingCertificate>,
    client: &kube::Client,
    rt: &Runtime,
) -> Result<(), Error> {
    if let Some((files, contents)) = files {
        files.watch_files(serving_certificate, contents, rt.shutdown()).await;
        return Ok(());
    }
    let rotator =
        CertificateRotator::new(api, client.clone(), &config.namespace, serving_certificate);
    Ok(rotator.run(rt.readiness(), rt.shutdown()).await?)
}

/// Builds the services that requests need. Waits for kube-apiserver and for the store.
async fn build_services(
    config: &Config,
    api: &ServedApi,
    client: &kube::Client,
    metrics: &Arc<Metrics>,
    rt: &Runtime,
    closing: &Shutdown,
    chain: &FilterChain,
) -> Result<(InstalledServices, StoreGuard, Arc<dyn Storage>), Error> {
    let (trust, (store, etcd_store)) = tokio::try_join!(
        async { Ok::<_, Error>(authn::load_trust(client, rt).await?) },
        open_store(&config.store, rt),
    )?;
    let timing = match &config.store {
        StoreConfig::Embedded(_) | StoreConfig::Kubernetes(_) => StoreMetrics::new(),
        StoreConfig::Etcd(_) => StoreMetrics::new().of_etcd(),
    };
    timing.register(rt.metrics());
    let store: Arc<dyn Storage> = Arc::new(TimedStore::new(store, timing));
    let mut guard =
        store_identity::start_guard(Arc::clone(&store), api, client, &config.namespace, rt);
    if let Some(etcd_store) = etcd_store {
        let (guard, shutdown) = (guard.clone(), rt.shutdown().clone());
        rt.tasks().spawn("etcd-compaction", async move {
            let is_ours = || guard.check().is_ok();
            etcd_store.compact_periodically(etcd::COMPACTION_INTERVAL, is_ours, shutdown).await;
        });
    }
    guard.until_decided().await;
    wait_for_memory(&*store, api.kinds.group().name, chain, rt).await;
    let admission = build_admission(config, api, client, rt);
    let tokens = Arc::new(CachingTokenReviewer::new(client.clone(), Arc::clone(metrics)));
    let reviews = Arc::new(CachingAccessReviewer::new(client.clone(), Arc::clone(metrics)));
    let store_and_bounds = (&store, CapacityBounds::for_process());
    let state = AppState::start(
        api.kinds,
        store_and_bounds,
        &admission,
        guard.clone(),
        metrics,
        rt,
        closing,
    )
    .watching_at_least(config.least_watch);
    let services = InstalledServices {
        authenticator: Authenticator::new(trust, tokens, Arc::clone(metrics)),
        authorizer: Arc::new(Authorizer::new(reviews, Arc::clone(metrics))),
        router: handlers::build_router(state),
    };
    Ok((services, guard, store))
}

/// Waits until the stored objects fit into the memory of this process. Until then no cache loads
/// them, and every request except `/livez` fails; the answer names the memory that is needed, once
/// that is known.
async fn wait_for_memory(store: &dyn Storage, group: &str, chain: &FilterChain, rt: &Runtime) {
    let _waiting = rt.readiness().add("memory");
    let mut reported_reason = None;
    loop {
        let pause = match survey_store(store, group).await {
            Ok(survey) => match survey.too_much(CapacityBounds::for_process()) {
                None => break,
                Some(reason) => {
                    if reported_reason.as_ref() != Some(&reason) {
                        error!(explanation = reason, "Serving nothing: too much is stored");
                    }
                    chain.hold_up(Some(reason.clone()));
                    reported_reason = Some(reason);
                    SURVEY_RETRY
                }
            },
            Err(error) => {
                warn!(error = %crate::error::chain(&error), "Failed to see how much is stored");
                STORE_RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
    chain.hold_up(None);
}

/// Returns the plugins and webhooks that admit writes, in the order in which they are asked.
fn build_admission(
    config: &Config,
    api: &ServedApi,
    client: &kube::Client,
    rt: &Runtime,
) -> Arc<dyn AdmissionPlugin> {
    let EnabledAdmissionPlugins { namespaces: lifecycle, webhooks: enabled_types } =
        config.admission;
    let metrics = AdmissionMetrics::new();
    metrics.register(rt.metrics());
    let namespaces = Arc::new(NamespaceLister::start(client, rt));
    let mut plugins: Vec<Arc<dyn AdmissionPlugin>> = Vec::new();
    if lifecycle {
        let timing = metrics.plugin_timing("NamespaceLifecycle", "admit");
        plugins.push(Arc::new(TimedPlugin::new(
            NamespaceLifecycle::new(Arc::clone(&namespaces)),
            timing,
        )));
    }
    plugins.extend((api.plugins)(&config.namespace));
    let group = api.kinds.group().name;
    let webhooks = WebhookDispatcher::start(client, group, enabled_types, namespaces, metrics, rt);
    Arc::new(AdmissionChain::new(plugins).with_webhooks(webhooks))
}

/// Opens the store, and returns the etcd that is to be compacted, if it is one. An etcd, or a
/// kube-apiserver, that does not answer is waited for; meanwhile the server is not ready and says
/// why.
async fn open_store(
    store: &StoreConfig,
    rt: &Runtime,
) -> Result<(Arc<dyn Storage>, Option<etcd::EtcdStore>), Error> {
    let config = match store {
        StoreConfig::Embedded(path) => {
            let history = embedded::HistoryLimits::default();
            let store = embedded::EmbeddedStore::open(path, history).await?;
            return Ok((Arc::new(store), None));
        }
        StoreConfig::Kubernetes(config) => {
            return Ok((Arc::new(open_kubernetes(config, rt).await?), None));
        }
        StoreConfig::Etcd(config) => config,
    };
    let store = etcd::EtcdStore::connect(config).await?;
    let _waiting = rt.readiness().add("etcd");
    while let Err(error) = store.establish_id().await {
        warn!(error = %chain(&error), "Failed to reach etcd; trying again");
        tokio::time::sleep(STORE_RETRY).await;
    }
    Ok((Arc::new(store.clone()), Some(store)))
}

async fn open_kubernetes(
    config: &objects::Config,
    rt: &Runtime,
) -> Result<objects::KubernetesStore, Error> {
    let store = objects::KubernetesStore::connect(config).await?;
    let _waiting = rt.readiness().add("kubernetes-store");
    while let Err(error) = store.establish_id().await {
        warn!(error = %chain(&error), "Failed to open the store in Kubernetes; trying again");
        tokio::time::sleep(STORE_RETRY).await;
    }
    Ok(store)
}
