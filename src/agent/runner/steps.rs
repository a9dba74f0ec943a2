//! The steps of a job, each of which may be begun anew.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::warn;

use super::{
    fetch, health,
    kubelet::{self, remove, staged},
};
use crate::{
    api::containership::{JobCode, JobStep},
    engine::machines::{HostPolicy, KubeletMove, StepFailure, UpgradeJournal},
    runtime::folder::FolderHandle,
};

/// Time that kubeadm may take, and any other command.
const KUBEADM: Duration = Duration::from_secs(20 * 60);
const COMMAND: Duration = Duration::from_secs(5 * 60);
/// Bytes of what a command says that are read, from the end.
const TAIL: usize = 8 << 10;

/// What the steps are done with.
pub(super) struct StepWorker<'a> {
    pub(super) policy: &'a HostPolicy,
    pub(super) state: &'a Path,
    /// Handed to kubeadm: it is held until that ends, even where this process does not.
    pub(super) lock: &'a File,
}

type StepResult = Result<(), StepFailure>;

impl StepWorker<'_> {
    pub(super) async fn perform(&self, step: JobStep, journal: &mut UpgradeJournal) -> StepResult {
        match step {
            JobStep::Fetch => self.fetch(journal).await,
            JobStep::Checksum => self.check(journal),
            JobStep::Stage => self.stage(journal).await,
            JobStep::Kubeadm => {
                let mut command = vec![self.state.join("kubeadm").into_os_string()];
                command.extend(journal.job.kubeadm().into_iter().map(OsString::from));
                let lock = self.lock.try_clone().map_err(failed("the lock"))?;
                self.run(journal, &command, Stdio::from(lock), KUBEADM).await.map(drop)
            }
            JobStep::Swap => {
                let found =
                    kubelet::digests(&self.policy.kubelet).map_err(failed("the kubelet"))?;
                self.make(journal.swap(&found).map_err(StepFailure::Final)?)
            }
            JobStep::Restart => self.restart(journal).await,
            JobStep::Health => health::until_well(self.policy).await.map_err(StepFailure::Final),
            JobStep::RollBack => self.roll_back(journal).await,
            JobStep::Done => Ok(()),
        }
    }

    /// The programs, and their digests.
    fn programs(&self, journal: &UpgradeJournal) -> [(PathBuf, PathBuf, String); 2] {
        let digests = &journal.job.sha256;
        [("kubelet", &digests.kubelet), ("kubeadm", &digests.kubeadm)].map(|(name, digest)| {
            (self.state.join(name), self.state.join(format!("{name}.part")), digest.clone())
        })
    }

    async fn fetch(&self, journal: &UpgradeJournal) -> StepResult {
        for (program, part, wanted) in self.programs(journal) {
            if kubelet::digest(&program).map_err(failed(&program))?.as_ref() == Some(&wanted) {
                continue;
            }
            let name = program.file_name().unwrap_or_default().display();
            let url = format!("{}/{name}", journal.job.base_url.trim_end_matches('/'));
            fetch::fetch(&url, self.policy.ca_file.as_deref(), &part).await?;
        }
        Ok(())
    }

    fn check(&self, journal: &UpgradeJournal) -> StepResult {
        for (program, part, wanted) in self.programs(journal) {
            if kubelet::digest(&program).map_err(failed(&program))?.as_ref() == Some(&wanted) {
                continue;
            }
            let found = kubelet::digest(&part).map_err(failed(&part))?.unwrap_or_default();
            if found != wanted {
                drop(remove(&part));
                let name = program.file_name().unwrap_or_default().display();
                let sentence = format!("{name} has the SHA-256 {found}, and not {wanted}");
                return Err(StepFailure::Final(sentence));
            }
            fs::rename(&part, &program).map_err(failed(&program))?;
        }
        Ok(())
    }

    /// Lays the new kubelet beside the old one, has both programs say their version, and keeps what
    /// kubeadm may change.
    async fn stage(&self, journal: &mut UpgradeJournal) -> StepResult {
        let [(kubelet, ..), (kubeadm, ..)] = self.programs(journal);
        let staged = staged(&self.policy.kubelet);
        let laid = (|| {
            fs::copy(&kubelet, &staged)?;
            fs::set_permissions(&staged, Permissions::from_mode(0o755))?;
            File::open(&staged)?.sync_all()?;
            fs::set_permissions(&kubeadm, Permissions::from_mode(0o700))
        })();
        laid.map_err(failed(&staged))?;
        let wanted = journal.job.to.clone();
        for command in [
            vec![staged.into_os_string(), "--version".into()],
            vec![kubeadm.into_os_string(), "version".into(), "-o".into(), "short".into()],
        ] {
            let said = self.run(journal, &command, Stdio::null(), COMMAND).await?;
            if said.split_whitespace().last() != Some(&wanted) {
                let name = Path::new(&command[0]).display();
                let sentence = format!("{name} says it is {:?}, and not {wanted}", said.trim());
                return Err(StepFailure::Final(sentence));
            }
        }
        for (file, kept) in self.kept_files() {
            match fs::copy(file, &kept) {
                Ok(_) => {
                    File::open(&kept).and_then(|file| file.sync_all()).map_err(failed(&kept))?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    remove(&kept).map_err(failed(&kept))?;
                }
                Err(error) => return Err(failed(file)(error)),
            }
        }
        Ok(())
    }

    /// The files that kubeadm may change, and where they are kept.
    fn kept_files(&self) -> impl Iterator<Item = (&PathBuf, PathBuf)> {
        self.policy.kept_files.iter().map(|file| {
            let name = file.display().to_string().replace('/', "-");
            (file, self.state.join(format!("before{name}")))
        })
    }

    fn make(&self, moves: impl IntoIterator<Item = KubeletMove>) -> StepResult {
        for change in moves {
            kubelet::make(change, &self.policy.kubelet).map_err(failed(&self.policy.kubelet))?;
        }
        Ok(())
    }

    async fn restart(&self, journal: &mut UpgradeJournal) -> StepResult {
        for command in &self.policy.restart {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            self.run(journal, &command, Stdio::null(), COMMAND).await?;
        }
        Ok(())
    }

    async fn roll_back(&self, journal: &mut UpgradeJournal) -> StepResult {
        for (file, kept) in self.kept_files() {
            put_back(file, &kept).map_err(failed(file))?;
        }
        let found = kubelet::digests(&self.policy.kubelet).map_err(failed("the kubelet"))?;
        self.make(journal.back(&found).map_err(StepFailure::Final)?)?;
        self.restart(journal).await?;
        health::until_well(self.policy).await.map_err(StepFailure::Final)
    }

    /// Takes away what a job that is over does not need. A person may need what is left of a dirty one.
    pub(super) fn clean(&self, journal: &UpgradeJournal) {
        if journal.code == Some(JobCode::Dirty) {
            return;
        }
        drop(remove(&staged(&self.policy.kubelet)));
        for (program, part, _) in self.programs(journal) {
            drop(remove(&program).and(remove(&part)));
        }
        for (_, kept) in self.kept_files() {
            drop(remove(&kept));
        }
        drop(remove(&self.output()));
    }

    fn output(&self) -> PathBuf {
        self.state.join("output")
    }

    /// Runs a command to its end, and returns what it said. It is stopped when it takes too long.
    async fn run(
        &self,
        journal: &mut UpgradeJournal,
        command: &[OsString],
        input: Stdio,
        limit: Duration,
    ) -> Result<String, StepFailure> {
        let Some((program, arguments)) = command.split_first() else { return Ok(String::new()) };
        let words = arguments.iter().map(|word| word.display().to_string());
        let own = Path::new(program).file_name().unwrap_or(program).display().to_string();
        let name = std::iter::once(own).chain(words).collect::<Vec<_>>().join(" ");
        let path = self.output();
        let output = File::create(&path).map_err(failed(&path))?;
        let errors = output.try_clone().map_err(failed(&path))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the runner is nobody's init: one command at a time, waited for here"
        )]
        let child = std::process::Command::new(program)
            .args(arguments)
            .stdin(input)
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn();
        let mut child = child.map_err(failed(&name))?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
        let mut ended = spawn_blocking(move || child.wait());
        let (ended, late) = if let Ok(ended) = timeout(limit, &mut ended).await {
            (ended, false)
        } else {
            if let Err(error) = killpg(group, Signal::SIGKILL) {
                warn!(%error, command = name, "Failed to end a command");
            }
            (ended.await, true)
        };
        let status = ended.unwrap_or_else(|error| Err(io::Error::other(error)));
        let said = tail(&path).map_err(failed(&path))?;
        journal.say(&format!("$ {name}\n{said}"));
        // kubeadm says something else at last.
        let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let wrong = lines.clone().rfind(|line| line.to_lowercase().contains("error"));
        let last = wrong.or_else(|| lines.next_back()).unwrap_or_default();
        match status.map_err(failed(&name))? {
            _ if late => {
                Err(StepFailure::Final(format!("{name} took more than {} s", limit.as_secs())))
            }
            status if status.success() => Ok(said),
            status => Err(StepFailure::Final(format!("{name} ended with {status}: {last}"))),
        }
    }
}

/// Gives a file the content that it had. One that was not there before stays: nothing that was there
/// reads it.
fn put_back(file: &Path, kept: &Path) -> io::Result<()> {
    let before = match fs::read(kept) {
        Ok(before) => before,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if fs::read(file).is_ok_and(|now| now == before) {
        return Ok(());
    }
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = FolderHandle::open(folder)?;
    folder.write(name, &before, fs::metadata(kept)?.mode() & 0o777)?;
    folder.sync()
}

/// Reads the end of what a command said.
fn tail(path: &Path) -> io::Result<String> {
    let said = fs::read(path)?;
    let end = &said[said.len().saturating_sub(TAIL)..];
    Ok(String::from_utf8_lossy(end).into_owned())
}

fn failed(what: impl AsRef<Path>) -> impl FnOnce(io::Error) -> StepFailure {
    let what = what.as_ref().display().to_string();
    move |error| StepFailure::Final(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_as_it_was_and_is_never_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let (file, kept) = (place.path().join("config.yaml"), place.path().join("before-0"));
        fs::write(&kept, "old").unwrap();
        fs::set_permissions(&kept, Permissions::from_mode(0o640)).unwrap();
        for now in [Some("new"), Some("old"), None] {
            drop(fs::remove_file(&file));
            if let Some(now) = now {
                fs::write(&file, now).unwrap();
            }
            put_back(&file, &kept).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        }
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&kept).unwrap();
        put_back(&file, &kept).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    }
}
