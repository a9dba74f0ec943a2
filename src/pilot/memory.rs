//! What a flavour remembers about its node beside the data, below `.navigator/`.
//!
//! Written whole or not at all; unreadable memory is an error, never a fresh node.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use super::database::Error;

/// Folder at the volume's root that is the pilot's own.
const FOLDER: &str = ".navigator";

/// A struct that is kept in one file.
pub trait Remembered: Default + Serialize + DeserializeOwned {
    /// Name of the file.
    const FILE: &'static str;

    /// What is remembered on this volume; a fresh one when there is nothing.
    fn load(data: &Path) -> Result<Self, Error> {
        let path = path::<Self>(data);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Read { path, source: io::Error::other(error) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    fn save(&self, data: &Path) -> Result<(), Error> {
        let folder = data.join(FOLDER);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|source| Error::Write { path: folder, source })?;
        let text = serde_json::to_vec_pretty(self).expect("a struct of plain fields is JSON");
        write_whole(&path::<Self>(data), &text, 0o600)
    }
}

fn path<M: Remembered>(data: &Path) -> PathBuf {
    data.join(FOLDER).join(M::FILE)
}

/// Writes a file so that a crash leaves the old one or the new one.
pub fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Copies what the vendor ships into a configuration folder, links followed (the official
/// images link it elsewhere).
pub fn copy_stock(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(|source| Error::Write { path: to.to_owned(), source })?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_stock(&source, &target)?;
        } else if source.is_file() {
            let content = fs::read(&source)
                .map_err(|error| Error::Read { path: source.clone(), source: error })?;
            write_whole(&target, &content, 0o644)?;
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
