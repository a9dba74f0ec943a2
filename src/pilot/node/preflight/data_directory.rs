//! Is the data directory a volume, writable, with room, and free; and are the data this node's?

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statvfs::statvfs,
};
use tracing::info;

use super::{PreflightContext, failed};
use crate::{
    api::{names::annotation, v1beta1::PilotStorage},
    pilot::{
        driver::{DatabaseNode, FailedCheck},
        volume::{
            data_volume::VolumeLock,
            folder::FolderHandle,
            pilot_files::{FOLDER, PilotFiles, VolumeMark},
            ring,
        },
    },
};

/// Least free space in bytes: with less, a database does not even come up to make room.
const LEAST_FREE: u64 = 64 << 20;
/// Least number of free inodes: with fewer, a database does not come up. File systems without a
/// fixed number of inodes report 0 in total, and are not checked.
const LEAST_INODES: u64 = 64;

/// Size and use of the data volume, and what is wrong when it has no room for a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    pub storage: PilotStorage,
    /// Bytes that the database can still write.
    pub free: u64,
    pub full: Option<String>,
}

/// Asks the file system at `data` for its size and free space. The call hangs when the volume does.
///
/// # Errors
/// When the file system does not say.
pub fn space(data: &Path) -> io::Result<VolumeSpace> {
    let stat = statvfs(data)?;
    let shown = data.display();
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    let whole = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let free = bytes(stat.blocks_available());
    let full = if free < LEAST_FREE {
        Some(format!(
            "volume at {shown} has {} MiB left of the {} MiB that a start needs; free space or \
             grow it",
            free >> 20,
            LEAST_FREE >> 20
        ))
    } else if stat.files() > 0 && stat.files_available() < LEAST_INODES {
        let left = stat.files_available();
        Some(format!("volume at {shown} has {left} inodes left; remove files or grow it"))
    } else {
        None
    };
    let storage = PilotStorage {
        path: shown.to_string(),
        capacity_bytes: whole(bytes(stat.blocks())),
        used_bytes: whole(bytes(stat.blocks().saturating_sub(stat.blocks_free()))),
        ..PilotStorage::default()
    };
    Ok(VolumeSpace { storage, free, full })
}

pub(super) fn directory(
    node: &DatabaseNode,
    host: &PreflightContext,
    lock: &mut Option<VolumeLock>,
) -> Result<(), FailedCheck> {
    let data = &node.data;
    let shown = data.display();
    let problem = |message| failed("PreflightFailed", message);
    let about = fs::metadata(data).map_err(|error| {
        problem(format!("data directory {shown} cannot be used: {error}; mount the volume there"))
    })?;
    if !about.is_dir() {
        return Err(problem(format!("{shown} is not a directory; mount the data volume there")));
    }
    if host.require_mount {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let real = fs::canonicalize(data).unwrap_or_else(|_| data.clone());
        if !is_mounted(&real, &mounts) {
            return Err(problem(format!(
                "{shown} is not a mounted volume, so data would be lost with the container; \
                 mount one"
            )));
        }
    }
    PilotFiles::of(data).create().and_then(|()| probe_write(data)).map_err(|error| match error
        .raw_os_error()
    {
        Some(nix::libc::ENOSPC) => {
            failed("DiskFull", format!("volume at {shown} is full; free space or grow it"))
        }
        Some(nix::libc::EROFS) => problem(format!(
            "volume at {shown} is mounted read-only; see why, a file system with errors is"
        )),
        _ => {
            let uid = nix::unistd::geteuid();
            problem(format!(
                "{shown} cannot be written by uid {uid}: {error}; check fsGroup or owner"
            ))
        }
    })?;
    let space = space(data)
        .map_err(|error| problem(format!("space left at {shown} is unknown: {error}")))?;
    if let Some(full) = space.full {
        return Err(failed("DiskFull", full));
    }
    let capacity = u64::try_from(space.storage.capacity_bytes).unwrap_or_default();
    if let Some(needed) = host.shortage.lacks(space.free, capacity) {
        return Err(failed(
            "DiskFull",
            format!(
                "the database ended for want of room again and again; it is started once {} MiB are \
                 free on the volume at {shown}, and {} MiB are: free space or grow it",
                needed >> 20,
                space.free >> 20
            ),
        ));
    }
    if lock.is_none() {
        let folder = File::open(data).map_err(|error| problem(format!("{shown}: {error}")))?;
        *lock = Some(Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|_| {
            problem(format!("{shown} is in use by another pilot; only one may run on it"))
        })?);
    }
    Ok(())
}

/// Does a mount other than the root's hold this path? The root is the image's layer.
fn is_mounted(path: &Path, mountinfo: &str) -> bool {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    let holding = points.filter(|point| path.starts_with(point));
    holding
        .max_by_key(|point| point.components().count())
        .is_some_and(|point| point != Path::new("/"))
}

/// Decodes a path of mountinfo, where the kernel writes white space and backslashes as `\040`.
fn unescaped(point: &str) -> PathBuf {
    let mut parts = point.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(3).unwrap_or(("", part));
        path.push(u8::from_str_radix(code, 8).map_or('\\', char::from));
        path.push_str(rest);
    }
    path.into()
}

fn probe_write(data: &Path) -> io::Result<()> {
    let folder = FolderHandle::open(data)?.at(FOLDER)?;
    folder.write("probe", &[0; 4096], 0o600)?;
    folder.remove("probe")
}

/// Are the data on the volume this node's? A volume without a mark gets one when it is empty, or
/// when the Pilot's annotation adopts its data.
pub(super) fn identity(node: &DatabaseNode, host: &PreflightContext) -> Result<(), FailedCheck> {
    let shown = node.data.display();
    let files = PilotFiles::of(&node.data);
    let mismatch = |message| failed("IdentityMismatch", message);
    let broken = |error| mismatch(format!("mark of the data at {shown} cannot be used: {error}"));
    let spec = &node.pilot.spec;
    let wanted = VolumeMark {
        kind: spec.cluster_ref.as_ref().map(|cluster| cluster.kind.clone()),
        namespace: Some(host.namespace.clone()),
        cluster: spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone()),
        cluster_uid: node.cluster_uid.clone(),
        pilot: node.pilot.metadata.name.clone().unwrap_or_default(),
        ..VolumeMark::default()
    };
    let adopted = ring::is_adopted(&node.pilot);
    let hint =
        format!("if they are this node's, annotate the Pilot with {}=true", annotation::ADOPT_DATA);
    let unreadable = |error| {
        let text = format!("mark of the data at {shown} cannot be read: {error}");
        mismatch(format!("{text}; remove {FOLDER}/identity.json there; {hint}"))
    };
    let Some(found) = files.mark().map_err(unreadable)? else {
        if !adopted && !is_empty(&node.data).map_err(broken)? {
            return Err(mismatch(format!("{shown} holds data without Navigator's mark; {hint}")));
        }
        return files.set_mark(&wanted).map_err(broken);
    };
    // A cluster that was deleted and made again on its retained volumes has a new uid and the
    // same names; a volume of another node or cluster has other names. Whose ring the data are of
    // is decided when the node takes its turn, and the uid written then.
    let same_place = (&found.kind, &found.namespace, &found.cluster, &found.pilot)
        == (&wanted.kind, &wanted.namespace, &wanted.cluster, &wanted.pilot);
    if same_place {
        return Ok(());
    }
    if !adopted {
        return Err(mismatch(format!(
            "{shown} holds the data of {} in cluster {}/{}; {hint}",
            found.pilot,
            found.namespace.as_deref().unwrap_or("?"),
            found.cluster.as_deref().unwrap_or("?"),
        )));
    }
    info!(was = found.pilot, of = ?found.cluster, "Adopted the data of another node");
    let VolumeMark { kind, namespace, cluster, pilot, .. } = wanted;
    files.set_mark(&VolumeMark { kind, namespace, cluster, pilot, ..found }).map_err(broken)
}

/// Does the folder hold nothing but what a new file system and the pilot put there?
fn is_empty(data: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name();
        if name != "lost+found" && name != FOLDER {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_volume_of_its_own_counts_as_mounted() {
        let mounts = "21 1 0:20 / / rw - overlay overlay rw\n\
                      22 21 8:1 / /var/lib/my\\040data rw - ext4 /dev/sda1 rw\n\
                      23 21 8:2 / /etc/hosts rw - ext4 /dev/sda2 rw\n";
        for (path, mounted) in [
            ("/var/lib/my data", true),
            ("/var/lib/my data/nodes", true),
            ("/var/lib/my database", false),
            ("/var/lib/other", false),
            ("/", false),
        ] {
            assert_eq!(is_mounted(Path::new(path), mounts), mounted, "{path}");
        }
        assert!(!is_mounted(Path::new("/data"), ""));
    }
}
