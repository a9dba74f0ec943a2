//! The webhooks that there are: both kinds of webhook configurations of the core cluster, watched.
//!
//! The webhooks are unknown until both kinds were read once; until then writes wait, and are
//! refused after a while. When a watch breaks, the webhooks that were last known still count.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, watcher, watcher::Event},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

use super::{
    client::WebhookClients,
    hook::{AdmissionWebhook, WebhookConfiguration},
};
use crate::{apiserver::kube_client::WatchBackoff, error::chain, runtime::Runtime};

/// Webhooks whose rules may match our kinds, in the order of their configurations.
#[derive(Default)]
pub(super) struct ConfiguredWebhooks {
    pub(super) mutating: Vec<Arc<AdmissionWebhook>>,
    pub(super) validating: Vec<Arc<AdmissionWebhook>>,
}

impl ConfiguredWebhooks {
    pub(super) fn is_empty(&self) -> bool {
        self.mutating.is_empty() && self.validating.is_empty()
    }
}

/// Receiver of the latest webhooks; absent until both kinds of configurations were read.
pub(super) type WebhooksReceiver = watch::Receiver<Option<Arc<ConfiguredWebhooks>>>;

/// Which kinds of webhook configurations are read.
#[derive(Clone, Copy, Debug)]
pub struct EnabledWebhookTypes {
    pub mutating: bool,
    pub validating: bool,
}

enum ConfigurationEvent {
    Mutating(Event<MutatingWebhookConfiguration>),
    Validating(Event<ValidatingWebhookConfiguration>),
}

/// The known configurations of one kind, by name.
struct KnownConfigurations<K> {
    now: BTreeMap<String, K>,
    /// Configurations of a list that is being read.
    next: BTreeMap<String, K>,
    is_complete: bool,
}

/// Follows the webhook configurations of the types in `enabled_types`. Readiness waits until they
/// were read.
pub(super) fn watch_configurations(
    client: &Client,
    enabled_types: EnabledWebhookTypes,
    group: &'static str,
    rt: &Runtime,
) -> WebhooksReceiver {
    let readiness_guard = rt.readiness().add("admission-webhooks");
    let (sender, receiver) = watch::channel(None);
    let mutating =
        configuration_events(client, enabled_types.mutating, ConfigurationEvent::Mutating);
    let validating =
        configuration_events(client, enabled_types.validating, ConfigurationEvent::Validating);
    let shutdown = rt.shutdown();
    rt.tasks().spawn("admission-webhooks", async move {
        let mut changes = stream::select(mutating, validating);
        let mut readiness_guard = Some(readiness_guard);
        let mut clients = WebhookClients::default();
        let mut mutating = KnownConfigurations::new(!enabled_types.mutating);
        let mut validating = KnownConfigurations::new(!enabled_types.validating);
        loop {
            if mutating.is_complete && validating.is_complete {
                let webhooks = ConfiguredWebhooks {
                    mutating: mutating.build_webhooks(group, &mut clients),
                    validating: validating.build_webhooks(group, &mut clients),
                };
                sender.send_replace(Some(Arc::new(webhooks)));
                drop(readiness_guard.take());
            }
            loop {
                let change = tokio::select! {
                    change = changes.next() => change,
                    () = shutdown.triggered() => return,
                };
                let is_news = match change {
                    Some(ConfigurationEvent::Mutating(event)) => mutating.apply(event),
                    Some(ConfigurationEvent::Validating(event)) => validating.apply(event),
                    None => return,
                };
                if is_news {
                    break;
                }
            }
        }
    });
    receiver
}

fn configuration_events<K>(
    client: &Client,
    is_enabled: bool,
    to_event: impl Fn(Event<K>) -> ConfigurationEvent + Send + 'static,
) -> stream::BoxStream<'static, ConfigurationEvent>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    if !is_enabled {
        return stream::pending().boxed();
    }
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default());
    log_failures(events.backoff(WatchBackoff::new()), to_event).boxed()
}

/// Logs failures of a watch and drops them; kube's watcher tries again by itself.
fn log_failures<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    to_event: impl Fn(Event<K>) -> ConfigurationEvent,
) -> impl Stream<Item = ConfigurationEvent> {
    events.filter_map(move |event| {
        let event = event.inspect_err(|error| {
            warn!(error = %chain(error), "Failed to watch webhook configurations; trying again");
        });
        std::future::ready(event.ok().map(&to_event))
    })
}

impl<K: Resource + WebhookConfiguration> KnownConfigurations<K> {
    fn new(is_complete: bool) -> Self {
        Self { now: BTreeMap::new(), next: BTreeMap::new(), is_complete }
    }

    /// Takes in an event. Tells whether the known configurations changed.
    fn apply(&mut self, event: Event<K>) -> bool {
        let name = |object: &K| object.meta().name.clone().unwrap_or_default();
        match event {
            Event::Init => {
                self.next.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.next.insert(name(&object), object);
                return false;
            }
            Event::InitDone => {
                self.now = std::mem::take(&mut self.next);
                self.is_complete = true;
            }
            Event::Apply(object) => {
                self.now.insert(name(&object), object);
            }
            Event::Delete(object) => {
                self.now.remove(&name(&object));
            }
        }
        true
    }

    /// Returns the webhooks in the order of their configurations' names, as upstream does.
    fn build_webhooks(
        &self,
        group: &str,
        clients: &mut WebhookClients,
    ) -> Vec<Arc<AdmissionWebhook>> {
        let mut hooks = Vec::new();
        let mut first_index = 0;
        for configuration in self.now.values() {
            let (webhooks, count) = configuration.build_webhooks(group, first_index, clients);
            hooks.extend(webhooks);
            first_index += count;
        }
        hooks
    }
}
