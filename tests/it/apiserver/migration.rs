//! Stored forms of older servers.

use std::sync::Arc;

use navigator::{
    api::scheme::kind_by_plural,
    apiserver::{admission::Plugins, registry::Registry, storage::Key},
};
use serde_json::{Value, json};

use super::{Server, pilots};

#[tokio::test]
async fn what_upstream_stored_is_served_and_migrated_once() {
    let server = Server::start().await;
    server.pilot("new").await;
    let old = json!({
        "apiVersion": "navigator.jetstack.io/v1alpha1",
        "kind": "Pilot",
        "metadata": {
            "name": "old", "namespace": "db", "uid": "5d0c7a1e-0000-4000-8000-000000000000",
            "creationTimestamp": "2018-01-01T00:00:00Z",
        },
        "spec": {"decommission": true},
        "status": {},
    });
    let key = Key::new("navigator.jetstack.io", "pilots", "db", "old").unwrap();
    server.store.create(&key, old.to_string().into()).await.unwrap();
    let before = server.get(&format!("{}/old", pilots())).await.expect(200);
    assert_eq!(before["spec"]["phase"], "Decommissioned");

    let kind = kind_by_plural("pilots").unwrap();
    let registry = Registry::new(kind, Arc::clone(&server.store), Arc::new(Plugins::default()));
    let migrated = registry.migrate().await.unwrap();
    assert_eq!((migrated.current, migrated.rewritten), (1, 1));
    let entry = server.store.get(&key).await.unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&entry.value).unwrap();
    assert_eq!(stored["apiVersion"], "navigator.jetstack.io/v1beta1");
    let after = server.get(&format!("{}/old", pilots())).await.expect(200);
    assert_eq!(
        (&after["spec"], &after["metadata"]["uid"]),
        (&before["spec"], &before["metadata"]["uid"])
    );

    let again = registry.migrate().await.unwrap();
    assert_eq!((again.current, again.rewritten), (2, 0));
}
