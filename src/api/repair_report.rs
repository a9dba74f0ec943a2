//! Reports of users that a replica was repaired, as annotations of Pilots.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::{SignedDuration, Timestamp},
};

use super::names::annotation::REPAIRED;

/// How far ahead of the reader's clock the time of a report may be: the clock of the machine from
/// which it was written may differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What a Pilot's annotation `navigator.jetstack.io/repaired` says of a replica that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairReport {
    /// There is none.
    Absent,
    /// The replica was repaired after it fell behind.
    Repaired,
    /// It was repaired before, so the report is void.
    Earlier,
    /// The time has not come yet.
    Future,
    /// The value is no RFC 3339 time.
    Unreadable,
}

impl RepairReport {
    /// Returns what the metadata of a Pilot say, at the time `now`, of a replica that is behind since
    /// `since`.
    pub fn from_metadata(meta: &ObjectMeta, since: Timestamp, now: Timestamp) -> Self {
        let text = meta.annotations.as_ref().and_then(|annotations| annotations.get(REPAIRED));
        match text.map(|text| parse_time(text)) {
            None => Self::Absent,
            Some(None) => Self::Unreadable,
            Some(Some(time)) if time > now + CLOCK_SKEW => Self::Future,
            Some(Some(time)) if time > since => Self::Repaired,
            Some(Some(_)) => Self::Earlier,
        }
    }

    /// Returns why the report does not count, to complete "its annotation …"; `None` where it counts
    /// or where there is none.
    pub fn rejection_reason(self) -> Option<&'static str> {
        match self {
            Self::Absent | Self::Repaired => None,
            Self::Earlier => Some("is of an earlier time"),
            Self::Future => Some("has a time in the future"),
            Self::Unreadable => Some("is no RFC 3339 time"),
        }
    }
}

/// Reads an RFC 3339 time, such as `2026-11-30T14:00:00Z`; `None` for anything else.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        parse_time(text).unwrap()
    }

    #[test]
    fn report_counts_after_absence_until_now() {
        let (since, now) = (at("2026-11-30T14:00:00Z"), at("2026-11-30T20:00:00Z"));
        let read = |text: &str| {
            let annotations = Some([(REPAIRED.to_owned(), text.to_owned())].into());
            RepairReport::from_metadata(
                &ObjectMeta { annotations, ..ObjectMeta::default() },
                since,
                now,
            )
        };
        for (text, expected) in [
            ("2026-11-30T14:00:01Z", RepairReport::Repaired),
            ("2026-11-30T16:00:01+02:00", RepairReport::Repaired),
            (" 2026-11-30T20:05:00Z ", RepairReport::Repaired),
            ("2026-11-30T20:05:01Z", RepairReport::Future),
            ("2026-11-30T14:00:00Z", RepairReport::Earlier),
            ("2025-01-01T00:00:00Z", RepairReport::Earlier),
            ("yesterday", RepairReport::Unreadable),
            ("true", RepairReport::Unreadable),
            ("1764511200", RepairReport::Unreadable),
            ("2026-11-30", RepairReport::Unreadable),
            ("2026-11-30T14:00:01", RepairReport::Unreadable),
            ("", RepairReport::Unreadable),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
        let absent = RepairReport::from_metadata(&ObjectMeta::default(), since, now);
        assert_eq!((absent, absent.rejection_reason()), (RepairReport::Absent, None));
    }
}
