//! The object that stands for the store: its id, its floor, and whether it is the one that was
//! opened.
//!
//! A list of that one object is answered at the latest revision, so it shows the store and how far
//! it has come in one answer. Each list and each watch carries the object too. Kubernetes' own
//! compaction says nothing about revisions that it forgot, so a floor is kept beside the id:
//! revisions before it are refused, and so are, by this process, those that kube-apiserver has
//! refused once.

use std::{sync::atomic::Ordering, time::Duration};

use futures::future::try_join_all;
use http::{Method, StatusCode};
use tracing::debug;
use uuid::Uuid;

use super::{
    super::{Error, Result, Revision, Storage, StoreStatus, WriteLoss},
    ANSWER_WITHIN, KubernetesStore,
    object::{self, STORE, StoreMark, StoredObject, StoredObjectList},
    requests::unavailable,
};

/// Most revisions that are skipped one write at a time: some ten seconds' worth.
const FARTHEST: u64 = 10_000;
/// Writes that are under way at one time while revisions are skipped, each of an object of its own.
const TOGETHER: usize = 16;
/// Most tries of a change when other writers come between.
const TRIES: usize = 20;

/// The object of the store, as it was found.
pub(super) struct FoundMark {
    mark: StoreMark,
    revision: Revision,
}

impl KubernetesStore {
    /// Reads the id of the store, or makes one where none is. From now on every answer must come
    /// from this store. When two servers start together, one of them makes the id.
    pub async fn establish(&self) -> Result<String> {
        self.establish_as(&Uuid::new_v4().to_string(), "").await
    }

    /// Reads the id of the store, or makes the store with the id `new` and with `lost` as the
    /// reason why its latest writes may be missing.
    pub async fn establish_as(&self, new: &str, lost: &str) -> Result<String> {
        let mark = StoreMark { id: new.to_owned(), floor: 0, lost: lost.to_owned() };
        let made = self.write(Method::POST, "", &self.kind.store(&mark, None)).await?;
        if made.status != StatusCode::CONFLICT {
            made.revision()?;
        }
        let found = self.found().await?.ok_or_else(|| self.standing.absent())?;
        if found.mark.floor == 0 {
            self.raise_floor(found.revision).await?;
        }
        let known = self.standing.open(found.mark.id);
        self.verify(ANSWER_WITHIN).await?;
        self.sweep().await?;
        Ok(known)
    }

    /// Removes the objects of deletions that a process did not finish.
    async fn sweep(&self) -> Result<()> {
        let path = format!("?labelSelector={}", super::requests::escaped(&self.kind.deleted()));
        let left: StoredObjectList = self.read(&path, ANSWER_WITHIN).await?.read()?;
        for object in left.items.iter().filter(|object| object.deleted) {
            self.purge(&object.key()?, object.revision()?).await;
        }
        Ok(())
    }

    /// Reads the object that stands for the store.
    async fn found(&self) -> Result<Option<FoundMark>> {
        let answer = self.read(&format!("/{STORE}"), ANSWER_WITHIN).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let stored: StoredObject = answer.read()?;
        let revision = stored.revision()?;
        let mark = stored.store.unwrap_or_default();
        self.learn(Revision(mark.floor));
        Ok(Some(FoundMark { mark, revision }))
    }

    /// Fails unless the store is the one that was opened: called before a write, because nothing is
    /// written into another store. Returns the latest revision that was seen before.
    pub(super) async fn identified(&self) -> Result<Revision> {
        let asked = self.standing.latest();
        let found = self.found().await?;
        let id = found.as_ref().map(|found| found.mark.id.as_str());
        match self.standing.differs(id).or(self.standing.lost(None).map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(asked),
        }
    }

    /// Returns the latest revision. Fails unless the store is the one that was opened, and has lost
    /// no writes since.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let (_, sight) = self.look(limit).await?;
        // A loss from before this process opened the store is for a person to judge.
        match sight.other.or(self.standing.lost(None).map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(sight.revision),
        }
    }

    /// Returns the error for an answer at a revision that the store has left behind.
    pub(super) async fn refused(&self, sign: WriteLoss) -> Error {
        let other = self.look(ANSWER_WITHIN).await.ok().and_then(|(_, sight)| sight.other);
        if other.is_none() {
            self.standing.lost(Some(sign.clone()));
        }
        self.standing.replaced(other.unwrap_or(sign.why))
    }

    /// Lists the object of the store, and returns what is there as of now, whichever store it is.
    pub(super) async fn look(&self, limit: Duration) -> Result<(Option<StoreMark>, StoreStatus)> {
        let asked = self.standing.latest();
        let path = format!("?fieldSelector=metadata.name%3D{STORE}");
        let answer = self.read(&path, limit).await?;
        if answer.status == StatusCode::NOT_FOUND {
            let source = "kube-apiserver knows no StoredObject: its CustomResourceDefinition is \
                          missing";
            return Err(unavailable(source));
        }
        let list: StoredObjectList = answer.read()?;
        let revision = object::revision(&list.metadata.resource_version)?;
        let mark = list.items.into_iter().next().map(|stored| stored.store.unwrap_or_default());
        let sight = self.judged(mark.as_ref(), asked, revision);
        Ok((mark, sight))
    }

    /// Judges an answer at `revision` with the store's object `mark`. `asked` was the latest
    /// revision before the answer.
    pub(super) fn judged(
        &self,
        mark: Option<&StoreMark>,
        asked: Revision,
        revision: Revision,
    ) -> StoreStatus {
        let id = mark.map(|mark| mark.id.clone());
        if let Some(other) = self.standing.differs(id.as_deref()) {
            return StoreStatus { id, revision, other: Some(other), lost: None };
        }
        let gone_back = self.standing.lost(self.standing.went_back(asked, revision));
        self.standing.reached(revision);
        self.learn(Revision(mark.map_or(0, |mark| mark.floor)));
        let recorded = mark.filter(|mark| !mark.lost.is_empty());
        let recorded = recorded.map(|mark| WriteLoss { why: mark.lost.clone(), reached: revision });
        StoreStatus { id, revision, other: None, lost: gone_back.or(recorded) }
    }

    /// Returns the oldest revision that reads may ask for, as far as this process knows.
    pub(super) fn floor(&self) -> Revision {
        Revision(self.shared.floor.load(Ordering::SeqCst))
    }

    /// Makes this process refuse revisions before `oldest` from now on.
    pub(super) fn learn(&self, oldest: Revision) {
        self.shared.floor.fetch_max(oldest.0, Ordering::SeqCst);
    }

    /// Forgets history before `to`, for every process of this store.
    pub(super) async fn raise_floor(&self, to: Revision) -> Result<()> {
        self.change_mark(|mark| {
            let raised = mark.floor < to.0;
            mark.floor = mark.floor.max(to.0);
            raised
        })
        .await
    }

    /// Changes the object of the store; tries again when another writer comes between.
    pub(super) async fn change_mark(&self, change: impl Fn(&mut StoreMark) -> bool) -> Result<()> {
        for _ in 0..TRIES {
            let FoundMark { mut mark, revision } =
                self.found().await?.ok_or_else(|| self.standing.absent())?;
            if !change(&mut mark) {
                return Ok(());
            }
            let object = self.kind.store(&mark, Some(revision));
            let answer = self.write(Method::PUT, &format!("/{STORE}"), &object).await?;
            if answer.status != StatusCode::CONFLICT {
                answer.revision()?;
                self.learn(Revision(mark.floor));
                return Ok(());
            }
        }
        Err(unavailable("others write the object of the store all the time"))
    }

    /// Records the loss of an object that was deleted without the API server. No user deleted it,
    /// and what it owns must not be taken for garbage: from now on the store is one that lost
    /// writes. Returns the error.
    pub(super) async fn bereft(&self, why: String) -> Error {
        let reached = self.standing.latest();
        self.standing.lost(Some(WriteLoss { why: why.clone(), reached }));
        let record = self.change_mark(|mark| {
            let first = mark.lost.is_empty();
            if first {
                mark.lost.clone_from(&why);
            }
            first
        });
        if let Err(error) = record.await {
            debug!(error = %crate::error::chain(&error), "Failed to record the loss");
        }
        self.standing.replaced(why)
    }

    /// Writes the object of the store, so that every watch learns of a revision past `wanted`.
    pub(super) async fn beat(&self, wanted: Revision) -> Result<()> {
        let mut last = self.shared.beat.lock().await;
        if *last >= wanted {
            return Ok(());
        }
        let write = serde_json::json!({"write": Uuid::new_v4().to_string()});
        *last = self.write(Method::PATCH, &format!("/{STORE}"), &write).await?.revision()?;
        Ok(())
    }

    /// Writes until the latest revision is past `past`: a running Kubernetes has no other way to
    /// skip revisions. Then forgets the history before, so that clients that know an older state
    /// list again, and the loss of writes, which a person has accepted.
    pub(super) async fn burn(&self, past: Revision) -> Result<Revision> {
        let mut now = self.verify(ANSWER_WITHIN).await?;
        let missing = past.0.saturating_sub(now.0);
        if missing > FARTHEST {
            let source = format!(
                "Kubernetes would have to skip {missing} revisions, and can skip {FARTHEST} at \
                 most; restore its etcd once more, with: etcdutl snapshot restore --bump-revision \
                 1000000000 --mark-compacted"
            );
            return Err(unavailable(source));
        }
        let names: Vec<_> = (0..TOGETHER).map(|n| format!("skip-{n}-{}", Uuid::new_v4())).collect();
        let mut made = false;
        while now <= past {
            let writes = names.iter().map(|name| async move {
                let object = self.kind.filler(name);
                let (method, path) = if made {
                    (Method::PATCH, format!("/{name}"))
                } else {
                    (Method::POST, String::new())
                };
                self.write(method, &path, &object).await?.revision()
            });
            for written in try_join_all(writes).await? {
                now = now.max(written);
            }
            made = true;
        }
        if made {
            for name in &names {
                let path = format!("/{name}");
                drop(self.ask(Method::DELETE, &path, "*/*", None, ANSWER_WITHIN).await);
            }
        }
        let now = self.verify(ANSWER_WITHIN).await?;
        self.change_mark(|mark| {
            mark.floor = mark.floor.max(now.0);
            mark.lost.clear();
            true
        })
        .await?;
        self.current_revision().await
    }
}
