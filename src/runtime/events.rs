//! Events for people: one per change of state; a notice that repeats the words of a moment ago is
//! counted in a series.
//!
//! Owns publishing, and a bounded queue for roles whose loop may not wait. Which change is worth
//! an event is the roles' affair.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use prometheus::IntCounter;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::debug;

use super::Shutdown;
use crate::error::chain;

/// Most bytes of a note: the API server refuses longer ones, although it speaks of characters.
const NOTE_MAX: usize = 1024;
/// Notices that may wait for one slow answer: a change of state brings a handful at most, so there
/// is room for several changes.
const QUEUE: usize = 64;
/// How long after its last use a note is an event of its own again: as long as kube's recorder
/// remembers an event.
const REPEATS: Duration = Duration::from_secs(6 * 60);
/// How long the API server may take over an event; then the event counts as dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an event is to tell people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNotice {
    pub warning: bool,
    pub reason: &'static str,
    /// What was done; tells two changes with one reason apart, which are no repeats of each other.
    pub action: &'static str,
    pub note: String,
}

impl EventNotice {
    pub fn normal(reason: &'static str, note: impl Into<String>) -> Self {
        Self { warning: false, reason, action: reason, note: note.into() }
    }

    pub fn warning(reason: &'static str, note: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, note) }
    }
}

/// Writes events in the name of one component.
#[derive(Clone)]
pub struct EventPublisher {
    client: Client,
    reporter: Reporter,
    recorders: Arc<Mutex<NoteRecorders>>,
}

/// A recorder for each note, with the time of its last use. One of kube's recorders takes all
/// events of a reason for repeats of the first and counts them under its note, so notes share none.
type NoteRecorders = HashMap<String, (Instant, Recorder)>;

impl EventPublisher {
    pub fn new(client: Client, component: &str, instance: String) -> Self {
        let reporter = Reporter { controller: component.to_owned(), instance: Some(instance) };
        Self { client, reporter, recorders: Arc::default() }
    }

    fn note_recorder(&self, note: &str) -> Recorder {
        let now = Instant::now();
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        recorders.retain(|_, (last_use, _)| now.duration_since(*last_use) < REPEATS);
        let new_entry = || (now, Recorder::new(self.client.clone(), self.reporter.clone()));
        let (last_use, recorder) = recorders.entry(note.to_owned()).or_insert_with(new_entry);
        *last_use = now;
        recorder.clone()
    }

    /// Publishes a notice about an object. False: it was lost, which is no reason to stop working.
    pub async fn publish(&self, regarding: &ObjectReference, notice: &EventNotice) -> bool {
        let note = truncate_note(&notice.note).to_owned();
        let recorder = self.note_recorder(&note);
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.to_owned(),
            note: Some(note),
            action: notice.action.to_owned(),
            secondary: None,
        };
        let publish_result = recorder.publish(&event, regarding).await;
        if let Err(error) = &publish_result {
            debug!(error = %chain(error), reason = notice.reason, "Failed to publish an event");
        }
        publish_result.is_ok()
    }
}

/// Takes notices without waiting; a notice that does not fit is dropped and counted.
#[derive(Clone)]
pub struct EventQueue {
    sender: mpsc::Sender<(ObjectReference, EventNotice)>,
    dropped: IntCounter,
}

impl EventQueue {
    /// Makes the queue, and the task that publishes its notices until shutdown, and then those left
    /// in it.
    pub fn new(
        events: EventPublisher,
        dropped: IntCounter,
        shutdown: Shutdown,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let work = publish_all(events, receiver, dropped.clone(), shutdown);
        (Self { sender, dropped }, work)
    }

    pub fn enqueue(&self, regarding: &ObjectReference, notice: EventNotice) {
        if self.sender.try_send((regarding.clone(), notice)).is_err() {
            self.dropped.inc();
        }
    }
}

async fn publish_all(
    events: EventPublisher,
    mut queue: mpsc::Receiver<(ObjectReference, EventNotice)>,
    dropped: IntCounter,
    shutdown: Shutdown,
) {
    loop {
        let next_notice = tokio::select! {
            biased;
            () = shutdown.triggered(), if !queue.is_closed() => {
                queue.close();
                continue;
            }
            notice = queue.recv() => notice,
        };
        let Some((regarding, notice)) = next_notice else { return };
        // An event whose answer is late may have been published; in doubt it counts as dropped.
        let publish_result = timeout(PATIENCE, events.publish(&regarding, &notice)).await;
        if publish_result != Ok(true) {
            dropped.inc();
        }
    }
}

/// Returns as much of a note as the API server takes.
fn truncate_note(note: &str) -> &str {
    let max_length = note.len().min(NOTE_MAX);
    let end = (0..=max_length).rev().find(|&position| note.is_char_boundary(position)).unwrap_or(0);
    &note[..end]
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Server {
        bodies: Arc<Mutex<Vec<Value>>>,
        away: Arc<Mutex<bool>>,
    }

    impl Server {
        fn events(&self) -> EventPublisher {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    if *server.away.lock().unwrap() {
                        std::future::pending::<()>().await;
                    }
                    server.bodies.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                    Ok::<_, Infallible>(Response::new(Body::from(body.to_vec())))
                }
            });
            EventPublisher::new(Client::new(service, "default"), "generic-pilot", "p".to_owned())
        }
    }

    fn regarding() -> ObjectReference {
        ObjectReference { name: Some("p".to_owned()), ..ObjectReference::default() }
    }

    #[test]
    fn a_long_note_is_cut_between_characters_to_1024_bytes() {
        assert_eq!(truncate_note(&"x".repeat(2000)).len(), 1024);
        assert_eq!(truncate_note(&format!("x{}", "ü".repeat(1000))).len(), 1023);
        assert_eq!(truncate_note("ü"), "ü");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_says_the_same_is_a_repeat_and_what_is_queued_at_shutdown_is_told() {
        let server = Server::default();
        let dropped = IntCounter::new("dropped", "x").unwrap();
        let shutdown = Shutdown::new();
        let (queue, work) = EventQueue::new(server.events(), dropped.clone(), shutdown.clone());
        for note in ["one", "two", "one", "two"] {
            queue.enqueue(&regarding(), EventNotice::warning("ProcessExited", note));
        }
        shutdown.trigger();
        work.await;
        let bodies = server.bodies.lock().unwrap();
        let notes: Vec<_> = bodies.iter().map(|body| body["note"].as_str().unwrap()).collect();
        assert_eq!(notes, ["one", "two", "one", "two"]);
        assert_eq!(bodies[0]["reason"], "ProcessExited");
        assert_eq!(bodies[0]["reportingController"], "generic-pilot");
        let counts = bodies.iter().map(|body| body["series"]["count"].as_i64());
        assert_eq!(counts.collect::<Vec<_>>(), [None, None, Some(2), Some(2)]);
        let name = |at: usize| &bodies[at]["metadata"]["name"];
        assert_eq!((name(0), name(1)), (name(2), name(3)));
        assert_ne!(name(0), name(1));
        assert_eq!(dropped.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_server_is_away_news_are_dropped_and_counted_and_nobody_waits() {
        let server = Server::default();
        *server.away.lock().unwrap() = true;
        let dropped = IntCounter::new("dropped", "x").unwrap();
        let shutdown = Shutdown::new();
        let (queue, work) = EventQueue::new(server.events(), dropped.clone(), shutdown.clone());
        for _ in 0..100 {
            queue.enqueue(&regarding(), EventNotice::normal("Fenced", ""));
        }
        let full = u64::try_from(100 - QUEUE).unwrap();
        assert_eq!(dropped.get(), full);
        let tasks = super::super::TaskGroup::new(shutdown.clone());
        tasks.spawn("events", work);
        tokio::time::sleep(PATIENCE * u32::try_from(QUEUE + 1).unwrap()).await;
        assert_eq!(dropped.get(), 100);
        *server.away.lock().unwrap() = false;
        queue.enqueue(&regarding(), EventNotice::normal("Unfenced", ""));
        shutdown.trigger();
        tasks.join().await;
        assert_eq!(dropped.get(), 100);
        assert_eq!(server.bodies.lock().unwrap().len(), 1);
    }
}
