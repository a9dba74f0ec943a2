//! A response body on its way to a client: sent in pieces, and cut off when the client takes none.
//!
//! A piece is handed out when the client has taken the one before. So a client that does not read
//! keeps in memory what its connection holds for it (64 KiB of an HTTP/2 stream) and one piece, and
//! is cut when it stalls.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use hyper::{
    body::{Body as HttpBody, Frame, SizeHint},
    rt::Executor,
};
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, sleep};

/// Time after which a client that takes nothing of a response is cut.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// Most bytes of a piece: a TLS record.
const PIECE: usize = 16 * 1024;
/// Most bytes of the last piece of a body whose end is known. HTTP/2 keeps this piece after the
/// server has released the stream.
const LAST: usize = 1024;

/// Whether a response waits for its client or for the server, and since when.
#[derive(Debug)]
pub(super) struct ResponsePace {
    began: Instant,
    /// Milliseconds after `began` at which the client got its last piece; [`ResponsePace::OURS`]
    /// while the client waits for the server.
    handed: AtomicU64,
}

impl ResponsePace {
    const OURS: u64 = u64::MAX;

    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), handed: AtomicU64::new(Self::OURS) })
    }

    fn start_timer(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0);
        self.handed.store(now, Ordering::Relaxed);
    }

    fn stop_timer(&self) {
        self.handed.store(Self::OURS, Ordering::Relaxed);
    }

    /// Waits until the client has taken nothing for [`STALLED`].
    async fn wait_until_stalled(&self) {
        loop {
            let remaining_time = match self.handed.load(Ordering::Relaxed) {
                Self::OURS => STALLED,
                handed_ms => {
                    let handed_at = Duration::from_millis(handed_ms);
                    (handed_at + STALLED).saturating_sub(self.began.elapsed())
                }
            };
            if remaining_time.is_zero() {
                return;
            }
            sleep(remaining_time).await;
        }
    }
}

tokio::task_local! {
    /// The pace of the HTTP/2 stream that this task serves.
    static STREAM: Arc<ResponsePace>;
}

/// Returns the pace of this task's HTTP/2 stream. For an HTTP/1 connection, which has only its
/// socket to watch, it returns a new one.
pub(super) fn stream_pace() -> Arc<ResponsePace> {
    STREAM.try_with(Arc::clone).unwrap_or_else(|_| ResponsePace::new())
}

/// Runs the streams of an HTTP/2 connection, and drops those that stall, which resets them. Other
/// streams of the connection, which the aggregator shares between users, go on.
#[derive(Clone)]
pub(super) struct StreamExecutor;

impl<F> Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let pace = ResponsePace::new();
        TokioExecutor::new().execute(STREAM.scope(Arc::clone(&pace), async move {
            tokio::select! {
                _ = stream => {}
                () = pace.wait_until_stalled() => {}
            }
        }));
    }
}

/// A body in pieces, which holds its guard until the last piece was taken.
pub(super) struct PacedBody<G> {
    body: Body,
    /// What is left of the body's last frame.
    rest: Bytes,
    pace: Arc<ResponsePace>,
    done: bool,
    _guard: G,
}

impl<G> PacedBody<G> {
    pub(super) fn new(body: Body, pace: Arc<ResponsePace>, guard: G) -> Self {
        let is_done = body.is_end_stream();
        Self { body, rest: Bytes::new(), pace, done: is_done, _guard: guard }
    }

    fn take_piece(&mut self) -> Frame<Bytes> {
        let length = match self.rest.len() {
            length if length > PIECE => PIECE,
            length if length > LAST && self.body.size_hint().upper() == Some(0) => length - LAST,
            length => length,
        };
        self.pace.start_timer();
        Frame::data(self.rest.split_to(length))
    }
}

impl<G: Unpin> HttpBody for PacedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.pace.stop_timer();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                outcome => {
                    self.done = true;
                    return Poll::Ready(outcome);
                }
            }
        }
        Poll::Ready(Some(Ok(self.take_piece())))
    }

    // The body ends not with its last piece, but after the client took it.
    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_comes_in_pieces_and_whoever_takes_none_is_noticed() {
        let pace = ResponsePace::new();
        let mut body = PacedBody::new(Body::from(vec![7; 40_000]), Arc::clone(&pace), ());
        assert_eq!(body.size_hint().exact(), Some(40_000));
        let mut lengths = Vec::new();
        let began = Instant::now();
        tokio::select! {
            () = pace.wait_until_stalled() => panic!("it was taken piece by piece"),
            () = async {
                while let Some(frame) = body.frame().await {
                    lengths.push(frame.unwrap().into_data().unwrap().len());
                    sleep(STALLED / 2).await;
                    assert!(!body.is_end_stream() || lengths.len() == 4);
                }
            } => {}
        }
        assert_eq!(lengths, [16_384, 16_384, 6208, 1024]);
        assert!(began.elapsed() >= STALLED * 2);

        let mut body = PacedBody::new(Body::from(vec![7; 40_000]), Arc::clone(&pace), ());
        let handed = Instant::now();
        drop(body.frame().await);
        pace.wait_until_stalled().await;
        assert!(handed.elapsed() >= STALLED && handed.elapsed() < STALLED * 2);
    }

    #[tokio::test]
    async fn frames_of_a_body_without_a_known_end_stay_whole() {
        let lines = [2000, 40_000].map(|length| Ok::<_, axum::Error>(vec![7; length]));
        let lines = Body::from_stream(futures::stream::iter(lines));
        let mut body = PacedBody::new(lines, ResponsePace::new(), ());
        let mut lengths = Vec::new();
        while let Some(frame) = body.frame().await {
            lengths.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(lengths, [2000, 16_384, 16_384, 7232]);
    }
}
