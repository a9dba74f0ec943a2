//! What a database remembers about its node beside the data, below `.navigator/`.
//!
//! Written whole or not at all; unreadable memory is an error, never a fresh node.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::pilot::{driver::Error, volume::folder::Folder};

/// Folder at the volume's root that is the pilot's own.
const FOLDER: &str = ".navigator";

/// A struct that is kept in one file.
pub trait Remembered: Default + Serialize + DeserializeOwned {
    /// Name of the file.
    const FILE: &'static str;

    /// What is remembered on this volume; a fresh one when there is nothing.
    fn load(data: &Path) -> Result<Self, Error> {
        let path = path::<Self>(data);
        let read = || Folder::open(data)?.at(FOLDER)?.read(Self::FILE);
        match read() {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Read { path, source: io::Error::other(error) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    fn save(&self, data: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).expect("a struct of plain fields is JSON");
        let write = || {
            fs::create_dir_all(data)?;
            let folder = Folder::open(data)?.make(FOLDER, 0o700)?;
            folder.write(Self::FILE, &text, 0o600)?;
            // The new name is on the disk only when its folder is.
            folder.sync()
        };
        write().map_err(|source| Error::Write { path: path::<Self>(data), source })
    }
}

fn path<M: Remembered>(data: &Path) -> PathBuf {
    data.join(FOLDER).join(M::FILE)
}

/// Writes a file of a configuration folder so that a crash leaves the old one or the new one.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let write = || {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        Folder::open(folder)?.write(name, content, mode)
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Copies what the vendor ships into a configuration folder, links followed there (the official
/// images link it elsewhere) and not here.
pub fn copy_stock(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |source| Error::Write { path: to.to_owned(), source };
    fs::create_dir_all(to).map_err(failed)?;
    copy(from, to, &Folder::open(to).map_err(failed)?)
}

/// `path` is where `folder` is, for people.
fn copy(from: &Path, path: &Path, folder: &Folder) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Memory {
        joined: bool,
    }

    impl Remembered for Memory {
        const FILE: &'static str = "test.json";
    }

    #[test]
    fn a_node_remembers_itself_and_a_fresh_volume_knows_nothing() {
        let volume = tempfile::tempdir().unwrap();
        assert_eq!(Memory::load(volume.path()).unwrap(), Memory::default());
        let memory = Memory { joined: true };
        memory.save(volume.path()).unwrap();
        assert_eq!(Memory::load(volume.path()).unwrap(), memory);
    }

    #[test]
    fn unreadable_memory_is_an_error_and_not_a_fresh_node() {
        let volume = tempfile::tempdir().unwrap();
        Memory::default().save(volume.path()).unwrap();
        fs::write(path::<Memory>(volume.path()), "{").unwrap();
        assert!(Memory::load(volume.path()).is_err());
    }
}
