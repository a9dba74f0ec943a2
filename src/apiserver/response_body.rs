//! Response bodies: one that keeps a guard alive until the body was sent or dropped, and one of
//! parts whose memory is shared.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body that holds a guard as long as it lives. Length and end of `body` stay known, so that a
/// response keeps its Content-Length.
struct GuardedBody<G> {
    body: Body,
    _guard: G,
}

/// Creates a body of `parts`, one after the other. Their memory may be shared with other bodies.
pub(super) fn in_parts(parts: Vec<Bytes>) -> Body {
    let remaining_bytes = parts.iter().map(|part| part.len() as u64).sum();
    Body::new(PartsBody { parts: parts.into(), left: remaining_bytes })
}

struct PartsBody {
    parts: VecDeque<Bytes>,
    left: u64,
}

/// Most bytes of a frame that small parts are copied into: a frame costs more than the copy. A
/// frame's memory is no larger than its data, because connections bound what they hold by bytes.
const FRAME: usize = 32 * 1024;

impl PartsBody {
    fn next(&mut self) -> Option<Bytes> {
        let (mut count, mut length) = (0, 0);
        for part in &self.parts {
            if count > 0 && length + part.len() > FRAME {
                break;
            }
            count += 1;
            length += part.len();
        }
        if count < 2 {
            return self.parts.pop_front();
        }
        let mut frame = BytesMut::with_capacity(length);
        for part in self.parts.drain(..count) {
            frame.extend_from_slice(&part);
        }
        Some(frame.freeze())
    }
}

impl HttpBody for PartsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.next();
        self.left -= frame.as_ref().map_or(0, |frame| frame.len() as u64);
        Poll::Ready(frame.map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Returns the response with a body that holds `guard` until it was sent or dropped.
pub(super) fn attach_guard<G>(response: Response<Body>, guard: G) -> Response<Body>
where
    G: Unpin + Send + 'static,
{
    response.map(|body| Body::new(GuardedBody { body, _guard: guard }))
}

impl<G: Unpin> HttpBody for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn small_parts_share_a_frame_and_large_ones_are_not_copied() {
        let large = Bytes::from(vec![b'x'; 2 * FRAME]);
        let small = Bytes::from_static(b"0123456789");
        let mut parts = vec![small.clone(); 2 * FRAME / 10];
        parts.insert(5000, large.clone());
        let whole = parts.concat();
        let mut body = in_parts(parts);
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        let (mut read, mut frames) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            let is_large = data.as_ptr() == large.as_ptr();
            assert!(data.len() <= FRAME || is_large);
            if !is_large {
                let room = data.clone().try_into_mut().map(|frame| frame.capacity());
                assert!(room.is_err() || room == Ok(data.len()), "{room:?}");
            }
            assert_eq!(
                body.size_hint().exact(),
                Some((whole.len() - read.len() - data.len()) as u64)
            );
            read.extend_from_slice(&data);
            frames += 1;
        }
        assert!(read == whole, "other bytes");
        assert!(frames <= 5, "{frames} frames");
        assert!(body.is_end_stream());
        assert!(in_parts(Vec::new()).is_end_stream());
    }
}
