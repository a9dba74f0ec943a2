//! A store in one file, for one API server: redb with revisions, history and watches on top.
//!
//! Reads run on the blocking pool, each in a snapshot of its own; one thread writes ([`writer`]). A
//! write is answered after it was synced to the disk. [`open`] decides which directory may be
//! opened, [`layout`] how the file looks.

mod disk;
mod layout;
mod open;
mod watch;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use redb::{Database, StorageBackend};
use tokio::sync::{mpsc, oneshot, watch as latest};

pub use self::open::StoreOpenError;
use self::{
    layout::{EntryChange, Snapshot},
    writer::{StoreWriter, WriterCommand},
};
use super::{
    Error, Key, KeyPrefix, PageRequest, Result, Revision, Storage, StoreEntry, StorePage,
    StoreSize, StoreStatus, WatchStream, WriteLoss,
};

/// Most bytes of a value: etcd's limit, so that what one store takes the other takes too.
pub const MAX_VALUE_BYTES: usize = 3 << 19;

/// Most commands that wait for the writer's thread: with 256 to a commit, four commits' worth.
const QUEUE: usize = 1024;

/// How much history is kept for watches and older lists. History beyond any of the limits is
/// forgotten with the next writes.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    pub age: Duration,
    pub events: u64,
    pub bytes: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        // A quarter of the default claim of 1 GiB: the file also holds the objects, and
        // copy-on-write needs space in addition to them.
        Self { age: Duration::from_secs(600), events: 20_000, bytes: 256 << 20 }
    }
}

/// The embedded store. Dropping it ends the writer's thread and releases the file.
pub struct EmbeddedStore {
    shared: Arc<SharedDatabase>,
    /// The store's file; absent where a test decides what a disk does.
    file: Option<PathBuf>,
    id: String,
    /// Creations and deletions that were acknowledged.
    births_and_deaths: AtomicU64,
    /// Absent only while the store is dropped.
    commands: Option<mpsc::Sender<WriterCommand>>,
    writer: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens the store in `directory`, or makes one when there is not a trace of one.
    pub async fn open(directory: &Path, history: HistoryLimits) -> Result<Self, StoreOpenError> {
        Self::open_by(open::open_store, directory, history).await
    }

    /// Opens the store in `directory` and never makes one: for tools, whose user may have
    /// mistyped the directory.
    pub async fn open_present(
        directory: &Path,
        history: HistoryLimits,
    ) -> Result<Self, StoreOpenError> {
        Self::open_by(open::open_present, directory, history).await
    }

    /// Creates a store with the id of another one, if the directory has no trace of a store. The
    /// store reports that its latest writes may be missing, and why, until an administrator accepts
    /// it.
    pub async fn create_with_id(
        directory: &Path,
        id: &str,
        doubt: &str,
    ) -> Result<Self, StoreOpenError> {
        let new_store = open::NewStore { id: id.to_owned(), doubt: Some(doubt.to_owned()) };
        let create_store = move |directory: &Path| open::create_store(directory, &new_store);
        Self::open_by(create_store, directory, HistoryLimits::default()).await
    }

    async fn open_by(
        open: impl FnOnce(&Path) -> Result<open::OpenedStore, StoreOpenError> + Send + 'static,
        directory: &Path,
        history: HistoryLimits,
    ) -> Result<Self, StoreOpenError> {
        let path = directory.to_owned();
        let opened_store =
            tokio::task::spawn_blocking(move || open(&path)).await.map_err(|error| {
                StoreOpenError::Open { file: directory.to_owned(), source: error.into() }
            })??;
        let file = opened_store.file.clone();
        Self::start_writer(opened_store, Some(file), history)
    }

    /// Opens a store in a backend that a test made, to decide what a disk does.
    pub fn open_backend(
        backend: impl StorageBackend,
        history: HistoryLimits,
    ) -> Result<Self, StoreOpenError> {
        Self::start_writer(open::open_backend(backend)?, None, history)
    }

    fn start_writer(
        opened_store: open::OpenedStore,
        file: Option<PathBuf>,
        history: HistoryLimits,
    ) -> Result<Self, StoreOpenError> {
        let open::OpenedStore { database, file: named_file, summary, sync_failed } = opened_store;
        let shared = Arc::new(SharedDatabase::new(database, summary.revision));
        shared.set_doubt(summary.doubt);
        let (commands, receiver) = mpsc::channel(QUEUE);
        let path = file.clone();
        let writer = StoreWriter {
            shared: Arc::clone(&shared),
            commands: receiver,
            history,
            file,
            log_bytes: summary.log_bytes,
            sync_failed,
        };
        let writer = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| StoreOpenError::Open { file: named_file, source: source.into() })?;
        Ok(Self {
            shared,
            file: path,
            id: summary.id,
            births_and_deaths: AtomicU64::new(0),
            commands: Some(commands),
            writer: Some(writer),
        })
    }

    async fn write_entry(&self, key: &Key, change: EntryChange) -> Result<Revision> {
        let is_update = matches!(change, EntryChange::Update { .. });
        let (reply, answer) = oneshot::channel();
        self.send_command(WriterCommand::Write { key: key.clone(), change, reply }).await?;
        let revision = answer.await.map_err(|_| closed_error())??;
        if !is_update {
            self.births_and_deaths.fetch_add(1, Ordering::SeqCst);
        }
        Ok(revision)
    }

    async fn send_command(&self, command: WriterCommand) -> Result<()> {
        let commands = self.commands.as_ref().ok_or_else(closed_error)?;
        commands.send(command).await.map_err(|_| closed_error())
    }

    async fn read_snapshot<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Snapshot) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        run_blocking(move || read(&shared.snapshot()?)).await
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        drop(self.commands.take());
        // Waits for the commit that is under way, so that the file is free afterwards.
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}

impl Storage for EmbeddedStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        let key = key.clone();
        Box::pin(self.read_snapshot(move |snapshot| snapshot.get(&key)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        let prefix = prefix.clone();
        Box::pin(self.read_snapshot(move |snapshot| snapshot.read_page(&prefix, &request)))
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            check_value_size(&value)?;
            self.write_entry(key, EntryChange::Create(value)).await
        })
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            check_value_size(&value)?;
            self.write_entry(key, EntryChange::Update { expected, value }).await
        })
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.write_entry(key, EntryChange::Delete { expected }))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(async move {
            self.read_snapshot(move |snapshot| snapshot.check_history(from)).await?;
            Ok(watch::watch_events(Arc::clone(&self.shared), prefix.clone(), from))
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.send_command(WriterCommand::Compact { revision, reply }).await?;
            answer.await.map_err(|_| closed_error())?
        })
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        // The revision is published before a write is answered and before a read shows it, so this is
        // linearizable without a read.
        Box::pin(async { self.shared.database().map(|_| *self.shared.published.borrow()) })
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async { Ok(self.id.clone()) })
    }

    fn store_status(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        Box::pin(async {
            let (id, revision) = (Some(self.id.clone()), self.current_revision().await?);
            let lost = self.shared.read_doubt().map(|why| WriteLoss { why, reached: revision });
            Ok(StoreStatus { id, revision, other: None, lost })
        })
    }

    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.send_command(WriterCommand::Advance { past, reply }).await?;
            answer.await.map_err(|_| closed_error())?
        })
    }

    fn disk_size(&self) -> BoxFuture<'_, Option<StoreSize>> {
        Box::pin(async move {
            let file = tokio::fs::metadata(self.file.as_ref()?).await.ok()?;
            Some(StoreSize { of: "embedded", bytes: file.len() })
        })
    }

    fn births_and_deaths(&self) -> u64 {
        self.births_and_deaths.load(Ordering::SeqCst)
    }

    fn until_failed(&self) -> BoxFuture<'_, String> {
        let mut end_receiver = self.shared.ended.subscribe();
        Box::pin(async move {
            let end_reason =
                end_receiver.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
            match end_reason {
                Some(reason) => reason.to_owned(),
                // The store is dropped, and no server uses it.
                None => std::future::pending().await,
            }
        })
    }
}

/// What readers, watchers and the writer share.
struct SharedDatabase {
    /// Absent while the store is closed, or opened again after its file failed.
    database: RwLock<Option<Arc<Database>>>,
    published: latest::Sender<Revision>,
    /// Why the latest writes may be missing; absent when there is no sign of that.
    doubt: RwLock<Option<String>>,
    /// Why the store will not work again in this process; absent while it works.
    ended: latest::Sender<Option<&'static str>>,
}

impl SharedDatabase {
    fn new(database: Database, revision: Revision) -> Self {
        Self {
            database: RwLock::new(Some(Arc::new(database))),
            published: latest::Sender::new(revision),
            doubt: RwLock::default(),
            ended: latest::Sender::default(),
        }
    }

    fn set_doubt(&self, reason: Option<String>) {
        *self.doubt.write().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn read_doubt(&self) -> Option<String> {
        self.doubt.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn latest_revision(&self) -> Revision {
        *self.published.borrow()
    }

    /// Ends the store for this process: only a new process can help.
    fn shut_down(&self, reason: &'static str) {
        self.ended.send_replace(Some(reason));
        self.close();
    }

    fn database(&self) -> Result<Arc<Database>> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        database.clone().ok_or_else(closed_error)
    }

    /// Begins a read of what was committed last, and publishes its revision: the writer's thread may
    /// not have done so yet, and no later reader may see less.
    fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = Snapshot::begin_read(&*self.database()?)?;
        self.publish_revision(snapshot.revision()?);
        Ok(snapshot)
    }

    fn publish_revision(&self, revision: Revision) {
        self.published.send_if_modified(|current| {
            let is_later = revision > *current;
            *current = revision.max(*current);
            is_later
        });
    }

    fn subscribe(&self) -> latest::Receiver<Revision> {
        self.published.subscribe()
    }

    /// Makes reads and writes fail until [`SharedDatabase::replace_database`]. Watchers are woken, so that
    /// they notice.
    fn close(&self) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.published.send_modify(|_| {});
    }

    fn replace_database(&self, database: Database, revision: Revision) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(database));
        self.publish_revision(revision);
    }
}

fn check_value_size(value: &Bytes) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooLarge { size: value.len() });
    }
    Ok(())
}

fn closed_error() -> Error {
    Error::Unavailable { source: io::Error::other("the store is closed").into() }
}

/// Runs a read on the blocking pool. A read whose caller no longer waits ends by itself.
async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(error) => Err(Error::Unavailable { source: Box::new(error) }),
    }
}

#[cfg(test)]
mod tests;
