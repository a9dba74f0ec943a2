//! The agent's part of an upgrade: writes the job of its machine down for the runner, and says on its
//! Node how that stands, at changes.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::statvfs::statvfs;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    folder_watch::FolderWatch,
    job_folder::{JobFolder, JobStanding},
    own_node::OwnNode,
};
use crate::{
    api::containership::{JobCode, JobReport, UpgradeReport, name},
    engine::machines::UpgradeJob,
    error::chain,
    runtime::{Shutdown, events::EventNotice},
};

/// Jobs of this machine, by the run's name; `None` until the runs were read.
pub(crate) type WantedJobs = Option<BTreeMap<String, Option<UpgradeJob>>>;

/// Interval between checks of the directory, and time after which the agent shows a job again that
/// no runner took.
const LOOK: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Room that new programs and a copy of etcd's data need, in bytes.
const ROOM: u64 = 2 << 30;
/// What only the root of control groups of version 2 has.
const CGROUP_V2: &str = "/sys/fs/cgroup/cgroup.controllers";
/// Bytes of an event's note.
const NOTE: usize = 1000;

pub(crate) struct JobKeeper {
    node: OwnNode,
    path: PathBuf,
    /// When the runner was last made to look at a job.
    shown: Instant,
    /// The last report.
    said: Option<UpgradeReport>,
}

impl JobKeeper {
    pub(crate) fn new(node: OwnNode, path: PathBuf) -> Self {
        Self { node, path, shown: Instant::now(), said: None }
    }

    pub(crate) async fn run(self, desired_jobs: watch::Receiver<WantedJobs>, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.triggered() => {}
            () = self.sync_jobs(desired_jobs) => {}
        }
    }

    /// Can be dropped at any point: the directory and the `Node` hold all state that counts.
    async fn sync_jobs(mut self, mut desired_jobs: watch::Receiver<WantedJobs>) {
        let mut trouble = String::new();
        loop {
            let jobs = desired_jobs.borrow_and_update().clone().unwrap_or_default();
            let job = jobs.into_values().flatten().next();
            let reconcile_result = self.reconcile_job(job.as_ref()).await;
            let (file_watch, pause) = match reconcile_result {
                Ok(file_watch) => (Some(file_watch), LOOK),
                Err(text) => {
                    // If the directory does not exist, the machine does not use upgrades.
                    if text != trouble && self.path.exists() {
                        warn!(error = text, "The machine's upgrades are not looked after");
                        trouble = text;
                    }
                    (None, RETRY)
                }
            };
            let file_change = async {
                match &file_watch {
                    Some(file_watch) if file_watch.wait_for_change().await.is_ok() => {}
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                change = desired_jobs.changed() => if change.is_err() { return },
                () = file_change => {}
                () = sleep_until(Instant::now() + pause) => {}
            }
        }
    }

    /// Writes the job if it is not written yet, and reports what changed. Returns a watch for the
    /// next change in the directory.
    async fn reconcile_job(&mut self, job: Option<&UpgradeJob>) -> Result<FolderWatch, String> {
        let with_path = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let folder = JobFolder::open(&self.path).map_err(|error| with_path(&self.path, error))?;
        // What does not name a job is ours to replace.
        let mut current_id = folder.current_id().unwrap_or_default();
        if let Some(job) = job {
            let submit_result = self.submit_job(&folder, job, current_id.as_ref() == Some(&job.id));
            submit_result.map_err(|error| with_path(&self.path, error))?;
            current_id = Some(job.id.clone());
        }
        let mut folders = vec![self.path.clone()];
        let job_folder = current_id.as_ref().map(|id| self.path.join(id));
        folders.extend(job_folder.filter(|path| path.is_dir()));
        let file_watch = FolderWatch::new(folders).map_err(|error| with_path(&self.path, error))?;
        let status = current_id.and_then(|id| folder.read_status(&id));
        self.report_status(&folder, status, job).await?;
        Ok(file_watch)
    }

    /// Has the runner see a job: at first, and again while it is not taken up.
    fn submit_job(
        &mut self,
        folder: &JobFolder,
        job: &UpgradeJob,
        is_current: bool,
    ) -> io::Result<()> {
        let is_same = |text: Vec<u8>| UpgradeJob::parse(&text, &job.id).as_ref() == Ok(job);
        if !(is_current && folder.read_job(&job.id).is_ok_and(is_same)) {
            info!(job = job.id, attempt = job.attempt, to = job.to, "Writing a job");
            self.shown = Instant::now();
            return folder.write_job(job);
        }
        let job_report = folder.read_status(&job.id).map(|status| status.report);
        let accepted_report = job_report.filter(|report| report.attempt == job.attempt);
        let is_pending = accepted_report.is_none_or(|report| report.code == Some(JobCode::Again));
        if is_pending && self.shown.elapsed() >= LOOK {
            self.shown = Instant::now();
            return folder.wake_runner(&job.id);
        }
        Ok(())
    }

    async fn report_status(
        &mut self,
        folder: &JobFolder,
        status: Option<JobStanding>,
        job: Option<&UpgradeJob>,
    ) -> Result<(), String> {
        let (job_report, lines) = match status {
            Some(JobStanding { report, lines }) => (Some(report), lines),
            None => (None, Vec::new()),
        };
        let report = UpgradeReport {
            cgroup: if Path::new(CGROUP_V2).exists() { 2 } else { 1 },
            has_room: statvfs(&self.path).is_ok_and(|disk| {
                disk.blocks_available().saturating_mul(disk.fragment_size()) >= ROOM
            }),
            runner: folder.runner_form(),
            job: job_report,
        };
        if self.said.as_ref() == Some(&report) {
            return Ok(());
        }
        let write_result =
            self.node.set_annotation(name::UPGRADE, &json!(report).to_string()).await;
        write_result.map_err(|error| chain(&error).to_string())?;
        // An agent that starts tells no old news.
        let is_asked = |runner_report: &JobReport| {
            job.is_some_and(|job| {
                (&job.id, job.attempt) == (&runner_report.id, runner_report.attempt)
            })
        };
        let last_job = self.said.as_ref().and_then(|last_report| last_report.job.as_ref());
        if let Some(runner_report) = &report.job
            && runner_report.code.is_some_and(|code| code != JobCode::Done)
            && last_job != Some(runner_report)
            && (self.said.is_some() || is_asked(runner_report))
        {
            self.node
                .publish_event(&EventNotice::warning("NodeUpgradeRunner", join_last_lines(&lines)))
                .await;
        }
        self.said = Some(report);
        Ok(())
    }
}

/// Returns the last lines that an event holds.
fn join_last_lines(lines: &[String]) -> String {
    let mut room = NOTE;
    let fits = |line: &&String| {
        room = room.saturating_sub(line.len() + 1);
        room > 0
    };
    let mut last_lines: Vec<&str> =
        lines.iter().rev().take_while(fits).map(String::as_str).collect();
    last_lines.reverse();
    last_lines.join("\n")
}
