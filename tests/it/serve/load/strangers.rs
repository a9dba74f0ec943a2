//! Requests of unauthenticated clients: certificate chains, heads, paths; and selectors of users
//! who may only read.

use std::time::Duration;

use futures::future::join_all;
use http::Request;
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{
    ANSWER, PILOTS, SERVICE, Siege, as_user,
    attack::{AttackTally, print_figures},
};
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
        let mut tally = AttackTally::default();
        // The client may be turned away in the handshake.
        match timeout(ANSWER, client.send(request)).await.expect("every chain is judged") {
            Ok(reply) => tally.answer(reply.status),
            Err(_) => tally.cut(),
        }
        tally
    }));
    let tally = AttackTally::sum(siege.row("expensive chains", attack).await);
    tally.print("expensive chains");
    // Each chain was shown, and its client turned away: in the handshake, or by an answer.
    assert_eq!((tally.refused() + tally.lost(), tally.served()), (4, 0), "{tally:?}");
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
                let mut stream = siege.stranger(None, address).try_http2().await.ok()?;
                // The server stops reading where it has seen enough.
                drop(timeout(ANSWER, stream.write_all(head)).await);
                let mut answer = Vec::new();
                let end = timeout(ANSWER, stream.read_to_end(&mut answer)).await;
                drop(end.expect("a head without an end is given up"));
                let mut tally = AttackTally::default();
                tally.http2(&answer, 1);
                Some(tally)
            })
        }));
        // An address may hold only so many connections; the others are turned away.
        let opened: Vec<_> = siege.row(name, attack).await.into_iter().flatten().collect();
        let count = opened.len();
        let tally = AttackTally::sum(opened);
        tally.print(name);
        assert!(count >= 100 && tally.served() == 0, "{name}: {count} were opened, {tally:?}");
    }
    siege.end();
}

/// Connections that one address opens at once.
const AT_ONCE: usize = 200;

/// A connection is used once and then sends a head, slowly; its client showed a long chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connections_take_little() {
    let siege = Siege::begin().await;
    let before = siege.group.memory();
    for (name, identity, least) in [
        ("slow heads", None, AT_ONCE),
        // A long chain is turned away in the handshake.
        ("slow heads behind long chains", Some(pki::maze()), 0),
    ] {
        let part = format!("X: {}\r\n", "x".repeat(1000)).repeat(90);
        let attack = join_all(ADDRESSES.flat_map(|address| {
            let (siege, part, identity) = (&siege, &part, identity.as_ref());
            (0..AT_ONCE).map(move |_| async move {
                let mut stream = siege.stranger(identity, address).connect().await.ok()?;
                let first = format!("GET /nope HTTP/1.1\r\nHost: {SERVICE}\r\n\r\n");
                stream.write_all(first.as_bytes()).await.ok()?;
                stream.read_exact(&mut [0; 16]).await.ok()?;
                let head = format!("GET / HTTP/1.1\r\nHost: {SERVICE}\r\n{part}");
                timeout(ANSWER, stream.write_all(head.as_bytes())).await.ok()?.ok()?;
                Some(stream)
            })
        }));
        let streams = siege.row(name, attack).await;
        siege.row(&format!("{name}, held"), std::future::ready(())).await;
        let more = siege.more_memory(before);
        assert!(more < 80, "{name}: {more} MiB more than before");
        let held = streams.iter().flatten().count();
        let all = streams.len();
        print_figures(&format!("{name}: {held} of {all} sent a head, {more} MiB more"));
        assert!(held >= least, "{name}: {held} of {all} sent a head");
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
    for (name, values, is_served) in
        [("watches with long selectors", 12_000, false), ("with as long as may be", 1000, true)]
    {
        let before = siege.group.memory();
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
            };
            tokio::select! {
                () = all => {}
                _ = connection => {}
            }
            // Those that were begun are open until here.
            (opened, siege.more_memory(before))
        };
        let (opened, more) = siege.row(name, attack).await;
        let mut tally = AttackTally::default();
        for answer in opened {
            match answer {
                Ok(response) => tally.answer(response.status().as_u16()),
                Err(_) => tally.cut(),
            }
        }
        tally.print(name);
        print_figures(&format!("{name}: {more} MiB more"));
        if is_served {
            assert!(tally.served() >= 100, "{name}: {tally:?}");
        } else {
            assert_eq!(tally.codes_but_429(), [400], "{name}: {tally:?}");
        }
        assert!(more < 80, "{name}: {more} MiB more than before");
    }
    siege.end();
}

/// Requests that one connection sends with amplified headers.
const STREAMS: usize = 20;

/// Requests over HTTP/2. The first one sends a value of 4 KB; each of them refers to it so many times,
/// by a byte each.
fn amplified_heads(times: usize) -> Vec<u8> {
    let mut bytes =
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    let clause = "a/b;q=0.1,".repeat(390);
    for stream in 0..STREAMS {
        let mut head = vec![0x82, 0x87, 0x84, 0x41, 1, b'x'];
        if stream == 0 {
            // accept, with incremental indexing.
            head.extend([0x53, 0x7f, 0xbd, 0x1d]);
            head.extend(clause.as_bytes());
        }
        head.extend(vec![0xbe; times]);
        let [_, length @ ..] = u32::try_from(head.len()).unwrap().to_be_bytes();
        bytes.extend(length);
        bytes.extend([1, 5]);
        bytes.extend(u32::try_from(2 * stream + 1).unwrap().to_be_bytes());
        bytes.extend(head);
    }
    bytes
}

/// Sends requests over four connections from each address. Returns what became of them, and what the
/// server spent.
async fn send_heads(siege: &Siege, name: &str, bytes: &[u8]) -> (AttackTally, Duration) {
    let before = siege.server.spent();
    let attack = join_all(ADDRESSES.flat_map(|address| [address; 4]).map(async |address| {
        let mut stream = siege.stranger(None, address).connect_http2().await;
        let (mut tally, mut answer) = (AttackTally::default(), Vec::new());
        // The server may end the connection before all was sent.
        drop(stream.write_all(bytes).await);
        let read = async {
            while !AttackTally::is_answered(&answer, STREAMS) {
                if stream.read_buf(&mut answer).await.unwrap_or_default() == 0 {
                    break;
                }
            }
        };
        timeout(ANSWER, read).await.expect("every request is answered, or its connection ends");
        tally.http2(&answer, STREAMS);
        tally
    }));
    let tally = AttackTally::sum(siege.row(name, attack).await);
    tally.print(name);
    (tally, siege.server.spent().saturating_sub(before))
}

/// A value that is sent once, and then referred to as often as a head may, costs little more than to
/// be sent once: the yardstick is what the same server spends on that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn amplified_headers_cost_little() {
    let siege = Siege::begin().await;
    let (plain, yardstick) = send_heads(&siege, "long headers", &amplified_heads(0)).await;
    assert!(plain.landed() >= 10 * STREAMS, "{plain:?}");
    let name = "headers that HPACK amplifies";
    let (tally, spent) = send_heads(&siege, name, &amplified_heads(240)).await;
    print_figures(&format!("{name}: {spent:?}, and {yardstick:?} for long ones"));
    assert!(tally.refused() >= 10 * STREAMS, "{tally:?}");
    assert!(spent < 5 * yardstick, "{spent:?}, and {yardstick:?} for long ones");
    siege.end();
}

/// Each request is for a path of its own, which costs a question to kube-apiserver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_of_strangers_are_not_kept() {
    let siege = Siege::begin().await;
    let before = siege.group.memory();
    let attack = join_all((0..8_u8).map(async |task| {
        let client = siege.stranger(None, ADDRESSES.start + task % 4);
        let mut tally = AttackTally::default();
        for at in 0..500 {
            let path = format!("/{task}/{at}/{}", "x".repeat(9000));
            match client.send(Request::get(path).body(String::new()).unwrap()).await {
                Ok(reply) => tally.answer(reply.status),
                Err(_) => tally.cut(),
            }
        }
        tally
    }));
    let tally = AttackTally::sum(siege.row("paths of strangers", attack).await);
    tally.print("paths of strangers");
    assert_eq!(tally.codes_but_429(), [403], "{tally:?}");
    // So many paths would take 36 MB, were they kept.
    assert!(tally.refused() >= 3_000, "{tally:?}");
    let more = siege.more_memory(before);
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
