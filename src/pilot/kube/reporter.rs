//! Writes the node's status: only what changed, by merge patch, with the heartbeat in it.
//!
//! The reporter compares with the object as the server last showed it, so a write by another client
//! (the controller marks a silent pilot) is put right, and a Pilot that was made again is filled
//! again. Every write is a heartbeat. Figures, which always move, wait for the next heartbeat; so a
//! node of which nothing else changes writes one request each `HEARTBEAT`. A report that the server
//! refuses, or that meets a newer object, holds up no heartbeat; after a refusal the heartbeat says that
//! what the Pilot shows is of before. While there is no Pilot, or another
//! pilot holds the name, nothing is written, and a report never overwrites one that this pilot has
//! not seen.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::utils::Backoff as _;
use prometheus::IntGauge;
use serde_json::{Map, Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{
    api::{
        predicate::HOLDINGS_KNOWN,
        v1beta1::{Blocker, Decommission, NodeChange, PilotStatus},
    },
    error::chain,
    pilot::kube::{
        backoff::RetryBackoff,
        intent,
        name_holder::{self, NameHolder},
        pilot_api::{PilotApi, is_conflict},
    },
    runtime::Shutdown,
};

const HEARTBEAT: Duration = Duration::from_secs(30);
/// Least time from one write to the next. A try after a failed write, and the last report at
/// shutdown, may come sooner.
const PACE: Duration = Duration::from_secs(1);

/// Fields of a status that hold figures, beside those of the database's own part. A blocker that
/// appears or goes is no figure: the controller may be about to decide by it.
const FIGURES: [&str; 2] = ["storage", "blockers"];

/// Writes reports and heartbeats until shutdown, then tries for a second to write what is left.
pub async fn run_reporter(
    cluster: PilotApi,
    mut status_updates: watch::Receiver<PilotStatus>,
    intents: intent::IntentSender,
    mut namesake: name_holder::NameHolderReceiver,
    heartbeat: IntGauge,
    shutdown: Shutdown,
) {
    let breaker = cluster.breaker().clone();
    let mut intent_receiver = intents.subscribe();
    let mut reporter = StatusReporter {
        cluster,
        intents,
        heartbeat,
        server: PilotStatus::default(),
        revision: None,
        backoff: RetryBackoff::default(),
        report_backoff: RetryBackoff::default(),
        troubled: false,
        refused: false,
        hold_refused: false,
        next_write: Instant::now(),
        next_report: Instant::now(),
        next_heartbeat: Instant::now(),
    };
    loop {
        let exists = reporter.update_from_watch(&mut intent_receiver);
        let status = status_updates.borrow_and_update().clone();
        // Without a phase the runner has not seen the object yet, and its status is still empty.
        let can_write = exists && reporter.may_write(&namesake.borrow_and_update(), &status);
        let write_time =
            (can_write && status.phase.is_some()).then(|| reporter.next_write_time(&status));
        tokio::select! {
            () = shutdown.triggered() => break,
            changed = status_updates.changed() => if changed.is_err() { break },
            changed = intent_receiver.changed() => if changed.is_err() { break },
            Ok(()) = namesake.changed() => {}
            // When the API can be asked again, the status of that moment is written.
            () = async { sleep_until_due(write_time).await; breaker.wait_until_passable().await } => reporter.write_report(&status).await,
        }
    }
    // The last report, and no more than a moment for it.
    if reporter.update_from_watch(&mut intent_receiver) && !breaker.is_away() {
        let (status, holder) = (status_updates.borrow().clone(), namesake.borrow().clone());
        let final_write = async {
            // Somebody else may write at the same moment.
            for _ in 0..2 {
                reporter.next_report = Instant::now();
                let can_write = reporter.may_write(&holder, &status);
                if can_write && !status_patch(&reporter.server, &status).is_empty() {
                    reporter.write_report(&status).await;
                }
            }
        };
        if tokio::time::timeout(Duration::from_secs(1), final_write).await.is_err() {
            debug!("Last report was not written");
        }
    }
}

struct StatusReporter {
    cluster: PilotApi,
    intents: intent::IntentSender,
    /// When the API last took a write of this pilot.
    heartbeat: IntGauge,
    /// The status as the server has it.
    server: PilotStatus,
    /// uid and resourceVersion of the object that `server` was read from.
    revision: Option<(String, u64)>,
    backoff: RetryBackoff,
    /// After a report that was refused, or that met a newer object.
    report_backoff: RetryBackoff,
    /// Failed writes have been logged, and in `refused` the refusal of the report.
    troubled: bool,
    refused: bool,
    /// The server refuses also the blocker that says so.
    hold_refused: bool,
    next_write: Instant,
    /// No report is tried before this moment, but for the last one at shutdown.
    next_report: Instant,
    next_heartbeat: Instant,
}

impl StatusReporter {
    /// Takes over the status that the watch showed, unless a write's answer is newer. False while
    /// there is no object to write to.
    fn update_from_watch(&mut self, intent_receiver: &mut intent::IntentReceiver) -> bool {
        let intent = intent_receiver.borrow_and_update();
        if let Some(intent) = intent.as_ref().filter(|intent| !intent.remembered) {
            self.observe_pilot(&intent.pilot);
        }
        self.revision.is_some()
    }

    fn observe_pilot(&mut self, pilot: &crate::api::v1beta1::Pilot) {
        let uid = pilot.metadata.uid.clone().unwrap_or_default();
        let revision = intent::revision(pilot);
        let is_newer = self.revision.as_ref().is_none_or(|(known_uid, known_revision)| {
            *known_uid != uid || revision >= *known_revision
        });
        if is_newer {
            self.server = pilot.status.clone();
            self.revision = Some((uid, revision));
        }
    }

    /// May this pilot write over the report that the server has?
    fn may_write(&self, holder: &NameHolder, status: &PilotStatus) -> bool {
        holder.may_replace(status.instance.as_ref(), self.server.instance.as_ref())
    }

    /// Returns when the next write is due: at the next heartbeat at the latest, but not before
    /// `next_write`.
    fn next_write_time(&self, status: &PilotStatus) -> Instant {
        let changes = status_patch(&self.server, status);
        let is_deferred = changes.is_empty() || only_figures(&self.server, status, &changes);
        let report_time = if is_deferred { self.next_heartbeat } else { self.next_write };
        report_time.max(self.next_report).min(self.next_heartbeat).max(self.next_write)
    }

    async fn write_report(&mut self, status: &PilotStatus) {
        let now = Instant::now();
        let changes = status_patch(&self.server, status);
        let is_heartbeat_due = now >= self.next_heartbeat;
        let needs_report = !changes.is_empty()
            && (is_heartbeat_due || !only_figures(&self.server, status, &changes));
        // After a refusal a heartbeat that is due goes alone, ahead of the next try.
        let is_reporting =
            needs_report && now >= self.next_report && !(is_heartbeat_due && self.refused);
        if !is_reporting && !is_heartbeat_due {
            return;
        }
        let blocker_patch = (!is_reporting && self.refused && !self.hold_refused)
            .then(|| self.blocker_patch())
            .flatten();
        let has_blocker_patch = blocker_patch.is_some();
        let mut body = if is_reporting { changes } else { blocker_patch.unwrap_or_default() };
        body.insert("lastHeartbeatTime".to_owned(), json!(Time(Timestamp::now())));
        // A report replaces the status that it was compared with. A heartbeat replaces nothing.
        let revision =
            self.revision.as_ref().map(|(_, revision)| *revision).filter(|_| is_reporting);
        match self.cluster.patch_status(&Value::Object(body), revision).await {
            Ok(pilot) => {
                self.backoff.reset();
                self.troubled = false;
                self.heartbeat.set(Timestamp::now().as_second());
                self.observe_pilot(&pilot);
                intent::heed_answer(&self.intents, &pilot);
                self.next_write = now + PACE;
                self.next_heartbeat = now + HEARTBEAT;
                if is_reporting {
                    (self.refused, self.hold_refused) = (false, false);
                    self.report_backoff.reset();
                }
            }
            Err(error) if is_reporting && is_conflict(&error) => {
                self.next_report = now + self.report_backoff.next_pause();
                // Fails only where the next write does, too, which is logged.
                if let Ok(pilot) = self.cluster.get_pilot().await {
                    self.revision = None;
                    self.observe_pilot(&pilot);
                    intent::heed_answer(&self.intents, &pilot);
                }
            }
            Err(error) if is_reporting && is_refusal(&error) => {
                if !std::mem::replace(&mut self.refused, true) {
                    warn!(error = %chain(&error), "Report is refused; heartbeats go on");
                }
                self.next_write = now + PACE;
                self.next_report = now + self.report_backoff.next_pause();
            }
            Err(error) if has_blocker_patch && is_refusal(&error) => {
                self.hold_refused = true;
                self.next_write = now + PACE;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.troubled, true) {
                    warn!(error = %chain(&error), "Status cannot be written");
                }
                self.next_write = now + self.backoff.next_pause();
            }
        }
    }
}

impl StatusReporter {
    /// Returns the change of the status by which no rule is taken to be met that this pilot could not
    /// report of; `None` where the server has it.
    fn blocker_patch(&self) -> Option<Map<String, Value>> {
        let mut blockers = self.server.blockers.clone();
        if blockers.iter().any(|blocker| blocker.predicate == HOLDINGS_KNOWN.name) {
            return None;
        }
        blockers.push(Blocker {
            predicate: HOLDINGS_KNOWN.name.to_owned(),
            against: vec![NodeChange::Stop, NodeChange::Join, NodeChange::Leave],
            message: "the server refuses the report of this pilot, so what it says is of before; \
                      the log of the pilot has the reason"
                .to_owned(),
            since: Some(Time(Timestamp::now())),
            observed_time: None,
        });
        Some(Map::from_iter([("blockers".to_owned(), json!(blockers))]))
    }
}

/// Does the server refuse the content of the write?
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422))
}

async fn sleep_until_due(write_time: Option<Instant>) {
    match write_time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Do `changes` concern only figures, so that they may wait?
fn only_figures(
    server: &PilotStatus,
    desired_status: &PilotStatus,
    changes: &Map<String, Value>,
) -> bool {
    let rules = |status: &PilotStatus| -> BTreeSet<String> {
        status.blockers.iter().map(|blocker| blocker.predicate.clone()).collect()
    };
    let has_part =
        |field: &str| server.parts.has_part(field) || desired_status.parts.has_part(field);
    let is_figures_only = changes.keys().all(|key| match key.as_str() {
        "conditions" => same_words(server, desired_status),
        "decommission" => same_percent(server, desired_status),
        key => FIGURES.contains(&key) || has_part(key),
    });
    is_figures_only && rules(server) == rules(desired_status)
}

/// Do the conditions differ in nothing but the figures of their sentences, as bytes that were
/// received? Such figures move all the time while a node joins or leaves.
fn same_words(server: &PilotStatus, desired_status: &PilotStatus) -> bool {
    let without_digits = |status: &PilotStatus| {
        let mut conditions = status.conditions.clone();
        for condition in &mut conditions {
            condition.message.retain(|letter| !letter.is_ascii_digit());
        }
        conditions
    };
    without_digits(server) == without_digits(desired_status)
}

/// Is a decommission as far as before, in whole percent?
fn same_percent(server: &PilotStatus, desired_status: &PilotStatus) -> bool {
    let (Some(old_progress), Some(new_progress)) =
        (&server.decommission, &desired_status.decommission)
    else {
        return false;
    };
    let without_figures = |progress: &Decommission| Decommission {
        bytes_left: None,
        shards_left: None,
        documents_left: None,
        message: progress
            .message
            .as_ref()
            .map(|text| text.replace(|c: char| c.is_ascii_digit(), "")),
        ..progress.clone()
    };
    without_figures(old_progress) == without_figures(new_progress)
}

/// Returns the merge patch that turns `server` into `wanted`. The heartbeat's time is left alone.
fn status_patch(server: &PilotStatus, desired_status: &PilotStatus) -> Map<String, Value> {
    let fields = |status: &PilotStatus| match serde_json::to_value(status) {
        Ok(Value::Object(mut fields)) => {
            fields.remove("lastHeartbeatTime");
            fields
        }
        _ => Map::new(),
    };
    merge_patch(&fields(server), &fields(desired_status))
}

/// Returns the merge patch (RFC 7386) that turns `from` into `to`.
fn merge_patch(source: &Map<String, Value>, target: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in target {
        match (source.get(key), value) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(key.clone(), Value::Object(merge_patch(old, new)));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in source.keys().filter(|key| !target.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use kube::{Client, client::Body};

    use super::*;
    use crate::{
        api::v1beta1::{
            Blocker, Health, Instance, Pilot, PilotIntent, PilotPhase, PilotStorage, Process,
        },
        pilot::{database::EXAMPLE, kube::intent::IntentSnapshot},
    };

    /// Is the write a heartbeat and nothing else?
    fn is_bare(status: &Value) -> bool {
        status.as_object().unwrap().keys().eq(["lastHeartbeatTime"])
    }

    /// Does the write say that the report was refused, and nothing else?
    fn holds(status: &Value) -> bool {
        status.as_object().unwrap().keys().eq(["blockers", "lastHeartbeatTime"])
    }

    /// An API that answers every report with this code; returns the writes that were tried.
    fn refusing(code: u16, reason: &'static str) -> (Client, Arc<Mutex<Vec<Value>>>) {
        refusing_but(code, reason, is_bare)
    }

    /// The same, of an API that takes such reports.
    fn refusing_but(
        code: u16,
        reason: &'static str,
        takes: fn(&Value) -> bool,
    ) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let tried = Arc::new(Mutex::new(Vec::new()));
        let noted = tried.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let noted = noted.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let mut answer = json!({"metadata": {"name": "p", "uid": "u",
                    "resourceVersion": "2"}, "spec": {"phase": "Stopped"}});
                let mut answer_code = 200;
                if parts.method == http::Method::PATCH {
                    let status = serde_json::from_slice::<Value>(&body).unwrap()["status"].take();
                    let taken = noted.lock().unwrap();
                    let known = taken.iter().chain([&status]).filter(|status| takes(status));
                    if let Some(held) = known.rev().find(|status| holds(status)) {
                        answer["status"] = held.clone();
                    }
                    drop(taken);
                    if !takes(&status) {
                        answer_code = code;
                        answer = json!({"kind": "Status", "status": "Failure", "reason": reason,
                            "code": code, "message": "", "details": {}, "metadata": {}});
                    }
                    noted.lock().unwrap().push(status);
                }
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(answer_code).body(body).unwrap())
            }
        });
        (Client::new(service, "default"), tried)
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_is_refused_holds_up_no_heartbeat() {
        heartbeats_go_on(refusing(422, "Invalid")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_meets_an_edit_each_time_holds_up_no_heartbeat() {
        heartbeats_go_on(refusing(409, "Conflict")).await;
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_the_heartbeat_says_that_the_report_is_of_before() {
        let takes = |status: &Value| is_bare(status) || holds(status);
        let (client, tried) = refusing_but(422, "Invalid", takes);
        let cluster = PilotApi::new(&client, &EXAMPLE, "default", "p");
        let mut pilot = Pilot::default();
        pilot.metadata.uid = Some("u".to_owned());
        pilot.metadata.resource_version = Some("1".to_owned());
        let known = json!({"predicate": "PeersUp", "message": "one is down"});
        pilot.status.blockers = vec![serde_json::from_value(known).unwrap()];
        let intents = intent::IntentSender::new(Some(IntentSnapshot { pilot, remembered: false }));
        let status = PilotStatus { phase: Some(PilotPhase::Running), ..PilotStatus::default() };
        let (_wanted, wanted) = watch::channel(status);
        let beat = IntGauge::new("beat", "beat").unwrap();
        let run = run_reporter(
            cluster,
            wanted,
            intents,
            name_holder::sole_holder(),
            beat,
            Shutdown::new(),
        );
        drop(tokio::time::timeout(Duration::from_secs(125), run).await);
        let tried = tried.lock().unwrap();
        let said: Vec<&Value> = tried.iter().filter(|status| holds(status)).collect();
        assert_eq!(said.len(), 1, "the server has it after that: {tried:?}");
        let rules: Vec<_> = said[0]["blockers"].as_array().unwrap().iter().collect();
        let names: Vec<_> = rules.iter().map(|rule| rule["predicate"].as_str().unwrap()).collect();
        assert_eq!(names, ["PeersUp", HOLDINGS_KNOWN.name], "what held before still holds");
        assert_eq!(rules[1]["against"], json!(["Stop", "Join", "Leave"]));
        assert!(tried.iter().filter(|status| is_bare(status)).count() >= 2, "{tried:?}");
    }

    async fn heartbeats_go_on((client, tried): (Client, Arc<Mutex<Vec<Value>>>)) {
        let cluster = PilotApi::new(&client, &EXAMPLE, "default", "p");
        let mut pilot = Pilot::default();
        pilot.metadata.uid = Some("u".to_owned());
        pilot.metadata.resource_version = Some("1".to_owned());
        let intents = intent::IntentSender::new(Some(IntentSnapshot { pilot, remembered: false }));
        let mut seen = intents.subscribe();
        let status = PilotStatus { phase: Some(PilotPhase::Running), ..PilotStatus::default() };
        let (_wanted, wanted) = watch::channel(status);
        let minutes = Duration::from_secs(305);
        let beat = IntGauge::new("beat", "beat").unwrap();
        let before = Timestamp::now().as_second();
        drop(
            tokio::time::timeout(
                minutes,
                run_reporter(
                    cluster,
                    wanted,
                    intents,
                    name_holder::sole_holder(),
                    beat.clone(),
                    Shutdown::new(),
                ),
            )
            .await,
        );
        let tried = tried.lock().unwrap();
        let (beats, reports): (Vec<&Value>, Vec<&Value>) =
            tried.iter().partition(|status| is_bare(status));
        assert!((9..=11).contains(&beats.len()), "{tried:?}");
        assert!(beat.get() >= before, "the last one that was taken");
        let wanted = seen.borrow_and_update().as_ref().unwrap().pilot.spec.phase.clone();
        assert_eq!(wanted, Some(PilotIntent::Stopped), "what the answer shows is heeded");
        assert!((8..=20).contains(&reports.len()), "tried again, and ever less often: {tried:?}");
    }

    /// A Pilot that a server has.
    #[derive(Default)]
    struct StoredPilot {
        status: Value,
        /// Writes by pilots, and by others.
        writes: u64,
        others: u64,
        conflicts: u64,
    }

    impl StoredPilot {
        fn revision(&self) -> String {
            (1 + self.writes + self.others).to_string()
        }

        fn object(&self) -> Value {
            let meta = json!({"name": "p", "uid": "u", "resourceVersion": self.revision()});
            json!({"metadata": meta, "status": self.status})
        }

        fn pilot(&self) -> Pilot {
            serde_json::from_value(self.object()).unwrap()
        }
    }

    /// An API that takes every write of what it has, and answers 409 to a write of what it had.
    fn taking() -> (Client, Arc<Mutex<StoredPilot>>) {
        let stored =
            Arc::new(Mutex::new(StoredPilot { status: json!({}), ..StoredPilot::default() }));
        let server = stored.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let is_write = request.method() == http::Method::PATCH;
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut stored = server.lock().unwrap();
                let (mut code, mut answer) = (200, Value::Null);
                if is_write {
                    let mut patch: Value = serde_json::from_slice(&body).unwrap();
                    let read = patch["metadata"]["resourceVersion"].as_str();
                    if read.is_some_and(|read| read != stored.revision()) {
                        stored.conflicts += 1;
                        code = 409;
                        answer = json!({"kind": "Status", "status": "Failure", "code": 409,
                            "reason": "Conflict", "message": "", "metadata": {}});
                    } else {
                        json_patch::merge(&mut stored.status, &patch["status"].take());
                        stored.writes += 1;
                    }
                }
                if answer.is_null() {
                    answer = stored.object();
                }
                let body = Full::new(Bytes::from(answer.to_string()));
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        (Client::new(service, "default"), stored)
    }

    /// Reports `status` for a minute, of a pilot that last saw `seen` and whose name `holder` holds.
    async fn report_for_a_minute(
        client: &Client,
        seen: Pilot,
        status: PilotStatus,
        holder: NameHolder,
    ) {
        let cluster = PilotApi::new(client, &EXAMPLE, "default", "p");
        let intents =
            intent::IntentSender::new(Some(IntentSnapshot { pilot: seen, remembered: false }));
        let ((_wanted, wanted), (_holder, held)) = (watch::channel(status), watch::channel(holder));
        let beat = IntGauge::new("beat", "beat").unwrap();
        let reports = run_reporter(cluster, wanted, intents, held, beat, Shutdown::new());
        drop(tokio::time::timeout(Duration::from_secs(60), reports).await);
    }

    fn instance(uid: &str) -> Instance {
        let runtime = "Kubernetes".to_owned();
        Instance { runtime, node: None, uid: Some(uid.to_owned()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_another_pilot_is_replaced_only_once_that_pilot_was_judged() {
        let own = PilotStatus { instance: Some(instance("old")), ..running() };
        let rows = [
            (None, 0),
            (Some(instance("of-before")), 0),
            // Gone, as Kubernetes says: the first report, and two heartbeats.
            (Some(instance("new")), 2),
        ];
        for (predecessor, least) in rows {
            let (client, stored) = taking();
            stored.lock().unwrap().status = json!({"instance": instance("new")});
            let seen = stored.lock().unwrap().pilot();
            let holder = NameHolder::Ours { predecessor: predecessor.clone() };
            report_for_a_minute(&client, seen, own.clone(), holder).await;
            let stored = stored.lock().unwrap();
            assert!(
                stored.writes >= least && (stored.writes > 0) == (least > 0),
                "{predecessor:?}"
            );
            let names = if least == 0 { "new" } else { "old" };
            assert_eq!(stored.pilot().status.instance, Some(instance(names)), "{predecessor:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_on_its_way_never_overwrites_one_that_was_not_seen() {
        let own = PilotStatus { instance: Some(instance("old")), ..running() };
        let (client, stored) = taking();
        let seen = stored.lock().unwrap().pilot();
        // The watch has not shown yet that another pilot wrote.
        stored.lock().unwrap().status = json!({"instance": instance("new")});
        stored.lock().unwrap().others = 1;
        report_for_a_minute(&client, seen, own, NameHolder::Ours { predecessor: None }).await;
        let stored = stored.lock().unwrap();
        assert_eq!((stored.writes, stored.conflicts), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_meets_an_edit_is_written_over_what_was_edited() {
        let (client, stored) = taking();
        let seen = stored.lock().unwrap().pilot();
        stored.lock().unwrap().others = 1;
        report_for_a_minute(&client, seen, running(), NameHolder::Ours { predecessor: None }).await;
        let stored = stored.lock().unwrap();
        assert_eq!(stored.conflicts, 1);
        assert_eq!(stored.pilot().status.phase, Some(PilotPhase::Running));
    }

    /// Reports for an hour what `status` says at each second; returns how many writes that took.
    async fn writes_in_an_hour(status: impl Fn(i64) -> PilotStatus) -> u64 {
        let (client, writes) = taking();
        let mut pilot = Pilot::default();
        pilot.metadata.uid = Some("u".to_owned());
        pilot.metadata.resource_version = Some("1".to_owned());
        let intents = intent::IntentSender::new(Some(IntentSnapshot { pilot, remembered: false }));
        let (wanted, told) = watch::channel(status(0));
        let cluster = PilotApi::new(&client, &EXAMPLE, "default", "p");
        let beat = IntGauge::new("beat", "beat").unwrap();
        let shutdown = Shutdown::new();
        let reports = run_reporter(
            cluster,
            told,
            intents,
            name_holder::sole_holder(),
            beat,
            shutdown.clone(),
        );
        let time = async {
            for second in 1..3600 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                wanted.send_replace(status(second));
            }
            shutdown.trigger();
        };
        futures::join!(reports, time);
        writes.lock().unwrap().writes
    }

    fn running() -> PilotStatus {
        PilotStatus { phase: Some(PilotPhase::Running), ..PilotStatus::default() }
    }

    /// The first report, 120 heartbeats, and the last report.
    const HEARTBEATS: std::ops::RangeInclusive<u64> = 118..=122;

    #[tokio::test(start_paused = true)]
    async fn a_node_at_rest_writes_its_figures_with_its_heartbeats() {
        let writes = writes_in_an_hour(|second| {
            let judged = second - second % 5;
            let blocker = Blocker {
                predicate: "DataOutlivesPod".to_owned(),
                against: Vec::new(),
                message: "1 shards have no copy on another node".to_owned(),
                since: Some(Time(Timestamp::UNIX_EPOCH)),
                observed_time: Some(Time(Timestamp::from_second(judged).unwrap())),
            };
            let path = "/data".to_owned();
            let storage = PilotStorage {
                path,
                capacity_bytes: 1 << 40,
                used_bytes: judged,
                ..PilotStorage::default()
            };
            PilotStatus { blockers: vec![blocker], storage: Some(storage), ..running() }
        });
        let writes = writes.await;
        assert!(HEARTBEATS.contains(&writes), "{writes}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_joining_node_writes_its_sentence_with_its_heartbeats() {
        let writes = writes_in_an_hour(|second| {
            let message = format!("joins the ring, received {} bytes", second * 4096);
            let joins = Condition {
                type_: "Ready".into(),
                status: "False".into(),
                reason: "Joining".into(),
                message,
                observed_generation: None,
                last_transition_time: Time(Timestamp::UNIX_EPOCH),
            };
            PilotStatus { conditions: vec![joins], ..running() }
        });
        let writes = writes.await;
        assert!(HEARTBEATS.contains(&writes), "{writes}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_node_writes_each_percent_and_its_heartbeats() {
        let writes = writes_in_an_hour(|second| {
            let left = 3600 - second;
            let progress = Decommission {
                percent: Some(i32::try_from(second / 36).unwrap()),
                bytes_left: Some(left << 20),
                message: Some(format!("{left} MiB are left")),
                ..Decommission::default()
            };
            PilotStatus { decommission: Some(progress), ..running() }
        });
        let writes = writes.await;
        assert!((99..=222).contains(&writes), "{writes}");
    }

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
        assert!(status_patch(&server, &wanted).is_empty());
        wanted.version = None;
        wanted.process = Some(Process { pid: 9, start_time: None, restarts: 0 });
        let expected = json!({"version": null, "process": {"pid": 9}});
        assert_eq!(Value::Object(status_patch(&server, &wanted)), expected);
    }

    #[test]
    fn a_rule_that_begins_or_ceases_to_hold_does_not_wait_for_the_next_figures() {
        let status = |rules: &[&str], second| {
            let blocker = |rule: &&str| Blocker {
                against: Vec::new(),
                predicate: (*rule).to_owned(),
                message: String::new(),
                since: None,
                observed_time: Some(Time(Timestamp::from_second(second).unwrap())),
            };
            let blockers = rules.iter().map(blocker).collect();
            PilotStatus { blockers, ..PilotStatus::default() }
        };
        let waits = |server: &PilotStatus, wanted: &PilotStatus| {
            only_figures(server, wanted, &status_patch(server, wanted))
        };
        let before = status(&["PeersUp"], 1);
        assert!(waits(&before, &status(&["PeersUp"], 2)), "judged again");
        for rules in [&[][..], &["StreamsIdle"], &["PeersUp", "StreamsIdle"]] {
            assert!(!waits(&before, &status(rules, 2)), "{rules:?}");
        }
    }

    #[test]
    fn health_does_not_wait_for_the_next_figures() {
        let status = |health| PilotStatus { health: Some(health), ..PilotStatus::default() };
        let (server, wanted) = (status(Health::Yellow), status(Health::Green));
        assert!(!only_figures(&server, &wanted, &status_patch(&server, &wanted)));
    }

    #[test]
    fn figures_in_sentences_wait_and_words_and_percents_do_not() {
        let status = |message: &str, percent| {
            let condition = Condition {
                type_: "Ready".into(),
                status: "False".into(),
                reason: "Joining".into(),
                message: message.into(),
                observed_generation: None,
                last_transition_time: Time(Timestamp::UNIX_EPOCH),
            };
            let decommission = Decommission {
                percent: Some(percent),
                bytes_left: Some(i64::try_from(message.len()).unwrap()),
                ..Decommission::default()
            };
            PilotStatus {
                conditions: vec![condition],
                decommission: Some(decommission),
                ..PilotStatus::default()
            }
        };
        let waits = |wanted: &PilotStatus| {
            let server = status("joins the ring, received 9 bytes", 40);
            only_figures(&server, wanted, &status_patch(&server, wanted))
        };
        assert!(waits(&status("joins the ring, received 1234 bytes", 40)));
        assert!(!waits(&status("joins the ring, received 1234 bytes", 41)));
        assert!(!waits(&status("serves clients", 40)));
        let mut ready = status("joins the ring, received 9 bytes", 40);
        ready.conditions[0].status = "True".into();
        assert!(!waits(&ready));
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
