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
    engine::keys::{KeyBlock, foreign_lines},
    runtime::folder::FolderHandle,
};

/// Directory and file below the home directory, as in 2019 and as sshd expects them.
const FOLDER: &str = ".ssh";
const FILE: &str = "authorized_keys";
/// sshd reads the file as the user who logs in, so all may read it, and the owner alone may write.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Most bytes of the file that are read; one that is longer is not as we wrote it.
const MOST: u64 = 16 << 20;

/// The key file below a home directory.
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

    /// Returns the directories in which a change may concern the file.
    pub(crate) fn watched_folders(&self) -> Vec<PathBuf> {
        vec![self.home.clone(), self.home.join(FOLDER)]
    }

    /// Creates the directory of the file.
    pub(crate) fn create_folder(&self) -> io::Result<()> {
        self.open_folder().map(drop)
    }

    fn open_folder(&self) -> io::Result<FolderHandle> {
        let folder = FolderHandle::open(&self.home)?.create_folder(FOLDER, FOLDER_MODE)?;
        // What the process' umask took away, or another program gave.
        let file = File::from(folder.as_fd().try_clone_to_owned()?);
        if file.metadata()?.mode() & 0o7777 != FOLDER_MODE {
            file.set_permissions(Permissions::from_mode(FOLDER_MODE))?;
        }
        Ok(folder)
    }

    /// Reads the file, empty where there is none; and whether it is a file that sshd takes from us.
    fn read_file(&self, folder: &FolderHandle) -> io::Result<(Vec<u8>, bool)> {
        match folder.read_at_most(FILE, MOST) {
            Ok((text, metadata)) if metadata.len() < MOST || !self.shared => {
                let is_accepted =
                    metadata.mode() & 0o7777 == FILE_MODE && metadata.uid() == geteuid().as_raw();
                Ok((text, is_accepted))
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::FileTooLarge, "16 MiB or more")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Vec::new(), false)),
            // A link, a pipe, a file that we may not read: it is replaced, where nothing of others is
            // to be kept.
            Err(_) if !self.shared => Ok((Vec::new(), false)),
            Err(error) => Err(error),
        }
    }

    /// Returns our block, if it is in the file as it was written.
    ///
    /// # Errors
    /// When the directory or the file cannot be read.
    pub fn find_block(&self) -> io::Result<Option<KeyBlock>> {
        let folder = FolderHandle::open(&self.home)?.open_folder(FOLDER)?;
        Ok(KeyBlock::find_in_file(&self.read_file(&folder)?.0))
    }

    /// Returns whether the file is as this block requires it.
    pub(crate) fn is_current(&self, block: &KeyBlock) -> io::Result<bool> {
        let (text, is_accepted) = self.read_file(&self.open_folder()?)?;
        Ok(is_accepted && text == block.render_file(&text, self.shared))
    }

    /// Writes the file as this block wants it.
    pub(crate) fn write_block(&self, block: &KeyBlock) -> io::Result<()> {
        let folder = self.open_folder()?;
        let (text, _) = self.read_file(&folder)?;
        folder.replace_file(FILE, &block.render_file(&text, self.shared), FILE_MODE)?;
        folder.sync()
    }

    /// Removes our block from the file, and the file itself if nothing else is in it. Returns
    /// whether the file had anything to remove.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn remove_block(&self) -> io::Result<bool> {
        let folder = match FolderHandle::open(&self.home).and_then(|home| home.open_folder(FOLDER))
        {
            Ok(folder) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let (text, metadata) = match folder.read_at_most(FILE, MOST) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if metadata.len() >= MOST {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "16 MiB or more"));
        }
        let other_lines = foreign_lines(&text);
        if other_lines == text {
            return Ok(false);
        }
        if other_lines.is_empty() {
            folder.remove_file(FILE)?;
        } else {
            folder.replace_file(FILE, &other_lines, metadata.mode() & 0o777)?;
        }
        folder.sync()?;
        Ok(true)
    }
}
