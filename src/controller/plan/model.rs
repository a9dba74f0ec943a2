//! A search through the states of a small cluster, breadth first.
//!
//! The model holds nodes, Kubernetes, pilots, edits and faults, each reduced to what the plan sees
//! of them; the plan itself is the real one, and so are the rounds of security and what a database
//! declares of its rules. Each search varies a few things ([`ModelRules`]), so that none has more
//! states than it can try. From each state that comes to rest and is not as wanted, the remedies
//! that the plan names are followed: each must lead to a cluster as wanted, without a loss, or the
//! state is a trap. A counterexample is printed as the shortest list of events that leads there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
};

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString};

use super::{
    Plan, PlannedStep, Remedy, pinned_template, pinned_to, plan_next_step, revision_for_new_pod,
};
use crate::{
    api::{
        leave_request::LeaveRequest,
        v1beta1::{
            ClusterSecurity, PilotIntent, PilotSecurity, PilotSecurityStatus, SecurityMode,
            SecurityRungs,
        },
    },
    controller::{
        desired_state::{DesiredCluster, ManagedDatabase},
        observe::{BlockerFacts, Member, ObservedCluster, PodFailure},
        security_round,
        testing::sample,
    },
};

mod facts;
mod faults;
mod judgement;
mod moves;
mod rules;
mod search;

use judgement::{WaysOut, plan_remedies};
pub(crate) use search::{SearchCoverage, search_states};

/// Revisions of the spec. The newer ones are of a newer version. No database starts with the bad
/// one, and none serves with the deaf one. The last two differ from the new one in a setting only.
const REVISIONS: [&str; 5] = ["old", "new", "bad", "tuned", "deaf"];
pub(crate) const OLD: u8 = 0;
pub(crate) const NEW: u8 = 1;
pub(crate) const BAD: u8 = 2;
pub(crate) const TUNED: u8 = 3;
pub(crate) const DEAF: u8 = 4;

/// Returns the revision of the pods of a revision.
fn pod_of(revision: u8) -> u8 {
    if revision >= TUNED { NEW } else { revision }
}

/// Returns which of the versions of a database a revision is of.
fn version_of(revision: u8) -> usize {
    usize::from(revision != OLD)
}

/// Sizes of volumes.
const SIZES: [&str; 2] = ["1Gi", "2Gi"];

/// The names of the pools that a spec may have.
const POOLS: [&str; 2] = ["a", "b"];

/// Pieces of data whose copies are followed.
const DATA: usize = 3;

/// Events after which the report of a pilot is renewed at the latest.
const LATEST: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PodState {
    Absent,
    /// Its database starts, or does not run.
    Starting,
    /// Its database runs, and does not serve clients.
    Deaf,
    Ready,
    /// Ends soon.
    Ending,
    /// Should have ended: its machine is gone.
    Stuck,
    /// Cannot be scheduled: its volume is on a machine that is gone.
    Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum VolumeState {
    None,
    Empty,
    /// Holds data of a member.
    Data,
    /// Says that its node left.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IntentState {
    Running,
    /// As the controller wrote it.
    Leaving,
    Stopped,
    /// As a person wrote it.
    LeavingByPerson,
    Fenced,
}

/// Roles of the nodes of a pool, where the database has roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeRoles {
    pub(crate) master: bool,
    pub(crate) data: bool,
}

pub(crate) const BOTH: NodeRoles = NodeRoles { master: true, data: true };
pub(crate) const MASTER: NodeRoles = NodeRoles { master: true, data: false };
pub(crate) const HOLDER: NodeRoles = NodeRoles { master: false, data: true };

/// What a node is told, or runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeSpec {
    revision: u8,
    roles: NodeRoles,
    secure: bool,
}

/// What a pilot reported last, where that is of a former state; and how many events ago it was so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LateReport {
    of: PilotReport,
    age: u8,
}

/// What a pilot reports of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PilotReport {
    pod: PodState,
    volume: VolumeState,
    runs: NodeSpec,
    started: NodeSpec,
    /// Rules that the pilot says, as bits; see `rules`.
    rules: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeState {
    pod: PodState,
    volume: VolumeState,
    /// The volume is a part of the pod.
    in_pod: bool,
    /// The node had an earlier volume, and is on another machine now.
    moved: bool,
    /// The claim is being deleted: Kubernetes keeps it while its pod runs.
    doomed: bool,
    /// The machine of the volume is gone.
    lost: bool,
    /// There is a Pilot.
    known: bool,
    /// Revision of the pod.
    made: u8,
    /// What the Pilot says, what the process runs with, and what was wanted when it was started.
    told: NodeSpec,
    runs: NodeSpec,
    started: NodeSpec,
    /// The pod has not become ready within its deadline.
    overdue: bool,
    /// The pilot was told to restart the database for the spec of the Pilot.
    ordered: bool,
    /// Revision that the next pod is made of, where the node has not had its turn.
    pinned: Option<u8>,
    /// The newer version opened the data of the volume.
    newer: bool,
    intent: IntentState,
    /// A person gave up the data of the volume.
    given_up: bool,
    /// The pod is asked to leave its machine; or it has left at such a request, and no other pod of
    /// the node has started since.
    asked: bool,
    left: bool,
    /// The claim asks for the larger size.
    large: bool,
    /// The node was a member, whatever became of its volume.
    member: bool,
    /// How often the cluster had been begun anew when the node was a member of it last.
    era: u8,
    /// The cluster that the node begins anew: as a person says, and as the controller asked.
    word: Option<u8>,
    request: Option<u8>,
    report: Option<LateReport>,
    /// The node serves again, and not all pilots have reported since.
    back: bool,
}

const PLAIN: NodeSpec = NodeSpec { revision: OLD, roles: BOTH, secure: false };

const NOTHING: NodeState = NodeState {
    pod: PodState::Absent,
    volume: VolumeState::None,
    in_pod: false,
    moved: false,
    doomed: false,
    lost: false,
    known: false,
    made: OLD,
    told: PLAIN,
    runs: PLAIN,
    started: PLAIN,
    overdue: false,
    ordered: false,
    pinned: None,
    newer: false,
    intent: IntentState::Running,
    given_up: false,
    asked: false,
    left: false,
    large: false,
    member: false,
    era: 0,
    word: None,
    request: None,
    report: None,
    back: false,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PoolState {
    /// Replicas of its StatefulSet; `None` where it has none.
    replicas: Option<u8>,
    /// Revision of its template.
    template: u8,
    nodes: [NodeState; 3],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pools: [PoolState; 2],
    /// Wanted sizes, `None` where the spec has no such pool; and wanted roles.
    wanted: [Option<u8>; 2],
    roles: [NodeRoles; 2],
    revision: u8,
    /// Encryption and logins are wanted.
    secure: bool,
    stopped: bool,
    canary: bool,
    skipped: BTreeSet<String>,
    more_down: bool,
    /// No pod is scheduled on the machine that two nodes share.
    cordoned: bool,
    /// The spec asks for larger volumes.
    large: bool,
    /// A quota refuses new pods.
    refuses: bool,
    /// Nodes of which a majority elects a leader; empty where the database needs none.
    voters: BTreeSet<NodeId>,
    /// The nodes that hold each piece of data, as bits.
    copies: [u8; DATA],
    /// The last piece is of the newer version: no node of the older one takes a copy.
    newer_data: bool,
    /// People lowered the number of copies to one.
    single: bool,
    /// How often the cluster was begun anew.
    era: u8,
    edits: u8,
    faults: u8,
}

/// What differs between the clusters of the searches, and what each search varies.
#[derive(Clone, Copy)]
pub(crate) struct ModelRules {
    /// The database, whose declarations of its rules count.
    pub(crate) database: &'static ManagedDatabase,
    /// The version of the old revision, and of all others.
    pub(crate) versions: [&'static str; 2],
    /// Nodes speak against joins and departures while another node of their ring is down; and data
    /// are read and written by a quorum of their copies.
    pub(crate) ring: bool,
    /// No node serves without a leader, whom a majority elects.
    pub(crate) votes: bool,
    /// Copies of each piece of data, in each datacenter.
    pub(crate) copies: u32,
    /// Each pool is a datacenter. If not, each is a rack or a zone, which has no second copy of a
    /// piece before each other one has a copy.
    pub(crate) datacenters: bool,
    /// Nodes on one machine; each of the others has its own.
    pub(crate) shared: [NodeId; 2],
    /// Volumes can grow.
    pub(crate) expands: bool,
    /// Pilots restart their databases in their pods.
    pub(crate) in_place: bool,
    /// The second pool has no claims.
    pub(crate) in_pods: bool,
    /// Reports of pilots may be of a state some events ago.
    pub(crate) late: bool,
    /// The controller may be slow, and then write what it decided before.
    pub(crate) slow: bool,
    /// One thing happens at a time: the controller carries out its step, else the first node that can
    /// move does. Where it is not set, all that can happen is tried in each order.
    pub(crate) in_turn: bool,
    /// People edit only what is at rest, but for several edits of one apply.
    pub(crate) patient: bool,
    pub(crate) edits: &'static [EditKind],
    /// Revisions and skips that edits choose from.
    pub(crate) revisions: &'static [u8],
    pub(crate) skips: &'static [&'static str],
    pub(crate) faults: &'static [FaultKind],
}

/// What people edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EditKind {
    Sizes,
    Revisions,
    Roles,
    Security,
    Stop,
    Canary,
    Volumes,
    Phases,
    Drain,
    Skips,
    MoreDown,
    /// Clients make an index, whose first copy is on a node of the newest version.
    Index,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Quota,
    Eviction,
    Machine,
    /// A database closes its ports.
    Ports,
    /// The controller ends between two writes of a step.
    Crash,
}

pub(crate) type NodeId = (usize, usize);

fn node_ids() -> impl Iterator<Item = NodeId> {
    (0..2).flat_map(|pool| (0..3).map(move |node| (pool, node)))
}

/// Returns the bit of a node among those that hold a piece of data.
fn node_bit((pool, node): NodeId) -> u8 {
    1 << (pool * 3 + node)
}

impl ModelRules {
    /// Returns the rules of another cluster, of which a search varies the same.
    pub(crate) fn varied_of(&self, cluster: &Self) -> Self {
        let Self { late, slow, in_turn, patient, edits, revisions, skips, faults, .. } = *self;
        Self { late, slow, in_turn, patient, edits, revisions, skips, faults, ..*cluster }
    }

    pub(crate) fn has_edit_kind(&self, kind: EditKind) -> bool {
        self.edits.contains(&kind)
    }

    fn has_fault_kind(&self, kind: FaultKind) -> bool {
        self.faults.contains(&kind)
    }

    /// Returns the parts of the cluster in which a quorum is counted, as bits of their nodes.
    fn quorum_parts(&self) -> &'static [u8] {
        if self.datacenters { &[0b111, 0b11_1000] } else { &[0b11_1111] }
    }
}

impl NodeSpec {
    fn hash(self) -> String {
        let Self { revision, roles, secure } = self;
        let roles = match (roles.master, roles.data) {
            (true, true) => "",
            (master, _) => [" data", " master"][usize::from(master)],
        };
        format!(
            "{}{roles}{}",
            REVISIONS[usize::from(revision)],
            ["", " secure"][usize::from(secure)]
        )
    }

    fn of_hash(hash: &str) -> Self {
        let words: Vec<&str> = hash.split(' ').collect();
        let roles = match (words.contains(&"master"), words.contains(&"data")) {
            (true, _) => MASTER,
            (_, true) => HOLDER,
            _ => BOTH,
        };
        Self { revision: revision_number(words[0]), roles, secure: words.contains(&"secure") }
    }

    fn version(self, rules: &ModelRules) -> String {
        rules.versions[version_of(self.revision)].to_owned()
    }
}

/// Returns the number of a revision.
fn revision_number(name: &str) -> u8 {
    u8::try_from(REVISIONS.iter().position(|revision| *revision == name).unwrap()).unwrap()
}

impl NodeState {
    fn lose_volume(&mut self) {
        self.moved |= self.volume != VolumeState::None;
        (self.volume, self.doomed, self.lost) = (VolumeState::None, false, false);
        (self.given_up, self.newer, self.large) = (false, false, false);
    }

    /// Takes the last trace of the pod away, and with it a volume that is a part of it, or a claim that
    /// waited for that.
    fn lose_pod(&mut self) {
        self.pod = PodState::Absent;
        if self.doomed || self.in_pod {
            self.lose_volume();
        }
    }

    /// Does the pilot refuse to start the database, or does it not start?
    fn is_failing(&self) -> bool {
        let is_mixed = version_of(self.made) != version_of(self.told.revision);
        self.told.revision == BAD || is_mixed || (self.newer && self.told.revision == OLD)
    }

    /// Is its process one that answers its pilot?
    fn is_running(&self) -> bool {
        matches!(self.pod, PodState::Ready | PodState::Deaf)
    }

    /// Was its pilot told to restart the database, which runs still?
    fn is_about_to_restart(&self) -> bool {
        self.pod == PodState::Ready && self.ordered && self.told.revision != BAD
    }

    fn is_leaving(&self) -> bool {
        matches!(self.intent, IntentState::Leaving | IntentState::LeavingByPerson)
    }

    /// Has the node its data still, whether or not it runs?
    fn keeps_data(&self) -> bool {
        self.volume == VolumeState::Data && !self.lost
    }
}

impl ModelState {
    /// Returns a cluster of two pools that serves as wanted.
    pub(crate) fn build_healthy(rules: &ModelRules, sizes: [u8; 2], roles: [NodeRoles; 2]) -> Self {
        let pools = [0, 1].map(|pool| {
            let node_spec = NodeSpec { roles: roles[pool], ..PLAIN };
            let node = NodeState {
                pod: PodState::Ready,
                volume: VolumeState::Data,
                in_pod: rules.in_pods && pool == 1,
                known: true,
                member: true,
                told: node_spec,
                runs: node_spec,
                started: node_spec,
                ..NOTHING
            };
            let size = sizes[pool];
            let mut nodes = [NOTHING; 3];
            nodes[..usize::from(size)].fill(node);
            PoolState { replicas: (size > 0).then_some(size), template: OLD, nodes }
        });
        let mut state = Self {
            pools,
            wanted: sizes.map(|size| (size > 0).then_some(size)),
            roles,
            revision: OLD,
            secure: false,
            stopped: false,
            canary: false,
            skipped: BTreeSet::new(),
            more_down: false,
            cordoned: false,
            large: false,
            refuses: false,
            voters: BTreeSet::new(),
            copies: [0; DATA],
            newer_data: false,
            single: false,
            era: 0,
            edits: 0,
            faults: 0,
        };
        if rules.votes {
            state.voters = node_ids().filter(|id| state.is_master(*id)).collect();
        }
        for piece in 0..DATA {
            state.spread_piece(rules, piece);
        }
        state
    }

    /// Returns how many copies each piece of data should have.
    fn wanted_copies(&self, rules: &ModelRules) -> u32 {
        if self.single { 1 } else { rules.copies }
    }

    /// Runs the node with data of the cluster as it is?
    fn is_live(&self, id: NodeId) -> bool {
        let node = self.node(id);
        node.pod == PodState::Ready && node.volume == VolumeState::Data && node.era == self.era
    }

    /// Runs the node, and may it vote?
    fn is_master(&self, id: NodeId) -> bool {
        self.is_live(id) && self.node(id).runs.roles.master
    }

    /// Are no data of the cluster left?
    fn is_bare(&self) -> bool {
        node_ids().all(|id| self.node(id).volume != VolumeState::Data)
    }

    /// Have the nodes a leader, where they need one?
    fn is_led(&self) -> bool {
        let live_count = self.voters.iter().filter(|id| self.is_master(**id)).count();
        self.voters.is_empty() || live_count > self.voters.len() / 2
    }

    fn node(&self, (pool, node): NodeId) -> &NodeState {
        &self.pools[pool].nodes[node]
    }

    fn node_mut(&mut self, (pool, node): NodeId) -> &mut NodeState {
        &mut self.pools[pool].nodes[node]
    }

    /// Is the node on the machine that two nodes share?
    fn is_shared(&self, rules: &ModelRules, id: NodeId) -> bool {
        rules.shared.contains(&id) && !self.node(id).moved
    }

    /// Does the spec want the node?
    fn is_node_desired(&self, (pool, node): NodeId) -> bool {
        self.wanted[pool].is_some_and(|size| node < usize::from(size))
    }

    fn is_in_set(&self, (pool, node): NodeId) -> bool {
        self.pools[pool].replicas.is_some_and(|replicas| node < usize::from(replicas))
    }

    fn find_node_mut(&mut self, name: &str) -> &mut NodeState {
        self.node_mut(id_of(name))
    }
}

/// Prints a line for the spec and one for each node, with what is out of the ordinary.
impl fmt::Display for ModelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, roles, revision, skipped, voters, copies, .. } = self;
        let marks = [
            (self.secure, "secure"),
            (self.stopped, "stopped"),
            (self.canary, "canary"),
            (self.more_down, "more may be down"),
            (self.cordoned, "machine cordoned"),
            (self.large, "larger volumes"),
            (self.refuses, "quota exceeded"),
            (self.single, "one copy of each piece"),
        ];
        let marks: Vec<_> = marks.iter().filter(|mark| mark.0).map(|mark| mark.1).collect();
        let revision = REVISIONS[usize::from(*revision)];
        writeln!(f, "spec: {wanted:?} of {revision}, {roles:?} {marks:?}, skips {skipped:?}")?;
        for id in node_ids().filter(|id| *self.node(*id) != NOTHING) {
            let node = self.node(id);
            let held_pieces: Vec<_> =
                (0..DATA).filter(|piece| copies[*piece] & node_bit(id) != 0).collect();
            let marks = [
                (!self.is_in_set(id), "unwanted by its set"),
                (!node.known, "no Pilot"),
                (node.lost, "machine lost"),
                (node.doomed, "claim ends"),
                (node.overdue, "overdue"),
                (node.ordered, "told to restart"),
                (node.given_up, "given up"),
                (node.asked, "asked to go"),
                (node.left, "has gone"),
                (voters.contains(&id), "votes"),
            ];
            let marks: Vec<_> = marks.iter().filter(|mark| mark.0).map(|mark| mark.1).collect();
            writeln!(
                f,
                "{}: {:?}, volume {:?}, {:?}, pod {}, told {}, runs {}, holds {held_pieces:?} {marks:?}{}",
                name_of(id),
                node.pod,
                node.volume,
                node.intent,
                REVISIONS[usize::from(node.made)],
                node.told.hash(),
                node.runs.hash(),
                node.report.map_or(String::new(), |late_report| format!(
                    ", said {:?}",
                    late_report.of.pod
                )),
            )?;
        }
        Ok(())
    }
}

fn id_of(name: &str) -> NodeId {
    node_ids().find(|id| name_of(*id) == name).unwrap()
}

fn name_of((pool, node): NodeId) -> String {
    format!("ex-demo-{}-{node}", POOLS[pool])
}
