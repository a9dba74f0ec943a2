//! Copies a child's output to the pilot's own and remembers its last lines.
//!
//! One small thread per stream, reading and writing like a plain pipe would: nothing is buffered
//! beyond the beginning of a line, nothing is dropped while there is a reader, and a reader that
//! stalls holds the child up exactly as it would without the pilot. The pilot's loop never waits
//! for these threads.
//!
//! A thread that is parked holds nothing: what it read is written, the rest is in the pipe. So
//! another program can go on with the same pipe, and no byte is lost or doubled. The form in which
//! output is written is [`forwarder`]'s.

mod forwarder;
mod lines;

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use self::forwarder::StreamForwarder;
pub use self::lines::LineBuffer;
use super::sys;
use crate::runtime::log::{RecordHead, StandardStream};

/// How long a line may wait for its next byte before its beginning is passed on.
const QUIET: Duration = Duration::from_secs(1);
const STACK: usize = 128 * 1024;
/// How long the pilot waits for the last words of a helper after its end. They are there at once
/// when a thread gets to read them, which takes long only on a busy machine, and where the reader
/// of the pilot's own output stalls.
pub(super) const LINGER: Duration = Duration::from_secs(5);

/// The last lines of a child's output; empty when it is not kept.
#[derive(Clone, Debug, Default)]
pub struct OutputTail(Arc<Mutex<TailState>>);

#[derive(Debug, Default)]
struct TailState {
    lines: LineBuffer,
    pumps: Vec<StreamPump>,
}

#[derive(Debug)]
struct StreamPump {
    stream: StandardStream,
    from: Arc<File>,
    /// Orders to the thread, see [`PARK`]; closing it asks the thread to take what is there and
    /// end.
    control: File,
    /// How often the thread was asked to park; `parked` is how often it did.
    asked: u64,
    parked: watch::Receiver<u64>,
    done: oneshot::Receiver<()>,
}

/// Order to a thread: stop where you are, holding nothing, and wait for the next order.
const PARK: u8 = b'p';
/// Order to a thread: go on.
const RESUME: u8 = b'r';

/// The pipes of a child while no thread reads them.
#[derive(Debug, Default)]
pub struct ParkedPipes {
    pub stdout: Option<Arc<File>>,
    pub stderr: Option<Arc<File>>,
}

impl OutputTail {
    /// Returns the last lines, oldest first: at most 20 lines and 4 KiB.
    pub fn last_lines(&self) -> Vec<String> {
        self.lock().lines.get()
    }

    /// Waits after the child's end until all that it wrote was passed on, but not longer than
    /// `limit`: another process may hold the pipe open, or a reader may have stalled.
    pub async fn wait_until_written(&self, limit: Duration) {
        let pumps = std::mem::take(&mut self.lock().pumps);
        let drain = async {
            for StreamPump { control, done, .. } in pumps {
                drop(control);
                // An error means that the thread is gone, as it should be.
                drop(done.await);
            }
        };
        if tokio::time::timeout(limit, drain).await.is_err() {
            warn!("Output of the database is still being written");
        }
    }

    /// Parks the threads that pass the output on, and returns their pipes. `None` when a reader
    /// stalls, so that a thread does not stop within `limit`; then the threads go on as before.
    pub(super) async fn park(&self, limit: Duration) -> Option<ParkedPipes> {
        let mut parked_streams = Vec::new();
        for pump in &mut self.lock().pumps {
            // A thread that is gone hears nothing, and holds nothing.
            if pump.control.write_all(&[PARK]).is_ok() {
                pump.asked += 1;
            }
            parked_streams.push((pump.stream, pump.from.clone(), pump.parked.clone(), pump.asked));
        }
        let park_all = async {
            let mut pipes = ParkedPipes::default();
            for (stream, source, mut count, target) in parked_streams {
                // An error means that the stream came to its end.
                let source =
                    count.wait_for(|count| *count >= target).await.is_ok().then_some(source);
                match stream {
                    StandardStream::Stdout => pipes.stdout = source,
                    StandardStream::Stderr => pipes.stderr = source,
                }
            }
            pipes
        };
        let parked_pipes = tokio::time::timeout(limit, park_all).await.ok();
        if parked_pipes.is_none() {
            self.resume();
        }
        parked_pipes
    }

    /// Goes on after [`OutputTail::park`].
    pub(super) fn resume(&self) {
        for pump in &mut self.lock().pumps {
            // A thread that is gone has nothing to go on with.
            drop(pump.control.write_all(&[RESUME]));
        }
    }

    /// Returns the lines that another program of this process needs to go on remembering.
    pub(super) fn clone_lines(&self) -> LineBuffer {
        self.lock().lines.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TailState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of the output, beside remembering its last lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputSink {
    Nowhere,
    /// To the pilot's own streams, byte for byte.
    AsItIs,
    /// To the pilot's own streams, as records of a program of this name.
    Records(&'static str),
}

/// Starts to read both streams. Their lines are remembered behind those in `lines`.
pub(super) fn start_reading(
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    lines: LineBuffer,
    sink: OutputSink,
) -> OutputTail {
    let tail = OutputTail(Arc::new(Mutex::new(TailState { lines, pumps: Vec::new() })));
    let to_file = |fd: io::Result<OwnedFd>| fd.ok().map(File::from);
    for (stream, name, source, destination) in [
        (
            StandardStream::Stdout,
            "stdout",
            stdout,
            to_file(io::stdout().as_fd().try_clone_to_owned()),
        ),
        (
            StandardStream::Stderr,
            "stderr",
            stderr,
            to_file(io::stderr().as_fd().try_clone_to_owned()),
        ),
    ] {
        let Some(source) = source else { continue };
        let passage = match sink {
            OutputSink::Nowhere => StreamForwarder::new(stream, None, None),
            OutputSink::AsItIs => StreamForwarder::new(stream, destination, None),
            OutputSink::Records(target) => {
                StreamForwarder::new(stream, destination, Some(RecordHead::new(target, name)))
            }
        };
        match spawn_pump(stream, source, passage, tail.clone()) {
            Ok(pump) => tail.lock().pumps.push(pump),
            Err(error) => warn!(%error, "Output of the child is lost"),
        }
    }
    tail
}

fn spawn_pump(
    stream: StandardStream,
    pipe_fd: OwnedFd,
    passage: StreamForwarder,
    tail: OutputTail,
) -> io::Result<StreamPump> {
    let (orders, control) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let (finished, done) = oneshot::channel();
    let (park_counter, parked) = watch::channel(0);
    fcntl(&pipe_fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let pipe = Arc::new(File::from(pipe_fd));
    let source = pipe.clone();
    std::thread::Builder::new().name("output".into()).stack_size(STACK).spawn(move || {
        if let Err(error) =
            copy_stream(&source, &mut File::from(orders), passage, &tail, &park_counter)
        {
            warn!(%error, "Output of the child is no longer passed on");
        }
        drop(park_counter);
        // The receiver is gone when the child's end was not waited for.
        finished.send(()).ok();
    })?;
    Ok(StreamPump { stream, from: pipe, control: File::from(control), asked: 0, parked, done })
}

/// Passes everything on until the writers are gone, or until asked to end and nothing is left.
fn copy_stream(
    mut source: &File,
    orders: &mut File,
    mut passage: StreamForwarder,
    tail: &OutputTail,
    park_counter: &watch::Sender<u64>,
) -> io::Result<()> {
    let mut is_ending = false;
    loop {
        if !is_ending {
            let limit = passage.is_open().then_some(QUIET);
            let (is_readable, has_order) =
                sys::wait_readable(source.as_fd(), orders.as_fd(), limit)?;
            if has_order {
                let mut word = next_word(orders)?;
                while word == Some(PARK) {
                    passage.close();
                    park_counter.send_modify(|count| *count += 1);
                    word = next_word(orders)?;
                }
                is_ending = word.is_none();
            } else if !is_readable {
                passage.close();
                continue;
            }
        }
        match source.read(passage.read_buffer()) {
            Ok(0) => break,
            Ok(length) => {
                tail.lock().lines.push_bytes(passage.last_read(length));
                passage.forward_bytes(length);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_ending => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                passage.close();
                return Err(error);
            }
        }
    }
    passage.close();
    Ok(())
}

/// Waits for the next order to the thread; `None` once no more can come.
fn next_word(words: &mut File) -> io::Result<Option<u8>> {
    let mut word = [0];
    loop {
        match words.read(&mut word) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(word[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::runtime::log::LineRecord;

    fn into(file: File) -> StreamForwarder {
        StreamForwarder::new(StandardStream::Stdout, Some(file), None)
    }

    /// A thread between two pipes; dropping the first end ends the thread.
    fn between() -> (File, File, OutputTail) {
        let [(from, to), (out, into)] =
            [(); 2].map(|()| nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap());
        let head = RecordHead::new("example", "stdout");
        let passage = StreamForwarder::new(StandardStream::Stdout, Some(into.into()), Some(head));
        let tail = OutputTail::default();
        let pump = spawn_pump(StandardStream::Stdout, from, passage, tail.clone()).unwrap();
        tail.lock().pumps.push(pump);
        (to.into(), out.into(), tail)
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_told_after_a_moment_and_before_a_halt() {
        let (mut to, mut out, tail) = between();
        let mut next = || {
            let mut bytes = vec![0; 4096];
            let length = out.read(&mut bytes).unwrap();
            LineRecord::parse(std::str::from_utf8(&bytes[..length]).unwrap()).unwrap()
        };
        to.write_all(b"ask? ").unwrap();
        let LineRecord { record, partial, .. } = next();
        assert_eq!((record.as_str(), partial), ("ask? ", true));
        to.write_all(b"yes").unwrap();
        let read = async {
            while tail.last_lines() != ["ask? yes"] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("it is read at once");
        assert!(tail.park(Duration::from_secs(60)).await.unwrap().stdout.is_some());
        tail.resume();
        assert_eq!(next().record, "yes");
        to.write_all(b", sir\n").unwrap();
        let LineRecord { record, partial, .. } = next();
        assert_eq!((record.as_str(), partial), (", sir", false));
        to.write_all(b"bye").unwrap();
        drop(to);
        assert_eq!(next().record, "bye");
    }

    #[test]
    fn a_reader_that_stalls_holds_up_the_writer_and_misses_nothing() {
        const LINES: usize = 20_000;
        let (mut to, out, tail) = between();
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let line = "x".repeat(99);
        let writer = std::thread::spawn(move || {
            for _ in 0..LINES {
                writeln!(to, "{line}").unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut seen = None;
        while seen != Some(written.load(Ordering::Relaxed)) {
            seen = Some(written.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(300));
        }
        // Two pipes of 64 KiB, and what the thread reads at once.
        assert!(seen < Some(1600), "{seen:?} lines of 100 bytes were taken from the writer");
        let lines = BufReader::new(out).lines();
        let told = lines.map(|line| LineRecord::parse(&line.unwrap()).unwrap());
        assert_eq!(told.filter(|told| told.record.len() == 99).count(), LINES);
        writer.join().unwrap();
        drop(tail);
    }

    #[tokio::test]
    async fn nothing_is_lost_or_doubled_between_two_readers_of_one_pipe() {
        let (from, to) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let writer = std::thread::spawn(move || {
            let mut to = File::from(to);
            for number in 0..20_000 {
                writeln!(to, "line {number}").unwrap();
            }
        });
        let mut seen = tempfile::tempfile().unwrap();
        let reader = OutputTail::default();
        let out = seen.try_clone().unwrap();
        let first = spawn_pump(StandardStream::Stdout, from, into(out), reader.clone()).unwrap();
        reader.lock().pumps.push(first);
        let mut parked_for_ever = Vec::new();
        for round in 0..50 {
            let parked = reader.park(Duration::from_secs(60)).await.expect("files do not stall");
            let Some(_) = parked.stdout else { break };
            if round % 2 == 0 {
                reader.resume();
                continue;
            }
            // Another reader goes on with what is in the pipe.
            let from = reader.lock().pumps[0].from.try_clone().unwrap();
            let out = seen.try_clone().unwrap();
            let next =
                spawn_pump(StandardStream::Stdout, from.into(), into(out), reader.clone()).unwrap();
            parked_for_ever.push(std::mem::replace(&mut reader.lock().pumps[0], next));
        }
        // Dropping the control would ask the thread to end before its writer does.
        let StreamPump { done, control, .. } = reader.lock().pumps.pop().unwrap();
        done.await.unwrap();
        drop(control);
        writer.join().unwrap();
        use std::io::Seek;
        seen.rewind().unwrap();
        let mut text = String::new();
        seen.read_to_string(&mut text).unwrap();
        for (number, line) in text.lines().enumerate() {
            assert_eq!(line, format!("line {number}"));
        }
        assert_eq!(text.lines().count(), 20_000);
        assert_eq!(reader.last_lines().last().unwrap(), "line 19999");
    }
}
