//! Files of a configuration folder, which the pilot makes and the database reads.

use std::{collections::BTreeMap, fmt::Display, fs, io, path::Path};

use serde_json::{Map, Value};

use crate::pilot::{
    driver::{DatabaseNode, Error},
    volume::folder::FolderHandle,
};

/// Mode of written files that may hold secrets of users: passwords of key stores, say.
const PRIVATE: u32 = 0o600;

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

/// Makes the folders that the database writes to, and the configuration folder: the vendor's files
/// in the folder `stock` of its home first, `files` over them.
pub fn lay_out(
    node: &DatabaseNode,
    folders: &[&str],
    stock: &str,
    files: &BTreeMap<&'static str, String>,
) -> Result<(), Error> {
    for folder in folders {
        let path = node.data.join(folder);
        fs::create_dir_all(&path).map_err(|source| Error::Write { path, source })?;
    }
    copy_stock(&node.home.join(stock), &node.config)?;
    for (name, text) in files {
        write_whole(&node.config.join(name), text.as_bytes(), PRIVATE)?;
    }
    Ok(())
}

/// Gives a key of a YAML file in `folder` another value, for a database that reads the file again.
/// Returns whether that made a difference. A file without the key is not the one that was written.
pub fn rewrite_key(folder: &Path, name: &str, key: &str, wanted: Value) -> Result<bool, Error> {
    let path = folder.join(name);
    let unreadable = |error: &dyn Display| Error::Read {
        path: path.clone(),
        source: io::Error::other(error.to_string()),
    };
    let read = || FolderHandle::open(folder)?.read(name);
    let text = read().map_err(|error| unreadable(&error))?;
    // A person may have changed the file; content that is not a mapping is not repaired here.
    let mut yaml: Map<String, Value> =
        serde_yaml::from_slice(&text).map_err(|error| unreadable(&error))?;
    match yaml.get(key) {
        Some(current) if *current == wanted => return Ok(false),
        Some(_) => {}
        None => return Err(unreadable(&"it is not what was written there")),
    }
    yaml.insert(key.to_owned(), wanted);
    let text = serde_yaml::to_string(&yaml).map_err(|error| unreadable(&error))?;
    write_whole(&path, text.as_bytes(), PRIVATE)?;
    Ok(true)
}
