//! Ordered, revisioned storage of bytes under keys.
//!
//! Owns the contract that every store keeps; `tests/it/storage/conformance` states it as cases.
//! Knows no API object: encoding, defaults and validation are the registry's. Only the API server
//! and its tools touch a store.

mod awaited_revision;
pub mod embedded;
pub mod etcd;
pub mod kubernetes;
mod store_trust;
pub mod timed_store;

use std::{fmt, pin::Pin};

use bytes::Bytes;
use futures::{Stream, future::BoxFuture, stream};

/// Position in a store's history. Grows with every write of any key and is never reused. Revision 0
/// comes before every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Key of one object: `<group>/<resource>/<namespace>/<name>`. [`Key::new`] checks the parts, so no
/// name can reach into another resource's range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// A range of keys; always ends with `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyPrefix(String);

/// The error for a part of a key that is empty, `.`, `..`, or holds `/`, `%` or a control
/// character.
#[derive(Debug, thiserror::Error)]
#[error("{part:?} cannot be part of a storage key")]
pub struct InvalidKey {
    pub part: String,
}

fn check_part(part: &str) -> Result<&str, InvalidKey> {
    let is_invalid = part.is_empty()
        || part == "."
        || part == ".."
        || part.contains(|c: char| c == '/' || c == '%' || c.is_control());
    if is_invalid { Err(InvalidKey { part: part.to_owned() }) } else { Ok(part) }
}

impl Key {
    pub fn new(
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Self, InvalidKey> {
        let (group, resource) = (check_part(group)?, check_part(resource)?);
        Ok(Self(format!("{group}/{resource}/{}/{}", check_part(namespace)?, check_part(name)?)))
    }

    /// Takes a key as a store returned it, unchecked.
    pub(crate) fn from_stored(key: String) -> Self {
        Self(key)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns group and resource.
    pub fn group_resource(&self) -> [&str; 2] {
        split_group_resource(&self.0)
    }

    pub fn namespace(&self) -> &str {
        self.0.split('/').nth(2).unwrap_or_default()
    }

    /// Returns the object's name.
    pub fn object_name(&self) -> Option<&str> {
        self.0.split('/').nth(3)
    }

    /// Returns `<resource>/<namespace>/<name>`, as people name an object to a tool.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(self.as_str(), |(_, name)| name)
    }
}

impl KeyPrefix {
    /// Returns the range of all objects of a group.
    pub fn for_group(group: &str) -> Result<Self, InvalidKey> {
        Ok(Self(format!("{}/", check_part(group)?)))
    }

    /// Returns the range of all objects of a resource.
    pub fn for_resource(group: &str, resource: &str) -> Result<Self, InvalidKey> {
        Ok(Self(format!("{}/{}/", check_part(group)?, check_part(resource)?)))
    }

    /// Returns the range of all objects of a resource in one namespace.
    pub fn for_namespace(group: &str, resource: &str, namespace: &str) -> Result<Self, InvalidKey> {
        Ok(Self(format!(
            "{}/{}/{}/",
            check_part(group)?,
            check_part(resource)?,
            check_part(namespace)?
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns group and resource; the resource is empty in the range of a group.
    pub fn group_resource(&self) -> [&str; 2] {
        split_group_resource(&self.0)
    }

    pub fn contains(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }

    /// Returns the bounds of the range: its keys are not before the first bound, and before the
    /// second.
    pub(crate) fn bounds(&self) -> (Key, Key) {
        let path = self.0.strip_suffix('/').expect("every constructor ends it with a slash");
        // '0' comes after '/'.
        (Key(self.0.clone()), Key(format!("{path}0")))
    }
}

fn split_group_resource(path: &str) -> [&str; 2] {
    let mut parts = path.split('/');
    [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()]
}

/// One stored object and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    pub key: Key,
    pub value: Bytes,
    pub revision: Revision,
}

/// Which page of a prefix to list.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Revision whose state the page shows; the latest when absent.
    pub at: Option<Revision>,
    /// Key after which the page begins.
    pub after: Option<Key>,
    /// Most entries of the page; unlimited when absent.
    pub limit: Option<usize>,
    /// Bytes of entries after which the page ends; it has at least one entry in any case.
    pub bytes: Option<usize>,
    /// Whether to count the entries that follow, which costs a read of every key.
    pub count: bool,
}

/// One page of a prefix as of one revision, ordered by key.
#[derive(Clone, Debug)]
pub struct StorePage {
    pub entries: Vec<StoreEntry>,
    /// The revision that this page shows.
    pub revision: Revision,
    /// Whether more entries follow the last one.
    pub more: bool,
    /// Number of entries that follow, if `count` asked for it.
    pub remaining: usize,
}

/// One change in a range, or its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    Put {
        entry: StoreEntry,
        /// Whether the key did not exist before.
        created: bool,
    },
    Delete {
        key: Key,
        /// The revision of the deletion.
        revision: Revision,
    },
    /// No other change happened in the range up to and including this revision.
    Progress(Revision),
}

impl StoreEvent {
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put { entry, .. } => entry.revision,
            Self::Delete { revision, .. } | Self::Progress(revision) => *revision,
        }
    }
}

/// Events of a watch in revision order, none missing. Ends after an error. Reports progress when
/// other keys were written, at the latest after [`Storage::request_progress`].
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<StoreEvent, Error>> + Send>>;

/// All of a range as of one revision, one page at a time.
pub type ScanStream<'a> = Pin<Box<dyn Stream<Item = Result<StorePage>> + Send + 'a>>;

/// Most objects of a page of a [`ScanStream`]; [`SCANNED_BYTES`] bounds their bytes. A reader has
/// them in memory in addition to what it makes of them.
const SCANNED: usize = 500;
const SCANNED_BYTES: usize = 4 << 20;

/// Why a store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("key {0:?} not found")]
    NotFound(Key),
    #[error("key {0:?} already exists")]
    Exists(Key),
    /// Another write came first. `actual` was read from the store, never inferred.
    #[error("key {key:?} is at revision {actual}, not {expected}")]
    Conflict { key: Key, expected: Revision, actual: Revision },
    #[error("revision {asked} was compacted; the oldest is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    #[error("revision {asked} is in the future; the latest is {latest}")]
    FutureRevision { asked: Revision, latest: Revision },
    #[error("value of {size} bytes is too large for the store")]
    TooLarge { size: usize },
    /// The store did not answer. After a write, the outcome of the write is unknown.
    #[error("store is unavailable")]
    Unavailable { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("store is corrupt: {reason}")]
    Corrupt { reason: String },
    /// The store that answers is not the one that was opened. What it says about an object must not
    /// be believed.
    #[error("the store was lost or replaced: {reason}")]
    Replaced { reason: String },
}

impl Error {
    /// Sets the size of a value that was too large, which a store that refuses the value does not
    /// say.
    fn of_value(self, size: usize) -> Self {
        match self {
            Self::TooLarge { .. } => Self::TooLarge { size },
            other => other,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A callback for a store that was lost or replaced. It gets how that shows, before any caller gets
/// an answer.
pub type ReplacementAlarm = Box<dyn Fn(&str) + Send + Sync>;

/// What a store says about itself, whether or not it is the one that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The store's id; absent when no store was ever made there.
    pub id: Option<String>,
    pub revision: Revision,
    /// Why the store that is there is not the one that was opened; absent when it is.
    pub other: Option<String>,
    /// How the store lost its latest writes, if it did or may have.
    pub lost: Option<WriteLoss>,
}

/// The loss of writes that a store had acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteLoss {
    /// How the loss shows.
    pub why: String,
    /// The latest revision that the store had reached, as far as is known.
    pub reached: Revision,
}

/// The bytes that a store takes on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSize {
    /// Which store, as metrics name it.
    pub of: &'static str,
    pub bytes: u64,
}

/// An ordered, revisioned key-value store.
///
/// Every success returns the revision that made it true. Object-safe, because a flag chooses
/// the store.
pub trait Storage: Send + Sync + 'static {
    /// Returns the latest value of a key, linearizable.
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>>;
    /// Returns a page of a prefix, consistent as of `page.revision`.
    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>>;
    /// Returns all of a prefix, as of revision `at` or the latest, by pages of some MiB, which may
    /// come in any order. For callers that want everything and hold no more than a page at a time.
    fn scan<'a>(&'a self, prefix: &'a KeyPrefix, at: Option<Revision>) -> ScanStream<'a> {
        let (limit, bytes) = (Some(SCANNED), Some(SCANNED_BYTES));
        let first_page = PageRequest { at, limit, bytes, ..PageRequest::default() };
        Box::pin(stream::try_unfold(Some(first_page), move |request| async move {
            let Some(request) = request else { return Ok(None) };
            let page = self.list(prefix, request.clone()).await?;
            let last_key = page.entries.last().map(|entry| entry.key.clone());
            let next_page = PageRequest { at: Some(page.revision), after: last_key, ..request };
            let has_more = page.more;
            Ok(Some((page, has_more.then_some(next_page))))
        }))
    }
    /// Writes a new key. Fails with [`Error::Exists`].
    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>>;
    /// Replaces the value of a key. Fails with [`Error::Conflict`] or [`Error::NotFound`].
    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>>;
    /// Removes a key. Fails with [`Error::Conflict`] or [`Error::NotFound`].
    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>>;
    /// Returns the events of a prefix after `from`. A compacted `from` fails with
    /// [`Error::Compacted`], here or as the stream's first item.
    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>>;
    /// Forgets history up to `revision`; the latest values stay.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>>;
    /// Returns the latest revision, linearizable. Doubles as the health check.
    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>>;
    /// Asks watches for progress, because a reader waits for them to reach a revision. A store
    /// whose watches report progress by themselves has nothing to do.
    fn request_progress(&self, _revision: Revision) {}
    /// Returns the identity of this store: made with the store, the same for its whole life, gone
    /// with it.
    fn store_id(&self) -> BoxFuture<'_, Result<String>>;
    /// Returns what the store says about itself now. A store that can be replaced under a running
    /// process is asked each time.
    fn store_status(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        Box::pin(async {
            let (id, revision) = (self.store_id().await?, self.current_revision().await?);
            Ok(StoreStatus { id: Some(id), revision, other: None, lost: None })
        })
    }
    /// Moves the store's revision beyond `past` and forgets the history, so that clients that know
    /// an older state have to list again. Returns the latest revision.
    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>>;
    /// Returns the bytes that the store takes on its disk; `None` when it cannot tell.
    fn disk_size(&self) -> BoxFuture<'_, Option<StoreSize>> {
        Box::pin(std::future::ready(None))
    }
    /// Returns the number of creations and deletions that this process had acknowledged.
    fn births_and_deaths(&self) -> u64 {
        0
    }
    /// Waits until the store can never work again in this process, and returns the reason.
    /// Cancel-safe.
    fn until_failed(&self) -> BoxFuture<'_, String> {
        Box::pin(std::future::pending())
    }
    /// Sets the alarm for a store that was lost or replaced. A store that only this process can
    /// change never raises it.
    fn on_replaced(&self, _alarm: ReplacementAlarm) {}
}
