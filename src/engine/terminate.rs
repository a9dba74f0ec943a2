//! The end of the cluster manager in a cluster: what a person asked for, and how far it is.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use serde::{Deserialize, Serialize};

/// Seconds that agents have to take their keys off the machines.
const AGENTS_SECONDS: i64 = 60;
/// Names that a message or the progress holds, at most.
const NAMED: usize = 20;

/// What is being taken away; each step ends before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminateStep {
    /// Keys on machines, which agents take away.
    Agents,
    /// Plugins, and what they installed.
    Plugins,
    /// Registries, labels and roles, with the Secrets, labels and rights that were made for them.
    Copies,
    /// ServiceAccounts that were made for Registries.
    Accounts,
    /// All other objects of the cluster manager's kinds.
    Objects,
    /// The definitions of the kinds.
    Definitions,
    Done,
}

impl TerminateStep {
    #[must_use]
    pub fn next_step(self) -> Self {
        match self {
            Self::Agents => Self::Plugins,
            Self::Plugins => Self::Copies,
            Self::Copies => Self::Accounts,
            Self::Accounts => Self::Objects,
            Self::Objects => Self::Definitions,
            Self::Definitions | Self::Done => Self::Done,
        }
    }

    /// Are the objects of this kind taken away in this step?
    pub fn removes_kind(self, plural: &str) -> bool {
        let is_copied = [
            "registries",
            "clusterlabels",
            "nodepoollabels",
            "authorizationroles",
            "authorizationrolebindings",
        ]
        .contains(&plural);
        match self {
            Self::Plugins => plural == "plugins",
            Self::Copies => is_copied,
            Self::Objects => plural != "plugins" && !is_copied,
            Self::Agents | Self::Accounts | Self::Definitions | Self::Done => false,
        }
    }
}

/// How far the end is, as it stands in an annotation of the core namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminateProgress {
    /// Id of the cluster that a person gave.
    pub cluster: String,
    pub step: TerminateStep,
    /// When the step began.
    pub since: Time,
    /// What the step waits for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Machines whose agent did not say that its keys are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
}

impl TerminateProgress {
    pub fn new(cluster: &str, now: Timestamp) -> Self {
        Self {
            cluster: cluster.to_owned(),
            step: TerminateStep::Agents,
            since: truncate_to_second(now),
            waits: None,
            silent: None,
        }
    }

    /// Reads the annotation. What cannot be read is no progress, so that no agent takes it for a word.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns what stands once the step has ended.
    #[must_use]
    pub fn with_next_step(&self, now: Timestamp) -> Self {
        Self {
            step: self.step.next_step(),
            since: truncate_to_second(now),
            waits: None,
            ..self.clone()
        }
    }

    /// Returns what stands while the step waits.
    #[must_use]
    pub fn with_wait(&self, waits: String) -> Self {
        Self { waits: Some(waits), ..self.clone() }
    }

    /// Goes by what agents say: `silent` are the machines that did not say that their keys are gone.
    #[must_use]
    pub fn with_silent_agents(&self, silent: &[String], now: Timestamp) -> Self {
        let wait_time = now.duration_since(self.since.0);
        if silent.is_empty() {
            return self.with_next_step(now);
        }
        let silent_names = join_names(silent);
        if wait_time >= SignedDuration::from_secs(AGENTS_SECONDS) {
            return Self { silent: Some(silent_names), ..self.with_next_step(now) };
        }
        self.with_wait(format!("no agent says yet that the keys are gone on {silent_names}"))
    }
}

fn truncate_to_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Returns names on one line, the first ones and how many more.
pub fn join_names(names: &[String]) -> String {
    let hidden_count = names.len().saturating_sub(NAMED);
    let shown_names = names[..names.len() - hidden_count].join(", ");
    if hidden_count > 0 { format!("{shown_names} and {hidden_count} more") } else { shown_names }
}

/// What follows from the annotations of the core namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminateOrder {
    /// Nothing is asked for, and nothing was begun.
    Idle,
    /// What is asked for is not done, for this reason.
    Refuse(String),
    /// What was begun is not asked for any more: what is gone stays gone, the rest stays.
    Cancel,
    Begin,
    Go(TerminateProgress),
}

/// Decides by what a person asked for and what was written of it.
pub fn decide_order(
    requested_cluster: Option<&str>,
    progress: Option<&str>,
    cluster: &str,
    is_allowed: bool,
) -> TerminateOrder {
    match (requested_cluster, progress) {
        (None, None) => TerminateOrder::Idle,
        _ if !is_allowed => TerminateOrder::Refuse(
            "nothing is taken away: the coordinator runs without --allow-terminate".to_owned(),
        ),
        (Some(requested), None) if requested != cluster => TerminateOrder::Refuse(format!(
            "nothing is taken away: the annotation names {requested:?}, and this cluster is {cluster}"
        )),
        (Some(requested), Some(text)) if requested == cluster => {
            match TerminateProgress::parse(text) {
                Some(progress) if progress.cluster == cluster => TerminateOrder::Go(progress),
                _ => TerminateOrder::Begin,
            }
        }
        (Some(_), None) => TerminateOrder::Begin,
        (_, Some(_)) => TerminateOrder::Cancel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::containership::kind_definitions;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn at(seconds: i64) -> Timestamp {
        NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn a_wrong_id_does_nothing_and_a_word_that_is_taken_back_ends_it() {
        let progress = serde_json::to_string(&TerminateProgress::new("c1", at(0))).unwrap();
        let begun = Some(progress.as_str());
        let cases = [
            (None, None, true, "Idle"),
            (Some("c2"), None, true, "Refuse(\"nothing is taken away: the annotation names"),
            (Some(""), None, true, "Refuse("),
            (Some("c1"), None, false, "Refuse(\"nothing is taken away: the coordinator runs"),
            (Some("c1"), begun, false, "Refuse(\"nothing is taken away: the coordinator runs"),
            (Some("c1"), None, true, "Begin"),
            (Some("c1"), begun, true, "Go("),
            (Some("c1"), Some("{"), true, "Begin"),
            (Some("c1"), Some(r#"{"cluster":"c1"}"#), true, "Begin"),
            (Some("c2"), begun, true, "Cancel"),
            (None, begun, true, "Cancel"),
            (None, begun, false, "Refuse(\"nothing is taken away: the coordinator runs"),
        ];
        for (asked, written, allowed, says) in cases {
            let order = format!("{:?}", decide_order(asked, written, "c1", allowed));
            assert!(order.starts_with(says), "{asked:?} {written:?} {allowed}: {order}");
        }
        // As of another cluster, from which the namespace was copied.
        let other = decide_order(Some("c9"), begun, "c9", true);
        assert_eq!(other, TerminateOrder::Begin);
    }

    #[test]
    fn agents_have_a_minute_and_those_that_say_nothing_are_named() {
        let begun = TerminateProgress::new("c1", at(0));
        let silent = ["m1".to_owned()];
        assert_eq!(begun.with_silent_agents(&[], at(1)).step, TerminateStep::Plugins);
        let waits = begun.with_silent_agents(&silent, at(59));
        assert_eq!(waits.step, TerminateStep::Agents);
        assert!(waits.waits.as_ref().unwrap().ends_with("on m1"), "{waits:?}");
        let late = waits.with_silent_agents(&silent, at(60));
        assert_eq!((late.step, late.silent.as_deref()), (TerminateStep::Plugins, Some("m1")));
        assert_eq!(late.waits, None);
        assert_eq!(late.with_next_step(at(61)).silent.as_deref(), Some("m1"), "it stays told");
        let many: Vec<String> = (0..25).map(|number| format!("m{number}")).collect();
        assert!(
            begun.with_silent_agents(&many, at(99)).silent.unwrap().ends_with("m19 and 5 more")
        );
    }

    #[test]
    fn each_kind_is_taken_away_in_one_step() {
        let mut step = TerminateStep::Agents;
        let mut steps = vec![step];
        while step != TerminateStep::Done {
            step = step.next_step();
            steps.push(step);
        }
        assert_eq!(steps.len(), 7);
        for definition in kind_definitions() {
            let plural = &definition.plural;
            let taken = steps.iter().filter(|step| step.removes_kind(plural)).count();
            assert_eq!(taken, 1, "{plural}");
        }
    }
}
