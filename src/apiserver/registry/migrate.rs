//! Rewrites stored objects of an older form, so that a later release need not read that form.
//!
//! Safe beside running servers and safe to repeat: an object is written only when it would come out
//! differently, and by compare-and-swap, so a write that came meanwhile wins.

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
    fn fail(&mut self, key: Key, why: &str) {
        warn!(key = key.as_str(), error = why, "Failed to migrate an object; it stays as it is");
        self.failed.push(key);
    }
}

impl Registry {
    /// Writes every object of this kind again in the form that is stored today, unless it has that
    /// form.
    pub async fn migrate(&self) -> Result<MigrationReport> {
        let range = super::whole(self.kind);
        let mut found = MigrationReport::default();
        let mut request = PageRequest { limit: Some(PAGE), ..PageRequest::default() };
        loop {
            // Each page is read as of now: objects that are created meanwhile are in the current
            // form.
            let page = self.store.list(&range, request.clone()).await?;
            request.after = page.entries.last().map(|entry| entry.key.clone());
            for entry in page.entries {
                self.migrate_one(entry, &mut found).await?;
            }
            info!(
                resource = self.kind.plural(),
                rewritten = found.rewritten,
                current = found.current,
                failed = found.failed.len(),
                done = !page.more,
                "Migrating stored objects"
            );
            if !page.more {
                return Ok(found);
            }
        }
    }

    async fn migrate_one(&self, mut entry: StoreEntry, found: &mut MigrationReport) -> Result<()> {
        loop {
            let object = match self.read_stored(&entry.key, &entry.value, entry.revision) {
                Ok(object) => object,
                Err(error) => {
                    found.fail(entry.key, error.message());
                    return Ok(());
                }
            };
            let stored = Self::to_stored(&object.hub);
            let bytes = Self::to_bytes(&stored, object.owners.as_ref());
            if bytes == entry.value {
                found.current += 1;
                return Ok(());
            }
            match self.store.update(&entry.key, entry.revision, bytes).await {
                Ok(_) => {
                    found.rewritten += 1;
                    return Ok(());
                }
                Err(Error::Conflict { .. }) => {}
                Err(Error::NotFound(_)) => return Ok(()),
                Err(error @ Error::TooLarge { .. }) => {
                    found.fail(entry.key, &error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            // Another writer was faster, perhaps a server of the older release: look again.
            match self.store.get(&entry.key).await? {
                Some(now) => entry = now,
                None => return Ok(()),
            }
        }
    }
}
