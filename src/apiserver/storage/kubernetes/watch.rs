//! Watches of kube-apiserver.
//!
//! kube-apiserver's events carry no earlier value, so a watch begins with the state at its first
//! revision and keeps the keys. kube-apiserver reports progress by itself once a minute. A reader
//! that waits for a revision at which something else in the cluster was written says so, and then
//! the object of the store, which is part of every watch, is written.

use std::{collections::HashSet, time::Duration};

use futures::{TryStreamExt, stream};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader, Lines},
    sync::watch as latest,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::io::StreamReader;
use tracing::debug;

use super::{
    super::{Error, Key, KeyPrefix, Result, Revision, StoreEvent, WatchStream},
    ANSWER_WITHIN, KubernetesStore,
    object::{STORE, StoredObject},
    requests::{StatusMessage, escape_query, response_error, unavailable_error},
};
use crate::error::chain;

/// Pause between two writes for the sake of progress, and before an ended watch is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// kube-apiserver reports progress every minute; a watch that is silent for longer is dead.
const SILENT_FOR: Duration = Duration::from_secs(180);
/// Most bytes of a large event that are read at one time.
const BUFFER: usize = 64 << 10;

type WatchLines = Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>;

struct KubernetesWatcher {
    store: KubernetesStore,
    prefix: KeyPrefix,
    lines: WatchLines,
    wanted: latest::Receiver<Revision>,
    beat_at: Instant,
    /// Revision up to which every event was read.
    reached: Revision,
    /// Keys of the objects that exist.
    present: HashSet<Key>,
    ended: bool,
}

/// One line of kube-apiserver's answer to a watch.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Returns the events of a prefix after `start_revision`, a revision that this store has reached.
pub(super) async fn watch_events(
    store: &KubernetesStore,
    prefix: &KeyPrefix,
    start_revision: Revision,
) -> Result<WatchStream> {
    let mut pages = store.scan_pages(prefix, Some(start_revision));
    let mut present = HashSet::new();
    while let Some(page) = pages.try_next().await? {
        present.extend(page.entries.into_iter().map(|entry| entry.key));
    }
    drop(pages);
    let lines = match open_watch(store, &store.kind.range_selector(prefix), start_revision).await {
        Err(Error::Compacted { .. }) => return Err(store.compacted_error(start_revision).await),
        lines => lines?,
    };
    let mut watcher = KubernetesWatcher {
        store: store.clone(),
        prefix: prefix.clone(),
        lines,
        wanted: store.wanted.subscribe(),
        beat_at: Instant::now(),
        reached: start_revision,
        present,
        ended: false,
    };
    // The first line may refuse a forgotten revision; opening a watch does not wait for a line.
    watcher.wanted.mark_unchanged();
    Ok(Box::pin(stream::unfold(watcher, |mut watcher| async {
        if watcher.ended {
            return None;
        }
        let next_event = watcher.next().await;
        watcher.ended = next_event.is_err();
        Some((next_event, watcher))
    })))
}

/// Returns the oldest revision that a watch may begin at.
pub(super) async fn read_oldest(store: &KubernetesStore) -> Result<Revision> {
    let probe =
        async {
            let mut lines = open_watch(store, &format!("none={STORE}"), Revision(1)).await?;
            match lines.next_line().await.map_err(unavailable_error)? {
                Some(line) => Err(parse_error_line(&line)
                    .unwrap_or_else(|| unavailable_error("it still knows all"))),
                None => Err(unavailable_error("kube-apiserver ended the watch")),
            }
        };
    match timeout(super::HEALTHY_WITHIN, probe).await {
        Ok(Err::<(), _>(Error::Compacted { oldest, .. })) => Ok(oldest),
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(_) => Ok(Revision(1)),
    }
}

async fn open_watch(
    store: &KubernetesStore,
    selector: &str,
    start_revision: Revision,
) -> Result<WatchLines> {
    let path = format!(
        "?watch=1&allowWatchBookmarks=true&resourceVersion={start_revision}&labelSelector={}",
        escape_query(selector)
    );
    let request = store.build_request(&Method::GET, &path, "application/json", None)?;
    let send_result =
        timeout(ANSWER_WITHIN, store.client.send(request)).await.map_err(unavailable_error)?;
    let response = send_result.map_err(unavailable_error)?;
    let status = response.status();
    let body: Body = response.into_body();
    if status != StatusCode::OK {
        let body = timeout(ANSWER_WITHIN, body.collect()).await.map_err(unavailable_error)?;
        let body = body.map_err(unavailable_error)?.to_bytes();
        let StatusMessage { message } = serde_json::from_slice(&body).unwrap_or_default();
        return Err(response_error(status, &message));
    }
    let pieces = body.into_data_stream().map_err(std::io::Error::other);
    let reader: Box<dyn AsyncRead + Send + Unpin> = Box::new(StreamReader::new(Box::pin(pieces)));
    Ok(BufReader::with_capacity(BUFFER, reader).lines())
}

/// Returns the error that an `ERROR` line tells; `None` for another line.
fn parse_error_line(line: &str) -> Option<Error> {
    #[derive(Default, Deserialize)]
    struct WatchRefusal {
        #[serde(default)]
        code: u16,
        #[serde(default)]
        message: String,
    }
    let line: WatchLine<'_> = serde_json::from_str(line).ok()?;
    if line.kind != "ERROR" {
        return None;
    }
    let WatchRefusal { code, message } =
        serde_json::from_str(line.object.get()).unwrap_or_default();
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Some(response_error(status, &message))
}

impl KubernetesWatcher {
    async fn next(&mut self) -> Result<StoreEvent> {
        let mut silent_until = Instant::now() + SILENT_FOR;
        loop {
            let is_behind = *self.wanted.borrow_and_update() > self.reached;
            // Each of these may be dropped half-way: a line that has not come whole stays with
            // the reader.
            tokio::select! {
                line = self.lines.next_line() => {
                    silent_until = Instant::now() + SILENT_FOR;
                    match line.map_err(unavailable_error)? {
                        Some(line) => if let Some(event) = self.process_line(&line).await? {
                            return Ok(event);
                        },
                        None => self.open_again().await?,
                    }
                }
                // The sender cannot go: `store` holds it.
                _ = self.wanted.changed(), if !is_behind => {}
                () = sleep_until(self.beat_at), if is_behind => {
                    let target_revision = *self.wanted.borrow();
                    if let Err(error) = self.store.force_progress(target_revision).await {
                        debug!(error = %chain(&error), "Failed to ask for progress");
                    }
                    self.beat_at = Instant::now() + AGAIN_AFTER;
                }
                () = sleep_until(silent_until) => {
                    return Err(unavailable_error(format!("the watch was silent for {SILENT_FOR:?}")));
                }
            }
        }
    }

    /// Opens the watch again: kube-apiserver ends every watch after half an hour or more, and when
    /// it stops.
    async fn open_again(&mut self) -> Result<()> {
        sleep(AGAIN_AFTER).await;
        self.lines = match open_watch(
            &self.store,
            &self.store.kind.range_selector(&self.prefix),
            self.reached,
        )
        .await
        {
            Err(Error::Compacted { .. }) => {
                return Err(self.store.compacted_error(self.reached).await);
            }
            lines => lines?,
        };
        Ok(())
    }

    /// Returns the event that a line tells, if it tells one.
    async fn process_line(&mut self, line: &str) -> Result<Option<StoreEvent>> {
        let WatchLine { kind, object } = serde_json::from_str(line).map_err(unavailable_error)?;
        if kind == "ERROR" {
            return Err(match parse_error_line(line) {
                Some(Error::Compacted { .. }) => self.store.compacted_error(self.reached).await,
                error => error.unwrap_or_else(|| unavailable_error("the watch failed")),
            });
        }
        let stored_object: StoredObject =
            serde_json::from_str(object.get()).map_err(unavailable_error)?;
        let revision = stored_object.revision()?;
        if kind == "BOOKMARK" {
            return Ok(self.progress_event(revision));
        }
        let was_deleted = kind == "DELETED";
        if stored_object.is_store() {
            let mark = stored_object.store.filter(|_| !was_deleted);
            let status = self.store.assess_answer(mark.as_ref(), Revision(0), revision);
            if let Some(reason) = status.other {
                return Err(self.store.standing.replaced_error(reason));
            }
            return Ok(self.progress_event(revision));
        }
        let key = stored_object.key()?;
        if !self.prefix.contains(&key) {
            return Ok(self.progress_event(revision));
        }
        if was_deleted && !stored_object.deleted {
            let message =
                format!("another client deleted {:?} behind the API server's back", key.as_str());
            return Err(self.store.record_loss(message).await);
        }
        if stored_object.deleted {
            return Ok(if self.present.remove(&key) {
                self.reached = revision;
                Some(StoreEvent::Delete { key, revision })
            } else {
                // The watch reported the deletion before; now the object that marks it is removed.
                self.progress_event(revision)
            });
        }
        let entry = stored_object.to_entry()?;
        let created = self.present.insert(key);
        self.reached = revision;
        Ok(Some(StoreEvent::Put { entry, created }))
    }

    fn progress_event(&mut self, revision: Revision) -> Option<StoreEvent> {
        let is_later = revision > self.reached;
        self.reached = self.reached.max(revision);
        is_later.then_some(StoreEvent::Progress(revision))
    }
}
