//! Is the etcd that answers the one that was opened?
//!
//! etcd can lose its data under a running server, be restored from a backup, or make room for
//! another one at the same address. Each of them says of an object that it lacks that there is
//! none, and Kubernetes' garbage collector believes it. So the key `store-id`, made once, is read
//! in or after every answer that an object's being depends on, and revisions never go back.
//! Before a write there must be more than the id, or a store that lost its latest writes would
//! soon look whole again: the latest of them, the witness, must be there still, or the revision
//! is looked at first.

use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use futures::future::try_join_all;
use uuid::Uuid;

use super::{
    super::{Alarm, Error, Loss, Result, Revision, Sight, Storage},
    ANSWER_WITHIN, Duration, Etcd, header, within,
};

pub(super) const NO_ID: &str = "etcd holds no store of ours";

/// Revisions that are skipped one write at a time: some ten seconds' worth.
const FARTHEST: u64 = 100_000;
/// Writes on their way at one time meanwhile.
const TOGETHER: usize = 64;

/// What is known of the store that was opened.
#[derive(Default)]
pub(super) struct Standing {
    /// Absent before [`Etcd::establish`]: then nothing is compared.
    id: OnceLock<String>,
    /// How it showed that writes were lost. A lost store that is written to soon looks whole.
    lost: OnceLock<Loss>,
    /// The latest revision that this store, and certainly no other, has shown.
    latest: AtomicU64,
    /// The latest write that this process made, as long as it is the latest that it knows of.
    witness: Mutex<Option<Witness>>,
    alarm: OnceLock<Alarm>,
}

/// A key, and a revision at or after which it was last written.
#[derive(Clone)]
pub(super) struct Witness {
    pub(super) path: String,
    pub(super) written: Revision,
}

impl Standing {
    pub(super) fn latest(&self) -> Revision {
        Revision(self.latest.load(Ordering::SeqCst))
    }

    /// The id that every answer must come with; absent before [`Etcd::establish`].
    pub(super) fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    /// Refuses a store that is known to have lost writes.
    pub(super) fn whole(&self) -> Result<()> {
        match self.lost.get() {
            Some(lost) => Err(self.replaced(lost.why.clone())),
            None => Ok(()),
        }
    }

    /// A write that must be there still, if it is the latest that is known of.
    pub(super) fn witness(&self) -> Option<Witness> {
        let witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner);
        witness.clone().filter(|witness| witness.written >= self.latest())
    }

    /// The store that was opened took a write at `revision`: of the key at `path`, or a deletion.
    pub(super) fn wrote(&self, path: Option<String>, revision: Revision) {
        self.reached(revision);
        let mut witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner);
        if witness.as_ref().is_none_or(|witness| witness.written < revision) {
            *witness = path.map(|path| Witness { path, written: revision });
        }
    }

    /// The store that was opened has shown `revision`.
    pub(super) fn reached(&self, revision: Revision) {
        self.latest.fetch_max(revision.0, Ordering::SeqCst);
    }

    /// How an answer at `now`, which can show no revision below `least`, is a sign of loss.
    pub(super) fn went_back(&self, least: Revision, now: Revision) -> Option<Loss> {
        let reached = self.latest();
        (self.id.get().is_some() && now < least).then(|| {
            let why = format!(
                "etcd answered at revision {now} and was at {reached} before: it was wiped or \
                 restored"
            );
            Loss { why, reached }
        })
    }

    /// Remembers the first sign that the store lost writes, until the process ends.
    fn lost(&self, sign: Option<Loss>) -> Option<Loss> {
        if let Some(sign) = sign {
            drop(self.lost.set(sign));
        }
        self.lost.get().cloned()
    }

    fn differs(&self, found: Option<&str>) -> Option<String> {
        match (self.id.get(), found) {
            (None, _) => None,
            (Some(known), Some(found)) if known == found => None,
            (Some(known), Some(found)) => {
                Some(format!("etcd holds the store {found:?}, not {known:?} as before"))
            }
            (Some(known), None) => Some(format!("{NO_ID}, where {known:?} was")),
        }
    }

    /// Tells who must know before the caller gets its answer.
    fn replaced(&self, reason: String) -> Error {
        if let Some(alarm) = self.alarm.get() {
            alarm(&reason);
        }
        Error::Replaced { reason }
    }

    pub(super) fn on_replaced(&self, alarm: Alarm) {
        // One guard watches over a store; a second one would be told nothing.
        drop(self.alarm.set(alarm));
    }
}

impl Etcd {
    /// Reads the id of the store, or makes it where none is. From now on every answer must come
    /// from this store. Two servers that start together agree: the transaction lets one of them
    /// win.
    pub async fn establish(&self) -> Result<String> {
        self.establish_as(&Uuid::new_v4().to_string()).await
    }

    /// The same, with the id that a store gets where none is.
    pub async fn establish_as(&self, new: &str) -> Result<String> {
        self.require_version().await?;
        let found = self.look(ANSWER_WITHIN).await?.id;
        let id = if let Some(id) = found { id } else { self.make_id(new).await? };
        let known = self.standing.id.get_or_init(|| id).clone();
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
        other.ok_or_else(|| Error::Replaced { reason: NO_ID.to_owned() })
    }

    /// Writes until the latest revision is past `past`: etcd has no other way to skip some while
    /// it runs. Then forgets what led there, so that whoever knows an older state lists again.
    pub(super) async fn burn(&self, past: Revision) -> Result<Revision> {
        let mut now = self.verify(ANSWER_WITHIN).await?;
        let id = self.standing.id.get().cloned().unwrap_or_default();
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

    /// The latest revision, of the store that was opened.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let sight = self.look(limit).await?;
        self.believe(sight)
    }

    /// Refuses an answer at `now`, asked for when `asked` was the latest revision, that came with
    /// this id.
    pub(super) fn opened(
        &self,
        asked: Revision,
        now: Revision,
        id: Option<&KeyValue>,
    ) -> Result<Revision> {
        self.believe(self.seen(asked, now, id))
    }

    fn believe(&self, sight: Sight) -> Result<Revision> {
        let Sight { id: _, revision, other, lost } = sight;
        match other.or(lost.map(|lost| lost.why)) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(revision),
        }
    }

    /// The error for an answer that is a sign of loss: is this another store, or ours without its
    /// latest writes?
    pub(super) async fn refused(&self, sign: Loss) -> Error {
        let other = self.look(ANSWER_WITHIN).await.ok().and_then(|sight| sight.other);
        if other.is_none() {
            self.standing.lost(Some(sign.clone()));
        }
        self.standing.replaced(other.unwrap_or(sign.why))
    }

    /// Reads the id beside the objects: what is there, ours or not.
    pub(super) async fn look(&self, limit: Duration) -> Result<Sight> {
        let asked = self.standing.latest();
        let answer = within(limit, self.kv().get(self.id_path(), None)).await?;
        let now = header(answer.header())?;
        Ok(self.seen(asked, now, answer.kvs().first()))
    }

    fn seen(&self, asked: Revision, revision: Revision, id: Option<&KeyValue>) -> Sight {
        let id = id.map(|kv| String::from_utf8_lossy(kv.value()).into_owned());
        if let Some(other) = self.standing.differs(id.as_deref()) {
            return Sight { id, revision, other: Some(other), lost: None };
        }
        let lost = self.standing.lost(self.standing.went_back(asked, revision));
        self.standing.reached(revision);
        Sight { id, revision, other: None, lost }
    }

    pub(super) fn id_path(&self) -> String {
        format!("{}store-id", self.root)
    }
}
