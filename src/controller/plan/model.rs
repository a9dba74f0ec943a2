//! A search through the states of a small cluster, breadth first.
//!
//! The model holds nodes, Kubernetes, pilots, edits and faults, each reduced to what the plan sees
//! of them; the plan itself is the real one. From each state that comes to rest and is not as
//! wanted, the remedies that the plan names are followed: they must lead to a cluster as wanted, or
//! the state is a trap. A counterexample is printed as the shortest list of events that leads there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString};

use super::{Plan, PlannedStep, Remedy, newborn, pinned, pinned_to, plan};
use crate::{
    api::{
        leave_request::LeaveRequest,
        v1beta1::{NodeChange, PilotIntent},
    },
    controller::{
        desired_state::DesiredCluster,
        heartbeats::HeartbeatAge,
        observe::{BlockerFacts, Member, ObservedCluster, PodFailure},
        testing::sample,
    },
};

/// Revisions of the spec. The newer ones are of a newer version; no database starts with the bad
/// one, and the last one differs from the new one in a setting only.
const REVISIONS: [&str; 4] = ["old", "new", "bad", "tuned"];
const BAD: u8 = 2;

/// Returns the revision of the pods of a revision.
fn pod_of(revision: u8) -> u8 {
    if revision == 3 { 1 } else { revision }
}

fn version_of(revision: u8) -> &'static str {
    if revision == 0 { "5.0.6" } else { "5.1.0" }
}

/// Sizes of volumes.
const SIZES: [&str; 2] = ["1Gi", "2Gi"];

/// The names of the pools that a spec may have.
const POOLS: [&str; 2] = ["a", "b"];

/// Nodes on one machine; each of the others has its own.
const SHARED: [NodeId; 2] = [(0, 1), (1, 0)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PodState {
    Absent,
    /// Runs, and does not serve.
    Starting,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NodeState {
    pod: PodState,
    volume: VolumeState,
    /// The claim is being deleted: Kubernetes keeps it while its pod runs.
    doomed: bool,
    /// The machine of the volume is gone.
    lost: bool,
    /// There is a Pilot.
    known: bool,
    /// Revision of the pod, of the Pilot, and of the process that runs.
    made: u8,
    told: u8,
    runs: u8,
    /// The pilot was told to restart the database for the revision of the Pilot.
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
}

const NOTHING: NodeState = NodeState {
    pod: PodState::Absent,
    volume: VolumeState::None,
    doomed: false,
    lost: false,
    known: false,
    made: 0,
    told: 0,
    runs: 0,
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
struct ModelState {
    pools: [PoolState; 2],
    /// Wanted sizes; `None` where the spec has no such pool.
    wanted: [Option<u8>; 2],
    revision: u8,
    stopped: bool,
    canary: bool,
    skipped: BTreeSet<String>,
    more_down: bool,
    /// No pod is scheduled on the machine of [`SHARED`].
    cordoned: bool,
    /// The spec asks for larger volumes.
    large: bool,
    /// A quota refuses new pods.
    refuses: bool,
    /// Nodes of which a majority elects a leader; empty where the database needs none.
    voters: BTreeSet<NodeId>,
    /// How often the cluster was begun anew.
    era: u8,
    edits: u8,
    faults: u8,
}

/// What differs between the databases of the model.
#[derive(Clone, Copy)]
struct ModelRules {
    /// Nodes speak against joins and departures while another node of their ring is down.
    ring: bool,
    /// Nodes that must remain when one leaves: copies have nowhere else to go.
    least: usize,
    /// Volumes can grow.
    expands: bool,
    /// Pilots restart their databases in their pods.
    in_place: bool,
    /// No node serves without a leader, whom a majority elects.
    votes: bool,
}

type NodeId = (usize, usize);

fn ids() -> impl Iterator<Item = NodeId> {
    (0..2).flat_map(|pool| (0..3).map(move |node| (pool, node)))
}

impl NodeState {
    fn lose_volume(&mut self) {
        (self.volume, self.doomed, self.lost) = (VolumeState::None, false, false);
        (self.given_up, self.newer, self.large) = (false, false, false);
    }

    /// Takes the last trace of the pod away, and with it a claim that waited for that.
    fn lose_pod(&mut self) {
        self.pod = PodState::Absent;
        if self.doomed {
            self.lose_volume();
        }
    }

    /// Does the pilot refuse to start the database, or does it not start?
    fn fails(&self) -> bool {
        let mixed = version_of(self.made) != version_of(self.told);
        self.told == BAD || mixed || (self.newer && self.told == 0)
    }
}

impl ModelState {
    /// Returns a cluster of two pools that serves as wanted.
    fn healthy(sizes: [u8; 2]) -> Self {
        let node = NodeState {
            pod: PodState::Ready,
            volume: VolumeState::Data,
            known: true,
            member: true,
            ..NOTHING
        };
        let pools = sizes.map(|size| {
            let mut nodes = [NOTHING; 3];
            nodes[..usize::from(size)].fill(node);
            PoolState { replicas: (size > 0).then_some(size), template: 0, nodes }
        });
        Self {
            pools,
            wanted: sizes.map(|size| (size > 0).then_some(size)),
            revision: 0,
            stopped: false,
            canary: false,
            skipped: BTreeSet::new(),
            more_down: false,
            cordoned: false,
            large: false,
            refuses: false,
            voters: BTreeSet::new(),
            era: 0,
            edits: 0,
            faults: 0,
        }
    }

    /// Returns a cluster that serves as wanted and needs a leader.
    fn with_voters(sizes: [u8; 2]) -> Self {
        let mut state = Self::healthy(sizes);
        state.voters = ids().filter(|id| state.is_live(*id)).collect();
        state
    }

    /// Runs the node with data of the cluster as it is?
    fn is_live(&self, id: NodeId) -> bool {
        let node = self.node(id);
        node.pod == PodState::Ready && node.volume == VolumeState::Data && node.era == self.era
    }

    /// Are no data of the cluster left?
    fn is_bare(&self) -> bool {
        ids().all(|id| self.node(id).volume != VolumeState::Data)
    }

    /// Have the nodes a leader, where they need one?
    fn is_led(&self) -> bool {
        let live = self.voters.iter().filter(|id| self.is_live(**id)).count();
        self.voters.is_empty() || live > self.voters.len() / 2
    }

    /// Lets the leader take up voters that joined, and drop those that are gone while three remain.
    fn vote(&mut self) {
        if self.voters.is_empty() || !self.is_led() {
            return;
        }
        let live: BTreeSet<NodeId> = ids().filter(|id| self.is_live(*id)).collect();
        let left =
            |id: &NodeId| self.node(*id).volume == VolumeState::Left || !self.node(*id).known;
        let kept: Vec<NodeId> = self.voters.iter().filter(|id| !left(id)).copied().collect();
        self.voters = if live.len() >= 3 { live } else { kept.into_iter().chain(live).collect() };
    }

    fn node(&self, (pool, node): NodeId) -> &NodeState {
        &self.pools[pool].nodes[node]
    }

    fn node_mut(&mut self, (pool, node): NodeId) -> &mut NodeState {
        &mut self.pools[pool].nodes[node]
    }

    fn runs(&self, (pool, node): NodeId) -> bool {
        self.pools[pool].replicas.is_some_and(|replicas| node < usize::from(replicas))
    }

    fn desired(&self) -> DesiredCluster {
        let sizes: Vec<(&str, u32)> = POOLS
            .into_iter()
            .zip(self.wanted)
            .filter_map(|(name, size)| Some((name, u32::from(size?))))
            .collect();
        let mut desired = sample::desired(&sizes, REVISIONS[usize::from(self.revision)]);
        desired.stopped = self.stopped;
        version_of(self.revision).clone_into(&mut desired.version);
        for pool in &mut desired.pools {
            pool.pilot.version = Some(desired.version.clone());
            REVISIONS[usize::from(pod_of(self.revision))].clone_into(&mut pool.pod_hash);
        }
        desired.strategy.canary = self.canary.then(|| (BTreeSet::new(), 1));
        desired.strategy.skip_predicates.clone_from(&self.skipped);
        if self.more_down {
            desired.strategy.unavailable = IntOrString::Int(3);
        }
        for pool in desired.pools.iter_mut().filter(|_| self.large) {
            pool.persistence.as_mut().unwrap().size = Some(Quantity(SIZES[1].into()));
        }
        desired.status.conditions = vec![sample::initialized()];
        desired
    }

    fn observed(&self, rules: ModelRules) -> ObservedCluster {
        let mut observed = sample::observed(&[("a", 0), ("b", 0)], "old");
        let down = ids().find(|id| {
            let node = self.node(*id);
            node.volume == VolumeState::Data && node.pod != PodState::Ready
        });
        for (index, pool) in observed.pools.iter_mut().enumerate() {
            let state = &self.pools[index];
            match state.replicas {
                Some(replicas) => {
                    let set = pool.set.as_mut().unwrap();
                    set.replicas = u32::from(replicas);
                    set.template = REVISIONS[usize::from(state.template)].to_owned();
                }
                None => pool.set = None,
            }
            pool.orphan = state.replicas.is_none() && self.wanted[index].is_none();
            for (ordinal, node) in (0..).zip(&state.nodes) {
                if *node == NOTHING {
                    continue;
                }
                let mut member = sample::serving(&pool.set_name, ordinal, "old");
                fill(&mut member, node, rules.in_place);
                if rules.votes {
                    fill_voter(&mut member, node, self.is_led() && node.era == self.era);
                }
                place(&mut member, node, (index, ordinal as usize));
                if let Some(claim) = &mut member.claim {
                    let size = Some(SIZES[usize::from(node.large)].to_owned());
                    (claim.requested, claim.capacity) = (size.clone(), size);
                    let refusal = Err("its class does not".to_owned());
                    claim.expansion = Some(if rules.expands { Ok(()) } else { refusal });
                }
                if self.refuses
                    && node.pod == PodState::Absent
                    && self.runs((index, ordinal as usize))
                {
                    member.refused = Some(PodFailure {
                        reason: "QuotaExceeded",
                        message: format!("pod {} is not created: a quota", member.name),
                        lasts: true,
                    });
                }
                if rules.ring && down.is_some_and(|id| id != (index, ordinal as usize)) {
                    let against = vec![NodeChange::Stop, NodeChange::Join, NodeChange::Leave];
                    let (predicate, message) = ("PeersUp".to_owned(), "one is down".to_owned());
                    member.pilot.iter_mut().for_each(|pilot| {
                        let (predicate, message) = (predicate.clone(), message.clone());
                        pilot.blockers.push(BlockerFacts {
                            predicate,
                            message,
                            against: against.clone(),
                        });
                    });
                }
                if self.refuses(rules, (index, ordinal as usize)) {
                    let (predicate, message) = ("SpaceElsewhere".to_owned(), "no room".to_owned());
                    let against = vec![NodeChange::Leave];
                    let pilot = member.pilot.as_mut().unwrap();
                    pilot.blockers.push(BlockerFacts { predicate, message, against });
                }
                pool.members.insert(ordinal, member);
            }
        }
        // Pools that neither the spec nor Kubernetes knows are not seen.
        let known = |name: &str| self.wanted[usize::from(name == "b")].is_some();
        observed
            .pools
            .retain(|pool| known(&pool.name) || pool.set.is_some() || !pool.members.is_empty());
        observed.pools.sort_by_key(|pool| !known(&pool.name));
        observed
    }

    /// Does the database refuse to let a node go that is asked to leave?
    fn refuses(&self, rules: ModelRules, id: NodeId) -> bool {
        let asked =
            matches!(self.node(id).intent, IntentState::Leaving | IntentState::LeavingByPerson);
        let others = ids().filter(|other| {
            let node = self.node(*other);
            *other != id && node.pod == PodState::Ready && node.volume == VolumeState::Data
        });
        asked && self.node(id).volume == VolumeState::Data && others.count() < rules.least
    }

    /// Is the cluster as wanted?
    fn is_wanted(&self) -> bool {
        ids().all(|id| {
            let node = self.node(id);
            let wanted = self.wanted[id.0].is_some_and(|size| id.1 < usize::from(size));
            if self.stopped {
                // A pool that left the spec is drained when the cluster is started again.
                return self.wanted[id.0].is_none() || node.pod == PodState::Absent;
            }
            if !wanted {
                return node.pod == PodState::Absent && !node.known;
            }
            let current = node.made == pod_of(self.revision)
                && node.runs == self.revision
                && node.large >= self.large;
            let serves = self.is_led() && node.era == self.era;
            node.pod == PodState::Ready && serves && current
        })
    }

    /// Makes what `ensure` makes: StatefulSets with their templates, and Pilots with their marks.
    fn ensure(&mut self, rules: ModelRules) {
        let revision = self.revision;
        for (pool, wanted) in self.pools.iter_mut().zip(self.wanted) {
            let held =
                |node: &NodeState| node.volume == VolumeState::Data || node.pod != PodState::Absent;
            let kept = pool.nodes.iter().rposition(held).map_or(0, |last| last + 1);
            if wanted.is_some() && pool.replicas.is_none() {
                pool.replicas = Some(u8::try_from(kept).unwrap());
                pool.template = pod_of(revision);
            }
        }
        // Most states have nothing to pin, and are spared the pins.
        let differs = |node: &NodeState| {
            let made = node.pod != PodState::Absent && node.made != pod_of(revision);
            node.known && (made || node.told != revision || node.pinned.is_some())
        };
        for pool in self.pools.iter_mut().filter(|pool| !pool.nodes.iter().any(differs)) {
            pool.template = pod_of(revision);
            for node in &mut pool.nodes[..usize::from(pool.replicas.unwrap_or_default())] {
                if !node.known {
                    node.told = revision;
                    (node.known, node.intent) = (true, IntentState::Running);
                }
            }
        }
        if !self.pools.iter().flat_map(|pool| &pool.nodes).any(differs) {
            return;
        }
        let (desired, observed) = (self.desired(), self.observed(rules));
        let number = |hash: &str| REVISIONS.iter().position(|name| *name == hash).unwrap();
        let number = |hash: &str| u8::try_from(number(hash)).unwrap();
        for found in &observed.pools {
            let Some(wanted) = desired.pool(&found.name) else { continue };
            let pool = &mut self.pools[usize::from(found.name == "b")];
            pool.template = pinned(&desired, &observed, found).map_or(pod_of(revision), number);
            let birth = newborn(&desired, &observed, found);
            for ordinal in 0..pool.replicas.unwrap_or_default() {
                let node = &mut pool.nodes[usize::from(ordinal)];
                let member = found.members.get(&u32::from(ordinal));
                if !node.known {
                    let hash = birth.and_then(|birth| birth.pilot.config_hash.as_deref());
                    node.told = hash.map_or(revision, number);
                    node.pinned = birth.map(|birth| number(birth.template));
                    (node.known, node.intent) = (true, IntentState::Running);
                } else if let Some(member) = member {
                    node.pinned = pinned_to(&desired, found, member, wanted).map(number);
                }
                if node.pod == PodState::Absent && node.pinned.is_none() {
                    node.ordered &= node.told == revision;
                    node.told = revision;
                }
            }
        }
    }

    /// Carries out a step of the plan.
    fn execute(&mut self, rules: ModelRules, step: &PlannedStep) {
        self.carry_out(rules, step);
        self.vote();
    }

    fn carry_out(&mut self, rules: ModelRules, step: &PlannedStep) {
        let revision = self.revision;
        let pool_of = |name: &str| usize::from(name == "b");
        match step {
            PlannedStep::Raise { pool, to }
            | PlannedStep::Return { pool, to }
            | PlannedStep::Remove { pool, to, .. } => {
                self.pools[pool_of(pool)].replicas = Some(u8::try_from(*to).unwrap());
                self.ensure(rules);
            }
            PlannedStep::Empty { pool } => self.pools[pool_of(pool)].replicas = Some(0),
            PlannedStep::DeletePool { pool, .. } => self.pools[pool_of(pool)].replicas = None,
            PlannedStep::Stop { pilots } => {
                for name in pilots {
                    self.named(name).intent = IntentState::Stopped;
                }
            }
            PlannedStep::Start { pilots } => {
                for name in pilots {
                    self.named(name).intent = IntentState::Running;
                }
            }
            PlannedStep::Keep { pilot } => self.named(pilot).intent = IntentState::Running,
            PlannedStep::Decommission { pilot } => self.named(pilot).intent = IntentState::Leaving,
            PlannedStep::Configure { pilot } => {
                let node = self.named(pilot);
                (node.told, node.pinned, node.ordered) = (revision, None, false);
            }
            PlannedStep::RestartInPlace { pilot } => {
                let node = self.named(pilot);
                (node.told, node.pinned, node.ordered) = (revision, None, true);
            }
            PlannedStep::Replace { pilot, .. } | PlannedStep::Restart { pilot, .. } => {
                let id = id_of(pilot);
                self.pools[id.0].template = pod_of(revision);
                let node = self.node_mut(id);
                (node.told, node.pinned, node.ordered) = (revision, None, false);
                end_pod(node);
            }
            PlannedStep::Recreate { pilot, .. } => end_pod(self.named(pilot)),
            PlannedStep::Renew { pilot, claim, .. } => {
                let node = self.named(pilot);
                end_pod(node);
                if claim.is_some() {
                    node.lose_volume();
                }
            }
            PlannedStep::DeleteClaim { pilot, .. } => {
                let node = self.named(pilot);
                node.lose_volume();
            }
            PlannedStep::DeletePilot { pilot, .. } => {
                let node = self.named(pilot);
                (node.known, node.intent, node.given_up) = (false, IntentState::Running, false);
                (node.asked, node.left, node.member) = (false, false, false);
                (node.word, node.request) = (None, None);
            }
            PlannedStep::Vacate { pilot, .. } => {
                let node = self.named(pilot);
                node.asked = false;
                node.left = true;
                end_pod(node);
            }
            PlannedStep::ResizeClaim { pilot, .. } => self.named(pilot).large = true,
            PlannedStep::BeginAnew { pilot, .. } => {
                let node = self.named(pilot);
                node.request = Some(node.era);
            }
            PlannedStep::TakeWordBack { pilot, request } => {
                let node = self.named(pilot);
                (node.word, node.request) = (None, node.request.filter(|_| !request));
            }
            PlannedStep::KeepData { pilot } => self.named(pilot).given_up = false,
            PlannedStep::RenewSet { .. }
            | PlannedStep::Forget { .. }
            | PlannedStep::Deliver { .. } => {
                unreachable!("no ids, one pilot image")
            }
        }
    }

    /// Returns what is left where the controller ends between two writes of a step.
    fn cut_short(&self, step: &PlannedStep) -> Vec<Self> {
        let revision = self.revision;
        let mut cuts = Vec::new();
        match step {
            PlannedStep::Replace { pilot, .. } | PlannedStep::Restart { pilot, .. } => {
                let mut told = self.clone();
                let node = told.named(pilot);
                (node.told, node.pinned, node.ordered) = (revision, None, false);
                let mut made = told.clone();
                made.pools[id_of(pilot).0].template = pod_of(revision);
                cuts.extend([told, made]);
            }
            PlannedStep::Renew { pilot, claim: Some(_), .. } => {
                let mut cut = self.clone();
                let node = cut.named(pilot);
                if matches!(node.pod, PodState::Absent | PodState::Pending) {
                    node.lose_volume();
                } else {
                    node.doomed = true;
                }
                cuts.push(cut);
            }
            PlannedStep::Raise { pool, to } | PlannedStep::Return { pool, to } => {
                // The Pilots of the new nodes come before the StatefulSet's new size.
                let mut cut = self.clone();
                let nodes = &mut cut.pools[usize::from(pool == "b")].nodes;
                for node in nodes[..*to as usize].iter_mut().filter(|node| !node.known) {
                    (node.known, node.told) = (true, revision);
                }
                cuts.push(cut);
            }
            PlannedStep::Stop { pilots } | PlannedStep::Start { pilots } if pilots.len() > 1 => {
                let stops = matches!(step, PlannedStep::Stop { .. });
                let mut cut = self.clone();
                cut.named(&pilots[0]).intent =
                    if stops { IntentState::Stopped } else { IntentState::Running };
                cuts.push(cut);
            }
            _ => {}
        }
        cuts.retain(|cut| cut != self);
        for cut in &mut cuts {
            cut.faults += 1;
        }
        cuts
    }

    /// Writes what `ensure` decided by an earlier state of the pods, of which `earlier` came.
    fn ensured_late(&self, earlier: &Self) -> Self {
        let mut late = self.clone();
        for (pool, decided) in late.pools.iter_mut().zip(&earlier.pools) {
            if pool.replicas != decided.replicas {
                continue;
            }
            pool.template = decided.template;
            for (node, decided) in pool.nodes.iter_mut().zip(&decided.nodes) {
                (node.known, node.told, node.pinned) =
                    (decided.known, decided.told, decided.pinned);
                node.ordered &= decided.ordered;
            }
        }
        late
    }

    fn named(&mut self, name: &str) -> &mut NodeState {
        self.node_mut(id_of(name))
    }

    /// Lets Kubernetes or the pilot of one node do its next move; `None` where there is none.
    fn moved(&self, rules: ModelRules, id: NodeId) -> Option<Self> {
        let mut next = self.membership(id).or_else(|| self.moved_itself(rules, id))?;
        // A node that leaves gives its vote away before.
        if next.node(id).volume == VolumeState::Left {
            next.voters.remove(&id);
            next.node_mut(id).member = false;
        }
        // No data are left anywhere, so the cluster is founded again, on a person's word.
        if !self.voters.is_empty() && self.is_bare() && next.is_live(id) {
            next.voters = BTreeSet::from([id]);
        }
        next.vote();
        Some(next)
    }

    /// Lets the vendor's tool change the membership of a node that runs.
    fn membership(&self, id: NodeId) -> Option<Self> {
        let node = self.node(id);
        let runs = node.pod == PodState::Ready && node.volume == VolumeState::Data;
        if self.voters.is_empty() {
            return None;
        }
        let mut next = self.clone();
        if runs && node.request == Some(node.era) && node.era == self.era && !self.is_led() {
            next.era += 1;
            (next.node_mut(id).era, next.voters) = (next.era, BTreeSet::from([id]));
            return Some(next);
        }
        let detached = runs && node.era < self.era && self.is_led();
        next.node_mut(id).era = self.era;
        detached.then_some(next)
    }

    fn moved_itself(&self, rules: ModelRules, id: NodeId) -> Option<Self> {
        let runs = self.runs(id);
        let mut next = self.clone();
        let refused = self.refuses(rules, id);
        let template = self.pools[id.0].template;
        let refuses = self.refuses;
        let others_down = ids().any(|other| {
            let node = self.node(other);
            other != id && node.volume == VolumeState::Data && node.pod != PodState::Ready
        });
        let bound = matches!(self.node(id).volume, VolumeState::Data | VolumeState::Left);
        let barred = self.cordoned && SHARED.contains(&id) && bound;
        let (led, era) = (self.is_led() || self.is_bare(), self.era);
        let node = next.node_mut(id);
        match node.pod {
            PodState::Pending if runs && !node.lost && !barred => {
                (node.pod, node.left) = (PodState::Starting, false);
            }
            PodState::Absent if runs && node.known && !refuses => {
                node.pod = if node.lost || barred { PodState::Pending } else { PodState::Starting };
                let waits = node.pod == PodState::Pending;
                (node.left, node.asked) = (waits && (node.left || node.asked), false);
                node.made = template;
                if node.volume == VolumeState::None {
                    node.volume = VolumeState::Empty;
                }
            }
            PodState::Starting | PodState::Ready | PodState::Pending if !runs => end_pod(node),
            PodState::Ending => node.lose_pod(),
            PodState::Starting => {
                // A node that is asked to leave starts for that; one that never joined need not.
                let leaves = !matches!(node.intent, IntentState::Stopped | IntentState::Fenced);
                let starts = node.intent == IntentState::Running
                    || leaves && (node.volume == VolumeState::Data || rules.votes && node.member);
                let waits = (rules.ring && others_down) || !led;
                let joins = node.volume == VolumeState::Empty && waits;
                if !starts || node.volume == VolumeState::Left || node.fails() || joins {
                    return None;
                }
                (node.pod, node.volume, node.runs, node.ordered) =
                    (PodState::Ready, VolumeState::Data, node.told, false);
                node.newer |= node.told > 0;
                node.left = false;
                if self.node(id).volume == VolumeState::Empty {
                    (node.era, node.member) = (era, true);
                }
            }
            PodState::Ready => match node.intent {
                IntentState::Stopped | IntentState::Fenced => node.pod = PodState::Starting,
                IntentState::Leaving | IntentState::LeavingByPerson if !refused && led => {
                    (node.pod, node.volume) = (PodState::Starting, VolumeState::Left);
                }
                _ if node.ordered && node.told != BAD => node.pod = PodState::Starting,
                _ => return None,
            },
            PodState::Absent | PodState::Stuck | PodState::Pending => return None,
        }
        Some(next)
    }

    /// Returns each edit that a person may make.
    fn edits(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        let mut edit = |what: String, change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            next.edits += 1;
            all.push((what, next));
        };
        for size in 1..=3 {
            edit(format!("a: {size}"), &|s| s.wanted[0] = Some(size));
        }
        for size in [None, Some(1), Some(2)] {
            edit(format!("b: {size:?}"), &|s| s.wanted[1] = size);
        }
        // Validation refuses an older version than a node ran.
        let least = u8::from(ids().any(|id| self.node(id).newer));
        for revision in least..4 {
            let what = format!("revision {}", REVISIONS[usize::from(revision)]);
            edit(what, &|s| s.revision = revision);
        }
        edit("stopped".into(), &|s| s.stopped = !s.stopped);
        edit("canary".into(), &|s| s.canary = !s.canary);
        edit("larger volumes".into(), &|s| s.large = true);
        for id in ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for intent in [IntentState::LeavingByPerson, IntentState::Fenced] {
                edit(format!("{} {intent:?}", name_of(id)), &|s| s.node_mut(id).intent = intent);
            }
        }
        if self.cordoned {
            edit("uncordon".into(), &|s| s.cordoned = false);
        } else {
            // As `kubectl navigator drain` does.
            edit("drain".into(), &|s| {
                s.cordoned = true;
                for id in SHARED {
                    let node = s.node_mut(id);
                    node.asked = node.pod == PodState::Ready;
                }
            });
        }
        all.retain(|(_, next)| next.wanted.iter().flatten().sum::<u8>() > 0);
        all
    }

    /// Returns each fault that may befall the cluster.
    fn faults(&self) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        if !self.refuses {
            let next = Self { refuses: true, faults: self.faults + 1, ..self.clone() };
            all.push(("a quota refuses new pods".to_owned(), next));
        }
        for id in ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for (what, pod, lost) in [
                ("is evicted", PodState::Ending, false),
                ("loses its machine", PodState::Stuck, true),
                ("loses its machine's Node", PodState::Pending, true),
            ] {
                let mut next = self.clone();
                next.faults += 1;
                let node = next.node_mut(id);
                (node.pod, node.lost) = (pod, lost);
                if pod == PodState::Pending {
                    (node.left, node.asked) = (node.left || node.asked, false);
                    if node.doomed {
                        node.lose_pod();
                    }
                }
                all.push((format!("{} {what}", name_of(id)), next));
            }
        }
        all
    }

    /// Does what a remedy says; `None` where it changes nothing.
    fn follow(&self, remedy: &Remedy) -> Option<Self> {
        let mut next = self.clone();
        match remedy {
            Remedy::Skip(predicate) => drop(next.skipped.insert(predicate.clone())),
            // There is no later release that would start, only the one from before, which
            // validation refuses where the newer version opened data.
            Remedy::Correct | Remedy::MendVolume { .. } if next.revision == BAD => {
                let ran = ids().any(|id| matches!(self.node(id).runs, 1 | 3));
                if ids().any(|id| self.node(id).newer) && !ran {
                    return None;
                }
                next.revision = u8::from(ran);
            }
            Remedy::GiveUp { node, .. }
            | Remedy::WantPool { node, .. }
            | Remedy::MendVolume { node, data: Some(_) } => {
                next.named(node).given_up = true;
            }
            Remedy::BeginAnew { node, .. } => {
                let node = next.named(node);
                node.word = Some(node.era);
            }
            Remedy::TakeWordBack { node } => next.named(node).word = None,
            Remedy::EndPod { node } => next.named(node).lose_pod(),
            Remedy::ReleasePhase { node } | Remedy::RenewByPhase { node } => {
                next.named(node).intent = IntentState::Running;
            }
            Remedy::AllowMoreDown => next.more_down = true,
            Remedy::EndCanary => next.canary = false,
            Remedy::Uncordon { .. } => next.cordoned = false,
            Remedy::RaiseQuota => next.refuses = false,
            Remedy::PutSizeBack { .. } => next.large = false,
            Remedy::WantNode { node } => {
                let id = ids().find(|id| name_of(*id) == *node)?;
                let least = u8::try_from(id.1 + 1).unwrap();
                let size = next.wanted[id.0].unwrap_or_default();
                next.wanted[id.0] = Some(size.max(least));
                if next.node(id).intent == IntentState::LeavingByPerson {
                    next.node_mut(id).intent = IntentState::Running;
                }
            }
            Remedy::KeepNode => next.wanted[0] = Some(next.wanted[0].unwrap_or_default().max(1)),
            _ => return None,
        }
        (next != *self).then_some(next)
    }

    /// Runs the controller, Kubernetes and the pilots until nothing moves. The nodes move in turn.
    fn rest(mut self, rules: ModelRules) -> Result<(Self, Plan), String> {
        let mut turns: VecDeque<NodeId> = ids().collect();
        for _ in 0..400 {
            self.ensure(rules);
            let planned = plan(&self.desired(), &self.observed(rules));
            if let Some(step) = &planned.step {
                self.execute(rules, step);
                continue;
            }
            let moves = |(at, id): (usize, &NodeId)| Some((at, self.moved(rules, *id)?));
            let Some((at, next)) = turns.iter().enumerate().find_map(moves) else {
                return Ok((self, planned));
            };
            turns.rotate_left(at + 1);
            self = next;
        }
        Err(format!("never comes to rest: {self:?}"))
    }

    /// Returns a broken rule, where carrying out `step` breaks one.
    fn breaks(&self, step: &PlannedStep) -> Option<String> {
        let id = step.pilot().and_then(|name| ids().find(|id| name_of(*id) == name));
        let node = id.map(|id| *self.node(id));
        let holds = node.is_some_and(|node| node.volume == VolumeState::Data && !node.given_up);
        let disturbs = match step {
            PlannedStep::DeleteClaim { .. }
            | PlannedStep::Renew { .. }
            | PlannedStep::Remove { .. }
            | PlannedStep::DeletePilot { .. } => {
                return holds.then(|| format!("{step:?} takes data away"));
            }
            PlannedStep::Restart { .. }
            | PlannedStep::RestartInPlace { .. }
            | PlannedStep::Decommission { .. } => true,
            PlannedStep::Vacate { .. } => node.is_some_and(|node| node.pod == PodState::Ready),
            PlannedStep::BeginAnew { .. } => {
                return self.is_led().then(|| format!("{step:?} while there is a leader"));
            }
            _ => false,
        };
        let together = |other: &NodeId| {
            let node = self.node(*other);
            let left = node.pod == PodState::Pending && node.left && !node.lost;
            let both = SHARED.contains(other) && id.is_some_and(|id| SHARED.contains(&id));
            matches!(step, PlannedStep::Vacate { .. }) && both && left
        };
        let down = ids().find(|other| {
            let node = self.node(*other);
            Some(*other) != id
                && !together(other)
                && node.volume == VolumeState::Data
                && node.pod != PodState::Ready
        });
        let down = down.filter(|_| disturbs && !self.more_down)?;
        Some(format!("{step:?} while {} is down", name_of(down)))
    }
}

fn id_of(name: &str) -> NodeId {
    ids().find(|id| name_of(*id) == name).unwrap()
}

fn name_of((pool, node): NodeId) -> String {
    format!("ex-demo-{}-{node}", POOLS[pool])
}

fn end_pod(node: &mut NodeState) {
    node.pod = match node.pod {
        PodState::Absent | PodState::Pending => PodState::Absent,
        _ if node.lost => PodState::Stuck,
        _ => PodState::Ending,
    };
}

/// Makes a member look as its state says.
fn fill(member: &mut Member, node: &NodeState, in_place: bool) {
    let revision = |revision: u8| REVISIONS[usize::from(revision)].to_owned();
    let ready = node.pod == PodState::Ready;
    let dead = matches!(node.pod, PodState::Stuck | PodState::Pending) || node.lost;
    match node.pod {
        PodState::Absent => member.pod = None,
        state => {
            let pod = member.pod.as_mut().unwrap();
            pod.ready = ready;
            pod.hash = revision(node.made);
            pod.terminating = matches!(state, PodState::Ending | PodState::Stuck);
            pod.overdue = state == PodState::Stuck;
            pod.started = state != PodState::Pending;
            pod.trouble = (state == PodState::Pending).then(|| PodFailure {
                reason: "Unschedulable",
                message: format!("{}: 1 node(s) had volume node affinity conflict", member.name),
                lasts: true,
            });
        }
    }
    match (&mut member.claim, node.volume) {
        (claim, VolumeState::None) => *claim = None,
        (Some(claim), _) => {
            claim.uid.clone_from(&member.name);
            claim.terminating = node.doomed;
            claim.holds_data &= !node.doomed;
        }
        (None, _) => {}
    }
    if !node.known {
        member.pilot = None;
        return;
    }
    let name = member.name.clone();
    let pilot = member.pilot.as_mut().unwrap();
    pilot.given_up = node.given_up.then_some(name);
    pilot.ready = ready;
    pilot.spec.config_hash = Some(revision(node.told));
    pilot.running_hash = Some(revision(node.runs));
    pilot.started_for = in_place.then(|| revision(node.runs));
    pilot.spec.restart_for = node.ordered.then(|| revision(node.told));
    let joined = matches!(node.volume, VolumeState::Data | VolumeState::Left);
    (pilot.identity, pilot.answered, pilot.idle) = (joined, joined, !ready);
    pilot.decommissioned = node.volume == VolumeState::Left;
    pilot.pinned = node.pinned.map(revision);
    pilot.spec.version = Some(version_of(node.told).to_owned());
    pilot.version = Some(version_of(node.runs).to_owned());
    pilot.failed = node.pod == PodState::Starting && node.fails();
    pilot.validated = ready.then(|| if node.told == BAD { Err("bad".to_owned()) } else { Ok(()) });
    pilot.stopped = node.intent == IntentState::Stopped && !ready;
    pilot.spec.phase = match node.intent {
        IntentState::Running => None,
        IntentState::Leaving | IntentState::LeavingByPerson => Some(PilotIntent::Decommissioned),
        IntentState::Stopped => Some(PilotIntent::Stopped),
        IntentState::Fenced => Some(PilotIntent::Fenced),
    };
    pilot.phase_ours = matches!(node.intent, IntentState::Leaving | IntentState::Stopped);
    if dead {
        pilot.hearing = HeartbeatAge { ago: std::time::Duration::from_secs(600), ..pilot.hearing };
    }
}

/// Makes a member look as a voter whose node follows a leader, or follows none.
fn fill_voter(member: &mut Member, node: &NodeState, led: bool) {
    let Member { pod, pilot: Some(pilot), .. } = member else { return };
    let up = node.pod == PodState::Ready;
    if let Some(pod) = pod.as_mut().filter(|_| up) {
        pod.ready = led;
    }
    (pilot.ready, pilot.joins_in_vain) = (up && led, up && !led);
    let id = |era: u8| format!("era-{era}");
    pilot.eligible = true;
    pilot.identity = pilot.identity || node.member;
    pilot.cluster_id = node.member.then(|| id(node.era));
    pilot.emptied = node.pod == PodState::Starting && node.volume == VolumeState::Empty;
    pilot.unsafe_bootstrap = node.word.map(id);
    pilot.spec.unsafe_bootstrap = node.request.map(id);
    if node.lost {
        pilot.instance = Some("earlier".to_owned());
    }
}

/// Gives a member a machine, and a request to leave it.
fn place(member: &mut Member, node: &NodeState, id: NodeId) {
    let shared = SHARED.contains(&id);
    let machine = if shared { "m-shared".to_owned() } else { format!("m-{}", member.name) };
    let Member { pod, pilot: Some(pilot), .. } = member else { return };
    let mut now = "pod".to_owned();
    if let Some(pod) = pod {
        let waits = node.pod == PodState::Pending;
        pod.machine = (!waits).then(|| machine.clone());
        pod.trouble.iter_mut().filter(|_| !node.lost).for_each(|trouble| {
            trouble.message = "0/1 nodes are available: 1 node(s) were unschedulable.".to_owned();
        });
        now.clone_from(&pod.uid);
    }
    pilot.machine = Some(machine);
    if node.asked {
        pilot.leave = Some(LeaveRequest { pod: now, by: String::new() });
    } else if node.left {
        pilot.instance = Some("earlier".to_owned());
        pilot.leave = Some(LeaveRequest { pod: "earlier".to_owned(), by: String::new() });
    }
}

/// Returns the ways out that a plan names.
fn remedies(planned: &Plan) -> Vec<Remedy> {
    let waits = planned.waiting.iter().map(|awaited| awaited.remedy.clone());
    waits.chain(planned.blocked.iter().map(|block| block.remedy.clone())).collect()
}

/// Follows remedies until the cluster is as wanted; returns the state and plan that lead no further.
fn trap(state: &ModelState, rules: ModelRules, depth: u8) -> Option<String> {
    let (rested, planned) = match state.clone().rest(rules) {
        Ok(rested) => rested,
        Err(why) => return Some(why),
    };
    if rested.is_wanted() {
        return None;
    }
    let mut named = remedies(&planned);
    if named.is_empty() {
        return Some(format!("waits without a word: {rested:?}"));
    }
    if depth == 0 {
        return Some(format!("too many remedies in a row: {rested:?}"));
    }
    // A rule is skipped only where nothing else helps.
    named.sort_by_key(|remedy| matches!(remedy, Remedy::Skip(_)));
    let mut last = String::new();
    for remedy in &named {
        let Some(next) = rested.follow(remedy) else { continue };
        let why = trap(&next, rules, depth - 1)?;
        last = format!("\nafter {remedy:?}: {why}");
    }
    Some(format!("{planned:#?}\nof {rested:?}{last}"))
}

/// What a search met.
#[derive(Debug, Default)]
struct SearchCoverage {
    states: usize,
    /// Events from the start to the last state.
    depth: usize,
    /// How often each kind of step was planned, and each kind of remedy named.
    steps: BTreeMap<String, usize>,
    remedies: BTreeMap<String, usize>,
}

impl SearchCoverage {
    fn count(&mut self, planned: &Plan) {
        let kind = |text: String| text.split([' ', '(']).next().unwrap_or_default().to_owned();
        if let Some(step) = &planned.step {
            *self.steps.entry(kind(format!("{step:?}"))).or_default() += 1;
        }
        for remedy in remedies(planned) {
            *self.remedies.entry(kind(format!("{remedy:?}"))).or_default() += 1;
        }
    }
}

/// Searches from `start`, with so many edits and faults.
fn search(
    start: ModelState,
    rules: ModelRules,
    edits: u8,
    faults: u8,
    most: usize,
) -> SearchCoverage {
    let mut coverage = SearchCoverage::default();
    let mut parents: HashMap<ModelState, Option<(ModelState, String)>> = HashMap::new();
    let mut followed: HashMap<ModelState, Option<String>> = HashMap::new();
    let mut traps: BTreeMap<String, usize> = BTreeMap::new();
    let mut queue = VecDeque::from([start.clone()]);
    // All edits of one apply: nothing has moved since the first.
    let mut edited = HashSet::from([start.clone()]);
    parents.insert(start, None);
    let events_to = |parents: &HashMap<ModelState, Option<(ModelState, String)>>,
                     state: &ModelState| {
        let mut events = Vec::new();
        let mut at = state.clone();
        while let Some(Some((before, event))) = parents.get(&at) {
            events.push(event.clone());
            at = before.clone();
        }
        events.reverse();
        events
    };
    let story = |parents: &_, state: &_| events_to(parents, state).join("\n");
    while let Some(state) = queue.pop_front() {
        let mut next = Vec::new();
        let mut ensured = state.clone();
        ensured.ensure(rules);
        let planned = plan(&ensured.desired(), &ensured.observed(rules));
        coverage.count(&planned);
        if let Some(step) = &planned.step {
            if let Some(broken) = ensured.breaks(step) {
                panic!("{broken}\nafter:\n{}\nof {state:?}", story(&parents, &state));
            }
            if state.faults < faults {
                let cut = |after| (format!("controller ends amid {step:?}"), after);
                next.extend(ensured.cut_short(step).into_iter().map(cut));
            }
            let mut after = ensured.clone();
            after.execute(rules, step);
            next.push((format!("controller: {step:?}"), after));
        }
        for id in ids() {
            let name = name_of(id);
            if let Some(after) = ensured.moved(rules, id) {
                next.push((format!("{name} moves"), after));
            }
            // The controller is slow, and then writes by what its caches hold.
            if let Some(after) = state.moved(rules, id).filter(|_| ensured != state) {
                let late = after.ensured_late(&ensured);
                next.push((format!("{name} moves before the controller writes"), after));
                next.push((format!("{name} moves, and the controller writes late"), late));
            }
        }
        let at_rest = next.is_empty();
        if at_rest && !state.is_wanted() {
            assert!(
                !remedies(&planned).is_empty(),
                "waits without a word\nafter:\n{}\nof {state:?}",
                story(&parents, &state)
            );
            let same = ModelState { edits: 0, faults: 0, ..state.clone() };
            let found = followed.entry(same).or_insert_with(|| trap(&state, rules, 12));
            if let Some(why) = found {
                let key = why.lines().take(40).collect::<Vec<_>>().join("\n");
                if traps.len() < 5 {
                    println!("TRAP after:\n{}\n{why}\n", story(&parents, &state));
                }
                *traps.entry(key).or_default() += 1;
            }
        }
        if (at_rest || state.edits < 2 || edited.contains(&state)) && state.edits < edits {
            let after = state.edits();
            if edited.contains(&state) {
                edited.extend(after.iter().map(|(_, after)| after.clone()));
            }
            next.extend(after);
        }
        if state.faults < faults {
            next.extend(state.faults());
        }
        if queue.is_empty() {
            // Breadth first, the last state is one of the farthest.
            coverage.depth = events_to(&parents, &state).len();
        }
        for (event, after) in next {
            if parents.len() < most && !parents.contains_key(&after) {
                parents.insert(after.clone(), Some((state.clone(), event)));
                queue.push_back(after);
            }
        }
    }
    assert!(traps.is_empty(), "{} kinds of traps", traps.len());
    coverage.states = parents.len();
    coverage
}

const RING: ModelRules =
    ModelRules { ring: true, least: 1, expands: true, in_place: true, votes: false };
const SHARDS: ModelRules =
    ModelRules { ring: false, least: 2, expands: false, in_place: false, votes: false };
const VOTERS: ModelRules = ModelRules { votes: true, ..SHARDS };

mod searches {
    use super::*;
    use crate::testing::search_size;

    /// States of each search in CI, and of the search in two pools: so many find the trap of three
    /// edits in one apply (docs/decisions/0016-candidates-and-gates.md).
    const STATES: usize = 5_000;
    const STATES_OF_TWO_POOLS: usize = 20_000;
    /// Events from the start to the farthest states.
    const DEPTH: usize = 4;
    /// What every search meets.
    const STEPS: [&str; 10] = [
        "Decommission",
        "DeletePilot",
        "Keep",
        "Raise",
        "Remove",
        "Replace",
        "Restart",
        "Start",
        "Stop",
        "Vacate",
    ];
    const REMEDIES: [&str; 8] = [
        "EndPod",
        "GiveUp",
        "RaiseQuota",
        "ReleasePhase",
        "RenewByPhase",
        "Skip",
        "Wait",
        "WantNode",
    ];

    /// Searches for traps. `steps` and `remedies` are kinds that this cluster meets beside those that
    /// every cluster meets.
    fn no_traps(rules: ModelRules, sizes: [u8; 2], most: usize, steps: &[&str], remedies: &[&str]) {
        let begun = std::time::Instant::now();
        let start: fn([u8; 2]) -> ModelState =
            if rules.votes { ModelState::with_voters } else { ModelState::healthy };
        let coverage = search(start(sizes), rules, 3, 2, most);
        println!("{:?}: {coverage:#?}", begun.elapsed());
        assert_eq!(coverage.states, most, "the search ended early");
        assert!(coverage.depth >= DEPTH, "only {} events deep", coverage.depth);
        for step in STEPS.iter().chain(steps) {
            assert!(coverage.steps.contains_key(*step), "no {step} in {:?}", coverage.steps);
        }
        for remedy in REMEDIES.iter().chain(remedies) {
            assert!(
                coverage.remedies.contains_key(*remedy),
                "no {remedy}: {:?}",
                coverage.remedies
            );
        }
    }

    #[test]
    fn no_ring_of_racks_is_trapped() {
        no_traps(RING, [2, 1], search_size(STATES), &["ResizeClaim", "Empty"], &[]);
    }

    #[test]
    fn no_ring_of_one_rack_is_trapped() {
        no_traps(RING, [3, 0], search_size(STATES), &["ResizeClaim"], &[]);
    }

    #[test]
    fn no_cluster_with_shards_in_two_pools_is_trapped() {
        let most = search_size(STATES).max(STATES_OF_TWO_POOLS);
        no_traps(SHARDS, [2, 1], most, &["Empty"], &["PutSizeBack"]);
    }

    #[test]
    fn no_cluster_with_shards_in_one_pool_is_trapped() {
        no_traps(SHARDS, [3, 0], search_size(STATES), &[], &["PutSizeBack"]);
    }

    #[test]
    fn no_cluster_that_needs_a_leader_is_trapped() {
        no_traps(VOTERS, [3, 0], search_size(STATES), &[], &["BeginAnew", "PutSizeBack"]);
    }
}
