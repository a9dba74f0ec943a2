//! Rows: a report, the next one, and the events between them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::v1beta1::{
    PilotSecurityStatus, PilotStorage, Process, ServedCertificate, VolumeShare,
};

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    }
}

fn with(conditions: &[(&str, &str, &str, &str)]) -> PilotStatus {
    PilotStatus {
        phase: Some(PilotPhase::Running),
        conditions: conditions.iter().map(|(t, s, r, m)| condition(t, s, r, m)).collect(),
        ..PilotStatus::default()
    }
}

fn phase(phase: PilotPhase) -> PilotStatus {
    PilotStatus { phase: Some(phase), ..PilotStatus::default() }
}

fn runs(pid: i32, second: i64) -> PilotStatus {
    let start_time = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
    let process = Some(Process { pid, start_time, restarts: 1 });
    PilotStatus { process, ..phase(PilotPhase::Running) }
}

fn ended(second: i64, reason: &str, code: Option<i32>, signal: Option<&str>) -> PilotStatus {
    let termination = Termination {
        exit_code: code,
        signal: signal.map(str::to_owned),
        reason: Some(reason.to_owned()),
        start_time: Some(Time(jiff::Timestamp::from_second(second).unwrap())),
        ..Termination::default()
    };
    PilotStatus { last_termination: Some(termination), ..phase(PilotPhase::Starting) }
}

/// Reasons, with an exclamation mark where it is a warning.
fn told(before: &PilotStatus, after: &PilotStatus) -> Vec<String> {
    let mark = |one: EventNotice| format!("{}{}", one.reason, if one.warning { "!" } else { "" });
    let preparation = PreparationCondition {
        condition: "PluginsInstalled",
        current: "PluginsCurrent",
        failed: "PluginInstallFailed",
        event: "PluginFailed",
    };
    build_notices(before, after, Some(&preparation)).into_iter().map(mark).collect()
}

#[test]
fn every_change_of_state_has_its_event() {
    let nothing = phase(PilotPhase::Pending);
    let blank = with(&[]);
    let full = "10 MiB are free";
    let rows: Vec<(PilotStatus, PilotStatus, &[&str])> = vec![
        (nothing.clone(), runs(7, 1), &["ProcessStarted"]),
        (runs(7, 1), runs(7, 2), &["ProcessStarted"]),
        (nothing.clone(), ended(1, "ProcessExited", Some(1), None), &["ProcessExited!"]),
        (nothing.clone(), ended(1, "Stopped", Some(143), None), &["ProcessExited"]),
        (nothing.clone(), ended(1, "Stopped", Some(137), Some("SIGKILL")), &["ProcessKilled!"]),
        (nothing.clone(), ended(1, "OutOfMemory", Some(137), None), &["ProcessKilled!"]),
        (nothing.clone(), ended(1, "OutOfMemory", Some(3), None), &["ProcessExited!"]),
        (nothing.clone(), ended(1, "DiskFull", Some(1), None), &["ProcessExited!", "DiskFull!"]),
        (blank.clone(), with(&[("Ready", "False", "ProcessHung", "silent")]), &["ProcessHung!"]),
        (
            blank.clone(),
            with(&[("PreflightPassed", "False", "PreflightFailed", "a port is taken")]),
            &["PreflightFailed!"],
        ),
        (
            blank.clone(),
            with(&[
                ("Ready", "False", "DiskFull", full),
                ("PreflightPassed", "False", "DiskFull", full),
            ]),
            &["DiskFull!"],
        ),
        (
            blank.clone(),
            with(&[("PreflightPassed", "False", "IdentityMismatch", "other data")]),
            &["IdentityMismatch!"],
        ),
        (
            blank.clone(),
            with(&[("ConfigApplied", "False", "ConfigRejected", "no such key")]),
            &["ConfigRejected!"],
        ),
        (
            blank.clone(),
            with(&[("PluginsInstalled", "False", "PluginInstallFailed", "exit 1")]),
            &["PluginFailed!"],
        ),
        (
            blank.clone(),
            with(&[("Decommissioned", "False", "NodeDecommissioning", "")]),
            &["DecommissionStarted"],
        ),
        (
            with(&[("Decommissioned", "False", "NodeDecommissioning", "")]),
            with(&[("Decommissioned", "True", "NodeDecommissioned", "")]),
            &["DecommissionFinished"],
        ),
        (phase(PilotPhase::Running), phase(PilotPhase::Fenced), &["Fenced"]),
        (phase(PilotPhase::Fenced), phase(PilotPhase::Preflight), &["Unfenced"]),
    ];
    for (before, after, expected) in rows {
        assert_eq!(told(&before, &after), expected, "{after:?}");
    }
}

#[test]
fn what_did_not_change_is_not_told_again() {
    let crashed = ended(1, "ProcessExited", None, None);
    let known = ended(1, "ProcessExited", Some(1), None);
    let by_kernel = ended(1, "OutOfMemory", Some(137), None);
    let disk = |free: &str| {
        with(&[("PreflightPassed", "False", "DiskFull", &format!("{free} MiB are free"))])
    };
    let fine = with(&[
        ("PreflightPassed", "True", "PreflightPassed", "every check passed"),
        ("ConfigApplied", "True", "ConfigCurrent", ""),
        ("Ready", "True", "ExampleStarted", ""),
        ("Decommissioned", "False", "NotRequested", ""),
        ("PluginsInstalled", "True", "PluginsCurrent", ""),
    ]);
    let left = with(&[("PreflightPassed", "False", "NodeDecommissioned", "it left")]);
    let is_silent = |before: &PilotStatus, after: &PilotStatus| {
        assert_eq!(told(before, after), [""; 0], "{after:?}");
    };
    is_silent(&runs(7, 1), &runs(7, 1));
    is_silent(&crashed, &known);
    is_silent(&disk("10"), &disk("9"));
    is_silent(&with(&[]), &fine);
    is_silent(&with(&[]), &left);
    is_silent(&phase(PilotPhase::Fenced), &phase(PilotPhase::Stopping));
    is_silent(&phase(PilotPhase::Fenced), &phase(PilotPhase::Fenced));
    assert_eq!(told(&known, &by_kernel), ["ProcessKilled!"]);
    assert_eq!(told(&known, &ended(2, "ProcessExited", Some(1), None)), ["ProcessExited!"]);
}

#[test]
fn a_volume_that_fills_is_told_once_with_what_fills_it() {
    let storage = |used_bytes, contents: Vec<VolumeShare>| PilotStatus {
        storage: Some(PilotStorage {
            capacity_bytes: 1000,
            used_bytes,
            contents,
            ..PilotStorage::default()
        }),
        ..phase(PilotPhase::Running)
    };
    let held =
        |mebibytes: i64| vec![VolumeShare { what: "data".to_owned(), bytes: mebibytes << 20 }];
    let [room, fills] = [storage(500, Vec::new()), storage(870, held(7))];
    let told = build_notices(&room, &fills, None);
    let [told] = told.as_slice() else { panic!("one event: {told:?}") };
    assert_eq!(told.reason, "VolumeFilling");
    assert!(told.note.contains("87 % of the data volume") && told.note.contains("data 7 MiB"));
    assert_eq!(build_notices(&fills, &storage(900, held(8)), None).len(), 0, "figures are no news");
    assert_eq!(build_notices(&fills, &room, None).len(), 0);
}

#[test]
fn certificates_and_users_are_told_when_they_fail_and_a_port_when_it_shows_another() {
    let certificates = |reason: &str| {
        with(&[
            ("CertificatesValid", "False", reason, "why"),
            ("UsersApplied", "False", "UsersPending", ""),
        ])
    };
    let (waits, failed) = (certificates("CertificateRequested"), certificates("ReloadFailed"));
    assert_eq!(told(&PilotStatus::default(), &waits), [""; 0]);
    assert_eq!(told(&waits, &failed), ["CertificatesFailed!"]);
    assert_eq!(told(&failed, &failed), [""; 0]);
    let refused = with(&[("UsersApplied", "False", "UsersRefused", "why")]);
    assert_eq!(told(&waits, &refused), ["UsersFailed!"]);

    let shows = |sha256: Option<&str>| {
        let served = |sha256: &str| ServedCertificate {
            sha256: sha256.to_owned(),
            ..ServedCertificate::default()
        };
        let security =
            PilotSecurityStatus { client: sha256.map(served), ..PilotSecurityStatus::default() };
        PilotStatus { security: Some(security), ..phase(PilotPhase::Running) }
    };
    assert_eq!(told(&shows(None), &shows(Some("a"))), [""; 0], "its first one");
    assert_eq!(told(&shows(Some("a")), &shows(Some("b"))), ["CertificateShown"]);
    assert_eq!(told(&shows(Some("b")), &shows(Some("b"))), [""; 0]);
}
