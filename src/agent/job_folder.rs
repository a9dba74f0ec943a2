//! The directory through which the agent and the runner of a machine communicate: jobs in one
//! direction, and their state in the other.
//!
//! The agent's pod can write all of it, so the runner takes only jobs from it, and follows no link.

use std::{io, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    api::containership::JobReport,
    engine::machines::{JOB_FORM, UpgradeJob},
    runtime::folder::FolderHandle,
};

/// The file that names the directory of the last job.
const CURRENT: &str = "current";
const JOB: &str = "job.json";
const STANDING: &str = "state.json";
/// What the runner says of itself.
const HOST: &str = "host.json";
const MODE: u32 = 0o644;
/// Most bytes of a file.
const MOST: u64 = 64 << 10;

/// How a job stands, for the agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobStanding {
    #[serde(flatten)]
    pub(crate) report: JobReport,
    /// The last lines that the job logged.
    pub(crate) lines: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct RunnerNotice {
    form: u32,
}

pub(crate) struct JobFolder(FolderHandle);

impl JobFolder {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        FolderHandle::open(path).map(Self)
    }

    /// Returns the id of the last job.
    pub(crate) fn current_id(&self) -> io::Result<Option<String>> {
        let Some(text) = none_if_missing(self.0.read_at_most(CURRENT, MOST))? else {
            return Ok(None);
        };
        let id = String::from_utf8(text.0).unwrap_or_default().trim_end().to_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.is_empty() || id.len() > 64 || !id.chars().all(is_plain) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it names no job"));
        }
        Ok(Some(id))
    }

    pub(crate) fn read_job(&self, id: &str) -> io::Result<Vec<u8>> {
        Ok(self.0.open_folder(id)?.read_at_most(JOB, MOST)?.0)
    }

    /// Writes a job, and has the runner see it.
    pub(crate) fn write_job(&self, job: &UpgradeJob) -> io::Result<()> {
        let folder = self.0.create_folder(&job.id, 0o755)?;
        folder.replace_file(JOB, json!(job).to_string().as_bytes(), MODE)?;
        folder.sync()?;
        self.wake_runner(&job.id)
    }

    /// Has the runner look at a job that was written.
    pub(crate) fn wake_runner(&self, id: &str) -> io::Result<()> {
        self.0.replace_file(CURRENT, id.as_bytes(), MODE)?;
        self.0.sync()
    }

    pub(crate) fn write_status(&self, id: &str, status: &JobStanding) -> io::Result<()> {
        self.0.open_folder(id)?.replace_file(STANDING, json!(status).to_string().as_bytes(), MODE)
    }

    /// Returns how a job stands, as far as its runner has said.
    pub(crate) fn read_status(&self, id: &str) -> Option<JobStanding> {
        read_json(&self.0.open_folder(id).ok()?, STANDING)
    }

    /// Says that there is a runner.
    pub(crate) fn announce_runner(&self) -> io::Result<()> {
        let notice = RunnerNotice { form: JOB_FORM };
        self.0.replace_file(HOST, json!(notice).to_string().as_bytes(), MODE)
    }

    /// Returns the newest form of a job that the machine's runner knows.
    pub(crate) fn runner_form(&self) -> Option<u32> {
        read_json(&self.0, HOST).map(|notice: RunnerNotice| notice.form)
    }
}

fn read_json<T: DeserializeOwned>(folder: &FolderHandle, name: &str) -> Option<T> {
    let (text, _) = folder.read_at_most(name, MOST).ok()?;
    serde_json::from_slice(&text).ok()
}

/// What is missing is no failure.
fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
