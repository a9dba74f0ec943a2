//! The backend that sends events to a webhook: `POST` of an EventList of `audit.k8s.io/v1`.
//!
//! Owns retries (five tries, each pause half as long again) and the end: events that wait at
//! shutdown are sent within [`FLUSH`], or else lost.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use kube::{Client, client::Body};
use rand::Rng;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, error};

use super::{batch::BatchQueue, line::AuditLine};
use crate::{
    apiserver::{kube_client, metrics::Metrics},
    error::chain,
    runtime::{Shutdown, TaskGroup},
};

/// Name of the backend in metrics.
const PLUGIN: &str = "webhook";

const TRIES: u32 = 5;
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;
/// Longest time that one try waits for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Most batches that are sent at one time. While a webhook hangs, events wait in the buffer behind
/// them.
const UNDER_WAY: usize = 16;
/// Time after shutdown in which the remaining events are sent. [`LAST_PAUSE`] is the pause between
/// tries then.
const FLUSH: Duration = Duration::from_secs(5);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// First fields of an event as a line; items of a list leave them out.
const OPENING: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Why the webhook's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the audit webhook's file {path:?} cannot be used")]
pub struct AuditWebhookError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Why one try to send a batch failed.
#[derive(Debug, thiserror::Error)]
enum AuditPostError {
    #[error("the webhook did not answer")]
    Call(#[source] Box<kube::Error>),
    #[error("the webhook answered {0}")]
    Answer(StatusCode),
    #[error("the webhook took longer than {ANSWER:?}")]
    Timeout,
    #[error("the process ends")]
    Over,
}

pub(super) struct AuditWebhook {
    client: Client,
    path: Uri,
    backoff: Duration,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
    /// Time at which the remaining events are given up; set once shutdown was asked for.
    end: OnceLock<Instant>,
}

impl AuditWebhook {
    pub(super) async fn new(
        file: &Path,
        backoff: Duration,
        metrics: Arc<Metrics>,
        shutdown: Shutdown,
    ) -> Result<Self, AuditWebhookError> {
        let file_error = |source| AuditWebhookError { path: file.to_owned(), source };
        let config = kube_client::load_config(file).await;
        let mut config = config.map_err(|error| file_error(error.into()))?;
        // The file's server is the webhook's whole address; kube's client would append a slash.
        let mut origin = std::mem::take(&mut config.cluster_url).into_parts();
        let path = origin.path_and_query.replace("/".parse().expect("a path"));
        let path = path.map_or_else(Uri::default, Uri::from);
        config.cluster_url = Uri::from_parts(origin).map_err(|error| file_error(error.into()))?;
        let client = kube_client::client_of(config).map_err(|error| file_error(error.into()))?;
        Ok(Self { client, path, backoff, metrics, shutdown, end: OnceLock::new() })
    }

    /// Sends batches until shutdown was asked for and the last batch is handed to a task.
    pub(super) async fn send_batches(
        self: Arc<Self>,
        mut batches: BatchQueue<AuditLine>,
        tasks: TaskGroup,
    ) {
        let permits = Arc::new(Semaphore::new(UNDER_WAY));
        while let Some(events) = batches.next().await {
            let permit = Arc::clone(&permits).acquire_owned().await;
            let permit = permit.expect("the room is never closed");
            let hook = Arc::clone(&self);
            tasks.spawn("audit-webhook", async move {
                hook.send_batch(events).await;
                drop(permit);
            });
        }
    }

    /// Sends events as one batch, with retries.
    async fn send_batch(&self, events: Vec<AuditLine>) {
        let texts: Vec<_> = events.iter().map(|event| event.text.clone()).collect();
        let body = build_event_list(&texts);
        drop(texts);
        let outcome = tokio::select! {
            outcome = self.send_with_retries(body) => outcome,
            () = self.wait_for_deadline() => Err(AuditPostError::Over),
        };
        if let Err(error) = outcome {
            self.metrics.lost_events(PLUGIN, events.len());
            error!(error = %chain(&error), events = events.len(), "Failed to send audit events");
        }
    }

    async fn wait_for_deadline(&self) {
        self.shutdown.triggered().await;
        sleep_until(*self.end.get_or_init(|| Instant::now() + FLUSH)).await;
    }

    async fn send_with_retries(&self, body: Bytes) -> Result<(), AuditPostError> {
        let mut pause = self.backoff;
        let mut tries = 1;
        loop {
            let Err(error) = self.post(body.clone()).await else { return Ok(()) };
            let is_shutting_down = self.shutdown.is_triggered();
            // During shutdown only [`FLUSH`] limits the tries.
            if tries >= TRIES && !is_shutting_down {
                return Err(error);
            }
            debug!(error = %chain(&error), tries, "Trying again to send audit events");
            if is_shutting_down {
                sleep(LAST_PAUSE).await;
            } else {
                let jitter = rand::rng().random_range(1.0..1.0 + JITTER);
                tokio::select! {
                    () = sleep(pause.mul_f64(jitter)) => {}
                    () = self.shutdown.triggered() => {}
                }
            }
            pause = pause.mul_f64(GROWTH);
            tries += 1;
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), AuditPostError> {
        let request = Request::post(self.path.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .expect("the path is valid");
        match timeout(ANSWER, self.client.send(request)).await {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(AuditPostError::Answer(answer.status())),
            Ok(Err(error)) => Err(AuditPostError::Call(Box::new(error))),
            Err(_) => Err(AuditPostError::Timeout),
        }
    }
}

fn build_event_list(events: &[Bytes]) -> Bytes {
    const BEGIN: &[u8] =
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;
    let size: usize = events.iter().map(Bytes::len).sum();
    let mut body = Vec::with_capacity(BEGIN.len() + size + events.len() + 2);
    body.extend_from_slice(BEGIN);
    for (index, event) in events.iter().enumerate() {
        body.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        let event = event.trim_ascii_end();
        body.extend_from_slice(event.strip_prefix(OPENING).unwrap_or(&event[1..]));
    }
    body.extend_from_slice(b"]}");
    body.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn events_of_a_list_do_not_repeat_what_they_are() {
        let line = |id: &str| {
            let opening = String::from_utf8(OPENING.to_vec()).unwrap();
            Bytes::from(format!("{opening}\"auditID\":{id:?}}}\n"))
        };
        let sent: Value =
            serde_json::from_slice(&build_event_list(&[line("1"), line("2")])).unwrap();
        assert_eq!(
            sent,
            json!({
                "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {},
                "items": [{"auditID": "1"}, {"auditID": "2"}],
            })
        );
    }
}
