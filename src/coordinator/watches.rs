//! The two watches, which say when to look.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{Stream, StreamExt};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::Notify;
use tracing::warn;

use super::{agenda::UpgradeAgenda, gauges::UpgradeGauges};
use crate::{
    api::containership::ClusterUpgrade,
    error::chain,
    runtime::{Runtime, Shutdown, readiness::ReadinessHandle},
};

/// Most objects of one answer while a watch is filled.
const PAGE: u32 = 500;

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

/// Starts the watches. Readiness waits until each was filled once.
pub(crate) fn start(
    client: &Client,
    namespace: &str,
    mut gauges: UpgradeGauges,
    runtime: &Runtime,
) -> WatchedAgenda {
    let agenda = WatchedAgenda::default();
    let config = || watcher::Config::default().page_size(PAGE);
    let upgrades: Api<ClusterUpgrade> = Api::namespaced(client.clone(), namespace);
    let seen = agenda.clone();
    let upgrades = follow(
        "watch-clusterupgrades",
        watcher(upgrades, config()).default_backoff(),
        move |event| {
            gauges.see(event);
            seen.change(|agenda| see_run(agenda, event));
        },
        runtime.readiness().add("watch-clusterupgrades"),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-clusterupgrades", upgrades);
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    let seen = agenda.clone();
    let nodes = follow(
        "watch-nodes",
        watcher(nodes, config()).default_backoff(),
        move |event| {
            seen.change(|agenda| match event {
                watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
                    agenda.see_node(&node.metadata);
                }
                watcher::Event::Delete(node) => {
                    agenda.forget_node(node.metadata.name.as_deref().unwrap_or_default());
                }
                watcher::Event::Init => agenda.forget_nodes(),
                watcher::Event::InitDone => {}
            });
        },
        runtime.readiness().add("watch-nodes"),
        runtime.shutdown(),
    );
    runtime.tasks().spawn_vital("watch-nodes", nodes);
    agenda
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

/// Hands on what a watch tells, until shutdown.
async fn follow<K: Debug>(
    task: &'static str,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    mut see: impl FnMut(&watcher::Event<K>),
    ready: ReadinessHandle,
    shutdown: Shutdown,
) {
    // Dropped once the watch is filled.
    let mut ready = Some(ready);
    let mut last_error = String::new();
    let mut events = Box::pin(events);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = shutdown.triggered() => return,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                let text = chain(&error).to_string();
                if text != last_error {
                    warn!(watch = task, error = text, "Watch failed, trying again");
                    last_error = text;
                }
            }
            Some(Ok(event)) => {
                last_error.clear();
                see(&event);
                if matches!(event, watcher::Event::InitDone) {
                    drop(ready.take());
                }
            }
        }
    }
}
