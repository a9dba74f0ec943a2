//! The file under the store, and whether it may still be believed.
//!
//! After a failed sync, what the disk holds is unknown: the kernel reports the failure once, marks
//! the pages clean, and shows them to every reader although the disk never got them. So after a
//! failed sync nothing is read back, and opening reads from the disk.

use std::{
    fs::File,
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use redb::{BackendError, StorageBackend};

/// Whether a sync has failed. Shared by a backend and the writer, which decides what to do about
/// it.
#[derive(Clone, Debug, Default)]
pub(super) struct SyncFailure(Arc<AtomicBool>);

impl SyncFailure {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A backend of redb that remembers a failed sync.
#[derive(Debug)]
pub(super) struct DiskBackend<B> {
    inner: B,
    failed: SyncFailure,
}

impl<B: StorageBackend> DiskBackend<B> {
    pub(super) fn new(inner: B, sync_failure: SyncFailure) -> Self {
        Self { inner, failed: sync_failure }
    }
}

/// Lets the kernel drop its cached pages of a file, as far as the disk has them: the next reads
/// come from the disk. Advice only; a file system may ignore it.
pub(super) fn forget_pages(file: &File) {
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).ok();
}

impl<B: StorageBackend> StorageBackend for DiskBackend<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data().inspect_err(|_| self.failed.0.store(true, Ordering::SeqCst))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
