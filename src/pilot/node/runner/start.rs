//! What comes before a start: checks, the turn, the configuration; and the validation of a new
//! configuration while the old process runs.
//!
//! Nothing here waits on the loop: whatever touches the volume is done where a volume that
//! hangs holds up neither signals nor probes.

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Message, Runner, node};
use crate::{
    api::v1beta1::Pilot,
    error::chain,
    pilot::{
        driver::{self, FailedCheck, Node, ProcessSpec},
        kube::{
            cluster::Cluster,
            founding::{self, Applicant, Turn},
            peers,
        },
        node::{
            machine::{Attempt, Effect, Event},
            preflight, report,
        },
        volume::{lock::Hangs, ownership},
    },
};

/// An API that takes longer is away; what is known already is used.
const PEERS_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

/// The peers as the API has them, or as they were known.
pub(super) async fn peers_now(
    cluster: Option<&Cluster>,
    pilot: &Pilot,
    known: Vec<Pilot>,
) -> Vec<Pilot> {
    let Some(cluster) = cluster.filter(|cluster| !cluster.breaker().is_away()) else {
        return known;
    };
    match timeout(PEERS_LIMIT, cluster.peers(pilot)).await {
        Ok(Ok(peers)) => peers,
        _ => known,
    }
}

impl Runner {
    /// A task that prepares a start; an earlier one is no longer wanted.
    fn prepare<F>(&mut self, name: &'static str, work: F)
    where
        F: Future<Output = Message> + Send + 'static,
    {
        self.preparing.cancel();
        self.preparing = CancellationToken::new();
        let (token, messages) = (self.preparing.clone(), self.messages.clone());
        self.rt.tasks().spawn(name, async move {
            tokio::select! {
                () = token.cancelled() => {}
                // An error means that the loop is gone.
                answer = work => drop(messages.send(answer).await),
            }
        });
    }

    pub(super) fn preflight(&mut self, attempt: Attempt) {
        let Some(pilot) = self.pilot.clone() else { return };
        let node = node(&self.settings, &pilot, &self.peers, self.start.may_found);
        let host = preflight::Host {
            require_mount: self.settings.require_mount,
            ports: self.settings.database.ports.to_vec(),
            namespace: self.settings.namespace.clone(),
        };
        let (driver, volume) = (self.driver.clone(), self.volume.clone());
        let low = self.settings.allow_low_limits;
        let has_data = self.settings.database.has_data;
        self.prepare("preflight", async move {
            let general = node.clone();
            let checked = volume
                .visit(move |lock| {
                    let failed = preflight::check(&general, &host, lock);
                    // The lock is held by whoever can read the volume, and alone.
                    (failed, lock.is_some().then(|| has_data(&general.data)))
                })
                .await;
            let (checked, holds) = match checked {
                Ok((failed, holds)) => (Ok(failed), holds),
                Err(hangs) => (Err(hangs), None),
            };
            let failed =
                match checked {
                    Ok(failed) if failed.is_empty() => volume
                        .during(
                            async move { preflight::check_database(&*driver, &node, low).await },
                        )
                        .await,
                    other => other,
                };
            let failed = failed.unwrap_or_else(|hangs| vec![hung(hangs)]);
            Message::Checked { attempt, failed, holds }
        });
    }

    pub(super) fn checked(
        &mut self,
        attempt: Attempt,
        failed: Vec<FailedCheck>,
        holds: Option<bool>,
    ) {
        self.facts.holds = holds.or(self.facts.holds);
        if failed.is_empty() {
            self.ours = true;
            self.remember_intent();
            if !self.foreign {
                // Else it stands until the next turn says otherwise.
                self.facts.preflight = Some(failed);
            }
            self.step(Event::PreflightPassed(attempt));
            return;
        }
        if failed.iter().any(|check| check.reason == "NodeDecommissioned") {
            // Its pilot was killed after the node left and before it wrote so.
            self.carry_out(Effect::RecordDecommissioned);
            self.step(Event::Decommissioned);
        }
        self.refused(failed);
        self.step(Event::PreflightFailed(attempt));
    }

    fn refused(&mut self, failed: Vec<FailedCheck>) {
        if self.facts.preflight.as_ref() != Some(&failed) {
            for check in &failed {
                warn!(reason = check.reason, explanation = check.message, "Preflight failed");
            }
        }
        self.metrics.preflight_failures.inc();
        self.facts.preflight = Some(failed);
    }

    pub(super) fn take_turn(&mut self, attempt: Attempt) {
        let Some(pilot) = self.pilot.clone() else { return };
        let cluster = self.cluster.clone();
        let (files, volume) = (self.files.clone(), self.volume.clone());
        let (database, data) = (self.settings.database, self.settings.data.clone());
        let messages = self.messages.clone();
        self.prepare("founding", async move {
            // A full queue only delays what is said to people.
            let say = |what| drop(messages.try_send(Message::Waiting(what)));
            let (files, volume, data) = (&files, &volume, &data);
            let node = Applicant { database, pilot: &pilot, files, volume, data };
            let turn = founding::take_turn(cluster.as_ref(), node, say).await;
            Message::Turn { attempt, turn }
        });
    }

    pub(super) fn turned(&mut self, attempt: Attempt, turn: Turn) {
        if !self.state.is_latest(attempt) {
            return;
        }
        self.facts.waiting = None;
        match turn {
            Turn::Start(start) => {
                let may_found = start.may_found;
                self.start = start;
                self.foreign = false;
                self.facts.preflight = Some(Vec::new());
                self.step(Event::Turn { attempt, may_found });
            }
            Turn::Refused(check) => {
                self.foreign = true;
                self.refused(vec![check]);
                self.step(Event::PreflightFailed(attempt));
            }
        }
    }

    pub(super) fn configure(&mut self, attempt: Attempt, may_found: bool) {
        let Some(pilot) = self.pilot.clone() else { return };
        let (settings, known) = (self.settings.clone(), self.peers.clone());
        let (cluster, driver) = (self.cluster.clone(), self.driver.clone());
        let (volume, ring) = (self.volume.clone(), self.start.ring.clone());
        self.prepare("configure", async move {
            let peers = peers_now(cluster.as_ref(), &pilot, known).await;
            let node = Node { ring, ..node(&settings, &pilot, &peers, may_found) };
            let written = volume.during(async move {
                let process = driver.configure(&node).await?;
                if let Some(user) = settings.user {
                    let (config, data) = (settings.config, settings.data);
                    // Rendered as root, read as somebody else: files with secrets are the owner's.
                    ownership::give(&config, user)
                        .map_err(|source| driver::Error::Give { path: config, source })?;
                    ownership::give_volume(&data, user)
                        .map_err(|source| driver::Error::Give { path: data, source })?;
                }
                Ok(process)
            });
            let late = |hangs| Err(driver::Error::NotYet(hung(hangs).message));
            let result = written.await.unwrap_or_else(late);
            Message::Configured { attempt, peers, result }
        });
    }

    pub(super) fn configured(
        &mut self,
        attempt: Attempt,
        result: Result<ProcessSpec, driver::Error>,
    ) {
        match result {
            Ok(process) => {
                self.facts.rejected = None;
                self.facts.waiting = None;
                self.process = Some(process);
                self.step(Event::Configured(attempt));
                return;
            }
            Err(driver::Error::NotYet(what)) => {
                self.facts.rejected = None;
                if self.facts.waiting.as_ref() != Some(&what) {
                    info!(what, "Waiting to start");
                }
                self.facts.waiting = Some(what);
                self.wait_for_peers();
            }
            Err(error) => self.rejected(chain(&error).to_string()),
        }
        self.step(Event::NotConfigured(attempt));
    }

    /// The start is tried again as soon as the peers are not what they were.
    fn wait_for_peers(&mut self) {
        let (Some(cluster), Some(pilot)) = (self.cluster.clone(), self.pilot.clone()) else {
            return;
        };
        let known = self.peers.clone();
        self.prepare("await-peers", async move {
            peers::changed(&cluster, &pilot, &known).await;
            Message::PeersMoved
        });
    }

    /// The running process and its files are not touched.
    pub(super) fn validate(&mut self, attempt: Attempt) {
        let Some(pilot) = self.pilot.clone() else { return };
        self.validating = true;
        let node = node(&self.settings, &pilot, &self.peers, self.start.may_found);
        let (driver, volume) = (self.driver.clone(), self.volume.clone());
        let low = self.settings.allow_low_limits;
        let messages = self.messages.clone();
        self.follow("validate", async move {
            let validated = volume.during(async move {
                let failed = preflight::check_database(&*driver, &node, low).await;
                if !failed.is_empty() {
                    return Some(report::joined(failed.iter()));
                }
                match driver.validate(&node).await {
                    // What must happen elsewhere first is waited for at the start.
                    Ok(()) | Err(driver::Error::NotYet(_)) => None,
                    Err(error) => Some(chain(&error).to_string()),
                }
            });
            let rejected = validated.await.unwrap_or_else(|hangs| Some(hung(hangs).message));
            drop(messages.send(Message::Validated { attempt, rejected }).await);
        });
    }

    pub(super) fn validated(&mut self, attempt: Attempt, rejected: Option<String>) {
        if !self.state.is_latest(attempt) {
            return;
        }
        self.validating = false;
        let good = rejected.is_none();
        match rejected {
            Some(why) => self.rejected(why),
            None => self.facts.rejected = None,
        }
        self.step(Event::Validated { attempt, good });
    }

    fn rejected(&mut self, why: String) {
        if self.facts.rejected.as_ref() != Some(&why) {
            warn!(error = why, "Configuration was rejected");
        }
        self.facts.rejected = Some(why);
    }
}

fn hung(hangs: Hangs) -> FailedCheck {
    let message = format!("{hangs}; see to its storage");
    FailedCheck { reason: "PreflightFailed", message }
}
