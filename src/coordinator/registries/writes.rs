//! Writes of Secrets and ServiceAccounts in namespaces. A namespace that is gone, or about to be, is no
//! failure; a Secret of another that is in the way stays as it is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, Secret, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

use super::{RegistryCoordinator, RegistryTurn, ledger::RefusedKind};
use crate::{
    api::{containership::name, names},
    coordinator::{look_error::LookError, stirring::post_params},
    engine::registries::{AccountStep, SecretStep},
    error::chain,
};

/// How one write ended. What was refused is noted in the ledger.
pub(super) enum WriteEnd {
    Done,
    /// Another client changed the object since it was read.
    Stale,
    NotLeading,
}

impl RegistryCoordinator {
    pub(super) async fn write_secret(
        &self,
        step: SecretStep,
        turns: &BTreeMap<String, RegistryTurn>,
    ) -> WriteEnd {
        let (namespace, name, version) = match step {
            SecretStep::Create { namespace, registry } => (namespace, registry, None),
            SecretStep::Replace { namespace, registry, version } => {
                (namespace, registry, Some(version))
            }
            SecretStep::Delete { namespace, secret, version } => {
                return self.delete_secret(&namespace, &secret, &version).await;
            }
        };
        let (namespace, name, version) = (namespace.as_str(), name.as_str(), version.as_deref());
        let Some(turn) = turns.get(name) else { return WriteEnd::Done };
        let Some(config) = &turn.config else { return WriteEnd::Done };
        let api: Api<Secret> = Api::namespaced(self.status.writer.clone(), namespace);
        let secret = config.build_secret(name, &turn.wish.uid, namespace, version);
        let answer = match version {
            None => api.create(&post_params(), &secret).await,
            Some(_) => api.replace(name, &post_params(), &secret).await,
        };
        match (answer, version) {
            (Ok(secret), _) => {
                self.seen.lock().record_secret(secret);
                WriteEnd::Done
            }
            (Err(kube::Error::Api(answer)), None) if answer.reason == "AlreadyExists" => {
                let key = format!("{namespace}/{name}");
                self.seen.lock().record_refusal(RefusedKind::Secret, key, None);
                WriteEnd::Done
            }
            // Of another type, or immutable: made anew.
            (Err(kube::Error::Api(answer)), Some(version)) if answer.code == 422 => {
                self.delete_secret(namespace, name, version).await;
                WriteEnd::Stale
            }
            (Err(error), _) => self.handle_write_error(RefusedKind::Secret, namespace, name, error),
        }
    }

    async fn delete_secret(&self, namespace: &str, name: &str, version: &str) -> WriteEnd {
        let api: Api<Secret> = Api::namespaced(self.status.writer.clone(), namespace);
        let preconditions = Preconditions { resource_version: Some(version.to_owned()), uid: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => {
                self.seen.lock().remove_secret(namespace, name);
                WriteEnd::Done
            }
            Err(error) => self.handle_write_error(RefusedKind::Secret, namespace, name, error),
        }
    }

    /// Has a ServiceAccount pull with our Secrets, besides those that others gave it.
    pub(super) async fn write_account(&self, step: AccountStep) -> WriteEnd {
        let AccountStep { namespace, name, version, ours, pulls } = step;
        let api: Api<ServiceAccount> = Api::namespaced(self.status.writer.clone(), &namespace);
        let answer = match version {
            None => {
                let mut account = ServiceAccount::default();
                account.metadata.name = Some(name.clone());
                // So that the end of the cluster manager knows that it was made here.
                let (label, value) = name::MANAGED;
                account.metadata.labels = Some([(label.to_owned(), value.to_owned())].into());
                account.metadata.annotations =
                    Some([(name::REGISTRY_SECRETS.to_owned(), ours)].into());
                let reference = |name| LocalObjectReference { name };
                account.image_pull_secrets = Some(pulls.into_iter().map(reference).collect());
                api.create(&post_params(), &account).await
            }
            Some(version) => {
                let pulls: Vec<Value> = pulls.iter().map(|name| json!({"name": name})).collect();
                let annotation_value = if ours.is_empty() { Value::Null } else { ours.into() };
                let patch = Patch::Merge(json!({
                    "metadata": {
                        "resourceVersion": version, "annotations": {name::REGISTRY_SECRETS: annotation_value},
                    },
                    "imagePullSecrets": pulls,
                }));
                let params = PatchParams {
                    field_manager: Some(names::COORDINATOR.to_owned()),
                    ..PatchParams::default()
                };
                api.patch(&name, &params, &patch).await
            }
        };
        match answer {
            Ok(account) => {
                self.seen.lock().record_account(account);
                WriteEnd::Done
            }
            Err(error) => self.handle_write_error(RefusedKind::Account, &namespace, &name, error),
        }
    }

    fn handle_write_error(
        &self,
        kind: RefusedKind,
        namespace: &str,
        name: &str,
        error: kube::Error,
    ) -> WriteEnd {
        if let kube::Error::Api(answer) = &error {
            let is_terminating = answer.code == 403 && answer.message.contains("being terminated");
            if answer.code == 404 || is_terminating {
                return WriteEnd::Done;
            }
        }
        match LookError::for_request("write", &format!("{namespace}/{name}"), error) {
            LookError::NotLeading => WriteEnd::NotLeading,
            LookError::Stale(_) => WriteEnd::Stale,
            error @ LookError::Request { .. } => {
                let message = chain(&error).to_string();
                self.seen.lock().record_refusal(kind, format!("{namespace}/{name}"), Some(message));
                WriteEnd::Done
            }
        }
    }
}
