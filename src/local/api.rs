//! The Kubernetes API of one host: our own kinds, and those of Kubernetes that the controller, the
//! pilots and a person with kubectl need, in one embedded store.
//!
//! Owns what is kube-apiserver's in a Kubernetes install: certificates and identities,
//! authorization, namespaces, logs. Requests, storage, watches and patches are the API server's own
//! machinery. Runs nothing: the node and the controller watch the objects and carry them out.

mod bootstrap;
mod event_expiry;
mod exec_hints;
mod identity;
mod kinds;
mod logs;
mod namespace_admission;
mod pki;
mod protobuf;
mod rbac;
mod scale;
mod tokens;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use kube::Client;
use tokio::net::TcpListener;
use tracing::{error, info};

pub use self::identity::ClientIdentity;
use self::{
    identity::CredentialIssuer, namespace_admission::NamespaceAdmission, pki::Pki,
    rbac::RbacAuthorizer, tokens::TokenAuthority,
};
use crate::{
    api::{names, scheme::Scheme},
    apiserver::{
        admission::{AdmissionChain, AdmissionPlugin},
        authn::{Authenticator, ClusterTrust},
        authz::Authorizer,
        capacity::CapacityBounds,
        certs::ServingCertificate,
        filters::{FilterChain, InflightLimits, InstalledServices, RequestTimeouts},
        handlers::{self, AppState},
        metrics::Metrics,
        role::pilot_status::PilotStatusRestriction,
        serve,
        storage::{
            Storage,
            embedded::{self, EmbeddedStore},
        },
        store_identity::StoreGuard,
    },
    runtime::{Runtime, Shutdown},
};

/// Default address of the API.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8089);

/// How long open connections get to finish at shutdown. It is short, because most clients are on
/// this host.
const DRAIN: Duration = Duration::from_secs(5);

/// Settings of the API server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of the store, the keys and the logs. The caller makes sure that a folder has one
    /// daemon.
    pub dir: PathBuf,
    /// Address to listen on. Port 0 takes any port at the first start, and that same port at each
    /// later start.
    pub address: SocketAddr,
}

/// Why the API server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("failed to use {path:?}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the certificates in {path:?} cannot be used")]
    Pki { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("failed to open the store")]
    Store(#[from] embedded::StoreOpenError),
    #[error("failed to write the first objects")]
    Bootstrap(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A running API server. It serves until the runtime's shutdown.
#[derive(Clone)]
pub struct ApiServer {
    address: SocketAddr,
    issuer: Arc<CredentialIssuer>,
    admin: Client,
    controller: Client,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ApiServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client with the rights of the administrator.
    pub fn admin_client(&self) -> Client {
        self.admin.clone()
    }

    /// Returns the client of the controller.
    pub fn controller_client(&self) -> Client {
        self.controller.clone()
    }

    /// Writes a kubeconfig with the credentials of `identity`. That of a pod is valid for as long
    /// as the pod exists, any other for as long as the folder is kept.
    pub fn build_kubeconfig(&self, identity: &ClientIdentity) -> String {
        self.issuer.build_kubeconfig(identity)
    }
}

/// Starts the API server. Returns when the API is served and the first namespaces exist. Nothing
/// keeps running after an error.
///
/// # Errors
/// See [`Error`].
pub async fn start_server(
    config: Config,
    scheme: &'static Scheme,
    rt: &Runtime,
) -> Result<ApiServer, Error> {
    let scheme = scheme.with_kinds(kinds::served_kinds(scheme.schemas()));
    let (listener, address) = bind_listener(&config).await?;
    let pki = Pki::open(&config.dir.join("pki"), address.ip())?;
    let history = embedded::HistoryLimits::default();
    let store: Arc<dyn Storage> =
        Arc::new(EmbeddedStore::open(&config.dir.join("store"), history).await?);

    let metrics = Arc::new(Metrics::new());
    let serving = Arc::new(ServingCertificate::new(Arc::clone(&metrics)));
    let (certificate, key) = (&pki.server.certificate, &pki.server.key);
    serving
        .set_certificate(certificate.as_bytes(), key.as_bytes())
        .map_err(|source| pki.unusable_error(source))?;
    let trust = ClusterTrust::of_clients(&pki.ca.certificate)
        .map_err(|source| pki.unusable_error(source))?;
    let tokens = TokenAuthority::new(&pki.token_key, Arc::clone(&store));
    let issuer = Arc::new(CredentialIssuer::new(address, &pki, tokens.clone()));
    let client = async |identity| {
        issuer.build_client(identity).await.map_err(|source| pki.unusable_error(source))
    };
    let (admin, controller) =
        (client(&ClientIdentity::Admin).await?, client(&ClientIdentity::Controller).await?);
    bootstrap::write_first_objects(&store).await.map_err(Error::Bootstrap)?;
    metrics.set_scheme(scheme);
    metrics.register(rt.metrics());

    // From here on nothing fails, so nothing that was started is left behind.

    let closing = rt.shutdown();
    let admission: Arc<dyn AdmissionPlugin> = Arc::new(AdmissionChain::new(vec![
        Arc::new(NamespaceAdmission::new(Arc::clone(&store))),
        Arc::new(PilotStatusRestriction::new(names::NAMESPACE)),
    ]));
    let storage = (&store, CapacityBounds::for_process());
    let state = AppState::start(
        scheme,
        storage,
        &admission,
        StoreGuard::allow_all(),
        &metrics,
        rt,
        &closing,
    );
    let router = protobuf::wrap_router(scale::wrap_router(handlers::build_router(state)));
    let installed = InstalledServices {
        authenticator: Authenticator::new(
            tokio::sync::watch::channel(Arc::new(trust)).1,
            Arc::new(tokens),
            Arc::clone(&metrics),
        ),
        authorizer: Arc::new(Authorizer::new(
            Arc::new(RbacAuthorizer::new(Arc::clone(&store))),
            Arc::clone(&metrics),
        )),
        router: logs::wrap_router(
            router,
            config.dir.join("logs"),
            Arc::clone(&store),
            closing.clone(),
        ),
    };
    let (limits, deadlines) = (InflightLimits::default(), RequestTimeouts::default());
    let readiness = rt.readiness().clone();
    let drain = Shutdown::new();
    let chain = FilterChain::new(limits, deadlines, None, Arc::clone(&metrics), readiness, drain)
        .instead_of_upgrades(exec_hints::exec_hint);
    chain.install(installed);

    let tls = serve::server_config(serving, &serve::SecureServingOptions::default());
    let tasks = rt.tasks().clone();
    rt.tasks().spawn("listener", async move {
        serve::accept_connections(listener, tls, Arc::new(chain), metrics, &tasks, closing, DRAIN)
            .await;
    });
    let (failing, shutdown) = (Arc::clone(&store), rt.shutdown());
    rt.tasks().spawn_vital("store", async move {
        tokio::select! {
            why = failing.until_failed() => error!(why, "The store cannot be used any more"),
            () = shutdown.triggered() => {}
        }
    });
    rt.tasks().spawn("event-expiry", event_expiry::expire_events(store, rt.shutdown()));
    info!(%address, "Serving the API");
    Ok(ApiServer { address, issuer, admin, controller })
}

/// Opens the port first. Before that, only the folder is made, which holds the port of the last
/// start.
async fn bind_listener(config: &Config) -> Result<(TcpListener, SocketAddr), Error> {
    let folder_error = |source| Error::Folder { path: config.dir.clone(), source };
    pki::create_private_dir(&config.dir).map_err(folder_error)?;
    let path = config.dir.join("port");
    let mut address = config.address;
    if address.port() == 0
        && let Ok(text) = std::fs::read_to_string(&path)
    {
        address.set_port(text.trim().parse().unwrap_or(0));
    }
    let bind_result = TcpListener::bind(address).await;
    let listener = bind_result.map_err(|source| Error::Bind { address, source })?;
    let address = listener.local_addr().map_err(|source| Error::Bind { address, source })?;
    pki::write_private(&path, &address.port().to_string()).map_err(folder_error)?;
    Ok((listener, address))
}
