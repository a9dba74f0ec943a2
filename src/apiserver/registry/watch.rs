//! Watch: the changes of a range as one client sees them through its selectors.

use std::sync::Arc;

use super::{Registry, list::SelectedObjects};
use crate::apiserver::{
    cache::{CacheEvent, CacheWatcher, CachedObject, KeyRange},
    options::{ListOptions, parse_revision},
    selector::Selector,
    status::{ApiError, Result},
    storage::Revision,
};

/// One client's watch of a kind, through its selectors.
pub struct ClientWatch {
    selector: Selector,
    watcher: CacheWatcher,
    /// The state to show first, ordered by key, with its revision.
    pub initial: Option<InitialState>,
}

/// The state that a watch begins with.
pub struct InitialState {
    pub objects: Vec<Arc<CachedObject>>,
    pub revision: Revision,
}

/// One change as the client sees it.
pub enum WatchEvent {
    Added(Arc<CachedObject>),
    Modified(Arc<CachedObject>),
    /// The object is gone, or no longer selected. Holds its last state that was selected, under the
    /// revision of the change.
    Deleted(Arc<CachedObject>),
}

impl Registry {
    /// Begins a watch. Which state it shows first follows from `resourceVersion` and
    /// `sendInitialEvents`.
    pub async fn watch(
        &self,
        namespace: &str,
        selector: Selector,
        options: &ListOptions,
    ) -> Result<ClientWatch> {
        let range = self.namespace_prefix(namespace)?;
        let requested_revision = parse_revision(&options.resource_version)?;
        // Without a revision to start from, a watch has always shown what exists first.
        let from_scratch = requested_revision.is_none_or(|revision| revision == Revision(0));
        let shows_state = options.send_initial_events.unwrap_or(from_scratch);
        let at_least = match requested_revision {
            None => Some(self.cache.catch_up().await.map_err(|e| self.cache_error(e))?),
            Some(Revision(0)) => None,
            Some(revision) => {
                self.check_reached_revision(revision).await?;
                Some(revision)
            }
        };
        let (initial, start_revision) = if shows_state {
            let selection = self.select_cached(namespace, &range, &selector, at_least).await?;
            let SelectedObjects { objects, revision, .. } = selection;
            (Some(InitialState { objects, revision }), revision)
        } else {
            (None, at_least.unwrap_or_else(|| self.cache.revision()))
        };
        let range = match self.only_key(namespace, &selector) {
            Some(key) => KeyRange::One(key),
            None => KeyRange::Under(range),
        };
        let watcher = self
            .cache
            .watch(range, start_revision)
            .await
            .map_err(|error| self.cache_error(error))?;
        Ok(ClientWatch { selector, watcher, initial })
    }

    /// Fails for a revision that the store has not reached. The store never gave it out: the state
    /// that the client knows was lost, so the client has to list again. If the server waited, the
    /// client would continue across the gap.
    async fn check_reached_revision(&self, revision: Revision) -> Result<()> {
        if revision <= self.cache.revision() {
            return Ok(());
        }
        let latest = self.store.current_revision().await.map_err(|e| self.store_error("", &e))?;
        if revision > latest {
            let message = format!("too large resource version: {revision}, current: {latest}");
            return Err(ApiError::resource_expired(message, None));
        }
        Ok(())
    }

    /// Turns the error that ended a watch into one for the client.
    pub fn watch_error(&self, error: crate::apiserver::cache::Error) -> super::ApiError {
        self.cache_error(error)
    }
}

impl ClientWatch {
    /// Waits for the next change that the client sees. Cancel-safe.
    pub async fn next(&mut self) -> Result<WatchEvent, crate::apiserver::cache::Error> {
        loop {
            let event = self.watcher.next().await?;
            if let Some(client_event) = filter_event(&self.selector, event) {
                return Ok(client_event);
            }
        }
    }

    /// Returns the next change that the client sees, if it needs not be waited for.
    pub fn try_next(&mut self) -> Option<WatchEvent> {
        let Self { selector, watcher, .. } = self;
        std::iter::from_fn(|| watcher.next_ready()).find_map(|event| filter_event(selector, event))
    }

    /// Returns the revision up to which the client has seen all changes.
    pub fn bookmark(&mut self) -> Revision {
        self.watcher.bookmark_revision()
    }
}

/// Returns a change as the client sees it: an object that becomes selected is ADDED, one that is
/// no longer selected is DELETED.
fn filter_event(selector: &Selector, event: CacheEvent) -> Option<WatchEvent> {
    let selects = |object: &CachedObject| selector.matches(&object.facets);
    match event {
        CacheEvent::Put { object, previous } => {
            let old_object = previous.filter(|previous| selects(previous));
            match (old_object, selects(&object)) {
                (None, false) => None,
                (None, true) => Some(WatchEvent::Added(object)),
                (Some(_), true) => Some(WatchEvent::Modified(object)),
                (Some(previous), false) => {
                    Some(WatchEvent::Deleted(Arc::new(previous.last_seen(object.revision))))
                }
            }
        }
        CacheEvent::Deleted { object, .. } => {
            selects(&object).then_some(WatchEvent::Deleted(object))
        }
    }
}
