//! Is this our store? Losing a store must never delete a database (invariant 5).
//!
//! Kubernetes' garbage collector deletes what an absent owner owned. So an empty or foreign
//! store must not answer 404: the id of the store in use is recorded in a ConfigMap outside of
//! it, and as long as the two differ, every resource answers 503. `docs/store.md` says how to
//! accept a new store.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{
    status::ApiError,
    storage::{self, PageRequest, Prefix, Sight, Storage},
};
use crate::{
    api::{self, names, scheme},
    error::chain,
    runtime::Runtime,
};

/// Key of the ConfigMap that holds the store's id.
const ID: &str = "id";
/// Between looks while the verdict keeps us from serving.
const SOON: Duration = Duration::from_secs(3);
/// Between looks while all is well.
const LATER: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(10);

const ACCEPTED: &str = "another store than the one that was opened has been accepted";
const BACK: &str = "the store on record is back, in place of the one that was opened";

/// What is known about the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody could look yet; says what is waited for.
    Unknown(String),
    Ours,
    /// Says what happened and what to do.
    Foreign(String),
    /// The store that is there now may be served, but is not the one that this process opened and
    /// remembers: only a new process may. Says why.
    Over(String),
}

/// The verdict, cheap to read. Handlers ask before they touch an object.
#[derive(Clone, Debug)]
pub struct Guard(watch::Receiver<Verdict>);

impl Guard {
    /// A guard that always lets pass, for servers without Kubernetes.
    pub fn open() -> Self {
        Self(watch::channel(Verdict::Ours).1)
    }

    /// A guard whose verdict somebody else decides.
    pub fn following(verdicts: watch::Receiver<Verdict>) -> Self {
        Self(verdicts)
    }

    /// Fails with 503 unless the store is ours.
    pub fn check(&self) -> Result<(), ApiError> {
        match &*self.0.borrow() {
            Verdict::Ours => Ok(()),
            Verdict::Unknown(why) | Verdict::Foreign(why) | Verdict::Over(why) => {
                Err(ApiError::unavailable(why, 5))
            }
        }
    }

    pub fn verdict(&self) -> Verdict {
        self.0.borrow().clone()
    }

    /// Waits until objects may not be served any more. Cancel-safe.
    pub async fn until_refused(&mut self) {
        if self.0.wait_for(|verdict| *verdict != Verdict::Ours).await.is_err() {
            // Nobody judges any more, so the verdict stays.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this process may serve no more, and says why. Cancel-safe.
    pub async fn until_over(&mut self) -> String {
        let over = self.0.wait_for(|verdict| matches!(verdict, Verdict::Over(_))).await;
        match over.as_deref() {
            Ok(Verdict::Over(why)) => why.clone(),
            // Nobody judges any more.
            _ => std::future::pending().await,
        }
    }

    /// Waits for the first verdict. Cancel-safe.
    pub async fn until_decided(&mut self) {
        // An error means that the judge is gone, and with it the process.
        drop(self.0.wait_for(|verdict| !matches!(verdict, Verdict::Unknown(_))).await);
    }
}

/// A look that told nothing.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to read the store's identity")]
    Store(#[from] storage::Error),
    #[error("failed to read or write ConfigMap {:?}", names::STORE_CONFIG_MAP)]
    ConfigMap(#[source] Box<kube::Error>),
    #[error(
        "ConfigMap {:?} could not be read or written within {ANSWER:?}",
        names::STORE_CONFIG_MAP
    )]
    Timeout,
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::ConfigMap(Box::new(error))
    }
}

/// Starts judging `store`; the guard says what came of it. The last verdict holds while nobody
/// can look.
pub fn start(store: Arc<dyn Storage>, client: &Client, namespace: &str, rt: &Runtime) -> Guard {
    let waiting = Verdict::Unknown(
        "the API server has not yet compared its store with what this installation used before"
            .to_owned(),
    );
    let (sender, mut verdicts) = watch::channel(waiting);
    let guard = Guard(verdicts.clone());
    let judge = Judge {
        store,
        records: Api::namespaced(client.clone(), namespace),
        namespace: namespace.to_owned(),
    };
    let alarmed = sender.clone();
    judge.store.on_replaced(Box::new(move |reason| raise(&alarmed, reason)));
    let shutdown = rt.shutdown();
    rt.tasks().spawn("store-identity", async move {
        loop {
            verdicts.mark_unchanged();
            // Writing the record is one request: dropped half-way it happened or it did not.
            let looked = tokio::select! {
                looked = tokio::time::timeout(ANSWER, judge.look()) => looked,
                () = shutdown.triggered() => return,
            };
            match looked.unwrap_or(Err(Error::Timeout)) {
                // Nobody but the store's alarm decides beside us; what was read before it is old.
                Ok(_) if verdicts.has_changed().unwrap_or_default() => continue,
                Ok(verdict) => {
                    let over = matches!(verdict, Verdict::Over(_));
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
            let pause = if *sender.borrow() == Verdict::Ours { LATER } else { SOON };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // An alarm.
                _ = verdicts.changed() => {}
                () = shutdown.triggered() => return,
            }
        }
    });
    guard
}

/// Stops serving at once. The judge finds out what happened, and what to do.
fn raise(sender: &watch::Sender<Verdict>, reason: &str) {
    sender.send_if_modified(|current| {
        let served = *current == Verdict::Ours;
        if served {
            error!(reason, "The store was lost or replaced; serving no objects");
            *current = Verdict::Unknown(format!("the store was lost or replaced: {reason}"));
        }
        served
    });
}

fn announce(sender: &watch::Sender<Verdict>, verdict: Verdict) {
    let changed = sender.send_if_modified(|current| {
        let changed = *current != verdict;
        current.clone_from(&verdict);
        changed
    });
    match verdict {
        Verdict::Foreign(message) if changed => error!(explanation = message, "Serving no objects"),
        Verdict::Ours if changed => info!("The store is the one on record"),
        _ => {}
    }
}

struct Judge {
    store: Arc<dyn Storage>,
    records: Api<ConfigMap>,
    namespace: String,
}

impl Judge {
    async fn look(&self) -> Result<Verdict, Error> {
        let Sight { id, revision: _, other, lost } = self.store.sight().await?;
        let record = self.records.get_opt(names::STORE_CONFIG_MAP).await?;
        let Some(record) = record else {
            return match id.filter(|_| other.is_none() && lost.is_none()) {
                Some(id) => self.record(&id).await,
                None => Ok(Verdict::Over(ACCEPTED.to_owned())),
            };
        };
        let recorded = record.data.as_ref().and_then(|data| data.get(ID));
        let recorded = recorded.map(String::as_str).unwrap_or_default();
        Ok(match id {
            Some(id) if id == recorded => match (other, lost) {
                (Some(_), _) => Verdict::Over(BACK.to_owned()),
                (None, Some(lost)) => Verdict::Foreign(self.explain_loss(&lost)),
                (None, None) => Verdict::Ours,
            },
            id => Verdict::Foreign(self.explain(id.as_deref(), recorded)),
        })
    }

    /// Records the store in use as ours. Of several replicas that try, one succeeds and the
    /// others compare themselves with it.
    async fn record(&self, id: &str) -> Result<Verdict, Error> {
        if self.holds_objects().await? {
            warn!(
                id,
                config_map = names::STORE_CONFIG_MAP,
                "The record of the store is missing although the store holds objects; recording \
                 the store again"
            );
        }
        let record = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::STORE_CONFIG_MAP.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(ID.to_owned(), id.to_owned())])),
            ..ConfigMap::default()
        };
        match self.records.create(&PostParams::default(), &record).await {
            Ok(_) => {
                info!(id, config_map = names::STORE_CONFIG_MAP, "Recorded the store in use");
                Ok(Verdict::Ours)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(Verdict::Unknown("another replica has just recorded its store".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn holds_objects(&self) -> Result<bool, Error> {
        for kind in scheme::kinds() {
            let prefix = Prefix::resource(api::GROUP, kind.plural())
                .expect("our group and plurals are valid parts of a key");
            let request = PageRequest { limit: Some(1), ..PageRequest::default() };
            if !self.store.list(&prefix, request).await?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn explain(&self, id: Option<&str>, recorded: &str) -> String {
        let (namespace, record) = (&self.namespace, names::STORE_CONFIG_MAP);
        let has = id.map_or("is empty".to_owned(), |id| format!("has the id {id:?}"));
        format!(
            "the store of Navigator's API server {has}, but this installation has been using \
             {recorded:?}, says ConfigMap {namespace}/{record}: the store was lost or replaced. No \
             object is served, so that nothing is garbage-collected. Bring the old store back; or \
             read docs/store.md and accept the new one with: kubectl --namespace {namespace} \
             delete configmap {record}"
        )
    }

    fn explain_loss(&self, lost: &str) -> String {
        let (namespace, record) = (&self.namespace, names::STORE_CONFIG_MAP);
        format!(
            "the store of Navigator's API server lost its latest writes: {lost}. No object is \
             served, so that nothing is garbage-collected. Bring the latest state back; or read \
             docs/store.md and accept this one with: kubectl --namespace {namespace} delete \
             configmap {record}"
        )
    }
}
