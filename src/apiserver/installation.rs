//! Configuration of a server: the kinds that it serves, the names that its installation uses, the
//! admission plugins of its own kinds.

use std::sync::Arc;

use super::admission::AdmissionPlugin;
use crate::machinery::served_kinds::ServedKinds;

/// Names of an installation's objects in Kubernetes, and of the annotations on them.
#[derive(Debug)]
pub struct InstallationNames {
    /// What messages call the server's owner: `Navigator`.
    pub product: &'static str,
    /// Name of the server's Service and ClusterRole.
    pub service: &'static str,
    /// Name of the Secret with the server's CA and serving certificate.
    pub tls_secret: &'static str,
    /// Name of the ConfigMap that records which store is in use.
    pub store_record: &'static str,
    /// Annotation on that ConfigMap: id of the store that an administrator accepts as it is.
    pub accept_store: &'static str,
    /// Annotation on an audit event: how many refusals of requests from the client's address were
    /// not recorded since the last event.
    pub unrecorded: &'static str,
}

/// Returns the admission plugins of a server's own kinds, in the order in which they are asked; the
/// argument is the installation's namespace.
pub type AdmissionPlugins = dyn Fn(&str) -> Vec<Arc<dyn AdmissionPlugin>> + Send + Sync;

/// What a server serves, and under which names.
pub struct ServedApi {
    pub kinds: &'static ServedKinds,
    pub names: &'static InstallationNames,
    pub plugins: Box<AdmissionPlugins>,
}
