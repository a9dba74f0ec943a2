//! Elasticsearch for the pilot: how a node is configured, observed and stopped.
//!
//! Owns the requests to the node's own REST interface. Liveness never depends on other nodes.

mod allocation_explain;
mod configure;
mod decommission;
mod lead_duties;
mod node_view;
mod observation;
mod plugins;
mod preflight;
mod rest_client;
mod restart_announcement;
mod seeds;
mod state;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Method;
use nix::libc;
use tracing::warn;

use self::{
    node_view::{NodeView, TablesCache},
    rest_client::RestClient,
    state::NodeState,
};
use super::{
    names::{self, port},
    v1beta1::PilotElasticsearchStatus,
};
use crate::{
    api::{pilot_part::PilotParts, v1beta1::Endpoint},
    databases::elasticsearch::facts::{DEFAULT_HOME, explain_exit},
    engine::exit_explanation::ExitExplanation,
    error::chain,
    pilot::{
        database::{DrivenDatabase, JavaLocation, PreparationCondition as Told},
        driver::{
            DatabaseNode, DecommissionState, Driver, DumpSignal, Error, FailedCheck, KernelNeeds,
            LeaderPermit, NodeObservation, PreparationProgram, ProcessSpec, StopPlan,
        },
        volume::{data_volume::Volume, state_file::StateFile},
    },
};

/// Limit for the flush before a stop, which writes out what only memory holds, so that the next
/// start has nothing to replay.
const FLUSH: Duration = Duration::from_secs(30);
/// Observations in a row without a master after which a node does not serve any more.
const MISSES: u32 = 3;
/// Exit code of a JVM that ended as TERM asked it to.
const TERMINATED: u8 = 143;

/// Elasticsearch's entry for pilots.
pub const DATABASE: DrivenDatabase = DrivenDatabase {
    names: &names::NAMES,
    home_variable: "ES_HOME",
    home: DEFAULT_HOME,
    program: "bin/elasticsearch",
    started: "ElasticsearchStarted",
    orders_by_time: false,
    ports: &[names::port::TRANSPORT, names::port::HTTP],
    joins_elsewhere: |_| false,
    has_data,
    conditions: &[],
    gauges: observation::GAUGES,
    preparation: Some(Told {
        condition: "PluginsInstalled",
        current: "PluginsCurrent",
        failed: "PluginInstallFailed",
        event: "PluginFailed",
    }),
    agents: &[],
    installed: preflight::version,
    java: Some(JavaLocation { variables: &["ES_JAVA_HOME", "JAVA_HOME"], bundled: Some("jdk") }),
    make: |_, data, volume| Arc::new(ElasticsearchDriver::new(data).on(volume)),
};

/// Do files of Elasticsearch lie in this data directory?
pub fn has_data(data: &Path) -> bool {
    configure::has_data(data)
}

/// The driver of one Elasticsearch node.
#[derive(Debug)]
pub struct ElasticsearchDriver {
    data: PathBuf,
    volume: Volume,
    seen: Mutex<DriverState>,
    kept: TablesCache,
}

#[derive(Debug, Default)]
struct DriverState {
    api: Option<RestClient>,
    /// True when the node serves: it follows a master, or followed one within the last
    /// observations. `missed` counts the observations in a row without a master.
    served: bool,
    missed: u32,
    /// The node's state file, as last read from the volume.
    state: NodeState,
    plugins: plugins::PluginPlan,
    /// Most shards that this decommission found on the node; progress is counted from it.
    most_shards: usize,
    restarts: restart_announcement::AnnouncementWatch,
}

impl ElasticsearchDriver {
    /// Makes a driver for the folder `data` of a [`DatabaseNode`]. It takes over a database that an
    /// earlier pilot started.
    pub fn new(data: PathBuf) -> Self {
        let volume = Volume::default();
        Self { data, volume, seen: Mutex::default(), kept: Mutex::default() }
    }

    /// Makes the driver reach its data directory through `volume`.
    #[must_use]
    pub fn on(self, volume: Volume) -> Self {
        Self { volume, ..self }
    }

    fn api(&self) -> Result<RestClient, Error> {
        let api = self.seen.lock().expect("no panic while held").api.clone();
        // This does not mean that the database is silent: the pilot does not know its address yet.
        api.ok_or_else(|| Error::NotYet("where it listens is not known".to_owned()))
    }

    /// Decides whether the node serves: while it follows a master, and after that for as long as
    /// electing the next one usually takes, since it answers reads all the while.
    fn serves(&self, follows: bool) -> bool {
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.missed = if follows { 0 } else { seen.missed.saturating_add(1) };
        seen.served = follows || seen.served && seen.missed < MISSES;
        seen.served
    }

    /// Takes over the state that was read from the volume; makes a client if there is none.
    fn take(&self, state: &NodeState) {
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.state = state.clone();
        if seen.api.is_none() {
            let release = state.version.as_deref().and_then(|version| version.parse().ok());
            seen.api = state.address.map(|address| RestClient::new(address, release));
        }
    }

    /// Saves what is new about the node, when the volume is free. Returns the whole state, and why
    /// saving failed.
    async fn keep(&self, facts: &NodeView) -> (NodeState, Option<String>) {
        let (cluster, version) = (facts.cluster_id.clone(), Some(facts.version.clone()));
        let data = self.data.clone();
        let remembered = self.volume.glance(move |_| Self::remember(&data, cluster, version)).await;
        let unsaved = match remembered {
            Ok(Some(Ok(state))) => {
                self.take(&state);
                None
            }
            Ok(None) => None,
            Ok(Some(Err(error))) => Some(chain(&error).to_string()),
            Err(hangs) => Some(hangs.to_string()),
        };
        (self.seen.lock().expect("no panic while held").state.clone(), unsaved)
    }

    /// Saves to which cluster the node belongs and which version ran on the data; returns the whole
    /// state.
    fn remember(
        data: &Path,
        cluster: Option<String>,
        version: Option<String>,
    ) -> Result<NodeState, Error> {
        let mut state = NodeState::load(data)?;
        let known = (state.cluster_id.clone(), state.version.clone());
        state.cluster_id = cluster.or(state.cluster_id);
        state.version = version.or(state.version);
        if known != (state.cluster_id.clone(), state.version.clone()) {
            state.save(data)?;
        }
        Ok(state)
    }
}

impl Driver for ElasticsearchDriver {
    fn recall(&self) {
        match NodeState::load(&self.data) {
            Ok(state) => self.take(&state),
            Err(error) => warn!(error = %chain(&error), "State of the node cannot be read"),
        }
    }

    fn needs(&self, node: &DatabaseNode) -> KernelNeeds {
        preflight::needs(node)
    }

    fn preflight<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async move { preflight::check(node) })
    }

    fn prepare<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<Vec<PreparationProgram>, Error>> {
        Box::pin(async move {
            let mut plan = plugins::PluginPlan::make(node)?;
            let checked = plan.check_archives();
            let programs = plan.programs(node);
            self.seen.lock().expect("no panic while held").plugins = plan;
            checked.and(programs)
        })
    }

    fn prepared(
        &self,
        node: &DatabaseNode,
        index: usize,
        outcome: Result<(), &str>,
    ) -> Result<(), Error> {
        self.seen.lock().expect("no panic while held").plugins.ended(node, index, outcome)
    }

    fn report_preparation(&self, detail: &mut PilotParts) {
        let plugins = self.seen.lock().expect("no panic while held").plugins.status();
        let mut status: PilotElasticsearchStatus =
            detail.get(names::NAMES.word).unwrap_or_default();
        status.plugins = plugins;
        detail.set(names::NAMES.word, &status);
    }

    fn validate<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { configure::validate(node) })
    }

    fn configure<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<ProcessSpec, Error>> {
        Box::pin(async move {
            let process = configure::configure(node)?;
            let state = NodeState::load(&self.data)?;
            let mut seen = self.seen.lock().expect("no panic while held");
            let api = RestClient::new(node.address, Some(configure::release(node)?));
            *seen = DriverState { api: Some(api), state, ..DriverState::default() };
            Ok(process)
        })
    }

    fn refresh<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let release = configure::release(node)?;
            if release.reads_seed_file() {
                configure::rewrite_seeds(node, release)?;
            }
            Ok(())
        })
    }

    fn has_lead_duties(&self) -> bool {
        true
    }

    fn lead_duties<'a>(
        &'a self,
        node: &'a DatabaseNode,
        lead: &'a LeaderPermit,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let release = configure::release(node)?;
            let api = self.api()?;
            let lists = lead_duties::carry_out(&api, node, release, lead).await;
            let mut restarts = self.seen.lock().expect("no panic while held").restarts;
            let taken_back = restart_announcement::take_back(&api, node, lead, &mut restarts).await;
            self.seen.lock().expect("no panic while held").restarts = restarts;
            lists.and(taken_back)
        })
    }

    fn observe(&self) -> BoxFuture<'_, Result<NodeObservation, Error>> {
        Box::pin(async move {
            if self.api().is_err() {
                // The state could not be read when this pilot took over the node.
                let data = self.data.clone();
                if let Ok(Some(state)) = self.volume.glance(move |_| NodeState::load(&data)).await {
                    self.take(&state?);
                }
            }
            let facts = NodeView::ask(&self.api()?, &self.kept).await?;
            let (state, unsaved) = self.keep(&facts).await;
            let serving = self.serves(facts.elected.is_some());
            let mut observation = observation::summarize(&facts, serving, &state.plugins);
            observation.unsaved = unsaved;
            if let Some(host) = state.address {
                // Endpoints are reported before there is a master: other nodes must find this one
                // to elect a master.
                for (name, port) in [(seeds::TRANSPORT, port::TRANSPORT), ("client", port::HTTP)] {
                    let (name, host) = (name.to_owned(), host.to_string());
                    observation.endpoints.push(Endpoint { name, host, port: port.into() });
                }
            }
            Ok(observation)
        })
    }

    fn lives(&self) -> BoxFuture<'_, bool> {
        // The path `/` is answered by the network's threads, which do not wait for other work.
        Box::pin(async move {
            match self.api() {
                Ok(api) => api.ask("/").await.is_ok(),
                Err(_) => false,
            }
        })
    }

    fn decommission<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<DecommissionState, Error>> {
        Box::pin(async move {
            let release = configure::release(node)?;
            let mut most = self.seen.lock().expect("no panic while held").most_shards;
            let decommission =
                decommission::decommission(&self.api()?, node, release, &self.kept, &mut most)
                    .await;
            self.seen.lock().expect("no panic while held").most_shards = most;
            decommission
        })
    }

    fn cancel_decommission<'a>(
        &'a self,
        node: &'a DatabaseNode,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.seen.lock().expect("no panic while held").most_shards = 0;
            decommission::cancel(node)
        })
    }

    fn announce_restart<'a>(&'a self, node: &'a DatabaseNode) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { restart_announcement::announce(&self.api()?, node).await })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(
            async move { self.api()?.change(Method::POST, "/_flush", None, FLUSH).await.map(drop) },
        )
    }

    fn forget_process(&self, detail: &mut PilotParts) {
        let word = names::NAMES.word;
        if let Some(mut part) = detail.get::<PilotElasticsearchStatus>(word) {
            part.elected_master = None;
            detail.set(word, &part);
        }
    }

    fn stop_plan(&self) -> StopPlan {
        StopPlan { flush: FLUSH, success: &[TERMINATED], ..StopPlan::DEFAULT }
    }

    fn dump(&self) -> Option<DumpSignal> {
        Some(DumpSignal { signal: libc::SIGQUIT, children: "java" })
    }

    fn explain_exit(&self, code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
        explain_exit(code, log_tail)
    }
}

#[cfg(test)]
mod tests {
    mod faults;

    use super::*;
    use crate::{
        api::v1beta1::Pilot,
        databases::elasticsearch::v1beta1::{ElasticsearchNode, PilotElasticsearchSpec},
    };

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
        let answer = ElasticsearchDriver::new(node.data.clone()).decommission(&node).await;
        assert!(answer.is_err(), "{answer:?}");
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
        ElasticsearchDriver::new(PathBuf::new()).forget_process(&mut detail);
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
