//! The machine's own Node, as far as the agent may write it: an annotation, and events about it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    api::names,
    runtime::events::{EventNotice, EventPublisher},
};

/// Time that an event may take; one that is lost is no reason to stop working.
const EVENT: Duration = Duration::from_secs(5);

pub(crate) struct OwnNode {
    nodes: Api<Node>,
    events: EventPublisher,
    name: String,
}

impl OwnNode {
    pub(crate) fn new(client: Client, name: String) -> Self {
        let events = EventPublisher::new(client.clone(), names::AGENT, name.clone());
        Self { nodes: Api::all(client), events, name }
    }

    /// Writes an annotation.
    pub(crate) async fn set_annotation(&self, key: &str, text: &str) -> kube::Result<()> {
        let patch = json!({"metadata": {"annotations": {key: text}}});
        let params =
            PatchParams { field_manager: Some(names::AGENT.to_owned()), ..PatchParams::default() };
        self.nodes.patch(&self.name, &params, &Patch::Merge(patch)).await.map(drop)
    }

    pub(crate) async fn publish_event(&self, notice: &EventNotice) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            // As the kubelet has it: kubectl looks for events of a Node by its name.
            uid: Some(self.name.clone()),
            ..ObjectReference::default()
        };
        drop(timeout(EVENT, self.events.publish(&regarding, notice)).await);
    }
}
