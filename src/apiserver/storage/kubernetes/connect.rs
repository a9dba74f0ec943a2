//! Where the objects are kept, and how kube-apiserver is reached.

use std::path::PathBuf;

use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A namespace of a Kubernetes cluster.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// How to reach kube-apiserver; in-cluster credentials when absent.
    pub kubeconfig: Option<PathBuf>,
    /// Where the objects are; nothing else in it is touched.
    pub namespace: String,
}

/// Why the configuration cannot work.
#[derive(Debug, thiserror::Error)]
#[error("failed to find out how to reach the kube-apiserver that keeps objects")]
pub struct ConnectError(#[from] Box<dyn std::error::Error + Send + Sync>);

pub(super) async fn client(config: &Config) -> Result<Client, ConnectError> {
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| ConnectError(error);
    let mut found = match &config.kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|error| wrong(error.into()))?;
            let options = KubeConfigOptions::default();
            let found = kube::Config::from_custom_kubeconfig(read, &options);
            found.await.map_err(|error| wrong(error.into()))?
        }
        None => kube::Config::incluster().map_err(|error| wrong(error.into()))?,
    };
    // A write that was not answered may have been done: asked again, it would contradict itself.
    found.default_retry = false;
    Client::try_from(found).map_err(|error| wrong(error.into()))
}
