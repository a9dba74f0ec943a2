//! The steps of a job. The runner can start each of them again.

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
    kubelet::{self, remove_file, staged_path},
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
    pub(super) async fn perform_step(
        &self,
        step: JobStep,
        journal: &mut UpgradeJournal,
    ) -> StepResult {
        match step {
            JobStep::Fetch => self.fetch_programs(journal).await,
            JobStep::Checksum => self.check_programs(journal),
            JobStep::Stage => self.stage_programs(journal).await,
            JobStep::Kubeadm => {
                let mut command = vec![self.state.join("kubeadm").into_os_string()];
                command.extend(journal.job.kubeadm_arguments().into_iter().map(OsString::from));
                let lock = self.lock.try_clone().map_err(step_failure("the lock"))?;
                self.run_command(journal, &command, Stdio::from(lock), KUBEADM).await.map(drop)
            }
            JobStep::Swap => {
                let digests = kubelet::kubelet_digests(&self.policy.kubelet)
                    .map_err(step_failure("the kubelet"))?;
                self.apply_moves(journal.plan_swap(&digests).map_err(StepFailure::Final)?)
            }
            JobStep::Restart => self.restart_kubelet(journal).await,
            JobStep::Health => {
                health::wait_until_healthy(self.policy).await.map_err(StepFailure::Final)
            }
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

    async fn fetch_programs(&self, journal: &UpgradeJournal) -> StepResult {
        for (program, part, expected_digest) in self.programs(journal) {
            if kubelet::file_digest(&program).map_err(step_failure(&program))?.as_ref()
                == Some(&expected_digest)
            {
                continue;
            }
            let name = program.file_name().unwrap_or_default().display();
            let url = format!("{}/{name}", journal.job.base_url.trim_end_matches('/'));
            fetch::fetch_file(&url, self.policy.ca_file.as_deref(), &part).await?;
        }
        Ok(())
    }

    fn check_programs(&self, journal: &UpgradeJournal) -> StepResult {
        for (program, part, expected_digest) in self.programs(journal) {
            if kubelet::file_digest(&program).map_err(step_failure(&program))?.as_ref()
                == Some(&expected_digest)
            {
                continue;
            }
            let actual_digest =
                kubelet::file_digest(&part).map_err(step_failure(&part))?.unwrap_or_default();
            if actual_digest != expected_digest {
                drop(remove_file(&part));
                let name = program.file_name().unwrap_or_default().display();
                let sentence =
                    format!("{name} has the SHA-256 {actual_digest}, and not {expected_digest}");
                return Err(StepFailure::Final(sentence));
            }
            fs::rename(&part, &program).map_err(step_failure(&program))?;
        }
        Ok(())
    }

    /// Puts the new kubelet next to the old one, has both programs report their version, and keeps
    /// what kubeadm may change.
    async fn stage_programs(&self, journal: &mut UpgradeJournal) -> StepResult {
        let [(kubelet, ..), (kubeadm, ..)] = self.programs(journal);
        let staged_kubelet = staged_path(&self.policy.kubelet);
        let copy_result = (|| {
            fs::copy(&kubelet, &staged_kubelet)?;
            fs::set_permissions(&staged_kubelet, Permissions::from_mode(0o755))?;
            File::open(&staged_kubelet)?.sync_all()?;
            fs::set_permissions(&kubeadm, Permissions::from_mode(0o700))
        })();
        copy_result.map_err(step_failure(&staged_kubelet))?;
        let expected_version = journal.job.to.clone();
        for command in [
            vec![staged_kubelet.into_os_string(), "--version".into()],
            vec![kubeadm.into_os_string(), "version".into(), "-o".into(), "short".into()],
        ] {
            let output_text = self.run_command(journal, &command, Stdio::null(), COMMAND).await?;
            if output_text.split_whitespace().last() != Some(&expected_version) {
                let name = Path::new(&command[0]).display();
                let sentence = format!(
                    "{name} says it is {:?}, and not {expected_version}",
                    output_text.trim()
                );
                return Err(StepFailure::Final(sentence));
            }
        }
        for (file, kept_path) in self.kept_files() {
            match fs::copy(file, &kept_path) {
                Ok(_) => {
                    File::open(&kept_path)
                        .and_then(|file| file.sync_all())
                        .map_err(step_failure(&kept_path))?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    remove_file(&kept_path).map_err(step_failure(&kept_path))?;
                }
                Err(error) => return Err(step_failure(file)(error)),
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

    fn apply_moves(&self, moves: impl IntoIterator<Item = KubeletMove>) -> StepResult {
        for change in moves {
            kubelet::apply_move(change, &self.policy.kubelet)
                .map_err(step_failure(&self.policy.kubelet))?;
        }
        Ok(())
    }

    async fn restart_kubelet(&self, journal: &mut UpgradeJournal) -> StepResult {
        for command in &self.policy.restart {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            self.run_command(journal, &command, Stdio::null(), COMMAND).await?;
        }
        Ok(())
    }

    async fn roll_back(&self, journal: &mut UpgradeJournal) -> StepResult {
        for (file, kept_path) in self.kept_files() {
            restore_file(file, &kept_path).map_err(step_failure(file))?;
        }
        let digests =
            kubelet::kubelet_digests(&self.policy.kubelet).map_err(step_failure("the kubelet"))?;
        self.apply_moves(journal.plan_rollback(&digests).map_err(StepFailure::Final)?)?;
        self.restart_kubelet(journal).await?;
        health::wait_until_healthy(self.policy).await.map_err(StepFailure::Final)
    }

    /// Removes what a finished job no longer needs. An administrator may need what is left of a
    /// dirty job.
    pub(super) fn clean_up(&self, journal: &UpgradeJournal) {
        if journal.code == Some(JobCode::Dirty) {
            return;
        }
        drop(remove_file(&staged_path(&self.policy.kubelet)));
        for (program, part, _) in self.programs(journal) {
            drop(remove_file(&program).and(remove_file(&part)));
        }
        for (_, kept_path) in self.kept_files() {
            drop(remove_file(&kept_path));
        }
        drop(remove_file(&self.output_path()));
    }

    fn output_path(&self) -> PathBuf {
        self.state.join("output")
    }

    /// Runs a command to its end, and returns what it said. It is stopped when it takes too long.
    async fn run_command(
        &self,
        journal: &mut UpgradeJournal,
        command: &[OsString],
        input: Stdio,
        limit: Duration,
    ) -> Result<String, StepFailure> {
        let Some((program, arguments)) = command.split_first() else { return Ok(String::new()) };
        let words = arguments.iter().map(|word| word.display().to_string());
        let program_name = Path::new(program).file_name().unwrap_or(program).display().to_string();
        let name = std::iter::once(program_name).chain(words).collect::<Vec<_>>().join(" ");
        let path = self.output_path();
        let output = File::create(&path).map_err(step_failure(&path))?;
        let errors = output.try_clone().map_err(step_failure(&path))?;
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
        let mut child = child.map_err(step_failure(&name))?;
        let group = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
        let mut wait_task = spawn_blocking(move || child.wait());
        let (wait_result, has_timed_out) =
            if let Ok(task_result) = timeout(limit, &mut wait_task).await {
                (task_result, false)
            } else {
                if let Err(error) = killpg(group, Signal::SIGKILL) {
                    warn!(%error, command = name, "Failed to end a command");
                }
                (wait_task.await, true)
            };
        let status = wait_result.unwrap_or_else(|error| Err(io::Error::other(error)));
        let output_text = read_tail(&path).map_err(step_failure(&path))?;
        journal.append_log(&format!("$ {name}\n{output_text}"));
        // kubeadm says something else at last.
        let mut lines = output_text.lines().map(str::trim).filter(|line| !line.is_empty());
        let error_line = lines.clone().rfind(|line| line.to_lowercase().contains("error"));
        let last_line = error_line.or_else(|| lines.next_back()).unwrap_or_default();
        match status.map_err(step_failure(&name))? {
            _ if has_timed_out => {
                Err(StepFailure::Final(format!("{name} took more than {} s", limit.as_secs())))
            }
            status if status.success() => Ok(output_text),
            status => Err(StepFailure::Final(format!("{name} ended with {status}: {last_line}"))),
        }
    }
}

/// Gives a file the content that it had. One that was not there before stays: nothing that was there
/// reads it.
fn restore_file(file: &Path, kept_path: &Path) -> io::Result<()> {
    let old_content = match fs::read(kept_path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if fs::read(file).is_ok_and(|content| content == old_content) {
        return Ok(());
    }
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = FolderHandle::open(folder)?;
    folder.write_file(name, &old_content, fs::metadata(kept_path)?.mode() & 0o777)?;
    folder.sync()
}

/// Reads the end of what a command said.
fn read_tail(path: &Path) -> io::Result<String> {
    let output = fs::read(path)?;
    let last_bytes = &output[output.len().saturating_sub(TAIL)..];
    Ok(String::from_utf8_lossy(last_bytes).into_owned())
}

fn step_failure(subject: impl AsRef<Path>) -> impl FnOnce(io::Error) -> StepFailure {
    let description = subject.as_ref().display().to_string();
    move |error| StepFailure::Final(format!("{description}: {error}"))
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
            restore_file(&file, &kept).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        }
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        fs::remove_file(&kept).unwrap();
        restore_file(&file, &kept).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    }
}
