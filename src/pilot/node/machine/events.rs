//! The events that the machine takes, and the effects that it asks for.
//!
//! Events come from `runner`, and effects go there; it answers most of them with an event.

use std::time::Duration;

use crate::pilot::{
    driver::{DumpSignal, ENDINGS, TRANSPORTS_STOPPED},
    process::supervisor::ChildExit,
};

/// What the API wants of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIntent {
    Running,
    Decommissioned,
    Stopped,
    Fenced,
}

/// Numbers the attempts to start and the validations, so that a late answer to an earlier one is
/// known as such.
pub type AttemptId = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineEvent {
    /// The intent as it is now. `restart` differs from the last one when a restart is asked for;
    /// `changed` is set when anything is new that a rejected start may depend on.
    Intent {
        want: NodeIntent,
        restart: Option<String>,
        changed: bool,
    },
    /// A restart is wanted, or not, for the configuration of the intent that comes next.
    RestartOrdered(bool),
    /// Silence of this length counts as a hang from now on.
    SilenceLimit(Duration),
    PreflightPassed(AttemptId),
    PreflightFailed(AttemptId),
    /// It is this node's turn to start.
    Turn {
        attempt: AttemptId,
        may_found: bool,
    },
    Configured(AttemptId),
    /// The configuration cannot be rendered, at least not yet.
    NotConfigured(AttemptId),
    /// The programs that come before the database have ended, all of them well.
    Prepared(AttemptId),
    /// A program that comes before the database failed, or was cancelled; none runs any more.
    NotPrepared(AttemptId),
    Spawned {
        pid: i32,
    },
    SpawnFailed,
    Exited(ChildExit),
    /// The database said, as it ended, that its node left the cluster for good.
    Decommissioned,
    /// The wanted configuration was validated while the database runs.
    Validated {
        attempt: AttemptId,
        good: bool,
    },
    /// The database was asked how it is; not answering is `alive: false`.
    Observed {
        alive: bool,
        serving: bool,
    },
    /// The process says that it cannot go on with what it began, and that a new process may.
    GaveUp,
    /// The database answers and has served no client for too long.
    StoppedServing,
    /// The data volume was looked at.
    Space {
        full: bool,
    },
    /// The flush is done, or failed: either way a signal is next.
    Flushed,
    DecommissionMoving,
    DecommissionRefused,
    DecommissionDone,
    /// The leaving of the node is written down, or cannot be.
    DecommissionRecorded,
    /// The database confirmed that the node stays.
    DecommissionCancelled,
    /// It is too late for the node to stay.
    DecommissionIrreversible,
    /// The database did not say whether the node stays.
    CancelFailed,
    Signal(i32),
    Timer(MachineTimer),
}

impl MachineEvent {
    /// Returns the event of a process that answers and is to be followed by another one, from the
    /// reason for which its node does not serve; `None`: the process goes on.
    pub fn from_reason(reason: &str) -> Option<Self> {
        match reason {
            TRANSPORTS_STOPPED => Some(Self::StoppedServing),
            _ => ENDINGS.contains(&reason).then_some(Self::GaveUp),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MachineTimer {
    Recheck,
    Backoff,
    Flush,
    /// The signal that was sent last had its time, the process did not end, and there is a stronger
    /// signal.
    Signal,
    Kill,
    Hung,
    Decommission,
    Freed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineEffect {
    Preflight(AttemptId),
    TakeTurn(AttemptId),
    Configure {
        attempt: AttemptId,
        may_found: bool,
    },
    /// Run the programs that come before the database, to their end.
    Prepare(AttemptId),
    /// End the program that runs ahead of the database; its end is still answered by `Prepared` or
    /// `NotPrepared`.
    CancelPreparation,
    /// Validate the wanted configuration beside the running process, touching nothing of its own.
    Validate(AttemptId),
    /// Start what was configured last; answered at once by `Spawned` or `SpawnFailed`.
    Spawn,
    Signal {
        pid: i32,
        signal: i32,
    },
    SignalGroup {
        pid: i32,
        signal: i32,
    },
    /// The database fell silent: send CONT to its process group, which may have been stopped.
    Continue {
        pid: i32,
    },
    /// Ask the database to print what it is doing.
    Dump {
        pid: i32,
        dump: DumpSignal,
    },
    Flush,
    Decommission,
    CancelDecommission,
    /// Write down that the node has left its cluster; answered by `DecommissionRecorded`, upon
    /// which the process is stopped.
    RecordDecommissioned,
    Arm(MachineTimer, Duration),
    Disarm(MachineTimer),
    Exit(u8),
}
