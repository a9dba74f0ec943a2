//! Cassandra: its flavour through the trait (here), and whole pilots (below).

mod client;
pub(crate) mod faults;
pub(crate) mod leaving;
pub(crate) mod life;
pub(crate) mod places;
mod ring;
mod tmpfs;

use std::{net::IpAddr, path::Path, time::Duration};

use navigator::{
    api::v1beta1::{Identity, Jvm, Pilot, PilotCassandraSpec},
    pilot::{
        cassandra::Cassandra,
        database::{Database, Node, Observation, Retirement},
    },
};
use serde_json::json;

use crate::{
    cql::Cql,
    host::{Running, home, repository},
    report::Told,
    support::wait::until,
};

const VERSION: &str = "5.0.6";
/// Measured at 14 to 22 s on a loaded machine of two cores.
const START: Duration = Duration::from_secs(180);
/// The ring delay alone is 30 s; measured at 67 to 116 s.
const JOIN: Duration = Duration::from_secs(400);

struct Member {
    database: Cassandra,
    node: Node,
    running: Option<Running>,
}

impl Member {
    fn new(place: &Path, number: u8) -> Self {
        let home = home("cassandra", VERSION);
        let place = place.join(number.to_string());
        for folder in ["data", "config", "shared"] {
            std::fs::create_dir_all(place.join(folder)).unwrap();
        }
        let agent = repository().join(".cache/jolokia-agent-jvm-2.2.9.jar");
        std::fs::copy(agent, place.join("shared/jolokia.jar")).unwrap();
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(format!("cass-test-a-{number}"));
        pilot.spec.version = Some(VERSION.to_owned());
        pilot.spec.jvm = Some(Jvm {
            heap: Some(serde_json::from_value(json!("384Mi")).unwrap()),
            options: Vec::new(),
        });
        pilot.spec.cassandra = Some(PilotCassandraSpec {
            cluster_name: Some("test".to_owned()),
            rack: Some("a".to_owned()),
            ..PilotCassandraSpec::default()
        });
        let (config, data) = (place.join("config"), place.join("data"));
        Self {
            database: Cassandra::new(config.clone(), data.clone()),
            node: Node {
                pilot,
                peers: Vec::new(),
                cluster_uid: Some("uid".to_owned()),
                address: [127, 0, 1, number].into(),
                home,
                data,
                config,
                shared: place.join("shared"),
                memory_limit: None,
                may_found: false,
            },
            running: None,
        }
    }

    async fn start(&mut self) {
        let failed = self.database.preflight(&self.node).await;
        assert!(failed.is_empty(), "{failed:?}");
        let process = self.database.configure(&self.node).await.unwrap();
        let log = self.node.data.with_file_name("log");
        self.running = Some(Running::start(&process, &log));
    }

    /// Waits until the node serves; returns the reasons seen on the way.
    async fn serves(&mut self, what: &str, deadline: Duration) -> (Observation, Vec<&'static str>) {
        let mut reasons = Vec::new();
        let seen = until(what, deadline, async || {
            let running = self.running.as_mut().unwrap();
            assert!(running.ended().is_none(), "it ended: {:#?}", running.tail());
            let seen = self.database.observe().await.map_err(|error| error.to_string())?;
            if let Some(reason) = seen.reason
                && !reasons.contains(&reason)
            {
                reasons.push(reason);
            }
            if seen.serving { Ok(seen) } else { Err(format!("{seen:?}")) }
        })
        .await;
        (seen, reasons)
    }

    /// The Pilot as others see it while the node serves.
    fn published(&self, seen: &Observation) -> Pilot {
        let mut pilot = self.node.pilot.clone();
        pilot.status.endpoints.clone_from(&seen.endpoints);
        pilot.status.identity =
            Some(Identity { node_id: seen.node_id.clone(), ..Identity::default() });
        pilot.status.conditions = serde_json::from_value(json!([{
            "type": "Ready", "status": "True", "reason": "CassandraStarted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]))
        .unwrap();
        pilot
    }

    async fn stop(&mut self) {
        let mut running = self.running.take().unwrap();
        running.terminate();
        let code = running.wait(Duration::from_secs(60)).await;
        assert_eq!(code, 143, "{:#?}", running.tail());
    }

    fn address(&self) -> IpAddr {
        self.node.address
    }
}

const ROWS: i64 = 5000;

fn write_rows(address: IpAddr) {
    let mut cql = Cql::connect(address);
    cql.run("CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    cql.run("CREATE TABLE shop.orders (id int PRIMARY KEY, body text)");
    let body = "x".repeat(500);
    for id in 0..ROWS {
        cql.run(&format!("INSERT INTO shop.orders (id, body) VALUES ({id}, '{body}')"));
    }
}

pub(crate) async fn a_node_joins_and_leaves(told: &Told) {
    let place = tempfile::tempdir().unwrap();
    let mut first = Member::new(place.path(), 1);
    let mut second = Member::new(place.path(), 2);

    // Nobody founds without having been told to.
    assert!(first.database.configure(&first.node).await.is_err());
    first.node.may_found = true;
    first.start().await;
    let (seen, reasons) = first.serves("the founder serves", START).await;
    assert!(reasons.contains(&"Starting"), "{reasons:?}");
    assert_eq!(seen.version.as_deref(), Some(VERSION));
    assert_eq!(seen.detail.cassandra.as_ref().unwrap().bootstrap_bytes_received, None);
    assert!(seen.blockers.is_empty(), "{:?}", seen.blockers);
    write_rows(first.address());
    told.claim("a founder serves; nobody founds without being told");

    // The last node stays.
    let refused = first.database.retire(&first.node).await.unwrap();
    assert!(
        matches!(&refused, Retirement::Refused(reason) if reason.contains("last node")),
        "{refused:?}"
    );
    first.database.cancel_retirement(&first.node).await.unwrap();

    second.node.peers = vec![first.published(&seen)];
    second.start().await;
    let (joined, reasons) = second.serves("a second node joins", JOIN).await;
    assert!(reasons.contains(&"Joining"), "{reasons:?}");
    let received = joined.detail.cassandra.as_ref().unwrap().bootstrap_bytes_received;
    told.note(&format!("it received {received:?} bytes"));
    assert!(received.unwrap() > 10_000, "{received:?}");
    assert_eq!(Cql::connect(second.address()).count("shop.orders"), ROWS);
    told.claim("a second node joins and receives its share");
    first.node.peers = vec![second.published(&joined)];
    first.database.refresh(&first.node).await.unwrap();

    // A stop that was asked for is clean, and the node comes back as itself.
    second.database.drain().await.unwrap();
    second.stop().await;
    until("the first node misses the second", Duration::from_secs(90), async || {
        let seen = first.database.observe().await.unwrap();
        let rules: Vec<&str> = seen.blockers.iter().map(|b| b.predicate.as_str()).collect();
        if rules.contains(&"PeersUp") { Ok(()) } else { Err(format!("{rules:?}")) }
    })
    .await;
    let refused = first.database.retire(&first.node).await.unwrap();
    assert!(
        matches!(&refused, Retirement::Refused(reason) if reason.contains("down")),
        "{refused:?}"
    );
    first.database.cancel_retirement(&first.node).await.unwrap();
    second.start().await;
    let (returned, _) = second.serves("the second node returns", START).await;
    assert_eq!(returned.node_id, joined.node_id);
    told.claim("a stopped node is missed, and comes back as itself");
    assert_eq!(returned.detail.cassandra.unwrap().bootstrap_bytes_received, received);

    // A keyspace that needs both holds the node back; with one copy it may leave.
    // Said to the node that leaves: others learn of a change a moment later.
    let mut cql = Cql::connect(second.address());
    let replicas = |factor: u8| {
        format!(
            "ALTER KEYSPACE shop WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {factor}}}"
        )
    };
    until("both nodes see each other", Duration::from_secs(90), async || {
        let seen = second.database.observe().await.unwrap();
        if seen.blockers.is_empty() { Ok(()) } else { Err(format!("{:?}", seen.blockers)) }
    })
    .await;
    cql.run(&replicas(2));
    let refused = second.database.retire(&second.node).await.unwrap();
    assert!(
        matches!(&refused, Retirement::Refused(reason) if reason.contains("factor 2")),
        "{refused:?}"
    );
    cql.run(&replicas(1));
    leave(&mut second).await;
    let mut cql = Cql::connect(first.address());
    assert_eq!(cql.count("shop.orders"), ROWS);
    told.claim(
        "a node that replicas need stays; with fewer replicas it leaves, all rows are there",
    );

    // Its process lives on until it is stopped; its data never start again.
    second.stop().await;
    assert!(second.database.configure(&second.node).await.is_err());
    let memory = second.node.data.join(".navigator/cassandra.json");
    let mut forgotten: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&memory).unwrap()).unwrap();
    forgotten["left"] = json!(false);
    std::fs::write(&memory, forgotten.to_string()).unwrap();
    second.start().await;
    let running = second.running.as_mut().unwrap();
    let code = running.wait(START).await;
    let ending = second.database.explain_exit(code, &running.tail()).expect("it is a known ending");
    assert!(ending.left, "{ending:?}");
    assert_eq!(second.database.retire(&second.node).await.unwrap(), Retirement::Left);
    told.claim("the data of a node that left never start again");
    first.stop().await;
}

async fn leave(member: &mut Member) {
    let mut percents = Vec::new();
    until("the second node leaves", JOIN, async || {
        match member.database.retire(&member.node).await.unwrap() {
            Retirement::Left => Ok(()),
            Retirement::Moving(progress) => {
                if let Some(percent) = progress.percent.filter(|_| progress.irreversible) {
                    percents.push(percent);
                }
                Err(format!("{progress:?}"))
            }
            Retirement::Refused(reason) => panic!("refused: {reason}"),
        }
    })
    .await;
    assert!(percents.is_sorted(), "{percents:?}");
    assert!(member.database.cancel_retirement(&member.node).await.is_err());
}
