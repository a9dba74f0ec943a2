//! `navigator apiserver migrate-storage`: writes every object again in the form that is stored
//! today.
//!
//! Opens a store that exists, at once or not at all. [`Registry::migrate`] decides what happens to
//! an object. A migration makes no store, and records no store as this installation's, because it
//! serves none.

use std::sync::Arc;

use super::{
    admission::{AdmissionChain, AdmissionPlugin},
    capacity::{Capacity, CapacityBounds},
    registry::{MigrationReport, Registry},
    run::StoreConfig,
    storage::{self, Storage, embedded, etcd, kubernetes},
};
use crate::machinery::served_kinds::ServedKinds;

/// Why a migration ended early. Objects that were written again until then stay so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to open the embedded store")]
    Embedded(#[from] embedded::StoreOpenError),
    #[error("the connection to etcd cannot be set up")]
    Etcd(#[from] etcd::EtcdConnectError),
    #[error("the connection to the store cannot be set up")]
    Kubernetes(#[from] kubernetes::KubernetesConnectError),
    #[error("failed to migrate {resource}")]
    Store { resource: &'static str, source: storage::Error },
}

/// Migrates every kind and returns the report of each, by plural.
pub async fn migrate_kinds(
    store: &StoreConfig,
    scheme: &'static ServedKinds,
) -> Result<Vec<(&'static str, MigrationReport)>, Error> {
    let store = open_store(store).await?;
    // A migration asks no admission plugin: it changes no object, only how it is written.
    let admission: Arc<dyn AdmissionPlugin> = Arc::new(AdmissionChain::default());
    let capacity = Capacity::new(CapacityBounds::for_process());
    let mut reports = Vec::new();
    for &kind in scheme.kinds() {
        let registry = Registry::new(kind, Arc::clone(&store), Arc::clone(&admission), &capacity);
        let resource = kind.plural();
        let report = registry.migrate().await;
        reports.push((resource, report.map_err(|source| Error::Store { resource, source })?));
    }
    Ok(reports)
}

async fn open_store(store: &StoreConfig) -> Result<Arc<dyn Storage>, Error> {
    Ok(match store {
        StoreConfig::Embedded(path) => {
            let history = embedded::HistoryLimits::default();
            Arc::new(embedded::EmbeddedStore::open_present(path, history).await?)
        }
        StoreConfig::Etcd(config) => Arc::new(etcd::EtcdStore::connect(config).await?),
        StoreConfig::Kubernetes(config) => {
            Arc::new(kubernetes::KubernetesStore::connect(config).await?)
        }
    })
}
