//! Which webhooks are asked, and in which form.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bed, CONFIGURATIONS, PILOTS, labelled, pilot, put};
use crate::support::{
    hooks::{Hooks, allow},
    server::World,
    wait::until,
};

#[tokio::test]
async fn selectors_of_namespaces_and_of_objects_old_and_new_decide() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let world = World::new().await;
    let labels = json!({"metadata": {"labels": {"tier": "gold"}}});
    world.kube.put("/api/v1/namespaces", "gold", labels);
    let namespaces = json!({"namespaceSelector": {
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}],
    }});
    let objects = json!({"objectSelector": {"matchLabels": {"watched": "yes"}}});
    let validating = [hooks.webhook("gold", &namespaces), hooks.webhook("watched", &objects)];
    put(&world.kube, "validating", "hooks", &validating);
    let bed = Bed::in_world(world, &[]).await;
    let counts = || (hooks.seen_at("gold").len(), hooks.seen_at("watched").len());

    bed.write("POST", PILOTS, &pilot("a")).await;
    assert_eq!(counts(), (0, 0));
    bed.write("POST", &PILOTS.replace("/db/", "/gold/"), &pilot("a")).await;
    assert_eq!(counts(), (1, 0));
    bed.write("POST", PILOTS, &labelled("b", &json!({"watched": "yes"}))).await;
    assert_eq!(counts(), (1, 1));
    // The label is in the old object only, then in none, then in the new one only.
    let path = format!("{PILOTS}/b");
    let relabel = |value: Value| json!({"metadata": {"labels": {"watched": value, "n": "1"}}});
    bed.write("PATCH", &path, &relabel(Value::Null)).await;
    assert_eq!(counts(), (1, 2));
    bed.write("PATCH", &path, &json!({"metadata": {"labels": {"n": "2"}}})).await;
    assert_eq!(counts(), (1, 2));
    bed.write("PATCH", &path, &relabel(json!("yes"))).await;
    assert_eq!(counts(), (1, 3));
    bed.write("DELETE", &path, &Value::Null).await;
    assert_eq!(counts(), (1, 4));
}

#[tokio::test]
async fn an_equivalent_rule_is_asked_in_its_own_version() {
    let hooks = Hooks::start(|path, _| {
        if path == "older" {
            let add = json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "older"}}]);
            return crate::support::hooks::patch(&add);
        }
        allow()
    })
    .await;
    let rules = |policy: &str| {
        json!({"matchPolicy": policy, "rules": [{
            "operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["v1alpha1"],
            "resources": ["pilots"],
        }]})
    };
    let mutating = [hooks.webhook("older", &rules("Equivalent"))];
    let validating = [hooks.webhook("exact", &rules("Exact"))];
    let bed = Bed::new(&mutating, &validating).await;
    let created = bed.write("POST", PILOTS, &pilot("a")).await;
    let (labels, api) = (&created["metadata"]["labels"], &created["apiVersion"]);
    assert_eq!((labels, api), (&json!({"by": "older"}), &json!("navigator.jetstack.io/v1beta1")));
    assert_eq!(created["spec"]["nodePool"], "a", "nothing is lost on the way");
    let seen = hooks.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let request = seen[0].request();
    assert_eq!(request["object"]["apiVersion"], "navigator.jetstack.io/v1alpha1");
    let version = |field: &str| request[field]["version"].as_str().unwrap_or_default();
    let versions = ["kind", "resource", "requestKind", "requestResource"].map(version);
    assert_eq!(versions, ["v1alpha1", "v1alpha1", "v1beta1", "v1beta1"]);

    // Who writes in that version asks both.
    let mut older = pilot("b");
    older["apiVersion"] = json!("navigator.jetstack.io/v1alpha1");
    bed.write("POST", &PILOTS.replace("v1beta1", "v1alpha1"), &older).await;
    assert_eq!((hooks.seen_at("older").len(), hooks.seen_at("exact").len()), (2, 1));
}

/// CEL is not evaluated here: such a webhook is neither called nor forgotten.
#[tokio::test]
async fn a_webhook_with_conditions_fails_or_is_left_out_by_its_policy() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let of = |path: &str, policy: &str| {
        hooks.webhook(
            path,
            &json!({
                "failurePolicy": policy, "objectSelector": {"matchLabels": {"case": path}},
                "matchConditions": [{"name": "c", "expression": "true"}],
            }),
        )
    };
    let bed = Bed::new(&[], &[of("fail", "Fail"), of("ignore", "Ignore")]).await;
    let refused = bed.refused("POST", PILOTS, &labelled("f", &json!({"case": "fail"}))).await;
    let why = "has matchConditions, which this server does not evaluate";
    let text = format!(
        "pilots.navigator.jetstack.io \"f\" is forbidden: webhook \"fail.example.org\" {why}"
    );
    assert_eq!(refused, (403, text));
    let created = bed.send("POST", PILOTS, &labelled("i", &json!({"case": "ignore"}))).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert!(super::warnings(&created)[0].contains(why), "{created:?}");
    assert!(hooks.seen().is_empty());
    let name = "apiserver_admission_match_condition_evaluation_errors_total";
    assert_eq!(super::number(&bed.metrics().await, name, &["type=\"validating\""]), 2);
}

#[tokio::test]
async fn configurations_come_and_go_while_the_server_runs() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let world = World::new().await;
    world.kube.withhold("validatingwebhookconfigurations");
    put(&world.kube, "validating", "hooks", &[hooks.webhook("v", &json!({}))]);
    let server = world.start("store", &[]);
    let client = super::client(&server, &world.proxy());
    let bed = Bed { world, server, client };
    bed.server
        .until("all but webhooks is known", async || {
            let list = bed.send("GET", PILOTS, &Value::Null).await;
            if list.status == 200 { Ok(()) } else { Err(list.body) }
        })
        .await;
    assert_ne!(bed.server.stranger().get("/readyz").await.status, 200);
    let refused = bed.refused("POST", PILOTS, &pilot("a")).await;
    let text = "pilots.navigator.jetstack.io \"a\" is forbidden: not yet ready to handle request";
    assert_eq!(refused, (403, text.to_owned()));

    // Whoever asks early waits.
    let early = pilot("a");
    let write = bed.write("POST", PILOTS, &early);
    let release = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bed.world.kube.withhold("");
    };
    tokio::join!(write, release);
    assert_eq!(hooks.seen().len(), 1);

    bed.server.until_ready().await;
    bed.world.kube.delete(&format!("{CONFIGURATIONS}/validatingwebhookconfigurations/hooks"));
    let change = |number: usize| json!({"metadata": {"labels": {"n": number.to_string()}}});
    let (path, mut number) = (format!("{PILOTS}/a"), 0);
    until("the webhook is not asked any more", Duration::from_secs(60), async || {
        number += 1;
        hooks.forget();
        bed.write("PATCH", &path, &change(number)).await;
        if hooks.seen().is_empty() { Ok(()) } else { Err("asked".to_owned()) }
    })
    .await;
    put(&bed.world.kube, "mutating", "late", &[hooks.webhook("m", &json!({}))]);
    until("a new webhook is asked", Duration::from_secs(60), async || {
        number += 1;
        bed.write("PATCH", &path, &change(number)).await;
        if hooks.seen_at("m").is_empty() { Err("not asked".to_owned()) } else { Ok(()) }
    })
    .await;
}
