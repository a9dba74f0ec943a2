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

use super::{PreflightContext, failed_check};
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
pub fn read_space(data: &Path) -> io::Result<VolumeSpace> {
    let stat = statvfs(data)?;
    let data_path = data.display();
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    let to_signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let free = bytes(stat.blocks_available());
    let full = if free < LEAST_FREE {
        Some(format!(
            "volume at {data_path} has {} MiB left of the {} MiB that a start needs; free space or \
             grow it",
            free >> 20,
            LEAST_FREE >> 20
        ))
    } else if stat.files() > 0 && stat.files_available() < LEAST_INODES {
        let free_inodes = stat.files_available();
        Some(format!(
            "volume at {data_path} has {free_inodes} inodes left; remove files or grow it"
        ))
    } else {
        None
    };
    let storage = PilotStorage {
        path: data_path.to_string(),
        capacity_bytes: to_signed(bytes(stat.blocks())),
        used_bytes: to_signed(bytes(stat.blocks().saturating_sub(stat.blocks_free()))),
        ..PilotStorage::default()
    };
    Ok(VolumeSpace { storage, free, full })
}

pub(super) fn check_directory(
    node: &DatabaseNode,
    host: &PreflightContext,
    lock: &mut Option<VolumeLock>,
) -> Result<(), FailedCheck> {
    let data = &node.data;
    let data_path = data.display();
    let problem = |message| failed_check("PreflightFailed", message);
    let metadata = fs::metadata(data).map_err(|error| {
        problem(format!(
            "data directory {data_path} cannot be used: {error}; mount the volume there"
        ))
    })?;
    if !metadata.is_dir() {
        return Err(problem(format!(
            "{data_path} is not a directory; mount the data volume there"
        )));
    }
    if host.require_mount {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let real_path = fs::canonicalize(data).unwrap_or_else(|_| data.clone());
        if !is_mounted(&real_path, &mounts) {
            return Err(problem(format!(
                "{data_path} is not a mounted volume, so data would be lost with the container; \
                 mount one"
            )));
        }
    }
    PilotFiles::for_directory(data).ensure_directory().and_then(|()| probe_write(data)).map_err(
        |error| match error.raw_os_error() {
            Some(nix::libc::ENOSPC) => failed_check(
                "DiskFull",
                format!("volume at {data_path} is full; free space or grow it"),
            ),
            Some(nix::libc::EROFS) => problem(format!(
                "volume at {data_path} is mounted read-only; see why, a file system with errors is"
            )),
            _ => {
                let uid = nix::unistd::geteuid();
                problem(format!(
                    "{data_path} cannot be written by uid {uid}: {error}; check fsGroup or owner"
                ))
            }
        },
    )?;
    let space = read_space(data)
        .map_err(|error| problem(format!("space left at {data_path} is unknown: {error}")))?;
    if let Some(full) = space.full {
        return Err(failed_check("DiskFull", full));
    }
    let capacity = u64::try_from(space.storage.capacity_bytes).unwrap_or_default();
    if let Some(needed) = host.shortage.required_bytes(space.free, capacity) {
        return Err(failed_check(
            "DiskFull",
            format!(
                "the database ended for want of room again and again; it is started once {} MiB are \
                 free on the volume at {data_path}, and {} MiB are: free space or grow it",
                needed >> 20,
                space.free >> 20
            ),
        ));
    }
    if lock.is_none() {
        let folder = File::open(data).map_err(|error| problem(format!("{data_path}: {error}")))?;
        *lock = Some(Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|_| {
            problem(format!("{data_path} is in use by another pilot; only one may run on it"))
        })?);
    }
    Ok(())
}

/// Does a mount other than the root's hold this path? The root is the image's layer.
fn is_mounted(path: &Path, mountinfo: &str) -> bool {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape_path);
    let containing_mounts = points.filter(|point| path.starts_with(point));
    containing_mounts
        .max_by_key(|point| point.components().count())
        .is_some_and(|point| point != Path::new("/"))
}

/// Decodes a path of mountinfo, where the kernel writes white space and backslashes as `\040`.
fn unescape_path(point: &str) -> PathBuf {
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
    let folder = FolderHandle::open(data)?.open_folder(FOLDER)?;
    folder.write_file("probe", &[0; 4096], 0o600)?;
    folder.remove_file("probe")
}

/// Are the data on the volume this node's? A volume without a mark gets one when it is empty, or
/// when the Pilot's annotation adopts its data.
pub(super) fn check_identity(
    node: &DatabaseNode,
    host: &PreflightContext,
) -> Result<(), FailedCheck> {
    let data_path = node.data.display();
    let files = PilotFiles::for_directory(&node.data);
    let mismatch = |message| failed_check("IdentityMismatch", message);
    let mark_error =
        |error| mismatch(format!("mark of the data at {data_path} cannot be used: {error}"));
    let spec = &node.pilot.spec;
    let desired_mark = VolumeMark {
        kind: spec.cluster_ref.as_ref().map(|cluster| cluster.kind.clone()),
        namespace: Some(host.namespace.clone()),
        cluster: spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone()),
        cluster_uid: node.cluster_uid.clone(),
        pilot: node.pilot.metadata.name.clone().unwrap_or_default(),
        ..VolumeMark::default()
    };
    let is_adopted = ring::is_adopted(&node.pilot);
    let hint =
        format!("if they are this node's, annotate the Pilot with {}=true", annotation::ADOPT_DATA);
    let read_error = |error| {
        let text = format!("mark of the data at {data_path} cannot be read: {error}");
        mismatch(format!("{text}; remove {FOLDER}/identity.json there; {hint}"))
    };
    let Some(stored_mark) = files.read_mark().map_err(read_error)? else {
        if !is_adopted && !is_empty(&node.data).map_err(mark_error)? {
            return Err(mismatch(format!(
                "{data_path} holds data without Navigator's mark; {hint}"
            )));
        }
        return files.set_mark(&desired_mark).map_err(mark_error);
    };
    // A cluster that was deleted and made again on its retained volumes has a new uid and the
    // same names; a volume of another node or cluster has other names. Whose ring the data are of
    // is decided when the node takes its turn, and the uid written then.
    let is_same_place =
        (&stored_mark.kind, &stored_mark.namespace, &stored_mark.cluster, &stored_mark.pilot)
            == (
                &desired_mark.kind,
                &desired_mark.namespace,
                &desired_mark.cluster,
                &desired_mark.pilot,
            );
    if is_same_place {
        return Ok(());
    }
    if !is_adopted {
        return Err(mismatch(format!(
            "{data_path} holds the data of {} in cluster {}/{}; {hint}",
            stored_mark.pilot,
            stored_mark.namespace.as_deref().unwrap_or("?"),
            stored_mark.cluster.as_deref().unwrap_or("?"),
        )));
    }
    info!(was = stored_mark.pilot, of = ?stored_mark.cluster, "Adopted the data of another node");
    let VolumeMark { kind, namespace, cluster, pilot, .. } = desired_mark;
    files
        .set_mark(&VolumeMark { kind, namespace, cluster, pilot, ..stored_mark })
        .map_err(mark_error)
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
