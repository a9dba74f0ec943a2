//! The gates of each step: what must hold of the cluster before a node joins, stops or leaves.
//!
//! A wait that another candidate tells already ("a-1 is starting") holds a step without a word of
//! its own. What does not pass by itself is told as a block of the step that it holds.

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
pub(super) fn judge(world: World<'_>, candidate: Candidate) -> Verdict {
    match candidate.act {
        CandidateAct::Step(step) => hindrances(world, &step).unwrap_or(Verdict::Go(step)),
        CandidateAct::Await(awaited) => {
            Verdict::Held { waiting: Some(awaited), blocked: Vec::new() }
        }
        CandidateAct::Hold(blocked) => Verdict::Held { waiting: None, blocked },
    }
}

/// Returns what holds the step, or `None` where nothing does.
fn hindrances(world: World<'_>, step: &PlannedStep) -> Option<Verdict> {
    let subject = step.pilot().and_then(|name| world.member(name));
    let gate = StepGate { world, step, subject };
    let held = match step.need(subject.is_some_and(Member::serving)) {
        StepNeed::Nothing => None,
        StepNeed::Join => gate.join(),
        StepNeed::Stop => gate.stop(),
        StepNeed::Leave => gate.leave(),
    };
    held.or_else(|| blocked(behind::blocks(world, step).into_iter().collect()))
}

/// Is a step held only until a report comes, or until the cluster is calm? Then its node keeps its
/// turn.
pub(super) fn holds_for_a_moment(world: World<'_>, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Go(_) => false,
        Verdict::Held { waiting, blocked } => {
            waiting.is_some() || blocked.iter().any(|block| asks_for_calm(world, block))
        }
    }
}

/// Did the node `first` report after the node of the step, or with it? An older report may hold
/// `first` by what has passed since.
pub(super) fn first_spoke_last(world: World<'_>, first: &str, step: &PlannedStep) -> bool {
    let ago = |name: &str| Some(world.member(name)?.pilot.as_ref()?.hearing.ago);
    ago(first).zip(step.pilot().and_then(ago)).is_none_or(|(first, other)| first <= other)
}

/// Are the node `first` and the node of the step in different datacenters? Each has its own turns.
pub(super) fn are_apart(world: World<'_>, first: &str, step: &PlannedStep) -> bool {
    let other = step.pilot().and_then(|name| world.member(name));
    world
        .member(first)
        .zip(other)
        .is_some_and(|(first, other)| in_another_datacenter(world, first, other))
}

/// Are two nodes in different datacenters, as far as their specs say?
fn in_another_datacenter(world: World<'_>, one: &Member, other: &Member) -> bool {
    let datacenter = |member: &Member| {
        let pilot = member.pilot.as_ref()?;
        Some((world.desired.database.place)(&pilot.spec)?.datacenter)
    };
    datacenter(one).zip(datacenter(other)).is_some_and(|(one, other)| one != other)
}

fn asks_for_calm(world: World<'_>, block: &StepBlocker) -> bool {
    let rule = world.desired.database.names.predicate(&block.predicate);
    rule.is_some_and(|rule| rule.calm)
}

struct StepGate<'a> {
    world: World<'a>,
    step: &'a PlannedStep,
    subject: Option<&'a Member>,
}

/// A verdict that holds a step, and leaves the word to another candidate.
pub(super) const HELD: Verdict = Verdict::Held { waiting: None, blocked: Vec::new() };

fn blocked(blocked: Vec<StepBlocker>) -> Option<Verdict> {
    (!blocked.is_empty()).then_some(Verdict::Held { waiting: None, blocked })
}

impl<'a> StepGate<'a> {
    fn join(&self) -> Option<Verdict> {
        let world = self.world;
        if self.leaving().is_some_and(|member| !departure::refuses(member)) {
            return Some(HELD);
        }
        // Nodes join one at a time; and one that is away for a moment is waited for.
        let waits = |node: &AbsentNode<'_>| node.joins() || !node.lasts();
        if absence::down(world).any(|node| waits(&node)) {
            return Some(HELD);
        }
        let ends = |(pool, _): &(&ObservedPool, &Member)| self.pool() == Some(pool.name.as_str());
        if absence::ending(world).any(|found| ends(&found)) {
            return Some(HELD);
        }
        if let Some(block) = self.mixed(&world.desired.version) {
            return blocked(vec![block]);
        }
        if let Some(node) =
            absence::down(world).find(|node| node.member.is_some_and(Member::unheard))
        {
            let message = format!("the pilot of {} has not reported for a minute", node.name());
            return self.unless_skipped(PEERS_READY, message);
        }
        if let PlannedStep::Raise { pool, .. } = self.step
            && let Some(message) = room::lack(world, pool)
            && let Some(held) = self.unless_skipped(room::SPACE_HERE, message)
        {
            return Some(held);
        }
        blocked(self.reported(&NodeChange::Join))
    }

    fn stop(&self) -> Option<Verdict> {
        let member = self.subject?;
        // A node that does not serve is down already.
        let held = self.departures();
        if let Some(held) = held.or_else(|| member.serving().then(|| self.others()).flatten()) {
            return Some(held);
        }
        let World { desired, observed } = self.world;
        let mut blocks = roll::blocks(desired, observed, member);
        let in_pod = !matches!(
            self.step,
            PlannedStep::Configure { .. } | PlannedStep::RestartInPlace { .. }
        );
        blocks.extend(roll::lost_with_pod(desired, member).filter(|_| in_pod));
        if self.vacates() {
            blocks.retain(|block| !self.is_excused(block));
        }
        if self.brings_another_spec(member) {
            // Its pilot speaks of the spec that it has.
            blocks.retain(|block| !roll::is_of_spec(desired.database, &block.predicate));
        }
        if !member.serving() {
            blocks.retain(|block| !asks_for_calm(self.world, block));
        }
        for block in &mut blocks {
            block.step = self.named();
        }
        if !blocks.is_empty() {
            return blocked(blocks);
        }
        let skipped = desired.strategy.skips(PEERS_READY);
        let message = roll::unheard(observed, member).filter(|_| !skipped)?;
        let step = if self.vacates() { VACATE_POD } else { "RecreatePod" };
        let waiting = Some(AwaitedStep::new(step, &member.name, message));
        Some(Verdict::Held { waiting, blocked: Vec::new() })
    }

    fn leave(&self) -> Option<Verdict> {
        let member = self.subject?;
        if let Some(held) = self.departures().or_else(|| self.others()) {
            return Some(held);
        }
        if let Some(block) = self.mixed_versions() {
            return blocked(vec![block]);
        }
        let world = self.world;
        if let Some(block) = departure::last_of_its_kind(world, self.step, member) {
            return blocked(vec![block]);
        }
        let blocks = self.reported(&NodeChange::Leave);
        if !blocks.is_empty() {
            return blocked(blocks);
        }
        departure::owed(world, member)
    }

    /// Holds a stop or a departure while another node leaves.
    fn departures(&self) -> Option<Verdict> {
        let leaves = |member: &Member| self.is_other(&member.name) && !departure::refuses(member);
        let ends = absence::ending(self.world).next().is_some();
        (self.leaving().is_some_and(leaves) || ends).then_some(HELD)
    }

    fn is_other(&self, name: &str) -> bool {
        self.subject.is_none_or(|member| member.name != name)
    }

    /// Holds a stop or a departure while too many other nodes are down.
    fn others(&self) -> Option<Verdict> {
        // A node that was never one of the database cluster is not missed by it.
        let is_new = |node: &AbsentNode<'_>| {
            let has_no_place = |member: &Member| {
                member.never_ran() && member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some())
            };
            node.member.is_some_and(has_no_place)
        };
        let counts = |node: &AbsentNode<'_>| {
            self.is_other(&node.name()) && !self.left_before(node) && !is_new(node)
        };
        let away: Vec<_> = absence::down(self.world).filter(counts).collect();
        let apart = |node: &AbsentNode<'_>| {
            let other = self.subject.zip(node.member);
            other.is_some_and(|(one, other)| in_another_datacenter(self.world, one, other))
        };
        // To the others a database that starts is up, so their pilots count it with those that serve.
        let starts = |node: &AbsentNode<'_>| {
            !node.lasts() && node.member.is_some_and(Member::runs_without_serving)
        };
        if away.iter().any(|node| starts(node) && !apart(node)) {
            return Some(HELD);
        }
        // More than one node may be down only within one pool, or within different datacenters: copies
        // of the same rows are in other pools.
        let own = self.subject.and_then(|member| self.pool_of(member));
        let may_both = |node: &AbsentNode<'_>| own == Some(node.pool.name.as_str()) || apart(node);
        let most = if away.iter().all(may_both) && !self.vacates() {
            self.world.desired.strategy.max_unavailable(self.world.running().count())
        } else {
            1
        };
        if away.len() < most {
            return None;
        }
        let lasting = away.iter().find(|node| node.lasts());
        let block = lasting.map(|node| StepBlocker {
            predicate: predicate::MAX_UNAVAILABLE.name.into(),
            step: self.named(),
            message: format!("{} does not serve: {}", node.name(), node.sentence()),
            remedy: match node.remedy(self.world) {
                Remedy::Wait | Remedy::Correct => Remedy::AllowMoreDown,
                remedy => remedy,
            },
        });
        Some(Verdict::Held { waiting: None, blocked: block.into_iter().collect() })
    }

    /// Does the node get another spec than its Pilot has?
    fn brings_another_spec(&self, member: &Member) -> bool {
        let wanted = self.pool_of(member).and_then(|pool| self.world.desired.pool(pool));
        let wanted = wanted.map(DesiredPool::config_hash);
        let has = member.pilot.as_ref().and_then(|pilot| pilot.spec.config_hash.as_deref());
        !self.vacates() && wanted.is_some_and(|hash| has != Some(hash))
    }

    /// Is the step the answer to a request?
    fn vacates(&self) -> bool {
        matches!(self.step, PlannedStep::Vacate { .. })
    }

    /// Has the node left the machine that the node of the step is to leave, so that both may be away
    /// together?
    fn left_before(&self, node: &AbsentNode<'_>) -> bool {
        let machine = self.subject.and_then(|member| member.pod.as_ref()?.machine.as_deref());
        let left = node.member.and_then(vacate::stays);
        self.vacates() && machine.is_some() && left == machine
    }

    /// Is the rule about a new spec, which a node that leaves its machine does not get? Or does it
    /// ask for calm, while another node of the same machine is away as it was asked? Rules about the availability of data hold all the same.
    fn is_excused(&self, block: &StepBlocker) -> bool {
        let database = self.world.desired.database;
        if roll::is_of_spec(database, &block.predicate) {
            return true;
        }
        asks_for_calm(self.world, block)
            && absence::down(self.world).any(|node| self.left_before(&node))
    }

    /// Returns a node that is asked to leave and has not left.
    fn leaving(&self) -> Option<&'a Member> {
        let leaves = |member: &&Member| {
            member.intent() == PilotIntent::Decommissioned
                && !member.decommissioned()
                && !member.abandoned()
        };
        self.world.running().filter_map(|(_, _, member)| member).find(leaves)
    }

    /// Returns the block of a node that runs another version than the one that would join.
    fn mixed(&self, version: &str) -> Option<StepBlocker> {
        // A node that has left is none of the ring.
        let other = |member: &&Member| {
            let pilot = member.pilot.as_ref().filter(|pilot| !pilot.decommissioned);
            pilot.and_then(|pilot| pilot.spec.version.as_deref()).is_some_and(|v| v != version)
        };
        let mut members =
            self.world.running().filter_map(|(pool, _, member)| Some((pool, member?)));
        let (pool, member) = members.find(|(_, member)| other(member))?;
        let departs = self.world.desired.pool(&pool.name).is_none();
        let has = member.pilot.as_ref()?.spec.version.clone().unwrap_or_default();
        Some(StepBlocker {
            predicate: VERSION_SETTLED.into(),
            step: self.named(),
            message: format!("{} is of {has}, and {version} is wanted", member.name),
            remedy: match self.world.desired.strategy.on_delete {
                _ if departs => Remedy::WantNode { node: member.name.clone() },
                true => Remedy::SettleVersions,
                false => Remedy::Wait,
            },
        })
    }

    /// Returns the block where nodes of several versions run: they would stream to each other.
    fn mixed_versions(&self) -> Option<StepBlocker> {
        let members = self.world.running().filter_map(|(_, _, member)| member);
        let members = members.filter(|member| !member.decommissioned());
        let mut versions =
            members.filter_map(|member| member.pilot.as_ref()?.spec.version.as_deref());
        let first = versions.next()?;
        versions.any(|version| version != first).then(|| self.mixed(&self.world.desired.version))?
    }

    /// Returns what pilots report against `change`, without what a person skips: of a departure the
    /// pilot of the node, of a join every pilot.
    fn reported(&self, change: &NodeChange) -> Vec<StepBlocker> {
        let World { desired, observed } = self.world;
        let speaks = |blocker: &&BlockerFacts| {
            blocker.speaks_against(change) && !desired.strategy.skips(&blocker.predicate)
        };
        let mut blocks: Vec<StepBlocker> = Vec::new();
        for (name, pilot) in roll::spoken(observed) {
            let other = *change == NodeChange::Leave && self.step.pilot() != Some(name);
            if other || !pilot.hearing.is_fresh() || !pilot.ready {
                continue;
            }
            for blocker in pilot.blockers.iter().filter(speaks) {
                if blocks.iter().any(|block| *block.predicate == *blocker.predicate) {
                    continue;
                }
                blocks.push(StepBlocker {
                    predicate: blocker.predicate.clone().into(),
                    step: self.named(),
                    message: format!("{name}: {}", blocker.message),
                    remedy: roll::skip(desired.database, &blocker.predicate),
                });
            }
        }
        blocks
    }

    fn unless_skipped(&self, predicate: &'static str, message: String) -> Option<Verdict> {
        let desired = self.world.desired;
        if desired.strategy.skips(predicate) {
            return None;
        }
        let remedy = roll::skip(desired.database, predicate);
        blocked(vec![StepBlocker {
            predicate: predicate.into(),
            step: self.named(),
            message,
            remedy,
        }])
    }

    /// Returns the step and its node, as `step/pilot`.
    fn named(&self) -> String {
        let node = self.step.pilot().map(|pilot| format!("/{pilot}")).unwrap_or_default();
        format!("{}{node}", self.step.name())
    }

    /// Returns the pool whose size the step changes.
    fn pool(&self) -> Option<&str> {
        match self.step {
            PlannedStep::Raise { pool, .. } => Some(pool),
            _ => None,
        }
    }

    fn pool_of(&self, member: &Member) -> Option<&'a str> {
        let mut found = self.world.running().filter_map(|(pool, _, found)| Some((pool, found?)));
        found.find(|(_, found)| found.name == member.name).map(|(pool, _)| pool.name.as_str())
    }
}
