//! Makes a session from the kubeconfig.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::args::CommonArgs;
use crate::{
    database::{DatabaseList, scheme, shown},
    error::chain,
    plugin::{error::Error, lookup::PluginSession},
};

pub(super) async fn open(
    common: &CommonArgs,
    databases: DatabaseList,
) -> Result<PluginSession, Error> {
    let config = config(common).await?;
    let namespace = common.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(PluginSession {
        client: Client::try_from(config).map_err(Error::Server)?,
        scheme: scheme(databases),
        databases: shown(databases),
        namespace,
        now: Timestamp::now(),
    })
}

/// Returns the client settings that kubectl would use; in a pod without a kubeconfig, the pod's own
/// identity.
async fn config(common: &CommonArgs) -> Result<Config, Error> {
    let unusable = |what: &str, error: &(dyn std::error::Error + 'static)| {
        Error::Usage(format!("{what}: {}", chain(error)))
    };
    let options =
        KubeConfigOptions { context: common.context.clone(), ..KubeConfigOptions::default() };
    let file = match &common.kubeconfig {
        Some(path) => {
            let what = format!("--kubeconfig {}", path.display());
            Some(Kubeconfig::read_from(path).map_err(|error| unusable(&what, &error))?)
        }
        None => None,
    };
    let read = match file {
        Some(file) => Config::from_custom_kubeconfig(file, &options).await,
        None => Config::from_kubeconfig(&options).await,
    };
    let mut config = match read {
        Ok(config) => config,
        Err(error) => {
            let asked = common.kubeconfig.is_some() || common.context.is_some();
            match Config::incluster() {
                Ok(config) if !asked => config,
                _ => return Err(unusable("kubeconfig", &error)),
            }
        }
    };
    config.connect_timeout = Some(common.timeout());
    // A followed log may be silent for hours; other requests have limits of their own.
    config.read_timeout = None;
    // No retries: the user waits for an answer, and should see that the API does not answer.
    config.default_retry = false;
    Ok(config)
}
