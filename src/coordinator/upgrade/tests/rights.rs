//! The rights that an install gives the coordinator are those that it uses.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::json;

use super::{POD, RUN, Scene, machine};
use crate::{coordinator::testing::EXAMPLE, engine::rbac};

/// A right, as `GROUP RESOURCE VERB`.
type Rights = BTreeSet<String>;

fn held(rules: Vec<PolicyRule>) -> Rights {
    let mut held = Rights::new();
    for PolicyRule { api_groups, resources, verbs, .. } in rules {
        for group in api_groups.iter().flatten() {
            for resource in resources.iter().flatten() {
                held.extend(verbs.iter().map(|verb| format!("{group} {resource} {verb}")));
            }
        }
    }
    held
}

/// Returns the right that a request needs; none where every client may ask.
fn needed(method: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let group = match parts[0] {
        "api" => "",
        "apis" => parts.remove(1),
        _ => return None,
    };
    parts.drain(..2);
    if parts[0] == "namespaces" {
        parts.drain(..2);
    }
    let resource = match parts[..] {
        [resource, _, part] => format!("{resource}/{part}"),
        [resource, ..] => resource.to_owned(),
        [] => unreachable!("a path names a resource"),
    };
    let verb = match (method, parts.len()) {
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (other, _) => panic!("unexpected {other}"),
    };
    Some(format!("{group} {resource} {verb}"))
}

/// What other parts of the coordinator ask: the watches, the election, and an event that repeats.
const ELSEWHERE: [&str; 9] = [
    " nodes watch",
    "provision.containership.io clusterupgrades watch",
    "containership.io users list",
    "containership.io users watch",
    "containership.io users/status update",
    "coordination.k8s.io leases create",
    "coordination.k8s.io leases get",
    "coordination.k8s.io leases update",
    "events.k8s.io events patch",
];

#[tokio::test]
async fn a_whole_run_needs_the_rights_that_an_install_gives_and_no_others() {
    let mut scene = Scene::new();
    scene.add_pod();
    scene.add_member();
    scene.server.lock().edit(RUN, &json!({"spec": {"ttlSecondsAfterFinished": 0}}));
    scene.until("Drain").await;
    for _ in 0..5 {
        scene.coordinator.reconcile().await.unwrap();
    }
    assert!(!scene.server.lock().objects.contains_key(POD), "the pod was evicted");
    scene.server.lock().objects.remove("/api/v1/namespaces/db/pods/ex-demo-a-0");
    let new = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.34.4"}}});
    scene.server.lock().edit(&machine("m-2"), &new);
    scene.until("Run").await;
    scene.server.lock().edit(&machine("m-1"), &new);
    scene.until("Done").await;
    for _ in 0..5 {
        scene.coordinator.reconcile().await.unwrap();
    }
    assert!(!scene.server.lock().objects.contains_key(RUN), "the run was deleted in time");

    let requests = scene.server.lock().requests.clone();
    let mut used: Rights =
        requests.iter().filter_map(|(method, path)| needed(method, path)).collect();
    used.extend(ELSEWHERE.map(str::to_owned));
    let mut rules = rbac::coordinator_rules(&[EXAMPLE.plural]);
    rules.extend(rbac::coordinator_core_rules());
    assert_eq!(used, held(rules));
}
