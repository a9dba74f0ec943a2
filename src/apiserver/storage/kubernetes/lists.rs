//! Lists: read by kube-apiserver's pages, answered in pages of our own.
//!
//! kube-apiserver orders objects by their names, which are hashes here, and only kube-apiserver may
//! write its `continue` tokens. So a range is read as of one revision, a page at a time, and of all
//! its objects the first keys are kept that are asked for. A short range is kept whole as long as a
//! reader asks for its next pages.
//!
//! kube-apiserver's pages are cut by a count, and ours by bytes: a page that turns out to be too
//! long is given up and asked for again with fewer objects.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    super::{
        Error, Key, KeyPrefix, PageRequest, Result, Revision, ScanStream, StoreEntry, StorePage,
    },
    ANSWER_WITHIN, KubernetesStore,
    object::{self, StoreMark, StoredObjectList},
    requests::escape_query,
    watch,
};

/// Most objects of kube-apiserver's first page. Pages of small objects grow up to [`MANY`].
const FEW: usize = 32;
const MANY: usize = 500;
/// Most bytes of an answer of kube-apiserver, base64 and all, unless it holds one object, which has
/// at most 1.5 MiB.
const ANSWER_BYTES: usize = 6 << 20;
/// Most bytes of a range that is kept for a reader's next pages.
const KEPT: usize = 4 << 20;
/// Most tries of a list of the latest state, which ends early when its revision is compacted.
const TRIES: usize = 3;

/// The entries of a range as of one revision.
pub(super) struct RangeSnapshot {
    prefix: KeyPrefix,
    pub(super) revision: Revision,
    entries: BTreeMap<Key, StoreEntry>,
}

/// Builds a page: keeps the first entries of a range that the page wants, out of all that come.
struct PageBuilder {
    request: PageRequest,
    entries: BTreeMap<Key, StoreEntry>,
    bytes: usize,
    /// Number of entries after the place where the page begins.
    seen: usize,
    /// Whether only entries that the page wants are kept, because the range is long.
    cut: bool,
}

/// How far the reading of a range has come.
struct RangeCursor {
    /// The selector in the query of every request.
    base: String,
    at: Option<Revision>,
    /// The latest revision that the store had shown when the reading began.
    asked: Revision,
    few: usize,
    /// kube-apiserver's `continue` token.
    more: Option<String>,
    mark: Option<StoreMark>,
}

impl PageBuilder {
    fn new(request: PageRequest) -> Self {
        Self { request, entries: BTreeMap::new(), bytes: 0, seen: 0, cut: false }
    }

    fn add_entry(&mut self, entry: StoreEntry) {
        let is_in_page = self.request.after.as_ref().is_none_or(|after| entry.key > *after);
        self.seen += usize::from(is_in_page);
        if self.cut && !is_in_page {
            return;
        }
        self.bytes += entry.value.len();
        self.entries.insert(entry.key.clone(), entry);
        if !self.cut && self.bytes > KEPT {
            self.cut = true;
            if let Some(after) = &self.request.after {
                self.entries.retain(|key, _| key > after);
                self.bytes = self.entries.values().map(|entry| entry.value.len()).sum();
            }
        }
        if self.cut {
            self.trim_to_limit();
        }
    }

    /// Drops the last entries, for which the page has no room.
    fn trim_to_limit(&mut self) {
        let limit = self.request.limit.unwrap_or(usize::MAX);
        while let Some(last) = self.entries.last_entry() {
            let remaining_bytes = self.bytes - last.get().value.len();
            let is_full = self.request.bytes.is_some_and(|max_bytes| remaining_bytes >= max_bytes);
            let is_within_limits =
                self.entries.len() <= limit && !(is_full && self.entries.len() > 1);
            if is_within_limits {
                return;
            }
            self.bytes = remaining_bytes;
            self.entries.pop_last();
        }
    }

    fn into_page(mut self, revision: Revision) -> StorePage {
        if let Some(after) = &self.request.after {
            self.entries.retain(|key, _| key > after);
        }
        self.bytes = self.entries.values().map(|entry| entry.value.len()).sum();
        self.trim_to_limit();
        let remaining = self.seen - self.entries.len();
        let entries = self.entries.into_values().collect();
        StorePage { entries, revision, more: remaining > 0, remaining }
    }
}

impl KubernetesStore {
    pub(super) async fn list_page(
        &self,
        prefix: &KeyPrefix,
        request: PageRequest,
    ) -> Result<StorePage> {
        if let Some(revision) = request.at {
            self.check_reachable(revision).await?;
        }
        let cached_snapshot =
            self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cached_snapshot = cached_snapshot
            .filter(|snapshot| snapshot.prefix == *prefix && Some(snapshot.revision) == request.at);
        let listing = match cached_snapshot {
            Some(snapshot) => snapshot,
            None => match self.gather_page(prefix, request.clone()).await? {
                (builder, revision) if builder.cut => return Ok(builder.into_page(revision)),
                (builder, revision) => {
                    let (prefix, entries) = (prefix.clone(), builder.entries);
                    Arc::new(RangeSnapshot { prefix, revision, entries })
                }
            },
        };
        let mut builder = PageBuilder::new(request);
        for entry in listing.entries.values() {
            builder.add_entry(entry.clone());
        }
        let page = builder.into_page(listing.revision);
        // A list of one object only asks whether there is any; its reader asks for no next page.
        let is_continued = page.more && page.entries.len() > 1;
        let mut cache_slot = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if is_continued {
            *cache_slot = Some(listing);
        } else if cache_slot.as_ref().is_some_and(|snapshot| Arc::ptr_eq(snapshot, &listing)) {
            *cache_slot = None;
        }
        drop(cache_slot);
        Ok(page)
    }

    /// Reads the entries that a page wants of a range. A list of the latest state starts again if
    /// its revision is compacted meanwhile.
    async fn gather_page(
        &self,
        prefix: &KeyPrefix,
        request: PageRequest,
    ) -> Result<(PageBuilder, Revision)> {
        for _ in 0..TRIES {
            let mut builder = PageBuilder::new(request.clone());
            let mut pages = self.stream_pages(prefix, request.at);
            let mut revision = request.at.unwrap_or_default();
            let read_all = async {
                while let Some(page) = pages.try_next().await? {
                    revision = page.revision;
                    page.entries.into_iter().for_each(|entry| builder.add_entry(entry));
                }
                Ok::<_, Error>(())
            };
            match read_all.await {
                Ok(()) => return Ok((builder, revision)),
                Err(Error::Compacted { .. }) if request.at.is_none() => {}
                Err(Error::Compacted { .. }) => {
                    return Err(self.compacted_error(request.at.unwrap_or_default()).await);
                }
                Err(error) => return Err(error),
            }
        }
        Err(super::requests::unavailable_error(
            "the list took longer than Kubernetes keeps its history",
        ))
    }

    /// Fails unless `at` is a revision that this store has reached and can still read.
    pub(super) async fn check_reachable(&self, revision: Revision) -> Result<()> {
        let latest = self.verify(ANSWER_WITHIN).await?;
        let oldest = self.floor();
        if revision < oldest {
            return Err(Error::Compacted { asked: revision, oldest });
        }
        // kube-apiserver would wait for a revision in the future, and then say something else.
        if revision > latest {
            return Err(Error::FutureRevision { asked: revision, latest });
        }
        Ok(())
    }

    /// Returns all of a range, as of a revision that this store has reached or the latest.
    pub(super) fn scan_pages<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        at: Option<Revision>,
    ) -> ScanStream<'a> {
        let reach_check = async move {
            match at {
                Some(revision) => self.check_reachable(revision).await,
                None => Ok(()),
            }
        };
        let pages = stream::once(reach_check)
            .map_ok(move |()| self.stream_pages(prefix, at))
            .try_flatten()
            .or_else(move |error| async move {
                match (error, at) {
                    (Error::Compacted { .. }, Some(revision)) => {
                        Err(self.compacted_error(revision).await)
                    }
                    (error, _) => Err(error),
                }
            });
        Box::pin(pages)
    }

    /// Returns the error for a revision that kube-apiserver forgot. From now on this process
    /// refuses revisions before the oldest that may still be there, so that a client that begins
    /// there gets on.
    pub(super) async fn compacted_error(&self, requested_revision: Revision) -> Error {
        let latest = match self.verify(ANSWER_WITHIN).await {
            Ok(latest) => latest,
            Err(error) => return error,
        };
        let oldest = match watch::read_oldest(self).await {
            Ok(oldest) if oldest > requested_revision && oldest <= latest => oldest,
            // Watches may reach further back than lists. Kubernetes does not report the oldest
            // revision of lists.
            Ok(_) | Err(_) => latest,
        };
        self.raise_local_floor(oldest);
        Error::Compacted { asked: requested_revision, oldest: self.floor() }
    }

    /// Reads a range to its end. The pages are good only when the last one has come, too.
    pub(super) fn stream_pages<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        at: Option<Revision>,
    ) -> ScanStream<'a> {
        let base = format!("labelSelector={}", escape_query(&self.kind.range_selector(prefix)));
        let revision_before = self.standing.latest_revision();
        let few = FEW;
        let first_cursor =
            RangeCursor { base, at, asked: revision_before, few, more: None, mark: None };
        let pages = stream::try_unfold(Some(first_cursor), move |cursor| async move {
            let Some(mut cursor) = cursor else { return Ok(None) };
            let page = self.read_page(prefix, &mut cursor).await?;
            let has_more = page.more;
            if !has_more {
                self.is_whole(&cursor, page.revision)?;
            }
            Ok(Some((page, has_more.then_some(cursor))))
        });
        pages.boxed()
    }

    async fn read_page(&self, prefix: &KeyPrefix, cursor: &mut RangeCursor) -> Result<StorePage> {
        let (list, bytes) = loop {
            let path = cursor.query_path();
            let max_bytes = (cursor.few > 1).then_some(ANSWER_BYTES);
            match self.read_at_most(&path, ANSWER_WITHIN, max_bytes).await? {
                Some(answer) => {
                    break (answer.decode_body::<StoredObjectList>()?, answer.body.len());
                }
                None => cursor.few = (cursor.few / 4).max(1),
            }
        };
        if bytes < ANSWER_BYTES / 4 {
            cursor.few = (2 * cursor.few).min(MANY);
        }
        let revision = match cursor.at {
            Some(revision) => revision,
            None => object::parse_revision(&list.metadata.resource_version)?,
        };
        // The pages that follow are of the same revision.
        cursor.more = Some(list.metadata.more).filter(|token| !token.is_empty());
        let mut entries = Vec::with_capacity(list.items.len());
        for stored in list.items {
            if stored.is_store() {
                cursor.mark = stored.store;
            } else if !stored.deleted {
                let entry = stored.to_entry()?;
                if prefix.contains(&entry.key) {
                    entries.push(entry);
                }
            }
        }
        Ok(StorePage { entries, revision, more: cursor.more.is_some(), remaining: 0 })
    }

    /// Fails unless the range was read from the store that was opened, and the store did not go
    /// back since `cursor` began.
    fn is_whole(&self, cursor: &RangeCursor, revision: Revision) -> Result<()> {
        // A list as of an earlier revision is no sign that the store went back.
        let revision_before = if cursor.at.is_some() { Revision(0) } else { cursor.asked };
        let status = self.assess_answer(cursor.mark.as_ref(), revision_before, revision);
        match status.other.or(self.standing.first_loss(None).map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced_error(reason)),
            None => Ok(()),
        }
    }
}

impl RangeCursor {
    fn query_path(&self) -> String {
        let Self { base, at, few, more, .. } = self;
        match (more, at) {
            (Some(more), _) => format!("?limit={few}&{base}&continue={}", escape_query(more)),
            (None, Some(at)) => {
                format!("?limit={few}&{base}&resourceVersion={at}&resourceVersionMatch=Exact")
            }
            (None, None) => format!("?limit={few}&{base}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entry(at: usize, bytes: usize) -> StoreEntry {
        let key = Key::new("g", "r", "ns", &format!("{at:03}")).unwrap();
        StoreEntry { key, value: Bytes::from(vec![b'x'; bytes]), revision: Revision(1) }
    }

    /// Returns what a page has of a hundred entries, which come in the order of their hashes.
    fn page(size: usize, request: PageRequest) -> (Vec<usize>, usize, bool) {
        let mut gathered = PageBuilder::new(request);
        let mut most = 0;
        for at in 0..100 {
            gathered.add_entry(entry(at * 37 % 100, size));
            most = most.max(gathered.bytes);
        }
        assert!(most <= KEPT + 2 * size || gathered.request.limit.is_none(), "{most}");
        let page = gathered.into_page(Revision(7));
        let name = |entry: &StoreEntry| entry.key.as_str()[7..].parse().unwrap();
        (page.entries.iter().map(name).collect(), page.remaining, page.more)
    }

    #[test]
    fn a_page_is_the_first_keys_whatever_the_order_in_which_they_come() {
        // A range that is kept whole, and one that is cut.
        for size in [1, 1 << 20] {
            let after = Some(entry(49, 1).key);
            let request = PageRequest { after, limit: Some(3), ..PageRequest::default() };
            assert_eq!(page(size, request), (vec![50, 51, 52], 47, true), "{size}");
            let after = Some(entry(97, 1).key);
            let request = PageRequest { after, limit: Some(3), ..PageRequest::default() };
            assert_eq!(page(size, request), (vec![98, 99], 0, false), "{size}");
        }
    }

    #[test]
    fn a_page_by_bytes_has_at_least_one_entry_and_ends_when_there_are_enough() {
        for (size, bytes, shown) in [(1, 3, 3), (1 << 20, 5 << 19, 3), (1 << 20, 1, 1)] {
            let request = PageRequest { bytes: Some(bytes), ..PageRequest::default() };
            let (found, remaining, more) = page(size, request);
            assert_eq!((found, remaining), ((0..shown).collect(), 100 - shown), "{size}");
            assert!(more);
        }
    }
}
