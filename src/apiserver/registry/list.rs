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
    options::{ListOptions, ReadConsistency, revision},
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
    fn after(key: &Key, range: &KeyPrefix, rv: i64) -> Self {
        let start = key.as_str().strip_prefix(range.as_str()).unwrap_or_default();
        Self { v: TOKEN_VERSION.to_owned(), rv, start: format!("{start}\0") }
    }

    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token has string keys only"))
    }

    /// Decodes a token; returns it with the key that it points behind.
    fn decode(text: &str, range: &KeyPrefix) -> Result<(Self, Key)> {
        let refuse = |why: &str| ApiError::bad_request(format!("invalid continue token: {why}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| refuse("continue key is not valid: encoding"))?;
        let token: Self = serde_json::from_slice(&bytes)
            .map_err(|_| refuse("continue key is not valid: form"))?;
        if token.v != TOKEN_VERSION {
            return Err(refuse(&format!(
                "server does not recognize this encoded version {:?}",
                token.v
            )));
        }
        if token.rv == 0 || token.rv < -1 {
            return Err(refuse("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        let start = token.start.strip_suffix('\0').unwrap_or(&token.start);
        let climbs = start.split('/').any(|part| part.is_empty() || part == "." || part == "..");
        if climbs {
            return Err(refuse("continue key is not valid: path"));
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
        let range = self.prefix(namespace)?;
        if !options.continue_token.is_empty() {
            if revision(&options.resource_version)?.is_some_and(|asked| asked != Revision(0)) {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            return self.next_page(&range, selector, options).await;
        }
        // One object is no more work than a page, and the cache has it.
        let all = options.limit == 0 || self.only_key(namespace, selector).is_some();
        match options.read_at()? {
            ReadConsistency::Exact(at) => {
                let request = PageRequest { at: Some(at), ..PageRequest::default() };
                self.page(&range, selector, request, options.limit).await.map_err(|error| {
                    self.list_error(error, || ApiError::expired(LIST_EXPIRED, None))
                })
            }
            ReadConsistency::Latest if all => match self.cache.catch_up().await {
                Ok(latest) => {
                    let listed = self.all(namespace, &range, selector, Some(latest)).await;
                    self.cache.tally().read_consistently(match listed {
                        Ok(_) => ConsistentReadOutcome::Cache,
                        Err(_) => ConsistentReadOutcome::CacheFailed,
                    });
                    listed
                }
                // The cache is not filled, or lags behind; the store has the latest state.
                Err(cache::Error::NotReady | cache::Error::NotYet { .. }) => {
                    self.first_page(&range, selector, options).await
                }
                Err(error) => Err(self.cache_error(error)),
            },
            // A limit would cost more than it saves: the objects are in memory.
            ReadConsistency::Any if self.cache.is_ready() => {
                self.all(namespace, &range, selector, None).await
            }
            ReadConsistency::Latest | ReadConsistency::Any => {
                self.first_page(&range, selector, options).await
            }
            ReadConsistency::NotOlderThan(at) if all => {
                self.all(namespace, &range, selector, Some(at)).await
            }
            ReadConsistency::NotOlderThan(at) => {
                self.cache.wait_until(at).await.map_err(|error| self.cache_error(error))?;
                self.first_page(&range, selector, options).await
            }
        }
    }

    async fn all(
        &self,
        namespace: &str,
        range: &KeyPrefix,
        selector: &Selector,
        at_least: Option<Revision>,
    ) -> Result<ListPage> {
        let SelectedObjects { objects, revision, fetched } =
            self.shown(namespace, range, selector, at_least).await?;
        self.cache.tally().listed(false, [fetched, fetched, objects.len()]);
        let meta = ListMeta { resource_version: revision.to_string(), ..ListMeta::default() };
        Ok(ListPage { items: objects, meta, share: MemoryShare::NONE })
    }

    /// Returns the only key that `selector` can select, if there is one. Each pilot asks for its
    /// own Pilot so, and after an outage all pilots do at once.
    pub(super) fn only_key(&self, namespace: &str, selector: &Selector) -> Option<Key> {
        let scoped = !namespace.is_empty() || !self.kind.is_namespaced();
        let name = selector.fields.name().filter(|_| scoped)?;
        self.key(namespace, name).ok()
    }

    /// Returns the selected objects of a range that the cache shows, and at which revision it shows
    /// them.
    pub(super) async fn shown(
        &self,
        namespace: &str,
        range: &KeyPrefix,
        selector: &Selector,
        at_least: Option<Revision>,
    ) -> Result<SelectedObjects> {
        let listing = match self.only_key(namespace, selector) {
            Some(key) => self.cache.one(&key, at_least).await,
            None => self.cache.list(range, at_least).await,
        };
        let cache::CacheListing { mut objects, revision, .. } =
            listing.map_err(|error| self.cache_error(error))?;
        let fetched = objects.len();
        if !selector.is_everything() {
            let retain = || objects.retain(|object| selector.matches(&object.facets));
            request_cost::work(selector.effort(fetched), retain);
        }
        Ok(SelectedObjects { objects, revision, fetched })
    }

    async fn first_page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<ListPage> {
        self.page(range, selector, PageRequest::default(), options.limit)
            .await
            .map_err(|error| self.cache_error(error))
    }

    async fn next_page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        options: &ListOptions,
    ) -> Result<ListPage> {
        let (token, after) = ContinueToken::decode(&options.continue_token, range)?;
        let request = PageRequest {
            at: u64::try_from(token.rv).ok().map(Revision),
            after: Some(after),
            ..PageRequest::default()
        };
        self.page(range, selector, request, options.limit).await.map_err(|error| {
            let fresh = ContinueToken { rv: -1, ..token };
            self.list_error(error, || ApiError::expired(CONTINUE_EXPIRED, Some(fresh.encode())))
        })
    }

    /// Reads until `limit` objects are selected or the range ends. The first read fixes the
    /// revision of all others.
    async fn page(
        &self,
        range: &KeyPrefix,
        selector: &Selector,
        mut request: PageRequest,
        limit: usize,
    ) -> Result<ListPage, cache::Error> {
        let mut items = Vec::new();
        let (mut fetched, mut evaluated) = (0, 0);
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
            let listing = self.cache.page(range, request.clone()).await?;
            let read = listing.objects.len();
            fetched += read;
            from_store |= listing.from_store;
            share = listing.share;
            let mut last = None;
            let matches = || listing.objects.iter().map(|object| selector.matches(&object.facets));
            let matches: Vec<_> = request_cost::work(selector.effort(read), || matches().collect());
            for (at, (object, selected)) in listing.objects.into_iter().zip(matches).enumerate() {
                last = Some(object.key.clone());
                evaluated += 1;
                if selected {
                    items.push(object);
                }
                if limit > 0 && items.len() == limit {
                    self.cache.tally().listed(from_store, [fetched, evaluated, items.len()]);
                    let more = listing.more || at + 1 < read;
                    let remaining = request.count.then_some(listing.remaining);
                    let goes_on = last.filter(|_| more).map(|key| (key, remaining));
                    return Ok(finish((items, share), range, listing.revision, goes_on));
                }
            }
            if !listing.more || last.is_none() {
                self.cache.tally().listed(from_store, [fetched, evaluated, items.len()]);
                return Ok(finish((items, share), range, listing.revision, None));
            }
            request.at = Some(listing.revision);
            request.after = last;
        }
    }

    fn list_error(&self, error: cache::Error, expired: impl FnOnce() -> ApiError) -> ApiError {
        match error {
            cache::Error::Store(storage::Error::Compacted { .. }) => expired(),
            error => self.cache_error(error),
        }
    }
}

fn finish(
    (items, share): (Vec<Arc<CachedObject>>, MemoryShare),
    range: &KeyPrefix,
    revision: Revision,
    goes_on_after: Option<(Key, Option<usize>)>,
) -> ListPage {
    let rv = i64::try_from(revision.0).unwrap_or(i64::MAX);
    let remaining = goes_on_after.as_ref().and_then(|(_, remaining)| *remaining);
    let continue_token =
        goes_on_after.map(|(key, _)| ContinueToken::after(&key, range, rv).encode());
    let resource_version = revision.to_string();
    ListPage { items, meta: ListMeta { resource_version, continue_token, remaining }, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_cannot_leave_its_range() {
        let range = KeyPrefix::namespace("g", "pilots", "a").unwrap();
        let encode = |start: &str, rv| {
            ContinueToken { v: TOKEN_VERSION.into(), rv, start: start.into() }.encode()
        };
        let (token, key) = ContinueToken::decode(&encode("x\0", 5), &range).unwrap();
        assert_eq!((token.rv, key.as_str()), (5, "g/pilots/a/x"));
        for bad in ["../b/x\0", "..\0", "\0", "x//y\0", "./x\0"] {
            assert_eq!(
                ContinueToken::decode(&encode(bad, 5), &range).unwrap_err().code(),
                400,
                "{bad:?}"
            );
        }
        assert!(ContinueToken::decode(&encode("x\0", 0), &range).is_err());
        assert!(ContinueToken::decode(&encode("x\0", -1), &range).is_ok());
        assert!(ContinueToken::decode("%%%", &range).is_err());
    }
}
