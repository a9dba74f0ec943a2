//! The gates of each step: what must be true of the cluster before a node joins, stops or leaves.
//!
//! A wait that another candidate reports already ("a-1 is starting") delays a step without a
//! message of its own. What does not pass by itself is reported as a blocker of the step.

use super::{
    AwaitedStep, PlannedStep, Remedy, StepBlocker, VACATE_POD, World,
    absence::{self, AbsentNode},
    behind,
    candidate::{Candidate, CandidateAct, Verdict},
    departure,
    roll::{self, PEERS_READY, VERSION_SETTLED},
    room,
    step::StepNeed,
    vacate,
};
use crate::{
    api::{
        predicate,
        v1beta1::{NodeChange, PilotIntent},
    },
    controller::{
        desired_state::DesiredPool,
        observe::{BlockerFacts, Member, ObservedPool},
    },
};

/// Says whether a candidate may be carried out now.
pub(super) fn check_gates(world: World<'_>, candidate: Candidate) -> Verdict {
    match candidate.act {
        CandidateAct::Step(step) => find_blockers(world, &step).unwrap_or(Verdict::Go(step)),
        CandidateAct::Await(awaited_step) => {
            Verdict::Held { waiting: Some(awaited_step), blocked: Vec::new() }
        }
        CandidateAct::Hold(blocked) => Verdict::Held { waiting: None, blocked },
    }
}

/// Returns what holds the step, or `None` where nothing does.
fn find_blockers(world: World<'_>, step: &PlannedStep) -> Option<Verdict> {
    let subject = step.pilot().and_then(|name| world.member(name));
    let gate = StepGate { world, step, subject };
    let verdict = match step.need(subject.is_some_and(Member::is_serving)) {
        StepNeed::Nothing => None,
        StepNeed::Join => gate.check_join(),
        StepNeed::Stop => gate.check_stop(),
        StepNeed::Leave => gate.check_decommission(),
    };
    verdict.or_else(|| blocked_verdict(behind::step_blocker(world, step).into_iter().collect()))
}

/// Returns whether a step waits only until a report comes, or until the cluster is calm. Then its
/// node keeps its place in the rollout order.
pub(super) fn is_held_briefly(world: World<'_>, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Go(_) => false,
        Verdict::Held { waiting, blocked } => {
            waiting.is_some() || blocked.iter().any(|block| requires_calm(world, block))
        }
    }
}

/// Returns whether the node `first` reported after the node of the step, or with it. An older
/// report may still contain a blocker of `first` that has passed since.
pub(super) fn is_first_report_newer(world: World<'_>, first: &str, step: &PlannedStep) -> bool {
    let report_age = |name: &str| Some(world.member(name)?.pilot.as_ref()?.hearing.ago);
    report_age(first)
        .zip(step.pilot().and_then(report_age))
        .is_none_or(|(first, other)| first <= other)
}

/// Returns whether the node `first` and the node of the step are in different datacenters. Each
/// datacenter has its own rollout order.
pub(super) fn are_apart(world: World<'_>, first: &str, step: &PlannedStep) -> bool {
    let other = step.pilot().and_then(|name| world.member(name));
    world
        .member(first)
        .zip(other)
        .is_some_and(|(first, other)| in_another_datacenter(world, first, other))
}

/// Returns whether two nodes are in different datacenters, as far as their specs show it.
fn in_another_datacenter(world: World<'_>, node: &Member, other: &Member) -> bool {
    let datacenter = |member: &Member| {
        let pilot = member.pilot.as_ref()?;
        Some((world.desired.database.place)(&pilot.spec)?.datacenter)
    };
    datacenter(node)
        .zip(datacenter(other))
        .is_some_and(|(node_datacenter, other)| node_datacenter != other)
}

fn requires_calm(world: World<'_>, block: &StepBlocker) -> bool {
    let rule = world.desired.database.names.find_predicate(&block.predicate);
    rule.is_some_and(|rule| rule.calm)
}

struct StepGate<'a> {
    world: World<'a>,
    step: &'a PlannedStep,
    subject: Option<&'a Member>,
}

/// A verdict that holds a step, and leaves the word to another candidate.
pub(super) const HELD: Verdict = Verdict::Held { waiting: None, blocked: Vec::new() };

fn blocked_verdict(blockers: Vec<StepBlocker>) -> Option<Verdict> {
    (!blockers.is_empty()).then_some(Verdict::Held { waiting: None, blocked: blockers })
}

impl<'a> StepGate<'a> {
    fn check_join(&self) -> Option<Verdict> {
        let world = self.world;
        if self.leaving_member().is_some_and(|member| !departure::is_decommission_refused(member)) {
            return Some(HELD);
        }
        // Nodes join one at a time; and one that is away for a moment is waited for.
        let is_awaited = |node: &AbsentNode<'_>| node.is_joining() || !node.is_long_unavailable();
        if absence::missing_nodes(world).any(|node| is_awaited(&node)) {
            return Some(HELD);
        }
        let is_same_pool =
            |(pool, _): &(&ObservedPool, &Member)| self.resized_pool() == Some(pool.name.as_str());
        if absence::terminating_nodes(world).any(|node| is_same_pool(&node)) {
            return Some(HELD);
        }
        if let Some(block) = self.version_blocker(&world.desired.version) {
            return blocked_verdict(vec![block]);
        }
        if let Some(node) =
            absence::missing_nodes(world).find(|node| node.member.is_some_and(Member::is_silent))
        {
            let message = format!("the pilot of {} has not reported for a minute", node.name());
            return self.unless_skipped(PEERS_READY, message);
        }
        if let PlannedStep::Raise { pool, .. } = self.step
            && let Some(message) = room::missing_space(world, pool)
            && let Some(verdict) = self.unless_skipped(room::SPACE_HERE, message)
        {
            return Some(verdict);
        }
        blocked_verdict(self.reported_blockers(&NodeChange::Join))
    }

    fn check_stop(&self) -> Option<Verdict> {
        let member = self.subject?;
        // A node that does not serve is down already.
        let verdict = self.check_other_decommissions();
        if let Some(verdict) = verdict
            .or_else(|| member.is_serving().then(|| self.check_unavailable_nodes()).flatten())
        {
            return Some(verdict);
        }
        let World { desired, observed } = self.world;
        let mut blockers = roll::stop_blockers(desired, observed, member);
        let needs_new_pod = !matches!(
            self.step,
            PlannedStep::Configure { .. } | PlannedStep::RestartInPlace { .. }
        );
        blockers.extend(roll::pod_data_blocker(desired, member).filter(|_| needs_new_pod));
        if self.is_eviction() {
            blockers.retain(|block| !self.is_excused(block));
        }
        if self.brings_another_spec(member) {
            // Its pilot reports blockers of the spec that it has.
            blockers.retain(|block| !roll::is_of_spec(desired.database, &block.predicate));
        }
        if !member.is_serving() {
            blockers.retain(|block| !requires_calm(self.world, block));
        }
        for block in &mut blockers {
            block.step = self.step_label();
        }
        if !blockers.is_empty() {
            return blocked_verdict(blockers);
        }
        let is_skipped = desired.strategy.is_skipped(PEERS_READY);
        let message = roll::missing_report(observed, member).filter(|_| !is_skipped)?;
        let step = if self.is_eviction() { VACATE_POD } else { "RecreatePod" };
        let waiting = Some(AwaitedStep::new(step, &member.name, message));
        Some(Verdict::Held { waiting, blocked: Vec::new() })
    }

    fn check_decommission(&self) -> Option<Verdict> {
        let member = self.subject?;
        if let Some(verdict) =
            self.check_other_decommissions().or_else(|| self.check_unavailable_nodes())
        {
            return Some(verdict);
        }
        if let Some(block) = self.mixed_versions_blocker() {
            return blocked_verdict(vec![block]);
        }
        let world = self.world;
        if let Some(block) = departure::last_of_its_kind(world, self.step, member) {
            return blocked_verdict(vec![block]);
        }
        let blockers = self.reported_blockers(&NodeChange::Leave);
        if !blockers.is_empty() {
            return blocked_verdict(blockers);
        }
        departure::check_pending_cleanup(world, member)
    }

    /// Blocks a stop or a decommission while another node leaves.
    fn check_other_decommissions(&self) -> Option<Verdict> {
        let is_leaving = |member: &Member| {
            self.is_other(&member.name) && !departure::is_decommission_refused(member)
        };
        let has_terminating = absence::terminating_nodes(self.world).next().is_some();
        (self.leaving_member().is_some_and(is_leaving) || has_terminating).then_some(HELD)
    }

    fn is_other(&self, name: &str) -> bool {
        self.subject.is_none_or(|member| member.name != name)
    }

    /// Blocks a stop or a decommission while too many other nodes are unavailable.
    fn check_unavailable_nodes(&self) -> Option<Verdict> {
        // A node that was never one of the database cluster is not missed by it.
        let is_new = |node: &AbsentNode<'_>| {
            let has_no_place = |member: &Member| {
                member.never_ran() && member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some())
            };
            node.member.is_some_and(has_no_place)
        };
        let is_counted = |node: &AbsentNode<'_>| {
            self.is_other(&node.name()) && !self.has_left_before(node) && !is_new(node)
        };
        let unavailable_nodes: Vec<_> =
            absence::missing_nodes(self.world).filter(is_counted).collect();
        let is_apart = |node: &AbsentNode<'_>| {
            let other = self.subject.zip(node.member);
            other.is_some_and(|(subject, other)| in_another_datacenter(self.world, subject, other))
        };
        // To the others a database that starts is up, so their pilots count it with those that serve.
        let is_starting = |node: &AbsentNode<'_>| {
            !node.is_long_unavailable() && node.member.is_some_and(Member::runs_without_serving)
        };
        if unavailable_nodes.iter().any(|node| is_starting(node) && !is_apart(node)) {
            return Some(HELD);
        }
        // More than one node may be down only within one pool, or within different datacenters: copies
        // of the same rows are in other pools.
        let own_pool = self.subject.and_then(|member| self.pool_of(member));
        let can_be_down_too =
            |node: &AbsentNode<'_>| own_pool == Some(node.pool.name.as_str()) || is_apart(node);
        let max_unavailable =
            if unavailable_nodes.iter().all(can_be_down_too) && !self.is_eviction() {
                self.world.desired.strategy.max_unavailable(self.world.running_nodes().count())
            } else {
                1
            };
        if unavailable_nodes.len() < max_unavailable {
            return None;
        }
        let lasting_node = unavailable_nodes.iter().find(|node| node.is_long_unavailable());
        let blocker = lasting_node.map(|node| StepBlocker {
            predicate: predicate::MAX_UNAVAILABLE.name.into(),
            step: self.step_label(),
            message: format!("{} does not serve: {}", node.name(), node.description()),
            remedy: match node.remedy(self.world) {
                Remedy::Wait | Remedy::Correct => Remedy::AllowMoreDown,
                remedy => remedy,
            },
        });
        Some(Verdict::Held { waiting: None, blocked: blocker.into_iter().collect() })
    }

    /// Returns whether the node gets another spec than its Pilot has.
    fn brings_another_spec(&self, member: &Member) -> bool {
        let desired_pool = self.pool_of(member).and_then(|pool| self.world.desired.pool(pool));
        let desired_hash = desired_pool.map(DesiredPool::config_hash);
        let current_hash =
            member.pilot.as_ref().and_then(|pilot| pilot.spec.config_hash.as_deref());
        !self.is_eviction() && desired_hash.is_some_and(|hash| current_hash != Some(hash))
    }

    /// Returns whether the step is an eviction, the answer to a request.
    fn is_eviction(&self) -> bool {
        matches!(self.step, PlannedStep::Vacate { .. })
    }

    /// Returns whether the node has left the machine that the node of the step is to leave, so that
    /// both may be unavailable together.
    fn has_left_before(&self, node: &AbsentNode<'_>) -> bool {
        let machine = self.subject.and_then(|member| member.pod.as_ref()?.machine.as_deref());
        let left_machine = node.member.and_then(vacate::awaited_machine);
        self.is_eviction() && machine.is_some() && left_machine == machine
    }

    /// Returns whether an eviction may ignore the blocker. It may if the predicate is about a new
    /// spec, which an evicted node does not get. It also may if the predicate asks for calm, while
    /// another node of the same machine is unavailable by request. Predicates about the
    /// availability of data count all the same.
    fn is_excused(&self, block: &StepBlocker) -> bool {
        let database = self.world.desired.database;
        if roll::is_of_spec(database, &block.predicate) {
            return true;
        }
        requires_calm(self.world, block)
            && absence::missing_nodes(self.world).any(|node| self.has_left_before(&node))
    }

    /// Returns a node that is asked to leave and has not left.
    fn leaving_member(&self) -> Option<&'a Member> {
        let is_leaving = |member: &&Member| {
            member.intent() == PilotIntent::Decommissioned
                && !member.is_decommissioned()
                && !member.is_data_discarded()
        };
        self.world.running_nodes().filter_map(|(_, _, member)| member).find(is_leaving)
    }

    /// Returns the block of a node that runs another version than the one that would join.
    fn version_blocker(&self, version: &str) -> Option<StepBlocker> {
        // A node that has left is none of the ring.
        let has_other_version = |member: &&Member| {
            let pilot = member.pilot.as_ref().filter(|pilot| !pilot.decommissioned);
            pilot.and_then(|pilot| pilot.spec.version.as_deref()).is_some_and(|v| v != version)
        };
        let mut members =
            self.world.running_nodes().filter_map(|(pool, _, member)| Some((pool, member?)));
        let (pool, member) = members.find(|(_, member)| has_other_version(member))?;
        let is_leaving_spec = self.world.desired.pool(&pool.name).is_none();
        let current_version = member.pilot.as_ref()?.spec.version.clone().unwrap_or_default();
        Some(StepBlocker {
            predicate: VERSION_SETTLED.into(),
            step: self.step_label(),
            message: format!("{} is of {current_version}, and {version} is wanted", member.name),
            remedy: match self.world.desired.strategy.on_delete {
                _ if is_leaving_spec => Remedy::WantNode { node: member.name.clone() },
                true => Remedy::SettleVersions,
                false => Remedy::Wait,
            },
        })
    }

    /// Returns the block where nodes of several versions run: they would stream to each other.
    fn mixed_versions_blocker(&self) -> Option<StepBlocker> {
        let members = self.world.running_nodes().filter_map(|(_, _, member)| member);
        let members = members.filter(|member| !member.is_decommissioned());
        let mut versions =
            members.filter_map(|member| member.pilot.as_ref()?.spec.version.as_deref());
        let first = versions.next()?;
        versions
            .any(|version| version != first)
            .then(|| self.version_blocker(&self.world.desired.version))?
    }

    /// Returns the blockers that pilots report against `change`, except those that the user skips.
    /// For a decommission it reads the pilot of the node, for a join every pilot.
    fn reported_blockers(&self, change: &NodeChange) -> Vec<StepBlocker> {
        let World { desired, observed } = self.world;
        let is_relevant = |blocker: &&BlockerFacts| {
            blocker.blocks_change(change) && !desired.strategy.is_skipped(&blocker.predicate)
        };
        let mut blockers: Vec<StepBlocker> = Vec::new();
        for (name, pilot) in roll::ready_pilots(observed) {
            let is_other_node = *change == NodeChange::Leave && self.step.pilot() != Some(name);
            if is_other_node || !pilot.hearing.is_fresh() || !pilot.ready {
                continue;
            }
            for blocker in pilot.blockers.iter().filter(is_relevant) {
                if blockers.iter().any(|block| *block.predicate == *blocker.predicate) {
                    continue;
                }
                blockers.push(StepBlocker {
                    predicate: blocker.predicate.clone().into(),
                    step: self.step_label(),
                    message: format!("{name}: {}", blocker.message),
                    remedy: roll::skip_remedy(desired.database, &blocker.predicate),
                });
            }
        }
        blockers
    }

    fn unless_skipped(&self, predicate: &'static str, message: String) -> Option<Verdict> {
        let desired = self.world.desired;
        if desired.strategy.is_skipped(predicate) {
            return None;
        }
        let remedy = roll::skip_remedy(desired.database, predicate);
        blocked_verdict(vec![StepBlocker {
            predicate: predicate.into(),
            step: self.step_label(),
            message,
            remedy,
        }])
    }

    /// Returns the step and its node, as `step/pilot`.
    fn step_label(&self) -> String {
        let node = self.step.pilot().map(|pilot| format!("/{pilot}")).unwrap_or_default();
        format!("{}{node}", self.step.name())
    }

    /// Returns the pool whose size the step changes.
    fn resized_pool(&self) -> Option<&str> {
        match self.step {
            PlannedStep::Raise { pool, .. } => Some(pool),
            _ => None,
        }
    }

    fn pool_of(&self, member: &Member) -> Option<&'a str> {
        let mut members =
            self.world.running_nodes().filter_map(|(pool, _, other)| Some((pool, other?)));
        members.find(|(_, other)| other.name == member.name).map(|(pool, _)| pool.name.as_str())
    }
}
