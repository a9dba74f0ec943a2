//! Traces: the real binary, and a real receiver of OTLP over gRPC.

mod collector;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use http::Request;
use nix::sys::signal::Signal;
use serde_json::json;

use self::collector::{Collector, Seen};
use crate::{
    storage::etcd_server,
    support::{
        client::{Client, Reply},
        hooks::{Hooks, Say, allow},
        server::{Server, World, brief, run},
    },
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
const CREATE: &str = "POST /apis/navigator.jetstack.io/v1beta1/namespaces/{:namespace}/pilots";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

struct Bed {
    world: World,
    server: Server,
    client: Client,
}

/// The flag that names a file which sends spans there.
fn flag(world: &World, endpoint: SocketAddr, rest: &str) -> String {
    let path = world.path("traces.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n\
         endpoint: {endpoint}\n{rest}\n"
    );
    std::fs::write(&path, text).unwrap();
    format!("--tracing-config-file={path}")
}

impl Bed {
    async fn new(world: World, endpoint: SocketAddr, rest: &str) -> Self {
        let server = world.start("store", &[&flag(&world, endpoint, rest)]);
        server.until_ready().await;
        let client = Client::new(server.address, Some(&world.proxy()), None);
        Self { world, server, client }
    }

    async fn create(&self, name: &str, (user, group): (&str, &str), parent: &str) -> Reply {
        let mut request = Request::post(PILOTS)
            .header("user-agent", "kubectl/v1.34.0")
            .header("audit-id", format!("create-{name}"))
            .header("x-remote-user", user)
            .header("x-remote-group", group);
        if !parent.is_empty() {
            request = request.header("traceparent", parent);
        }
        self.client.send(request.body(pilot(name)).unwrap()).await.unwrap()
    }

    /// By somebody who may do everything.
    async fn created(&self, name: &str, parent: &str) {
        let reply = self.create(name, ("admin", "system:masters"), parent).await;
        assert_eq!(reply.status, 201, "{}", brief(&reply));
    }

    /// Waits until so many requests for Pilots are told with all that was done for them. At the end
    /// the server has three seconds for what is left, and a busy machine needs them to connect.
    async fn until_told(&self, collector: &Collector, requests: usize) {
        self.server
            .until("the spans of all requests", async || {
                let seen = collector.seen();
                let of_pilots = |span: &&Seen| span.kind == 2 && span.name.contains("/pilots");
                let told = seen.iter().filter(of_pilots).count();
                if told >= requests { Ok(()) } else { Err(format!("{told}: {seen:#?}")) }
            })
            .await;
    }

    /// Ends the server, which sends what it still has.
    async fn end(&mut self) {
        self.server.signal(Signal::SIGTERM);
        assert!(self.server.ended().await.success(), "{}", self.server.log());
    }
}

fn pilot(name: &str) -> String {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": name}, "spec": {"nodePool": "a"},
    })
    .to_string()
}

fn parent(is_sampled: bool) -> String {
    format!("00-{TRACE}-{SPAN}-0{}", u8::from(is_sampled))
}

fn only<'a>(spans: &'a [Seen], name: &str) -> &'a Seen {
    let mut found = spans.iter().filter(|span| span.name == name);
    let (first, second) = (found.next(), found.next());
    assert!(second.is_none(), "two of {name}: {spans:#?}");
    first.unwrap_or_else(|| panic!("no {name}: {spans:#?}"))
}

#[tokio::test]
async fn a_sampled_trace_goes_on_through_admission_to_the_store_and_ends_with_the_server() {
    let (collector, hooks) = (Collector::start().await, Hooks::start(|_, _| allow()).await);
    let world = World::new().await;
    let admission = "/apis/admissionregistration.k8s.io/v1";
    for sort in ["mutating", "validating"] {
        let webhooks = json!({"webhooks": [hooks.webhook(sort, &json!({}))]});
        world.kube.put(&format!("{admission}/{sort}webhookconfigurations"), "hooks", webhooks);
    }
    let mut bed = Bed::new(world, collector.address, "").await;
    bed.created("a", &parent(true)).await;
    bed.until_told(&collector, 1).await;
    bed.end().await;

    let expected = format!(
        "{CREATE}\n  Create\n    Call mutating webhook\n      HTTP POST\n    \
         Call validating webhook\n      HTTP POST\n    Create embedded\n"
    );
    assert_eq!(collector.tree(TRACE), expected);
    let spans = collector.seen();
    assert!(spans.iter().all(|span| span.trace == TRACE && !span.has_failed), "{spans:#?}");
    let says = |span: &Seen, expected: &[(&str, &str)]| {
        for (key, value) in expected {
            let found = span.attributes.get(*key).map(String::as_str);
            assert_eq!(found, Some(*value), "{key} of {span:#?}");
        }
    };
    let server = only(&spans, CREATE);
    assert_eq!((server.parent.as_str(), server.kind), (SPAN, 2), "{server:#?}");
    says(
        server,
        &[
            ("http.request.method", "POST"),
            ("http.target", PILOTS),
            ("url.path", PILOTS),
            ("http.response.status_code", "201"),
            ("audit-id", "create-a"),
            ("user_agent.original", "kubectl/v1.34.0"),
            ("network.peer.address", "127.0.0.1"),
        ],
    );
    assert_eq!(server.resource["service.name"], "navigator-apiserver");
    let handler = only(&spans, "Create");
    says(
        handler,
        &[
            ("audit-id", "create-a"),
            ("api-group", "navigator.jetstack.io"),
            ("api-version", "v1beta1"),
            ("resource", "pilots"),
            ("namespace", "db"),
            ("scope", "namespace"),
            ("verb", "create"),
            ("user-agent", "kubectl/v1.34.0"),
        ],
    );
    assert!(handler.nanoseconds <= server.nanoseconds, "{spans:#?}");
    let stored = only(&spans, "Create embedded");
    let key = "navigator.jetstack.io/pilots/db/a";
    says(stored, &[("key", key), ("resource", "pilots"), ("audit-id", "create-a")]);
    let asked = only(&spans, "Call validating webhook");
    says(asked, &[("webhook", "validating.example.org"), ("operation", "CREATE")]);
    // A webhook sees whose child its own work is.
    for seen in hooks.seen() {
        let sent = seen.headers["traceparent"].to_str().unwrap().to_owned();
        let call = spans.iter().find(|span| sent == format!("00-{TRACE}-{}-01", span.id));
        let call = call.unwrap_or_else(|| panic!("{sent} among {spans:#?}"));
        assert_eq!((call.name.as_str(), call.kind), ("HTTP POST", 3));
        says(call, &[("http.response.status_code", "200")]);
        assert!(call.attributes["url.full"].ends_with(&seen.path), "{call:#?}");
    }
}

/// Upstream's words, so that what looks for them in the traces of kube-apiserver finds ours, too.
#[tokio::test]
async fn handlers_and_the_store_are_named_as_upstream_names_them() {
    let (collector, etcd) = (Collector::start().await, etcd_server::Server::start());
    let world = World::new().await;
    let flag = flag(&world, collector.address, "");
    let flags = ["--store=etcd", "--etcd-servers", etcd.url(), &flag];
    let server = world.start("unused", &flags);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    let mut bed = Bed { world, server, client };
    let labels = r#"{"metadata": {"labels": {"a": "b"}}}"#;
    let rows = [
        ("POST", "", pilot("a"), "Create", "Create etcd3"),
        ("PATCH", "/a", labels.to_owned(), "Patch", "GuaranteedUpdate etcd3"),
        ("PUT", "/a", "as it was".to_owned(), "Update", "GuaranteedUpdate etcd3"),
        ("GET", "/a", String::new(), "Get", ""),
        ("GET", "?limit=1", String::new(), "List", "GetCurrentResourceVersion etcd3"),
        ("GET", "?watch=true&timeoutSeconds=1", String::new(), "List", ""),
        ("DELETE", "/a", String::new(), "Delete", "Delete etcd3"),
        ("DELETE", "", String::new(), "Delete", ""),
    ];
    let mut last = json!({});
    for (number, (method, path, body, ..)) in rows.iter().enumerate() {
        let mut body = body.clone();
        if *method == "PUT" {
            last["metadata"]["labels"] = json!({"a": "c"});
            body = last.to_string();
        }
        let kind = if *method == "PATCH" { "merge-patch+json" } else { "json" };
        let request = Request::builder()
            .method(*method)
            .uri(format!("{PILOTS}{path}"))
            .header("content-type", format!("application/{kind}"))
            .header("x-remote-user", "admin")
            .header("x-remote-group", "system:masters")
            .header("traceparent", format!("00-{:032x}-{SPAN}-01", number + 1));
        let reply = bed.client.send(request.body(body).unwrap()).await.unwrap();
        assert!(reply.status < 300, "{method} {path}: {}", brief(&reply));
        last = serde_json::from_str(&reply.body).unwrap_or_default();
    }
    bed.until_told(&collector, rows.len()).await;
    bed.end().await;
    for (number, (method, path, _, handler, store)) in rows.iter().enumerate() {
        let tree = collector.tree(&format!("{:032x}", number + 1));
        let mut lines = tree.lines();
        assert!(lines.next().is_some_and(|line| line.starts_with(method)), "{path}: {tree}");
        assert_eq!(lines.next().map(str::trim), Some(*handler), "{method} {path}: {tree}");
        assert!(lines.any(|line| line.trim() == *store) || store.is_empty(), "{path}: {tree}");
    }
    let watch = collector.tree(&format!("{:032x}", 6));
    let watches = collector.seen().into_iter().filter(|span| watch.starts_with(&span.name));
    let longest = watches.map(|span| span.nanoseconds).max().unwrap_or_default();
    assert!(longest >= 1_000_000_000, "a watch's span ends with the watch: {longest}\n{watch}");
}

#[tokio::test]
async fn without_a_rate_only_what_trusted_callers_sample_is_recorded() {
    let collector = Collector::start().await;
    let world = World::new().await;
    for verb in ["create", "get"] {
        world.kube.allow("jane", verb, "pilots");
    }
    let mut bed = Bed::new(world, collector.address, "samplingRatePerMillion: 0").await;
    bed.created("a", "").await;
    bed.created("b", &parent(false)).await;
    let reply = bed.create("c", ("jane", "system:authenticated"), &parent(true)).await;
    assert_eq!(reply.status, 201, "{}", brief(&reply));
    bed.created("d", "00-no-parent-01").await;
    bed.created("e", &parent(true)).await;
    // Who asks is not known, so there is no span.
    let stranger = Request::get(PILOTS).header("traceparent", parent(true));
    let stranger = stranger.header("authorization", "Bearer unknown").body(String::new()).unwrap();
    assert_eq!(bed.server.stranger().send(stranger).await.unwrap().status, 401);
    bed.until_told(&collector, 1).await;
    bed.end().await;
    let spans = collector.seen();
    let ids: Vec<_> = spans.iter().map(|span| span.attributes["audit-id"].as_str()).collect();
    assert!(!ids.is_empty() && ids.iter().all(|id| *id == "create-e"), "{spans:#?}");
}

#[tokio::test]
async fn anybody_else_gets_a_trace_of_their_own_which_names_the_one_they_came_with() {
    let collector = Collector::start().await;
    let world = World::new().await;
    world.kube.allow("jane", "create", "pilots");
    let mut bed = Bed::new(world, collector.address, "samplingRatePerMillion: 1000000").await;
    let reply = bed.create("a", ("jane", "system:authenticated"), &parent(true)).await;
    assert_eq!(reply.status, 201, "{}", brief(&reply));
    let reply = bed.create("b", ("bob", "system:authenticated"), "").await;
    assert_eq!(reply.status, 403, "{}", brief(&reply));
    bed.created("a-2", &parent(false)).await;
    bed.until_told(&collector, 2).await;
    bed.end().await;

    let spans = collector.seen();
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:#?}");
    let of = |user: &str| {
        let begun = |span: &&Seen| span.attributes.get("audit-id").is_some_and(|id| id == user);
        spans.iter().filter(begun).find(|span| span.kind == 2).unwrap_or_else(|| {
            panic!("no {user}: {spans:#?}");
        })
    };
    let jane = of("create-a");
    assert_eq!((jane.parent.as_str(), &*jane.links), ("", &[format!("{TRACE}-{SPAN}")][..]));
    assert_eq!(
        collector.tree(&jane.trace),
        format!("{CREATE}\n  HTTP POST\n  Create\n    Create embedded\n"),
        "the review of her rights, and what she asked for"
    );
    let review = spans.iter().find(|span| span.trace == jane.trace && span.kind == 3).unwrap();
    assert!(review.attributes["url.full"].ends_with("/subjectaccessreviews"), "{review:#?}");
    let sent = format!("00-{}-{}-01", jane.trace, review.id);
    assert!(bed.world.kube.parents().contains(&sent), "{:?}", bed.world.kube.parents());
    let bob = of("create-b");
    assert_eq!(bob.attributes["http.response.status_code"], "403");
    assert!(bob.links.is_empty() && !bob.has_failed, "{bob:#?}");
    assert_eq!(collector.tree(&bob.trace), format!("{CREATE}\n  HTTP POST\n"));
}

#[tokio::test]
async fn a_request_that_is_given_up_is_a_failed_span() {
    let (collector, hooks) = (Collector::start().await, Hooks::start(|_, _| Say::Nothing).await);
    let world = World::new().await;
    let webhooks = json!({"webhooks": [hooks.webhook("slow", &json!({"timeoutSeconds": 30}))]});
    let place = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    world.kube.put(place, "hooks", webhooks);
    let mut bed = Bed::new(world, collector.address, "").await;
    let request = Request::post(format!("{PILOTS}?timeout=10s"))
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .header("traceparent", parent(true))
        .body(pilot("a"))
        .unwrap();
    let reply = bed.client.send(request).await.unwrap();
    assert_eq!(reply.status, 504, "{}", brief(&reply));
    bed.until_told(&collector, 1).await;
    bed.end().await;
    let spans = collector.seen();
    assert!(only(&spans, CREATE).has_failed, "{spans:#?}");
    let cut_off = format!("{CREATE}\n  Create\n    Call validating webhook\n      HTTP POST\n");
    assert_eq!(collector.tree(TRACE), cut_off);
}

/// The counter's value.
async fn told(bed: &Bed, outcome: &str) -> u64 {
    let request = Request::get("/metrics")
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters");
    let reply = bed.client.send(request.body(String::new()).unwrap()).await.unwrap();
    let begin = format!("navigator_apiserver_trace_spans_total{{outcome=\"{outcome}\"}} ");
    let line = reply.body.lines().find_map(|line| line.strip_prefix(&begin));
    line.unwrap_or_else(|| panic!("{}", brief(&reply))).parse().unwrap()
}

#[tokio::test]
async fn nobody_waits_for_a_collector_that_never_answers() {
    // Connections are accepted by the kernel, and then nothing happens.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap();
    let mut bed = Bed::new(World::new().await, endpoint, "samplingRatePerMillion: 1000000").await;
    let begun = Instant::now();
    for number in 0..100 {
        bed.created(&format!("p-{number}"), "").await;
    }
    // One that waited would take ten seconds, and all of them a thousand.
    assert!(begun.elapsed() < Duration::from_secs(500), "{:?}", begun.elapsed());
    bed.end().await;
    drop(silent);
}

#[tokio::test]
async fn a_collector_that_is_away_is_told_of_once_and_loses_spans_only() {
    let endpoint = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut bed = Bed::new(World::new().await, endpoint, "samplingRatePerMillion: 1000000").await;
    let mut lost = 0;
    for name in ["a", "b"] {
        bed.created(name, "").await;
        bed.server
            .until("spans are lost", async || {
                let now = told(&bed, "lost").await;
                if now > lost { Ok(()) } else { Err(format!("{now}, and before {lost}")) }
            })
            .await;
        lost = told(&bed, "lost").await;
    }
    assert_eq!(told(&bed, "sent").await, 0);
    bed.end().await;
    let log = bed.server.log();
    assert_eq!(log.matches("Failed to send spans to the collector").count(), 1, "{log}");
}

#[tokio::test]
async fn a_file_that_means_nothing_ends_the_start_with_64() {
    let world = World::new().await;
    let path = world.path("traces.yaml");
    let mut args = world.args("store");
    args.push(format!("--tracing-config-file={path}"));
    let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";
    for (text, expected) in [
        ("", "failed to read it: No such file"),
        ("kind: Config\n", "no kind \"Config\" is registered for version \"\""),
        ("samplingRatePerMillion: -1\n", "samplingRatePerMillion: Invalid value: -1"),
        (
            "endpoint: https://collector:4317\n",
            "endpoint: Invalid value: \"https://collector:4317\"",
        ),
        ("sampling: 1\n", "unknown field `sampling`"),
    ] {
        if !text.is_empty() {
            let head = if text.starts_with("kind") { "" } else { head };
            std::fs::write(&path, format!("{head}{text}")).unwrap();
        }
        let (code, told) = run(&args);
        assert_eq!(code, Some(64), "{text}: {told}");
        assert!(told.contains(&path) && told.contains(expected), "{text}: {told}");
    }
}
