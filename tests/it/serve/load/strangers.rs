//! Requests of unauthenticated clients: certificate chains, heads, paths; and selectors of users
//! who may only read.

use std::time::Duration;

use futures::future::join_all;
use http::Request;
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};

use super::{PILOTS, SERVICE, Siege, as_user};
use crate::support::{client::Client, pki, pki::Identity};

/// Addresses that an attacker has.
const ADDRESSES: std::ops::Range<u8> = 1..6;

impl Siege {
    fn stranger(&self, identity: Option<&Identity>, address: u8) -> Client {
        Client::new(self.server.address, identity, None).from([127, 0, 2, address])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_that_are_expensive_to_judge_stop_nobody() {
    let siege = Siege::begin().await;
    let maze = pki::maze();
    let attack = join_all((0..4).map(async |at| {
        let client = siege.stranger(Some(&maze), ADDRESSES.start + at);
        let request = Request::get("/livez").body(String::new()).unwrap();
        // The client may be turned away in the handshake.
        drop(timeout(Duration::from_secs(60), client.send(request)).await);
    }));
    siege.row("expensive chains", attack).await;
    siege.end();
}

/// A head of HTTP/2 without its end: one value of `parts` frames of this size.
fn endless_head(parts: usize, frame: usize) -> Vec<u8> {
    let mut bytes =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    // A literal header "a" whose value has 2 MiB.
    let head = [0x82, 0x87, 0x84, 0x41, 1, b'x', 0, 1, b'a', 0x7f, 0x81, 0xff, 0x7f];
    bytes.extend([0, 0, 13, 1, 1, 0, 0, 0, 1]);
    bytes.extend(head);
    for _ in 0..parts {
        let [_, length @ ..] = u32::try_from(frame).unwrap().to_be_bytes();
        bytes.extend(length);
        bytes.extend([9, 0, 0, 0, 0, 1]);
        bytes.resize(bytes.len() + frame, b'b');
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_never_end_take_little() {
    let siege = Siege::begin().await;
    for (name, head) in [
        ("unfinished heads", endless_head(5, 256 * 1024)),
        ("unfinished heads in small frames", endless_head(3, 16 * 1024)),
    ] {
        let attack = join_all(ADDRESSES.flat_map(|address| {
            let (siege, head) = (&siege, &head);
            (0..100).map(move |_| async move {
                let Ok(mut stream) = siege.stranger(None, address).try_http2().await else {
                    return;
                };
                drop(timeout(Duration::from_secs(8), stream.write_all(head)).await);
                drop(timeout(Duration::from_secs(8), stream.read_to_end(&mut Vec::new())).await);
            })
        }));
        siege.row(name, attack).await;
    }
    siege.end();
}

/// A connection is used once and then sends a head, slowly; its client showed a long chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connections_take_little() {
    let siege = Siege::begin().await;
    let before = siege.group.memory();
    for (name, identity) in
        [("slow heads", None), ("slow heads behind long chains", Some(pki::maze()))]
    {
        let part = format!("X: {}\r\n", "x".repeat(1000)).repeat(90);
        let attack = join_all(ADDRESSES.flat_map(|address| {
            let (siege, part, identity) = (&siege, &part, identity.as_ref());
            (0..200).map(move |_| async move {
                let mut stream = siege.stranger(identity, address).connect().await.ok()?;
                let first = format!("GET /nope HTTP/1.1\r\nHost: {SERVICE}\r\n\r\n");
                stream.write_all(first.as_bytes()).await.ok()?;
                stream.read_exact(&mut [0; 16]).await.ok()?;
                let head = format!("GET / HTTP/1.1\r\nHost: {SERVICE}\r\n{part}");
                drop(timeout(Duration::from_secs(5), stream.write_all(head.as_bytes())).await);
                Some(stream)
            })
        }));
        let held = siege.row(name, attack).await;
        siege.row(&format!("{name}, held"), sleep(Duration::from_secs(3))).await;
        let more = siege.group.memory().saturating_sub(before) >> 20;
        assert!(more < 80, "{name}: {more} MiB more than before");
        drop(held);
    }
    siege.end();
}

/// `a in (v0,v1,…)` with so many values.
fn selector(operator: &str, values: usize) -> String {
    let values: Vec<_> = (0..values).map(|at| format!("{at:x}")).collect();
    format!("a+{operator}+({})", values.join(","))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_selectors_take_little() {
    let siege = Siege::begin().await;
    for (name, values) in
        [("watches with long selectors", 12_000), ("with as long as may be", 1000)]
    {
        let query = format!("watch=1&labelSelector={}", selector("in", values));
        let (connection, sender) = siege.client().http2().await;
        let open = async || {
            let mut sender = sender.clone();
            let request = as_user(Request::get(format!("https://x{PILOTS}?{query}")), "mallory");
            let request = request.body(Full::default()).unwrap();
            drop(sender.ready().await);
            sender.send_request(request).await
        };
        let attack = async {
            let mut opened = Vec::new();
            let all = async {
                // As many watches as one user may begin at one time.
                for _ in 0..16 {
                    opened.extend(join_all((0..50).map(|_| open())).await);
                }
                sleep(Duration::from_secs(2)).await;
            };
            tokio::select! {
                () = all => {}
                _ = connection => {}
            }
            opened.len()
        };
        siege.row(name, attack).await;
    }
    siege.end();
}

/// A value of 4 KB is sent once, and then referred to by two bytes as often as a head may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn amplified_headers_cost_little() {
    let siege = Siege::begin().await;
    let before = siege.server.spent();
    let mut bytes =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    let clause = "a/b;q=0.1,".repeat(390);
    for stream in 0..20_u32 {
        let mut head = vec![0x82, 0x87, 0x84, 0x41, 1, b'x'];
        if stream == 0 {
            // accept, with incremental indexing.
            head.extend([0x53, 0x7f, 0xbd, 0x1d]);
            head.extend(clause.as_bytes());
        }
        head.extend([0xbe; 240]);
        let [_, length @ ..] = u32::try_from(head.len()).unwrap().to_be_bytes();
        bytes.extend(length);
        bytes.extend([1, 5]);
        bytes.extend((2 * stream + 1).to_be_bytes());
        bytes.extend(head);
    }
    let attack = join_all(ADDRESSES.flat_map(|address| [address; 4]).map(async |address| {
        let mut stream = siege.stranger(None, address).connect_http2().await;
        drop(stream.write_all(&bytes).await);
        drop(timeout(Duration::from_secs(8), stream.read_to_end(&mut Vec::new())).await);
    }));
    siege.row("headers that HPACK amplifies", attack).await;
    let spent = siege.server.spent().saturating_sub(before);
    assert!(spent < Duration::from_secs(2), "{spent:?}");
    siege.end();
}

/// Each request is for a path of its own, which costs a question to kube-apiserver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_of_strangers_are_not_kept() {
    let siege = Siege::begin().await;
    let before = siege.group.memory();
    let attack = join_all((0..8_u8).map(async |task| {
        let client = siege.stranger(None, ADDRESSES.start + task % 4);
        for at in 0..500 {
            let path = format!("/{task}/{at}/{}", "x".repeat(9000));
            drop(client.send(Request::get(path).body(String::new()).unwrap()).await);
        }
    }));
    siege.row("paths of strangers", attack).await;
    let more = siege.group.memory().saturating_sub(before) >> 20;
    assert!(more < 24, "{more} MiB more than before");
    siege.end();
}

/// Refusals of strangers are recorded, and few of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_fill_the_trail() {
    let siege = Siege::begin_with(&["--audit-log-path={trail}"]).await;
    let attack = async {
        let client = siege.stranger(None, ADDRESSES.start);
        for _ in 0..100 {
            let path = format!(
                "/apis/navigator.jetstack.io/v1beta1/namespaces/{}/pilots",
                "x".repeat(12_000)
            );
            let request = Request::post(path).header("Audit-ID", "i".repeat(1000));
            let reply = client.send(request.body(String::new()).unwrap()).await.unwrap();
            assert_eq!(reply.status, 403);
        }
    };
    Box::pin(siege.row("refused strangers", attack)).await;
    let trail = std::fs::read_to_string(siege.world.path("trail")).unwrap();
    let own = trail.lines().filter(|line| line.contains("system:anonymous")).collect::<Vec<_>>();
    assert!(!own.is_empty(), "the first one is recorded");
    assert!(own.len() <= 10, "{} lines of 100 refusals", own.len());
    let longest = own.iter().map(|line| line.len()).max().unwrap_or_default();
    assert!(longest < 16 * 1024, "{longest} bytes in a line");
    siege.end();
}
