//! What the kernel lets a process have: open files, processes, mappings, locked memory.

use std::{fs, path::Path};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use tracing::warn;

use super::failed_check;
use crate::pilot::driver::{FailedCheck, KernelNeeds};

/// End of each message: the way out for a user who cannot raise the limit.
const ALL_THE_SAME: &str =
    "; or start it at your own risk with spec.pilotSettings.allowLowLimits: true";

/// The kernel's limits for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelLimits {
    open_files: u64,
    processes: u64,
    mappings: u64,
    locked_memory: u64,
}

impl KernelLimits {
    /// Raises each soft limit of this process, and so of its children, to the hard one, and returns
    /// the limits: a soft limit is what a process gets, the hard one what it may take.
    pub(super) fn of_this_process() -> Self {
        Self {
            open_files: raise_limit(Resource::RLIMIT_NOFILE),
            processes: raise_limit(Resource::RLIMIT_NPROC),
            locked_memory: raise_limit(Resource::RLIMIT_MEMLOCK),
            mappings: read_number(Path::new("/proc/sys/vm/max_map_count")),
        }
    }

    /// Returns a failed check for each limit that falls short of the database's needs.
    pub(super) fn check_needs(&self, needs: &KernelNeeds) -> Vec<FailedCheck> {
        let check_limit = |what: &str, actual: u64, required: u64, remedy: &str| {
            (actual < required).then(|| {
                let message =
                    format!("{what} is {actual}, {required} are needed; {remedy}{ALL_THE_SAME}");
                failed_check("PreflightFailed", message)
            })
        };
        let files = check_limit(
            "the limit of open files",
            self.open_files,
            needs.open_files,
            "raise the hard limit (ulimit -Hn) of the container runtime or the service",
        );
        let processes = check_limit(
            "the limit of processes",
            self.processes,
            needs.processes,
            "raise the hard limit (ulimit -Hu) of the container runtime or the service",
        );
        let mappings = check_limit(
            "vm.max_map_count",
            self.mappings,
            needs.mappings,
            "set it on the machine: sysctl -w vm.max_map_count=262144",
        );
        let locked_memory = (needs.locks_memory && self.locked_memory != RLIM_INFINITY).then(|| {
            let message = format!(
                "memory is to be locked, and at most {} bytes may be; lift the limit (ulimit -Hl) \
                 or the setting{ALL_THE_SAME}",
                self.locked_memory
            );
            failed_check("PreflightFailed", message)
        });
        [files, processes, mappings, locked_memory].into_iter().flatten().collect()
    }
}

fn raise_limit(resource: Resource) -> u64 {
    let (soft, hard) = getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    if soft >= hard {
        return soft;
    }
    match setrlimit(resource, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            warn!(?resource, %error, "Limit cannot be raised");
            soft
        }
    }
}

/// Reads the number in a file of /proc; a file that cannot be read counts as no limit.
fn read_number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_that_is_too_low_is_told() {
        let limits = KernelLimits {
            open_files: 1024,
            processes: 100,
            mappings: 65_530,
            locked_memory: 8192,
        };
        assert_eq!(limits.check_needs(&KernelNeeds::default()), []);
        let needs = KernelNeeds {
            open_files: 65_535,
            processes: 4096,
            mappings: 262_144,
            locks_memory: true,
        };
        let told: Vec<_> =
            limits.check_needs(&needs).into_iter().map(|check| check.message).collect();
        for (message, part) in told.iter().zip([
            "open files is 1024, 65535 are needed",
            "processes is 100",
            "vm.max_map_count is 65530",
            "at most 8192 bytes",
        ]) {
            assert!(message.contains(part), "{message}");
        }
        let enough = KernelLimits {
            open_files: 65_535,
            processes: RLIM_INFINITY,
            mappings: 262_144,
            locked_memory: RLIM_INFINITY,
        };
        assert_eq!((told.len(), enough.check_needs(&needs)), (4, vec![]));
    }

    #[test]
    fn a_machine_without_the_number_limits_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("max_map_count");
        assert_eq!(read_number(&file), u64::MAX);
        fs::write(&file, "65530\n").unwrap();
        assert_eq!(read_number(&file), 65_530);
    }
}
