//! Migration of what is stored, over a real store.

use std::sync::Arc;

use bytes::Bytes;
use navigator::apiserver::{
    admission::AdmissionChain,
    capacity::{Capacity, CapacityBounds},
    registry::{MigrationReport, Registry},
    storage::{Key, Storage},
};
use serde_json::{Value, json};

use super::Scratch;

use crate::scheme;

fn key(name: &str) -> Key {
    Key::new("navigator.jetstack.io", "pilots", "ns", name).unwrap()
}

fn pilot(version: &str, name: &str) -> Bytes {
    json!({
        "apiVersion": format!("navigator.jetstack.io/{version}"),
        "kind": "Pilot",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {},
    })
    .to_string()
    .into()
}

#[tokio::test]
async fn migration_rewrites_older_forms_once_and_leaves_the_rest() {
    let Scratch { store, directory: _directory } = Scratch::new().await;
    let store: Arc<dyn Storage> = Arc::new(store);
    for name in ["a", "b"] {
        store.create(&key(name), pilot("v1alpha1", name)).await.unwrap();
    }
    store.create(&key("c"), Bytes::from("{")).await.unwrap();
    let kind = scheme().by_plural("pilots").unwrap();
    let capacity = Capacity::new(CapacityBounds::for_process());
    let registry =
        Registry::new(kind, Arc::clone(&store), Arc::new(AdmissionChain::default()), &capacity);

    let first = registry.migrate().await.unwrap();
    assert_eq!((first.rewritten, first.current), (2, 0));
    assert_eq!(first.failed, [key("c")]);
    for name in ["a", "b"] {
        let entry = store.get(&key(name)).await.unwrap().unwrap();
        let stored: Value = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!(stored["apiVersion"], "navigator.jetstack.io/v1beta1");
        assert_eq!(stored["metadata"]["uid"], format!("uid-{name}"));
        assert_eq!(stored["metadata"]["resourceVersion"], Value::Null);
    }
    let before = store.current_revision().await.unwrap();
    let again = registry.migrate().await.unwrap();
    assert_eq!(
        MigrationReport { failed: Vec::new(), ..again },
        MigrationReport { current: 2, ..MigrationReport::default() }
    );
    assert_eq!(store.current_revision().await.unwrap(), before, "nothing was left to write");
}
