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

fn beside(kubelet: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(kubelet);
    name.push(suffix);
    name.into()
}

pub(super) fn staged(kubelet: &Path) -> PathBuf {
    beside(kubelet, STAGED)
}

/// Returns the SHA-256 of a file, in hexadecimal digits; `None` where there is none.
pub(super) fn digest(path: &Path) -> io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(format!("{:x}", hasher.finalize()))),
            read => hasher.update(&buffer[..read]),
        }
    }
}

pub(super) fn digests(kubelet: &Path) -> io::Result<KubeletDigests> {
    Ok(KubeletDigests {
        installed: digest(kubelet)?,
        kept: digest(&beside(kubelet, KEPT))?,
        staged: digest(&staged(kubelet))?,
    })
}

/// Makes one change, which a kill or a lost power leaves undone or done. The path of the kubelet is
/// that of a whole program at any moment.
pub(super) fn make(change: KubeletMove, kubelet: &Path) -> io::Result<()> {
    let (kept, moved) = (beside(kubelet, KEPT), beside(kubelet, MOVED));
    let (from, to) = match change {
        KubeletMove::Keep => (kubelet, kept.as_path()),
        KubeletMove::PutBack => (kept.as_path(), kubelet),
        KubeletMove::PutNew => {
            fs::rename(staged(kubelet), kubelet)?;
            return sync_folder(kubelet);
        }
    };
    // A second name for the same file takes the place of the other one.
    remove(&moved)?;
    fs::hard_link(from, &moved)?;
    fs::rename(&moved, to)?;
    sync_folder(kubelet)
}

fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Removes a file that may not be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
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
        fs::write(staged(&kubelet), "new").unwrap();
        fs::write(beside(&kubelet, KEPT), "older").unwrap();
        // Left from a kill.
        fs::write(beside(&kubelet, MOVED), "torn").unwrap();
        let (old, new) = (digest(&kubelet).unwrap(), digest(&staged(&kubelet)).unwrap());
        make(KubeletMove::Keep, &kubelet).unwrap();
        make(KubeletMove::PutNew, &kubelet).unwrap();
        let found = digests(&kubelet).unwrap();
        assert_eq!(found, KubeletDigests { installed: new, kept: old.clone(), staged: None });
        make(KubeletMove::PutBack, &kubelet).unwrap();
        assert_eq!(digest(&kubelet).unwrap(), old);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2, "nothing else is left");
    }
}
