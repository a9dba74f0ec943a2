//! Compares the store with its record: what may be served, and what a person has to do.
//!
//! The record is read first: other replicas only move it forward, so the store is never behind a
//! record that was read before it. The record's revision is moved in steps, so that heartbeats
//! alone hardly write it, and at once after an object was created or deleted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use tracing::{info, warn};

use super::{
    super::storage::{self, KeyPrefix, PageRequest, Revision, Storage, StoreStatus},
    Error, StoreVerdict, orphans,
    record::StoreRecord,
};
use crate::{
    apiserver::installation::{InstallationNames, ServedApi},
    machinery::served_kinds::ServedKinds,
};

/// Revisions that a store in which nothing is created or deleted moves on before it is recorded
/// again: two and a half hours of one pilot's heartbeats.
const STEP: u64 = 1000;

const ACCEPTED: &str = "another state than the one that was opened has been accepted";
const BACK: &str = "the store on record is back, in place of the one that was opened";

pub(super) struct StoreJudge {
    store: Arc<dyn Storage>,
    kinds: &'static ServedKinds,
    names: &'static InstallationNames,
    client: Client,
    records: Api<ConfigMap>,
    namespace: String,
    /// Number of creations and deletions when this process last wrote the record.
    noted: u64,
    /// Whether this process has seen the store without its latest writes. The process's caches go
    /// on from there, across the gap, so it serves no store that was accepted since.
    seen_lost: bool,
}

impl StoreJudge {
    pub(super) fn new(
        store: Arc<dyn Storage>,
        api: &ServedApi,
        client: &Client,
        namespace: &str,
    ) -> Self {
        let records = Api::namespaced(client.clone(), namespace);
        let namespace = namespace.to_owned();
        Self {
            store,
            kinds: api.kinds,
            names: api.names,
            client: client.clone(),
            records,
            namespace,
            noted: 0,
            seen_lost: false,
        }
    }

    pub(super) async fn look(&mut self) -> Result<StoreVerdict, Error> {
        let births = self.store.births_and_deaths();
        let record = self.read().await?;
        let StoreStatus { id, revision, other, lost } = self.store.sight().await?;
        let Some(record) = record else {
            let opened = id.filter(|_| other.is_none());
            return match opened {
                Some(id) => match self.without_record(&id, revision).await {
                    // The store was replaced since this process opened it.
                    Err(Error::Store(storage::Error::Replaced { .. })) => {
                        Ok(StoreVerdict::Over(ACCEPTED.to_owned()))
                    }
                    judged => judged,
                },
                None => Ok(StoreVerdict::Over(ACCEPTED.to_owned())),
            };
        };
        let accepted = id.is_some() && record.accepted == id;
        let found = id.clone();
        let Some(id) = id.filter(|id| accepted || *id == record.id) else {
            return Ok(StoreVerdict::Foreign(self.explain_other(found.as_deref(), &record.id)));
        };
        if other.is_some() {
            let why = if id == record.id { BACK } else { ACCEPTED };
            return Ok(StoreVerdict::Over(why.to_owned()));
        }
        if accepted {
            return self.accept(&id, revision, record).await;
        }
        if let Some(lost) = lost {
            self.seen_lost = true;
            let explanation = self.explain_loss(&id, &lost.why);
            if record.lost.is_none() {
                // The next process will not have seen the loss, so the record tells it.
                let revision = record.revision.map_or(lost.reached, |old| old.max(lost.reached));
                let (revision, lost) = (Some(revision), Some(lost.why));
                self.write(StoreRecord { revision, lost, ..record }).await?;
            }
            return Ok(StoreVerdict::Foreign(explanation));
        }
        if let Some(lost) = &record.lost {
            self.seen_lost = true;
            return Ok(StoreVerdict::Foreign(self.explain_loss(&id, lost)));
        }
        if let Some(reached) = record.revision.filter(|reached| revision < *reached) {
            self.seen_lost = true;
            let lost = format!("it is at revision {revision} and had reached {reached}");
            return Ok(StoreVerdict::Foreign(self.explain_loss(&id, &lost)));
        }
        if self.seen_lost {
            return Ok(StoreVerdict::Over(ACCEPTED.to_owned()));
        }
        let due = record.revision.is_none_or(|reached| {
            revision.0 >= reached.0 + STEP || (births != self.noted && revision > reached)
        });
        if due && self.write(StoreRecord { revision: Some(revision), ..record }).await? {
            self.noted = births;
        }
        Ok(StoreVerdict::Ours)
    }

    /// Records how far the store has come, before the process ends.
    pub(super) async fn last_word(&self) -> Result<(), Error> {
        let record = self.read().await?;
        let StoreStatus { id, revision, other, lost } = self.store.sight().await?;
        if let (Some(record), None, None) = (record, other, lost)
            && id.as_ref() == Some(&record.id)
            && record.lost.is_none()
            && record.revision.is_none_or(|reached| reached < revision)
        {
            self.write(StoreRecord { revision: Some(revision), ..record }).await?;
        }
        Ok(())
    }

    /// Reads the record; `None` when there is none.
    async fn read(&self) -> Result<Option<StoreRecord>, Error> {
        let found = self.records.get_opt(self.names.store_record).await;
        let found = found.map_err(|error| self.not_recorded(error))?;
        Ok(found.map(|found| StoreRecord::read(self.names, found)))
    }

    fn not_recorded(&self, error: kube::Error) -> Error {
        Error::ConfigMap { name: self.names.store_record, source: Box::new(error) }
    }

    /// Replaces the record that was read; returns false when another replica was faster.
    async fn write(&self, record: StoreRecord) -> Result<bool, Error> {
        let config_map = record.into_config_map(self.names);
        match self
            .records
            .replace(self.names.store_record, &PostParams::default(), &config_map)
            .await
        {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(self.not_recorded(error)),
        }
    }

    /// Accepts the store as it is, because a person asked for it. Clients that know a later state
    /// of the store list again.
    async fn accept(
        &self,
        id: &str,
        now: Revision,
        record: StoreRecord,
    ) -> Result<StoreVerdict, Error> {
        let past = record.revision.map_or(now, |reached| reached.max(now));
        let revision = match self.store.advance(past).await {
            Ok(revision) => revision,
            // The store was replaced since this process opened it.
            Err(storage::Error::Replaced { .. }) => {
                return Ok(StoreVerdict::Over(ACCEPTED.to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        let record = StoreRecord {
            id: id.to_owned(),
            revision: Some(revision),
            lost: None,
            accepted: None,
            ..record
        };
        if self.write(record).await? {
            warn!(id, revision = revision.0, "The store is accepted as it is");
            let over = StoreVerdict::Over(ACCEPTED.to_owned());
            return Ok(if self.seen_lost { over } else { StoreVerdict::Ours });
        }
        Ok(StoreVerdict::Unknown("another replica has just accepted the store".to_owned()))
    }

    /// Records the store in use when there is no record, unless databases would be deleted for it.
    /// When several replicas try, one succeeds and the others compare their store with its record.
    async fn without_record(&self, id: &str, revision: Revision) -> Result<StoreVerdict, Error> {
        let orphans = orphans::find(&self.client, &*self.store, self.kinds, self.names).await?;
        if !orphans.is_empty() {
            return Ok(StoreVerdict::Foreign(self.explain_orphans(id, &orphans)));
        }
        let mut revision = revision;
        if self.holds_objects().await? {
            warn!(
                id,
                config_map = self.names.store_record,
                "The record of the store is missing although the store holds objects; recording \
                 the store again"
            );
            // The record is missing, so how far the store had come is not known.
            revision = self.store.advance(revision).await?;
        }
        let record = StoreRecord::new(self.names, id, revision).into_config_map(self.names);
        match self.records.create(&PostParams::default(), &record).await {
            Ok(_) => {
                info!(id, config_map = self.names.store_record, "Recorded the store in use");
                Ok(StoreVerdict::Ours)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Ok(StoreVerdict::Unknown("another replica has just recorded its store".to_owned()))
            }
            Err(error) => Err(self.not_recorded(error)),
        }
    }

    async fn holds_objects(&self) -> Result<bool, Error> {
        for kind in self.kinds.own() {
            let prefix = KeyPrefix::resource(kind.group(), kind.plural())
                .expect("served groups and plurals are valid parts of a key");
            let request = PageRequest { limit: Some(1), ..PageRequest::default() };
            if !self.store.list(&prefix, request).await?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn explain_other(&self, id: Option<&str>, recorded: &str) -> String {
        let (namespace, record) = (&self.namespace, self.names.store_record);
        let product = self.names.product;
        let has = id.map_or("is empty".to_owned(), |id| format!("has the id {id:?}"));
        format!(
            "the store of {product}'s API server {has}, but this installation has been using \
             {recorded:?}, says ConfigMap {namespace}/{record}: the store was lost or replaced. No \
             object is served, so that no database is run by what another store says. Bring the \
             old store back; or read docs/store.md and accept the new one with: kubectl --namespace {namespace} \
             delete configmap {record}"
        )
    }

    fn explain_loss(&self, id: &str, lost: &str) -> String {
        let (namespace, record, accept) =
            (&self.namespace, self.names.store_record, self.names.accept_store);
        let product = self.names.product;
        format!(
            "the store of {product}'s API server lost its latest writes: {lost}. No object is \
             served, so that no database is run by what it was to be once. Bring the latest state \
             back; or read docs/store.md and accept the store as it is with: kubectl --namespace {namespace} \
             annotate configmap {record} {accept}={id}"
        )
    }

    fn explain_orphans(&self, id: &str, orphans: &[String]) -> String {
        let (namespace, record) = (&self.namespace, self.names.store_record);
        let product = self.names.product;
        let more = if orphans.len() > orphans::NAMED { " and others" } else { "" };
        let names = orphans[..orphans.len().min(orphans::NAMED)].join(", ");
        format!(
            "there is no ConfigMap {namespace}/{record} that says which store this installation \
             uses, and the store of {product}'s API server lacks the clusters that own the \
             StatefulSets {names}{more}. No object is served, so that they are not \
             garbage-collected. Bring the old store back; or read docs/store.md, take their owner \
             references away, or give them up with: kubectl --namespace {namespace} create \
             configmap {record} --from-literal=id={id}"
        )
    }
}
