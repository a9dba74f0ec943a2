//! Files of a configuration folder, which the pilot makes and the database reads.

use std::io;
use std::{fs, path::Path};

use crate::pilot::{driver::Error, volume::folder::FolderHandle};

/// Writes a file of a configuration folder so that a crash leaves the old one or the new one.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let write = || {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        FolderHandle::open(folder)?.write(name, content, mode)
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Copies the files that the vendor ships into a configuration folder. Links in `from` are followed
/// (the official images link the folder elsewhere), links in `to` are not.
pub fn copy_stock(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |source| Error::Write { path: to.to_owned(), source };
    fs::create_dir_all(to).map_err(failed)?;
    copy(from, to, &FolderHandle::open(to).map_err(failed)?)
}

/// Copies what lies in `from` into `folder`; `path` is the place of `folder`, for error messages.
fn copy(from: &Path, path: &Path, folder: &FolderHandle) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries.flatten() {
        let (source, name) = (entry.path(), entry.file_name());
        let path = path.join(&name);
        let failed = |source| Error::Write { path: path.clone(), source };
        if source.is_dir() {
            copy(&source, &path, &folder.make(&name, 0o755).map_err(failed)?)?;
        } else if source.is_file() {
            let content = fs::read(&source)
                .map_err(|error| Error::Read { path: source.clone(), source: error })?;
            folder.write(&name, &content, 0o644).map_err(failed)?;
        }
    }
    Ok(())
}
