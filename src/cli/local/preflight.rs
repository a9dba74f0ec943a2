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
pub(super) fn clusters(
    databases: DatabaseList,
    documents: &[ManifestDocument],
) -> Vec<ClusterDocument<'_>> {
    let database = |document: &ManifestDocument| {
        let ours = document.text("/apiVersion").starts_with(crate::api::GROUP);
        databases.iter().find(|known| ours && known.controller.names.kind == document.kind())
    };
    documents
        .iter()
        .filter_map(|document| Some(ClusterDocument { document, database: database(document)? }))
        .collect()
}

/// Checks that there is a distribution of each version that the clusters need, and Java where a
/// distribution needs it.
pub(super) fn distributions(
    wanted: &[ClusterDocument<'_>],
    homes: &DatabaseHomes,
) -> Result<(), CommandFailure> {
    for ClusterDocument { document, database } in wanted {
        let version = document.text("/spec/version");
        if version.is_empty() {
            // The API refuses a cluster without a version, and says why.
            continue;
        }
        let fail = |text: String| CommandFailure::usage(format!("{}: {text}", document.place));
        let home =
            homes.find(database.pilot, version).map_err(|missing| fail(missing.to_string()))?;
        if let Some(missing) = java(database.pilot, &home.path) {
            return Err(CommandFailure::usage(missing));
        }
        if nix::unistd::geteuid().is_root()
            && let Some(closed) = closed(&home.path)
        {
            let (home, closed) = (home.path.display(), closed.display());
            return Err(fail(format!(
                "databases run as a user of their own, who cannot read {home}: {closed} is closed \
                 to others; chmod o+rx it, or unpack the distribution elsewhere"
            )));
        }
    }
    Ok(())
}

/// Returns the message for a database that needs Java and will not find it.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
fn java(database: &DrivenDatabase, home: &Path) -> Option<String> {
    let JavaLocation { variables, bundled } = database.java.as_ref()?;
    let title = database.names.title;
    let program = |place: PathBuf| place.join("bin/java");
    for variable in *variables {
        if let Some(place) = std::env::var_os(variable).filter(|place| !place.is_empty()) {
            let program = program(place.into());
            let missing =
                || format!("{variable}: there is no {}; {title} runs on Java", program.display());
            return (!program.is_file()).then(missing);
        }
    }
    if bundled.is_some_and(|below| program(home.join(below)).is_file()) {
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
fn closed(home: &Path) -> Option<&Path> {
    use std::os::unix::fs::PermissionsExt;
    let open = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 != 0)
    };
    home.ancestors().find(|path| !open(path))
}

/// Checks that there is enough memory and disk for these clusters.
pub(super) fn room(
    wanted: &[&ClusterDocument<'_>],
    folder: &StateFolder,
) -> Result<(), CommandFailure> {
    let nodes: Vec<u64> = wanted.iter().flat_map(|wanted| nodes(&wanted.document.body)).collect();
    let count = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
    let needed: u64 = nodes.iter().sum();
    let free = node::memory("MemAvailable").into_iter().chain(cgroup::memory_limit()).min();
    if let Some(free) = free.filter(|free| *free < needed) {
        return Err(CommandFailure::new(format!(
            "{count} nodes take {} MiB of memory, and {} MiB are free; end other programs, or take \
             fewer nodes or a smaller spec.jvm.heap",
            needed / MIB,
            free / MIB
        )));
    }
    let place = folder.path().ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    if let Ok(stat) = nix::sys::statvfs::statvfs(place) {
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        let needed = LEAST_DISK.saturating_mul(count);
        if free < needed {
            return Err(CommandFailure::new(format!(
                "{count} nodes take {} MiB of disk at least, and {} MiB are free at {}; free space, \
                 or give another --dir",
                needed / MIB,
                free / MIB,
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
fn nodes(body: &Value) -> Vec<u64> {
    let bytes = |value: Option<&Value>| {
        let units = quantity::units(value?.as_str()?)?;
        u64::try_from(units).ok()
    };
    let common = bytes(body.pointer("/spec/jvm/heap"));
    let pools = body.pointer("/spec/nodePools").and_then(Value::as_array);
    let mut all = Vec::new();
    for pool in pools.into_iter().flatten() {
        let replicas = pool.get("replicas").and_then(Value::as_u64).unwrap_or(1).min(1000);
        let heap = bytes(pool.pointer("/jvm/heap")).or(common);
        let limit = bytes(pool.pointer("/resources/limits/memory"));
        let taken = match (heap, limit) {
            (Some(heap), limit) => (heap + BESIDE_HEAP).min(limit.unwrap_or(u64::MAX)),
            (None, limit) => limit.unwrap_or(USUAL),
        };
        all.extend((0..replicas).map(|_| taken));
    }
    all
}

/// Checks that a server can listen at this address.
pub(super) fn free(address: SocketAddr) -> Result<(), CommandFailure> {
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
        assert_eq!(nodes(&body), [768 * MIB, 768 * MIB, 512 * MIB, 1408 * MIB]);
        let body = json!({"spec": {"nodePools": [
            {"replicas": 1, "resources": {"limits": {"memory": "2Gi"}}}, {},
        ]}});
        assert_eq!(nodes(&body), [2048 * MIB, USUAL]);
        assert_eq!(nodes(&json!({})), [0; 0]);
    }

    #[test]
    fn an_address_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(free(address).unwrap_err().text.contains(&address.to_string()));
        drop(taken);
        free(address).unwrap();
    }
}
