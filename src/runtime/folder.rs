//! A folder that another user may write to: what is done in the folder stays in it.
//!
//! Who writes may be root, and the folder one that another user could put links into: to have root
//! write elsewhere, or read or give away files of other users. So a folder is opened once, no link in it
//! is followed, and a file is made anew under another name and then renamed.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, Permissions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, fchown},
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat, readlinkat, renameat},
    sys::stat::{Mode, SFlag, fstatat, mkdirat},
    unistd::{Uid, UnlinkatFlags, symlinkat, unlinkat},
};

/// An open folder: what its path means by now does not matter any more.
#[derive(Debug)]
pub struct FolderHandle(OwnedFd);

const OPEN: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_CLOEXEC);

impl AsFd for FolderHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl FolderHandle {
    /// Opens a folder whose path is trusted, and may be a link.
    ///
    /// # Errors
    /// When the folder is not there or is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(open(path, OPEN, Mode::empty())?))
    }

    /// Opens a folder in this one. A link does not count as a folder.
    pub fn open_folder(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        Ok(Self(openat(&self.0, name.as_ref(), OPEN | OFlag::O_NOFOLLOW, Mode::empty())?))
    }

    /// Opens a folder in this one, and makes it when it is missing.
    pub fn create_folder(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        match mkdirat(&self.0, name.as_ref(), Mode::from_bits_truncate(mode)) {
            Ok(()) | Err(Errno::EEXIST) => self.open_folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a file. A link does not count as a file.
    pub fn read_file(&self, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.0, name.as_ref(), flags, Mode::empty())?);
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(content)
    }

    /// Reads a file up to this many bytes, and what is known of it. Only a plain file counts as one: a
    /// pipe would hold the reader up.
    pub fn read_at_most(
        &self,
        name: impl AsRef<OsStr>,
        max_bytes: u64,
    ) -> io::Result<(Vec<u8>, Metadata)> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.0, name.as_ref(), flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no plain file"));
        }
        let mut content = Vec::new();
        file.take(max_bytes).read_to_end(&mut content)?;
        Ok((content, metadata))
    }

    /// Writes a file so that a crash leaves the old one or the new one, of the same owner.
    pub fn write_file(&self, name: impl AsRef<OsStr>, content: &[u8], mode: u32) -> io::Result<()> {
        let name = name.as_ref();
        self.write_renamed(name, content, mode, |file| self.keep_owner(name, file))
    }

    /// Writes a file so that a crash leaves the old one or the new one. It is the caller's own and has
    /// this very mode, whatever the old one was.
    pub fn replace_file(
        &self,
        name: impl AsRef<OsStr>,
        content: &[u8],
        mode: u32,
    ) -> io::Result<()> {
        let prepare = |file: &File| file.set_permissions(Permissions::from_mode(mode));
        self.write_renamed(name.as_ref(), content, mode, prepare)
    }

    fn write_renamed(
        &self,
        name: &OsStr,
        content: &[u8],
        mode: u32,
        prepare: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let temporary = self.temporary_name(name)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(mode);
        let file = openat(&self.0, temporary.as_os_str(), flags, mode)?;
        let mut file = File::from(file);
        prepare(&file)?;
        file.write_all(content)?;
        file.sync_all()?;
        Ok(renameat(&self.0, temporary.as_os_str(), &self.0, name)?)
    }

    /// Returns a name for what is to take the place of `name`, at which nothing lies.
    fn temporary_name(&self, name: &OsStr) -> io::Result<OsString> {
        let mut temporary = name.to_owned();
        temporary.push(".new");
        // What lies there may be left from a crash, or another user put it there.
        match unlinkat(&self.0, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(temporary),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the symbolic link `name` lead to `target`, by one rename: who follows the link finds the
    /// old target or the new one.
    pub fn replace_link(
        &self,
        name: impl AsRef<OsStr>,
        target: impl AsRef<OsStr>,
    ) -> io::Result<()> {
        let name = name.as_ref();
        let temporary = self.temporary_name(name)?;
        symlinkat(target.as_ref(), &self.0, temporary.as_os_str())?;
        Ok(renameat(&self.0, temporary.as_os_str(), &self.0, name)?)
    }

    /// Returns where a symbolic link leads.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> io::Result<OsString> {
        Ok(readlinkat(&self.0, name.as_ref())?)
    }

    /// Gives the new file the owner of the old one, so that the same processes can read it.
    fn keep_owner(&self, name: &OsStr, file: &File) -> io::Result<()> {
        let Ok(old_stat) = fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let is_file =
            SFlag::from_bits_truncate(old_stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG;
        let new_metadata = file.metadata()?;
        if is_file
            && (new_metadata.uid(), new_metadata.gid()) != (old_stat.st_uid, old_stat.st_gid)
            && Uid::effective().is_root()
        {
            fchown(file, Some(old_stat.st_uid), Some(old_stat.st_gid))?;
        }
        Ok(())
    }

    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.0, name.as_ref(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Waits until the folder's entries are on the disk.
    pub fn sync(&self) -> io::Result<()> {
        File::from(self.0.try_clone()?).sync_all()
    }

    /// Lists the names of the folder's entries.
    pub fn entry_names(&self) -> io::Result<Vec<OsString>> {
        let fd_path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        fs::read_dir(fd_path)?.map(|entry| Ok(entry?.file_name())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_that_somebody_planted_lead_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let (victim, inside) = (place.path().join("victim"), place.path().join("inside"));
        fs::create_dir(&inside).unwrap();
        fs::write(&victim, "root's").unwrap();
        let folder = FolderHandle::open(&inside).unwrap();
        for name in ["a.yaml.new", "a.yaml", "b.yaml"] {
            symlink(&victim, inside.join(name)).unwrap();
        }
        symlink(place.path(), inside.join("outside")).unwrap();
        assert!(folder.read_file("b.yaml").is_err());
        assert!(folder.open_folder("outside").is_err());
        assert!(folder.create_folder("outside", 0o700).is_err());
        // A link in the place of a file is replaced, and not followed.
        folder.write_file("a.yaml", b"ours", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
        let about = fs::symlink_metadata(inside.join("a.yaml")).unwrap();
        assert!(about.is_file());
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.read_file("a.yaml").unwrap(), b"ours");
    }

    #[test]
    fn a_link_is_turned_at_once_and_takes_no_files_place_by_halves() {
        let place = tempfile::tempdir().unwrap();
        let folder = FolderHandle::open(place.path()).unwrap();
        assert!(folder.read_link("now").is_err());
        fs::write(place.path().join("now.new"), "left from a crash").unwrap();
        for target in ["one", "two"] {
            folder.replace_link("now", target).unwrap();
            assert_eq!(folder.read_link("now").unwrap(), target);
        }
        assert_eq!(folder.entry_names().unwrap(), ["now"]);
    }

    #[test]
    fn only_a_plain_file_is_read_and_not_more_of_it_than_asked() {
        let place = tempfile::tempdir().unwrap();
        let folder = FolderHandle::open(place.path()).unwrap();
        nix::unistd::mkfifo(&place.path().join("pipe"), Mode::S_IRWXU).unwrap();
        assert!(folder.read_at_most("pipe", 3).is_err());
        folder.replace_file("a", b"12345", 0o644).unwrap();
        let (content, about) = folder.read_at_most("a", 3).unwrap();
        assert_eq!((content.as_slice(), about.mode() & 0o777), (&b"123"[..], 0o644));
    }
}
