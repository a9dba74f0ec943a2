//! Draws the answer to `status`. Pure: objects, a time and a width in, text out.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{ClusterSnapshot, told};
use crate::{
    api::{
        names::condition::CLEANUP_DUE,
        printer::{self, human_duration},
        v1beta1::{BlockedBy, ClusterStatus, Health, Operation, Pilot, PilotIntent, PilotPhase},
    },
    plugin::{
        lookup::{ClusterObject, name_of},
        text::{OutputStyle, Screen, StyledText, TextTable, Tone, bytes, cell},
    },
};

/// Number of events that are shown; `EVENTS_WIDE` with `-o wide`.
const EVENTS: usize = 6;
const EVENTS_WIDE: usize = 20;
/// Number of steps of an operation that are shown; `STEPS_WIDE` with `-o wide`.
const STEPS: usize = 5;
const STEPS_WIDE: usize = 50;
/// Age of a pilot's report, in seconds, after which it is shown as a warning; after `SILENT`
/// seconds, when the controller calls the pilot silent, as an error.
const LATE: i64 = 30;
const SILENT: i64 = 90;

pub(super) fn draw(
    picture: &ClusterSnapshot,
    now: Timestamp,
    wide: bool,
    style: OutputStyle,
) -> String {
    let status = picture.found.status();
    let mut screen = Screen::new(style);
    headline(&mut screen, &picture.found, &status);
    screen.blank();
    summary(&mut screen, &picture.found, &status, now, wide);
    screen.blank();
    nodes(&mut screen, picture, now, wide);
    operation(&mut screen, &status, now, wide);
    conditions(&mut screen, &status, now);
    events(&mut screen, picture, now, wide);
    screen.finish()
}

pub(super) fn list(
    found: &[ClusterObject],
    now: Timestamp,
    namespaces: bool,
    wide: bool,
    style: OutputStyle,
) -> String {
    const COLUMNS: &[(&str, u8)] = &[
        ("NAMESPACE", 0),
        ("CLUSTER", 0),
        ("READY", 0),
        ("HEALTH", 1),
        ("NODES", 0),
        ("VERSION", 2),
        ("PHASE", 1),
        ("AGE", 3),
        ("OPERATION", 1),
        ("BLOCKED-BY", 1),
        ("MESSAGE", 0),
    ];
    let mut table = TextTable::new(COLUMNS);
    for one in found {
        let status = one.status();
        let ready = ready_of(&status);
        let operation = status.operation.clone().unwrap_or_default();
        let blocked = operation.blocked_by.first();
        table.push(vec![
            if namespaces { one.namespace() } else { "" }.into(),
            cell(format!("{}/{}", one.kind.singular(), one.name()), Tone::Title),
            state(one, ready),
            health(status.health.as_ref()),
            format!("{}/{}", status.ready_replicas.unwrap_or(0), wanted(one)).into(),
            version(one, &status).into(),
            status.phase.as_deref().unwrap_or_default().into(),
            age(one, now).into(),
            operation.type_.as_str().into(),
            cell(blocked.map_or("", |block| &block.predicate), Tone::Care),
            match ready {
                Some(ready) if wide || ready.status != "True" => ready.message.as_str().into(),
                _ => StyledText::default(),
            },
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table.without_empty(&["NAMESPACE", "OPERATION", "BLOCKED-BY", "MESSAGE"]));
    screen.finish()
}

fn ready_of(status: &ClusterStatus) -> Option<&Condition> {
    condition(&status.conditions, "Ready")
}

fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the text of the column for the condition Ready: its status, or `Unknown`.
fn state(found: &ClusterObject, ready: Option<&Condition>) -> StyledText {
    match ready {
        Some(_) if found.is_ready() => cell("True", Tone::Good),
        // The controller has not seen the newest spec.
        Some(ready) if ready.status == "True" => cell("Unknown", Tone::Care),
        Some(ready) => cell(ready.status.as_str(), Tone::Bad),
        None => cell("Unknown", Tone::Care),
    }
}

fn headline(screen: &mut Screen, found: &ClusterObject, status: &ClusterStatus) {
    let ready = ready_of(status);
    let stalled = condition(&status.conditions, "Stalled").filter(|one| one.status == "True");
    let deleted = !printer::text(&found.object, "/metadata/deletionTimestamp").is_empty();
    let word = match (stalled, ready) {
        _ if deleted => cell("is being deleted", Tone::Care),
        (Some(stalled), _) => cell(format!("Stalled: {}", stalled.reason), Tone::Bad),
        (None, Some(_)) if found.is_ready() => cell("Ready", Tone::Good),
        (None, Some(ready)) if ready.status == "True" => {
            cell("Ready as of an earlier spec", Tone::Care)
        }
        (None, Some(ready)) => cell(format!("Not ready: {}", ready.reason), Tone::Care),
        (None, None) => cell("Nobody has looked at it yet", Tone::Bad),
    };
    let place = format!("{} {}/{}  ", found.kind.kind(), found.namespace(), found.name());
    screen.line(&[cell(place, Tone::Title), word]);
    if ready.is_none() {
        screen.paragraph(
            2,
            "Does the controller run? `kubectl navigator install check`",
            Tone::Plain,
        );
    }
    if let Some(told) = stalled.or(ready.filter(|ready| ready.status != "True")) {
        screen.paragraph(2, &told.message, Tone::Plain);
    }
}

fn wanted(found: &ClusterObject) -> i64 {
    found.pools().iter().map(|(_, replicas)| *replicas).fold(0, i64::saturating_add)
}

fn version(found: &ClusterObject, status: &ClusterStatus) -> String {
    let wanted = printer::text(&found.object, "/spec/version");
    match status.version.as_deref().filter(|running| *running != wanted) {
        Some(running) => format!("{running} -> {wanted}"),
        None => wanted.to_owned(),
    }
}

fn health(health: Option<&Health>) -> StyledText {
    match health {
        Some(Health::Green) => cell("Green", Tone::Good),
        Some(Health::Yellow) => cell("Yellow", Tone::Care),
        Some(health @ (Health::Red | Health::Other(_))) => cell(health.as_str(), Tone::Bad),
        None => cell("unknown", Tone::Faint),
    }
}

fn age(found: &ClusterObject, now: Timestamp) -> String {
    let made = printer::text(&found.object, "/metadata/creationTimestamp");
    made.parse().map(|made: Timestamp| since(made, now)).unwrap_or_default()
}

fn since(then: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second() - then.as_second())
}

fn since_time(then: Option<&Time>, now: Timestamp) -> String {
    then.map(|time| since(time.0, now)).unwrap_or_default()
}

fn summary(
    screen: &mut Screen,
    found: &ClusterObject,
    status: &ClusterStatus,
    now: Timestamp,
    wide: bool,
) {
    const COLUMNS: &[(&str, u8)] = &[
        ("VERSION", 0),
        ("NODES", 0),
        ("HEALTH", 0),
        ("PHASE", 0),
        ("LEADER", 2),
        ("AGE", 3),
        ("IMAGE", 4),
        ("PILOT-IMAGE", 5),
    ];
    let mut table = TextTable::new(COLUMNS);
    let image = |image: &Option<String>| -> StyledText {
        if wide { image.as_deref().unwrap_or_default().into() } else { StyledText::default() }
    };
    table.push(vec![
        version(found, status).into(),
        format!("{} of {} ready", status.ready_replicas.unwrap_or(0), wanted(found)).into(),
        health(status.health.as_ref()),
        status.phase.as_deref().unwrap_or("Pending").into(),
        status.leader.as_deref().unwrap_or_default().into(),
        age(found, now).into(),
        image(&status.image),
        image(&status.pilot_image),
    ]);
    screen.table(0, &table.without_empty(&["LEADER", "IMAGE", "PILOT-IMAGE"]));
}

fn nodes(screen: &mut Screen, picture: &ClusterSnapshot, now: Timestamp, wide: bool) {
    const COLUMNS: &[(&str, u8)] = &[
        ("NODE", 0),
        ("POOL", 5),
        ("STATE", 0),
        ("READY", 0),
        ("VERSION", 1),
        ("LOAD", 2),
        ("DISK", 3),
        ("RESTARTS", 4),
        ("HEARTBEAT", 1),
        ("MACHINE", 6),
        ("ADDRESS", 7),
        ("REMARK", 3),
    ];
    let mut table = TextTable::new(COLUMNS);
    for pilot in &picture.pilots {
        let status = &pilot.status;
        let load = picture.database.and_then(|database| (database.load)(status));
        let remark = picture.database.and_then(|database| (database.remark)(status));
        let machine = status.instance.as_ref().and_then(|instance| instance.node.clone());
        let endpoint = status.endpoints.first();
        let address = endpoint.map(|endpoint| format!("{}:{}", endpoint.host, endpoint.port));
        let only_wide =
            |text: Option<String>| if wide { text.unwrap_or_default() } else { String::new() };
        table.push(vec![
            cell(name_of(pilot), Tone::Title),
            pilot.spec.node_pool.as_deref().unwrap_or_default().into(),
            phase(pilot),
            serves(pilot),
            running(pilot).into(),
            load.map(|load| load.to_string()).unwrap_or_default().into(),
            disk(pilot),
            status.process.as_ref().map_or(0, |process| process.restarts).to_string().into(),
            heartbeat(pilot, now),
            only_wide(machine).into(),
            only_wide(address).into(),
            remark.unwrap_or_default().into(),
        ]);
    }
    if table.is_empty() {
        screen.line(&[cell("It has no nodes yet.", Tone::Faint)]);
    } else {
        screen.table(0, &table.without_empty(&["LOAD", "DISK", "MACHINE", "ADDRESS", "REMARK"]));
    }
    for (pool, replicas) in picture.found.pools() {
        let of_pool = |pilot: &&Pilot| pilot.spec.node_pool.as_deref() == Some(pool);
        let there =
            i64::try_from(picture.pilots.iter().filter(of_pool).count()).unwrap_or(i64::MAX);
        if there < replicas && !picture.pilots.is_empty() {
            let text = format!("{} more wanted in node pool {pool}", replicas - there);
            screen.line(&[cell(text, Tone::Care)]);
        }
    }
    for pilot in &picture.pilots {
        for (text, tone) in troubles(pilot, now) {
            screen.paragraph(2, &format!("{}: {text}", name_of(pilot)), tone);
        }
    }
}

fn phase(pilot: &Pilot) -> StyledText {
    let phase = pilot.status.phase.clone().unwrap_or_default();
    let tone = match &phase {
        PilotPhase::Running => Tone::Good,
        PilotPhase::Failed | PilotPhase::Unknown => Tone::Bad,
        PilotPhase::Stopped | PilotPhase::Decommissioned => Tone::Faint,
        _ => Tone::Care,
    };
    let intent = pilot.spec.phase.clone().unwrap_or_default();
    match (&intent, &phase) {
        (PilotIntent::Fenced, PilotPhase::Fenced)
        | (PilotIntent::Stopped, PilotPhase::Stopped)
        | (PilotIntent::Decommissioned, PilotPhase::Decommissioned)
        | (PilotIntent::Running, _) => cell(phase.as_str(), tone),
        // The pilot has not reached the phase that its spec asks for.
        (intent, phase) => cell(format!("{phase} -> {intent}"), Tone::Care),
    }
}

fn serves(pilot: &Pilot) -> StyledText {
    match condition(&pilot.status.conditions, "Ready") {
        Some(ready) if ready.status == "True" => cell("yes", Tone::Good),
        Some(ready) if ready.status == "False" => cell("no", Tone::Care),
        _ => cell("unknown", Tone::Care),
    }
}

fn running(pilot: &Pilot) -> String {
    let wanted = pilot.spec.version.as_deref();
    match (pilot.status.version.as_deref(), wanted) {
        (Some(running), Some(wanted)) if running != wanted => format!("{running} -> {wanted}"),
        (Some(running), _) => running.to_owned(),
        (None, _) => String::new(),
    }
}

fn disk(pilot: &Pilot) -> StyledText {
    let Some(storage) = pilot.status.storage.as_ref().filter(|one| one.capacity_bytes > 0) else {
        return StyledText::default();
    };
    let percent = storage.used_bytes.max(0).saturating_mul(100) / storage.capacity_bytes;
    let tone = match percent {
        ..80 => Tone::Plain,
        80..90 => Tone::Care,
        _ => Tone::Bad,
    };
    cell(format!("{percent}% of {}", bytes(storage.capacity_bytes)), tone)
}

fn heartbeat(pilot: &Pilot, now: Timestamp) -> StyledText {
    let Some(time) = &pilot.status.last_heartbeat_time else { return cell("never", Tone::Care) };
    let tone = match now.as_second() - time.0.as_second() {
        silent if silent >= SILENT => Tone::Bad,
        late if late >= LATE => Tone::Care,
        _ => Tone::Plain,
    };
    cell(since(time.0, now), tone)
}

/// Conditions that may be False on a healthy node.
const QUIET: [&str; 5] = ["Stopped", "Decommissioned", "VolumeHoldsData", "Started", CLEANUP_DUE];

/// Returns what is wrong with a node, or what it is busy with.
fn troubles(pilot: &Pilot, now: Timestamp) -> Vec<(String, Tone)> {
    let status = &pilot.status;
    let mut told: Vec<(String, Tone)> = Vec::new();
    let leaving = pilot.spec.phase == Some(PilotIntent::Decommissioned);
    for one in &status.conditions {
        let speaks = one.status == "False" && !QUIET.contains(&&*one.type_)
            || one.status == "Unknown" && one.type_ == "Ready"
            || leaving && one.type_ == "Decommissioned" && one.status == "False"
            || one.type_ == CLEANUP_DUE && one.status == "True";
        // The condition Ready repeats what a more specific one says.
        let text = format!("{}: {}", one.reason, one.message);
        if speaks && !told.iter().any(|(known, _)| *known == text) {
            let care = ["Ready", CLEANUP_DUE].contains(&&*one.type_);
            let tone = if care { Tone::Care } else { Tone::Bad };
            told.push((text, tone));
        }
    }
    let serves = condition(&status.conditions, "Ready").is_some_and(|ready| ready.status == "True");
    if let Some(going) = status.decommission.as_ref().filter(|_| leaving) {
        let mut parts = Vec::new();
        parts.extend(going.percent.map(|percent| format!("{percent} %")));
        parts.extend(going.bytes_left.map(|left| format!("{} left", bytes(left))));
        parts.extend(going.shards_left.map(|left| format!("{left} shards left")));
        if !parts.is_empty() {
            told.push((format!("moves its data away: {}", parts.join(", ")), Tone::Plain));
        }
    }
    if let Some(last) = status.last_termination.as_ref().filter(|_| !serves) {
        let reason = last.reason.as_deref().or(last.signal.as_deref()).unwrap_or("ended");
        let code = last.exit_code.map(|code| format!(" ({code})")).unwrap_or_default();
        let when = match &last.finish_time {
            Some(time) => format!(", {} ago", since(time.0, now)),
            None => String::new(),
        };
        let message = last.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        told.push((format!("last exit {reason}{code}{when}{message}"), Tone::Plain));
    }
    told
}

fn operation(screen: &mut Screen, status: &ClusterStatus, now: Timestamp, wide: bool) {
    let Some(operation) = &status.operation else {
        if let Some(last) = &status.last_operation {
            screen.blank();
            screen.line(&[cell(
                format!("Nothing is in progress. {}", ended(last, now)),
                Tone::Faint,
            )]);
        }
        return;
    };
    screen.blank();
    let tone = if operation.phase == "Blocked" { Tone::Care } else { Tone::Plain };
    let since = since_time(operation.start_time.as_ref(), now);
    screen.line(&[
        cell(format!("In progress: {}", operation.type_), Tone::Title),
        cell(format!("  {}, for {since}", operation.phase), tone),
    ]);
    if let Some(message) = &operation.message {
        screen.paragraph(2, message, Tone::Plain);
    }
    steps(screen, operation, now, wide);
    for block in &operation.blocked_by {
        blocked(screen, block, now);
    }
}

fn ended(last: &Operation, now: Timestamp) -> String {
    let took = match (&last.start_time, &last.completion_time) {
        (Some(start), Some(end)) => format!(", took {}", since(start.0, end.0)),
        _ => String::new(),
    };
    let when = since_time(last.completion_time.as_ref(), now);
    format!("Last: {} {} {when} ago{took}.", last.type_, last.phase.to_lowercase())
}

fn steps(screen: &mut Screen, operation: &Operation, now: Timestamp, wide: bool) {
    const COLUMNS: &[(&str, u8)] =
        &[("STEP", 0), ("NODE", 0), ("STATE", 0), ("TIME", 1), ("MESSAGE", 0)];
    let most = if wide { STEPS_WIDE } else { STEPS };
    let mut table = TextTable::new(COLUMNS);
    // The status lists unfinished steps first.
    for step in operation.steps.iter().take(most) {
        let end = step.completion_time.as_ref().map_or(now, |time| time.0);
        let tone = match step.phase.as_str() {
            "Done" | "Skipped" => Tone::Faint,
            "Blocked" => Tone::Care,
            "Failed" => Tone::Bad,
            _ => Tone::Plain,
        };
        table.push(vec![
            step.name.as_str().into(),
            step.pilot.as_deref().unwrap_or_default().into(),
            cell(step.phase.as_str(), tone),
            step.start_time.as_ref().map(|start| since(start.0, end)).unwrap_or_default().into(),
            step.message.as_deref().unwrap_or_default().into(),
        ]);
    }
    if table.is_empty() {
        return;
    }
    screen.table(2, &table.without_empty(&["MESSAGE"]));
    let more = operation.steps.len().saturating_sub(most);
    if more > 0 {
        screen.paragraph(2, &format!("and {more} more"), Tone::Faint);
    }
}

fn blocked(screen: &mut Screen, block: &BlockedBy, now: Timestamp) {
    let since = since_time(block.since.as_ref(), now);
    screen.line(&[
        cell(format!("Blocked by {}", block.predicate), Tone::Care),
        cell(format!("  {}, for {since}", block.step.as_deref().unwrap_or("-")), Tone::Plain),
    ]);
    if let Some(message) = &block.message {
        screen.paragraph(2, message, Tone::Plain);
    }
    if let Some(hint) = &block.hint {
        // A hint that begins with "or" is the alternative to waiting.
        let wait = if hint.starts_with("or ") { "wait, " } else { "" };
        screen.paragraph(2, &format!("{wait}{hint}"), Tone::Faint);
    }
}

/// Conditions of a cluster that are shown beside Ready, while they have this status.
const NOTABLE: [(&str, &str); 3] =
    [("Available", "False"), ("PilotsCurrent", "False"), ("Drainable", "False")];

fn conditions(screen: &mut Screen, status: &ClusterStatus, now: Timestamp) {
    let speaks = |condition: &&Condition| {
        NOTABLE.contains(&(condition.type_.as_str(), condition.status.as_str()))
    };
    let mut first = true;
    for one in status.conditions.iter().filter(speaks) {
        if std::mem::take(&mut first) {
            screen.blank();
        }
        let text = format!(
            "{} is {} ({}), for {}: {}",
            one.type_,
            one.status,
            one.reason,
            since(one.last_transition_time.0, now),
            one.message
        );
        screen.paragraph(0, &text, Tone::Care);
    }
}

fn events(screen: &mut Screen, picture: &ClusterSnapshot, now: Timestamp, wide: bool) {
    let told = told(&picture.events, if wide { EVENTS_WIDE } else { EVENTS });
    if told.is_empty() {
        return;
    }
    screen.blank();
    let mut table = TextTable::new(&[("AGE", 0), ("EVENT", 0), ("OBJECT", 1), ("MESSAGE", 0)]);
    for one in told {
        let count = if one.count > 1 { format!(" (x{})", one.count) } else { String::new() };
        let tone = if one.warning { Tone::Care } else { Tone::Plain };
        table.push(vec![
            since(one.last, now).into(),
            cell(one.reason, tone),
            one.about.into(),
            format!("{}{count}", one.message).into(),
        ]);
    }
    screen.table(0, &table);
}
