//! Caches of the objects that the node reads, each filled by a watch, and a notifier that wakes a
//! task after every change.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::StreamExt;
use kube::{
    Api,
    runtime::{
        WatchStreamExt,
        reflector::{Store, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tracing::warn;

use crate::{error::chain, runtime::Runtime};

/// Wakes the task that waits, or else the next one that will wait. Many notifications count as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeNotifier(Arc<Notify>);

impl ChangeNotifier {
    pub(crate) fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for a notification since the last wait. One task waits at a time.
    pub(crate) async fn wait_for_change(&self) {
        self.0.notified().await;
    }
}

/// Starts a cache that is kept for as long as the process runs. Each of the notifiers is rung when
/// the cache was filled, and with every change.
pub(crate) fn watch_objects<K>(
    rt: &Runtime,
    task: &'static str,
    api: Api<K>,
    dynamic: K::DynamicType,
    bells: &[&ChangeNotifier],
) -> Store<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Send + Sync + Unpin,
{
    let mut writer = Writer::new(dynamic);
    let store = writer.as_reader();
    let bells: Vec<ChangeNotifier> = bells.iter().map(|&bell| bell.clone()).collect();
    let shutdown = rt.shutdown();
    rt.tasks().spawn_vital(task, async move {
        let mut last_error = String::new();
        let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
        loop {
            let event = tokio::select! {
                // `next` can be cancelled: the stream goes on where it was.
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
                    writer.apply_watcher_event(&event);
                    if matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
                        continue;
                    }
                    last_error.clear();
                    bells.iter().for_each(ChangeNotifier::notify);
                }
            }
        }
    });
    store
}
