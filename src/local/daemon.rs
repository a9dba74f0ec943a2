//! The one process of a local installation: API server, controller and node.
//!
//! Invariant: databases outlive the daemon, however it ends, unless it was asked to stop them
//! ([`StateFolder::stop_mark`]).

use std::{
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{
    api::{self, ClientIdentity},
    homes::DatabaseHomes,
    log_retention,
    node::{self, NodeAgent},
    state_folder::{StateFolder, write_private},
};
use crate::{
    api::names,
    controller,
    database::{DatabaseList, build_scheme, managed_databases},
    runtime::{Runtime, Shutdown},
};

/// How long the controller may take to end, and again all other tasks together.
const ENDING: Duration = Duration::from_secs(5);

/// Settings of the daemon.
pub struct Config {
    pub folder: StateFolder,
    /// Address at which the API is served; port 0 takes the port of the last start.
    pub address: SocketAddr,
    pub databases: DatabaseList,
    pub homes: DatabaseHomes,
    /// Path of this program.
    pub program: PathBuf,
    /// Name of this machine.
    pub machine: String,
    /// Environment variables that every process gets.
    pub environment: Vec<(OsString, OsString)>,
    /// Installation folder of the Java on the search path.
    pub java: Option<PathBuf>,
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to serve the API")]
    Api(#[from] api::Error),
    #[error("failed to write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("failed to take up what ran before")]
    Node(#[source] io::Error),
    #[error("the controller ended")]
    Controller(#[from] controller::Error),
    #[error("a part of it ended early")]
    Ended,
}

/// Runs the daemon until `asked` triggers, or until a part of it fails.
///
/// # Errors
/// See [`Error`].
pub async fn run_daemon(config: Config, asked: Shutdown, rt: Runtime) -> Result<(), Error> {
    let Config { folder, address, databases, homes, program, machine, environment, java } = config;
    let settings = api::Config { dir: folder.path().to_owned(), address };
    let server = Arc::new(api::start_server(settings, build_scheme(databases), &rt).await?);
    // Databases may run as users of their own, who must be able to pass through the folder.
    let folder_error = |source| Error::Write { path: folder.path().to_owned(), source };
    folder.create().map_err(folder_error)?;
    let path = folder.kubeconfig();
    let text = server.build_kubeconfig(&ClientIdentity::Admin);
    write_private(&path, text.as_bytes()).map_err(|source| Error::Write { path, source })?;
    let page = find_page_address(server.address()).map_err(folder_error)?;
    let path = folder.page();
    let text = format!("http://{page}/\n");
    write_private(&path, text.as_bytes()).map_err(|source| Error::Write { path, source })?;
    info!(address = %server.address(), folder = %folder.path().display(), "The API is served");

    rt.tasks().spawn("logs", log_retention::trim_logs(folder.clone(), rt.shutdown()));

    let drivers = databases.iter().map(|database| database.pilot).collect();
    let credentials = {
        let server = Arc::clone(&server);
        Arc::new(move |pod: &Pod| Ok(server.build_kubeconfig(&pod_identity(pod))))
    };
    let settings = node::Config {
        folder: folder.clone(),
        program,
        databases: drivers,
        homes,
        machine,
        environment,
        java,
        credentials,
    };
    let node = NodeAgent::start(settings, server.admin_client(), &rt).map_err(Error::Node)?;

    // The controller ends first: it must not act upon databases that are being stopped.
    let acting = Runtime::new();
    let controller = controller::run_controller(
        controller_settings(page),
        managed_databases(databases),
        server.controller_client(),
        acting.clone(),
    );
    let mut controller = std::pin::pin!(controller);
    let shutdown = rt.shutdown();
    let outcome = tokio::select! {
        () = asked.triggered() => Ok(()),
        () = shutdown.triggered() => Err(Error::Ended),
        ended = &mut controller => Err(ended.err().map_or(Error::Ended, Error::Controller)),
    };
    acting.shutdown().trigger();
    if outcome.is_ok() && timeout(ENDING, controller).await.is_err() {
        warn!("The controller did not end in time");
    }
    if outcome.is_ok() && folder.stop_mark().exists() {
        info!("Stopping every database");
        node.stop().await;
        let path = folder.stop_mark();
        fs::remove_file(&path).map_err(|source| Error::Write { path, source })?;
    }
    rt.shutdown().trigger();
    if timeout(ENDING, async { tokio::join!(rt.tasks().join(), acting.tasks().join()) })
        .await
        .is_err()
    {
        warn!("Some tasks did not end in time");
    }
    outcome
}

/// Returns the identity that a pod's pilot has at the API.
fn pod_identity(pod: &Pod) -> ClientIdentity {
    let meta = &pod.metadata;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    ClientIdentity::Pod {
        namespace: meta.namespace.clone().unwrap_or_default(),
        service_account: account.unwrap_or_else(|| "default".to_owned()),
        pod_name: meta.name.clone().unwrap_or_default(),
        pod_uid: meta.uid.clone().unwrap_or_default(),
    }
}

/// Returns a free address for the status page and metrics: the port after the API's, or any other.
fn find_page_address(api: SocketAddr) -> io::Result<SocketAddr> {
    let bind_port = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr();
    api.port()
        .checked_add(1)
        .map_or_else(|| bind_port(0), |port| bind_port(port).or_else(|_| bind_port(0)))
}

fn controller_settings(page: SocketAddr) -> controller::Config {
    controller::Config {
        // The image has no version: the node installs its own program, and brings a newer one by
        // itself.
        pilot_image: "navigator".to_owned(),
        namespace: None,
        install_namespace: names::NAMESPACE.to_owned(),
        // The folder's lock allows one daemon, so there is one controller.
        leader_elect: false,
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
        owner_references: false,
        pilot_gc_after: Duration::from_secs(3600),
        admin: page,
        page: controller::page::PageAccess::Local,
        identity: names::CONTROLLER.to_owned(),
    }
}
