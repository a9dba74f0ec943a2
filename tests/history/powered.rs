//! The API server over a disk that loses what was not synced: this very program, started as
//! `apiserver` in the place of the real one. All of it is the server's own code, put together as
//! `navigator apiserver` does; only the disk under the embedded store is another.

use std::{path::PathBuf, sync::Arc, time::Duration};

use navigator::{
    apiserver::{
        admission::{
            AdmissionChain, AdmissionPlugin,
            namespace::{NamespaceLifecycle, NamespaceLister},
        },
        authn::{self, Authenticator, CachingTokenReviewer},
        authz::{Authorizer, CachingAccessReviewer},
        capacity::CapacityBounds,
        certs::ServingCertificate,
        filters::{FilterChain, InflightLimits, InstalledServices, RequestTimeouts},
        handlers::{self, AppState},
        metrics::Metrics,
        role::{self, pilot_status::PilotStatusRestriction},
        serve,
        storage::{
            Revision, Storage,
            embedded::{EmbeddedStore, HistoryLimits},
        },
        store_identity,
    },
    database, databases,
    runtime::{Runtime, Shutdown},
};
use tokio::net::TcpListener;

use super::power::Power;

const SYNC: Duration = Duration::from_millis(1);
/// The namespace of all servers of the tests.
const NAMESPACE: &str = "navigator";

/// Serves until the process is killed.
pub(crate) async fn serve(arguments: &[String]) {
    let value = |flag: &str| {
        let mut values = arguments.iter().filter_map(|argument| argument.strip_prefix(flag));
        PathBuf::from(values.next().unwrap())
    };
    let disk = value("--store-path=");
    let store =
        EmbeddedStore::open_backend(Power::at(&disk, SYNC).unwrap(), HistoryLimits::default())
            .unwrap();
    let store: Arc<dyn Storage> = Arc::new(store);

    let (rt, closing) = (Runtime::new(), Shutdown::new());
    let scheme = database::build_scheme(databases::ALL);
    let metrics = Arc::new(Metrics::new());
    let starting = rt.readiness().add("start");
    let config = kube::config::Kubeconfig::read_from(value("--kubeconfig=")).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options);
    let client = kube::Client::try_from(config.await.unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let chain = Arc::new(FilterChain::new(
        InflightLimits::default(),
        RequestTimeouts::default(),
        None,
        Arc::clone(&metrics),
        rt.readiness().clone(),
        Shutdown::new(),
    ));
    let trust = authn::load_trust(&client, &rt).await.unwrap();
    let mut guard = store_identity::start_guard(
        Arc::clone(&store),
        &role::navigator_api(scheme),
        &client,
        NAMESPACE,
        &rt,
    );
    guard.until_decided().await;
    let admission: Arc<dyn AdmissionPlugin> = Arc::new(AdmissionChain::new(vec![
        Arc::new(NamespaceLifecycle::new(Arc::new(NamespaceLister::start(&client, &rt)))),
        Arc::new(PilotStatusRestriction::new(NAMESPACE)),
    ]));
    let tokens = Arc::new(CachingTokenReviewer::new(client.clone(), Arc::clone(&metrics)));
    let reviews = Arc::new(CachingAccessReviewer::new(client, Arc::clone(&metrics)));
    let stored = (&store, CapacityBounds::for_process());
    let state = AppState::start(scheme, stored, &admission, guard, &metrics, &rt, &closing);
    chain.install(InstalledServices {
        authenticator: Authenticator::new(trust, tokens, Arc::clone(&metrics)),
        authorizer: Arc::new(Authorizer::new(reviews, Arc::clone(&metrics))),
        router: handlers::build_router(state),
    });
    drop(starting);
    eprintln!("{}", serde_json::json!({"address": address.to_string()}));
    let tls = serve::server_config(
        Arc::new(ServingCertificate::new(Arc::clone(&metrics))),
        &serve::SecureServingOptions::default(),
    );
    let tasks = rt.tasks().clone();
    let serving =
        serve::accept_connections(listener, tls, chain, metrics, &tasks, closing, Duration::ZERO);
    futures::future::join(serving, compact_when_told(&*store, &disk.with_extension("compact")))
        .await;
}

/// Forgets history up to the revision that a file names.
async fn compact_when_told(store: &dyn Storage, told: &std::path::Path) {
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(text) = std::fs::read_to_string(told) else { continue };
        let Ok(revision) = text.parse() else { continue };
        if let Err(error) = store.compact(Revision(revision)).await {
            eprintln!("compaction: {error}");
        }
        std::fs::remove_file(told).unwrap();
    }
}
