//! A data volume of a few hundred megabytes that can be filled to the brim.

use std::{fs, io::Write, path::PathBuf};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statvfs::statvfs,
};

/// A mounted volume; unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    pub(crate) fn mount(at: PathBuf, mebibytes: u32) -> Self {
        let options = format!("size={mebibytes}m");
        mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap_or_else(|error| panic!("{}: {error}: mounting needs root", at.display()));
        Self(at)
    }

    /// Writes a file until no more fits.
    pub(crate) fn fill(&self) {
        self.fill_up_to(0);
    }

    /// Writes a file until this many mebibytes are free, or no more fits.
    pub(crate) fn fill_up_to(&self, mebibytes: u64) {
        let mut file = fs::File::options().append(true).create(true).open(self.ballast()).unwrap();
        let block = vec![0x5a; 1 << 20];
        while mebibytes == 0 || self.left() > mebibytes {
            if file.write_all(&block).is_err() {
                return;
            }
        }
    }

    /// Mebibytes that are free.
    fn left(&self) -> u64 {
        let stat = statvfs(&self.0).unwrap();
        (stat.blocks_available() * stat.fragment_size()) >> 20
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
