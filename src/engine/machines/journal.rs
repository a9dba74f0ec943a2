//! How a job goes on, by its journal and by what lies on the disk: after a kill and after a reboot as in
//! one go.
//!
//! Owns the decision alone. Every step may be begun anew. The kubelet is exchanged by one rename,
//! so that there is the old one or the new one at any moment; which of them, its digest says, and no
//! journal.

use std::collections::VecDeque;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{MachineRole, UpgradeJob};
use crate::api::containership::{JobCode, JobReport, JobStep};

/// Lines that a journal keeps, and the characters of each.
const LINES: usize = 20;
const LINE: usize = 300;

/// What the runner must not forget. Written before each step, and at the end.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeJournal {
    pub job: UpgradeJob,
    /// The step that is next.
    pub step: JobStep,
    pub code: Option<JobCode>,
    /// What failed, in a sentence.
    pub message: Option<String>,
    /// The step that failed for good.
    failed: Option<JobStep>,
    /// Digest of the kubelet that was installed when the job was taken.
    before: String,
    /// The last that was said.
    pub lines: VecDeque<String>,
}

/// How a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepFailure {
    /// It may succeed later.
    Again(String),
    Final(String),
}

/// Digests of the kubelets on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletDigests {
    /// The one that is started.
    pub installed: Option<String>,
    /// The one beside it, to go back to.
    pub kept: Option<String>,
    /// The new one beside it.
    pub staged: Option<String>,
}

/// One change on the disk. Each is whole or not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletMove {
    /// The installed kubelet is kept beside itself.
    Keep,
    /// The staged kubelet takes its place.
    PutNew,
    /// The kept kubelet takes its place.
    PutBack,
}

impl UpgradeJournal {
    /// Begins the journal of a job. `before` is the digest of the installed kubelet.
    pub fn new(job: UpgradeJob, before: String) -> Self {
        Self {
            job,
            step: JobStep::Fetch,
            code: None,
            message: None,
            failed: None,
            before,
            lines: VecDeque::new(),
        }
    }

    /// Has the job ended, well or not?
    pub fn is_over(&self) -> bool {
        self.code.is_some_and(|code| code != JobCode::Again)
    }

    /// Is it this very job?
    pub fn is_of(&self, job: &UpgradeJob) -> bool {
        (&self.job.id, self.job.attempt) == (&job.id, job.attempt)
    }

    /// Returns the step to do; `None` when the job has ended.
    pub fn next(&mut self, now: Timestamp) -> Option<JobStep> {
        let is_late = self.job.deadline.as_ref().is_some_and(|deadline| deadline.0 <= now);
        if !self.is_over() && is_late && self.step < JobStep::Kubeadm {
            let reason = self.message.take().map(|text| format!(": {text}")).unwrap_or_default();
            self.record_result(Err(StepFailure::Final(format!("the job's time was over{reason}"))));
        }
        (!self.is_over()).then_some(self.step)
    }

    /// Takes note of how the step ended.
    pub fn record_result(&mut self, result: Result<(), StepFailure>) {
        if let Err(StepFailure::Again(message) | StepFailure::Final(message)) = &result {
            self.append_log(message);
        }
        self.code = None;
        match (self.step, result) {
            (JobStep::RollBack, Ok(())) => self.code = Some(self.rolled_back()),
            (step, Ok(())) => {
                (self.step, self.message) = (next_step(step), None);
                self.code = (self.step == JobStep::Done).then_some(JobCode::Done);
            }
            (_, Err(StepFailure::Again(message))) => {
                (self.code, self.message) = (Some(JobCode::Again), Some(message));
            }
            (JobStep::RollBack, Err(StepFailure::Final(message))) => {
                let first_message = self.message.take().unwrap_or_default();
                self.message = Some(format!("{first_message}; and the way back failed: {message}"));
                self.code = Some(JobCode::Dirty);
            }
            (step, Err(StepFailure::Final(message))) => {
                (self.failed, self.message) = (Some(step), Some(message));
                if step < JobStep::Kubeadm {
                    self.code = Some(JobCode::RolledBack);
                } else {
                    self.step = JobStep::RollBack;
                }
            }
        }
    }

    /// A control plane that kubeadm left half-way is of no version, whatever its kubelet is.
    fn rolled_back(&mut self) -> JobCode {
        let is_control_plane = self.job.role != MachineRole::Worker;
        match self.failed {
            Some(JobStep::Kubeadm) if is_control_plane => {
                let first_message = self.message.take().unwrap_or_default();
                self.message =
                    Some(format!("{first_message}; its control plane is as kubeadm left it"));
                JobCode::Dirty
            }
            _ => JobCode::RolledBack,
        }
    }

    /// Returns what puts the new kubelet into its place.
    ///
    /// # Errors
    /// A sentence, where what lies there is neither the old kubelet nor the new one.
    pub fn plan_swap(&self, digests: &KubeletDigests) -> Result<Vec<KubeletMove>, String> {
        let (old, new) = (Some(&self.before), Some(&self.job.sha256.kubelet));
        if digests.installed.as_ref() == new {
            return Ok(Vec::new());
        }
        if digests.installed.as_ref() != old {
            return Err("another program has changed the kubelet".to_owned());
        }
        if digests.staged.as_ref() != new {
            return Err("the new kubelet that lay ready is gone or damaged".to_owned());
        }
        let keep_move = (digests.kept.as_ref() != old).then_some(KubeletMove::Keep);
        Ok(keep_move.into_iter().chain([KubeletMove::PutNew]).collect())
    }

    /// Returns what puts the old kubelet back.
    ///
    /// # Errors
    /// A sentence, where it is nowhere.
    pub fn plan_rollback(&self, digests: &KubeletDigests) -> Result<Option<KubeletMove>, String> {
        let old = Some(&self.before);
        if digests.installed.as_ref() == old {
            Ok(None)
        } else if digests.kept.as_ref() == old {
            Ok(Some(KubeletMove::PutBack))
        } else {
            Err("the old kubelet is not there".to_owned())
        }
    }

    /// Adds what was said.
    pub fn append_log(&mut self, text: &str) {
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            self.lines.push_back(line.chars().take(LINE).collect());
        }
        let excess = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..excess);
    }

    /// Returns what the machine's agent tells of it.
    pub fn job_report(&self) -> JobReport {
        JobReport {
            id: self.job.id.clone(),
            attempt: self.job.attempt,
            step: self.step,
            code: self.code,
            message: self.message.clone(),
        }
    }
}

fn next_step(step: JobStep) -> JobStep {
    match step {
        JobStep::Fetch => JobStep::Checksum,
        JobStep::Checksum => JobStep::Stage,
        JobStep::Stage => JobStep::Kubeadm,
        JobStep::Kubeadm => JobStep::Swap,
        JobStep::Swap => JobStep::Restart,
        JobStep::Restart => JobStep::Health,
        JobStep::Health | JobStep::RollBack | JobStep::Done => JobStep::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::job::tests::job, *};

    const OLD: &str = "old";
    const NEW: &str = "new";

    /// A machine whose runner is killed before its nth effect, and then started again.
    #[derive(Clone, Debug, PartialEq)]
    struct Host {
        /// What is on the disk, the journal too.
        journal: UpgradeJournal,
        kubelets: KubeletDigests,
        fetched: bool,
        /// The kubelet's configuration is that of the new version.
        configured: bool,
        kept_configuration: bool,
        /// The kubelet that runs.
        running: &'static str,
        /// Effects until the runner is killed.
        left: usize,
    }

    struct Killed;

    impl Host {
        fn new(role: MachineRole) -> Self {
            let job = UpgradeJob { role, ..job() };
            Self {
                journal: UpgradeJournal::new(job, OLD.to_owned()),
                kubelets: KubeletDigests { installed: Some(OLD.to_owned()), ..Default::default() },
                fetched: false,
                configured: false,
                kept_configuration: false,
                running: OLD,
                left: usize::MAX,
            }
        }

        fn effect(&mut self, effect: impl FnOnce(&mut Self)) -> Result<(), Killed> {
            self.left = self.left.checked_sub(1).ok_or(Killed)?;
            effect(self);
            Ok(())
        }

        fn perform(&mut self, step: JobStep) -> Result<Result<(), StepFailure>, Killed> {
            let failed = |text: String| Ok(Err(StepFailure::Final(text)));
            match step {
                JobStep::Fetch => self.effect(|host| host.fetched = true)?,
                JobStep::Checksum => assert!(self.fetched),
                JobStep::Stage => {
                    assert!(!self.configured, "what is kept is that of the old kubelet");
                    self.effect(|host| host.kubelets.staged = Some(NEW.to_owned()))?;
                    self.effect(|host| host.kept_configuration = true)?;
                }
                JobStep::Kubeadm => self.effect(|host| host.configured = true)?,
                JobStep::Swap => match self.journal.plan_swap(&self.kubelets) {
                    Ok(moves) => self.moved(moves)?,
                    Err(text) => return failed(text),
                },
                JobStep::Restart => self.restart()?,
                JobStep::Health => assert_eq!(self.running, NEW),
                JobStep::RollBack => {
                    assert!(self.kept_configuration);
                    self.effect(|host| host.configured = false)?;
                    match self.journal.plan_rollback(&self.kubelets) {
                        Ok(back) => self.moved(back)?,
                        Err(text) => return failed(text),
                    }
                    self.restart()?;
                }
                JobStep::Done => unreachable!("it has ended"),
            }
            Ok(Ok(()))
        }

        fn moved(&mut self, moves: impl IntoIterator<Item = KubeletMove>) -> Result<(), Killed> {
            for one in moves {
                self.effect(|host| {
                    let all = &mut host.kubelets;
                    match one {
                        KubeletMove::Keep => all.kept = all.installed.clone(),
                        KubeletMove::PutNew => all.installed = all.staged.take(),
                        KubeletMove::PutBack => all.installed = all.kept.clone(),
                    }
                })?;
            }
            Ok(())
        }

        fn restart(&mut self) -> Result<(), Killed> {
            let new = self.kubelets.installed.as_deref() == Some(NEW);
            self.effect(|host| host.running = if new { NEW } else { OLD })
        }

        /// Goes on until the end, or until it is killed. The step `broken` fails.
        fn run(&mut self, broken: Option<JobStep>) -> Result<JobCode, Killed> {
            loop {
                let mut journal = self.journal.clone();
                let Some(step) = journal.next(Timestamp::UNIX_EPOCH) else {
                    return Ok(self.journal.code.unwrap());
                };
                let ended = if broken == Some(step) {
                    // It may have done its work, and fail all the same.
                    self.perform(step)?.ok();
                    Err(StepFailure::Final(format!("{step:?} fails")))
                } else {
                    self.perform(step)?
                };
                journal.record_result(ended);
                self.effect(|host| host.journal = journal)?;
            }
        }
    }

    /// Every cut point of every course: the runner is killed there, twice even, and goes on.
    #[test]
    fn a_machine_ends_old_or_new_wherever_its_runner_is_killed() {
        let steps = [
            None,
            Some(JobStep::Checksum),
            Some(JobStep::Stage),
            Some(JobStep::Kubeadm),
            Some(JobStep::Swap),
            Some(JobStep::Restart),
            Some(JobStep::Health),
        ];
        let mut kills = 0;
        for broken in steps {
            for (first, second) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
                let mut host = Host::new(MachineRole::Worker);
                for left in [first, second, usize::MAX] {
                    host.left = left;
                    let ended = host.run(broken);
                    kills += usize::from(ended.is_err());
                    let installed = host.kubelets.installed.as_deref();
                    assert!([Some(OLD), Some(NEW)].contains(&installed), "{host:?}");
                    if ended.is_ok() {
                        break;
                    }
                }
                let code = host.journal.code.unwrap();
                let wanted = if broken.is_none() { NEW } else { OLD };
                assert_eq!(host.kubelets.installed.as_deref(), Some(wanted), "{host:?}");
                assert_eq!((host.running, host.configured), (wanted, broken.is_none()), "{host:?}");
                let ended = if broken.is_none() { JobCode::Done } else { JobCode::RolledBack };
                assert_eq!(code, ended);
                if broken.is_none() {
                    assert_eq!(host.kubelets.kept.as_deref(), Some(OLD));
                }
            }
        }
        assert!(kills > 1000, "{kills} kills");
    }

    #[test]
    fn where_the_way_back_fails_or_a_control_plane_is_half_done_it_is_dirty() {
        let mut host = Host::new(MachineRole::Worker);
        host.left = 6;
        assert!(host.run(None).is_err());
        host.kubelets = KubeletDigests { installed: None, kept: None, staged: None };
        host.left = usize::MAX;
        assert_eq!(host.run(None).ok(), Some(JobCode::Dirty));
        let message = host.journal.message.unwrap();
        assert!(
            message.ends_with("the way back failed: the old kubelet is not there"),
            "{message}"
        );
        for (role, broken, code) in [
            (MachineRole::FirstControlPlane, JobStep::Kubeadm, JobCode::Dirty),
            (MachineRole::ControlPlane, JobStep::Kubeadm, JobCode::Dirty),
            (MachineRole::ControlPlane, JobStep::Health, JobCode::RolledBack),
            (MachineRole::Worker, JobStep::Kubeadm, JobCode::RolledBack),
        ] {
            let mut host = Host::new(role);
            assert_eq!(host.run(Some(broken)).ok(), Some(code), "{role:?} {broken:?}");
        }
    }

    #[test]
    fn a_job_whose_time_is_over_is_not_begun_and_one_that_touched_the_machine_is_finished() {
        let over: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        let deadline = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(over));
        let mut journal = UpgradeJournal::new(UpgradeJob { deadline, ..job() }, OLD.to_owned());
        journal.record_result(Err(StepFailure::Again("no answer".to_owned())));
        assert_eq!((journal.code, journal.is_over()), (Some(JobCode::Again), false));
        let mut touched = journal.clone();
        touched.step = JobStep::Kubeadm;
        assert_eq!(touched.next(over), Some(JobStep::Kubeadm));
        let before = over - k8s_openapi::jiff::SignedDuration::from_secs(1);
        assert_eq!(journal.next(before), Some(JobStep::Fetch));
        assert_eq!(journal.next(over), None);
        assert_eq!(journal.code, Some(JobCode::RolledBack));
        assert_eq!(journal.message.as_deref(), Some("the job's time was over: no answer"));
    }

    #[test]
    fn a_journal_keeps_the_last_lines() {
        let mut journal = UpgradeJournal::new(job(), OLD.to_owned());
        let lines: Vec<String> = (0..30).map(|line| line.to_string()).collect();
        journal.append_log(&lines.join("\n\n"));
        journal.append_log(&"x".repeat(1000));
        assert_eq!((journal.lines.len(), journal.lines[0].as_str()), (20, "11"));
        assert_eq!(journal.lines[19].len(), 300);
        let text = serde_json::to_string(&journal).unwrap();
        assert_eq!(serde_json::from_str::<UpgradeJournal>(&text).unwrap(), journal);
    }
}
