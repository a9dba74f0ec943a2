//! Work that is done whenever a watch stirs, and from time to time, while this process leads.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::look_error::LookError;
use crate::{
    api::names,
    error::chain,
    runtime::{
        Runtime,
        events::{EventNotice, EventPublisher},
        watch::follow_watch,
    },
};

/// Timeout of one look. One that is dropped is done anew, from what was written.
const LOOK: Duration = Duration::from_secs(300);
/// Pause between two looks, at least.
const BREATH: Duration = Duration::from_secs(1);
/// Pause after a look that failed; twice as long each time, until [`SELDOM`].
const RETRY: Duration = Duration::from_secs(2);
/// Interval of looks while nothing stirs.
const SELDOM: Duration = Duration::from_secs(60);

/// What watches told, and word of it.
pub(crate) struct WatchedLedger<L>(Arc<WatchedCell<L>>);

#[derive(Default)]
struct WatchedCell<L> {
    ledger: Mutex<L>,
    stirred: Notify,
}

impl<L> Clone for WatchedLedger<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Default> Default for WatchedLedger<L> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<L> WatchedLedger<L> {
    /// Changes the ledger. True: something is to be looked at.
    pub(crate) fn modify(&self, change: impl FnOnce(&mut L) -> bool) {
        if change(&mut self.lock()) {
            self.0.stirred.notify_one();
        }
    }

    /// The guard is not to be held while something is awaited.
    pub(crate) fn lock(&self) -> MutexGuard<'_, L> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a watch stirs; returns at once where one did since the last time.
    pub(crate) async fn wait_for_change(&self) {
        self.0.stirred.notified().await;
    }
}

/// Starts a watch that changes a ledger; `handle_event` says whether something is to be looked at.
pub(crate) fn watch_into<L, K>(
    runtime: &Runtime,
    task: &'static str,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    ledger: &WatchedLedger<L>,
    handle_event: impl Fn(&mut L, &watcher::Event<K>) -> bool + Send + 'static,
) where
    L: Send + 'static,
    K: Debug + Send + 'static,
{
    let ledger = ledger.clone();
    let on_event = move |event: &_| ledger.modify(|state| handle_event(state, event));
    let watch = follow_watch(task, events.default_backoff(), on_event, None, runtime.shutdown());
    runtime.tasks().spawn_vital(task, watch);
}

/// How a look ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LookEnd {
    Done,
    /// Some writes were refused, and are tried again.
    Partly,
    /// Something is waited for that no watch tells of.
    Soon,
    /// There is more to write than one look does.
    More,
}

/// Work whose looks may be dropped anywhere.
pub(crate) trait StirredWork {
    /// What is worked on, in the plural.
    const WORK: &'static str;

    fn wait_for_change(&self) -> impl Future<Output = ()> + Send;

    fn reconcile(&self) -> impl Future<Output = Result<LookEnd, LookError>> + Send;
}

/// Looks whenever a watch stirs, and from time to time.
pub(crate) async fn run_reconcile_loop<W: StirredWork>(work: W) {
    let (mut pause, mut retry) = (BREATH, RETRY);
    loop {
        tokio::select! {
            () = work.wait_for_change() => {}
            () = sleep(pause) => {}
        }
        let has_failed = match timeout(LOOK, work.reconcile()).await {
            Ok(Ok(LookEnd::Done)) => false,
            Ok(Ok(LookEnd::Soon)) => {
                pause = RETRY;
                continue;
            }
            Ok(Ok(LookEnd::More)) => {
                pause = Duration::ZERO;
                continue;
            }
            Ok(Ok(LookEnd::Partly) | Err(LookError::Stale(_))) => true,
            Ok(Err(error)) => {
                warn!(work = W::WORK, error = %chain(&error), "A look failed, trying again");
                true
            }
            Err(_) => {
                warn!(work = W::WORK, seconds = LOOK.as_secs(), "A look took too long");
                true
            }
        };
        (pause, retry) =
            if has_failed { (retry, (retry * 2).min(SELDOM)) } else { (SELDOM, RETRY) };
        sleep(BREATH).await;
    }
}

/// A kind of the cluster manager.
pub(crate) trait CoreKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> CoreKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// Writes the status and the finalizers of objects in the core namespace, and tells people when one is
/// Stalled. Each write is against the version that the object was read in.
pub(crate) struct StatusWriter {
    /// Client whose writes fail once this process no longer leads.
    pub(crate) writer: Client,
    pub(crate) namespace: String,
    pub(crate) events: EventPublisher,
}

impl StatusWriter {
    fn object_api<K: CoreKind>(&self) -> Api<K> {
        Api::namespaced(self.writer.clone(), &self.namespace)
    }

    /// Writes a status. Returns the object as it is then; `None` once it is gone.
    ///
    /// # Errors
    /// The request's.
    pub(crate) async fn write_status<K: CoreKind>(
        &self,
        object: &K,
        old_conditions: &[Condition],
        new_conditions: &[Condition],
    ) -> Result<Option<K>, LookError> {
        let (kind, name) = (K::kind(&()), object.name_any());
        let updated_object =
            match self.object_api::<K>().replace_status(&name, &post_params(), object).await {
                Ok(updated_object) => updated_object,
                Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(None),
                Err(error) => {
                    let subject = format!("{kind} {name:?}");
                    return Err(LookError::for_request("write the status of", &subject, error));
                }
            };
        let find_stalled = |conditions: &[Condition]| {
            let mut conditions = conditions.iter();
            conditions
                .find(|condition| condition.type_ == "Stalled" && condition.status == "True")
                .cloned()
        };
        if let Some(new_condition) = find_stalled(new_conditions)
            && find_stalled(old_conditions).is_none_or(|old_condition| {
                (&old_condition.reason, &old_condition.message)
                    != (&new_condition.reason, &new_condition.message)
            })
        {
            info!(kind = %kind, name, reason = new_condition.reason, "{}", new_condition.message);
            let note = format!("{}: {}", new_condition.reason, new_condition.message);
            self.events
                .publish(&object.object_ref(&()), &EventNotice::warning("Stalled", note))
                .await;
        }
        Ok(Some(updated_object))
    }

    /// Patches an object.
    ///
    /// # Errors
    /// The request's.
    pub(crate) async fn patch_object<K: CoreKind>(
        &self,
        object: &K,
        mut patch: Value,
    ) -> Result<K, LookError> {
        patch["metadata"]["resourceVersion"] = object.resource_version().into();
        let params = PatchParams {
            field_manager: Some(names::COORDINATOR.to_owned()),
            ..PatchParams::default()
        };
        let name = object.name_any();
        let patch_result = self.object_api::<K>().patch(&name, &params, &Patch::Merge(patch)).await;
        let describe_object = || format!("{} {name:?}", K::kind(&()));
        patch_result.map_err(|error| LookError::for_request("patch", &describe_object(), error))
    }

    /// Puts a finalizer on an object, unless it has it.
    ///
    /// # Errors
    /// The request's.
    pub(crate) async fn add_finalizer<K: CoreKind>(
        &self,
        object: K,
        finalizer: &str,
    ) -> Result<K, LookError> {
        let mut finalizers = object.finalizers().to_vec();
        if finalizers.iter().any(|existing_finalizer| existing_finalizer == finalizer) {
            return Ok(object);
        }
        finalizers.push(finalizer.to_owned());
        self.patch_object(&object, json!({"metadata": {"finalizers": finalizers}})).await
    }

    /// Takes a finalizer off an object that is being deleted.
    ///
    /// # Errors
    /// The request's, unless the object is gone.
    pub(crate) async fn remove_finalizer<K: CoreKind>(
        &self,
        object: &K,
        finalizer: &str,
    ) -> Result<(), LookError> {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|existing_finalizer| existing_finalizer != finalizer);
        if finalizers.len() == object.finalizers().len() {
            return Ok(());
        }
        match self.patch_object(object, json!({"metadata": {"finalizers": finalizers}})).await {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }
}

/// How an object is posted or put.
pub(crate) fn post_params() -> PostParams {
    PostParams { field_manager: Some(names::COORDINATOR.to_owned()), ..PostParams::default() }
}
