//! Where the objects are kept, and how kube-apiserver is reached.

use std::path::PathBuf;

use kube::Client;

use crate::apiserver::kubernetes::{self, KubeClientError};

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
pub struct KubernetesConnectError(#[from] KubeClientError);

/// Each request is sent once: a write that was not answered may have been done, and asked again
/// it would contradict itself.
pub(super) async fn client(config: &Config) -> Result<Client, KubernetesConnectError> {
    Ok(kubernetes::client(config.kubeconfig.as_deref()).await?)
}
