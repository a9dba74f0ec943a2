//! The file that this process runs, whether another one lies in its place, and the exec.

use std::{
    ffi::{CString, OsString},
    fs::{self, File, Metadata},
    io,
    os::{
        fd::{BorrowedFd, RawFd},
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::pilot::process::HANDOFF_VARIABLE;

/// Tells one content of a path from another without reading the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    fn from_metadata(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

/// Tells one installation of a program from the next, also where both are of one version: the
/// file's size and the time at which it was written, which are the same for every process that sees
/// the file.
pub fn installation_id(file: &Metadata) -> String {
    format!("{:x}-{}.{:09}", file.size(), file.mtime(), file.mtime_nsec())
}

/// Another program, held open: what is checked is what is executed.
#[derive(Clone, Debug)]
pub struct CandidateProgram {
    pub(super) id: FileId,
    pub(super) file: Arc<File>,
}

/// The program of this process and how it was called.
#[derive(Clone, Debug)]
pub struct RunningProgram {
    path: PathBuf,
    running: FileId,
    installation: String,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl RunningProgram {
    /// Describes the program that runs. `path` is where an earlier program of this process looked
    /// for the next one.
    ///
    /// # Errors
    /// When `/proc` does not say what runs.
    pub fn for_current_process(
        arguments: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
        path: Option<PathBuf>,
    ) -> io::Result<Self> {
        // The metadata of the file itself, also when it has no name any more.
        let file = fs::metadata("/proc/self/exe")?;
        let (running, installation) = (FileId::from_metadata(&file), installation_id(&file));
        let path = match path {
            Some(path) => path,
            None => path_from_arguments(&arguments, running).map_or_else(running_path, Ok)?,
        };
        Ok(Self { path, running, installation, arguments, environment })
    }

    /// The [`installation_id`] of the file that runs.
    pub fn installation(&self) -> &str {
        &self.installation
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at the path, when it is not the one that runs. `None` also when there is no
    /// file.
    pub(super) fn open_other(&self) -> Option<CandidateProgram> {
        let file_id = FileId::from_metadata(&fs::metadata(&self.path).ok()?);
        if file_id == self.running {
            return None;
        }
        let file = File::open(&self.path).ok()?;
        let metadata = file.metadata().ok()?;
        let id = FileId::from_metadata(&metadata);
        (metadata.is_file() && id != self.running)
            .then(|| CandidateProgram { id, file: Arc::new(file) })
    }

    /// Opens the file that runs, also when it has no name any more.
    pub(super) fn open_running(&self) -> io::Result<CandidateProgram> {
        let file = File::open("/proc/self/exe")?;
        Ok(CandidateProgram { id: self.running, file: Arc::new(file) })
    }

    pub(super) fn arguments_as_text(&self) -> Vec<String> {
        self.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Replaces this process' program; `kept` stay open in the next one, which finds the handoff
    /// under the descriptor `handoff`. Returns why the exec failed.
    ///
    /// std's exec is not used: it resets the signal mask, and a TERM that came in between would end
    /// the next program before it blocks signals, or be lost to PID 1.
    pub(super) fn execute(
        &self,
        candidate: &CandidateProgram,
        handoff: RawFd,
        kept: &[BorrowedFd<'_>],
    ) -> io::Error {
        let words = self.arguments.iter().map(|word| CString::new(word.clone().into_vec()));
        let handoff_variable =
            (OsString::from(HANDOFF_VARIABLE), OsString::from(handoff.to_string()));
        let variables = self
            .environment
            .iter()
            .filter(|(name, _)| name != HANDOFF_VARIABLE)
            .chain([&handoff_variable])
            .map(|(name, value)| {
                let mut line = name.clone();
                line.push("=");
                line.push(value);
                CString::new(line.into_vec())
            });
        let collected_words = words.collect::<Result<Vec<_>, _>>();
        let (words, variables) = match (collected_words, variables.collect::<Result<Vec<_>, _>>()) {
            (Ok(words), Ok(variables)) => (words, variables),
            (Err(error), _) | (_, Err(error)) => return error.into(),
        };
        let error = match keep_open(kept, FdFlag::empty()) {
            Ok(()) => match nix::unistd::fexecve(&candidate.file, &words, &variables) {
                Ok(never) => match never {},
                Err(error) => error.into(),
            },
            Err(error) => error,
        };
        // Children must not inherit these descriptors.
        match keep_open(kept, FdFlag::FD_CLOEXEC) {
            Ok(()) => error,
            Err(close_error) => close_error,
        }
    }
}

fn keep_open(fds: &[BorrowedFd<'_>], flag: FdFlag) -> io::Result<()> {
    for fd in fds {
        fcntl(fd, FcntlArg::F_SETFD(flag))?;
    }
    Ok(())
}

/// Returns the path in the first argument, where it leads to the file that runs: it may be a link
/// that an update lets point elsewhere.
fn path_from_arguments(arguments: &[OsString], running: FileId) -> Option<PathBuf> {
    let first_argument = Path::new(arguments.first()?);
    let has_directory =
        first_argument.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
    let path = std::path::absolute(first_argument).ok().filter(|_| has_directory)?;
    (FileId::from_metadata(&fs::metadata(&path).ok()?) == running).then_some(path)
}

/// Returns the path at which the running file is, or was.
fn running_path() -> io::Result<PathBuf> {
    let path = fs::read_link("/proc/self/exe")?.into_os_string().into_vec();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(&path).to_vec();
    Ok(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path) -> RunningProgram {
        let file = fs::metadata(path).unwrap();
        RunningProgram {
            path: path.to_owned(),
            running: FileId::from_metadata(&file),
            installation: installation_id(&file),
            arguments: vec![],
            environment: vec![],
        }
    }

    #[test]
    fn a_renamed_a_rewritten_and_a_relinked_file_are_seen_and_a_missing_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("navigator");
        let next = folder.path().join("next");
        let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
        write(&path, "one");
        let running = program(&path);
        assert!(running.open_other().is_none());
        write(&next, "two");
        fs::rename(&next, &path).unwrap();
        let seen = running.open_other().unwrap();
        assert_eq!(program(&path).running, seen.id);
        write(&path, "three");
        assert_ne!(running.open_other().unwrap().id, seen.id);
        fs::remove_file(&path).unwrap();
        assert!(running.open_other().is_none());
        // A link that points elsewhere.
        let link = folder.path().join("link");
        write(&path, "one");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let linked = program(&link);
        assert!(linked.open_other().is_none());
        write(&next, "two");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&next, &link).unwrap();
        assert!(linked.open_other().is_some());
    }

    #[test]
    fn the_program_of_this_process_is_not_another_one() {
        let current = RunningProgram::for_current_process(vec!["it".into()], vec![], None).unwrap();
        assert!(current.open_other().is_none(), "{}", current.path().display());
    }
}
