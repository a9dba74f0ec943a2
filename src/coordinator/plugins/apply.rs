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
        plugins::{PluginManifest, PluginObject, waits_for},
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
    async fn find(
        &mut self,
        object: &PluginObject,
    ) -> Result<Option<(ApiResource, Scope)>, LookError> {
        let key = (object.api_version.clone(), object.kind.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let version = object.api_version.rsplit('/').next().unwrap_or_default();
        let kind = GroupVersionKind::gvk(object.group(), version, &object.kind);
        let found = match discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, can)) => Some((resource, can.scope)),
            Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => None,
            Err(kube::Error::Api(answer)) if answer.code == 404 => None,
            Err(error) => return Err(LookError::request("look up", &object.kind, error)),
        };
        self.known.insert(key, found.clone());
        Ok(found)
    }
}

fn api(
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
fn refusal(
    verb: &'static str,
    object: &PluginObject,
    dry_run: bool,
    error: kube::Error,
) -> Result<String, LookError> {
    let kube::Error::Api(answer) = &error else {
        return Err(LookError::request(verb, &object.to_string(), error));
    };
    let client = (400..500).contains(&answer.code) && ![408, 429].contains(&answer.code);
    // kube-apiserver answers so, by the code 500, to what the schema of a kind does not allow.
    let schema = answer.message.contains("failed to create typed patch object");
    if dry_run || client || schema {
        return Ok(format!("{object}: {}", answer.message));
    }
    Err(LookError::request(verb, &object.to_string(), error))
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

    fn served(&self) -> ServedKinds {
        ServedKinds { client: self.client.clone(), known: BTreeMap::new() }
    }

    /// Applies objects, or tries to. What a namespace or a definition among them makes possible first is
    /// not tried.
    pub(super) async fn apply_all(
        &self,
        plugin: &Plugin,
        all: &[PluginManifest],
        dry_run: bool,
    ) -> Result<ApplyEnd, LookError> {
        let (acting, mut served) = (self.acting_as(plugin), self.served());
        let uid = plugin.uid().unwrap_or_default();
        let others: BTreeSet<String> =
            self.seen.lock().all().iter().filter_map(ResourceExt::uid).collect();
        for manifest in all {
            let object = &manifest.object;
            let defined = all.iter().any(|one| one.defines(object.group(), &object.kind));
            let waiting = || ApplyEnd::Waiting(format!("waits for the kind of {object}"));
            let (resource, scope) = match served.find(object).await? {
                Some(found) => found,
                None if defined && dry_run => continue,
                None if defined => return Ok(waiting()),
                None => {
                    let why = format!("{object}: {} serves no such kind", object.api_version);
                    return Ok(ApplyEnd::Refused(("KindUnknown", why)));
                }
            };
            if scope == Scope::Namespaced && object.namespace.is_none() {
                let why = format!("{object} names no namespace");
                return Ok(ApplyEnd::Refused(("ManifestsInvalid", why)));
            }
            let api = api(&acting, object, &resource, &scope);
            let label = match api.get_metadata_opt(&object.name).await {
                Ok(found) => found.and_then(|found| found.labels().get(name::PLUGIN).cloned()),
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal("read", object, dry_run, error)?,
                    )));
                }
            };
            let ours = label.as_ref() == Some(&uid);
            if !ours && label.is_some_and(|label| others.contains(&label)) {
                let why = format!("{object} is another Plugin's");
                return Ok(ApplyEnd::Refused(("Refused", why)));
            }
            // What others wrote of an object that was not ours is not overwritten.
            let params = PatchParams {
                dry_run,
                force: ours,
                field_manager: Some(MANAGER.to_owned()),
                field_validation: Some(ValidationDirective::Strict),
            };
            let body = manifest.labelled(&uid);
            match api.patch(&object.name, &params, &Patch::Apply(&body)).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer))
                    if dry_run && answer.code == 404 && is_made(all, object) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 && defined => {
                    return Ok(waiting());
                }
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal("apply", object, dry_run, error)?,
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
        all: &[PluginManifest],
    ) -> Result<ApplyEnd, LookError> {
        let (acting, mut served) = (self.acting_as(plugin), self.served());
        for object in all.iter().map(|one| &one.object).filter(|one| one.is_awaited()) {
            let Some((resource, scope)) = served.find(object).await? else { continue };
            let live = match api(&acting, object, &resource, &scope).get_opt(&object.name).await {
                Ok(Some(live)) => serde_json::to_value(live).unwrap_or_default(),
                Ok(None) => return Ok(ApplyEnd::Waiting(format!("{object} is gone"))),
                Err(error) => {
                    return Ok(ApplyEnd::Refused((
                        "Refused",
                        refusal("read", object, false, error)?,
                    )));
                }
            };
            match waits_for(object, &live) {
                Ok(None) => {}
                Ok(Some(what)) => return Ok(ApplyEnd::Waiting(what)),
                Err(why) => return Ok(ApplyEnd::Refused(("Failed", why))),
            }
        }
        Ok(ApplyEnd::Done)
    }

    /// Deletes what is in the inventory of a Plugin beyond these objects, and takes it out of there. Says what
    /// was refused, if something was.
    pub(super) async fn prune(
        &self,
        turn: &mut PluginTurn,
        objects: BTreeSet<PluginObject>,
    ) -> Result<Option<String>, LookError> {
        let plugin = &turn.plugin;
        let (acting, mut served) = (self.acting_as(plugin), self.served());
        let mut gone: Vec<PluginObject> =
            turn.record.inventory.difference(&objects).cloned().collect();
        if gone.is_empty() {
            return Ok(None);
        }
        gone.sort_by_key(|object| std::cmp::Reverse(object.wave()));
        for object in gone.iter().filter(|one| plugin.spec.prune && !one.is_kept()) {
            let Some((resource, scope)) = served.find(object).await? else { continue };
            let api = api(&acting, object, &resource, &scope);
            let deleted = match api.get_metadata_opt(&object.name).await {
                Ok(Some(found)) if found.labels().get(name::PLUGIN) == plugin.uid().as_ref() => {
                    let this = Preconditions { uid: found.uid(), resource_version: None };
                    let params =
                        DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
                    api.delete(&object.name, &params).await.map(drop)
                }
                // Somebody took it over.
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            match deleted {
                Ok(()) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(error) => return Ok(Some(refusal("delete", object, false, error)?)),
            }
        }
        turn.record.inventory = objects;
        self.keep(&turn.plugin, &mut turn.record).await?;
        Ok(None)
    }
}

/// Is the namespace of an object among the others?
fn is_made(all: &[PluginManifest], object: &PluginObject) -> bool {
    let namespace = object.namespace.as_deref();
    all.iter().any(|one| one.object.is_namespace() && Some(one.object.name.as_str()) == namespace)
}
