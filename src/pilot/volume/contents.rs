//! What fills a data volume: the bytes of each kind of content, told apart by the folders that the
//! files lie in.
//!
//! Walks in pieces, so that other work on the volume never waits long for it, and ends at a bound.
//! Follows no link and stays on the volume. A file with several names counts once: snapshots that
//! share their files with the data take no room of their own.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::api::v1beta1::VolumeShare;

/// A folder of the database's, and what lies in it.
#[derive(Debug)]
pub struct ContentFolder {
    pub folder: &'static str,
    /// The fewest folders between the root of the volume and this one; with 0 it lies at the root
    /// only. Users name folders, too: those of their tables.
    pub above: usize,
    /// What the files are, for people: `snapshots`.
    pub what: &'static str,
}

/// What lies in none of the folders that the database names.
const OTHER: &str = "other files";
/// Files of one piece of the walk: some milliseconds of work on a disk that is not busy.
const PIECE: usize = 2_000;
/// Files after which the walk ends: the shares are then those of the part that was seen.
const MOST: usize = 1_000_000;

/// A walk through a volume that is under way.
#[derive(Debug)]
pub struct ContentWalk {
    folders: &'static [ContentFolder],
    device: u64,
    /// Folders that were not read yet.
    ahead: Vec<AheadFolder>,
    seen: usize,
    bytes: BTreeMap<&'static str, u64>,
    /// Files with several names, by inode: the place in `folders` that they count for.
    shared: BTreeMap<u64, (Option<usize>, u64)>,
}

#[derive(Debug)]
struct AheadFolder {
    path: PathBuf,
    depth: usize,
    /// The place in the database's list of what lies in it.
    of: Option<usize>,
}

impl ContentFolder {
    fn matches(&self, name: &OsStr, depth: usize) -> bool {
        let is_deep_enough = if self.above == 0 { depth == 0 } else { depth >= self.above };
        is_deep_enough && *self.folder == *name
    }
}

impl ContentWalk {
    /// Begins a walk. `folders`: the most particular ones first.
    pub fn start(data: &Path, folders: &'static [ContentFolder]) -> Self {
        let device = fs::symlink_metadata(data).map(|metadata| metadata.dev()).unwrap_or_default();
        let ahead = vec![AheadFolder { path: data.to_owned(), depth: 0, of: None }];
        Self { folders, device, ahead, seen: 0, bytes: BTreeMap::new(), shared: BTreeMap::new() }
    }

    /// Walks a piece further. Returns whether there is more to see. What cannot be read is left
    /// out: files come and go while the database works.
    pub fn advance(&mut self) -> bool {
        let end = (self.seen + PIECE).min(MOST);
        while self.seen < end {
            let Some(folder) = self.ahead.pop() else { return false };
            self.read_directory(&folder);
        }
        self.seen < MOST && !self.ahead.is_empty()
    }

    fn read_directory(&mut self, &AheadFolder { ref path, depth, of }: &AheadFolder) {
        let Ok(entries) = fs::read_dir(path) else { return };
        for entry in entries.flatten() {
            self.seen += 1;
            // Asks about the entry itself, also where it is a link.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != self.device {
                continue;
            }
            if metadata.is_dir() {
                let name = entry.file_name();
                let named_folder =
                    self.folders.iter().position(|folder| folder.matches(&name, depth));
                // The more particular of the two stands first in the list.
                let folder_index = [of, named_folder].into_iter().flatten().min();
                self.ahead.push(AheadFolder {
                    path: entry.path(),
                    depth: depth + 1,
                    of: folder_index,
                });
            } else if metadata.is_file() {
                let bytes = metadata.blocks() * 512;
                if metadata.nlink() > 1 {
                    let shared_file = self.shared.entry(metadata.ino()).or_insert((of, bytes));
                    // Such a file counts as what it is least particular as: the data of a table,
                    // and not its snapshot, which frees nothing while the data stand.
                    shared_file.0 = shared_file.0.max(of);
                } else {
                    *self.bytes.entry(self.content_type(of)).or_default() += bytes;
                }
            }
        }
    }

    fn content_type(&self, index: Option<usize>) -> &'static str {
        index.map_or(OTHER, |place| self.folders[place].what)
    }

    /// Returns what was found, the largest share first.
    pub fn finish(self) -> Vec<VolumeShare> {
        let mut bytes = self.bytes.clone();
        for (index, size) in self.shared.values() {
            *bytes.entry(self.content_type(*index)).or_default() += size;
        }
        let mut shares: Vec<VolumeShare> = bytes
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(what, bytes)| VolumeShare {
                what: what.to_owned(),
                bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }
}

/// Says the shares in one clause: `data 700 MiB, snapshots 120 MiB`.
pub fn describe_shares(shares: &[VolumeShare]) -> String {
    let describe_share = |share: &VolumeShare| format!("{} {} MiB", share.what, share.bytes >> 20);
    shares.iter().map(describe_share).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDERS: &[ContentFolder] = &[
        ContentFolder { folder: "snapshots", above: 3, what: "snapshots" },
        ContentFolder { folder: "commitlog", above: 0, what: "commit log" },
        ContentFolder { folder: "data", above: 0, what: "data" },
    ];

    fn walked(data: &Path) -> Vec<(String, i64)> {
        let mut walk = ContentWalk::start(data, FOLDERS);
        while walk.advance() {}
        walk.finish().into_iter().map(|share| (share.what, share.bytes)).collect()
    }

    #[test]
    fn files_count_as_what_their_folder_holds_and_shared_ones_once() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let table = root.join("data/shop/orders-1");
        fs::create_dir_all(table.join("snapshots/before")).unwrap();
        fs::create_dir_all(root.join("commitlog")).unwrap();
        let write = |at: PathBuf, pages: usize| fs::write(at, vec![1; pages << 12]).unwrap();
        write(table.join("nb-1-big-Data.db"), 8);
        let shared = table.join("snapshots/before/nb-1-big-Data.db");
        fs::hard_link(table.join("nb-1-big-Data.db"), shared).unwrap();
        // What compaction has replaced is held by the snapshot alone.
        write(table.join("snapshots/before/nb-0-big-Data.db"), 4);
        write(root.join("commitlog/1.log"), 2);
        // A keyspace may have any name.
        fs::create_dir_all(root.join("data/commitlog/snapshots")).unwrap();
        write(root.join("data/commitlog/snapshots/nb-1-big-Data.db"), 1);
        write(root.join("heap.hprof"), 1);
        std::os::unix::fs::symlink(root, root.join("again")).unwrap();
        let found: Vec<(String, i64)> =
            walked(root).into_iter().map(|(what, bytes)| (what, bytes >> 12)).collect();
        let expected = [("data", 9), ("snapshots", 4), ("commit log", 2), ("other files", 1)];
        assert_eq!(found, expected.map(|(what, pages)| (what.to_owned(), pages)));
        let text = describe_shares(&[VolumeShare { what: "data".to_owned(), bytes: 7 << 20 }]);
        assert_eq!(text, "data 7 MiB");
    }

    #[test]
    fn a_walk_goes_on_where_it_paused_and_an_empty_volume_ends_it() {
        let place = tempfile::tempdir().unwrap();
        for folder in 0..3 {
            let folder = place.path().join(format!("data/{folder}"));
            fs::create_dir_all(&folder).unwrap();
            for file in 0..PIECE / 2 {
                fs::write(folder.join(file.to_string()), "x").unwrap();
            }
        }
        let mut walk = ContentWalk::start(place.path(), FOLDERS);
        let mut pieces = 1;
        while walk.advance() {
            pieces += 1;
        }
        assert!(pieces > 1, "one piece is bounded");
        assert!(walk.finish()[0].bytes > 0);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(walked(empty.path()), []);
    }
}
