//! Machines that are emptied of databases: which nodes run there, who is asked to leave, and what
//! their leaving waits for.
//!
//! A machine is known to Kubernetes alone, and may hold nodes of clusters in any namespace. What the
//! plugin cordoned bears its mark, so that only that is uncordoned when it is taken back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Resource,
    api::{ListParams, ObjectMeta},
};
use serde_json::json;

use super::{
    change::{ChangeResult, MANAGER, PatchBody},
    error::Error,
    lookup::{PluginSession, name_of},
};
use crate::api::{
    leave_request::LeaveRequest,
    names::{annotation, label},
    v1beta1::Pilot,
};

/// A machine, as far as a drain goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    pub name: String,
    /// No further pods are scheduled there.
    pub cordoned: bool,
    /// The plugin cordoned it.
    pub by_us: bool,
}

/// A node of a database whose pod is on a machine.
#[derive(Clone, Debug)]
pub struct MachineMember {
    pub pilot: Pilot,
    /// Uid of the pod, and whether it ends.
    pub pod: String,
    pub ends: bool,
}

impl MachineMember {
    /// Returns cluster and node, as `db/examplecluster/demo ex-demo-a-0`.
    pub fn display_name(&self) -> String {
        let namespace = self.pilot.metadata.namespace.as_deref().unwrap_or_default();
        let (kind, cluster) = match &self.pilot.spec.cluster_ref {
            Some(cluster) => (cluster.kind.to_lowercase(), cluster.name.as_str()),
            None => (String::new(), ""),
        };
        format!("{namespace}/{kind}/{cluster} {}", name_of(&self.pilot))
    }

    /// Is this very pod asked to leave?
    pub fn has_request(&self) -> bool {
        eviction_request(&self.pilot).is_some_and(|request| request.pod == self.pod)
    }

    /// Says how far the node is: it ends, or what its leaving waits for.
    pub fn progress(&self) -> String {
        let meta: &ObjectMeta = &self.pilot.metadata;
        let blocker = meta
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(annotation::LEAVE_WAITS));
        match blocker {
            _ if self.ends => "leaves".to_owned(),
            Some(blocker) if self.has_request() => blocker.clone(),
            _ => "asked, and not answered yet".to_owned(),
        }
    }
}

fn eviction_request(pilot: &Pilot) -> Option<LeaveRequest> {
    LeaveRequest::from_metadata(&pilot.metadata)
}

/// Returns who asks, in the words of a request.
fn drain_requester(machine: &str) -> String {
    format!("drain of {machine}")
}

impl PluginSession {
    /// Finds the machine of this name.
    pub async fn find_machine(&self, name: &str) -> Result<MachineState, Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(name).await?.ok_or_else(|| Error::NoMachine(name.to_owned()))?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        Ok(MachineState {
            name: name.to_owned(),
            cordoned: node.spec.and_then(|spec| spec.unschedulable) == Some(true),
            by_us: annotations
                .get(annotation::CORDONED_BY)
                .is_some_and(|manager| manager == MANAGER),
        })
    }

    /// Keeps further pods from a machine with the plugin's mark, or lets them there again.
    pub async fn set_cordoned(
        &self,
        machine: &str,
        is_cordoned: bool,
        dry_run: bool,
    ) -> Result<(), Error> {
        let mark = is_cordoned.then_some(MANAGER);
        let patch = PatchBody::Merge(json!({
            "metadata": {"annotations": {annotation::CORDONED_BY: mark}},
            "spec": {"unschedulable": is_cordoned.then_some(true)},
        }));
        let path = <Node as Resource>::url_path(&(), None);
        self.send_patch(path, machine, &patch, dry_run).await.map(drop)
    }

    /// Returns the nodes of our clusters on a machine, of one namespace or of all, by namespace and
    /// name.
    pub async fn find_members(
        &self,
        namespace: Option<&str>,
        machine: &str,
    ) -> Result<Vec<MachineMember>, Error> {
        let params = ListParams::default()
            .labels(label::HAS_PILOT)
            .fields(&format!("spec.nodeName={machine}"));
        let pods: Api<Pod> = scoped_api(self, namespace);
        let is_running = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node_name == Some(machine) && !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let pods = pods.list(&params).await?.items.into_iter().filter(is_running);
        let pods: BTreeMap<_, _> = pods.map(|pod| (object_key(&pod.metadata), pod)).collect();
        if pods.is_empty() {
            return Ok(Vec::new());
        }
        let build_member = |pilot: Pilot| {
            let meta = &pods.get(&object_key(&pilot.metadata))?.metadata;
            let (pod, ends) = (meta.uid.clone()?, meta.deletion_timestamp.is_some());
            Some(MachineMember { pilot, pod, ends })
        };
        let pilots = self.list_namespace_pilots(namespace).await?;
        let mut members: Vec<_> = pilots.into_iter().filter_map(build_member).collect();
        members.sort_by_cached_key(|member| object_key(&member.pilot.metadata));
        Ok(members)
    }

    /// Returns the Pilots whose nodes were asked to leave this machine by a drain.
    /// `is_gone_included` says whether those count whose pods have left.
    pub async fn find_requests(
        &self,
        namespace: Option<&str>,
        machine: &str,
        is_gone_included: bool,
    ) -> Result<Vec<Pilot>, Error> {
        let requester = drain_requester(machine);
        let members = self.find_members(namespace, machine).await?;
        let is_staying = |pilot: &Pilot| {
            let is_same_node = |member: &&MachineMember| {
                object_key(&member.pilot.metadata) == object_key(&pilot.metadata)
            };
            members
                .iter()
                .find(is_same_node)
                .is_some_and(|member| member.has_request() && !member.ends)
        };
        let mut pilots = self.list_namespace_pilots(namespace).await?;
        pilots.retain(|pilot| {
            eviction_request(pilot).is_some_and(|request| request.by == requester)
                && (is_gone_included || is_staying(pilot))
        });
        pilots.sort_by_cached_key(|pilot| object_key(&pilot.metadata));
        Ok(pilots)
    }

    async fn list_namespace_pilots(&self, namespace: Option<&str>) -> Result<Vec<Pilot>, Error> {
        let pilots: Api<Pilot> = scoped_api(self, namespace);
        Ok(pilots.list(&ListParams::default()).await?.items)
    }

    /// Asks a node to leave a machine.
    pub async fn request_eviction(
        &self,
        member: &MachineMember,
        machine: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let request = LeaveRequest { pod: member.pod.clone(), by: drain_requester(machine) };
        self.annotate_pilot(&member.pilot, annotation::LEAVE, Some(&request.to_string()), dry_run)
            .await
    }

    /// Takes back that a node was asked to leave.
    pub async fn cancel_eviction(
        &self,
        pilot: &Pilot,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        self.annotate_pilot(pilot, annotation::LEAVE, None, dry_run).await
    }
}

fn scoped_api<K>(session: &PluginSession, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(session.client.clone(), namespace),
        None => Api::all(session.client.clone()),
    }
}

fn object_key(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
