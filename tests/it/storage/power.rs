//! A disk whose unsynced writes are gone when its process is killed: for the process, `kill -9` is
//! then a power failure.
//!
//! What was written and not synced lies in this process's memory, and goes to the file with the
//! next sync. Some blocks get there earlier, in no order, as on a disk: so the file tears too. A
//! kill while a sync writes tears it as well. The length is the old one or the new one: it is one
//! entry in the journal of a file system, and no block beyond it is kept.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::Rng;
use redb::StorageBackend;

const BLOCK: usize = 512;
/// Of so many blocks that are written, one gets to the disk before a sync.
const EARLY: u32 = 4;

#[derive(Debug)]
pub(crate) struct Power {
    disk: File,
    memory: Mutex<Memory>,
    /// How long a sync takes.
    slow: Duration,
}

#[derive(Debug)]
struct Memory {
    /// What a read shows.
    written: Vec<u8>,
    /// Blocks that the disk does not have.
    unsynced: std::collections::BTreeSet<usize>,
}

impl Power {
    /// The disk in a file, as the last power failure left it.
    pub(crate) fn at(path: &Path, slow: Duration) -> io::Result<Self> {
        let written = std::fs::read(path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(Vec::new()),
            _ => Err(error),
        })?;
        let disk =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let memory = Mutex::new(Memory { written, unsynced: std::collections::BTreeSet::new() });
        Ok(Self { disk, memory, slow })
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings one block to the disk, and the length with it.
    fn bring(&self, written: &[u8], block: usize) -> io::Result<()> {
        let start = block * BLOCK;
        let Some(rest) = written.get(start..) else { return Ok(()) };
        let len = written.len() as u64;
        if self.disk.metadata()?.len() != len {
            self.disk.set_len(len)?;
        }
        self.disk.write_all_at(&rest[..rest.len().min(BLOCK)], start as u64)
    }
}

impl StorageBackend for Power {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().written.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let memory = self.lock();
        let start = usize::try_from(offset).expect("a test's store is small");
        let bytes = memory.written.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut memory = self.lock();
        let len = usize::try_from(len).expect("a test's store is small");
        let old = memory.written.len();
        memory.written.resize(len, 0);
        memory.unsynced.extend(old.min(len) / BLOCK..len.div_ceil(BLOCK));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(self.slow);
        let mut memory = self.lock();
        self.disk.set_len(memory.written.len() as u64)?;
        for block in std::mem::take(&mut memory.unsynced) {
            self.bring(&memory.written, block)?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut memory = self.lock();
        let start = usize::try_from(offset).expect("a test's store is small");
        memory.written[start..start + data.len()].copy_from_slice(data);
        for block in start / BLOCK..(start + data.len()).div_ceil(BLOCK) {
            if rand::rng().random_ratio(1, EARLY) {
                self.bring(&memory.written, block)?;
            } else {
                memory.unsynced.insert(block);
            }
        }
        Ok(())
    }
}
