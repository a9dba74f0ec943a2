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
    coordinator::{look_error::LookError, stirring::post_params},
    engine::registries::{MOVED_CREDENTIALS, RegistryTrouble},
};

/// Annotation in which kubectl keeps the whole of what was applied, credentials too.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl RegistryCoordinator {
    /// Puts the finalizer on a Registry, ahead of the first copy of its credentials.
    pub(super) async fn add_finalizer(&self, registry: Registry) -> Result<Registry, LookError> {
        let updated_registry =
            self.status.add_finalizer(registry, name::REGISTRY_FINALIZER).await?;
        self.seen.lock().record_registry(Some(updated_registry.clone()));
        Ok(updated_registry)
    }

    /// Moves credentials out of the spec: into a Secret first, then out of the object. Says what is in the
    /// way, if something is.
    pub(super) async fn move_credentials(
        &self,
        registry: Registry,
    ) -> Result<(Registry, Option<RegistryTrouble>), LookError> {
        let inline_credentials = registry.spec.provided_credentials();
        if inline_credentials.is_empty() {
            return Ok((registry, None));
        }
        let name = moved_name(&registry);
        if !self.write_credentials(&registry, &name, inline_credentials).await? {
            let message = format!(
                "Secret {name:?} is not Navigator's, so that the credentials cannot be moved into it"
            );
            return Ok((registry, Some(RegistryTrouble::Credentials(message))));
        }
        let mut patch = json!({"spec": {
            "credentials": null, "authToken": null, "credentialsSecretRef": {"name": name},
        }});
        if registry.annotations().contains_key(LAST_APPLIED) {
            patch["metadata"]["annotations"] = json!({LAST_APPLIED: null});
        }
        let updated_registry = self.status.patch_object(&registry, patch).await?;
        self.seen.lock().record_registry(Some(updated_registry.clone()));
        info!(registry = registry.name_any(), secret = name, "Moved credentials into a Secret");
        Ok((updated_registry, None))
    }

    /// Writes credentials into the Secret of this name; false where it is not ours.
    async fn write_credentials(
        &self,
        registry: &Registry,
        name: &str,
        credentials: BTreeMap<String, String>,
    ) -> Result<bool, LookError> {
        let request_error =
            |verb| move |error| LookError::for_request(verb, &format!("Secret {name:?}"), error);
        let existing_secret =
            self.secret_api().get_opt(name).await.map_err(request_error("read"))?;
        if existing_secret.as_ref().is_some_and(|secret| !is_of(secret, registry)) {
            return Ok(false);
        }
        let uid = registry.uid().unwrap_or_default();
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.labels = Some([(name::REGISTRY_CREDENTIALS.to_owned(), uid)].into());
        secret.type_ = Some(MOVED_CREDENTIALS.to_owned());
        secret.string_data = Some(credentials);
        let api = self.writable_secrets();
        match existing_secret {
            None => api.create(&post_params(), &secret).await.map_err(request_error("make"))?,
            Some(existing_secret) => {
                secret.metadata.resource_version = existing_secret.metadata.resource_version;
                api.replace(name, &post_params(), &secret).await.map_err(request_error("write"))?
            }
        };
        Ok(true)
    }

    /// Reads the Secret that a Registry names.
    pub(super) async fn read_source(
        &self,
        registry: &Registry,
    ) -> Result<Option<Secret>, LookError> {
        let Some(secret_ref) = &registry.spec.credentials_secret_ref else { return Ok(None) };
        let read_result = self.secret_api().get_opt(&secret_ref.name).await;
        read_result.map_err(|error| {
            LookError::for_request("read", &format!("Secret {:?}", secret_ref.name), error)
        })
    }

    /// Lets a Registry go that is being deleted, once nothing is left of it.
    pub(super) async fn finalize_registry(&self, registry: &Registry) -> Result<(), LookError> {
        let has_finalizer =
            registry.finalizers().iter().any(|finalizer| finalizer == name::REGISTRY_FINALIZER);
        if !has_finalizer || !self.seen.lock().is_clean(registry) {
            return Ok(());
        }
        let name = moved_name(registry);
        let request_error =
            |error| LookError::for_request("delete", &format!("Secret {name:?}"), error);
        let moved_secret = self.secret_api().get_opt(&name).await.map_err(request_error)?;
        if let Some(moved_secret) = moved_secret.filter(|secret| is_of(secret, registry)) {
            let preconditions = Preconditions { uid: moved_secret.uid(), resource_version: None };
            let params =
                DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match self.writable_secrets().delete(&name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => return Err(request_error(error)),
            }
        }
        self.status.remove_finalizer(registry, name::REGISTRY_FINALIZER).await
    }

    fn secret_api(&self) -> Api<Secret> {
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
