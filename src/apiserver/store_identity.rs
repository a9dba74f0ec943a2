//! Guards against a store that is not this installation's: an older or another one must not run
//! databases (invariant 5).
//!
//! The controller would take nodes away that an earlier spec did not have, and pilots would found a
//! second ring where nothing is recorded of the first. So the id of the store in use and the
//! revision that it has reached are recorded in a ConfigMap outside of it, and as long as store and
//! record differ, every resource answers 503. `docs/store.md` says how to accept a store.
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
/// Most time to record, before the process ends, how far the store has come.
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
    pub fn open() -> Self {
        Self(watch::channel(StoreVerdict::Ours).1)
    }

    /// Makes a guard whose verdicts the caller sends.
    pub fn following(verdicts: watch::Receiver<StoreVerdict>) -> Self {
        Self(verdicts)
    }

    /// Fails with 503 unless the verdict is [`StoreVerdict::Ours`].
    pub fn check(&self) -> Result<(), ApiError> {
        match &*self.0.borrow() {
            StoreVerdict::Ours => Ok(()),
            StoreVerdict::Unknown(why) | StoreVerdict::Foreign(why) | StoreVerdict::Over(why) => {
                Err(ApiError::unavailable(why, 5))
            }
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

    /// Waits until this process may serve no more, and returns the reason. Cancel-safe.
    pub async fn until_over(&mut self) -> String {
        let over = self.0.wait_for(|verdict| matches!(verdict, StoreVerdict::Over(_))).await;
        match over.as_deref() {
            Ok(StoreVerdict::Over(why)) => why.clone(),
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
pub fn start(
    store: Arc<dyn Storage>,
    api: &ServedApi,
    client: &Client,
    namespace: &str,
    rt: &Runtime,
) -> StoreGuard {
    let waiting = StoreVerdict::Unknown(
        "the API server has not yet compared its store with what this installation used before"
            .to_owned(),
    );
    let (sender, mut verdicts) = watch::channel(waiting);
    let guard = StoreGuard(verdicts.clone());
    let alarmed = sender.clone();
    store.on_replaced(Box::new(move |reason| raise(&alarmed, reason)));
    let name = api.names.store_record;
    let mut judge = StoreJudge::new(store, api, client, namespace);
    let shutdown = rt.shutdown();
    rt.tasks().spawn("store-identity", async move {
        loop {
            verdicts.mark_unchanged();
            // The record is written by one request: when shutdown drops this future, the record is
            // written whole or not at all.
            let looked = tokio::select! {
                looked = tokio::time::timeout(ANSWER, judge.look()) => looked,
                () = shutdown.triggered() => break,
            };
            match looked.unwrap_or(Err(Error::Timeout { name })) {
                // Beside this task the store's alarm alone changes the verdict; a comparison that
                // began before the alarm is outdated.
                Ok(_) if verdicts.has_changed().unwrap_or_default() => continue,
                Ok(verdict) => {
                    let over = matches!(verdict, StoreVerdict::Over(_));
                    announce(&sender, verdict);
                    if over {
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
            && let Ok(Err(error)) = tokio::time::timeout(LAST_WORD, judge.last_word()).await
        {
            warn!(error = %chain(&error), "Failed to record how far the store has come");
        }
    });
    guard
}

/// Stops serving objects at once when the store raises its alarm. The judge finds out what
/// happened, and what to do.
fn raise(sender: &watch::Sender<StoreVerdict>, reason: &str) {
    sender.send_if_modified(|current| {
        let served = *current == StoreVerdict::Ours;
        if served {
            error!(reason, "The store was lost or replaced; serving no objects");
            *current = StoreVerdict::Unknown(format!("the store was lost or replaced: {reason}"));
        }
        served
    });
}

fn announce(sender: &watch::Sender<StoreVerdict>, verdict: StoreVerdict) {
    let changed = sender.send_if_modified(|current| {
        let changed = *current != verdict;
        current.clone_from(&verdict);
        changed
    });
    match verdict {
        StoreVerdict::Foreign(message) if changed => {
            error!(explanation = message, "Serving no objects");
        }
        StoreVerdict::Ours if changed => info!("The store is the one on record"),
        _ => {}
    }
}
