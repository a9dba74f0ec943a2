//! Validation of a write beside other objects of its namespace.

use serde_json::Value;

use super::{Registry, RegistryCall};
use crate::apiserver::{request_cost, status::Result};

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
        for key in self.cache.keys(&self.prefix(call.namespace)?) {
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
}
