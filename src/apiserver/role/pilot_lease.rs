//! A pod's pilot writes the LeaderLease of its own cluster only: the one that belongs to the
//! ServiceAccount of its token.
//!
//! RBAC cannot say this of a create, which has no name to match yet. The rule is for
//! ServiceAccounts whose name is a cluster's, in its namespace; people, the controller, pilots on
//! hosts and tools that restore backups have the rights that RBAC gives them.

use futures::future::BoxFuture;

use crate::{
    api::{GROUP, names, scheme::Scheme},
    apiserver::{
        admission::{AdmissionAttributes, AdmissionOperation, AdmissionPlugin},
        status::{ApiError, GroupResource},
    },
};

/// The plugin. It knows the names of the databases' ServiceAccounts, and of the controller's.
pub struct PilotLeaseRestriction {
    scheme: &'static Scheme,
    controller: String,
}

impl PilotLeaseRestriction {
    /// Creates the plugin. `namespace` is the install's, where the controller's ServiceAccount
    /// lives.
    pub fn new(scheme: &'static Scheme, namespace: &str) -> Self {
        let controller = format!("system:serviceaccount:{namespace}:{}", names::CONTROLLER);
        Self { scheme, controller }
    }

    fn check_lease_write(&self, attributes: AdmissionAttributes<'_>) -> Result<(), ApiError> {
        let AdmissionAttributes { operation, user, group, resource, namespace, name, .. } =
            attributes;
        let is_write = matches!(operation, AdmissionOperation::Create | AdmissionOperation::Update);
        if group != GROUP || resource != "leaderleases" || !is_write {
            return Ok(());
        }
        let account = user.name.strip_prefix("system:serviceaccount:");
        let account = account.filter(|_| user.name != self.controller);
        let Some((account_namespace, account)) =
            account.and_then(|account| account.split_once(':'))
        else {
            return Ok(());
        };
        let mut leases = self.scheme.leases_of(account).peekable();
        let is_cluster_account = account_namespace == namespace && leases.peek().is_some();
        if !is_cluster_account || leases.any(|lease| lease == name) {
            return Ok(());
        }
        let message = format!(
            "ServiceAccount {account:?} may write the LeaderLease of the cluster that it belongs \
             to only"
        );
        Err(ApiError::forbidden(GroupResource { group: GROUP, resource }, name, message))
    }
}

impl AdmissionPlugin for PilotLeaseRestriction {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(self.check_lease_write(attributes)))
    }
}
