//! Makes a session from the kubeconfig.

use std::{env, path::PathBuf};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::args::CommonArgs;
use crate::{
    database::{DatabaseList, build_scheme, shown_databases},
    error::chain,
    plugin::{error::Error, lookup::PluginSession},
    runtime::kubeconfig::{self, KubeconfigFailure},
};

pub(super) async fn open_session(
    common: &CommonArgs,
    databases: DatabaseList,
) -> Result<PluginSession, Error> {
    let config = build_config(common).await?;
    let namespace = common.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(PluginSession {
        client: Client::try_from(config).map_err(Error::Server)?,
        scheme: build_scheme(databases),
        databases: shown_databases(databases),
        namespace,
        now: Timestamp::now(),
    })
}

/// Reads the file that is named, or those of the variable `KUBECONFIG`, or `~/.kube/config`.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
pub(super) fn read_kubeconfig(common: &CommonArgs) -> Result<Kubeconfig, KubeconfigFailure> {
    if let Some(path) = &common.kubeconfig {
        return kubeconfig::read_kubeconfig(path);
    }
    let variable = env::var_os("KUBECONFIG").unwrap_or_default();
    let listed_paths = env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    let mut paths: Vec<PathBuf> = listed_paths.collect();
    if paths.is_empty() {
        paths.push(env::home_dir().unwrap_or_default().join(".kube/config"));
    }
    kubeconfig::read_all(&paths)
}

/// Returns the client settings that kubectl would use; in a pod without a kubeconfig, the pod's own
/// identity.
async fn build_config(common: &CommonArgs) -> Result<Config, Error> {
    let usage_error = |subject: &str, error: &(dyn std::error::Error + 'static)| {
        Error::Usage(format!("{subject}: {}", chain(error)))
    };
    let options =
        KubeConfigOptions { context: common.context.clone(), ..KubeConfigOptions::default() };
    let file_config = match (read_kubeconfig(common), &common.kubeconfig) {
        (Ok(file), _) => Config::from_custom_kubeconfig(file, &options).await.map_err(Into::into),
        (Err(failure), Some(_)) => return Err(usage_error("--kubeconfig", &failure)),
        (Err(failure), None) => Err(failure),
    };
    let mut config = match file_config {
        Ok(config) => config,
        Err(error) => {
            let is_explicit = common.kubeconfig.is_some() || common.context.is_some();
            match Config::incluster() {
                Ok(config) if !is_explicit => config,
                _ => return Err(usage_error("kubeconfig", &error)),
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
