//! The watches, which say when to look, and what agents say of the keys on their machines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::Notify;

use super::{agenda::UpgradeAgenda, gauges::UpgradeGauges, users::WatchedUsers};
use crate::{
    api::containership::{ClusterUpgrade, User},
    runtime::{
        Runtime,
        watch::{follow, paged},
    },
};

/// What the watches saw, and word of it.
#[derive(Clone, Default)]
pub(crate) struct WatchedAgenda(Arc<AgendaCell>);

#[derive(Default)]
struct AgendaCell {
    agenda: Mutex<UpgradeAgenda>,
    stirred: Notify,
}

impl WatchedAgenda {
    /// Waits until a watch stirs; returns at once where one did since the last time.
    pub(crate) async fn stirred(&self) {
        self.0.stirred.notified().await;
    }

    pub(crate) fn needs_look(&self, now: Timestamp) -> bool {
        self.lock().needs_look(now)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.lock().is_under_way()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut UpgradeAgenda)) {
        change(&mut self.lock());
        self.0.stirred.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, UpgradeAgenda> {
        self.0.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the watches. Readiness waits until those that upgrades need were filled once.
pub(crate) fn start(
    client: &Client,
    namespace: &str,
    mut gauges: UpgradeGauges,
    runtime: &Runtime,
) -> (WatchedAgenda, WatchedUsers) {
    let (agenda, users) = (WatchedAgenda::default(), WatchedUsers::default());
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), namespace);
    let seen = agenda.clone();
    let upgrades = follow(
        "watch-clusterupgrades",
        watcher(upgrades, paged()).default_backoff(),
        move |event| {
            gauges.see(event);
            seen.change(|agenda| see_run(agenda, event));
        },
        Some(runtime.readiness().add("watch-clusterupgrades")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-clusterupgrades", upgrades);
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let (seen, words) = (agenda.clone(), users.clone());
    let nodes = follow(
        "watch-nodes",
        watcher(nodes, paged()).default_backoff(),
        move |event| {
            words.see_node(event);
            seen.change(|agenda| see_node(agenda, event));
        },
        Some(runtime.readiness().add("watch-nodes")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-nodes", nodes);
    let all: Api<User> = Api::namespaced(client.clone(), namespace);
    let seen = users.clone();
    let all = follow(
        "watch-users",
        watcher(all, paged()).default_backoff(),
        move |event| seen.see_user(event),
        None,
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-users", all);
    (agenda, users)
}

fn see_run(agenda: &mut UpgradeAgenda, event: &watcher::Event<ClusterUpgrade>) {
    match event {
        watcher::Event::Apply(run) | watcher::Event::InitApply(run) => agenda.see_run(run),
        watcher::Event::Delete(run) => {
            agenda.forget_run(run.metadata.name.as_deref().unwrap_or_default());
        }
        watcher::Event::Init => agenda.forget_runs(),
        watcher::Event::InitDone => {}
    }
}

fn see_node(agenda: &mut UpgradeAgenda, event: &watcher::Event<PartialObjectMeta<Node>>) {
    match event {
        watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
            agenda.see_node(&node.metadata);
        }
        watcher::Event::Delete(node) => {
            agenda.forget_node(node.metadata.name.as_deref().unwrap_or_default());
        }
        watcher::Event::Init => agenda.forget_nodes(),
        watcher::Event::InitDone => {}
    }
}
