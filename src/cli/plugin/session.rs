//! Makes a session from the kubeconfig.

use std::{env, path::PathBuf};

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
    runtime::kubeconfig::{self, KubeconfigFailure},
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

/// Reads the file that is named, or those of the variable `KUBECONFIG`, or `~/.kube/config`.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
pub(super) fn file(common: &CommonArgs) -> Result<Kubeconfig, KubeconfigFailure> {
    if let Some(path) = &common.kubeconfig {
        return kubeconfig::read(path);
    }
    let listed = env::var_os("KUBECONFIG").unwrap_or_default();
    let listed = env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty());
    let mut paths: Vec<PathBuf> = listed.collect();
    if paths.is_empty() {
        paths.push(env::home_dir().unwrap_or_default().join(".kube/config"));
    }
    kubeconfig::read_all(&paths)
}

/// Returns the client settings that kubectl would use; in a pod without a kubeconfig, the pod's own
/// identity.
async fn config(common: &CommonArgs) -> Result<Config, Error> {
    let unusable = |what: &str, error: &(dyn std::error::Error + 'static)| {
        Error::Usage(format!("{what}: {}", chain(error)))
    };
    let options =
        KubeConfigOptions { context: common.context.clone(), ..KubeConfigOptions::default() };
    let read = match (file(common), &common.kubeconfig) {
        (Ok(file), _) => Config::from_custom_kubeconfig(file, &options).await.map_err(Into::into),
        (Err(failure), Some(_)) => return Err(unusable("--kubeconfig", &failure)),
        (Err(failure), None) => Err(failure),
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
