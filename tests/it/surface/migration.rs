//! Stored forms of older servers.

use std::sync::Arc;

use navigator::apiserver::{
    admission::AdmissionChain,
    capacity::{Capacity, CapacityBounds},
    registry::Registry,
    storage::Key,
};
use serde_json::{Value, json};

use super::{ALPHA, BETA, Server, pilots};

use crate::scheme;

/// As upstream's server wrote it.
fn upstream_pilot(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1alpha1",
        "kind": "Pilot",
        "metadata": {
            "name": name, "namespace": "db", "uid": "5d0c7a1e-0000-4000-8000-000000000000",
            "creationTimestamp": "2018-01-01T00:00:00Z",
        },
        "spec": {"decommission": true},
        "status": {},
    })
}

fn key(name: &str) -> Key {
    Key::new("navigator.jetstack.io", "pilots", "db", name).unwrap()
}

async fn stored(server: &Server, name: &str) -> Value {
    let entry = server.store.get(&key(name)).await.unwrap().unwrap();
    serde_json::from_slice(&entry.value).unwrap()
}

#[tokio::test]
async fn any_write_rewrites_an_older_form_even_when_nothing_else_changes() {
    let server = Server::start().await;
    for (version, prefix) in [("v1alpha1", ALPHA), ("v1beta1", BETA)] {
        for (method, part) in [("PUT", ""), ("PATCH", ""), ("PUT", "/status"), ("PATCH", "/status")]
        {
            let name = format!("{version}-{method}{}", part.replace('/', "-")).to_lowercase();
            server
                .store
                .create(&key(&name), upstream_pilot(&name).to_string().into())
                .await
                .unwrap();
            let path = format!("{prefix}/namespaces/db/pilots/{name}");
            let before = server.get(&path).await.expect(200);
            let write = async || {
                let path = format!("{path}{part}");
                if method == "PATCH" {
                    return server.merge(&path, &json!({})).await.expect(200);
                }
                let current = server.get(&path).await.expect(200);
                server.put(&path, &current).await.expect(200)
            };

            let mut written = write().await;
            let form = stored(&server, &name).await["apiVersion"].clone();
            assert_eq!(form, "navigator.jetstack.io/v1beta1", "{name}");
            let revision = written["metadata"]["resourceVersion"].clone();
            assert_ne!(revision, before["metadata"]["resourceVersion"], "{name}");
            written["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            assert_eq!(written, before, "{name}: only the form changed");
            assert_eq!(write().await["metadata"]["resourceVersion"], revision, "{name}: once");
        }
    }
}

#[tokio::test]
async fn what_upstream_stored_is_served_and_migrated_once() {
    let server = Server::start().await;
    server.pilot("new").await;
    server.store.create(&key("old"), upstream_pilot("old").to_string().into()).await.unwrap();
    let before = server.get(&format!("{}/old", pilots())).await.expect(200);
    assert_eq!(before["spec"]["phase"], "Decommissioned");

    let kind = scheme().by_plural("pilots").unwrap();
    let capacity = Capacity::new(CapacityBounds::for_process());
    let registry = Registry::new(
        kind,
        Arc::clone(&server.store),
        Arc::new(AdmissionChain::default()),
        &capacity,
    );
    let migrated = registry.migrate().await.unwrap();
    assert_eq!((migrated.current, migrated.rewritten), (1, 1));
    assert_eq!(stored(&server, "old").await["apiVersion"], "navigator.jetstack.io/v1beta1");
    let after = server.get(&format!("{}/old", pilots())).await.expect(200);
    assert_eq!(
        (&after["spec"], &after["metadata"]["uid"]),
        (&before["spec"], &before["metadata"]["uid"])
    );

    let again = registry.migrate().await.unwrap();
    assert_eq!((again.current, again.rewritten), (2, 0));
}
