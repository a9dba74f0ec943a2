//! Cassandra for the pilot: how a node is configured, observed and stopped.
//!
//! Owns the connection to the running JVM and what was seen through it. The pilot starts no JVM to
//! ask a question; the Jolokia agent answers over HTTP on loopback.

mod access;
mod cleanup;
mod client_service;
mod configure;
pub mod cql;
mod data_resurrection;
mod decommission;
mod forgetting;
mod grants;
mod held_ranges;
mod jmx_login;
mod join_progress;
mod keyspaces;
mod login_copies;
mod logins;
mod node_view;
mod observation;
mod outdated_logins;
mod preflight;
mod range_availability;
mod range_survey;
mod resolved_spec;
mod ring_presence;
mod roles;
mod security;
mod seeds;
mod state;
mod upkeep;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use nix::libc;
use serde_json::json;
use tracing::info;

use self::{
    access::NodeAccess,
    client_service::ClientService,
    cql::CqlTarget,
    data_resurrection::PeerRuns,
    decommission::DecommissionProgress,
    forgetting::RemovalWatch,
    held_ranges::HeldRanges,
    join_progress::JoinProgress,
    logins::{KnownLogins, OwnSessions, StoredLogin},
    node_view::{LiveNodes, NodeView, STORAGE_SERVICE},
    outdated_logins::PasswordRecord,
    range_availability::RangeAvailability,
    resolved_spec::datacenter_of,
    ring_presence::AbsenceFacts,
    state::NodeState,
    upkeep::UpkeepState,
};
use super::{
    facts::{EXITS, hint_window},
    names,
    settings::is_authentication_off,
    v1beta1::{CassandraNode, PilotCassandraStatus},
};
use crate::{
    api::{names::condition::CLEANUP_DUE, pilot_part::PilotParts, v1beta1::Pilot},
    engine::exit_explanation::ExitTable,
    pilot::{
        clients::jolokia::{AGENT, JolokiaClient, OperationOutcome},
        database::{DrivenDatabase, JavaLocation},
        driver::{
            DatabaseNode, DecommissionState, Driver, DriverAnswer, DumpSignal, Error, FailedCheck,
            ForgetState, JOIN_FAILED, KernelNeeds, LeaderDuty, LeaderPermit, NodeObservation,
            ProcessSpec, SecuredDatabase, StopPlan,
        },
        security::RecordedAccess,
        volume::{
            contents::ContentFolder,
            data_volume::Volume,
            remembered_state::{RememberedState, save_error},
            ring,
        },
    },
};

/// Limit for the drain before a stop, which flushes memtables. TERM alone makes Cassandra flush,
/// too, a little slower.
const FLUSH: Duration = Duration::from_secs(60);
/// Exit code of a JVM that ended as TERM asked it to.
const TERMINATED: u8 = 143;
/// Limit for reading the seeds again.
const RELOAD: Duration = Duration::from_secs(5);
const GOSSIPER: &str = "org.apache.cassandra.net:type=Gossiper";
/// Pause between two requests for the ranges while nodes are down: the tables may be large.
const RANGES_EVERY: Duration = Duration::from_secs(20);

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
    can_found: |_| true,
    has_data: state::has_data,
    preparation: None,
    conditions: &[CLEANUP_DUE],
    gauges: observation::GAUGES,
    contents: &[
        ContentFolder { folder: "snapshots", above: 3, what: "snapshots" },
        ContentFolder { folder: "backups", above: 3, what: "incremental backups" },
        ContentFolder { folder: "hints", above: 0, what: "hints" },
        ContentFolder { folder: "commitlog", above: 0, what: "commit log" },
        ContentFolder { folder: "cdc_raw", above: 0, what: "change data capture" },
        ContentFolder { folder: "saved_caches", above: 0, what: "saved caches" },
        ContentFolder { folder: "logs", above: 0, what: "logs" },
        ContentFolder { folder: "data", above: 0, what: "data" },
    ],
    agents: &[AGENT],
    installed: preflight::installed_version,
    java: Some(JavaLocation { variables: &["JAVA_HOME"], bundled: None }),
    make: |config, data, volume| Arc::new(CassandraDriver::new(config, &data, &volume)),
};

/// The driver of one Cassandra node.
#[derive(Debug)]
pub struct CassandraDriver {
    config: PathBuf,
    state: RememberedState<NodeState>,
    ranges: RememberedState<HeldRanges>,
    login: RememberedState<StoredLogin>,
    seen: Mutex<DriverState>,
    upkeep: Mutex<UpkeepState>,
    /// How to get into the node, where it is secured.
    access: RecordedAccess<NodeAccess>,
    session: OwnSessions,
    passwords: PasswordRecord,
}

#[derive(Debug, Default)]
struct DriverState {
    jolokia: Option<JolokiaClient>,
    logins: KnownLogins,
    /// Members of the ring that live, by the last observation.
    live: LiveNodes,
    /// The ranges, by the nodes that were down when Cassandra was asked for them, and when that was.
    ranges: Option<(Instant, BTreeSet<IpAddr>, RangeAvailability)>,
    service: ClientService,
    join: JoinProgress,
    progress: DecommissionProgress,
    removal: Option<RemovalWatch>,
    absence: AbsenceFacts,
}

impl CassandraDriver {
    /// Makes a driver for the folders `config` and `data` of a [`DatabaseNode`], and the volume
    /// that holds `data`. It takes over a database that an earlier pilot started from them.
    pub fn new(config: PathBuf, data: &Path, volume: &Volume) -> Self {
        Self {
            access: RecordedAccess::new(&config),
            passwords: PasswordRecord::new(&config),
            config,
            state: RememberedState::new(data, volume),
            ranges: RememberedState::new(data, volume),
            login: RememberedState::new(data, volume),
            seen: Mutex::default(),
            upkeep: Mutex::default(),
            session: OwnSessions::default(),
        }
    }

    fn driver_state(&self) -> MutexGuard<'_, DriverState> {
        self.seen.lock().expect("no panic while held")
    }

    fn jolokia(&self) -> Result<JolokiaClient, Error> {
        let mut state = self.driver_state();
        if state.jolokia.is_none() {
            state.jolokia = JolokiaClient::from_settings(&self.config);
        }
        let unreachable_error = || Error::Unreachable { source: "it was never configured".into() };
        state.jolokia.clone().ok_or_else(unreachable_error)
    }

    fn note_absence(&self, node: &DatabaseNode) {
        let window = hint_window(&node.pilot.spec.config, &datacenter_of(&node.pilot));
        let peers = Some(PeerRuns::from_peers(&node.peers));
        self.driver_state().absence = AbsenceFacts { hints_kept: Some(window), peers };
    }

    fn note_logins(&self, node: &DatabaseNode) {
        let spec = &node.pilot.spec;
        let logins = !is_authentication_off(&spec.config)
            || security::requires_passwords(spec.security.as_ref());
        self.upkeep_state(|upkeep| upkeep.set_logins(logins));
    }

    /// Returns which nodes share ranges. Cassandra is asked only while a node is down.
    async fn read_ranges(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
    ) -> Result<RangeAvailability, Error> {
        if facts.unreachable.is_empty() || !facts.is_member() {
            self.driver_state().ranges = None;
            return Ok(RangeAvailability::default());
        }
        let down_nodes = &facts.unreachable;
        if let Some((queried_at, last_down_nodes, ranges)) = &self.driver_state().ranges
            && queried_at.elapsed() < RANGES_EVERY
            && last_down_nodes == down_nodes
        {
            return Ok(ranges.clone());
        }
        let ranges = RangeAvailability::query(jolokia, facts).await?;
        self.driver_state().ranges = Some((Instant::now(), down_nodes.clone(), ranges.clone()));
        Ok(ranges)
    }

    /// Saves what is new about the node, when the volume is free. Returns why that failed.
    async fn save_state(&self, facts: &NodeView) -> Option<String> {
        let (view, absence) = (facts.clone(), self.driver_state().absence.clone());
        let update = move |state: &mut NodeState| {
            state.presence.update(&view, &absence, Timestamp::now());
            state.update(&view)
        };
        let update_result = self.state.try_change(update).await;
        if let Ok(Some(true)) = update_result {
            self.state.cached_state().log_join();
        }
        save_error(update_result)
    }
}

impl Driver for CassandraDriver {
    fn kernel_needs(&self, _node: &DatabaseNode) -> KernelNeeds {
        preflight::NEEDS
    }

    fn run_preflight<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async move {
            let mut failed_checks = preflight::check_node(node);
            failed_checks.extend(preflight::check_seeds(node).await);
            failed_checks
        })
    }

    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move { configure::validate_config(node) })
    }

    fn configure<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ProcessSpec> {
        Box::pin(async move {
            let (process, jolokia, access) = configure::configure_node(node)?;
            self.state.read()?;
            self.session.close().await;
            self.access.set(access)?;
            self.passwords.clear()?;
            // Bytes that an earlier process sent do not count: a decommission begins again.
            let is_off =
                node.pilot.spec.config.get("start_native_transport") == Some(&json!(false));
            let service = ClientService::new(is_off);
            *self.driver_state() =
                DriverState { jolokia: Some(jolokia), service, ..DriverState::default() };
            // A new process is asked again which ranges the node owns.
            self.upkeep_state(|upkeep| *upkeep = UpkeepState::default());
            self.note_logins(node);
            self.note_absence(node);
            Ok(process)
        })
    }

    fn refresh_peers<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            self.note_logins(node);
            self.note_absence(node);
            let is_adopted = ring::is_adopted(&node.pilot);
            let settle_state = |state: &mut NodeState| {
                state.presence.clear_when_repaired(&node.pilot.metadata, Timestamp::now());
                let is_settled = state.starved && is_adopted;
                state.starved &= !is_adopted;
                is_settled
            };
            if self.state.change(settle_state)?.0 {
                info!("A person says that the data of this node are as they should be");
            }
            if !configure::rewrite_seeds(node)? {
                return Ok(());
            }
            let jolokia = self.jolokia()?;
            jolokia
                .execute_operation(GOSSIPER, "reloadSeeds()", &json!([]), RELOAD)
                .await?
                .fail_if_refused()
        })
    }

    fn observe(&self) -> DriverAnswer<'_, NodeObservation> {
        Box::pin(async move {
            let jolokia = self.jolokia()?;
            let facts = NodeView::query(&jolokia).await?;
            self.driver_state().live = facts.live_members();
            let ranges = self.read_ranges(&jolokia, &facts).await?;
            let unsaved = self.save_state(&facts).await;
            let (unanswered_queries, unsaved_ranges) = self.survey_ranges(&jolokia, &facts).await;
            let state = self.state.is_known().then(|| self.state.cached_state());
            let (condition, cleanup) =
                self.upkeep_state(|upkeep| (upkeep.cleanup_condition(), upkeep.cleanup_progress()));
            let mut observation =
                observation::summarize_node(&facts, &ranges, state.as_ref(), cleanup);
            let (is_shared, replication_factor) =
                self.upkeep_state(|upkeep| (upkeep.is_shared, upkeep.replication_factor));
            observation.change_part::<CassandraNode>(|part| {
                part.behind.take_if(|_| is_shared == Some(false));
                part.replication_factor = replication_factor;
            });
            observation.not_heard.extend(unanswered_queries);
            observation.conditions.extend(condition);
            if let Some((reason, message)) = self.driver_state().service.update(&facts) {
                observation.hold_back(reason, message);
            }
            if let Some(message) = self.driver_state().join.update(&facts) {
                observation.hold_back(JOIN_FAILED, message);
            }
            observation.unsaved = unsaved.or(unsaved_ranges);
            if self.access.get().is_some_and(|access| access.founding) {
                let has_login = self.state.is_known() && !self.state.cached_state().founding_logins;
                observation::restrict_to_pilot(&mut observation, has_login);
            }
            Ok(observation)
        })
    }

    fn is_alive(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let target = if let Some(access) = self.access.get() {
                access.cql_target(&self.config, self.access.pinned_leaves(), None).ok()
            } else {
                // Cassandra listens for clients at the agent's address, too.
                let host = self.jolokia().ok().and_then(|jolokia| jolokia.host());
                host.map(CqlTarget::without_tls)
            };
            if let Some(target) = target { cql::is_answering(&target).await } else { false }
        })
    }

    fn decommission<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, DecommissionState> {
        Box::pin(self.decommission_node(node))
    }

    fn cancel_decommission<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(self.cancel_leaving())
    }

    fn forget_member<'a>(
        &'a self,
        _node: &'a DatabaseNode,
        lost: &'a str,
    ) -> DriverAnswer<'a, ForgetState> {
        Box::pin(self.remove_member(lost))
    }

    fn secured_database(&self) -> Option<&dyn SecuredDatabase> {
        Some(self)
    }

    fn has_lead_duties(&self) -> bool {
        true
    }

    fn leader_duty<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, LeaderDuty> {
        Box::pin(async move { Ok(self.login_duty(node)) })
    }

    fn lead_duties<'a>(
        &'a self,
        node: &'a DatabaseNode,
        lead: &'a LeaderPermit,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(self.keep_logins(node, lead))
    }

    fn has_pending_task(&self, pilot: &Pilot) -> bool {
        self.is_asked(pilot)
    }

    fn run_task<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(self.clean_up(node))
    }

    fn flush(&self) -> DriverAnswer<'_, ()> {
        Box::pin(async move {
            match self
                .jolokia()?
                .execute_operation(STORAGE_SERVICE, "drain()", &json!([]), FLUSH)
                .await?
            {
                OperationOutcome::StillRunning => {
                    Err(Error::Refused("nothing while it drained".to_owned()))
                }
                outcome => outcome.fail_if_refused(),
            }
        })
    }

    fn forget_process(&self, detail: &mut PilotParts) {
        self.upkeep_state(UpkeepState::clear_activity);
        let word = names::NAMES.word;
        if let Some(mut part) = detail.get::<PilotCassandraStatus>(word) {
            part.operation_mode = None;
            *detail = PilotParts::new(word, &part);
        }
    }

    fn stop_plan(&self) -> StopPlan {
        StopPlan { flush: FLUSH, success: &[TERMINATED], ..StopPlan::DEFAULT }
    }

    fn dump_signal(&self) -> Option<DumpSignal> {
        Some(DumpSignal { signal: libc::SIGQUIT, children: "java" })
    }

    fn exit_table(&self) -> ExitTable {
        EXITS
    }
}

#[cfg(test)]
mod tests {
    mod cleanup;
    mod faults;

    use std::net::IpAddr;

    use serde_json::Value;

    use super::*;
    use crate::{
        api::v1beta1::{Endpoint, Identity, Pilot},
        databases::cassandra::v1beta1::PilotCassandraSpec,
        pilot::{driver::PeerAddresses, query_answer::QueryAnswer},
    };

    pub(super) const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));
    pub(super) const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 2));

    /// Returns the answers of a settled ring of two nodes.
    pub(super) fn answers(mode: &str) -> Vec<Value> {
        vec![
            json!({
                "OperationMode": mode, "ReleaseVersion": "5.0.6", "LocalHostId": "id-1",
                "EndpointToHostId": {"127.0.1.1": "id-1", "127.0.1.2": "id-2"},
                "LiveNodes": ["127.0.1.1", "127.0.1.2"], "UnreachableNodes": [],
                "JoiningNodes": [], "LeavingNodes": [], "MovingNodes": [],
                "NativeTransportRunning": true, "Tokens": ["1", "2"],
            }),
            json!({"CurrentStreams": []}),
            json!({"Count": 4096}),
            json!({"Count": 1234}),
            json!({"Count": 0}),
            json!({"AllEndpointStates":
                "/127.0.1.1\n  generation:1\n  STATUS:20:NORMAL,-1\n  SCHEMA:12:s1\n  DC:8:eu\n  \
                 RACK:10:r1\n\
                 /127.0.1.2\n  generation:1\n  SCHEMA:12:s1\n"}),
            json!({"HeapMemoryUsage": {"used": 7}}),
        ]
    }

    pub(super) fn parse(answers: Vec<Value>) -> NodeView {
        NodeView::parse(answers.into_iter().map(QueryAnswer::Said).collect()).or_fail().unwrap()
    }

    pub(super) fn facts(mode: &str) -> NodeView {
        parse(answers(mode))
    }

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
            addresses: PeerAddresses::default(),
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

    /// Returns a new driver of `node`.
    pub(super) fn driver(node: &DatabaseNode) -> CassandraDriver {
        CassandraDriver::new(node.config.clone(), &node.data, &Volume::default())
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
        let cassandra = driver(&node);
        cassandra.driver_state().progress.track_streams(&[node_view::StreamState {
            plan: "cut off".to_owned(),
            sending: 100,
            sent: 10,
            ..node_view::StreamState::default()
        }]);
        cassandra.configure(&node).await.unwrap();
        assert_eq!(cassandra.driver_state().progress.streams.progress(), None);
    }

    /// Lets a node join, in as many processes as `received` has entries; returns the bytes of which
    /// it received none.
    fn joins(
        ring_load: i64,
        received: &[i64],
    ) -> (CassandraDriver, tempfile::TempDir, Option<i64>) {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().to_owned();
        let cassandra = driver(&DatabaseNode { data, ..node_in(place.path()) });
        cassandra.state.change(|state| state.ring_load = Some(ring_load)).unwrap();
        let facts = |mode: &str, received| NodeView {
            mode: mode.to_owned(),
            received: Some(received),
            ..NodeView::default()
        };
        for received in received {
            cassandra.state.change(|state| state.update(&facts("JOINING", *received))).unwrap();
        }
        let last = received.last().copied().unwrap_or_default();
        let (joined, state) =
            cassandra.state.change(|state| state.update(&facts("NORMAL", last))).unwrap();
        assert!(joined);
        (cassandra, place, state.starved_of())
    }

    #[test]
    fn a_node_that_joined_and_received_nothing_of_a_full_ring_is_held_back() {
        assert_eq!(joins(state::LEAST_LOAD, &[0]).2, Some(state::LEAST_LOAD));
        assert_eq!(joins(state::LEAST_LOAD, &[7]).2, None);
        assert_eq!(joins(state::LEAST_LOAD - 1, &[0]).2, None, "the ring may have nothing to give");
        assert_eq!(joins(state::LEAST_LOAD, &[7, 0]).2, None, "an earlier process received it");
    }

    #[tokio::test]
    async fn a_person_may_say_that_nothing_is_as_it_should_be() {
        let (cassandra, place, starved) = joins(state::LEAST_LOAD, &[0]);
        assert!(starved.is_some());
        let mut node = DatabaseNode { data: place.path().to_owned(), ..node_in(place.path()) };
        // The seeds cannot be rewritten: the node was never configured.
        cassandra.refresh_peers(&node).await.unwrap_err();
        assert!(cassandra.state.read().unwrap().starved);
        let adopt = crate::api::names::annotation::ADOPT_DATA.to_owned();
        node.pilot.metadata.annotations = Some([(adopt, "true".to_owned())].into());
        cassandra.refresh_peers(&node).await.unwrap_err();
        assert!(!cassandra.state.read().unwrap().starved);
    }

    #[test]
    fn what_an_end_means_is_said_and_not_written_down() {
        let place = tempfile::tempdir().unwrap();
        let cassandra = driver(&node_in(place.path()));
        let tail = ["This node was decommissioned and will not rejoin the ring unless".to_owned()];
        assert!(cassandra.explain_exit(1, &tail).unwrap().left);
        assert_eq!(cassandra.state.read().unwrap(), NodeState::default());
    }
}
