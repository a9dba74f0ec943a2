//! The watches, which say when to look, and what agents say of the keys on their machines.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};

use super::{
    agenda::UpgradeAgenda,
    gauges::UpgradeGauges,
    stirring::{WatchedLedger, watch_into},
    users::UserLedger,
};
use crate::{
    api::containership::{ClusterUpgrade, User},
    runtime::{
        Runtime,
        watch::{follow_watch, paged_config},
    },
};

/// Starts the watches. Readiness waits until those that upgrades need were filled once.
pub(crate) fn start_watches(
    client: &Client,
    namespace: &str,
    mut gauges: UpgradeGauges,
    runtime: &Runtime,
) -> (WatchedLedger<UpgradeAgenda>, WatchedLedger<UserLedger>) {
    let agenda = WatchedLedger::<UpgradeAgenda>::default();
    let users = WatchedLedger::<UserLedger>::default();
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), namespace);
    let agenda_handle = agenda.clone();
    let upgrades = follow_watch(
        "watch-clusterupgrades",
        watcher(upgrades, paged_config()).default_backoff(),
        move |event| {
            gauges.record_event(event);
            agenda_handle.modify(|agenda| {
                record_upgrade_event(agenda, event);
                true
            });
        },
        Some(runtime.readiness().add("watch-clusterupgrades")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-clusterupgrades", upgrades);
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let (agenda_handle, users_handle) = (agenda.clone(), users.clone());
    let nodes = follow_watch(
        "watch-nodes",
        watcher(nodes, paged_config()).default_backoff(),
        move |event| {
            users_handle.modify(|users| users.record_node(event));
            agenda_handle.modify(|agenda| {
                record_node_event(agenda, event);
                true
            });
        },
        Some(runtime.readiness().add("watch-nodes")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-nodes", nodes);
    let user_events = watcher(Api::<User>::namespaced(client.clone(), namespace), paged_config());
    watch_into(runtime, "watch-users", user_events, &users, UserLedger::record_user);
    (agenda, users)
}

fn record_upgrade_event(agenda: &mut UpgradeAgenda, event: &watcher::Event<ClusterUpgrade>) {
    match event {
        watcher::Event::Apply(upgrade) | watcher::Event::InitApply(upgrade) => {
            agenda.record_upgrade(upgrade);
        }
        watcher::Event::Delete(upgrade) => {
            agenda.remove_upgrade(upgrade.metadata.name.as_deref().unwrap_or_default());
        }
        watcher::Event::Init => agenda.clear_upgrades(),
        watcher::Event::InitDone => {}
    }
}

fn record_node_event(agenda: &mut UpgradeAgenda, event: &watcher::Event<PartialObjectMeta<Node>>) {
    match event {
        watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
            agenda.record_node(&node.metadata);
        }
        watcher::Event::Delete(node) => {
            agenda.remove_node(node.metadata.name.as_deref().unwrap_or_default());
        }
        watcher::Event::Init => agenda.clear_nodes(),
        watcher::Event::InitDone => {}
    }
}
