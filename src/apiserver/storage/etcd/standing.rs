//! Is the etcd that answers the one that was opened?
//!
//! etcd can lose its data under a running server, be restored from a backup, or make room for
//! another one at the same address. Each of them says of an object that it lacks that there is
//! none, and Kubernetes' garbage collector believes it. So the key `store-id`, made once, is read
//! again after every answer that an object's being depends on, and revisions never go back.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use uuid::Uuid;

use super::{
    super::{Alarm, Error, Result, Revision, Sight},
    ANSWER_WITHIN, Duration, Etcd, header, within,
};

pub(super) const NO_ID: &str = "etcd holds no store of ours";

/// What is known of the store that was opened.
#[derive(Default)]
pub(super) struct Standing {
    /// Absent before [`Etcd::establish`]: then nothing is compared.
    id: OnceLock<String>,
    /// How it showed that writes were lost. A lost store that is written to soon looks whole.
    lost: OnceLock<String>,
    /// The latest revision that this store, and certainly no other, has shown.
    latest: AtomicU64,
    alarm: OnceLock<Alarm>,
}

impl Standing {
    pub(super) fn latest(&self) -> Revision {
        Revision(self.latest.load(Ordering::SeqCst))
    }

    /// The store that was opened has shown `revision`.
    pub(super) fn reached(&self, revision: Revision) {
        self.latest.fetch_max(revision.0, Ordering::SeqCst);
    }

    /// How an answer at `now`, which can show no revision below `least`, is a sign of loss.
    pub(super) fn went_back(&self, least: Revision, now: Revision) -> Option<String> {
        let latest = self.latest();
        (self.id.get().is_some() && now < least).then(|| {
            format!(
                "etcd answered at revision {now} and was at {latest} before: it was wiped or \
                 restored"
            )
        })
    }

    /// Remembers the first sign that the store lost writes, until the process ends.
    fn lost(&self, sign: Option<String>) -> Option<String> {
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
        let found = self.look(ANSWER_WITHIN).await?.id;
        let id = if let Some(id) = found { id } else { self.make_id().await? };
        let known = self.standing.id.get_or_init(|| id).clone();
        self.verify(ANSWER_WITHIN).await?;
        Ok(known)
    }

    async fn make_id(&self) -> Result<String> {
        let (path, id) = (self.id_path(), Uuid::new_v4().to_string());
        let absent = Compare::mod_revision(path.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(path, id.clone(), None);
        let transaction = Txn::new().when(vec![absent]).and_then(vec![put]);
        if within(ANSWER_WITHIN, self.kv().txn(transaction)).await?.succeeded() {
            return Ok(id);
        }
        let other = self.look(ANSWER_WITHIN).await?.id;
        other.ok_or_else(|| Error::Replaced { reason: NO_ID.to_owned() })
    }

    /// The latest revision, of the store that was opened.
    pub(super) async fn verify(&self, limit: Duration) -> Result<Revision> {
        let Sight { id: _, revision, other, lost } = self.look(limit).await?;
        match other.or(lost) {
            Some(reason) => Err(self.standing.replaced(reason)),
            None => Ok(revision),
        }
    }

    /// The error for an answer that is a sign of loss: is this another store, or ours without its
    /// latest writes?
    pub(super) async fn refused(&self, sign: String) -> Error {
        let other = self.look(ANSWER_WITHIN).await.ok().and_then(|sight| sight.other);
        if other.is_none() {
            self.standing.lost(Some(sign.clone()));
        }
        self.standing.replaced(other.unwrap_or(sign))
    }

    /// Reads the id beside the objects: what is there, ours or not.
    pub(super) async fn look(&self, limit: Duration) -> Result<Sight> {
        let asked = self.standing.latest();
        let answer = within(limit, self.kv().get(self.id_path(), None)).await?;
        let revision = header(answer.header())?;
        let id = answer.kvs().first();
        let id = id.map(|kv| String::from_utf8_lossy(kv.value()).into_owned());
        if let Some(other) = self.standing.differs(id.as_deref()) {
            return Ok(Sight { id, revision, other: Some(other), lost: None });
        }
        let lost = self.standing.lost(self.standing.went_back(asked, revision));
        self.standing.reached(revision);
        Ok(Sight { id, revision, other: None, lost })
    }

    fn id_path(&self) -> String {
        format!("{}store-id", self.root)
    }
}
