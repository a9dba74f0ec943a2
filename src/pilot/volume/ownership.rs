//! Folders that belong to the user whom the database runs as, where that is not the pilot's user.
//!
//! Only a pilot that runs as root on a host needs this: in a pod the pilot and the database are one
//! user. The pilot's own folder on the volume stays the pilot's.

use std::{ffi::OsStr, io, path::Path};

use crate::pilot::{
    process::supervisor::ProcessUser,
    volume::{
        folder::{FolderHandle, chown_directory, chown_entry, is_owned_by},
        pilot_files::FOLDER,
    },
};

/// Gives a folder and all below it to `user`. Links are given, not followed.
///
/// # Errors
/// When the pilot may not, or the folder cannot be read.
pub fn give_directory(path: &Path, user: ProcessUser) -> io::Result<()> {
    let folder = FolderHandle::open(path)?;
    chown_directory(&folder, user)?;
    folder.entry_names()?.iter().try_for_each(|name| chown_entry(&folder, name, user))
}

/// Gives a data volume to `user`, except the pilot's own folder. An entry directly on it that
/// belongs to the user already is not gone through again: there may be millions of files below.
///
/// # Errors
/// Those of [`give_directory`].
pub fn give_volume(data: &Path, user: ProcessUser) -> io::Result<()> {
    let folder = FolderHandle::open(data)?;
    for name in folder.entry_names()? {
        if name != OsStr::new(FOLDER) && !is_owned_by(&folder, &name, user)? {
            chown_entry(&folder, &name, user)?;
        }
    }
    chown_directory(&folder, user)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, lchown},
    };

    use super::*;

    #[test]
    fn a_volume_is_given_but_for_the_pilots_own_folder() {
        if !nix::unistd::geteuid().is_root() {
            // A user who is not root may give files to itself only, and that must do no harm.
            let place = tempfile::tempdir().unwrap();
            let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
            give_volume(place.path(), ProcessUser { uid, gid }).unwrap();
            assert!(give_volume(place.path(), ProcessUser { uid: uid + 1, gid }).is_err());
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for folder in ["data/a/b", "theirs/deep", FOLDER] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/etc", root.join("data/link")).unwrap();
        lchown(root.join("theirs"), Some(4321), Some(1234)).unwrap();
        give_volume(root, ProcessUser { uid: 4321, gid: 1234 }).unwrap();
        let owner = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().uid();
        for path in [".", "data", "data/a/b", "data/link", "theirs"] {
            assert_eq!(owner(path), 4321, "{path}");
        }
        // `theirs` was not gone through, the pilot's folder not given away, the link to /etc not
        // followed.
        assert_eq!((owner("theirs/deep"), owner(FOLDER)), (0, 0));
        assert_eq!(fs::metadata("/etc").unwrap().uid(), 0);
    }
}
