//! Tells a namespace that is being deleted, by a condition, that our pods in it are gone.
//!
//! Kubernetes removes a namespace's pods first, and everything else when they are gone. It looks
//! again after half of their longest grace period, or five seconds after the Namespace changed
//! (`pkg/controller/namespace`). A database may take minutes to stop, so its grace period is long,
//! although it usually needs seconds: without our condition the namespace would wait minutes for
//! nothing. So once our last pod there is gone, the controller writes a condition to the Namespace.
//!
//! Owns that condition. Deletes nothing and shortens no grace period.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

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
    object_caches::ObjectOutline,
    status::seconds,
};
use crate::{error::chain, runtime::Shutdown};

const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Type of the condition that is written to Namespaces.
const DATABASES_STOPPED: &str = "NavigatorDatabasesStopped";

/// Namespaces in which a pod of ours was seen terminating.
#[derive(Default)]
struct TerminatingNamespaces(BTreeSet<String>);

/// The namespaces in which we have pods, and those in which one of them is terminating.
#[derive(Default)]
struct PodNamespaces {
    inhabited: HashSet<Box<str>>,
    terminating: BTreeSet<String>,
}

impl PodNamespaces {
    fn add(&mut self, pod: &ObjectOutline) {
        if pod.terminating {
            self.terminating.insert(pod.namespace.to_string());
        }
        if !self.inhabited.contains(&pod.namespace) {
            self.inhabited.insert(pod.namespace.clone());
        }
    }
}

impl TerminatingNamespaces {
    /// Returns the namespaces in which our pods were seen terminating and are gone now, and forgets
    /// them.
    fn emptied(&mut self, pods: &PodNamespaces) -> Vec<String> {
        self.0.extend(pods.terminating.iter().cloned());
        let emptied = |name: &String| !pods.inhabited.contains(name.as_str());
        let names: Vec<_> = self.0.iter().filter(|name| emptied(name)).cloned().collect();
        self.0.retain(|name| !emptied(name));
        names
    }

    /// Puts a namespace back whose condition could not be written, so that the write is tried
    /// again.
    fn again(&mut self, namespace: String) {
        self.0.insert(namespace);
    }
}

/// Looks every second, until shutdown, for namespaces whose last pod of ours is gone.
pub(crate) async fn watch_over(ctx: Arc<ControllerContext>, shutdown: Shutdown) {
    let mut ending = TerminatingNamespaces::default();
    loop {
        tokio::select! {
            () = sleep(CHECK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
        let mut pods = PodNamespaces::default();
        ctx.stores.pods.outlines(|pod| pods.add(pod));
        for namespace in ending.emptied(&pods) {
            match report_emptied(&ctx, &namespace).await {
                Ok(()) => {}
                Err(Error::NotLeading) => return,
                Err(error) => {
                    warn!(error = %chain(&error), "Failed to tell a namespace that its pods are gone");
                    ending.again(namespace);
                }
            }
        }
    }
}

/// Writes the condition to the namespace `name`, if it is being deleted.
pub(super) async fn report_emptied(ctx: &ControllerContext, name: &str) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(ctx.writer.clone());
    let failed = |verb| move |error| Error::request(verb, "Namespace", name, error);
    let Some(namespace) = api.get_opt(name).await.map_err(failed("get"))? else { return Ok(()) };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    let patch = json!({"status": {"conditions": [{
        "type": DATABASES_STOPPED,
        "status": "True",
        "reason": "PodsGone",
        "message": "Every database that Navigator ran in this namespace has stopped",
        "lastTransitionTime": seconds(Timestamp::now()),
    }]}});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write(&ApiResource::erase::<Namespace>(&()), name)?;
    match api.patch_status(name, &params, &Patch::Strategic(&patch)).await {
        Ok(_) => info!(namespace = name, "Told a namespace that its databases have stopped"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(failed("update the status of")(error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, terminating: bool) -> ObjectOutline {
        ObjectOutline { namespace: namespace.into(), terminating, ..ObjectOutline::default() }
    }

    fn emptied(ending: &mut TerminatingNamespaces, pods: &[ObjectOutline]) -> Vec<String> {
        let mut namespaces = PodNamespaces::default();
        for pod in pods {
            namespaces.add(pod);
        }
        ending.emptied(&namespaces)
    }

    #[test]
    fn a_namespace_is_told_once_when_its_last_ending_pod_is_gone() {
        let mut ending = TerminatingNamespaces::default();
        let none: Vec<String> = Vec::new();
        assert_eq!(emptied(&mut ending, &[pod("a", true), pod("a", false), pod("b", false)]), none);
        assert_eq!(emptied(&mut ending, &[pod("a", true), pod("b", false)]), none);
        assert_eq!(emptied(&mut ending, &[pod("b", false)]), ["a"]);
        assert_eq!(emptied(&mut ending, &[]), none, "told once; nobody saw a pod of b end");
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let mut ending = TerminatingNamespaces::default();
        emptied(&mut ending, &[pod("a", true)]);
        for name in emptied(&mut ending, &[]) {
            ending.again(name);
        }
        assert_eq!(emptied(&mut ending, &[]), ["a"]);
    }
}
