//! When a pilot's report no longer counts, and when the pilot is silent: one judgement for all who
//! speak of it.
//!
//! The controller counts from the moment at which it saw a report change, by its own clock. The
//! plugin has only the time that the pilot wrote into the report.

use std::time::Duration;

use super::v1beta1::PilotStatus;

/// Age at which a report no longer counts: two heartbeats. Then no step may rely on the node.
pub const COUNTS_FOR: Duration = Duration::from_secs(60);
/// Age at which the controller marks a Pilot as silent: three heartbeats.
pub const SILENT_AFTER: Duration = Duration::from_secs(90);

/// Reason of the condition Ready that the controller writes on a Pilot whose pilot does not report.
pub const PILOT_SILENT: &str = "PilotSilent";
/// Reason of the condition Ready that the controller writes on a Pilot whose pilot cannot report,
/// because its token is of a deleted ServiceAccount.
pub const PILOT_TURNED_AWAY: &str = "PilotTurnedAway";

/// How old a pilot's last report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReportAge {
    Fresh,
    /// No step may rely on the node.
    Stale,
    /// The controller marks the Pilot, if it too has not heard of its pilot.
    Silent,
}

impl ReportAge {
    /// Judges the time since a report.
    pub fn new(age: Duration) -> Self {
        match age {
            age if age >= SILENT_AFTER => Self::Silent,
            age if age >= COUNTS_FOR => Self::Stale,
            _ => Self::Fresh,
        }
    }
}

/// Did the controller, rather than the pilot, write this reason of the condition Ready?
pub fn is_silent_reason(reason: &str) -> bool {
    [PILOT_SILENT, PILOT_TURNED_AWAY].contains(&reason)
}

/// Has the leading controller marked the Pilot as silent? Only the leader knows when no pilot could
/// report.
pub fn is_marked_silent(status: &PilotStatus) -> bool {
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    ready.is_some_and(|ready| ready.status == "Unknown" && is_silent_reason(&ready.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_for_a_minute_and_its_pilot_is_silent_after_90_s() {
        for (seconds, age) in [
            (0, ReportAge::Fresh),
            (59, ReportAge::Fresh),
            (60, ReportAge::Stale),
            (89, ReportAge::Stale),
            (90, ReportAge::Silent),
        ] {
            assert_eq!(ReportAge::new(Duration::from_secs(seconds)), age, "{seconds} s");
        }
    }
}
