//! Response bodies: one that keeps something alive until it was sent or dropped, and one of
//! parts that are shared.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// `body`, holding `guard` as long as it lives. Length and end stay known, so that a response
/// keeps its Content-Length.
struct Guarded<G> {
    body: Body,
    _guard: G,
}

/// A body of these bytes, one after the other. They may be shared with others.
pub(super) fn in_parts(parts: Vec<Bytes>) -> Body {
    let left = parts.iter().map(|part| part.len() as u64).sum();
    Body::new(Parts { parts: parts.into(), left })
}

struct Parts {
    parts: VecDeque<Bytes>,
    left: u64,
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.left -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The response, whose body holds `guard`.
pub(super) fn guarded<G>(response: Response<Body>, guard: G) -> Response<Body>
where
    G: Unpin + Send + 'static,
{
    response.map(|body| Body::new(Guarded { body, _guard: guard }))
}

impl<G: Unpin> HttpBody for Guarded<G> {
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
