//! The example of a database from outside of `src`: real Redis servers under the example's pilots, over
//! the example's API server.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use kube::{Api, api::PostParams};
use navigator::{
    api::{V1BETA1, scheme::Scheme, v1beta1},
    pilot::{
        clients::resp::{RespReply, RespServer},
        driver::Error,
    },
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use self::redis::kind::{NAMES, Redis, RedisNode};
use crate::support::{
    bed::{Bed, NAMESPACE, condition},
    nodes::{Cluster, Nodes},
    seat::{Seat, signal},
    server::World,
    wait::until,
};

mod leader;
mod process;
mod secure;

// The whole example, so that its unit tests run here.
#[path = "../../examples/redis/main.rs"]
mod redis;
const _: fn() -> std::process::ExitCode = redis::main;

/// A failover takes half a minute, on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(180);

/// Where cargo puts examples: beside the folder of this test.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples/redis");
    let shown = program.display();
    assert!(program.is_file(), "{shown} is missing: run cargo build --example redis");
    program
}

async fn bed() -> Bed {
    Bed::around(World::new().await.running(program())).await
}

#[test]
fn a_database_without_a_past_is_served_in_one_version() {
    let scheme = Scheme::new(&[&redis::kind::DATABASE]);
    let kind = scheme.by_plural(NAMES.plural).unwrap();
    assert_eq!(kind.versions(), [V1BETA1]);
}

/// Starts three nodes on 127.x.`net`.1 and on; returns them, the primary, and the replicas.
async fn form(bed: &Rc<Bed>, net: u8) -> (Nodes, usize, [usize; 2]) {
    let mut nodes = placed(bed, net, json!({"version": "7.0.15"}));
    nodes.form().await;
    let first = led(&nodes, 1, 1, &[0, 1, 2]).await;
    (nodes, first, [(first + 1) % 3, (first + 2) % 3])
}

/// Places for three nodes of this spec on 127.x.`net`.1 and on.
fn placed(bed: &Rc<Bed>, net: u8, spec: Value) -> Nodes {
    let name = "demo".to_owned();
    let (kind, label, lease) = (NAMES.kind, NAMES.cluster_label, (NAMES.leader_lease)(&name));
    let mut nodes = Nodes::new(bed, Cluster { kind, label, name, lease, spec });
    for number in 0..3 {
        let (name, address) = (format!("redis-demo-a-{number}"), [127, 0, net, number + 1]);
        let root = bed.world.folder.path();
        let seat = Seat::new("redis", &name, address, "/usr".as_ref(), root);
        nodes.push(Seat { program: program(), ..seat });
    }
    nodes
}

/// Asks a node that is not secured.
async fn ask(at: SocketAddr, commands: &[&[&str]]) -> Result<Vec<RespReply>, Error> {
    RespServer::without_tls(at).send_commands(commands).await
}

fn at(nodes: &Nodes, node: usize) -> SocketAddr {
    (nodes.seat(node).address, 6379).into()
}

/// Epoch, run and primary that a node has on record, and the node's own role.
async fn part(
    client: &RespServer,
    nodes: &Nodes,
    node: usize,
) -> Option<(u64, u64, String, String)> {
    let asked = client
        .with_address(at(nodes, node))
        .send_commands(&[&["FCALL_RO", "navigator", "0"], &["ROLE"]])
        .await;
    let replies = asked.ok()?;
    let record: Value = serde_json::from_str(replies[0].text()).ok()?;
    let RespReply::List(role) = &replies[1] else { return None };
    let words: Vec<&str> = role.iter().map(RespReply::text).collect();
    let role = if words[0] == "slave" { words[3] } else { words[0] }.to_owned();
    let number = |key: &str| record[key].as_u64();
    Some((number("epoch")?, number("run")?, record["primary"].as_str()?.to_owned(), role))
}

/// Waits until these nodes have a primary of this epoch and run; says who it is.
async fn led(nodes: &Nodes, epoch: u64, run: u64, these: &[usize]) -> usize {
    led_as(&RespServer::without_tls(at(nodes, 0)), nodes, (epoch, run), these).await
}

async fn led_as(
    client: &RespServer,
    nodes: &Nodes,
    (epoch, run): (u64, u64),
    these: &[usize],
) -> usize {
    until(&format!("a primary of epoch {epoch}.{run}"), PATIENCE, async || {
        let parts = join_all(these.iter().map(|node| part(client, nodes, *node))).await;
        let primary = these.iter().copied().find(|node| {
            let name = nodes.name(*node);
            let role = |other: &usize| if other == node { "master" } else { "connected" };
            let wanted = |other| (epoch, run, name.to_owned(), role(other).to_owned());
            these.iter().map(wanted).eq(parts.iter().flatten().cloned())
        });
        primary.ok_or_else(|| format!("{these:?}: {parts:?}"))
    })
    .await
}

/// Waits until the Pilot of a node says so.
async fn reports(nodes: &Nodes, node: usize, role: &str, epoch: u64) {
    nodes
        .shows(node, &format!("{role} of epoch {epoch}"), PATIENCE, |pilot| {
            let part = pilot.status.part::<RedisNode>()?;
            (part.role == role && part.epoch == epoch).then_some(())
        })
        .await;
}

/// Writes numbers to a node that takes them, and notes which of them one replica acknowledged.
struct Writer {
    acknowledged: Arc<Mutex<Vec<u64>>>,
    work: JoinHandle<()>,
}

impl Writer {
    fn start(nodes: &Nodes) -> Self {
        let acknowledged = Arc::<Mutex<Vec<u64>>>::default();
        let (noted, all) = (acknowledged.clone(), [0, 1, 2].map(|node| at(nodes, node)));
        #[expect(clippy::disallowed_methods, reason = "aborted by its owner")]
        let work = tokio::spawn(async move {
            for (number, at) in (0..).zip(all.into_iter().cycle()) {
                let key = u64::to_string(&number);
                let write: [&[&str]; 2] = [&["SET", &key, "written"], &["WAIT", "1", "500"]];
                if let Ok([_, RespReply::Text(replicas)]) = ask(at, &write).await.as_deref()
                    && replicas != "0"
                {
                    noted.lock().unwrap().push(number);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { acknowledged, work }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until writes are acknowledged again; then all that ever were are at these nodes.
    async fn lost_nothing(&self, nodes: &Nodes, at_these: &[usize]) {
        let before = self.count();
        until("writes are acknowledged", PATIENCE, async || {
            let count = self.count();
            if count > before + 20 { Ok(()) } else { Err(format!("{before}, then {count}")) }
        })
        .await;
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        for node in at_these {
            until(&format!("node {node} has all"), PATIENCE, async || {
                let keys = acknowledged.iter().map(u64::to_string);
                let keys: Vec<String> = ["EXISTS".to_owned()].into_iter().chain(keys).collect();
                let command: Vec<&str> = keys.iter().map(String::as_str).collect();
                let found = ask(at(nodes, *node), &[&command]).await;
                let count = found.as_ref().map(|found| found[0].text().to_owned());
                if count.is_ok_and(|count| count == acknowledged.len().to_string()) {
                    Ok(())
                } else {
                    Err(format!("{found:?} of {}", acknowledged.len()))
                }
            })
            .await;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.work.abort();
    }
}

#[tokio::test]
async fn a_lost_primary_is_succeeded_and_returns_as_a_replica_and_the_next_one_hands_over() {
    let bed = Rc::new(bed().await);
    let (mut nodes, first, replicas) = form(&bed, 101).await;
    let writer = Writer::start(&nodes);
    writer.lost_nothing(&nodes, &[0, 1, 2]).await;
    reports(&nodes, first, "primary", 1).await;

    // Only the primary's process is killed: the node goes on as primary.
    signal(nodes.database(first).unwrap(), Signal::SIGKILL);
    assert_eq!(led(&nodes, 1, 2, &[0, 1, 2]).await, first);
    writer.lost_nothing(&nodes, &[0, 1, 2]).await;

    // The primary's node is killed: another one succeeds it.
    nodes.kill(first).await;
    let second = led(&nodes, 2, 1, &replicas).await;
    writer.lost_nothing(&nodes, &replicas).await;

    // The old primary comes back, and is never a master.
    nodes.start(first);
    until("the old primary is a replica", PATIENCE, async || {
        let part = part(&RespServer::without_tls(at(&nodes, first)), &nodes, first).await;
        let role = part.as_ref().map(|(.., role)| &**role);
        assert_ne!(role, Some("master"), "{part:?}");
        if role == Some("connected") { Ok(()) } else { Err(format!("{part:?}")) }
    })
    .await;
    assert_eq!(led(&nodes, 2, 1, &[0, 1, 2]).await, second);
    writer.lost_nothing(&nodes, &[0, 1, 2]).await;
    reports(&nodes, first, "replica", 2).await;

    // A primary that is told to leave hands over first.
    let leave = json!({"phase": "Decommissioned"});
    nodes.change(second, leave.clone()).await;
    nodes.phase(second, "Decommissioned").await;
    let rest: Vec<usize> = (0..3).filter(|node| *node != second).collect();
    let heir = led(&nodes, 3, 1, &rest).await;
    writer.lost_nothing(&nodes, &rest).await;

    // A replica leaves, and the last node does not.
    let last = rest[usize::from(heir == rest[0])];
    nodes.change(last, leave.clone()).await;
    nodes.phase(last, "Decommissioned").await;
    nodes.change(heir, leave).await;
    nodes
        .shows(heir, "a refusal", PATIENCE, |pilot| {
            condition(pilot, "Decommissioned")?.2.contains("the last node").then_some(())
        })
        .await;
    assert_eq!(led(&nodes, 3, 1, &[heir]).await, heir);
}

#[tokio::test]
async fn a_primary_that_stood_still_is_no_second_primary_when_it_wakes() {
    let bed = Rc::new(bed().await);
    let (nodes, first, replicas) = form(&bed, 102).await;
    let writer = Writer::start(&nodes);
    writer.lost_nothing(&nodes, &[0, 1, 2]).await;
    let processes = [nodes.running(first).pid(), nodes.database(first).unwrap()];
    for process in processes {
        signal(process, Signal::SIGSTOP);
    }
    let second = led(&nodes, 2, 1, &replicas).await;
    for process in processes {
        signal(process, Signal::SIGCONT);
    }
    assert_eq!(led(&nodes, 2, 1, &[0, 1, 2]).await, second);
    writer.lost_nothing(&nodes, &[0, 1, 2]).await;
    assert_eq!(nodes.database(first), Some(processes[1]), "it was not restarted for that");
}

#[tokio::test]
async fn its_kind_is_served_with_the_rules_of_all_clusters_and_its_own() {
    let bed = bed().await;
    let clusters =
        Api::<v1beta1::Cluster<Redis>>::namespaced(bed.pilots().into_client(), NAMESPACE);
    let create = async |spec: Value| {
        let cluster = json!({"metadata": {"name": "shop"}, "spec": spec});
        clusters.create(&PostParams::default(), &serde_json::from_value(cluster).unwrap()).await
    };
    let pools = json!([{"name": "a", "replicas": 3, "persistence": {"size": "1Gi"}}]);
    for (spec, why) in [
        (json!({"version": "6.2.0", "nodePools": pools}), "only 7.x is"),
        (json!({"version": "7.0.15", "nodePools": pools, "config": {"port": 1}}), "spec.config"),
        (json!({"version": "7.0.15", "nodePools": [{"name": "a", "replicas": -1}]}), "replicas"),
    ] {
        let refusal = create(spec).await.unwrap_err().to_string();
        assert!(refusal.contains(why), "{why}: {refusal}");
    }
    let config = json!({"maxmemory-policy": "allkeys-lru"});
    let made = create(json!({"version": "7.0.15", "nodePools": pools, "config": config})).await;
    assert_eq!(made.unwrap().spec.node_pools[0].replicas, Some(3));
}

#[test]
fn an_end_is_explained_by_what_redis_says() {
    let volume = navigator::pilot::volume::data_volume::Volume::default();
    let driver = (redis::pilot::DATABASE.make)(PathBuf::new(), PathBuf::new(), volume);
    for (line, reason) in [
        ("*** FATAL CONFIG FILE ERROR (Redis 7.0.15) ***", Some("ConfigRejected")),
        ("# Out Of Memory allocating 64 bytes!", Some("OutOfMemory")),
        ("# Warning: 127.0.0.2:6379: bind: Address already in use", Some("PreflightFailed")),
        ("* Ready to accept connections", None),
    ] {
        let ending = driver.explain_exit(1, &[line.to_owned()]);
        assert_eq!(ending.map(|ending| ending.reason), reason, "{line}");
    }
}

/// A third database brings a rung renderer, a reload and a user writer, and the names that go with
/// them. What it needs beyond this is missing in the framework.
#[test]
fn security_is_a_renderer_a_reload_and_a_user_writer() {
    /// Lines of the example before it could be secured, without its unit tests.
    const OPEN: usize = 1126;
    const LARGEST_GAIN: usize = 250;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/redis");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let lines = sources.map(|path| {
        let text = fs::read_to_string(path).unwrap();
        text.split("#[cfg(test)]").next().unwrap().lines().count()
    });
    let lines: usize = lines.sum();
    assert!(lines <= OPEN + LARGEST_GAIN, "{lines} lines, {} more than before", lines - OPEN);
}

#[test]
fn no_line_of_the_sources_knows_this_database() {
    for (path, text) in crate::architecture::all_sources() {
        let line = text.lines().position(|line| line.to_lowercase().contains("redis"));
        assert_eq!(line, None, "{path}");
    }
}
