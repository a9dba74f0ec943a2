//! The audit trail of the real server: levels, stages, where events go, and what happens when
//! they cannot go there.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use http::{Request, StatusCode, Uri};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    client::{Client, Reply},
    server::{Server, World, json_lines},
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

/// Levels by user; probes and metrics are left out.
const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- level: None
  nonResourceURLs: [/readyz, /metrics]
- level: Request
  users: [request]
  omitStages: [RequestReceived]
- level: RequestResponse
  users: [both]
  resources:
  - group: navigator.jetstack.io
    resources: [pilots]
- level: None
  users: [nobody]
- level: Metadata
";

fn pilot(name: &str) -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": name}, "spec": {"nodePool": "a"},
    })
}

/// A server whose users may do everything with pilots, and the front proxy.
async fn served(world: &World, more: &[&str]) -> (Server, Client) {
    for user in ["metadata", "request", "both", "nobody"] {
        for verb in ["create", "get", "list", "watch", "update", "patch", "delete"] {
            world.kube.allow(user, verb, "pilots");
        }
    }
    let server = world.start("store", more);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    (server, client)
}

async fn send(client: &Client, user: &str, method: &str, path: &str, body: String) -> Reply {
    let request = Request::builder().method(method).uri(path).header("X-Remote-User", user);
    client
        .send(request.header("audit-id", body.len().to_string()).body(body).unwrap())
        .await
        .unwrap()
}

async fn create(client: &Client, user: &str, name: &str) -> Reply {
    send(client, user, "POST", PILOTS, pilot(name).to_string()).await
}

/// A metric with its labels, as Prometheus reads it; 0 when it is not there.
async fn metric(client: &Client, name: &str) -> u64 {
    let request = Request::get("/metrics")
        .header("X-Remote-User", "monitoring")
        .header("X-Remote-Group", "system:masters");
    let reply = client.send(request.body(String::new()).unwrap()).await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    let value = reply.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

/// `user verb stage code`, with the objects that were kept: `+request`, `+response`.
fn describe(line: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let (user, verb) = (text(&line["user"]["username"]), text(&line["verb"]));
    let code = match &line["responseStatus"]["code"] {
        Value::Null => String::new(),
        code => format!(" {code}"),
    };
    let kept = |key: &str, shown| if line[key].is_null() { "" } else { shown };
    let (sent, answered) =
        (kept("requestObject", " +request"), kept("responseObject", " +response"));
    format!("{user} {verb} {}{code}{sent}{answered}", text(&line["stage"]))
}

#[tokio::test]
async fn a_request_is_recorded_at_the_level_and_the_stages_of_its_rule() {
    let world = World::new().await;
    let (trail, policy) = (world.path("audit.log"), world.path("policy"));
    std::fs::write(&policy, POLICY).unwrap();
    let (server, client) =
        served(&world, &["--audit-log-path", &trail, "--audit-policy-file", &policy]).await;

    for user in ["metadata", "request", "both", "nobody"] {
        let created = create(&client, user, user).await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    let path = format!("{PILOTS}/both");
    let mut object = send(&client, "both", "GET", &path, String::new()).await.json();
    object["metadata"]["labels"] = json!({"a": "b"});
    object["metadata"]["managedFields"] = json!([{
        "manager": "me", "operation": "Update", "apiVersion": "navigator.jetstack.io/v1beta1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}},
    }]);
    let updated = send(&client, "both", "PUT", &path, object.to_string()).await;
    assert_eq!(updated.status, 200, "{updated:?}");
    send(&client, "stranger", "DELETE", &path, String::new()).await;
    let watch = format!("{PILOTS}?watch=true&timeoutSeconds=1");
    assert_eq!(send(&client, "both", "GET", &watch, String::new()).await.status, 200);
    // The front proxy names no user here.
    assert_eq!(client.get(&path).await.status, 401);

    let expected = [
        "metadata create RequestReceived",
        "metadata create ResponseComplete 201",
        "request create ResponseComplete 201 +request",
        "both create RequestReceived",
        "both create ResponseComplete 201 +request +response",
        "both get RequestReceived",
        "both get ResponseComplete 200 +response",
        "both update RequestReceived",
        "both update ResponseComplete 200 +request +response",
        "stranger delete RequestReceived",
        "stranger delete ResponseComplete 403",
        "both watch RequestReceived",
        "both watch ResponseStarted 200",
        "both watch ResponseComplete 200",
        "- get ResponseStarted 401",
    ];
    server
        .until("every line", async || {
            let mut found: Vec<_> = json_lines(&trail).iter().map(describe).collect();
            // A watch's line comes when its connection lets go of it, so the order may differ.
            found.sort();
            let mut expected = expected.to_vec();
            expected.sort_unstable();
            if found == expected { Ok(()) } else { Err(format!("{found:#?}")) }
        })
        .await;
    let lines = json_lines(&trail);
    let line = |shown: &str| lines.iter().find(|line| describe(line) == shown).unwrap();

    let updated = line("both update ResponseComplete 200 +request +response");
    assert_eq!(updated["objectRef"]["uid"], object["metadata"]["uid"]);
    assert_eq!(updated["objectRef"]["resourceVersion"], object["metadata"]["resourceVersion"]);
    for (key, expected) in [("requestObject", "b"), ("responseObject", "b")] {
        assert_eq!(updated[key]["metadata"]["labels"]["a"], expected, "{updated}");
        assert!(updated[key]["metadata"].get("managedFields").is_none(), "{updated}");
    }
    assert_eq!(updated["annotations"]["authorization.k8s.io/decision"], "allow");

    let refused = line("stranger delete ResponseComplete 403");
    assert_eq!(refused["responseStatus"]["reason"], "Forbidden", "{refused}");
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(refused["annotations"]["authorization.k8s.io/reason"], "told so");
    assert!(refused.get("responseObject").is_none());
    assert_eq!(line("- get ResponseStarted 401")["responseStatus"]["reason"], "Unauthorized");

    for (level, least) in [("None", 2), ("Metadata", 3), ("Request", 1), ("RequestResponse", 4)] {
        let name = format!("apiserver_audit_level_total{{level={level:?}}}");
        let counted = metric(&client, &name).await;
        assert!(counted >= least, "{name}: {counted}");
    }
    let events = u64::try_from(expected.len()).unwrap();
    assert_eq!(metric(&client, "apiserver_audit_event_total").await, events);
}

#[tokio::test]
async fn large_objects_are_left_out_and_full_files_are_rotated() {
    let world = World::new().await;
    let (trail, policy) = (world.path("trail/audit.log"), world.path("policy"));
    std::fs::write(&policy, POLICY).unwrap();
    let (server, client) = served(
        &world,
        &[
            "--audit-log-path",
            &trail,
            "--audit-policy-file",
            &policy,
            "--audit-log-maxsize=1",
            "--audit-log-maxbackup=2",
            "--audit-log-compress",
        ],
    )
    .await;
    let sized = |name: &str, bytes: usize| {
        let mut object = pilot(name);
        object["metadata"]["annotations"] = json!({"long": "x".repeat(bytes)});
        object.to_string()
    };
    // Five of these fill a file.
    for number in 0..16 {
        let body = sized(&format!("p{number}"), 200_000);
        let created = send(&client, "request", "POST", PILOTS, body).await;
        assert_eq!(created.status, 201, "{created:?}");
    }
    server
        .until("two compressed files beside the one that is written", async || {
            let entries = std::fs::read_dir(world.path("trail")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            let is_backup =
                |name: &String| name.starts_with("audit-2") && name.ends_with(".log.gz");
            let backups = names.iter().filter(|name| is_backup(name)).count();
            if (backups, names.len()) == (2, 3) { Ok(()) } else { Err(format!("{names:?}")) }
        })
        .await;
    assert_eq!(
        describe(json_lines(&trail).last().unwrap()),
        "request create ResponseComplete 201 +request"
    );

    let list = send(&client, "both", "GET", PILOTS, String::new()).await;
    assert!(list.body.len() > 3 << 20, "{}", list.body.len());
    let lines = json_lines(&trail);
    let last = lines.last().unwrap();
    assert_eq!(describe(last), "both list ResponseComplete 200");
    assert_eq!(last["annotations"]["audit.k8s.io/truncated"], "true", "{last}");
    assert_eq!(metric(&client, "apiserver_audit_error_total{plugin=\"log\"}").await, 0);
}

#[tokio::test]
async fn a_full_disk_fails_no_request() {
    let world = World::new().await;
    let (_server, client) = served(&world, &["--audit-log-path=/dev/full"]).await;
    let reply = create(&client, "metadata", "a").await;
    assert_eq!(reply.status, 201, "{reply:?}");
    // The request waited for the write, so its event is counted already.
    let lost = metric(&client, "apiserver_audit_error_total{plugin=\"log\"}").await;
    assert_eq!(lost, 1);
}

/// Throttles, buffers, truncation and modes are not read until the next release, which refuses
/// their flags.
#[tokio::test]
async fn flags_that_were_removed_are_ignored_with_a_warning_each() {
    let world = World::new().await;
    let trail = world.path("audit.log");
    let mut flags = vec![format!("--audit-log-path={trail}")];
    for place in ["log", "webhook"] {
        for (flag, value) in [
            ("mode", "blocking-strict"),
            ("batch-buffer-size", "0"),
            ("batch-max-size", "20"),
            ("batch-max-wait", "3600"),
            ("batch-throttle-enable", ""),
            ("batch-throttle-qps", "0.5"),
            ("batch-throttle-burst", "1"),
            ("truncate-enabled", ""),
            ("truncate-max-batch-size", "7"),
            ("truncate-max-event-size", "9"),
        ] {
            let equals = if value.is_empty() { "" } else { "=" };
            flags.push(format!("--audit-{place}-{flag}{equals}{value}"));
        }
    }
    let shown: Vec<_> = flags.iter().map(String::as_str).collect();
    let (server, client) = served(&world, &shown).await;
    assert_eq!(create(&client, "metadata", "a").await.status, 201);
    assert_eq!(json_lines(&trail).len(), 1, "an event is written at once, and whole");
    let log = server.log();
    for flag in &flags[1..] {
        let name = flag.split('=').next().unwrap();
        let told = format!("{name} is no longer read");
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&told)).collect();
        assert!(lines.len() == 1 && lines[0].contains("\"WARN\""), "{name}: {log}");
    }
}

/// What an audit webhook was sent.
#[derive(Clone, Default)]
struct Hook {
    events: Arc<Mutex<Vec<Value>>>,
    asked: Arc<Mutex<Vec<Uri>>>,
}

impl Hook {
    /// Fails once, and then takes everything.
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/some/where", post(take)).with_state(self.clone());
        #[expect(clippy::disallowed_methods, reason = "ends with the test")]
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/some/where")
    }
}

async fn take(State(hook): State<Hook>, uri: Uri, body: Bytes) -> StatusCode {
    let list: Value = serde_json::from_slice(&body).unwrap();
    let mut asked = hook.asked.lock().unwrap();
    asked.push(uri);
    if asked.len() == 1 {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("EventList"), &json!("audit.k8s.io/v1"))
    );
    hook.events.lock().unwrap().extend(list["items"].as_array().unwrap().clone());
    StatusCode::OK
}

fn config_of(world: &World, url: &str) -> String {
    let path = world.path("webhook");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: \"{url}\"}}}}]\nusers: [{{name: t, user: {{}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n"
    );
    std::fs::write(&path, config).unwrap();
    format!("--audit-webhook-config-file={path}")
}

#[tokio::test]
async fn everything_has_arrived_when_the_server_has_ended() {
    // The first 400 are a batch; the others wait for more.
    const WRITES: usize = 450;
    let world = World::new().await;
    let hook = Hook::default();
    let config = config_of(&world, &hook.start().await);
    let trail = world.path("audit.log");
    let (mut server, client) = served(&world, &[&config, "--audit-log-path", &trail]).await;
    for number in 0..WRITES {
        assert_eq!(create(&client, "metadata", &format!("p{number}")).await.status, 201);
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().await.code(), Some(0), "{}", server.log());
    let named = |line: &Value| line["objectRef"]["name"].as_str().unwrap_or_default().to_owned();
    let written: Vec<_> = json_lines(&trail).iter().map(named).collect();
    let expected: Vec<_> = (0..WRITES).map(|number| format!("p{number}")).collect();
    assert_eq!(written, expected);
    let mut sent: Vec<_> = hook.events.lock().unwrap().iter().map(named).collect();
    sent.sort();
    let mut expected = expected;
    expected.sort();
    assert_eq!(sent, expected, "{:?}", hook.asked.lock().unwrap());
    let asked = hook.asked.lock().unwrap();
    assert!(asked.len() >= 3 && asked.iter().all(|uri| uri.path() == "/some/where"), "{asked:?}");
}

#[tokio::test]
async fn a_webhook_that_hangs_costs_requests_nothing() {
    // More than a batch, which is sent as soon as it is full.
    const WRITES: u64 = 450;
    let world = World::new().await;
    // The kernel accepts connections, and no process reads them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = config_of(&world, &format!("http://{}", silent.local_addr().unwrap()));
    let (mut server, client) = served(&world, &[&config]).await;
    let begun = Instant::now();
    for number in 0..WRITES {
        assert_eq!(create(&client, "metadata", &format!("p{number}")).await.status, 201);
    }
    // Requests that wait for the webhook, which has 30 s to answer, would take hours.
    assert!(begun.elapsed() < Duration::from_secs(80), "{:?}", begun.elapsed());
    assert_eq!(metric(&client, "apiserver_audit_event_total").await, WRITES);
    let begun = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().await.code(), Some(0), "{}", server.log());
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let log = server.log();
    let given_up = log.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        let told = line["msg"] == "Failed to send audit events";
        line["events"].as_u64().filter(|_| told)
    });
    assert_eq!(given_up.sum::<u64>(), WRITES, "{}", server.log());
    drop(silent);
}
