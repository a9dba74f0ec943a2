//! A view of a cluster of any database, for the rules that all databases share.

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    api::{
        database_names::DatabaseNames,
        v1beta1::{
            ClusterSecurity, ClusterStatus, Config, ImageSpec, Jvm, Persistence, PilotSettings,
            PodTemplate, SecurityContext, Services, UpdateStrategy,
        },
    },
    machinery::field_error::FieldPath,
};

/// The fields of a cluster that shared rules read.
pub(super) struct ClusterView<'a> {
    pub(super) metadata: &'a ObjectMeta,
    pub(super) names: &'static DatabaseNames,
    pub(super) reserved: &'static [&'static str],
    pub(super) version: &'a str,
    pub(super) image: Option<&'a ImageSpec>,
    pub(super) pilot_image: Option<&'a ImageSpec>,
    pub(super) security_context: Option<&'a SecurityContext>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    pub(super) update_strategy: Option<&'a UpdateStrategy>,
    pub(super) services: Option<&'a Services>,
    pub(super) security: Option<&'a ClusterSecurity>,
    pub(super) pilot_settings: Option<&'a PilotSettings>,
    pub(super) pools: Vec<PoolView<'a>>,
    pub(super) status: &'a ClusterStatus,
}

/// The fields of a node pool that shared rules read.
pub(super) struct PoolView<'a> {
    pub(super) name: &'a str,
    pub(super) replicas: Option<i32>,
    pub(super) zone: Option<&'a str>,
    pub(super) resources: Option<&'a ResourceRequirements>,
    pub(super) persistence: Option<&'a Persistence>,
    pub(super) config: &'a Config,
    pub(super) jvm: Option<&'a Jvm>,
    pub(super) pod_template: &'a PodTemplate,
    /// True when the pool's nodes hold a state that must not be lost.
    pub(super) keeps_data: bool,
}

impl PoolView<'_> {
    /// Returns the number of nodes that the pool asks for.
    pub(super) fn nodes(&self) -> i64 {
        self.replicas.unwrap_or(1).into()
    }

    pub(super) fn memory_limit(&self) -> Option<&str> {
        let limits = self.resources?.limits.as_ref()?;
        limits.get("memory").map(|quantity| quantity.0.as_str())
    }
}

/// Returns the path `spec.nodePools[index]`.
pub fn pool_path(index: usize) -> FieldPath {
    FieldPath::new("spec").child("nodePools").index(index)
}
