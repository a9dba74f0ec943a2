//! Simulates Kubernetes and the pilots in memory, driven by the plan.
//!
//! The simulation checks the rules that the plan must never break, and panics when one is broken.
//! All randomness comes from one seed.

mod drains;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::StdRng};

pub(crate) use self::drains::Budgets;
use self::drains::Drains;
use super::sample::pool;
use crate::{
    api::{
        leave_request::LeaveRequest,
        names,
        v1beta1::{ClusterStatus, Health, PilotIntent, PilotSpec},
    },
    controller::{
        desired_state::{DesiredCluster, DesiredPool, Image},
        heartbeats::HeartbeatAge,
        observe::{
            ClaimFacts, InstallState, InstallerContainer, Member, ObservedCluster, ObservedPool,
            ObservedStatefulSet, PilotFacts, PodFacts,
        },
        plan::{
            Plan, PlannedStep, is_outdated, pilot_rollout, pinned_template, pinned_to,
            plan_next_step, revision_for_new_pod,
        },
        status::build_status,
    },
};

pub(crate) struct Simulation {
    pub(crate) desired: DesiredCluster,
    pub(crate) observed: ObservedCluster,
    rng: StdRng,
    uids: u64,
    /// Nodes that joined and did not leave: their volumes may hold the only copy of data.
    joined: BTreeSet<String>,
    /// State of the evictions, in simulations whose machines are drained.
    pub(crate) drains: Option<Drains>,
    /// Log of what happened, for the message of a broken rule.
    pub(crate) log: Vec<String>,
}

impl Simulation {
    pub(crate) fn new(desired: DesiredCluster, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self {
            desired,
            observed: ObservedCluster::default(),
            rng,
            uids: 0,
            joined: BTreeSet::new(),
            drains: None,
            log: vec![format!("seed {seed}")],
        }
    }

    fn note(&mut self, text: impl std::fmt::Debug) {
        self.log.push(format!("{text:?}"));
    }

    fn rule(&self, holds: bool, rule: &str) {
        assert!(holds, "broken rule: {rule}\n{}", self.log.join("\n"));
    }

    /// Runs one reconcile of the controller.
    pub(crate) fn reconcile(&mut self) -> Plan {
        self.ensure();
        let planned = plan_next_step(&self.desired, &self.observed);
        self.write_budgets(&planned);
        if let Some(step) = &planned.step {
            self.note(step);
            self.check(step);
            self.execute(step);
            self.count_lost();
        }
        let now = Timestamp::UNIX_EPOCH;
        let after = build_status(&self.desired, &self.observed, &planned, now);
        let has =
            |type_: &str| after.conditions.iter().any(|c| c.type_ == type_ && c.status == "True");
        self.rule(!(has("Ready") && has("Stalled")), "never Ready and Stalled");
        self.rule(!(has("Reconciling") && has("Stalled")), "never Reconciling and Stalled");
        self.desired.status = after;
        planned
    }

    /// Does what `ensure` does: makes missing StatefulSets and Pilots.
    fn ensure(&mut self) {
        let wanted: Vec<DesiredPool> = self.desired.pools.clone();
        let mut pools = Vec::new();
        for pool in &wanted {
            let found = self.observed.pools.iter().position(|found| found.name == pool.name);
            pools.push(match found {
                Some(index) => self.observed.pools.remove(index),
                None => ObservedPool {
                    name: pool.name.clone(),
                    set_name: pool.set.clone(),
                    ..ObservedPool::default()
                },
            });
        }
        pools.append(&mut self.observed.pools);
        self.observed.pools = pools;
        if self.desired.paused {
            return;
        }
        for pool in &mut self.observed.pools {
            let Some(wanted) = wanted.iter().find(|wanted| wanted.name == pool.name) else {
                continue;
            };
            if pool.set.is_none() {
                pool.set = Some(ObservedStatefulSet {
                    replicas: pool.initial_replicas(),
                    template: wanted.pod_hash.clone(),
                    ..ObservedStatefulSet::default()
                });
            }
        }
        self.pin();
        let observed = self.observed.clone();
        for pool in &mut self.observed.pools {
            for ordinal in 0..pool.replicas() {
                ensure_pilot(&self.desired, &observed, pool, ordinal);
            }
        }
    }

    /// Gives every StatefulSet the template that it is to have.
    fn pin(&mut self) {
        let observed = self.observed.clone();
        for (pool, before) in self.observed.pools.iter_mut().zip(&observed.pools) {
            let wanted = self.desired.pool(&pool.name);
            if let (Some(set), Some(wanted)) = (&mut pool.set, wanted) {
                let pin = pinned_template(&self.desired, &observed, before);
                set.template = pin.unwrap_or(&wanted.pod_hash).to_owned();
            }
        }
    }

    /// Panics when carrying out `step` would break a rule.
    fn check(&self, step: &PlannedStep) {
        let members = || {
            self.observed.pools.iter().flat_map(|pool| {
                pool.nodes().map(move |(_, member)| member.cloned().unwrap_or_default())
            })
        };
        let others_serve = |name: &str| {
            members().all(|m| m.name == name || m.is_serving() || m.is_decommissioned())
        };
        let holds_data =
            |name: &str| members().any(|member| member.name == name && member.dies_with_pod());
        if let PlannedStep::Restart { pilot, .. }
        | PlannedStep::Recreate { pilot, .. }
        | PlannedStep::Vacate { pilot, .. }
        | PlannedStep::Replace { pilot, .. } = step
        {
            self.rule(!holds_data(pilot), "no pod is deleted that holds data");
        }
        match step {
            PlannedStep::Recreate { pilot, .. } => {
                let away =
                    |member: &Member| member.pod.is_some() && member.unauthorized_until().is_some();
                let ready = |member: &Member| {
                    member.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating)
                };
                let others = || members().filter(|member| member.name != *pilot);
                let well = |member: &Member| member.is_serving() || away(member) && ready(member);
                self.rule(others().all(|other| well(&other)), "one dead token at a time");
            }
            PlannedStep::Restart { pilot, .. } | PlannedStep::Decommission { pilot } => {
                if matches!(step, PlannedStep::Decommission { .. }) {
                    let masters = || members().filter(Member::is_eligible);
                    let leaves = masters().any(|member| member.name == *pilot);
                    self.rule(!leaves || masters().count() > 1, "the last master stays");
                }
                let serves = members().any(|member| member.name == *pilot && member.is_serving());
                let stays_away = !serves && matches!(step, PlannedStep::Restart { .. });
                self.rule(stays_away || others_serve(pilot), "only while every other node serves");
                // A node that has left is missed by none, though it is not removed yet.
                let leaves = |m: Member| {
                    let asked = m.has_intent(&PilotIntent::Decommissioned);
                    m.name != *pilot && asked && !m.is_decommissioned()
                };
                self.rule(!members().any(leaves), "not while another node is decommissioned");
            }
            PlannedStep::Raise { pool, to } => {
                let pool = self.observed.pools.iter().find(|p| p.name == *pool).unwrap();
                let joins =
                    |member: &Member| !member.is_serving() && !self.joined.contains(&member.name);
                self.rule(!members().any(|member| joins(&member)), "nodes join one by one");
                self.rule(*to == pool.replicas() + 1, "nodes join one by one");
            }
            PlannedStep::Return { pool, to } => {
                let pool = self.observed.pools.iter().find(|p| p.name == *pool).unwrap();
                let holds = |(ordinal, member): (&u32, &Member)| {
                    let unread = member.pilot.as_ref().is_none_or(|pilot| !pilot.checked);
                    let kept = member.claim.is_some() && unread;
                    let may_return =
                        self.joined.contains(&member.name) || !member.is_first_life() || kept;
                    may_return.then_some(ordinal + 1)
                };
                let returns = pool.members.iter().filter_map(holds).max() >= Some(*to);
                self.rule(returns, "only nodes with data come back all at once");
            }
            PlannedStep::Remove { pool, pilot, to } => {
                let pool = self.observed.pools.iter().find(|p| p.name == *pool).unwrap();
                self.rule(*to + 1 == pool.replicas(), "one node is removed at a time");
                let member = pool.members.get(to).unwrap();
                self.rule(member.name == *pilot, "the last ordinal is removed");
                let member = &member.name;
                self.rule(
                    !self.joined.contains(member),
                    "a node with data is removed only after it left",
                );
            }
            PlannedStep::DeleteClaim { pilot, .. } | PlannedStep::DeletePilot { pilot, .. } => {
                let mut all = self.observed.pools.iter().flat_map(|p| p.members.values());
                let member = all.find(|member| member.name == *pilot).unwrap();
                self.rule(
                    !self.joined.contains(&member.name),
                    "what belongs to a node with data is kept",
                );
                self.rule(member.pod.is_none(), "what belongs to a pod is kept while it is there");
            }
            PlannedStep::Empty { pool } => {
                let pool = self.observed.pools.iter().find(|p| p.name == *pool).unwrap();
                let down = pool.members.values().filter(|m| m.pod.is_some()).all(|member| {
                    let runs = member.pod.as_ref().is_some_and(|p| p.started && !p.terminating);
                    !runs || member.pilot.as_ref().is_some_and(|p| p.stopped || p.decommissioned)
                });
                self.rule(
                    !pool.members.values().any(Member::dies_with_pod),
                    "no pod is deleted that holds data",
                );
                self.rule(down, "pods of a stopped pool go after their databases stopped");
            }
            PlannedStep::DeletePool { pool, .. } => {
                let pool = self.observed.pools.iter().find(|p| p.name == *pool).unwrap();
                self.rule(pool.replicas() == 0, "a pool is deleted when it is empty");
            }
            PlannedStep::Configure { pilot } => {
                let serves = members().any(|member| member.name == *pilot && member.is_serving());
                self.rule(
                    !serves || others_serve(pilot),
                    "a running node gets a new spec in its turn",
                );
            }
            PlannedStep::Deliver { pilot, .. } => {
                self.rule(others_serve(""), "pilots change only while every node serves");
                let behind = |member: &Member| member.name != *pilot && !taken_over(member);
                self.rule(!members().any(|m| behind(&m)), "pilots change one by one");
            }
            PlannedStep::RestartInPlace { pilot } => {
                let serves = members().any(|member| member.name == *pilot && member.is_serving());
                self.rule(!serves || others_serve(pilot), "only while every other node serves");
            }
            PlannedStep::Vacate { pilot, pod, .. } => {
                let own = |member: &Member| member.pod.as_ref().is_some_and(|p| p.uid == *pod);
                self.rule(members().any(|m| m.name == *pilot && own(&m)), "the pod that was asked");
                let serves = members().any(|member| member.name == *pilot && member.is_serving());
                self.rule(!serves || others_serve(pilot), "only while every other node serves");
            }
            PlannedStep::Replace { .. }
            | PlannedStep::Renew { .. }
            | PlannedStep::Keep { .. }
            | PlannedStep::Forget { .. }
            | PlannedStep::BeginAnew { .. }
            | PlannedStep::TakeWordBack { .. }
            | PlannedStep::KeepData { .. }
            | PlannedStep::ResizeClaim { .. }
            | PlannedStep::RenewSet { .. }
            | PlannedStep::Stop { .. }
            | PlannedStep::Start { .. } => {}
        }
    }

    fn execute(&mut self, step: &PlannedStep) {
        let wanted: Vec<DesiredPool> = self.desired.pools.clone();
        let find = |pools: &[ObservedPool], name: &str| {
            pools.iter().position(|pool| pool.name == name).unwrap()
        };
        match step {
            PlannedStep::Raise { pool, to }
            | PlannedStep::Return { pool, to }
            | PlannedStep::Remove { pool, to, .. } => {
                let index = find(&self.observed.pools, pool);
                let observed = self.observed.clone();
                let pool = &mut self.observed.pools[index];
                let from = pool.replicas();
                pool.set.as_mut().unwrap().replicas = *to;
                for ordinal in from..*to {
                    ensure_pilot(&self.desired, &observed, pool, ordinal);
                }
                self.pin();
            }
            PlannedStep::Empty { pool } => {
                let index = find(&self.observed.pools, pool);
                self.observed.pools[index].set.as_mut().unwrap().replicas = 0;
            }
            PlannedStep::Renew { pilot, .. } => {
                self.joined.remove(pilot);
                self.each(pilot, |member| {
                    member.claim = None;
                    if let Some(pod) = &mut member.pod {
                        (pod.terminating, pod.ready) = (true, false);
                    }
                    if let Some(pilot) = &mut member.pilot {
                        (pilot.ready, pilot.decommissioned, pilot.identity) = (false, false, false);
                        pilot.irreversible = false;
                    }
                });
            }
            PlannedStep::Recreate { pilot, .. } | PlannedStep::Vacate { pilot, .. } => {
                self.each(pilot, |member| {
                    let pod = member.pod.as_mut().unwrap();
                    (pod.terminating, pod.ready) = (true, false);
                });
            }
            PlannedStep::Replace { pilot, .. }
            | PlannedStep::Restart { pilot, .. }
            | PlannedStep::Configure { pilot } => {
                let recreate = !matches!(step, PlannedStep::Configure { .. });
                for pool in &mut self.observed.pools {
                    let wanted = wanted.iter().find(|wanted| wanted.name == pool.name);
                    for member in pool.members.values_mut().filter(|m| m.name == *pilot) {
                        if let (Some(facts), Some(wanted)) = (&mut member.pilot, wanted) {
                            let phase = facts.spec.phase.clone();
                            facts.spec = PilotSpec { phase, ..wanted.pilot.clone() };
                            facts.eligible = wanted.eligible;
                            (facts.validated, facts.pinned) = (None, None);
                        }
                        if let Some(pod) = member.pod.as_mut().filter(|_| recreate) {
                            pod.terminating = true;
                            pod.ready = false;
                            let set = pool.set.as_mut().unwrap();
                            set.template.clone_from(&wanted.unwrap().pod_hash);
                        }
                    }
                }
            }
            PlannedStep::RestartInPlace { pilot } => {
                for pool in &mut self.observed.pools {
                    let wanted = wanted.iter().find(|wanted| wanted.name == pool.name);
                    for member in pool.members.values_mut().filter(|m| m.name == *pilot) {
                        if let (Some(facts), Some(wanted)) = (&mut member.pilot, wanted) {
                            facts.spec = PilotSpec {
                                restart_for: wanted.pilot.config_hash.clone(),
                                ..wanted.pilot.clone()
                            };
                            facts.eligible = wanted.eligible;
                            facts.validated = None;
                        }
                    }
                }
            }
            PlannedStep::Decommission { pilot } => {
                self.intend(pilot, Some(&PilotIntent::Decommissioned));
            }
            PlannedStep::Keep { pilot } => self.intend(pilot, None),
            PlannedStep::Stop { pilots } => {
                for pilot in pilots {
                    self.intend(pilot, Some(&PilotIntent::Stopped));
                }
            }
            PlannedStep::Start { pilots } => {
                for pilot in pilots {
                    self.intend(pilot, None);
                }
            }
            PlannedStep::Forget { .. }
            | PlannedStep::BeginAnew { .. }
            | PlannedStep::TakeWordBack { .. }
            | PlannedStep::KeepData { .. } => {
                unreachable!("nodes of the simulation have no ids, and no data are given up")
            }
            PlannedStep::ResizeClaim { .. } | PlannedStep::RenewSet { .. } => {
                unreachable!("claims of the simulation have no size")
            }
            PlannedStep::DeleteClaim { pilot, .. } => {
                self.each(pilot, |member| member.claim = None);
            }
            PlannedStep::Deliver { pilot, container, image, .. } => {
                self.uids += 1;
                let number = container.rsplit('-').next().unwrap().parse().unwrap();
                let installer = installer(number, image, self.uids);
                self.each(pilot, |member| {
                    let pod = member.pod.as_mut().unwrap();
                    pod.installers.push(installer.clone());
                });
            }
            PlannedStep::DeletePilot { pilot, .. } => {
                self.each(pilot, |member| member.pilot = None);
            }
            PlannedStep::DeletePool { pool, .. } => {
                self.observed.pools.retain(|found| found.name != *pool);
            }
        }
        for pool in &mut self.observed.pools {
            pool.members.retain(|_, m| m.pod.is_some() || m.pilot.is_some() || m.claim.is_some());
        }
    }

    fn each(&mut self, name: &str, change: impl Fn(&mut Member)) {
        let members = self.observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut());
        members.filter(|member| member.name == name).for_each(change);
    }

    fn intend(&mut self, name: &str, phase: Option<&PilotIntent>) {
        self.each(name, |member| {
            if let Some(pilot) = &mut member.pilot {
                pilot.phase_ours = phase.is_some();
                pilot.spec.phase = phase.cloned();
            }
        });
    }

    /// Lets Kubernetes and the pilots do a random part of their work.
    pub(crate) fn tick(&mut self) {
        let image = self.desired.pilot_image.reference.clone();
        let quorum = self.has_quorum();
        let Self { observed, rng, uids, joined, .. } = self;
        for pool in &mut observed.pools {
            let replicas = pool.replicas();
            let hash = pool.set.as_ref().map(|set| set.template.clone()).unwrap_or_default();
            for ordinal in 0..replicas {
                let name = names::pilot_name(&pool.set_name, ordinal);
                let member = pool
                    .members
                    .entry(ordinal)
                    .or_insert_with(|| Member { name, ..Member::default() });
                if member.pod.is_none() && rng.random_bool(0.5) {
                    *uids += 1;
                    let hash = hash.clone();
                    let installers = vec![installer(0, &image, *uids)];
                    let uid = uids.to_string();
                    let holds_data = pool.name.starts_with('e');
                    let pod = PodFacts { uid, holds_data, hash, installers, ..PodFacts::default() };
                    member.pod = Some(pod);
                    if holds_data {
                        continue;
                    }
                    member.claim.get_or_insert_with(|| ClaimFacts {
                        name: format!("example-data-{}", member.name),
                        uid: uids.to_string(),
                        holds_data: true,
                        ..ClaimFacts::default()
                    });
                }
            }
            for (ordinal, member) in &mut pool.members {
                let surplus = *ordinal >= replicas;
                if let Some(pod) = &mut member.pod {
                    if surplus {
                        pod.terminating = true;
                        pod.ready = false;
                    }
                    if pod.terminating && rng.random_bool(0.5) {
                        member.pod = None;
                        if let Some(pilot) = &mut member.pilot {
                            pilot.ready = false;
                        }
                    }
                }
                if rng.random_bool(0.5) {
                    let known = joined.contains(&member.name);
                    if let Some(pilot) = member.pilot.as_mut().filter(|_| member.pod.is_some()) {
                        pilot.identity |= known;
                    }
                    live(member, quorum);
                    if let Some(pilot) = &mut member.pilot {
                        // Of a node that cannot start, its pilot says that its volume is empty.
                        pilot.emptied = pilot.failed && !known;
                    }
                    if member.is_decommissioned() {
                        joined.remove(&member.name);
                    } else if member.is_serving() {
                        joined.insert(member.name.clone());
                    }
                }
            }
        }
        self.report();
    }

    /// Are enough masters up to elect one? Masters that joined and did not leave count.
    fn has_quorum(&self) -> bool {
        let members = || self.observed.pools.iter().flat_map(|pool| pool.members.values());
        let masters = || {
            members().filter(|member| is_master(&member.name) && self.joined.contains(&member.name))
        };
        let up = |member: &&Member| member.pod.as_ref().is_some_and(|pod| !pod.terminating);
        masters().count() == 0 || masters().filter(up).count() * 2 > masters().count()
    }

    /// Lets the kubelet give every pod a token of the current ServiceAccount.
    pub(crate) fn renew_tokens(&mut self) {
        self.note("tokens are renewed");
        for member in self.observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            if let Some(pod) = &mut member.pod {
                pod.token_renewed_by = None;
            }
        }
    }

    /// Makes one pod fail, for a while.
    pub(crate) fn disturb(&mut self) {
        let mut pods: Vec<_> = self
            .observed
            .pools
            .iter_mut()
            .flat_map(|pool| pool.members.values_mut())
            .filter(|member| member.pod.is_some())
            .collect();
        if pods.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..pods.len());
        let member = &mut *pods[index];
        let name = member.name.clone();
        if self.rng.random_bool(0.5) {
            member.pod = None;
        } else if let Some(pod) = &mut member.pod {
            pod.ready = false;
        }
        if let Some(pilot) = &mut member.pilot {
            pilot.ready = false;
        }
        self.note(format!("{name} fails"));
    }

    /// Asks a random node to leave its machine, as a person would.
    pub(crate) fn ask(&mut self) {
        let members = self.observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut());
        let mut members: Vec<_> = members.filter(|member| member.pod.is_some()).collect();
        if members.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..members.len());
        let member = &mut *members[index];
        let name = member.name.clone();
        if let (Some(pod), Some(pilot)) = (&member.pod, &mut member.pilot) {
            pilot.leave = Some(LeaveRequest { pod: pod.uid.clone(), by: "a person".into() });
        }
        self.note(format!("{name} is asked to leave"));
    }

    /// Takes all requests back.
    pub(crate) fn ask_no_more(&mut self) {
        for member in self.observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            member.pilot.iter_mut().for_each(|pilot| pilot.leave = None);
        }
    }

    /// Makes one random edit of the spec, as a person would.
    pub(crate) fn edit(&mut self) {
        let choice = self.rng.random_range(0..8);
        let revision = &*self.rng.random_range(0..1000).to_string();
        let size = self.rng.random_range(1..4);
        let index = self.rng.random_range(0..self.desired.pools.len());
        match choice {
            0 | 1 => self.desired.pools[index].replicas = size,
            2 => {
                for pool in &mut self.desired.pools {
                    pool.pilot.config_hash = Some(revision.to_owned());
                }
            }
            // Where pods hold the data, only a person may decide on new pods.
            3 => {
                let volumes = |pool: &&mut DesiredPool| !pool.name.starts_with('e');
                for pool in self.desired.pools.iter_mut().filter(volumes) {
                    revision.clone_into(&mut pool.pod_hash);
                }
            }
            4 => self.desired.stopped = !self.desired.stopped,
            5 => self.desired.pilot_image = Image::from_reference(format!("navigator:{revision}")),
            6 if self.rng.random_bool(0.3) => {
                let pool = &mut self.desired.pools[index];
                if !pool.name.starts_with('e') {
                    revision.clone_into(&mut pool.pod_hash);
                }
                pool.pilot.config_hash = Some(BROKEN.to_owned());
            }
            6 => {
                let name = format!("x{}", self.desired.generation);
                let same = self.desired.pools[0].pod_hash.clone();
                let broken = pool(&name, size, BROKEN);
                self.desired.pools.push(DesiredPool { pod_hash: same, ..broken });
            }
            _ if self.desired.pools.len() > 1 && self.may_go(index) => {
                self.desired.pools.remove(index);
            }
            _ => {
                let masters = self.desired.pools.iter().any(|pool| pool.eligible) && revision < "5";
                let kind = if masters { "m" } else { "p" };
                let name = format!("{kind}{}", self.desired.generation);
                let same = self.desired.pools[0].pod_hash.clone();
                self.desired.pools.push(pool(&name, size, &same));
            }
        }
        self.desired.generation += 1;
        let sizes: Vec<_> =
            self.desired.pools.iter().map(|pool| (pool.name.clone(), pool.replicas)).collect();
        self.note(("edit", choice, sizes, self.desired.stopped));
    }

    /// Validation refuses to remove the last pool of masters. The simulation also keeps a pool that
    /// broke after it had served, as long as one of its nodes is broken, and at least one pool that was
    /// made unbroken.
    fn may_go(&self, index: usize) -> bool {
        let pools = &self.desired.pools;
        let pool = &pools[index];
        let count =
            |counts: &dyn Fn(&DesiredPool) -> bool| pools.iter().filter(|p| counts(p)).count();
        let broken = |member: &Member| {
            member.pilot.as_ref().is_some_and(|p| p.spec.config_hash.as_deref() == Some(BROKEN))
        };
        let found = self.observed.pools.iter().find(|found| found.name == pool.name);
        let breaks = found.is_some_and(|found| found.members.values().any(broken));
        let stay = count(&|other| !born_broken(other) && other.name != pool.name) > 0;
        (!pool.eligible || count(&|pool| pool.eligible) > 1)
            && stay
            && (self.never_served(pool) || (!is_broken(pool) && !breaks))
    }

    /// Could no node of the pool ever start?
    fn never_served(&self, pool: &DesiredPool) -> bool {
        let own = |member: &String| {
            member.strip_prefix(&pool.set).is_some_and(|rest| rest.starts_with('-'))
        };
        born_broken(pool) && !self.joined.iter().any(own)
    }

    /// Does what a person does about broken pools: removes those that never could start, and
    /// repairs the others.
    pub(crate) fn take_back(&mut self) {
        let mut pools = std::mem::take(&mut self.desired.pools);
        pools.retain(|pool| !(self.never_served(pool) && is_broken(pool)));
        self.desired.pools = pools;
        for pool in self.desired.pools.iter_mut().filter(|pool| is_broken(pool)) {
            pool.pilot.config_hash = Some("repaired".to_owned());
        }
        self.desired.generation += 1;
        self.note("takes back");
    }

    /// Deletes the cluster, keeps its volumes, and makes it again as it was, as a person would.
    /// Does nothing while nodes leave, or where volumes of unwanted pools would be left behind.
    pub(crate) fn make_again(&mut self) {
        let observed = &self.observed.pools;
        let wanted = |pool: &ObservedPool| self.desired.pool(&pool.name).is_some();
        let leaves = |member: &Member| member.intent() == PilotIntent::Decommissioned;
        let mut members = observed.iter().flat_map(|pool| pool.members.values());
        if !observed.iter().all(wanted) || members.any(leaves) {
            return;
        }
        self.note("makes the cluster again");
        self.desired.status = ClusterStatus::default();
        // Data in pods went with the pods.
        self.joined.retain(|member| !member.starts_with("ex-demo-e"));
        for pool in &mut self.observed.pools {
            pool.set = None;
            for member in pool.members.values_mut() {
                (member.pod, member.pilot) = (None, None);
            }
            pool.members.retain(|_, member| member.claim.is_some());
        }
    }

    /// Is the observed cluster as desired?
    pub(crate) fn settled(&self) -> bool {
        let desired = &self.desired;
        if desired.stopped {
            // A pool that left the spec is decommissioned after the cluster was started again.
            let mut wanted = self.observed.pools.iter().take(desired.pools.len());
            let kept = |pool: &ObservedPool| pool.members.values().any(Member::dies_with_pod);
            return wanted.all(|pool| pool.replicas() == 0 || kept(pool));
        }
        pilot_rollout(desired, &self.observed).next.is_none()
            && self.observed.pools.len() == desired.pools.len()
            && self.observed.pools.iter().zip(&desired.pools).all(|(found, wanted)| {
                found.replicas() == wanted.replicas
                    && found.nodes().all(|(_, member)| {
                        member.is_some_and(|member| {
                            member.is_serving() && !is_outdated(member, wanted)
                        })
                    })
            })
    }
}

/// Configuration hash with which no database starts.
const BROKEN: &str = "broken";

fn is_broken(pool: &DesiredPool) -> bool {
    pool.pilot.config_hash.as_deref() == Some(BROKEN)
}

fn born_broken(pool: &DesiredPool) -> bool {
    pool.name.starts_with('x')
}

/// Is the node of a pool whose name begins with `m`? These hold masters.
fn is_master(member: &str) -> bool {
    member.starts_with("ex-demo-m")
}

/// Does what `ensure_pilot` of the controller does.
fn ensure_pilot(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pool: &mut ObservedPool,
    ordinal: u32,
) {
    let Some(wanted) = desired.pool(&pool.name) else { return };
    let before = observed.pools.iter().find(|found| found.name == pool.name);
    let birth = before.and_then(|before| revision_for_new_pod(desired, observed, before));
    let name = names::pilot_name(&pool.set_name, ordinal);
    let member =
        pool.members.entry(ordinal).or_insert_with(|| Member { name, ..Member::default() });
    let earlier = member.claim.as_ref().map(|claim| claim.uid.clone()).unwrap_or_default();
    let Some(mut pilot) = member.pilot.clone() else {
        member.pilot = Some(PilotFacts {
            owned: true,
            earlier_claim: Some(earlier),
            spec: birth.map_or(&wanted.pilot, |birth| birth.pilot).clone(),
            pinned: birth.map(|birth| birth.template.to_owned()),
            eligible: wanted.eligible,
            keeps_data: true,
            ..PilotFacts::default()
        });
        return;
    };
    pilot.pinned = before.and_then(|b| pinned_to(desired, b, member, wanted)).map(str::to_owned);
    if member.pod.is_none() && pilot.pinned.is_none() {
        let phase = pilot.spec.phase.clone();
        pilot.spec = PilotSpec { phase, ..wanted.pilot.clone() };
        pilot.eligible = wanted.eligible;
    }
    member.pilot = Some(pilot);
}

/// Returns a finished installer; `time` is its id and says when it ended.
fn installer(number: u32, image: &str, time: u64) -> InstallerContainer {
    let at = Timestamp::from_second(time.try_into().unwrap()).unwrap();
    let program = time.to_string();
    let state = InstallState::Done { program, at, age: std::time::Duration::ZERO };
    InstallerContainer { number, image: image.to_owned(), state }
}

/// Returns the program that was installed into the pod last.
fn newest(pod: &PodFacts) -> Option<String> {
    match &pod.installers.last()?.state {
        InstallState::Done { program, .. } => Some(program.clone()),
        InstallState::Pending(_) | InstallState::Failed { .. } => None,
    }
}

/// Does the pilot run the program that was installed into its pod last?
fn taken_over(member: &Member) -> bool {
    let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { return false };
    newest(pod) == pilot.program
}

/// Makes a pilot follow its Pilot's spec; its database serves where a quorum of masters does.
fn live(member: &mut Member, quorum: bool) {
    let intent = member.intent();
    let (Some(pod), Some(pilot)) = (&mut member.pod, &mut member.pilot) else { return };
    // A pilot that the API turns away reports nothing.
    if pod.terminating || pod.token_renewed_by.is_some() {
        return;
    }
    pod.started = true;
    pilot.instance = Some(pod.uid.clone());
    pilot.hearing = HeartbeatAge::STEADY;
    (pilot.checked, pilot.marked_unheard, pilot.not_ready) = (true, false, None);
    let running = intent == PilotIntent::Running;
    if running && pilot.spec.config_hash.as_deref() == Some(BROKEN) {
        if pilot.ready {
            pilot.validated = Some(Err("it cannot start".to_owned()));
        } else {
            (pilot.idle, pilot.failed) = (true, true);
        }
        return;
    }
    pilot.failed = false;
    // Pods of pools that begin with `e` hold their data; other databases of them restart in place
    // as well, those of the rest do not.
    let in_place = ["-e-", "-d-"].iter().any(|pool| member.name.contains(pool));
    pilot.started_for = pilot.running_hash.clone().filter(|_| in_place);
    if running && pod.ready && pilot.is_restarting() {
        (pilot.ready, pod.ready, pilot.idle) = (false, false, true);
        return;
    }
    if running && !quorum && !pod.ready {
        return;
    }
    match intent {
        PilotIntent::Decommissioned if pilot.irreversible => {
            pilot.decommissioned = true;
            pilot.ready = false;
            pod.ready = false;
        }
        PilotIntent::Decommissioned if pilot.identity => pilot.irreversible = true,
        PilotIntent::Decommissioned => pilot.decommissioned = true,
        PilotIntent::Stopped => {
            pilot.stopped = true;
            pilot.ready = false;
            pod.ready = false;
        }
        _ => {
            let was_ready = pilot.ready;
            pilot.program = newest(pod);
            pod.ready = true;
            pilot.ready = true;
            (pilot.stopped, pilot.idle) = (false, false);
            (pilot.identity, pilot.answered) = (true, true);
            pilot.version.clone_from(&pilot.spec.version);
            pilot.health = Some(Health::Green);
            if was_ready {
                pilot.validated = Some(Ok(()));
            } else {
                pilot.running_hash.clone_from(&pilot.spec.config_hash);
            }
        }
    }
}
