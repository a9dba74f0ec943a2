//! The pilot's folders, which may be given to the database's user.

use std::{ffi::OsStr, io, os::unix::fs::fchown};

use nix::{
    fcntl::AtFlags,
    sys::stat::fstatat,
    unistd::{Gid, Uid, fchownat},
};

use crate::pilot::process::supervisor::ProcessUser;
pub use crate::runtime::folder::FolderHandle;

/// Gives the folder itself to `user`, but not what is in it.
pub fn chown_directory(folder: &FolderHandle, user: ProcessUser) -> io::Result<()> {
    fchown(folder, Some(user.uid), Some(user.gid))
}

/// Does the entry `name` belong to `user` already?
pub fn is_owned_by(folder: &FolderHandle, name: &OsStr, user: ProcessUser) -> io::Result<bool> {
    let metadata = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok((metadata.st_uid, metadata.st_gid) == (user.uid, user.gid))
}

/// Gives an entry and all below it to `user`. Links are given, not followed.
pub fn chown_entry(folder: &FolderHandle, name: &OsStr, user: ProcessUser) -> io::Result<()> {
    match folder.open_folder(name) {
        Ok(entry) => {
            chown_directory(&entry, user)?;
            entry.entry_names()?.iter().try_for_each(|name| chown_entry(&entry, name, user))
        }
        // The entry is no folder, or a link.
        Err(error)
            if matches!(error.raw_os_error(), Some(nix::libc::ENOTDIR | nix::libc::ELOOP)) =>
        {
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            Ok(fchownat(folder, name, Some(uid), Some(gid), flags)?)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn a_file_that_is_written_again_stays_its_owners() {
        if !Uid::effective().is_root() {
            // A user who is not root owns all files that it writes.
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let folder = FolderHandle::open(place.path()).unwrap();
        folder.write_file("a", b"1", 0o600).unwrap();
        chown_entry(&folder, "a".as_ref(), ProcessUser { uid: 4321, gid: 1234 }).unwrap();
        folder.write_file("a", b"2", 0o600).unwrap();
        let about = fs::metadata(place.path().join("a")).unwrap();
        assert_eq!((about.uid(), about.gid()), (4321, 1234));
    }
}
