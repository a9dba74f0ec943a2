//! Which events a change of a pilot's report is worth (docs/conditions.md). Pure.
//!
//! Takes two reports of one node and gives the events between them. The first report is compared
//! with the last one of an earlier pilot, so a new pilot tells nothing again; and the next pilot
//! tells how a run ended that took its own pilot along.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    api::v1beta1::{PilotPhase, PilotStatus, Termination},
    pilot::{database::PreparationCondition, volume::contents},
    runtime::events::EventNotice,
};

/// Returns the events between the reports `before` and `after`: at most one for each reason.
///
/// `preparation`: the condition about what the database needs before it starts, where it has one.
pub fn of(
    before: &PilotStatus,
    after: &PilotStatus,
    preparation: Option<&PreparationCondition>,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    notices.extend(ended(before, after));
    notices.extend(started(before, after));
    notices.extend(conditions(before, after, preparation));
    notices.extend(fenced(before, after));
    notices.extend(filling(before, after));
    notices.extend(certificates(before, after));
    // One change, a full disk for example, may show in more than one place.
    let mut told = Vec::new();
    notices.retain(|one: &EventNotice| {
        let first = !told.contains(&one.reason);
        told.push(one.reason);
        first
    });
    notices
}

fn started(before: &PilotStatus, after: &PilotStatus) -> Option<EventNotice> {
    let process = after.process.as_ref()?;
    let run = |status: &PilotStatus| {
        status.process.as_ref().map(|process| (process.pid, process.start_time.clone()))
    };
    let note = match process.restarts {
        0 => format!("the database runs as process {}", process.pid),
        count => format!("the database runs as process {}; restart {count}", process.pid),
    };
    (run(before) != run(after)).then(|| EventNotice::normal("ProcessStarted", note))
}

fn ended(before: &PilotStatus, after: &PilotStatus) -> Vec<EventNotice> {
    let Some(end) = &after.last_termination else { return Vec::new() };
    // More may become known of one run's end later; only another reason is news then.
    let gist = |end: &Termination| (end.start_time.clone(), end.reason.clone());
    if before.last_termination.as_ref().is_some_and(|known| gist(known) == gist(end)) {
        return Vec::new();
    }
    let reason = end.reason.as_deref().unwrap_or_default();
    let message = end.message.clone().unwrap_or_else(|| "the database ended".to_owned());
    let killed = end.signal.as_deref() == Some("SIGKILL") || end.exit_code == Some(128 + 9);
    let mut notices = vec![match (killed, reason) {
        (true, _) => EventNotice::warning("ProcessKilled", message.clone()),
        (false, "Stopped") => EventNotice::normal("ProcessExited", message.clone()),
        (false, _) => EventNotice::warning("ProcessExited", message.clone()),
    }];
    if reason == "DiskFull" {
        notices.push(EventNotice::warning("DiskFull", message));
    }
    notices
}

fn conditions(
    before: &PilotStatus,
    after: &PilotStatus,
    preparation: Option<&PreparationCondition>,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    // Condition, its reason (empty: any other) and the event (empty: none).
    const WARNINGS: [(&str, &str, &str); 15] = [
        ("Ready", "ProcessHung", "ProcessHung"),
        ("Ready", "DiskFull", "DiskFull"),
        ("Writable", "DiskFull", "DiskFull"),
        ("PreflightPassed", "DiskFull", "DiskFull"),
        ("PreflightPassed", "IdentityMismatch", "IdentityMismatch"),
        ("PreflightPassed", "NodeDecommissioned", ""),
        ("PreflightPassed", "PreflightPassed", ""),
        ("PreflightPassed", "", "PreflightFailed"),
        ("ConfigApplied", "ConfigRejected", "ConfigRejected"),
        ("CertificatesValid", "CertificatesCurrent", ""),
        ("CertificatesValid", "CertificateRequested", ""),
        ("CertificatesValid", "", "CertificatesFailed"),
        ("UsersApplied", "UsersCurrent", ""),
        ("UsersApplied", "UsersPending", ""),
        ("UsersApplied", "", "UsersFailed"),
    ];
    let own = preparation.map(|told| (told.condition, told.failed, told.event));
    for condition in &after.conditions {
        let matching = WARNINGS.iter().chain(&own).find(|(type_, reason, _)| {
            *type_ == condition.type_ && (reason.is_empty() || *reason == condition.reason)
        });
        let Some((.., event)) = matching.filter(|(.., event)| !event.is_empty()) else { continue };
        let known = find(before, &condition.type_);
        if known.is_none_or(|known| gist(known) != gist(condition)) {
            notices.push(EventNotice::warning(event, condition.message.clone()));
        }
    }
    let now = |status: &PilotStatus, type_: &str, reason: &str, truth: &str| {
        find(status, type_).is_some_and(|c| c.reason == reason && c.status == truth)
    };
    for (type_, reason, truth, event) in [
        ("Decommissioned", "NodeDecommissioning", "False", "DecommissionStarted"),
        ("Decommissioned", "NodeDecommissioned", "True", "DecommissionFinished"),
    ] {
        if now(after, type_, reason, truth) && !now(before, type_, reason, truth) {
            let message = find(after, type_).map(|condition| condition.message.clone());
            notices.push(EventNotice::normal(event, message.unwrap_or_default()));
        }
    }
    notices
}

/// Tells that a port shows another certificate than it did.
fn certificates(before: &PilotStatus, after: &PilotStatus) -> Option<EventNotice> {
    let (was, is) = (before.security.as_ref()?, after.security.as_ref()?);
    let ports =
        [("other nodes", &was.internode, &is.internode), ("clients", &was.client, &is.client)];
    let changed = ports.into_iter().filter_map(|(port, was, is)| {
        let (was, is) = (was.as_ref()?, is.as_ref()?);
        let until = is.not_after.as_ref().map(|time| format!(", valid until {}", time.0));
        (was.sha256 != is.sha256).then(|| {
            format!("the port for {port} shows another certificate{}", until.unwrap_or_default())
        })
    });
    let changed: Vec<_> = changed.collect();
    (!changed.is_empty()).then(|| EventNotice::normal("CertificateShown", changed.join("; ")))
}

/// Tells that a volume is filling, and what fills it: once, until it has room again.
fn filling(before: &PilotStatus, after: &PilotStatus) -> Option<EventNotice> {
    let fills = |status: &PilotStatus| {
        status.storage.as_ref().is_some_and(|storage| !storage.contents.is_empty())
    };
    let storage = after.storage.as_ref().filter(|_| fills(after) && !fills(before))?;
    let percent = storage.used_bytes / (storage.capacity_bytes / 100).max(1);
    let (mut note, held) = (
        format!("{percent} % of the data volume are in use"),
        contents::described(&storage.contents),
    );
    if let Some(time) = &storage.full_time {
        note = format!("{note}, and it will be full at {} at the rate of the last hour", time.0);
    }
    Some(EventNotice::warning("VolumeFilling", format!("{note}. It holds {held}")))
}

fn fenced(before: &PilotStatus, after: &PilotStatus) -> Option<EventNotice> {
    let (was, is) = (before.phase.as_ref()?, after.phase.as_ref()?);
    match (was, is) {
        (PilotPhase::Fenced, PilotPhase::Fenced | PilotPhase::Stopping) => None,
        (_, PilotPhase::Fenced) => {
            Some(EventNotice::normal("Fenced", "the database is kept down for repair"))
        }
        (PilotPhase::Fenced, _) => {
            Some(EventNotice::normal("Unfenced", "the database may run again"))
        }
        _ => None,
    }
}

fn find<'a>(status: &'a PilotStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the part of a condition whose change is news: its reason, and its message without the
/// figures, which move all the time.
fn gist(condition: &Condition) -> (&str, String) {
    let words = condition.message.chars().filter(|c| !c.is_ascii_digit()).collect();
    (&condition.reason, words)
}

#[cfg(test)]
mod tests;
