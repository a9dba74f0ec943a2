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

/// Is it another version of the object?
pub(super) fn is_other_version<K: Resource>(before: &K, now: &K) -> bool {
    before.meta().resource_version != now.meta().resource_version
}

/// Has another pilot taken the lead? A renewal makes no cluster due.
pub(super) fn changes_holder(before: &LeaderLease, now: &LeaderLease) -> bool {
    before.spec.holder_identity != now.spec.holder_identity
}

/// Has a cluster changed in anything but its status? Our own writes of that make no cluster due.
pub(super) fn changes_wish(before: &DynamicObject, now: &DynamicObject) -> bool {
    let (before, now) = (&before.metadata, &now.metadata);
    before.generation != now.generation
        || before.deletion_timestamp.is_some() != now.deletion_timestamp.is_some()
        || before.annotations != now.annotations
        || before.finalizers != now.finalizers
}

/// Has a Pilot changed in what can change a plan: all but heartbeats, storage and gauges?
pub(super) fn changes_plan(
    databases: &[&'static ManagedDatabase],
    before: &Pilot,
    now: &Pilot,
) -> bool {
    let (old, new) = (&before.metadata, &now.metadata);
    old.deletion_timestamp.is_some() != new.deletion_timestamp.is_some()
        || old.labels != new.labels
        || old.annotations != new.annotations
        || before.spec != now.spec
        || changes_report(databases, &before.status, &now.status)
}

fn changes_report(
    databases: &[&'static ManagedDatabase],
    before: &PilotStatus,
    now: &PilotStatus,
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
    } = before;
    *phase != now.phase
        || *pilot_version != now.pilot_version
        || *pilot_program != now.pilot_program
        || *config_hash != now.config_hash
        || *started_for != now.started_for
        || *version != now.version
        || *health != now.health
        || !are_alike(blockers, &now.blockers)
        || *identity != now.identity
        || *instance != now.instance
        || *endpoints != now.endpoints
        || *process != now.process
        || *last_termination != now.last_termination
        || *decommission != now.decommission
        || *forgotten != now.forgotten
        || *security != now.security
        || *conditions != now.conditions
        || changes_parts(databases, parts, &now.parts)
}

/// Are the blockers the same but for the time when they were last judged?
fn are_alike(before: &[Blocker], now: &[Blocker]) -> bool {
    let alike = |(before, now): (&Blocker, &Blocker)| {
        let Blocker { predicate, against, message, since, observed_time: _ } = before;
        (predicate, against, message, since)
            == (&now.predicate, &now.against, &now.message, &now.since)
    };
    before.len() == now.len() && before.iter().zip(now).all(alike)
}

fn changes_parts(
    databases: &[&'static ManagedDatabase],
    before: &PilotParts,
    now: &PilotParts,
) -> bool {
    !before.words().eq(now.words())
        || before.words().any(|word| {
            let gauges = databases.iter().find(|database| database.names.word == word);
            let gauges = gauges.map_or(&[][..], |database| database.gauges);
            match (before.raw(word), now.raw(word)) {
                (Some(Value::Object(before)), Some(Value::Object(now))) => {
                    let rest = |name: &&String| !gauges.contains(&name.as_str());
                    let one = before.iter().filter(|(name, _)| rest(name));
                    let other = now.iter().filter(|(name, _)| rest(name));
                    !one.eq(other)
                }
                (before, now) => before != now,
            }
        })
}
