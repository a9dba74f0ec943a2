//! Validation of a write beside other objects of its namespace.

use serde_json::Value;

use super::{Registry, RegistryCall};
use crate::apiserver::{
    request_cost,
    status::Result,
    storage::{Key, PageRequest},
};

impl Registry {
    /// Validates the write of an object beside those whose names may have something to do with it.
    /// Two writes at the same moment may both pass: neither sees the other one yet.
    pub(super) async fn validate_beside(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(is_beside) = self.kind.is_beside() else { return Ok(()) };
        for key in self.keys(call.namespace, name).await? {
            let Some(other) = key.object_name().filter(|other| is_beside(name, other)) else {
                continue;
            };
            let Some((entry, share)) = self.fetch(&key, other).await? else { continue };
            let other = self.object(&entry, share)?;
            let judge = || self.kind.validate_beside(call.version, new, old, &other.hub);
            let validation = request_cost::work(entry.value.len(), judge);
            self.accept(call, name, validation)?;
        }
        Ok(())
    }

    /// Returns the keys of the objects of a namespace as the store has them now.
    async fn keys(&self, namespace: &str, name: &str) -> Result<Vec<Key>> {
        let range = self.prefix(namespace)?;
        if self.cache.catch_up().await.is_ok() {
            return Ok(self.cache.keys(&range));
        }
        let page = self.store.list(&range, PageRequest::default()).await;
        let page = page.map_err(|error| self.store_error(name, &error))?;
        Ok(page.entries.into_iter().map(|entry| entry.key).collect())
    }
}
