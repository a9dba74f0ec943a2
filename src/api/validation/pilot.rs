//! Rules for Pilot (V41–V43, V50).

use serde_json::{Value, json};

use super::{
    config,
    form::{self, Enums},
    judge::Judge,
    metadata, ratchet, status,
    transition::IMMUTABLE,
};
use crate::api::{
    field::Path,
    scheme::{Part, Verdict, Version},
    v1beta1::{Pilot, PilotIntent},
};

const KIND: &str = "Pilot";
/// Most bytes of a Pilot's status, and of the last lines of a database's output.
const STATUS_LIMIT: usize = 16 * 1024;
const LOG_TAIL_LIMIT: usize = 4 * 1024;

/// Judges a new object that was written in `version`.
pub fn validate_create(version: Version, new: &Pilot) -> Verdict {
    let mut judge = Judge::new(version);
    metadata::create(&mut judge, &new.metadata);
    spec(&mut judge, new, &json!(new));
    judge.verdict()
}

/// Judges an update of `old` through `part`, written in `version`.
pub fn validate_update(version: Version, part: Part, new: &Pilot, old: &Pilot) -> Verdict {
    let (value, stored) = (json!(new), json!(old));
    let mut judge = Judge::new(version);
    let mut before = Judge::new(version);
    match part {
        Part::Main => {
            spec(&mut judge, new, &value);
            spec(&mut before, old, &stored);
        }
        Part::Status => {
            report(&mut judge, new);
            report(&mut before, old);
        }
    }
    ratchet::forgive(&mut judge, &value, &before, &stored);
    if part == Part::Main {
        metadata::update(&mut judge, &new.metadata, &old.metadata);
        transition(&mut judge, new, old);
    }
    judge.verdict()
}

fn spec(judge: &mut Judge, pilot: &Pilot, value: &Value) {
    form::judge(judge, KIND, "spec", &value["spec"], Enums::Judge);
    let path = Path::new("spec");
    config::size(judge, &pilot.spec.config, &path.child("config"));
    if let Some(cluster) = &pilot.spec.cluster_ref
        && cluster.name.is_empty()
    {
        judge.required(&path.child("clusterRef").child("name"), "");
    }
    if pilot.spec.elasticsearch.is_some() && pilot.spec.cassandra.is_some() {
        judge.forbidden(&path.child("cassandra"), "may not specify more than 1 database type");
    }
}

fn report(judge: &mut Judge, pilot: &Pilot) {
    let report = &pilot.status;
    status::judge(judge, KIND, report, &report.conditions, STATUS_LIMIT);
    let tail = report.last_termination.as_ref().map_or(&[][..], |last| &last.log_tail);
    if tail.iter().map(String::len).sum::<usize>() > LOG_TAIL_LIMIT {
        let path = Path::new("status").child("lastTermination").child("logTail");
        judge.too_long(&path, LOG_TAIL_LIMIT);
    }
}

fn transition(judge: &mut Judge, new: &Pilot, old: &Pilot) {
    let path = Path::new("spec");
    // V41: once set.
    if old.spec.cluster_ref.is_some() && new.spec.cluster_ref != old.spec.cluster_ref {
        judge.invalid(&path.child("clusterRef"), json!(new.spec.cluster_ref), IMMUTABLE);
    }
    if old.spec.node_pool.is_some() && new.spec.node_pool != old.spec.node_pool {
        judge.invalid(&path.child("nodePool"), json!(new.spec.node_pool), IMMUTABLE);
    }
    // V43
    let leaves = |pilot: &Pilot| pilot.spec.phase == Some(PilotIntent::Decommissioned);
    let irreversible = old.status.decommission.as_ref().is_some_and(|d| d.irreversible);
    if irreversible && leaves(old) && !leaves(new) {
        judge.forbidden(&path.child("phase"), "decommissioning is past the point of return");
    }
}
