//! A client that writes without a pause and remembers what was acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};

use super::ring::{Ring, SOON};
use crate::{
    cql::{Consistency, Cql},
    support::{seat::Running, wait::until},
};

/// Pause between two writes: the client shares two cores with the databases.
const PACE: Duration = Duration::from_millis(5);

/// A node's spec for one copy of each row: by default Cassandra acknowledges a write up to a
/// tenth of a second before a crash of the process could not lose it (measured: 4 rows).
pub(crate) fn every_write_is_synced() -> Value {
    json!({"config": {"commitlog_sync": "batch"}})
}

/// Makes keyspace `shop` with one table.
pub(crate) async fn make_shop(cql: &mut Cql, factor: usize) {
    cql.run(&format!(
        "CREATE KEYSPACE shop WITH replication = \
         {{'class': 'SimpleStrategy', 'replication_factor': {factor}}}"
    ));
    cql.run(
        "CREATE TABLE shop.orders (id int PRIMARY KEY, body text) \
         WITH compression = {'enabled': 'false'}",
    );
    cql.run(
        "CREATE TABLE shop.bulk (id int PRIMARY KEY, body blob) \
         WITH compression = {'enabled': 'false'}",
    );
    until("all nodes know the tables", SOON, async || {
        let schemas = cql.schemas().map_err(|error| error.to_string())?;
        if schemas.len() == 1 { Ok(()) } else { Err(format!("{} schemas", schemas.len())) }
    })
    .await;
}

/// Writes this many rows of 256 KiB.
pub(crate) fn fill(cql: &mut Cql, rows: i32) {
    try_fill(cql, 0, rows).unwrap();
}

pub(crate) fn try_fill(cql: &mut Cql, first: i32, end: i32) -> io::Result<()> {
    let body = "5a".repeat(256 << 10);
    for id in first..end {
        let statement = format!("INSERT INTO shop.bulk (id, body) VALUES ({id}, 0x{body})");
        cql.query(&statement, Consistency::One)?;
    }
    Ok(())
}

pub(crate) fn set_factor(cql: &mut Cql, factor: usize) {
    cql.run(&format!(
        "ALTER KEYSPACE shop WITH replication = \
         {{'class': 'SimpleStrategy', 'replication_factor': {factor}}}"
    ));
}

/// Writes until it is told to stop.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeSet<i32>>>,
    thread: JoinHandle<u32>,
}

impl Writer {
    /// Writes rows from number `first` on through whichever of these nodes answers.
    pub(crate) fn start(nodes: Vec<IpAddr>, first: i32, level: Consistency) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, rows) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let thread = std::thread::spawn(move || write(&nodes, first, level, &stopped, &rows));
        Self { stop, acknowledged, thread }
    }

    pub(crate) fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// The rows that are acknowledged so far.
    pub(crate) fn rows(&self) -> BTreeSet<i32> {
        self.acknowledged.lock().unwrap().clone()
    }

    /// Waits until this many more rows are acknowledged.
    pub(crate) async fn writes(&self, more: usize) {
        let goal = self.count() + more;
        until(&format!("{goal} rows are acknowledged"), SOON, async || {
            let now = self.count();
            if now >= goal { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
    }

    /// The acknowledged rows, and how many writes were not.
    pub(crate) fn stop(self) -> (BTreeSet<i32>, u32) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.thread.join().unwrap();
        (self.acknowledged.lock().unwrap().clone(), failed)
    }
}

fn body(id: i32) -> String {
    format!("order number {id}")
}

fn write(
    nodes: &[IpAddr],
    first: i32,
    level: Consistency,
    stop: &AtomicBool,
    acknowledged: &Mutex<BTreeSet<i32>>,
) -> u32 {
    let (mut failed, mut cql) = (0, None);
    for id in first.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let node = nodes[usize::try_from(failed).unwrap() % nodes.len()];
        let mut attempt = || -> io::Result<()> {
            let mut open = match cql.take() {
                Some(open) => open,
                None => Cql::try_connect(node)?,
            };
            let text = body(id);
            open.query(
                &format!("INSERT INTO shop.orders (id, body) VALUES ({id}, '{text}')"),
                level,
            )?;
            cql = Some(open);
            Ok(())
        };
        match attempt() {
            Ok(()) => drop(acknowledged.lock().unwrap().insert(id)),
            // A row that was not acknowledged may be there or not. The next row goes to another
            // node.
            Err(_) => failed += 1,
        }
        std::thread::sleep(PACE);
    }
    failed
}

/// Those of the rows whose only copy, by the ring's tokens, is on node `index` of `ring`: the
/// keyspace must keep one copy of each. They can be lost by its departure, and by nothing else.
pub(crate) fn on_it_alone(ring: &Ring, index: usize, rows: &BTreeSet<i32>) -> BTreeSet<i32> {
    let serves = |it: &usize| ring.all[*it].running.as_ref().and_then(Running::database).is_some();
    let nodes: Vec<usize> = (0..ring.all.len()).filter(serves).collect();
    let mut owners = BTreeMap::new();
    for node in nodes {
        owners.extend(ring.cql(node).tokens().into_iter().map(|token| (token, node)));
    }
    let owner = |token: i64| {
        // The first token at or after it, round the ring.
        let next = owners.range(token..).next().or_else(|| owners.iter().next());
        next.map(|(_, node)| *node)
    };
    let found = ring.cql(index).run("SELECT id, token(id) FROM shop.orders");
    let found = found.into_iter().map(|row| {
        let cell = |column: usize| row[column].clone().unwrap();
        let id = i32::from_be_bytes(cell(0).try_into().unwrap());
        (id, i64::from_be_bytes(cell(1).try_into().unwrap()))
    });
    let there = found.filter(|(id, token)| rows.contains(id) && owner(*token) == Some(index));
    there.map(|(id, _)| id).collect()
}

/// Waits until a node can read the table at this level, and checks that every acknowledged row
/// is there as it was written.
pub(crate) async fn every_row_is_there(
    node: IpAddr,
    acknowledged: &BTreeSet<i32>,
    level: Consistency,
) {
    let rows = until(&format!("{node} reads the table at {level:?}"), SOON, async || {
        let mut cql = Cql::try_connect(node).map_err(|error| error.to_string())?;
        cql.query("SELECT id, body FROM shop.orders", level).map_err(|error| error.to_string())
    })
    .await;
    let mut found = BTreeSet::new();
    for row in rows {
        let id = i32::from_be_bytes(row[0].as_deref().unwrap().try_into().unwrap());
        assert_eq!(row[1].as_deref().unwrap_or_default(), body(id).as_bytes(), "row {id}");
        found.insert(id);
    }
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{} of {} rows are lost: {lost:?}", lost.len(), acknowledged.len());
}
