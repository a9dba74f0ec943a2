//! Brings running nodes to the wanted version and configuration, one at a time.
//!
//! A new configuration is given to a running node first, whose pilot validates it beside the old
//! process; only a valid one costs a restart. Another version or another pod needs another image,
//! so there the node gets both at once.
//!
//! Owns which node is next and what speaks against it: nodes that cannot be elected master first,
//! the elected master very last, so that the cluster elects as seldom as can be. Called only
//! while every node serves.

use super::{OperationType, Plan, PlannedStep, StepBlocker, wanted};
use crate::{
    api::{names::annotation, v1beta1::PilotSpec},
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
pub(super) fn in_vain(member: &Member, wanted: &DesiredPool) -> bool {
    let told = member.pilot.as_ref().is_some_and(|pilot| {
        let current = |hash: Option<&str>| hash == Some(wanted.config_hash());
        let runs = pilot.running_hash.as_deref();
        current(pilot.spec.config_hash.as_deref()) && (runs.is_none() || current(runs))
    });
    let made = member.pod.as_ref().is_some_and(|pod| {
        // A policy may change templates as well.
        let newest = |hash: &String| hash.is_empty() || wanted.makes(hash);
        !wanted.makes(&pod.hash) && pod.template.as_ref().is_some_and(newest)
    });
    told && made
}

/// Returns the next node to restart, or what holds the roll up, or `None` when all nodes are
/// current.
pub(super) fn roll(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<Plan> {
    let (mut outdated_members, mut vain) = (Vec::new(), None);
    let mut current = 0;
    let takes_part = |pool: &str| match &desired.strategy.canary {
        Some((pools, _)) => pools.is_empty() || pools.contains(pool),
        None => true,
    };
    for (pool, wanted) in wanted(desired, observed) {
        let members = pool.running().filter_map(|(_, member)| member).collect::<Vec<_>>();
        // The last ordinal first: ordinal 0 is every pool's seed.
        for member in members.into_iter().rev() {
            if in_vain(member, wanted) {
                vain.get_or_insert(member);
            } else if outdated(member, wanted) {
                outdated_members.push((pool, member));
            } else {
                current += u32::from(takes_part(&pool.name));
            }
        }
    }
    // The sort is stable: nodes that compare equal stay in the order above.
    outdated_members.sort_by_key(|(_, member)| {
        (member.pilot.as_ref().is_some_and(|pilot| pilot.elected), member.eligible())
    });
    if desired.strategy.on_delete {
        return None;
    }
    if outdated_members.is_empty() {
        return Plan::blocked(OperationType::Configure, vec![restart_helps(vain?)]);
    }
    let upgrade = outdated_members.iter().any(|(_, member)| {
        let pilot = member.pilot.as_ref();
        let version = pilot.and_then(|pilot| pilot.spec.version.as_deref());
        version.is_some_and(|version| version != desired.version)
    });
    let operation = if upgrade { OperationType::Upgrade } else { OperationType::Configure };
    let next = match &desired.strategy.canary {
        Some((_, replicas)) => {
            let next = outdated_members.iter().find(|(pool, _)| takes_part(&pool.name));
            match next {
                Some(next) if current < *replicas => next,
                _ => return Plan::blocked(operation, vec![canary_held(current)]),
            }
        }
        None => outdated_members.first()?,
    };
    let (pool, member) = next;
    let wanted = desired.pool(&pool.name)?;
    // Only the database must restart, and the pod holds its data.
    let in_place = member.dies_with_pod() && fits(member, wanted);
    let mut blocked = blocks(desired, observed, member);
    blocked.extend(lost_with_pod(desired, member).filter(|_| !in_place));
    if !blocked.is_empty() {
        return Plan::blocked(operation, blocked);
    }
    if !desired.strategy.skips(PEERS_READY)
        && let Some(message) = unheard(observed, member)
    {
        return Plan::wait(operation, "RecreatePod", &member.name, message);
    }
    let restart = if in_place {
        PlannedStep::RestartInPlace { pilot: member.name.clone() }
    } else {
        let pod = member.pod.as_ref()?.uid.clone();
        PlannedStep::Restart { pilot: member.name.clone(), pod }
    };
    if !fits(member, wanted) {
        return Plan::act(operation, restart);
    }
    let pilot = member.pilot.as_ref()?;
    if pilot.spec.config_hash != without_restart(desired.database, pilot, &wanted.pilot).config_hash
    {
        return Plan::act(operation, PlannedStep::Configure { pilot: member.name.clone() });
    }
    let waiting = match pilot.validated.clone() {
        Some(Ok(())) => return Plan::act(operation, restart),
        Some(Err(why)) => format!("{} rejects the configuration: {why}", member.name),
        None => format!("{} judges the new configuration", member.name),
    };
    Plan::wait(operation, "RestartPilot", &member.name, waiting)
}

const CANARY_HELD: &str = "CanaryHeld";
const RESTART_HELPS: &str = "RestartHelps";
/// Predicate: nodes join and leave only a ring of one version.
pub(super) const VERSION_SETTLED: &str = "VersionSettled";

/// Predicate: a node still holds rows of ranges that it gave away. They would be back with the
/// ranges.
pub(super) const CLEANUP_PENDING: &str = "CleanupPending";

/// Predicates that wait for a person, while every node serves.
pub(super) const FOR_PEOPLE: [&str; 4] =
    [CANARY_HELD, CLEANUP_PENDING, RESTART_HELPS, VERSION_SETTLED];

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
        hint: "find the policy or webhook that changes pods, then delete the pod".to_owned(),
    }
}

fn canary_held(current: u32) -> StepBlocker {
    StepBlocker {
        predicate: CANARY_HELD.into(),
        step: "RecreatePod".to_owned(),
        message: format!("held after {current} nodes on the new revision"),
        hint: "remove spec.updateStrategy.canary to go on, or revert the spec".to_owned(),
    }
}

/// Predicate: the report of every pilot must be fresh before a node is stopped.
pub(super) const PEERS_READY: &str = "PeersReady";

/// Predicate that pilots report where no other node has a copy of the data, whatever the volume is,
/// if their database knows of copies.
pub(super) const OUTLIVES: &str = "DataOutlivesPod";

/// Returns why the node's pod may not be deleted: data without a known copy would be deleted with
/// it.
pub(super) fn lost_with_pod(desired: &DesiredCluster, member: &Member) -> Option<StepBlocker> {
    if !member.dies_with_pod() {
        return None;
    }
    let fresh = |pilot: &&PilotFacts| member.serving() && !pilot.hearing.is_over();
    let speaks = member.pilot.as_ref().filter(fresh);
    let blockers = member.pilot.iter().flat_map(|pilot| &pilot.blockers);
    let why = match blockers.into_iter().find(|(predicate, _)| predicate == OUTLIVES) {
        Some((_, message)) => message.clone(),
        // A pilot that serves would report data without a copy.
        None if desired.database.knows_copies && speaks.is_some() => return None,
        None => "no pilot says that other nodes have copies of all of it".to_owned(),
    };
    (!desired.strategy.skips_by_name(OUTLIVES)).then(|| StepBlocker {
        predicate: OUTLIVES.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!("the data of {} are in its pod and go with it: {why}", member.name),
        hint: format!(
            "move them to a node pool with persistence, or give them up: add {OUTLIVES} to \
             spec.updateStrategy.skipPredicates"
        ),
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
        hint: hint(desired.database, predicate),
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
        .filter(|(predicate, _)| predicate != OUTLIVES && !desired.strategy.skips(predicate))
        .map(|(predicate, message)| block(predicate, message.clone()))
        .collect()
}

/// Says how to skip a predicate. A pilot newer than our API server may name a rule that cannot be
/// skipped by its name.
pub(super) fn hint(database: &ManagedDatabase, predicate: &str) -> String {
    let named = database.names.is_skippable(predicate).then_some(predicate);
    format!("or add {} to spec.updateStrategy.skipPredicates", named.unwrap_or("* (every rule)"))
}

/// Returns the names of the nodes that run, with the facts from their Pilots.
pub(super) fn spoken(observed: &ObservedCluster) -> impl Iterator<Item = (&str, &PilotFacts)> {
    let members = observed.pools.iter().flat_map(ObservedPool::running);
    let members = members.filter_map(|(_, member)| member);
    members.filter_map(|member| Some((member.name.as_str(), member.pilot.as_ref()?)))
}

/// Says which report is waited for before `member` is stopped. Its own pilot, the one of the
/// current pod, must have reported after every other node came back; and this controller must have
/// heard each pilot at least once.
pub(super) fn unheard(observed: &ObservedCluster, member: &Member) -> Option<String> {
    let pilot = member.pilot.as_ref()?;
    let name = &member.name;
    if pilot.instance.as_deref() != member.pod.as_ref().map(|pod| pod.uid.as_str()) {
        return Some(format!("waits for a report of {name} from its new pod"));
    }
    if let Some((other, _)) = spoken(observed).find(|(_, pilot)| !pilot.hearing.heard) {
        return Some(format!("waits for a report of {other}"));
    }
    let later = spoken(observed).find(|(_, other)| other.hearing.returned <= pilot.hearing.ago);
    later.map(|(other, _)| format!("waits until {name} has judged again, since {other} came back"))
}
