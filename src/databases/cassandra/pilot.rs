//! Cassandra for the pilot: how a node is configured, observed and stopped.
//!
//! Owns the connection to the running JVM and what was seen through it. The pilot starts no JVM to
//! ask a question; the Jolokia agent answers over HTTP on loopback.

mod cleanup;
#[cfg(test)]
mod cleanup_tests;
mod configure;
mod cql;
mod data_resurrection;
mod decommission;
#[cfg(test)]
mod fault_tests;
mod held_ranges;
mod join_progress;
mod jolokia;
mod node_view;
mod observation;
mod preflight;
mod range_availability;
mod range_survey;
mod resolved_spec;
mod seeds;
mod state;
mod upkeep;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use nix::libc;
use serde_json::json;
use tracing::{info, warn};

use self::{
    decommission::DecommissionProgress,
    join_progress::JoinProgress,
    jolokia::{GOSSIPER, JolokiaClient, OperationOutcome, STORAGE_SERVICE},
    node_view::NodeView,
    range_availability::RangeAvailability,
    state::NodeState,
    upkeep::UpkeepState,
};
use super::{
    names,
    settings::lets_everybody_in,
    v1beta1::{CassandraNode, PilotCassandraStatus},
};
use crate::{
    api::{names::condition::CLEANUP_DUE, pilot_part::PilotParts, v1beta1::Pilot},
    databases::cassandra::facts::{AGENT_JAR, EXITS},
    engine::exit_explanation::ExitTable,
    error::chain,
    pilot::{
        database::{AgentFile, DrivenDatabase, JavaLocation},
        driver::{
            DatabaseNode, DecommissionState, Driver, DumpSignal, Error, FailedCheck, KernelNeeds,
            NodeObservation, ProcessSpec, StopPlan,
        },
        volume::{data_volume::Volume, ring, state_file::StateFile},
    },
};

/// Limit for the drain before a stop, which flushes memtables. TERM alone makes Cassandra flush,
/// too, a little slower.
const FLUSH: Duration = Duration::from_secs(60);
/// Exit code of a JVM that ended as TERM asked it to.
const TERMINATED: u8 = 143;
/// Bytes that a member of the ring must hold for a join without received data to count as failed. A
/// ring with less may have nothing to give to a joining node: Cassandra's own tables are counted,
/// too.
const LEAST_LOAD: i64 = 64 << 20;
/// Pause between two requests for the ranges while nodes are down: the tables may be large.
const RANGES_EVERY: Duration = Duration::from_secs(20);

/// The Jolokia agent, through which the pilot talks to its database without starting a JVM.
const JOLOKIA: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/jolokia-agent-jvm-2.2.9.jar"));

/// Cassandra's entry for pilots.
pub const DATABASE: DrivenDatabase = DrivenDatabase {
    names: &names::NAMES,
    home_variable: "CASSANDRA_HOME",
    home: "/opt/cassandra",
    program: "bin/cassandra",
    started: "CassandraStarted",
    orders_by_time: true,
    ports: &[names::port::STORAGE, names::port::CQL],
    joins_elsewhere: |pilot| {
        pilot.spec.part::<CassandraNode>().is_some_and(|spec| !spec.additional_seeds.is_empty())
    },
    has_data,
    preparation: None,
    conditions: &[CLEANUP_DUE],
    gauges: observation::GAUGES,
    agents: &[AgentFile { name: AGENT_JAR, bytes: JOLOKIA }],
    installed: preflight::version,
    java: Some(JavaLocation { variables: &["JAVA_HOME"], bundled: None }),
    make: |config, data, volume| Arc::new(CassandraDriver::new(config, data).on(volume)),
};

/// Do files of Cassandra lie in this data directory?
pub fn has_data(data: &Path) -> bool {
    configure::has_data(data)
}

/// The driver of one Cassandra node.
#[derive(Debug)]
pub struct CassandraDriver {
    config: PathBuf,
    data: PathBuf,
    volume: Volume,
    seen: Mutex<DriverState>,
    progress: Arc<Mutex<DecommissionProgress>>,
    upkeep: Arc<Mutex<UpkeepState>>,
}

#[derive(Debug, Default)]
struct DriverState {
    jolokia: Option<JolokiaClient>,
    ranges: Option<(Instant, RangeAvailability)>,
    join: JoinProgress,
    /// How the node joined, as last read from its volume.
    joined: JoinRecord,
}

/// What the volume records of how the node joined its ring.
#[derive(Clone, Copy, Debug, Default)]
struct JoinRecord {
    /// True when the node was a member once; `None` until the volume was read.
    member: Option<bool>,
    received: Option<i64>,
    /// Bytes that a member held while this node joined and received none of them.
    starved: Option<i64>,
}

impl CassandraDriver {
    /// Makes a driver for the folders `config` and `data` of a [`DatabaseNode`]. It takes over a
    /// database that an earlier pilot started from them.
    pub fn new(config: PathBuf, data: PathBuf) -> Self {
        Self {
            config,
            data,
            volume: Volume::default(),
            seen: Mutex::default(),
            progress: Arc::default(),
            upkeep: Arc::default(),
        }
    }

    /// Makes the driver reach its data directory through `volume`.
    #[must_use]
    pub fn on(self, volume: Volume) -> Self {
        Self { volume, ..self }
    }

    fn jolokia(&self) -> Result<JolokiaClient, Error> {
        let mut seen = self.seen.lock().expect("no panic while held");
        if seen.jolokia.is_none() {
            seen.jolokia = JolokiaClient::attach(&self.config);
        }
        seen.jolokia
            .clone()
            .ok_or_else(|| Error::Unreachable { source: "it was never configured".into() })
    }

    fn note_logins(&self, node: &DatabaseNode) {
        let logins = !lets_everybody_in(&node.pilot.spec.config);
        self.upkeep.lock().expect("no panic while held").set_logins(logins);
    }

    /// Returns which nodes share ranges. Cassandra is asked only while a node is down.
    async fn ranges(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
    ) -> Result<RangeAvailability, Error> {
        if facts.unreachable.is_empty() || !facts.is_member() {
            self.seen.lock().expect("no panic while held").ranges = None;
            return Ok(RangeAvailability::default());
        }
        {
            let seen = self.seen.lock().expect("no panic while held");
            if let Some((when, ranges)) = &seen.ranges
                && when.elapsed() < RANGES_EVERY
            {
                return Ok(ranges.clone());
            }
        }
        let ranges = RangeAvailability::ask(jolokia, facts).await?;
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.ranges = Some((Instant::now(), ranges.clone()));
        Ok(ranges)
    }

    /// Saves what is new about the node, when the volume is free. Returns how the node joined, and
    /// why saving failed.
    async fn keep(&self, facts: &NodeView) -> (JoinRecord, Option<String>) {
        let (data, known) = (self.data.clone(), facts.clone());
        let remembered = self.volume.glance(move |_| Self::remember(&data, &known)).await;
        let mut seen = self.seen.lock().expect("no panic while held");
        match remembered {
            Ok(Some(Ok(joined))) => {
                seen.joined = joined;
                (joined, None)
            }
            Ok(None) => (seen.joined, None),
            Ok(Some(Err(error))) => (seen.joined, Some(chain(&error).to_string())),
            Err(hangs) => (seen.joined, Some(hangs.to_string())),
        }
    }

    /// Saves changes of the node's state (version, join, departure); returns how it joined.
    fn remember(data: &Path, facts: &NodeView) -> Result<JoinRecord, Error> {
        let mut state = NodeState::load(data)?;
        if facts.version.is_some() && facts.version != state.version {
            state.version.clone_from(&facts.version);
            state.save(data)?;
        }
        match facts.mode.as_str() {
            "JOINING" => {
                // A new process may finish the join, and its count of received bytes begins at
                // zero.
                if facts.received > Some(0) && state.bootstrap_bytes_received <= Some(0) {
                    state.bootstrap_bytes_received = facts.received;
                    state.save(data)?;
                }
                let received = facts.received.max(state.bootstrap_bytes_received);
                return Ok(JoinRecord { member: Some(state.joined), received, starved: None });
            }
            "NORMAL" if !state.joined => {
                state.joined = true;
                state.replacing = None;
                let received = facts.received.max(state.bootstrap_bytes_received);
                let received = received.filter(|_| !state.founded);
                state.bootstrap_bytes_received = received;
                state.starved =
                    received == Some(0) && state.ring_load.is_some_and(|load| load >= LEAST_LOAD);
                state.save(data)?;
                if state.founded {
                    info!("Cassandra began a ring");
                } else if received == Some(0) {
                    let ring_load = state.ring_load;
                    warn!(ring_load, "Cassandra joined the ring and received nothing");
                } else {
                    info!(received, "Cassandra joined the ring");
                }
            }
            "DECOMMISSIONED" if !state.left => {
                state.left = true;
                state.save(data)?;
            }
            _ => {}
        }
        Ok(JoinRecord {
            member: Some(state.joined),
            received: state.bootstrap_bytes_received,
            starved: state.ring_load.filter(|_| state.starved),
        })
    }
}

impl Driver for CassandraDriver {
    fn needs(&self, _node: &DatabaseNode) -> KernelNeeds {
        preflight::NEEDS
    }

    fn preflight<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async move {
            let mut failed = preflight::check(node);
            failed.extend(preflight::seeds(node).await);
            failed
        })
    }

    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { configure::validate(node) })
    }

    fn configure<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<ProcessSpec, Error>> {
        Box::pin(async move {
            let (process, jolokia) = configure::configure(node)?;
            let mut seen = self.seen.lock().expect("no panic while held");
            *seen = DriverState { jolokia: Some(jolokia), ..DriverState::default() };
            // Bytes that an earlier process sent do not count: a decommission begins again.
            *self.progress.lock().expect("no panic while held") = DecommissionProgress::default();
            // A new process is asked again which ranges the node owns.
            *self.upkeep.lock().expect("no panic while held") = UpkeepState::default();
            self.note_logins(node);
            Ok(process)
        })
    }

    fn refresh<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.note_logins(node);
            let mut state = NodeState::load(&node.data)?;
            if state.starved && ring::is_adopted(&node.pilot) {
                info!("A person says that the data of this node are as they should be");
                state.starved = false;
                state.save(&node.data)?;
            }
            if !configure::rewrite_seeds(node)? {
                return Ok(());
            }
            let reloaded = self
                .jolokia()?
                .execute(GOSSIPER, "reloadSeeds()", &json!([]), Duration::from_secs(5))
                .await?;
            match reloaded {
                OperationOutcome::Failed(refusal) => Err(Error::Refused(refusal)),
                OperationOutcome::Done(_) | OperationOutcome::StillRunning => Ok(()),
            }
        })
    }

    fn observe(&self) -> BoxFuture<'_, Result<NodeObservation, Error>> {
        Box::pin(async move {
            let jolokia = self.jolokia()?;
            let facts = NodeView::ask(&jolokia).await?;
            let ranges = self.ranges(&jolokia, &facts).await?;
            let (joined, unsaved) = self.keep(&facts).await;
            let (open, unsaved_ranges) = self.survey(&jolokia, &facts).await;
            let mut observation =
                observation::summarize(&facts, &ranges, joined.received, joined.member);
            observation.not_heard.extend(open);
            {
                let upkeep = self.upkeep.lock().expect("no panic while held");
                observation.conditions.extend(upkeep.condition());
                observation::tell_cleanup(&mut observation, upkeep.progress());
            }
            let failed = self.seen.lock().expect("no panic while held").join.note(&facts);
            if let Some(why) = failed {
                observation::give_up(&mut observation, why);
            }
            if let Some(load) = joined.starved {
                observation::hold_back(&mut observation, load);
            }
            observation.unsaved = unsaved.or(unsaved_ranges);
            Ok(observation)
        })
    }

    fn lives(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            match self.jolokia().ok().and_then(|jolokia| jolokia.host()) {
                // Cassandra listens for clients at the agent's address, too.
                Some(host) => cql::answers(host).await,
                None => false,
            }
        })
    }

    fn decommission<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<DecommissionState, Error>> {
        Box::pin(async move {
            if NodeState::load(&node.data)?.left {
                return Ok(DecommissionState::Done);
            }
            decommission::decommission(&self.jolokia()?, node, &self.progress).await
        })
    }

    fn cancel_decommission<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { decommission::cancel(|| self.jolokia(), node, &self.progress).await })
    }

    fn wants_upkeep(&self, pilot: &Pilot) -> bool {
        self.is_asked(pilot)
    }

    fn upkeep<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.clean_up(node))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.jolokia()?.execute(STORAGE_SERVICE, "drain()", &json!([]), FLUSH).await? {
                OperationOutcome::Done(_) => Ok(()),
                OperationOutcome::Failed(refusal) => Err(Error::Refused(refusal)),
                OperationOutcome::StillRunning => {
                    Err(Error::Refused("nothing while it drained".to_owned()))
                }
            }
        })
    }

    fn forget_process(&self, detail: &mut PilotParts) {
        self.upkeep.lock().expect("no panic while held").interrupt();
        let word = names::NAMES.word;
        if let Some(mut part) = detail.get::<PilotCassandraStatus>(word) {
            part.operation_mode = None;
            *detail = PilotParts::new(word, &part);
        }
    }

    fn stop_plan(&self) -> StopPlan {
        StopPlan { flush: FLUSH, success: &[TERMINATED], ..StopPlan::DEFAULT }
    }

    fn dump(&self) -> Option<DumpSignal> {
        Some(DumpSignal { signal: libc::SIGQUIT, children: "java" })
    }

    fn exits(&self) -> ExitTable {
        EXITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::{Endpoint, Identity, Pilot},
        databases::cassandra::v1beta1::PilotCassandraSpec,
    };

    pub(super) fn node() -> DatabaseNode {
        node_in(Path::new("/nowhere"))
    }

    /// Node `a` of ring `shop`, 10.0.0.1, with all its folders below `place`.
    pub(super) fn node_in(place: &Path) -> DatabaseNode {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("a".to_owned());
        pilot.spec.version = Some("5.0.6".to_owned());
        pilot.spec.set_part::<CassandraNode>(&PilotCassandraSpec {
            cluster_name: Some("shop".to_owned()),
            rack: Some("r1".to_owned()),
            ..PilotCassandraSpec::default()
        });
        DatabaseNode {
            pilot,
            peers: Vec::new(),
            cluster_uid: None,
            address: [10, 0, 0, 1].into(),
            home: place.join("home"),
            data: place.join("data"),
            config: place.join("config"),
            shared: place.join("shared"),
            memory_limit: None,
            may_found: false,
            ring: None,
        }
    }

    /// Returns the Pilot of a ring member at the address `host`.
    pub(super) fn peer(name: &str, host: &str, ready: bool) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(name.to_owned());
        pilot.status.identity =
            Some(Identity { node_id: Some(format!("id-{name}")), ..Identity::default() });
        pilot.status.endpoints =
            vec![Endpoint { name: "transport".to_owned(), host: host.to_owned(), port: 7000 }];
        if ready {
            pilot.status.conditions = serde_json::from_value(json!([{
                "type": "Ready", "status": "True", "reason": "CassandraStarted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap();
        }
        pilot
    }

    #[tokio::test]
    async fn what_another_process_sent_does_not_count_as_progress() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        std::fs::create_dir_all(node.home.join("conf")).unwrap();
        let cassandra = CassandraDriver::new(node.config.clone(), node.data.clone());
        cassandra.progress.lock().unwrap().note(&[node_view::StreamState {
            plan: "cut off".to_owned(),
            sending: 100,
            sent: 10,
            ..node_view::StreamState::default()
        }]);
        cassandra.configure(&node).await.unwrap();
        assert_eq!(cassandra.progress.lock().unwrap().figures(), None);
    }

    /// Lets a node join, in as many processes as `received` has entries; returns the bytes of which
    /// it received none.
    fn joins(
        ring_load: i64,
        received: &[i64],
    ) -> (CassandraDriver, tempfile::TempDir, Option<i64>) {
        let place = tempfile::tempdir().unwrap();
        let cassandra = CassandraDriver::new(place.path().join("config"), place.path().to_owned());
        let state = NodeState { ring_load: Some(ring_load), ..NodeState::default() };
        state.save(place.path()).unwrap();
        let facts = |mode: &str, received| NodeView {
            mode: mode.to_owned(),
            received: Some(received),
            ..NodeView::default()
        };
        for received in received {
            CassandraDriver::remember(place.path(), &facts("JOINING", *received)).unwrap();
        }
        let last = received.last().copied().unwrap_or_default();
        let starved =
            CassandraDriver::remember(place.path(), &facts("NORMAL", last)).unwrap().starved;
        (cassandra, place, starved)
    }

    #[test]
    fn a_node_that_joined_and_received_nothing_of_a_full_ring_is_held_back() {
        assert_eq!(joins(LEAST_LOAD, &[0]).2, Some(LEAST_LOAD));
        assert_eq!(joins(LEAST_LOAD, &[7]).2, None);
        assert_eq!(joins(LEAST_LOAD - 1, &[0]).2, None, "the ring may have nothing to give");
        assert_eq!(joins(LEAST_LOAD, &[7, 0]).2, None, "an earlier process received it");
    }

    #[tokio::test]
    async fn a_person_may_say_that_nothing_is_as_it_should_be() {
        let (cassandra, place, starved) = joins(LEAST_LOAD, &[0]);
        assert!(starved.is_some());
        let mut node = DatabaseNode { data: place.path().to_owned(), ..node_in(place.path()) };
        // The seeds cannot be rewritten: the node was never configured.
        cassandra.refresh(&node).await.unwrap_err();
        assert!(NodeState::load(&node.data).unwrap().starved);
        let adopt = crate::api::names::annotation::ADOPT_DATA.to_owned();
        node.pilot.metadata.annotations = Some([(adopt, "true".to_owned())].into());
        cassandra.refresh(&node).await.unwrap_err();
        assert!(!NodeState::load(&node.data).unwrap().starved);
    }

    #[test]
    fn what_an_end_means_is_said_and_not_written_down() {
        let place = tempfile::tempdir().unwrap();
        let cassandra = CassandraDriver::new(place.path().join("config"), place.path().to_owned());
        let tail = ["This node was decommissioned and will not rejoin the ring unless".to_owned()];
        assert!(cassandra.explain_exit(1, &tail).unwrap().left);
        assert_eq!(NodeState::load(place.path()).unwrap(), NodeState::default());
    }
}
