//! Watch: one JSON object per line, or one message per frame, sent as soon as it is known.
//!
//! Owns the stream: initial state, changes, bookmarks, the end. Lines that are ready go to the
//! connection together, and the body never waits for a second line.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{Response, StatusCode, header};
use rand::Rng;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{RequestScope, metrics::OpenWatch, read::build_selector};
use crate::{
    apiserver::{
        account::{self, MemoryShare, MemoryUse},
        cache::{CachedObject, EncodedObject, EventType},
        negotiate::{BodyEncoding, ResponseFormat},
        options::ListOptions,
        protobuf,
        registry::{ClientWatch, Registry, WatchEvent},
        status::{ApiError, Result},
        storage::Revision,
        store_identity::StoreGuard,
        view::ObjectViewer,
    },
    runtime::Shutdown,
};

/// Least time that a watch without `timeoutSeconds` lasts. It lasts up to twice as long, at random,
/// so that not all clients come back at once. Upstream's default of `--min-request-timeout`.
pub const LEAST: Duration = Duration::from_secs(1800);
/// Most bytes of a watch's selector that are not counted in the memory budget.
const SHORT: usize = 512;
/// Time between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// Most bytes of a frame into which several lines are gathered: those of a TLS record.
const FRAME: usize = 16 * 1024;
/// Time from the last bookmark to the end of a watch, so that the client still reads the bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

pub(super) async fn watch_objects(
    target: &RequestScope<'_>,
    options: &ListOptions,
) -> Result<Response<Body>> {
    let output = ResponseFormat::negotiate_stream(target.headers, target.query)?;
    let viewer = ObjectViewer::new(target.registry.kind(), target.version, &output, target.query)?;
    let selector = build_selector(target, options)?;
    let weight = selector.weight();
    let selector_share = if weight > SHORT {
        account::acquire_memory(MemoryUse::Kept, weight).await?
    } else {
        MemoryShare::NONE
    };
    let registry = target.registry;
    let events = registry.watch(&target.operation.namespace, selector, options).await;
    // Clients expect these two errors as a response, and every other one within the stream.
    let events = match events {
        Err(error) if matches!(error.status_code().as_u16(), 400 | 429) => return Err(error),
        outcome => outcome,
    };
    let min_duration = target.least_watch;
    let timeout = options
        .timeout
        .unwrap_or_else(|| min_duration + rand::rng().random_range(Duration::ZERO..min_duration));
    let mut feed = WatchFeed {
        registry: Arc::clone(registry),
        viewer,
        encoding: output.encoding,
        state: VecDeque::new(),
        state_ends: None,
        pending: None,
        left: None,
        events: None,
        bookmarks: options.allow_watch_bookmarks.then(|| BookmarkSchedule::new(timeout)),
        end: Instant::now() + timeout,
        guard: target.guard.clone(),
        shutdown: target.shutdown.clone(),
        first: true,
        _kept: selector_share,
        metrics: target.requests.open_watch(target.info, registry.kind(), target.version),
    };
    match events {
        Ok(events) => feed.attach_events(events),
        Err(error) => feed.queue_error(&error),
    }
    let frames = stream::unfold(feed, |mut feed| async {
        feed.next().await.map(|frame| (Ok::<_, Infallible>(frame), feed))
    });
    let content_type = match output.encoding {
        BodyEncoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        BodyEncoding::Json | BodyEncoding::Yaml => output.content_type(),
    };
    Response::builder()
        .status(StatusCode::OK)
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from_stream(frames))
        .map_err(ApiError::internal_error)
}

/// When bookmarks are due.
struct BookmarkSchedule {
    next: Instant,
    last: Instant,
}

impl BookmarkSchedule {
    fn new(timeout: Duration) -> Self {
        let now = Instant::now();
        let last = now + timeout.saturating_sub(LAST_BOOKMARK);
        Self { next: (now + BOOKMARKS).min(last), last }
    }

    fn schedule_next(&mut self) {
        let now = Instant::now();
        self.next = if now < self.last {
            (now + BOOKMARKS).min(self.last)
        } else {
            // After the last bookmark none is due: the end of the watch comes first.
            now + BOOKMARKS
        };
    }
}

/// One watch on its way to the client.
struct WatchFeed {
    registry: Arc<Registry>,
    viewer: ObjectViewer,
    encoding: BodyEncoding,
    /// Objects of the initial state that were not sent yet.
    state: VecDeque<Arc<CachedObject>>,
    /// The revision of the bookmark that ends the initial state.
    state_ends: Option<Revision>,
    /// A line that goes before further events.
    pending: Option<Bytes>,
    /// A line that found no room in the last frame.
    left: Option<Bytes>,
    /// The source of events; absent once the watch failed, when only the lines already queued are
    /// sent.
    events: Option<ClientWatch>,
    bookmarks: Option<BookmarkSchedule>,
    end: Instant,
    guard: StoreGuard,
    shutdown: Shutdown,
    /// Whether no object was sent yet: the first Table names its columns.
    first: bool,
    /// The share of the memory budget that a long selector takes.
    _kept: MemoryShare,
    metrics: OpenWatch,
}

impl WatchFeed {
    fn attach_events(&mut self, mut events: ClientWatch) {
        if let Some(initial) = events.initial.take() {
            self.state = initial.objects.into();
            self.state_ends = Some(initial.revision).filter(|_| self.bookmarks.is_some());
        }
        self.events = Some(events);
    }

    fn queue_error(&mut self, error: &ApiError) {
        self.events = None;
        self.pending = Some(encode_line(self.encoding, "ERROR", &error.to_value()));
    }

    /// Returns the next lines; `None` ends the stream. A cancelled call loses nothing: an event is
    /// taken out of the cache's window and queued in one go.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.next_frame() {
                return Some(frame);
            }
            let events = self.events.as_mut()?;
            let bookmark_due = self.bookmarks.as_ref().map(|schedule| schedule.next);
            tokio::select! {
                biased;
                () = self.shutdown.triggered() => return None,
                // The guard refuses a store that is not this server's. It may lack an object;
                // clients must not believe that the object is gone.
                () = self.guard.until_refused() => return None,
                // These go before the events, so that a client that is always behind gets them in
                // time.
                () = sleep_until(self.end) => return None,
                () = sleep_until(bookmark_due.unwrap_or(self.end)), if bookmark_due.is_some() => {
                    let revision = events.bookmark().to_string();
                    let line = self.bookmark_line(&revision, false);
                    self.pending = Some(line);
                    if let Some(schedule) = &mut self.bookmarks {
                        schedule.schedule_next();
                    }
                }
                observed = events.next() => match observed {
                    Ok(observed) => {
                        let line = self.observed_line(&observed);
                        self.pending = Some(line);
                    }
                    Err(error) => {
                        let error = self.registry.watch_error(error);
                        self.queue_error(&error);
                    }
                },
            }
        }
    }

    /// Returns lines that can be sent at once. A single line is not copied. A frame takes no more
    /// memory than it has bytes, because connections bound what they hold by the bytes of frames.
    fn next_frame(&mut self) -> Option<Bytes> {
        let mut lines = vec![self.next_line()?];
        let mut length = lines[0].len();
        while let Some(line) = self.next_line().or_else(|| self.event_line()) {
            if length + line.len() > FRAME {
                self.left = Some(line);
                break;
            }
            length += line.len();
            lines.push(line);
        }
        Some(if lines.len() == 1 { lines.swap_remove(0) } else { lines.concat().into() })
    }

    /// Returns the next line that goes before further events. Objects of the initial state are
    /// encoded as the client reads them.
    fn next_line(&mut self) -> Option<Bytes> {
        if let Some(line) = self.left.take() {
            return Some(line);
        }
        let line = if let Some(object) = self.state.pop_front() {
            self.object_line(EventType::Added, &object)
        } else if let Some(revision) = self.state_ends.take() {
            self.metrics.record_initial_state();
            self.bookmark_line(&revision.to_string(), true)
        } else {
            self.pending.take()?
        };
        self.metrics.record_event(line.len());
        Some(line)
    }

    /// Returns the line of an event that is ready, unless something else is due before it.
    fn event_line(&mut self) -> Option<Bytes> {
        let next_deadline =
            self.bookmarks.as_ref().map_or(self.end, |schedule| schedule.next.min(self.end));
        if Instant::now() >= next_deadline
            || self.shutdown.is_triggered()
            || self.guard.check().is_err()
        {
            return None;
        }
        let event = self.events.as_mut()?.try_next()?;
        let line = self.observed_line(&event);
        self.metrics.record_event(line.len());
        Some(line)
    }

    fn observed_line(&mut self, event: &WatchEvent) -> Bytes {
        match event {
            WatchEvent::Added(object) => self.object_line(EventType::Added, object),
            WatchEvent::Modified(object) => self.object_line(EventType::Modified, object),
            WatchEvent::Deleted(object) => self.object_line(EventType::Deleted, object),
        }
    }

    fn object_line(&mut self, type_: EventType, object: &Arc<CachedObject>) -> Bytes {
        let is_first = std::mem::take(&mut self.first);
        if self.encoding == BodyEncoding::Protobuf {
            return encode_line(self.encoding, type_.name(), &self.viewer.metadata(object));
        }
        match self.viewer.shared_encoding(object) {
            Some(encoded) => encoded.watch_line(type_),
            None => EncodedObject::new(
                type_,
                &self.viewer.encode_event(&object.to_value(), is_first),
                None,
            )
            .watch_line(type_),
        }
    }

    fn bookmark_line(&mut self, revision: &str, ends_initial_state: bool) -> Bytes {
        let is_first = std::mem::take(&mut self.first);
        encode_line(
            self.encoding,
            "BOOKMARK",
            &self.viewer.build_bookmark(revision, ends_initial_state, is_first),
        )
    }
}

/// Encodes a line that no other watcher shares.
fn encode_line(encoding: BodyEncoding, type_: &str, object: &Value) -> Bytes {
    if encoding == BodyEncoding::Protobuf {
        return protobuf::encode_watch_event(type_, object)
            .expect("a watch shows metadata and Status alone");
    }
    format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n").into()
}
