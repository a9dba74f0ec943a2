//! Webhooks that change what is written.

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Bed, PILOTS, labelled, pilot, put, warnings};
use crate::support::{
    hooks::{Hooks, Say, allow, patch},
    server::World,
};

fn add(path: &str, value: &Value) -> Say {
    patch(&json!([{"op": "add", "path": path, "value": value}]))
}

#[tokio::test]
async fn each_sees_what_the_one_before_it_made_in_the_order_of_names() {
    let hooks = Hooks::start(|path, _| match path {
        // The patch removes what has a default, and adds what no Pilot has.
        "one" => patch(&json!([
            {"op": "add", "path": "/metadata/labels", "value": {"one": "1"}},
            {"op": "remove", "path": "/spec/phase"},
            {"op": "add", "path": "/spec/nonsense", "value": 1},
        ])),
        "two" => add("/metadata/labels/two", &json!("2")),
        "three" => add("/metadata/annotations", &json!({"three": "3"})),
        _ => allow(),
    })
    .await;
    let world = World::new().await;
    let only = |path: &str| hooks.webhook(path, &json!({}));
    put(&world.kube, "mutating", "b", &[only("three")]);
    put(&world.kube, "mutating", "a", &[only("one"), only("two")]);
    put(&world.kube, "validating", "0", &[only("last")]);
    let bed = Bed::in_world(world, &[]).await;
    let created = bed.write("POST", PILOTS, &pilot("a")).await;

    let seen = hooks.seen();
    let paths: Vec<_> = seen.iter().map(|seen| seen.path.as_str()).collect();
    assert_eq!(paths, ["/one", "/two", "/three", "/last"]);
    let object = |at: usize| &seen[at].request()["object"];
    assert_eq!(object(0)["metadata"]["labels"], Value::Null);
    assert!(object(0)["metadata"]["uid"].is_null(), "nothing has an identity yet: {}", object(0));
    assert_eq!(object(1)["metadata"]["labels"], json!({"one": "1"}));
    assert_eq!(object(1)["spec"], json!({"nodePool": "a", "phase": "Running"}));
    assert_eq!(object(2)["metadata"]["labels"], json!({"one": "1", "two": "2"}));
    let mut shown = object(3).clone();
    shown["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    assert_eq!(shown, created, "whoever validates sees what is stored");
    assert_eq!(created["metadata"]["labels"], json!({"one": "1", "two": "2"}));
    assert_eq!(created["metadata"]["annotations"], json!({"three": "3"}));
    assert_eq!(created["metadata"]["generation"], 1);
    let path = format!("{PILOTS}/a");
    assert_eq!(bed.write("GET", &path, &Value::Null).await, created);

    // A spec that webhooks change is another generation; a status is not theirs to give.
    let touched = bed.write("PATCH", &path, &json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(touched["metadata"]["generation"], 1);
    assert_eq!(touched["metadata"]["uid"], created["metadata"]["uid"]);
}

#[tokio::test]
async fn who_wishes_it_is_asked_again_when_a_later_one_changed_the_object() {
    let hooks = Hooks::start(|path, request| {
        let labels = &request["object"]["metadata"]["labels"];
        match path {
            _ if request["operation"] == "DELETE" => allow(),
            "counts" if labels.is_null() => add("/metadata/labels", &json!({"seen": "1"})),
            "counts" => add("/metadata/labels/seen", &json!("2")),
            "later" if labels["later"].is_null() => add("/metadata/labels/later", &json!("1")),
            _ => allow(),
        }
    })
    .await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let mutating = [
        hooks.webhook("once", &json!({})),
        hooks.webhook("counts", &again),
        hooks.webhook("later", &again),
    ];
    let bed = Bed::new(&mutating, &[]).await;
    let created = bed.write("POST", PILOTS, &pilot("a")).await;
    assert_eq!(created["metadata"]["labels"], json!({"seen": "2", "later": "1"}));
    let paths: Vec<_> = hooks.seen().iter().map(|seen| seen.path.clone()).collect();
    // The last webhook is not asked again: no webhook after it changed anything in the first round.
    assert_eq!(paths, ["/once", "/counts", "/later", "/counts"]);

    // No webhook changes anything, so none is asked twice.
    let labels = json!({"seen": "2", "later": "1"});
    bed.write("DELETE", &format!("{PILOTS}/a"), &Value::Null).await;
    hooks.forget();
    bed.write("POST", PILOTS, &labelled("b", &labels)).await;
    let paths: Vec<_> = hooks.seen().iter().map(|seen| seen.path.clone()).collect();
    let round = ["/once", "/counts", "/later"];
    assert_eq!(paths, round);
}

#[tokio::test]
async fn what_a_webhook_makes_is_checked_like_what_a_client_sends() {
    let managers = json!([{"manager": "m", "operation": "Odd"}]);
    let hooks = Hooks::start(move |path, _| match path {
        "invalid" => add("/spec/phase", &json!("Dancing")),
        "label" => add("/metadata/labels/bad", &json!("not a label!")),
        "rename" => patch(&json!([{"op": "replace", "path": "/metadata/name", "value": "z"}])),
        "namespace" => add("/metadata/namespace", &json!("gold")),
        "type" => add("/spec/nodePool", &json!(7)),
        "absent" => patch(&json!([{"op": "remove", "path": "/spec/absent"}])),
        "owners" => add("/metadata/managedFields", &managers),
        "status" => add("/status", &json!({"phase": "Running"})),
        "delete" => add("/metadata/labels", &json!({})),
        _ => allow(),
    })
    .await;
    let of = |path: &str| {
        let selector = json!({"objectSelector": {"matchLabels": {"case": path}}});
        hooks.webhook(path, &selector)
    };
    let mut mutating: Vec<Value> =
        ["invalid", "label", "rename", "namespace", "type", "absent", "owners", "status"]
            .map(of)
            .into();
    let deleting = json!({"rules": [{
        "operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
    }]});
    mutating.push(hooks.webhook("delete", &deleting));
    let bed = Bed::new(&mutating, &[]).await;
    let create = |case: &str| labelled(case, &json!({"case": case}));
    for (case, code, word) in [
        ("invalid", 422, "spec.phase"),
        ("label", 422, "not a label!"),
        ("namespace", 400, "namespace of the provided object does not match"),
        ("type", 500, "what the patch makes cannot be read"),
        ("absent", 500, "failed to apply the patch of webhook \"absent.example.org\""),
    ] {
        let (found, message) = bed.refused("POST", PILOTS, &create(case)).await;
        assert_eq!(found, code, "{case}: {message}");
        assert!(message.contains(word), "{case}: {message}");
    }
    // A new object may get another name, an old one may not.
    let renamed = bed.write("POST", PILOTS, &create("rename")).await;
    assert_eq!(renamed["metadata"]["name"], "z");
    bed.write("POST", PILOTS, &pilot("kept")).await;
    let change = json!({"metadata": {"labels": {"case": "rename"}}});
    let (code, message) = bed.refused("PATCH", &format!("{PILOTS}/kept"), &change).await;
    assert_eq!((code, message.contains("does not match the name on the URL")), (400, true));

    let owners = bed.send("POST", PILOTS, &create("owners")).await;
    assert_eq!(owners.status, 201, "{owners:?}");
    let told = warnings(&owners);
    assert!(told[0].contains(".metadata.managedFields was in an invalid state"), "{told:?}");
    let entries = &owners.json()["metadata"]["managedFields"];
    assert_eq!(entries.as_array().map(Vec::len), Some(1), "{entries}");
    assert_eq!(entries[0]["operation"], "Update");

    let status = bed.write("POST", PILOTS, &create("status")).await;
    assert_eq!(status["status"]["phase"], Value::Null, "status has a way of its own");

    let (code, message) = bed.refused("DELETE", &format!("{PILOTS}/kept"), &Value::Null).await;
    let text = "attempted to modify the object, which is not supported for this operation";
    assert_eq!((code, message.contains(text)), (500, true), "{message}");
}

/// CVE-2021-25735: a webhook judges an update against the object that the update will replace.
#[tokio::test]
async fn a_patch_that_meets_another_write_is_judged_anew_against_what_that_left() {
    let (open, opened) = watch::channel(false);
    let hooks = Hooks::start(move |_, request| {
        let slow = request["object"]["metadata"]["labels"]["slow"] == "yes";
        let first = request["oldObject"]["metadata"]["labels"]["quick"].is_null();
        if slow && first { Say::Once(opened.clone(), json!({"allowed": true})) } else { allow() }
    })
    .await;
    let bed = Bed::new(&[], &[hooks.webhook("v", &json!({"timeoutSeconds": 30}))]).await;
    bed.write("POST", PILOTS, &pilot("a")).await;
    hooks.forget();
    let path = format!("{PILOTS}/a");
    let label = |name: &str| json!({"metadata": {"labels": {name: "yes"}}});
    let (slow, quick) = (label("slow"), label("quick"));
    let meanwhile = async {
        hooks.until_called("v", 1).await;
        let between = bed.write("PATCH", &path, &quick).await;
        open.send_replace(true);
        between
    };
    let (written, between) = tokio::join!(bed.write("PATCH", &path, &slow), meanwhile);
    assert_eq!(written["metadata"]["labels"], json!({"slow": "yes", "quick": "yes"}));
    let seen = hooks.seen();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[2].request()["oldObject"], between);
}
