//! List: all at once from the cache, or page by page from the cache or the store.
//!
//! All pages of a list show the revision of the first one, unless that is gone and the client goes
//! on at the latest. The token of a page says where the next one begins and at which revision.

use std::{mem, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::Registry;
use crate::apiserver::{
    account::MemoryShare,
    cache::{self, CachedObject, ConsistentReadOutcome},
    options::{ListOptions, ReadConsistency, parse_revision},
    request_cost,
    selector::Selector,
    status::{ApiError, Result},
    storage::{self, Key, KeyPrefix, PageRequest, Revision},
    view::ListMeta,
};

/// Least entries that one read of the store takes for a limited list whose selector may drop most
/// of them.
const CHUNK: usize = 500;

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start \
     a new list without the continue parameter, or use the continue token in this response to \
     retrieve the remainder of the results. Continuing with the provided token results in an \
     inconsistent list - objects that were created, modified, or deleted between the time the \
     first chunk was returned and now may show up in the list.";
const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";

/// One page of a list, or all of it.
#[derive(Debug)]
pub struct ListPage {
    pub items: Vec<Arc<CachedObject>>,
    pub meta: ListMeta,
    /// The items' share of the memory budget, unless the items are the cache's own.
    pub share: MemoryShare,
}

/// The objects of a range that the cache shows and a selector selects.
pub(super) struct SelectedObjects {
    /// The objects that are selected.
    pub(super) objects: Vec<Arc<CachedObject>>,
    pub(super) revision: Revision,
    /// Number of objects that were put to the selector.
    pub(super) fetched: usize,
}

/// A `continue` token: where and at which revision a list goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    /// The revision of the list; -1 for the latest, because the list's own is gone.
    rv: i64,
    /// The last key that was read, without the range's prefix and followed by NUL.
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl ContinueToken {
    fn from_last_key(key: &Key, range: &KeyPrefix, rv: i64) -> Self {
        let start = key.as_str().strip_prefix(range.as_str()).unwrap_or_default();
        Self { v: TOKEN_VERSION.to_owned(), rv, start: format!("{start}\0") }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token has string keys only"))
    }

    /// Decodes a token; returns it with the key that it points behind.
    fn decode(text: &str, range: &KeyPrefix) -> Result<(Self, Key)> {
        let token_error =
            |reason: &str| ApiError::bad_request(format!("invalid continue token: {reason}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| token_error("continue key is not valid: encoding"))?;
        let token: Self = serde_json::from_slice(&bytes)
            .map_err(|_| token_error("continue key is not valid: form"))?;
        if token.v != TOKEN_VERSION {
            return Err(token_error(&format!(
                "server does not recognize this encoded version {:?}",
                token.v
            )));
        }
        if token.rv == 0 || token.rv < -1 {
            return Err(token_error(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        let start = token.start.strip_suffix('\0').unwrap_or(&token.start);
        let has_invalid_part =
            start.split('/').any(|part| part.is_empty() || part == "." || part == "..");
        if has_invalid_part {
            return Err(token_error("continue key is not valid: path"));
        }
        let key = Key::from_stored(format!("{}{start}", range.as_str()));
        Ok((token, key))
    }
}

impl Registry {
    /// Lists a namespace, or all of them when `namespace` is empty.
    pub async fn list(
        &self,
        namespace: &str,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<ListPage> {
        let range = self.namespace_prefix(namespace)?;
        if !options.continue_token.is_empty() {
            if parse_revision(&options.resource_version)?
                .is_some_and(|revision| revision != Revision(0))
            {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            return self.next_page(&range, selector, options).await;
        }
        // One object costs at most as much work as a page, and the cache has it.
        let is_unpaged = options.limit == 0 || self.only_key(namespace, selector).is_some();
        match options.read_at()? {
            ReadConsistency::Exact(revision) => {
                let request = PageRequest { at: Some(revision), ..PageRequest::default() };
                self.read_page(&range, selector, request, options.limit).await.map_err(|error| {
                    self.list_error(error, || ApiError::resource_expired(LIST_EXPIRED, None))
                })
            }
            ReadConsistency::Latest if is_unpaged => match self.cache.catch_up().await {
                Ok(latest) => {
                    let list_result =
                        self.list_cached(namespace, &range, selector, Some(latest)).await;
                    self.cache.tally().count_consistent_read(match list_result {
                        Ok(_) => ConsistentReadOutcome::Cache,
                        Err(_) => ConsistentReadOutcome::CacheFailed,
                    });
                    list_result
                }
                // The cache is not filled, or lags behind; the store has the latest state.
                Err(cache::Error::NotReady | cache::Error::NotYet { .. }) => {
                    self.first_page(&range, selector, options).await
                }
                Err(error) => Err(self.cache_error(error)),
            },
            // A limit would cost more than it saves: the objects are in memory.
            ReadConsistency::Any if self.cache.is_ready() => {
                self.list_cached(namespace, &range, selector, None).await
            }
            ReadConsistency::Latest | ReadConsistency::Any => {
                self.first_page(&range, selector, options).await
            }
            ReadConsistency::NotOlderThan(revision) if is_unpaged => {
                self.list_cached(namespace, &range, selector, Some(revision)).await
            }
            ReadConsistency::NotOlderThan(revision) => {
                self.cache.wait_until(revision).await.map_err(|error| self.cache_error(error))?;
                self.first_page(&range, selector, options).await
            }
        }
    }

    async fn list_cached(
        &self,
        namespace: &str,
        range: &KeyPrefix,
        selector: &Selector,
        at_least: Option<Revision>,
    ) -> Result<ListPage> {
        let SelectedObjects { objects, revision, fetched } =
            self.select_cached(namespace, range, selector, at_least).await?;
        self.cache.tally().count_list(false, [fetched, fetched, objects.len()]);
        let meta = ListMeta { resource_version: revision.to_string(), ..ListMeta::default() };
        Ok(ListPage { items: objects, meta, share: MemoryShare::NONE })
    }

    /// Returns the only key that `selector` can select, if there is one. Each pilot asks for its
    /// own Pilot so, and after an outage all pilots do at once.
    pub(super) fn only_key(&self, namespace: &str, selector: &Selector) -> Option<Key> {
        let has_namespace = !namespace.is_empty() || !self.kind.is_namespaced();
        let name = selector.fields.name().filter(|_| has_namespace)?;
        self.key(namespace, name).ok()
    }

    /// Returns the selected objects of a range that the cache shows, and at which revision it shows
    /// them.
    pub(super) async fn select_cached(
        &self,
        namespace: &str,
        range: &KeyPrefix,
        selector: &Selector,
        at_least: Option<Revision>,
    ) -> Result<SelectedObjects> {
        let listing = match self.only_key(namespace, selector) {
            Some(key) => self.cache.list_one(&key, at_least).await,
            None => self.cache.list(range, at_least).await,
        };
        let cache::CacheListing { mut objects, revision, .. } =
            listing.map_err(|error| self.cache_error(error))?;
        let fetched = objects.len();
        if !selector.is_everything() {
            let retain = || objects.retain(|object| selector.matches(&object.facets));
            request_cost::run_blocking(selector.comparison_cost(fetched), retain);
        }
        Ok(SelectedObjects { objects, revision, fetched })
    }

    async fn first_page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<ListPage> {
        self.read_page(range, selector, PageRequest::default(), options.limit)
            .await
            .map_err(|error| self.cache_error(error))
    }

    async fn next_page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<ListPage> {
        let (token, last_key) = ContinueToken::decode(&options.continue_token, range)?;
        let request = PageRequest {
            at: u64::try_from(token.rv).ok().map(Revision),
            after: Some(last_key),
            ..PageRequest::default()
        };
        self.read_page(range, selector, request, options.limit).await.map_err(|error| {
            let new_token = ContinueToken { rv: -1, ..token };
            self.list_error(error, || {
                ApiError::resource_expired(CONTINUE_EXPIRED, Some(new_token.encode()))
            })
        })
    }

    /// Reads until `limit` objects are selected or the range ends. The first read fixes the
    /// revision of all others.
    async fn read_page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        mut request: PageRequest,
        limit: usize,
    ) -> Result<ListPage, cache::Error> {
        let mut items = Vec::new();
        let (mut fetched_count, mut evaluated_count) = (0, 0);
        let mut from_store = false;
        let mut share = MemoryShare::NONE;
        loop {
            // A request that waits for memory must hold none.
            drop(mem::take(&mut share));
            // With a selector it is unknown how many of the objects that follow are selected.
            request.count = limit > 0 && selector.is_everything();
            request.limit = match limit {
                0 => None,
                limit if selector.is_everything() => Some(limit - items.len()),
                limit => Some(limit.max(CHUNK)),
            };
            let listing = self.cache.list_page(range, request.clone()).await?;
            let page_len = listing.objects.len();
            fetched_count += page_len;
            from_store |= listing.from_store;
            share = listing.share;
            let mut last_key = None;
            let matches = || listing.objects.iter().map(|object| selector.matches(&object.facets));
            let matches: Vec<_> =
                request_cost::run_blocking(selector.comparison_cost(page_len), || {
                    matches().collect()
                });
            for (index, (object, is_selected)) in
                listing.objects.into_iter().zip(matches).enumerate()
            {
                last_key = Some(object.key.clone());
                evaluated_count += 1;
                if is_selected {
                    items.push(object);
                }
                if limit > 0 && items.len() == limit {
                    self.cache
                        .tally()
                        .count_list(from_store, [fetched_count, evaluated_count, items.len()]);
                    let has_more = listing.more || index + 1 < page_len;
                    let remaining = request.count.then_some(listing.remaining);
                    let next_start = last_key.filter(|_| has_more).map(|key| (key, remaining));
                    return Ok(build_page((items, share), range, listing.revision, next_start));
                }
            }
            if !listing.more || last_key.is_none() {
                self.cache
                    .tally()
                    .count_list(from_store, [fetched_count, evaluated_count, items.len()]);
                return Ok(build_page((items, share), range, listing.revision, None));
            }
            request.at = Some(listing.revision);
            request.after = last_key;
        }
    }

    fn list_error(
        &self,
        error: cache::Error,
        expired_error: impl FnOnce() -> ApiError,
    ) -> ApiError {
        match error {
            cache::Error::Store(storage::Error::Compacted { .. }) => expired_error(),
            error => self.cache_error(error),
        }
    }
}

fn build_page(
    (items, share): (Vec<Arc<CachedObject>>, MemoryShare),
    range: &KeyPrefix,
    revision: Revision,
    next_start: Option<(Key, Option<usize>)>,
) -> ListPage {
    let rv = i64::try_from(revision.0).unwrap_or(i64::MAX);
    let remaining = next_start.as_ref().and_then(|(_, remaining)| *remaining);
    let continue_token =
        next_start.map(|(key, _)| ContinueToken::from_last_key(&key, range, rv).encode());
    let resource_version = revision.to_string();
    ListPage { items, meta: ListMeta { resource_version, continue_token, remaining }, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_cannot_leave_its_range() {
        let range = KeyPrefix::for_namespace("g", "pilots", "a").unwrap();
        let encode = |start: &str, rv| {
            ContinueToken { v: TOKEN_VERSION.into(), rv, start: start.into() }.encode()
        };
        let (token, key) = ContinueToken::decode(&encode("x\0", 5), &range).unwrap();
        assert_eq!((token.rv, key.as_str()), (5, "g/pilots/a/x"));
        for bad in ["../b/x\0", "..\0", "\0", "x//y\0", "./x\0"] {
            assert_eq!(
                ContinueToken::decode(&encode(bad, 5), &range).unwrap_err().status_code(),
                400,
                "{bad:?}"
            );
        }
        assert!(ContinueToken::decode(&encode("x\0", 0), &range).is_err());
        assert!(ContinueToken::decode(&encode("x\0", -1), &range).is_ok());
        assert!(ContinueToken::decode("%%%", &range).is_err());
    }
}
