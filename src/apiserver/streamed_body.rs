//! Response bodies whose pieces are made while they are sent: of a long list one item at a time.

use std::{
    convert::Infallible,
    io::Write as _,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use hyper::body::{Body as HttpBody, Frame};

use super::request_cost;

/// Bytes of pieces that are gathered for a frame: each frame costs more than the copying of its
/// pieces.
const FRAME: usize = 32 * 1024;

/// Makes a body of pieces that are made when they are sent, off the threads that serve others.
pub(super) fn in_pieces(pieces: impl Iterator<Item = Bytes> + Send + Unpin + 'static) -> Body {
    Body::new(StreamedBody(pieces))
}

struct StreamedBody<I>(I);

impl<I: Iterator<Item = Bytes> + Unpin> HttpBody for StreamedBody<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = request_cost::run_blocking(usize::MAX, || {
            let mut frame = BytesMut::new();
            while frame.len() < FRAME
                && let Some(piece) = self.0.next()
            {
                frame.extend_from_slice(&piece);
            }
            frame.freeze()
        });
        Poll::Ready((!frame.is_empty()).then(|| Ok(Frame::data(frame))))
    }
}

/// Iterates over pieces, compressed with gzip at its fastest level.
pub(super) struct GzippedPieces<I> {
    pieces: I,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I> GzippedPieces<I> {
    pub(super) fn new(pieces: I) -> Self {
        Self { pieces, encoder: Some(GzEncoder::new(Vec::new(), Compression::new(1))) }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for GzippedPieces<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let encoder = self.encoder.as_mut()?;
        for piece in self.pieces.by_ref() {
            encoder.write_all(&piece).expect("writing to a Vec cannot fail");
            if encoder.get_ref().len() >= FRAME {
                return Some(mem::take(encoder.get_mut()).into());
            }
        }
        let end = self.encoder.take()?.finish();
        Some(end.expect("writing to a Vec cannot fail").into())
    }
}
