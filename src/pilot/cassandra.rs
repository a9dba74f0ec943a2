//! The Cassandra flavour: what a pilot knows about Cassandra.
//!
//! Owns the way into the running JVM and what was seen through it. No JVM is forked to ask
//! anything; the Jolokia agent answers over HTTP on loopback.

mod configure;
mod cql;
mod facts;
mod jolokia;
mod memory;
mod observe;
mod preflight;
mod ranges;
mod retire;
mod seeds;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use serde_json::json;
use tracing::{info, warn};

use self::{
    facts::Facts,
    jolokia::{Executed, GOSSIPER, Jolokia, STORAGE_SERVICE},
    memory::Memory,
    ranges::Ranges,
    retire::Progress,
};
use crate::{
    engine::{cassandra::explain_exit, ending::Ending},
    error::chain,
    pilot::{
        blockers::Blockers,
        database::{
            Database, Error, FailedCheck, Node, Observation, ProcessSpec, Retirement, StopPlan,
        },
        memory::Remembered,
        preflight::Needs,
        volume::Volume,
    },
};

/// Drain flushes memtables; TERM alone does the same, a little slower.
const DRAIN: Duration = Duration::from_secs(60);
/// While nodes are down, how often the ranges are looked at: the tables may be large.
const RANGES_EVERY: Duration = Duration::from_secs(20);

/// Do files of Cassandra lie in this data directory?
pub fn has_data(data: &Path) -> bool {
    configure::has_data(data)
}

/// One Cassandra node.
#[derive(Debug)]
pub struct Cassandra {
    config: PathBuf,
    data: PathBuf,
    volume: Volume,
    seen: Mutex<Seen>,
    progress: Arc<Mutex<Progress>>,
}

#[derive(Debug, Default)]
struct Seen {
    jolokia: Option<Jolokia>,
    ranges: Option<(Instant, Ranges)>,
    blockers: Blockers,
    /// Bytes received while it joined, as last read.
    received: Option<i64>,
}

impl Cassandra {
    /// `config` and `data` are the folders of [`Node`]. Takes over a database that an earlier
    /// pilot started from them.
    pub fn new(config: PathBuf, data: PathBuf) -> Self {
        let volume = Volume::default();
        Self { config, data, volume, seen: Mutex::default(), progress: Arc::default() }
    }

    /// Reaches its data directory in this way.
    #[must_use]
    pub fn on(self, volume: Volume) -> Self {
        Self { volume, ..self }
    }

    fn jolokia(&self) -> Result<Jolokia, Error> {
        let mut seen = self.seen.lock().expect("no panic while held");
        if seen.jolokia.is_none() {
            seen.jolokia = Jolokia::attach(&self.config);
        }
        seen.jolokia
            .clone()
            .ok_or_else(|| Error::Unreachable { source: "it was never configured".into() })
    }

    /// Who shares ranges with whom, looked at only while somebody is down.
    async fn ranges(&self, jolokia: &Jolokia, facts: &Facts) -> Result<Ranges, Error> {
        if facts.unreachable.is_empty() || !facts.is_member() {
            self.seen.lock().expect("no panic while held").ranges = None;
            return Ok(Ranges::default());
        }
        {
            let seen = self.seen.lock().expect("no panic while held");
            if let Some((when, ranges)) = &seen.ranges
                && when.elapsed() < RANGES_EVERY
            {
                return Ok(ranges.clone());
            }
        }
        let ranges = Ranges::ask(jolokia, facts).await?;
        let mut seen = self.seen.lock().expect("no panic while held");
        seen.ranges = Some((Instant::now(), ranges.clone()));
        Ok(ranges)
    }

    /// Remembers what is new, when the volume has time. Returns the bytes received while the node
    /// joined, and what could not be written down.
    async fn keep(&self, facts: &Facts) -> (Option<i64>, Option<String>) {
        let (data, known) = (self.data.clone(), facts.clone());
        let remembered = self.volume.glance(move |_| Self::remember(&data, &known)).await;
        let mut seen = self.seen.lock().expect("no panic while held");
        match remembered {
            Ok(Some(Ok(received))) => {
                seen.received = received;
                (received, None)
            }
            Ok(None) => (seen.received, None),
            Ok(Some(Err(error))) => (seen.received, Some(chain(&error).to_string())),
            Err(hangs) => (seen.received, Some(hangs.to_string())),
        }
    }

    /// Remembers the turns of the node's life; returns the bytes received while it joined.
    fn remember(data: &Path, facts: &Facts) -> Result<Option<i64>, Error> {
        let mut memory = Memory::load(data)?;
        if facts.version.is_some() && facts.version != memory.version {
            memory.version.clone_from(&facts.version);
            memory.save(data)?;
        }
        match facts.mode.as_str() {
            "JOINING" => return Ok(facts.received),
            "NORMAL" if !memory.joined => {
                memory.joined = true;
                memory.replacing = None;
                memory.bootstrap_bytes_received = facts.received.filter(|_| !memory.founded);
                memory.save(data)?;
                let received = memory.bootstrap_bytes_received;
                if memory.founded {
                    info!("Cassandra began a ring");
                } else if received == Some(0) {
                    warn!("Cassandra joined the ring and received nothing");
                } else {
                    info!(received, "Cassandra joined the ring");
                }
            }
            "DECOMMISSIONED" if !memory.left => {
                memory.left = true;
                memory.save(data)?;
            }
            _ => {}
        }
        Ok(memory.bootstrap_bytes_received)
    }
}

impl Database for Cassandra {
    fn flavour(&self) -> &'static str {
        "cassandra"
    }

    fn needs(&self, _node: &Node) -> Needs {
        preflight::NEEDS
    }

    fn preflight<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Vec<FailedCheck>> {
        Box::pin(async move {
            let mut failed = preflight::check(node);
            failed.extend(preflight::seeds(node).await);
            failed
        })
    }

    fn judge<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { configure::judge(node) })
    }

    fn configure<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<ProcessSpec, Error>> {
        Box::pin(async move {
            let (process, jolokia) = configure::configure(node)?;
            let mut seen = self.seen.lock().expect("no panic while held");
            *seen = Seen { jolokia: Some(jolokia), ..Seen::default() };
            // What another process sent counts no more: a departure begins again.
            *self.progress.lock().expect("no panic while held") = Progress::default();
            Ok(process)
        })
    }

    fn refresh<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if !configure::rewrite_seeds(node)? {
                return Ok(());
            }
            let reloaded = self
                .jolokia()?
                .execute(GOSSIPER, "reloadSeeds()", &json!([]), Duration::from_secs(5))
                .await?;
            match reloaded {
                Executed::Failed(refusal) => Err(Error::Refused(refusal)),
                Executed::Done(_) | Executed::StillRunning => Ok(()),
            }
        })
    }

    fn observe(&self) -> BoxFuture<'_, Result<Observation, Error>> {
        Box::pin(async move {
            let jolokia = self.jolokia()?;
            let facts = Facts::ask(&jolokia).await?;
            let ranges = self.ranges(&jolokia, &facts).await?;
            let (received, unsaved) = self.keep(&facts).await;
            let (mut observation, holding) = observe::judge(&facts, &ranges, received);
            observation.unsaved = unsaved;
            observation.blockers =
                self.seen.lock().expect("no panic while held").blockers.judged(holding);
            Ok(observation)
        })
    }

    fn lives(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            match self.jolokia().ok().and_then(|jolokia| jolokia.host()) {
                // It listens for clients there, too.
                Some(host) => cql::answers(host).await,
                None => false,
            }
        })
    }

    fn retire<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Retirement, Error>> {
        Box::pin(async move {
            if Memory::load(&node.data)?.left {
                return Ok(Retirement::Left);
            }
            retire::retire(&self.jolokia()?, node, &self.progress).await
        })
    }

    fn cancel_retirement<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut memory = Memory::load(&node.data)?;
            if memory.left {
                return Err(Error::TooLate("the node has left the ring".to_owned()));
            }
            if memory.retiring_since.is_none() {
                return Ok(());
            }
            if retire::past_the_point_of_return(&self.jolokia()?, node).await? {
                return Err(Error::TooLate("the node is leaving the ring".to_owned()));
            }
            memory.retiring_since = None;
            memory.save(&node.data)
        })
    }

    fn drain(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.jolokia()?.execute(STORAGE_SERVICE, "drain()", &json!([]), DRAIN).await? {
                Executed::Done(_) => Ok(()),
                Executed::Failed(refusal) => Err(Error::Refused(refusal)),
                Executed::StillRunning => {
                    Err(Error::Refused("nothing while it drained".to_owned()))
                }
            }
        })
    }

    fn stop_plan(&self) -> StopPlan {
        StopPlan { drain: DRAIN }
    }

    fn explain_exit(&self, code: i32, log_tail: &[String]) -> Option<Ending> {
        explain_exit(code, log_tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::{Endpoint, Identity, Pilot, PilotCassandraSpec};

    pub(super) fn node() -> Node {
        node_in(Path::new("/nowhere"))
    }

    /// Node `a` of ring `shop`, 10.0.0.1, with all its folders below `place`.
    pub(super) fn node_in(place: &Path) -> Node {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("a".to_owned());
        pilot.spec.version = Some("5.0.6".to_owned());
        pilot.spec.cassandra = Some(PilotCassandraSpec {
            cluster_name: Some("shop".to_owned()),
            rack: Some("r1".to_owned()),
            ..PilotCassandraSpec::default()
        });
        Node {
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

    /// A member of the ring at this address.
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
        let cassandra = Cassandra::new(node.config.clone(), node.data.clone());
        cassandra.progress.lock().unwrap().note(&[facts::Stream {
            plan: "cut off".to_owned(),
            sending: 100,
            sent: 10,
            ..facts::Stream::default()
        }]);
        cassandra.configure(&node).await.unwrap();
        assert_eq!(cassandra.progress.lock().unwrap().figures(), None);
    }

    #[test]
    fn what_an_end_means_is_said_and_not_written_down() {
        let place = tempfile::tempdir().unwrap();
        let cassandra = Cassandra::new(place.path().join("config"), place.path().to_owned());
        let tail = ["This node was decommissioned and will not rejoin the ring unless".to_owned()];
        assert!(cassandra.explain_exit(1, &tail).unwrap().left);
        assert_eq!(Memory::load(place.path()).unwrap(), Memory::default());
    }
}
