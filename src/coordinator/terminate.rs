//! The end of the cluster manager in a cluster, step by step. What follows is decided in
//! `engine/terminate`, and how far it is stands in an annotation of the core namespace.
//!
//! Each step deletes objects and waits until they are gone: the loops of the coordinator itself take away
//! what was made for them, since their finalizers hold them. A step that was done before is done in no
//! time, so a new leader goes on wherever the last one stopped. Nothing of a database is a part of any step.

use k8s_openapi::{
    api::core::v1::{Namespace, Node, Pod, ServiceAccount},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta},
};
use serde_json::json;

use super::{look_error::LookError, namespace_events::NamespaceEvents};
use crate::{
    api::{
        containership::{AgentReport, KindDefinition, kind_definitions, name},
        names,
    },
    engine::terminate::{
        TerminateOrder, TerminateProgress, TerminateStep, decide_order, join_names,
    },
    runtime::events::EventNotice,
};

/// Namespace whose uid stands for the cluster where it was given no id.
const KUBE_SYSTEM: &str = "kube-system";

/// What a look at the core namespace showed.
pub(crate) enum TerminateOutlook {
    /// The cluster manager stays; `confirmed` are deletions that a person confirms.
    Stays {
        confirmed: String,
    },
    UnderWay,
    /// Nothing is left to take away.
    Over,
}

/// Takes the cluster manager away where that is asked for, while this process leads.
pub(crate) struct TerminateCoordinator {
    pub(super) client: Client,
    /// Client whose writes fail once this process no longer leads.
    pub(super) writer: Client,
    pub(super) namespace: String,
    pub(super) events: NamespaceEvents,
    /// Id of the cluster; the uid of `kube-system` without one.
    pub(super) cluster_id: Option<String>,
    /// What is asked for is done, too.
    pub(super) allowed: bool,
    /// ServiceAccounts were made, and may be deleted.
    pub(super) registries: bool,
}

/// How a step stands.
enum StepState {
    Ended,
    /// What it waits for, in words.
    Waits(String),
}

impl StepState {
    /// Waits for these objects, if there are any.
    fn from_remaining(kind: &str, remaining: &[String]) -> Self {
        if remaining.is_empty() {
            Self::Ended
        } else {
            Self::Waits(format!("{kind} {}", join_names(remaining)))
        }
    }
}

impl TerminateCoordinator {
    /// Looks at the core namespace, and does what is to be done next.
    pub(crate) async fn reconcile(
        &mut self,
        now: Timestamp,
    ) -> Result<TerminateOutlook, LookError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = namespaces.get(&self.namespace).await;
        let namespace = namespace
            .map_err(|error| LookError::for_request("read", "the core namespace", error))?;
        let read_annotation = |key: &str| namespace.annotations().get(key).cloned();
        let (request, recorded_progress) =
            (read_annotation(name::TERMINATE), read_annotation(name::TERMINATE_PROGRESS));
        let cluster = if request.is_some() && self.allowed {
            self.read_cluster_id().await?
        } else {
            String::new()
        };
        let progress = match decide_order(
            request.as_deref(),
            recorded_progress.as_deref(),
            &cluster,
            self.allowed,
        ) {
            TerminateOrder::Idle => {
                self.events.clear_resolved();
                return Ok(stays_outlook(&namespace));
            }
            TerminateOrder::Refuse(reason) => {
                self.events.publish_once(EventNotice::warning("TerminateRefused", reason)).await;
                self.events.clear_resolved();
                return Ok(stays_outlook(&namespace));
            }
            TerminateOrder::Cancel => {
                self.write_progress(&namespace, None).await?;
                let note = "what is gone stays gone, and nothing more is taken away";
                self.events.publish_once(EventNotice::normal("TerminateCancelled", note)).await;
                self.events.clear_resolved();
                return Ok(TerminateOutlook::UnderWay);
            }
            TerminateOrder::Begin => {
                let progress = TerminateProgress::new(&cluster, now);
                self.write_progress(&namespace, Some(&progress)).await?;
                let note = format!("the cluster manager takes away what is its own from {cluster}");
                self.events.publish_once(EventNotice::warning("Terminating", note)).await;
                return Ok(TerminateOutlook::UnderWay);
            }
            TerminateOrder::Go(progress) if progress.step == TerminateStep::Done => {
                return Ok(TerminateOutlook::Over);
            }
            TerminateOrder::Go(progress) => progress,
        };
        let next_progress = match progress.step {
            TerminateStep::Agents => {
                progress.with_silent_agents(&self.silent_machines(&cluster).await?, now)
            }
            step => match self.run_step(step).await? {
                StepState::Ended => progress.with_next_step(now),
                StepState::Waits(reason) => progress.with_wait(reason),
            },
        };
        if next_progress != progress {
            self.write_progress(&namespace, Some(&next_progress)).await?;
        }
        if next_progress.step != progress.step {
            let silent_machines =
                next_progress.silent.as_ref().filter(|_| progress.step == TerminateStep::Agents);
            if let Some(silent_machines) = silent_machines {
                let note = format!(
                    "keys may still stand on {silent_machines}: no agent said that they are gone"
                );
                self.events.publish_once(EventNotice::warning("AgentsSilent", note)).await;
            }
            let note = format!("{:?} are done", progress.step);
            self.events.publish_once(EventNotice::normal("Terminating", note)).await;
        }
        if next_progress.step == TerminateStep::Done {
            let note =
                "nothing of the cluster manager is left but this namespace and what runs in it";
            self.events.publish_once(EventNotice::normal("Terminated", note)).await;
        }
        Ok(TerminateOutlook::UnderWay)
    }

    async fn read_cluster_id(&mut self) -> Result<String, LookError> {
        if let Some(id) = &self.cluster_id {
            return Ok(id.clone());
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let read_result = namespaces.get(KUBE_SYSTEM).await;
        let namespace = read_result
            .map_err(|error| LookError::for_request("read", "namespace kube-system", error))?;
        let uid = namespace.uid().unwrap_or_default();
        self.cluster_id = Some(uid.clone());
        Ok(uid)
    }

    /// Writes how far it is, against the version in which the namespace was read.
    async fn write_progress(
        &self,
        namespace: &Namespace,
        progress: Option<&TerminateProgress>,
    ) -> Result<(), LookError> {
        let text = progress.map(|progress| json!(progress).to_string());
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": namespace.resource_version(),
            "annotations": {name::TERMINATE_PROGRESS: text},
        }}));
        let params = PatchParams {
            field_manager: Some(names::COORDINATOR.to_owned()),
            ..PatchParams::default()
        };
        let api: Api<Namespace> = Api::all(self.writer.clone());
        let write_result = api.patch_metadata(&self.namespace, &params, &patch).await;
        write_result
            .map(drop)
            .map_err(|error| LookError::for_request("annotate", "the core namespace", error))
    }

    /// Returns the machines whose agent did not say that its keys are gone. An agent that never said
    /// anything is silent, too: what is not said is not taken for done.
    async fn silent_machines(&self, cluster: &str) -> Result<Vec<String>, LookError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list_metadata(&ListParams::default()).await;
        let nodes = nodes.map_err(|error| LookError::for_request("list", "nodes", error))?;
        let is_silent = |node: &PartialObjectMeta<Node>| {
            let is_linux = node.labels().get("kubernetes.io/os").is_none_or(|os| os == "linux");
            let report = node.annotations().get(name::AGENT);
            let report = report.and_then(|text| serde_json::from_str::<AgentReport>(text).ok());
            is_linux && report.and_then(|report| report.cleaned).as_deref() != Some(cluster)
        };
        Ok(nodes.items.iter().filter(|node| is_silent(node)).map(ResourceExt::name_any).collect())
    }

    async fn run_step(&self, step: TerminateStep) -> Result<StepState, LookError> {
        for definition in kind_definitions() {
            let KindDefinition { group, kind, plural, .. } = definition;
            if !step.removes_kind(plural) {
                continue;
            }
            let kind = GroupVersionKind::gvk(group, "v3", kind);
            let resource = ApiResource::from_gvk_with_plural(&kind, plural);
            let remaining = self.delete_all(&resource).await?;
            if !remaining.is_empty() {
                return Ok(StepState::from_remaining(plural, &remaining));
            }
        }
        match step {
            TerminateStep::Copies => self.check_labels().await,
            TerminateStep::Accounts if self.registries => self.delete_accounts().await,
            TerminateStep::Definitions => self.delete_definitions().await,
            _ => Ok(StepState::Ended),
        }
    }

    /// Deletes all objects of a kind, and returns which there were.
    async fn delete_all(&self, resource: &ApiResource) -> Result<Vec<String>, LookError> {
        let object_api = |client: &Client| -> Api<DynamicObject> {
            Api::namespaced_with(client.clone(), &self.namespace, resource)
        };
        let objects = match object_api(&self.client).list_metadata(&ListParams::default()).await {
            Ok(list) => list.items,
            // The definition is gone, and all objects with it.
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(LookError::for_request("list", &resource.plural, error)),
        };
        for object in objects.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
            self.delete_object(&object_api(&self.writer), &object.name_any(), object.uid()).await?;
        }
        Ok(objects.iter().map(ResourceExt::name_any).collect())
    }

    /// Deletes one object; false where it was gone already.
    async fn delete_object<K>(
        &self,
        api: &Api<K>,
        name: &str,
        uid: Option<String>,
    ) -> Result<bool, LookError>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let preconditions = Preconditions { uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(false),
            Err(error) => Err(LookError::for_request("delete", name, error)),
        }
    }

    /// Waits until no Node bears a label that only ClusterLabels and NodePoolLabels put there.
    async fn check_labels(&self) -> Result<StepState, LookError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list_metadata(&ListParams::default()).await;
        let nodes = nodes.map_err(|error| LookError::for_request("list", "nodes", error))?;
        let is_managed =
            |key: &String| name::LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        let labeled_nodes: Vec<String> = nodes
            .items
            .iter()
            .filter(|node| node.labels().keys().any(is_managed))
            .map(ResourceExt::name_any)
            .collect();
        Ok(StepState::from_remaining("labels of nodes", &labeled_nodes))
    }

    /// Deletes the ServiceAccounts that were made for Registries. One under which a pod runs stays: with
    /// it, no further pod could be made in its place.
    async fn delete_accounts(&self) -> Result<StepState, LookError> {
        let (label, value) = name::MANAGED;
        let list_params = ListParams::default().labels(&format!("{label}={value}"));
        let accounts: Api<ServiceAccount> = Api::all(self.client.clone());
        let accounts = accounts.list_metadata(&list_params).await;
        let accounts =
            accounts.map_err(|error| LookError::for_request("list", "serviceaccounts", error))?;
        let mut remaining = Vec::new();
        for account in
            accounts.items.iter().filter(|account| account.name_any() == name::SERVICE_ACCOUNT)
        {
            let namespace = account.namespace().unwrap_or_default();
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            let field_selector = format!("spec.serviceAccountName={}", name::SERVICE_ACCOUNT);
            let pods =
                pods.list_metadata(&ListParams::default().fields(&field_selector).limit(1)).await;
            let pods = pods.map_err(|error| LookError::for_request("list", "pods", error))?;
            if pods.items.is_empty() {
                let api: Api<ServiceAccount> = Api::namespaced(self.writer.clone(), &namespace);
                if self.delete_object(&api, name::SERVICE_ACCOUNT, account.uid()).await? {
                    remaining.push(namespace);
                }
            }
        }
        Ok(StepState::from_remaining("ServiceAccounts in", &remaining))
    }

    /// Deletes the definitions of the kinds.
    async fn delete_definitions(&self) -> Result<StepState, LookError> {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(self.writer.clone(), &resource);
        let mut remaining = Vec::new();
        for KindDefinition { name, .. } in kind_definitions() {
            if self.delete_object(&api, name, None).await? {
                remaining.push(name.clone());
            }
        }
        Ok(StepState::from_remaining("definitions", &remaining))
    }
}

fn stays_outlook(namespace: &Namespace) -> TerminateOutlook {
    let confirmed = namespace.annotations().get(name::CONFIRM_DELETION).cloned();
    TerminateOutlook::Stays { confirmed: confirmed.unwrap_or_default() }
}
