//! Remembers since when a node may not stop.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{Timestamp, Unit},
};

use crate::api::v1beta1::Blocker;

/// Rule → since when it has held without a break.
#[derive(Debug, Default)]
pub struct Blockers {
    since: BTreeMap<&'static str, Time>,
}

impl Blockers {
    /// Turns the rules that hold now, each with a sentence, into what the Pilot reports.
    pub fn update(&mut self, holding: Vec<(&'static str, String)>) -> Vec<Blocker> {
        let now = now();
        self.since.retain(|rule, _| holding.iter().any(|(held, _)| held == rule));
        holding
            .into_iter()
            .map(|(rule, message)| Blocker {
                predicate: rule.to_owned(),
                message,
                since: Some(self.since.entry(rule).or_insert_with(|| now.clone()).clone()),
                observed_time: Some(now.clone()),
            })
            .collect()
    }
}

/// The time in whole seconds, as objects carry it.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(now.round(Unit::Second).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocker_keeps_its_since_until_it_is_gone() {
        let mut blockers = Blockers::default();
        let past = Time(Timestamp::UNIX_EPOCH);
        blockers.since.insert("PeersUp", past.clone());
        let reported = blockers.update(vec![("PeersUp", "a is down".to_owned())]);
        assert_eq!(reported[0].since, Some(past.clone()));
        assert!(blockers.update(Vec::new()).is_empty());
        assert_ne!(blockers.update(vec![("PeersUp", String::new())])[0].since, Some(past));
    }
}
