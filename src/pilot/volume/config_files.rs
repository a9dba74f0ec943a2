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
        FolderHandle::open(folder)?.write_file(name, content, mode)
    };
    write().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Copies the files that the vendor ships into a configuration folder. Links in `stock_path` are
/// followed (the official images link the folder elsewhere), links in `target` are not.
pub fn copy_stock(stock_path: &Path, target: &Path) -> Result<(), Error> {
    let write_error = |source| Error::Write { path: target.to_owned(), source };
    fs::create_dir_all(target).map_err(write_error)?;
    copy_directory(stock_path, target, &FolderHandle::open(target).map_err(write_error)?)
}

/// Copies what lies in `source_directory` into `folder`; `path` is the place of `folder`, for error
/// messages.
fn copy_directory(
    source_directory: &Path,
    path: &Path,
    folder: &FolderHandle,
) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(source_directory) else { return Ok(()) };
    for entry in entries.flatten() {
        let (source, name) = (entry.path(), entry.file_name());
        let path = path.join(&name);
        let write_error = |source| Error::Write { path: path.clone(), source };
        if source.is_dir() {
            copy_directory(
                &source,
                &path,
                &folder.create_folder(&name, 0o755).map_err(write_error)?,
            )?;
        } else if source.is_file() {
            let content = fs::read(&source)
                .map_err(|error| Error::Read { path: source.clone(), source: error })?;
            folder.write_file(&name, &content, 0o644).map_err(write_error)?;
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
pub fn rewrite_key(
    folder: &Path,
    name: &str,
    key: &str,
    desired_value: Value,
) -> Result<bool, Error> {
    let path = folder.join(name);
    let read_error = |error: &dyn Display| Error::Read {
        path: path.clone(),
        source: io::Error::other(error.to_string()),
    };
    let read_file = || FolderHandle::open(folder)?.read_file(name);
    let text = read_file().map_err(|error| read_error(&error))?;
    // A person may have changed the file; content that is not a mapping is not repaired here.
    let mut yaml: Map<String, Value> =
        serde_yaml::from_slice(&text).map_err(|error| read_error(&error))?;
    match yaml.get(key) {
        Some(current) if *current == desired_value => return Ok(false),
        Some(_) => {}
        None => return Err(read_error(&"it is not what was written there")),
    }
    yaml.insert(key.to_owned(), desired_value);
    let text = serde_yaml::to_string(&yaml).map_err(|error| read_error(&error))?;
    write_whole(&path, text.as_bytes(), PRIVATE)?;
    Ok(true)
}
