//! Draws the answer to `status`. Pure: objects, a time and a width in, text out.

use k8s_openapi::jiff::Timestamp;

use super::{ClusterSnapshot, told};
use crate::{
    api::{
        names::condition::CLEANUP_DUE,
        object_picture::{BlockerPicture, OperationPicture},
        picture::{
            ClusterPicture, ClusterReadiness, ClusterTrouble, NodePicture, Urgency, exit_word,
        },
        silence::ReportAge,
        v1beta1::PilotIntent,
    },
    plugin::{
        ShownDatabase,
        lookup::ClusterObject,
        predicates::since,
        text::{OutputStyle, Screen, StyledText, TextTable, Tone, bytes, cell},
    },
};

/// Number of events that are shown; `EVENTS_WIDE` with `-o wide`.
const EVENTS: usize = 6;
const EVENTS_WIDE: usize = 20;
/// Number of steps of an operation that are shown; `STEPS_WIDE` with `-o wide`.
const STEPS: usize = 5;
const STEPS_WIDE: usize = 50;
pub(super) fn draw(
    snapshot: &ClusterSnapshot,
    now: Timestamp,
    wide: bool,
    style: OutputStyle,
) -> String {
    let picture = snapshot.picture();
    let mut screen = Screen::new(style);
    headline(&mut screen, &snapshot.found, &picture);
    screen.blank();
    summary(&mut screen, &picture, now, wide);
    screen.blank();
    nodes(&mut screen, &picture, snapshot.database, now, wide);
    operation(&mut screen, &picture, now, wide);
    conditions(&mut screen, &picture, now);
    events(&mut screen, snapshot, now, wide);
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
        let picture = one.picture();
        let ready = picture.condition("Ready");
        let operation = picture.operation.as_ref();
        let blocker = operation.and_then(|operation| operation.blockers.first());
        table.push(vec![
            if namespaces { picture.namespace } else { "" }.into(),
            cell(format!("{}/{}", one.kind.singular(), picture.name), Tone::Title),
            state(&picture),
            health(picture.health),
            format!("{}/{}", picture.ready_nodes, picture.wanted_nodes()).into(),
            version(picture.version, picture.version_ahead()).into(),
            picture.phase_word().into(),
            age(&picture, now).into(),
            operation.map_or("", |operation| operation.type_).into(),
            cell(blocker.map_or("", |blocker| blocker.predicate), Tone::Care),
            match ready {
                Some(ready) if wide || !ready.is_true() => ready.message.into(),
                _ => StyledText::default(),
            },
        ]);
    }
    let mut screen = Screen::new(style);
    screen.table(0, &table.without_empty(&["NAMESPACE", "OPERATION", "BLOCKED-BY", "MESSAGE"]));
    screen.finish()
}

/// Returns the text of the column for the condition Ready: its status, or `Unknown` where it is not
/// about the newest spec.
fn state(picture: &ClusterPicture<'_>) -> StyledText {
    match picture.readiness() {
        ClusterReadiness::Ready => cell("True", Tone::Good),
        ClusterReadiness::OfEarlierSpec | ClusterReadiness::Unseen => cell("Unknown", Tone::Care),
        ClusterReadiness::NodeMissed(_) => cell("False", Tone::Bad),
        ClusterReadiness::NotReady => {
            cell(picture.condition("Ready").map_or("", |ready| ready.status), Tone::Bad)
        }
    }
}

/// Returns the colour of something that is as urgent.
fn tone(urgency: Urgency) -> Tone {
    match urgency {
        Urgency::Critical => Tone::Bad,
        Urgency::Warning | Urgency::Changing => Tone::Care,
        Urgency::Resting => Tone::Faint,
        Urgency::Fine => Tone::Good,
    }
}

fn headline(screen: &mut Screen, found: &ClusterObject, picture: &ClusterPicture<'_>) {
    let headline = picture.headline();
    let reason = headline.as_ref().map_or("", |headline| headline.reason);
    let readiness = picture.readiness();
    let word = match readiness {
        _ if picture.is_deleted => "is being deleted".to_owned(),
        _ if picture.stalled().is_some() => format!("Stalled: {reason}"),
        ClusterReadiness::Ready => "Ready".to_owned(),
        ClusterReadiness::OfEarlierSpec => "Ready as of an earlier spec".to_owned(),
        ClusterReadiness::NodeMissed(_) | ClusterReadiness::NotReady => {
            format!("Not ready: {reason}")
        }
        ClusterReadiness::Unseen => "No controller has looked at it yet".to_owned(),
    };
    let tone = match readiness {
        ClusterReadiness::Unseen if !picture.is_deleted => Tone::Bad,
        // A paused cluster rests, and may be ready.
        ClusterReadiness::Ready if picture.urgency() == Urgency::Resting => Tone::Good,
        _ => tone(picture.urgency()),
    };
    let place = format!("{} {}/{}  ", found.kind.kind(), picture.namespace, picture.name);
    screen.line(&[cell(place, Tone::Title), cell(word, tone)]);
    if readiness == ClusterReadiness::Unseen {
        screen.paragraph(
            2,
            "Does the controller run? `kubectl navigator install check`",
            Tone::Plain,
        );
    }
    // That a cluster is ready needs no sentence, unless it is paused.
    let speaks = match readiness {
        ClusterReadiness::Ready => picture.is_paused() || picture.stalled().is_some(),
        ClusterReadiness::OfEarlierSpec => picture.stalled().is_some(),
        _ => true,
    };
    if let Some(headline) = headline.filter(|_| speaks) {
        screen.paragraph(2, &headline.message, Tone::Plain);
    }
}

/// Returns the running version, and the wanted one where that is another.
fn version(running: &str, ahead: Option<&str>) -> String {
    match ahead {
        Some(wanted) => format!("{running} -> {wanted}"),
        None => running.to_owned(),
    }
}

fn health(health: &str) -> StyledText {
    match health {
        "" => cell("unknown", Tone::Faint),
        "Green" => cell(health, Tone::Good),
        "Yellow" => cell(health, Tone::Care),
        _ => cell(health, Tone::Bad),
    }
}

fn age(picture: &ClusterPicture<'_>, now: Timestamp) -> String {
    since_time(picture.created, now)
}

fn since_time(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map(|then| since(then, now)).unwrap_or_default()
}

fn summary(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp, wide: bool) {
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
    let image = |image: &str| if wide { image.into() } else { StyledText::default() };
    table.push(vec![
        version(picture.version, picture.version_ahead()).into(),
        format!("{} of {} ready", picture.ready_nodes, picture.wanted_nodes()).into(),
        health(picture.health),
        picture.phase_word().into(),
        picture.leader.into(),
        age(picture, now).into(),
        image(picture.image),
        image(picture.pilot_image),
    ]);
    screen.table(0, &table.without_empty(&["LEADER", "IMAGE", "PILOT-IMAGE"]));
}

fn nodes(
    screen: &mut Screen,
    picture: &ClusterPicture<'_>,
    database: Option<&ShownDatabase>,
    now: Timestamp,
    wide: bool,
) {
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
    for node in &picture.nodes {
        let status = &node.pilot.status;
        let load = database.and_then(|database| (database.load)(status));
        let remark = database.and_then(|database| (database.remark)(status));
        let machine = status.instance.as_ref().and_then(|instance| instance.node.clone());
        let endpoint = status.endpoints.first();
        let address = endpoint.map(|endpoint| format!("{}:{}", endpoint.host, endpoint.port));
        let only_wide =
            |text: Option<String>| if wide { text.unwrap_or_default() } else { String::new() };
        table.push(vec![
            cell(node.name(), Tone::Title),
            node.pool().into(),
            phase(*node),
            serves(*node),
            version(node.version(), node.version_ahead()).into(),
            load.map(|load| load.to_string()).unwrap_or_default().into(),
            disk(*node),
            status.process.as_ref().map_or(0, |process| process.restarts).to_string().into(),
            heartbeat(*node, now),
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
    for pool in &picture.pools {
        let there = picture.nodes.iter().filter(|node| node.pool() == pool.name).count();
        let there = i64::try_from(there).unwrap_or(i64::MAX);
        if there < pool.wanted && !picture.nodes.is_empty() {
            let text = format!("{} more wanted in node pool {}", pool.wanted - there, pool.name);
            screen.line(&[cell(text, Tone::Care)]);
        }
    }
    for node in &picture.nodes {
        for (text, tone) in troubles(*node, now) {
            screen.paragraph(2, &format!("{}: {text}", node.name()), tone);
        }
    }
}

fn phase(node: NodePicture<'_>) -> StyledText {
    match node.intent_ahead() {
        // The pilot has not reached the phase that its spec asks for.
        Some(intent) => cell(format!("{} -> {intent}", node.phase()), Tone::Care),
        None => cell(node.phase().as_str(), tone(node.urgency())),
    }
}

fn serves(node: NodePicture<'_>) -> StyledText {
    match node.ready() {
        Some(ready) if ready.is_true() => cell("yes", Tone::Good),
        Some(ready) if ready.is_false() => cell("no", Tone::Care),
        _ => cell("unknown", Tone::Care),
    }
}

fn disk(node: NodePicture<'_>) -> StyledText {
    let storage = node.pilot.status.storage.as_ref();
    let Some(storage) = storage.filter(|one| one.capacity_bytes > 0) else {
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

fn heartbeat(node: NodePicture<'_>, now: Timestamp) -> StyledText {
    let tone = match node.report_age(now) {
        None => return cell("never", Tone::Care),
        Some(ReportAge::Fresh) => Tone::Plain,
        Some(ReportAge::Stale) => Tone::Care,
        Some(ReportAge::Silent) => Tone::Bad,
    };
    cell(since_time(node.reported(), now), tone)
}

/// Returns what is wrong with a node, or what it is busy with.
fn troubles(node: NodePicture<'_>, now: Timestamp) -> Vec<(String, Tone)> {
    let status = &node.pilot.status;
    let mut told: Vec<(String, Tone)> = Vec::new();
    for one in node.troubles() {
        let care = ["Ready", CLEANUP_DUE].contains(&one.type_);
        let tone = if care { Tone::Care } else { Tone::Bad };
        told.push((format!("{}: {}", one.reason, one.message), tone));
    }
    let leaving = node.intent() == PilotIntent::Decommissioned;
    if let Some(going) = status.decommission.as_ref().filter(|_| leaving) {
        let mut parts = Vec::new();
        parts.extend(going.percent.map(|percent| format!("{percent} %")));
        parts.extend(going.bytes_left.map(|left| format!("{} left", bytes(left))));
        parts.extend(going.shards_left.map(|left| format!("{left} shards left")));
        if !parts.is_empty() {
            told.push((format!("moves its data away: {}", parts.join(", ")), Tone::Plain));
        }
    }
    if let Some(last) = node.last_exit().filter(|_| !node.serves()) {
        let reason = Some(exit_word(last)).filter(|word| !word.is_empty()).unwrap_or("ended");
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

fn operation(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp, wide: bool) {
    let Some(operation) = &picture.operation else {
        if let Some(last) = &picture.last_operation {
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
    let since = since_time(operation.started, now);
    screen.line(&[
        cell(format!("In progress: {}", operation.type_), Tone::Title),
        cell(format!("  {}, for {since}", operation.phase), tone),
    ]);
    if !operation.message.is_empty() {
        screen.paragraph(2, operation.message, Tone::Plain);
    }
    steps(screen, operation, now, wide);
    for block in &operation.blockers {
        blocked(screen, block, now);
    }
}

fn ended(last: &OperationPicture<'_>, now: Timestamp) -> String {
    let took = match (last.started, last.ended) {
        (Some(start), Some(end)) => format!(", took {}", since(start, end)),
        _ => String::new(),
    };
    let when = since_time(last.ended, now);
    format!("Last: {} {} {when} ago{took}.", last.type_, last.phase.to_lowercase())
}

fn steps(screen: &mut Screen, operation: &OperationPicture<'_>, now: Timestamp, wide: bool) {
    const COLUMNS: &[(&str, u8)] =
        &[("STEP", 0), ("NODE", 0), ("STATE", 0), ("TIME", 1), ("MESSAGE", 0)];
    let most = if wide { STEPS_WIDE } else { STEPS };
    let mut table = TextTable::new(COLUMNS);
    // The status lists unfinished steps first.
    for step in operation.steps.iter().take(most) {
        let tone = match step.phase {
            "Done" | "Skipped" => Tone::Faint,
            "Blocked" => Tone::Care,
            "Failed" => Tone::Bad,
            _ => Tone::Plain,
        };
        table.push(vec![
            step.name.into(),
            step.node.into(),
            cell(step.phase, tone),
            since_time(step.started, step.ended.unwrap_or(now)).into(),
            step.message.into(),
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

fn blocked(screen: &mut Screen, block: &BlockerPicture<'_>, now: Timestamp) {
    let since = since_time(block.since, now);
    let step = if block.step.is_empty() { "-" } else { block.step };
    screen.line(&[
        cell(format!("Blocked by {}", block.predicate), Tone::Care),
        cell(format!("  {step}, for {since}"), Tone::Plain),
    ]);
    for (text, tone) in [(block.message, Tone::Plain), (&block.advice(), Tone::Faint)] {
        if !text.is_empty() {
            screen.paragraph(2, text, tone);
        }
    }
}

fn conditions(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp) {
    let troubles = picture.troubles();
    for (number, one) in troubles.iter().filter_map(ClusterTrouble::condition).enumerate() {
        if number == 0 {
            screen.blank();
        }
        let text = format!(
            "{} is {} ({}), for {}: {}",
            one.type_,
            one.status,
            one.reason,
            since_time(one.since, now),
            one.message
        );
        screen.paragraph(0, &text, Tone::Care);
    }
}

fn events(screen: &mut Screen, snapshot: &ClusterSnapshot, now: Timestamp, wide: bool) {
    let told = told(&snapshot.events, if wide { EVENTS_WIDE } else { EVENTS });
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
