//! Manifests, roll-outs, and what is done next.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::containership::{PluginFailure, PluginRollout};

fn named(text: &str) -> Vec<String> {
    parse_manifests(text).unwrap().iter().map(|one| one.object.to_string()).collect()
}

#[test]
fn manifests_are_put_in_waves_and_keep_their_order_within() {
    let text = "
# of one document or more
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: n}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: n}}
- {apiVersion: v1, kind: ServiceAccount, metadata: {name: s, namespace: n}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: n}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: k},
 spec: {group: g.io, names: {kind: K}}}
";
    assert_eq!(
        named(text),
        [
            "CustomResourceDefinition k",
            "Namespace n",
            "ServiceAccount n/s",
            "ClusterRole r",
            "Deployment n/d",
            "ConfigMap n/c"
        ]
    );
    let all = parse_manifests(text).unwrap();
    assert!(all[0].is_definition_of("g.io", "K") && !all[0].is_definition_of("g.io", "L"));
    let kept: Vec<bool> = all.iter().map(|one| one.object.is_kept()).collect();
    assert_eq!(kept, [true, true, false, false, false, false]);
    assert_eq!(
        all[5].with_owner_label("u")["metadata"]["labels"],
        json!({"containership.io/plugin": "u"})
    );
}

#[test]
fn manifests_that_cannot_be_applied_are_refused_in_a_sentence() {
    let twice = "{apiVersion: v1, kind: Secret, metadata: {name: a}}\n---\n".repeat(2);
    for (text, says) in [
        ("", "there are no manifests"),
        ("---\n---\n", "there are no manifests"),
        ("a: [", "document 1 of the manifests: "),
        ("just words", "document 1 of the manifests lacks apiVersion"),
        ("{apiVersion: v1, metadata: {name: a}}", "document 1 of the manifests lacks kind"),
        ("{apiVersion: v1, kind: A, metadata: {generateName: a}}", "lacks metadata.name"),
        (&twice, "Secret a stands twice in the manifests"),
        (&"x".repeat(BYTES + 1), "the manifests are longer than 768 KiB"),
    ] {
        let told = parse_manifests(text).unwrap_err();
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn a_digest_is_of_the_manifests_and_of_the_request_to_try_them_again() {
    assert_eq!(manifests_digest("a", None), manifests_digest("a", None));
    assert_ne!(manifests_digest("a", None), manifests_digest("b", None));
    assert_ne!(manifests_digest("a", None), manifests_digest("a", Some("once more")));
}

#[test]
fn an_object_is_waited_for_until_it_is_rolled_out() {
    let object = |api_version: &str, kind: &str| PluginObject {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: Some("n".to_owned()),
        name: "x".to_owned(),
    };
    let (deployment, set, daemons, job) = (
        object("apps/v1", "Deployment"),
        object("apps/v1", "StatefulSet"),
        object("apps/v1", "DaemonSet"),
        object("batch/v1", "Job"),
    );
    let definition = object("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let live = |generation: i64, spec: Value, status: Value| json!({"metadata": {"generation": generation}, "spec": spec, "status": status});
    let condition = |type_: &str| json!({"conditions": [{"type": type_, "status": "True"}]});
    let rolled = |seen: i64, all: i64, updated: i64, there: i64| {
        json!({
            "observedGeneration": seen, "replicas": all, "updatedReplicas": updated,
            "availableReplicas": there, "readyReplicas": there,
        })
    };
    let daemon = |updated: i64, there: i64| {
        json!({
            "observedGeneration": 1, "desiredNumberScheduled": 2,
            "updatedNumberScheduled": updated, "numberAvailable": there,
        })
    };
    let by_hand = json!({"replicas": 2, "updateStrategy": {"type": "OnDelete"}});
    for (object, live, done) in [
        (&deployment, live(1, json!({"replicas": 2}), json!({})), false),
        (&deployment, live(2, json!({"replicas": 2}), rolled(1, 2, 2, 2)), false),
        (&deployment, live(2, json!({"replicas": 2}), rolled(2, 2, 1, 2)), false),
        (&deployment, live(2, json!({"replicas": 2}), rolled(2, 3, 2, 2)), false),
        (&deployment, live(2, json!({"replicas": 2}), rolled(2, 2, 2, 1)), false),
        (&deployment, live(2, json!({"replicas": 2}), rolled(2, 2, 2, 2)), true),
        (&deployment, live(2, json!({}), rolled(2, 1, 1, 1)), true),
        (&deployment, live(2, json!({"replicas": 0}), rolled(2, 0, 0, 0)), true),
        (&set, live(1, json!({"replicas": 2}), rolled(1, 2, 1, 2)), false),
        (&set, live(1, json!({"replicas": 2}), rolled(1, 2, 2, 2)), true),
        (&set, live(1, by_hand, rolled(1, 2, 0, 2)), true),
        (&daemons, live(1, json!({}), daemon(1, 2)), false),
        (&daemons, live(1, json!({}), daemon(2, 1)), false),
        (&daemons, live(1, json!({}), daemon(2, 2)), true),
        (&job, live(1, json!({}), json!({})), false),
        (&job, live(1, json!({}), condition("Complete")), true),
        (&definition, live(1, json!({}), condition("NamesAccepted")), false),
        (&definition, live(1, json!({}), condition("Established")), true),
        (&object("v1", "ConfigMap"), json!({}), true),
    ] {
        let waits = pending_reason(object, &live).unwrap();
        assert_eq!(waits.is_none(), done, "{object} {live}: {waits:?}");
    }
    let told = pending_reason(&job, &live(1, json!({}), condition("Failed"))).unwrap_err();
    assert_eq!(told, "Job n/x failed");
}

#[test]
fn a_version_is_begun_applied_awaited_and_undone_when_it_fails() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let rollout = |digest: &str, applied: bool, failure: Option<&str>| PluginStatus {
        rollout: Some(PluginRollout {
            digest: digest.to_owned(),
            started_at: Time(at(100)),
            applied,
            failure: failure.map(str::to_owned),
        }),
        ..PluginStatus::default()
    };
    let failed = PluginStatus {
        failed: Some(PluginFailure { digest: "new".to_owned(), message: String::new() }),
        ..PluginStatus::default()
    };
    let none = PluginStatus::default();
    for (status, kept, second, action) in [
        (&none, None, 0, PluginAction::Begin),
        (&none, Some("old"), 0, PluginAction::Begin),
        (&none, Some("new"), 0, PluginAction::Rest),
        (&failed, Some("old"), 0, PluginAction::GiveUp),
        // The version before is asked for again, which stands.
        (&failed, Some("new"), 0, PluginAction::Rest),
        (&rollout("new", false, None), Some("old"), 101, PluginAction::Apply),
        (&rollout("new", true, None), Some("old"), 129, PluginAction::Await),
        (&rollout("new", true, None), Some("old"), 130, PluginAction::Expire),
        (&rollout("new", false, None), None, 130, PluginAction::Expire),
        // Another version meanwhile, be it the one that was kept.
        (&rollout("other", true, None), Some("old"), 500, PluginAction::Begin),
        (&rollout("other", true, None), Some("new"), 101, PluginAction::Begin),
        // What was begun to be undone is undone, whatever is asked for.
        (&rollout("new", true, Some("why")), Some("old"), 101, PluginAction::Undo),
        (&rollout("other", false, Some("why")), Some("new"), 500, PluginAction::Undo),
    ] {
        assert_eq!(next_action(status, "new", kept, 30, at(second)), action, "{status:?} {kept:?}");
    }
}
