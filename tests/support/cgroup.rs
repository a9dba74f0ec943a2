//! A control group of its own for a process under test, with a limit of memory: v2 or v1.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long the group's processes may take to leave; after that the group stays behind.
const LEAVING: Duration = Duration::from_secs(10);

/// Removed when dropped, once its processes have ended.
pub(crate) struct Cgroup {
    folder: PathBuf,
    /// The line of the group's statistics that counts memory.
    anonymous: &'static str,
}

impl Cgroup {
    /// Needs root, and a file system of groups that may be written.
    pub(crate) fn with_memory(name: &str, bytes: u64) -> Self {
        let made = Self::try_with_memory(name, bytes);
        made.unwrap_or_else(|error| {
            panic!("this test needs root and a writable /sys/fs/cgroup with memory: {error}")
        })
    }

    fn try_with_memory(name: &str, bytes: u64) -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("navigator-{name}-{}-{number}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let (parent, limit, anonymous) = if root.join("cgroup.controllers").exists() {
            // The write is refused where the controller is enabled already.
            drop(fs::write(root.join("cgroup.subtree_control"), "+memory"));
            (root.to_owned(), "memory.max", "anon ")
        } else {
            (root.join("memory"), "memory.limit_in_bytes", "rss ")
        };
        let group = Self { folder: parent.join(name), anonymous };
        fs::create_dir(&group.folder)?;
        fs::write(group.folder.join(limit), bytes.to_string())?;
        Ok(group)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes that the group's processes take now, without files that the kernel keeps for them.
    pub(crate) fn memory(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let anonymous = text.lines().find_map(|line| line.strip_prefix(self.anonymous));
        anonymous.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or_default()
    }
}

impl Cgroup {
    /// Processes of the group that the kernel killed for want of memory.
    pub(crate) fn kills(&self) -> u64 {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let text = read("memory.events").or_else(|| read("memory.oom_control"));
        let text = text.expect("the group counts what the kernel killed");
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.expect("the kernel counts kills").trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was just killed may still be leaving.
        let begun = Instant::now();
        while fs::remove_dir(&self.folder).is_err() && begun.elapsed() < LEAVING {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
