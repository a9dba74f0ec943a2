//! What lies in the database file: four tables and how they are read and written.
//!
//! Owns the invariant that `LATEST` is the sum of `LOG` and what was compacted away. Every write
//! has one revision and one record in the log, so state at an older revision is the latest state
//! with the later records undone. Knows no threads and no watchers.

use std::collections::BTreeMap;

use bytes::Bytes;
use redb::{
    Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, Table, TableDefinition, WriteTransaction,
};

use super::super::{
    Error, Key, KeyPrefix, PageRequest, Result, Revision, StoreEntry, StoreEvent, StorePage,
};

/// Version of the file's format, raised when an older binary could not read the file any more.
const FORMAT: u64 = 1;

/// The latest entries: key → revision of the last write, value.
const LATEST: TableDefinition<'static, &str, (u64, &[u8])> = TableDefinition::new("latest");
/// The history: revision → what was written. Contiguous from `COMPACTED + 1` to `REVISION`.
const LOG: TableDefinition<'static, u64, LogRecord<'static>> = TableDefinition::new("log");
const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");
const TEXTS: TableDefinition<'static, &str, &str> = TableDefinition::new("texts");

const REVISION: &str = "revision";
const COMPACTED: &str = "compacted";
const FORMAT_NUMBER: &str = "format";
const ID: &str = "id";
/// Name of the text that says why the latest writes may be missing; absent when there is no sign of
/// that.
const DOUBT: &str = "doubt";

/// Revisions that are skipped when a store without its latest writes is accepted: more than
/// can have been lost since a backup.
const JUMP: u64 = 1_000_000;

/// A record of the log: Unix seconds; key; value (absent: deleted); revision and value before
/// (absent: created).
type LogRecord<'a> = (u64, &'a str, Option<&'a [u8]>, Option<(u64, &'a [u8])>);

/// Bytes that a record of the log counts as beside its key and values.
const RECORD_OVERHEAD: u64 = 64;

/// The first revision of a new store. Not 0, so that no list shows revision 0, which clients
/// read as "any".
const FIRST: u64 = 1;

/// Turns any error of redb into the store's: redb's many types convert into one another.
pub(super) fn failed(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(reason) => Error::Corrupt { reason },
        error => Error::Unavailable { source: Box::new(error) },
    }
}

/// Fills a new database with its tables and its id.
pub(super) fn initialize(database: &Database, id: &str) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(LATEST)?;
    transaction.open_table(LOG)?;
    transaction.open_table(TEXTS)?.insert(ID, id)?;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert(FORMAT_NUMBER, FORMAT)?;
        numbers.insert(REVISION, FIRST)?;
        numbers.insert(COMPACTED, FIRST)?;
    }
    transaction.commit()?;
    Ok(())
}

/// What an opened database says about itself.
pub(super) struct DatabaseSummary {
    pub id: String,
    pub revision: Revision,
    /// Bytes of the log, as [`WriteBatch::trim`] counts them.
    pub log_bytes: u64,
    /// Why the latest writes may be missing; absent when there is no sign of that.
    pub doubt: Option<String>,
}

/// Reads the whole log and what the database says about itself; the text of an error says what is
/// wrong with the file.
pub(super) fn summarize(database: &Database) -> Result<DatabaseSummary> {
    let snapshot = Snapshot::begin(database)?;
    let format = snapshot.number(FORMAT_NUMBER)?;
    if format != FORMAT {
        let reason = format!("its format is {format}, this binary reads format {FORMAT}");
        return Err(Error::Corrupt { reason });
    }
    let id = snapshot.text(ID)?.unwrap_or_default();
    let doubt = snapshot.text(DOUBT)?;
    let (revision, compacted) = (snapshot.number(REVISION)?, snapshot.number(COMPACTED)?);
    let (mut expected, mut log_bytes) = (compacted, 0);
    let log = snapshot.0.open_table(LOG).map_err(failed)?;
    for record in log.iter().map_err(failed)? {
        let (found, record) = record.map_err(failed)?;
        expected += 1;
        if found.value() != expected {
            let reason = format!("the log holds revision {} in place of {expected}", found.value());
            return Err(Error::Corrupt { reason });
        }
        log_bytes += size(&record.value());
    }
    if expected != revision {
        let reason = format!("the log ends at revision {expected}, not {revision}");
        return Err(Error::Corrupt { reason });
    }
    Ok(DatabaseSummary { id, revision: Revision(revision), log_bytes, doubt })
}

/// Records in the file that the latest writes may be missing, and why. Without this record the next
/// process would open the file and find nothing wrong.
pub(super) fn doubt(database: &Database, why: &str) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(TEXTS)?.insert(DOUBT, why)?;
    transaction.commit()?;
    Ok(())
}

/// Removes the record that the latest writes may be missing: a person accepted the store as it is.
pub(super) fn trust(transaction: &WriteTransaction) -> Result<()> {
    let mut texts = transaction.open_table(TEXTS).map_err(failed)?;
    drop(texts.remove(DOUBT).map_err(failed)?);
    Ok(())
}

fn size((_, key, value, previous): &LogRecord<'_>) -> u64 {
    let bytes = key.len()
        + value.map_or(0, <[u8]>::len)
        + previous.map_or(0, |(_, previous)| previous.len());
    bytes as u64 + RECORD_OVERHEAD
}

/// The store as of one moment.
pub(super) struct Snapshot(ReadTransaction);

/// Events after a revision, in order.
pub(super) struct LogEvents {
    pub events: Vec<StoreEvent>,
    /// Revision up to which every record of the log was read.
    pub reached: Revision,
}

impl Snapshot {
    pub(super) fn begin(database: &Database) -> Result<Self> {
        database.begin_read().map(Self).map_err(failed)
    }

    pub(super) fn revision(&self) -> Result<Revision> {
        self.number(REVISION).map(Revision)
    }

    /// Returns the oldest revision whose state is known.
    pub(super) fn compacted(&self) -> Result<Revision> {
        self.number(COMPACTED).map(Revision)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let texts = self.0.open_table(TEXTS).map_err(failed)?;
        let text = texts.get(name).map_err(failed)?;
        Ok(text.map(|text| text.value().to_owned()))
    }

    fn number(&self, name: &str) -> Result<u64> {
        let numbers = self.0.open_table(NUMBERS).map_err(failed)?;
        let number = numbers.get(name).map_err(failed)?;
        number
            .map(|number| number.value())
            .ok_or_else(|| Error::Corrupt { reason: format!("it does not say its {name}") })
    }

    /// Fails unless the history from `asked` on is known.
    pub(super) fn reaches(&self, asked: Revision) -> Result<()> {
        let (oldest, latest) = (self.compacted()?, self.revision()?);
        if asked < oldest {
            return Err(Error::Compacted { asked, oldest });
        }
        if asked > latest {
            return Err(Error::FutureRevision { asked, latest });
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<StoreEntry>> {
        let latest = self.0.open_table(LATEST).map_err(failed)?;
        let found = latest.get(key.as_str()).map_err(failed)?;
        Ok(found.map(|found| entry(key.as_str(), found.value())))
    }

    pub(super) fn page(&self, prefix: &KeyPrefix, request: &PageRequest) -> Result<StorePage> {
        let revision = request.at.unwrap_or(self.revision()?);
        self.reaches(revision)?;
        let undone = self.undone(prefix, revision)?;
        let log = self.0.open_table(LOG).map_err(failed)?;
        let mut older = undone.iter().peekable();
        let start = match &request.after {
            Some(after) if after.as_str() >= prefix.as_str() => after.as_str(),
            _ => prefix.as_str(),
        };
        let skipped = |key: &str| request.after.as_ref().is_some_and(|after| key <= after.as_str());
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut page = StorePage { entries: Vec::new(), revision, more: false, remaining: 0 };

        let latest = self.0.open_table(LATEST).map_err(failed)?;
        let mut current = latest.range(start..).map_err(failed)?;
        let mut next = move || -> Result<Option<StoreEntry>> {
            let Some(found) = current.next() else { return Ok(None) };
            let (key, found) = found.map_err(failed)?;
            let in_prefix = key.value().starts_with(prefix.as_str());
            Ok(in_prefix.then(|| entry(key.value(), found.value())))
        };
        // Merges two ordered sequences; where both know a key, the older state is the right one.
        let mut candidate = next()?;
        loop {
            let from_older = match (older.peek(), &candidate) {
                (None, None) => return Ok(page),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((key, _)), Some(entry)) => {
                    if **key == entry.key {
                        candidate = next()?;
                        true
                    } else {
                        **key < entry.key
                    }
                }
            };
            let found = if from_older {
                // The values of keys before the page are not read.
                let next = older.next().filter(|(key, _)| !skipped(key.as_str()));
                match next.and_then(|(_, at)| *at) {
                    Some(at) => previous(&log, at)?,
                    None => None,
                }
            } else {
                std::mem::replace(&mut candidate, next()?)
            };
            let Some(found) = found.filter(|entry| !skipped(entry.key.as_str())) else { continue };
            if page.entries.len() == limit || request.bytes.is_some_and(|most| bytes >= most) {
                page.more = true;
                if request.count {
                    page.remaining = self.count(prefix, &found.key, &undone)?;
                }
                return Ok(page);
            }
            bytes += found.value.len();
            page.entries.push(found);
        }
    }

    /// Counts the keys of a prefix from `from` on, after the writes in `undone` were undone.
    fn count(
        &self,
        prefix: &KeyPrefix,
        from: &Key,
        undone: &BTreeMap<Key, Option<u64>>,
    ) -> Result<usize> {
        let mut count = undone.range(from..).filter(|(_, entry)| entry.is_some()).count();
        let latest = self.0.open_table(LATEST).map_err(failed)?;
        for found in latest.range(from.as_str()..).map_err(failed)? {
            let key = Key::from_stored(found.map_err(failed)?.0.value().to_owned());
            if !prefix.contains(&key) {
                break;
            }
            count += usize::from(!undone.contains_key(&key));
        }
        Ok(count)
    }

    /// Returns for every key that was written after `revision` the record that holds its entry as
    /// of `revision`, if there was one.
    fn undone(&self, prefix: &KeyPrefix, revision: Revision) -> Result<BTreeMap<Key, Option<u64>>> {
        let mut undone = BTreeMap::new();
        let log = self.0.open_table(LOG).map_err(failed)?;
        for record in log.range(revision.0 + 1..).map_err(failed)? {
            let (at, record) = record.map_err(failed)?;
            let (_, key, _, previous) = record.value();
            if key.starts_with(prefix.as_str()) {
                undone
                    .entry(Key::from_stored(key.to_owned()))
                    .or_insert_with(|| previous.map(|_| at.value()));
            }
        }
        Ok(undone)
    }

    /// Returns the events of a prefix after `from`, from no more than `limit` records of the log.
    pub(super) fn events(
        &self,
        prefix: &KeyPrefix,
        from: Revision,
        limit: usize,
    ) -> Result<LogEvents> {
        self.reaches(from)?;
        let log = self.0.open_table(LOG).map_err(failed)?;
        let mut found = LogEvents { events: Vec::new(), reached: from };
        for record in log.range(from.0 + 1..).map_err(failed)?.take(limit) {
            let (revision, record) = record.map_err(failed)?;
            found.reached = Revision(revision.value());
            let (_, key, value, previous) = record.value();
            if !key.starts_with(prefix.as_str()) {
                continue;
            }
            found.events.push(match value {
                Some(value) => {
                    let created = previous.is_none();
                    StoreEvent::Put { entry: entry(key, (revision.value(), value)), created }
                }
                None => StoreEvent::Delete {
                    key: Key::from_stored(key.to_owned()),
                    revision: found.reached,
                },
            });
        }
        Ok(found)
    }
}

/// Returns the entry that a record's key had before that record.
fn previous(log: &ReadOnlyTable<u64, LogRecord<'static>>, at: u64) -> Result<Option<StoreEntry>> {
    let record = log.get(at).map_err(failed)?;
    Ok(record.and_then(|record| {
        let (_, key, _, previous) = record.value();
        previous.map(|previous| entry(key, previous))
    }))
}

fn entry(key: &str, (revision, value): (u64, &[u8])) -> StoreEntry {
    StoreEntry {
        key: Key::from_stored(key.to_owned()),
        value: Bytes::copy_from_slice(value),
        revision: Revision(revision),
    }
}

/// One change of a key that a client asks for.
#[derive(Debug)]
pub(super) enum EntryChange {
    Create(Bytes),
    Update { expected: Revision, value: Bytes },
    Delete { expected: Revision },
}

/// How much history one batch leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrimLimits {
    pub events: u64,
    pub bytes: u64,
    /// Unix seconds before which records of the log may go.
    pub since: u64,
    /// Most records that go at once, so that no writer waits long.
    pub step: usize,
}

/// The tables of one write transaction.
pub(super) struct WriteBatch<'t> {
    latest: Table<'t, &'static str, (u64, &'static [u8])>,
    log: Table<'t, u64, LogRecord<'static>>,
    numbers: Table<'t, &'static str, u64>,
    pub revision: u64,
    pub compacted: u64,
    pub log_bytes: u64,
}

impl<'t> WriteBatch<'t> {
    pub(super) fn begin(transaction: &'t WriteTransaction, log_bytes: u64) -> Result<Self> {
        let numbers = transaction.open_table(NUMBERS).map_err(failed)?;
        let number = |name| -> Result<u64> {
            Ok(numbers.get(name).map_err(failed)?.map_or(0, |number| number.value()))
        };
        let (revision, compacted) = (number(REVISION)?, number(COMPACTED)?);
        Ok(Self {
            latest: transaction.open_table(LATEST).map_err(failed)?,
            log: transaction.open_table(LOG).map_err(failed)?,
            numbers,
            revision,
            compacted,
            log_bytes,
        })
    }

    /// Applies one change, or fails with what stands against it. Failures of redb are
    /// [`Error::Unavailable`] and [`Error::Corrupt`]; the batch must not be committed then.
    pub(super) fn apply(&mut self, key: &Key, change: &EntryChange, now: u64) -> Result<Revision> {
        let stored = self.latest.get(key.as_str()).map_err(failed)?;
        let stored = stored.map(|stored| {
            let (revision, value) = stored.value();
            (revision, value.to_vec())
        });
        let value = match (change, &stored) {
            (EntryChange::Create(_), Some(_)) => return Err(Error::Exists(key.clone())),
            (EntryChange::Update { .. } | EntryChange::Delete { .. }, None) => {
                return Err(Error::NotFound(key.clone()));
            }
            (
                EntryChange::Update { expected, .. } | EntryChange::Delete { expected },
                Some((actual, _)),
            ) if expected.0 != *actual => {
                return Err(Error::Conflict {
                    key: key.clone(),
                    expected: *expected,
                    actual: Revision(*actual),
                });
            }
            (EntryChange::Create(value), None) | (EntryChange::Update { value, .. }, Some(_)) => {
                Some(value)
            }
            (EntryChange::Delete { .. }, Some(_)) => None,
        };
        let revision = self.revision + 1;
        let previous = stored.as_ref().map(|(revision, value)| (*revision, value.as_slice()));
        let record: LogRecord<'_> = (now, key.as_str(), value.map(AsRef::as_ref), previous);
        self.log_bytes += size(&record);
        self.log.insert(revision, record).map_err(failed)?;
        match value {
            Some(value) => {
                self.latest.insert(key.as_str(), (revision, value.as_ref())).map_err(failed)?;
            }
            None => drop(self.latest.remove(key.as_str()).map_err(failed)?),
        }
        self.revision = revision;
        Ok(Revision(revision))
    }

    /// Forgets the history up to `revision`.
    pub(super) fn compact(&mut self, revision: Revision) -> Result<()> {
        if revision.0 > self.revision {
            let latest = Revision(self.revision);
            return Err(Error::FutureRevision { asked: revision, latest });
        }
        while self.compacted < revision.0 {
            self.forget_oldest()?;
        }
        Ok(())
    }

    /// Skips every revision up to `past`, and [`JUMP`] more; all history is forgotten.
    pub(super) fn advance(&mut self, past: Revision) -> Result<Revision> {
        while self.log.pop_first().map_err(failed)?.is_some() {}
        self.revision = self.revision.max(past.0).saturating_add(JUMP);
        self.compacted = self.revision;
        self.log_bytes = 0;
        Ok(Revision(self.revision))
    }

    /// Forgets history beyond the limits, at most `limits.step` records of it.
    pub(super) fn trim(&mut self, limits: TrimLimits) -> Result<()> {
        for _ in 0..limits.step {
            let too_many = self.log.len().map_err(failed)? > limits.events;
            let too_large = self.log_bytes > limits.bytes;
            let too_old = match self.log.first().map_err(failed)? {
                Some((_, oldest)) => oldest.value().0 < limits.since,
                None => false,
            };
            if !(too_many || too_large || too_old) {
                break;
            }
            self.forget_oldest()?;
        }
        Ok(())
    }

    fn forget_oldest(&mut self) -> Result<()> {
        let Some((revision, record)) = self.log.pop_first().map_err(failed)? else {
            self.compacted = self.revision;
            return Ok(());
        };
        self.compacted = revision.value();
        self.log_bytes = self.log_bytes.saturating_sub(size(&record.value()));
        Ok(())
    }

    /// Writes the revisions into their table; the transaction may be committed afterwards.
    pub(super) fn finish(mut self) -> Result<()> {
        self.numbers.insert(REVISION, self.revision).map_err(failed)?;
        self.numbers.insert(COMPACTED, self.compacted).map_err(failed)?;
        Ok(())
    }
}
