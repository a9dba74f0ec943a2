//! Compares the store with its record: what may be served, and what an administrator has to do.
//!
//! The guard reads the record first. Other replicas only move it forward, so the store is never
//! behind a record that was read before it. The guard moves the record's revision in steps, so that
//! heartbeats alone rarely write it, and at once after an object was created or deleted.

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

    pub(super) async fn evaluate_store(&mut self) -> Result<StoreVerdict, Error> {
        let births = self.store.births_and_deaths();
        let record = self.read_record().await?;
        let StoreStatus { id, revision, other, lost } = self.store.store_status().await?;
        let Some(record) = record else {
            let opened_id = id.filter(|_| other.is_none());
            return match opened_id {
                Some(id) => match self.handle_missing_record(&id, revision).await {
                    // The store was replaced since this process opened it.
                    Err(Error::Store(storage::Error::Replaced { .. })) => {
                        Ok(StoreVerdict::Over(ACCEPTED.to_owned()))
                    }
                    result => result,
                },
                None => Ok(StoreVerdict::Over(ACCEPTED.to_owned())),
            };
        };
        let is_accepted = id.is_some() && record.accepted == id;
        let found_id = id.clone();
        let Some(id) = id.filter(|id| is_accepted || *id == record.id) else {
            return Ok(StoreVerdict::Foreign(self.explain_other(found_id.as_deref(), &record.id)));
        };
        if other.is_some() {
            let reason = if id == record.id { BACK } else { ACCEPTED };
            return Ok(StoreVerdict::Over(reason.to_owned()));
        }
        if is_accepted {
            return self.accept_store(&id, revision, record).await;
        }
        if let Some(write_loss) = lost {
            self.seen_lost = true;
            let explanation = self.explain_loss(&id, &write_loss.why);
            if record.lost.is_none() {
                // The next process will not have seen the loss, so the record tells it.
                let revision = record.revision.map_or(write_loss.reached, |recorded_revision| {
                    recorded_revision.max(write_loss.reached)
                });
                let (revision, lost) = (Some(revision), Some(write_loss.why));
                self.write_record(StoreRecord { revision, lost, ..record }).await?;
            }
            return Ok(StoreVerdict::Foreign(explanation));
        }
        if let Some(loss_reason) = &record.lost {
            self.seen_lost = true;
            return Ok(StoreVerdict::Foreign(self.explain_loss(&id, loss_reason)));
        }
        if let Some(recorded_revision) =
            record.revision.filter(|recorded_revision| revision < *recorded_revision)
        {
            self.seen_lost = true;
            let loss_reason =
                format!("it is at revision {revision} and had reached {recorded_revision}");
            return Ok(StoreVerdict::Foreign(self.explain_loss(&id, &loss_reason)));
        }
        if self.seen_lost {
            return Ok(StoreVerdict::Over(ACCEPTED.to_owned()));
        }
        let needs_write = record.revision.is_none_or(|recorded_revision| {
            revision.0 >= recorded_revision.0 + STEP
                || (births != self.noted && revision > recorded_revision)
        });
        if needs_write
            && self.write_record(StoreRecord { revision: Some(revision), ..record }).await?
        {
            self.noted = births;
        }
        Ok(StoreVerdict::Ours)
    }

    /// Records the latest revision of the store before the process ends.
    pub(super) async fn write_final_revision(&self) -> Result<(), Error> {
        let record = self.read_record().await?;
        let StoreStatus { id, revision, other, lost } = self.store.store_status().await?;
        if let (Some(record), None, None) = (record, other, lost)
            && id.as_ref() == Some(&record.id)
            && record.lost.is_none()
            && record.revision.is_none_or(|recorded_revision| recorded_revision < revision)
        {
            self.write_record(StoreRecord { revision: Some(revision), ..record }).await?;
        }
        Ok(())
    }

    /// Reads the record; `None` when there is none.
    async fn read_record(&self) -> Result<Option<StoreRecord>, Error> {
        let config_map = self.records.get_opt(self.names.store_record).await;
        let config_map = config_map.map_err(|error| self.record_error(error))?;
        Ok(config_map.map(|config_map| StoreRecord::from_config_map(self.names, config_map)))
    }

    fn record_error(&self, error: kube::Error) -> Error {
        Error::ConfigMap { name: self.names.store_record, source: Box::new(error) }
    }

    /// Replaces the record that was read; returns false when another replica was faster.
    async fn write_record(&self, record: StoreRecord) -> Result<bool, Error> {
        let config_map = record.into_config_map(self.names);
        match self
            .records
            .replace(self.names.store_record, &PostParams::default(), &config_map)
            .await
        {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(self.record_error(error)),
        }
    }

    /// Accepts the store as it is, because an administrator requested it. Clients that know a later
    /// state of the store list again.
    async fn accept_store(
        &self,
        id: &str,
        current_revision: Revision,
        record: StoreRecord,
    ) -> Result<StoreVerdict, Error> {
        let past_revision = record
            .revision
            .map_or(current_revision, |recorded_revision| recorded_revision.max(current_revision));
        let revision = match self.store.advance_revision(past_revision).await {
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
        if self.write_record(record).await? {
            warn!(id, revision = revision.0, "The store is accepted as it is");
            let verdict = StoreVerdict::Over(ACCEPTED.to_owned());
            return Ok(if self.seen_lost { verdict } else { StoreVerdict::Ours });
        }
        Ok(StoreVerdict::Unknown("another replica has just accepted the store".to_owned()))
    }

    /// Records the store in use when there is no record, unless databases would be deleted for it.
    /// When several replicas try, one succeeds and the others compare their store with its record.
    async fn handle_missing_record(
        &self,
        id: &str,
        revision: Revision,
    ) -> Result<StoreVerdict, Error> {
        let orphans =
            orphans::find_orphans(&self.client, &*self.store, self.kinds, self.names).await?;
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
            // The record is missing, so the revision that the store had reached is not known.
            revision = self.store.advance_revision(revision).await?;
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
            Err(error) => Err(self.record_error(error)),
        }
    }

    async fn holds_objects(&self) -> Result<bool, Error> {
        for kind in self.kinds.own_kinds() {
            let prefix = KeyPrefix::for_resource(kind.group(), kind.plural())
                .expect("served groups and plurals are valid parts of a key");
            let request = PageRequest { limit: Some(1), ..PageRequest::default() };
            if !self.store.list(&prefix, request).await?.entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn explain_other(&self, id: Option<&str>, recorded_id: &str) -> String {
        let (namespace, record) = (&self.namespace, self.names.store_record);
        let product = self.names.product;
        let store_state = id.map_or("is empty".to_owned(), |id| format!("has the id {id:?}"));
        format!(
            "the store of {product}'s API server {store_state}, but this installation has been using \
             {recorded_id:?}, says ConfigMap {namespace}/{record}: the store was lost or replaced. No \
             object is served, so that no database is run by what another store says. Bring the \
             old store back; or read docs/store.md and accept the new one with: kubectl --namespace {namespace} \
             delete configmap {record}"
        )
    }

    fn explain_loss(&self, id: &str, loss_reason: &str) -> String {
        let (namespace, record, accept) =
            (&self.namespace, self.names.store_record, self.names.accept_store);
        let product = self.names.product;
        format!(
            "the store of {product}'s API server lost its latest writes: {loss_reason}. No object is \
             served, so that no database is run by what it was to be once. Bring the latest state \
             back; or read docs/store.md and accept the store as it is with: kubectl --namespace {namespace} \
             annotate configmap {record} {accept}={id}"
        )
    }

    fn explain_orphans(&self, id: &str, orphans: &[String]) -> String {
        let (namespace, record) = (&self.namespace, self.names.store_record);
        let product = self.names.product;
        let others_suffix = if orphans.len() > orphans::NAMED { " and others" } else { "" };
        let names = orphans[..orphans.len().min(orphans::NAMED)].join(", ");
        format!(
            "there is no ConfigMap {namespace}/{record} that says which store this installation \
             uses, and the store of {product}'s API server lacks the clusters that own the \
             StatefulSets {names}{others_suffix}. No object is served, so that they are not \
             garbage-collected. Bring the old store back; or read docs/store.md, take their owner \
             references away, or give them up with: kubectl --namespace {namespace} create \
             configmap {record} --from-literal=id={id}"
        )
    }
}
