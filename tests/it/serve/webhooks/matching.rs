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

    // A write in that version asks both webhooks.
    let mut older = pilot("b");
    older["apiVersion"] = json!("navigator.jetstack.io/v1alpha1");
    bed.write("POST", &PILOTS.replace("v1beta1", "v1alpha1"), &older).await;
    assert_eq!((hooks.seen_at("older").len(), hooks.seen_at("exact").len()), (2, 1));
}

/// A webhook for objects whose label `case` is its path, with these conditions.
fn conditional(hooks: &Hooks, path: &str, policy: &str, expressions: &[&str]) -> Value {
    let conditions = expressions.iter().enumerate();
    let conditions: Vec<Value> = conditions
        .map(|(at, expression)| json!({"name": format!("c{at}"), "expression": expression}))
        .collect();
    let more = json!({
        "failurePolicy": policy, "objectSelector": {"matchLabels": {"case": path}},
        "matchConditions": conditions,
    });
    hooks.webhook(path, &more)
}

fn case(name: &str, case: &str) -> Value {
    labelled(name, &json!({"case": case}))
}

#[tokio::test]
async fn conditions_say_who_is_called_and_errors_of_them_count_by_the_policy() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let of = |path: &str, policy: &str, all: &[&str]| conditional(&hooks, path, policy, all);
    let missing = "object.spec.missing == 'x'";
    let authorizer = "authorizer.group('').resource('pods').check('get').allowed()";
    let validating = [
        of(
            "holds",
            "Fail",
            &[
                "request.operation != 'DELETE'",
                "!('system:nodes' in request.userInfo.groups)",
                "request.userInfo.username == 'jane' && request.userInfo.extra.tenant[0] == 'blue'",
                "oldObject == null && object.metadata.?labels['case'].orValue('') == 'holds'",
                "request.resource.resource.matches('^pilots$') && request.namespace == 'db'",
                "request.options.kind == 'CreateOptions' && !request.dryRun",
            ],
        ),
        of("excluded", "Fail", &["true", "object.spec.nodePool.startsWith('b')"]),
        of("decided", "Fail", &[missing, "request.name == 'another'"]),
        of("failing", "Fail", &["true", missing]),
        of("ignored", "Ignore", &[missing]),
        of("unknown", "Fail", &[authorizer]),
        of("unread", "Fail", &["object.spec.nodePool =="]),
        of("several", "Fail", &["object.metadata.name", missing]),
    ];
    let mutating = [of("changing", "Fail", &[missing, "object.spec.nodePool == 'a'"])];
    let bed = Bed::new(&mutating, &validating).await;
    for (name, called) in [("holds", 1), ("excluded", 0), ("decided", 0), ("ignored", 0)] {
        bed.write("POST", PILOTS, &case(name, name)).await;
        assert_eq!(hooks.seen_at(name).len(), called, "{name}");
    }
    let no_such_key = format!("expression '{missing}' resulted in error: No such key: missing");
    for (name, why) in [
        ("failing", no_such_key.clone()),
        ("changing", no_such_key.clone()),
        (
            "unknown",
            format!(
                "expression '{authorizer}' resulted in error: Undeclared reference to 'authorizer'"
            ),
        ),
        (
            "several",
            format!(
                "[expression 'object.metadata.name' resulted in error: it is string, no bool, \
                 {no_such_key}]"
            ),
        ),
    ] {
        let text = format!("pilots.navigator.jetstack.io {name:?} is forbidden: {why}");
        assert_eq!(bed.refused("POST", PILOTS, &case(name, name)).await, (403, text));
    }
    let (code, text) = bed.refused("POST", PILOTS, &case("unread", "unread")).await;
    let begins = "pilots.navigator.jetstack.io \"unread\" is forbidden: compilation error: \
                  compilation failed: ERROR: <input>:1:";
    assert!(code == 403 && text.starts_with(begins), "{text}");
    assert_eq!(hooks.seen().len(), 1, "{:?}", hooks.seen());

    let metrics = bed.metrics().await;
    let count = |name: &str, path: &str, sort: &str| {
        let name = format!("apiserver_admission_match_condition_{name}_total");
        let labels = [
            format!("name=\"{path}.example.org\""),
            format!("type=\"{sort}\""),
            "kind=\"webhook\"".to_owned(),
            "operation=\"CREATE\"".to_owned(),
        ];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        super::number(&metrics, &name, &labels)
    };
    for (path, sort, errors, exclusions) in [
        ("holds", "validating", 0, 0),
        ("excluded", "validating", 0, 1),
        ("decided", "validating", 1, 1),
        ("failing", "validating", 1, 0),
        ("ignored", "validating", 1, 1),
        ("several", "validating", 2, 0),
        ("changing", "admit", 1, 0),
    ] {
        let found = (count("evaluation_errors", path, sort), count("exclusions", path, sort));
        assert_eq!(found, (errors, exclusions), "{path}: {metrics}");
    }
}

#[tokio::test]
async fn conditions_see_both_objects_in_the_version_that_the_webhook_is_asked_in() {
    let hooks = Hooks::start(|path, _| {
        if path == "changing" {
            let add = json!([{"op": "add", "path": "/metadata/labels/by", "value": "changing"}]);
            return crate::support::hooks::patch(&add);
        }
        allow()
    })
    .await;
    let conditional = |path: &str, expression: &str, older: bool| {
        let mut more = json!({"matchConditions": [{"name": "c", "expression": expression}]});
        if older {
            more["rules"] = json!([{
                "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["v1alpha1"],
                "resources": ["pilots"],
            }]);
        }
        hooks.webhook(path, &more)
    };
    let mutating = [conditional(
        "changing",
        "request.operation == 'CREATE' && has(object.metadata.labels)",
        false,
    )];
    let validating = [
        conditional(
            "relabelled",
            "oldObject != null && object != null && object.metadata.labels != oldObject.metadata.labels",
            false,
        ),
        conditional("deleted", "object == null && oldObject.metadata.labels['case'] == 'x'", false),
        conditional(
            "older",
            "object != null && object.apiVersion.endsWith('/v1alpha1') && request.kind.version == 'v1alpha1' && request.requestKind.version == 'v1beta1'",
            true,
        ),
        conditional("newer", "object != null && object.apiVersion.endsWith('/v1beta1')", true),
        // What the mutating webhook changed is seen, too.
        conditional(
            "changed",
            "object != null && object.metadata.labels.?by == optional.of('changing')",
            false,
        ),
        conditional("status", "request.?subResource.orValue('') == 'status'", false),
    ];
    let bed = Bed::new(&mutating, &validating).await;
    let mut seen = Vec::new();
    let path = format!("{PILOTS}/a");
    for (method, path, body) in [
        ("POST", PILOTS, case("a", "x")),
        ("PATCH", &path, json!({"metadata": {"annotations": {"a": "b"}}})),
        ("PATCH", &path, json!({"metadata": {"labels": {"by": null}}})),
        ("PATCH", &format!("{path}/status"), json!({"status": {"phase": "Running"}})),
        ("DELETE", &path, Value::Null),
    ] {
        hooks.forget();
        bed.write(method, path, &body).await;
        let mut paths: Vec<String> =
            hooks.seen().into_iter().map(|seen| seen.path.replace('/', "")).collect();
        paths.sort();
        seen.push(paths.join(" "));
    }
    assert_eq!(
        seen,
        ["changed changing older", "changed older", "older relabelled", "status", "deleted",]
    );
}

/// A user who may write an object cannot keep the server busy with conditions.
#[tokio::test]
async fn conditions_that_would_take_too_long_are_errors() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let loops =
        "object.metadata.annotations.all(x, object.metadata.annotations.all(y, x != y + '!'))";
    let of = |path: &str, policy: &str| conditional(&hooks, path, policy, &[loops]);
    let bed = Bed::new(&[], &[of("fail", "Fail"), of("ignore", "Ignore")]).await;
    let object = |name: &str, of: &str, entries: usize| {
        let mut object = case(name, of);
        for at in 0..entries {
            object["metadata"]["annotations"][format!("example.org/{at}")] = json!("x");
        }
        object
    };
    bed.write("POST", PILOTS, &object("small", "fail", 10)).await;
    assert_eq!(hooks.seen_at("fail").len(), 1);
    let (code, text) = bed.refused("POST", PILOTS, &object("large", "fail", 8_000)).await;
    assert_eq!(code, 403, "{text}");
    let ends = "resulted in error: validation failed due to running out of cost budget, no \
                further validation rules will be run";
    assert!(text.ends_with(ends), "{text}");
    hooks.forget();
    bed.write("POST", PILOTS, &object("large", "ignore", 8_000)).await;
    assert!(hooks.seen().is_empty(), "{:?}", hooks.seen());
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

    // A request that comes early waits.
    let early = pilot("a");
    let write = bed.write("POST", PILOTS, &early);
    let release = async {
        // That a request waits shows nowhere before its answer: one that came only after this would
        // pass as well.
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
