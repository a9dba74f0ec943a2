//! Creates the objects that exist before the first request: two namespaces, and the ConfigMap with
//! the store's identity, for which the controller waits.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds;
use crate::{
    api::names,
    apiserver::storage::{Error, Key, Storage},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Creates those of the first objects that are missing.
pub(super) async fn write_first_objects(store: &Arc<dyn Storage>) -> Result<(), BoxError> {
    for name in ["default", names::NAMESPACE] {
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        let key = Key::new(kinds::CORE, "namespaces", kinds::NO_NAMESPACE, name)?;
        create_object(store, &key, namespace).await?;
    }
    let record = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names::STORE_CONFIG_MAP, "namespace": names::NAMESPACE},
        "data": {"id": store.store_id().await?},
    });
    let key = Key::new(kinds::CORE, "configmaps", names::NAMESPACE, names::STORE_CONFIG_MAP)?;
    create_object(store, &key, record).await
}

async fn create_object(
    store: &Arc<dyn Storage>,
    key: &Key,
    mut object: Value,
) -> Result<(), BoxError> {
    object["metadata"]["uid"] = json!(uuid::Uuid::new_v4().to_string());
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second())?;
    object["metadata"]["creationTimestamp"] = json!(now.to_string());
    match store.create(key, object.to_string().into()).await {
        Ok(_) | Err(Error::Exists(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
