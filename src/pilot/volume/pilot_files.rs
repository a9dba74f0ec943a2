//! `.navigator/` at the root of the data volume: what a pilot knows of its node, and the state
//! file of its database (`state`). Nothing else writes there.
//!
//! Files are 0600 and appear whole or not at all. Losing this folder loses the mark by which
//! the data are known as this node's, so nothing in it is ever written half.

use std::{
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    api::v1beta1::Pilot,
    pilot::{tls::NodeCertificates, volume::folder::FolderHandle},
};

/// Name of the pilot's own folder at the root of a data volume.
pub const FOLDER: &str = ".navigator";

const MARK: &str = "identity.json";
const INTENT: &str = "pilot.json";
const LEFT: &str = "left.json";
const RUN: &str = "run.json";
/// Folder of the node's private key, and the key in it.
const TLS: &str = "tls";
const NODE_KEY: &str = "node.key";
/// The key that is to take its place.
const NEXT_KEY: &str = "node.key.next";
/// The certificates that the database showed last.
const CERTIFICATES: &str = "certificates.json";
/// Most bytes of a key that are read: the longest one takes a tenth.
const KEY_BYTES: u64 = 64 << 10;
/// A file that keeps room for what must be written down on a full volume. It is removed when the
/// volume is full, and made again at the next start of the database.
const RESERVE: &str = "reserve";
const RESERVED: usize = 64 << 10;

/// The pilot's own files in a data directory.
#[derive(Clone, Debug)]
pub struct PilotFiles(PathBuf);

/// Which node and cluster the data belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMark {
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub cluster: Option<String>,
    /// `metadata.uid` of the cluster object.
    pub cluster_uid: Option<String>,
    pub pilot: String,
    /// The database's own id of its cluster, where it has one.
    pub cluster_id: Option<String>,
    /// The database's own id of the node, from the time that the node first served or had joined.
    pub node_id: Option<String>,
    pub since: Option<Time>,
    /// Id of this node's attempt to found, which it records in the cluster's LeaderLease after it
    /// wrote the id here.
    pub founding: Option<String>,
    /// Id of the ring that the data belong to, as the LeaderLease records it (see `ring`).
    /// Volumes that were marked before rings had ids have none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<String>,
}

/// A run of the database that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseRun {
    pub pid: i32,
    pub start_time: Time,
    pub pilot_version: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DecommissionRecord {
    time: Time,
}

impl PilotFiles {
    /// Names the files in a data directory. Nothing is created yet.
    pub fn for_directory(data: &Path) -> Self {
        Self(data.to_owned())
    }

    pub fn read_mark(&self) -> io::Result<Option<VolumeMark>> {
        self.read_file(MARK)
    }

    pub fn set_mark(&self, mark: &VolumeMark) -> io::Result<()> {
        self.write_file(MARK, mark)
    }

    /// Reads the intent as last seen, to start from when the API is away.
    pub fn read_intent(&self) -> io::Result<Option<Pilot>> {
        self.read_file(INTENT)
    }

    pub fn set_intent(&self, pilot: &Pilot) -> io::Result<()> {
        self.write_file(INTENT, pilot)
    }

    /// Reads the certificates that the database showed last.
    pub fn read_certificates(&self) -> io::Result<Option<NodeCertificates>> {
        self.read_file(CERTIFICATES)
    }

    /// Writes them down, where the volume has room: what is kept for a full one is for what cannot wait.
    pub fn set_certificates(&self, certificates: &NodeCertificates) -> io::Result<()> {
        let folder = self.open_or_create()?;
        folder.write_file(CERTIFICATES, &serde_json::to_vec_pretty(certificates)?, 0o600)?;
        folder.sync()
    }

    /// Did the node leave its database cluster for good?
    pub fn is_decommissioned(&self) -> io::Result<bool> {
        Ok(self.read_file::<DecommissionRecord>(LEFT)?.is_some())
    }

    pub fn set_decommissioned(&self, time: Time) -> io::Result<()> {
        self.write_file(LEFT, &DecommissionRecord { time })
    }

    /// Reads the run whose end no pilot has seen, if there is one.
    pub fn open_run(&self) -> io::Result<Option<DatabaseRun>> {
        self.read_file(RUN)
    }

    pub fn begin_run(&self, run: &DatabaseRun) -> io::Result<()> {
        self.write_file(RUN, run)?;
        self.ensure_reserve()
    }

    /// Reads the node's private key, as PEM.
    pub fn node_key(&self) -> io::Result<Option<Vec<u8>>> {
        self.read_key(NODE_KEY)
    }

    /// Reads the private key that is to take the place of the node's.
    pub fn next_key(&self) -> io::Result<Option<Vec<u8>>> {
        self.read_key(NEXT_KEY)
    }

    fn read_key(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let read = |folder: FolderHandle| folder.open_folder(TLS)?.read_at_most(name, KEY_BYTES);
        match self.open_directory().and_then(read) {
            Ok((pem, _)) => Ok(Some(pem)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the node's private key. Returns when no power cut can take it away.
    pub fn set_node_key(&self, pem: &str) -> io::Result<()> {
        self.set_key(NODE_KEY, pem)
    }

    /// Writes the private key that is to take the place of the node's, as [`Self::set_node_key`] does.
    pub fn set_next_key(&self, text: &str) -> io::Result<()> {
        self.set_key(NEXT_KEY, text)
    }

    fn set_key(&self, name: &str, pem: &str) -> io::Result<()> {
        let pilot_directory = self.open_or_create()?;
        let folder = pilot_directory.create_folder(TLS, 0o700)?;
        folder.write_file(name, pem.as_bytes(), 0o600)?;
        folder.sync()?;
        pilot_directory.sync()
    }

    /// Removes the private key that was to take the place of the node's, where there is one.
    pub fn remove_next_key(&self) -> io::Result<()> {
        let remove = |folder: FolderHandle| {
            let folder = folder.open_folder(TLS)?;
            folder.remove_file(NEXT_KEY)?;
            folder.sync()
        };
        match self.open_directory().and_then(remove) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn ensure_reserve(&self) -> io::Result<()> {
        let folder = self.open_or_create()?;
        if folder.read_file(RESERVE).is_ok_and(|stored| stored.len() == RESERVED) {
            return Ok(());
        }
        // A file system that packs files would keep no room for zeros.
        let content: Vec<u8> = (0..RESERVED).map(|_| rand::random()).collect();
        folder.write_file(RESERVE, &content, 0o600)?;
        folder.sync()
    }

    pub fn end_run(&self) -> io::Result<()> {
        match self.open_directory().and_then(|folder| folder.remove_file(RUN)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the folder when it is missing.
    pub fn ensure_directory(&self) -> io::Result<()> {
        self.open_or_create().map(drop)
    }

    /// Opens or makes the folder. A new folder is on the disk only when the data directory is:
    /// without that the data would have no mark after a power cut.
    fn open_or_create(&self) -> io::Result<FolderHandle> {
        let data = FolderHandle::open(&self.0)?;
        match data.open_folder(FOLDER) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = data.create_folder(FOLDER, 0o700)?;
                data.sync()?;
                Ok(folder)
            }
            result => result,
        }
    }

    fn open_directory(&self) -> io::Result<FolderHandle> {
        FolderHandle::open(&self.0)?.open_folder(FOLDER)
    }

    pub(super) fn read_file<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match self.open_directory().and_then(|folder| folder.read_file(name)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_file<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let folder = self.open_or_create()?;
        let content = serde_json::to_vec_pretty(value)?;
        match folder.write_file(name, &content, 0o600) {
            Err(error) if is_full(&error) && folder.remove_file(RESERVE).is_ok() => {
                folder.write_file(name, &content, 0o600)?;
            }
            result => result?,
        }
        // A new name is on the disk only when its folder is.
        folder.sync()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_is_written_reads_back_and_is_nobody_elses() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
        assert_eq!(files.read_mark().unwrap(), None);
        let mark = VolumeMark { pilot: "cass-demo-a-0".into(), ..VolumeMark::default() };
        files.set_mark(&mark).unwrap();
        assert_eq!(files.read_mark().unwrap(), Some(mark));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&data.path().join(FOLDER)), 0o700);
        assert_eq!(mode(&data.path().join(FOLDER).join(MARK)), 0o600);
        files.end_run().unwrap();
    }

    #[test]
    fn a_start_keeps_room_for_later() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
        let run = DatabaseRun {
            pid: 7,
            start_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
            pilot_version: String::new(),
        };
        let reserve = data.path().join(FOLDER).join(RESERVE);
        for _ in 0..2 {
            files.begin_run(&run).unwrap();
            assert_eq!(fs::metadata(&reserve).unwrap().len(), 64 << 10);
            fs::remove_file(&reserve).unwrap();
        }
    }

    #[test]
    fn the_nodes_key_is_readable_by_its_owner_alone() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
        assert_eq!(files.node_key().unwrap(), None);
        files.set_node_key("key").unwrap();
        assert_eq!(files.node_key().unwrap().unwrap(), b"key");
        assert_eq!(files.next_key().unwrap(), None);
        files.remove_next_key().unwrap();
        files.set_next_key("next").unwrap();
        assert_eq!(files.next_key().unwrap().unwrap(), b"next");
        files.remove_next_key().unwrap();
        assert_eq!(files.next_key().unwrap(), None);
        let folder = data.path().join(FOLDER).join(TLS);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(NODE_KEY))), (0o700, 0o600));
        // What is no file is an error, and not a node without a key: that would make another one.
        fs::remove_file(folder.join(NODE_KEY)).unwrap();
        fs::create_dir(folder.join(NODE_KEY)).unwrap();
        assert!(files.node_key().is_err());
    }

    #[test]
    fn a_broken_file_is_an_error_and_not_an_empty_answer() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
        files.ensure_directory().unwrap();
        fs::write(data.path().join(FOLDER).join(MARK), "{").unwrap();
        assert!(files.read_mark().is_err());
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_is_not_followed() {
        let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), data.path().join(FOLDER)).unwrap();
        let files = PilotFiles::for_directory(data.path());
        assert!(files.ensure_directory().is_err());
        assert!(files.set_mark(&VolumeMark::default()).is_err());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
