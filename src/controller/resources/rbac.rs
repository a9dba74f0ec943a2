//! ServiceAccount, Role and RoleBinding of the pilots of a cluster.

use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding, RoleRef, Subject},
};

use super::{DesiredObject, Labels, ObjectSettings, build_metadata, cluster_labels};
use crate::{controller::desired_state::DesiredCluster, engine::rbac};

pub(super) fn pilot_rbac(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
) -> [DesiredObject; 3] {
    let account = desired.database.names.service_account(&desired.name);
    let role = desired.database.names.pilot_role(&desired.name);
    let lease = (desired.database.names.leader_lease)(&desired.name);
    let metadata = |name: &str| {
        build_metadata(desired, settings, name, cluster_labels(desired), Labels::new())
    };
    [
        DesiredObject::from_object(&ServiceAccount {
            metadata: metadata(&account),
            ..ServiceAccount::default()
        }),
        DesiredObject::from_object(&Role {
            metadata: metadata(&role),
            rules: Some(rbac::pilot_rules(&lease)),
        }),
        DesiredObject::from_object(&RoleBinding {
            metadata: metadata(&role),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "Role".to_owned(),
                name: role.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: account,
                namespace: Some(desired.namespace.clone()),
                api_group: None,
            }]),
        }),
    ]
}
