//! The runner: does the job of a machine upgrade, on the machine itself and as root.
//!
//! The agent's pod writes jobs, and nothing else that the runner uses: programs, journal and policy
//! are where no pod can write. The runner copies a job into the journal before it does anything for
//! it. It finishes a job that it began before it considers another one.

mod fetch;
mod health;
mod kubelet;
mod steps;

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tracing::{info, warn};

use self::steps::StepWorker;
use super::job_folder::{JobFolder, JobStanding};
use crate::{
    api::containership::{JobCode, JobReport, JobStep},
    engine::machines::{HostPolicy, StepFailure, UpgradeJob, UpgradeJournal},
    runtime::folder::FolderHandle,
};

/// Paths of the runner on the machine.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Where the agent writes jobs.
    pub folder: PathBuf,
    /// Where the journal and the programs lie, which no pod sees.
    pub state: PathBuf,
    pub policy: PathBuf,
}

/// Why a job could not be gone on with. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("failed to open {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("another runner is at work, or the kubeadm that one began")]
    Busy,
    #[error("failed to read the journal in {path:?}")]
    Journal { path: PathBuf, source: io::Error },
    #[error("failed to write the journal in {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Policy(String),
}

const JOURNAL: &str = "state.json";
/// Most bytes of a journal.
const MOST: u64 = 1 << 20;

/// Goes on with the job that was begun, or does the one that is current. Returns how the last one
/// stands.
///
/// # Errors
/// See [`RunnerError`].
pub async fn run_jobs(config: RunnerConfig) -> Result<JobCode, RunnerError> {
    let runner = JobRunner::open(config)?;
    loop {
        let journal = match runner.read_journal()? {
            Some(journal) if !journal.is_over() => journal,
            last_journal => {
                // The runner that ended it may have been killed before it finished the rest.
                if let Some(journal) = &last_journal {
                    runner.finish_job(journal);
                }
                match runner.take_job(last_journal.as_ref())? {
                    TakenJob::New(journal) => *journal,
                    TakenJob::Unreadable => return Ok(JobCode::RolledBack),
                    TakenJob::Nothing => {
                        return Ok(last_journal
                            .and_then(|journal| journal.code)
                            .unwrap_or(JobCode::Done));
                    }
                }
            }
        };
        if runner.run_steps(journal).await? == JobCode::Again {
            return Ok(JobCode::Again);
        }
    }
}

enum TakenJob {
    New(Box<UpgradeJournal>),
    Unreadable,
    Nothing,
}

struct JobRunner {
    config: RunnerConfig,
    jobs: JobFolder,
    state: FolderHandle,
    /// Held while this process lives, or a kubeadm that it began.
    lock: File,
}

impl JobRunner {
    fn open(config: RunnerConfig) -> Result<Self, RunnerError> {
        let open_error = |path: &Path| {
            let path = path.to_owned();
            move |source| RunnerError::Open { path, source }
        };
        let jobs = JobFolder::open(&config.folder).map_err(open_error(&config.folder))?;
        let state = &config.state;
        DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(open_error(state))?;
        let handle = FolderHandle::open(state).map_err(open_error(state))?;
        let lock = File::options().create(true).append(true).open(state.join("lock"));
        let lock = lock.map_err(open_error(state))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { jobs, state: handle, lock, config }),
            Err(TryLockError::WouldBlock) => Err(RunnerError::Busy),
            Err(TryLockError::Error(error)) => Err(open_error(state)(error)),
        }
    }

    fn read_journal(&self) -> Result<Option<UpgradeJournal>, RunnerError> {
        let read_result = match self.state.read_at_most(JOURNAL, MOST) {
            Ok((text, _)) => serde_json::from_slice(&text).map_err(io::Error::other).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        read_result
            .map_err(|source| RunnerError::Journal { path: self.config.state.clone(), source })
    }

    fn read_policy(&self) -> Result<HostPolicy, String> {
        let path = &self.config.policy;
        let policy_error =
            |reason: String| format!("the policy {} cannot be read: {reason}", path.display());
        let text = fs::read(path).map_err(|error| policy_error(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| policy_error(error.to_string()))
    }

    /// Takes the current job up, unless it was the last one. One that the policy refuses is over at
    /// once.
    fn take_job(&self, last_journal: Option<&UpgradeJournal>) -> Result<TakenJob, RunnerError> {
        let folder = &self.config.folder;
        let open_error = |source| RunnerError::Open { path: folder.clone(), source };
        let Some(id) = self.jobs.current_id().map_err(open_error)? else {
            return Ok(TakenJob::Nothing);
        };
        let text = self.jobs.read_job(&id).map_err(open_error)?;
        let job = match UpgradeJob::parse(&text, &id) {
            Ok(job) => job,
            Err(sentence) => {
                warn!(job = id, "{sentence}");
                self.report_unreadable(id, &text, sentence);
                return Ok(TakenJob::Unreadable);
            }
        };
        if last_journal.is_some_and(|journal| journal.is_of(&job)) {
            return Ok(TakenJob::Nothing);
        }
        info!(job = id, attempt = job.attempt, to = job.to, "Taking a job");
        let check_result = self.read_policy().and_then(|policy| {
            policy.check_job(&job)?;
            let kubelet = &policy.kubelet;
            let kubelet_digest =
                kubelet::file_digest(kubelet).map_err(|error| error.to_string())?;
            kubelet_digest.ok_or_else(|| format!("there is no {}", kubelet.display()))
        });
        let (previous_digest, refusal) = match check_result {
            Ok(digest) => (digest, None),
            Err(sentence) => (String::new(), Some(sentence)),
        };
        let mut journal = UpgradeJournal::new(job, previous_digest);
        if let Some(sentence) = refusal {
            warn!("{sentence}");
            journal.record_result(Err(StepFailure::Final(sentence)));
        }
        Ok(TakenJob::New(Box::new(journal)))
    }

    /// Says that a job cannot be read.
    fn report_unreadable(&self, id: String, text: &[u8], message: String) {
        let job: Value = serde_json::from_slice(text).unwrap_or_default();
        let attempt = job["attempt"].as_i64().and_then(|number| i32::try_from(number).ok());
        let (step, code) = (JobStep::Fetch, Some(JobCode::RolledBack));
        let lines = vec![message.clone()];
        let message = Some(message);
        let attempt = attempt.unwrap_or_default();
        self.publish_status(&JobStanding {
            report: JobReport { id, attempt, step, code, message },
            lines,
        });
    }

    /// Does the steps that are left. Each is written down before it begins.
    async fn run_steps(&self, mut journal: UpgradeJournal) -> Result<JobCode, RunnerError> {
        self.write_journal(&journal)?;
        while let Some(step) = journal.next(Timestamp::now()) {
            let policy = self.read_policy().map_err(RunnerError::Policy)?;
            info!(?step, "Doing a step");
            let step_result = self.step_worker(&policy).perform_step(step, &mut journal).await;
            if let Err(StepFailure::Again(why) | StepFailure::Final(why)) = &step_result {
                warn!(?step, why, "A step failed");
            }
            journal.record_result(step_result);
            self.write_journal(&journal)?;
            if journal.code == Some(JobCode::Again) {
                return Ok(JobCode::Again);
            }
        }
        self.write_journal(&journal)?;
        let code = journal.code.unwrap_or(JobCode::Again);
        info!(?code, message = journal.message, "The job is over");
        Ok(code)
    }

    fn step_worker<'a>(&'a self, policy: &'a HostPolicy) -> StepWorker<'a> {
        StepWorker { policy, state: &self.config.state, lock: &self.lock }
    }

    /// Tells how a job ended, and takes away what it left.
    fn finish_job(&self, journal: &UpgradeJournal) {
        self.report_journal(journal);
        // Of a write that was cut short.
        drop(self.state.remove_file(format!("{JOURNAL}.new")));
        if let Ok(policy) = self.read_policy() {
            self.step_worker(&policy).clean_up(journal);
        }
    }

    fn write_journal(&self, journal: &UpgradeJournal) -> Result<(), RunnerError> {
        let text = json!(journal).to_string();
        let write_result = self.state.replace_file(JOURNAL, text.as_bytes(), 0o600);
        let write_result = write_result.and_then(|()| self.state.sync());
        let path = self.config.state.clone();
        write_result.map_err(|source| RunnerError::Write { path, source })?;
        self.report_journal(journal);
        Ok(())
    }

    fn report_journal(&self, journal: &UpgradeJournal) {
        let lines = journal.lines.iter().cloned().collect();
        self.publish_status(&JobStanding { report: journal.job_report(), lines });
    }

    /// The agent only reports the state, so a failure does not fail the job.
    fn publish_status(&self, status: &JobStanding) {
        if let Err(error) = self.jobs.write_status(&status.report.id, status) {
            warn!(%error, "Failed to tell the agent");
        }
    }
}
