//! Events on the core namespace, about what concerns no single object.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use tracing::info;

use crate::runtime::events::{EventNotice, EventPublisher};

/// Tells each thing once, for as long as it holds.
pub(crate) struct NamespaceEvents {
    events: EventPublisher,
    namespace: ObjectReference,
    /// What was told already, and what holds as of now.
    told: BTreeSet<String>,
    holds: BTreeSet<String>,
}

impl NamespaceEvents {
    pub(crate) fn new(events: EventPublisher, namespace: &str) -> Self {
        let namespace = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(namespace.to_owned()),
            // So that the event lies in the namespace, where the coordinator may write events.
            namespace: Some(namespace.to_owned()),
            ..ObjectReference::default()
        };
        Self { events, namespace, told: BTreeSet::new(), holds: BTreeSet::new() }
    }

    /// Tells a notice, unless it was told since it holds.
    pub(crate) async fn publish_once(&mut self, notice: EventNotice) {
        let line = format!("{}: {}", notice.reason, notice.note);
        self.holds.insert(line.clone());
        if self.told.insert(line) {
            info!(reason = notice.reason, "{}", notice.note);
            self.events.publish(&self.namespace, &notice).await;
        }
    }

    /// Forgets what does not hold any more: what was not told since the last call.
    pub(crate) fn clear_resolved(&mut self) {
        self.told = std::mem::take(&mut self.holds);
    }
}
