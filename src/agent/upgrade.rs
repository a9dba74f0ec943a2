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

/// Interval of looks at the folder, and time after which a job that no runner took is shown again.
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
    /// What was said last.
    said: Option<UpgradeReport>,
}

impl JobKeeper {
    pub(crate) fn new(node: OwnNode, path: PathBuf) -> Self {
        Self { node, path, shown: Instant::now(), said: None }
    }

    pub(crate) async fn work(self, wanted: watch::Receiver<WantedJobs>, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.triggered() => {}
            () = self.keep(wanted) => {}
        }
    }

    /// May be dropped anywhere: the folder and the Node hold all that counts.
    async fn keep(mut self, mut wanted: watch::Receiver<WantedJobs>) {
        let mut trouble = String::new();
        loop {
            let jobs = wanted.borrow_and_update().clone().unwrap_or_default();
            let job = jobs.into_values().flatten().next();
            let looked = self.look(job.as_ref()).await;
            let (stirs, pause) = match looked {
                Ok(stirs) => (Some(stirs), LOOK),
                Err(text) => {
                    // Where there is no folder, nobody wants upgrades.
                    if text != trouble && self.path.exists() {
                        warn!(error = text, "The machine's upgrades are not looked after");
                        trouble = text;
                    }
                    (None, RETRY)
                }
            };
            let stirred = async {
                match &stirs {
                    Some(stirs) if stirs.changed().await.is_ok() => {}
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = stirred => {}
                () = sleep_until(Instant::now() + pause) => {}
            }
        }
    }

    /// Writes the job where it is not written, and says what is to be said. Returns word of the next
    /// change in the folder.
    async fn look(&mut self, job: Option<&UpgradeJob>) -> Result<FolderWatch, String> {
        let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let folder = JobFolder::open(&self.path).map_err(|error| failed(&self.path, error))?;
        // What does not name a job is ours to replace.
        let mut current = folder.current().unwrap_or_default();
        if let Some(job) = job {
            let shown = self.show(&folder, job, current.as_ref() == Some(&job.id));
            shown.map_err(|error| failed(&self.path, error))?;
            current = Some(job.id.clone());
        }
        let mut folders = vec![self.path.clone()];
        let inner = current.as_ref().map(|id| self.path.join(id));
        folders.extend(inner.filter(|path| path.is_dir()));
        let stirs = FolderWatch::new(folders).map_err(|error| failed(&self.path, error))?;
        let standing = current.and_then(|id| folder.standing(&id));
        self.say(&folder, standing, job).await?;
        Ok(stirs)
    }

    /// Has the runner see a job: at first, and again while it is not taken up.
    fn show(&mut self, folder: &JobFolder, job: &UpgradeJob, current: bool) -> io::Result<()> {
        let is_same = |text: Vec<u8>| UpgradeJob::read(&text, &job.id).as_ref() == Ok(job);
        if !(current && folder.job(&job.id).is_ok_and(is_same)) {
            info!(job = job.id, attempt = job.attempt, to = job.to, "Writing a job");
            self.shown = Instant::now();
            return folder.put(job);
        }
        let standing = folder.standing(&job.id).map(|standing| standing.report);
        let taken = standing.filter(|report| report.attempt == job.attempt);
        let rests = taken.is_none_or(|report| report.code == Some(JobCode::Again));
        if rests && self.shown.elapsed() >= LOOK {
            self.shown = Instant::now();
            return folder.nudge(&job.id);
        }
        Ok(())
    }

    async fn say(
        &mut self,
        folder: &JobFolder,
        standing: Option<JobStanding>,
        job: Option<&UpgradeJob>,
    ) -> Result<(), String> {
        let (standing, lines) = match standing {
            Some(JobStanding { report, lines }) => (Some(report), lines),
            None => (None, Vec::new()),
        };
        let report = UpgradeReport {
            cgroup: if Path::new(CGROUP_V2).exists() { 2 } else { 1 },
            has_room: statvfs(&self.path).is_ok_and(|disk| {
                disk.blocks_available().saturating_mul(disk.fragment_size()) >= ROOM
            }),
            runner: folder.runner_form(),
            job: standing,
        };
        if self.said.as_ref() == Some(&report) {
            return Ok(());
        }
        let written = self.node.annotate(name::UPGRADE, &json!(report).to_string()).await;
        written.map_err(|error| chain(&error).to_string())?;
        // An agent that starts tells no old news.
        let is_asked = |told: &JobReport| {
            job.is_some_and(|job| (&job.id, job.attempt) == (&told.id, told.attempt))
        };
        let before = self.said.as_ref().and_then(|said| said.job.as_ref());
        if let Some(told) = &report.job
            && told.code.is_some_and(|code| code != JobCode::Done)
            && before != Some(told)
            && (self.said.is_some() || is_asked(told))
        {
            self.node.tell(&EventNotice::warning("NodeUpgradeRunner", last_of(&lines))).await;
        }
        self.said = Some(report);
        Ok(())
    }
}

/// Returns the last lines that an event holds.
fn last_of(lines: &[String]) -> String {
    let mut room = NOTE;
    let fits = |line: &&String| {
        room = room.saturating_sub(line.len() + 1);
        room > 0
    };
    let mut last: Vec<&str> = lines.iter().rev().take_while(fits).map(String::as_str).collect();
    last.reverse();
    last.join("\n")
}
