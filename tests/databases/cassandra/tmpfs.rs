//! A data volume of a few hundred megabytes that can be filled to the brim.

use std::{fs, io::Write, path::PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A mounted volume; unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    pub(crate) fn mount(at: PathBuf, mebibytes: u32) -> Self {
        let options = format!("size={mebibytes}m");
        mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap_or_else(|error| panic!("{}: {error}: mounting needs root", at.display()));
        Self(at)
    }

    /// Writes a file until no more fits, or up to this many mebibytes.
    pub(crate) fn fill(&self, mebibytes: usize) {
        let mut file = fs::File::options().append(true).create(true).open(self.ballast()).unwrap();
        let block = vec![0x5a; 1 << 20];
        for _ in 0..mebibytes {
            if file.write_all(&block).is_err() {
                return;
            }
        }
    }

    pub(crate) fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).ok();
    }
}
