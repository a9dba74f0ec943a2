//! Guards against a store that is not this installation's: an older store or another one must not
//! run databases (invariant 5).
//!
//! With such a store, the controller would remove nodes that an earlier spec did not have. Pilots
//! would bootstrap a second ring if no first one is recorded. So a ConfigMap outside the store
//! records the id of the store in use and the revision that it has reached. While store and record
//! differ, every resource answers 503. `docs/store.md` says how to accept a store.
//!
//! Owns the guard and when to compare; [`judge`] compares the store with its record.

mod judge;
mod orphans;
mod record;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::watch;
use tracing::{error, info, warn};

use self::judge::StoreJudge;
use super::{
    installation::ServedApi,
    status::ApiError,
    storage::{self, Storage},
};
use crate::{error::chain, runtime::Runtime};

/// Pause between comparisons of the store with its record while the verdict forbids to serve
/// objects.
const SOON: Duration = Duration::from_secs(3);
/// Pause between comparisons of the store with its record while objects are served.
const LATER: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);
/// Most time to record the latest revision of the store before the process ends.
const LAST_WORD: Duration = Duration::from_secs(3);

/// Why a comparison of the store with its record came to no verdict.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to read the store's identity")]
    Store(#[from] storage::Error),
    #[error("failed to read or write ConfigMap {name:?}")]
    ConfigMap { name: &'static str, source: Box<kube::Error> },
    #[error(
        "failed to list StatefulSets, to see whether the store is the one that their clusters are \
         in; the ClusterRole {role:?} allows it"
    )]
    StatefulSets { role: &'static str, source: Box<kube::Error> },
    #[error("ConfigMap {name:?} could not be read or written within {ANSWER:?}")]
    Timeout { name: &'static str },
}

/// Whether the store may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreVerdict {
    /// The store is not judged yet; holds what the server waits for.
    Unknown(String),
    Ours,
    /// The store is not this installation's; holds what happened and what to do.
    Foreign(String),
    /// The store that is there now may be served, but is not the one that this process opened and
    /// remembers: only a new process may serve it. Holds the reason.
    Over(String),
}

/// The latest verdict on the store, cheap to read. Handlers ask before they touch an object.
#[derive(Clone, Debug)]
pub struct StoreGuard(watch::Receiver<StoreVerdict>);

impl StoreGuard {
    /// Makes a guard that lets every request pass, for servers without Kubernetes.
    pub fn allow_all() -> Self {
        Self(watch::channel(StoreVerdict::Ours).1)
    }

    /// Makes a guard whose verdicts the caller sends.
    pub fn from_verdicts(verdicts: watch::Receiver<StoreVerdict>) -> Self {
        Self(verdicts)
    }

    /// Fails with 503 unless the verdict is [`StoreVerdict::Ours`].
    pub fn check(&self) -> Result<(), ApiError> {
        match &*self.0.borrow() {
            StoreVerdict::Ours => Ok(()),
            StoreVerdict::Unknown(reason)
            | StoreVerdict::Foreign(reason)
            | StoreVerdict::Over(reason) => Err(ApiError::service_unavailable(reason, 5)),
        }
    }

    pub fn verdict(&self) -> StoreVerdict {
        self.0.borrow().clone()
    }

    /// Waits until objects may not be served. Cancel-safe.
    pub async fn until_refused(&mut self) {
        if self.0.wait_for(|verdict| *verdict != StoreVerdict::Ours).await.is_err() {
            // The judging task has ended, so the verdict stays.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this process may no longer serve, and returns the reason. Cancel-safe.
    pub async fn until_over(&mut self) -> String {
        let final_verdict =
            self.0.wait_for(|verdict| matches!(verdict, StoreVerdict::Over(_))).await;
        match final_verdict.as_deref() {
            Ok(StoreVerdict::Over(reason)) => reason.clone(),
            // The judging task has ended, so the verdict stays.
            _ => std::future::pending().await,
        }
    }

    /// Waits until the store is judged. Cancel-safe.
    pub async fn until_decided(&mut self) {
        // An error means that the judging task has ended, and with it the process.
        drop(self.0.wait_for(|verdict| !matches!(verdict, StoreVerdict::Unknown(_))).await);
    }
}

/// Starts a task that judges `store`; the guard tells the verdict. The last verdict holds while
/// comparisons fail.
pub fn start_guard(
    store: Arc<dyn Storage>,
    api: &ServedApi,
    client: &Client,
    namespace: &str,
    rt: &Runtime,
) -> StoreGuard {
    let initial_verdict = StoreVerdict::Unknown(
        "the API server has not yet compared its store with what this installation used before"
            .to_owned(),
    );
    let (sender, mut verdicts) = watch::channel(initial_verdict);
    let guard = StoreGuard(verdicts.clone());
    let alarm_sender = sender.clone();
    store.on_replaced(Box::new(move |reason| raise_alarm(&alarm_sender, reason)));
    let name = api.names.store_record;
    let mut judge = StoreJudge::new(store, api, client, namespace);
    let shutdown = rt.shutdown();
    rt.tasks().spawn("store-identity", async move {
        loop {
            verdicts.mark_unchanged();
            // The record is written by one request: when shutdown drops this future, the record is
            // written whole or not at all.
            let check_result = tokio::select! {
                looked = tokio::time::timeout(ANSWER, judge.evaluate_store()) => looked,
                () = shutdown.triggered() => break,
            };
            match check_result.unwrap_or(Err(Error::Timeout { name })) {
                // Beside this task the store's alarm alone changes the verdict; a comparison that
                // began before the alarm is outdated.
                Ok(_) if verdicts.has_changed().unwrap_or_default() => continue,
                Ok(verdict) => {
                    let is_over = matches!(verdict, StoreVerdict::Over(_));
                    announce_verdict(&sender, verdict);
                    if is_over {
                        return;
                    }
                }
                Err(error) => {
                    warn!(error = %chain(&error), "Failed to compare the store with its record");
                }
            }
            verdicts.mark_unchanged();
            let pause = if *sender.borrow() == StoreVerdict::Ours { LATER } else { SOON };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The store raised its alarm.
                _ = verdicts.changed() => {}
                () = shutdown.triggered() => break,
            }
        }
        if *sender.borrow() == StoreVerdict::Ours
            && let Ok(Err(error)) =
                tokio::time::timeout(LAST_WORD, judge.write_final_revision()).await
        {
            warn!(error = %chain(&error), "Failed to record how far the store has come");
        }
    });
    guard
}

/// Stops serving objects at once when the store raises its alarm. The judge finds out what
/// happened, and what to do.
fn raise_alarm(sender: &watch::Sender<StoreVerdict>, reason: &str) {
    sender.send_if_modified(|current| {
        let is_serving = *current == StoreVerdict::Ours;
        if is_serving {
            error!(reason, "The store was lost or replaced; serving no objects");
            *current = StoreVerdict::Unknown(format!("the store was lost or replaced: {reason}"));
        }
        is_serving
    });
}

fn announce_verdict(sender: &watch::Sender<StoreVerdict>, verdict: StoreVerdict) {
    let is_changed = sender.send_if_modified(|current| {
        let is_changed = *current != verdict;
        current.clone_from(&verdict);
        is_changed
    });
    match verdict {
        StoreVerdict::Foreign(message) if is_changed => {
            error!(explanation = message, "Serving no objects");
        }
        StoreVerdict::Ours if is_changed => info!("The store is the one on record"),
        _ => {}
    }
}
