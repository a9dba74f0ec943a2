//! The kind in which the Kubernetes API keeps our objects for us: one object for each key, the
//! bytes opaque.
//!
//! Its group is not the one that we serve: kube-apiserver would take a definition in that group
//! for a competitor of our APIService. Its objects have no owners and no finalizers, whatever the
//! objects inside of them have, so that garbage is collected once and by the names that people see.

use serde_json::{Value, json};

pub const GROUP: &str = "store.navigator.jetstack.io";
pub const VERSION: &str = "v1";
pub const KIND: &str = "StoredObject";
pub const PLURAL: &str = "storedobjects";

/// Name of the CustomResourceDefinition.
pub fn definition_name() -> String {
    format!("{PLURAL}.{GROUP}")
}

/// The `spec` of the CustomResourceDefinition, with the defaults that Kubernetes would add: so
/// applying the manifest again changes nothing.
pub fn crd_spec() -> Value {
    let text = json!({"type": "string"});
    json!({
        "group": GROUP,
        "scope": "Namespaced",
        "conversion": {"strategy": "None"},
        "names": {
            "kind": KIND,
            "listKind": format!("{KIND}List"),
            "plural": PLURAL,
            "singular": KIND.to_lowercase(),
        },
        "versions": [{
            "name": VERSION,
            "served": true,
            "storage": true,
            "additionalPrinterColumns": [
                {"name": "Key", "type": "string", "jsonPath": ".key"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
            "schema": {"openAPIV3Schema": {
                "type": "object",
                "description": "One object of Navigator's API server, as it is stored. Only that \
                                server may write here: whoever deletes one of these deletes no \
                                database, but what is known of it.",
                // An object that was marked as deleted is never written again, at whatever
                // revision.
                "x-kubernetes-validations": [{
                    "rule": "!has(oldSelf.deleted)",
                    "message": "it was deleted",
                }],
                "properties": {
                    "key": text,
                    // Base64, so that every byte comes back.
                    "value": text,
                    // Different in each write, so that Kubernetes never takes a write for no
                    // change.
                    "write": text,
                    // Our object was deleted at this revision; the StoredObject itself is removed
                    // soon after.
                    "deleted": {"type": "boolean"},
                    // Only in the object that stands for the store itself.
                    "store": {
                        "type": "object",
                        "properties": {
                            "id": text,
                            "floor": {"type": "integer", "format": "int64"},
                            "lost": text,
                        },
                    },
                },
            }},
        }],
    })
}
