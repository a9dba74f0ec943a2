//! Notification of any change in a few directories, by inotify. The reader checks what changed.

use std::{io, os::fd::AsFd, path::PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::net::unix::pipe::Receiver;

/// Events that count as a change. They include events of the directories themselves, so that the
/// watch finds recreated directories.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

pub(crate) struct FolderWatch {
    inotify: Inotify,
    /// The same, as tokio reads it: like a pipe, from which events come.
    events: Receiver,
    folders: Vec<PathBuf>,
}

impl FolderWatch {
    /// Watches directories. Call it from within tokio.
    ///
    /// # Errors
    /// When a directory does not exist, or the kernel has no watch left.
    pub(crate) fn new(folders: Vec<PathBuf>) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let events = inotify.as_fd().try_clone_to_owned()?;
        let events = Receiver::from_owned_fd_unchecked(events)?;
        let watch = Self { inotify, events, folders };
        watch.add_watches()?;
        Ok(watch)
    }

    /// Watches the directories that exist at these paths. A watch that exists already stays.
    fn add_watches(&self) -> io::Result<()> {
        let add_watch = |folder: &PathBuf| self.inotify.add_watch(folder, CHANGES).map(drop);
        Ok(self.folders.iter().try_for_each(add_watch)?)
    }

    /// Waits for a change. Several at once count as one. Cancel-safe.
    pub(crate) async fn wait_for_change(&self) -> io::Result<()> {
        // Room for over a hundred events; what does not fit is another change.
        let mut events = [0; 4096];
        loop {
            self.events.readable().await?;
            match self.events.try_read(&mut events) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        // If a directory is missing, the reader creates it, and the next change adds it here.
        drop(self.add_watches());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn every_change_is_told_and_a_folder_that_is_made_anew_is_found() {
        let place = tempfile::tempdir().unwrap();
        let (home, inner) = (place.path().to_owned(), place.path().join(".ssh"));
        let file = inner.join("a");
        fs::create_dir(&inner).unwrap();
        let watch = FolderWatch::new(vec![home, inner.clone()]).unwrap();
        let told = async || {
            let mut times = 0;
            let first = Duration::from_secs(60);
            while timeout(if times == 0 { first } else { Duration::ZERO }, watch.wait_for_change())
                .await
                .is_ok_and(|changed| changed.is_ok())
            {
                times += 1;
            }
            times > 0
        };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        let changes: [&dyn Fn() -> io::Result<()>; 6] = [
            &|| fs::write(&file, "1"),
            &|| fs::set_permissions(&file, Clone::clone(&mode)),
            &|| fs::rename(&file, inner.join("b")),
            &|| fs::remove_dir_all(&inner),
            &|| fs::create_dir(&inner),
            &|| fs::write(&file, "2"),
        ];
        for change in changes {
            change().unwrap();
            assert!(told().await);
        }
    }
}
