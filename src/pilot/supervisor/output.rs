//! Copies a child's output to the pilot's own and remembers its last lines.
//!
//! One small thread per stream, reading and writing like a plain pipe would: nothing is
//! buffered beyond one read, nothing is dropped, and a reader that stalls holds the child up
//! exactly as it would without us. The pilot's loop never waits for these threads.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::sync::oneshot;
use tracing::warn;

use super::sys;

/// Lines that are remembered, the bound of `status.lastTermination.logTail`.
const LINES: usize = 20;
/// Bytes of them, likewise.
const BYTES: usize = 4096;
/// One page more than a pipe holds by default would not be read faster.
const CHUNK: usize = 16 * 1024;
const STACK: usize = 128 * 1024;
/// How long output may still come after the child ended, from what it left behind.
pub(super) const LINGER: Duration = Duration::from_millis(50);

/// The last lines of a child's output; empty when it is not kept.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lines: Lines,
    pumps: Vec<Pump>,
}

#[derive(Debug)]
struct Pump {
    /// Closing it asks the thread to take what is there and end.
    stop: Option<OwnedFd>,
    done: oneshot::Receiver<()>,
}

impl Tail {
    /// The last lines, oldest first: at most 20 and 4 KiB.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.get()
    }

    /// After the child's end: waits until all that it wrote was passed on, but not longer than
    /// `limit`, because somebody may hold the pipe open or a reader may have stalled.
    pub async fn finish(&self, limit: Duration) {
        let pumps = std::mem::take(&mut self.lock().pumps);
        let all = async {
            for Pump { stop, done } in pumps {
                drop(stop);
                // An error means that the thread is gone, which is what is waited for.
                drop(done.await);
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            warn!("Output of the database is still being written");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn start(stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> Tail {
    let tail = Tail::default();
    let own =
        (io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned());
    for (from, to) in [(stdout, own.0), (stderr, own.1)] {
        let (Some(from), Ok(to)) = (from, to) else { continue };
        match pump(from, to, tail.clone()) {
            Ok(pump) => tail.lock().pumps.push(pump),
            Err(error) => warn!(%error, "Output of the child is lost"),
        }
    }
    tail
}

fn pump(from: OwnedFd, to: OwnedFd, tail: Tail) -> io::Result<Pump> {
    let (stopped, stop) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let (finished, done) = oneshot::channel();
    fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    std::thread::Builder::new().name("output".into()).stack_size(STACK).spawn(move || {
        if let Err(error) = copy(File::from(from), &stopped, File::from(to), &tail) {
            warn!(%error, "Output of the child is no longer passed on");
        }
        // Nobody listens when the child's end was not waited for.
        finished.send(()).ok();
    })?;
    Ok(Pump { stop: Some(stop), done })
}

/// Passes everything on until the writers are gone, or until asked to stop and nothing is left.
fn copy(mut from: File, stopped: &OwnedFd, mut to: File, tail: &Tail) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let (_, stop) = sys::wait_readable(from.as_fd(), stopped.as_fd())?;
        loop {
            match from.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(length) => {
                    tail.lock().lines.add(&chunk[..length]);
                    // A reader that is gone must not end the database: go on without.
                    drop(to.write_all(&chunk[..length]));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if stop {
            return Ok(());
        }
    }
}

/// A ring of lines. A line longer than all that is kept is cut at its start.
#[derive(Debug, Default)]
struct Lines {
    whole: VecDeque<String>,
    part: Vec<u8>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.part.extend_from_slice(&rest[..end]);
            let line = String::from_utf8_lossy(&self.part).trim_end().to_owned();
            self.part.clear();
            if !line.is_empty() {
                self.whole.push_back(line);
            }
            while self.whole.len() > LINES {
                self.whole.pop_front();
            }
            rest = &rest[end + 1..];
        }
        self.part.extend_from_slice(rest);
        let surplus = self.part.len().saturating_sub(BYTES);
        self.part.drain(..surplus);
    }

    fn get(&self) -> Vec<String> {
        let part = String::from_utf8_lossy(&self.part).trim_end().to_owned();
        let all = self.whole.iter().cloned().chain((!part.is_empty()).then_some(part));
        let mut lines: Vec<String> = all.collect();
        let mut left = BYTES;
        let mut first = lines.len();
        while first > lines.len().saturating_sub(LINES) && lines[first - 1].len() < left {
            first -= 1;
            left -= lines[first].len() + 1;
        }
        let kept = lines.split_off(first);
        if kept.is_empty()
            && let Some(mut long) = lines.pop()
        {
            let mut cut = long.len().saturating_sub(BYTES / 2);
            while !long.is_char_boundary(cut) {
                cut += 1;
            }
            return vec![long.split_off(cut)];
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        let mut lines = Lines::default();
        for piece in text.as_bytes().chunks(7) {
            lines.add(piece);
        }
        lines.get()
    }

    #[test]
    fn the_last_twenty_lines_are_kept_and_an_unfinished_one_counts() {
        assert_eq!(of("one\n\ntwo\r\nthr"), ["one", "two", "thr"]);
        let many: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        assert_eq!(of(&many.join("\n")), many[30..]);
    }

    #[test]
    fn four_kibibytes_are_the_limit() {
        let long = format!("{}\nend\n", "x".repeat(9000));
        assert_eq!(of(&long), ["end"]);
        let kept = of(&"ä".repeat(4000));
        assert_eq!(kept.len(), 1);
        assert!(kept[0].len() <= BYTES, "{}", kept[0].len());
    }
}
