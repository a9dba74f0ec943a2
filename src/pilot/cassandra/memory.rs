//! What a node remembers about itself beside its data, in `.navigator/cassandra.json`.
//!
//! Written at the turns of its life only: prepared, joined, retiring, left. It tells a restart
//! from a first start, which decides whether the node may name itself as a seed.

use std::{
    fs,
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::database::Error;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    pub(super) cluster_name: String,
    pub(super) datacenter: String,
    pub(super) rack: String,
    /// The node was a full member once; its data are its own.
    pub(super) joined: bool,
    /// It began the ring, and so had nothing to receive.
    pub(super) founded: bool,
    /// Address of the dead node whose place it takes, until it has joined.
    pub(super) replacing: Option<IpAddr>,
    pub(super) bootstrap_bytes_received: Option<i64>,
    /// Since when it gives its data away.
    pub(super) retiring_since: Option<Time>,
    /// It left the ring. Cassandra refuses to start on these data.
    pub(super) left: bool,
}

impl Memory {
    /// What is remembered on this volume; a fresh one when there is nothing.
    pub(super) fn load(data: &Path) -> Result<Self, Error> {
        let path = path(data);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| Error::Write { path, source: io::Error::other(error) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Write { path, source }),
        }
    }

    pub(super) fn save(&self, data: &Path) -> Result<(), Error> {
        let path = path(data);
        let folder = data.join(FOLDER);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|source| Error::Write { path: folder, source })?;
        let text = serde_json::to_vec_pretty(self).expect("a struct of plain fields is JSON");
        write_whole(&path, &text, 0o600)
    }
}

const FOLDER: &str = ".navigator";

fn path(data: &Path) -> PathBuf {
    data.join(FOLDER).join("cassandra.json")
}

/// Writes a file so that a crash leaves the old one or the new one.
pub(super) fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_remembers_itself_and_a_fresh_volume_knows_nothing() {
        let volume = tempfile::tempdir().unwrap();
        assert_eq!(Memory::load(volume.path()).unwrap(), Memory::default());
        let memory = Memory { joined: true, rack: "a".to_owned(), ..Memory::default() };
        memory.save(volume.path()).unwrap();
        assert_eq!(Memory::load(volume.path()).unwrap(), memory);
    }

    #[test]
    fn unreadable_memory_is_an_error_and_not_a_fresh_node() {
        let volume = tempfile::tempdir().unwrap();
        Memory::default().save(volume.path()).unwrap();
        fs::write(path(volume.path()), "{").unwrap();
        assert!(Memory::load(volume.path()).is_err());
    }
}
