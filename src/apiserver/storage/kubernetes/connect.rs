//! Where the objects are kept, and how kube-apiserver is reached.

use std::path::PathBuf;

use kube::Client;

use super::object::StoredObjectKind;
use crate::apiserver::kube_client::{self, KubeClientError};

/// The namespace of a Kubernetes cluster in which the store keeps its objects.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of a kubeconfig for kube-apiserver; in-cluster credentials count when absent.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the objects; the store touches nothing else in it.
    pub namespace: String,
    /// Kind of the objects.
    pub kind: &'static StoredObjectKind,
}

/// Why kube-apiserver cannot be reached with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("failed to find out how to reach the kube-apiserver that keeps objects")]
pub struct KubernetesConnectError(#[from] KubeClientError);

/// Makes a client that sends each request once: a write that was not answered may have been done,
/// and if it were sent again it would contradict itself.
pub(super) async fn build_client(config: &Config) -> Result<Client, KubernetesConnectError> {
    Ok(kube_client::build_client(config.kubeconfig.as_deref()).await?)
}
