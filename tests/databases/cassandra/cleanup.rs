//! Rows that were given away and deleted since: they come back when a node leaves, and do not after a
//! cleanup. And a node that was away too long.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::api::{Patch, PatchParams};
use navigator::databases::cassandra::v1beta1::{CassandraCleanup, CassandraNode};
use serde_json::{Value, json};

use super::{
    VERSION,
    client::{every_write_is_synced, make_shop},
    ring::{JOIN, Ring, SOON, START},
};
use crate::{cql::Consistency, report::Told, support::wait::until};

const ROWS: i32 = 300;
const STORAGE_SERVICE: &str = "org.apache.cassandra.db:type=StorageService";

pub(crate) async fn deleted_rows_stay_dead_after_a_cleanup_and_come_back_without(told: &Told) {
    let mut ring = Ring::new(VERSION, 23, every_write_is_synced()).await;
    ring.grow(2).await;
    ring.is_one(&[0, 1]).await;
    make_shop(&mut ring.cql(0), 1).await;
    ring.cql(0).run("ALTER TABLE shop.orders WITH gc_grace_seconds = 1");

    joined(&mut ring, &[0, 1], told).await;
    delete(&ring, &[0, 1, 2]).await;
    leaves(&ring, 2, &[0, 1]).await;
    let back = ring.cql(0).count("shop.orders");
    assert!(back > 0, "nothing came back");
    told.claim(format!("without a cleanup {back} of {ROWS} deleted rows are back when it leaves"));
    nothing_due(&ring, &[0, 1]).await;
    told.claim("what came back with its ranges is not owed for any more");

    delete(&ring, &[0, 1]).await;
    joined(&mut ring, &[0, 1], told).await;
    delete(&ring, &[0, 1, 3]).await;
    cleaned_one_after_the_other(&ring, &[0, 1], told).await;
    leaves(&ring, 3, &[0, 1]).await;
    assert_eq!(ring.cql(0).count("shop.orders"), 0);
    told.claim("after a cleanup they stay dead");

    away_too_long(&mut ring, 1, told).await;
}

/// Writes rows to the nodes that are there, and adds one node. The others then owe a cleanup, and
/// the new one does not.
async fn joined(ring: &mut Ring, members: &[usize], told: &Told) {
    for id in 0..ROWS {
        let statement = format!("INSERT INTO shop.orders (id, body) VALUES ({id}, 'x')");
        ring.cql(0).query(&statement, Consistency::One).unwrap();
    }
    flush(ring, members);
    nothing_due(ring, members).await;
    let joiner = ring.add().await;
    ring.start(joiner);
    ring.serves(joiner, JOIN).await;
    for index in members {
        ring.says(*index, "CleanupDue", ("True", "RangesGivenAway"), SOON).await;
    }
    nothing_due(ring, &[joiner]).await;
    told.claim(
        "a third node joins: the two that gave ranges away owe a cleanup, the third does not",
    );
}

async fn nothing_due(ring: &Ring, nodes: &[usize]) {
    for index in nodes {
        ring.says(*index, "CleanupDue", ("False", "NothingDue"), SOON).await;
    }
}

/// Deletes every row, and has every node forget the deletions.
async fn delete(ring: &Ring, members: &[usize]) {
    for id in 0..ROWS {
        let statement = format!("DELETE FROM shop.orders WHERE id = {id}");
        ring.cql(0).query(&statement, Consistency::One).unwrap();
    }
    flush(ring, members);
    // A deletion is forgotten by its age in whole seconds alone (`gc_grace_seconds`).
    tokio::time::sleep(Duration::from_secs(3)).await;
    for index in members {
        let compact = "forceKeyspaceCompaction(boolean,java.lang.String,[Ljava.lang.String;)";
        execute(ring, *index, compact, &json!([false, "shop", []]));
    }
    assert_eq!(ring.cql(0).count("shop.orders"), 0);
}

fn flush(ring: &Ring, members: &[usize]) {
    for index in members {
        let flush = "forceKeyspaceFlush(java.lang.String,[Ljava.lang.String;)";
        execute(ring, *index, flush, &json!(["shop", []]));
    }
}

async fn leaves(ring: &Ring, index: usize, rest: &[usize]) {
    ring.change(index, json!({"phase": "Decommissioned"})).await;
    ring.says(index, "Decommissioned", ("True", "NodeDecommissioned"), JOIN).await;
    assert!(ring.seat(index).data().join(".navigator/left.json").is_file());
    ring.is_one(rest).await;
}

async fn progress(ring: &Ring, index: usize) -> Option<CassandraCleanup> {
    ring.pilot(index).await.status.part::<CassandraNode>()?.cleanup
}

/// Asks all nodes at once, as `kubectl navigator cleanup` does.
async fn cleaned_one_after_the_other(ring: &Ring, nodes: &[usize], told: &Told) {
    let request = "2026-01-01T00:00:00Z";
    let patch = json!({"metadata": {"annotations": {"navigator.jetstack.io/cleanup": request}}});
    for index in nodes {
        let patch = Patch::Merge(&patch);
        ring.bed.pilots().patch(ring.name(*index), &PatchParams::default(), &patch).await.unwrap();
    }
    until("all are cleaned up, one after the other", JOIN, async || {
        let mut phases = Vec::new();
        for index in nodes {
            phases.push(progress(ring, *index).await.map(|it| it.phase).unwrap_or_default());
        }
        let running = phases.iter().filter(|phase| *phase == "Running").count();
        assert!(running <= 1, "{phases:?}");
        let done = phases.iter().all(|phase| phase == "Done");
        if done { Ok(()) } else { Err(format!("{phases:?}")) }
    })
    .await;
    nothing_due(ring, nodes).await;
    let done = progress(ring, nodes[0]).await.unwrap();
    told.claim(format!(
        "asked at once, they are cleaned up one after the other, {} keyspaces each: nothing is due",
        done.keyspaces_done
    ));
}

/// The heartbeat is made old, so no process needs a changed clock.
async fn away_too_long(ring: &mut Ring, index: usize, told: &Told) {
    let heartbeat = ring.seat(index).data().join("data/cassandra-heartbeat");
    until("a running node writes its heartbeat", SOON, async || {
        if heartbeat.is_file() { Ok(()) } else { Err(heartbeat.display().to_string()) }
    })
    .await;
    ring.stop(index).await;
    fs::write(&heartbeat, r#"{"last_heartbeat": "2026-01-01T00:00:00Z"}"#).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    fs::File::options().write(true).open(&heartbeat).unwrap().set_modified(old).unwrap();
    ring.start(index);
    ring.says(index, "Ready", ("False", "AwayTooLong"), START).await;
    let tail = ring.pilot(index).await.status.last_termination.unwrap().log_tail.join("\n");
    assert!(tail.contains("shop.orders"), "{tail}");
    told.claim("a node that was away for longer than gc_grace_seconds is refused: AwayTooLong");
    let adopt = json!({"metadata": {"annotations": {"navigator.jetstack.io/adopt-data": "true"}}});
    let adopt = Patch::Merge(&adopt);
    ring.bed.pilots().patch(ring.name(index), &PatchParams::default(), &adopt).await.unwrap();
    ring.serves(index, START).await;
    told.claim("a person takes the risk by an annotation: it serves");
    ring.kill(0).await;
    ring.start(0);
    ring.serves(0, START).await;
    told.claim(
        "one that was away for a moment starts, though its table keeps tombstones for a second",
    );
}

/// Has a node's JVM do something, through the agent that its pilot asks too.
fn execute(ring: &Ring, index: usize, operation: &str, arguments: &Value) -> Value {
    let settings = ring.seat(index).place.join("config/jolokia.properties");
    let settings = fs::read_to_string(settings).unwrap();
    let value = |key: &str| {
        let line = settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap().to_owned()
    };
    let body = json!({
        "type": "exec", "mbean": STORAGE_SERVICE, "operation": operation, "arguments": arguments,
    })
    .to_string();
    let secret = STANDARD.encode(format!("{}:{}", value("user"), value("password")));
    let (host, port) = (value("host"), value("port"));
    let mut stream = TcpStream::connect(format!("{host}:{port}")).unwrap();
    write!(
        stream,
        "POST /jolokia/ HTTP/1.0\r\nHost: {host}\r\nAuthorization: Basic {secret}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let json = answer.split_once("\r\n\r\n").map(|(_, json)| json).unwrap_or_default();
    let start = json.find('{').unwrap_or_else(|| panic!("{answer}"));
    let mut answer: Value = serde_json::Deserializer::from_str(&json[start..])
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("{answer}"))
        .unwrap();
    assert_eq!(answer["status"], 200, "{operation}: {answer}");
    answer["value"].take()
}
