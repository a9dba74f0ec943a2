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
    ANSWER_WITHIN, Duration, EtcdStore, header, within,
};

/// Most revisions that are skipped one write at a time: some ten seconds' worth.
const FARTHEST: u64 = 100_000;
/// Writes that are under way at one time while revisions are skipped.
const TOGETHER: usize = 64;

impl EtcdStore {
    /// Reads the id of the store, or makes one where none is. From now on every answer must come
    /// from this store. Two servers that start together agree on the id: the transaction lets one
    /// of them win.
    pub async fn establish(&self) -> Result<String> {
        self.establish_as(&Uuid::new_v4().to_string()).await
    }

    /// Reads the id of the store, or makes the store with the id `new` where none is.
    pub async fn establish_as(&self, new: &str) -> Result<String> {
        self.require_version().await?;
        let found = self.look(ANSWER_WITHIN).await?.id;
        let id = if let Some(id) = found { id } else { self.make_id(new).await? };
        let known = self.standing.open(id);
        self.verify(ANSWER_WITHIN).await?;
        Ok(known)
    }

    async fn make_id(&self, id: &str) -> Result<String> {
        let path = self.id_path();
        let absent = Compare::mod_revision(path.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(path, id, None);
        let transaction = Txn::new().when(vec![absent]).and_then(vec![put]);
        if within(ANSWER_WITHIN, self.kv().txn(transaction)).await?.succeeded() {
            return Ok(id.to_owned());
        }
        let other = self.look(ANSWER_WITHIN).await?.id;
        other.ok_or_else(|| self.standing.absent())
    }

    /// Writes until the latest revision is past `past`: a running etcd has no other way to skip
    /// revisions. Then forgets the history before, so that clients that know an older state list
    /// again.
    pub(super) async fn burn(&self, past: Revision) -> Result<Revision> {
        let mut now = self.verify(ANSWER_WITHIN).await?;
        let id = self.standing.id().unwrap_or_default().to_owned();
        let missing = past.0.saturating_sub(now.0);
        if missing > FARTHEST {
            let source = format!(
                "etcd would have to skip {missing} revisions, and can skip {FARTHEST} at most; \
                 restore it once more, with: etcdutl snapshot restore --bump-revision \
                 1000000000 --mark-compacted"
            );
            return Err(Error::Unavailable { source: source.into() });
        }
        while now <= past {
            let puts = (0..TOGETHER).map(|_| async {
                let mut kv = self.kv();
                let put = kv.put(self.id_path(), id.clone(), None);
                header(within(ANSWER_WITHIN, put).await?.header())
            });
            for written in try_join_all(puts).await? {
                now = now.max(written);
            }
        }
        self.standing.reached(now);
        self.compact(now).await?;
        Ok(now)
    }

    /// Returns the latest revision. Fails unless the store is the one that was opened, with its
    /// latest writes.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let sight = self.look(limit).await?;
        self.believe(sight)
    }

    /// Fails for an answer at `now` whose `id`, or revision, is not that of the store that was
    /// opened. `asked` was the latest revision when the request was sent.
    pub(super) fn opened(
        &self,
        asked: Revision,
        now: Revision,
        id: Option<&KeyValue>,
    ) -> Result<Revision> {
        self.believe(self.seen(asked, now, id))
    }

    fn believe(&self, sight: StoreStatus) -> Result<Revision> {
        let StoreStatus { id: _, revision, other, lost } = sight;
        match other.or(lost.map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(revision),
        }
    }

    /// Returns the error for an answer that is a sign of loss: it tells another store from the
    /// opened one without its latest writes.
    pub(super) async fn refused(&self, sign: WriteLoss) -> Error {
        let other = self.look(ANSWER_WITHIN).await.ok().and_then(|sight| sight.other);
        if other.is_none() {
            self.standing.lost(Some(sign.clone()));
        }
        self.standing.replaced(other.unwrap_or(sign.why))
    }

    /// Reads the id beside the objects, and returns what is there, whichever store it is.
    pub(super) async fn look(&self, limit: Duration) -> Result<StoreStatus> {
        let asked = self.standing.latest();
        let answer = within(limit, self.kv().get(self.id_path(), None)).await?;
        let now = header(answer.header())?;
        Ok(self.seen(asked, now, answer.kvs().first()))
    }

    fn seen(&self, asked: Revision, revision: Revision, id: Option<&KeyValue>) -> StoreStatus {
        let id = id.map(|kv| String::from_utf8_lossy(kv.value()).into_owned());
        if let Some(other) = self.standing.differs(id.as_deref()) {
            return StoreStatus { id, revision, other: Some(other), lost: None };
        }
        let lost = self.standing.lost(self.standing.went_back(asked, revision));
        self.standing.reached(revision);
        StoreStatus { id, revision, other: None, lost }
    }

    pub(super) fn id_path(&self) -> String {
        format!("{}store-id", self.root)
    }
}
