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
    pub fn named(&self) -> String {
        let namespace = self.pilot.metadata.namespace.as_deref().unwrap_or_default();
        let (kind, cluster) = match &self.pilot.spec.cluster_ref {
            Some(cluster) => (cluster.kind.to_lowercase(), cluster.name.as_str()),
            None => (String::new(), ""),
        };
        format!("{namespace}/{kind}/{cluster} {}", name_of(&self.pilot))
    }

    /// Is this very pod asked to leave?
    pub fn is_asked(&self) -> bool {
        request(&self.pilot).is_some_and(|request| request.pod == self.pod)
    }

    /// Says how far the node is: it ends, or what its leaving waits for.
    pub fn progress(&self) -> String {
        let meta: &ObjectMeta = &self.pilot.metadata;
        let waits = meta.annotations.as_ref().and_then(|all| all.get(annotation::LEAVE_WAITS));
        match waits {
            _ if self.ends => "leaves".to_owned(),
            Some(waits) if self.is_asked() => waits.clone(),
            _ => "asked, and not answered yet".to_owned(),
        }
    }
}

fn request(pilot: &Pilot) -> Option<LeaveRequest> {
    LeaveRequest::read(&pilot.metadata)
}

/// Returns who asks, in the words of a request.
fn drain_of(machine: &str) -> String {
    format!("drain of {machine}")
}

impl PluginSession {
    /// Finds the machine of this name.
    pub async fn machine(&self, name: &str) -> Result<MachineState, Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(name).await?.ok_or_else(|| Error::NoMachine(name.to_owned()))?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        Ok(MachineState {
            name: name.to_owned(),
            cordoned: node.spec.and_then(|spec| spec.unschedulable) == Some(true),
            by_us: annotations.get(annotation::CORDONED_BY).is_some_and(|by| by == MANAGER),
        })
    }

    /// Keeps further pods from a machine with the plugin's mark, or lets them there again.
    pub async fn cordon(&self, machine: &str, on: bool, dry_run: bool) -> Result<(), Error> {
        let mark = on.then_some(MANAGER);
        let patch = PatchBody::Merge(json!({
            "metadata": {"annotations": {annotation::CORDONED_BY: mark}},
            "spec": {"unschedulable": on.then_some(true)},
        }));
        let path = <Node as Resource>::url_path(&(), None);
        self.patch(path, machine, &patch, dry_run).await.map(drop)
    }

    /// Returns the nodes of our clusters on a machine, of one namespace or of all, by namespace and
    /// name.
    pub async fn members_on(
        &self,
        namespace: Option<&str>,
        machine: &str,
    ) -> Result<Vec<MachineMember>, Error> {
        let params = ListParams::default()
            .labels(label::HAS_PILOT)
            .fields(&format!("spec.nodeName={machine}"));
        let pods: Api<Pod> = scoped(self, namespace);
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let there = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            there == Some(machine) && !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let pods = pods.list(&params).await?.items.into_iter().filter(runs);
        let pods: BTreeMap<_, _> = pods.map(|pod| (place(&pod.metadata), pod)).collect();
        if pods.is_empty() {
            return Ok(Vec::new());
        }
        let member = |pilot: Pilot| {
            let meta = &pods.get(&place(&pilot.metadata))?.metadata;
            let (pod, ends) = (meta.uid.clone()?, meta.deletion_timestamp.is_some());
            Some(MachineMember { pilot, pod, ends })
        };
        let pilots = self.pilots_in(namespace).await?;
        let mut members: Vec<_> = pilots.into_iter().filter_map(member).collect();
        members.sort_by_cached_key(|member| place(&member.pilot.metadata));
        Ok(members)
    }

    /// Returns the Pilots whose nodes were asked to leave this machine by a drain. `gone` says whether
    /// those count whose pods have left.
    pub async fn asked_from(
        &self,
        namespace: Option<&str>,
        machine: &str,
        gone: bool,
    ) -> Result<Vec<Pilot>, Error> {
        let by = drain_of(machine);
        let there = self.members_on(namespace, machine).await?;
        let stays = |pilot: &Pilot| {
            let same =
                |member: &&MachineMember| place(&member.pilot.metadata) == place(&pilot.metadata);
            there.iter().find(same).is_some_and(|member| member.is_asked() && !member.ends)
        };
        let mut pilots = self.pilots_in(namespace).await?;
        pilots.retain(|pilot| {
            request(pilot).is_some_and(|request| request.by == by) && (gone || stays(pilot))
        });
        pilots.sort_by_cached_key(|pilot| place(&pilot.metadata));
        Ok(pilots)
    }

    async fn pilots_in(&self, namespace: Option<&str>) -> Result<Vec<Pilot>, Error> {
        let pilots: Api<Pilot> = scoped(self, namespace);
        Ok(pilots.list(&ListParams::default()).await?.items)
    }

    /// Asks a node to leave a machine.
    pub async fn ask_to_leave(
        &self,
        member: &MachineMember,
        machine: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let request = LeaveRequest { pod: member.pod.clone(), by: drain_of(machine) };
        self.annotate(&member.pilot, annotation::LEAVE, Some(&request.to_string()), dry_run).await
    }

    /// Takes back that a node was asked to leave.
    pub async fn ask_to_stay(&self, pilot: &Pilot, dry_run: bool) -> Result<ChangeResult, Error> {
        self.annotate(pilot, annotation::LEAVE, None, dry_run).await
    }
}

fn scoped<K>(session: &PluginSession, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(session.client.clone(), namespace),
        None => Api::all(session.client.clone()),
    }
}

fn place(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
