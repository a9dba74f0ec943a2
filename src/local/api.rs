//! The Kubernetes API of one host: our own kinds, and those of Kubernetes that the controller, the
//! pilots and a person with kubectl need, out of one embedded store.
//!
//! Owns what a kube-apiserver would be asked for: certificates and identities, authorization,
//! namespaces, logs. Requests, storage, watches and patches are the API server's own machinery.
//! Runs nothing: the node and the controller watch the objects and carry them out.

mod access;
mod bootstrap;
mod events;
mod identity;
mod instead;
mod kinds;
mod logs;
mod namespaces;
mod pki;
mod protobuf;
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

pub use self::identity::Identity;
use self::{access::Rules, identity::Issuer, namespaces::Namespaces, pki::Pki, tokens::Tokens};
use crate::{
    api::{names, scheme::Scheme},
    apiserver::{
        admission::{Admit, Plugins, pilot_status::PilotStatus},
        authn::{Authenticator, Trust},
        authz::Authorizer,
        capacity::Bounds,
        certs::Serving,
        filters::{Chain, Deadlines, Installed, Limits},
        handlers::{self, AppState},
        identity::Guard,
        metrics::Metrics,
        serve,
        storage::{
            Storage,
            embedded::{self, Embedded},
        },
    },
    runtime::{Runtime, Shutdown},
};

/// Where the API listens unless told otherwise.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8089);

/// How long open connections get to finish at shutdown; all clients are on this host.
const DRAIN: Duration = Duration::from_secs(5);

/// What the API server is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Holds the store, the keys and the logs. The caller sees to it that a folder has one daemon.
    pub dir: PathBuf,
    /// Port 0 takes any port at the first start, and that same port at each later start.
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
    Store(#[from] embedded::OpenError),
    #[error("failed to write the first objects")]
    Bootstrap(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A running API server. It serves until the runtime's shutdown.
#[derive(Clone)]
pub struct Server {
    address: SocketAddr,
    issuer: Arc<Issuer>,
    admin: Client,
    controller: Client,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client that may do everything.
    pub fn admin_client(&self) -> Client {
        self.admin.clone()
    }

    /// The controller's client.
    pub fn controller_client(&self) -> Client {
        self.controller.clone()
    }

    /// A kubeconfig with the credentials of one identity. A pod's is good for as long as the pod
    /// exists, any other for as long as the folder is kept.
    pub fn kubeconfig(&self, who: &Identity) -> String {
        self.issuer.kubeconfig(who)
    }
}

/// Returns when the API is served and the first namespaces exist. Nothing runs on after an error.
///
/// # Errors
/// See [`Error`].
pub async fn start(config: Config, scheme: &'static Scheme, rt: &Runtime) -> Result<Server, Error> {
    let scheme = scheme.with(kinds::all(scheme.schemas()));
    let (listener, address) = listen(&config).await?;
    let pki = Pki::open(&config.dir.join("pki"), address.ip())?;
    let history = embedded::History::default();
    let store: Arc<dyn Storage> =
        Arc::new(Embedded::open(&config.dir.join("store"), history).await?);

    let metrics = Arc::new(Metrics::new());
    let serving = Arc::new(Serving::new(Arc::clone(&metrics)));
    let (certificate, key) = (&pki.server.certificate, &pki.server.key);
    serving.swap(certificate.as_bytes(), key.as_bytes()).map_err(|source| pki.unusable(source))?;
    let trust = Trust::of_clients(&pki.ca.certificate).map_err(|source| pki.unusable(source))?;
    let tokens = Tokens::new(&pki.token_key, Arc::clone(&store));
    let issuer = Arc::new(Issuer::new(address, &pki, tokens.clone()));
    let client = async |who| issuer.client(who).await.map_err(|source| pki.unusable(source));
    let (admin, controller) =
        (client(&Identity::Admin).await?, client(&Identity::Controller).await?);
    bootstrap::write(&store).await.map_err(Error::Bootstrap)?;
    metrics.know(scheme);
    metrics.register(rt.metrics());

    // From here on nothing fails, so nothing that was started is left behind.

    let closing = rt.shutdown();
    let admission: Arc<dyn Admit> = Arc::new(Plugins::new(vec![
        Arc::new(Namespaces::new(Arc::clone(&store))),
        Arc::new(PilotStatus::new(names::NAMESPACE)),
    ]));
    let stored = (&store, Bounds::own());
    let state = AppState::start(scheme, stored, &admission, Guard::open(), &metrics, rt, &closing);
    let router = protobuf::before(scale::before(handlers::router(state)));
    let installed = Installed {
        authenticator: Authenticator::new(
            tokio::sync::watch::channel(Arc::new(trust)).1,
            Arc::new(tokens),
            Arc::clone(&metrics),
        ),
        authorizer: Arc::new(Authorizer::new(
            Arc::new(Rules::new(Arc::clone(&store))),
            Arc::clone(&metrics),
        )),
        router: logs::before(router, config.dir.join("logs"), Arc::clone(&store), closing.clone()),
    };
    let (limits, deadlines) = (Limits::default(), Deadlines::default());
    let readiness = rt.readiness().clone();
    let drain = Shutdown::new();
    let chain = Chain::new(limits, deadlines, None, Arc::clone(&metrics), readiness, drain)
        .instead_of_upgrades(instead::instead);
    chain.install(installed);

    let tls = serve::server_config(serving, &serve::Spoken::default());
    let tasks = rt.tasks().clone();
    rt.tasks().spawn("listener", async move {
        serve::serve(listener, tls, Arc::new(chain), metrics, &tasks, closing, DRAIN).await;
    });
    let (failing, shutdown) = (Arc::clone(&store), rt.shutdown());
    rt.tasks().spawn_vital("store", async move {
        tokio::select! {
            why = failing.failed() => error!(why, "The store cannot be used any more"),
            () = shutdown.triggered() => {}
        }
    });
    rt.tasks().spawn("event-expiry", events::expire(store, rt.shutdown()));
    info!(%address, "Serving the API");
    Ok(Server { address, issuer, admin, controller })
}

/// Opens the port first. Before that only the folder is made, which remembers the port.
async fn listen(config: &Config) -> Result<(TcpListener, SocketAddr), Error> {
    let folder = |source| Error::Folder { path: config.dir.clone(), source };
    pki::make_own(&config.dir).map_err(folder)?;
    let path = config.dir.join("port");
    let mut address = config.address;
    if address.port() == 0
        && let Ok(text) = std::fs::read_to_string(&path)
    {
        address.set_port(text.trim().parse().unwrap_or(0));
    }
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|source| Error::Bind { address, source })?;
    let address = listener.local_addr().map_err(|source| Error::Bind { address, source })?;
    pki::write_own(&path, &address.port().to_string()).map_err(folder)?;
    Ok((listener, address))
}
