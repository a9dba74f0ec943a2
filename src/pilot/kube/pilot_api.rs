//! The API as one pilot sees it: its own Pilot, its peers, its cluster's LeaderLease, its pod.

use std::time::SystemTime;

use http::Request;
use jiff::fmt::rfc2822;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use serde_json::Value;

use crate::{
    api::v1beta1::{LeaderLease, LeaderLeaseSpec, Pilot},
    pilot::{
        database::DrivenDatabase,
        kube::breaker::{CircuitBreaker, TrialRole},
        volume::ring::cluster_owner,
    },
};

/// The field manager of the fields that a pilot writes.
const MANAGER: &str = "navigator-pilot";

/// The API as one pilot uses it, through a circuit breaker. Cheap to clone.
#[derive(Clone)]
pub struct PilotApi {
    client: Client,
    /// The client for the lease and for events, whose writers give up after a moment.
    hasty: Client,
    breaker: CircuitBreaker,
    database: &'static DrivenDatabase,
    namespace: String,
    name: String,
}

/// How a pod's container ended before the present one was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastContainerState {
    pub exit_code: i32,
    pub reason: Option<String>,
    pub finish_time: Option<Time>,
}

impl PilotApi {
    pub fn new(
        client: &Client,
        database: &'static DrivenDatabase,
        namespace: &str,
        name: &str,
    ) -> Self {
        let breaker = CircuitBreaker::default();
        Self {
            client: breaker.guard_client(client, TrialRole::Tries),
            hasty: breaker.guard_client(client, TrialRole::Defers),
            breaker,
            database,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Returns the circuit breaker that decides when requests are sent.
    pub fn breaker(&self) -> &CircuitBreaker {
        &self.breaker
    }

    pub fn pilots(&self) -> Api<Pilot> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the client for requests that are given up after a moment.
    pub fn hasty_client(&self) -> Client {
        self.hasty.clone()
    }

    /// Name of the node's own Pilot.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Namespace of the node's own Pilot.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the selector of all Pilots of the cluster that `own_pilot` belongs to; `None`
    /// without a cluster.
    pub fn peer_selector(&self, own_pilot: &Pilot) -> Option<String> {
        let cluster = own_pilot.spec.cluster_ref.as_ref()?;
        Some(format!("{}={}", self.database.names.cluster_label, cluster.name))
    }

    /// Lists the other Pilots of the cluster that `own_pilot` belongs to.
    pub async fn list_peers(&self, own_pilot: &Pilot) -> kube::Result<Vec<Pilot>> {
        let Some(selector) = self.peer_selector(own_pilot) else { return Ok(vec![]) };
        let list = self.pilots().list(&ListParams::default().labels(&selector)).await?;
        Ok(list
            .items
            .into_iter()
            .filter(|pilot| pilot.metadata.name != own_pilot.metadata.name)
            .collect())
    }

    /// Returns the time of the API server's clock, to the second, from the Date header of an
    /// answer.
    pub async fn server_time(&self) -> Option<SystemTime> {
        let path = <Pilot as Resource>::url_path(&(), Some(&self.namespace));
        let request = Request::get(format!("{path}/{}", self.name)).body(Body::empty()).ok()?;
        let answer = self.hasty.send(request).await.ok()?;
        let text = answer.headers().get(http::header::DATE)?.to_str().ok()?;
        Some(rfc2822::parse(text).ok()?.timestamp().into())
    }

    /// Makes the node's own Pilot.
    pub async fn create_pilot(&self, pilot: &Pilot) -> kube::Result<Pilot> {
        self.pilots().create(&post_params(), pilot).await
    }

    /// Returns the node's own Pilot as the API has it now.
    pub async fn get_pilot(&self) -> kube::Result<Pilot> {
        self.pilots().get(&self.name).await
    }

    /// Merges `status` into the status of the node's own Pilot. Fails with 409 when the Pilot is not
    /// at `revision` any more, where one is given.
    pub async fn patch_status(&self, status: &Value, revision: Option<u64>) -> kube::Result<Pilot> {
        let mut patch = serde_json::json!({ "status": status });
        if let Some(revision) = revision {
            patch["metadata"] = serde_json::json!({ "resourceVersion": revision.to_string() });
        }
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.pilots().patch_status(&self.name, &params, &Patch::Merge(patch)).await
    }

    fn leases(&self) -> Api<LeaderLease> {
        Api::namespaced(self.hasty.clone(), &self.namespace)
    }

    pub async fn get_lease(&self, name: &str) -> kube::Result<Option<LeaderLease>> {
        self.leases().get_opt(name).await
    }

    pub async fn create_lease(&self, lease: &LeaderLease) -> kube::Result<LeaderLease> {
        self.leases().create(&post_params(), lease).await
    }

    /// Replaces a lease by compare-and-swap: `lease` carries the resourceVersion that was read.
    pub async fn replace_lease(&self, lease: &LeaderLease) -> kube::Result<LeaderLease> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        self.leases().replace(&name, &post_params(), lease).await
    }

    /// Returns the uid of the Pod that has the Pilot's name. `None` when there is none, or the
    /// pilot may not read it (403).
    pub async fn pod_uid(&self) -> kube::Result<Option<String>> {
        match self.pods().get_metadata_opt(&self.name).await {
            Ok(pod) => Ok(pod.and_then(|pod| pod.metadata.uid)),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns how the database's container ended last, as the status of the node's Pod has it.
    pub async fn last_state(&self) -> kube::Result<Option<LastContainerState>> {
        let statuses =
            self.pods().get(&self.name).await?.status.unwrap_or_default().container_statuses;
        let container = statuses
            .into_iter()
            .flatten()
            .find(|status| status.name == self.database.names.container);
        let termination =
            container.and_then(|one| one.last_state).and_then(|state| state.terminated);
        Ok(termination.map(|termination| LastContainerState {
            exit_code: termination.exit_code,
            reason: termination.reason,
            finish_time: termination.finished_at,
        }))
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

/// Makes a lease without a holder, owned by the Pilot's cluster.
pub fn new_lease(name: &str, pilot: &Pilot) -> LeaderLease {
    let owner_reference = cluster_owner(pilot).map(|owner| OwnerReference {
        // The cluster does not wait for its lease, and pilots may not update its finalizers.
        block_owner_deletion: None,
        controller: None,
        ..owner.clone()
    });
    LeaderLease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: owner_reference.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: LeaderLeaseSpec::default(),
    }
}

/// Did the API server answer 409? A failure on the way to the server is no conflict.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
