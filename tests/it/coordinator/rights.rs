//! A coordinator that has the rights of the manifest and no others.

use navigator::engine::rbac;
use serde_json::{Value, json};

use super::{
    fleet::Fleet,
    wire::{Course, Wire},
};

const USER: &str = "the-coordinator";
const CORE: &str = "containership-core";
const KINDS: &str = "/apis/containership.io/v3/namespaces/containership-core";
const POOL_LABELS: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/nodepoollabels";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

impl Fleet {
    /// A way to the server for a coordinator with Registries, a hub and the end allowed.
    pub(super) async fn limited_wire(&self, course: Course) -> Wire {
        let mut wide = rbac::coordinator_rules(&["cassandraclusters"]);
        wide.extend(rbac::registry_rules());
        wide.extend(rbac::terminate_rules(true));
        let mut core = rbac::coordinator_core_rules();
        core.extend(rbac::label_core_rules());
        core.extend(rbac::registry_core_rules());
        core.extend(rbac::hub_core_rules(CORE));
        core.extend(rbac::terminate_core_rules(CORE));
        let place = format!("{RBAC}/namespaces/{CORE}");
        for (place, kind, rules) in
            [(RBAC, "ClusterRole", json!(wide)), (place.as_str(), "Role", json!(core))]
        {
            let role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"name": USER}, "rules": rules,
            });
            let plural = format!("{}s", kind.to_lowercase());
            self.make(&format!("{place}/{plural}"), &role).await;
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
                "metadata": {"name": USER},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": USER},
                "subjects": [{
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER,
                }],
            });
            let plural = format!("{}bindings", kind.to_lowercase());
            self.make(&format!("{place}/{plural}"), &binding).await;
        }
        self.wire_as(USER, course).await
    }

    /// Waits until an event on the core namespace has this reason and these words; returns its note.
    pub(super) async fn told(&self, reason: &str, words: &str) -> String {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{CORE}/events");
        self.until(&format!("{reason} {words}"), async |fleet| {
            let events = fleet.list(&path).await;
            let note = |event: &Value| event["note"].as_str().unwrap_or_default().to_owned();
            let of = events.iter().filter(|event| event["reason"] == reason).map(note);
            let notes: Vec<String> = of.collect();
            let found = notes.iter().find(|note| note.contains(words)).cloned();
            found.ok_or(format!("{notes:#?}"))
        })
        .await
    }

    /// Takes away what another test left of people, labels, registries and copies.
    pub(super) async fn clear_objects(&self) {
        for kind in [
            format!("{KINDS}/users"),
            format!("{KINDS}/clusterlabels"),
            format!("{KINDS}/registries"),
            POOL_LABELS.to_owned(),
        ] {
            for object in self.list(&kind).await {
                let path = format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap());
                self.patch(&path, &json!({"metadata": {"finalizers": null}})).await;
                self.end(&path).await;
            }
        }
        for path in self.copies().await {
            self.end(&path).await;
        }
        let none = json!({
            "containership.io/terminate": null, "containership.io/terminate-progress": null,
            "containership.io/confirm-deletion": null,
        });
        let namespace = format!("/api/v1/namespaces/{CORE}");
        self.patch(&namespace, &json!({"metadata": {"annotations": none}})).await;
    }

    /// Paths of objects that the coordinator made, beside those of its kinds.
    pub(super) async fn copies(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (plural, selector) in [
            ("secrets", "containership.io/registry"),
            ("secrets", "containership.io/registry-credentials"),
            ("serviceaccounts", "containership.io/managed%3Dtrue"),
        ] {
            for object in self.list(&format!("/api/v1/{plural}?labelSelector={selector}")).await {
                let word = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
                let (namespace, name) = (word("namespace"), word("name"));
                found.push(format!("/api/v1/namespaces/{namespace}/{plural}/{name}"));
            }
        }
        found
    }
}
