//! A store in etcd, for any number of API servers.
//!
//! Owns the shapes of the requests. One transaction reads or writes one object and also reads the
//! id of the store (`identity`). So kine, which answers only Kubernetes' own request shapes, does
//! not work here. Nothing is retried here: it is unknown whether an unanswered write happened, and
//! readers decide how long they retry. The client connects on first use and reconnects by itself.

mod compaction;
mod connect;
mod identity;
mod version;
mod watch;
mod witness;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, KvClient, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use futures::future::BoxFuture;
use tokio::time::timeout;

use self::witness::{LatestWitness, WriteWitness};
pub use self::{
    compaction::COMPACTION_INTERVAL,
    connect::{Config, EtcdConnectError, EtcdTlsFiles},
};
use super::{
    Error, Key, KeyPrefix, PageRequest, ReplacementAlarm, Result, Revision, Storage, StoreEntry,
    StorePage, StoreSize, StoreStatus, WatchStream, awaited_revision::AwaitedRevision,
    store_trust::StoreTrust,
};

/// Most keys that one range request reads. With objects of a few KiB, an answer stays at a few MiB.
const PAGE: usize = 500;
/// Most keys that one range request reads where bytes count: of the largest objects 24 MiB.
const FEW: usize = 16;
/// Most time for etcd to answer: an etcd that lost its leader elects another within a few seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Most time for etcd to answer a health check; upstream's timeout.
const HEALTHY_WITHIN: Duration = Duration::from_secs(2);
/// Most time for etcd to tell its size: a scrape of the metrics waits for it.
const SIZE_WITHIN: Duration = Duration::from_secs(1);

/// What a transaction does to its key.
enum KeyWrite {
    Put(Bytes),
    Delete,
}

/// The outcome of a transaction that was to change a key.
enum TransactionOutcome {
    Done(Revision),
    /// The key is not as it was expected; nothing was written.
    Refused(Error),
    /// The key is as it was expected, and the store is the same, but the witness is missing;
    /// nothing was written.
    WithoutWitness,
}

/// The etcd store. Cheap to clone.
#[derive(Clone)]
pub struct EtcdStore {
    client: etcd_client::Client,
    /// Prefix of every key in etcd: `/registry/navigator.jetstack.io/`.
    root: String,
    standing: Arc<StoreTrust>,
    /// The latest write of this process.
    written: Arc<LatestWitness>,
    /// Number of creations and deletions that were acknowledged.
    births_and_deaths: Arc<AtomicU64>,
    wanted: AwaitedRevision,
}

impl EtcdStore {
    /// Reads the certificates and makes the client. Sends nothing yet: an etcd that cannot be
    /// reached is [`Error::Unavailable`] for each request.
    pub async fn connect(config: &Config) -> Result<Self, EtcdConnectError> {
        let client = connect::build_client(config).await?;
        let root = format!("{}/", config.prefix.trim_end_matches('/'));
        Ok(Self {
            client,
            root,
            standing: Arc::new(StoreTrust::new("etcd")),
            written: Arc::default(),
            births_and_deaths: Arc::default(),
            wanted: AwaitedRevision::default(),
        })
    }

    fn kv(&self) -> KvClient {
        // The default of 4 MiB is less than a page of large objects.
        self.client.kv_client().max_decoding_message_size(usize::MAX)
    }

    fn key_path(&self, key: &Key) -> String {
        format!("{}{}", self.root, key.as_str())
    }

    fn parse_entry(&self, kv: &KeyValue) -> Result<StoreEntry> {
        let key = self.parse_key(kv.key())?;
        let value = Bytes::copy_from_slice(kv.value());
        Ok(StoreEntry { key, value, revision: to_revision(kv.mod_revision()) })
    }

    fn parse_key(&self, path: &[u8]) -> Result<Key> {
        let key = std::str::from_utf8(path).ok().and_then(|path| path.strip_prefix(&self.root));
        key.map(|key| Key::from_stored(key.to_owned())).ok_or_else(|| Error::Corrupt {
            reason: format!("etcd answered with the foreign key {:?}", path.escape_ascii()),
        })
    }

    /// Reads a range of keys. Refuses an answer that is older than what this process has seen
    /// already.
    async fn read_range(
        &self,
        start_key: impl Into<Vec<u8>>,
        options: Option<GetOptions>,
        limit: Duration,
    ) -> Result<(GetResponse, Revision)> {
        let revision_before = self.standing.latest_revision();
        let answer = with_timeout(limit, self.kv().get(start_key, options)).await?;
        let answer_revision = header_revision(answer.header())?;
        if let Some(write_loss) = self.standing.detect_rollback(revision_before, answer_revision) {
            return Err(self.loss_error(write_loss).await);
        }
        Ok((answer, answer_revision))
    }

    /// Changes `key` if it is at `expected`, in one request: the request's conditions demand that
    /// the store is the one that was opened and still has the witness.
    async fn write_key(
        &self,
        key: &Key,
        expected: Revision,
        key_write: KeyWrite,
    ) -> Result<Revision> {
        self.standing.check_loss()?;
        let mut witness = self.written.witness(self.standing.latest_revision());
        loop {
            if witness.is_none() {
                self.verify(ANSWER_WITHIN).await?;
            }
            match self.try_write(key, expected, &key_write, witness.take()).await? {
                TransactionOutcome::Done(revision) => return Ok(revision),
                TransactionOutcome::Refused(error) => return Err(error),
                // Another server deleted the witness's key, or the store lost it: `verify` tells.
                TransactionOutcome::WithoutWitness => {}
            }
        }
    }

    async fn try_write(
        &self,
        key: &Key,
        expected: Revision,
        key_write: &KeyWrite,
        witness: Option<WriteWitness>,
    ) -> Result<TransactionOutcome> {
        let path = self.key_path(key);
        let mut conditions =
            vec![Compare::mod_revision(path.clone(), CompareOp::Equal, revision_number(expected))];
        conditions.extend(
            self.standing.id().map(|id| Compare::value(self.id_path(), CompareOp::Equal, id)),
        );
        conditions.extend(witness.map(|WriteWitness { path, written }| {
            Compare::mod_revision(path, CompareOp::Greater, revision_number(written) - 1)
        }));
        let change = match key_write {
            KeyWrite::Put(value) => TxnOp::put(path.clone(), value.clone(), None),
            KeyWrite::Delete => TxnOp::delete(path.clone(), None),
        };
        let reads = vec![TxnOp::get(path.clone(), None), TxnOp::get(self.id_path(), None)];
        let transaction = Txn::new().when(conditions).and_then(vec![change]).or_else(reads);
        let revision_before = self.standing.latest_revision();
        let answer = with_timeout(ANSWER_WITHIN, self.kv().txn(transaction)).await?;
        let answer_revision = header_revision(answer.header())?;
        if answer.succeeded() {
            // A write comes after everything that was seen before it was sent.
            if let Some(write_loss) =
                self.standing.detect_rollback(Revision(revision_before.0 + 1), answer_revision)
            {
                return Err(self.loss_error(write_loss).await);
            }
            self.standing.record_revision(answer_revision);
            self.written.record_write(
                matches!(key_write, KeyWrite::Put(_)).then_some(path),
                answer_revision,
            );
            return Ok(TransactionOutcome::Done(answer_revision));
        }
        let [key_value, id] = <[_; 2]>::try_from(get_responses(&answer)).unwrap_or_default();
        self.verify_answer(revision_before, answer_revision, id.as_ref())?;
        let actual = key_value.map_or(Revision(0), |kv| to_revision(kv.mod_revision()));
        Ok(if actual == expected {
            TransactionOutcome::WithoutWitness
        } else if expected == Revision(0) {
            TransactionOutcome::Refused(Error::Exists(key.clone()))
        } else if actual == Revision(0) {
            TransactionOutcome::Refused(Error::NotFound(key.clone()))
        } else {
            TransactionOutcome::Refused(Error::Conflict { key: key.clone(), expected, actual })
        })
    }

    /// Changes an object that must exist. Revision 0 would mean "absent" to etcd, so the object is
    /// read instead.
    async fn change_existing(
        &self,
        key: &Key,
        expected: Revision,
        key_write: KeyWrite,
    ) -> Result<Revision> {
        if expected > Revision(0) {
            return self.write_key(key, expected, key_write).await;
        }
        Err(match self.get(key).await? {
            Some(entry) => Error::Conflict { key: key.clone(), expected, actual: entry.revision },
            None => Error::NotFound(key.clone()),
        })
    }

    async fn list_page(&self, prefix: &KeyPrefix, request: PageRequest) -> Result<StorePage> {
        let start = match &request.after {
            Some(after) if after.as_str() >= prefix.as_str() => {
                format!("{}\0", self.key_path(after))
            }
            _ => format!("{}{}", self.root, prefix.as_str()),
        };
        // The prefix ends with `/`, so its end is the same with the next character, `0`.
        let end = format!("{}{}0", self.root, prefix.as_str().trim_end_matches('/'));
        let limit = request.limit.unwrap_or(usize::MAX);
        if request.at == Some(Revision(0)) {
            // etcd would take 0 for "latest".
            return Err(self.before_everything(prefix).await);
        }
        let (mut start, mut page_revision) = (start, request.at);
        let mut entries: Vec<StoreEntry> = Vec::new();
        // An answer comes whole, so it is of few keys where bytes count.
        let step = if request.bytes.is_some() { FEW } else { PAGE };
        let mut bytes = 0;
        loop {
            let size = step.min(limit - entries.len());
            // A limit of 0 means "all" to etcd; ask for one and keep none.
            let mut options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(i64::try_from(size.max(1)).unwrap_or(i64::MAX));
            if let Some(page_revision) = page_revision {
                options = options.with_revision(revision_number(page_revision));
            }
            let answer = self.read_range(start.clone(), Some(options), ANSWER_WITHIN).await;
            let (answer, answer_revision) = match answer {
                Ok(answer) => answer,
                Err(Error::Compacted { .. }) => {
                    return Err(self.compacted_error(page_revision.unwrap_or_default()).await);
                }
                Err(Error::FutureRevision { .. }) => {
                    let latest = self.current_revision().await?;
                    return Err(Error::FutureRevision {
                        asked: page_revision.unwrap_or_default(),
                        latest,
                    });
                }
                Err(error) => return Err(error),
            };
            let list_revision = *page_revision.get_or_insert(answer_revision);
            if size == 0 {
                self.verify(ANSWER_WITHIN).await?;
                let remaining = usize::try_from(answer.count()).unwrap_or_default();
                return Ok(StorePage {
                    entries,
                    revision: list_revision,
                    more: remaining > 0,
                    remaining,
                });
            }
            for kv in answer.kvs() {
                bytes += kv.value().len();
                entries.push(self.parse_entry(kv)?);
            }
            let is_full = request.bytes.is_some_and(|max_bytes| bytes >= max_bytes);
            let last_key = answer.kvs().last().map(|kv| kv.key().to_vec());
            match last_key {
                Some(last_key) if answer.more() && entries.len() < limit && !is_full => {
                    start = format!("{}\0", String::from_utf8_lossy(&last_key));
                }
                _ => {
                    self.verify(ANSWER_WITHIN).await?;
                    // etcd counts the whole range, whatever the limit.
                    let count = usize::try_from(answer.count()).unwrap_or_default();
                    let remaining = count.saturating_sub(answer.kvs().len());
                    return Ok(StorePage {
                        entries,
                        revision: list_revision,
                        more: answer.more(),
                        remaining,
                    });
                }
            }
        }
    }

    /// Returns the error for revision 0, which is older than anything that etcd ever knew.
    async fn before_everything(&self, prefix: &KeyPrefix) -> Error {
        let request =
            PageRequest { at: Some(Revision(1)), limit: Some(1), ..PageRequest::default() };
        match Box::pin(self.list_page(prefix, request)).await {
            Ok(_) => Error::Compacted { asked: Revision(0), oldest: Revision(1) },
            Err(Error::Compacted { oldest, .. }) => Error::Compacted { asked: Revision(0), oldest },
            Err(error) => error,
        }
    }

    /// Returns the error for a revision that etcd forgot. Only a watch says what the oldest is.
    async fn compacted_error(&self, requested_revision: Revision) -> Error {
        if let Err(error) = self.verify(ANSWER_WITHIN).await {
            return error;
        }
        match timeout(HEALTHY_WITHIN, watch::read_oldest(self)).await {
            Ok(Ok(oldest)) => Error::Compacted { asked: requested_revision, oldest },
            Ok(Err(error)) => error,
            Err(elapsed) => Error::Unavailable { source: Box::new(elapsed) },
        }
    }
}

impl Storage for EtcdStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        Box::pin(async move {
            // The object is read together with the id: if the store was replaced before, the answer
            // shows it.
            let reads = [self.key_path(key), self.id_path()].map(|path| TxnOp::get(path, None));
            let revision_before = self.standing.latest_revision();
            let transaction = Txn::new().and_then(reads.to_vec());
            let answer = with_timeout(ANSWER_WITHIN, self.kv().txn(transaction)).await?;
            let answer_revision = header_revision(answer.header())?;
            let [key_value, id] = <[_; 2]>::try_from(get_responses(&answer)).unwrap_or_default();
            self.verify_answer(revision_before, answer_revision, id.as_ref())?;
            key_value.map(|kv| self.parse_entry(&kv)).transpose()
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        Box::pin(self.list_page(prefix, request))
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let size = value.len();
            let write_result = self.write_key(key, Revision(0), KeyWrite::Put(value)).await;
            let revision = write_result.map_err(|error| error.of_value(size))?;
            self.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            Ok(revision)
        })
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let size = value.len();
            let write_result = self.change_existing(key, expected, KeyWrite::Put(value)).await;
            write_result.map_err(|error| error.of_value(size))
        })
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let revision = self.change_existing(key, expected, KeyWrite::Delete).await?;
            self.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            Ok(revision)
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(async move {
            // etcd waits silently for a revision in the future. After it was restored from a
            // backup that would be for ever.
            let latest = self.current_revision().await?;
            if from > latest {
                return Err(Error::FutureRevision { asked: from, latest });
            }
            let events = watch::watch_events(self, prefix, from).await?;
            // The watch may have reached another etcd than the one that was asked before.
            self.verify(ANSWER_WITHIN).await?;
            Ok(events)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let answer =
                with_timeout(ANSWER_WITHIN, self.kv().compact(revision_number(revision), None))
                    .await;
            match answer {
                Ok(_) | Err(Error::Compacted { .. }) => Ok(()),
                Err(Error::FutureRevision { .. }) => {
                    let latest = self.current_revision().await?;
                    Err(Error::FutureRevision { asked: revision, latest })
                }
                Err(error) => Err(error),
            }
        })
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.verify(HEALTHY_WITHIN))
    }

    fn request_progress(&self, revision: Revision) {
        self.wanted.raise_to(revision);
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async move {
            let status = self.store_status().await?;
            self.standing.require_id(status)
        })
    }

    fn store_status(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        Box::pin(self.read_status(ANSWER_WITHIN))
    }

    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.skip_revisions(past))
    }

    fn disk_size(&self) -> BoxFuture<'_, Option<StoreSize>> {
        Box::pin(async move {
            let mut client = self.client.maintenance_client();
            let status = with_timeout(SIZE_WITHIN, client.status()).await.ok()?;
            Some(StoreSize { of: "etcd-0", bytes: u64::try_from(status.db_size()).ok()? })
        })
    }

    fn births_and_deaths(&self) -> u64 {
        self.births_and_deaths.load(Ordering::SeqCst)
    }

    fn on_replaced(&self, alarm: ReplacementAlarm) {
        self.standing.on_replaced(alarm);
    }
}

/// Returns the key-values that the reads of a transaction found, in their order.
fn get_responses(answer: &TxnResponse) -> Vec<Option<KeyValue>> {
    let first_value = |response| match response {
        TxnOpResponse::Get(get_response) => get_response.kvs().first().cloned(),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
    };
    answer.op_responses().into_iter().map(first_value).collect()
}

/// Turns etcd's number of a revision into ours. etcd's are signed, and none is below zero.
fn to_revision(number: i64) -> Revision {
    Revision(number.try_into().unwrap_or_default())
}

fn revision_number(revision: Revision) -> i64 {
    revision.0.try_into().unwrap_or(i64::MAX)
}

fn header_revision(header: Option<&etcd_client::ResponseHeader>) -> Result<Revision> {
    let header = header
        .ok_or_else(|| Error::Unavailable { source: "etcd answered without a header".into() })?;
    Ok(to_revision(header.revision()))
}

async fn with_timeout<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T> {
    let Ok(answer) = timeout(limit, answer).await else {
        let source = format!("etcd did not answer within {limit:?}").into();
        return Err(Error::Unavailable { source });
    };
    answer.map_err(store_error)
}

/// Turns etcd's error into the store's. The callers fill in the numbers in `Compacted`,
/// `FutureRevision` and `TooLarge`.
fn store_error(error: etcd_client::Error) -> Error {
    if let etcd_client::Error::GRpcStatus(status) = &error {
        let text = status.message();
        if text.contains("required revision has been compacted") {
            return Error::Compacted { asked: Revision(0), oldest: Revision(0) };
        }
        if text.contains("required revision is a future revision") {
            return Error::FutureRevision { asked: Revision(0), latest: Revision(0) };
        }
        if text.contains("request is too large")
            || text.contains("received message larger than max")
        {
            return Error::TooLarge { size: 0 };
        }
    }
    Error::Unavailable { source: Box::new(error) }
}
