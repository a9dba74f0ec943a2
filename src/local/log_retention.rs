//! Bounds the log files that programs write into, and finds where such a file begins.
//!
//! The beginning of a file that grew too long is given back as a hole. A database cannot be told to
//! open another file, a copy and a cut would lose the lines written between them, and a reader goes
//! on at its old offset. While no daemon runs, files grow.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    os::fd::AsFd,
    path::Path,
    time::Duration,
};

use nix::{
    fcntl::{FallocateFlags, fallocate},
    unistd::{Whence, lseek},
};
use tokio::time::sleep;
use tracing::warn;

use super::state_folder::StateFolder;
use crate::runtime::Shutdown;

/// Size to which logs are kept, as the kubelet's 5 files of 10 MiB.
pub const LIMIT: LogRetention = LogRetention { kept: 50 << 20, more: 10 << 20 };
/// Interval at which the files are checked, as the kubelet's.
const EVERY: Duration = Duration::from_secs(10);
/// Block size of holes: a multiple of the block size of common file systems.
const BLOCK: u64 = 64 << 10;

/// How much of a file is kept, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LogRetention {
    pub kept: u64,
    /// How far a file may grow beyond `kept` before it is cut.
    pub more: u64,
}

/// Trims the log files of an installation every ten seconds until shutdown.
pub(super) async fn trim_logs(folder: StateFolder, shutdown: Shutdown) {
    loop {
        for path in folder.all_logs() {
            if let Err(error) = trim_log(&path, LIMIT)
                && error.kind() != io::ErrorKind::NotFound
            {
                warn!(path = %path.display(), %error, "A log was not shortened");
            }
        }
        tokio::select! {
            () = sleep(EVERY) => {}
            () = shutdown.triggered() => return,
        }
    }
}

/// Gives back the space of the beginning of a log file that is too long. The writer must append
/// (`O_APPEND`).
///
/// # Errors
/// When the file cannot be opened or cut.
pub fn trim_log(path: &Path, limit: LogRetention) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let size = file.metadata()?.len();
    let Some(data_start) = next_data_offset(&file, 0)? else { return Ok(()) };
    if size - data_start <= limit.kept + limit.more {
        return Ok(());
    }
    let hole = (size - limit.kept) / BLOCK * BLOCK;
    let kind = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(&file, kind, 0, i64::try_from(hole).map_err(io::Error::other)?) {
        // A file system without holes: a short log is better than a full disk.
        Err(nix::Error::EOPNOTSUPP) => file.set_len(0),
        result => Ok(result?),
    }
}

/// Returns the offset of the first whole line of a file whose beginning may be a hole.
///
/// # Errors
/// When the file cannot be read.
pub fn first_line_offset(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let Some(data_start) = next_data_offset(&file, 0)? else { return Ok(0) };
    if data_start == 0 {
        return Ok(0);
    }
    file.seek(SeekFrom::Start(data_start))?;
    let skipped_bytes = BufReader::new(file).skip_until(b'\n')?;
    Ok(data_start + u64::try_from(skipped_bytes).map_err(io::Error::other)?)
}

/// Returns the offset of the next data at or after `offset`, past a hole: for a reader that is
/// further behind the writer than what is kept. `None` at the end.
///
/// # Errors
/// When the file system does not tell.
pub fn next_data_offset(file: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    match lseek(file, i64::try_from(offset).map_err(io::Error::other)?, Whence::SeekData) {
        Ok(position) => Ok(u64::try_from(position).ok()),
        Err(nix::Error::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::fs::MetadataExt,
    };

    use super::*;

    #[test]
    fn a_long_file_loses_its_beginning_and_nobody_a_line() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path());
        folder.create().unwrap();
        std::fs::create_dir_all(folder.logs("default", "a-0")).unwrap();
        let path = folder.log("default", "a-0", "database", false);
        std::fs::write(folder.daemon_log(), "").unwrap();
        std::fs::write(folder.logs("default", "a-0").join("notes.txt"), "").unwrap();
        assert_eq!(folder.all_logs(), [folder.daemon_log(), path.clone()][..1]);

        let mut writer = File::options().create(true).append(true).open(&path).unwrap();
        assert_eq!(folder.all_logs(), [folder.daemon_log(), path.clone()]);
        let limit = LogRetention { kept: 4 * BLOCK, more: 2 * BLOCK };
        let mut reader = File::open(&path).unwrap();
        let mut written = 0;
        let mut line = |writer: &mut File| {
            writeln!(writer, "line {written}").unwrap();
            written += 1;
        };
        line(&mut writer);
        trim_log(&path, limit).unwrap();
        assert_eq!(first_line_offset(&path).unwrap(), 0, "it is short");
        let mut read = String::new();
        for _ in 0..5 {
            while writer.metadata().unwrap().len() - first_line_offset(&path).unwrap() < 7 * BLOCK {
                line(&mut writer);
            }
            reader.read_to_string(&mut read).unwrap();
            trim_log(&path, limit).unwrap();
            line(&mut writer);
        }
        reader.read_to_string(&mut read).unwrap();
        assert!(read.lines().enumerate().all(|(at, line)| line == format!("line {at}")));
        assert_eq!(read.lines().count(), written);

        let about = writer.metadata().unwrap();
        assert_eq!(about.len(), read.len() as u64, "offsets are what they were");
        assert!(about.blocks() * 512 <= 7 * BLOCK, "{} blocks", about.blocks());
        let first = usize::try_from(first_line_offset(&path).unwrap()).unwrap();
        assert!(read.len() - first >= 4 * 65_536 - 100, "begins at {first} of {}", read.len());
        assert!(read[first..].starts_with("line ") && read[..first].ends_with('\n'));
        // A reader at an offset that was given back continues with the lines that are left.
        let mut late = File::open(&path).unwrap();
        let at = next_data_offset(&late, 10).unwrap().unwrap();
        late.seek(SeekFrom::Start(at)).unwrap();
        let mut text = String::new();
        late.read_to_string(&mut text).unwrap();
        assert!(!text.contains('\0') && text.ends_with(&read[first..]));
        assert_eq!(next_data_offset(&late, about.len()).unwrap(), None);
    }
}
