//! Watches of etcd, and the progress that they report when they are asked.
//!
//! A watch reports progress by itself only every ten minutes. A reader that waits for a revision at
//! which another resource was written says so (`request_progress` of [`super::EtcdStore`]); then every
//! watch that is behind asks etcd, again and again until it is not: etcd leaves a request
//! unanswered while the watch still catches up.

use std::{collections::VecDeque, time::Duration};

use etcd_client::{EventType, WatchOptions};
use futures::stream;
use tokio::{
    sync::watch as latest,
    time::{Instant, sleep_until, timeout},
};

use super::{
    super::{Error, KeyPrefix, Result, Revision, StoreEvent, WatchStream},
    ANSWER_WITHIN, EtcdStore, revision_number, store_error, to_revision,
};

/// Pause between two requests for progress by one watch.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

struct EtcdWatcher {
    etcd: EtcdStore,
    stream: etcd_client::WatchStream,
    wanted: latest::Receiver<Revision>,
    ask_at: Instant,
    /// Revision up to which every event was read.
    reached: Revision,
    ready: VecDeque<StoreEvent>,
    ended: bool,
}

/// Returns the events of a prefix after `start_revision`.
pub(super) async fn watch_events(
    etcd: &EtcdStore,
    prefix: &KeyPrefix,
    start_revision: Revision,
) -> Result<WatchStream> {
    let stream = open_watch(etcd, prefix.as_str(), start_revision).await?;
    let mut watcher = EtcdWatcher {
        etcd: etcd.clone(),
        stream,
        wanted: etcd.wanted.subscribe(),
        ask_at: Instant::now(),
        reached: start_revision,
        ready: VecDeque::new(),
        ended: false,
    };
    // The first answer says whether etcd still knows that revision.
    watcher.read_first().await?;
    Ok(Box::pin(stream::unfold(watcher, |mut watcher| async {
        if watcher.ended {
            return None;
        }
        let next_event = watcher.next().await;
        watcher.ended = next_event.is_err();
        Some((next_event, watcher))
    })))
}

/// Returns the oldest revision that a compacted etcd knows. etcd tells it to a watch that asks for
/// an older one; an etcd that was never compacted keeps silent.
pub(super) async fn read_oldest(etcd: &EtcdStore) -> Result<Revision> {
    let mut stream = open_watch(etcd, "store-id", Revision(0)).await?;
    while let Some(response) = stream.message().await.map_err(store_error)? {
        if response.compact_revision() > 0 {
            return Ok(to_revision(response.compact_revision()));
        }
    }
    Err(Error::Unavailable { source: "etcd ended the watch".into() })
}

async fn open_watch(
    etcd: &EtcdStore,
    range: &str,
    start_revision: Revision,
) -> Result<etcd_client::WatchStream> {
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(revision_number(start_revision) + 1)
        .with_progress_notify()
        .with_fragment();
    let mut client = etcd.client.watch_client().max_decoding_message_size(usize::MAX);
    let watch_request = client.watch(format!("{}{range}", etcd.root), Some(options));
    match timeout(ANSWER_WITHIN, watch_request).await {
        Ok(stream) => stream.map_err(store_error),
        Err(elapsed) => Err(Error::Unavailable { source: Box::new(elapsed) }),
    }
}

impl EtcdWatcher {
    async fn read_first(&mut self) -> Result<()> {
        match timeout(ANSWER_WITHIN, self.stream.message()).await {
            Ok(message) => self.process_response(message),
            Err(elapsed) => Err(Error::Unavailable { source: Box::new(elapsed) }),
        }
    }

    async fn next(&mut self) -> Result<StoreEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let is_behind = *self.wanted.borrow_and_update() > self.reached;
            // Each of these may be dropped half-way: a message that has not come whole stays in
            // the stream's buffer.
            tokio::select! {
                message = self.stream.message() => self.process_response(message)?,
                // The sender cannot go: `etcd` holds it.
                _ = self.wanted.changed(), if !is_behind => {}
                () = sleep_until(self.ask_at), if is_behind => {
                    self.stream.request_progress().await.map_err(store_error)?;
                    self.ask_at = Instant::now() + ASK_AGAIN_AFTER;
                }
            }
        }
    }

    fn process_response(
        &mut self,
        message: Result<Option<etcd_client::WatchResponse>, etcd_client::Error>,
    ) -> Result<()> {
        let Some(response) = message.map_err(store_error)? else {
            return Err(Error::Unavailable { source: "etcd ended the watch".into() });
        };
        if response.compact_revision() > 0 {
            let oldest = to_revision(response.compact_revision());
            return Err(Error::Compacted { asked: self.reached, oldest });
        }
        if response.canceled() {
            let source = format!("etcd cancelled the watch: {}", response.cancel_reason()).into();
            return Err(Error::Unavailable { source });
        }
        for event in response.events() {
            let event = self.parse_event(event)?;
            self.reached = event.revision();
            self.ready.push_back(event);
        }
        // The answer to the request for the watch has no events either, but promises nothing.
        if response.events().is_empty() && !response.created() {
            let raw_revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
            let progress_revision = to_revision(raw_revision);
            if progress_revision > self.reached {
                self.reached = progress_revision;
                self.ready.push_back(StoreEvent::Progress(progress_revision));
            }
        }
        Ok(())
    }

    fn parse_event(&self, event: &etcd_client::Event) -> Result<StoreEvent> {
        let kv = event
            .kv()
            .ok_or_else(|| Error::Corrupt { reason: "etcd sent an event without a key".into() })?;
        Ok(match event.event_type() {
            EventType::Put => StoreEvent::Put {
                entry: self.etcd.parse_entry(kv)?,
                created: kv.create_revision() == kv.mod_revision(),
            },
            EventType::Delete => StoreEvent::Delete {
                key: self.etcd.parse_key(kv.key())?,
                revision: to_revision(kv.mod_revision()),
            },
        })
    }
}
