//! Lists: whole from kube-apiserver, in pages from us.
//!
//! kube-apiserver orders objects by their names, which are hashes here, and its `continue` is for
//! nobody else to write. So a range is read whole as of one revision, put in order of keys, and
//! kept as long as somebody reads on in it.

use std::sync::{Arc, PoisonError};

use super::{
    super::{Entry, Error, Page, PageRequest, Prefix, Result, Revision},
    ANSWER_WITHIN, Kubernetes,
    ask::escaped,
    object::{self, List, selector},
    watch,
};

/// Objects that one request reads. With objects of a few KiB, an answer stays at a few MiB.
const PAGE: usize = 500;
/// Lists of the present that end in the middle because it has gone.
const TRIES: usize = 3;

/// A range as of one revision.
pub(super) struct Listing {
    prefix: Prefix,
    pub(super) revision: Revision,
    /// Ordered by key.
    pub(super) entries: Vec<Entry>,
}

impl Kubernetes {
    pub(super) async fn list_page(&self, prefix: &Prefix, request: PageRequest) -> Result<Page> {
        let listing = self.listing(prefix, request.at).await?;
        let after = request.after.as_ref();
        let from = after.map_or(0, |a| listing.entries.partition_point(|entry| entry.key <= *a));
        let rest = &listing.entries[from..];
        let shown = rest.len().min(request.limit.unwrap_or(usize::MAX));
        let remaining = rest.len() - shown;
        let page = Page {
            entries: rest[..shown].to_vec(),
            revision: listing.revision,
            more: remaining > 0,
            remaining,
        };
        // A list of one object asks whether there is any; nobody reads on there.
        let reads_on = page.more && shown > 1;
        let mut kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if reads_on {
            *kept = Some(listing);
        } else if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &listing)) {
            *kept = None;
        }
        drop(kept);
        Ok(page)
    }

    async fn listing(&self, prefix: &Prefix, at: Option<Revision>) -> Result<Arc<Listing>> {
        let Some(at) = at else { return self.present(prefix).await };
        self.reachable(at).await?;
        let kept = self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(kept) = kept.filter(|kept| kept.prefix == *prefix && kept.revision == at) {
            return Ok(kept);
        }
        self.past(prefix, at).await
    }

    /// Is `at` a revision that this store has reached and still tells of?
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

    async fn present(&self, prefix: &Prefix) -> Result<Arc<Listing>> {
        for _ in 0..TRIES {
            match self.whole(prefix, None).await {
                Err(Error::Compacted { .. }) => {}
                listed => return listed,
            }
        }
        Err(super::ask::unavailable("the list took longer than Kubernetes keeps its history"))
    }

    /// A range as it was; `at` is one that this store has reached.
    pub(super) async fn past(&self, prefix: &Prefix, at: Revision) -> Result<Arc<Listing>> {
        match self.whole(prefix, Some(at)).await {
            Err(Error::Compacted { .. }) => Err(self.compacted(at).await),
            listed => listed,
        }
    }

    /// The error for a revision that kube-apiserver forgot. From now on this process asks for
    /// none before the oldest that it may still have, so that who begins there gets on.
    pub(super) async fn compacted(&self, asked: Revision) -> Error {
        let latest = match self.verify(ANSWER_WITHIN).await {
            Ok(latest) => latest,
            Err(error) => return error,
        };
        let oldest = match watch::oldest(self).await {
            Ok(oldest) if oldest > asked && oldest <= latest => oldest,
            // Watches reach further back than lists do, or just as far.
            Ok(_) | Err(_) => latest,
        };
        self.learn(oldest);
        Error::Compacted { asked, oldest: self.floor() }
    }

    /// Reads a range to its end.
    async fn whole(&self, prefix: &Prefix, at: Option<Revision>) -> Result<Arc<Listing>> {
        let asked = self.standing.latest();
        let base = format!("?limit={PAGE}&labelSelector={}", escaped(&selector(prefix)));
        let mut path = match at {
            Some(at) => format!("{base}&resourceVersion={at}&resourceVersionMatch=Exact"),
            None => base.clone(),
        };
        let (mut entries, mut mark, mut shown) = (Vec::new(), None, at);
        loop {
            let list: List = self.read(&path, ANSWER_WITHIN).await?.read()?;
            shown = Some(match shown {
                Some(shown) => shown,
                None => object::revision(&list.metadata.resource_version)?,
            });
            for stored in list.items {
                if stored.is_store() {
                    mark = stored.store;
                } else if !stored.deleted {
                    let entry = stored.entry()?;
                    if prefix.contains(&entry.key) {
                        entries.push(entry);
                    }
                }
            }
            if list.metadata.more.is_empty() {
                break;
            }
            path = format!("{base}&continue={}", escaped(&list.metadata.more));
        }
        let revision = shown.unwrap_or_default();
        // What it was at an earlier revision is no sign of going back.
        let sight =
            self.judged(mark.as_ref(), if at.is_some() { Revision(0) } else { asked }, revision);
        if let Some(reason) = sight.other.or(self.standing.lost(None).map(|lost| lost.why)) {
            return Err(self.standing.replaced(reason));
        }
        entries.sort_unstable_by(|one, next| one.key.cmp(&next.key));
        Ok(Arc::new(Listing { prefix: prefix.clone(), revision, entries }))
    }
}
