//! A connection that is cut when its other end takes nothing for long.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::paced_body::STALLED;
use crate::apiserver::account::{MemoryShare, MemoryUse};

/// Most bytes that a client may send until its handshake is over: the longest chain that is judged,
/// the rest of the handshake, and the part of a first request that came with its end.
const HANDSHAKE: usize = 64 * 1024;
/// Bytes of a handshake that every client may send without taking memory from the budget.
const FREE: usize = 8 * 1024;
/// Bytes of memory that TLS and the server take for a byte of a certificate chain.
const CHAIN: usize = 3;

/// A stream that fails a write without progress for [`STALLED`], and a handshake that is too long.
pub(super) struct TimeoutStream<S> {
    stream: S,
    /// Bytes of the handshake that came so far; absent once the handshake is over.
    came: Option<usize>,
    /// The memory budget's share for a long handshake, and then for a long chain.
    share: MemoryShare,
    limit: Pin<Box<Sleep>>,
    waiting: bool,
}

impl<S> TimeoutStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            came: Some(0),
            share: MemoryShare::NONE,
            limit: Box::pin(sleep(STALLED)),
            waiting: false,
        }
    }

    /// Records that the handshake is over and left a certificate chain of `chain` bytes behind.
    pub(super) fn finish_handshake(&mut self, chain: usize) {
        self.came = None;
        self.share.shrink(if chain > FREE { CHAIN * chain } else { 0 });
    }

    /// Counts the bytes that came during a handshake. Fails when they are too many.
    fn count_bytes(&mut self, new_bytes: usize) -> io::Result<()> {
        let Some(previous_bytes) = self.came else { return Ok(()) };
        let total_bytes = previous_bytes + new_bytes;
        self.came = Some(total_bytes);
        let invalid_data = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if total_bytes > HANDSHAKE {
            return invalid_data(format!("a handshake has {HANDSHAKE} bytes at most"));
        }
        if total_bytes > FREE && !self.share.try_grow(MemoryUse::Kept, CHAIN * new_bytes) {
            return invalid_data("too many long handshakes at one time".to_owned());
        }
        Ok(())
    }

    /// Passes the outcome of a write on. Fails when there has been none for [`STALLED`].
    fn check_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = false;
            return outcome;
        }
        if !self.waiting {
            self.waiting = true;
            self.limit.as_mut().reset(Instant::now() + STALLED);
        }
        match self.limit.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let old_length = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        let new_bytes = buffer.filled().len() - old_length;
        match outcome {
            Poll::Ready(Ok(())) => Poll::Ready(self.count_bytes(new_bytes)),
            outcome => outcome,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_timeout(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_timeout(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.check_timeout(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_timeout(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_and_one_that_stops_is_cut() {
        let (ours, mut theirs) = duplex(100);
        let mut ours = TimeoutStream::new(ours);
        let mut piece = [0; 100];
        for _ in 0..5 {
            let write = ours.write_all(&[7; 100]);
            let read = async {
                tokio::time::sleep(STALLED / 2).await;
                theirs.read_exact(&mut piece).await
            };
            let (written, read) = tokio::join!(write, read);
            assert!(written.is_ok() && read.is_ok());
        }
        ours.write_all(&[7; 100]).await.unwrap();
        let began = Instant::now();
        let error = ours.write_all(&[7; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= STALLED);
    }
}
