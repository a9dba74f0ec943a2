//! The closed list of predicates, and those of them that hold in a cluster now.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Predicate, ShownDatabase,
    lookup::ClusterObject,
    text::{OutputStyle, Screen, TextTable, Tone, cell},
};
use crate::api::{
    database_names::{DatabaseNames, SHARED_PREDICATES},
    object_picture::ConditionPicture,
    picture::NodePicture,
    printer::human_duration,
    silence::ReportAge,
    v1beta1::{Pilot, PilotIntent, PilotPhase},
};

/// Predicates that all databases have.
pub const SHARED: &[Predicate] = &[
    Predicate {
        name: "PeersReady",
        sentence: "a pilot of the cluster has not reported for a minute",
    },
    Predicate {
        name: "HoldingsKnown",
        sentence: "its database lives and did not say all that it was asked; what held before \
                   still holds",
    },
    Predicate {
        name: "DiskHeadroom",
        sentence: "the data volume is full, so the database would not start again",
    },
    Predicate {
        name: OUTLIVES,
        sentence: "the data are in the pod, which the step would delete, and no pilot says that \
                   other nodes have copies of all of it",
    },
    Predicate {
        name: RENEWAL,
        sentence: "the API turns pilots away, since their ServiceAccount was deleted and made again; \
                   kubelet renews their tokens within 50 minutes",
    },
    Predicate {
        name: "CanaryHeld",
        sentence: "updateStrategy.canary is reached: remove it to go on, or revert the spec",
    },
    Predicate {
        name: "PhaseHeld",
        sentence: "a person wrote spec.phase of a Pilot: set it back to Running",
    },
    Predicate {
        name: "RestartHelps",
        sentence: "a pod made of the newest template lacks an annotation of it: a policy or webhook \
                   changes pods, and a restart would change nothing",
    },
    Predicate {
        name: "VersionSettled",
        sentence: "with OnDelete: nodes of several versions run, so none joins or leaves; delete the \
                   pods of the other one",
    },
];

const OUTLIVES: &str = "DataOutlivesPod";
const RENEWAL: &str = "TokenRenewal";

/// How a cluster's `spec.updateStrategy.skipPredicates` can skip a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipPolicy {
    /// By its name, or by `*`.
    Yes,
    ByName,
    ByStar,
    Never,
}

impl SkipPolicy {
    /// Returns how the predicate is skipped; `database`: the one that it belongs to, if any.
    pub fn new(name: &str, database: Option<&DatabaseNames>) -> Self {
        let own = database.is_some_and(|names| names.is_skippable(name));
        match name {
            // A user set each of these in a spec, or skipping it would change nothing.
            "CanaryHeld" | "PhaseHeld" | "RestartHelps" | "VersionSettled" => Self::Never,
            OUTLIVES | RENEWAL => Self::ByName,
            name if own || SHARED_PREDICATES.contains(&name) => Self::Yes,
            _ => Self::ByStar,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::ByName => "by name",
            Self::ByStar => "by *",
            Self::Never => "no",
        }
    }
}

/// Returns the whole list of predicates: those of each database with the kind of its clusters, then
/// those that all databases have.
pub fn all(databases: &[&ShownDatabase]) -> Vec<(Option<&'static DatabaseNames>, Predicate)> {
    let own = databases.iter().flat_map(|database| {
        database.predicates.iter().map(|predicate| (Some(database.names), *predicate))
    });
    own.chain(SHARED.iter().map(|predicate| (None, *predicate))).collect()
}

/// A predicate that holds in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingPredicate {
    pub name: String,
    /// The node that may not stop; absent where the predicate names none.
    pub node: Option<String>,
    pub since: Option<Timestamp>,
    pub message: String,
    /// The cluster's spec says that steps do not wait for this predicate.
    pub skipped: bool,
}

/// Returns what speaks against stopping a node of this cluster now, from its pilots' reports and
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
    let skipped = |name: &str| match SkipPolicy::new(name, None) {
        SkipPolicy::Yes | SkipPolicy::ByStar => skips.contains(name) || skips.contains("*"),
        SkipPolicy::ByName => skips.contains(name),
        SkipPolicy::Never => false,
    };
    let cluster = found.picture();
    let held = |name: &str, node: Option<&str>, since: Option<Timestamp>, message: String| {
        HoldingPredicate {
            skipped: skipped(name),
            name: name.to_owned(),
            node: node.map(str::to_owned),
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
            if blocker.predicate == OUTLIVES && on_volume {
                continue;
            }
            let since = blocker.since.as_ref().map(|time| time.0);
            all.push(held(&blocker.predicate, node, since, blocker.message.clone()));
        }
        let counts = picture.report_age(now) == Some(ReportAge::Fresh)
            && picture.phase() != PilotPhase::Unknown;
        if !counts && !picture.is_dismissed() {
            let message = match picture.reported() {
                Some(time) => format!("its pilot last reported {} ago", since(time, now)),
                None => "its pilot has not reported yet".to_owned(),
            };
            all.push(held("PeersReady", node, picture.reported(), message));
        }
        let by_hand = match intent {
            PilotIntent::Stopped => !cluster.is_stopped(),
            // The controller itself writes these phases.
            PilotIntent::Running | PilotIntent::Decommissioned => false,
            PilotIntent::Fenced | PilotIntent::Other(_) => true,
        };
        if by_hand {
            let message = format!("a person set its spec.phase to {intent}");
            all.push(held("PhaseHeld", node, None, message));
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
    let mut table =
        TextTable::new(&[("PREDICATE", 0), ("OF", 0), ("SKIP", 1), ("A STEP WAITS WHILE", 0)]);
    for (names, predicate) in all(databases) {
        table.push(vec![
            cell(predicate.name, Tone::Title),
            names.map_or("all", |names| names.kind).into(),
            SkipPolicy::new(predicate.name, names).word().into(),
            predicate.sentence.into(),
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table);
    screen.finish()
}

pub fn list_json(databases: &[&ShownDatabase]) -> Value {
    let one = |(names, predicate): (Option<&DatabaseNames>, Predicate)| {
        json!({
            "name": predicate.name,
            "kind": names.map(|names| names.kind),
            "skip": SkipPolicy::new(predicate.name, names).word(),
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
    let mut table =
        TextTable::new(&[("PREDICATE", 0), ("NODE", 0), ("FOR", 1), ("SKIPPED", 2), ("WHY", 0)]);
    for one in held {
        let tone = if one.skipped { Tone::Faint } else { Tone::Care };
        table.push(vec![
            cell(&one.name, tone),
            one.node.clone().unwrap_or_default().into(),
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
