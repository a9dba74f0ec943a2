//! Brings running nodes to the wanted version and configuration, one at a time.
//!
//! A new configuration is given to a running node first, whose pilot validates it beside the old
//! process; only a valid one costs a restart, of the database alone where the pod may stay. Another
//! version or another pod needs another image, so there the node gets both at once.
//!
//! Owns which node is next and what speaks against it: nodes that cannot be elected master first,
//! the elected master very last, so that the cluster elects as seldom as can be.

use std::time::Duration;

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    behind::REPLICA_BEHIND, candidate::CandidateAct, secure,
};
use crate::{
    api::{
        names::annotation,
        predicate::{self, SkipPolicy},
        v1beta1::{NodeChange, PilotSpec},
    },
    controller::{
        desired_state::{DesiredCluster, DesiredPool, ManagedDatabase},
        observe::{Member, ObservedCluster, ObservedPool, PilotFacts},
    },
};

/// Does the pod, or the spec of its Pilot, differ from what is wanted?
pub(super) fn differs(member: &Member, wanted: &DesiredPool) -> bool {
    let pod = member.pod.as_ref().is_some_and(|pod| !wanted.makes(&pod.hash));
    let pilot = member
        .pilot
        .as_ref()
        .is_some_and(|pilot| pilot.spec.config_hash.as_deref() != Some(wanted.config_hash()));
    pod || pilot
}

/// Was the existing pod made from the wanted inputs? Then its Pilot can get the wanted spec without
/// a new pod.
pub(super) fn fits(member: &Member, wanted: &DesiredPool) -> bool {
    let pod = member.pod.as_ref().is_some_and(|pod| wanted.makes(&pod.hash));
    pod && member.pilot.as_ref().is_some_and(|pilot| pilot.spec.version == wanted.pilot.version)
}

/// Returns the wanted spec as a node gets it without a new pod: all of it where the database does
/// not run. A running database gets all but a request for a restart, which the controller carries
/// out with a new pod.
pub(crate) fn without_restart(
    database: &ManagedDatabase,
    pilot: &PilotFacts,
    wanted: &PilotSpec,
) -> PilotSpec {
    if pilot.failed || pilot.spec.restarted_at == wanted.restarted_at {
        return wanted.clone();
    }
    let mut spec = wanted.clone();
    spec.restarted_at.clone_from(&pilot.spec.restarted_at);
    spec.config_hash = Some((database.config_hash)(&spec));
    spec
}

/// Does the node still run another pod or configuration than is wanted?
pub(crate) fn outdated(member: &Member, wanted: &DesiredPool) -> bool {
    let running = member.pilot.as_ref().and_then(|pilot| pilot.running_hash.as_deref());
    differs(member, wanted) || running.is_some_and(|hash| hash != wanted.config_hash())
}

/// Would a new pod differ from the wanted inputs just as this one does? This pod was made of the
/// newest template, and its Pilot has the newest spec, so a policy or webhook changes pods when
/// they are created.
pub(super) fn in_vain(pool: &ObservedPool, member: &Member, wanted: &DesiredPool) -> bool {
    let told = member.pilot.as_ref().is_some_and(|pilot| {
        let current = |hash: Option<&str>| hash == Some(wanted.config_hash());
        let runs = pilot.running_hash.as_deref();
        current(pilot.spec.config_hash.as_deref()) && (runs.is_none() || current(runs))
    });
    let made = member.pod.as_ref().is_some_and(|pod| {
        // A policy may change templates as well.
        let newest = |hash: &String| hash.is_empty() || wanted.makes(hash);
        // The template is an older one again where other nodes have not had their turn.
        let older = pool.set.as_ref().is_some_and(|set| !newest(&set.template));
        let made = pod.template.as_ref().map_or(pod.hash.is_empty() && older, newest);
        !wanted.makes(&pod.hash) && made
    });
    told && made
}

/// Does a node that serves run another version than is wanted?
pub(super) fn changes_version(world: World<'_>) -> bool {
    let members = world.running().filter_map(|(_, _, member)| member);
    let mut versions = members.filter_map(|member| member.pilot.as_ref()?.spec.version.as_deref());
    versions.any(|version| version != world.desired.version)
}

/// Has a node the wanted version already, while another has not?
fn mixes_versions(world: World<'_>) -> bool {
    let members = world.running().filter_map(|(_, _, member)| member);
    let mut versions = members.filter_map(|member| member.pilot.as_ref()?.spec.version.as_deref());
    changes_version(world) && versions.any(|version| version == world.desired.version)
}

/// The nodes that a roll has to do with.
#[derive(Default)]
struct RollState<'a> {
    /// Serving nodes that run another pod or configuration than is wanted, in the order of their
    /// restarts.
    outdated: Vec<(&'a ObservedPool, &'a Member)>,
    /// The first node that another restart would not change.
    vain: Option<&'a Member>,
    /// Nodes of the canary that are current.
    current: u32,
}

fn takes_part(desired: &DesiredCluster, pool: &str) -> bool {
    match &desired.strategy.canary {
        Some((pools, _)) => pools.is_empty() || pools.contains(pool),
        None => true,
    }
}

fn state(world: World<'_>) -> RollState<'_> {
    let mut state = RollState::default();
    // A node that is to leave is not restarted before, unless the versions are mixed: then it could
    // not leave.
    let mixed = mixes_versions(world);
    for (pool, wanted) in world.wanted() {
        let stays = |ordinal: u32| mixed || ordinal < wanted.replicas;
        let members = pool.running().filter(|(ordinal, _)| stays(*ordinal));
        let members = members.filter_map(|(_, member)| member).collect::<Vec<_>>();
        // The last ordinal first: ordinal 0 is every pool's seed.
        for member in members.into_iter().rev() {
            if in_vain(pool, member, wanted) {
                state.vain.get_or_insert(member);
            } else if !outdated(member, wanted) {
                state.current += u32::from(takes_part(world.desired, &pool.name));
            } else if member.serving() {
                state.outdated.push((pool, member));
            }
        }
    }
    // The sort is stable: nodes that compare equal stay in the order above.
    state.outdated.sort_by_key(|(_, member)| rank(member));
    state
}

/// Returns the place of a node among those that restart: the elected master comes last, other nodes
/// that may be elected before it.
fn rank(member: &Member) -> (bool, bool) {
    (member.pilot.as_ref().is_some_and(|pilot| pilot.elected), member.eligible())
}

/// Has the canary as many nodes as it may have, or none of this pool?
pub(super) fn canary_is_full(world: World<'_>, pool: &str) -> bool {
    let Some((_, replicas)) = &world.desired.strategy.canary else { return false };
    !takes_part(world.desired, pool) || state(world).current >= *replicas
}

/// Restarts the next node, or says what holds the roll up. Where a rule holds the first node, the next
/// ones are tried, since the first may wait for them; not where it waits for a report or for
/// calm, unless they are in another datacenter. Another version comes to nodes that may be elected only
/// after the rest.
pub(super) fn roll(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let desired = world.desired;
    let state = state(world);
    // What left the spec goes first: a node of another version could neither leave nor be upgraded.
    let departs = |pool: &ObservedPool| pool.replicas() > 0 && desired.pool(&pool.name).is_none();
    let waits = changes_version(world)
        && !mixes_versions(world)
        && world.observed.pools.iter().any(departs);
    if desired.strategy.on_delete || waits {
        return Vec::new();
    }
    if state.outdated.is_empty() {
        let vain = state.vain.map(restart_helps);
        let hold = vain.map(|block| Candidate::hold(OperationType::Configure, [block]));
        return hold.into_iter().collect();
    }
    let operation = if changes_version(world) {
        OperationType::Upgrade
    } else if secure::changes_rungs(world) {
        OperationType::Secure
    } else {
        OperationType::Configure
    };
    let mut outdated = state.outdated;
    if let Some((_, replicas)) = &desired.strategy.canary {
        outdated.retain(|(pool, _)| takes_part(desired, &pool.name));
        if outdated.is_empty() || state.current >= *replicas {
            return vec![Candidate::hold(operation, [canary_held(state.current)])];
        }
    }
    let first = outdated.first().map(|(_, member)| rank(member));
    let upgrades = operation == OperationType::Upgrade;
    outdated.retain(|(_, member)| !upgrades || Some(rank(member)) == first);
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut first = None;
    for (pool, member) in outdated {
        let Some(next) = restart(world, operation, pool, member) else { continue };
        // A node whose pilot still judges is waited for.
        let waits = matches!(next.act, CandidateAct::Await(_));
        candidates.push(match first {
            None => next,
            Some(first) => next.in_place_of(first),
        });
        first.get_or_insert(member);
        if waits {
            break;
        }
    }
    candidates
}

/// Returns the step that brings the wanted spec to the node, or the wait for its pilot's judgement.
pub(super) fn restart(
    world: World<'_>,
    operation: OperationType,
    pool: &ObservedPool,
    member: &Member,
) -> Option<Candidate> {
    let wanted = world.desired.pool(&pool.name)?;
    let name = member.name.clone();
    let restart = if restarts_in_place(world, member, wanted) {
        PlannedStep::RestartInPlace { pilot: name.clone() }
    } else {
        let pod = member.pod.as_ref()?.uid.clone();
        PlannedStep::Restart { pilot: name.clone(), pod }
    };
    if !fits(member, wanted) {
        return Some(Candidate::step(operation, restart));
    }
    let pilot = member.pilot.as_ref()?;
    let told = without_restart(world.desired.database, pilot, &wanted.pilot);
    if pilot.spec.config_hash != told.config_hash {
        return Some(Candidate::step(operation, PlannedStep::Configure { pilot: name }));
    }
    let (message, remedy) = match pilot.validated.clone() {
        Some(Ok(())) => return Some(Candidate::step(operation, restart)),
        Some(Err(why)) => (format!("{name} rejects the configuration: {why}"), Remedy::Correct),
        None => (format!("{name} judges the new configuration"), Remedy::Wait),
    };
    let awaited = AwaitedStep { remedy, ..AwaitedStep::new(JUDGED, &name, message) };
    Some(Candidate::wait(operation, awaited))
}

/// Does a restart of the database alone do, in the pod that there is? A node that was told to
/// restart for this configuration, and is outdated still, needs another pod.
fn restarts_in_place(world: World<'_>, member: &Member, wanted: &DesiredPool) -> bool {
    let able = |pilot: &PilotFacts| {
        pilot.started_for.is_some()
            && pilot.spec.restart_for.as_deref() != Some(wanted.config_hash())
    };
    let wished = world.desired.strategy.restarts_in_place || member.dies_with_pod();
    wished && fits(member, wanted) && member.pilot.as_ref().is_some_and(able)
}

/// The step that waits for a pilot's judgement of a configuration.
pub(super) const JUDGED: &str = "RestartPilot";

const VOLUME_EXPANDS: &str = predicate::VOLUME_EXPANDS.name;
const CANARY_HELD: &str = predicate::CANARY_HELD.name;
const RESTART_HELPS: &str = predicate::RESTART_HELPS.name;
/// Predicate: nodes join and leave only a ring of one version.
pub(super) const VERSION_SETTLED: &str = predicate::VERSION_SETTLED.name;

/// Predicate: a node still holds rows of ranges that it gave away. They would be back with the
/// ranges.
pub(super) const CLEANUP_PENDING: &str = "CleanupPending";

/// Predicates that wait for a person, or hold nothing but the next round of a change of security. They hold
/// no drain of a machine.
pub(super) const FOR_PEOPLE: [&str; 11] = [
    CANARY_HELD,
    CLEANUP_PENDING,
    REPLICA_BEHIND,
    RESTART_HELPS,
    VERSION_SETTLED,
    VOLUME_EXPANDS,
    predicate::KEEPS_SERVING.name,
    predicate::CLIENTS_SEND_LOGINS.name,
    predicate::CLIENTS_ENCRYPTED.name,
    predicate::CLIENTS_PLAIN.name,
    predicate::ROLES_REPLICATED.name,
];

fn restart_helps(member: &Member) -> StepBlocker {
    let name = &member.name;
    StepBlocker {
        predicate: RESTART_HELPS.into(),
        step: format!("RecreatePod/{name}"),
        message: format!(
            "{name} was made of the newest template and does not bear its annotation {}: another \
             pod would not either",
            annotation::CONFIG_HASH
        ),
        remedy: Remedy::MendPolicy,
    }
}

fn canary_held(current: u32) -> StepBlocker {
    StepBlocker {
        predicate: CANARY_HELD.into(),
        step: "RecreatePod".to_owned(),
        message: format!("held after {current} nodes on the new revision"),
        remedy: Remedy::EndCanary,
    }
}

/// Predicate: the report of every pilot must be fresh before a node is stopped.
pub(super) const PEERS_READY: &str = predicate::PEERS_READY.name;

/// Predicate that pilots report where no other node has a copy of the data, whatever the volume is,
/// if their database knows of copies.
pub(super) const OUTLIVES: &str = predicate::DATA_OUTLIVES_POD.name;

/// Returns why the node's pod may not be deleted: data without a known copy would be deleted with
/// it.
pub(super) fn lost_with_pod(desired: &DesiredCluster, member: &Member) -> Option<StepBlocker> {
    if !member.dies_with_pod() {
        return None;
    }
    let fresh = |pilot: &&PilotFacts| member.serving() && !pilot.hearing.is_over();
    let speaks = member.pilot.as_ref().filter(fresh);
    let blockers = member.pilot.iter().flat_map(|pilot| &pilot.blockers);
    let why = match blockers.into_iter().find(|blocker| blocker.predicate == OUTLIVES) {
        Some(blocker) => blocker.message.clone(),
        // A pilot that serves would report data without a copy.
        None if desired.database.knows_copies && speaks.is_some() => return None,
        None => "no pilot says that other nodes have copies of all of it".to_owned(),
    };
    (!desired.strategy.skips_by_name(OUTLIVES)).then(|| StepBlocker {
        predicate: OUTLIVES.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!("the data of {} are in its pod and go with it: {why}", member.name),
        remedy: Remedy::MoveData { predicate: OUTLIVES },
    })
}

/// Returns what speaks against stopping `member` now: that any node's pilot is silent, or a blocker
/// that the node's own pilot reports.
pub(super) fn blocks(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    member: &Member,
) -> Vec<StepBlocker> {
    let block = |predicate: &str, message: String| StepBlocker {
        remedy: skip(desired.database, predicate),
        predicate: predicate.to_owned().into(),
        step: format!("RecreatePod/{}", member.name),
        message,
    };
    let silent = spoken(observed).find(|(_, pilot)| pilot.hearing.is_over());
    if let Some((name, _)) = silent.filter(|_| !desired.strategy.skips(PEERS_READY)) {
        let message = format!("the pilot of {name} has not reported for a minute");
        return vec![block(PEERS_READY, message)];
    }
    let reported = member.pilot.iter().flat_map(|pilot| &pilot.blockers);
    reported
        .filter(|found| found.speaks_against(&NodeChange::Stop) && found.predicate != OUTLIVES)
        .filter(|found| !is_skipped(desired, &found.predicate))
        .map(|found| block(&found.predicate, found.message.clone()))
        .collect()
}

/// Does a person override what a pilot reports? `*` overrides a rule that this release does not
/// know.
fn is_skipped(desired: &DesiredCluster, predicate: &str) -> bool {
    match desired.database.names.predicate(predicate) {
        Some(rule) => {
            rule.skip.is_skipped(predicate, |name| desired.strategy.skip_predicates.contains(name))
        }
        None => desired.strategy.skips(predicate),
    }
}

/// Does the rule hold only steps that bring another spec to a node?
pub(super) fn is_of_spec(database: &ManagedDatabase, predicate: &str) -> bool {
    database.names.predicate(predicate).is_some_and(|rule| rule.of_spec)
}

/// Returns the remedy of skipping a predicate. A pilot newer than our API server may name a rule that
/// cannot be skipped by its name.
pub(super) fn skip(database: &ManagedDatabase, predicate: &str) -> Remedy {
    let named = |name: &str| Remedy::Skip(name.to_owned());
    let rule = database.names.predicate(predicate);
    if rule.is_some_and(|rule| rule.needs_person) {
        return Remedy::RevertSpec;
    }
    if let Some(what) = rule.and_then(|rule| rule.way_out) {
        return Remedy::DoOrSkip { what, predicate: predicate.to_owned() };
    }
    match rule.map(|found| found.skip) {
        Some(SkipPolicy::Yes | SkipPolicy::ByName) => named(predicate),
        Some(SkipPolicy::Never) => Remedy::Wait,
        Some(SkipPolicy::ByStar) | None => named("*"),
    }
}

/// Returns the names of the nodes that may serve, with the facts from their Pilots. A node whose pod
/// is not ready counts as down, and is silent for that.
pub(super) fn spoken(observed: &ObservedCluster) -> impl Iterator<Item = (&str, &PilotFacts)> {
    let members = observed.pools.iter().flat_map(ObservedPool::running);
    let ready = |member: &&Member| member.pod.as_ref().is_some_and(|pod| pod.ready);
    let members = members.filter_map(|(_, member)| member).filter(ready);
    members.filter_map(|member| Some((member.name.as_str(), member.pilot.as_ref()?)))
}

/// Longest time after which what a pilot reports was looked up after a moment: the copies of
/// ranges are looked up each 20 s, everything else each 5 s, and an answer takes 10 s at most.
const OBSERVATION_ROUND: Duration = Duration::from_secs(30);

/// Says which report is waited for before `member` is stopped. Its own pilot, the one of the
/// current pod, must have reported after every other node came back, and a round of observation after a
/// node that is away was seen to go; and this controller must have heard each pilot at least once.
pub(super) fn unheard(observed: &ObservedCluster, member: &Member) -> Option<String> {
    let pilot = member.pilot.as_ref()?;
    let name = &member.name;
    if pilot.instance.as_deref() != member.pod.as_ref().map(|pod| pod.uid.as_str()) {
        return Some(format!("waits for a report of {name} from its new pod"));
    }
    if let Some((other, _)) = spoken(observed).find(|(_, pilot)| !pilot.hearing.heard) {
        return Some(format!("waits for a report of {other}"));
    }
    let judged_before = pilot.hearing.ago.saturating_add(OBSERVATION_ROUND);
    let gone = observed.pools.iter().flat_map(ObservedPool::running);
    let gone = gone.filter_map(|(_, other)| other).find(|other| {
        let gone = other.pilot.as_ref().map_or(Duration::ZERO, |pilot| pilot.hearing.gone);
        let counts = other.name != *name && !other.serving() && !other.decommissioned();
        counts && gone < judged_before
    });
    if let Some(other) = gone {
        let other = &other.name;
        return Some(format!("waits until {name} has judged again, since {other} went"));
    }
    let later = spoken(observed).find(|(_, other)| other.hearing.returned <= pilot.hearing.ago);
    later.map(|(other, _)| format!("waits until {name} has judged again, since {other} came back"))
}
