//! Elasticsearch for the pilot: how a node is configured, observed and stopped.
//!
//! Owns what the answers of the node's own REST interface mean. Liveness never depends on other
//! nodes.

mod access;
mod begin_anew;
mod configure;
mod credentials;
mod data_role;
mod decommission;
mod duty_look;
mod lead_duties;
mod master_role;
mod observation;
mod plugins;
mod preflight;
mod restart_announcement;
mod security;
mod seeds;
mod shards_left;
mod state;
#[cfg(test)]
#[path = "../../pilot/clients/search_engine/testing.rs"]
mod testing;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use nix::libc;
use tracing::warn;

use self::{
    access::NodeAccess,
    master_role::MasterIntents,
    state::{MembershipChange, NodeState},
};
use super::{
    names::{self, port},
    predicates::VOTE_MOVED_AWAY,
    v1beta1::{ElasticsearchNode, PilotElasticsearchStatus, holds_shards, is_master},
};
use crate::{
    api::pilot_part::PilotParts,
    databases::elasticsearch::facts::{DEFAULT_HOME, EXITS, Release},
    engine::exit_explanation::ExitTable,
    error::chain,
    pilot::{
        clients::search_engine::{EngineTraits, NodeView, SearchClient, SearchLogin},
        database::{DrivenDatabase, JavaLocation, PreparationCondition as Told},
        driver::{
            DatabaseNode, DecommissionState, Driver, DriverAnswer, DumpSignal, Error, FailedCheck,
            ForgetState, JOIN_FAILED, KernelNeeds, LeaderDuty, LeaderPermit, NodeObservation,
            PreparationProgram, ProcessSpec, SecuredDatabase, StopPlan,
        },
        security::RecordedAccess,
        volume::{
            contents::ContentFolder,
            data_volume::Volume,
            remembered_state::{RememberedState, save_error},
        },
    },
};

/// Limit for the flush before a stop, which writes out what only memory holds, so that the next
/// start has nothing to replay.
const FLUSH: Duration = Duration::from_secs(30);
/// Observations in a row without a master after which a node does not serve any more.
const MISSES: u32 = 3;
const ADDRESS_UNKNOWN: &str = "where it listens is not known";
/// Exit code of a JVM that ended as TERM asked it to.
const TERMINATED: u8 = 143;

/// Elasticsearch's entry for pilots.
pub const DATABASE: DrivenDatabase = DrivenDatabase {
    home_variable: "ES_HOME",
    home: DEFAULT_HOME,
    program: "bin/elasticsearch",
    started: "ElasticsearchStarted",
    ports: &[port::TRANSPORT, port::HTTP],
    gauges: observation::GAUGES,
    contents: &[
        ContentFolder { folder: "translog", above: 4, what: "translog" },
        ContentFolder { folder: "logs", above: 0, what: "logs" },
        ContentFolder { folder: "data", above: 0, what: "data" },
    ],
    can_found: |pilot| {
        pilot.spec.part::<ElasticsearchNode>().is_some_and(|spec| is_master(&spec.roles))
    },
    preparation: Some(Told {
        condition: "PluginsInstalled",
        current: "PluginsCurrent",
        failed: "PluginInstallFailed",
        event: "PluginFailed",
    }),
    installed: preflight::installed_version,
    java: Some(JavaLocation { variables: &["ES_JAVA_HOME", "JAVA_HOME"], bundled: Some("jdk") }),
    ..DrivenDatabase::new(&names::NAMES, configure::has_data, |config, data, volume| {
        Arc::new(ElasticsearchDriver::new(&config, &data, &volume))
    })
};

/// The driver of one Elasticsearch node.
#[derive(Debug)]
pub struct ElasticsearchDriver {
    data: PathBuf,
    volume: Volume,
    state: RememberedState<NodeState>,
    seen: Mutex<DriverState>,
    /// How to get into the node, where it is secured.
    access: RecordedAccess<NodeAccess>,
}

#[derive(Debug, Default)]
struct DriverState {
    api: Option<SearchClient>,
    /// True when the node serves: it follows a master, or followed one within the last
    /// observations. `missed` counts the observations in a row without a master.
    served: bool,
    missed: u32,
    plugins: plugins::PluginPlan,
    /// Most shards that this decommission found on the node; progress is counted from it.
    most_shards: usize,
    restarts: restart_announcement::AnnouncementWatch,
    /// The node is the elected master, as far as the last observation tells.
    elected: bool,
    look: duty_look::DutyLook,
    credentials: credentials::CredentialsLook,
    /// What the vendor's tool has to do before the database starts again.
    change: Option<MembershipChange>,
    /// Which other nodes are to be masters, by their Pilots as last seen.
    masters: MasterIntents,
    /// Which other nodes are to hold no shards, by their Pilots as last seen.
    without_shards: BTreeSet<String>,
}

/// Returns a client for the node at `address`, which runs this release, where it is known.
fn build_client(address: IpAddr, release: Option<Release>, login: SearchLogin) -> SearchClient {
    let traits = EngineTraits {
        answers_for_itself: release.is_some_and(Release::answers_for_itself),
        votes: |version| version.parse().map_or(true, Release::has_voting),
    };
    SearchClient::new(address, port::HTTP, traits, login)
}

impl ElasticsearchDriver {
    /// Makes a driver for the folders `config` and `data` of a [`DatabaseNode`], of which `data` lies
    /// on `volume`. It takes over a database that an earlier pilot started.
    pub fn new(config: &Path, data: &Path, volume: &Volume) -> Self {
        Self {
            data: data.to_owned(),
            volume: volume.clone(),
            state: RememberedState::new(data, volume),
            seen: Mutex::default(),
            access: RecordedAccess::new(config),
        }
    }

    fn driver_state(&self) -> MutexGuard<'_, DriverState> {
        self.seen.lock().expect("no panic while held")
    }

    fn api(&self) -> Result<SearchClient, Error> {
        let access = self.access.get();
        let mut state = self.driver_state();
        if state.api.is_none()
            && let NodeState { address: Some(address), version, .. } = self.state.cached_state()
        {
            let release = version.and_then(|version| version.parse().ok());
            let login =
                access.map(|access| access.login(self.access.pinned_leaves())).transpose()?;
            state.api = Some(build_client(address, release, login.unwrap_or_default()));
        }
        // This does not mean that the database is silent: the pilot does not know its address yet.
        state.api.clone().ok_or_else(|| Error::NotYet(ADDRESS_UNKNOWN.to_owned()))
    }

    /// Returns a client that logs in as another user, with the pilot's password.
    fn api_as(&self, user: &str, access: &NodeAccess) -> Result<SearchClient, Error> {
        let NodeState { address, version, .. } = self.state.cached_state();
        let address = address.ok_or_else(|| Error::NotYet(ADDRESS_UNKNOWN.to_owned()))?;
        let release = version.and_then(|version| version.parse().ok());
        Ok(build_client(address, release, access.login_as(user, self.access.pinned_leaves())?))
    }

    /// Notes which roles the nodes are to have, this one and its peers; and the cluster's name, where
    /// a release before 0.3 started the database that runs and noted none.
    fn note_roles(&self, node: &DatabaseNode) -> Result<(), Error> {
        let mut state = self.driver_state();
        state.masters = node.peers.iter().collect();
        state.without_shards = data_role::without_shards(&node.peers);
        drop(state);
        let change = |state: &mut NodeState| {
            data_role::record_roles(state, node);
            let object = node.pilot.spec.cluster_ref.as_ref().map(|cluster| &cluster.name);
            state.cluster_name = state.cluster_name.take().or(object.cloned());
        };
        self.state.change(change).map(drop)
    }

    /// Adds the rules that hold the node's next roles back, while it has shards or a vote that do
    /// not go with them.
    async fn hold_roles_back(
        &self,
        api: &SearchClient,
        facts: &NodeView,
        observation: &mut NodeObservation,
    ) {
        let Some(next_roles) = self.state.cached_state().next_roles else { return };
        if facts.holds_data && !holds_shards(&next_roles) {
            let on_disk = data_role::count_on_disk(&self.data, &self.volume, &next_roles).await;
            let without_shards = self.driver_state().without_shards.clone();
            shards_left::add_blockers(api, facts, on_disk, &without_shards, observation).await;
        }
        let has_voting = facts.version.parse().is_ok_and(Release::has_voting);
        if !has_voting || !facts.master_eligible || is_master(&next_roles) {
            return;
        }
        // The pilot reads the Pilots of the other masters more often while they matter.
        observation.misses_peers = true;
        let masters = self.driver_state().masters.clone();
        let blockers = match master_role::find_vote_blockers(api, facts, &masters).await {
            Ok(blockers) => blockers,
            Err(error) => {
                observation.not_heard.push(shards_left::to_unanswered_query(error));
                return observation
                    .add_blocker(&VOTE_MOVED_AWAY, "does not say whether it has a vote");
            }
        };
        let has_moved = blockers.is_empty();
        observation.blockers.extend(blockers);
        if self.state.cached_state().vote_moved_away == has_moved {
            return;
        }
        // The next start goes by what is on the volume.
        let save_result =
            self.state.try_change(move |state| state.vote_moved_away = has_moved).await;
        if has_moved && !matches!(save_result, Ok(Some(()))) {
            observation.add_blocker(
                &VOTE_MOVED_AWAY,
                "its volume does not take the note that its vote is gone",
            );
        }
        observation.unsaved = observation.unsaved.take().or(save_error(save_result));
    }

    /// Decides whether the node serves: while it follows a master, and after that for as long as
    /// electing the next one usually takes, since it answers reads all the while.
    fn update_serving(&self, has_master: bool) -> bool {
        let mut state = self.driver_state();
        state.missed = if has_master { 0 } else { state.missed.saturating_add(1) };
        state.served = has_master || state.served && state.missed < MISSES;
        state.served
    }
}

impl Driver for ElasticsearchDriver {
    fn restore_state(&self) {
        if let Err(error) = self.state.read() {
            warn!(error = %chain(&error), "State of the node cannot be read");
        }
    }

    fn kernel_needs(&self, node: &DatabaseNode) -> KernelNeeds {
        preflight::kernel_needs(node)
    }

    fn run_preflight<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async move { preflight::check_node(node).into_iter().collect() })
    }

    fn preparation_programs<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> DriverAnswer<'a, Vec<PreparationProgram>> {
        Box::pin(async move {
            let mut plan = plugins::PluginPlan::for_node(node)?;
            let archive_check = plan.check_archives();
            let mut programs = plan.build_programs(node);
            let change = begin_anew::pending_change(node, &self.state.read()?);
            if let (Ok(programs), Some(change)) = (&mut programs, &change) {
                programs.push(begin_anew::build_program(node, change)?);
            }
            let mut state = self.driver_state();
            (state.plugins, state.change) = (plan, change);
            archive_check.and(programs)
        })
    }

    fn record_preparation(
        &self,
        node: &DatabaseNode,
        index: usize,
        outcome: Result<(), &str>,
    ) -> Result<(), Error> {
        let mut state = self.driver_state();
        if state.plugins.has_step(index) {
            return state.plugins.record_outcome(node, index, outcome);
        }
        let completed_change = state.change.take().filter(|_| outcome.is_ok());
        self.state
            .change(|state| state.begun_anew = completed_change.or(state.begun_anew.take()))
            .map(drop)
    }

    fn report_preparation(&self, detail: &mut PilotParts) {
        let word = names::NAMES.word;
        let mut status: PilotElasticsearchStatus = detail.get(word).unwrap_or_default();
        status.plugins = self.driver_state().plugins.statuses();
        detail.set(word, &status);
    }

    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            configure::validate_config(node)?;
            self.note_roles(node)
        })
    }

    fn configure<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ProcessSpec> {
        Box::pin(async move {
            begin_anew::wait_for_cluster(node, &self.state.read()?)?;
            let (process, access) = configure::configure_node(node)?;
            self.state.read()?;
            let login = access.as_ref().map(|access| access.login(self.access.pinned_leaves()));
            let login = login.transpose()?;
            self.access.set(access)?;
            let release = configure::node_release(node)?;
            let api = Some(build_client(node.address, Some(release), login.unwrap_or_default()));
            let masters = node.peers.iter().collect();
            let without_shards = data_role::without_shards(&node.peers);
            let state = DriverState { api, masters, without_shards, ..DriverState::default() };
            *self.driver_state() = state;
            Ok(process)
        })
    }

    fn refresh_peers<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let roles_result = self.note_roles(node);
            let state = self.state.read()?;
            let is_waiting = begin_anew::wait_for_cluster(node, &state).is_err();
            self.driver_state().change =
                begin_anew::pending_change(node, &state).filter(|_| !is_waiting);
            configure::rewrite_seeds(node).and(roles_result)
        })
    }

    fn secured_database(&self) -> Option<&dyn SecuredDatabase> {
        Some(self)
    }

    fn has_lead_duties(&self) -> bool {
        true
    }

    fn leader_duty<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, LeaderDuty> {
        Box::pin(async move {
            let release = configure::node_release(node)?;
            let api = self.api()?;
            let departure = lead_duties::decommission_duty(node, Timestamp::now());
            if departure != LeaderDuty::None {
                return Ok(departure);
            }
            let (mut duty_check, is_elected) = {
                let state = self.driver_state();
                (state.look, state.elected)
            };
            let has_duties = duty_check.update(&api, node, (release, is_elected)).await;
            self.driver_state().look = duty_check;
            Ok(if has_duties? { LeaderDuty::Cluster } else { LeaderDuty::None })
        })
    }

    fn lead_duties<'a>(
        &'a self,
        node: &'a DatabaseNode,
        lead: &'a LeaderPermit,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let release = configure::node_release(node)?;
            let api = self.api()?;
            let duties_result = lead_duties::carry_out(&api, node, release, lead).await;
            let mut restarts = self.driver_state().restarts;
            let cancel_result =
                restart_announcement::clear_announcements(&api, node, lead, &mut restarts).await;
            self.driver_state().restarts = restarts;
            duties_result.and(cancel_result)
        })
    }

    fn observe(&self) -> DriverAnswer<'_, NodeObservation> {
        Box::pin(async move {
            if self.api().is_err() {
                // The state could not be read when this pilot took over the node.
                self.state.try_change(|_| ()).await?;
            }
            let api = self.api()?;
            let facts = api.read_view().await?;
            let (cluster, version) = (facts.cluster_id.clone(), facts.version.clone());
            let save_state = self.state.try_change(move |state| {
                state.cluster_id = cluster.or(state.cluster_id.take());
                state.version = Some(version);
            });
            let unsaved = save_error(save_state.await);
            let serving = self.update_serving(facts.elected.is_some());
            self.driver_state().elected = facts.is_master();
            let mut observation =
                observation::summarize_node(&facts, serving, &self.state.cached_state());
            observation.unsaved = unsaved;
            self.hold_roles_back(&api, &facts, &mut observation).await;
            let change = self.driver_state().change.clone();
            if let Some(change) = change.filter(|_| !serving) {
                observation.hold_back(JOIN_FAILED, begin_anew::describe_change(&change));
            }
            Ok(observation)
        })
    }

    fn is_alive(&self) -> BoxFuture<'_, bool> {
        // The path `/` is answered by the network's threads, which do not wait for other work.
        Box::pin(async move {
            match self.api() {
                Ok(api) => api.get_answer("/").await.is_ok(),
                Err(_) => false,
            }
        })
    }

    fn decommission<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, DecommissionState> {
        Box::pin(async move {
            let mut most_shards = self.driver_state().most_shards;
            let decommission =
                decommission::decommission_node(&self.api()?, node, &self.state, &mut most_shards)
                    .await;
            self.driver_state().most_shards = most_shards;
            decommission
        })
    }

    fn cancel_decommission<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            self.driver_state().most_shards = 0;
            // Possible until the process is stopped; the leading pilot removes the node from the
            // exclusion lists.
            self.state.change(|state| state.decommissioning_since = None).map(drop)
        })
    }

    fn forget_member<'a>(
        &'a self,
        _node: &'a DatabaseNode,
        lost: &'a str,
    ) -> DriverAnswer<'a, ForgetState> {
        // The master drops a node that is gone by itself, and the leading pilot takes it off the
        // lists of exclusions once no Pilot of its id is there.
        Box::pin(async move {
            let members = self.api()?.read_nodes().await?;
            if !members.has_master {
                return Err(Error::NotYet("waits for an elected master".to_owned()));
            }
            Ok(match members.names.get(lost) {
                Some(name) => ForgetState::Refused(format!(
                    "{name} has that id and is in the cluster: a node that serves is decommissioned"
                )),
                None => ForgetState::Forgotten,
            })
        })
    }

    fn announce_restart<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move { restart_announcement::announce_restart(&self.api()?, node).await })
    }

    fn flush(&self) -> DriverAnswer<'_, ()> {
        Box::pin(async move {
            let api = self.api()?;
            // Without a master a flush waits for one, and takes the time that the database has to end.
            if api.has_no_master().await {
                return Ok(());
            }
            api.flush(FLUSH).await
        })
    }

    fn forget_process(&self, detail: &mut PilotParts) {
        detail.change_part(names::NAMES.word, |part: &mut PilotElasticsearchStatus| {
            part.elected_master = None;
        });
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
    mod faults;

    use super::*;
    use crate::{
        api::v1beta1::{ClusterRef, Pilot},
        databases::elasticsearch::v1beta1::PilotElasticsearchSpec,
        pilot::{driver::PeerAddresses, volume::state_file::StateFile},
    };

    fn driver(data: &Path) -> ElasticsearchDriver {
        ElasticsearchDriver::new(Path::new("/nowhere"), data, &Volume::default())
    }

    #[tokio::test]
    async fn that_a_node_left_is_never_taken_from_a_note() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.address = [127, 0, 0, 1].into();
        NodeState { address: Some(node.address), ..NodeState::default() }.save(&node.data).unwrap();
        let path = node.data.join(".navigator/elasticsearch.json");
        // A state file in the form of releases that wrote it before the node was stopped for good.
        let mut note: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        note["left"] = true.into();
        std::fs::write(&path, note.to_string()).unwrap();
        let answer = driver(&node.data).decommission(&node).await;
        assert!(answer.is_err(), "{answer:?}");
    }

    #[test]
    fn name_of_running_cluster_is_noted_after_upgrade() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let kind = "ElasticsearchCluster".to_owned();
        node.pilot.spec.cluster_ref = Some(ClusterRef { kind, name: "logs".to_owned() });
        let noted = || NodeState::load(&node.data).unwrap().cluster_name;
        driver(&node.data).note_roles(&node).unwrap();
        assert_eq!(noted().as_deref(), Some("logs"));
        let named = |state: &mut NodeState| state.cluster_name = Some("logs-1a2b3c4d".to_owned());
        driver(&node.data).state.change(named).unwrap();
        driver(&node.data).note_roles(&node).unwrap();
        assert_eq!(noted().as_deref(), Some("logs-1a2b3c4d"));
    }

    #[test]
    fn a_node_whose_process_ended_is_no_elected_master() {
        let word = names::NAMES.word;
        let part = PilotElasticsearchStatus {
            elected_master: Some(true),
            documents: Some(7),
            ..PilotElasticsearchStatus::default()
        };
        let mut detail = PilotParts::new(word, &part);
        driver(Path::new("")).forget_process(&mut detail);
        let left: PilotElasticsearchStatus = detail.get(word).unwrap();
        assert_eq!((left.elected_master, left.documents), (None, Some(7)));
    }

    pub(super) fn node() -> DatabaseNode {
        node_in(Path::new("/nowhere"))
    }

    /// Returns node `a`, 10.0.0.1, master and data, with all its folders below `place`.
    pub(super) fn node_in(place: &Path) -> DatabaseNode {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("a".to_owned());
        pilot.spec.version = Some("7.17.29".to_owned());
        pilot.spec.set_part::<ElasticsearchNode>(&PilotElasticsearchSpec {
            roles: vec!["master".to_owned(), "data".to_owned()],
            ..PilotElasticsearchSpec::default()
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
}
