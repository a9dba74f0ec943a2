//! Draws the answer to `status`. Pure: objects, a time and a width in, text out.

use k8s_openapi::jiff::Timestamp;

use super::{ClusterSnapshot, latest_events};
use crate::{
    api::{
        names::condition::CLEANUP_DUE,
        object_picture::{BlockerPicture, OperationPicture},
        picture::{
            ClusterPicture, ClusterReadiness, ClusterTrouble, NodePicture, Urgency, exit_reason,
        },
        silence::ReportAge,
        v1beta1::PilotIntent,
    },
    plugin::{
        ShownDatabase,
        lookup::ClusterObject,
        predicates::elapsed_time,
        text::{OutputStyle, Screen, StyledText, TextTable, Tone, cell, format_bytes},
    },
};

/// Number of events that are shown; `EVENTS_WIDE` with `-o wide`.
const EVENTS: usize = 6;
const EVENTS_WIDE: usize = 20;
/// Number of steps of an operation that are shown; `STEPS_WIDE` with `-o wide`.
const STEPS: usize = 5;
const STEPS_WIDE: usize = 50;
pub(super) fn draw_cluster(
    snapshot: &ClusterSnapshot,
    now: Timestamp,
    wide: bool,
    style: OutputStyle,
) -> String {
    let picture = snapshot.picture();
    let mut screen = Screen::new(style);
    draw_headline(&mut screen, &snapshot.found, &picture);
    screen.blank();
    draw_summary(&mut screen, &picture, now, wide);
    screen.blank();
    draw_nodes(&mut screen, &picture, snapshot.database, now, wide);
    draw_operation(&mut screen, &picture, now, wide);
    draw_conditions(&mut screen, &picture, now);
    draw_events(&mut screen, snapshot, now, wide);
    screen.finish()
}

pub(super) fn draw_clusters(
    clusters: &[ClusterObject],
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
    for cluster in clusters {
        let picture = cluster.picture();
        let ready_condition = picture.find_condition("Ready");
        let operation = picture.operation.as_ref();
        let blocker = operation.and_then(|operation| operation.blockers.first());
        table.push(vec![
            if namespaces { picture.namespace } else { "" }.into(),
            cell(format!("{}/{}", cluster.kind.singular(), picture.name), Tone::Title),
            readiness_cell(&picture),
            health_cell(picture.health),
            format!("{}/{}", picture.ready_nodes, picture.wanted_nodes()).into(),
            version_text(picture.version, picture.version_ahead()).into(),
            picture.phase_word().into(),
            cluster_age(&picture, now).into(),
            operation.map_or("", |operation| operation.type_).into(),
            cell(blocker.map_or("", |blocker| blocker.predicate), Tone::Care),
            match ready_condition {
                Some(condition) if wide || !condition.is_true() => condition.message.into(),
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
fn readiness_cell(picture: &ClusterPicture<'_>) -> StyledText {
    match picture.readiness() {
        ClusterReadiness::Ready => cell("True", Tone::Good),
        ClusterReadiness::OfEarlierSpec | ClusterReadiness::Unseen => cell("Unknown", Tone::Care),
        ClusterReadiness::NodeMissed(_) => cell("False", Tone::Bad),
        ClusterReadiness::NotReady => {
            cell(picture.find_condition("Ready").map_or("", |ready| ready.status), Tone::Bad)
        }
    }
}

/// Returns the colour of something that is as urgent.
fn urgency_tone(urgency: Urgency) -> Tone {
    match urgency {
        Urgency::Critical => Tone::Bad,
        Urgency::Warning | Urgency::Changing => Tone::Care,
        Urgency::Resting => Tone::Faint,
        Urgency::Fine => Tone::Good,
    }
}

fn draw_headline(screen: &mut Screen, cluster: &ClusterObject, picture: &ClusterPicture<'_>) {
    let headline = picture.build_headline();
    let reason = headline.as_ref().map_or("", |headline| headline.reason);
    let readiness = picture.readiness();
    let word = match readiness {
        _ if picture.is_deleted => "is being deleted".to_owned(),
        _ if picture.stalled_condition().is_some() => format!("Stalled: {reason}"),
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
        _ => urgency_tone(picture.urgency()),
    };
    let place = format!("{} {}/{}  ", cluster.kind.kind(), picture.namespace, picture.name);
    screen.line(&[cell(place, Tone::Title), cell(word, tone)]);
    if readiness == ClusterReadiness::Unseen {
        screen.paragraph(
            2,
            "Does the controller run? `kubectl navigator install check`",
            Tone::Plain,
        );
    }
    // That a cluster is ready needs no sentence, unless it is paused.
    let needs_message = match readiness {
        ClusterReadiness::Ready => picture.is_paused() || picture.stalled_condition().is_some(),
        ClusterReadiness::OfEarlierSpec => picture.stalled_condition().is_some(),
        _ => true,
    };
    if let Some(headline) = headline.filter(|_| needs_message) {
        screen.paragraph(2, &headline.message, Tone::Plain);
    }
}

/// Returns the running version, and the wanted one where that is another.
fn version_text(running_version: &str, desired_version: Option<&str>) -> String {
    match desired_version {
        Some(version) => format!("{running_version} -> {version}"),
        None => running_version.to_owned(),
    }
}

fn health_cell(health: &str) -> StyledText {
    match health {
        "" => cell("unknown", Tone::Faint),
        "Green" => cell(health, Tone::Good),
        "Yellow" => cell(health, Tone::Care),
        _ => cell(health, Tone::Bad),
    }
}

fn cluster_age(picture: &ClusterPicture<'_>, now: Timestamp) -> String {
    elapsed_since(picture.created, now)
}

fn elapsed_since(start: Option<Timestamp>, now: Timestamp) -> String {
    start.map(|start| elapsed_time(start, now)).unwrap_or_default()
}

fn draw_summary(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp, wide: bool) {
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
        version_text(picture.version, picture.version_ahead()).into(),
        format!("{} of {} ready", picture.ready_nodes, picture.wanted_nodes()).into(),
        health_cell(picture.health),
        picture.phase_word().into(),
        picture.leader.into(),
        cluster_age(picture, now).into(),
        image(picture.image),
        image(picture.pilot_image),
    ]);
    screen.table(0, &table.without_empty(&["LEADER", "IMAGE", "PILOT-IMAGE"]));
}

fn draw_nodes(
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
            phase_cell(*node),
            serving_cell(*node),
            version_text(node.version(), node.version_ahead()).into(),
            load.map(|load| load.to_string()).unwrap_or_default().into(),
            disk_cell(*node),
            status.process.as_ref().map_or(0, |process| process.restarts).to_string().into(),
            heartbeat_cell(*node, now),
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
        let node_count = picture.nodes.iter().filter(|node| node.pool() == pool.name).count();
        let node_count = i64::try_from(node_count).unwrap_or(i64::MAX);
        if node_count < pool.wanted && !picture.nodes.is_empty() {
            let text =
                format!("{} more wanted in node pool {}", pool.wanted - node_count, pool.name);
            screen.line(&[cell(text, Tone::Care)]);
        }
    }
    for node in &picture.nodes {
        for (text, tone) in node_troubles(*node, now) {
            screen.paragraph(2, &format!("{}: {text}", node.name()), tone);
        }
    }
}

fn phase_cell(node: NodePicture<'_>) -> StyledText {
    match node.intent_ahead() {
        // The pilot has not reached the phase that its spec asks for.
        Some(intent) => cell(format!("{} -> {intent}", node.phase()), Tone::Care),
        None => cell(node.phase().as_str(), urgency_tone(node.urgency())),
    }
}

fn serving_cell(node: NodePicture<'_>) -> StyledText {
    match node.ready_condition() {
        Some(ready) if ready.is_true() => cell("yes", Tone::Good),
        Some(ready) if ready.is_false() => cell("no", Tone::Care),
        _ => cell("unknown", Tone::Care),
    }
}

fn disk_cell(node: NodePicture<'_>) -> StyledText {
    let storage = node.pilot.status.storage.as_ref();
    let Some(storage) = storage.filter(|usage| usage.capacity_bytes > 0) else {
        return StyledText::default();
    };
    let percent = storage.used_bytes.max(0).saturating_mul(100) / storage.capacity_bytes;
    let tone = match percent {
        ..80 => Tone::Plain,
        80..90 => Tone::Care,
        _ => Tone::Bad,
    };
    cell(format!("{percent}% of {}", format_bytes(storage.capacity_bytes)), tone)
}

fn heartbeat_cell(node: NodePicture<'_>, now: Timestamp) -> StyledText {
    let tone = match node.report_age(now) {
        None => return cell("never", Tone::Care),
        Some(ReportAge::Fresh) => Tone::Plain,
        Some(ReportAge::Stale) => Tone::Care,
        Some(ReportAge::Silent) => Tone::Bad,
    };
    cell(elapsed_since(node.last_report_time(), now), tone)
}

/// Returns what is wrong with a node, or what it is busy with.
fn node_troubles(node: NodePicture<'_>, now: Timestamp) -> Vec<(String, Tone)> {
    let status = &node.pilot.status;
    let mut troubles: Vec<(String, Tone)> = Vec::new();
    for condition in node.problem_conditions() {
        let is_minor = ["Ready", CLEANUP_DUE].contains(&condition.type_);
        let tone = if is_minor { Tone::Care } else { Tone::Bad };
        troubles.push((format!("{}: {}", condition.reason, condition.message), tone));
    }
    let is_decommissioning = node.intent() == PilotIntent::Decommissioned;
    if let Some(progress) = status.decommission.as_ref().filter(|_| is_decommissioning) {
        let mut parts = Vec::new();
        parts.extend(progress.percent.map(|percent| format!("{percent} %")));
        parts.extend(progress.bytes_left.map(|count| format!("{} left", format_bytes(count))));
        parts.extend(progress.shards_left.map(|count| format!("{count} shards left")));
        if !parts.is_empty() {
            troubles.push((format!("moves its data away: {}", parts.join(", ")), Tone::Plain));
        }
    }
    if let Some(last_exit) = node.last_exit().filter(|_| !node.is_serving()) {
        let reason =
            Some(exit_reason(last_exit)).filter(|word| !word.is_empty()).unwrap_or("ended");
        let code = last_exit.exit_code.map(|code| format!(" ({code})")).unwrap_or_default();
        let elapsed = match &last_exit.finish_time {
            Some(time) => format!(", {} ago", elapsed_time(time.0, now)),
            None => String::new(),
        };
        let message =
            last_exit.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
        troubles.push((format!("last exit {reason}{code}{elapsed}{message}"), Tone::Plain));
    }
    troubles
}

fn draw_operation(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp, wide: bool) {
    let Some(operation) = &picture.operation else {
        if let Some(last_operation) = &picture.last_operation {
            screen.blank();
            screen.line(&[cell(
                format!("Nothing is in progress. {}", describe_last_operation(last_operation, now)),
                Tone::Faint,
            )]);
        }
        return;
    };
    screen.blank();
    let tone = if operation.phase == "Blocked" { Tone::Care } else { Tone::Plain };
    let elapsed = elapsed_since(operation.started, now);
    screen.line(&[
        cell(format!("In progress: {}", operation.type_), Tone::Title),
        cell(format!("  {}, for {elapsed}", operation.phase), tone),
    ]);
    if !operation.message.is_empty() {
        screen.paragraph(2, operation.message, Tone::Plain);
    }
    draw_steps(screen, operation, now, wide);
    for block in &operation.blockers {
        draw_blocker(screen, block, now);
    }
}

fn describe_last_operation(operation: &OperationPicture<'_>, now: Timestamp) -> String {
    let duration = match (operation.started, operation.ended) {
        (Some(start), Some(end)) => format!(", took {}", elapsed_time(start, end)),
        _ => String::new(),
    };
    let elapsed = elapsed_since(operation.ended, now);
    format!("Last: {} {} {elapsed} ago{duration}.", operation.type_, operation.phase.to_lowercase())
}

fn draw_steps(screen: &mut Screen, operation: &OperationPicture<'_>, now: Timestamp, wide: bool) {
    const COLUMNS: &[(&str, u8)] =
        &[("STEP", 0), ("NODE", 0), ("STATE", 0), ("TIME", 1), ("MESSAGE", 0)];
    let limit = if wide { STEPS_WIDE } else { STEPS };
    let mut table = TextTable::new(COLUMNS);
    // The status lists unfinished steps first.
    for step in operation.steps.iter().take(limit) {
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
            elapsed_since(step.started, step.ended.unwrap_or(now)).into(),
            step.message.into(),
        ]);
    }
    if table.is_empty() {
        return;
    }
    screen.table(2, &table.without_empty(&["MESSAGE"]));
    let hidden_count = operation.steps.len().saturating_sub(limit);
    if hidden_count > 0 {
        screen.paragraph(2, &format!("and {hidden_count} more"), Tone::Faint);
    }
}

fn draw_blocker(screen: &mut Screen, block: &BlockerPicture<'_>, now: Timestamp) {
    let elapsed = elapsed_since(block.since, now);
    let step = if block.step.is_empty() { "-" } else { block.step };
    screen.line(&[
        cell(format!("Blocked by {}", block.predicate), Tone::Care),
        cell(format!("  {step}, for {elapsed}"), Tone::Plain),
    ]);
    for (text, tone) in [(block.message, Tone::Plain), (&block.remedy_text(), Tone::Faint)] {
        if !text.is_empty() {
            screen.paragraph(2, text, tone);
        }
    }
}

fn draw_conditions(screen: &mut Screen, picture: &ClusterPicture<'_>, now: Timestamp) {
    let troubles = picture.list_troubles();
    for (number, condition) in
        troubles.iter().filter_map(ClusterTrouble::trouble_condition).enumerate()
    {
        if number == 0 {
            screen.blank();
        }
        let text = format!(
            "{} is {} ({}), for {}: {}",
            condition.type_,
            condition.status,
            condition.reason,
            elapsed_since(condition.since, now),
            condition.message
        );
        screen.paragraph(0, &text, Tone::Care);
    }
}

fn draw_events(screen: &mut Screen, snapshot: &ClusterSnapshot, now: Timestamp, wide: bool) {
    let summaries = latest_events(&snapshot.events, if wide { EVENTS_WIDE } else { EVENTS });
    if summaries.is_empty() {
        return;
    }
    screen.blank();
    let mut table = TextTable::new(&[("AGE", 0), ("EVENT", 0), ("OBJECT", 1), ("MESSAGE", 0)]);
    for event in summaries {
        let count = if event.count > 1 { format!(" (x{})", event.count) } else { String::new() };
        let tone = if event.warning { Tone::Care } else { Tone::Plain };
        table.push(vec![
            elapsed_time(event.last, now).into(),
            cell(event.reason, tone),
            event.about.into(),
            format!("{}{count}", event.message).into(),
        ]);
    }
    screen.table(0, &table);
}
