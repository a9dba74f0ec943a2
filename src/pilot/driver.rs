//! What pilots ask of a database, and what they are told: [`Driver`], which the folder of each
//! database implements.

mod observation;
mod peer_addresses;
mod secured_database;

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use futures::future::BoxFuture;
use nix::libc;
use tokio::sync::watch;

use crate::{
    api::{
        pilot_part::PilotParts,
        predicate::Predicate,
        v1beta1::{Decommission, Pilot, SecurityRungs},
    },
    engine::exit_explanation::{ExitExplanation, ExitTable, explain_exit},
    pilot::{
        process::supervisor::{ChildCommand, OutputMode},
        query_answer::UnansweredQuery,
    },
    runtime::leader::LeaderClaim,
};

pub use self::{
    observation::{DatabaseCondition, GaugeFigure, NodeObservation},
    peer_addresses::{PeerAddresses, TRANSPORT},
    secured_database::{RunningSecurity, SecuredDatabase, SecuredPort},
};

/// What a verb of a [`Driver`] gives: its result, or why the database could not do it.
pub type DriverAnswer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Kernel limits that a database cannot do without; 0 asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelNeeds {
    pub open_files: u64,
    pub processes: u64,
    /// Memory mappings of one process: `vm.max_map_count`.
    pub mappings: u64,
    /// The database locks all of its memory.
    pub locks_memory: bool,
}

/// The leading node's permission to change what belongs to the whole database cluster. It may end
/// at any moment: ask [`Self::is_held`] ahead of every change.
#[derive(Clone, Debug)]
pub struct LeaderPermit(watch::Receiver<LeaderClaim>);

impl LeaderPermit {
    pub fn new(claim: watch::Receiver<LeaderClaim>) -> Self {
        Self(claim)
    }

    /// The permission of a node without peers: it holds for good.
    pub fn for_single_node() -> Self {
        Self(watch::channel(LeaderClaim::for_single_process()).1)
    }

    pub fn is_held(&self) -> bool {
        self.0.borrow().is_held()
    }
}

/// What a node finds that only the leader of its cluster may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderDuty {
    /// Nothing: no pilot need lead.
    #[default]
    None,
    /// There is something to do for the cluster.
    Cluster,
    /// This node leaves, and needs the leader for that. Its own pilot may lead until it has left.
    Departure,
}

/// Everything that a database needs to prepare and run its node.
#[derive(Clone, Debug)]
pub struct DatabaseNode {
    /// The Pilot as last seen; its spec is the intent.
    pub pilot: Pilot,
    /// Pilots of the same cluster, without this one.
    pub peers: Vec<Pilot>,
    /// At which addresses nodes of the peers can be reached now.
    pub addresses: PeerAddresses,
    /// `metadata.uid` of the cluster, from the Pilot's owner reference.
    pub cluster_uid: Option<String>,
    /// Address that other nodes reach this one at.
    pub address: IpAddr,
    /// Where the database is installed, for example `/opt/NAME`.
    pub home: PathBuf,
    /// Root of the data volume; `.navigator/` below it is the pilot's own.
    pub data: PathBuf,
    /// Folder that the database renders its configuration into; empty at first, the pilot's own.
    pub config: PathBuf,
    /// Folder that `navigator install` filled (the agents).
    pub shared: PathBuf,
    /// Memory limit of the container in bytes.
    pub memory_limit: Option<u64>,
    /// This node was recorded as the founder and may found a new database cluster.
    pub may_found: bool,
    /// The ring that the node was let into, where one is recorded.
    pub ring: Option<Ring>,
}

/// The ring of a cluster: the database cluster that one founding began, as the LeaderLease records
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    pub id: String,
    /// The ring is older than the cluster object: it may miss members for which no Pilot stands.
    pub remade: bool,
}

/// A process to start. Secrets go into files or the environment, never into arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSpec {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// Added to the pilot's own environment.
    pub env: BTreeMap<String, String>,
    pub working_directory: Option<PathBuf>,
    /// Hash of all settings that need a restart to take effect; shown as `status.configHash` where
    /// the Pilot's spec has none.
    pub config_hash: String,
    /// What the process encrypts and asks for; the framework sets it.
    pub rungs: SecurityRungs,
}

/// The process writes to the container's output; the pilot chooses its user.
impl From<&ProcessSpec> for ChildCommand {
    fn from(process: &ProcessSpec) -> Self {
        let ProcessSpec { program, args, env, working_directory, config_hash: _, rungs: _ } =
            process;
        Self {
            program: program.clone(),
            args: args.iter().map(Into::into).collect(),
            env: env.iter().map(|(key, value)| (key.into(), value.into())).collect(),
            working_directory: working_directory.clone(),
            user: None,
            input: None,
            output: OutputMode::Tee,
        }
    }
}

/// A program that must end well before the database starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparationProgram {
    /// What the program does, for people: `install plugin analysis-icu`.
    pub what: String,
    pub program: ProcessSpec,
    /// What the program reads: the answers to its questions.
    pub input: Option<&'static str>,
}

/// One preflight check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCheck {
    /// Reason of the condition, for example `DiskFull`.
    pub reason: &'static str,
    /// What was found and what to do about it.
    pub message: String,
}

/// Reason of the Ready condition of a node that joined without the data of the other nodes: a
/// member that does not serve.
pub const JOINED_EMPTY: &str = "JoinedEmpty";

/// Reason of the Ready condition of a node whose join failed: only a new process may begin a join
/// anew, and the pilot starts one.
pub const JOIN_FAILED: &str = "JoinFailed";

/// Reason of the Ready condition of a node that has done what its first process was for: it serves
/// with the next one, which the pilot starts.
pub const NEXT_LIFE: &str = "Founded";

/// Reason of the Ready condition of a node that served and has served no client for too long, though
/// its database answers: the pilot starts another process, unless the volume is full.
pub const TRANSPORTS_STOPPED: &str = "TransportsStopped";

/// The reasons for which the pilot ends a process that would go on, and starts another.
pub const ENDINGS: &[&str] = &[JOIN_FAILED, NEXT_LIFE, TRANSPORTS_STOPPED];

/// How a database answers when it is asked to decommission its node.
#[derive(Clone, Debug, PartialEq)]
pub enum DecommissionState {
    /// Data are still being moved.
    Moving(Decommission),
    /// The node has been told to leave, and its data have nowhere to go until a person acts.
    Stuck(Decommission, DepartureRefusal),
    /// The decommission cannot go on until a person acts.
    Refused(DepartureRefusal),
    /// The node holds no data that others lack, and left the database cluster.
    Done,
}

/// Why a node that is to leave does not go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepartureRefusal {
    pub predicate: &'static Predicate,
    /// What is in the way, and what a person can do about it.
    pub why: String,
}

impl DepartureRefusal {
    pub fn new(predicate: &'static Predicate, why: impl Into<String>) -> Self {
        Self { predicate, why: why.into() }
    }
}

/// How a database answers when it is asked to forget a node that is lost for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetState {
    /// It is under way, or waits for something; the message says for what.
    Removing(String),
    /// The database does not know the node, or no longer.
    Forgotten,
    /// The database has to keep the node; the message says why.
    Refused(String),
}

/// How a database's process is asked to end, and which exit codes then mean success. Its process
/// group is killed two seconds before the grace period is over, whatever the plan says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopPlan {
    /// How long [`Driver::flush`] may take before the first signal is sent anyway; zero where there
    /// is nothing to flush. At most three quarters of the grace period.
    pub flush: Duration,
    /// The first signal that asks the process to end. The last one has all the time that is left.
    pub signal: i32,
    /// Stronger signals. Each is sent when the signal before it had the duration beside it, or less
    /// where the grace period is short.
    pub then: &'static [(Duration, i32)],
    /// Exit codes beside 0 of a process that ended as asked. The code of a process that a signal
    /// ended is 128 plus the signal's number.
    pub success: &'static [u8],
}

impl StopPlan {
    /// The plan without a flush: TERM, after which only exit code 0 is success.
    pub const DEFAULT: Self =
        Self { flush: Duration::ZERO, signal: libc::SIGTERM, then: &[], success: &[] };
}

/// How a process that does not answer is asked to print what it is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpSignal {
    pub signal: i32,
    /// Child processes of this name get the signal, too: the process may be a launcher. Helpers of
    /// another name might die of the signal.
    pub children: &'static str,
}

/// A node's part among the nodes with the same data, in a database whose nodes are not all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationRole {
    /// The node takes the writes.
    Primary,
    /// The node follows a primary.
    Replica,
}

impl ReplicationRole {
    pub const ALL: [Self; 2] = [Self::Primary, Self::Replica];

    /// Returns the role's name for people and for the label of a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Replica => "replica",
        }
    }
}

/// Why a database could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The intent cannot be rendered, or the database would refuse it; a running database is left
    /// alone.
    #[error("configuration was rejected: {0}")]
    ConfigRejected(String),
    /// What the database needs in place before it starts, such as a plugin, cannot be put there.
    #[error("{0}")]
    Unprepared(String),
    /// Something must happen elsewhere first; the pilot asks again.
    #[error("{0}")]
    NotYet(String),
    #[error("failed to read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to write {path:?}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("failed to give {path:?} to the database's user")]
    Give { path: PathBuf, source: std::io::Error },
    /// The database answers clients, and not the question how it is.
    #[error("the database answers clients, and does not say how it is")]
    Evasive,
    /// The database lives, and left one question open.
    #[error("the database does not say what is asked of it")]
    NotHeard(#[source] UnansweredQuery),
    #[error("database does not answer")]
    Unreachable { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("database answered {0}")]
    Refused(String),
    /// A decommission that is past the point of no return.
    #[error("decommission cannot be taken back: {0}")]
    TooLate(String),
}

impl From<UnansweredQuery> for Error {
    fn from(query: UnansweredQuery) -> Self {
        Self::NotHeard(query)
    }
}

/// A database that takes longer than its limit counts as one that does not answer.
impl From<tokio::time::error::Elapsed> for Error {
    fn from(elapsed: tokio::time::error::Elapsed) -> Self {
        Self::Unreachable { source: elapsed.into() }
    }
}

impl Error {
    /// Did the database leave a question unanswered? A file that the pilot cannot read or write
    /// says nothing about the database, and a refusal is an answer.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// The verbs of one database. Calls may overlap; each is safe to repeat and to drop half-way. Verbs
/// that read or write the data volume at length (`restore_state`, `run_preflight`, `validate`,
/// `configure`, `refresh_peers`, `decommission`, `cancel_decommission`) may block: the pilot calls
/// them where a volume that hangs holds nothing else up. The others touch the volume through
/// [`Volume`](crate::pilot::volume::data_volume::Volume) only, and never wait for it.
pub trait Driver: Send + Sync + 'static {
    /// Reads what an earlier pilot left on the volume. Called once and first.
    fn restore_state(&self) {}
    /// Returns the kernel limits that the node needs.
    fn kernel_needs(&self, _node: &DatabaseNode) -> KernelNeeds {
        KernelNeeds::default()
    }
    /// Runs the checks of this database alone, and returns those that failed. With none the
    /// database may start. That its program is there is checked before.
    fn run_preflight<'a>(&'a self, _node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async { Vec::new() })
    }
    /// Returns the programs to run to their end, in order, after [`Driver::configure`] and before
    /// the database: installing and removing plugins. One that fails keeps the database stopped. No
    /// such program runs while this is called.
    fn preparation_programs<'a>(
        &'a self,
        _node: &'a DatabaseNode,
    ) -> DriverAnswer<'a, Vec<PreparationProgram>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    /// Takes the outcome of the program at `index` in the list of [`Driver::preparation_programs`], before the
    /// next program is started.
    fn record_preparation(
        &self,
        _node: &DatabaseNode,
        _index: usize,
        _outcome: Result<(), &str>,
    ) -> Result<(), Error> {
        Ok(())
    }
    /// Writes into the report how far the preparation is.
    fn report_preparation(&self, _detail: &mut PilotParts) {}
    /// Renders and validates the wanted configuration as [`Driver::configure`] would, and writes
    /// none: the database may be running with another one. What the next [`Driver::observe`] finds
    /// goes by what is wanted now.
    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()>;
    /// Writes a complete configuration and says what to start.
    fn configure<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ProcessSpec>;
    /// Brings a running database up to date with what needs no restart: the addresses of its
    /// peers. Called when the node's own Pilot or a peer changed.
    fn refresh_peers<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Asks the database how it is, without starting a process. A failure to write a part of the
    /// answer to the volume is told in [`NodeObservation::unsaved`], and the answer stands.
    /// Questions that the database left open are told in [`NodeObservation::not_heard`]; where the
    /// rest means nothing without them, the call fails with [`Error::NotHeard`]. Then the last
    /// report stands, and the node shall not be stopped.
    fn observe(&self) -> DriverAnswer<'_, NodeObservation>;
    /// Does a database that did not say how it is answer in another way? The pilot waits two
    /// seconds for this second opinion.
    fn is_alive(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { false })
    }
    /// Begins or continues to move all data of the node away; returns how far the move is.
    fn decommission<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, DecommissionState>;
    /// Takes a decommission back. [`Error::TooLate`] where that is no longer possible: then the
    /// node leaves, and [`Driver::decommission`] follows it to its end.
    fn cancel_decommission<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Does this Pilot ask for work that [`Driver::run_task`] has to do? Called every few seconds.
    fn has_pending_task(&self, _pilot: &Pilot) -> bool {
        false
    }
    /// Does work on the node's own data that a person asked for, which may take days, when it is
    /// the node's turn: `node.peers` are what the API says now. Returns when the work is done,
    /// failed, or must wait; the pilot calls it again as long as [`Driver::has_pending_task`]. Dropped
    /// when the process ends.
    fn run_task<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Begins or continues to have the database forget the node of this id, which is lost for good;
    /// returns how far that is. A database that keeps no list of its members has nothing to
    /// forget. Refuses for a node that is up.
    fn forget_member<'a>(
        &'a self,
        _node: &'a DatabaseNode,
        _lost: &'a str,
    ) -> DriverAnswer<'a, ForgetState> {
        Box::pin(async { Ok(ForgetState::Forgotten) })
    }
    /// Returns how the database encrypts and asks for passwords, where it can. A node that is to do
    /// so and cannot is not started.
    fn secured_database(&self) -> Option<&dyn SecuredDatabase> {
        None
    }
    /// Is there anything for [`Driver::lead_duties`] to do, ever?
    fn has_lead_duties(&self) -> bool {
        false
    }
    /// Looks whether there is something for [`Driver::lead_duties`] to do now. Called every few
    /// seconds on every node that may lead. While each node says [`LeaderDuty::None`], the pilots
    /// have no leader and send no requests for a lease. `node.peers` may be some minutes old: what
    /// they are said to want is asked for anew before a pilot asks for the lead.
    fn leader_duty<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, LeaderDuty> {
        let duty = if self.has_lead_duties() { LeaderDuty::Cluster } else { LeaderDuty::None };
        Box::pin(async move { Ok(duty) })
    }
    /// Does what is to be done once for the whole database cluster. Called on the node whose pilot
    /// leads: when it has begun to lead, and every few seconds from then on. Another leader may
    /// take over at any await, or overlap for the time of one request: ask `lead` ahead of every
    /// change, and decide by what is there, so that it does not matter what an earlier leader had
    /// done.
    fn lead_duties<'a>(
        &'a self,
        _node: &'a DatabaseNode,
        _lead: &'a LeaderPermit,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Tells the other nodes that this one stops and is to come back, ahead of [`Driver::flush`]
    /// and within its time. A restart that was not announced costs work and no data.
    fn announce_restart<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Flushes and stops serving, ahead of the first signal of [`Driver::stop_plan`], where the
    /// plan leaves time for a flush.
    fn flush(&self) -> DriverAnswer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Takes out of the report what is true of a running process only, as no process runs any more.
    fn forget_process(&self, _detail: &mut PilotParts) {}
    fn stop_plan(&self) -> StopPlan {
        StopPlan::DEFAULT
    }
    /// Returns how a process that does not answer is asked to print what it is doing. `None`: no
    /// signal makes it print that, and an unexpected signal may end it.
    fn dump_signal(&self) -> Option<DumpSignal> {
        None
    }
    /// Returns the ends that the database's process is known for.
    fn exit_table(&self) -> ExitTable {
        &[]
    }
    /// Explains why the process ended by itself, going by its exit code (128 plus the signal's
    /// number where a signal ended it) and the last lines of its log. `None`: no end that the
    /// database is known for. Pure: the caller decides whether to believe and remember an
    /// explanation that says `left`.
    fn explain_exit(&self, code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
        explain_exit(self.exit_table(), code, log_tail)
    }
}
