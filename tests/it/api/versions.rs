//! One object, two versions: what a reader and a writer of each see of it.

use navigator::{
    api::{V1ALPHA1, V1BETA1, VERSIONS, names::annotation},
    machinery::{
        decode::ParsedBody,
        served_kind::{DecodeError, ObjectPart, ServedKind, ServedVersion},
    },
};
use serde_json::{Value, json};

use crate::scheme;

fn kind(plural: &str) -> &'static dyn ServedKind {
    scheme().by_plural(plural).unwrap()
}

#[track_caller]
fn decode(plural: &str, version: ServedVersion, body: Value, stored: Option<&Value>) -> Value {
    let decoded = kind(plural).decode(version, ParsedBody::from(body), stored);
    decoded.unwrap_or_else(|error| panic!("{error:?}")).hub
}

#[track_caller]
fn causes(
    plural: &str,
    version: ServedVersion,
    body: Value,
    stored: Option<&Value>,
) -> Vec<String> {
    match kind(plural).decode(version, ParsedBody::from(body), stored) {
        Err(DecodeError::Invalid(errors)) => errors.iter().map(ToString::to_string).collect(),
        other => panic!("expected field errors, got {other:?}"),
    }
}

fn shop() -> Value {
    decode(
        "cassandraclusters",
        V1BETA1,
        json!({"metadata": {"name": "shop"}, "spec": {
            "version": "5.0.6", "stopped": true, "config": {"concurrent_reads": 64},
            "image": {"repository": "r", "tag": "5.0.6", "digest": "sha256:ab"},
            "nodePools": [
                {"name": "a", "replicas": 3, "zone": "z1", "persistence": {"size": "1024Mi", "labels": {"k": "v"}}},
                {"name": "b", "replicas": 2, "zone": "z2",
                    "podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "db"}}}]}}),
        None,
    )
}

fn surplus(shown: &Value) -> Value {
    let text = shown["metadata"]["annotations"][annotation::SURPLUS].as_str().unwrap();
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_older_version_shows_what_it_cannot_say_in_one_annotation() {
    let shown = kind("cassandraclusters").encode(V1ALPHA1, &shop());
    assert_eq!(shown["apiVersion"], "navigator.jetstack.io/v1alpha1");
    assert_eq!(shown["status"], json!({}));
    assert_eq!(
        shown["spec"],
        json!({"version": "5.0.6", "securityContext": {},
            "image": {"repository": "r", "tag": "5.0.6", "pullPolicy": "IfNotPresent"},
            "nodePools": [
                {"name": "a", "replicas": 3, "rack": "a", "datacenter": "navigator-default-datacenter",
                    "nodeSelector": {}, "resources": {}, "persistence": {"size": "1024Mi"}},
                {"name": "b", "replicas": 2, "rack": "b", "datacenter": "navigator-default-datacenter",
                    "nodeSelector": {"disk": "ssd"}, "resources": {}}]})
    );
    assert_eq!(
        surplus(&shown),
        json!({"stopped": true, "config": {"concurrent_reads": 64}, "security": {"mode": "Secure"},
            "image": {"repository": "r", "tag": "5.0.6", "digest": "sha256:ab"},
            "nodePools": {
                "a": {"zone": "z1", "persistence": {"labels": {"k": "v"}}},
                "b": {"zone": "z2", "podTemplate": {"spec": {"priorityClassName": "db"}}}}})
    );
    let text = shown["metadata"]["annotations"][annotation::SURPLUS].as_str().unwrap();
    assert_eq!(text, surplus(&shown).to_string(), "compact, keys sorted");
}

#[test]
fn an_object_that_v1alpha1_can_say_has_no_annotation() {
    let body = json!({"metadata": {"name": "a"}, "spec": {"version": "5.0.6"}});
    let hub = decode("cassandraclusters", V1ALPHA1, body, None);
    let shown = kind("cassandraclusters").encode(V1ALPHA1, &hub);
    assert_eq!(shown["metadata"], json!({"name": "a"}));
}

#[test]
fn an_old_file_put_over_a_newer_object_destroys_nothing_it_cannot_see() {
    let stored = shop();
    // `kubectl replace` with a file of 2018; the annotation that it carries is an old dump.
    let file = json!({
        "metadata": {"name": "shop", "annotations": {annotation::SURPLUS: "{\"stopped\":false}"}},
        "spec": {"version": "5.0.6", "image": {"repository": "r", "tag": "5.0.6"},
            "nodePools": [{"name": "b"}, {"name": "a", "persistence": {"size": "2Gi"}}, {"name": "c"}]}});
    let hub = decode("cassandraclusters", V1ALPHA1, file, Some(&stored));
    assert_eq!(hub["metadata"], json!({"name": "shop"}));
    let spec = &hub["spec"];
    assert_eq!((&spec["stopped"], &spec["image"]["digest"]), (&json!(true), &json!("sha256:ab")));
    let pool = |index: usize| spec["nodePools"][index].clone();
    // Pools come in the file's order. Replicas that it leaves out stay, and a node selector does
    // not.
    assert_eq!(
        pool(0),
        json!({"name": "b", "replicas": 2, "rack": "b", "datacenter": "navigator-default-datacenter",
            "zone": "z2", "podTemplate": {"spec": {"priorityClassName": "db"}}})
    );
    assert_eq!(pool(1)["persistence"], json!({"size": "2Gi", "labels": {"k": "v"}}));
    assert_eq!((&pool(1)["replicas"], &pool(1)["zone"]), (&json!(3), &json!("z1")));
    assert_eq!((&pool(2)["replicas"], pool(2).get("zone")), (&json!(1), None));
}

#[test]
fn edits_of_the_older_form_win_over_what_hangs_on_them() {
    let stored = shop();
    let mut file = kind("cassandraclusters").encode(V1ALPHA1, &stored);
    file["spec"]["image"]["tag"] = "5.0.7".into();
    file["spec"]["nodePools"][0]["name"] = "renamed".into();
    let hub = decode("cassandraclusters", V1ALPHA1, file, Some(&stored));
    assert_eq!(hub["spec"]["image"].get("digest"), None);
    assert_eq!(hub["spec"]["nodePools"][0].get("zone"), None);
    assert_eq!(hub["spec"]["nodePools"][1]["zone"], "z2");

    for (stored, decommission, phase) in [
        ("Fenced", false, "Fenced"),
        ("Fenced", true, "Decommissioned"),
        ("Stopped", false, "Stopped"),
        ("Decommissioned", true, "Decommissioned"),
        ("Decommissioned", false, "Running"),
        ("FromTheFuture", false, "FromTheFuture"),
    ] {
        let body = json!({"metadata": {"name": "p"}, "spec": {"phase": stored}});
        let stored = decode("pilots", V1BETA1, body, None);
        let body = json!({"metadata": {"name": "p"}, "spec": {"decommission": decommission}});
        let hub = decode("pilots", V1ALPHA1, body, Some(&stored));
        assert_eq!(hub["spec"]["phase"], phase, "{stored} then {decommission}");
    }
}

#[test]
fn a_surplus_that_is_no_surplus_is_refused_on_create() {
    let create = |text: &str| {
        let body = json!({"metadata": {"name": "p", "annotations": {annotation::SURPLUS: text}},
            "spec": {"version": "5.0.6"}});
        causes("cassandraclusters", V1ALPHA1, body, None)
    };
    for (text, why) in [
        ("{", "EOF"),
        ("{\"stoped\":true}", "unknown field \"stoped\""),
        ("{\"stopped\":\"yes\"}", "must be of type boolean"),
        ("{\"nodePools\":{\"a\":{\"replicas\":3}}}", "unknown field \"nodePools.a.replicas\""),
        ("{\"stopped\":true,\"stopped\":true}", "duplicate field \"stopped\""),
    ] {
        let found = create(text);
        assert_eq!(found.len(), 1, "{found:?}");
        let path = format!("metadata.annotations[{}]: Invalid value: ", annotation::SURPLUS);
        assert!(found[0].starts_with(&path) && found[0].contains(why), "{}", found[0]);
    }
}

#[test]
fn the_hub_never_shows_or_stores_the_annotation() {
    let body = json!({"metadata": {"name": "a", "annotations": {annotation::SURPLUS: "{", "b": "c"}},
        "spec": {"version": "5.0.6"}});
    let hub = decode("cassandraclusters", V1BETA1, body, None);
    assert_eq!(hub["metadata"]["annotations"], json!({"b": "c"}));
}

#[test]
fn fields_of_a_newer_server_are_kept_and_not_served() {
    let cassandra = kind("cassandraclusters");
    let stored = json!({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
        "metadata": {"name": "shop", "uid": "u", "new": 1},
        "spec": {"version": "5.0.6", "tls": {"internode": {"mode": "Managed"}},
            "jvm": {"new": 1}, "security": {"mode": "Open"}, "podTemplate": {"spec": {"new": 1, "priorityClassName": "db"}},
            "nodePools": [{"name": "a", "replicas": 1, "rack": "a", "new": {"er": true},
                "datacenter": "navigator-default-datacenter"}]},
        "status": {"phase": "Running", "new": 2}, "new": 3});
    let hub = cassandra.decode_stored(stored.clone()).unwrap();
    assert_eq!(hub, stored);
    let shown = cassandra.encode(V1BETA1, &hub);
    let text = cassandra.encode(V1ALPHA1, &hub).to_string() + &shown.to_string();
    assert!(!text.contains("new") && !text.contains("tls"), "{text}");

    // Updates in either version keep unknown fields of the stored object.
    for version in VERSIONS {
        let mut body = cassandra.encode(version, &hub);
        body["spec"]["paused"] = true.into();
        let decoded = cassandra.decode(version, ParsedBody::from(body), Some(&hub)).unwrap();
        assert!(decoded.strict.is_empty());
        let mut expected = stored.clone();
        expected["spec"]["paused"] = true.into();
        assert_eq!(cassandra.merge_update(ObjectPart::Main, decoded.hub, &hub), expected);
    }
    let mut body = cassandra.encode(V1BETA1, &hub);
    body["status"]["phase"] = "Updating".into();
    body["spec"]["paused"] = true.into();
    let new = decode("cassandraclusters", V1BETA1, body, Some(&hub));
    let mut expected = stored.clone();
    expected["status"]["phase"] = "Updating".into();
    assert_eq!(cassandra.merge_update(ObjectPart::Status, new, &hub), expected);
}

#[test]
fn unknown_fields_of_a_request_are_named_and_dropped() {
    let body = json!({"metadata": {"name": "a"}, "spec": {"version": "5.0.6", "foo": 1,
        "podTemplate": {"spec": {"bar": 1, "priorityClassName": "x"}}}});
    let decoded = kind("cassandraclusters").decode(V1BETA1, ParsedBody::from(body), None).unwrap();
    assert_eq!(
        decoded.strict,
        ["unknown field \"spec.foo\"", "unknown field \"spec.podTemplate.spec.bar\""]
    );
    assert_eq!(
        decoded.hub["spec"],
        json!({"version": "5.0.6", "security": {"mode": "Secure"},
            "podTemplate": {"spec": {"priorityClassName": "x"}}})
    );
}

#[test]
fn what_upstream_stored_is_read_and_becomes_the_hub() {
    let stored = json!({"apiVersion": "navigator.jetstack.io/v1alpha1", "kind": "Pilot",
        "metadata": {"name": "p", "creationTimestamp": null},
        "spec": {"decommission": true, "elasticsearch": {"nodePool": "mixed"}},
        "status": {"conditions": [{"type": "Ready", "status": true, "reason": "R", "message": "",
            "lastTransitionTime": "2017-10-01T19:00:00+00"}]}});
    let hub = kind("pilots").decode_stored(stored.clone()).unwrap();
    assert_eq!(
        hub,
        json!({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
            "metadata": {"name": "p"},
            "spec": {"phase": "Decommissioned", "nodePool": "mixed", "elasticsearch": {}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": "2017-10-01T19:00:00Z"}]}})
    );
    assert_eq!(
        kind("pilots").decode_stored(hub.clone()).unwrap(),
        hub,
        "reading again changes nothing"
    );
}

#[test]
fn a_main_write_leaves_status_and_what_the_server_owns() {
    let pilots = kind("pilots");
    let old = json!({"apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": "p", "uid": "u", "generation": 3, "creationTimestamp": "2026-11-20T10:00:00Z"},
        "spec": {"phase": "Running"}, "status": {"version": "5.0.6"}});
    let body = json!({"metadata": {"name": "p", "labels": {"a": "b"}, "generation": 9},
        "spec": {"phase": "Fenced"}, "status": {"version": "1"}});
    let new = decode("pilots", V1BETA1, body, Some(&old));
    let mut expected = old.clone();
    expected["metadata"]["labels"] = json!({"a": "b"});
    expected["spec"]["phase"] = "Fenced".into();
    assert_eq!(pilots.merge_update(ObjectPart::Main, new, &old), expected);
}

#[test]
fn older_words_are_understood_and_said() {
    let body = json!({"metadata": {"name": "a"}, "spec": {"version": "5.6.2", "plugins": [{"name": "p"}],
        "nodePools": [{"name": "x", "roles": ["client"]}]}});
    let decoded =
        kind("elasticsearchclusters").decode(V1ALPHA1, ParsedBody::from(body), None).unwrap();
    assert!(decoded.strict.is_empty(), "{:?}", decoded.strict);
    assert_eq!(decoded.hub["spec"]["plugins"], json!([{"name": "p"}]));
    assert_eq!(
        decoded.warnings,
        [
            "spec.plugins[0]: object form is accepted and stored as a string",
            "spec.nodePools[0].roles[0]: \"client\" is stored as \"ingest\"",
        ]
    );
    let refused = kind("cassandraclusters").decode(
        V1ALPHA1,
        ParsedBody::from(json!({"metadata": {"name": "a"}, "spec": {"version": 3.11}})),
        None,
    );
    let error = refused.unwrap_err();
    assert!(
        matches!(&error, DecodeError::Malformed(text)
        if text == "spec.version must be a string; put it in quotes"),
        "{error:?}"
    );
}

#[test]
fn a_patch_may_use_older_words_before_it_is_merged() {
    let pilots = kind("pilots");
    let mut patch = ParsedBody::from(json!({"spec": {"inService": false, "elasticsearch": null}}));
    pilots.normalize(V1ALPHA1, &mut patch).unwrap();
    assert_eq!(patch.value, json!({"spec": {"decommission": true, "elasticsearch": null}}));
    let stored = decode("pilots", V1BETA1, json!({"metadata": {"name": "p"}, "spec": {}}), None);
    let mut object = pilots.encode(V1ALPHA1, &stored);
    json_patch::merge(&mut object, &patch.value);
    let hub = decode("pilots", V1ALPHA1, object, Some(&stored));
    assert_eq!(hub["spec"], json!({"phase": "Decommissioned"}));
}

#[test]
fn a_lease_has_no_older_form() {
    let leases = kind("leaderleases");
    assert_eq!(leases.versions(), [V1BETA1]);
    let body =
        json!({"metadata": {"name": "l"}, "spec": {"renewTime": "2026-11-20T10:14:31.104293Z"}});
    let refused = leases.decode(V1ALPHA1, ParsedBody::from(body.clone()), None);
    assert!(matches!(refused, Err(DecodeError::Malformed(_))), "{refused:?}");
    let hub = decode("leaderleases", V1BETA1, body, None);
    assert_eq!(hub["spec"]["renewTime"], "2026-11-20T10:14:31.104293Z");
}

#[test]
fn stored_bytes_of_a_version_that_nobody_knows_are_not_guessed_at() {
    for stored in [
        json!({"apiVersion": "navigator.jetstack.io/v2", "metadata": {"name": "a"}}),
        json!({"metadata": {"name": "a"}}),
    ] {
        let refused = kind("cassandraclusters").decode_stored(stored.clone());
        assert!(matches!(refused, Err(DecodeError::Malformed(_))), "{refused:?}");
    }
}

#[test]
fn selectable_fields_have_values() {
    let shop = shop();
    assert_eq!(kind("cassandraclusters").field_value(&shop, "spec.version"), "5.0.6");
    assert_eq!(kind("cassandraclusters").field_value(&shop, "status.phase"), "");
}
