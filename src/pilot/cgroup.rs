//! What the container may use and what the kernel did about it: cgroup v2, then v1.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Memory limit of this process in bytes; `None` when there is none.
pub fn memory_limit() -> Option<u64> {
    limit_below(Path::new("/sys/fs/cgroup"), &own_path())
}

/// Processes of this cgroup that the kernel killed for want of memory, so far.
pub fn oom_kills() -> u64 {
    let file = joined(Path::new("/sys/fs/cgroup"), &own_path()).join("memory.events");
    let text = fs::read_to_string(file).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// `/` inside a container with a cgroup namespace of its own.
fn own_path() -> String {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned()
}

fn joined(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The smallest limit on the way up: any of them binds.
fn limit_below(root: &Path, path: &str) -> Option<u64> {
    let read = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let own = joined(root, path);
    let v2 = own
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|folder| read(folder.join("memory.max")))
        .min();
    // v1 writes "no limit" as the largest page-aligned number.
    let v1 = || read(root.join("memory/memory.limit_in_bytes")).filter(|bytes| *bytes < 1 << 60);
    v2.or_else(v1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(limit_below(root, "/"), None);
        fs::create_dir_all(root.join("memory")).unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(limit_below(root, "/"), None);
        fs::write(root.join("memory/memory.limit_in_bytes"), "1048576\n").unwrap();
        assert_eq!(limit_below(root, "/"), Some(1_048_576));
        fs::create_dir_all(root.join("pod/container")).unwrap();
        fs::write(root.join("pod/memory.max"), "2000000\n").unwrap();
        fs::write(root.join("pod/container/memory.max"), "max\n").unwrap();
        assert_eq!(limit_below(root, "/pod/container"), Some(2_000_000));
    }
}
