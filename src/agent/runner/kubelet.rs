//! The kubelet on the disk: the one that is started, the one to go back to, and the new one.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::engine::machines::{KubeletDigests, KubeletMove};

/// The kubelet to go back to.
const KEPT: &str = ".prev";
/// The new one.
const STAGED: &str = ".new";
/// What is renamed into a place.
const MOVED: &str = ".moved";

fn with_suffix(kubelet: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(kubelet);
    name.push(suffix);
    name.into()
}

pub(super) fn staged_path(kubelet: &Path) -> PathBuf {
    with_suffix(kubelet, STAGED)
}

/// Returns the SHA-256 of a file, in hexadecimal digits; `None` where there is none.
pub(super) fn file_digest(path: &Path) -> io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(format!("{:x}", hasher.finalize()))),
            length => hasher.update(&buffer[..length]),
        }
    }
}

pub(super) fn kubelet_digests(kubelet: &Path) -> io::Result<KubeletDigests> {
    Ok(KubeletDigests {
        installed: file_digest(kubelet)?,
        kept: file_digest(&with_suffix(kubelet, KEPT))?,
        staged: file_digest(&staged_path(kubelet))?,
    })
}

/// Makes one change, which a kill or a lost power leaves undone or done. The path of the kubelet is
/// that of a whole program at any moment.
pub(super) fn apply_move(change: KubeletMove, kubelet: &Path) -> io::Result<()> {
    let (kept_path, moved_path) = (with_suffix(kubelet, KEPT), with_suffix(kubelet, MOVED));
    let (source, target) = match change {
        KubeletMove::Keep => (kubelet, kept_path.as_path()),
        KubeletMove::PutBack => (kept_path.as_path(), kubelet),
        KubeletMove::PutNew => {
            fs::rename(staged_path(kubelet), kubelet)?;
            return sync_folder(kubelet);
        }
    };
    // The rename replaces the target with a second name for the same file.
    remove_file(&moved_path)?;
    fs::hard_link(source, &moved_path)?;
    fs::rename(&moved_path, target)?;
    sync_folder(kubelet)
}

fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Removes a file that may not be there.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_kubelet_is_kept_and_comes_back() {
        let place = tempfile::tempdir().unwrap();
        let kubelet = place.path().join("kubelet");
        fs::write(&kubelet, "old").unwrap();
        fs::write(staged_path(&kubelet), "new").unwrap();
        fs::write(with_suffix(&kubelet, KEPT), "older").unwrap();
        // Left from a kill.
        fs::write(with_suffix(&kubelet, MOVED), "torn").unwrap();
        let (old, new) =
            (file_digest(&kubelet).unwrap(), file_digest(&staged_path(&kubelet)).unwrap());
        apply_move(KubeletMove::Keep, &kubelet).unwrap();
        apply_move(KubeletMove::PutNew, &kubelet).unwrap();
        let found = kubelet_digests(&kubelet).unwrap();
        assert_eq!(found, KubeletDigests { installed: new, kept: old.clone(), staged: None });
        apply_move(KubeletMove::PutBack, &kubelet).unwrap();
        assert_eq!(file_digest(&kubelet).unwrap(), old);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing else is left");
    }
}
