//! Nothing is created in a namespace that is missing or going away.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::kinds;
use crate::apiserver::{
    admission::{Admit, Attributes, Operation},
    status::{ApiError, Resource},
    storage::{Key, Storage},
};

const NAMESPACES: Resource<'static> = Resource { group: "", resource: "namespaces" };

/// The admission plugin, which asks the store.
pub(super) struct Namespaces {
    store: Arc<dyn Storage>,
}

impl Namespaces {
    pub(super) fn new(store: Arc<dyn Storage>) -> Self {
        Self { store }
    }

    async fn check(&self, attributes: Attributes<'_>) -> Result<(), ApiError> {
        let Attributes { operation, group, resource, name, namespace, .. } = attributes;
        // Deletes must go on in a namespace that is going away, or it would never be empty.
        let itself = (group, resource) == ("", "namespaces");
        if operation == Operation::Delete || namespace.is_empty() || itself {
            return Ok(());
        }
        let missing = || ApiError::not_found(NAMESPACES, namespace);
        let key = Key::new(kinds::CORE, "namespaces", kinds::NO_NAMESPACE, namespace);
        let found = self.store.get(&key.map_err(|_| missing())?).await;
        let found = found.map_err(ApiError::internal)?.ok_or_else(missing)?;
        let found: Value = serde_json::from_slice(&found.value).map_err(ApiError::internal)?;
        let ends = found["metadata"].get("deletionTimestamp").is_some();
        if ends && operation == Operation::Create {
            let resource = Resource { group, resource };
            return Err(ApiError::namespace_terminating(resource, name, namespace));
        }
        Ok(())
    }
}

impl Admit for Namespaces {
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.check(attributes))
    }
}
