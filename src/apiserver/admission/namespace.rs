//! NamespaceLifecycle: nothing is created in a namespace that is missing or being deleted, and
//! nothing is updated in one that is missing.
//!
//! Owns [`NamespaceLister`], a reflector of the metadata of namespaces. kube-apiserver itself is
//! asked about a namespace that the reflector does not have, because the reflector may be behind.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tracing::warn;

use super::{AdmissionAttributes, AdmissionOperation, AdmissionPlugin};
use crate::{
    apiserver::{
        kube_client::WatchBackoff,
        status::{ApiError, GroupResource},
    },
    error::chain,
    runtime::Runtime,
};

/// Longest time that kube-apiserver may take to answer about a namespace.
const LOOKUP: Duration = Duration::from_secs(5);

const NAMESPACES: GroupResource<'static> = GroupResource { group: "", resource: "namespaces" };

/// The NamespaceLifecycle plugin.
pub struct NamespaceLifecycle(Arc<NamespaceLister>);

impl NamespaceLifecycle {
    pub fn new(namespaces: Arc<NamespaceLister>) -> Self {
        Self(namespaces)
    }
}

/// Looks up namespaces: in the reflector, and else in kube-apiserver.
pub struct NamespaceLister {
    known: Store<PartialObjectMeta<Namespace>>,
    live: Api<PartialObjectMeta<Namespace>>,
}

impl NamespaceLister {
    /// Starts the reflector of namespaces.
    pub fn start(client: &Client, rt: &Runtime) -> Self {
        let namespace_api: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
        let (cache, writer) = reflector::store();
        let events = watcher(namespace_api.clone(), watcher::Config::default().any_semantic())
            .backoff(WatchBackoff::new())
            .reflect(writer);
        let shutdown = rt.shutdown();
        rt.tasks().spawn("namespaces", async move {
            let mut events = std::pin::pin!(events);
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = shutdown.triggered() => return,
                };
                match event {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        warn!(error = %chain(&error), "Failed to watch namespaces; trying again");
                    }
                    None => return,
                }
            }
        });
        Self { known: cache, live: namespace_api }
    }

    /// Returns a namespace's metadata; 404 when the namespace does not exist.
    pub async fn find(&self, name: &str) -> Result<Arc<PartialObjectMeta<Namespace>>, ApiError> {
        if let Some(namespace) = self.known.get(&ObjectRef::new(name)) {
            return Ok(namespace);
        }
        match tokio::time::timeout(LOOKUP, self.live.get_opt(name)).await {
            Ok(Ok(Some(namespace))) => Ok(Arc::new(namespace)),
            Ok(Ok(None)) => Err(ApiError::not_found(NAMESPACES, name)),
            Ok(Err(error)) => Err(ApiError::internal_error(format!(
                "failed to look up namespace {name:?}: {error}"
            ))),
            Err(_) => {
                Err(ApiError::internal_error(format!("looking up namespace {name:?} timed out")))
            }
        }
    }
}

impl AdmissionPlugin for NamespaceLifecycle {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let AdmissionAttributes { operation, group, resource, name, namespace, old, .. } =
                attributes;
            // The namespace controller must be able to empty a namespace. A namespace that ended
            // while no server served our API was not emptied, so objects deleted later must still
            // be able to lose their finalizers. kube-apiserver refuses that: its own objects do not
            // outlive their namespace.
            let is_terminating =
                old.is_some_and(|old| old["metadata"].get("deletionTimestamp").is_some());
            if operation == AdmissionOperation::Delete || namespace.is_empty() || is_terminating {
                return Ok(());
            }
            let namespace_object = self.0.find(namespace).await?;
            if operation == AdmissionOperation::Create
                && namespace_object.metadata.deletion_timestamp.is_some()
            {
                let resource = GroupResource { group, resource };
                return Err(ApiError::namespace_terminating(resource, name, namespace));
            }
            Ok(())
        })
    }
}
