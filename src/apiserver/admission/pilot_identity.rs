//! A pilot writes the status of its own Pilot and of no other.
//!
//! RBAC cannot say this: the ServiceAccount is shared by all pods of a cluster. Its tokens are
//! bound to pods, though, and the pod's name is in the user's extras. A Pilot has the name of
//! its pod. Users without that extra are left to RBAC, and so is the controller, whose token is
//! bound to a pod too: it marks silent pilots.

use futures::future::BoxFuture;

use super::{Admit, Attributes};
use crate::{
    api::names,
    apiserver::{
        authn::well_known::POD_NAME,
        status::{ApiError, Resource},
    },
};

/// Refuses `pilots/status` of another pod's Pilot.
#[derive(Clone, Copy, Debug, Default)]
pub struct PilotIdentity;

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

impl Admit for PilotIdentity {
    fn admit<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move { judge(attributes) })
    }
}

fn judge(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    let Attributes { kind, subresource, namespace, name, user, .. } = attributes;
    if kind.plural() != "pilots" || *subresource != "status" {
        return Ok(());
    }
    let Some(account) = user.name.strip_prefix(SERVICE_ACCOUNT_PREFIX) else { return Ok(()) };
    let Some(pods) = user.extra.get(POD_NAME) else { return Ok(()) };
    let (account_namespace, account_name) = account.split_once(':').unwrap_or((account, ""));
    if account_name == names::CONTROLLER {
        return Ok(());
    }
    let own_namespace = account_namespace == *namespace;
    let own_pod = pods.len() == 1 && pods[0] == *name;
    if own_namespace && own_pod {
        return Ok(());
    }
    let why = format!(
        "pod {:?} may write the status of the Pilot of its own name and namespace only",
        pods.join(",")
    );
    Err(ApiError::forbidden(Resource::ours("pilots"), name, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::scheme::{Version, kind_by_plural},
        apiserver::{admission::Operation, authn::User},
    };

    fn verdict(user: &str, pods: &[&str], plural: &str, subresource: &str) -> bool {
        let mut user = User { name: user.to_owned(), ..User::default() };
        if !pods.is_empty() {
            let pods = pods.iter().map(|pod| (*pod).to_owned()).collect();
            user.extra.insert(POD_NAME.to_owned(), pods);
        }
        judge(&Attributes {
            operation: Operation::Update,
            kind: kind_by_plural(plural).unwrap(),
            version: Version::V1beta1,
            subresource,
            namespace: "shop",
            name: "cass-a-0",
            user: &user,
            object: None,
            old: None,
            dry_run: false,
        })
        .is_ok()
    }

    #[test]
    fn a_pod_writes_only_the_status_of_its_own_pilot() {
        let own = "system:serviceaccount:shop:cass-a";
        assert!(verdict(own, &["cass-a-0"], "pilots", "status"));
        assert!(!verdict(own, &["cass-a-1"], "pilots", "status"));
        assert!(!verdict(own, &["cass-a-1", "cass-a-0"], "pilots", "status"));
        let other = "system:serviceaccount:elsewhere:cass-a";
        assert!(!verdict(other, &["cass-a-0"], "pilots", "status"));
    }

    #[test]
    fn everybody_else_is_left_to_rbac() {
        assert!(verdict("alice", &["cass-a-1"], "pilots", "status"));
        assert!(verdict("system:serviceaccount:shop:operator", &[], "pilots", "status"));
        let controller = "system:serviceaccount:navigator:navigator-controller";
        assert!(verdict(controller, &["navigator-controller-abc"], "pilots", "status"));
        assert!(verdict(
            "system:serviceaccount:shop:cass-a",
            &["x"],
            "cassandraclusters",
            "status"
        ));
        assert!(verdict("system:serviceaccount:shop:cass-a", &["x"], "pilots", ""));
    }
}
