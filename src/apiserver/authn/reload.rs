//! Reads the cluster's [`ClusterTrust`] and follows its changes, so that CAs rotate while we run.
//!
//! Once there was a good configuration, a bad or missing one is refused and the good one kept.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::trust::{CONFIG_MAP, ClusterTrust, NAMESPACE, TrustError};
use crate::{apiserver::kube_client::WatchBackoff, error::chain, runtime::Runtime};

/// Pause between tries while kube-apiserver does not answer.
const RETRY: Duration = Duration::from_secs(2);
/// Longest wait for one answer of kube-apiserver.
const ANSWER: Duration = Duration::from_secs(10);

/// Why the API server cannot know which certificates to trust, and must not start.
#[derive(Debug, thiserror::Error)]
pub enum TrustLoadError {
    #[error(
        "ConfigMap {NAMESPACE}/{CONFIG_MAP} does not exist: kube-apiserver publishes there whom \
         it trusts when it runs with --requestheader-client-ca-file"
    )]
    Absent,
    #[error("ConfigMap {NAMESPACE}/{CONFIG_MAP} cannot be used")]
    Unusable(#[source] TrustError),
    #[error("shutdown was asked for before ConfigMap {NAMESPACE}/{CONFIG_MAP} could be read")]
    Shutdown,
}

/// Waits for the configuration, then follows it in the background. While kube-apiserver does not
/// answer or refuses, the wait goes on; a configuration that is missing or unusable is an error.
pub async fn load_trust(
    client: &Client,
    rt: &Runtime,
) -> Result<watch::Receiver<Arc<ClusterTrust>>, TrustLoadError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let config_map = read_config_map(&api, rt).await?;
    let trust = ClusterTrust::parse(&config_map.data.unwrap_or_default())
        .map_err(TrustLoadError::Unusable)?;
    if trust.front_proxy.as_ref().is_some_and(|proxy| proxy.allowed_names.is_empty()) {
        warn!("The front proxy may have any common name: set --requestheader-allowed-names");
    }
    let (sender, receiver) = watch::channel(Arc::new(trust));
    rt.tasks().spawn("authentication-config", watch_config_map(api, sender, rt.clone()));
    Ok(receiver)
}

async fn read_config_map(api: &Api<ConfigMap>, rt: &Runtime) -> Result<ConfigMap, TrustLoadError> {
    let shutdown = rt.shutdown();
    loop {
        match tokio::time::timeout(ANSWER, api.get_opt(CONFIG_MAP)).await {
            Ok(Ok(Some(config_map))) => return Ok(config_map),
            Ok(Ok(None)) => return Err(TrustLoadError::Absent),
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "Failed to read whom the cluster trusts");
            }
            Err(_) => warn!(timeout = ?ANSWER, "Reading whom the cluster trusts timed out"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = shutdown.triggered() => return Err(TrustLoadError::Shutdown),
        }
    }
}

async fn watch_config_map(
    api: Api<ConfigMap>,
    sender: watch::Sender<Arc<ClusterTrust>>,
    rt: Runtime,
) {
    let shutdown = rt.shutdown();
    let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let mut events = std::pin::pin!(watcher(api, config).backoff(WatchBackoff::new()));
    let mut last_data = None;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = shutdown.triggered() => return,
        };
        match event {
            Some(Ok(Event::Apply(map) | Event::InitApply(map))) => {
                let data = map.data.unwrap_or_default();
                if last_data.as_ref() == Some(&data) {
                    continue;
                }
                match ClusterTrust::parse(&data) {
                    Ok(trust) => {
                        if last_data.is_some() {
                            info!("Whom the cluster trusts has changed");
                        }
                        sender.send_replace(Arc::new(trust));
                    }
                    Err(error) => error!(
                        error = %chain(&error),
                        "Whom the cluster trusts cannot be used; keeping what was trusted before"
                    ),
                }
                last_data = Some(data);
            }
            Some(Ok(Event::Delete(_))) => {
                last_data = None;
                error!("Whom the cluster trusts was deleted; keeping what was trusted before");
            }
            Some(Ok(Event::Init | Event::InitDone)) => {}
            Some(Err(error)) => {
                warn!(error = %chain(&error), "Failed to watch whom the cluster trusts");
            }
            None => return,
        }
    }
}
