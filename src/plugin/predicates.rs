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
pub fn all_predicates(
    databases: &[&ShownDatabase],
) -> Vec<(Option<&'static DatabaseNames>, &'static Predicate)> {
    let database_predicates = databases.iter().flat_map(|database| {
        database.names.predicates.iter().map(|predicate| (Some(database.names), predicate))
    });
    database_predicates.chain(predicate::SHARED.iter().map(|predicate| (None, predicate))).collect()
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
    pub fn is_stop_blocker(&self) -> bool {
        !self.skipped && self.against.contains(&NodeChange::Stop)
    }
}

/// Returns what speaks against a change of this cluster's nodes now, from its pilots' reports and
/// from the controller's last status.
pub fn find_blockers(
    cluster: &ClusterObject,
    pilots: &[Pilot],
    now: Timestamp,
) -> Vec<HoldingPredicate> {
    let skipped_names: BTreeSet<&str> = cluster
        .object
        .pointer("/spec/updateStrategy/skipPredicates")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let cluster_picture = cluster.picture();
    let build_blocker =
        |name: &str, node: Option<&str>, since: Option<Timestamp>, message: String| {
            let predicate = cluster.predicate(name);
            // A pilot newer than this plugin may name a rule that the plugin does not know.
            let skip = predicate.map_or(SkipPolicy::ByStar, |predicate| predicate.skip);
            HoldingPredicate {
                skipped: skip.is_skipped(name, |listed| skipped_names.contains(listed)),
                name: name.to_owned(),
                node: node.map(str::to_owned),
                against: predicate
                    .map_or(vec![NodeChange::Stop], |predicate| predicate.against.to_vec()),
                since,
                message,
            }
        };
    let mut blockers = Vec::new();
    for pilot in pilots {
        let picture = NodePicture::new(pilot);
        let node = Some(picture.name());
        let intent = picture.intent();
        let has_volume = keeps_data_on_volume(cluster, pilot);
        for blocker in &pilot.status.blockers {
            // The pilot knows which nodes have copies, but not whether its own data are on a
            // volume.
            if blocker.predicate == DATA_OUTLIVES_POD.name && has_volume {
                continue;
            }
            let since = blocker.since.as_ref().map(|time| time.0);
            let mut new_blocker =
                build_blocker(&blocker.predicate, node, since, blocker.message.clone());
            new_blocker.against = blocker.blocked_changes();
            blockers.push(new_blocker);
        }
        let is_reporting = picture.report_age(now) == Some(ReportAge::Fresh)
            && picture.phase() != PilotPhase::Unknown;
        if !is_reporting && !picture.is_dismissed() {
            let message = match picture.last_report_time() {
                Some(time) => format!("its pilot last reported {} ago", elapsed_time(time, now)),
                None => "its pilot has not reported yet".to_owned(),
            };
            blockers.push(build_blocker(
                PEERS_READY.name,
                node,
                picture.last_report_time(),
                message,
            ));
        }
        let is_manual = match intent {
            PilotIntent::Stopped => !cluster_picture.is_stopped(),
            // The controller itself writes these phases.
            PilotIntent::Running | PilotIntent::Decommissioned => false,
            PilotIntent::Fenced | PilotIntent::Other(_) => true,
        };
        if is_manual {
            let message = format!("a person set its spec.phase to {intent}");
            blockers.push(build_blocker(PHASE_HELD.name, node, None, message));
        }
    }
    for block in cluster_picture.operation.iter().flat_map(|operation| &operation.blockers) {
        let node = block.node();
        let is_listed = blockers.iter().any(|blocker| {
            blocker.name == block.predicate && (node.is_none() || blocker.node.as_deref() == node)
        });
        // The controller repeats some rules that are in the list already, for example a held phase.
        if !is_listed {
            blockers.push(build_blocker(
                block.predicate,
                node,
                block.since,
                block.message.to_owned(),
            ));
        }
    }
    blockers
}

/// Is the node's pool one whose data are on volumes, and outlive its pods? `false` for a pool that
/// left the spec.
fn keeps_data_on_volume(cluster: &ClusterObject, pilot: &Pilot) -> bool {
    let pools = cluster.object.pointer("/spec/nodePools").and_then(Value::as_array);
    let is_own_pool = |pool: &&Value| pool["name"].as_str() == pilot.spec.node_pool.as_deref();
    let pool = pools.into_iter().flatten().find(is_own_pool);
    pool.is_some_and(|pool| {
        let persistence = &pool["persistence"];
        persistence.is_object() && persistence["enabled"] != false
    })
}

/// Returns the time since `start`, as kubectl prints it.
pub(super) fn elapsed_time(start: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second() - start.as_second())
}

/// Draws the list of predicates as a table.
pub fn render_predicates(databases: &[&ShownDatabase], style: OutputStyle) -> String {
    let mut table = TextTable::new(&[
        ("PREDICATE", 0),
        ("OF", 0),
        ("AGAINST", 1),
        ("SKIP", 1),
        ("A STEP WAITS WHILE", 0),
    ]);
    for (names, predicate) in all_predicates(databases) {
        table.push(vec![
            cell(predicate.name, Tone::Title),
            names.map_or("all", |names| names.kind).into(),
            format_changes(predicate.against).into(),
            predicate.skip.as_str().into(),
            predicate.sentence.into(),
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table);
    screen.finish()
}

/// Names changes of nodes, with commas.
fn format_changes(changes: &[NodeChange]) -> String {
    changes.iter().map(|change| change.as_str().to_lowercase()).collect::<Vec<_>>().join(", ")
}

pub fn list_json(databases: &[&ShownDatabase]) -> Value {
    let entry = |(names, predicate): (Option<&DatabaseNames>, &Predicate)| {
        json!({
            "name": predicate.name,
            "kind": names.map(|names| names.kind),
            "against": predicate.against,
            "skip": predicate.skip.as_str(),
            "message": predicate.sentence,
        })
    };
    json!({"predicates": all_predicates(databases).into_iter().map(entry).collect::<Vec<_>>()})
}

/// Draws the predicates that hold as a table, or one sentence where none does; and whether a
/// machine may be drained.
pub fn render_blockers(
    cluster: &ClusterObject,
    blockers: &[HoldingPredicate],
    now: Timestamp,
    style: OutputStyle,
) -> String {
    let mut screen = Screen::new(style);
    if blockers.is_empty() {
        screen.line(&[cell("No predicate holds: every node may stop now.", Tone::Good)]);
    } else {
        screen.table(0, &blocker_table(blockers, now));
    }
    if let Some(drainable) = cluster.picture().find_condition("Drainable") {
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

fn blocker_table(blockers: &[HoldingPredicate], now: Timestamp) -> TextTable {
    let mut table = TextTable::new(&[
        ("PREDICATE", 0),
        ("NODE", 0),
        ("AGAINST", 1),
        ("FOR", 1),
        ("SKIPPED", 2),
        ("WHY", 0),
    ]);
    for blocker in blockers {
        let tone = if blocker.skipped { Tone::Faint } else { Tone::Care };
        table.push(vec![
            cell(&blocker.name, tone),
            blocker.node.clone().unwrap_or_default().into(),
            format_changes(&blocker.against).into(),
            blocker.since.map(|time| elapsed_time(time, now)).unwrap_or_default().into(),
            if blocker.skipped { "yes" } else { "no" }.into(),
            blocker.message.as_str().into(),
        ]);
    }
    table
}

pub fn blockers_json(cluster: &ClusterObject, blockers: &[HoldingPredicate]) -> Value {
    let entry = |blocker: &HoldingPredicate| {
        json!({
            "name": blocker.name,
            "node": blocker.node,
            "against": blocker.against,
            "since": blocker.since,
            "message": blocker.message,
            "skipped": blocker.skipped,
        })
    };
    // The controller's last word on evictions.
    let picture = cluster.picture();
    json!({
        "cluster": {
            "kind": cluster.kind.kind(),
            "namespace": cluster.namespace(),
            "name": cluster.name(),
        },
        "drainable": picture.find_condition("Drainable").map(|condition| json!({
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
        })),
        "holding": blockers.iter().map(entry).collect::<Vec<_>>(),
    })
}
