//! PodDisruptionBudget of a pool.

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{Labels, Resource, Settings, metadata, pool_labels, selector};
use crate::controller::desired::{Desired, Pool};

/// One node of a pool may be evicted at a time. A pool of one node can still be drained.
pub(super) fn disruption_budget(desired: &Desired, settings: &Settings, pool: &Pool) -> Resource {
    let labels = pool_labels(desired, pool);
    Resource::other(&PodDisruptionBudget {
        metadata: metadata(desired, settings, &pool.set, labels, Labels::new()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(selector(desired, Some(pool))),
                match_expressions: None,
            }),
            // A node that does not serve anyway never holds up the drain of a machine.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            min_available: None,
        }),
        status: None,
    })
}
