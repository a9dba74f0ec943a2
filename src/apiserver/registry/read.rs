//! Get: one object, as fresh as was asked for.

use std::sync::Arc;

use super::{Object, Registry};
use crate::{
    apiserver::{
        cache::{self, Cached},
        load::Share,
        options::ReadAt,
        status::{ApiError, Result},
        storage::Key,
    },
    error,
};

impl Registry {
    /// Returns an object. The latest is read from the store; the cache answers the rest.
    pub async fn get(&self, namespace: &str, name: &str, at: ReadAt) -> Result<Object> {
        let key = self.key(namespace, name)?;
        let at_least = match at {
            ReadAt::NotOlderThan(revision) | ReadAt::Exact(revision) => Some(revision),
            ReadAt::Any if self.cache.is_ready() => None,
            ReadAt::Any | ReadAt::Latest => return self.latest(&key, name).await,
        };
        let found =
            self.cache.get(&key, at_least).await.map_err(|error| self.cache_error(error))?;
        match found {
            Some(found) => Ok(found.as_ref().into()),
            // The cache may be behind, and "not found" is believed more than it should be.
            None if at == ReadAt::Any => self.latest(&key, name).await,
            None => Err(ApiError::not_found(self.resource(), name)),
        }
    }

    async fn latest(&self, key: &Key, name: &str) -> Result<Object> {
        let found = self.fetch(key).await.map_err(|e| self.store_error(name, &e))?;
        let (entry, share) = found.ok_or_else(|| ApiError::not_found(self.resource(), name))?;
        self.object(&entry, share)
    }

    /// The cache's refusal in a client's words.
    pub(super) fn cache_error(&self, error: cache::Error) -> ApiError {
        use cache::Error;
        match error {
            Error::NotReady => {
                let what = format!("{} is not ready: the cache is being filled", self.resource());
                ApiError::too_many_requests(what, 1)
            }
            Error::NotYet { asked, latest } => ApiError::revision_too_high(asked.0, latest.0),
            Error::TooOld { .. } => ApiError::expired(error.to_string(), None),
            Error::Undecodable { .. } => ApiError::internal(error::chain(&error)),
            Error::Store(error) => self.store_error("", &error),
        }
    }
}

impl From<&Cached> for Object {
    fn from(cached: &Cached) -> Self {
        let Cached { key, hub, revision, .. } = cached;
        let (key, hub) = (key.clone(), hub.clone());
        Self { key, hub, revision: *revision, size: 0, share: Share::NONE }
    }
}

/// Name of an object of the cache.
pub(super) fn name_of(object: &Arc<Cached>) -> &str {
    object.hub["metadata"]["name"].as_str().unwrap_or_default()
}
