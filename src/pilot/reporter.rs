//! Writes the node's status: only what changed, by merge patch, and the heartbeat by itself.
//!
//! What it compares with is the object as the server last showed it, so a write by somebody
//! else (the controller marks a silent pilot) is put right, and a Pilot that was made again is
//! filled again. An idle node writes heartbeats and nothing else.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::utils::Backoff as _;
use serde_json::{Map, Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::{backoff::Backoff, cluster::Cluster, intent};
use crate::{api::v1beta1::PilotStatus, error::chain, runtime::Shutdown};

const HEARTBEAT: Duration = Duration::from_secs(30);
/// Two writes in a row are at least so far apart.
const PACE: Duration = Duration::from_secs(1);
/// Figures that always move wait this long, unless something else is written anyway.
const FIGURES_PACE: Duration = Duration::from_secs(30);
const FIGURES: [&str; 4] = ["storage", "blockers", "cassandra", "elasticsearch"];

/// Runs until shutdown, then writes what is left once.
pub async fn run(
    cluster: Cluster,
    mut wanted: watch::Receiver<PilotStatus>,
    mut seen: intent::Receiver,
    shutdown: Shutdown,
) {
    let gate = cluster.gate().clone();
    let mut reporter = Reporter {
        cluster,
        server: PilotStatus::default(),
        revision: None,
        backoff: Backoff::default(),
        troubled: false,
        next_write: Instant::now(),
        next_figures: Instant::now(),
        next_heartbeat: Instant::now(),
    };
    loop {
        let exists = reporter.look(&mut seen);
        let status = wanted.borrow_and_update().clone();
        // Without a phase the runner has not seen the object yet, and knows less than it says.
        let due = (exists && status.phase.is_some()).then(|| reporter.due(&status));
        tokio::select! {
            () = shutdown.triggered() => break,
            changed = wanted.changed() => if changed.is_err() { break },
            changed = seen.changed() => if changed.is_err() { break },
            // What is written is what is true when the API can be asked again.
            () = async { at(due).await; gate.passable().await } => reporter.write(&status).await,
        }
    }
    // The last word, and no more than a moment for it.
    if reporter.look(&mut seen) && !gate.is_away() {
        let status = wanted.borrow().clone();
        if !patch(&reporter.server, &status).is_empty() {
            let last = reporter.write(&status);
            if tokio::time::timeout(Duration::from_secs(1), last).await.is_err() {
                debug!("Last report was not written");
            }
        }
    }
}

struct Reporter {
    cluster: Cluster,
    /// The status as the server has it.
    server: PilotStatus,
    /// uid and resourceVersion of the object that `server` was read from.
    revision: Option<(String, u64)>,
    backoff: Backoff,
    /// It has been said that writes fail.
    troubled: bool,
    next_write: Instant,
    next_figures: Instant,
    next_heartbeat: Instant,
}

impl Reporter {
    /// Takes over what the watch showed, unless a write's answer is newer. False while there
    /// is no object to write to.
    fn look(&mut self, seen: &mut intent::Receiver) -> bool {
        let intent = seen.borrow_and_update();
        if let Some(intent) = intent.as_ref().filter(|intent| !intent.remembered) {
            self.accept(&intent.pilot);
        }
        self.revision.is_some()
    }

    fn accept(&mut self, pilot: &crate::api::v1beta1::Pilot) {
        let uid = pilot.metadata.uid.clone().unwrap_or_default();
        let revision =
            pilot.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        let revision = revision.unwrap_or(u64::MAX);
        let newer =
            self.revision.as_ref().is_none_or(|(known, at)| *known != uid || revision >= *at);
        if newer {
            self.server = pilot.status.clone();
            self.revision = Some((uid, revision));
        }
    }

    /// When the next write is to be made; the heartbeat at the latest.
    fn due(&self, status: &PilotStatus) -> Instant {
        let changes = patch(&self.server, status);
        let only_figures = changes.keys().all(|key| FIGURES.contains(&key.as_str()));
        let report = match (changes.is_empty(), only_figures) {
            (true, _) => self.next_heartbeat,
            (false, true) => self.next_figures.min(self.next_heartbeat),
            (false, false) => self.next_write,
        };
        report.min(self.next_heartbeat).max(self.next_write)
    }

    async fn write(&mut self, status: &PilotStatus) {
        let now = Instant::now();
        let changes = patch(&self.server, status);
        let only_figures = changes.keys().all(|key| FIGURES.contains(&key.as_str()));
        let beat = now >= self.next_heartbeat;
        let report = !changes.is_empty() && (!only_figures || now >= self.next_figures);
        let body = if report {
            Value::Object(changes)
        } else if beat {
            json!({ "lastHeartbeatTime": Time(Timestamp::now()) })
        } else {
            return;
        };
        match self.cluster.patch_status(&body).await {
            Ok(pilot) => {
                self.backoff.reset();
                self.troubled = false;
                self.accept(&pilot);
                self.next_write = now + PACE;
                if report {
                    self.next_figures = now + FIGURES_PACE;
                } else {
                    self.next_heartbeat = now + HEARTBEAT;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.troubled, true) {
                    warn!(error = %chain(&error), "Status cannot be written");
                }
                self.next_write = now + self.backoff.pause();
            }
        }
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What must be merged into `server` to make it `wanted`. The heartbeat's time is left alone.
fn patch(server: &PilotStatus, wanted: &PilotStatus) -> Map<String, Value> {
    let fields = |status: &PilotStatus| match serde_json::to_value(status) {
        Ok(Value::Object(mut fields)) => {
            fields.remove("lastHeartbeatTime");
            fields
        }
        _ => Map::new(),
    };
    merge_patch(&fields(server), &fields(wanted))
}

/// RFC 7386, the other way round.
fn merge_patch(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in to {
        match (from.get(key), value) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(key.clone(), Value::Object(merge_patch(old, new)));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::{PilotPhase, Process};

    #[test]
    fn only_what_changed_is_patched_and_never_the_heartbeat() {
        let server = PilotStatus {
            phase: Some(PilotPhase::Running),
            version: Some("5.0.6".into()),
            process: Some(Process { pid: 7, start_time: None, restarts: 0 }),
            last_heartbeat_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..PilotStatus::default()
        };
        let mut wanted = PilotStatus { last_heartbeat_time: None, ..server.clone() };
        assert!(patch(&server, &wanted).is_empty());
        wanted.version = None;
        wanted.process = Some(Process { pid: 9, start_time: None, restarts: 0 });
        let expected = json!({"version": null, "process": {"pid": 9}});
        assert_eq!(Value::Object(patch(&server, &wanted)), expected);
    }

    #[test]
    fn a_merge_patch_leads_from_one_to_the_other() {
        let pairs = [
            (json!({"a": 1, "b": {"c": [1], "d": 2}}), json!({"b": {"c": [2]}, "e": {}})),
            (json!({}), json!({"a": {"b": 1}})),
            (json!({"a": {"b": 1}}), json!({"a": 3})),
        ];
        for (from, to) in pairs {
            let (Value::Object(a), Value::Object(b)) = (&from, &to) else { unreachable!() };
            let mut merged = from.clone();
            json_patch::merge(&mut merged, &Value::Object(merge_patch(a, b)));
            assert_eq!(merged, to);
        }
    }
}
