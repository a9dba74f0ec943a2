//! Claims of the nodes of a pool, as the pool's StatefulSet makes them.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::selector_labels;
use crate::{
    api::names::label,
    controller::desired_state::{DesiredCluster, DesiredPool},
};

/// Claim templates of a pool; none where the data of the pool are in its pods.
pub(crate) fn claim_templates(
    desired: &DesiredCluster,
    pool: &DesiredPool,
) -> Vec<PersistentVolumeClaim> {
    let Some(persistence) = pool.persistence.as_ref().filter(|_| pool.is_persistent()) else {
        return Vec::new();
    };
    let mut labels = persistence.labels.clone();
    labels.extend(selector_labels(desired, Some(pool)));
    labels.insert(label::K8S_MANAGED_BY.to_owned(), "navigator".to_owned());
    let size = persistence.size.clone().map(|size| ("storage".to_owned(), size));
    vec![PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(desired.database.names.data_volume.to_owned()),
            labels: Some(labels),
            annotations: Some(persistence.annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            volume_mode: Some("Filesystem".to_owned()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(size.into_iter().collect()),
                limits: None,
            }),
            storage_class_name: persistence.storage_class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }]
}
