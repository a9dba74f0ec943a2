//! Checks before anything is started: distributions, Java, memory, disk, a free address.
//!
//! Each failure is one line that says what was found and what to do.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{CommandFailure, manifest_files::ManifestDocument};
use crate::{
    database::{Database, DatabaseList},
    local::{homes::DatabaseHomes, node, state_folder::StateFolder},
    machinery::quantity,
    pilot::database::{DrivenDatabase, JavaLocation},
    runtime::cgroup,
};

const MIB: u64 = 1 << 20;
/// Least free disk space for the data of one node, in bytes.
const LEAST_DISK: u64 = 256 * MIB;
/// Least memory of a JVM database beside its heap, in bytes.
const BESIDE_HEAP: u64 = 384 * MIB;
/// Memory that is assumed for a node whose spec names neither a heap nor a limit, in bytes.
const USUAL: u64 = 1536 * MIB;

/// A cluster among the given files.
pub(super) struct ClusterDocument<'a> {
    document: &'a ManifestDocument,
    database: &'static Database,
}

/// Returns the clusters of our databases among `documents`.
pub(super) fn find_clusters(
    databases: DatabaseList,
    documents: &[ManifestDocument],
) -> Vec<ClusterDocument<'_>> {
    let database = |document: &ManifestDocument| {
        let is_own_group = document.text("/apiVersion").starts_with(crate::api::GROUP);
        databases
            .iter()
            .find(|candidate| is_own_group && candidate.controller.names.kind == document.kind())
    };
    documents
        .iter()
        .filter_map(|document| Some(ClusterDocument { document, database: database(document)? }))
        .collect()
}

/// Checks that there is a distribution of each version that the clusters need, and Java where a
/// distribution needs it.
pub(super) fn check_distributions(
    clusters: &[ClusterDocument<'_>],
    homes: &DatabaseHomes,
) -> Result<(), CommandFailure> {
    for ClusterDocument { document, database } in clusters {
        let version = document.text("/spec/version");
        if version.is_empty() {
            // The API refuses a cluster without a version, and says why.
            continue;
        }
        let usage_failure =
            |text: String| CommandFailure::usage(format!("{}: {text}", document.place));
        let home = homes
            .find(database.pilot, version)
            .map_err(|error| usage_failure(error.to_string()))?;
        if let Some(message) = check_java(database.pilot, &home.path) {
            return Err(CommandFailure::usage(message));
        }
        if nix::unistd::geteuid().is_root()
            && let Some(closed_folder) = find_closed_folder(&home.path)
        {
            let (home, closed_folder) = (home.path.display(), closed_folder.display());
            return Err(usage_failure(format!(
                "databases run as a user of their own, who cannot read {home}: {closed_folder} is closed \
                 to others; chmod o+rx it, or unpack the distribution elsewhere"
            )));
        }
    }
    Ok(())
}

/// Returns the message for a database that needs Java and will not find it.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
fn check_java(database: &DrivenDatabase, home: &Path) -> Option<String> {
    let JavaLocation { variables, bundled } = database.java.as_ref()?;
    let title = database.names.title;
    let program = |place: PathBuf| place.join("bin/java");
    for variable in *variables {
        if let Some(place) = std::env::var_os(variable).filter(|place| !place.is_empty()) {
            let program = program(place.into());
            let message =
                || format!("{variable}: there is no {}; {title} runs on Java", program.display());
            return (!program.is_file()).then(message);
        }
    }
    if bundled.is_some_and(|subfolder| program(home.join(subfolder)).is_file()) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join("java").is_file()) {
        return None;
    }
    let variable = variables.last().unwrap_or(&"JAVA_HOME");
    Some(format!(
        "{title} runs on Java, and there is none: install it (Debian: apt-get install \
         openjdk-17-jre-headless), or set {variable}"
    ))
}

/// Returns the folder at or above `home` that other users cannot pass through.
fn find_closed_folder(home: &Path) -> Option<&Path> {
    use std::os::unix::fs::PermissionsExt;
    let is_open = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    };
    home.ancestors().find(|path| !is_open(path))
}

/// Checks that there is enough memory and disk for these clusters.
pub(super) fn check_resources(
    clusters: &[&ClusterDocument<'_>],
    folder: &StateFolder,
) -> Result<(), CommandFailure> {
    let node_bytes: Vec<u64> =
        clusters.iter().flat_map(|cluster| estimate_node_memory(&cluster.document.body)).collect();
    let count = u64::try_from(node_bytes.len()).unwrap_or(u64::MAX);
    let needed_bytes: u64 = node_bytes.iter().sum();
    let free_bytes =
        node::read_memory("MemAvailable").into_iter().chain(cgroup::memory_limit()).min();
    if let Some(free_bytes) = free_bytes.filter(|free_bytes| *free_bytes < needed_bytes) {
        return Err(CommandFailure::new(format!(
            "{count} nodes take {} MiB of memory, and {} MiB are free; end other programs, or take \
             fewer nodes or a smaller spec.jvm.heap",
            needed_bytes / MIB,
            free_bytes / MIB
        )));
    }
    let place = folder.path().ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    if let Ok(stat) = nix::sys::statvfs::statvfs(place) {
        let free_bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
        let needed_bytes = LEAST_DISK.saturating_mul(count);
        if free_bytes < needed_bytes {
            return Err(CommandFailure::new(format!(
                "{count} nodes take {} MiB of disk at least, and {} MiB are free at {}; free space, \
                 or give another --dir",
                needed_bytes / MIB,
                free_bytes / MIB,
                folder.path().display()
            )));
        }
    }
    Ok(())
}

impl<'a> ClusterDocument<'a> {
    pub(super) fn document(&self) -> &'a ManifestDocument {
        self.document
    }

    pub(super) fn database(&self) -> &'static Database {
        self.database
    }
}

/// Returns the memory that each node of a cluster needs at least, as far as its spec says.
fn estimate_node_memory(body: &Value) -> Vec<u64> {
    let parse_bytes = |value: Option<&Value>| {
        let units = quantity::parse_units(value?.as_str()?)?;
        u64::try_from(units).ok()
    };
    let common = parse_bytes(body.pointer("/spec/jvm/heap"));
    let pools = body.pointer("/spec/nodePools").and_then(Value::as_array);
    let mut node_bytes = Vec::new();
    for pool in pools.into_iter().flatten() {
        let replicas = pool.get("replicas").and_then(Value::as_u64).unwrap_or(1).min(1000);
        let heap = parse_bytes(pool.pointer("/jvm/heap")).or(common);
        let limit = parse_bytes(pool.pointer("/resources/limits/memory"));
        let needed_bytes = match (heap, limit) {
            (Some(heap), limit) => (heap + BESIDE_HEAP).min(limit.unwrap_or(u64::MAX)),
            (None, limit) => limit.unwrap_or(USUAL),
        };
        node_bytes.extend((0..replicas).map(|_| needed_bytes));
    }
    node_bytes
}

/// Checks that a server can listen at this address.
pub(super) fn check_address_free(address: SocketAddr) -> Result<(), CommandFailure> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(CommandFailure::new(format!(
                "{address} is in use by another program; give another --address, with port 0 for any"
            )))
        }
        Err(error) => Err(CommandFailure::usage(format!("--address {address}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_is_counted_by_what_the_spec_says_of_each_node() {
        let body = json!({"spec": {"jvm": {"heap": "384Mi"}, "nodePools": [
            {"replicas": 2, "resources": {"limits": {"memory": "1536Mi"}}},
            {"replicas": 1, "resources": {"limits": {"memory": "512Mi"}}},
            {"replicas": 1, "jvm": {"heap": "1Gi"}},
        ]}});
        assert_eq!(estimate_node_memory(&body), [768 * MIB, 768 * MIB, 512 * MIB, 1408 * MIB]);
        let body = json!({"spec": {"nodePools": [
            {"replicas": 1, "resources": {"limits": {"memory": "2Gi"}}}, {},
        ]}});
        assert_eq!(estimate_node_memory(&body), [2048 * MIB, USUAL]);
        assert_eq!(estimate_node_memory(&json!({})), [0; 0]);
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(check_address_free(address).unwrap_err().text.contains(&address.to_string()));
        drop(taken);
        check_address_free(address).unwrap();
    }
}
