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

/// Returns the events between the reports `old_status` and `new_status`: at most one for each
/// reason.
///
/// `preparation`: the condition about what the database needs before it starts, where it has one.
pub fn build_notices(
    old_status: &PilotStatus,
    new_status: &PilotStatus,
    preparation: Option<&PreparationCondition>,
) -> Vec<EventNotice> {
    let mut notices = Vec::new();
    notices.extend(end_notices(old_status, new_status));
    notices.extend(start_notice(old_status, new_status));
    notices.extend(condition_notices(old_status, new_status, preparation));
    notices.extend(fence_notice(old_status, new_status));
    notices.extend(filling_notice(old_status, new_status));
    notices.extend(certificate_notice(old_status, new_status));
    // One change, a full disk for example, may show in more than one place.
    let mut reported_reasons = Vec::new();
    notices.retain(|notice: &EventNotice| {
        let is_first = !reported_reasons.contains(&notice.reason);
        reported_reasons.push(notice.reason);
        is_first
    });
    notices
}

fn start_notice(old_status: &PilotStatus, new_status: &PilotStatus) -> Option<EventNotice> {
    let process = new_status.process.as_ref()?;
    let run_id = |status: &PilotStatus| {
        status.process.as_ref().map(|process| (process.pid, process.start_time.clone()))
    };
    let note = match process.restarts {
        0 => format!("the database runs as process {}", process.pid),
        count => format!("the database runs as process {}; restart {count}", process.pid),
    };
    (run_id(old_status) != run_id(new_status)).then(|| EventNotice::normal("ProcessStarted", note))
}

fn end_notices(old_status: &PilotStatus, new_status: &PilotStatus) -> Vec<EventNotice> {
    let Some(end) = &new_status.last_termination else { return Vec::new() };
    // More may become known of one run's end later; only another reason is news then.
    let gist = |end: &Termination| (end.start_time.clone(), end.reason.clone());
    if old_status.last_termination.as_ref().is_some_and(|old_end| gist(old_end) == gist(end)) {
        return Vec::new();
    }
    let reason = end.reason.as_deref().unwrap_or_default();
    let message = end.message.clone().unwrap_or_else(|| "the database ended".to_owned());
    let is_killed = end.signal.as_deref() == Some("SIGKILL") || end.exit_code == Some(128 + 9);
    let mut notices = vec![match (is_killed, reason) {
        (true, _) => EventNotice::warning("ProcessKilled", message.clone()),
        (false, "Stopped") => EventNotice::normal("ProcessExited", message.clone()),
        (false, _) => EventNotice::warning("ProcessExited", message.clone()),
    }];
    if reason == "DiskFull" {
        notices.push(EventNotice::warning("DiskFull", message));
    }
    notices
}

fn condition_notices(
    old_status: &PilotStatus,
    new_status: &PilotStatus,
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
    let preparation_warning =
        preparation.map(|condition| (condition.condition, condition.failed, condition.event));
    for condition in &new_status.conditions {
        let matching = WARNINGS.iter().chain(&preparation_warning).find(|(type_, reason, _)| {
            *type_ == condition.type_ && (reason.is_empty() || *reason == condition.reason)
        });
        let Some((.., event)) = matching.filter(|(.., event)| !event.is_empty()) else { continue };
        let old_condition = find_condition(old_status, &condition.type_);
        if old_condition
            .is_none_or(|old_condition| condition_gist(old_condition) != condition_gist(condition))
        {
            notices.push(EventNotice::warning(event, condition.message.clone()));
        }
    }
    let is_reported = |status: &PilotStatus, type_: &str, reason: &str, truth: &str| {
        find_condition(status, type_).is_some_and(|c| c.reason == reason && c.status == truth)
    };
    for (type_, reason, truth, event) in [
        ("Decommissioned", "NodeDecommissioning", "False", "DecommissionStarted"),
        ("Decommissioned", "NodeDecommissioned", "True", "DecommissionFinished"),
    ] {
        if is_reported(new_status, type_, reason, truth)
            && !is_reported(old_status, type_, reason, truth)
        {
            let message =
                find_condition(new_status, type_).map(|condition| condition.message.clone());
            notices.push(EventNotice::normal(event, message.unwrap_or_default()));
        }
    }
    notices
}

/// Tells that a port shows another certificate than it did.
fn certificate_notice(old_status: &PilotStatus, new_status: &PilotStatus) -> Option<EventNotice> {
    let (old_security, new_security) =
        (old_status.security.as_ref()?, new_status.security.as_ref()?);
    let ports = [
        ("other nodes", &old_security.internode, &new_security.internode),
        ("clients", &old_security.client, &new_security.client),
    ];
    let changes = ports.into_iter().filter_map(|(port, old_certificate, new_certificate)| {
        let (old_certificate, new_certificate) =
            (old_certificate.as_ref()?, new_certificate.as_ref()?);
        let until =
            new_certificate.not_after.as_ref().map(|time| format!(", valid until {}", time.0));
        (old_certificate.sha256 != new_certificate.sha256).then(|| {
            format!("the port for {port} shows another certificate{}", until.unwrap_or_default())
        })
    });
    let changes: Vec<_> = changes.collect();
    (!changes.is_empty()).then(|| EventNotice::normal("CertificateShown", changes.join("; ")))
}

/// Tells that a volume is filling, and what fills it: once, until it has room again.
fn filling_notice(old_status: &PilotStatus, new_status: &PilotStatus) -> Option<EventNotice> {
    let is_filling = |status: &PilotStatus| {
        status.storage.as_ref().is_some_and(|storage| !storage.contents.is_empty())
    };
    let storage = new_status
        .storage
        .as_ref()
        .filter(|_| is_filling(new_status) && !is_filling(old_status))?;
    let percent = storage.used_bytes / (storage.capacity_bytes / 100).max(1);
    let (mut note, content_list) = (
        format!("{percent} % of the data volume are in use"),
        contents::describe_shares(&storage.contents),
    );
    if let Some(time) = &storage.full_time {
        note = format!("{note}, and it will be full at {} at the rate of the last hour", time.0);
    }
    Some(EventNotice::warning("VolumeFilling", format!("{note}. It holds {content_list}")))
}

fn fence_notice(old_status: &PilotStatus, new_status: &PilotStatus) -> Option<EventNotice> {
    let (old_phase, new_phase) = (old_status.phase.as_ref()?, new_status.phase.as_ref()?);
    match (old_phase, new_phase) {
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

fn find_condition<'a>(status: &'a PilotStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the part of a condition whose change is news: its reason, and its message without the
/// figures, which move all the time.
fn condition_gist(condition: &Condition) -> (&str, String) {
    let words = condition.message.chars().filter(|c| !c.is_ascii_digit()).collect();
    (&condition.reason, words)
}

#[cfg(test)]
mod tests;
