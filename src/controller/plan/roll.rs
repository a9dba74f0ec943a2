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
pub(super) fn needs_change(member: &Member, desired_pool: &DesiredPool) -> bool {
    let is_pod_outdated =
        member.pod.as_ref().is_some_and(|pod| !desired_pool.matches_pod_hash(&pod.hash));
    let is_pilot_outdated = member
        .pilot
        .as_ref()
        .is_some_and(|pilot| pilot.spec.config_hash.as_deref() != Some(desired_pool.config_hash()));
    is_pod_outdated || is_pilot_outdated
}

/// Was the existing pod made from the wanted inputs? Then its Pilot can get the wanted spec without
/// a new pod.
pub(super) fn has_current_pod(member: &Member, desired_pool: &DesiredPool) -> bool {
    let is_current =
        member.pod.as_ref().is_some_and(|pod| desired_pool.matches_pod_hash(&pod.hash));
    is_current
        && member
            .pilot
            .as_ref()
            .is_some_and(|pilot| pilot.spec.version == desired_pool.pilot.version)
}

/// Returns the wanted spec as a node gets it without a new pod: all of it where the database does
/// not run. A running database gets all but a request for a restart, which the controller carries
/// out with a new pod.
pub(crate) fn without_restart(
    database: &ManagedDatabase,
    pilot: &PilotFacts,
    desired_spec: &PilotSpec,
) -> PilotSpec {
    if pilot.failed || pilot.spec.restarted_at == desired_spec.restarted_at {
        return desired_spec.clone();
    }
    let mut spec = desired_spec.clone();
    spec.restarted_at.clone_from(&pilot.spec.restarted_at);
    spec.config_hash = Some((database.config_hash)(&spec));
    spec
}

/// Does the node still run another pod or configuration than is wanted?
pub(crate) fn is_outdated(member: &Member, desired_pool: &DesiredPool) -> bool {
    let running_hash = member.pilot.as_ref().and_then(|pilot| pilot.running_hash.as_deref());
    needs_change(member, desired_pool)
        || running_hash.is_some_and(|hash| hash != desired_pool.config_hash())
}

/// Would a new pod differ from the wanted inputs just as this one does? This pod was made of the
/// newest template, and its Pilot has the newest spec, so a policy or webhook changes pods when
/// they are created.
pub(super) fn is_recreate_futile(
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> bool {
    let is_spec_current = member.pilot.as_ref().is_some_and(|pilot| {
        let is_current = |hash: Option<&str>| hash == Some(desired_pool.config_hash());
        let running_hash = pilot.running_hash.as_deref();
        is_current(pilot.spec.config_hash.as_deref())
            && (running_hash.is_none() || is_current(running_hash))
    });
    let is_pod_changed = member.pod.as_ref().is_some_and(|pod| {
        // A policy may change templates as well.
        let is_newest = |hash: &String| hash.is_empty() || desired_pool.matches_pod_hash(hash);
        // The template is an older one again where other nodes have not had their turn.
        let is_template_older = pool.set.as_ref().is_some_and(|set| !is_newest(&set.template));
        let is_from_newest =
            pod.template.as_ref().map_or(pod.hash.is_empty() && is_template_older, is_newest);
        !desired_pool.matches_pod_hash(&pod.hash) && is_from_newest
    });
    is_spec_current && is_pod_changed
}

/// Does a node that serves run another version than is wanted?
pub(super) fn changes_version(world: World<'_>) -> bool {
    let members = world.running_nodes().filter_map(|(_, _, member)| member);
    let mut versions = members.filter_map(|member| member.pilot.as_ref()?.spec.version.as_deref());
    versions.any(|version| version != world.desired.version)
}

/// Has a node the wanted version already, while another has not?
fn mixes_versions(world: World<'_>) -> bool {
    let members = world.running_nodes().filter_map(|(_, _, member)| member);
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

fn roll_state(world: World<'_>) -> RollState<'_> {
    let mut state = RollState::default();
    // A node that is to leave is not restarted before, unless the versions are mixed: then it could
    // not leave.
    let is_mixed = mixes_versions(world);
    for (pool, desired_pool) in world.desired_pools() {
        let is_staying = |ordinal: u32| is_mixed || ordinal < desired_pool.replicas;
        let members = pool.nodes().filter(|(ordinal, _)| is_staying(*ordinal));
        let members = members.filter_map(|(_, member)| member).collect::<Vec<_>>();
        // The last ordinal first: ordinal 0 is every pool's seed.
        for member in members.into_iter().rev() {
            if is_recreate_futile(pool, member, desired_pool) {
                state.vain.get_or_insert(member);
            } else if !is_outdated(member, desired_pool) {
                state.current += u32::from(takes_part(world.desired, &pool.name));
            } else if member.is_serving() {
                state.outdated.push((pool, member));
            }
        }
    }
    // The sort is stable: nodes that compare equal stay in the order above.
    state.outdated.sort_by_key(|(_, member)| restart_rank(member));
    state
}

/// Returns the place of a node among those that restart: the elected master comes last, other nodes
/// that may be elected before it.
fn restart_rank(member: &Member) -> (bool, bool) {
    (member.pilot.as_ref().is_some_and(|pilot| pilot.elected), member.is_eligible())
}

/// Has the canary as many nodes as it may have, or none of this pool?
pub(super) fn canary_is_full(world: World<'_>, pool: &str) -> bool {
    let Some((_, replicas)) = &world.desired.strategy.canary else { return false };
    !takes_part(world.desired, pool) || roll_state(world).current >= *replicas
}

/// Restarts the next node, or says what holds the roll up. Where a rule holds the first node, the next
/// ones are tried, since the first may wait for them; not where it waits for a report or for
/// calm, unless they are in another datacenter. Another version comes to nodes that may be elected only
/// after the rest.
pub(super) fn restart_outdated_nodes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let desired = world.desired;
    let state = roll_state(world);
    // What left the spec goes first: a node of another version could neither leave nor be upgraded.
    let is_leaving_spec =
        |pool: &ObservedPool| pool.replicas() > 0 && desired.pool(&pool.name).is_none();
    let is_waiting = changes_version(world)
        && !mixes_versions(world)
        && world.observed.pools.iter().any(is_leaving_spec);
    if desired.strategy.on_delete || is_waiting {
        return Vec::new();
    }
    if state.outdated.is_empty() {
        let blocker = state.vain.map(futile_restart_blocker);
        let candidate =
            blocker.map(|block| Candidate::from_blockers(OperationType::Configure, [block]));
        return candidate.into_iter().collect();
    }
    let operation = if changes_version(world) {
        OperationType::Upgrade
    } else if secure::changes_modes(world) {
        OperationType::Secure
    } else {
        OperationType::Configure
    };
    let mut outdated_nodes = state.outdated;
    if let Some((_, replicas)) = &desired.strategy.canary {
        outdated_nodes.retain(|(pool, _)| takes_part(desired, &pool.name));
        if outdated_nodes.is_empty() || state.current >= *replicas {
            return vec![Candidate::from_blockers(operation, [canary_blocker(state.current)])];
        }
    }
    let first_rank = outdated_nodes.first().map(|(_, member)| restart_rank(member));
    let is_upgrade = operation == OperationType::Upgrade;
    outdated_nodes.retain(|(_, member)| !is_upgrade || Some(restart_rank(member)) == first_rank);
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut first_member = None;
    for (pool, member) in outdated_nodes {
        let Some(candidate) = restart_node(world, operation, pool, member) else { continue };
        // A node whose pilot still judges is waited for.
        let is_waiting = matches!(candidate.act, CandidateAct::Await(_));
        candidates.push(match first_member {
            None => candidate,
            Some(first_member) => candidate.in_place_of(first_member),
        });
        first_member.get_or_insert(member);
        if is_waiting {
            break;
        }
    }
    candidates
}

/// Returns the step that brings the wanted spec to the node, or the wait for its pilot's judgement.
pub(super) fn restart_node(
    world: World<'_>,
    operation: OperationType,
    pool: &ObservedPool,
    member: &Member,
) -> Option<Candidate> {
    let desired_pool = world.desired.pool(&pool.name)?;
    let name = member.name.clone();
    let restart_step = if restarts_in_place(world, member, desired_pool) {
        PlannedStep::RestartInPlace { pilot: name.clone() }
    } else {
        let pod = member.pod.as_ref()?.uid.clone();
        PlannedStep::Restart { pilot: name.clone(), pod }
    };
    if !has_current_pod(member, desired_pool) {
        return Some(Candidate::from_step(operation, restart_step));
    }
    let pilot = member.pilot.as_ref()?;
    let new_spec = without_restart(world.desired.database, pilot, &desired_pool.pilot);
    if pilot.spec.config_hash != new_spec.config_hash {
        return Some(Candidate::from_step(operation, PlannedStep::Configure { pilot: name }));
    }
    let (message, remedy) = match pilot.validated.clone() {
        Some(Ok(())) => return Some(Candidate::from_step(operation, restart_step)),
        Some(Err(reason)) => {
            (format!("{name} rejects the configuration: {reason}"), Remedy::Correct)
        }
        None => (format!("{name} judges the new configuration"), Remedy::Wait),
    };
    let awaited_step = AwaitedStep { remedy, ..AwaitedStep::new(JUDGED, &name, message) };
    Some(Candidate::from_wait(operation, awaited_step))
}

/// Does a restart of the database alone do, in the pod that there is? A node that was told to
/// restart for this configuration, and is outdated still, needs another pod.
fn restarts_in_place(world: World<'_>, member: &Member, desired_pool: &DesiredPool) -> bool {
    let can_restart = |pilot: &PilotFacts| {
        pilot.started_for.is_some()
            && pilot.spec.restart_for.as_deref() != Some(desired_pool.config_hash())
    };
    let is_preferred = world.desired.strategy.restarts_in_place || member.dies_with_pod();
    is_preferred
        && has_current_pod(member, desired_pool)
        && member.pilot.as_ref().is_some_and(can_restart)
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

fn futile_restart_blocker(member: &Member) -> StepBlocker {
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

fn canary_blocker(current_count: u32) -> StepBlocker {
    StepBlocker {
        predicate: CANARY_HELD.into(),
        step: "RecreatePod".to_owned(),
        message: format!("held after {current_count} nodes on the new revision"),
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
pub(super) fn pod_data_blocker(desired: &DesiredCluster, member: &Member) -> Option<StepBlocker> {
    if !member.dies_with_pod() {
        return None;
    }
    let is_fresh = |pilot: &&PilotFacts| member.is_serving() && !pilot.hearing.is_over();
    let reporting_pilot = member.pilot.as_ref().filter(is_fresh);
    let blockers = member.pilot.iter().flat_map(|pilot| &pilot.blockers);
    let reason = match blockers.into_iter().find(|blocker| blocker.predicate == OUTLIVES) {
        Some(blocker) => blocker.message.clone(),
        // A pilot that serves would report data without a copy.
        None if desired.database.knows_copies && reporting_pilot.is_some() => return None,
        None => "no pilot says that other nodes have copies of all of it".to_owned(),
    };
    (!desired.strategy.is_skipped_by_name(OUTLIVES)).then(|| StepBlocker {
        predicate: OUTLIVES.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!("the data of {} are in its pod and go with it: {reason}", member.name),
        remedy: Remedy::MoveData { predicate: OUTLIVES },
    })
}

/// Returns what speaks against stopping `member` now: that any node's pilot is silent, or a blocker
/// that the node's own pilot reports.
pub(super) fn stop_blockers(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    member: &Member,
) -> Vec<StepBlocker> {
    let build_blocker = |predicate: &str, message: String| StepBlocker {
        remedy: skip_remedy(desired.database, predicate),
        predicate: predicate.to_owned().into(),
        step: format!("RecreatePod/{}", member.name),
        message,
    };
    let silent_pilot = ready_pilots(observed).find(|(_, pilot)| pilot.hearing.is_over());
    if let Some((name, _)) = silent_pilot.filter(|_| !desired.strategy.is_skipped(PEERS_READY)) {
        let message = format!("the pilot of {name} has not reported for a minute");
        return vec![build_blocker(PEERS_READY, message)];
    }
    let reported_blockers = member.pilot.iter().flat_map(|pilot| &pilot.blockers);
    reported_blockers
        .filter(|blocker| blocker.blocks_change(&NodeChange::Stop) && blocker.predicate != OUTLIVES)
        .filter(|blocker| !is_skipped(desired, &blocker.predicate))
        .map(|blocker| build_blocker(&blocker.predicate, blocker.message.clone()))
        .collect()
}

/// Does a person override what a pilot reports? `*` overrides a rule that this release does not
/// know.
fn is_skipped(desired: &DesiredCluster, predicate: &str) -> bool {
    match desired.database.names.find_predicate(predicate) {
        Some(rule) => {
            rule.skip.is_skipped(predicate, |name| desired.strategy.skip_predicates.contains(name))
        }
        None => desired.strategy.is_skipped(predicate),
    }
}

/// Does the rule hold only steps that bring another spec to a node?
pub(super) fn is_of_spec(database: &ManagedDatabase, predicate: &str) -> bool {
    database.names.find_predicate(predicate).is_some_and(|rule| rule.of_spec)
}

/// Returns the remedy of skipping a predicate. A pilot newer than our API server may name a rule that
/// cannot be skipped by its name.
pub(super) fn skip_remedy(database: &ManagedDatabase, predicate: &str) -> Remedy {
    let skip_by_name = |name: &str| Remedy::Skip(name.to_owned());
    let rule = database.names.find_predicate(predicate);
    if rule.is_some_and(|rule| rule.needs_person) {
        return Remedy::RevertSpec;
    }
    if let Some(action) = rule.and_then(|rule| rule.way_out) {
        return Remedy::DoOrSkip { what: action, predicate: predicate.to_owned() };
    }
    match rule.map(|rule| rule.skip) {
        Some(SkipPolicy::Yes | SkipPolicy::ByName) => skip_by_name(predicate),
        Some(SkipPolicy::Never) => Remedy::Wait,
        Some(SkipPolicy::ByStar) | None => skip_by_name("*"),
    }
}

/// Returns the names of the nodes that may serve, with the facts from their Pilots. A node whose pod
/// is not ready counts as down, and is silent for that.
pub(super) fn ready_pilots(
    observed: &ObservedCluster,
) -> impl Iterator<Item = (&str, &PilotFacts)> {
    let members = observed.pools.iter().flat_map(ObservedPool::nodes);
    let is_ready = |member: &&Member| member.pod.as_ref().is_some_and(|pod| pod.ready);
    let members = members.filter_map(|(_, member)| member).filter(is_ready);
    members.filter_map(|member| Some((member.name.as_str(), member.pilot.as_ref()?)))
}

/// Longest time after which what a pilot reports was looked up after a moment: the copies of
/// ranges are looked up each 20 s, everything else each 5 s, and an answer takes 10 s at most.
const OBSERVATION_ROUND: Duration = Duration::from_secs(30);

/// Says which report is waited for before `member` is stopped. Its own pilot, the one of the
/// current pod, must have reported after every other node came back, and a round of observation after a
/// node that is away was seen to go; and this controller must have heard each pilot at least once.
pub(super) fn missing_report(observed: &ObservedCluster, member: &Member) -> Option<String> {
    let pilot = member.pilot.as_ref()?;
    let name = &member.name;
    if pilot.instance.as_deref() != member.pod.as_ref().map(|pod| pod.uid.as_str()) {
        return Some(format!("waits for a report of {name} from its new pod"));
    }
    if let Some((other, _)) = ready_pilots(observed).find(|(_, pilot)| !pilot.hearing.heard) {
        return Some(format!("waits for a report of {other}"));
    }
    let judged_before = pilot.hearing.ago.saturating_add(OBSERVATION_ROUND);
    let running_nodes = observed.pools.iter().flat_map(ObservedPool::nodes);
    let gone_node = running_nodes.filter_map(|(_, other)| other).find(|other| {
        let gone_for = other.pilot.as_ref().map_or(Duration::ZERO, |pilot| pilot.hearing.gone);
        let is_counted = other.name != *name && !other.is_serving() && !other.is_decommissioned();
        is_counted && gone_for < judged_before
    });
    if let Some(other) = gone_node {
        let other = &other.name;
        return Some(format!("waits until {name} has judged again, since {other} went"));
    }
    let later_node =
        ready_pilots(observed).find(|(_, other)| other.hearing.returned <= pilot.hearing.ago);
    later_node
        .map(|(other, _)| format!("waits until {name} has judged again, since {other} came back"))
}
