//! Checks of the host and the data volume that every flavour needs, before anything starts.
//!
//! Every failed check says what was found and what to do. The calls here
//! block: a [`Volume`](super::volume::Volume) is where they are made.

use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::Path,
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::{resource, statvfs::statvfs},
};
use tracing::{info, warn};

use super::{
    database::{FailedCheck, Node},
    files::{FOLDER, Files, Mark},
    volume::Lock,
};
use crate::api::{names::annotation, v1beta1::PilotStorage};

/// Less free space than this, and a database does not even come up to make room.
const LEAST_FREE: u64 = 64 << 20;

/// What the checks must know beyond the node itself.
#[derive(Clone, Debug)]
pub struct Host {
    /// The data directory must be a mount: in a container anything else is the image's layer.
    pub require_mount: bool,
    /// TCP ports that the database will listen on, at the node's address.
    pub ports: Vec<u16>,
    pub namespace: String,
}

/// Runs every check; `lock` is filled with the lock of the data directory when it is free.
pub fn check(node: &Node, host: &Host, lock: &mut Option<Lock>) -> Vec<FailedCheck> {
    let mut failed = Vec::new();
    raise_open_files();
    match data_directory(node, host, lock) {
        // Nothing else about the data can be said.
        Err(check) => failed.push(check),
        Ok(()) => failed.extend(identity(node, host).err()),
    }
    failed.extend(address(node, host).err());
    failed
}

/// Size and use of the data volume.
pub fn storage(data: &Path) -> Option<PilotStorage> {
    let stat = statvfs(data).ok()?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.fragment_size())).ok();
    let (all, free) = (stat.blocks(), stat.blocks_free());
    Some(PilotStorage {
        path: data.display().to_string(),
        capacity_bytes: bytes(all)?,
        used_bytes: bytes(all.saturating_sub(free))?,
    })
}

fn failed(reason: &'static str, message: String) -> FailedCheck {
    FailedCheck { reason, message }
}

fn data_directory(node: &Node, host: &Host, lock: &mut Option<Lock>) -> Result<(), FailedCheck> {
    let data = &node.data;
    let shown = data.display();
    let problem = |message| failed("PreflightFailed", message);
    let about = fs::metadata(data).map_err(|error| {
        problem(format!("data directory {shown} cannot be used: {error}; mount the volume there"))
    })?;
    if !about.is_dir() {
        return Err(problem(format!("{shown} is not a directory; mount the data volume there")));
    }
    let parent = data.parent().and_then(|parent| fs::metadata(parent).ok());
    if host.require_mount && parent.is_some_and(|parent| parent.dev() == about.dev()) {
        return Err(problem(format!(
            "{shown} is not a mounted volume, so data would be lost with the container; mount one"
        )));
    }
    let full = |error: &io::Error| error.raw_os_error() == Some(nix::libc::ENOSPC);
    Files::of(data).create().and_then(|()| probe_write(data)).map_err(|error| {
        if full(&error) {
            return failed("DiskFull", format!("volume at {shown} is full; free space or grow it"));
        }
        let uid = nix::unistd::geteuid();
        problem(format!("{shown} cannot be written by uid {uid}: {error}; check fsGroup or owner"))
    })?;
    let stat = statvfs(data)
        .map_err(|error| problem(format!("space left at {shown} is unknown: {error}")))?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    if free < LEAST_FREE {
        let message = format!(
            "volume at {shown} has {} MiB left of the {} MiB that a start needs; free space or \
             grow it",
            free >> 20,
            LEAST_FREE >> 20
        );
        return Err(failed("DiskFull", message));
    }
    if lock.is_none() {
        let folder = File::open(data).map_err(|error| problem(format!("{shown}: {error}")))?;
        *lock = Some(Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|_| {
            problem(format!("{shown} is in use by another pilot; only one may run on it"))
        })?);
    }
    Ok(())
}

fn probe_write(data: &Path) -> io::Result<()> {
    let path = data.join(FOLDER).join("probe");
    fs::write(&path, [0; 4096])?;
    fs::remove_file(path)
}

/// Are these data this node's? A volume without a mark is taken only when it is empty; then it
/// gets one.
fn identity(node: &Node, host: &Host) -> Result<(), FailedCheck> {
    let shown = node.data.display();
    let files = Files::of(&node.data);
    let mismatch = |message| failed("IdentityMismatch", message);
    let broken = |error| mismatch(format!("mark of the data at {shown} cannot be used: {error}"));
    let spec = &node.pilot.spec;
    let wanted = Mark {
        kind: spec.cluster_ref.as_ref().map(|cluster| cluster.kind.clone()),
        namespace: Some(host.namespace.clone()),
        cluster: spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone()),
        cluster_uid: node.cluster_uid.clone(),
        pilot: node.pilot.metadata.name.clone().unwrap_or_default(),
        ..Mark::default()
    };
    let annotations = node.pilot.metadata.annotations.as_ref();
    let adopted = annotations
        .and_then(|all| all.get(annotation::ADOPT_DATA))
        .is_some_and(|value| value == "true");
    let hint =
        format!("if they are this node's, annotate the Pilot with {}=true", annotation::ADOPT_DATA);
    let Some(found) = files.mark().map_err(broken)? else {
        if !adopted && !is_empty(&node.data).map_err(broken)? {
            return Err(mismatch(format!("{shown} holds data without Navigator's mark; {hint}")));
        }
        return files.set_mark(&wanted).map_err(broken);
    };
    let Mark { cluster_id, node_id, since, founding, .. } = found.clone();
    let kept = Mark { cluster_id, node_id, since, founding, ..wanted.clone() };
    if found == kept {
        return Ok(());
    }
    // A cluster that was deleted and made again on its retained volumes has a new uid and the
    // same names; a volume of another node or cluster has other names.
    let same_place = (&found.kind, &found.namespace, &found.cluster, &found.pilot)
        == (&wanted.kind, &wanted.namespace, &wanted.cluster, &wanted.pilot);
    if !same_place && !adopted {
        return Err(mismatch(format!(
            "{shown} holds the data of {} in cluster {}/{}; {hint}",
            found.pilot,
            found.namespace.as_deref().unwrap_or("?"),
            found.cluster.as_deref().unwrap_or("?"),
        )));
    }
    info!(was = ?found.cluster_uid, now = ?kept.cluster_uid, "Adopted the data of this node");
    files.set_mark(&kept).map_err(broken)
}

/// Nothing but what a new file system and we ourselves put there.
fn is_empty(data: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name();
        if name != "lost+found" && name != FOLDER {
            return Ok(false);
        }
    }
    Ok(true)
}

fn address(node: &Node, host: &Host) -> Result<(), FailedCheck> {
    let address = node.address;
    let problem = |message| failed("PreflightFailed", message);
    for port in [0].iter().chain(&host.ports) {
        match TcpListener::bind((address, *port)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let message =
                    format!("port {port} of {address} is in use; stop what listens there");
                return Err(problem(message));
            }
            Err(error) => {
                return Err(problem(format!("address {address} is not this machine's: {error}")));
            }
        }
    }
    Ok(())
}

/// A database wants many files, and the soft limit is what it gets; the hard one is what it may.
fn raise_open_files() {
    let raised = resource::getrlimit(resource::Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            resource::setrlimit(resource::Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(())
    });
    if let Err(error) = raised {
        warn!(%error, "Limit of open files cannot be raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::{ClusterRef, Pilot};

    fn node(data: &Path, uid: &str) -> Node {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("cass-demo-a-0".into());
        pilot.spec.cluster_ref =
            Some(ClusterRef { kind: "CassandraCluster".into(), name: "demo".into() });
        Node {
            pilot,
            peers: vec![],
            cluster_uid: Some(uid.into()),
            address: "127.0.0.1".parse().unwrap(),
            home: "/".into(),
            data: data.into(),
            config: "/".into(),
            shared: "/".into(),
            memory_limit: None,
            may_found: false,
        }
    }

    fn host() -> Host {
        Host { require_mount: false, ports: vec![], namespace: "default".into() }
    }

    fn reasons(node: &Node, host: &Host) -> Vec<&'static str> {
        check(node, host, &mut None).into_iter().map(|check| check.reason).collect()
    }

    #[test]
    fn an_empty_volume_is_marked_and_known_again() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("lost+found")).unwrap();
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
        fs::write(data.path().join("rows"), "x").unwrap();
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
        // The cluster was deleted and made again.
        assert_eq!(reasons(&node(data.path(), "u2"), &host()), [""; 0]);
        let mark = Files::of(data.path()).mark().unwrap().unwrap();
        assert_eq!(mark.cluster_uid.as_deref(), Some("u2"));
    }

    #[test]
    fn data_of_somebody_else_or_nobody_are_refused_until_adopted() {
        let unmarked = tempfile::tempdir().unwrap();
        fs::write(unmarked.path().join("rows"), "x").unwrap();
        let foreign = tempfile::tempdir().unwrap();
        let mark = Mark { pilot: "cass-other-a-0".into(), ..Mark::default() };
        Files::of(foreign.path()).set_mark(&mark).unwrap();
        for data in [unmarked.path(), foreign.path()] {
            let mut node = node(data, "u1");
            assert_eq!(reasons(&node, &host()), ["IdentityMismatch"]);
            node.pilot.metadata.annotations =
                Some([(annotation::ADOPT_DATA.to_owned(), "true".to_owned())].into());
            assert_eq!(reasons(&node, &host()), [""; 0]);
            node.pilot.metadata.annotations = None;
            assert_eq!(reasons(&node, &host()), [""; 0], "adopted once is adopted");
        }
    }

    #[test]
    fn a_directory_serves_one_pilot_at_a_time() {
        let data = tempfile::tempdir().unwrap();
        let mut held = None;
        assert!(check(&node(data.path(), "u1"), &host(), &mut held).is_empty());
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), ["PreflightFailed"]);
        drop(held);
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
    }

    #[test]
    fn a_missing_mount_a_taken_port_and_a_foreign_address_are_told() {
        let data = tempfile::tempdir().unwrap();
        let mounted = Host { require_mount: true, ..host() };
        assert_eq!(reasons(&node(data.path(), "u1"), &mounted), ["PreflightFailed"]);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = vec![taken.local_addr().unwrap().port()];
        assert_eq!(
            reasons(&node(data.path(), "u1"), &Host { ports, ..host() }),
            ["PreflightFailed"]
        );
        let mut elsewhere = node(data.path(), "u1");
        elsewhere.address = "203.0.113.1".parse().unwrap();
        assert_eq!(reasons(&elsewhere, &host()), ["PreflightFailed"]);
        assert_eq!(reasons(&node(Path::new("/nonexistent"), "u1"), &host()), ["PreflightFailed"]);
    }
}
