//! Admission webhooks: the real binary, a scripted kube-apiserver that has configurations, and a
//! real HTTPS server that keeps what it was asked.

mod failures;
mod matching;
mod mutating;
mod time;

use http::Request;
use serde_json::{Value, json};

use crate::support::{
    client::{Client, Reply},
    hooks::{Hooks, Say, allow, patch},
    kube::Kube,
    pki::Identity,
    server::{PATIENCE, Server, World, brief, json_lines},
    wait::until,
};

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

/// A server among webhooks, and a client who may do everything.
struct Bed {
    world: World,
    server: Server,
    client: Client,
}

fn put(kube: &Kube, plural: &str, name: &str, webhooks: &[Value]) {
    let configuration = json!({"webhooks": webhooks});
    kube.put(&format!("{CONFIGURATIONS}/{plural}webhookconfigurations"), name, configuration);
}

fn pilot(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": name}, "spec": {"nodePool": "a"},
    })
}

fn labelled(name: &str, labels: &Value) -> Value {
    let mut pilot = pilot(name);
    pilot["metadata"]["labels"] = labels.clone();
    pilot
}

fn client(server: &Server, proxy: &Identity) -> Client {
    Client::new(server.address, Some(proxy), None)
}

impl Bed {
    /// A server with one configuration of each sort, where there are webhooks for it.
    async fn new(mutating: &[Value], validating: &[Value]) -> Self {
        let world = World::new().await;
        for (plural, webhooks) in [("mutating", mutating), ("validating", validating)] {
            if !webhooks.is_empty() {
                put(&world.kube, plural, "hooks", webhooks);
            }
        }
        Self::in_world(world, &[]).await
    }

    async fn in_world(world: World, flags: &[&str]) -> Self {
        let server = world.start("store", flags);
        server.until_ready().await;
        let client = client(&server, &world.proxy());
        Self { world, server, client }
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Reply {
        let content_type = match method {
            "PATCH" if body["apiVersion"].is_string() => "application/apply-patch+yaml",
            "PATCH" if body.is_array() => "application/json-patch+json",
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("x-remote-user", "jane")
            .header("x-remote-group", "system:masters")
            .header("x-remote-extra-tenant", "blue");
        self.client.send(request.body(body).unwrap()).await.unwrap()
    }

    /// The object that was written, or a failure.
    async fn write(&self, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.send(method, path, body).await;
        assert!(reply.status < 300, "{method} {path}: {}", brief(&reply));
        reply.json()
    }

    /// Code and message of a request that is refused.
    async fn refused(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let reply = self.send(method, path, body).await;
        assert!(reply.status >= 400, "{method} {path}: {}", brief(&reply));
        (reply.status, reply.json()["message"].as_str().unwrap_or_default().to_owned())
    }

    async fn metrics(&self) -> String {
        self.send("GET", "/metrics", &Value::Null).await.body
    }
}

fn warnings(reply: &Reply) -> Vec<String> {
    let texts = reply.headers.get_all("warning").into_iter();
    texts.map(|text| text.to_str().unwrap().to_owned()).collect()
}

/// A number of the metrics page.
fn number(metrics: &str, name: &str, labels: &[&str]) -> u64 {
    let found = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let of = |line: &str| labels.iter().all(|label| line.contains(label));
    let numbers = found.filter(|line| of(line)).filter_map(|line| line.rsplit(' ').next());
    numbers.map(|text| text.parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn every_write_asks_once_and_no_read_does() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let bed = Bed::new(&[], &[hooks.webhook("all", &json!({}))]).await;
    let at = |name: &str| format!("{PILOTS}/{name}");

    bed.write("POST", &format!("{PILOTS}?fieldManager=me"), &pilot("a")).await;
    let mut object = bed.write("GET", &at("a"), &Value::Null).await;
    object["metadata"]["labels"] = json!({"put": "1"});
    let put = bed.write("PUT", &at("a"), &object).await;
    bed.write("PATCH", &at("a"), &json!({"metadata": {"labels": {"merge": "1"}}})).await;
    let json_patch = json!([{"op": "add", "path": "/metadata/labels/json", "value": "1"}]);
    bed.write("PATCH", &at("a"), &json_patch).await;
    let status = json!({"status": {"phase": "Running"}});
    bed.write("PATCH", &format!("{}/status", at("a")), &status).await;
    let apply = |name: &str| format!("{}?fieldManager=applier", at(name));
    bed.write("PATCH", &apply("a"), &labelled("a", &json!({"applied": "1"}))).await;
    bed.write("PATCH", &apply("b"), &labelled("b", &json!({"applied": "1"}))).await;
    bed.write("GET", PILOTS, &Value::Null).await;
    let foreground = json!({"propagationPolicy": "Background"});
    bed.write("DELETE", &at("a"), &foreground).await;
    bed.write("POST", PILOTS, &pilot("c")).await;
    bed.write("DELETE", PILOTS, &Value::Null).await;

    let seen = hooks.seen();
    let shown: Vec<String> = seen
        .iter()
        .map(|seen| {
            let request = seen.request();
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let name = |object: &Value| text(&object["metadata"]["name"]);
            format!(
                "{} {} {} new:{} old:{} {}",
                text(&request["operation"]),
                text(&request["name"]),
                text(&request["subResource"]),
                name(&request["object"]),
                name(&request["oldObject"]),
                text(&request["options"]["kind"]),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "CREATE a - new:a old:- CreateOptions",
            "UPDATE a - new:a old:a UpdateOptions",
            "UPDATE a - new:a old:a UpdateOptions",
            "UPDATE a - new:a old:a UpdateOptions",
            "UPDATE a status new:a old:a UpdateOptions",
            "UPDATE a - new:a old:a UpdateOptions",
            "CREATE b - new:b old:- CreateOptions",
            "DELETE a - new:- old:a DeleteOptions",
            "CREATE c - new:c old:- CreateOptions",
            "DELETE b - new:- old:b DeleteOptions",
            "DELETE c - new:- old:c DeleteOptions",
        ]
    );

    let created = &seen[0];
    assert_eq!(created.query, "timeout=10s");
    assert!(!created.headers.contains_key("authorization"), "{:?}", created.headers);
    assert_eq!(created.headers["content-type"], "application/json");
    let review = &created.review;
    assert_eq!(
        (&review["apiVersion"], &review["kind"]),
        (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
    );
    let request = created.request();
    let group = "navigator.jetstack.io";
    let kind = json!({"group": group, "version": "v1beta1", "kind": "Pilot"});
    let resource = json!({"group": group, "version": "v1beta1", "resource": "pilots"});
    assert_eq!((&request["kind"], &request["requestKind"]), (&kind, &kind));
    assert_eq!((&request["resource"], &request["requestResource"]), (&resource, &resource));
    assert_eq!((&request["namespace"], &request["dryRun"]), (&json!("db"), &json!(false)));
    assert_eq!(request["oldObject"], Value::Null);
    assert_eq!(
        request["userInfo"],
        json!({
            "username": "jane", "groups": ["system:masters", "system:authenticated"],
            "extra": {"tenant": ["blue"]},
        })
    );
    assert_eq!(
        request["options"],
        json!({
            "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me",
            "fieldValidation": "Warn",
        })
    );
    let object = &request["object"];
    assert_eq!((&object["kind"], &object["spec"]["phase"]), (&json!("Pilot"), &json!("Running")));
    // A validating webhook sees what will be stored.
    assert!(object["metadata"]["uid"].is_string(), "{object}");
    assert_eq!(seen[2].request()["oldObject"], put, "the old object is the stored one");
    assert_eq!(seen[4].request()["requestSubResource"], "status");
    assert_eq!(seen[7].request()["options"]["propagationPolicy"], "Background");
    let uids: std::collections::BTreeSet<_> =
        seen.iter().map(|seen| seen.request()["uid"].to_string()).collect();
    assert_eq!(uids.len(), seen.len(), "each question has a uid of its own");

    let metrics = bed.metrics().await;
    let requests = "apiserver_admission_webhook_request_total";
    let labels = ["name=\"all.example.org\"", "type=\"validating\"", "code=\"200\""];
    assert_eq!(number(&metrics, requests, &labels), 11, "{metrics}");
    for (name, labels) in [
        (
            "apiserver_admission_webhook_admission_duration_seconds_count",
            vec!["operation=\"CREATE\""],
        ),
        (
            "apiserver_admission_controller_admission_duration_seconds_count",
            vec!["name=\"NamespaceLifecycle\"", "operation=\"CREATE\""],
        ),
        (
            "apiserver_admission_step_admission_duration_seconds_count",
            vec!["type=\"validate\"", "operation=\"CREATE\""],
        ),
    ] {
        assert_eq!(number(&metrics, name, &labels), 3, "{name}: {metrics}");
    }
}

#[tokio::test]
async fn a_denial_is_told_in_the_webhooks_words_and_leaves_nothing() {
    let hooks = Hooks::start(|path, _| {
        Say::Response(match path {
            "plain" => json!({"allowed": false}),
            "words" => json!({
                "allowed": false, "warnings": ["mind the gap"],
                "status": {
                    "code": 422, "reason": "Invalid", "message": "no",
                    "details": {"causes": [{"field": "spec.x", "message": "odd"}]},
                },
            }),
            _ => json!({"allowed": true, "warnings": ["first", "second"]}),
        })
    })
    .await;
    let of = |path: &str| {
        let selector = json!({"objectSelector": {"matchLabels": {"case": path}}});
        hooks.webhook(path, &selector)
    };
    let bed = Bed::new(&[of("words")], &[of("plain"), of("fine")]).await;

    let plain = bed.send("POST", PILOTS, &labelled("p", &json!({"case": "plain"}))).await;
    let told = plain.json();
    let text = "admission webhook \"plain.example.org\" denied the request without explanation";
    assert_eq!((plain.status, &told["message"]), (400, &json!(text)));
    assert_eq!(told["status"], "Failure");

    let words = bed.send("POST", PILOTS, &labelled("w", &json!({"case": "words"}))).await;
    let told = words.json();
    let text = "admission webhook \"words.example.org\" denied the request: no";
    assert_eq!((words.status, &told["message"]), (422, &json!(text)));
    assert_eq!(told["reason"], "Invalid");
    assert_eq!(told["details"]["causes"][0]["field"], "spec.x");
    assert_eq!(warnings(&words), ["299 - \"mind the gap\""]);

    let fine = bed.send("POST", PILOTS, &labelled("f", &json!({"case": "fine"}))).await;
    assert_eq!(fine.status, 201, "{}", brief(&fine));
    assert_eq!(warnings(&fine), ["299 - \"first\"", "299 - \"second\""]);
    let kept = bed.write("GET", PILOTS, &Value::Null).await;
    let names = kept["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["f"]);

    let metrics = bed.metrics().await;
    let rejections = "apiserver_admission_webhook_rejection_count";
    for (sort, code) in [("validating", "400"), ("admit", "422")] {
        let labels =
            [format!("type={sort:?}"), format!("rejection_code={code:?}"), "no_error".to_owned()];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(number(&metrics, rejections, &labels), 1, "{metrics}");
    }
}

#[tokio::test]
async fn a_dry_run_asks_only_webhooks_that_leave_no_trace() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let of = |path: &str, effects: &str| {
        let selector = json!({
            "sideEffects": effects, "objectSelector": {"matchLabels": {"case": path}},
        });
        hooks.webhook(path, &selector)
    };
    let validating = [of("some", "Some"), of("none", "None"), of("real", "NoneOnDryRun")];
    let bed = Bed::new(&[of("changes", "Unknown")], &validating).await;
    let path = format!("{PILOTS}?dryRun=All");
    for case in ["some", "changes"] {
        let refused = bed.refused("POST", &path, &labelled("a", &json!({"case": case}))).await;
        let text = format!("admission webhook \"{case}.example.org\" does not support dry run");
        assert_eq!(refused, (400, text));
    }
    for case in ["none", "real"] {
        bed.write("POST", &path, &labelled("a", &json!({"case": case}))).await;
    }
    let seen = hooks.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    for seen in seen {
        assert_eq!(seen.request()["dryRun"], true);
        assert_eq!(seen.request()["options"]["dryRun"], json!(["All"]));
    }
    let kept = bed.write("GET", PILOTS, &Value::Null).await;
    assert_eq!(kept["items"], json!([]));
    // Without a dry run, a webhook with side effects is called.
    bed.write("POST", PILOTS, &labelled("a", &json!({"case": "some"}))).await;
    assert_eq!(hooks.seen_at("some").len(), 1);
}

#[tokio::test]
async fn plugins_can_be_turned_off_by_name() {
    let hooks = Hooks::start(|_, _| allow()).await;
    let world = World::new().await;
    for sort in ["mutating", "validating"] {
        put(&world.kube, sort, "hooks", &[hooks.webhook(sort, &json!({}))]);
    }
    let off = "--disable-admission-plugins=ValidatingAdmissionWebhook,NamespaceLifecycle";
    let bed = Bed::in_world(world, &[off]).await;
    let elsewhere = PILOTS.replace("/db/", "/nowhere/");
    bed.write("POST", &elsewhere, &pilot("a")).await;
    assert_eq!((hooks.seen_at("mutating").len(), hooks.seen_at("validating").len()), (1, 0));
    let unknown = "--enable-admission-plugins=NamespaceLifecycle,PodSecurity";
    let mut args = bed.world.args("other");
    args.push(unknown.to_owned());
    let (code, text) = crate::support::server::run(&args);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("there is no plugin \"PodSecurity\""), "{text}");
}

#[tokio::test]
async fn the_trail_says_what_webhooks_did() {
    let hooks = Hooks::start(|path, _| match path {
        "labels" => patch(&json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}])),
        "notes" => Say::Response(json!({"allowed": true, "auditAnnotations": {"why": "because"}})),
        "refuses" => Say::Response(json!({"allowed": false, "auditAnnotations": {"no": "never"}})),
        _ => Say::Other(http::StatusCode::BAD_GATEWAY, Vec::new()),
    })
    .await;
    let world = World::new().await;
    let refused = json!({"objectSelector": {"matchLabels": {"bad": "yes"}}});
    let ignored = json!({"failurePolicy": "Ignore"});
    let validating = [
        hooks.webhook("notes", &json!({})),
        hooks.webhook("away", &ignored),
        hooks.webhook("refuses", &refused),
    ];
    put(&world.kube, "mutating", "m", &[hooks.webhook("labels", &json!({
        "rules": [{
            "operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
        }],
    }))]);
    put(&world.kube, "validating", "v", &validating);
    let (trail, policy) = (world.path("audit.log"), world.path("policy"));
    let rules = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Request", "verbs": ["create"]}, {"level": "Metadata"}],
    });
    std::fs::write(&policy, rules.to_string()).unwrap();
    let flags = ["--audit-log-path", &trail, "--audit-policy-file", &policy];
    let bed = Bed::in_world(world, &flags).await;
    bed.write("POST", PILOTS, &pilot("a")).await;
    let bad = json!({"metadata": {"labels": {"bad": "yes"}}});
    bed.refused("PATCH", &format!("{PILOTS}/a"), &bad).await;
    let line = async |verb: &str| {
        until(verb, PATIENCE, async || {
            let lines = json_lines(&trail);
            let found = lines.iter().find(|line| line["verb"] == verb);
            found.cloned().ok_or_else(|| format!("{lines:#?}"))
        })
        .await
    };
    let created = line("create").await;
    let annotation = |key: &str| created["annotations"][key].as_str().unwrap_or_default();
    assert_eq!(annotation("notes.example.org/why"), "because", "{created:#}");
    let domain = "webhook.admission.k8s.io/round_0_index";
    let open = annotation(&format!("failed-open.validating.{domain}_1"));
    assert_eq!(open, "away.example.org", "{created:#}");
    let parsed = |key: &str| serde_json::from_str::<Value>(annotation(key)).unwrap_or_default();
    assert_eq!(
        parsed(&format!("mutation.{domain}_0")),
        json!({"configuration": "m", "webhook": "labels.example.org", "mutated": true})
    );
    assert_eq!(parsed(&format!("patch.{domain}_0"))["patch"][0]["value"], json!({"a": "b"}));

    let patched = line("patch").await;
    let annotations = &patched["annotations"];
    assert_eq!(annotations["refuses.example.org/no"], "never", "{patched:#}");
    assert_eq!(annotations[format!("patch.{domain}_0")], Value::Null, "{patched:#}");
}
