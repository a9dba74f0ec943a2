//! Refuses to create objects in a namespace that is missing or being deleted.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::kinds;
use crate::apiserver::{
    admission::{AdmissionAttributes, AdmissionOperation, AdmissionPlugin},
    status::{ApiError, GroupResource},
    storage::{Key, Storage},
};

const NAMESPACES: GroupResource<'static> = GroupResource { group: "", resource: "namespaces" };

/// The admission plugin NamespaceLifecycle of the local API, which reads namespaces from the store.
pub(super) struct NamespaceAdmission {
    store: Arc<dyn Storage>,
}

impl NamespaceAdmission {
    pub(super) fn new(store: Arc<dyn Storage>) -> Self {
        Self { store }
    }

    async fn check_namespace(&self, attributes: AdmissionAttributes<'_>) -> Result<(), ApiError> {
        let AdmissionAttributes { operation, group, resource, name, namespace, .. } = attributes;
        // Deletes must be possible in a namespace that is being deleted, or it would never be
        // empty.
        let is_namespace = (group, resource) == ("", "namespaces");
        if operation == AdmissionOperation::Delete || namespace.is_empty() || is_namespace {
            return Ok(());
        }
        let not_found = || ApiError::not_found(NAMESPACES, namespace);
        let key = Key::new(kinds::CORE, "namespaces", kinds::NO_NAMESPACE, namespace);
        let entry = self.store.get(&key.map_err(|_| not_found())?).await;
        let entry = entry.map_err(ApiError::internal_error)?.ok_or_else(not_found)?;
        let namespace_object: Value =
            serde_json::from_slice(&entry.value).map_err(ApiError::internal_error)?;
        let is_terminating = namespace_object["metadata"].get("deletionTimestamp").is_some();
        if is_terminating && operation == AdmissionOperation::Create {
            let resource = GroupResource { group, resource };
            return Err(ApiError::namespace_terminating(resource, name, namespace));
        }
        Ok(())
    }
}

impl AdmissionPlugin for NamespaceAdmission {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.check_namespace(attributes))
    }
}
