//! A pilot reports for itself only: a ServiceAccount may write the status of the one Pilot that has
//! the name of the pod its token was issued to.
//!
//! RBAC cannot say this, since all pods of a cluster share a ServiceAccount. The controller is
//! excepted (it marks silent Pilots). For people and other users RBAC alone decides.

use futures::future::BoxFuture;

use crate::{
    api::{GROUP, names},
    apiserver::{
        admission::{AdmissionAttributes, AdmissionOperation, AdmissionPlugin},
        authn::well_known,
        status::{ApiError, GroupResource},
    },
};

/// The plugin. It knows the controller's user name.
pub struct PilotStatusRestriction {
    controller: String,
}

impl PilotStatusRestriction {
    /// Creates the plugin. `namespace` is the install's, where the controller's ServiceAccount is.
    pub fn new(namespace: &str) -> Self {
        Self { controller: format!("system:serviceaccount:{namespace}:{}", names::CONTROLLER) }
    }

    fn check_status_write(&self, attributes: AdmissionAttributes<'_>) -> Result<(), ApiError> {
        let AdmissionAttributes { operation, user, resource, subresource, namespace, name, .. } =
            attributes;
        if resource != "pilots"
            || subresource != "status"
            || operation == AdmissionOperation::Delete
        {
            return Ok(());
        }
        let Some(account) = user.name.strip_prefix("system:serviceaccount:") else {
            return Ok(());
        };
        if user.name == self.controller {
            return Ok(());
        }
        let is_own_namespace = account.split(':').next() == Some(namespace);
        if is_own_namespace && user.extra(well_known::POD_NAME) == Some(name) {
            return Ok(());
        }
        let message = format!(
            "a ServiceAccount may write the status of the Pilot of its own pod only; this token \
             is of pod {:?}",
            user.extra(well_known::POD_NAME).unwrap_or_default()
        );
        Err(ApiError::forbidden(GroupResource { group: GROUP, resource }, name, message))
    }
}

impl AdmissionPlugin for PilotStatusRestriction {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(self.check_status_write(attributes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::authn::User;

    #[test]
    fn a_service_account_writes_the_status_of_its_own_pods_pilot_only() {
        let plugin = PilotStatusRestriction::new("navigator");
        let rows = [
            ("system:serviceaccount:db:cass-demo", Some("cass-demo-a-0"), true),
            ("system:serviceaccount:db:cass-demo", Some("cass-demo-a-1"), false),
            ("system:serviceaccount:db:cass-demo", None, false),
            ("system:serviceaccount:other:cass-demo", Some("cass-demo-a-0"), false),
            ("system:serviceaccount:navigator:navigator-controller", Some("x"), true),
            ("system:serviceaccount:db:navigator-controller", Some("x"), false),
            ("jane", None, true),
        ];
        for (name, pod, admitted) in rows {
            let extra = pod.map(|pod| (well_known::POD_NAME.to_owned(), vec![pod.to_owned()]));
            let user =
                User { name: name.into(), extra: extra.into_iter().collect(), ..User::default() };
            let mut attributes = AdmissionAttributes {
                operation: AdmissionOperation::Update,
                user: &user,
                group: GROUP,
                resource: "pilots",
                subresource: "status",
                namespace: "db",
                name: "cass-demo-a-0",
                object: None,
                old: None,
                dry_run: false,
            };
            assert_eq!(plugin.check_status_write(attributes).is_ok(), admitted, "{name} {pod:?}");
            attributes.subresource = "";
            assert!(
                plugin.check_status_write(attributes).is_ok(),
                "RBAC alone decides about {name}"
            );
        }
    }
}
