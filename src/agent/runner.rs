//! The runner: does the job of a machine's upgrade, on the machine itself and as root.
//!
//! The agent's pod writes jobs, and nothing else that the runner goes by: programs, journal and policy
//! lie where no pod can write. A job is copied into the journal before anything is done for it, and a
//! job that was begun is brought to its end before another one is looked at.

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

/// Where things lie on the host.
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
pub async fn run(config: RunnerConfig) -> Result<JobCode, RunnerError> {
    let runner = JobRunner::open(config)?;
    loop {
        let journal = match runner.journal()? {
            Some(journal) if !journal.is_over() => journal,
            last => {
                // Whoever ended it may have been killed before the rest.
                if let Some(last) = &last {
                    runner.finish(last);
                }
                match runner.take(last.as_ref())? {
                    TakenJob::New(journal) => *journal,
                    TakenJob::Unreadable => return Ok(JobCode::RolledBack),
                    TakenJob::Nothing => {
                        return Ok(last.and_then(|last| last.code).unwrap_or(JobCode::Done));
                    }
                }
            }
        };
        if runner.work(journal).await? == JobCode::Again {
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
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RunnerError::Open { path, source }
        };
        let jobs = JobFolder::open(&config.folder).map_err(failed(&config.folder))?;
        let state = &config.state;
        DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(failed(state))?;
        let handle = FolderHandle::open(state).map_err(failed(state))?;
        let lock = File::options().create(true).append(true).open(state.join("lock"));
        let lock = lock.map_err(failed(state))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { jobs, state: handle, lock, config }),
            Err(TryLockError::WouldBlock) => Err(RunnerError::Busy),
            Err(TryLockError::Error(error)) => Err(failed(state)(error)),
        }
    }

    fn journal(&self) -> Result<Option<UpgradeJournal>, RunnerError> {
        let read = match self.state.read_at_most(JOURNAL, MOST) {
            Ok((text, _)) => serde_json::from_slice(&text).map_err(io::Error::other).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        read.map_err(|source| RunnerError::Journal { path: self.config.state.clone(), source })
    }

    fn policy(&self) -> Result<HostPolicy, String> {
        let path = &self.config.policy;
        let failed = |why: String| format!("the policy {} cannot be read: {why}", path.display());
        let text = fs::read(path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
    }

    /// Takes the current job up, unless it was the last one. One that the policy refuses is over at
    /// once.
    fn take(&self, last: Option<&UpgradeJournal>) -> Result<TakenJob, RunnerError> {
        let folder = &self.config.folder;
        let failed = |source| RunnerError::Open { path: folder.clone(), source };
        let Some(id) = self.jobs.current().map_err(failed)? else { return Ok(TakenJob::Nothing) };
        let text = self.jobs.job(&id).map_err(failed)?;
        let job = match UpgradeJob::read(&text, &id) {
            Ok(job) => job,
            Err(sentence) => {
                warn!(job = id, "{sentence}");
                self.refuse(id, &text, sentence);
                return Ok(TakenJob::Unreadable);
            }
        };
        if last.is_some_and(|last| last.is_of(&job)) {
            return Ok(TakenJob::Nothing);
        }
        info!(job = id, attempt = job.attempt, to = job.to, "Taking a job");
        let checked = self.policy().and_then(|policy| {
            policy.allow(&job)?;
            let kubelet = &policy.kubelet;
            let found = kubelet::digest(kubelet).map_err(|error| error.to_string())?;
            found.ok_or_else(|| format!("there is no {}", kubelet.display()))
        });
        let (before, refusal) = match checked {
            Ok(before) => (before, None),
            Err(sentence) => (String::new(), Some(sentence)),
        };
        let mut journal = UpgradeJournal::begin(job, before);
        if let Some(sentence) = refusal {
            warn!("{sentence}");
            journal.record(Err(StepFailure::Final(sentence)));
        }
        Ok(TakenJob::New(Box::new(journal)))
    }

    /// Says that a job cannot be read.
    fn refuse(&self, id: String, text: &[u8], message: String) {
        let job: Value = serde_json::from_slice(text).unwrap_or_default();
        let attempt = job["attempt"].as_i64().and_then(|number| i32::try_from(number).ok());
        let (step, code) = (JobStep::Fetch, Some(JobCode::RolledBack));
        let lines = vec![message.clone()];
        let message = Some(message);
        let attempt = attempt.unwrap_or_default();
        self.publish(&JobStanding {
            report: JobReport { id, attempt, step, code, message },
            lines,
        });
    }

    /// Does the steps that are left. Each is written down before it begins.
    async fn work(&self, mut journal: UpgradeJournal) -> Result<JobCode, RunnerError> {
        self.write(&journal)?;
        while let Some(step) = journal.next(Timestamp::now()) {
            let policy = self.policy().map_err(RunnerError::Policy)?;
            info!(?step, "Doing a step");
            let ended = self.steps(&policy).perform(step, &mut journal).await;
            if let Err(StepFailure::Again(why) | StepFailure::Final(why)) = &ended {
                warn!(?step, why, "A step failed");
            }
            journal.record(ended);
            self.write(&journal)?;
            if journal.code == Some(JobCode::Again) {
                return Ok(JobCode::Again);
            }
        }
        self.write(&journal)?;
        let code = journal.code.unwrap_or(JobCode::Again);
        info!(?code, message = journal.message, "The job is over");
        Ok(code)
    }

    fn steps<'a>(&'a self, policy: &'a HostPolicy) -> StepWorker<'a> {
        StepWorker { policy, state: &self.config.state, lock: &self.lock }
    }

    /// Tells how a job ended, and takes away what it left.
    fn finish(&self, journal: &UpgradeJournal) {
        self.tell(journal);
        // Of a write that was cut short.
        drop(self.state.remove(format!("{JOURNAL}.new")));
        if let Ok(policy) = self.policy() {
            self.steps(&policy).clean(journal);
        }
    }

    fn write(&self, journal: &UpgradeJournal) -> Result<(), RunnerError> {
        let text = json!(journal).to_string();
        let written = self.state.replace(JOURNAL, text.as_bytes(), 0o600);
        let written = written.and_then(|()| self.state.sync());
        let path = self.config.state.clone();
        written.map_err(|source| RunnerError::Write { path, source })?;
        self.tell(journal);
        Ok(())
    }

    fn tell(&self, journal: &UpgradeJournal) {
        let lines = journal.lines.iter().cloned().collect();
        self.publish(&JobStanding { report: journal.report(), lines });
    }

    /// The agent only tells of it, so a failure is none of the job's.
    fn publish(&self, standing: &JobStanding) {
        if let Err(error) = self.jobs.publish(&standing.report.id, standing) {
            warn!(%error, "Failed to tell the agent");
        }
    }
}
