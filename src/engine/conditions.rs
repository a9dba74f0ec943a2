//! The conditions that every kind of the cluster manager has: Ready, Reconciling and Stalled.

use std::borrow::Cow;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// What a person has to mend, as reason and sentence.
pub type Stall = (&'static str, String);

/// What the conditions are to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVerdict {
    /// All is as wanted.
    pub ready: bool,
    /// Something is under way that will make it so.
    pub reconciling: bool,
    /// Reason of Ready and of Reconciling.
    pub reason: Cow<'static, str>,
    pub message: String,
    /// What a person has to mend, as reason and sentence.
    pub stalled: Option<(Cow<'static, str>, String)>,
}

impl ObjectVerdict {
    /// Says of work that is complete or not: it is ready, under way, or a person has to mend something.
    pub fn new(
        complete: bool,
        reason: &'static str,
        message: String,
        stalled: Option<Stall>,
    ) -> Self {
        let stalled = stalled
            .map(|(stall_reason, stall_message)| (Cow::Borrowed(stall_reason), stall_message));
        let [ready, reconciling] =
            [complete, !complete].map(|is_true| is_true && stalled.is_none());
        Self { ready, reconciling, reason: reason.into(), message, stalled }
    }
}

/// Returns the conditions by a verdict; one that holds as before keeps its time.
pub fn build_conditions(
    old_conditions: &[Condition],
    generation: Option<i64>,
    verdict: ObjectVerdict,
    now: Timestamp,
) -> Vec<Condition> {
    let ObjectVerdict { ready, reconciling, reason, message, stalled } = verdict;
    let is_stalled = stalled.is_some();
    let (stall_reason, stall_message) = stalled.unwrap_or(("Progressing".into(), String::new()));
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let rows = [
        ("Ready", ready, reason.clone(), message.clone()),
        ("Reconciling", reconciling, reason, message),
        ("Stalled", is_stalled, stall_reason, stall_message),
    ];
    let row = |(type_, is_true, reason, message): (&str, bool, Cow<'static, str>, String)| {
        let status = if is_true { "True" } else { "False" }.to_owned();
        let unchanged_condition =
            old_conditions.iter().find(|old| old.type_ == type_ && old.status == status);
        Condition {
            type_: type_.to_owned(),
            last_transition_time: unchanged_condition
                .map_or(Time(now), |old| old.last_transition_time.clone()),
            observed_generation: generation,
            status,
            reason: reason.into_owned(),
            message,
        }
    };
    rows.map(row).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_holds_as_before_keeps_its_time() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let verdict = |complete, stalled: Option<&'static str>| {
            let stalled = stalled.map(|reason| (reason, "a sentence".to_owned()));
            ObjectVerdict::new(complete, "Synced", "1/1".to_owned(), stalled)
        };
        let told = |all: &[Condition]| -> Vec<String> {
            let line = |one: &Condition| {
                let second = one.last_transition_time.0.as_second() % 60;
                format!("{}={} {} {second}", one.type_, one.status, one.reason)
            };
            all.iter().map(line).collect()
        };
        let first =
            build_conditions(&[], Some(1), verdict(false, None), at("2026-01-01T00:00:01.5Z"));
        assert_eq!(
            told(&first),
            ["Ready=False Synced 1", "Reconciling=True Synced 1", "Stalled=False Progressing 1"]
        );
        let second = build_conditions(
            &first,
            Some(2),
            verdict(false, Some("Refused")),
            at("2026-01-01T00:00:02Z"),
        );
        assert_eq!(
            told(&second),
            ["Ready=False Synced 1", "Reconciling=False Synced 2", "Stalled=True Refused 2"]
        );
        let third =
            build_conditions(&second, Some(2), verdict(true, None), at("2026-01-01T00:00:03Z"));
        assert_eq!(
            told(&third),
            ["Ready=True Synced 3", "Reconciling=False Synced 2", "Stalled=False Progressing 3"]
        );
    }
}
