//! The coordinator may request the eviction of a node's pod, and may change nothing else of a
//! Pilot.
//!
//! RBAC cannot express this: a client that may patch an object may patch all of it. A Pilot's spec
//! sets what its node runs and whether it is fenced. The rule is for ServiceAccounts with the
//! coordinator's name, in any namespace that it was installed into.

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::{
    api::{
        GROUP,
        names::{self, annotation},
    },
    apiserver::{
        admission::{AdmissionAttributes, AdmissionPlugin},
        status::{ApiError, GroupResource},
    },
};

/// The plugin.
pub struct PilotLeaveRestriction;

fn check_pilot_write(attributes: AdmissionAttributes<'_>) -> Result<(), ApiError> {
    let AdmissionAttributes { user, group, resource, name, object, old, .. } = attributes;
    let account = user.name.strip_prefix("system:serviceaccount:").unwrap_or_default();
    let is_coordinator =
        account.split_once(':').is_some_and(|(_, account_name)| account_name == names::COORDINATOR);
    if group != GROUP || resource != "pilots" || !is_coordinator {
        return Ok(());
    }
    if let (Some(object), Some(old)) = (object, old)
        && without_evict_request(object) == without_evict_request(old)
    {
        return Ok(());
    }
    let message = format!(
        "ServiceAccount {:?} may change a Pilot's annotation {} and nothing else of it",
        names::COORDINATOR,
        annotation::LEAVE
    );
    Err(ApiError::forbidden(GroupResource { group: GROUP, resource }, name, message))
}

/// Returns a Pilot without the request to leave, and without what the server keeps in it.
fn without_evict_request(pilot: &Value) -> Map<String, Value> {
    let mut pilot = pilot.as_object().cloned().unwrap_or_default();
    if let Some(Value::Object(meta)) = pilot.get_mut("metadata") {
        for field in ["generation", "managedFields", "resourceVersion"] {
            meta.remove(field);
        }
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
            annotations.remove(annotation::LEAVE);
        }
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        if meta.get("annotations").is_some_and(is_empty) {
            meta.remove("annotations");
        }
    }
    pilot
}

impl AdmissionPlugin for PilotLeaveRestriction {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(std::future::ready(check_pilot_write(attributes)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::{admission::AdmissionOperation, authn::User};

    fn is_admitted(user: &str, old: Option<&Value>, object: Option<&Value>) -> bool {
        let user = User { name: user.into(), ..User::default() };
        check_pilot_write(AdmissionAttributes {
            operation: AdmissionOperation::Update,
            user: &user,
            group: GROUP,
            resource: "pilots",
            subresource: "",
            namespace: "db",
            name: "cass-demo-a-0",
            object,
            old,
            dry_run: false,
        })
        .is_ok()
    }

    #[test]
    fn the_coordinator_asks_a_node_to_leave_and_changes_nothing_else() {
        let coordinator = "system:serviceaccount:containership-core:navigator-coordinator";
        let pilot = json!({
            "metadata": {"name": "cass-demo-a-0", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"phase": "Running"},
        });
        let mut asked = pilot.clone();
        asked["metadata"]["annotations"] = json!({annotation::LEAVE: "uid somebody"});
        asked["metadata"]["resourceVersion"] = json!("8");
        assert!(is_admitted(coordinator, Some(&pilot), Some(&asked)));
        assert!(is_admitted(coordinator, Some(&asked), Some(&pilot)), "it is taken back");

        let with = |pointer: &str, value: Value| {
            let mut changed = asked.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            changed
        };
        let changes = [
            with("/spec/phase", json!("Fenced")),
            with("/metadata/labels", json!({})),
            with("/metadata/annotations", json!({annotation::GIVE_UP: "uid"})),
        ];
        for changed in changes {
            assert!(!is_admitted(coordinator, Some(&pilot), Some(&changed)), "{changed}");
            for other in ["jane", "system:serviceaccount:navigator:navigator-controller"] {
                assert!(is_admitted(other, Some(&pilot), Some(&changed)), "RBAC decides: {other}");
            }
        }
        assert!(!is_admitted(coordinator, Some(&pilot), None), "it deletes none");
        assert!(!is_admitted(coordinator, None, Some(&pilot)), "it makes none");
    }
}
