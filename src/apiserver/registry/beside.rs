//! Validation of a write against other objects of its namespace.

use serde_json::Value;

use super::{Registry, RegistryCall};
use crate::apiserver::{
    request_cost,
    status::Result,
    storage::{Key, PageRequest},
};

impl Registry {
    /// Validates the write of an object against the objects whose names may conflict with its name.
    /// Two writes at the same moment may both pass: neither sees the other one yet.
    pub(super) async fn validate_beside(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(is_beside) = self.kind.is_beside() else { return Ok(()) };
        for key in self.list_keys(call.namespace, name).await? {
            let Some(other_name) =
                key.object_name().filter(|other_name| is_beside(name, other_name))
            else {
                continue;
            };
            let Some((entry, share)) = self.fetch_entry(&key, other_name).await? else { continue };
            let other_object = self.decode_entry(&entry, share)?;
            let validate = || self.kind.validate_beside(call.version, new, old, &other_object.hub);
            let validation = request_cost::run_blocking(entry.value.len(), validate);
            self.check_validation(call, name, validation)?;
        }
        Ok(())
    }

    /// Returns the keys of the objects of a namespace as the store has them now.
    async fn list_keys(&self, namespace: &str, name: &str) -> Result<Vec<Key>> {
        let range = self.namespace_prefix(namespace)?;
        if self.cache.catch_up().await.is_ok() {
            return Ok(self.cache.keys(&range));
        }
        let page = self.store.list(&range, PageRequest::default()).await;
        let page = page.map_err(|error| self.store_error(name, &error))?;
        Ok(page.entries.into_iter().map(|entry| entry.key).collect())
    }
}
