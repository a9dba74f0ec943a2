//! The key file of one machine: as it stands, and written so that a reader sees the old one or the new
//! one.

use std::{
    fs::{File, Permissions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use nix::unistd::geteuid;

use crate::{
    engine::keys::{KeyBlock, others},
    runtime::folder::FolderHandle,
};

/// Folder and file below the home folder, as in 2019 and as sshd has them.
const FOLDER: &str = ".ssh";
const FILE: &str = "authorized_keys";
/// sshd reads the file as the user who logs in, so all may read it, and the owner alone may write.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Most bytes of the file that are read; one that is longer is not as we wrote it.
const MOST: u64 = 16 << 20;

/// The key file below a home folder.
#[derive(Clone, Debug)]
pub struct KeyFile {
    home: PathBuf,
    /// Lines of others stay.
    shared: bool,
}

impl KeyFile {
    pub fn new(home: &Path, shared: bool) -> Self {
        Self { home: home.to_owned(), shared }
    }

    /// Returns the folders in which a change may concern the file.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        vec![self.home.clone(), self.home.join(FOLDER)]
    }

    /// Makes the folder of the file.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        self.open().map(drop)
    }

    fn open(&self) -> io::Result<FolderHandle> {
        let folder = FolderHandle::open(&self.home)?.make(FOLDER, FOLDER_MODE)?;
        // What the process' umask took away, or another program gave.
        let file = File::from(folder.as_fd().try_clone_to_owned()?);
        if file.metadata()?.mode() & 0o7777 != FOLDER_MODE {
            file.set_permissions(Permissions::from_mode(FOLDER_MODE))?;
        }
        Ok(folder)
    }

    /// Reads the file, empty where there is none; and whether it is a file that sshd takes from us.
    fn read(&self, folder: &FolderHandle) -> io::Result<(Vec<u8>, bool)> {
        match folder.read_at_most(FILE, MOST) {
            Ok((text, about)) if about.len() < MOST || !self.shared => {
                let plain = about.mode() & 0o7777 == FILE_MODE && about.uid() == geteuid().as_raw();
                Ok((text, plain))
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::FileTooLarge, "16 MiB or more")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Vec::new(), false)),
            // A link, a pipe, a file that we may not read: it is replaced, where nothing of others is
            // to be kept.
            Err(_) if !self.shared => Ok((Vec::new(), false)),
            Err(error) => Err(error),
        }
    }

    /// Returns our block, where it stands as it was written.
    ///
    /// # Errors
    /// When the folder or the file cannot be read.
    pub fn find(&self) -> io::Result<Option<KeyBlock>> {
        let folder = FolderHandle::open(&self.home)?.at(FOLDER)?;
        Ok(KeyBlock::find(&self.read(&folder)?.0))
    }

    /// Is the file as this block wants it?
    pub(crate) fn stands(&self, block: &KeyBlock) -> io::Result<bool> {
        let (text, plain) = self.read(&self.open()?)?;
        Ok(plain && text == block.file(&text, self.shared))
    }

    /// Writes the file as this block wants it.
    pub(crate) fn write(&self, block: &KeyBlock) -> io::Result<()> {
        let folder = self.open()?;
        let (text, _) = self.read(&folder)?;
        folder.replace(FILE, &block.file(&text, self.shared), FILE_MODE)?;
        folder.sync()
    }

    /// Takes our block out of the file, and the file away where nothing else is in it. Returns whether
    /// there was anything of ours.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn clean(&self) -> io::Result<bool> {
        let folder = match FolderHandle::open(&self.home).and_then(|home| home.at(FOLDER)) {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let (text, about) = match folder.read_at_most(FILE, MOST) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if about.len() >= MOST {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "16 MiB or more"));
        }
        let left = others(&text);
        if left == text {
            return Ok(false);
        }
        if left.is_empty() {
            folder.remove(FILE)?;
        } else {
            folder.replace(FILE, &left, about.mode() & 0o777)?;
        }
        folder.sync()?;
        Ok(true)
    }
}
