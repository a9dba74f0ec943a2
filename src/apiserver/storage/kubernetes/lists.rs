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
    requests::escaped,
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

    fn add(&mut self, entry: StoreEntry) {
        let wanted = self.request.after.as_ref().is_none_or(|after| entry.key > *after);
        self.seen += usize::from(wanted);
        if self.cut && !wanted {
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
            self.trim();
        }
    }

    /// Drops the last entries, for which the page has no room.
    fn trim(&mut self) {
        let limit = self.request.limit.unwrap_or(usize::MAX);
        while let Some(last) = self.entries.last_entry() {
            let before = self.bytes - last.get().value.len();
            let full = self.request.bytes.is_some_and(|most| before >= most);
            let stays = self.entries.len() <= limit && !(full && self.entries.len() > 1);
            if stays {
                return;
            }
            self.bytes = before;
            self.entries.pop_last();
        }
    }

    fn page(mut self, revision: Revision) -> StorePage {
        if let Some(after) = &self.request.after {
            self.entries.retain(|key, _| key > after);
        }
        self.bytes = self.entries.values().map(|entry| entry.value.len()).sum();
        self.trim();
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
        if let Some(at) = request.at {
            self.reachable(at).await?;
        }
        let kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let kept = kept.filter(|kept| kept.prefix == *prefix && Some(kept.revision) == request.at);
        let listing = match kept {
            Some(kept) => kept,
            None => match self.gathered(prefix, request.clone()).await? {
                (gathered, revision) if gathered.cut => return Ok(gathered.page(revision)),
                (gathered, revision) => {
                    let (prefix, entries) = (prefix.clone(), gathered.entries);
                    Arc::new(RangeSnapshot { prefix, revision, entries })
                }
            },
        };
        let mut gathered = PageBuilder::new(request);
        for entry in listing.entries.values() {
            gathered.add(entry.clone());
        }
        let page = gathered.page(listing.revision);
        // A list of one object only asks whether there is any; its reader asks for no next page.
        let reads_on = page.more && page.entries.len() > 1;
        let mut kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if reads_on {
            *kept = Some(listing);
        } else if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &listing)) {
            *kept = None;
        }
        drop(kept);
        Ok(page)
    }

    /// Reads the entries that a page wants of a range. A list of the latest state begins anew when
    /// its revision is compacted meanwhile.
    async fn gathered(
        &self,
        prefix: &KeyPrefix,
        request: PageRequest,
    ) -> Result<(PageBuilder, Revision)> {
        for _ in 0..TRIES {
            let mut gathered = PageBuilder::new(request.clone());
            let mut pages = self.pages(prefix, request.at);
            let mut revision = request.at.unwrap_or_default();
            let read = async {
                while let Some(page) = pages.try_next().await? {
                    revision = page.revision;
                    page.entries.into_iter().for_each(|entry| gathered.add(entry));
                }
                Ok::<_, Error>(())
            };
            match read.await {
                Ok(()) => return Ok((gathered, revision)),
                Err(Error::Compacted { .. }) if request.at.is_none() => {}
                Err(Error::Compacted { .. }) => {
                    return Err(self.compacted(request.at.unwrap_or_default()).await);
                }
                Err(error) => return Err(error),
            }
        }
        Err(super::requests::unavailable("the list took longer than Kubernetes keeps its history"))
    }

    /// Fails unless `at` is a revision that this store has reached and still tells of.
    pub(super) async fn reachable(&self, at: Revision) -> Result<()> {
        let latest = self.verify(ANSWER_WITHIN).await?;
        let oldest = self.floor();
        if at < oldest {
            return Err(Error::Compacted { asked: at, oldest });
        }
        // kube-apiserver would wait for a revision in the future, and then say something else.
        if at > latest {
            return Err(Error::FutureRevision { asked: at, latest });
        }
        Ok(())
    }

    /// Returns all of a range, as of a revision that this store has reached or the latest.
    pub(super) fn scan_pages<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        at: Option<Revision>,
    ) -> ScanStream<'a> {
        let reachable = async move {
            match at {
                Some(at) => self.reachable(at).await,
                None => Ok(()),
            }
        };
        let pages = stream::once(reachable)
            .map_ok(move |()| self.pages(prefix, at))
            .try_flatten()
            .or_else(move |error| async move {
                match (error, at) {
                    (Error::Compacted { .. }, Some(at)) => Err(self.compacted(at).await),
                    (error, _) => Err(error),
                }
            });
        Box::pin(pages)
    }

    /// Returns the error for a revision that kube-apiserver forgot. From now on this process
    /// refuses revisions before the oldest that may still be there, so that a client that begins
    /// there gets on.
    pub(super) async fn compacted(&self, asked: Revision) -> Error {
        let latest = match self.verify(ANSWER_WITHIN).await {
            Ok(latest) => latest,
            Err(error) => return error,
        };
        let oldest = match watch::oldest(self).await {
            Ok(oldest) if oldest > asked && oldest <= latest => oldest,
            // Watches may reach further back than lists. The oldest revision of lists is not told.
            Ok(_) | Err(_) => latest,
        };
        self.learn(oldest);
        Error::Compacted { asked, oldest: self.floor() }
    }

    /// Reads a range to its end. The pages are good only when the last one has come, too.
    pub(super) fn pages<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        at: Option<Revision>,
    ) -> ScanStream<'a> {
        let base = format!("labelSelector={}", escaped(&self.kind.selector(prefix)));
        let asked = self.standing.latest();
        let few = FEW;
        let first = RangeCursor { base, at, asked, few, more: None, mark: None };
        let pages = stream::try_unfold(Some(first), move |reading| async move {
            let Some(mut reading) = reading else { return Ok(None) };
            let page = self.read_page(prefix, &mut reading).await?;
            let more = page.more;
            if !more {
                self.is_whole(&reading, page.revision)?;
            }
            Ok(Some((page, more.then_some(reading))))
        });
        pages.boxed()
    }

    async fn read_page(&self, prefix: &KeyPrefix, reading: &mut RangeCursor) -> Result<StorePage> {
        let (list, bytes) = loop {
            let path = reading.path();
            let most = (reading.few > 1).then_some(ANSWER_BYTES);
            match self.read_at_most(&path, ANSWER_WITHIN, most).await? {
                Some(answer) => break (answer.read::<StoredObjectList>()?, answer.body.len()),
                None => reading.few = (reading.few / 4).max(1),
            }
        };
        if bytes < ANSWER_BYTES / 4 {
            reading.few = (2 * reading.few).min(MANY);
        }
        let revision = match reading.at {
            Some(at) => at,
            None => object::revision(&list.metadata.resource_version)?,
        };
        // The pages that follow are of the same revision.
        reading.more = Some(list.metadata.more).filter(|more| !more.is_empty());
        let mut entries = Vec::with_capacity(list.items.len());
        for stored in list.items {
            if stored.is_store() {
                reading.mark = stored.store;
            } else if !stored.deleted {
                let entry = stored.entry()?;
                if prefix.contains(&entry.key) {
                    entries.push(entry);
                }
            }
        }
        Ok(StorePage { entries, revision, more: reading.more.is_some(), remaining: 0 })
    }

    /// Fails unless the range was read from the store that was opened, and the store did not go
    /// back since `reading` began.
    fn is_whole(&self, reading: &RangeCursor, revision: Revision) -> Result<()> {
        // A list as of an earlier revision is no sign that the store went back.
        let asked = if reading.at.is_some() { Revision(0) } else { reading.asked };
        let sight = self.judged(reading.mark.as_ref(), asked, revision);
        match sight.other.or(self.standing.lost(None).map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(()),
        }
    }
}

impl RangeCursor {
    fn path(&self) -> String {
        let Self { base, at, few, more, .. } = self;
        match (more, at) {
            (Some(more), _) => format!("?limit={few}&{base}&continue={}", escaped(more)),
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
            gathered.add(entry(at * 37 % 100, size));
            most = most.max(gathered.bytes);
        }
        assert!(most <= KEPT + 2 * size || gathered.request.limit.is_none(), "{most}");
        let page = gathered.page(Revision(7));
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
