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
        watch::{follow, paged},
    },
};

/// Starts the watches. Readiness waits until those that upgrades need were filled once.
pub(crate) fn start(
    client: &Client,
    namespace: &str,
    mut gauges: UpgradeGauges,
    runtime: &Runtime,
) -> (WatchedLedger<UpgradeAgenda>, WatchedLedger<UserLedger>) {
    let agenda = WatchedLedger::<UpgradeAgenda>::default();
    let users = WatchedLedger::<UserLedger>::default();
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), namespace);
    let seen = agenda.clone();
    let upgrades = follow(
        "watch-clusterupgrades",
        watcher(upgrades, paged()).default_backoff(),
        move |event| {
            gauges.see(event);
            seen.change(|agenda| {
                see_run(agenda, event);
                true
            });
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
            words.change(|users| users.see_node(event));
            seen.change(|agenda| {
                see_node(agenda, event);
                true
            });
        },
        Some(runtime.readiness().add("watch-nodes")),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-nodes", nodes);
    let all = watcher(Api::<User>::namespaced(client.clone(), namespace), paged());
    watch_into(runtime, "watch-users", all, &users, UserLedger::see_user);
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
