//! What is wanted of the node, and whether this pilot may do it.

use tracing::{info, warn};

use crate::{
    api::v1beta1::{Pilot, PilotIntent, PilotSpec},
    pilot::{
        kube::{
            intent::{self, IntentSnapshot},
            name_holder::{self, NameHolder},
        },
        node::machine::{MachineEvent, NodeIntent},
    },
};

pub(super) struct IntentTracker {
    pub(super) intent: intent::IntentReceiver,
    /// Which pilot holds the node's name. While another one does, this pilot does nothing of the
    /// intent.
    pub(super) namesake: name_holder::NameHolderReceiver,
    pub(super) holder: NameHolder,
    /// The database was stopped because another pilot holds the name, whatever was wanted.
    displaced: bool,
    /// The Pilot as last seen.
    pub(super) pilot: Option<Pilot>,
    /// The Pilot is from the disk: the API did not answer.
    pub(super) remembered: bool,
}

/// An intent that was looked at.
pub(super) struct IntentUpdate {
    /// No Pilot had been seen before.
    pub(super) first: bool,
    /// The intent differs from the last one.
    pub(super) changed: bool,
    /// Another pilot held the name in between, and is gone.
    pub(super) goes_on: bool,
    /// `None`: this release does not know what is wanted.
    pub(super) want: Option<NodeIntent>,
    pub(super) restart: Option<String>,
}

impl IntentTracker {
    pub(super) fn new(
        intent: intent::IntentReceiver,
        namesake: name_holder::NameHolderReceiver,
    ) -> Self {
        let holder = namesake.borrow().clone();
        Self { intent, namesake, holder, displaced: false, pilot: None, remembered: false }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.holder.is_ours()
    }

    /// Takes a change of the holder of the name. Returns the event that stops a database which runs
    /// in another pilot's place.
    pub(super) fn heed_namesake(&mut self) -> Option<MachineEvent> {
        self.holder = self.namesake.borrow_and_update().clone();
        let NameHolder::Theirs(why) = &self.holder else { return None };
        if self.displaced {
            return None;
        }
        warn!(why, "Another pilot is this node; this one runs no database and reports nothing");
        self.displaced = true;
        Some(MachineEvent::Intent { want: NodeIntent::Stopped, restart: None, changed: false })
    }

    /// Takes the intent as it is now; `None` while the name is not this pilot's, or without an
    /// intent.
    pub(super) fn take_update(&mut self) -> Option<IntentUpdate> {
        if !self.is_ours() {
            return None;
        }
        let IntentSnapshot { pilot, remembered } = self.intent.borrow_and_update().clone()?;
        let changed = self.pilot.as_ref().is_none_or(|old_pilot| {
            old_pilot.spec != pilot.spec
                || old_pilot.metadata.annotations != pilot.metadata.annotations
        });
        let goes_on = std::mem::take(&mut self.displaced);
        let (want, restart) = wanted_by(&pilot.spec);
        if goes_on {
            info!("The other pilot is gone");
        }
        if changed || goes_on {
            info!(?want, remembered, generation = pilot.metadata.generation, "Took a new intent");
            self.remembered = remembered;
        }
        let first = self.pilot.replace(pilot).is_none();
        Some(IntentUpdate { first, changed, goes_on, want, restart })
    }
}

/// Does a spec want the database to be restarted in its instance? `started_for` is the hash of the
/// configuration that was wanted when the database was started.
pub(super) fn is_restart_ordered(spec: &PilotSpec, started_for: Option<&str>) -> bool {
    let ordered_hash = spec.restart_for.as_deref();
    ordered_hash.is_some()
        && ordered_hash == spec.config_hash.as_deref()
        && ordered_hash != started_for
}

/// Returns what a spec wants of the node, where that is known, and the restart that it asks for.
pub(super) fn wanted_by(spec: &PilotSpec) -> (Option<NodeIntent>, Option<String>) {
    let want = match spec.phase.clone().unwrap_or_default() {
        PilotIntent::Decommissioned => Some(NodeIntent::Decommissioned),
        PilotIntent::Stopped => Some(NodeIntent::Stopped),
        PilotIntent::Fenced => Some(NodeIntent::Fenced),
        PilotIntent::Running => Some(NodeIntent::Running),
        PilotIntent::Other(_) => None,
    };
    (want, spec.restarted_at.as_ref().map(|time| time.0.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_acted_upon_only_for_the_configuration_that_it_names() {
        let ordered = |restart_for: Option<&str>, config_hash: &str, running| {
            let spec = PilotSpec {
                restart_for: restart_for.map(str::to_owned),
                config_hash: Some(config_hash.to_owned()),
                ..PilotSpec::default()
            };
            is_restart_ordered(&spec, running)
        };
        assert!(ordered(Some("two"), "two", Some("one")));
        assert!(!ordered(Some("two"), "two", Some("two")), "it was carried out");
        assert!(!ordered(Some("two"), "three", Some("one")), "another one is wanted by now");
        assert!(!ordered(None, "two", Some("one")), "it waits for its turn");
    }
}
