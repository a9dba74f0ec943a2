//! Tells a namespace that is being deleted, by a condition, that our pods in it are gone.
//!
//! Kubernetes removes a namespace's pods first, and everything else when they are gone. It looks
//! again after half of their longest grace period, or five seconds after the Namespace changed
//! (`pkg/controller/namespace`). A database may take minutes to stop, so its grace period is long,
//! although it usually needs seconds: without our condition the namespace would wait minutes for
//! nothing. So once our last pod there is gone, the controller writes a condition to the Namespace.
//!
//! Owns that condition. Deletes nothing and shortens no grace period.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use kube::{
    Api,
    api::{ApiResource, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    context::{ControllerContext, Error, MANAGER},
    status::truncate_to_seconds,
};
use crate::{error::chain, runtime::Shutdown};

const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Type of the condition that is written to Namespaces.
const DATABASES_STOPPED: &str = "NavigatorDatabasesStopped";

/// Namespaces that had Navigator's pods at the last check of the caches.
///
/// Whether a pod was seen terminating does not matter: a pod may disappear between two checks.
#[derive(Default)]
struct InhabitedNamespaces(BTreeSet<Box<str>>);

impl InhabitedNamespaces {
    /// Takes up the namespaces that have pods now. Returns those whose last pod is gone.
    fn replace_namespaces(&mut self, current_namespaces: BTreeSet<Box<str>>) -> Vec<Box<str>> {
        let emptied_namespaces = self.0.difference(&current_namespaces).cloned().collect();
        self.0 = current_namespaces;
        emptied_namespaces
    }

    /// Puts a namespace back whose condition could not be written, so that the write is tried
    /// again.
    fn retry_namespace(&mut self, namespace: Box<str>) {
        self.0.insert(namespace);
    }
}

/// Checks every second, until shutdown, for namespaces whose last pod of Navigator is gone.
pub(crate) async fn watch_over(ctx: Arc<ControllerContext>, shutdown: Shutdown) {
    let mut inhabited_namespaces = InhabitedNamespaces::default();
    loop {
        tokio::select! {
            () = sleep(CHECK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
        let mut current_namespaces = BTreeSet::new();
        ctx.stores.pods.for_each_outline(|pod| {
            if !current_namespaces.contains(&pod.namespace) {
                current_namespaces.insert(pod.namespace.clone());
            }
        });
        for namespace in inhabited_namespaces.replace_namespaces(current_namespaces) {
            if ctx.stores.left_out(&namespace).is_some() {
                inhabited_namespaces.retry_namespace(namespace);
                continue;
            }
            match report_emptied(&ctx, &namespace).await {
                Ok(()) => {}
                Err(Error::NotLeading) => return,
                Err(error) => {
                    warn!(error = %chain(&error), "Failed to tell a namespace that its pods are gone");
                    inhabited_namespaces.retry_namespace(namespace);
                }
            }
        }
    }
}

/// Writes the condition to the namespace `name`, if it is being deleted.
pub(super) async fn report_emptied(ctx: &ControllerContext, name: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(ctx.writer.clone());
    let request_error = |verb| move |error| Error::from_request(verb, "Namespace", name, error);
    let Some(namespace) = api.get_opt(name).await.map_err(request_error("get"))? else {
        return Ok(());
    };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    let patch = json!({"status": {"conditions": [{
        "type": DATABASES_STOPPED,
        "status": "True",
        "reason": "PodsGone",
        "message": "Every database that Navigator ran in this namespace has stopped",
        "lastTransitionTime": truncate_to_seconds(Timestamp::now()),
    }]}});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write_api(&ApiResource::erase::<Namespace>(&()), name)?;
    match api.patch_status(name, &params, &Patch::Strategic(&patch)).await {
        Ok(_) => info!(namespace = name, "Told a namespace that its databases have stopped"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(request_error("update the status of")(error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces(names: &[&str]) -> BTreeSet<Box<str>> {
        names.iter().map(|name| Box::from(*name)).collect()
    }

    #[test]
    fn a_namespace_is_told_once_when_its_last_pod_is_gone() {
        let mut inhabited = InhabitedNamespaces::default();
        let none: Vec<Box<str>> = Vec::new();
        assert_eq!(inhabited.replace_namespaces(namespaces(&["a", "b"])), none);
        assert_eq!(inhabited.replace_namespaces(namespaces(&["b"])), [Box::from("a")]);
        assert_eq!(inhabited.replace_namespaces(namespaces(&["b"])), none, "told once");
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let mut inhabited = InhabitedNamespaces::default();
        inhabited.replace_namespaces(namespaces(&["a"]));
        for name in inhabited.replace_namespaces(namespaces(&[])) {
            inhabited.retry_namespace(name);
        }
        assert_eq!(inhabited.replace_namespaces(namespaces(&[])), [Box::from("a")]);
    }
}
