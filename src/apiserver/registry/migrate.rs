//! Rewrites stored objects of an older form, so that a later release need not read that form.
//!
//! It can run next to running servers and can be repeated. It writes an object only if the new form
//! differs, and by compare-and-swap, so a concurrent write wins.

use tracing::{info, warn};

use super::Registry;
use crate::apiserver::storage::{Error, Key, PageRequest, Result, StoreEntry};

/// Most objects that one request to the store reads.
const PAGE: usize = 500;

/// What a migration did to the objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationReport {
    pub rewritten: usize,
    /// Objects that were in the current form already.
    pub current: usize,
    /// Objects that are left as they are, because this binary cannot read them or the store does
    /// not take their new form. The log says why.
    pub failed: Vec<Key>,
}

impl MigrationReport {
    fn record_failure(&mut self, key: Key, reason: &str) {
        warn!(key = key.as_str(), error = reason, "Failed to migrate an object; it stays as it is");
        self.failed.push(key);
    }
}

impl Registry {
    /// Writes every object of this kind again in the form that is stored today, unless it has that
    /// form.
    pub async fn migrate(&self) -> Result<MigrationReport> {
        let range = super::kind_prefix(self.kind);
        let mut report = MigrationReport::default();
        let mut request = PageRequest { limit: Some(PAGE), ..PageRequest::default() };
        loop {
            // Each page is read as of now: objects that are created meanwhile are in the current
            // form.
            let page = self.store.list(&range, request.clone()).await?;
            request.after = page.entries.last().map(|entry| entry.key.clone());
            for entry in page.entries {
                self.migrate_one(entry, &mut report).await?;
            }
            info!(
                resource = self.kind.plural(),
                rewritten = report.rewritten,
                current = report.current,
                failed = report.failed.len(),
                done = !page.more,
                "Migrating stored objects"
            );
            if !page.more {
                return Ok(report);
            }
        }
    }

    async fn migrate_one(&self, mut entry: StoreEntry, report: &mut MigrationReport) -> Result<()> {
        loop {
            let object = match self.read_stored(&entry.key, &entry.value, entry.revision) {
                Ok(object) => object,
                Err(error) => {
                    report.record_failure(entry.key, error.message());
                    return Ok(());
                }
            };
            let stored = Self::to_stored(&object.hub);
            let bytes = Self::to_bytes(&stored, object.owners.as_ref());
            if bytes == entry.value {
                report.current += 1;
                return Ok(());
            }
            match self.store.update(&entry.key, entry.revision, bytes).await {
                Ok(_) => {
                    report.rewritten += 1;
                    return Ok(());
                }
                Err(Error::Conflict { .. }) => {}
                Err(Error::NotFound(_)) => return Ok(()),
                Err(error @ Error::TooLarge { .. }) => {
                    report.record_failure(entry.key, &error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            // Another writer was faster, perhaps a server of the older release: look again.
            match self.store.get(&entry.key).await? {
                Some(latest_entry) => entry = latest_entry,
                None => return Ok(()),
            }
        }
    }
}
