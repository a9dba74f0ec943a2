//! Get: one object, as fresh as was asked for.

use std::sync::Arc;

use super::Registry;
use crate::{
    apiserver::{
        account::MemoryShare,
        cache::{self, CachedObject},
        options::ReadConsistency,
        request_cost,
        status::{ApiError, Result},
        storage::Key,
    },
    error,
};

impl Registry {
    /// Returns an object. The cache answers, also for the latest state when it shows the revision
    /// that the store states; otherwise the latest state is read from the store.
    pub async fn get(
        &self,
        namespace: &str,
        name: &str,
        consistency: ReadConsistency,
    ) -> Result<(Arc<CachedObject>, MemoryShare)> {
        let key = self.key(namespace, name)?;
        let at_least = match consistency {
            ReadConsistency::NotOlderThan(revision) | ReadConsistency::Exact(revision) => {
                Some(revision)
            }
            ReadConsistency::Any if self.cache.is_ready() => None,
            ReadConsistency::Any => return self.read_latest(&key, name).await,
            ReadConsistency::Latest => {
                let cache_result = self.cache.latest_object(&key).await;
                return match cache_result.map_err(|error| self.cache_error(error))? {
                    Some(Some(object)) => Ok((object, MemoryShare::NONE)),
                    Some(None) => Err(ApiError::not_found(self.resource(), name)),
                    None => self.read_latest(&key, name).await,
                };
            }
        };
        let cached_object =
            self.cache.get(&key, at_least).await.map_err(|error| self.cache_error(error))?;
        match cached_object {
            Some(object) => Ok((object, MemoryShare::NONE)),
            // The cache may be behind, and clients act on "not found", so the store is asked.
            None if consistency == ReadConsistency::Any => self.read_latest(&key, name).await,
            None => Err(ApiError::not_found(self.resource(), name)),
        }
    }

    async fn read_latest(&self, key: &Key, name: &str) -> Result<(Arc<CachedObject>, MemoryShare)> {
        let stored_entry = self.fetch_entry(key, name).await?;
        let (entry, share) =
            stored_entry.ok_or_else(|| ApiError::not_found(self.resource(), name))?;
        let decode_result =
            request_cost::run_blocking(entry.value.len(), || self.cache.object_for_entry(&entry));
        Ok((decode_result.map_err(|error| self.cache_error(error))?, share))
    }

    /// Turns the cache's error into one for the client.
    pub(super) fn cache_error(&self, error: cache::Error) -> ApiError {
        use cache::Error;
        match error {
            Error::NotReady => {
                let message =
                    format!("{} is not ready: the cache is being filled", self.resource());
                ApiError::too_many_requests(message, 1)
            }
            Error::NotYet { asked, latest } => ApiError::revision_too_high(asked.0, latest.0),
            Error::TooOld { .. } => ApiError::resource_expired(error.to_string(), None),
            Error::Undecodable { .. } => ApiError::internal_error(error::chain(&error)),
            Error::Store(error) => self.store_error("", &error),
            Error::NoRoom(error) => error,
        }
    }
}
