//! The real binary, its real listener and store, and a scripted kube-apiserver.

use std::time::{Duration, Instant};

use http::Request;
use http_body_util::{BodyExt, Full};
use nix::sys::signal::Signal;
use rustls::{
    pki_types::{CertificateDer, pem::PemObject},
    version::{TLS12, TLS13},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    client::{Client, SERVICE},
    pki::{Identity, aging_secret},
    server::{PATIENCE, World, brief, json_lines, run},
};

const GROUP: &str = "/apis/navigator.jetstack.io/v1beta1";
const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

fn pilot(name: &str) -> String {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": name}, "spec": {},
    })
    .to_string()
}

fn as_user(request: http::request::Builder, user: &str) -> http::request::Builder {
    request.header("X-Remote-User", user)
}

/// How often a review may have been asked for since then: its answer counts for ten seconds.
fn lives(begun: Instant) -> usize {
    1 + usize::try_from(begun.elapsed().as_secs() / 10).unwrap()
}

#[tokio::test]
async fn a_user_behind_the_front_proxy_does_what_the_reviews_allow_and_leaves_a_trail() {
    let world = World::new().await;
    let trail = world.path("audit.log");
    let server = world.start("store", &["--audit-log-path", &trail]);
    server.until_ready().await;
    let ca = world.ca_bundle("v1beta1").expect("ready means that the CA bundle is published");
    assert_eq!(world.ca_bundle("v1alpha1"), Some(ca.clone()));
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), Some(&ca));
    for verb in ["create", "get"] {
        world.kube.allow("jane", verb, "pilots");
    }

    let begun = Instant::now();
    let create = || as_user(Request::post(PILOTS), "jane").body(pilot("a")).unwrap();
    let created = client.send(create()).await.unwrap();
    assert_eq!(created.status, 201, "{created:?}");
    assert!(created.headers.contains_key("audit-id"));
    assert_eq!(created.headers["cache-control"], "no-cache, private");
    let path = format!("{PILOTS}/a");
    let request = || as_user(Request::get(&path), "jane").body(String::new()).unwrap();
    for _ in 0..10 {
        let found = client.send(request()).await.unwrap();
        assert_eq!(found.status, 200, "{found:?}");
    }
    let (asked, most) = (world.kube.reviews("SubjectAccessReview"), 2 * lives(begun));
    assert!((2..=most).contains(&asked), "answers are remembered: {asked}, not {most}");

    let delete = as_user(Request::delete(&path), "jane").header("audit-id", "mine");
    let refused = client.send(delete.body(String::new()).unwrap()).await.unwrap();
    assert_eq!(refused.status, 403, "{refused:?}");
    assert_eq!(refused.headers["audit-id"], "mine");
    assert_eq!(
        refused.json()["message"],
        "pilots.navigator.jetstack.io \"a\" is forbidden: User \"jane\" cannot delete resource \
         \"pilots\" in API group \"navigator.jetstack.io\" in the namespace \"db\": told so"
    );

    // Identity is per request: the same certificate without headers is no user.
    let nobody = client.get(&path).await;
    assert_eq!(nobody.status, 401, "{nobody:?}");
    let anonymous = Client::new(server.address, None, Some(&ca)).get(&path).await;
    assert_eq!(anonymous.status, 403, "{anonymous:?}");

    server
        .until("two lines in the trail", async || {
            let lines = json_lines(&trail);
            if lines.len() == 2 { Ok(()) } else { Err(format!("{lines:?}")) }
        })
        .await;
    let lines = json_lines(&trail);
    let of = |line: &serde_json::Value| {
        format!(
            "{} {} {} {}",
            line["user"]["username"].as_str().unwrap_or_default(),
            line["verb"].as_str().unwrap_or_default(),
            line["objectRef"]["name"].as_str().unwrap_or_default(),
            line["responseStatus"]["code"]
        )
    };
    assert_eq!(
        lines.iter().map(of).collect::<Vec<_>>(),
        ["jane create a 201", "jane delete a 403"]
    );
    assert_eq!(lines[1]["auditID"], "mine");
}

#[tokio::test]
async fn the_aggregators_own_checks_pass() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    for path in [GROUP, "/apis/navigator.jetstack.io/v1alpha1", "/openapi/v2", "/openapi/v3"] {
        let request = as_user(Request::get(path), "system:kube-aggregator")
            .header("X-Remote-Group", "system:masters")
            .body(String::new())
            .unwrap();
        let reply = client.send(request).await.unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", brief(&reply));
    }
    assert_eq!(world.kube.reviews("SubjectAccessReview"), 0);
}

#[tokio::test]
async fn one_http2_connection_carries_many_users_each_with_their_own_rights() {
    let world = World::new().await;
    world.kube.allow("jane", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    let users = ["jane", "bob"].into_iter().cycle().take(100);
    let requests =
        users.map(|user| as_user(Request::get(PILOTS), user).body(String::new()).unwrap());
    let replies = client.send_together(requests.collect()).await;
    for (number, reply) in replies.iter().enumerate() {
        let expected = if number % 2 == 0 { 200 } else { 403 };
        assert_eq!(reply.status, expected, "{number}: {}", brief(reply));
    }
    assert_eq!(world.kube.reviews("SubjectAccessReview"), 2, "equal questions are asked once");
}

/// Asks over one HTTP/2 connection until that ends, at most so often. Did it end, and how many
/// answers came?
async fn ask_until_the_end(
    client: &Client,
    request: impl Fn() -> http::request::Builder,
    most: usize,
) -> (bool, Vec<u16>) {
    let (connection, mut sender) = client.http2().await;
    #[expect(clippy::disallowed_methods, reason = "ends with the connection")]
    let connection = tokio::spawn(connection);
    let mut answers = Vec::new();
    while answers.len() < most && !connection.is_finished() {
        let mut request = request().body(Full::default()).unwrap();
        *request.uri_mut() = format!("https://{SERVICE}{}", request.uri()).parse().unwrap();
        let Ok(response) = sender.send_request(request).await else { break };
        answers.push(response.status().as_u16());
        response.into_body().collect().await.unwrap();
    }
    // Less than an idle connection has.
    let ended = match answers.len() {
        1 => tokio::time::timeout(Duration::from_secs(60), connection).await.is_ok(),
        _ => connection.is_finished(),
    };
    drop(sender);
    (ended, answers)
}

#[tokio::test]
async fn a_stranger_gets_one_answer_for_each_http2_connection() {
    let world = World::new().await;
    world.kube.allow("jane", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let stranger = server.stranger();
    let nobody = || Request::get("/livez");
    assert_eq!(ask_until_the_end(&stranger, nobody, 1).await, (true, vec![200]));
    let unknown = || Request::get(PILOTS).header("authorization", "Bearer unknown");
    assert_eq!(ask_until_the_end(&stranger, unknown, 1).await, (true, vec![401]));
    let proxy = Client::new(server.address, Some(&world.proxy()), None);
    let jane = || as_user(Request::get(PILOTS), "jane");
    assert_eq!(ask_until_the_end(&proxy, jane, 300).await, (false, vec![200; 300]));
    // Requests of all users come over the connection of the aggregator, also those of strangers.
    let behind = || as_user(Request::get("/livez"), "system:anonymous");
    assert_eq!(ask_until_the_end(&proxy, behind, 300).await, (false, vec![200; 300]));
}

#[tokio::test]
async fn some_http2_connections_are_ended_by_chance_where_that_was_asked_for() {
    let world = World::new().await;
    for verb in ["list", "watch", "create"] {
        world.kube.allow("jane", verb, "pilots");
    }
    let server = world.start("store", &["--goaway-chance=0.02"]);
    server.until_ready().await;
    let proxy = Client::new(server.address, Some(&world.proxy()), None);
    let (connection, mut sender) = proxy.http2().await;
    #[expect(clippy::disallowed_methods, reason = "ends with the connection")]
    let connection = tokio::spawn(connection);
    let to = |path: &str| format!("https://{SERVICE}{PILOTS}{path}");
    let ask = |path| as_user(Request::get(to(path)), "jane").body(Full::default()).unwrap();
    let mut watch = sender.send_request(ask("?watch=1")).await.unwrap().into_body();
    // So many requests all miss the chance once in 10^87 times.
    let mut answered = 0;
    while let Ok(response) = sender.send_request(ask("")).await {
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
        answered += 1;
        assert!(answered < 10_000, "the connection does not end");
    }
    // Requests that are under way are answered all the same.
    let create = as_user(Request::post(PILOTS), "jane").body(pilot("a")).unwrap();
    assert_eq!(proxy.send(create).await.unwrap().status, 201);
    let frame = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("an event");
    let frame = frame.unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(br#"{"type":"ADDED","#), "{frame:?}");
    drop(watch);
    let ended = tokio::time::timeout(PATIENCE, connection).await.expect("it ends");
    ended.unwrap().unwrap();
}

#[tokio::test]
async fn flags_say_what_tls_the_listener_speaks() {
    let world = World::new().await;
    let narrow = ["--tls-min-version=VersionTLS13", "--disable-http2-serving"];
    for (flags, old, protocol) in [(&narrow[..], false, "http/1.1"), (&[], true, "h2")] {
        let server = world.start(if old { "one" } else { "other" }, flags);
        let stranger = server.stranger();
        assert_eq!(stranger.shake(&TLS12).await.is_ok(), old, "{flags:?}");
        assert_eq!(stranger.shake(&TLS13).await.unwrap().as_deref(), Some(protocol), "{flags:?}");
    }
}

#[tokio::test]
async fn a_watch_that_names_no_time_lasts_as_long_as_the_flag_says() {
    let world = World::new().await;
    world.kube.allow("jane", "watch", "pilots");
    let server = world.start("store", &["--min-request-timeout=2"]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    let request = as_user(Request::get(format!("{PILOTS}?watch=1")), "jane");
    let begun = Instant::now();
    let watched = client.send(request.body(String::new()).unwrap());
    let watched = tokio::time::timeout(PATIENCE, watched).await.expect("not half an hour");
    assert_eq!(watched.unwrap().status, 200);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

/// The limits that kube-apiserver has for aggregated servers.
#[tokio::test]
async fn http2_begins_with_the_limits_of_the_server() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    let mut stream = server.stranger().connect_http2().await;
    // Preface and settings of a client without wishes.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(hello).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "a frame of settings comes first: {head:?}");
    let mut body = vec![0; usize::from(head[1]) * 256 + usize::from(head[2])];
    stream.read_exact(&mut body).await.unwrap();
    let told = |id: u8| {
        let entry = body.chunks_exact(6).find(|entry| entry[..2] == [0, id]);
        entry.map(|entry| u32::from_be_bytes(*entry.last_chunk().unwrap()))
    };
    assert_eq!(told(3), Some(1000), "streams at one time");
    assert_eq!(told(4), Some(256 * 1024), "window of a stream");
    assert_eq!(told(5), Some(16 * 1024), "bytes of a frame");
    assert_eq!(told(6), Some(16 * 1024), "bytes of a stranger's head");
}

#[tokio::test]
async fn an_etcd_that_does_not_answer_is_waited_for() {
    let world = World::new().await;
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let etcd = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let mut server = world.start("unused", &["--store=etcd", "--etcd-servers", &etcd]);
    server
        .until("readyz says that it waits for etcd", async || {
            let reply = server.stranger().get("/readyz").await;
            let told = reply.status == 500 && reply.body.contains("[-]etcd failed");
            if told { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    assert_eq!(server.stranger().get("/livez").await.status, 200);
    assert_eq!(server.stranger().get(PILOTS).await.status, 503);
    server
        .until("the log says why", async || {
            let told = server.log().contains("Failed to reach etcd");
            if told { Ok(()) } else { Err("nothing".to_owned()) }
        })
        .await;
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().await.code(), Some(0), "{}", server.log());
}

#[tokio::test]
async fn tokens_are_reviewed_once_and_bad_ones_are_nobodys() {
    let world = World::new().await;
    world.kube.add_token("good", json!({"username": "pod", "groups": ["g"]}));
    world.kube.allow("pod", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let send = async |token: &str| {
        let request = Request::get(PILOTS).header("authorization", format!("Bearer {token}"));
        server.stranger().send(request.body(String::new()).unwrap()).await.unwrap()
    };
    let begun = Instant::now();
    for _ in 0..5 {
        let reply = send("good").await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    assert_eq!(send("bad").await.status, 401);
    let (asked, most) = (world.kube.reviews("TokenReview"), 1 + lives(begun));
    assert!((2..=most).contains(&asked), "{asked}, not {most}");
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_is_missing_or_going_away() {
    let world = World::new().await;
    let terminating = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    world.kube.put("/api/v1/namespaces", "going", terminating);
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    let create = async |namespace: &str| {
        let request =
            as_user(Request::post(format!("{GROUP}/namespaces/{namespace}/pilots")), "root")
                .header("X-Remote-Group", "system:masters");
        client.send(request.body(pilot("a")).unwrap()).await.unwrap()
    };
    let missing = create("missing").await;
    assert_eq!(missing.status, 404, "{missing:?}");
    assert_eq!(missing.json()["message"], "namespaces \"missing\" not found");
    let going = create("going").await;
    assert_eq!(going.status, 403, "{going:?}");
    assert_eq!(going.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    world.kube.put("/api/v1/namespaces", "missing", json!({}));
    assert_eq!(create("missing").await.status, 201);
}

#[tokio::test]
async fn what_outlived_its_namespace_can_be_deleted_to_the_end() {
    let world = World::new().await;
    world.kube.put("/api/v1/namespaces", "ended", json!({}));
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    let ask = async |method: &str, name: &str, body: Value| {
        let path = format!("{GROUP}/namespaces/ended/pilots{name}");
        let request = Request::builder().method(method).uri(path);
        let request = as_user(request, "root").header("X-Remote-Group", "system:masters").header(
            "Content-Type",
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
        );
        client.send(request.body(body.to_string()).unwrap()).await.unwrap()
    };
    let mut held: Value = serde_json::from_str(&pilot("a")).unwrap();
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    assert_eq!(ask("POST", "", held).await.status, 201);
    // The namespace ended while no server served our API.
    world.kube.delete("/api/v1/namespaces/ended");
    server
        .until("the server knows", async || {
            let label = json!({"metadata": {"labels": {"a": "b"}}});
            let reply = ask("PATCH", "/a", label).await;
            if reply.status == 404 { Ok(()) } else { Err(format!("{reply:?}")) }
        })
        .await;
    assert_eq!(ask("DELETE", "/a", json!({})).await.status, 200);
    let free = ask("PATCH", "/a", json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(free.status, 200, "{free:?}");
    let gone = ask("GET", "/a", json!({})).await;
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[tokio::test]
async fn a_store_that_is_not_ours_answers_503_until_a_person_accepts_it() {
    let world = World::new().await;
    let proxy = world.proxy();
    let list = async |address| {
        let client = Client::new(address, Some(&proxy), None);
        let request =
            as_user(Request::get(PILOTS), "root").header("X-Remote-Group", "system:masters");
        client.send(request.body(String::new()).unwrap()).await.unwrap()
    };
    const RECORD: &str = "/api/v1/namespaces/navigator/configmaps/navigator-store";
    let first = world.start("store", &[]);
    first.until_ready().await;
    assert_eq!(list(first.address).await.status, 200);
    let recorded = world.kube.get(RECORD).expect("the first store is recorded");
    drop(first);

    // The volume is lost: a new store comes up empty.
    let second = world.start("other-store", &[]);
    second.until_ready().await;
    let lost = list(second.address).await;
    assert_eq!(lost.status, 503, "{lost:?}");
    assert!(lost.headers.contains_key("retry-after"));
    let message = lost.json()["message"].to_string();
    assert!(message.contains("delete configmap navigator-store"), "{message}");
    assert_eq!(world.kube.get(RECORD), Some(recorded), "nothing is recorded over it");

    world.kube.delete(RECORD);
    second
        .until("the new store is accepted", async || {
            let reply = list(second.address).await;
            if reply.status == 200 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    drop(second);

    // Now the old store is the foreign one.
    let third = world.start("store", &[]);
    third.until_ready().await;
    assert_eq!(list(third.address).await.status, 503);
}

#[tokio::test]
async fn before_kube_apiserver_answers_it_lives_is_not_ready_and_says_503() {
    let world = World::new().await;
    world.kube.set_down(true);
    let server = world.start("store", &[]);
    let client = server.stranger();
    assert_eq!(client.get("/livez").await.status, 200);
    let ready = client.get("/readyz").await;
    assert_eq!(ready.status, 500, "{ready:?}");
    assert!(ready.body.contains("[-]certificates failed"), "{ready:?}");
    for path in [PILOTS, GROUP, "/apis", "/nonsense"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 503, "{path}: {reply:?}");
        assert_eq!(reply.headers["retry-after"], "5");
    }
    world.kube.set_down(false);
    server.until_ready().await;
}

#[tokio::test]
async fn a_front_proxy_of_a_new_ca_is_believed_at_once_and_one_of_the_old_no_more() {
    let mut world = World::new().await;
    world.kube.allow("jane", "list", "pilots");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let list = async |proxy: &Identity| {
        let client = Client::new(server.address, Some(proxy), None);
        let request = as_user(Request::get(PILOTS), "jane").body(String::new()).unwrap();
        client.send(request).await.unwrap().status
    };
    let old = world.proxy();
    assert_eq!(list(&old).await, 200);
    world.replace_proxy_ca();
    let new = world.proxy();
    server
        .until("the new CA is trusted", async || {
            // The CA is published again each time: the scripted watch shows only what comes after
            // it began.
            world.publish_trust();
            let status = list(&new).await;
            if status == 200 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    assert_eq!(list(&old).await, 401, "the old CA counts no more");
    // A CA that cannot be used changes nothing.
    let config_maps = "/api/v1/namespaces/kube-system/configmaps";
    let nonsense = json!({"data": {"requestheader-client-ca-file": "nonsense"}});
    world.kube.put(config_maps, "extension-apiserver-authentication", nonsense);
    server
        .until("the log says so", async || {
            let told = server.log().contains("keeping what was trusted before");
            if told { Ok(()) } else { Err("nothing".to_owned()) }
        })
        .await;
    assert_eq!(list(&new).await, 200);
}

#[tokio::test]
async fn a_renewed_ca_stands_beside_the_old_one_which_other_replicas_still_serve_by() {
    let world = World::new().await;
    let (data, old) = aging_secret(SERVICE);
    let secrets = "/api/v1/namespaces/navigator/secrets";
    world.kube.put(secrets, "navigator-apiserver-tls", json!({"data": data}));
    let server = world.start("store", &[]);
    server.until_ready().await;
    for version in ["v1beta1", "v1alpha1"] {
        let bundle = world.ca_bundle(version).unwrap();
        let found: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten().collect();
        let known = CertificateDer::from_pem_slice(old.as_bytes()).unwrap();
        assert!(found.len() == 2 && found[1] == known, "{} of them\n{bundle}", found.len());
        let client = Client::new(server.address, None, Some(&bundle));
        assert_eq!(client.get("/livez").await.status, 200, "the leaf is of a CA in the bundle");
    }
    let behind = Client::new(server.address, None, Some(&old));
    assert!(behind.connect().await.is_err(), "the leaf is of the new CA");
}

#[tokio::test]
async fn a_pod_writes_the_status_of_its_own_pilot_and_of_no_other() {
    let world = World::new().await;
    let user = "system:serviceaccount:db:cassandra-demo";
    world.kube.allow("jane", "create", "pilots");
    world.kube.allow(user, "patch", "pilots/status");
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    for name in ["a", "b"] {
        let create = as_user(Request::post(PILOTS), "jane").body(pilot(name)).unwrap();
        assert_eq!(client.send(create).await.unwrap().status, 201);
    }
    let report = async |name: &str, pod: Option<&str>| {
        let mut request = as_user(Request::patch(format!("{PILOTS}/{name}/status")), user)
            .header("Content-Type", "application/merge-patch+json");
        if let Some(pod) = pod {
            let extra = "X-Remote-Extra-Authentication.kubernetes.io%2Fpod-name";
            request = request.header(extra, pod);
        }
        let body = json!({"status": {"message": "hello"}}).to_string();
        client.send(request.body(body).unwrap()).await.unwrap()
    };
    let own = report("a", Some("a")).await;
    assert_eq!(own.status, 200, "{own:?}");
    for (name, pod) in [("b", Some("a")), ("a", None)] {
        let refused = report(name, pod).await;
        assert_eq!(refused.status, 403, "{name} by {pod:?}: {refused:?}");
        let told = "may write the status of the Pilot of its own pod only";
        assert!(refused.body.contains(told), "{refused:?}");
    }
}

#[tokio::test]
async fn an_upgrade_is_refused_and_the_connection_closed() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    let answer = client
        .raw(
            "GET /apis HTTP/1.1\r\nHost: x\r\nX-Remote-User: root\r\nX-Remote-Group: \
             system:masters\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
             GET /apis HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
}

#[tokio::test]
async fn sigterm_ends_watches_cleanly_and_the_process_with_0() {
    let world = World::new().await;
    let mut server = world.start("store", &["--shutdown-delay-duration", "15"]);
    server.until_ready().await;
    let proxy = world.proxy();
    let client = Client::new(server.address, Some(&proxy), None);
    let mut watch = client.connect().await.unwrap();
    let head = format!(
        "GET {PILOTS}?watch=1 HTTP/1.1\r\nHost: x\r\nX-Remote-User: root\r\nX-Remote-Group: \
         system:masters\r\n\r\n"
    );
    watch.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("\r\n\r\n") {
        let mut buffer = [0; 4096];
        let count = watch.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{answer:?}");
        answer.extend_from_slice(&buffer[..count]);
    }

    server.signal(Signal::SIGTERM);
    server
        .until("readyz says shutdown while requests are served", async || {
            let reply = server.stranger().get("/readyz").await;
            let told = reply.body.contains("[-]shutdown failed");
            if told { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    tokio::time::timeout(PATIENCE, watch.read_to_end(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.ends_with("0\r\n\r\n"), "the body ends as it should: {text}");
    let status = server.ended().await;
    assert_eq!(status.code(), Some(0), "{}", server.log());
}

#[tokio::test]
async fn a_client_that_says_nothing_does_not_hold_up_others() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    let client = server.stranger();
    let reply = tokio::time::timeout(Duration::from_secs(20), client.get("/livez"));
    assert_eq!(reply.await.unwrap().status, 200);
    drop(silent);
}

#[tokio::test]
async fn without_whom_to_trust_it_refuses_to_start() {
    let world = World::new().await;
    let config_map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    world.kube.delete(config_map);
    let mut server = world.start("store", &[]);
    assert_eq!(server.ended().await.code(), Some(1));
    assert!(server.log().contains("extension-apiserver-authentication"), "{}", server.log());
}

#[tokio::test]
async fn a_damaged_certificate_secret_is_not_replaced_behind_a_persons_back() {
    let world = World::new().await;
    let secret = json!({"data": {"ca.crt": "bm9uc2Vuc2U="}});
    world.kube.put("/api/v1/namespaces/navigator/secrets", "navigator-apiserver-tls", secret);
    let mut server = world.start("store", &[]);
    assert_eq!(server.ended().await.code(), Some(1));
    assert!(server.log().contains("navigator-apiserver-tls"), "{}", server.log());
}

/// The flag is ignored until the next release, which refuses it.
#[tokio::test]
async fn a_file_that_was_for_traces_is_ignored_with_a_warning() {
    let world = World::new().await;
    let server = world.start("store", &["--tracing-config-file=/absent"]);
    server.until_ready().await;
    let log = server.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("--tracing-config-file")).collect();
    assert_eq!(told.len(), 1, "{log}");
    for part in ["\"WARN\"", "removed in 0.3", "docs/decisions/0009-one-set-of-features.md"] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
}

#[tokio::test]
async fn bad_settings_end_with_64_and_one_line() {
    let world = World::new().await;
    let with = |more: &[&str]| {
        let mut args = world.args("store");
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args
    };
    let without_store: Vec<String> =
        world.args("store").into_iter().filter(|arg| !arg.starts_with("--store")).collect();
    let etcd = "--store=etcd";
    let rows = [
        (with(&["--nonsense"]), "--nonsense"),
        (with(&["--request-timeout=soon"]), "soon"),
        (with(&["--tls-cert-file=/x"]), "--tls-private-key-file"),
        (with(&["--tls-cert-file=/absent", "--tls-private-key-file=/absent"]), "/absent"),
        (with(&["--min-request-timeout=0"]), "0 is not in 1..=31536000"),
        (with(&["--goaway-chance=0.03"]), "0.03 is not from 0 to 0.02"),
        (with(&["--tls-min-version=VersionTLS11"]), "VersionTLS12, VersionTLS13"),
        (
            with(&["--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA"]),
            "it is none of TLS_",
        ),
        (with(&[etcd]), "--etcd-servers"),
        (with(&[etcd, "--etcd-servers=https://127.0.0.1:1"]), "--etcd-cafile"),
        (with(&[etcd, "--etcd-servers=127.0.0.1:1"]), "http://"),
        (with(&["--audit-log-path=/dev/null/audit.log"]), "audit"),
        (with(&["--audit-log-path=-", "--audit-log-format=legacy"]), "legacy"),
        (with(&["--audit-log-path=-", "--audit-log-maxsize=-1"]), "-1"),
        (with(&["--audit-webhook-config-file=/absent"]), "/absent"),
        (with(&["--audit-policy-file=/absent"]), "failed to read the audit policy file"),
        (with(&["--audit-policy-file", &world.path("kubeconfig")]), "unknown group version field"),
        (with(&["--kubeconfig=/absent"]), "kubeconfig"),
        (with(&["--log=a=b=c"]), "--log"),
        (without_store, "--store-path"),
    ];
    for (args, expected) in rows {
        let (code, text) = run(&args);
        assert_eq!(code, Some(64), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}
