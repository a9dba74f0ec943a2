//! Carries out claims as folders: a claim is bound once its folder exists, and the folder is
//! removed with the claim when no pod uses it.

use std::{fs, io, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::reflector::Store,
};
use serde_json::json;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{MANAGER, ignore_stale_write, stateful_sets::CLAIM_FINALIZER, watch::ChangeNotifier};
use crate::{error::chain, local::state_folder::StateFolder, runtime::Shutdown};

const RETRY: Duration = Duration::from_secs(1);

pub(crate) struct ClaimController {
    pub(crate) client: Client,
    pub(crate) folder: StateFolder,
    pub(crate) store: Store<PersistentVolumeClaim>,
    pub(crate) pods: Store<Pod>,
    pub(crate) bell: ChangeNotifier,
}

/// Why a claim could not be processed and is tried again.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to write the claim")]
    Kube(#[from] kube::Error),
    #[error("failed to make or remove its folder")]
    Folder(#[from] io::Error),
}

impl ClaimController {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = self.bell.wait_for_change() => {}
                () = shutdown.triggered() => return,
            }
            for claim in self.store.state() {
                if let Err(error) = self.reconcile(&claim).await {
                    let name = claim.metadata.name.as_deref().unwrap_or_default();
                    warn!(name, error = %chain(&error), "A claim is looked at again");
                    sleep(RETRY).await;
                    self.bell.notify();
                }
            }
        }
    }

    async fn reconcile(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let folder = self.folder.claim(namespace, name);
        if meta.deletion_timestamp.is_some() {
            let finalizers = meta.finalizers.clone().unwrap_or_default();
            let has_finalizer = finalizers.iter().any(|finalizer| finalizer == CLAIM_FINALIZER);
            if !has_finalizer || self.is_used(namespace, name) {
                return Ok(());
            }
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => info!(namespace, name, "Removed the data of a claim that was deleted"),
            }
            let finalizers: Vec<_> =
                finalizers.into_iter().filter(|finalizer| finalizer != CLAIM_FINALIZER).collect();
            let patch = json!({"metadata": {
                "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
            }});
            return Ok(ignore_stale_write(
                api.patch(name, &params, &Patch::Merge(&patch)).await.map(drop),
            )?);
        }
        let spec = claim.spec.clone().unwrap_or_default();
        let requested_resources =
            spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
        let modes = spec.access_modes.unwrap_or_default();
        let status = claim.status.clone().unwrap_or_default();
        let is_bound = status.phase.as_deref() == Some("Bound");
        if is_bound && status.capacity.as_ref() == Some(&requested_resources) && folder.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        let patch = json!({
            "metadata": {"uid": meta.uid},
            "status": {"phase": "Bound", "accessModes": modes, "capacity": requested_resources},
        });
        Ok(ignore_stale_write(
            api.patch_status(name, &params, &Patch::Merge(&patch)).await.map(drop),
        )?)
    }

    fn is_used(&self, namespace: &str, name: &str) -> bool {
        self.pods.state().iter().any(|pod| {
            let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
            let mut claims = volumes.unwrap_or_default().iter().filter_map(|volume| {
                Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str())
            });
            pod.metadata.namespace.as_deref() == Some(namespace)
                && claims.any(|claim| claim == name)
        })
    }
}
