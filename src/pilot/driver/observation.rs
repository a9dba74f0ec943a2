//! A database's state at one moment, as its driver asked for it.
//!
//! Owns the forms of blockers, gauges and endpoints, so that a driver says what it found and no
//! more. A gauge without a figure is left out, and a question that the database left open is noted.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr};

use super::ReplicationRole;
use crate::{
    api::{
        pilot_part::{PilotPart, PilotParts},
        predicate::Predicate,
        v1beta1::{Endpoint, Health},
    },
    pilot::query_answer::{QueryAnswer, UnansweredQuery},
};

/// What the driver found when it asked the database for its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeObservation {
    /// The database answers at all: liveness, never dependent on other nodes.
    pub alive: bool,
    /// The node joined and serves clients: readiness.
    pub serving: bool,
    /// The node's role; `None` where all nodes are alike, and as long as the role is not known.
    pub role: Option<ReplicationRole>,
    /// How far a node is that does not serve, as the reason of the Ready condition: `Starting`,
    /// `Joining`, `Leaving`.
    pub reason: Option<&'static str>,
    pub message: Option<String>,
    pub version: Option<String>,
    /// The database's own id of this node.
    pub node_id: Option<String>,
    /// The database's own id of its cluster, where it has one.
    pub cluster_id: Option<String>,
    pub health: Option<Health>,
    /// Why the database refuses writes for want of room while it serves.
    pub refuses_writes: Option<String>,
    /// Rules that hold now, each with a sentence.
    pub blockers: Vec<(&'static Predicate, String)>,
    /// The database misses nodes of its cluster, which may have other addresses by now: the pilot
    /// looks at the peers more often.
    pub misses_peers: bool,
    /// Questions that the database did not answer. While there is one, all blockers of earlier
    /// observations stay.
    pub not_heard: Vec<UnansweredQuery>,
    /// Conditions that no other database has, out of
    /// [`DrivenDatabase::conditions`](crate::pilot::database::DrivenDatabase).
    pub conditions: Vec<DatabaseCondition>,
    pub endpoints: Vec<Endpoint>,
    /// Gauges for `/metrics`, name without prefix → value.
    pub gauges: BTreeMap<&'static str, f64>,
    /// The database's own part of the report.
    pub detail: PilotParts,
    /// Why the pilot could not write a part of the observation to the volume, or read it back: a
    /// trouble of the pilot, which says nothing about the database.
    pub unsaved: Option<String>,
}

/// A condition of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseCondition {
    pub type_: &'static str,
    /// `None`: the condition's status is Unknown.
    pub status: Option<bool>,
    pub reason: Cow<'static, str>,
    pub message: String,
}

impl NodeObservation {
    /// Begins the observation of a database that answered. `unready`: why the node does not serve,
    /// as reason and message; `None` where it serves.
    pub fn from_readiness(
        version: Option<String>,
        unready: Option<(&'static str, String)>,
    ) -> Self {
        let mut observation = Self { alive: true, serving: true, version, ..Self::default() };
        if let Some((reason, message)) = unready {
            observation.hold_back(reason, message);
        }
        observation
    }

    /// Reports the node as one that does not serve.
    pub fn hold_back(&mut self, reason: &'static str, message: impl Into<String>) {
        self.serving = false;
        (self.reason, self.message) = (Some(reason), Some(message.into()));
    }

    /// Does the pilot need to know of changes among the peers soon?
    pub fn is_unsettled(&self) -> bool {
        !self.serving || self.misses_peers || !self.not_heard.is_empty()
    }

    /// Adds a rule that holds now, and what broke it.
    pub fn add_blocker(&mut self, rule: &'static Predicate, reason: impl Into<String>) {
        self.blockers.push((rule, reason.into()));
    }

    /// Sets a gauge, where there is a figure for it.
    pub fn set_gauge(&mut self, name: &'static str, figure: impl GaugeFigure) {
        self.gauges.extend(figure.value().map(|value| (name, value)));
    }

    /// Adds an address at which the database listens.
    pub fn add_endpoint(&mut self, name: &str, host: IpAddr, port: u16) {
        let (name, host) = (name.to_owned(), host.to_string());
        self.endpoints.push(Endpoint { name, host, port: port.into() });
    }

    /// Returns an answer; a question that the database left open is reported.
    pub fn record_answer<T>(&mut self, answer: QueryAnswer<T>) -> Option<T> {
        answer.or_note(&mut self.not_heard)
    }

    /// Changes the database's own part, where it is there.
    pub fn change_part<P: PilotPart>(&mut self, change: impl FnOnce(&mut P::Status)) {
        if let Some(mut part) = self.detail.get::<P::Status>(P::NAMES.word) {
            change(&mut part);
            self.detail.set(P::NAMES.word, &part);
        }
    }

    /// Reports the database's own part.
    pub fn set_part<P: PilotPart>(&mut self, part: &P::Status) {
        self.detail.set(P::NAMES.word, part);
    }
}

/// A figure that a gauge can show.
pub trait GaugeFigure {
    /// Returns the gauge's value; `None` where the figure is not known.
    fn value(self) -> Option<f64>;
}

impl GaugeFigure for f64 {
    fn value(self) -> Option<f64> {
        Some(self)
    }
}

impl GaugeFigure for i64 {
    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point")]
    fn value(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl GaugeFigure for usize {
    fn value(self) -> Option<f64> {
        i64::try_from(self).unwrap_or(i64::MAX).value()
    }
}

impl<T: GaugeFigure> GaugeFigure for Option<T> {
    fn value(self) -> Option<f64> {
        self.and_then(T::value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_serves_unless_there_is_a_reason_and_a_gauge_needs_a_figure() {
        let seen = NodeObservation::from_readiness(Some("1.0".to_owned()), None);
        assert!(seen.alive && seen.serving && seen.reason.is_none());
        let mut seen = NodeObservation::from_readiness(None, Some(("Joining", "joins".to_owned())));
        assert_eq!((seen.alive, seen.serving, seen.reason), (true, false, Some("Joining")));
        seen.set_gauge("nodes", 3_usize);
        seen.set_gauge("bytes", None::<i64>);
        assert_eq!(seen.gauges, BTreeMap::from([("nodes", 3.0)]));
    }

    #[test]
    fn a_question_that_was_left_open_is_reported() {
        let mut seen = NodeObservation::default();
        let open = UnansweredQuery::new("/health", "no answer");
        assert_eq!(seen.record_answer(QueryAnswer::Said(1)), Some(1));
        assert_eq!(seen.record_answer(QueryAnswer::<u8>::Not(open.clone())), None);
        assert_eq!(seen.not_heard, [open]);
    }
}
