//! Kubernetes' own Lease (`coordination.k8s.io/v1`) as the object that carries the lease.

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, api::PostParams};

use super::{LeaseRecord, LeaseStore};

pub struct KubernetesLease {
    api: Api<Lease>,
    name: String,
}

impl KubernetesLease {
    pub fn new(client: Client, namespace: &str, name: String) -> Self {
        Self { api: Api::namespaced(client, namespace), name }
    }
}

impl LeaseStore for KubernetesLease {
    type Object = Lease;

    fn name(&self) -> &str {
        &self.name
    }

    async fn read_lease(&self) -> kube::Result<Option<Lease>> {
        self.api.get_opt(&self.name).await
    }

    fn lease_record(lease: &Lease) -> LeaseRecord {
        let spec = lease.spec.clone().unwrap_or_default();
        LeaseRecord {
            holder: spec.holder_identity,
            seconds: spec.lease_duration_seconds,
            acquired: spec.acquire_time,
            renewed: spec.renew_time,
            transitions: spec.lease_transitions,
        }
    }

    fn object_version(lease: &Lease) -> String {
        lease.metadata.resource_version.clone().unwrap_or_default()
    }

    async fn swap_record(&self, object: Option<Lease>, record: LeaseRecord) -> kube::Result<Lease> {
        let is_stored = object.is_some();
        let mut lease = object.unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: None,
        });
        let LeaseRecord { holder, seconds, acquired, renewed, transitions } = record;
        lease.spec = Some(LeaseSpec {
            holder_identity: holder,
            lease_duration_seconds: seconds,
            acquire_time: acquired,
            renew_time: renewed,
            lease_transitions: transitions,
            ..lease.spec.unwrap_or_default()
        });
        let params = PostParams::default();
        if is_stored {
            self.api.replace(&self.name, &params, &lease).await
        } else {
            self.api.create(&params, &lease).await
        }
    }
}
