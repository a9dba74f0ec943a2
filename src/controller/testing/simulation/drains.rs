//! Drains machines in the simulation: a pod is evicted whenever Kubernetes lets it go.
//!
//! A node that comes back lacks data for a while, and pilots report late. Meanwhile only the
//! controller's own knowledge keeps the other nodes from being evicted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::Rng;
use serde_json::Value;

use super::Simulation;
use crate::controller::{
    desired_state::ObjectSettings,
    heartbeats::HeartbeatAge,
    observe::{BlockerFacts, Member, ObservedPool},
    plan::{Plan, drain_hold, node_count},
    resources::{PreparedObject, disruption_budget, former_budget},
};

/// Number of ticks in which a node that came back catches up on data.
const CATCHES_UP: u32 = 4;

/// The PodDisruptionBudgets that limit evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budgets {
    OfCluster,
    /// One budget for each pool, as releases before 0.3 made them.
    OfPools,
}

#[derive(Debug)]
pub(crate) struct Drains {
    budgets: Budgets,
    /// Specs of the budgets that were written last, each with the pool whose pods it selects.
    written: Vec<(Option<String>, Value)>,
    serving: BTreeSet<String>,
    members: BTreeSet<String>,
    /// Nodes that came back, and for how many ticks they still lack data.
    behind: BTreeMap<String, u32>,
    /// Ticks since each pilot reported; `back` has the ticks since each node came back.
    silence: BTreeMap<String, u64>,
    back: BTreeMap<String, u64>,
    pub(crate) evictions: usize,
    /// How many times two nodes or more were without their data at a time, or data were deleted.
    pub(crate) lost: usize,
}

impl Drains {
    fn new(budgets: Budgets) -> Self {
        Self {
            budgets,
            written: Vec::new(),
            serving: BTreeSet::new(),
            members: BTreeSet::new(),
            behind: BTreeMap::new(),
            silence: BTreeMap::new(),
            back: BTreeMap::new(),
            evictions: 0,
            lost: 0,
        }
    }
}

impl Simulation {
    /// Turns drains on: from now on nodes catch up when they come back, and their pods can be
    /// evicted.
    pub(crate) fn drained_under(&mut self, budgets: Budgets) {
        let members = self.observed.pools.iter().flat_map(|pool| pool.members.values());
        let serving = members.filter(|member| member.is_serving());
        let serving = serving.map(|member| member.name.clone()).collect();
        self.drains =
            Some(Drains { serving, members: self.joined.clone(), ..Drains::new(budgets) });
        self.reconcile();
    }

    /// Writes the budgets, after a plan and before its step.
    pub(super) fn write_budgets(&mut self, planned: &Plan) {
        let Self { desired, observed, drains, .. } = self;
        let Some(drains) = drains else { return };
        let budgets = drains.budgets;
        let settings = ObjectSettings {
            pilot_image: "p".into(),
            store_id: "s".into(),
            owner_references: false,
        };
        let spec = |resource| {
            let PreparedObject { mut body, .. } = PreparedObject::from(resource);
            body["spec"].take()
        };
        drains.written = match budgets {
            Budgets::OfCluster => {
                let hold = drain_hold(desired, observed, planned);
                let budget = disruption_budget(desired, observed, &settings, hold.as_ref());
                vec![(None, spec(budget))]
            }
            Budgets::OfPools => {
                let one = |pool| spec(former_budget(desired, &settings, pool));
                let all = desired.pools.iter().map(|pool| (Some(pool.name.clone()), one(pool)));
                all.collect()
            }
        };
        if planned.step.is_some()
            && budgets == Budgets::OfCluster
            && !self.desired.stopped
            && node_count(&self.desired, &self.observed) > 1
        {
            let free = self
                .pods()
                .find(|(pool, member)| member.is_serving() && self.lets_go(pool, member));
            self.rule(free.is_none(), "the budget is closed before a step");
        }
    }

    /// Returns the nodes that have a pod, with their pools.
    fn pods(&self) -> impl Iterator<Item = (&ObservedPool, &Member)> {
        let pools = self.observed.pools.iter();
        let members = pools.flat_map(|pool| pool.members.values().map(move |one| (pool, one)));
        members.filter(|(_, member)| member.pod.is_some())
    }

    /// Applies Kubernetes' rule for evictions (registry/core/pod/storage/eviction.go,
    /// controller/disruption).
    fn lets_go(&self, pool: &ObservedPool, member: &Member) -> bool {
        let Some(pod) = &member.pod else { return false };
        if !pod.started {
            return true;
        }
        let drains = self.drains.as_ref().expect("evictions are simulated");
        let mut over =
            drains.written.iter().filter(|(of, _)| of.as_ref().is_none_or(|of| *of == pool.name));
        let (Some((of, spec)), None) = (over.next(), over.next()) else {
            // A pod under no budget may be evicted; under two budgets it may not.
            return !drains.written.iter().any(|(of, _)| of.as_ref() == Some(&pool.name));
        };
        let selected =
            || self.pods().filter(|(pool, _)| of.as_ref().is_none_or(|of| *of == pool.name));
        let whole =
            |member: &Member| member.pod.as_ref().is_some_and(|p| p.ready && !p.terminating);
        let healthy =
            i64::try_from(selected().filter(|(_, member)| whole(member)).count()).unwrap();
        let wanted = match (spec["minAvailable"].as_i64(), spec["maxUnavailable"].as_i64()) {
            (Some(least), None) => least,
            (None, Some(most)) => {
                let sets: BTreeMap<_, _> =
                    selected().map(|(pool, _)| (&pool.name, pool.replicas())).collect();
                i64::from(sets.values().sum::<u32>()) - most
            }
            both => panic!("{both:?}"),
        };
        let ignored = spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        let unready = !pod.ready && (ignored || (healthy >= wanted && wanted > 0));
        unready || healthy > wanted
    }

    /// Tries to evict each pod once, in random order.
    pub(crate) fn drain(&mut self) {
        let mut names: Vec<String> = self.pods().map(|(_, member)| member.name.clone()).collect();
        while !names.is_empty() {
            let name = names.swap_remove(self.rng.random_range(0..names.len()));
            let (pool, member) =
                self.pods().find(|(_, member)| member.name == name).expect("it is there");
            let pod = member.pod.as_ref().expect("it has a pod");
            if pod.terminating || !self.lets_go(pool, member) {
                continue;
            }
            if member.dies_with_pod() {
                self.note(format!("the data of {name} go"));
                self.drains.as_mut().expect("evictions are simulated").lost += 1;
                continue;
            }
            self.each(&name, |member| {
                let pod = member.pod.as_mut().expect("it has a pod");
                (pod.terminating, pod.ready) = (true, false);
            });
            self.note(format!("{name} is evicted"));
            self.drains.as_mut().expect("evictions are simulated").evictions += 1;
            self.count_lost();
        }
    }

    /// Lets time pass: nodes that came back catch up, and some pilots report what they see.
    pub(super) fn report(&mut self) {
        let Some(mut drains) = self.drains.take() else { return };
        let Self { observed, joined, rng, .. } = self;
        let members = || observed.pools.iter().flat_map(|pool| pool.members.values());
        let serving: BTreeSet<String> = members()
            .filter(|member| member.is_serving())
            .map(|member| member.name.clone())
            .collect();
        drains.behind.retain(|name, turns| {
            *turns -= u32::from(serving.contains(name));
            *turns > 0 && joined.contains(name)
        });
        for name in serving.difference(&drains.serving) {
            // A new node has its data when it serves; one that comes back has to catch up.
            if drains.members.contains(name) {
                drains.behind.insert(name.clone(), CATCHES_UP);
            }
            drains.back.insert(name.clone(), 0);
        }
        drains.members.clone_from(joined);
        drains.serving = serving;
        drains.back.values_mut().for_each(|turns| *turns += 1);
        let moves = !drains.behind.is_empty();
        for member in observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            let Some(pilot) = member.pilot.as_mut().filter(|_| member.pod.is_some()) else {
                continue;
            };
            let silence = drains.silence.entry(member.name.clone()).or_default();
            *silence += 1;
            if rng.random_bool(0.5) {
                *silence = 0;
                let rule = || BlockerFacts::of_stop("NoShardMovement", "shards recover");
                pilot.blockers = moves.then(rule).into_iter().collect();
            }
            let back = drains.back.get(&member.name);
            pilot.hearing = HeartbeatAge {
                ago: Duration::from_secs(*silence),
                heard: true,
                returned: back.map_or(Duration::MAX, |turns| Duration::from_secs(turns - 1)),
                gone: Duration::MAX,
            };
        }
        self.drains = Some(drains);
        self.count_lost();
    }

    /// Counts a loss where more than one node is without its data: one copy may be missing, not
    /// two.
    pub(super) fn count_lost(&mut self) {
        let Some(drains) = &self.drains else { return };
        let members = || self.observed.pools.iter().flat_map(|pool| pool.members.values());
        let whole =
            |member: &&Member| member.is_serving() && !drains.behind.contains_key(&member.name);
        let whole: BTreeSet<&String> = members().filter(whole).map(|member| &member.name).collect();
        let away = self.joined.iter().filter(|name| !whole.contains(name)).count();
        if away > 1 {
            self.note("the quorum is lost");
            self.drains.as_mut().expect("evictions are simulated").lost += 1;
        }
    }
}
