//! Objects of a Plugin: applied, looked after and deleted as the ServiceAccount of the Plugin.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderValue, Request};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions,
        ValidationDirective,
    },
    client::Body,
    core::GroupVersionKind,
    discovery::{self, Scope},
    error::DiscoveryError,
};

use super::{PluginCoordinator, PluginTurn, record::own_name};
use crate::{
    api::containership::{Plugin, name},
    coordinator::look_error::LookError,
    engine::{
        conditions::Stall,
        plugins::{PluginManifest, PluginObject, pending_reason},
    },
};

/// Field manager of what Plugins have applied.
const MANAGER: &str = "navigator-plugin";

/// How the work on the objects of a version ended.
pub(super) enum ApplyEnd {
    Done,
    /// For what, in a sentence.
    Waiting(String),
    Refused(Stall),
}

/// The kinds that kube-apiserver serves, as far as they were asked for.
struct ServedKinds {
    client: Client,
    known: BTreeMap<(String, String), Option<(ApiResource, Scope)>>,
}

impl ServedKinds {
    /// Returns the resource of an object; `None` where its kind is not served.
    async fn find_resource(
        &mut self,
        object: &PluginObject,
    ) -> Result<Option<(ApiResource, Scope)>, LookError> {
        let key = (object.api_version.clone(), object.kind.clone());
        if let Some(cached_resource) = self.known.get(&key) {
            return Ok(cached_resource.clone());
        }
        let version = object.api_version.rsplit('/').next().unwrap_or_default();
        let kind = GroupVersionKind::gvk(object.api_group(), version, &object.kind);
        let found_resource = match discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, capabilities)) => Some((resource, capabilities.scope)),
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => None,
            Err(kube::Error::Api(answer)) if answer.code == 404 => None,
            Err(error) => return Err(LookError::for_request("look up", &object.kind, error)),
        };
        self.known.insert(key, found_resource.clone());
        Ok(found_resource)
    }
}

fn object_api(
    client: &Client,
    object: &PluginObject,
    resource: &ApiResource,
    scope: &Scope,
) -> Api<DynamicObject> {
    match (scope, &object.namespace) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), namespace, resource)
        }
        _ => Api::all_with(client.clone(), resource),
    }
}

/// Says in the API's words why something was refused. In a dry run every answer is such a word: nothing
/// was touched, and the next look tries again.
///
/// # Errors
/// What is no refusal: it is tried again.
fn refusal_message(
    verb: &'static str,
    object: &PluginObject,
    dry_run: bool,
    error: kube::Error,
) -> Result<String, LookError> {
    let kube::Error::Api(answer) = &error else {
        return Err(LookError::for_request(verb, &object.to_string(), error));
    };
    let is_client_error = (400..500).contains(&answer.code) && ![408, 429].contains(&answer.code);
    // kube-apiserver answers so, by the code 500, to what the schema of a kind does not allow.
    let is_schema_error = answer.message.contains("failed to create typed patch object");
    if dry_run || is_client_error || is_schema_error {
        return Ok(format!("{object}: {}", answer.message));
    }
    Err(LookError::for_request(verb, &object.to_string(), error))
}

impl PluginCoordinator {
    /// Returns a client that acts as the ServiceAccount of a Plugin.
    fn acting_as(&self, plugin: &Plugin) -> Client {
        let client = self.status.writer.clone();
        let namespace = client.default_namespace().to_owned();
        let account =
            format!("system:serviceaccount:{}:{}", self.status.namespace, own_name(plugin));
        let account = HeaderValue::from_str(&account).expect("names of objects are ASCII");
        let service = tower::service_fn(move |mut request: Request<Body>| {
            request.headers_mut().insert("impersonate-user", account.clone());
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(service, namespace)
    }

    fn served_kinds(&self) -> ServedKinds {
        ServedKinds { client: self.client.clone(), known: BTreeMap::new() }
    }

    /// Applies objects, or tries to. What a namespace or a definition among them makes possible first is
    /// not tried.
    pub(super) async fn apply_all(
        &self,
        plugin: &Plugin,
        manifests: &[PluginManifest],
        dry_run: bool,
    ) -> Result<ApplyEnd, LookError> {
        let (acting_client, mut served_kinds) = (self.acting_as(plugin), self.served_kinds());
        let uid = plugin.uid().unwrap_or_default();
        let other_uids: BTreeSet<String> =
            self.seen.lock().plugins().iter().filter_map(ResourceExt::uid).collect();
        for manifest in manifests {
            let object = &manifest.object;
            let is_defined = manifests
                .iter()
                .any(|other| other.is_definition_of(object.api_group(), &object.kind));
            let wait_for_kind = || ApplyEnd::Waiting(format!("waits for the kind of {object}"));
            let (resource, scope) = match served_kinds.find_resource(object).await? {
                Some(entry) => entry,
                None if is_defined && dry_run => continue,
                None if is_defined => return Ok(wait_for_kind()),
                None => {
                    let message = format!("{object}: {} serves no such kind", object.api_version);
                    return Ok(ApplyEnd::Refused(("KindUnknown", message)));
                }
            };
            if scope == Scope::Namespaced && object.namespace.is_none() {
                let message = format!("{object} names no namespace");
                return Ok(ApplyEnd::Refused(("ManifestsInvalid", message)));
            }
            let api = object_api(&acting_client, object, &resource, &scope);
            let label = match api.get_metadata_opt(&object.name).await {
                Ok(metadata) => metadata.and_then(|meta| meta.labels().get(name::PLUGIN).cloned()),
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal_message("read", object, dry_run, error)?,
                    )));
                }
            };
            let is_own = label.as_ref() == Some(&uid);
            if !is_own && label.is_some_and(|label| other_uids.contains(&label)) {
                let message = format!("{object} is another Plugin's");
                return Ok(ApplyEnd::Refused(("Refused", message)));
            }
            // What others wrote of an object that was not ours is not overwritten.
            let params = PatchParams {
                dry_run,
                force: is_own,
                field_manager: Some(MANAGER.to_owned()),
                field_validation: Some(ValidationDirective::Strict),
            };
            let body = manifest.with_owner_label(&uid);
            match api.patch(&object.name, &params, &Patch::Apply(&body)).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer))
                    if dry_run && answer.code == 404 && is_made(manifests, object) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 && is_defined => {
                    return Ok(wait_for_kind());
                }
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal_message("apply", object, dry_run, error)?,
                    )));
                }
            }
        }
        Ok(ApplyEnd::Done)
    }

    /// Waits for all that can be waited for.
    pub(super) async fn await_all(
        &self,
        plugin: &Plugin,
        manifests: &[PluginManifest],
    ) -> Result<ApplyEnd, LookError> {
        let (acting_client, mut served_kinds) = (self.acting_as(plugin), self.served_kinds());
        for object in
            manifests.iter().map(|manifest| &manifest.object).filter(|object| object.is_awaited())
        {
            let Some((resource, scope)) = served_kinds.find_resource(object).await? else {
                continue;
            };
            let live = match object_api(&acting_client, object, &resource, &scope)
                .get_opt(&object.name)
                .await
            {
                Ok(Some(live)) => serde_json::to_value(live).unwrap_or_default(),
                Ok(None) => return Ok(ApplyEnd::Waiting(format!("{object} is gone"))),
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal_message("read", object, false, error)?,
                    )));
                }
            };
            match pending_reason(object, &live) {
                Ok(None) => {}
                Ok(Some(wait_reason)) => return Ok(ApplyEnd::Waiting(wait_reason)),
                Err(message) => return Ok(ApplyEnd::Refused(("Failed", message))),
            }
        }
        Ok(ApplyEnd::Done)
    }

    /// Deletes what is in the inventory of a Plugin beyond these objects, and takes it out of there. Says what
    /// was refused, if something was.
    pub(super) async fn prune_objects(
        &self,
        turn: &mut PluginTurn,
        objects: BTreeSet<PluginObject>,
    ) -> Result<Option<String>, LookError> {
        let plugin = &turn.plugin;
        let (acting_client, mut served_kinds) = (self.acting_as(plugin), self.served_kinds());
        let mut removed_objects: Vec<PluginObject> =
            turn.record.inventory.difference(&objects).cloned().collect();
        if removed_objects.is_empty() {
            return Ok(None);
        }
        removed_objects.sort_by_key(|object| std::cmp::Reverse(object.apply_wave()));
        for object in removed_objects.iter().filter(|object| plugin.spec.prune && !object.is_kept())
        {
            let Some((resource, scope)) = served_kinds.find_resource(object).await? else {
                continue;
            };
            let api = object_api(&acting_client, object, &resource, &scope);
            let delete_result = match api.get_metadata_opt(&object.name).await {
                Ok(Some(metadata))
                    if metadata.labels().get(name::PLUGIN) == plugin.uid().as_ref() =>
                {
                    let preconditions =
                        Preconditions { uid: metadata.uid(), resource_version: None };
                    let params = DeleteParams {
                        preconditions: Some(preconditions),
                        ..DeleteParams::background()
                    };
                    api.delete(&object.name, &params).await.map(drop)
                }
                // Somebody took it over.
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            match delete_result {
                Ok(()) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => return Ok(Some(refusal_message("delete", object, false, error)?)),
            }
        }
        turn.record.inventory = objects;
        self.write_record(&turn.plugin, &mut turn.record).await?;
        Ok(None)
    }
}

/// Is the namespace of an object among the others?
fn is_made(manifests: &[PluginManifest], object: &PluginObject) -> bool {
    let namespace = object.namespace.as_deref();
    manifests.iter().any(|manifest| {
        manifest.object.is_namespace() && Some(manifest.object.name.as_str()) == namespace
    })
}
