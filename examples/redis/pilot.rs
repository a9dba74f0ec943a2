//! What a pilot knows about Redis: a primary, and replicas of it.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::{join, join_all, ready};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use navigator::{
    api::v1beta1::{Decommission, Health, Pilot, PilotIntent},
    engine::exit_explanation::{ExitSign::Log, ExitTable},
    error::chain,
    pilot::{
        clients::resp::RespServer,
        database::DrivenDatabase,
        driver::{
            DatabaseNode, DecommissionState, DepartureRefusal, Driver, DriverAnswer, Error,
            LeaderPermit, NodeObservation, ProcessSpec, ReplicationRole, SecuredDatabase, StopPlan,
        },
        kube::peers,
        node::blockers::current_time,
        security::RecordedAccess,
        volume::{
            config_files::write_whole, data_volume::Volume, remembered_state::RememberedState,
            state_file::StateFile,
        },
    },
};
use nix::libc;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    configure::render,
    controller::DATABASE as REDIS,
    kind::{
        COPIES_ELSEWHERE, ELECTION_POSSIBLE, NAMES, PORT, PRIMARY_KNOWN, PilotRedisStatus,
        REPLICA_IN_SYNC, RedisNode,
    },
    security::{self, NodeAccess},
    succession::{Absence, Member, Step, Views, elect, heard, next, orphaned, primary},
    view::{ASKED, Record, Released, SAYS, View, follow, set, written},
};

/// How long a hand-over may hold up writes.
const HAND_OVER: Duration = Duration::from_secs(5);
/// A pilot is silent after two and a half of its heartbeats.
const SILENCE: Duration = Duration::from_secs(75);
const CLIENT: &str = "client";
/// Folder of Redis on the data volume.
const FOLDER: &str = "redis";

/// Redis, as pilots know it.
pub(crate) const DATABASE: DrivenDatabase = DrivenDatabase {
    home_variable: "REDIS_HOME",
    home: "/usr/local",
    program: "bin/redis-server",
    started: "RedisStarted",
    ports: &[PORT],
    ..DrivenDatabase::new(&NAMES, has_data, |config, data, volume| {
        Arc::new(Server::new(&config, &data, &volume))
    })
};

fn has_data(data: &Path) -> bool {
    fs::read_dir(data.join(FOLDER)).is_ok_and(|mut entries| entries.next().is_some())
}

/// An INT that follows a TERM ends a Redis that does not get ready to end, with code 1.
const STOP: StopPlan = StopPlan {
    then: &[(Duration::from_secs(20), libc::SIGINT)],
    success: &[1],
    ..StopPlan::DEFAULT
};

const EXITS: ExitTable = &[
    (Log("FATAL CONFIG FILE"), "ConfigRejected", "Redis does not take a setting of spec.config"),
    (Log("already in use"), "PreflightFailed", "the port is in use by another process"),
    (Log("No space left"), "DiskFull", "the volume is full; grow it or delete data"),
    (Log("Out Of Memory"), "OutOfMemory", "Redis got no memory; raise the limit"),
    (Log("Bad file format"), "ProcessExited", "its data are damaged; see redis-check-aof"),
];

/// What the pilot knows of its node, in `.navigator/redis.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Known {
    name: String,
    address: Option<SocketAddr>,
    /// The node was told to begin a cluster.
    founds: bool,
    /// The other members, as last listed.
    members: Vec<Member>,
    /// The record, as last seen in the data.
    record: Option<Record>,
    released: Released,
}

impl StateFile for Known {
    const FILE: &'static str = "redis.json";
}

/// One Redis node.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) access: RecordedAccess<NodeAccess>,
    state: RememberedState<Known>,
    seen: Mutex<Seen>,
    /// Held while the node's part in its cluster is changed.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Since when the primary is away.
    absent: Option<Instant>,
    /// In the leading pilot: the primary's pilot is silent, too; and what an election waits for.
    silent: bool,
    obstacle: Option<String>,
}

impl Server {
    fn new(config: &Path, data: &Path, volume: &Volume) -> Self {
        let access = RecordedAccess::new(config);
        let state = RememberedState::new(data, volume);
        Self { access, state, seen: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic while held")
    }

    /// What is known of the node, and how it is asked.
    pub(crate) fn known(&self) -> Result<(Known, RespServer), Error> {
        let known = self.state.cached_state();
        let unknown = || Error::NotYet("where it listens is not known".to_owned());
        let address = known.address.ok_or_else(unknown)?;
        let own = self.server(address)?;
        Ok((known, own))
    }

    /// Writes the state file, and from then on goes by the new state.
    async fn save(&self, known: &Known) -> Result<(), Error> {
        let known = known.clone();
        let saved = self.state.try_change(move |state| *state = known).await?;
        saved.ok_or_else(|| Error::NotYet("the data volume is busy".to_owned()))
    }

    /// Brings the node nearer to its place in the cluster; returns the views of all members, its
    /// own last.
    async fn settle(&self) -> Result<(View, Vec<(Member, Option<View>)>), Error> {
        let _turn = self.turn.lock().await;
        let (mut known, node) = self.known()?;
        let (own, mut all) = join(View::of(&node), look_at(&node, &known.members)).await;
        let mut own = own?;
        if own.record.is_none() && known.record.is_some() {
            // A client flushed all functions.
            own.record.clone_from(&known.record);
            if let Some(record) = own.record.as_ref().filter(|_| own.is_primary(&known.name)) {
                record.write(&node).await?;
            }
        }
        if known.record != own.record {
            known.record.clone_from(&own.record);
            self.save(&known).await?;
        }
        if own.released != known.released {
            own.released = known.released;
            set(&node, SAYS, &written(&own.released)).await?;
        }
        if own.asked.is_some() {
            set(&node, ASKED, "").await?;
        }
        let me = Member { name: known.name.clone(), address: Some(node.address) };
        all.push((me, Some(own.clone())));
        let step = next(&all, &own, known.founds, self.absence(&all));
        if step != Step::Stay {
            info!(?step, "Changing the node's part in its cluster");
            self.take(step, known, &node).await?;
        }
        Ok((own, all))
    }

    fn absence(&self, all: &Views) -> Absence {
        let mut seen = self.seen();
        if orphaned(all).is_none() {
            (seen.absent, seen.silent, seen.obstacle) = (None, false, None);
        }
        let lasts = seen.absent.get_or_insert_with(Instant::now).elapsed();
        Absence { lasts, silent: seen.silent }
    }

    async fn take(&self, step: Step, mut known: Known, own: &RespServer) -> Result<(), Error> {
        match step {
            Step::Stay => Ok(()),
            Step::Follow(primary) => follow(own, primary).await,
            Step::Release(epoch) => {
                follow(own, None).await?;
                known.released = Released { epoch, offset: View::of(own).await?.offset };
                // The others see the promise at their next look.
                self.save(&known).await
            }
            Step::Lead(record) => {
                own.send_commands(&[&["REPLICAOF", "NO", "ONE"]]).await?;
                record.write(own).await
            }
        }
    }

    async fn decommission_state(&self, node: &DatabaseNode) -> Result<DecommissionState, Error> {
        let _turn = self.turn.lock().await;
        let (known, own_node) = self.known()?;
        // The own node first: the others may have more by the time that they are looked at.
        let own = View::of(&own_node).await?;
        let others = look_at(&own_node, &members(node)).await;
        let moving = |message: String| {
            let message = Some(message);
            Ok(DecommissionState::Moving(Decommission { message, ..Decommission::default() }))
        };
        let refused = |why: &str| {
            Ok(DecommissionState::Refused(DepartureRefusal::new(&COPIES_ELSEWHERE, why)))
        };
        if others.is_empty() {
            return refused("this is the last node and has the only copy; delete the cluster");
        }
        if own.is_primary(&known.name) {
            let is_leaving = |name: &str| {
                let pilot = node.peers.iter().find(|peer| of(peer) == name);
                pilot.is_none_or(|peer| peer.spec.phase == Some(PilotIntent::Decommissioned))
            };
            let linked = heard(&others)
                .filter(|(_, view)| view.linked && view.follows == Some(own_node.address))
                .filter(|(member, _)| !is_leaving(&member.name));
            let Some((heir, _)) = linked.max_by_key(|(_, view)| view.offset) else {
                return refused("no replica that stays is linked to this node, the primary");
            };
            hand_over(&own_node, heir, own.epoch() + 1).await?;
            return moving(format!("handed over to {}", heir.name));
        }
        let Some((first, _)) = primary(&others) else {
            return Err(Error::NotYet("waits for a primary".to_owned()));
        };
        // What this replica acknowledged, another replica has, too: unless the primary remains
        // alone.
        let has_all =
            |view: &View| view.linked && view.follows == first.address && view.offset >= own.offset;
        if others.len() == 1 || own.linked && heard(&others).any(|(_, view)| has_all(view)) {
            return Ok(DecommissionState::Done);
        }
        moving("waits for another replica to have all that this one has".to_owned())
    }
}

/// The name of a Pilot.
fn of(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Does a pilot say that its node is down, or nothing at all any more?
fn is_silent(pilot: &Pilot) -> bool {
    let ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
    let heartbeat = pilot.status.last_heartbeat_time.as_ref();
    let age = heartbeat.map(|time| current_time().0.duration_since(time.0).unsigned_abs());
    !pilot.status.conditions.iter().any(ready) || age.is_none_or(|age| age > SILENCE)
}

/// The other members.
fn members(node: &DatabaseNode) -> Vec<Member> {
    let member = |peer: &Pilot| {
        let mut endpoints = peer.status.endpoints.iter();
        let address = endpoints.find(|endpoint| endpoint.name == CLIENT).and_then(|client| {
            let ip: IpAddr = client.host.parse().ok()?;
            Some((ip, u16::try_from(client.port).ok()?).into())
        });
        Member { name: of(peer).to_owned(), address }
    };
    let holds = |peer: &&Pilot| peers::holds_data(peer, &node.pilot) == Some(true);
    node.peers.iter().filter(holds).map(member).collect()
}

async fn look_at(own: &RespServer, members: &[Member]) -> Vec<(Member, Option<View>)> {
    let look = async |member: &Member| match member.address {
        Some(address) => (member.clone(), View::of(&own.with_address(address)).await.ok()),
        None => (member.clone(), None),
    };
    join_all(members.iter().map(look)).await
}

/// Gives a replica all writes, and then the part of the primary.
async fn hand_over(own: &RespServer, heir: &Member, epoch: u64) -> Result<(), Error> {
    let Some(to) = heir.address else { return Err(Error::NotYet("no address".to_owned())) };
    info!(to = heir.name, "Handing over");
    let (ip, port, limit) = (to.ip().to_string(), to.port().to_string(), HAND_OVER.as_millis());
    own.send_commands(&[&["FAILOVER", "TO", &ip, &port, "TIMEOUT", &limit.to_string()]]).await?;
    let until = Instant::now() + HAND_OVER * 2;
    while Instant::now() < until {
        let view = View::of(own).await?;
        if view.linked && view.follows == Some(to) {
            return Record { epoch, run: 1, primary: heir.name.clone() }
                .write(&own.with_address(to))
                .await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(Error::Refused(format!("nothing while {} was to take over", heir.name)))
}

/// What the views mean for people and the controller.
fn report(me: &str, own: &View, all: &Views) -> NodeObservation {
    let (leads, first, known) = (own.is_primary(me), primary(all), own.record.is_some());
    // Without a primary the members serve what they have: one of them has to lead the others to
    // the next one.
    let serving = leads || own.linked || known && first.is_none();
    let linked = heard(all).filter(|(_, view)| view.linked).count();
    let (health, blocker) = if first.is_none() {
        (Health::Red, Some((&PRIMARY_KNOWN, "no primary answers")))
    } else if leads && linked == 0 && all.len() > 1 {
        (
            Health::Yellow,
            Some((&REPLICA_IN_SYNC, "no replica has what this node, the primary, has")),
        )
    } else if own.linked || leads && linked + 1 == all.len() {
        (Health::Green, None)
    } else {
        (Health::Yellow, None)
    };
    let role = if leads { ReplicationRole::Primary } else { ReplicationRole::Replica };
    let unready = if known { "Starting" } else { "Joining" };
    let unready = (!serving).then(|| (unready, "waits for the data of the primary".to_owned()));
    let mut observation = NodeObservation::from_readiness(own.version.clone(), unready);
    observation.role = Some(role);
    observation.health = known.then_some(health);
    if let Some((rule, why)) = blocker {
        observation.add_blocker(rule, why);
    }
    observation.set_part::<RedisNode>(&PilotRedisStatus {
        role: role.name().to_owned(),
        primary: own.record.as_ref().map(|record| record.primary.clone()),
        epoch: own.epoch(),
        released: own.released.epoch,
        offset: own.offset,
        link_up: own.linked,
    });
    observation
}

impl Driver for Server {
    fn restore_state(&self) {
        if let Err(error) = self.state.read() {
            warn!(error = %chain(&error), "State of the node cannot be read");
        }
    }

    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(ready(rendered(node, Released::default()).map(drop)))
    }

    fn configure<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ProcessSpec> {
        Box::pin(async move {
            let mut known = self.state.read()?;
            let text = rendered(node, known.released)?;
            let listed = members(node);
            if !listed.is_empty() {
                known.members = listed;
            }
            known.founds |= node.may_found && !node.peers.iter().any(peers::is_member);
            if !has_data(&node.data) && !known.founds && known.members.is_empty() {
                return Err(Error::NotYet("waits for a member of the cluster".to_owned()));
            }
            of(&node.pilot).clone_into(&mut known.name);
            known.address = Some((node.address, PORT).into());
            let (folder, file) = (node.data.join(FOLDER), node.config.join("redis.conf"));
            fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder, source })?;
            write_whole(&file, text.as_bytes(), 0o600)?;
            self.state.change(|state| *state = known)?;
            if !security::wanted(node.pilot.spec.security.as_ref())? {
                self.access.set(None)?;
            }
            *self.seen() = Seen::default();
            let spec = &node.pilot.spec;
            Ok(ProcessSpec {
                program: node.home.join(DATABASE.program),
                args: vec![file.display().to_string()],
                config_hash: spec.config_hash.clone().unwrap_or_else(|| (REDIS.config_hash)(spec)),
                ..ProcessSpec::default()
            })
        })
    }

    fn refresh_peers<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            self.state.change(|known| known.members = members(node)).map(drop)
        })
    }

    fn observe(&self) -> DriverAnswer<'_, NodeObservation> {
        Box::pin(async move {
            let (own, all) = self.settle().await?;
            let (known, node) = self.known()?;
            let mut observation = report(&known.name, &own, &all);
            observation.node_id = Some(known.name);
            observation.add_endpoint(CLIENT, node.address.ip(), PORT);
            if let Some(why) = &self.seen().obstacle {
                observation.add_blocker(&ELECTION_POSSIBLE, why.as_str());
            }
            Ok(observation)
        })
    }

    fn decommission<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, DecommissionState> {
        Box::pin(self.decommission_state(node))
    }

    fn secured_database(&self) -> Option<&dyn SecuredDatabase> {
        Some(self)
    }

    fn has_lead_duties(&self) -> bool {
        true
    }

    /// Finds a successor for a primary that is gone.
    fn lead_duties<'a>(
        &'a self,
        node: &'a DatabaseNode,
        lead: &'a LeaderPermit,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let (known, own) = self.known()?;
            let mut all = members(node);
            all.push(Member { name: known.name, address: Some(own.address) });
            let all = look_at(&own, &all).await;
            let elected = elect(&all);
            let silent = orphaned(&all).is_some_and(|gone| {
                node.peers.iter().filter(|peer| of(peer) == gone.primary).all(is_silent)
            });
            {
                let mut seen = self.seen();
                (seen.silent, seen.obstacle) = (silent, elected.as_ref().err().cloned());
            }
            if let Some((successor, epoch)) = elected.map_err(Error::NotYet)?
                && lead.is_held()
            {
                info!(%successor, epoch, "Asking for a successor");
                set(&own.with_address(successor), ASKED, &written(&epoch)).await?;
                self.settle().await?;
            }
            Ok(())
        })
    }

    fn stop_plan(&self) -> StopPlan {
        STOP
    }

    fn exit_table(&self) -> ExitTable {
        EXITS
    }
}

fn rendered(node: &DatabaseNode, released: Released) -> Result<String, Error> {
    let folder = node.data.join(FOLDER).display().to_string();
    render(&node.pilot.spec, (node.address, &folder, &node.config), node.memory_limit, released)
}
