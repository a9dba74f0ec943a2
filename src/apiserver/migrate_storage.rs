//! `navigator apiserver migrate-storage`: every object in the form that is stored today.
//!
//! Owns how the store is opened: one that exists, at once or not at all. [`Registry::migrate`]
//! decides what happens to an object. A migration makes no store, and records no store as this
//! installation's, because it serves none.

use std::sync::Arc;

use super::{
    admission::{Admit, Plugins},
    capacity::{Bounds, Capacity},
    registry::{Migrated, Registry},
    run::Store,
    storage::{self, Storage, embedded, etcd, kubernetes},
};
use crate::api::scheme::Scheme;

/// Why a migration ended early. What was rewritten until then stays rewritten.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to open the embedded store")]
    Embedded(#[from] embedded::OpenError),
    #[error("the connection to etcd cannot be set up")]
    Etcd(#[from] etcd::ConnectError),
    #[error("the connection to the store cannot be set up")]
    Kubernetes(#[from] kubernetes::ConnectError),
    #[error("failed to migrate {resource}")]
    Store { resource: &'static str, source: storage::Error },
}

/// Migrates every kind and returns what it found of each, by plural.
pub async fn run(
    store: &Store,
    scheme: &'static Scheme,
) -> Result<Vec<(&'static str, Migrated)>, Error> {
    let store = open(store).await?;
    // A migration asks no admission plugin: it changes no object, only how it is written.
    let admission: Arc<dyn Admit> = Arc::new(Plugins::default());
    let capacity = Capacity::new(Bounds::own());
    let mut found = Vec::new();
    for &kind in scheme.kinds() {
        let registry = Registry::new(kind, Arc::clone(&store), Arc::clone(&admission), &capacity);
        let resource = kind.plural();
        let migrated = registry.migrate().await;
        found.push((resource, migrated.map_err(|source| Error::Store { resource, source })?));
    }
    Ok(found)
}

async fn open(store: &Store) -> Result<Arc<dyn Storage>, Error> {
    Ok(match store {
        Store::Embedded(path) => {
            let history = embedded::History::default();
            Arc::new(embedded::Embedded::open_present(path, history).await?)
        }
        Store::Etcd(config) => Arc::new(etcd::Etcd::connect(config).await?),
        Store::Kubernetes(config) => Arc::new(kubernetes::Kubernetes::connect(config).await?),
    })
}
