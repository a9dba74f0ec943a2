//! The pilot replaces its own program and keeps the child: a newer pilot takes over by exec.
//!
//! Owns the watch over the program's file, the check of a new file, and the exec. A file is tried
//! only after two looks found it the same (so it is complete), and executed only after it proved,
//! as a child of its own, that it understands the handoff and this command line on this machine.
//! The open file that was checked is the one that is executed. A file that is refused is not tried
//! again, unless the policy changes; the running pilot stays as it was, also when the exec fails.
//! No signal triggers any of this: all of them belong to the child.

mod handoff;
mod program;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use nix::errno::Errno;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use self::program::FileId;
pub use self::{
    handoff::{Error, FORMAT, HandedNode, ProgramHandoff, receive_handoff},
    program::{CandidateProgram, RunningProgram, installation_id},
};
use crate::{
    pilot::process::supervisor::{ChildCommand, HelperOutcome, OutputMode, Supervisor},
    runtime::log,
};

/// How long a program may take to say that it can take over; then it is ended.
const CHECK_LIMIT: Duration = Duration::from_secs(20);
/// How many checks of one file must take too long for it to be refused: a busy machine makes no
/// program unfit.
const TRIES: u32 = 5;
/// How long a reader of the child's output may hold up a takeover, which must wait until what was
/// read last is written.
pub const PARK_LIMIT: Duration = Duration::from_secs(1);

/// How long the reader of the pilot's own log may hold up the exec.
const FLUSH: Duration = Duration::from_millis(500);

/// When a new program may take over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakeoverPolicy {
    /// At any time, also while the child runs.
    #[default]
    InPlace,
    /// Only while no child runs.
    OnRestart,
    Never,
}

impl TakeoverPolicy {
    /// Returns the policy that `pilotUpdate` of a Pilot's spec names; an unknown word counts as the
    /// default.
    pub fn from_spec(word: Option<&str>) -> Self {
        match word {
            Some("OnRestart") => Self::OnRestart,
            Some("Never") => Self::Never,
            _ => Self::InPlace,
        }
    }
}

/// What [`ProgramTakeover::next`] tells.
#[derive(Debug)]
pub enum TakeoverEvent {
    /// Another program is there, complete: [`ProgramTakeover::check_candidate`] it.
    Appeared(CandidateProgram),
    /// A program can take over: see [`ProgramTakeover::is_due`]. Told again with every look.
    Accepted,
    /// A program was refused or left aside: see [`ProgramTakeover::successor`].
    Declined,
}

/// The state of a program that lies in the place of the running one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuccessorState {
    /// The program has yet to prove itself, or waits for its moment: which, in a sentence.
    Pending(String),
    /// The program cannot take over: why.
    Refused(String),
    /// The policy is [`TakeoverPolicy::Never`]: the program is not checked.
    LeftAside,
}

enum TakeoverStage {
    Watching,
    Checking {
        candidate: CandidateProgram,
        answer: BoxFuture<'static, Result<String, CandidateRefusal>>,
    },
    Accepted(CandidateProgram),
}

/// Why a program cannot take over.
enum CandidateRefusal {
    /// Another process writes to the file, or the machine has no room for one more process: ask
    /// again.
    Busy,
    Late,
    Unfit(String),
}

/// What a pilot's process begins with.
pub struct ProcessStart {
    pub program: RunningProgram,
    /// Pause between two looks at the program's file; with zero there are none.
    pub every: Duration,
    /// What an earlier program of this process left; `None` in a new process.
    pub handed: Option<ProgramHandoff>,
}

/// Watches over the file of this process' program.
pub struct ProgramTakeover {
    program: RunningProgram,
    every: Duration,
    policy: TakeoverPolicy,
    next_look: Instant,
    not_before: Instant,
    /// The file of another program, as the last look found it.
    seen: Option<FileId>,
    /// The file that was refused or left aside, and is not tried again unless the policy changes.
    refused: Option<FileId>,
    /// Checks of `seen` that took too long.
    late: u32,
    successor: Option<SuccessorState>,
    stage: TakeoverStage,
}

impl ProgramTakeover {
    /// Makes a watch that looks at the program's file at intervals of `every`; never when that is
    /// zero. Call from within tokio.
    pub fn new(program: RunningProgram, every: Duration) -> Self {
        Self {
            program,
            every,
            policy: TakeoverPolicy::default(),
            next_look: Instant::now() + every,
            not_before: Instant::now(),
            seen: None,
            refused: None,
            late: 0,
            successor: None,
            stage: TakeoverStage::Watching,
        }
    }

    /// Returns the state of the program that lies in the place of the running one; `None` while
    /// that is the running one itself.
    pub fn successor(&self) -> Option<&SuccessorState> {
        self.successor.as_ref()
    }

    /// The [`installation_id`] of the running program.
    pub fn installation(&self) -> &str {
        self.program.installation()
    }

    pub fn set_policy(&mut self, policy: TakeoverPolicy) {
        if std::mem::replace(&mut self.policy, policy) != policy {
            // A program that the old policy left aside is looked at again.
            self.refused = None;
        }
    }

    /// May the accepted program take over now, while a child runs or while none does?
    pub fn is_due(&self, child: bool) -> bool {
        let is_allowed = match self.policy {
            TakeoverPolicy::InPlace => true,
            TakeoverPolicy::OnRestart => !child,
            TakeoverPolicy::Never => false,
        };
        is_allowed && self.is_accepted() && Instant::now() >= self.not_before
    }

    /// Puts an accepted program off until the next look.
    pub fn postpone(&mut self) {
        self.not_before = self.next_look;
    }

    /// Did a program prove that it can take over?
    fn is_accepted(&self) -> bool {
        matches!(self.stage, TakeoverStage::Accepted(_))
    }

    /// Waits until there is something to do about another program. Cancel-safe.
    pub async fn next(&mut self) -> TakeoverEvent {
        loop {
            if let TakeoverStage::Checking { answer, .. } = &mut self.stage {
                let answer = answer.await;
                if let Some(event) = self.handle_check_result(answer) {
                    return event;
                }
                continue;
            }
            if self.every.is_zero() {
                std::future::pending::<()>().await;
            }
            sleep_until(self.next_look).await;
            self.next_look = Instant::now() + self.every;
            if let Some(event) = self.check_file() {
                return event;
            }
        }
    }

    /// Looks at the program's file. Returns what is to be done about another one that is not
    /// refused and was the same at the last look.
    fn check_file(&mut self) -> Option<TakeoverEvent> {
        let Some(candidate) = self.program.open_other() else {
            (self.seen, self.refused, self.stage) = (None, None, TakeoverStage::Watching);
            self.successor = None;
            return None;
        };
        if self.refused == Some(candidate.id) {
            return None;
        }
        if let TakeoverStage::Accepted(accepted_program) = &self.stage {
            if accepted_program.id == candidate.id {
                return Some(TakeoverEvent::Accepted);
            }
            self.stage = TakeoverStage::Watching;
        }
        if self.seen.replace(candidate.id) != Some(candidate.id) {
            self.late = 0;
            return None;
        }
        if self.policy == TakeoverPolicy::Never {
            info!(program = %self.program.path().display(), "A new program is left aside");
            self.refused = Some(candidate.id);
            self.successor = Some(SuccessorState::LeftAside);
            return Some(TakeoverEvent::Declined);
        }
        self.successor = Some(SuccessorState::Pending("a new program is being checked".to_owned()));
        Some(TakeoverEvent::Appeared(candidate))
    }

    /// Has the candidate asked whether it could go on from `handoff`; [`ProgramTakeover::next`]
    /// tells the answer.
    pub fn check_candidate(
        &mut self,
        candidate: CandidateProgram,
        supervisor: &Supervisor,
        handoff: &ProgramHandoff,
    ) {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let handoff = ProgramHandoff { token: token.clone(), ..self.complete_handoff(handoff) };
        let (file, supervisor) = (candidate.file.clone(), supervisor.clone());
        let answer = async move { run_check(&file, &supervisor, &handoff, &token).await };
        self.stage = TakeoverStage::Checking { candidate, answer: Box::pin(answer) };
    }

    /// Takes the answer of a check, and tells what follows from it.
    fn handle_check_result(
        &mut self,
        answer: Result<String, CandidateRefusal>,
    ) -> Option<TakeoverEvent> {
        let TakeoverStage::Checking { candidate, .. } =
            std::mem::replace(&mut self.stage, TakeoverStage::Watching)
        else {
            return None;
        };
        match answer {
            Ok(version) => {
                info!(version, policy = ?self.policy, "A new program can take over");
                self.stage = TakeoverStage::Accepted(candidate);
                let wait_reason = match self.policy {
                    TakeoverPolicy::OnRestart => "waits until the database is restarted",
                    TakeoverPolicy::InPlace | TakeoverPolicy::Never => {
                        "waits for an undisturbed moment"
                    }
                };
                self.successor =
                    Some(SuccessorState::Pending(format!("version {version} {wait_reason}")));
                Some(TakeoverEvent::Accepted)
            }
            Err(CandidateRefusal::Busy) => {
                self.seen = None;
                None
            }
            Err(CandidateRefusal::Late) => {
                self.late += 1;
                let reason = format!("its check took longer than {CHECK_LIMIT:?}");
                if self.late < TRIES {
                    warn!(reason, "A new program is asked once more whether it can take over");
                    self.successor =
                        Some(SuccessorState::Pending(format!("{reason}; it is asked again")));
                } else {
                    self.refuse_candidate(candidate.id, reason);
                }
                Some(TakeoverEvent::Declined)
            }
            Err(CandidateRefusal::Unfit(reason)) => {
                self.refuse_candidate(candidate.id, reason);
                Some(TakeoverEvent::Declined)
            }
        }
    }

    fn refuse_candidate(&mut self, id: FileId, why: String) {
        let program = self.program.path().display();
        warn!(%program, why, "A new program cannot take over; this one stays");
        self.refused = Some(id);
        self.successor = Some(SuccessorState::Refused(why));
    }

    /// Becomes the accepted program, which finds `handoff` and the descriptors of `descriptors`.
    /// Call on the main thread: the child of a thread that an exec ends is killed with it. Returns
    /// only when the exec failed, and then nothing has changed.
    pub fn become_accepted(&mut self, handoff: &ProgramHandoff, descriptors: &[BorrowedFd<'_>]) {
        let TakeoverStage::Accepted(candidate) =
            std::mem::replace(&mut self.stage, TakeoverStage::Watching)
        else {
            return;
        };
        let error = self.become_program(&candidate, handoff, descriptors);
        self.refuse_candidate(candidate.id, error.to_string());
    }

    /// Begins anew as the program that runs, with `handoff` and `descriptors` as for
    /// [`Self::become_accepted`]: state that this program lost or broke by a bug of its own is made
    /// again. Returns why the exec failed.
    pub fn become_itself(
        &self,
        handoff: &ProgramHandoff,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Error {
        match self.program.open_running() {
            Ok(itself) => self.become_program(&itself, handoff, descriptors),
            Err(error) => error,
        }
    }

    fn become_program(
        &self,
        program: &CandidateProgram,
        handoff: &ProgramHandoff,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Error {
        debug_assert_eq!(nix::unistd::gettid(), nix::unistd::getpid(), "exec on the main thread");
        match self.complete_handoff(handoff).to_file() {
            Ok(file) => {
                let mut kept_descriptors = descriptors.to_vec();
                kept_descriptors.push(file.as_fd());
                // Queued log lines would be lost with the thread that writes them.
                log::flush_queue(FLUSH);
                self.program.execute(program, file.as_raw_fd(), &kept_descriptors)
            }
            Err(error) => error,
        }
    }

    /// Completes a handoff by the path and the command line of this program.
    fn complete_handoff(&self, handoff: &ProgramHandoff) -> ProgramHandoff {
        ProgramHandoff {
            program: self.program.path().to_owned(),
            arguments: self.program.arguments_as_text(),
            ..handoff.clone()
        }
    }
}

/// Runs the candidate with the handoff as its input. Its exit code alone proves little, as any
/// program may end with 0: the candidate must also print the token that only the handoff holds.
async fn run_check(
    candidate: &Arc<File>,
    supervisor: &Supervisor,
    handoff: &ProgramHandoff,
    token: &str,
) -> Result<String, CandidateRefusal> {
    let candidate_error = |error: io::Error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ETXTBSY | Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => {
            CandidateRefusal::Busy
        }
        _ => CandidateRefusal::Unfit(error.to_string()),
    };
    let command = ChildCommand {
        program: format!("/proc/self/fd/{}", candidate.as_raw_fd()).into(),
        args: ["pilot", "takeover", "--check"].map(Into::into).to_vec(),
        input: Some(Arc::new(handoff.to_file().map_err(candidate_error)?)),
        output: OutputMode::Keep,
        ..ChildCommand::default()
    };
    let helper_result = supervisor.run_helper(&command, CHECK_LIMIT, std::future::pending()).await;
    let HelperOutcome { exit, last_lines: lines } = helper_result.map_err(candidate_error)?;
    let Ok(exit) = exit else {
        return Err(CandidateRefusal::Late);
    };
    let version_line = lines.iter().find_map(|line| line.strip_prefix(token)).map(str::trim);
    match version_line {
        Some(version) if exit.code == Some(0) => Ok(version.to_owned()),
        _ => Err(CandidateRefusal::Unfit(format!("its check {exit}: {}", lines.join("; ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_is_tried_after_two_equal_checks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("navigator");
        let program =
            RunningProgram::for_current_process(vec![], vec![], Some(path.clone())).unwrap();
        let mut takeover = ProgramTakeover::new(program, Duration::from_secs(1));
        for text in ["half", "half of a program"] {
            std::fs::write(&path, text).unwrap();
            assert!(takeover.check_file().is_none(), "{text}");
        }
        assert!(matches!(takeover.check_file(), Some(TakeoverEvent::Appeared(_))));
    }

    #[tokio::test]
    async fn policy_never_tries_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("navigator");
        let program =
            RunningProgram::for_current_process(vec![], vec![], Some(path.clone())).unwrap();
        let mut takeover = ProgramTakeover::new(program, Duration::from_secs(1));
        takeover.set_policy(TakeoverPolicy::Never);
        std::fs::write(&path, "another program").unwrap();
        assert!(takeover.check_file().is_none());
        assert!(matches!(takeover.check_file(), Some(TakeoverEvent::Declined)));
        assert_eq!(takeover.successor(), Some(&SuccessorState::LeftAside));
    }
}
