//! The content of the database file: four tables and how they are read and written.
//!
//! Owns the invariant that `LATEST` is the sum of `LOG` and what was compacted away. Every write
//! has one revision and one record in the log. So state at an older revision is the latest state
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

/// Version of the file's format. It is raised when an older binary can no longer read the file.
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

/// Bytes that count for a record of the log in addition to its key and values.
const RECORD_OVERHEAD: u64 = 64;

/// The first revision of a new store. Not 0, so that no list shows revision 0, which clients
/// read as "any".
const FIRST: u64 = 1;

/// Turns any error of redb into the store's: redb's many types convert into one another.
pub(super) fn store_error(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(reason) => Error::Corrupt { reason },
        error => Error::Unavailable { source: Box::new(error) },
    }
}

/// Fills a new database with its tables and its id.
pub(super) fn initialize_database(database: &Database, id: &str) -> Result<(), redb::Error> {
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
    /// Bytes of the log, as [`WriteBatch::trim_history`] counts them.
    pub log_bytes: u64,
    /// Why the latest writes may be missing; absent when there is no sign of that.
    pub doubt: Option<String>,
}

/// Reads the whole log and what the database says about itself; the text of an error says what is
/// wrong with the file.
pub(super) fn summarize_database(database: &Database) -> Result<DatabaseSummary> {
    let snapshot = Snapshot::begin_read(database)?;
    let format = snapshot.read_number(FORMAT_NUMBER)?;
    if format != FORMAT {
        let reason = format!("its format is {format}, this binary reads format {FORMAT}");
        return Err(Error::Corrupt { reason });
    }
    let id = snapshot.read_text(ID)?.unwrap_or_default();
    let doubt = snapshot.read_text(DOUBT)?;
    let (revision, compacted) = (snapshot.read_number(REVISION)?, snapshot.read_number(COMPACTED)?);
    let (mut expected, mut log_bytes) = (compacted, 0);
    let log = snapshot.0.open_table(LOG).map_err(store_error)?;
    for record in log.iter().map_err(store_error)? {
        let (record_revision, record) = record.map_err(store_error)?;
        expected += 1;
        if record_revision.value() != expected {
            let reason = format!(
                "the log holds revision {} in place of {expected}",
                record_revision.value()
            );
            return Err(Error::Corrupt { reason });
        }
        log_bytes += record_size(&record.value());
    }
    if expected != revision {
        let reason = format!("the log ends at revision {expected}, not {revision}");
        return Err(Error::Corrupt { reason });
    }
    Ok(DatabaseSummary { id, revision: Revision(revision), log_bytes, doubt })
}

/// Records in the file that the latest writes may be missing, and why. Without this record the next
/// process would open the file and find nothing wrong.
pub(super) fn record_doubt(database: &Database, reason: &str) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(TEXTS)?.insert(DOUBT, reason)?;
    transaction.commit()?;
    Ok(())
}

/// Removes the record that the latest writes may be missing: an administrator accepted the store.
pub(super) fn clear_doubt(transaction: &WriteTransaction) -> Result<()> {
    let mut texts = transaction.open_table(TEXTS).map_err(store_error)?;
    drop(texts.remove(DOUBT).map_err(store_error)?);
    Ok(())
}

fn record_size((_, key, value, previous): &LogRecord<'_>) -> u64 {
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
    pub(super) fn begin_read(database: &Database) -> Result<Self> {
        database.begin_read().map(Self).map_err(store_error)
    }

    pub(super) fn revision(&self) -> Result<Revision> {
        self.read_number(REVISION).map(Revision)
    }

    /// Returns the oldest revision whose state is known.
    pub(super) fn compacted_revision(&self) -> Result<Revision> {
        self.read_number(COMPACTED).map(Revision)
    }

    fn read_text(&self, name: &str) -> Result<Option<String>> {
        let texts = self.0.open_table(TEXTS).map_err(store_error)?;
        let text = texts.get(name).map_err(store_error)?;
        Ok(text.map(|text| text.value().to_owned()))
    }

    fn read_number(&self, name: &str) -> Result<u64> {
        let numbers = self.0.open_table(NUMBERS).map_err(store_error)?;
        let number = numbers.get(name).map_err(store_error)?;
        number
            .map(|number| number.value())
            .ok_or_else(|| Error::Corrupt { reason: format!("it does not say its {name}") })
    }

    /// Fails unless the history from `asked` on is known.
    pub(super) fn check_history(&self, requested_revision: Revision) -> Result<()> {
        let (oldest, latest) = (self.compacted_revision()?, self.revision()?);
        if requested_revision < oldest {
            return Err(Error::Compacted { asked: requested_revision, oldest });
        }
        if requested_revision > latest {
            return Err(Error::FutureRevision { asked: requested_revision, latest });
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<StoreEntry>> {
        let latest = self.0.open_table(LATEST).map_err(store_error)?;
        let record = latest.get(key.as_str()).map_err(store_error)?;
        Ok(record.map(|record| build_entry(key.as_str(), record.value())))
    }

    pub(super) fn read_page(&self, prefix: &KeyPrefix, request: &PageRequest) -> Result<StorePage> {
        let revision = request.at.unwrap_or(self.revision()?);
        self.check_history(revision)?;
        let changed_keys = self.find_changed_keys(prefix, revision)?;
        let log = self.0.open_table(LOG).map_err(store_error)?;
        let mut older_entries = changed_keys.iter().peekable();
        let start = match &request.after {
            Some(after) if after.as_str() >= prefix.as_str() => after.as_str(),
            _ => prefix.as_str(),
        };
        let is_skipped =
            |key: &str| request.after.as_ref().is_some_and(|after| key <= after.as_str());
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut page = StorePage { entries: Vec::new(), revision, more: false, remaining: 0 };

        let latest = self.0.open_table(LATEST).map_err(store_error)?;
        let mut records = latest.range(start..).map_err(store_error)?;
        let mut next_entry = move || -> Result<Option<StoreEntry>> {
            let Some(record) = records.next() else { return Ok(None) };
            let (key, value) = record.map_err(store_error)?;
            let in_prefix = key.value().starts_with(prefix.as_str());
            Ok(in_prefix.then(|| build_entry(key.value(), value.value())))
        };
        // Merges two ordered sequences; where both know a key, the older state is the right one.
        let mut candidate = next_entry()?;
        loop {
            let from_older = match (older_entries.peek(), &candidate) {
                (None, None) => return Ok(page),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((key, _)), Some(entry)) => {
                    if **key == entry.key {
                        candidate = next_entry()?;
                        true
                    } else {
                        **key < entry.key
                    }
                }
            };
            let candidate_entry = if from_older {
                // The values of keys before the page are not read.
                let next_change = older_entries.next().filter(|(key, _)| !is_skipped(key.as_str()));
                match next_change.and_then(|(_, record_revision)| *record_revision) {
                    Some(record_revision) => previous_entry(&log, record_revision)?,
                    None => None,
                }
            } else {
                std::mem::replace(&mut candidate, next_entry()?)
            };
            let Some(page_entry) = candidate_entry.filter(|entry| !is_skipped(entry.key.as_str()))
            else {
                continue;
            };
            if page.entries.len() == limit
                || request.bytes.is_some_and(|max_bytes| bytes >= max_bytes)
            {
                page.more = true;
                if request.count {
                    page.remaining = self.count_from(prefix, &page_entry.key, &changed_keys)?;
                }
                return Ok(page);
            }
            bytes += page_entry.value.len();
            page.entries.push(page_entry);
        }
    }

    /// Counts the keys of a prefix from `from` on, after the writes in `changed_keys` were undone.
    fn count_from(
        &self,
        prefix: &KeyPrefix,
        first_key: &Key,
        changed_keys: &BTreeMap<Key, Option<u64>>,
    ) -> Result<usize> {
        let mut count =
            changed_keys.range(first_key..).filter(|(_, entry)| entry.is_some()).count();
        let latest = self.0.open_table(LATEST).map_err(store_error)?;
        for record in latest.range(first_key.as_str()..).map_err(store_error)? {
            let key = Key::from_stored(record.map_err(store_error)?.0.value().to_owned());
            if !prefix.contains(&key) {
                break;
            }
            count += usize::from(!changed_keys.contains_key(&key));
        }
        Ok(count)
    }

    /// Returns for every key that was written after `revision` the record that holds its entry as
    /// of `revision`, if there was one.
    fn find_changed_keys(
        &self,
        prefix: &KeyPrefix,
        revision: Revision,
    ) -> Result<BTreeMap<Key, Option<u64>>> {
        let mut changed_keys = BTreeMap::new();
        let log = self.0.open_table(LOG).map_err(store_error)?;
        for record in log.range(revision.0 + 1..).map_err(store_error)? {
            let (record_revision, record) = record.map_err(store_error)?;
            let (_, key, _, previous) = record.value();
            if key.starts_with(prefix.as_str()) {
                changed_keys
                    .entry(Key::from_stored(key.to_owned()))
                    .or_insert_with(|| previous.map(|_| record_revision.value()));
            }
        }
        Ok(changed_keys)
    }

    /// Returns the events of a prefix after `from`, from no more than `limit` records of the log.
    pub(super) fn read_events(
        &self,
        prefix: &KeyPrefix,
        start_revision: Revision,
        limit: usize,
    ) -> Result<LogEvents> {
        self.check_history(start_revision)?;
        let log = self.0.open_table(LOG).map_err(store_error)?;
        let mut log_events = LogEvents { events: Vec::new(), reached: start_revision };
        for record in log.range(start_revision.0 + 1..).map_err(store_error)?.take(limit) {
            let (revision, record) = record.map_err(store_error)?;
            log_events.reached = Revision(revision.value());
            let (_, key, value, previous) = record.value();
            if !key.starts_with(prefix.as_str()) {
                continue;
            }
            log_events.events.push(match value {
                Some(value) => {
                    let created = previous.is_none();
                    StoreEvent::Put { entry: build_entry(key, (revision.value(), value)), created }
                }
                None => StoreEvent::Delete {
                    key: Key::from_stored(key.to_owned()),
                    revision: log_events.reached,
                },
            });
        }
        Ok(log_events)
    }
}

/// Returns the entry that a record's key had before that record.
fn previous_entry(
    log: &ReadOnlyTable<u64, LogRecord<'static>>,
    revision: u64,
) -> Result<Option<StoreEntry>> {
    let record = log.get(revision).map_err(store_error)?;
    Ok(record.and_then(|record| {
        let (_, key, _, previous) = record.value();
        previous.map(|previous| build_entry(key, previous))
    }))
}

fn build_entry(key: &str, (revision, value): (u64, &[u8])) -> StoreEntry {
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
    pub(super) fn from_transaction(
        transaction: &'t WriteTransaction,
        log_bytes: u64,
    ) -> Result<Self> {
        let numbers = transaction.open_table(NUMBERS).map_err(store_error)?;
        let number = |name| -> Result<u64> {
            Ok(numbers.get(name).map_err(store_error)?.map_or(0, |number| number.value()))
        };
        let (revision, compacted) = (number(REVISION)?, number(COMPACTED)?);
        Ok(Self {
            latest: transaction.open_table(LATEST).map_err(store_error)?,
            log: transaction.open_table(LOG).map_err(store_error)?,
            numbers,
            revision,
            compacted,
            log_bytes,
        })
    }

    /// Applies one change, or fails with what stands against it. Failures of redb are
    /// [`Error::Unavailable`] and [`Error::Corrupt`]; the batch must not be committed then.
    pub(super) fn apply_change(
        &mut self,
        key: &Key,
        change: &EntryChange,
        now: u64,
    ) -> Result<Revision> {
        let stored_entry = self.latest.get(key.as_str()).map_err(store_error)?;
        let stored_entry = stored_entry.map(|guard| {
            let (revision, value) = guard.value();
            (revision, value.to_vec())
        });
        let value = match (change, &stored_entry) {
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
        let previous = stored_entry.as_ref().map(|(revision, value)| (*revision, value.as_slice()));
        let record: LogRecord<'_> = (now, key.as_str(), value.map(AsRef::as_ref), previous);
        self.log_bytes += record_size(&record);
        self.log.insert(revision, record).map_err(store_error)?;
        match value {
            Some(value) => {
                self.latest
                    .insert(key.as_str(), (revision, value.as_ref()))
                    .map_err(store_error)?;
            }
            None => drop(self.latest.remove(key.as_str()).map_err(store_error)?),
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

    /// Skips every revision up to `past_revision`, and [`JUMP`] more; all history is forgotten.
    pub(super) fn advance_revision(&mut self, past_revision: Revision) -> Result<Revision> {
        while self.log.pop_first().map_err(store_error)?.is_some() {}
        self.revision = self.revision.max(past_revision.0).saturating_add(JUMP);
        self.compacted = self.revision;
        self.log_bytes = 0;
        Ok(Revision(self.revision))
    }

    /// Forgets history beyond the limits, at most `limits.step` records of it.
    pub(super) fn trim_history(&mut self, limits: TrimLimits) -> Result<()> {
        for _ in 0..limits.step {
            let too_many = self.log.len().map_err(store_error)? > limits.events;
            let too_large = self.log_bytes > limits.bytes;
            let too_old = match self.log.first().map_err(store_error)? {
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
        let Some((revision, record)) = self.log.pop_first().map_err(store_error)? else {
            self.compacted = self.revision;
            return Ok(());
        };
        self.compacted = revision.value();
        self.log_bytes = self.log_bytes.saturating_sub(record_size(&record.value()));
        Ok(())
    }

    /// Writes the revisions into their table; the transaction may be committed afterwards.
    pub(super) fn write_revisions(mut self) -> Result<()> {
        self.numbers.insert(REVISION, self.revision).map_err(store_error)?;
        self.numbers.insert(COMPACTED, self.compacted).map_err(store_error)?;
        Ok(())
    }
}
