//! File of the audit log: written in whole lines where possible, rotated by size, old files kept by
//! number and age.
//!
//! Names are lumberjack's: `audit.log` becomes `audit-2006-01-02T15-04-05.000.log`, with `.gz` once
//! it is compressed. When another program has moved the file away, a new one is created.

use std::{
    fs::{DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use tokio::runtime::Handle;
use tracing::warn;

/// Format of the time, in UTC, in the names of rotated files.
const TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";
/// Suffix of a compressed file.
const COMPRESSED: &str = ".gz";

/// When the file is rotated, and how long the old files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRotation {
    /// Most bytes of a file.
    pub max_size: u64,
    /// Age after which old files are removed; absent for no limit.
    pub max_age: Option<Duration>,
    /// Most old files that are kept; 0 for no limit.
    pub max_backups: usize,
    pub compress: bool,
}

impl FileRotation {
    pub const DEFAULT: Self =
        Self { max_size: 100 << 20, max_age: None, max_backups: 0, compress: false };
}

/// The file that is written now.
pub(super) struct RotatingFile {
    file: File,
    size: u64,
    path: PathBuf,
    /// Whether this is a regular file: devices and pipes are not rotated.
    is_regular: bool,
    rotation: FileRotation,
    /// Lock of the thread that removes and compresses old files.
    tidying: Arc<Mutex<()>>,
}

/// Number of lines that were written, from the first on, and the error that stopped the others.
pub(super) type WriteOutcome = (usize, Option<io::Error>);

impl RotatingFile {
    pub(super) fn open(path: PathBuf, rotation: FileRotation) -> io::Result<Self> {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty())
        {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = open_for_append(&path)?;
        let meta = file.metadata()?;
        let tidying = Arc::default();
        let rotating_file =
            Self { file, size: meta.len(), path, is_regular: meta.is_file(), rotation, tidying };
        rotating_file.prune_in_background();
        Ok(rotating_file)
    }

    /// Writes lines, and rotates the file where it is full. Blocks while the disk does.
    pub(super) fn write(&mut self, lines: &[Bytes]) -> WriteOutcome {
        let mut written_lines = 0;
        while written_lines < lines.len() {
            if let Err(error) = self.make_ready(lines[written_lines].len() as u64) {
                return (written_lines, Some(error));
            }
            // As many lines as fit into the file, and at least one.
            let mut size = 0;
            let fitting_lines =
                lines[written_lines..].iter().enumerate().take_while(|(index, line)| {
                    size += line.len() as u64;
                    *index == 0 || self.has_room(size)
                });
            let chunk = &lines[written_lines..written_lines + fitting_lines.count()];
            let (whole_lines, error) = self.append(chunk);
            written_lines += whole_lines;
            if error.is_some() {
                return (written_lines, error);
            }
        }
        (written_lines, None)
    }

    fn has_room(&self, length: u64) -> bool {
        !self.is_regular || self.size + length <= self.rotation.max_size
    }

    /// Opens the file again if it is gone from its path, and rotates it if `length` more bytes do
    /// not fit. If the rotation fails, the file grows beyond its bound.
    fn make_ready(&mut self, length: u64) -> io::Result<()> {
        let file_id = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        if self.path.metadata().map(file_id).ok() != Some(self.file.metadata().map(file_id)?) {
            self.reopen()?;
        }
        // A line that is longer than a file may be gets a file of its own.
        if self.size > 0 && !self.has_room(length) {
            // A file that is too large is better than no audit log.
            if let Err(error) = self.rotate() {
                warn!(%error, path = ?self.path, "Failed to rotate the audit trail");
            }
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = open_for_append(&self.path)?;
        let meta = self.file.metadata()?;
        (self.size, self.is_regular) = (meta.len(), meta.is_file());
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let mut now = Timestamp::now();
        let backup = loop {
            let backup = self.path.with_file_name(BackupFile::file_name(&self.path, now));
            if !backup.exists() {
                break backup;
            }
            now += SignedDuration::from_millis(1);
        };
        std::fs::rename(&self.path, backup)?;
        self.reopen()?;
        self.prune_in_background();
        Ok(())
    }

    /// Appends lines. A line that was written in part is cut off again where possible.
    fn append(&mut self, lines: &[Bytes]) -> WriteOutcome {
        let bytes = lines.concat();
        let mut written_bytes = 0;
        let error = loop {
            if written_bytes == bytes.len() {
                break None;
            }
            match self.file.write(&bytes[written_bytes..]) {
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(count) => written_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let mut size = 0;
        let fitting_lines = lines.iter().take_while(|line| {
            let fits = size + line.len() <= written_bytes;
            size += if fits { line.len() } else { 0 };
            fits
        });
        let whole_lines = fitting_lines.count();
        self.size += size as u64;
        if written_bytes > size && self.is_regular {
            // Another program may have appended to the file; then half a line stays.
            let is_last_writer = self
                .file
                .metadata()
                .is_ok_and(|m| m.len() == self.size + (written_bytes - size) as u64);
            if is_last_writer && let Err(error) = self.file.set_len(self.size) {
                warn!(%error, path = ?self.path, "Half a line stays in the audit trail");
            }
        }
        (whole_lines, error)
    }

    /// Removes and compresses old files on a thread of its own: no write waits for that.
    fn prune_in_background(&self) {
        let Self { path, rotation, tidying, .. } = self;
        if !self.is_regular
            || (rotation.max_age, rotation.max_backups, rotation.compress) == (None, 0, false)
        {
            return;
        }
        let (path, rotation, tidying) = (path.clone(), *rotation, Arc::clone(tidying));
        Handle::current().spawn_blocking(move || {
            let _one_at_a_time = tidying.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = prune_backups(&path, rotation, Timestamp::now()) {
                warn!(%error, ?path, "Failed to tidy up old files of the audit trail");
            }
        });
    }
}

fn open_for_append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// A rotated file, with the time in its name.
#[derive(Debug)]
struct BackupFile {
    path: PathBuf,
    at: Timestamp,
    compressed: bool,
}

impl BackupFile {
    fn file_name(path: &Path, timestamp: Timestamp) -> String {
        let (stem, ending) = split_file_name(path);
        format!("{stem}-{}{ending}", timestamp.strftime(TIME))
    }

    fn parse(path: PathBuf, log_path: &Path) -> Option<Self> {
        let (stem, ending) = split_file_name(log_path);
        let name = path.file_name()?.to_str()?;
        let uncompressed_name = name.strip_suffix(COMPRESSED);
        let is_compressed = uncompressed_name.is_some();
        let time = uncompressed_name.unwrap_or(name).strip_prefix(&stem)?.strip_prefix('-')?;
        let date_time = DateTime::strptime(TIME, time.strip_suffix(&ending)?).ok()?;
        let timestamp = date_time.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(Self { path, at: timestamp, compressed: is_compressed })
    }
}

/// Splits a path's file name into stem and ending: `audit` and `.log`.
fn split_file_name(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ending = path.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    (stem, ending)
}

fn prune_backups(path: &Path, rotation: FileRotation, now: Timestamp) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let entries = std::fs::read_dir(directory.unwrap_or(Path::new(".")))?;
    let mut backups: Vec<BackupFile> =
        entries.filter_map(|entry| BackupFile::parse(entry.ok()?.path(), path)).collect();
    // The latest first.
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.at));
    let oldest_time =
        rotation.max_age.and_then(|age| now.checked_sub(SignedDuration::try_from(age).ok()?).ok());
    let max_backups = if rotation.max_backups == 0 { usize::MAX } else { rotation.max_backups };
    for (index, backup) in backups.into_iter().enumerate() {
        if index >= max_backups || oldest_time.is_some_and(|oldest_time| backup.at < oldest_time) {
            std::fs::remove_file(&backup.path)?;
        } else if rotation.compress && !backup.compressed {
            compress_file(&backup.path)?;
        }
    }
    Ok(())
}

/// Compresses a file. The compressed file gets its name when it is whole.
fn compress_file(path: &Path) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    let compressed_path = PathBuf::from(name);
    let temporary_path = compressed_path.with_extension("gz.tmp");
    let target = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary_path)?;
    let mut encoder = GzEncoder::new(target, Compression::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    std::fs::rename(&temporary_path, &compressed_path)?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn lines(texts: &[&str]) -> Vec<Bytes> {
        texts.iter().map(|text| Bytes::from(format!("{text}\n"))).collect()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn all(folder: &Path) -> Vec<String> {
        names(folder).iter().map(|n| std::fs::read_to_string(folder.join(n)).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_full_file_is_rotated_and_no_line_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/audit.log");
        let rotation = FileRotation { max_size: 8, ..FileRotation::DEFAULT };
        let mut current = RotatingFile::open(path.clone(), rotation).unwrap();
        let all_lines = lines(&["123", "456", "789", "longer than a file", "x"]);
        assert!(matches!(current.write(&all_lines), (5, None)));
        let folder = path.parent().unwrap();
        // The names of the old ones begin with `audit-`, which is before `audit.`.
        let expected = ["123\n456\n", "789\n", "longer than a file\n", "x\n"];
        assert_eq!(all(folder), expected, "{:?}", names(folder));
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        for name in &names(folder)[..3] {
            assert!(BackupFile::parse(folder.join(name), &path).is_some(), "{name}");
        }
        // Bytes that the file already has count.
        let mut current = RotatingFile::open(path.clone(), rotation).unwrap();
        assert!(matches!(current.write(&lines(&["1234567"])), (1, None)));
        assert_eq!(names(folder).len(), 5);
    }

    #[tokio::test]
    async fn a_trail_that_was_rotated_away_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let mut current = RotatingFile::open(path.clone(), FileRotation::DEFAULT).unwrap();
        current.write(&lines(&["1"]));
        std::fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        current.write(&lines(&["2"]));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
    }

    #[tokio::test]
    async fn a_full_device_takes_nothing_and_says_so() {
        let mut current = RotatingFile::open("/dev/full".into(), FileRotation::DEFAULT).unwrap();
        let (written, error) = current.write(&lines(&["1", "2"]));
        assert_eq!((written, error.unwrap().kind()), (0, io::ErrorKind::StorageFull));
    }

    #[test]
    fn old_files_go_by_number_and_by_age_and_the_others_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let now: Timestamp = "2026-11-22T12:00:00Z".parse().unwrap();
        let back = |hours: i64| now - SignedDuration::from_hours(hours);
        for hours in [1, 2, 3, 30] {
            let name = BackupFile::file_name(&path, back(hours));
            std::fs::write(folder.path().join(&name), name).unwrap();
        }
        for other in ["audit.log", "audit-notes.log", "other-2026-11-22T11-00-00.000.log"] {
            std::fs::write(folder.path().join(other), "").unwrap();
        }
        let day = Some(Duration::from_secs(24 * 3600));
        let rotation = FileRotation { max_age: day, ..FileRotation::DEFAULT };
        prune_backups(&path, rotation, now).unwrap();
        assert_eq!(names(folder.path()).len(), 6, "the oldest is gone");
        let rotation = FileRotation { max_backups: 2, compress: true, ..FileRotation::DEFAULT };
        for _ in 0..2 {
            prune_backups(&path, rotation, now).unwrap();
            let expected = [
                "audit-2026-11-22T10-00-00.000.log.gz",
                "audit-2026-11-22T11-00-00.000.log.gz",
                "audit-notes.log",
                "audit.log",
                "other-2026-11-22T11-00-00.000.log",
            ];
            assert_eq!(names(folder.path()), expected);
        }
        let mut text = String::new();
        let compressed = folder.path().join("audit-2026-11-22T11-00-00.000.log.gz");
        GzDecoder::new(File::open(compressed).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "audit-2026-11-22T11-00-00.000.log");
    }
}
