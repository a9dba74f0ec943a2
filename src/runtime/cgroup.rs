//! What the container may use and what the kernel did about it: cgroup v2, v1, or the two mixed.
//!
//! A container sees its own cgroup as the root of the file system, or, without a namespace of
//! its own, below the path that `/proc/self/cgroup` names; then the path may lead nowhere, and
//! the nearest folder that exists is its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// From this number of bytes on, a limit counts as none: cgroup v1 writes "no limit" as the largest
/// page-aligned number.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the memory limit of this process in bytes; `None` when there is none.
pub fn memory_limit() -> Option<u64> {
    MemoryCgroups::from_root(Path::new("/sys/fs/cgroup"), &read_own_cgroup()).limit()
}

/// Counts the processes of this cgroup that the kernel has killed so far for want of memory.
pub fn oom_kills() -> u64 {
    MemoryCgroups::from_root(Path::new("/sys/fs/cgroup"), &read_own_cgroup()).oom_kills()
}

fn read_own_cgroup() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The folders that account for this process's memory, its own first, then those above it.
struct MemoryCgroups {
    v2: Vec<PathBuf>,
    v1: Vec<PathBuf>,
}

impl MemoryCgroups {
    /// Finds the folders below `root`; `own` is the text of `/proc/self/cgroup`.
    fn from_root(root: &Path, cgroup_text: &str) -> Self {
        let find_path = |matches: fn(&str) -> bool| {
            let mut lines =
                cgroup_text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines.find(|(controllers, _)| matches(controllers)).map_or("/", |(_, path)| path)
        };
        let v2 = find_path(str::is_empty);
        let v1 = find_path(|controllers| controllers.split(',').any(|name| name == "memory"));
        let ancestor_folders = |root: PathBuf, path: &str| {
            let own_folder = root.join(path.trim_start_matches('/'));
            let folders = own_folder.ancestors().take_while(|folder| folder.starts_with(&root));
            folders.map(Path::to_owned).collect()
        };
        Self {
            v2: ancestor_folders(root.to_owned(), v2),
            v1: ancestor_folders(root.join("memory"), v1),
        }
    }

    /// Returns the smallest limit of the own folder and those above it: the kernel enforces each of
    /// them.
    fn limit(&self) -> Option<u64> {
        let smallest_limit = |folders: &[PathBuf], file: &str| {
            let limits = folders.iter().filter_map(|folder| {
                fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok()
            });
            limits.filter(|bytes| *bytes < NO_LIMIT).min()
        };
        smallest_limit(&self.v2, "memory.max")
            .or_else(|| smallest_limit(&self.v1, "memory.limit_in_bytes"))
    }

    fn oom_kills(&self) -> u64 {
        let read_count = |folders: &[PathBuf], file: &str| {
            // The nearest folder that exists is this process's own.
            let text = folders.iter().find_map(|folder| fs::read_to_string(folder.join(file)).ok());
            let text = text.unwrap_or_default();
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
            count.and_then(|count| count.trim().parse::<u64>().ok())
        };
        let v2 = read_count(&self.v2, "memory.events");
        v2.or_else(|| read_count(&self.v1, "memory.oom_control")).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn seen(root: &Path, own: &str) -> (Option<u64>, u64) {
        let memory = MemoryCgroups::from_root(root, own);
        (memory.limit(), memory.oom_kills())
    }

    #[test]
    fn v2_counts_the_smallest_limit_on_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(seen(root, "0::/\n"), (None, 0));
        write(root.join("pod/memory.max"), "2000000\n");
        write(root.join("pod/container/memory.max"), "max\n");
        write(root.join("pod/container/memory.events"), "low 0\noom 3\noom_kill 2\n");
        assert_eq!(seen(root, "0::/pod/container\n"), (Some(2_000_000), 2));
    }

    #[test]
    fn v1_counts_below_the_path_of_its_own_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = "5:cpu,cpuacct:/else\n4:memory:/pods/a\n1:name=systemd:/x\n0::/\n";
        write(root.join("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(seen(root, own), (None, 0));
        write(root.join("memory/pods/a/memory.limit_in_bytes"), "1048576\n");
        write(root.join("memory/pods/a/memory.oom_control"), "under_oom 0\noom_kill 4\n");
        assert_eq!(seen(root, own), (Some(1_048_576), 4));
    }

    #[test]
    fn v1_in_a_container_that_sees_its_own_folder_as_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root.join("memory/memory.limit_in_bytes"), "4194304\n");
        write(root.join("memory/memory.oom_control"), "oom_kill 1\n");
        assert_eq!(seen(root, "4:memory:/kubepods/pod7/c\n"), (Some(4_194_304), 1));
    }
}
