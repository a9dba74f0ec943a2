//! Checks that the etcd that answers is the one that was opened.
//!
//! The key `store-id`, made once, is read in or after every answer that says whether an object
//! exists (`storage::standing`). For a write the id is not enough, or a store that lost its latest
//! writes would soon look whole again: the witness, which is this process's latest write, must be
//! there still, or the revision is looked at first.

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use futures::future::try_join_all;
use uuid::Uuid;

use super::{
    super::{Error, Result, Revision, Storage, StoreStatus, WriteLoss},
    ANSWER_WITHIN, Duration, EtcdStore, header_revision, with_timeout,
};

/// Most revisions that are skipped one write at a time: some ten seconds' worth.
const FARTHEST: u64 = 100_000;
/// Writes that are under way at one time while revisions are skipped.
const TOGETHER: usize = 64;

impl EtcdStore {
    /// Reads the id of the store, or makes one where none is. From now on every answer must come
    /// from this store. Two servers that start together agree on the id: the transaction lets one
    /// of them win.
    pub async fn establish_id(&self) -> Result<String> {
        self.establish_as(&Uuid::new_v4().to_string()).await
    }

    /// Reads the id of the store, or makes the store with the id `new` where none is.
    pub async fn establish_as(&self, new_id: &str) -> Result<String> {
        self.require_version().await?;
        let existing_id = self.read_status(ANSWER_WITHIN).await?.id;
        let id = if let Some(id) = existing_id { id } else { self.make_id(new_id).await? };
        let store_id = self.standing.pin_id(id);
        self.verify(ANSWER_WITHIN).await?;
        Ok(store_id)
    }

    async fn make_id(&self, id: &str) -> Result<String> {
        let path = self.id_path();
        let absence_condition = Compare::mod_revision(path.clone(), CompareOp::Equal, 0);
        let put_operation = TxnOp::put(path, id, None);
        let transaction = Txn::new().when(vec![absence_condition]).and_then(vec![put_operation]);
        if with_timeout(ANSWER_WITHIN, self.kv().txn(transaction)).await?.succeeded() {
            return Ok(id.to_owned());
        }
        let existing_id = self.read_status(ANSWER_WITHIN).await?.id;
        existing_id.ok_or_else(|| self.standing.missing_error())
    }

    /// Writes until the latest revision is past `past`: a running etcd has no other way to skip
    /// revisions. Then forgets the history before, so that clients that know an older state list
    /// again.
    pub(super) async fn skip_revisions(&self, past: Revision) -> Result<Revision> {
        let mut latest_revision = self.verify(ANSWER_WITHIN).await?;
        let id = self.standing.id().unwrap_or_default().to_owned();
        let missing_revisions = past.0.saturating_sub(latest_revision.0);
        if missing_revisions > FARTHEST {
            let source = format!(
                "etcd would have to skip {missing_revisions} revisions, and can skip {FARTHEST} at most; \
                 restore it once more, with: etcdutl snapshot restore --bump-revision \
                 1000000000 --mark-compacted"
            );
            return Err(Error::Unavailable { source: source.into() });
        }
        while latest_revision <= past {
            let puts = (0..TOGETHER).map(|_| async {
                let mut kv = self.kv();
                let put = kv.put(self.id_path(), id.clone(), None);
                header_revision(with_timeout(ANSWER_WITHIN, put).await?.header())
            });
            for revision in try_join_all(puts).await? {
                latest_revision = latest_revision.max(revision);
            }
        }
        self.standing.record_revision(latest_revision);
        self.compact(latest_revision).await?;
        Ok(latest_revision)
    }

    /// Returns the latest revision. Fails unless the store is the one that was opened, with its
    /// latest writes.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let status = self.read_status(limit).await?;
        self.check_status(status)
    }

    /// Fails for an answer at `answer_revision` whose `id`, or revision, is not that of the store
    /// that was opened. `revision_before` was the latest revision when the request was sent.
    pub(super) fn verify_answer(
        &self,
        revision_before: Revision,
        answer_revision: Revision,
        id: Option<&KeyValue>,
    ) -> Result<Revision> {
        self.check_status(self.assess_answer(revision_before, answer_revision, id))
    }

    fn check_status(&self, status: StoreStatus) -> Result<Revision> {
        let StoreStatus { id: _, revision, other, lost } = status;
        match other.or(lost.map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced_error(reason)),
            None => Ok(revision),
        }
    }

    /// Returns the error for an answer that is a sign of loss: it tells another store from the
    /// opened one without its latest writes.
    pub(super) async fn loss_error(&self, write_loss: WriteLoss) -> Error {
        let other = self.read_status(ANSWER_WITHIN).await.ok().and_then(|status| status.other);
        if other.is_none() {
            self.standing.first_loss(Some(write_loss.clone()));
        }
        self.standing.replaced_error(other.unwrap_or(write_loss.why))
    }

    /// Reads the id that is stored next to the objects, and returns what is there, in any store.
    pub(super) async fn read_status(&self, limit: Duration) -> Result<StoreStatus> {
        let revision_before = self.standing.latest_revision();
        let answer = with_timeout(limit, self.kv().get(self.id_path(), None)).await?;
        let answer_revision = header_revision(answer.header())?;
        Ok(self.assess_answer(revision_before, answer_revision, answer.kvs().first()))
    }

    fn assess_answer(
        &self,
        revision_before: Revision,
        revision: Revision,
        id: Option<&KeyValue>,
    ) -> StoreStatus {
        let id = id.map(|kv| String::from_utf8_lossy(kv.value()).into_owned());
        if let Some(other) = self.standing.id_mismatch(id.as_deref()) {
            return StoreStatus { id, revision, other: Some(other), lost: None };
        }
        let lost =
            self.standing.first_loss(self.standing.detect_rollback(revision_before, revision));
        self.standing.record_revision(revision);
        StoreStatus { id, revision, other: None, lost }
    }

    pub(super) fn id_path(&self) -> String {
        format!("{}store-id", self.root)
    }
}
