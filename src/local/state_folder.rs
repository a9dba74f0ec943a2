//! The folder that holds a local installation: the paths in it, and who may read them.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};

/// File mode that lets only the owner read and write.
const OWN: u32 = 0o600;

/// The folder of an installation; its methods return the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFolder(PathBuf);

/// The lock that a folder's one daemon holds for as long as it lives.
#[derive(Debug)]
pub struct DaemonLock {
    file: File,
}

impl Drop for DaemonLock {
    /// Unlocks by hand: a child between fork and exec shares the open file and would keep the lock.
    fn drop(&mut self) {
        // A failure does no harm: the lock ends with the file, too.
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK))).ok();
    }
}

impl StateFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder. Where the daemon is root, databases run as other users: they may pass
    /// through the folder and not list it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let mode = if nix::unistd::geteuid().is_root() { 0o711 } else { 0o700 };
        for folder in [self.0.clone(), self.0.join("pods"), self.0.join("claims")] {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, Permissions::from_mode(mode))?;
        }
        fs::create_dir_all(self.0.join("logs"))?;
        fs::set_permissions(self.0.join("logs"), Permissions::from_mode(0o700))
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// File with the address of the status page.
    pub fn page(&self) -> PathBuf {
        self.0.join("page")
    }

    pub fn daemon_log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }

    /// File with the distributions of databases that `--home` named, a line each.
    pub fn named_homes(&self) -> PathBuf {
        self.0.join("homes.txt")
    }

    /// Folder of the distributions that were fetched.
    pub fn homes(&self) -> PathBuf {
        self.0.join("homes")
    }

    /// Marker file: while it exists, a daemon that ends also stops the databases.
    pub fn stop_mark(&self) -> PathBuf {
        self.0.join("stop")
    }

    /// File with the address of each pod.
    pub fn addresses(&self) -> PathBuf {
        self.0.join("addresses.json")
    }

    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    pub fn pod(&self, namespace: &str, name: &str) -> PathBuf {
        self.pods().join(namespace).join(name)
    }

    pub fn claim(&self, namespace: &str, name: &str) -> PathBuf {
        self.0.join("claims").join(namespace).join(name)
    }

    pub fn logs(&self, namespace: &str, pod: &str) -> PathBuf {
        self.0.join("logs").join(namespace).join(pod)
    }

    /// Returns the path of a container's log; with `previous`, of the log from before its last
    /// restart.
    pub fn log(&self, namespace: &str, pod: &str, container: &str, previous: bool) -> PathBuf {
        let ending = if previous { "previous.log" } else { "log" };
        self.logs(namespace, pod).join(format!("{container}.{ending}"))
    }

    /// Lists the log files of all containers.
    pub fn all_logs(&self) -> Vec<PathBuf> {
        let entry_paths = |path: PathBuf| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let pods = entry_paths(self.0.join("logs")).into_iter().flat_map(entry_paths);
        let logs =
            pods.flat_map(entry_paths).filter(|path| path.extension() == Some("log".as_ref()));
        [self.daemon_log()].into_iter().chain(logs).collect()
    }

    /// Takes the lock of the folder's one daemon, and writes this process's id into it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is one already.
    pub fn lock(&self) -> io::Result<DaemonLock> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(OWN)
            .open(self.0.join("lock"))?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK)))?;
        let mut lock = DaemonLock { file };
        lock.file.set_len(0)?;
        lock.file.rewind()?;
        write!(lock.file, "{}", std::process::id())?;
        Ok(lock)
    }

    /// Returns the id of the process that holds the lock. Asking does not take the lock: a daemon
    /// that starts meanwhile gets it.
    ///
    /// # Errors
    /// When the lock cannot be read.
    pub fn daemon_pid(&self) -> io::Result<Option<i32>> {
        let mut file = match File::open(self.0.join("lock")) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut lock_state = whole_file(libc::F_WRLCK);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock_state))?;
        if lock_state.l_type == lock_type(libc::F_UNLCK) {
            return Ok(None);
        }
        let mut pid = String::new();
        file.read_to_string(&mut pid)?;
        Ok(pid.trim().parse().ok())
    }
}

/// Describes a lock of an open file description, fcntl(2). Unlike a lock of a process it ends with
/// this one file and not with any other of the same name, and unlike one of flock(2) its holder can
/// be read.
fn whole_file(type_: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: lock_type(type_),
        #[expect(clippy::cast_possible_truncation, reason = "0")]
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "one of three small constants")]
fn lock_type(type_: libc::c_int) -> libc::c_short {
    type_ as libc::c_short
}

/// Writes a file that only this user may read. A crash leaves the old file or the whole new one.
///
/// # Errors
/// When it cannot be written.
pub fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut temporary_path = path.as_os_str().to_owned();
    temporary_path.push(".new");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(OWN).open(&temporary_path)?;
    file.set_permissions(Permissions::from_mode(OWN))?;
    file.write_all(text)?;
    fs::rename(&temporary_path, path)
}

/// Returns the content of a file; `None` where there is none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read_if_exists(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_daemon_and_says_which() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path().join("local"));
        assert_eq!(folder.daemon_pid().unwrap(), None);
        folder.create().unwrap();
        let held = folder.lock().unwrap();
        assert_eq!(folder.daemon_pid().unwrap(), i32::try_from(std::process::id()).ok());
        assert_eq!(folder.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert_eq!(folder.daemon_pid().unwrap(), None);
        folder.lock().unwrap();
    }

    #[test]
    fn who_looks_for_a_daemon_is_in_no_ones_way() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path().join("local"));
        folder.create().unwrap();
        let ends = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    folder.daemon_pid().unwrap();
                }
            });
            let refused = (0..10_000).filter(|_| folder.lock().is_err()).count();
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }

    #[test]
    fn nobody_else_reads_what_is_our_own() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("kubeconfig");
        fs::write(&file, "old").unwrap();
        write_private(&file, b"new").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, OWN);
        assert_eq!(read_if_exists(&file).unwrap().as_deref(), Some("new"));
        assert_eq!(read_if_exists(&place.path().join("none")).unwrap(), None);
    }
}
