//! The object that represents the store: its id, its floor, and whether it is the store that was
//! opened.
//!
//! A list of that one object is answered at the latest revision, so one answer shows the store and
//! its latest revision. Each list and each watch carries the object too. Kubernetes' own compaction
//! does not report the revisions that it removed, so a floor is stored next to the id. The store
//! refuses revisions before the floor. This process also refuses revisions that kube-apiserver has
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
    requests::unavailable_error,
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
    pub async fn establish_id(&self) -> Result<String> {
        self.establish_as(&Uuid::new_v4().to_string(), "").await
    }

    /// Reads the id of the store, or makes the store with the id `new` and with `lost` as the
    /// reason why its latest writes may be missing.
    pub async fn establish_as(&self, new_id: &str, loss_reason: &str) -> Result<String> {
        let mark = StoreMark { id: new_id.to_owned(), floor: 0, lost: loss_reason.to_owned() };
        let create_answer =
            self.send_write(Method::POST, "", &self.kind.store_object(&mark, None)).await?;
        if create_answer.status != StatusCode::CONFLICT {
            create_answer.revision()?;
        }
        let found_mark = self.read_mark().await?.ok_or_else(|| self.standing.missing_error())?;
        if found_mark.mark.floor == 0 {
            self.raise_floor(found_mark.revision).await?;
        }
        let store_id = self.standing.pin_id(found_mark.mark.id);
        self.verify(ANSWER_WITHIN).await?;
        self.sweep_deleted().await?;
        Ok(store_id)
    }

    /// Removes the objects of deletions that a process did not finish.
    async fn sweep_deleted(&self) -> Result<()> {
        let path = format!(
            "?labelSelector={}",
            super::requests::escape_query(&self.kind.deleted_selector())
        );
        let leftovers: StoredObjectList =
            self.read_path(&path, ANSWER_WITHIN).await?.decode_body()?;
        for object in leftovers.items.iter().filter(|object| object.deleted) {
            self.purge_deleted(&object.key()?, object.revision()?).await;
        }
        Ok(())
    }

    /// Reads the object that stands for the store.
    async fn read_mark(&self) -> Result<Option<FoundMark>> {
        let answer = self.read_path(&format!("/{STORE}"), ANSWER_WITHIN).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let stored_object: StoredObject = answer.decode_body()?;
        let revision = stored_object.revision()?;
        let mark = stored_object.store.unwrap_or_default();
        self.raise_local_floor(Revision(mark.floor));
        Ok(Some(FoundMark { mark, revision }))
    }

    /// Fails unless the store is the one that was opened: called before a write, because nothing is
    /// written into another store. Returns the latest revision that was seen before.
    pub(super) async fn check_identity(&self) -> Result<Revision> {
        let revision_before = self.standing.latest_revision();
        let found_mark = self.read_mark().await?;
        let id = found_mark.as_ref().map(|found_mark| found_mark.mark.id.as_str());
        match self.standing.id_mismatch(id).or(self.standing.first_loss(None).map(|lost| lost.why))
        {
            Some(reason) => Err(self.standing.replaced_error(reason)),
            None => Ok(revision_before),
        }
    }

    /// Returns the latest revision. Fails unless the store is the one that was opened, and has lost
    /// no writes since.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let (_, status) = self.read_status(limit).await?;
        // An administrator decides about a loss from before this process opened the store.
        match status.other.or(self.standing.first_loss(None).map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced_error(reason)),
            None => Ok(status.revision),
        }
    }

    /// Returns the error for an answer at a revision that the store has left behind.
    pub(super) async fn loss_error(&self, write_loss: WriteLoss) -> Error {
        let other = self.read_status(ANSWER_WITHIN).await.ok().and_then(|(_, status)| status.other);
        if other.is_none() {
            self.standing.first_loss(Some(write_loss.clone()));
        }
        self.standing.replaced_error(other.unwrap_or(write_loss.why))
    }

    /// Lists the object of the store, and returns what is there as of now, whichever store it is.
    pub(super) async fn read_status(
        &self,
        limit: Duration,
    ) -> Result<(Option<StoreMark>, StoreStatus)> {
        let revision_before = self.standing.latest_revision();
        let path = format!("?fieldSelector=metadata.name%3D{STORE}");
        let answer = self.read_path(&path, limit).await?;
        if answer.status == StatusCode::NOT_FOUND {
            let source = "kube-apiserver knows no StoredObject: its CustomResourceDefinition is \
                          missing";
            return Err(unavailable_error(source));
        }
        let list: StoredObjectList = answer.decode_body()?;
        let revision = object::parse_revision(&list.metadata.resource_version)?;
        let mark = list.items.into_iter().next().map(|stored| stored.store.unwrap_or_default());
        let status = self.assess_answer(mark.as_ref(), revision_before, revision);
        Ok((mark, status))
    }

    /// Judges an answer at `revision` with the store's object `mark`. `revision_before` was the
    /// latest revision before the answer.
    pub(super) fn assess_answer(
        &self,
        mark: Option<&StoreMark>,
        revision_before: Revision,
        revision: Revision,
    ) -> StoreStatus {
        let id = mark.map(|mark| mark.id.clone());
        if let Some(other) = self.standing.id_mismatch(id.as_deref()) {
            return StoreStatus { id, revision, other: Some(other), lost: None };
        }
        let detected_loss =
            self.standing.first_loss(self.standing.detect_rollback(revision_before, revision));
        self.standing.record_revision(revision);
        self.raise_local_floor(Revision(mark.map_or(0, |mark| mark.floor)));
        let lossy_mark = mark.filter(|mark| !mark.lost.is_empty());
        let recorded_loss =
            lossy_mark.map(|mark| WriteLoss { why: mark.lost.clone(), reached: revision });
        StoreStatus { id, revision, other: None, lost: detected_loss.or(recorded_loss) }
    }

    /// Returns the oldest revision that reads may ask for, as far as this process knows.
    pub(super) fn floor(&self) -> Revision {
        Revision(self.shared.floor.load(Ordering::SeqCst))
    }

    /// Makes this process refuse revisions before `oldest` from now on.
    pub(super) fn raise_local_floor(&self, oldest: Revision) {
        self.shared.floor.fetch_max(oldest.0, Ordering::SeqCst);
    }

    /// Forgets history before `to`, for every process of this store.
    pub(super) async fn raise_floor(&self, new_floor: Revision) -> Result<()> {
        self.change_mark(|mark| {
            let is_raised = mark.floor < new_floor.0;
            mark.floor = mark.floor.max(new_floor.0);
            is_raised
        })
        .await
    }

    /// Changes the object of the store; tries again when another writer comes between.
    pub(super) async fn change_mark(&self, change: impl Fn(&mut StoreMark) -> bool) -> Result<()> {
        for _ in 0..TRIES {
            let FoundMark { mut mark, revision } =
                self.read_mark().await?.ok_or_else(|| self.standing.missing_error())?;
            if !change(&mut mark) {
                return Ok(());
            }
            let object = self.kind.store_object(&mark, Some(revision));
            let answer = self.send_write(Method::PUT, &format!("/{STORE}"), &object).await?;
            if answer.status != StatusCode::CONFLICT {
                answer.revision()?;
                self.raise_local_floor(Revision(mark.floor));
                return Ok(());
            }
        }
        Err(unavailable_error("others write the object of the store all the time"))
    }

    /// Records the loss of an object that was deleted without the API server. No user deleted it,
    /// and what it owns must not be taken for garbage: from now on the store is one that lost
    /// writes. Returns the error.
    pub(super) async fn record_loss(&self, reason: String) -> Error {
        let reached = self.standing.latest_revision();
        self.standing.first_loss(Some(WriteLoss { why: reason.clone(), reached }));
        let record = self.change_mark(|mark| {
            let is_first = mark.lost.is_empty();
            if is_first {
                mark.lost.clone_from(&reason);
            }
            is_first
        });
        if let Err(error) = record.await {
            debug!(error = %crate::error::chain(&error), "Failed to record the loss");
        }
        self.standing.replaced_error(reason)
    }

    /// Writes the object of the store, so that every watch learns of a revision past
    /// `target_revision`.
    pub(super) async fn force_progress(&self, target_revision: Revision) -> Result<()> {
        let mut last_write = self.shared.beat.lock().await;
        if *last_write >= target_revision {
            return Ok(());
        }
        let write = serde_json::json!({"write": Uuid::new_v4().to_string()});
        *last_write =
            self.send_write(Method::PATCH, &format!("/{STORE}"), &write).await?.revision()?;
        Ok(())
    }

    /// Writes until the latest revision is past `past`: a running Kubernetes has no other way to
    /// skip revisions. Then forgets the history before, so that clients that know an older state
    /// list again. Also forgets the loss of writes, which an administrator has accepted.
    pub(super) async fn skip_revisions(&self, past: Revision) -> Result<Revision> {
        let mut latest_revision = self.verify(ANSWER_WITHIN).await?;
        let missing_revisions = past.0.saturating_sub(latest_revision.0);
        if missing_revisions > FARTHEST {
            let source = format!(
                "Kubernetes would have to skip {missing_revisions} revisions, and can skip {FARTHEST} at \
                 most; restore its etcd once more, with: etcdutl snapshot restore --bump-revision \
                 1000000000 --mark-compacted"
            );
            return Err(unavailable_error(source));
        }
        let names: Vec<_> = (0..TOGETHER).map(|n| format!("skip-{n}-{}", Uuid::new_v4())).collect();
        let mut is_created = false;
        while latest_revision <= past {
            let writes = names.iter().map(|name| async move {
                let object = self.kind.filler_object(name);
                let (method, path) = if is_created {
                    (Method::PATCH, format!("/{name}"))
                } else {
                    (Method::POST, String::new())
                };
                self.send_write(method, &path, &object).await?.revision()
            });
            for revision in try_join_all(writes).await? {
                latest_revision = latest_revision.max(revision);
            }
            is_created = true;
        }
        if is_created {
            for name in &names {
                let path = format!("/{name}");
                drop(self.send_request(Method::DELETE, &path, "*/*", None, ANSWER_WITHIN).await);
            }
        }
        let latest_revision = self.verify(ANSWER_WITHIN).await?;
        self.change_mark(|mark| {
            mark.floor = mark.floor.max(latest_revision.0);
            mark.lost.clear();
            true
        })
        .await?;
        self.current_revision().await
    }
}
