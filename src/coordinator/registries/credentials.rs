//! A Registry itself: its finalizer, and its credentials, which are moved out of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use serde_json::json;
use tracing::info;

use super::RegistryCoordinator;
use crate::{
    api::containership::{Registry, name},
    coordinator::{look_error::LookError, stirring::posted},
    engine::registries::{MOVED_CREDENTIALS, RegistryTrouble},
};

/// Annotation in which kubectl keeps the whole of what was applied, credentials too.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl RegistryCoordinator {
    /// Puts the finalizer on a Registry, ahead of the first copy of its credentials.
    pub(super) async fn hold(&self, registry: Registry) -> Result<Registry, LookError> {
        let held = self.status.hold(registry, name::REGISTRY_FINALIZER).await?;
        self.seen.lock().note_registry(Some(held.clone()));
        Ok(held)
    }

    /// Moves credentials out of the spec: into a Secret first, then out of the object. Says what is in the
    /// way, if something is.
    pub(super) async fn keep_credentials(
        &self,
        registry: Registry,
    ) -> Result<(Registry, Option<RegistryTrouble>), LookError> {
        let given = registry.spec.given_credentials();
        if given.is_empty() {
            return Ok((registry, None));
        }
        let name = moved_name(&registry);
        if !self.keep(&registry, &name, given).await? {
            let why = format!(
                "Secret {name:?} is not Navigator's, so that the credentials cannot be moved into it"
            );
            return Ok((registry, Some(RegistryTrouble::Credentials(why))));
        }
        let mut patch = json!({"spec": {
            "credentials": null, "authToken": null, "credentialsSecretRef": {"name": name},
        }});
        if registry.annotations().contains_key(LAST_APPLIED) {
            patch["metadata"]["annotations"] = json!({LAST_APPLIED: null});
        }
        let moved = self.status.patch(&registry, patch).await?;
        self.seen.lock().note_registry(Some(moved.clone()));
        info!(registry = registry.name_any(), secret = name, "Moved credentials into a Secret");
        Ok((moved, None))
    }

    /// Writes credentials into the Secret of this name; false where it is not ours.
    async fn keep(
        &self,
        registry: &Registry,
        name: &str,
        credentials: BTreeMap<String, String>,
    ) -> Result<bool, LookError> {
        let failed =
            |verb| move |error| LookError::request(verb, &format!("Secret {name:?}"), error);
        let before = self.secrets().get_opt(name).await.map_err(failed("read"))?;
        if before.as_ref().is_some_and(|secret| !is_of(secret, registry)) {
            return Ok(false);
        }
        let uid = registry.uid().unwrap_or_default();
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.labels = Some([(name::REGISTRY_CREDENTIALS.to_owned(), uid)].into());
        secret.type_ = Some(MOVED_CREDENTIALS.to_owned());
        secret.string_data = Some(credentials);
        let api = self.writable_secrets();
        match before {
            None => api.create(&posted(), &secret).await.map_err(failed("make"))?,
            Some(before) => {
                secret.metadata.resource_version = before.metadata.resource_version;
                api.replace(name, &posted(), &secret).await.map_err(failed("write"))?
            }
        };
        Ok(true)
    }

    /// Reads the Secret that a Registry names.
    pub(super) async fn source(&self, registry: &Registry) -> Result<Option<Secret>, LookError> {
        let Some(named) = &registry.spec.credentials_secret_ref else { return Ok(None) };
        let found = self.secrets().get_opt(&named.name).await;
        found
            .map_err(|error| LookError::request("read", &format!("Secret {:?}", named.name), error))
    }

    /// Lets a Registry go that is being deleted, once nothing is left of it.
    pub(super) async fn release(&self, registry: &Registry) -> Result<(), LookError> {
        let held = registry.finalizers().iter().any(|held| held == name::REGISTRY_FINALIZER);
        if !held || !self.seen.lock().is_clean(registry) {
            return Ok(());
        }
        let name = moved_name(registry);
        let failed = |error| LookError::request("delete", &format!("Secret {name:?}"), error);
        let moved = self.secrets().get_opt(&name).await.map_err(failed)?;
        if let Some(moved) = moved.filter(|secret| is_of(secret, registry)) {
            let this = Preconditions { uid: moved.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
            match self.writable_secrets().delete(&name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.status.let_go(registry, name::REGISTRY_FINALIZER).await
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.status.namespace)
    }

    fn writable_secrets(&self) -> Api<Secret> {
        Api::namespaced(self.status.writer.clone(), &self.status.namespace)
    }
}

/// Name of the Secret into which the credentials of a Registry are moved.
fn moved_name(registry: &Registry) -> String {
    format!("{}-credentials", registry.name_any())
}

/// Were the credentials of this Registry moved into this Secret?
fn is_of(secret: &Secret, registry: &Registry) -> bool {
    let label = secret.labels().get(name::REGISTRY_CREDENTIALS);
    label.is_some() && label == registry.uid().as_ref()
}
