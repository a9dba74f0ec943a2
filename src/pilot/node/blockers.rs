//! Remembers since when a node may not stop or leave, and what its database last named against it.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{Timestamp, Unit},
};

use crate::api::{
    predicate::{HOLDINGS_KNOWN, Predicate},
    v1beta1::{Blocker, NodeChange},
};

/// The rules that hold now, each with the time since which it holds without a break.
#[derive(Debug, Default)]
pub struct StopBlockers {
    known: BTreeMap<String, Blocker>,
}

impl StopBlockers {
    /// Goes on from the blockers that an earlier program of the pilot reported.
    pub fn from_reported(reported: &[Blocker]) -> Self {
        let entries = reported.iter().map(|blocker| (blocker.predicate.clone(), blocker.clone()));
        Self { known: entries.collect() }
    }

    /// Turns the rules that hold now, each with a sentence, into what the Pilot reports.
    /// `unanswered` names the questions that the database left open. While there are any, rules
    /// that held before still hold, and so does [`HOLDINGS_KNOWN`].
    pub fn update(
        &mut self,
        active_rules: Vec<(&'static Predicate, String)>,
        unanswered: Option<String>,
    ) -> Vec<Blocker> {
        let now = current_time();
        let old_blockers = std::mem::take(&mut self.known);
        let unanswered_blocker = unanswered
            .map(|questions| (&HOLDINGS_KNOWN, format!("does not say what it holds: {questions}")));
        let is_open = unanswered_blocker.is_some();
        let mut reported: Vec<Blocker> = Vec::new();
        for (rule, message) in active_rules.into_iter().chain(unanswered_blocker) {
            let since = old_blockers.get(rule.name).and_then(|blocker| blocker.since.clone());
            reported.push(Blocker {
                predicate: rule.name.to_owned(),
                against: rule.against.to_vec(),
                message,
                since: Some(since.unwrap_or_else(|| now.clone())),
                observed_time: Some(now.clone()),
            });
        }
        if is_open {
            let is_missing =
                |rule: &String| reported.iter().all(|blocker| blocker.predicate != *rule);
            let kept_blockers: Vec<_> =
                old_blockers.into_iter().filter(|(rule, _)| is_missing(rule)).collect();
            reported.extend(kept_blockers.into_iter().map(|(_, blocker)| blocker));
        }
        let entries = reported.iter().map(|blocker| (blocker.predicate.clone(), blocker.clone()));
        self.known = entries.collect();
        reported
    }
}

/// Does this say only why the database does not let its node leave?
pub fn is_refusal(blocker: &Blocker) -> bool {
    blocker.blocked_changes() == [NodeChange::Leave]
}

/// Returns the time in whole seconds, as Kubernetes objects carry it.
pub fn current_time() -> Time {
    let now = Timestamp::now();
    Time(now.round(Unit::Second).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS_UP: Predicate = Predicate::against_stop("PeersUp", "another node is down");
    const STREAMS_IDLE: Predicate = Predicate::against_stop("StreamsIdle", "streams run");

    fn since(past: &Time, rule: &str) -> StopBlockers {
        let blocker = Blocker {
            predicate: rule.to_owned(),
            against: vec![NodeChange::Stop],
            message: "a is down".to_owned(),
            since: Some(past.clone()),
            observed_time: Some(past.clone()),
        };
        StopBlockers::from_reported(&[blocker])
    }

    #[test]
    fn a_blocker_keeps_its_since_until_it_is_gone() {
        let past = Time(Timestamp::UNIX_EPOCH);
        let mut blockers = since(&past, "PeersUp");
        let holds = || vec![(&PEERS_UP, "a is down".to_owned())];
        assert_eq!(blockers.update(holds(), None)[0].since, Some(past.clone()));
        assert!(blockers.update(Vec::new(), None).is_empty());
        assert_ne!(blockers.update(holds(), None)[0].since, Some(past));
    }

    #[test]
    fn a_blocker_says_what_its_rule_speaks_against_and_of_old_pilots_a_stop() {
        const BOTH: Predicate =
            Predicate { against: &[NodeChange::Stop, NodeChange::Leave], ..PEERS_UP };
        let told = StopBlockers::default().update(vec![(&BOTH, String::new())], None).remove(0);
        let are = |told: &Blocker| {
            [NodeChange::Stop, NodeChange::Join, NodeChange::Leave].map(|it| told.is_against(&it))
        };
        assert_eq!(are(&told), [true, false, true]);
        let old = Blocker { against: Vec::new(), ..told };
        assert_eq!(are(&old), [true, false, false]);
    }

    #[test]
    fn no_blocker_goes_away_while_something_was_not_heard() {
        let past = Time(Timestamp::UNIX_EPOCH);
        let mut blockers = since(&past, "PeersUp");
        for _ in 0..2 {
            let reported = blockers.update(vec![(&STREAMS_IDLE, String::new())], Some("x".into()));
            let rules: Vec<_> = reported.iter().map(|one| one.predicate.as_str()).collect();
            assert_eq!(rules, ["StreamsIdle", HOLDINGS_KNOWN.name, "PeersUp"]);
            assert!(reported[1].message.ends_with("holds: x"), "{}", reported[1].message);
            assert_eq!(
                (&reported[2].since, &reported[2].observed_time),
                (&Some(past.clone()), &Some(past.clone()))
            );
        }
        assert!(blockers.update(Vec::new(), None).is_empty());
    }
}
