//! What is told of the node when something changed: the report, events, probes and metrics.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;

use super::Runner;
use crate::{
    pilot::{
        kube::{cluster::Cluster, events, namesake::Holder},
        node::{
            machine::{Life, Stage},
            metrics::Metrics,
            report,
        },
    },
    runtime::{
        Shutdown,
        events::{Events, Queue},
    },
};

/// Name of the component in events, upstream's.
const COMPONENT: &str = "generic-pilot";

impl Runner {
    /// Publishes what is to be reported, when it changed.
    pub(super) fn report(&mut self) {
        let now = Time(Timestamp::now());
        self.validating &= matches!(self.state.life, Life::Up(_));
        self.facts.successor = self.takeover.successor().cloned();
        // A generation counts as seen once it is known what to think of it.
        if let Some(pilot) = self.pilot.as_ref().filter(|_| !self.validating) {
            self.facts.generation = pilot.metadata.generation;
            self.facts.wanted_hash.clone_from(&pilot.spec.config_hash);
        }
        let (state, facts) = (&self.state, &self.facts);
        let database = self.settings.database;
        // Before the Pilot was seen, nothing may overwrite what an earlier pilot reported.
        if self.pilot.is_some() {
            let changed = self.reports.send_if_modified(|status| {
                let next = report::status(database, state, facts, &status.conditions, &now);
                let changed = *status != next;
                *status = next;
                changed
            });
            if changed && self.name == Holder::Ours {
                self.tell();
            }
        }
        self.update_eligibility();
        let (state, facts) = (&self.state, &self.facts);
        let ready = report::is_ready(state);
        self.metrics.ready.set(ready.into());
        self.metrics.set_role(facts.observation.role.filter(|_| matches!(state.life, Life::Up(_))));
        let gauges: BTreeMap<String, f64> = facts
            .observation
            .gauges
            .iter()
            .map(|(name, value)| (format!("navigator_{name}"), *value))
            .collect();
        let message = match &self.name {
            Holder::Theirs(why) => why.clone(),
            Holder::Open | Holder::Ours => report::phase(state, facts).to_string(),
        };
        self.answers.send_if_modified(|answers| {
            let changed = answers.ready != ready || answers.message != message;
            answers.ready = ready;
            // A process that survives KILL is stuck in the kernel: only a new container helps.
            answers.live = !matches!(state.life, Life::Stopping { stage: Stage::Kill, .. });
            answers.message = message;
            answers.gauges = gauges;
            changed
        });
    }

    /// Tells as events what changed since the last report.
    fn tell(&mut self) {
        let (Some(events), Some(pilot)) = (&self.events, &self.pilot) else { return };
        let now = self.reports.borrow().clone();
        for news in events::of(&self.told, &now) {
            events.tell(&pilot.object_ref(&()), news);
        }
        self.told = now;
    }
}

/// Where events go to; nowhere without an API.
pub(super) fn events(
    cluster: &Cluster,
    metrics: &Metrics,
    shutdown: Shutdown,
) -> (Queue, impl Future<Output = ()> + Send + use<>) {
    let events = Events::new(cluster.hasty_client(), COMPONENT, cluster.name().to_owned());
    Queue::new(events, metrics.events_dropped.clone(), shutdown)
}
