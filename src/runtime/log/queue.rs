//! Log lines without a wait for the log's reader: a thread writes them, one after the other.
//!
//! The reader of our standard error may stall, and a write would then block the thread that logs:
//! in a pilot, the one loop that answers signals. So lines are queued, as many as are worth
//! keeping; a line beyond them is dropped and counted.

use std::{
    io::{self, Write},
    sync::{
        OnceLock,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{Builder, sleep},
    time::{Duration, Instant},
};

use prometheus::IntCounter;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

/// Most log lines that wait to be written. A start and a stop with all that can be wrong come to a
/// hundred lines of about 300 bytes.
const LINES: usize = 1000;
const STACK: usize = 128 * 1024;

enum QueueMessage {
    Line(Vec<u8>),
    /// Answered when every line before this message was written.
    Flush(SyncSender<()>),
}

/// The queue of log lines that wait for the thread that writes them. Cheap to clone; all clones are
/// one queue.
#[derive(Clone)]
pub(super) struct LogQueue {
    messages: SyncSender<QueueMessage>,
    dropped: IntCounter,
}

impl LogQueue {
    /// Makes a queue, and a thread that writes its lines to `writer`.
    pub(super) fn start(writer: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, receiver) = sync_channel(LINES);
        let queue = Self { messages, dropped: dropped_lines().clone() };
        let counter = queue.dropped.clone();
        let name = Builder::new().name("log".into()).stack_size(STACK);
        name.spawn(move || write_lines(&receiver, writer, &counter))?;
        Ok(queue)
    }

    /// Waits until the lines queued so far are written, but not longer than `limit`.
    pub(super) fn flush_within(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (sender, receiver) = sync_channel(1);
        let mut message = QueueMessage::Flush(sender);
        while let Err(TrySendError::Full(unsent_message)) = self.messages.try_send(message) {
            if Instant::now() >= until {
                return;
            }
            message = unsent_message;
            sleep(Duration::from_millis(5));
        }
        // The thread is late or gone: the caller has waited as long as it may.
        receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    }
}

/// Returns the counter of log lines that were dropped in this process.
pub(super) fn dropped_lines() -> &'static IntCounter {
    static DROPPED: OnceLock<IntCounter> = OnceLock::new();
    DROPPED.get_or_init(|| {
        let help = "Log lines that were dropped because their reader was too slow";
        IntCounter::new("navigator_pilot_log_lines_dropped_total", help)
            .expect("the name is a metric's")
    })
}

fn write_lines(messages: &Receiver<QueueMessage>, mut writer: impl Write, counter: &IntCounter) {
    let mut reported_count = counter.get();
    while let Ok(message) = messages.recv() {
        match message {
            // A write fails when the log's reader is gone, and there is no other place to tell it.
            QueueMessage::Line(line) => drop(writer.write_all(&line)),
            QueueMessage::Flush(sender) => drop(sender.try_send(())),
        }
        let count = counter.get();
        if count > reported_count {
            warn!(
                lines = count - reported_count,
                "Log lines were dropped: their reader was too slow"
            );
            reported_count = count;
        }
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// One write is one line.
impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(QueueMessage::Line(line.to_owned())).is_err() {
            self.dropped.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A reader that takes a line only when it is told to.
    struct Stalled(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Stalled {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // An error means that the test is over.
            self.0.recv().ok();
            drop(self.1.send(line.to_owned()));
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stalls_holds_up_nobody_and_misses_what_was_too_much() {
        let (go, wait) = channel();
        let (read, seen) = channel();
        let queue = LogQueue::start(Stalled(wait, read)).unwrap();
        let before = queue.dropped.get();
        for number in 0..2 * LINES {
            (&queue).write_all(format!("{number}").as_bytes()).unwrap();
        }
        let lost = usize::try_from(queue.dropped.get() - before).unwrap();
        // One more line may be with the thread.
        assert!((LINES - 1..=LINES).contains(&lost), "{lost}");
        let begun = Instant::now();
        queue.flush_within(Duration::from_millis(50));
        assert!(begun.elapsed() >= Duration::from_millis(50), "it could not be flushed");
        drop(go);
        queue.flush_within(Duration::from_secs(60));
        let number = |line: Vec<u8>| String::from_utf8(line).unwrap().parse().unwrap();
        let lines: Vec<usize> = seen.try_iter().map(number).collect();
        assert_eq!(lines.len(), 2 * LINES - lost);
        // The thread may take the first line late, when other lines were dropped already: then one
        // of the last lines has its place in the queue.
        assert!(lines.is_sorted() && lines[..LINES].iter().copied().eq(0..LINES), "{lines:?}");
    }
}
