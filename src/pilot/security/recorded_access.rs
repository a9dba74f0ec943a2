//! How a pilot gets into its own node, where that is secured: what a start decided, in a file beside
//! the configuration, so that the next program of this pilot finds it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::pilot::{
    driver::Error,
    tls::{PinnedLeaves, TlsFolder},
    volume::config_files::write_whole,
};

/// Name of the file, in the configuration folder. It may hold a password.
const FILE: &str = "navigator-access.json";

/// How to get into the node that runs, in the database's own form `A`, and whom the pilot's clients
/// accept there.
pub struct RecordedAccess<A> {
    config: PathBuf,
    pins: PinnedLeaves,
    known: Mutex<KnownAccess<A>>,
}

/// What this program knows of the file.
enum KnownAccess<A> {
    /// It was neither read nor written.
    Unread,
    Open,
    Secured(A),
}

impl<A> From<Option<A>> for KnownAccess<A> {
    fn from(access: Option<A>) -> Self {
        access.map_or(Self::Open, Self::Secured)
    }
}

/// Shows nothing of `A`, which may be a password.
impl<A> fmt::Debug for RecordedAccess<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, pins, known: _ } = self;
        f.debug_struct("RecordedAccess")
            .field("config", config)
            .field("pins", pins)
            .finish_non_exhaustive()
    }
}

impl<A: Clone + Serialize + DeserializeOwned> RecordedAccess<A> {
    /// Names the file in a configuration folder. Reads nothing.
    pub fn new(config: &Path) -> Self {
        let (config, pins) = (config.to_owned(), PinnedLeaves::default());
        Self { config, pins, known: Mutex::new(KnownAccess::Unread) }
    }

    fn lock_access(&self) -> MutexGuard<'_, KnownAccess<A>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how to get in; `None` where the node is open. What an earlier program of this pilot
    /// wrote down is read by the first call.
    pub fn get(&self) -> Option<A> {
        let mut known_access = self.lock_access();
        if let KnownAccess::Unread = &*known_access {
            *known_access = self.read_file().into();
        }
        match &*known_access {
            KnownAccess::Secured(access) => Some(access.clone()),
            KnownAccess::Unread | KnownAccess::Open => None,
        }
    }

    fn read_file(&self) -> Option<A> {
        let access = serde_json::from_slice(&fs::read(self.config.join(FILE)).ok()?).ok()?;
        self.pins.set_installed(&TlsFolder::new(&self.config).read_installed());
        Some(access)
    }

    /// Writes down what a start decided; `None` for a node that is open.
    ///
    /// # Errors
    /// When the file cannot be written or removed.
    pub fn set(&self, access: Option<A>) -> Result<(), Error> {
        let path = self.config.join(FILE);
        if let Some(access) = &access {
            let json = serde_json::to_vec(access).expect("it is made of texts and words");
            write_whole(&path, &json, 0o600)?;
        } else if let Err(source) = fs::remove_file(&path)
            && source.kind() != io::ErrorKind::NotFound
        {
            return Err(Error::Write { path, source });
        }
        *self.lock_access() = access.into();
        Ok(())
    }

    /// The certificates that the pilot's own clients accept.
    pub fn pinned_leaves(&self) -> &PinnedLeaves {
        &self.pins
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_next_program_finds_how_a_start_was_made_and_nobody_else_reads_it() {
        let place = tempfile::tempdir().unwrap();
        let program = || RecordedAccess::<String>::new(place.path());
        assert_eq!(program().get(), None);
        let first = program();
        first.set(None).unwrap();
        first.set(Some("secret".to_owned())).unwrap();
        assert_eq!(first.get().as_deref(), Some("secret"));
        assert!(!format!("{first:?}").contains("secret"));
        let about = fs::metadata(place.path().join(FILE)).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        let next = program();
        assert_eq!(next.get().as_deref(), Some("secret"));
        next.set(None).unwrap();
        assert_eq!((next.get(), program().get()), (None, None));
    }
}
