//! The closed list of predicates, and those of them that hold in a cluster now.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    ShownDatabase,
    lookup::ClusterObject,
    text::{OutputStyle, Screen, TextTable, Tone, cell},
};
use crate::api::{
    database_names::DatabaseNames,
    object_picture::ConditionPicture,
    picture::NodePicture,
    predicate::{self, DATA_OUTLIVES_POD, PEERS_READY, PHASE_HELD, Predicate, SkipPolicy},
    printer::human_duration,
    silence::ReportAge,
    v1beta1::{NodeChange, Pilot, PilotIntent, PilotPhase},
};

/// Returns the whole list of predicates: those of each database with the kind of its clusters, then
/// those that all databases have.
pub fn all(
    databases: &[&ShownDatabase],
) -> Vec<(Option<&'static DatabaseNames>, &'static Predicate)> {
    let own = databases.iter().flat_map(|database| {
        database.names.predicates.iter().map(|predicate| (Some(database.names), predicate))
    });
    own.chain(predicate::SHARED.iter().map(|predicate| (None, predicate))).collect()
}

/// A predicate that holds in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingPredicate {
    pub name: String,
    /// The node that the predicate is about; absent where it names none.
    pub node: Option<String>,
    /// What the predicate speaks against.
    pub against: Vec<NodeChange>,
    pub since: Option<Timestamp>,
    pub message: String,
    /// The cluster's spec says that steps do not wait for this predicate.
    pub skipped: bool,
}

impl HoldingPredicate {
    /// Does a step that stops its node wait for this predicate?
    pub fn holds_a_stop(&self) -> bool {
        !self.skipped && self.against.contains(&NodeChange::Stop)
    }
}

/// Returns what speaks against a change of this cluster's nodes now, from its pilots' reports and
/// from the controller's last status.
pub fn holding(found: &ClusterObject, pilots: &[Pilot], now: Timestamp) -> Vec<HoldingPredicate> {
    let skips: BTreeSet<&str> = found
        .object
        .pointer("/spec/updateStrategy/skipPredicates")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let cluster = found.picture();
    let held = |name: &str, node: Option<&str>, since: Option<Timestamp>, message: String| {
        let known = found.predicate(name);
        // A pilot newer than this plugin may name a rule that the plugin does not know.
        let skip = known.map_or(SkipPolicy::ByStar, |known| known.skip);
        HoldingPredicate {
            skipped: skip.is_skipped(name, |listed| skips.contains(listed)),
            name: name.to_owned(),
            node: node.map(str::to_owned),
            against: known.map_or(vec![NodeChange::Stop], |known| known.against.to_vec()),
            since,
            message,
        }
    };
    let mut all = Vec::new();
    for pilot in pilots {
        let picture = NodePicture::new(pilot);
        let node = Some(picture.name());
        let intent = picture.intent();
        let on_volume = keeps_data_on_volume(found, pilot);
        for blocker in &pilot.status.blockers {
            // The pilot knows which nodes have copies, but not whether its own data are on a
            // volume.
            if blocker.predicate == DATA_OUTLIVES_POD.name && on_volume {
                continue;
            }
            let since = blocker.since.as_ref().map(|time| time.0);
            let mut one = held(&blocker.predicate, node, since, blocker.message.clone());
            one.against = blocker.changes();
            all.push(one);
        }
        let counts = picture.report_age(now) == Some(ReportAge::Fresh)
            && picture.phase() != PilotPhase::Unknown;
        if !counts && !picture.is_dismissed() {
            let message = match picture.reported() {
                Some(time) => format!("its pilot last reported {} ago", since(time, now)),
                None => "its pilot has not reported yet".to_owned(),
            };
            all.push(held(PEERS_READY.name, node, picture.reported(), message));
        }
        let by_hand = match intent {
            PilotIntent::Stopped => !cluster.is_stopped(),
            // The controller itself writes these phases.
            PilotIntent::Running | PilotIntent::Decommissioned => false,
            PilotIntent::Fenced | PilotIntent::Other(_) => true,
        };
        if by_hand {
            let message = format!("a person set its spec.phase to {intent}");
            all.push(held(PHASE_HELD.name, node, None, message));
        }
    }
    for block in cluster.operation.iter().flat_map(|operation| &operation.blockers) {
        let node = block.node();
        let known = all.iter().any(|one| {
            one.name == block.predicate && (node.is_none() || one.node.as_deref() == node)
        });
        // The controller repeats some rules that are in the list already, for example a held phase.
        if !known {
            all.push(held(block.predicate, node, block.since, block.message.to_owned()));
        }
    }
    all
}

/// Is the node's pool one whose data are on volumes, and outlive its pods? `false` for a pool that
/// left the spec.
fn keeps_data_on_volume(found: &ClusterObject, pilot: &Pilot) -> bool {
    let pools = found.object.pointer("/spec/nodePools").and_then(Value::as_array);
    let is_of = |pool: &&Value| pool["name"].as_str() == pilot.spec.node_pool.as_deref();
    let pool = pools.into_iter().flatten().find(is_of);
    pool.is_some_and(|pool| {
        let persistence = &pool["persistence"];
        persistence.is_object() && persistence["enabled"] != false
    })
}

/// Returns the time since `then`, as kubectl prints it.
pub(super) fn since(then: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second() - then.as_second())
}

/// Draws the list of predicates as a table.
pub fn list(databases: &[&ShownDatabase], style: OutputStyle) -> String {
    let mut table = TextTable::new(&[
        ("PREDICATE", 0),
        ("OF", 0),
        ("AGAINST", 1),
        ("SKIP", 1),
        ("A STEP WAITS WHILE", 0),
    ]);
    for (names, predicate) in all(databases) {
        table.push(vec![
            cell(predicate.name, Tone::Title),
            names.map_or("all", |names| names.kind).into(),
            changes(predicate.against).into(),
            predicate.skip.word().into(),
            predicate.sentence.into(),
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table);
    screen.finish()
}

/// Names changes of nodes, with commas.
fn changes(all: &[NodeChange]) -> String {
    all.iter().map(|change| change.as_str().to_lowercase()).collect::<Vec<_>>().join(", ")
}

pub fn list_json(databases: &[&ShownDatabase]) -> Value {
    let one = |(names, predicate): (Option<&DatabaseNames>, &Predicate)| {
        json!({
            "name": predicate.name,
            "kind": names.map(|names| names.kind),
            "against": predicate.against,
            "skip": predicate.skip.word(),
            "message": predicate.sentence,
        })
    };
    json!({"predicates": all(databases).into_iter().map(one).collect::<Vec<_>>()})
}

/// Draws the predicates that hold as a table, or one sentence where none does; and whether a
/// machine may be drained.
pub fn held_table(
    found: &ClusterObject,
    held: &[HoldingPredicate],
    now: Timestamp,
    style: OutputStyle,
) -> String {
    let mut screen = Screen::new(style);
    if held.is_empty() {
        screen.line(&[cell("No predicate holds: every node may stop now.", Tone::Good)]);
    } else {
        screen.table(0, &held_rows(held, now));
    }
    if let Some(drainable) = found.picture().condition("Drainable") {
        let ConditionPicture { reason, message, .. } = drainable;
        let (text, tone) = if drainable.is_true() {
            (format!("A machine may be drained: {message}."), Tone::Good)
        } else {
            (format!("No machine may be drained ({reason}): {message}"), Tone::Care)
        };
        screen.paragraph(0, &text, tone);
    }
    screen.finish()
}

fn held_rows(held: &[HoldingPredicate], now: Timestamp) -> TextTable {
    let mut table = TextTable::new(&[
        ("PREDICATE", 0),
        ("NODE", 0),
        ("AGAINST", 1),
        ("FOR", 1),
        ("SKIPPED", 2),
        ("WHY", 0),
    ]);
    for one in held {
        let tone = if one.skipped { Tone::Faint } else { Tone::Care };
        table.push(vec![
            cell(&one.name, tone),
            one.node.clone().unwrap_or_default().into(),
            changes(&one.against).into(),
            one.since.map(|time| since(time, now)).unwrap_or_default().into(),
            if one.skipped { "yes" } else { "no" }.into(),
            one.message.as_str().into(),
        ]);
    }
    table
}

pub fn held_json(found: &ClusterObject, held: &[HoldingPredicate]) -> Value {
    let one = |held: &HoldingPredicate| {
        json!({
            "name": held.name,
            "node": held.node,
            "against": held.against,
            "since": held.since,
            "message": held.message,
            "skipped": held.skipped,
        })
    };
    // The controller's last word on evictions.
    let picture = found.picture();
    json!({
        "cluster": {
            "kind": found.kind.kind(),
            "namespace": found.namespace(),
            "name": found.name(),
        },
        "drainable": picture.condition("Drainable").map(|condition| json!({
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
        })),
        "holding": held.iter().map(one).collect::<Vec<_>>(),
    })
}
