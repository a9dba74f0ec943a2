//! Which changes of an object make its cluster due.
//!
//! Compares the object as the cache has it with the one that arrives, field by field: of ten
//! thousand Pilots hundreds send a heartbeat in each second, and that must cost next to nothing.

use kube::{Resource, api::DynamicObject};
use serde_json::Value;

use crate::{
    api::{
        pilot_part::PilotParts,
        v1beta1::{Blocker, LeaderLease, Pilot, PilotStatus},
    },
    controller::desired_state::ManagedDatabase,
};

/// Returns whether it is another version of the object.
pub(super) fn is_other_version<K: Resource>(old: &K, new: &K) -> bool {
    old.meta().resource_version != new.meta().resource_version
}

/// Returns whether another pilot has become the leader. A renewal makes no cluster due.
pub(super) fn changes_holder(old: &LeaderLease, new: &LeaderLease) -> bool {
    old.spec.holder_identity != new.spec.holder_identity
}

/// Returns whether a cluster has changed in anything except its status. Our own writes of the
/// status make no cluster due.
pub(super) fn changes_desired_state(old: &DynamicObject, new: &DynamicObject) -> bool {
    let (old, new) = (&old.metadata, &new.metadata);
    old.generation != new.generation
        || old.deletion_timestamp.is_some() != new.deletion_timestamp.is_some()
        || old.annotations != new.annotations
        || old.finalizers != new.finalizers
}

/// Returns whether a Pilot has changed in what can change a plan: all except heartbeats, storage
/// and gauges.
pub(super) fn changes_plan(
    databases: &[&'static ManagedDatabase],
    old_pilot: &Pilot,
    new_pilot: &Pilot,
) -> bool {
    let (old, new) = (&old_pilot.metadata, &new_pilot.metadata);
    old.deletion_timestamp.is_some() != new.deletion_timestamp.is_some()
        || old.labels != new.labels
        || old.annotations != new.annotations
        || old_pilot.spec != new_pilot.spec
        || changes_report(databases, &old_pilot.status, &new_pilot.status)
}

fn changes_report(
    databases: &[&'static ManagedDatabase],
    old: &PilotStatus,
    new: &PilotStatus,
) -> bool {
    let PilotStatus {
        observed_generation: _,
        last_heartbeat_time: _,
        storage: _,
        phase,
        pilot_version,
        pilot_program,
        config_hash,
        started_for,
        version,
        health,
        blockers,
        identity,
        instance,
        endpoints,
        process,
        last_termination,
        decommission,
        forgotten,
        security,
        parts,
        conditions,
    } = old;
    *phase != new.phase
        || *pilot_version != new.pilot_version
        || *pilot_program != new.pilot_program
        || *config_hash != new.config_hash
        || *started_for != new.started_for
        || *version != new.version
        || *health != new.health
        || !are_alike(blockers, &new.blockers)
        || *identity != new.identity
        || *instance != new.instance
        || *endpoints != new.endpoints
        || *process != new.process
        || *last_termination != new.last_termination
        || *decommission != new.decommission
        || *forgotten != new.forgotten
        || *security != new.security
        || *conditions != new.conditions
        || changes_parts(databases, parts, &new.parts)
}

/// Returns whether the blockers are the same except for the time of their last check.
fn are_alike(old: &[Blocker], new: &[Blocker]) -> bool {
    let is_alike = |(old_blocker, new_blocker): (&Blocker, &Blocker)| {
        let Blocker { predicate, against, message, since, observed_time: _ } = old_blocker;
        (predicate, against, message, since)
            == (
                &new_blocker.predicate,
                &new_blocker.against,
                &new_blocker.message,
                &new_blocker.since,
            )
    };
    old.len() == new.len() && old.iter().zip(new).all(is_alike)
}

fn changes_parts(
    databases: &[&'static ManagedDatabase],
    old: &PilotParts,
    new: &PilotParts,
) -> bool {
    !old.database_words().eq(new.database_words())
        || old.database_words().any(|word| {
            let gauges = databases.iter().find(|database| database.names.word == word);
            let gauges = gauges.map_or(&[][..], |database| database.gauges);
            match (old.raw_part(word), new.raw_part(word)) {
                (Some(Value::Object(old)), Some(Value::Object(new))) => {
                    let is_compared = |name: &&String| !gauges.contains(&name.as_str());
                    let old_entries = old.iter().filter(|(name, _)| is_compared(name));
                    let new_entries = new.iter().filter(|(name, _)| is_compared(name));
                    !old_entries.eq(new_entries)
                }
                (old, new) => old != new,
            }
        })
}
